// Package speech has an engine that knows its answer at once say it piece by
// piece, as one that thinks would.
package speech

import (
	"context"
	"iter"
	"time"
)

// Speak yields the pieces, with a wait of pace before each but the first, until
// yield returns false or the context ends.
func Speak(ctx context.Context, pieces iter.Seq[string], pace time.Duration, yield func(string, error) bool) {
	var wait time.Duration
	for piece := range pieces {
		if err := sleep(ctx, wait); err != nil {
			yield("", err)
			return
		}
		if !yield(piece, nil) {
			return
		}
		wait = pace
	}
}

// sleep waits for d, or until the context ends, and then says why.
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
