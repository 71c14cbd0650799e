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
	// keysRemembered bounds each of the gate's memories: about 2 MB.
	keysRemembered = 10_000
	// refusedFor is how long a refused key is refused without another look. It
	// could be for ever: keys are random, and revoking is for good.
	refusedFor = 10 * time.Second
	// strangersInLine bounds the keys that wait to be looked up and are not
	// known to be good: in a replica that has just started, that is all.
	strangersInLine = 5_000
)

// A gate stands before the keys: who guesses at them must not take the database
// away from those who have one.
//
// A key that was good before in this replica passes at once. The others are
// strangers: a few of them are looked up at a time, the rest wait in line, and
// where the line is full, the answer is 429. What was refused a moment ago is
// refused again unasked.
type gate struct {
	good    *lru.Cache[digest, struct{}]
	refused *lru.Cache[digest, time.Time] // and since when

	line    *semaphore.Weighted // strangers, those that are looked up too
	lookups *semaphore.Weighted // of strangers
	wait    time.Duration       // in line, at most

	logger   *slog.Logger
	refusals *telemetry.Sparing
}

// newGate returns a gate that lets so many strangers be looked up at once.
func newGate(lookups int64, wait time.Duration, logger *slog.Logger) *gate {
	return &gate{
		good:     memory[struct{}](),
		refused:  memory[time.Time](),
		line:     semaphore.NewWeighted(strangersInLine),
		lookups:  semaphore.NewWeighted(lookups),
		wait:     wait,
		logger:   logger,
		refusals: telemetry.NewSparing(),
	}
}

func memory[V any]() *lru.Cache[digest, V] {
	cache, err := lru.New[digest, V](keysRemembered)
	if err != nil {
		panic(err) // the size is wrong
	}
	return cache
}

// remembers reports whether a key was refused a moment ago.
func (g *gate) remembers(sum digest) bool {
	since, ok := g.refused.Get(sum)
	return ok && time.Since(since) < refusedFor
}

func (g *gate) wasRefused(sum digest) {
	g.good.Remove(sum)
	g.refused.Add(sum, time.Now())
}

func (g *gate) wasGood(sum digest) { g.good.Add(sum, struct{}{}) }

// count counts a refusal. The log has one line for many of them.
func (g *gate) count(ctx context.Context) {
	g.refusals.Count(func(times int64) {
		g.logger.WarnContext(ctx, "API keys were refused", slog.Int64("refusals", times))
	})
}

// enter returns when a key may be looked up; leave must be called after that.
func (g *gate) enter(ctx context.Context, sum digest) (leave func(), err error) {
	if g.good.Contains(sum) {
		return func() {}, nil
	}
	if !g.line.TryAcquire(1) {
		g.count(ctx)
		return nil, &botapi.StatusError{
			Status:     http.StatusTooManyRequests,
			Detail:     "Too many requests with unknown API keys",
			RetryAfter: retryAfter,
		}
	}
	waiting, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	if err := g.lookups.Acquire(waiting, 1); err != nil {
		g.line.Release(1)
		return nil, failed(ctx, "verifying a key", fmt.Errorf("waiting in line: %w", err))
	}
	return func() {
		g.lookups.Release(1)
		g.line.Release(1)
	}, nil
}
