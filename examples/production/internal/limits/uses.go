package limits

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// Use is what an account uses of its limits at one moment, over all replicas.
type Use struct {
	Account    string
	LastMinute int64 // chats that were admitted
	InProgress int64 // chats
	Today      int64 // tokens that have been used
	Reserved   int64 // tokens, for chats in progress
}

// Uses returns what accounts use, by their names. Those that use nothing are
// omitted.
func Uses(ctx context.Context, client *redisclient.Client) ([]Use, error) {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("reading what accounts use: %w", err)
	}
	found := make(map[string]Use)
	prefix := client.Key("limits:")
	keys := client.Scan(ctx, 0, literal.Replace(prefix)+"*", 1000).Iterator()
	for keys.Next(ctx) {
		kind, account, _ := strings.Cut(strings.TrimPrefix(keys.Val(), prefix), ":")
		use := found[account]
		use.Account = account
		if err := use.read(ctx, client, kind, keys.Val(), now); err != nil {
			return nil, fmt.Errorf("reading what accounts use: %w", err)
		}
		found[account] = use
	}
	if err := keys.Err(); err != nil {
		return nil, fmt.Errorf("reading what accounts use: %w", err)
	}
	maps.DeleteFunc(found, func(account string, use Use) bool { return use == Use{Account: account} })
	return slices.SortedFunc(maps.Values(found), func(a, b Use) int { return cmp.Compare(a.Account, b.Account) }), nil
}

// literal escapes what a pattern of Redis would take for more than itself.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// read reads one key. A foreign one, of another type or with other text, counts as
// nothing: chats ignore it, too.
func (u *Use) read(ctx context.Context, client *redisclient.Client, kind, key string, now time.Time) (err error) {
	switch kind {
	case "minute":
		var times []string
		times, err = client.LRange(ctx, key, 0, -1).Result()
		for _, at := range times {
			if milliseconds, _ := strconv.ParseInt(at, 10, 64); milliseconds > now.Add(-minute).UnixMilli() {
				u.LastMinute++
			}
		}
	case "slots":
		var leases []string
		leases, err = client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: key, ByScore: true, Start: "(" + strconv.FormatInt(now.UnixMilli(), 10), Stop: "+inf"}).Result()
		if len(leases) > 0 {
			u.InProgress = int64(len(leases))
			u.Reserved, err = reservedFor(ctx, client, u.Account, leases)
		}
	case "tokens":
		var tokens string
		tokens, err = client.Get(ctx, key).Result()
		u.Today, _ = strconv.ParseInt(tokens, 10, 64)
	}
	if redis.HasErrorPrefix(err, "WRONGTYPE") || err == redis.Nil {
		return nil
	}
	return err
}

// reservedFor returns the tokens that chats in progress may still use. Those of a
// replica that died stay in Redis until the next chat of the account.
func reservedFor(ctx context.Context, client *redisclient.Client, account string, leases []string) (tokens int64, err error) {
	held, err := client.HMGet(ctx, client.Key("limits:reserved:"+account), leases...).Result()
	for _, one := range held {
		text, _ := one.(string)
		number, _ := strconv.ParseInt(text, 10, 64) // 0 if nothing is reserved
		tokens += number
	}
	return tokens, err
}
