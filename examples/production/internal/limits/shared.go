package limits

import (
	"context"
	_ "embed"
	"fmt"
	"math"
	"time"

	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// shared is what the replicas count together, in Redis. An account has four keys:
// a list of the times of its last admissions, the tokens of the day, a sorted set
// of leases by the time when they run out, and a hash of the tokens that are
// reserved for each lease and, as "all", for all of them. A replica has one: the
// number of the last batch that it has brought to account.
type shared struct {
	redis   *redisclient.Client
	replica string
	lease   time.Duration
	window  time.Duration // of ChatsPerMinute
}

var (
	//go:embed admit.lua
	admitSource string
	//go:embed settle.lua
	settleSource string

	admitScript  = redis.NewScript(admitSource)
	settleScript = redis.NewScript(settleSource)
)

const (
	// mostPerMinute is as good as no limit. Scripts in Redis count in floating
	// point, and an index much larger is not one any more.
	mostPerMinute = math.MaxInt32
	// settledAtOnce bounds one batch: Redis does nothing else meanwhile.
	settledAtOnce = 200
	// markLasts is how long a batch that comes again is known.
	markLasts = time.Hour
)

func (s shared) key(kind, of string) string { return s.redis.Key("limits:" + kind + ":" + of) }

// admit takes a place for a chat, or returns why there is none. An error means
// that Redis did not say. used is how many tokens the account has used today; day
// and known are what this replica has last heard of that.
func (s shared) admit(ctx context.Context, c *chat, limits Limits, day, known int64) (why refusal, used int64, err error) {
	keys := []string{s.key("minute", c.account), s.key("tokens", c.account), s.key("places", c.account), s.key("reserved", c.account)}
	answer, err := admitScript.Run(ctx, s.redis, keys,
		c.lease, s.lease.Milliseconds(), s.window.Milliseconds(),
		min(limits.ChatsPerMinute, mostPerMinute), limits.TokensPerDay, limits.ChatsAtOnce,
		c.reserved, day, known).Slice()
	if err != nil {
		return refusal{}, 0, fmt.Errorf("asking for a place: %w", err)
	}
	reason, _ := answer[0].(string)
	milliseconds, _ := answer[1].(int64)
	used, _ = answer[2].(int64)
	return refusal{reason, time.Duration(milliseconds) * time.Millisecond}, used, nil
}

// settle brings a batch to account. It may be called again with the same number
// when it failed: what it did then is not done twice. It returns how many tokens
// the account of each entry has used today, where it can.
func (s shared) settle(ctx context.Context, number int64, batch []entry) (used []int64, err error) {
	keys := []string{s.key("settled", s.replica)}
	arguments := []any{number, s.lease.Milliseconds(), markLasts.Milliseconds()}
	for _, e := range batch {
		keys = append(keys, s.key("tokens", e.account), s.key("places", e.account), s.key("reserved", e.account))
		arguments = append(arguments, e.lease, e.used, e.reserved, e.goesOn, e.day, e.known)
	}
	used, err = settleScript.Run(ctx, s.redis, keys, arguments...).Int64Slice()
	if err != nil {
		return nil, fmt.Errorf("bringing chats to account: %w", err)
	}
	return used, nil
}
