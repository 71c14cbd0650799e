package limits

import (
	"context"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"
)

// cachedAccounts bounds a cache.
const cachedAccounts = 10_000

// cache caches limits. Concurrent chats of an account share one lookup. It
// compares the times itself: the goroutine of golang-lru's expirable cache never
// ends.
type cache struct {
	store   Store
	ttl     time.Duration
	known   *lru.Cache[string, knownLimits]
	lookups singleflight.Group
}

type knownLimits struct {
	Limits
	expires time.Time
}

func newCache(store Store, ttl time.Duration) *cache {
	known, err := lru.New[string, knownLimits](cachedAccounts)
	if err != nil {
		panic(err) // the size is wrong
	}
	return &cache{store: store, ttl: ttl, known: known}
}

func (c *cache) limits(ctx context.Context, account string) (Limits, error) {
	if known, ok := c.known.Get(account); ok && time.Now().Before(known.expires) {
		return known.Limits, nil
	}
	// A client that disconnects must not fail the others that wait for this
	// lookup.
	lookup := c.lookups.DoChan(account, func() (any, error) {
		limits, err := c.store.Limits(context.WithoutCancel(ctx), account)
		if err == nil {
			c.known.Add(account, knownLimits{limits, time.Now().Add(c.ttl)})
		}
		return limits, err
	})
	select {
	case <-ctx.Done():
		return Limits{}, context.Cause(ctx)
	case found := <-lookup:
		limits, _ := found.Val.(Limits)
		return limits, found.Err
	}
}
