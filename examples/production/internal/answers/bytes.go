package answers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// ownerName is how Redis knows an owner.
func ownerName(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:16])
}

// Bytes returns the memory of the answers of owners, as their limits count it.
// Those that have none are omitted.
func Bytes(ctx context.Context, client *redisclient.Client, owners []string) (map[string]int64, error) {
	key := func(name string) string { return client.Key("answers:" + name) }
	var counted *redis.MapStringStringCmd
	var sizes []any // of expired answers that are still in the sums
	now, err := client.Time(ctx).Result()
	if err == nil {
		counted = client.HGetAll(ctx, key("bytes"))
		var expired []string
		expired, err = client.ZRangeArgs(ctx, redis.ZRangeArgs{Key: key("kept"), ByScore: true, Start: "-inf", Stop: now.UnixMilli()}).Result()
		if err == nil && len(expired) > 0 {
			sizes, err = client.HMGet(ctx, key("sizes"), expired...).Result()
		}
	}
	if err == nil {
		err = counted.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the memory of answers: %w", err)
	}
	over := make(map[string]int64)
	for _, one := range sizes {
		text, _ := one.(string)
		size, owner, _ := strings.Cut(text, " ")
		n, _ := strconv.ParseInt(size, 10, 64)
		over[owner] += n
	}
	bytes := make(map[string]int64)
	for _, owner := range owners {
		name := ownerName(owner)
		n, _ := strconv.ParseInt(counted.Val()[name], 10, 64)
		if n -= over[name]; n > 0 {
			bytes[owner] = n
		}
	}
	return bytes, nil
}
