package redisclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

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
// it: if its user lacks one of the documented rights, if Redis evicts keys when it
// is full, or if the keys under the prefix belong to another deployment. It
// returns nil if Redis is away.
//
// The documented rights are categories of commands, so one command of each is
// tried. A user who lacks single commands is noticed when one is sent.
func (c *Client) Admitted(ctx context.Context) error {
	err := c.breaker.look(ctx)
	if errors.Is(err, ErrForeign) {
		return fmt.Errorf("%w: %w: give each a prefix of its own, or delete that key if the other deployment no longer exists", ErrNotAdmitted, err)
	}
	if err == nil || Rejected(err) { // within a script, an error does not name the missing right
		err = cmp.Or(c.mayUse(ctx), err)
	}
	if err == nil {
		err = c.keeps(ctx)
	}
	return notAdmitted(err)
}

// notAdmitted returns nil for a temporary error.
func notAdmitted(err error) error {
	if redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "DB index") || errors.Is(err, errEvicts) {
		return fmt.Errorf("%w: %w", ErrNotAdmitted, err)
	}
	return nil
}

var errEvicts = errors.New("it evicts keys when it is full, and limits with them: set maxmemory-policy to noeviction")

// mayUse returns an error if the user lacks one of the documented rights.
func (c *Client) mayUse(ctx context.Context) error {
	probe, scratch := c.breaker.probe, c.Key("rights")
	subscription := probe.Subscribe(ctx, scratch)
	defer subscription.Close()
	_, subscribed := subscription.Receive(ctx)
	for _, err := range []error{
		probe.Set(ctx, scratch, "", time.Second).Err(),
		probe.Get(ctx, scratch).Err(),
		probe.Eval(ctx, "return 1", nil).Err(),
		probe.Time(ctx).Err(),
		probe.Info(ctx, "memory").Err(),
		subscribed,
	} {
		if redis.IsPermissionError(err) {
			return fmt.Errorf("its user lacks rights for commands, or for keys and channels that begin with %s: %w", c.options.Prefix, err)
		}
	}
	return nil
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
