package redisclient

import (
	"context"
	"sync"
	"time"

	"example.com/botapi"
)

// A wait is how long one chat has waited for Redis.
type wait struct {
	mu  sync.Mutex
	sum time.Duration
}

type waitKey struct{}

// waitOf returns the wait of the request that a context belongs to. It is shared by what
// runs one after the other.
func waitOf(ctx context.Context) *wait {
	request := botapi.RequestFrom(ctx)
	w, _ := request.Value(waitKey{}).(*wait)
	if w == nil {
		w = new(wait)
		request.SetValue(waitKey{}, w)
	}
	return w
}

// Waiting returns the context for a command that a chat waits for. All such
// commands of one request of botapi together take at most Options.Timeout: the context ends
// when the chat has waited that long. Call done when the command has returned.
func (c *Client) Waiting(ctx context.Context) (waiting context.Context, done func()) {
	w := waitOf(ctx)
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
