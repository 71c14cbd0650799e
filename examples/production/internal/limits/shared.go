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

// shared is what the replicas count together, in Redis. An account has four
// keys: a list of the times of its last admissions, the tokens of the day, a
// sorted set of leases by the time when they expire, and a hash of the tokens
// that are reserved for each lease and, as "all", for all of them. A replica has
// one key: the number of the last batch that it has settled.
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
	// mostPerMinute is practically no limit. Redis's scripts count in floating
	// point, and a much larger number could not be an index.
	mostPerMinute = math.MaxInt32
	// settledTogether bounds one batch, since Redis does nothing else meanwhile.
	settledTogether = 200
	// markLasts is how long a repeated batch is recognised.
	markLasts = time.Hour
)

func (s shared) key(kind, of string) string { return s.redis.Key("limits:" + kind + ":" + of) }

// admit takes a slot for a chat, or returns why there is none. An error means
// that Redis did not decide. used is how many tokens the account has used today;
// day and known are what this replica last knew of that.
func (s shared) admit(ctx context.Context, c *chat, limits Limits, day, known int64) (why rejection, used int64, err error) {
	keys := []string{s.key("minute", c.account), s.key("tokens", c.account), s.key("slots", c.account), s.key("reserved", c.account)}
	answer, err := admitScript.Run(ctx, s.redis, keys,
		c.lease, s.lease.Milliseconds(), s.window.Milliseconds(),
		min(limits.ChatsPerMinute, mostPerMinute), limits.TokensPerDay, limits.ConcurrentChats,
		c.reserved, day, known).Slice()
	if err != nil {
		return rejection{}, 0, fmt.Errorf("asking for a slot: %w", err)
	}
	reason, _ := answer[0].(string)
	milliseconds, _ := answer[1].(int64)
	used, _ = answer[2].(int64)
	return rejection{reason, time.Duration(milliseconds) * time.Millisecond}, used, nil
}

// settle counts a batch. After a failure it may be called again with the same
// number: nothing is counted twice. It returns how many tokens the account of
// each entry has used today, as far as it can.
func (s shared) settle(ctx context.Context, number int64, batch []entry) (used []int64, err error) {
	keys := []string{s.key("settled", s.replica)}
	arguments := []any{number, s.lease.Milliseconds(), markLasts.Milliseconds()}
	for _, e := range batch {
		keys = append(keys, s.key("tokens", e.account), s.key("slots", e.account), s.key("reserved", e.account))
		arguments = append(arguments, e.lease, e.used, e.reserved, e.goesOn, e.day, e.known)
	}
	used, err = settleScript.Run(ctx, s.redis, keys, arguments...).Int64Slice()
	if err != nil {
		return nil, fmt.Errorf("settling chats: %w", err)
	}
	return used, nil
}
