package engines

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/botapi"
)

// LineOptions configures a [Line].
type LineOptions struct {
	AtOnce     int64         // how many chats the engine runs concurrently; 0 means 1
	Waiting    int64         // how many chats may wait; further ones get a 503 immediately
	PerAccount int64         // how many of them may be of one account; 0 means half of Waiting, rounded up
	RetryAfter time.Duration // for these 503s; 0 means 2 seconds
	Stall      time.Duration // how long the engine may yield nothing; 0 means no limit
}

// A Line is a queue for an engine that runs a limited number of chats concurrently.
//
// The line is fair between accounts (botapi.AccountFrom). A free slot goes to the account
// that holds the fewest slots, of those that wait; among equals, to the one that has waited
// longest since it came or since its last chat ended; within an account, to the chat that
// came first. So an account that sends one chat waits for at most one chat of an account
// that sends a thousand. A slot is never kept free for an account that does not wait. If a
// service has one account only, set PerAccount to Waiting.
//
// A chat whose client disconnects leaves the queue immediately. If it has been given a slot
// at the same moment, the next chat gets the slot.
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
	engine  botapi.ChatEngine
	options LineOptions

	mu       sync.Mutex
	free     int64               // slots
	waiting  []*ticket           // in order of arrival
	accounts map[string]*account // those that have a chat in the line
	turn     int64               // grows with each change of an account's since
}

// A ticket is a chat in a line.
type ticket struct {
	account *account
	called  chan struct{} // closed when the chat has a slot
}

type account struct {
	name            string
	active, waiting int64 // its chats
	since           int64 // the turn in which it began to wait or, if that was later, a chat of it ended
}

// NewLine returns a queue for an engine. It panics if engine is nil or an option is
// negative.
func NewLine(engine botapi.ChatEngine, o LineOptions) *Line {
	if engine == nil {
		panic("line: engine is nil")
	}
	if min(o.AtOnce, o.Waiting, o.PerAccount, int64(o.RetryAfter), int64(o.Stall)) < 0 {
		panic("line: an option is negative")
	}
	o.AtOnce = cmp.Or(o.AtOnce, 1)
	o.PerAccount = cmp.Or(o.PerAccount, o.Waiting-o.Waiting/2)
	o.RetryAfter = cmp.Or(o.RetryAfter, 2*time.Second)
	o.Stall = cmp.Or(o.Stall, math.MaxInt64)
	return &Line{engine: engine, options: o, free: o.AtOnce, accounts: make(map[string]*account)}
}

// Chat calls the engine when the chat has a slot.
func (l *Line) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		t, err := l.enter(botapi.AccountFrom(ctx))
		if err != nil {
			yield("", err)
			return
		}
		defer l.leave(t)
		select {
		case <-t.called:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			yield("", context.Cause(ctx))
			return
		}
		l.serve(ctx, req, yield)
	}
}

// enter returns a ticket, with which leave must be called, or an error if the line is full.
func (l *Line) enter(name string) (*ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := cmp.Or(l.accounts[name], &account{name: name})
	switch {
	case l.free > 0: // nobody waits
	case int64(len(l.waiting)) >= l.options.Waiting:
		return nil, l.full("Too many chats are waiting")
	case a.waiting >= l.options.PerAccount:
		return nil, l.full("Too many chats are waiting for this key")
	}
	if a.waiting == 0 {
		a.since = l.nextTurn()
	}
	a.waiting++
	l.accounts[name] = a
	t := &ticket{a, make(chan struct{})}
	l.waiting = append(l.waiting, t)
	l.call()
	return t, nil
}

func (l *Line) full(detail string) error {
	return &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: detail, RetryAfter: l.options.RetryAfter}
}

// leave ends a chat that has a slot, or gives up the wait for one.
func (l *Line) leave(t *ticket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.remove(t) {
		l.free++
		t.account.active--
		t.account.since = l.nextTurn()
	}
	if t.account.active == 0 && t.account.waiting == 0 {
		delete(l.accounts, t.account.name)
	}
	l.call()
}

// call gives free slots to chats that wait.
func (l *Line) call() {
	for l.free > 0 && len(l.waiting) > 0 {
		t := slices.MinFunc(l.waiting, func(a, b *ticket) int { // the first of several
			return cmp.Or(cmp.Compare(a.account.active, b.account.active), cmp.Compare(a.account.since, b.account.since))
		})
		l.remove(t)
		l.free--
		t.account.active++
		close(t.called)
	}
}

// remove reports whether the chat was waiting.
func (l *Line) remove(t *ticket) bool {
	i := slices.Index(l.waiting, t)
	if i < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	t.account.waiting--
	return true
}

func (l *Line) nextTurn() int64 {
	l.turn++
	return l.turn
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
