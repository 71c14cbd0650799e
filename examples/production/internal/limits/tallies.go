package limits

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A tally is what this replica knows of one account.
type tally struct {
	here int64 // chats in progress in this replica, including those that are still being admitted
	seen int64 // tokens of the day that Redis is known to have counted

	minute *rate.Limiter // nil unless Redis is away

	rejection rejection // by Redis, the last
	until     time.Time // how long its reason lasts
	askAt     time.Time // when Redis is asked again
}

// tallies are those of all accounts that were active on a day, or have chats in
// progress.
type tallies struct {
	mu  sync.Mutex
	day int64 // of UTC, in days since 1970
	all map[string]*tally
}

func newTallies() *tallies { return &tallies{all: make(map[string]*tally)} }

// of is called with the lock held. On a new day it forgets all but the chats in
// progress.
func (t *tallies) of(account string) *tally {
	if day := time.Now().Unix() / 86400; day != t.day {
		t.day = day
		for known, one := range t.all {
			*one = tally{here: one.here}
			if one.here == 0 {
				delete(t.all, known)
			}
		}
	}
	if t.all[account] == nil {
		t.all[account] = new(tally)
	}
	return t.all[account]
}

// seen returns how many tokens of which day Redis has counted at least.
func (t *tallies) seen(account string) (day, tokens int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	return t.day, one.seen
}

// note stores the result of seen in entries.
func (t *tallies) note(entries []entry) {
	for i := range entries {
		entries[i].day, entries[i].known = t.seen(entries[i].account)
	}
}

// mostRejected is how long an account that was rejected is rejected without
// asking Redis: for a lasting reason, or if a key would have to be claimed, too.
const mostRejected = time.Second

// saw notes the response of Redis.
func (t *tallies) saw(account string, used int64, why rejection) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	one.seen, one.minute = max(one.seen, used), nil
	if why.reason != "" {
		one.rejection, one.until = why, time.Now().Add(why.wait)
		one.askAt = time.Now().Add(min(why.wait, mostRejected))
	}
}

// reserve takes a slot for a chat in this replica, unless Redis has just said why to reject it: asking again would only add load to Redis. It
// returns how many slots the account has here.
func (t *tallies) reserve(account string) (here int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	why := one.recent()
	if why.passes() {
		why = rejection{} // only Redis knows whether it still applies
	}
	if err := why.err(); err != nil {
		return 0, err
	}
	one.here++
	return one.here, nil
}

// release undoes reserve.
func (t *tallies) release(account string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.of(account).here--
}

// rejected returns why a chat of an account would be rejected without asking Redis.
func (t *tallies) rejected(account string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.of(account).recent().err()
}

// recent is a recent rejection by Redis.
func (t *tally) recent() rejection {
	if time.Until(t.askAt) <= 0 {
		return rejection{}
	}
	return rejection{t.rejection.reason, time.Until(t.until)}
}

// ended notes the end of a chat, after which there may be room for another.
func (t *tallies) ended(account string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one := t.of(account); one.rejection.passes() {
		one.askAt = time.Time{}
	}
}

// settled notes what Redis has counted: the totals of the accounts of the first
// entries.
func (t *tallies) settled(batch []entry, used []int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range min(len(batch), len(used)) {
		one := t.of(batch[i].account)
		one.seen = max(one.seen, used[i])
	}
}

// admit decides without Redis. unsettled are tokens that Redis has not counted
// yet; here is how many chats of the account this replica has, including the new
// one.
func (t *tallies) admit(account string, limits Limits, unsettled, here int64) rejection {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of(account)
	switch {
	case limits.TokensPerDay > 0 && one.seen+unsettled >= limits.TokensPerDay:
		return rejection{"tokens", time.Until(time.Unix((t.day+1)*86400, 0))}
	case limits.ConcurrentChats > 0 && here > limits.ConcurrentChats:
		return rejection{"slots", soon}
	case limits.ChatsPerMinute > 0 && !one.perMinute(limits.ChatsPerMinute).Allow():
		return rejection{"minute", max(soon, minute/time.Duration(limits.ChatsPerMinute))}
	}
	return rejection{}
}

// perMinute allows a burst of the limit, and then the limit per minute.
func (t *tally) perMinute(limit int64) *rate.Limiter {
	if t.minute == nil || t.minute.Burst() != int(min(limit, mostPerMinute)) {
		t.minute = rate.NewLimiter(rate.Limit(float64(limit)/minute.Seconds()), int(min(limit, mostPerMinute)))
	}
	return t.minute
}
