package engines

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"net/http"
	"time"

	"example.com/botapi"
	"golang.org/x/sync/semaphore"
)

// LineOptions configures a [Line].
type LineOptions struct {
	AtOnce     int64         // how many chats the engine runs concurrently; 0 means 1
	Waiting    int64         // how many chats may wait; further ones get a 503 immediately
	RetryAfter time.Duration // for this 503; 0 means 2 seconds
	Stall      time.Duration // how long the engine may yield nothing; 0 means no limit
}

// A Line is a queue for an engine that runs a limited number of chats concurrently. The
// other chats wait in order of arrival. A chat whose client disconnects leaves the queue
// immediately.
//
// Nothing is yielded while a chat waits, since even an empty fragment would commit the
// response. So botapi's StallTimeout counts the wait as silence of the engine: set no
// StallTimeout, and set Stall, which counts only the time in the engine. ChatTimeout counts
// the wait, too. MaxConcurrentChats must be greater than AtOnce plus Waiting; otherwise
// botapi rejects chats before the queue is full.
//
// When Stall has passed, the engine's context is cancelled, and the client gets its error
// when the engine returns or yields. The engines of this package that use a network return
// immediately; a [Local] returns when its Model's Begin or Next does. An engine that ignores
// cancellation keeps its slot; its client gets an error when ChatTimeout has passed.
type Line struct {
	engine      botapi.ChatEngine
	options     LineOptions
	room, slots *semaphore.Weighted // room includes the chats that wait
}

// NewLine returns a queue for an engine. It panics if engine is nil or an option is
// negative.
func NewLine(engine botapi.ChatEngine, o LineOptions) *Line {
	if engine == nil {
		panic("line: engine is nil")
	}
	if min(o.AtOnce, o.Waiting, int64(o.RetryAfter), int64(o.Stall)) < 0 {
		panic("line: an option is negative")
	}
	o.AtOnce = cmp.Or(o.AtOnce, 1)
	o.Waiting = min(o.Waiting, math.MaxInt64-o.AtOnce)
	o.RetryAfter = cmp.Or(o.RetryAfter, 2*time.Second)
	o.Stall = cmp.Or(o.Stall, math.MaxInt64)
	return &Line{engine, o, semaphore.NewWeighted(o.AtOnce + o.Waiting), semaphore.NewWeighted(o.AtOnce)}
}

// Chat calls the engine when it has a free slot.
func (l *Line) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if !l.room.TryAcquire(1) {
			yield("", &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats are waiting", RetryAfter: l.options.RetryAfter})
			return
		}
		defer l.room.Release(1)
		if l.slots.Acquire(ctx, 1) != nil {
			yield("", context.Cause(ctx))
			return
		}
		defer l.slots.Release(1)
		l.serve(ctx, req, yield)
	}
}

// serve runs the engine with the Stall timer. An engine that ignores cancellation keeps its
// slot, since it is still running.
func (l *Line) serve(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(l.options.Stall, func() { cancel(errStalled) })
	defer timer.Stop()
	answer := l.engine.Chat(ctx, req)
	if answer == nil {
		yield("", errors.New("the engine returned no iterator"))
		return
	}
	ended := false
	next := func(text string, err error) bool {
		timer.Stop()
		switch {
		case ended: // the engine ignores that yield has returned false
			return false
		case context.Cause(ctx) == errStalled:
			text, err = "", &botapi.StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long", Err: errStalled}
		}
		if ended = !yield(text, err) || err != nil; ended {
			cancel(nil) // the engine may wait for this before it returns
		} else {
			timer.Reset(l.options.Stall)
		}
		return !ended
	}
	answer(next)
	if context.Cause(ctx) == errStalled {
		next("", errStalled)
	}
}

var errStalled = errors.New("the engine yielded nothing within Stall")
