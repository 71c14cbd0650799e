package resume

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"
)

// lookPeriod is how often a follower checks an answer without news.
const lookPeriod = 500 * time.Millisecond

// A follower is a client of an answer that another request has started. It reads
// the answer from Redis, even on the answer's own replica.
type follower struct {
	title
	engine *Engine
	slot   string // its id
	next   int    // fragment
}

// follow yields the answer from its first fragment. It tolerates failures of
// Redis for as long as the answer's own replica does, for the lease; on that
// replica it can continue without Redis.
func (f *follower) follow(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer f.engine.later(func() { f.engine.store.leave(f.title, f.slot) })
		news, ignore := f.engine.news.listen(f.id)
		defer ignore()
		for healthy := time.Now(); ctx.Err() == nil; {
			over, err := f.catchUp(ctx, yield)
			switch {
			case over:
				return
			case err == nil:
				healthy = time.Now()
			case errors.Is(err, errDied) || time.Since(healthy) > f.engine.options.Lease:
				yield("", errBroken(err))
				return
			case f.followHere(ctx, yield):
				return
			}
			select {
			case <-news:
			case <-time.After(min(lookPeriod, f.engine.options.Lease/3)):
			case <-ctx.Done():
			}
		}
	}
}

// catchUp yields the fragments that there are now. It returns true when the
// answer is over or yield has returned false.
func (f *follower) catchUp(ctx context.Context, yield func(string, error) bool) (over bool, err error) {
	for {
		texts, over, ended, err := f.engine.store.read(context.WithoutCancel(ctx), f.title, f.slot, f.next)
		if err != nil {
			return false, err
		}
		for _, text := range texts {
			if !yield(text, nil) {
				return true, nil
			}
			f.next++
		}
		if over {
			f.fail(ctx, ended, yield)
			return true, nil
		}
		if len(texts) < readAtOnce {
			return false, nil
		}
	}
}

// fail yields the error of an answer that failed. If a model was asked for it,
// it counts as asked for every request that followed it.
func (f *follower) fail(ctx context.Context, ended ending, yield func(string, error) bool) {
	err := ended.err()
	if err == nil {
		return
	}
	if !ended.Unasked {
		f.engine.options.Ask(ctx)
	}
	yield("", err)
}

// followHere continues without Redis if the answer is this replica's own.
func (f *follower) followHere(ctx context.Context, yield func(string, error) bool) bool {
	a := f.engine.find(f.id)
	if a == nil {
		return false
	}
	c, ok := a.join(f.next)
	if ok {
		a.follow(ctx, c)(yield)
	}
	return ok
}

// news wakes the followers of answers that have changed.
type news struct {
	mu        sync.Mutex
	listeners map[string]map[chan struct{}]struct{} // by the answer's id
}

func newNews() *news { return &news{listeners: make(map[string]map[chan struct{}]struct{})} }

// listen returns a channel that receives when an answer changes, until ignore is
// called. Changes that were not received yet are merged.
func (n *news) listen(id string) (heard <-chan struct{}, ignore func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	listener := make(chan struct{}, 1)
	if n.listeners[id] == nil {
		n.listeners[id] = make(map[chan struct{}]struct{})
	}
	n.listeners[id][listener] = struct{}{}
	return listener, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners[id], listener)
		if len(n.listeners[id]) == 0 {
			delete(n.listeners, id)
		}
	}
}

func (n *news) tell(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for listener := range n.listeners[id] {
		select {
		case listener <- struct{}{}:
		default:
		}
	}
}
