package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/telemetry"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/semaphore"
)

const (
	// keysRemembered bounds each cache of the gate: some 2 MB, and 4 MB if all
	// accounts have long names.
	keysRemembered = 10_000
	// rejectedFor is how long a rejected key is rejected without another lookup.
	// It could be forever: keys are random, and one that has ended stays so.
	rejectedFor = 10 * time.Second
	// unknownWaiting bounds the keys that wait for a lookup or are being looked
	// up, and are not known to be valid. In a replica that has just started,
	// these are all keys.
	unknownWaiting = 5_000
)

// A gate limits lookups of keys, so that guessing keys cannot starve other
// clients of database connections.
//
// A key that was valid before in this replica passes immediately. Of the others,
// a few are looked up concurrently and the rest wait; if too many wait, the
// response is 429. A key that was rejected a moment ago is rejected again
// without a lookup.
type gate struct {
	good     *lru.Cache[digest, goodKey]
	rejected *lru.Cache[digest, time.Time] // and since when

	waiting *semaphore.Weighted // unknown keys, including those being looked up
	lookups *semaphore.Weighted // of unknown keys
	wait    time.Duration       // for a lookup, at most

	logger     *slog.Logger
	rejections telemetry.Repeats[struct{}]
}

// A goodKey is a key that was valid. Until then, it needs no other lookup.
type goodKey struct {
	account string
	until   time.Time
}

// newGate returns a gate that allows so many concurrent lookups of unknown keys.
func newGate(lookups int64, wait time.Duration, logger *slog.Logger) *gate {
	return &gate{
		good:     memory[goodKey](),
		rejected: memory[time.Time](),
		waiting:  semaphore.NewWeighted(unknownWaiting),
		lookups:  semaphore.NewWeighted(lookups),
		wait:     wait,
		logger:   logger,
	}
}

func memory[V any]() *lru.Cache[digest, V] {
	cache, err := lru.New[digest, V](keysRemembered)
	if err != nil {
		panic(err) // the size is wrong
	}
	return cache
}

// remembers reports whether a key was rejected a moment ago.
func (g *gate) remembers(sum digest) bool {
	since, ok := g.rejected.Get(sum)
	return ok && time.Since(since) < rejectedFor
}

func (g *gate) wasRejected(sum digest) {
	g.good.Remove(sum)
	g.rejected.Add(sum, time.Now())
}

func (g *gate) wasGood(sum digest, key goodKey) { g.good.Add(sum, key) }

// recall returns the account of a key that needs no other lookup yet.
func (g *gate) recall(sum digest) (account string, ok bool) {
	key, _ := g.good.Get(sum) // without an entry, until is zero: it has passed
	return key.account, time.Now().Before(key.until)
}

// count counts a rejection. The log has one line for many of them.
func (g *gate) count(ctx context.Context) {
	g.rejections.Count(struct{}{}, func(times int64) {
		g.logger.WarnContext(ctx, "API keys were rejected", slog.Int64("times", times))
	})
}

// enter returns when a key may be looked up; call leave after that.
func (g *gate) enter(ctx context.Context, sum digest) (leave func(), err error) {
	if g.good.Contains(sum) {
		return func() {}, nil
	}
	if !g.waiting.TryAcquire(1) {
		g.count(ctx)
		return nil, &botapi.StatusError{
			Status:     http.StatusTooManyRequests,
			Detail:     "Too many requests with unknown API keys",
			RetryAfter: retryAfter,
		}
	}
	wait, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	if err := g.lookups.Acquire(wait, 1); err != nil {
		g.waiting.Release(1)
		return nil, failed(ctx, "verifying a key", fmt.Errorf("waiting for a lookup: %w", err))
	}
	return func() {
		g.lookups.Release(1)
		g.waiting.Release(1)
	}, nil
}
