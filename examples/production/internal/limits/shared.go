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

// shared is what the replicas count together, in Redis. An account has three
// keys: a list of the times of its last admissions, the tokens of the day, and a
// sorted set of leases by the time when they run out.
type shared struct {
	redis  *redisclient.Client
	lease  time.Duration
	window time.Duration // of ChatsPerMinute
}

var (
	//go:embed admit.lua
	admitSource string
	//go:embed renew.lua
	renewSource string
	//go:embed spend.lua
	spendSource string

	admitScript = redis.NewScript(admitSource)
	renewScript = redis.NewScript(renewSource)
	spendScript = redis.NewScript(spendSource)
)

// mostPerMinute is as good as no limit. Scripts in Redis count in floating point,
// and an index much larger is not one any more.
const mostPerMinute = math.MaxInt32

// renewedAtOnce bounds one step of a renewal: Redis does nothing else meanwhile.
const renewedAtOnce = 500

func minuteKey(account string) string { return "botapi:limits:minute:" + account }
func tokensKey(account string) string { return "botapi:limits:tokens:" + account }
func placesKey(account string) string { return "botapi:limits:places:" + account }

// admit takes a place for one chat, or returns why there is none. An error means
// that Redis did not say.
func (s shared) admit(ctx context.Context, account, lease string, limits Limits) (refused, err error) {
	answer, err := admitScript.Run(ctx, s.redis,
		[]string{minuteKey(account), tokensKey(account), placesKey(account)},
		lease, s.lease.Milliseconds(), s.window.Milliseconds(),
		min(limits.ChatsPerMinute, mostPerMinute), limits.TokensPerDay, limits.ChatsAtOnce).Slice()
	if err != nil {
		return nil, fmt.Errorf("asking for a place: %w", err)
	}
	reason, _ := answer[0].(string)
	milliseconds, _ := answer[1].(int64)
	wait := time.Duration(milliseconds) * time.Millisecond
	switch reason {
	case "minute":
		return refusal("Too many chats in a minute for this account", wait), nil
	case "tokens":
		return refusal("The tokens of this account for today are used up", wait), nil
	case "places":
		return tooManyAtOnce(wait), nil
	}
	return nil, nil
}

func (s shared) spend(ctx context.Context, account string, tokens int64) error {
	return spendScript.Run(ctx, s.redis, []string{tokensKey(account)}, tokens).Err()
}

// renew lets leases last longer. Those that Redis has lost are there again.
func (s shared) renew(ctx context.Context, places []place) error {
	for len(places) > 0 {
		some := places[:min(len(places), renewedAtOnce)]
		places = places[len(some):]
		keys, arguments := make([]string, len(some)), []any{s.lease.Milliseconds()}
		for i, p := range some {
			keys[i] = placesKey(p.account)
			arguments = append(arguments, p.lease)
		}
		if err := renewScript.Run(ctx, s.redis, keys, arguments...).Err(); err != nil {
			return fmt.Errorf("renewing leases: %w", err)
		}
	}
	return nil
}

func (s shared) release(ctx context.Context, places []place) error {
	for _, p := range places {
		if err := s.redis.ZRem(ctx, placesKey(p.account), p.lease).Err(); err != nil {
			return fmt.Errorf("giving a place back: %w", err)
		}
	}
	return nil
}
