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

// LineOptions are those of a [Line].
type LineOptions struct {
	AtOnce     int64         // how many chats the engine takes; 0 means 1
	Waiting    int64         // how many may wait; one more is answered with 503 at once
	RetryAfter time.Duration // what that one is told; 0 means 2 seconds
	Stall      time.Duration // how long the engine may yield nothing, if it heeds its context; 0 means no limit
}

// A Line stands in front of an engine that takes so many chats at once: the others
// wait, first come, first served, and whoever leaves, leaves the line at once.
//
// Nothing is yielded to those who wait, since even an empty fragment would commit
// the answer. So botapi's StallTimeout counts the wait as the engine's silence: leave
// it at no limit, and set Stall, the line's own clock for the engine behind it, in
// its place. ChatTimeout counts the wait, too. MaxConcurrentChats must be above
// AtOnce plus Waiting, or the line is never full.
//
// Stall ends the context of an engine that yields nothing, and answers when the engine
// returns or yields. Those of this folder that ask over a network do so at once; a
// [Local] does when its Model's Begin or Next returns. An engine that heeds nothing keeps
// its turn, and ChatTimeout alone answers its client.
type Line struct {
	engine     botapi.ChatEngine
	options    LineOptions
	room, turn *semaphore.Weighted
}

// NewLine returns a line in front of an engine. It panics without an engine, and when
// an option is below zero.
func NewLine(engine botapi.ChatEngine, o LineOptions) *Line {
	if engine == nil {
		panic("line: there is no engine behind it")
	}
	if min(o.AtOnce, o.Waiting, int64(o.RetryAfter), int64(o.Stall)) < 0 {
		panic("line: an option is below zero")
	}
	o.AtOnce = cmp.Or(o.AtOnce, 1)
	o.Waiting = min(o.Waiting, math.MaxInt64-o.AtOnce)
	o.RetryAfter = cmp.Or(o.RetryAfter, 2*time.Second)
	o.Stall = cmp.Or(o.Stall, math.MaxInt64)
	return &Line{engine, o, semaphore.NewWeighted(o.AtOnce + o.Waiting), semaphore.NewWeighted(o.AtOnce)}
}

// Chat answers with the engine when it is this chat's turn.
func (l *Line) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if !l.room.TryAcquire(1) {
			yield("", &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats are waiting", RetryAfter: l.options.RetryAfter})
			return
		}
		defer l.room.Release(1)
		if l.turn.Acquire(ctx, 1) != nil {
			yield("", context.Cause(ctx))
			return
		}
		defer l.turn.Release(1)
		l.serve(ctx, req, yield)
	}
}

// serve runs the engine against the line's clock. An engine that ignores the end of
// its context keeps its turn, which it does use.
func (l *Line) serve(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	clock := time.AfterFunc(l.options.Stall, func() { cancel(errStalled) })
	defer clock.Stop()
	answer := l.engine.Chat(ctx, req)
	if answer == nil {
		yield("", errors.New("the engine returned no iterator"))
		return
	}
	over := false
	next := func(text string, err error) bool {
		clock.Stop()
		switch {
		case over: // it goes on although it was told to stop
			return false
		case context.Cause(ctx) == errStalled:
			text, err = "", &botapi.StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long", Err: errStalled}
		}
		if over = !yield(text, err) || err != nil; over {
			cancel(nil) // which the engine may wait for, to clean up
		} else {
			clock.Reset(l.options.Stall)
		}
		return !over
	}
	answer(next)
	if context.Cause(ctx) == errStalled {
		next("", errStalled)
	}
}

var errStalled = errors.New("the engine behind the line yielded nothing for too long")
