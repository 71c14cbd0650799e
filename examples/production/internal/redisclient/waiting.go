package redisclient

import (
	"context"
	"sync"
	"time"
)

// A wait is how long one chat has waited for Redis.
type wait struct {
	mu  sync.Mutex
	sum time.Duration
}

type waitKey struct{}

// WithWait returns the context of a chat whose waits for Redis are added up: see
// Client.Waiting.
func WithWait(ctx context.Context) context.Context {
	return context.WithValue(ctx, waitKey{}, new(wait))
}

// Waiting returns the context for a command that a chat waits for. All such
// commands of one chat together take at most Options.Timeout: the context ends
// when the chat has waited that long. Call done when the command has returned.
func (c *Client) Waiting(ctx context.Context) (waiting context.Context, done func()) {
	w, _ := ctx.Value(waitKey{}).(*wait)
	if w == nil {
		w = new(wait)
	}
	began := time.Now()
	w.mu.Lock()
	left := c.options.Timeout - w.sum
	w.mu.Unlock()
	waiting, cancel := context.WithDeadline(ctx, began.Add(left))
	return waiting, func() {
		cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sum += time.Since(began)
	}
}
