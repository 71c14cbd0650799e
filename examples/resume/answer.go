package resume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"example.com/botapi"
)

// An answer is one whose model this process runs. Three kinds of goroutines share it:
//
//   - run calls the engine, adds its fragments, and ends the answer when the engine has
//     returned or its context has ended, whichever comes first.
//   - keep copies the answer to the store. It alone acts on what the store says: that the
//     answer was stopped, abandoned or lost, or has outgrown its room.
//   - Readers follow it, each in its own request.
//
// Those of timers and contexts only end or cancel it, wake keep, or renew a lease.
//
// An answer ends here once (endedAt). It is settled when its state in the store is final: the
// store has said so, or keep has given the store up, perhaps while the answer still runs.
// Readers learn of the end when it has ended and is settled, so that a client that comes back,
// or stops the answer, finds the same; or Wait after the end, even if it is not settled. After a
// complete end, the error may still change once, to ErrStopped, if the store had accepted a stop
// first: for the readers of this process that have not been told of the end.
//
// While the store takes fragments (stored is Running), the engine waits for the store only;
// afterwards, for the readers.
type answer struct {
	Ref
	engine  *Engine
	cancel  context.CancelCauseFunc // ends the model's context
	release func()                  // of botapi's slot, and of Engine.models; dismiss releases the store's
	urgent  chan struct{}           // receives what the keeper should not let wait
	settled chan struct{}           // closed when the answer is settled

	mu           sync.Mutex
	room         sync.Cond // for the engine, with mu: texts were dropped, or the answer has ended
	readers      map[*reader]struct{}
	lastTimedOut bool // the reader that left last, by a timeout, which botapi logs: end does not log the model's, which often comes at the same moment
	state
}

// A state is how far an answer is.
type state struct {
	texts    []string      // fragments that the store, or a reader, may lack
	first    int           // number of texts[0]
	size     int64         // of texts, in memory
	stored   State         // in the store, as far as keep knows; Lost if keep has given the store up
	have     int           // how many fragments the store has
	endedAt  time.Time     // zero until the answer has ended
	err      error         // why it is incomplete, once it has ended
	returned bool          // the engine has returned
	attended bool          // it has readers; load sets it
	changed  chan struct{} // closed, and replaced, on each change; for readers and, while stored is Running, for keep
}

func (s state) hasEnded() bool { return !s.endedAt.IsZero() }

const (
	// window is how many bytes the engine may be ahead of the store or, when that takes no
	// more, of the slowest reader.
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
		settled: make(chan struct{}),
		readers: make(map[*reader]struct{}),
		state:   state{stored: Running, changed: make(chan struct{})},
	}
	a.room.L = &a.mu
	return a
}

// run calls the engine, and OnAnswer.
func (a *answer) run(ctx context.Context, req *botapi.ChatRequest) {
	r := Report{Request: req, Outcome: Kept}
	defer a.engine.report(ctx, &r)
	defer a.cancel(nil)
	chatTimeout, stallTimeout := botapi.RequestFrom(ctx).Timeouts()
	chatTimeout, stallTimeout = timeoutOf(a.engine.options.ChatTimeout, chatTimeout), timeoutOf(a.engine.options.StallTimeout, stallTimeout)
	stall := time.AfterFunc(stallTimeout, func() { a.cancel(botapi.ErrEngineStalled) })
	defer stall.Stop()
	model := withDeadline{ctx, time.Now().Add(chatTimeout)}
	timeout := time.AfterFunc(chatTimeout, func() { a.cancel(botapi.ErrChatTimeout) })
	defer timeout.Stop()
	stop := context.AfterFunc(model, func() { a.end(ctx, context.Cause(model)) })
	defer stop()
	fail := func(err error) {
		if !time.Now().Before(model.deadline) { // as botapi has it: the engine may watch the deadline itself
			err = botapi.ErrChatTimeout
		}
		a.cancel(err)
	}
	defer func() {
		if v := recover(); v != nil {
			a.engine.notePanic(ctx, &r, v, r.Err != errExited || model.Err() != nil)
		}
		if r.Err != nil {
			fail(r.Err)
		}
		r.Err = context.Cause(model)
		a.release() // first: a client that hears of the end may come with the next chat
		a.mu.Lock()
		a.returned = true
		a.notify()
		a.mu.Unlock()
		a.end(ctx, r.Err)
		if r.Err == nil { // a DELETE may still stop it, until the store knows it to be complete
			select {
			case <-a.settled:
			case <-time.After(a.engine.rules.Wait):
			}
			r.Err = a.load().err
		}
	}()
	a.engine.play(model, &r, func(text string, err error) bool {
		stall.Stop()
		if err != nil {
			_, _ = answerTo(err), endingOf(err) // a method may panic, as that of a typed nil does: here it is caught
			fail(err)                           // the engine may go on for ever
			return false
		}
		more := a.add(text)
		if more {
			stall.Reset(stallTimeout)
		}
		return more
	})
}

// withDeadline is a context with the deadline of ChatTimeout. Its Err is context.Canceled even
// then, as botapi promises to engines.
type withDeadline struct {
	context.Context
	deadline time.Time
}

func (c withDeadline) Deadline() (time.Time, bool) { return c.deadline, true }

// timeoutOf returns a timeout of the package, or else that of botapi.
func timeoutOf(own, botapis time.Duration) time.Duration {
	if timeout := cmp.Or(own, botapis); timeout > 0 {
		return timeout
	}
	return 100 * 365 * 24 * time.Hour
}

// notePanic notes a panic of an engine: as why the answer is incomplete or, if something else
// is, in the log.
func (e *Engine) notePanic(ctx context.Context, r *Report, v any, isOver bool) {
	err := fmt.Errorf("panic while running the engine: %v\n%s", v, debug.Stack())
	if v == any(http.ErrAbortHandler) {
		err = http.ErrAbortHandler
	}
	switch {
	case !isOver:
		r.Err = err
	case err != http.ErrAbortHandler:
		e.log(ctx, slog.LevelError, "the engine panicked after its answer", slog.Any("error", err))
	}
}

// end ends the answer, with an error unless that is nil. The first call counts; but a stop
// that the store has accepted before it knew of a complete answer makes that an incomplete
// one.
func (a *answer) end(ctx context.Context, err error) {
	a.mu.Lock()
	isFirst, isSeen := !a.hasEnded(), len(a.readers) > 0 || a.lastTimedOut && isTimeout(err)
	switch {
	case isFirst:
		a.endedAt, a.err = time.Now(), answerTo(err)
		a.notify()
		a.room.Broadcast()
	case a.err == nil && err == ErrStopped:
		a.err = err
	}
	a.mu.Unlock()
	if isFirst && !isSeen {
		a.engine.logUnread(ctx, err)
	}
}

// logUnread logs the failure of an answer that no reader in this process sees, at the level
// at which botapi logs that of a chat.
func (e *Engine) logUnread(ctx context.Context, err error) {
	if err == nil || errors.Is(err, ErrAbandoned) || errors.Is(err, ErrStopped) || errors.Is(err, http.ErrAbortHandler) {
		return
	}
	level := slog.LevelWarn
	if chosen, isChosen := errors.AsType[*botapi.StatusError](err); isChosen && chosen.RetryAfter > 0 && chosen.Err == nil {
		level = slog.LevelInfo // a limit was reached, or the process is shutting down
	}
	e.log(ctx, level, "an answer without readers failed", slog.Any("error", err))
}

func isTimeout(err error) bool {
	return errors.Is(err, botapi.ErrChatTimeout) || errors.Is(err, botapi.ErrEngineStalled)
}

// answerTo is the error for the readers of an answer that has ended with one.
func answerTo(err error) error {
	switch {
	case isTimeout(err):
		return &botapi.StatusError{Status: 504, Detail: "The answer took too long", Err: err}
	case errors.Is(err, ErrAbandoned):
		return errBroken(err) // somebody came back at the last moment
	}
	return err
}

// add adds a fragment, and returns when the engine may continue: false once the
// answer has ended.
func (a *answer) add(text string) (more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.hasEnded() {
		a.texts = append(a.texts, text)
		a.size += int64(len(text)) + inMemory
		a.noteChange()
	}
	for !a.hasEnded() && a.size > window {
		if a.stored == Running { // otherwise only readers make room
			wake(a.urgent)
		}
		a.room.Wait()
	}
	return !a.hasEnded()
}

// trim drops fragments that are not needed here: the store has them or, when that takes no
// more, all readers. It is called with the lock held.
func (a *answer) trim() {
	needed := a.have
	if a.stored != Running {
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

// notify tells of a change that is urgent for the keeper. It is called with the lock held.
func (a *answer) notify() {
	a.noteChange()
	wake(a.urgent)
}

// noteChange wakes all who wait for changed: readers and, while the store takes fragments, the
// keeper, which then waits for more of them.
func (a *answer) noteChange() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func wake(waiting chan struct{}) {
	select {
	case waiting <- struct{}{}:
	default: // it has not noticed the last time yet
	}
}

// noteStored notes what the store has of the answer. Once that is final, nothing changes it.
func (a *answer) noteStored(stored State, have int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.stored.isFinal(), a.stored == stored && stored != Running:
		return
	case stored == Running:
		a.have = have
	default:
		a.stored = stored
		a.notify()
	}
	if stored.isFinal() {
		close(a.settled)
	}
	a.trim()
}

// load returns how far the answer is. When the store takes no more, it is without texts.
func (a *answer) load() state {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.state
	s.attended = len(a.readers) > 0
	if s.stored != Running { // only its end, and its model, still matter to the store
		s.texts, s.changed = nil, nil
	}
	return s
}
