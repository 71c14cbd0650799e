package resume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"example.com/botapi"
)

// An answer is one that this process runs. Its engine adds fragments, keep
// copies them to the store, and readers read them here until the store has them.
// While the answer is kept, the engine waits for the store only; afterwards, for
// the readers.
type answer struct {
	Ref
	engine *Engine
	cancel context.CancelCauseFunc // ends the model's context

	mu       sync.Mutex
	texts    []string // fragments that the store may lack
	first    int      // number of texts[0]
	size     int64    // of texts, in memory
	kept     bool     // the store gets them
	over     bool
	err      error         // why it is incomplete, once it is over
	returned bool          // the engine has returned
	changed  chan struct{} // closed, and replaced, on each change
	readers  map[*reader]struct{}
}

const (
	// window is how many bytes the engine may be ahead of the store, or of the
	// slowest reader of an answer that is not kept.
	window = 64 << 10
	// inMemory is what a fragment takes in memory besides its text.
	inMemory = 24
)

// run calls the engine. The answer is over when the engine has returned or its
// context has ended, whichever comes first.
func (a *answer) run(ctx context.Context, req *botapi.ChatRequest) {
	r, o := Report{Request: req, Outcome: Kept}, a.engine.options
	defer a.engine.report(ctx, &r)
	defer a.engineReturned()
	defer a.cancel(nil)
	stall := time.AfterFunc(o.StallTimeout, func() { a.cancel(botapi.ErrEngineStalled) })
	defer stall.Stop()
	model := ctx
	if o.ChatTimeout > 0 {
		var done context.CancelFunc
		model, done = context.WithTimeoutCause(ctx, o.ChatTimeout, botapi.ErrChatTimeout)
		defer done()
	}
	stop := context.AfterFunc(model, func() { a.end(ctx, context.Cause(model)) })
	defer stop()
	defer func() {
		if v := recover(); v != nil {
			r.Err = fmt.Errorf("panic while running the engine: %v\n%s", v, debug.Stack())
		}
		r.Err = cmp.Or(context.Cause(model), r.Err)
		a.end(ctx, r.Err)
	}()
	a.engine.play(model, &r, func(text string, err error) bool {
		stall.Stop()
		more := err == nil && a.add(model, text)
		if more {
			stall.Reset(o.StallTimeout)
		}
		return more
	})
}

// end ends the answer, with an error unless that is nil; the first call counts. If
// no reader here sees the error, the log has it.
func (a *answer) end(ctx context.Context, err error) {
	a.mu.Lock()
	isFirst, isSeen := !a.over, len(a.readers) > 0
	if isFirst {
		a.over, a.err = true, answerTo(err)
		a.notify()
	}
	a.mu.Unlock()
	if isFirst && !isSeen && err != nil && !errors.Is(err, ErrAbandoned) && !errors.Is(err, ErrStopped) {
		a.engine.log(ctx, slog.LevelWarn, "an answer without readers failed", slog.Any("error", err))
	}
}

// answerTo is the error for the readers of an answer that has ended with one.
func answerTo(err error) error {
	switch {
	case errors.Is(err, botapi.ErrChatTimeout), errors.Is(err, botapi.ErrEngineStalled):
		return &botapi.StatusError{Status: 504, Detail: "The answer took too long", Err: err}
	case errors.Is(err, ErrAbandoned):
		return errBroken(err) // somebody came back at the last moment
	}
	return err
}

// add adds a fragment, and returns when the engine may continue: false once the
// answer is over.
func (a *answer) add(ctx context.Context, text string) (more bool) {
	a.mu.Lock()
	if !a.over {
		a.texts = append(a.texts, text)
		a.size += int64(len(text)) + inMemory
		a.notify()
	}
	for !a.over && a.size > window && ctx.Err() == nil {
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		a.mu.Lock()
	}
	defer a.mu.Unlock()
	return !a.over
}

// trim drops fragments that are not needed here: the store has them, or if the
// answer is not kept, all readers. It is called with the lock held.
func (a *answer) trim(stored int) {
	needed := stored
	if !a.kept {
		needed = a.first + len(a.texts)
		for r := range a.readers {
			needed = min(needed, r.next)
		}
	}
	for ; a.first < needed && len(a.texts) > 0; a.first++ {
		a.size -= int64(len(a.texts[0])) + inMemory
		a.texts = a.texts[1:] // it stays in the array: the keeper may be sending it
	}
	if len(a.texts) == 0 {
		a.texts = nil // and frees them
	}
	a.notify()
}

// notify is called with the lock held.
func (a *answer) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *answer) engineReturned() {
	a.mu.Lock()
	a.returned = true
	a.notify()
	a.mu.Unlock()
	a.engine.models.release(a.Owner)
}

// A load is what keep sends to the store in one step.
type load struct {
	from                     int // number of texts[0]
	texts                    []string
	attended, over, returned bool
	err                      error
}

// loadSize bounds the fragments of one Add.
const loadSize = 1000

func (a *answer) load() load {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := load{from: a.first, texts: a.texts, attended: len(a.readers) > 0, over: a.over, returned: a.returned, err: a.err}
	if len(l.texts) > loadSize {
		l.texts, l.over = l.texts[:loadSize], false
	}
	return l
}

// changedSince returns a channel that is closed on the next change, or nil if there
// is something to tell the store that a load did not have.
func (a *answer) changedSince(l load) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kept && len(a.texts) > 0 || a.over != l.over || a.returned != l.returned || (len(a.readers) > 0) != l.attended {
		return nil
	}
	return a.changed
}

// stored drops what the store has. It returns false if the store has lost some of
// that.
func (a *answer) stored(have int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if have > a.first {
		a.trim(have)
	}
	return have >= a.first
}

// keepNoLonger has the answer continue for the readers that it has here.
func (a *answer) keepNoLonger() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = false
	a.trim(0)
}

const (
	retryPeriod = 100 * time.Millisecond // after a failure of the store
	minPause    = 10 * time.Millisecond  // when Alone is nearly over
)

// A keeper copies an answer to the store.
type keeper struct {
	*answer
	heard time.Time // when the store last answered
	alone time.Duration
	gone  bool // the store does not keep it any longer: it was stopped, abandoned, lost, or has outgrown its room
	ended bool // the store knows its end, and the engine may still run
}

// keep copies the answer to the store as it arrives, renews its lease and that of
// its model, and ends it there. It cancels an answer that was stopped, or that
// nobody comes back for. It returns when the engine has returned.
func (a *answer) keep(ctx context.Context) {
	defer a.engine.forget(a)
	_, stopped, unwatch := a.engine.store.Watch(a.ID)
	defer unwatch()
	for k := (keeper{answer: a, heard: time.Now()}); ; {
		l := a.load()
		err := k.step(ctx, l)
		if l.returned && (k.gone || k.ended) {
			return
		}
		pause, changed := k.pause(l), (<-chan struct{})(nil)
		if err != nil {
			pause = retryPeriod
		} else if changed = a.changedSince(l); changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-stopped:
		case <-time.After(pause):
		}
	}
}

func (k *keeper) pause(l load) time.Duration {
	pause := k.engine.rules.Lease / 3
	if !l.attended && !l.over {
		pause = min(pause, k.engine.rules.Alone-k.alone)
	}
	return max(pause, minPause)
}

// step tells the store what it lacks. A store that does not answer for a Lease
// has lost the answer.
func (k *keeper) step(ctx context.Context, l load) error {
	asked, cancel := context.WithTimeout(context.Background(), k.engine.rules.Lease)
	defer cancel()
	texts := l.texts
	if k.gone {
		texts = nil // only the model is still counted
	}
	now, err := k.engine.store.Add(asked, k.Ref, l.from, texts, l.attended)
	switch {
	case err == nil:
		k.heard, k.alone = time.Now(), now.Alone
	case time.Since(k.heard) <= k.engine.rules.Lease:
		return err
	default:
		now.State = Lost
	}
	switch {
	case now.State == Stopped && !k.ended:
		k.gone = true
		k.cancel(ErrStopped)
	case k.gone, k.ended:
		k.abandon(l)
	case now.State == Running && k.stored(now.Have):
		if l.over && now.Have == l.from+len(l.texts) {
			err := k.engine.store.End(asked, k.Ref, now.Have, endingOf(l.err))
			k.ended = err == nil
			return err
		}
	default: // outgrown, abandoned, or lost by the store
		k.gone = true
		k.keepNoLonger()
		k.abandon(l)
		if l.attended {
			k.engine.log(ctx, slog.LevelInfo, "an answer is no longer kept", slog.String("state", string(now.State)), slog.Any("error", err))
		}
	}
	return nil
}

// abandon cancels an answer that nobody follows and nobody can join.
func (k *keeper) abandon(l load) {
	if !l.attended && !l.over {
		k.cancel(ErrAbandoned)
	}
}

// forget ends what the process knows of an answer.
func (e *Engine) forget(a *answer) {
	ctx, cancel := context.WithTimeout(context.Background(), e.rules.Lease)
	defer cancel()
	_ = e.store.Leave(ctx, a.Ref, a.ID) // otherwise its lease expires
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.answers, a.ID)
}
