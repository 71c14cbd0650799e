package limits

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A tally is what this replica knows of one account by itself.
type tally struct {
	day  int64 // of UTC, in days since 1970
	seen int64 // tokens of the day that Redis has known of

	minute *rate.Limiter // nil unless Redis is away

	refused refusal   // by Redis, for a reason that lasts
	until   time.Time // for how long it is so
	askAt   time.Time // when Redis is asked again
}

// tallies are those of all accounts that were asked for on a day.
type tallies struct {
	mu  sync.Mutex
	day int64
	all map[string]*tally
}

func newTallies() *tallies { return &tallies{all: make(map[string]*tally)} }

// of is called with the lock held.
func (t *tallies) of(account string) *tally {
	if day := time.Now().Unix() / 86400; day != t.day {
		t.day = day
		clear(t.all)
	}
	if t.all[account] == nil {
		t.all[account] = &tally{day: t.day}
	}
	return t.all[account]
}

// seen returns how many tokens of which day Redis has known of at least.
func (t *tallies) seen(account string) (day, tokens int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	return one.day, one.seen
}

// note has entries say what seen returns.
func (t *tallies) note(entries []entry) {
	for i := range entries {
		entries[i].day, entries[i].known = t.seen(entries[i].account)
	}
}

// mostRefused is for how long an account that was refused for a reason that lasts
// is refused without asking.
const mostRefused = time.Second

// saw notes what Redis has said.
func (t *tallies) saw(account string, used int64, why refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	one.seen, one.minute = max(one.seen, used), nil
	if why.reason != "" && !why.passes() {
		one.refused, one.until = why, time.Now().Add(why.wait)
		one.askAt = time.Now().Add(min(why.wait, mostRefused))
	}
}

// refused returns a refusal of a moment ago that is still so.
func (t *tallies) refused(account string) refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	if time.Until(one.askAt) <= 0 {
		return refusal{}
	}
	return refusal{one.refused.reason, time.Until(one.until)}
}

// settled notes what Redis has counted: of the first entries, what their accounts
// have used.
func (t *tallies) settled(batch []entry, used []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range min(len(batch), len(used)) {
		one := t.of(batch[i].account)
		one.seen = max(one.seen, used[i])
	}
}

// admit decides without Redis. unsettled are tokens that this replica has not
// brought to account yet; here is how many chats of the account it has, the one
// that asks included.
func (t *tallies) admit(account string, limits Limits, unsettled, here int64) refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	switch {
	case limits.TokensPerDay > 0 && one.seen+unsettled >= limits.TokensPerDay:
		return refusal{"tokens", time.Until(time.Unix((one.day+1)*86400, 0))}
	case limits.ChatsAtOnce > 0 && here > limits.ChatsAtOnce:
		return refusal{"places", soon}
	case limits.ChatsPerMinute > 0 && !one.perMinute(limits.ChatsPerMinute).Allow():
		return refusal{"minute", max(soon, minute/time.Duration(limits.ChatsPerMinute))}
	}
	return refusal{}
}

// perMinute allows a limit at once, and then as many in a minute.
func (t *tally) perMinute(limit int64) *rate.Limiter {
	if t.minute == nil || t.minute.Burst() != int(min(limit, mostPerMinute)) {
		t.minute = rate.NewLimiter(rate.Limit(float64(limit)/minute.Seconds()), int(min(limit, mostPerMinute)))
	}
	return t.minute
}
