package resume

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"
)

// A reader is a request that follows an answer from its first fragment. It reads
// the fragments of this process, if that runs the answer, and the store for what
// was dropped already.
type reader struct {
	Ref
	engine *Engine
	claim  string  // the ID of its Claim; empty if it started the answer
	local  *answer // nil if another process runs it
	next   int     // number of the next fragment; guarded by local.mu, if that is set

	timedOut bool // botapi logs that

	mu      sync.Mutex // held while the lease of the slot is renewed
	renewal *time.Timer
	left    bool
}

var errDied = errors.New("resume: the process that gave the answer has died, or its store has lost it")

// follow yields the answer. It tolerates failures of the store for a Lease. It
// returns true, and has yielded nothing, if the answer died before it said
// anything.
func (r *reader) follow(ctx context.Context, yield func(string, error) bool) (died bool) {
	defer r.leave()
	r.renewLater()
	for healthy := time.Now(); ctx.Err() == nil; {
		p, err := r.read(ctx)
		switch {
		case errors.Is(err, errDied) && r.next == 0 && r.claim != "":
			return true
		case errors.Is(err, errDied), err != nil && time.Since(healthy) > r.engine.rules.Lease:
			yield("", errBroken(err))
			return false
		}
		for _, text := range p.texts {
			if !yield(text, nil) {
				return false
			}
		}
		r.advance(len(p.texts))
		if err == nil {
			healthy = time.Now()
		}
		switch {
		case p.over && p.err != nil:
			yield("", p.err)
			return false
		case p.over:
			return false
		case len(p.texts) > 0:
			continue
		}
		pause := r.engine.rules.Wait / 2 // readHere waits for the store for Wait; a change here begins the pause again
		if p.changed == nil {
			pause = batchPeriod // as often as the store gets fragments
		}
		select {
		case <-p.changed:
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	r.timedOut = isTimeout(context.Cause(ctx))
	yield("", context.Cause(ctx))
	return false
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
	over    bool // nothing comes after the texts
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
	// For the end of a complete answer, a store that does not respond is not waited for.
	isOver := a.hasEnded() && (a.stored.isFinal() || a.err == nil && time.Since(a.endedAt) >= r.engine.rules.Wait)
	return progress{a.texts[r.next-a.first:], isOver, a.err, a.changed}, true
}

func (r *reader) read(ctx context.Context) (progress, error) {
	if p, ok := r.readHere(); ok {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.engine.rules.Lease)
	defer cancel()
	part, err := r.engine.store.Read(ctx, r.Ref, r.claim, r.next)
	switch {
	case err != nil:
		return progress{}, err
	case part.State == Running, len(part.Texts) > 0:
		return progress{texts: part.Texts}, nil
	case part.State == Complete:
		return progress{over: true}, nil
	case part.State == Failed:
		return progress{over: true, err: part.Ending.Err()}, nil
	case part.State == Stopped:
		return progress{over: true, err: ErrStopped}, nil
	}
	return progress{}, errDied
}

// advance counts fragments as read. The engine of an answer that is not kept may
// wait for that.
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

// renewLater renews what the store holds for a reader, whose client may not read
// for long: its slot, and an answer that is over.
func (r *reader) renewLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewal = time.AfterFunc(r.engine.rules.Lease/3, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.left {
			return
		}
		if r.claim != "" || r.hasEnded() {
			ctx, cancel := context.WithTimeout(context.Background(), r.engine.rules.Wait)
			defer cancel()
			_, _ = r.engine.store.Read(ctx, r.Ref, r.claim, math.MaxInt32) // of no fragment: it renews, or else the next call does
		}
		r.renewal.Reset(r.engine.rules.Lease / 3)
	})
}

func (r *reader) hasEnded() bool {
	s := r.local.load()
	return s.hasEnded()
}

func (r *reader) leave() {
	if a := r.local; a != nil {
		a.mu.Lock()
		delete(a.readers, r)
		a.logged = r.timedOut
		a.trim()
		a.notify()
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
