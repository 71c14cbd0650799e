package limits

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// cachedAccounts bounds a cache.
const cachedAccounts = 10_000

// cache caches limits. Concurrent chats of an account share one lookup.
type cache struct {
	store   Store
	ttl     time.Duration
	lookups singleflight.Group

	mu    sync.Mutex
	known map[string]knownLimits
}

type knownLimits struct {
	Limits
	expires time.Time
}

func newCache(store Store, ttl time.Duration) *cache {
	return &cache{store: store, ttl: ttl, known: make(map[string]knownLimits)}
}

func (c *cache) limits(ctx context.Context, account string) (Limits, error) {
	if limits, ok := c.recall(account); ok {
		return limits, nil
	}
	// A client that disconnects must not fail the others that wait for this
	// lookup.
	lookup := c.lookups.DoChan(account, func() (any, error) {
		limits, err := c.store.Limits(context.WithoutCancel(ctx), account)
		if err == nil {
			c.remember(account, limits)
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

func (c *cache) recall(account string) (Limits, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.known[account]
	return known.Limits, ok && time.Now().Before(known.expires)
}

func (c *cache) remember(account string, limits Limits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= cachedAccounts {
		clear(c.known) // each account costs one lookup, at most once per ttl
	}
	c.known[account] = knownLimits{limits, time.Now().Add(c.ttl)}
}
