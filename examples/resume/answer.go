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
	engine  *Engine
	cancel  context.CancelCauseFunc // ends the model's context
	release func()                  // its slot
	urgent  chan struct{}           // receives what the keeper should not let wait

	mu      sync.Mutex
	room    sync.Cond // for the engine, with mu: texts were dropped, or it is over
	readers map[*reader]struct{}
	state
}

// A state is how far an answer is.
type state struct {
	texts    []string      // fragments that the store may lack
	first    int           // number of texts[0]
	size     int64         // of texts, in memory
	kept     bool          // the store gets them; the keeper ends that, once
	over     time.Time     // when it was over; zero until then
	err      error         // why it is incomplete, once it is over
	returned bool          // the engine has returned
	attended bool          // it has readers; load sets it
	changed  chan struct{} // closed, and replaced, on each change; for readers
}

const (
	// window is how many bytes the engine may be ahead of the store, or of the
	// slowest reader of an answer that is not kept.
	window = 64 << 10
	// inMemory is what a fragment takes in memory besides its text.
	inMemory = 24
)

func newAnswer(r Ref, e *Engine, cancel context.CancelCauseFunc) *answer {
	a := &answer{
		Ref:     r,
		engine:  e,
		cancel:  cancel,
		urgent:  make(chan struct{}, 1),
		readers: make(map[*reader]struct{}),
		state:   state{kept: true, changed: make(chan struct{})},
	}
	a.room.L = &a.mu
	return a
}

// run calls the engine. The answer is over when the engine has returned or its
// context has ended, whichever comes first.
func (a *answer) run(ctx context.Context, req *botapi.ChatRequest) {
	r := Report{Request: req, Outcome: Kept}
	defer a.engine.report(ctx, &r)
	defer a.cancel(nil)
	chatTimeout, stallTimeout := a.engine.timeouts(ctx)
	stall := time.AfterFunc(stallTimeout, func() { a.cancel(botapi.ErrEngineStalled) })
	defer stall.Stop()
	model, done := context.WithTimeoutCause(ctx, chatTimeout, botapi.ErrChatTimeout)
	defer done()
	stop := context.AfterFunc(model, func() { a.end(ctx, context.Cause(model)) })
	defer stop()
	defer func() {
		if v := recover(); v != nil {
			r.Err = fmt.Errorf("panic while running the engine: %v\n%s", v, debug.Stack())
		}
		r.Err = cmp.Or(context.Cause(model), r.Err)
		a.engineReturned() // first: who hears of the end may come with the next chat
		a.end(ctx, r.Err)
	}()
	a.engine.play(model, &r, func(text string, err error) bool {
		stall.Stop()
		if err != nil {
			_, _ = answerTo(err), endingOf(err) // a method may panic, as that of a typed nil does: here it is caught
			return false
		}
		more := a.add(text)
		if more {
			stall.Reset(stallTimeout)
		}
		return more
	})
}

// timeouts are those of a model that continues without the chat that started it.
func (e *Engine) timeouts(ctx context.Context) (chat, stall time.Duration) {
	chat, stall = botapi.RequestFrom(ctx).Timeouts()
	chat, stall = cmp.Or(e.options.ChatTimeout, chat), cmp.Or(e.options.StallTimeout, stall)
	if chat <= 0 {
		chat = never
	}
	if stall <= 0 {
		stall = never
	}
	return chat, stall
}

const never = 100 * 365 * 24 * time.Hour

// end ends the answer, with an error unless that is nil; the first call counts, unless
// the store has heard of a stop before it heard that the answer is complete. If no
// reader here sees the error, the log has it.
func (a *answer) end(ctx context.Context, err error) {
	a.mu.Lock()
	isFirst, isSeen := a.over.IsZero(), len(a.readers) > 0
	if isFirst {
		a.over, a.err = time.Now(), answerTo(err)
		a.notify()
		a.room.Broadcast()
	} else if a.err == nil && errors.Is(err, ErrStopped) {
		a.err = err
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
func (a *answer) add(text string) (more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over.IsZero() {
		a.texts = append(a.texts, text)
		a.size += int64(len(text)) + inMemory
		a.notifyReaders()
	}
	for a.over.IsZero() && a.size > window {
		wake(a.urgent)
		a.room.Wait()
	}
	return a.over.IsZero()
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
	a.room.Broadcast()
}

// notify tells the readers of a change, and the keeper that it is urgent. It is called
// with the lock held.
func (a *answer) notify() {
	a.notifyReaders()
	wake(a.urgent)
}

func (a *answer) notifyReaders() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func wake(waiting chan struct{}) {
	select {
	case waiting <- struct{}{}:
	default: // it has not noticed the last time yet
	}
}

func (a *answer) engineReturned() {
	a.engine.models.release(a.Owner)
	a.release()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.returned = true
	a.notify()
}

// load returns what the keeper sends to the store.
func (a *answer) load() state {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.state
	s.attended = len(a.readers) > 0
	if !a.kept { // only the model is still counted
		s.texts, s.changed = nil, nil
	}
	return s
}

// keepNoLonger has the answer continue for the readers that it has here.
func (a *answer) keepNoLonger() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = false
	a.trim(0)
	a.notify()
}

const (
	batchPeriod = 100 * time.Millisecond // whose fragments the store gets together
	retryPeriod = 100 * time.Millisecond // after a failure of the store
	minPause    = 10 * time.Millisecond  // when Abandon is nearly over
)

// A keeper copies an answer to the store.
type keeper struct {
	*answer
	heard      time.Time // when the store last answered
	unattended time.Duration
}

// keep copies the answer to the store as it arrives, ten times a second, renews its
// lease and that of its model, and ends it there. It cancels an answer that was
// stopped, or that nobody comes back for. It returns when the engine has returned.
func (a *answer) keep(ctx context.Context) {
	defer a.engine.forget(a)
	k := keeper{answer: a, heard: time.Now()}
	for s := a.load(); s.kept || !s.returned; s = a.load() {
		pause := a.engine.rules.Lease / 3
		if err := k.step(ctx, s); err != nil {
			pause, s.changed = retryPeriod, nil
		} else if !s.attended && s.over.IsZero() {
			pause = max(minPause, min(pause, a.engine.rules.Abandon-k.unattended))
		}
		select {
		case <-s.changed:
			select { // more fragments may come
			case <-a.urgent:
			case <-time.After(batchPeriod):
			}
		case <-a.urgent:
		case <-time.After(pause):
		}
	}
}

// step tells the store what it lacks. A store that does not answer for a Lease
// has lost the answer; if the engine and a client wait for that, after Wait.
func (k *keeper) step(ctx context.Context, s state) error {
	asked, cancel := context.WithTimeout(context.Background(), k.engine.rules.Lease)
	defer cancel()
	tolerated := k.engine.rules.Lease
	if s.size > window && s.attended {
		tolerated = k.engine.rules.Wait
	}
	now, err := k.engine.store.Add(asked, k.Ref, s.first, s.texts, s.attended)
	switch {
	case err == nil:
		k.heard, k.unattended = time.Now(), now.Unattended
	case time.Since(k.heard) <= tolerated:
		return err
	default:
		now.State = Lost
	}
	isKept := s.kept && now.State == Running && now.Have >= s.first
	if isKept {
		k.mu.Lock()
		k.trim(now.Have)
		k.mu.Unlock()
	} else if now.State == Running { // a part is missing: nobody may join it
		_ = k.engine.store.End(asked, k.Ref, -1, Ending{}) // or the next step does
		now.State = Lost
	}
	switch {
	case isKept && s.over.IsZero():
		return nil
	case isKept:
		if err := k.engine.store.End(asked, k.Ref, now.Have, endingOf(s.err)); err != nil {
			return err
		}
		if s.returned {
			k.engine.forget(k.answer)
		}
	case now.State == Stopped:
		k.cancel(ErrStopped)
		k.end(ctx, ErrStopped)
	case !s.attended && s.over.IsZero(): // nobody follows it, and nobody can join it
		k.cancel(ErrAbandoned)
	case s.kept: // outgrown, or lost by the store
		k.engine.log(ctx, slog.LevelInfo, "an answer is no longer kept", slog.String("state", string(now.State)), slog.Any("error", err))
	}
	if s.kept {
		k.keepNoLonger()
	}
	return nil
}

// forget ends what the process knows of an answer whose engine has returned, and
// releases the slot of its model. Only the first call counts.
func (e *Engine) forget(a *answer) {
	e.mu.Lock()
	known := e.answers[a.ID] == a
	delete(e.answers, a.ID)
	e.mu.Unlock()
	if known {
		ctx, cancel := context.WithTimeout(context.Background(), e.rules.Lease)
		defer cancel()
		_ = e.store.Leave(ctx, a.Ref, a.ID) // otherwise its lease expires
	}
}
