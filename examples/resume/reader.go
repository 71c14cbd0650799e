package resume

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// A reader is a request that follows an answer from its first fragment. It reads the fragments
// of this process, if that runs the answer, and the store for what was dropped already.
type reader struct {
	Ref
	engine   *Engine
	claim    string  // the ID of its Claim; empty if it started the answer: then Add says that it is there
	local    *answer // nil if another process runs it, or this one has not begun it
	next     int     // number of the next fragment; set by follow, with local.mu if there is one, for trim reads it
	timedOut bool    // botapi ended it, and logs that

	mu      sync.Mutex // orders renewals before Leave: a Read after it would take the slot again
	renewal *time.Timer
	left    bool
}

var errDied = errors.New("resume: the process that gave the answer has died, or its store has lost it")

// follow yields the answer. It tolerates failures of the store for a Lease. It returns true,
// and has yielded nothing, if the store has the answer no more for this reader (Lost, or Outgrown).
func (r *reader) follow(ctx context.Context, yield func(string, error) bool) (died bool) {
	defer r.leave()
	r.renewLater()
	for healthy := time.Now(); ctx.Err() == nil; {
		p, err := r.read(ctx)
		for _, text := range p.texts {
			if !yield(text, nil) {
				return false
			}
		}
		r.advance(len(p.texts))
		switch {
		case err == nil:
			healthy = time.Now()
		case errors.Is(err, errDied) && r.next == 0 && r.claim != "":
			return true
		case errors.Is(err, errDied), time.Since(healthy) > r.engine.rules.Lease:
			p.isOver, p.err = true, errBroken(err)
		}
		if p.isOver {
			if p.err != nil {
				yield("", p.err)
			}
			return false
		}
		if len(p.texts) == 0 {
			r.pause(ctx, p.changed)
		}
	}
	r.timedOut = isTimeout(context.Cause(ctx))
	yield("", context.Cause(ctx))
	return false
}

// pause waits until there may be more.
func (r *reader) pause(ctx context.Context, changed <-chan struct{}) {
	pause := r.engine.rules.Wait / 2 // nothing signals that Wait has passed since the end (readHere): look again
	if changed == nil {
		pause = batchPeriod // as often as the store gets fragments
	}
	select {
	case <-changed:
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// attend has a reader follow an answer of this process.
func (r *reader) attend(a *answer) {
	r.local = a
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readers[r] = struct{}{}
}

// progress is the part of an answer from some fragment on.
type progress struct {
	texts   []string
	isOver  bool // nothing comes after the texts
	err     error
	changed <-chan struct{} // closed when there is more; nil if only the store tells
}

func (r *reader) readHere() (p progress, ok bool) {
	a := r.local
	if a == nil {
		return progress{}, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.next < a.first {
		return progress{}, false
	}
	// For the end, a store that does not respond is waited for no longer than Wait.
	isOver := a.hasEnded() && (a.stored.isFinal() || time.Since(a.endedAt) >= r.engine.rules.Wait)
	return progress{a.texts[r.next-a.first:], isOver, a.err, a.changed}, true
}

// attendLocal has a reader follow the answer here if this process runs it. It is asked again and
// again: a Claim may join an answer before the request that starts it has begun it.
func (r *reader) attendLocal() {
	r.engine.mu.Lock()
	local := r.engine.answers[r.ID]
	r.engine.mu.Unlock()
	if local != nil {
		r.attend(local)
	}
}

func (r *reader) read(ctx context.Context) (progress, error) {
	if r.local == nil {
		r.attendLocal()
	}
	if p, ok := r.readHere(); ok {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.engine.rules.Lease)
	defer cancel()
	part, err := r.engine.store.Read(ctx, r.Ref, r.claim, r.next)
	p := progress{texts: part.Texts, isOver: part.State != Running && len(part.Texts) == 0}
	switch {
	case err != nil:
		return progress{}, err
	case !p.isOver, part.State == Complete:
	case part.State == Failed:
		p.err = part.Ending.Err()
	case part.State == Stopped:
		p.err = ErrStopped
	default:
		return progress{}, errDied
	}
	return p, nil
}

// advance counts fragments as read. The engine may wait for that, if the store takes no more.
func (r *reader) advance(texts int) {
	if r.local == nil {
		r.next += texts
		return
	}
	r.local.mu.Lock()
	defer r.local.mu.Unlock()
	r.next += texts
	if texts > 0 && r.local.stored != Running {
		r.local.trim()
	}
}

// renewLater renews what the store holds for a reader, also while a slow client keeps follow
// from reading: its slot, and an answer that is over.
func (r *reader) renewLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewal = time.AfterFunc(r.engine.rules.Lease/3, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.left {
			return
		}
		if r.claim != "" || r.local.load().hasEnded() {
			ctx, cancel := context.WithTimeout(context.Background(), r.engine.rules.Wait)
			defer cancel()
			_, _ = r.engine.store.Read(ctx, r.Ref, r.claim, math.MaxInt32) // of no fragment: it renews, or else the next call does
		}
		r.renewal.Reset(r.engine.rules.Lease / 3)
	})
}

func (r *reader) leave() {
	if a := r.local; a != nil {
		a.mu.Lock()
		delete(a.readers, r)
		a.lastTimedOut = r.timedOut
		a.trim()
		wake(a.urgent)
		a.mu.Unlock()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
	r.renewal.Stop()
	if r.claim != "" {
		ctx, cancel := context.WithTimeout(context.Background(), r.engine.rules.Wait)
		defer cancel()
		_ = r.engine.store.Leave(ctx, r.Ref, r.claim) // otherwise its lease expires
	}
}
