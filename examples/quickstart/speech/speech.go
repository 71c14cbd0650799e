// Package speech streams an answer that is already complete piece by piece, at
// the pace of a model.
package speech

import (
	"context"
	"iter"
	"time"

	"example.com/botapi"
)

// Speak yields the pieces until yield returns false or the context is done. It
// waits for pace before each piece of a stream but the first.
func Speak(ctx context.Context, req *botapi.ChatRequest, pieces iter.Seq[string], pace time.Duration, yield func(string, error) bool) {
	var wait time.Duration
	for piece := range pieces {
		if err := sleep(ctx, wait); err != nil {
			yield("", err)
			return
		}
		if !yield(piece, nil) {
			return
		}
		if req.Stream {
			wait = pace
		}
	}
}

// sleep waits for d. If the context is done earlier, it returns ctx.Err().
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
