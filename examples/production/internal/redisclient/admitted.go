package redisclient

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrNotAdmitted means that Redis responds and rejects what this service needs:
// the operator has to fix that. ErrForeign is such an error.
var ErrNotAdmitted = errors.New("redis rejects this service")

// CheckLogin returns ErrNotAdmitted if Redis responds and the password, the user
// or the database is wrong. It also reports an invalid URL. It returns nil if
// Redis is away.
func CheckLogin(ctx context.Context, o Options) error {
	connection, err := o.completed().connection()
	if err != nil {
		return err
	}
	client := redis.NewClient(connection)
	defer client.Close()
	return notAdmitted(client.Ping(ctx).Err())
}

// Admitted returns ErrNotAdmitted if Redis responds and this service cannot use
// it: if a right is missing, if Redis evicts keys when it is full, or if the
// keys under the prefix belong to another deployment. It returns nil if Redis is
// away.
func (c *Client) Admitted(ctx context.Context) error {
	err := c.breaker.look(ctx)
	if errors.Is(err, ErrForeign) {
		return fmt.Errorf("%w: %w: give each a prefix of its own, or delete that key if the other deployment no longer exists", ErrNotAdmitted, err)
	}
	if err == nil || Rejected(err) { // mayAll names the missing right
		err = cmp.Or(c.mayAll(ctx), err)
	}
	if err == nil {
		err = c.keeps(ctx)
	}
	return notAdmitted(err)
}

// notAdmitted returns nil for a temporary error.
func notAdmitted(err error) error {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "DB index") ||
		errors.Is(err, errRights) || errors.Is(err, errEvicts) {
		return fmt.Errorf("%w: %w", ErrNotAdmitted, err)
	}
	return nil
}

var (
	errRights = errors.New("its user lacks rights")
	errEvicts = errors.New("it evicts keys when it is full, and limits with them: set maxmemory-policy to noeviction")
)

// mayAll tries each command that the service sends, including those in scripts,
// with a key and a channel that are used for nothing else.
func (c *Client) mayAll(ctx context.Context) error {
	scratch := c.Key("rights:" + rand.Text())
	var missing []string
	for _, command := range commandsUsed(scratch) {
		err := c.breaker.probe.Do(ctx, command...).Err()
		if redis.IsPermissionError(err) {
			missing = append(missing, fmt.Sprint(command[0]))
		} else if err != nil && !errors.Is(err, redis.Nil) && !Rejected(err) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
			return err // Redis is away
		}
	}
	subscription := c.breaker.probe.Subscribe(ctx, scratch)
	defer subscription.Close()
	if _, err := subscription.Receive(ctx); redis.IsPermissionError(err) {
		missing = append(missing, "SUBSCRIBE")
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w for keys and channels that begin with %s: %s", errRights, c.options.Prefix, strings.Join(missing, ", "))
	}
	return nil
}

// commandsUsed are all commands. When each of them runs, the key does not exist.
func commandsUsed(key string) [][]any {
	return [][]any{
		{"PING"}, {"INFO", "memory"}, {"TIME"}, {"PUBLISH", key, ""},
		{"EVAL", "return 1", 0}, {"EVALSHA", strings.Repeat("0", 40), 0},
		{"SET", key, "", "PX", 1000}, {"GET", key}, {"TTL", key}, {"PTTL", key}, {"EXISTS", key},
		{"EXPIREAT", key, 0}, {"PEXPIRE", key, 1000}, {"INCRBY", key, 1}, {"DECRBY", key, 1}, {"DEL", key},
		{"LINDEX", key, 0}, {"LRANGE", key, 0, 0}, {"LTRIM", key, 0, 0}, {"LLEN", key}, {"RPUSH", key, ""}, {"RENAME", key, key}, {"DEL", key},
		{"HGET", key, ""}, {"HMGET", key, ""}, {"HDEL", key, ""}, {"HSET", key, "", 0}, {"HINCRBY", key, "", 1}, {"HLEN", key}, {"DEL", key},
		{"ZREM", key, ""}, {"ZCARD", key}, {"ZRANGEBYSCORE", key, 0, 0}, {"ZREMRANGEBYSCORE", key, 0, 0},
		{"ZADD", key, 0, ""}, {"DEL", key},
	}
}

// keeps returns an error if Redis may evict keys before their time to live ends;
// all keys here have one.
func (c *Client) keeps(ctx context.Context) error {
	info, err := c.breaker.probe.InfoMap(ctx, "memory").Result()
	if err != nil {
		return err
	}
	memory := info["Memory"]
	if memory["maxmemory"] != "0" && memory["maxmemory_policy"] != "noeviction" {
		return errEvicts
	}
	return nil
}
