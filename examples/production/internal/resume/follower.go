package resume

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"
)

// lookPeriod is how often a follower looks at an answer of which it hears
// nothing.
const lookPeriod = 500 * time.Millisecond

// A follower is a client of an answer that another request has started. It
// reads it from Redis, also on the answer's own replica.
type follower struct {
	title
	engine *Engine
	place  string // its own id
	next   int    // fragment
}

// follow yields the answer from its first fragment on. It has as much patience
// with Redis as the answer's own replica, which has its lease; on that replica it
// needs no Redis to go on.
func (f *follower) follow(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer f.engine.later(func() { f.engine.store.leave(f.title, f.place) })
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

// catchUp yields what there is by now, and reports whether nothing more is wanted.
func (f *follower) catchUp(ctx context.Context, yield func(string, error) bool) (over bool, err error) {
	for {
		texts, over, told, err := f.engine.store.read(context.WithoutCancel(ctx), f.title, f.place, f.next)
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
			f.fail(ctx, told, yield)
			return true, nil
		}
		if len(texts) < readAtOnce {
			return false, nil
		}
	}
}

// fail yields the error that an answer ended with, if it did. Once a model was
// asked, the failure is that of every request that followed its answer.
func (f *follower) fail(ctx context.Context, told ending, yield func(string, error) bool) {
	err := told.err()
	if err == nil {
		return
	}
	if !told.Unasked {
		f.engine.options.Ask(ctx)
	}
	yield("", err)
}

// followHere goes on without Redis where the answer is this replica's own.
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

// news wakes those who follow answers when these have more for them.
type news struct {
	mu        sync.Mutex
	listeners map[string]map[chan struct{}]struct{} // by the answer's id
}

func newNews() *news { return &news{listeners: make(map[string]map[chan struct{}]struct{})} }

// listen returns what receives when there is news of an answer, until ignore is
// called. News that nobody has received yet is one.
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
