package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// ChatEngine answers chats: a model runtime, or whatever stands in front of
// one. The host provides it; it must be safe for concurrent use.
type ChatEngine interface {
	// Chat returns the answer to req as an iterator over its fragments. The
	// simplest engine yields its text until yield returns false:
	//
	//	return func(yield func(string, error) bool) {
	//		for text := range tokens {
	//			if !yield(text, nil) {
	//				return
	//			}
	//		}
	//	}
	//
	// The answer is complete when the iterator returns; without fragments it is
	// the empty text. Fragments may have any size, may be empty, and may be cut
	// anywhere, even inside a UTF-8 character.
	//
	// # Errors
	//
	// A non-nil error ends the answer: the text beside it is not sent, and what
	// is yielded after it is ignored. A nil iterator, a panic and
	// [runtime.Goexit] count as errors.
	//
	// Before anything has been sent, the error decides the response: a
	// [StatusError] its status and text, an [HTTPValidationError] a 422 with its
	// list, [ErrBotNotFound] a 404, [ErrInvalidKey] a 401; [http.ErrAbortHandler]
	// cuts the connection; any other error is a 500 that shows nothing of it. A
	// JSON response is sent only at the end, so this is always the case there. A
	// stream begins with the first fragment or keep-alive. From then on, its
	// client gets an error event, with the detail of a StatusError, and its
	// connection is cut; for http.ErrAbortHandler, it is cut without an event.
	//
	// # Calls
	//
	// The handler calls Chat, and runs the iterator once, in a goroutine of its
	// own for each chat. yield must not be called by two goroutines at once; the
	// emit of a [CallbackEngine] may.
	//
	// yield blocks while the client does not read, so a slow client slows its
	// engine down. When yield returns false, nothing more is wanted and the
	// engine should return soon. When all else is done, the handler waits for it
	// for half a second at most. An engine that goes on keeps its goroutine, and
	// its slot under MaxConcurrentChats and MaxChatsPerAccount, until it returns.
	//
	// # Context
	//
	// ctx is cancelled when the handler takes no more fragments, for whatever
	// reason. Do not pass it to work that is to outlive the chat. ctx.Err is always
	// [context.Canceled], also at the deadline; [context.Cause] tells the reason:
	// [ErrClientLeft], [ErrClientStalled], [ErrChatTimeout] or
	// [ErrEngineStalled]; the error that ended the answer, if the engine failed;
	// an error with the host's cause, if the host cancelled the request's context
	// with a cause (without one, or with context.Canceled, it is ErrClientLeft);
	// [context.Canceled], if the answer is complete. What is yielded once ctx is done
	// does not reach the client.
	//
	// The deadline of ctx is ChatTimeout's. A deadline that the host has set on the
	// request's context cancels ctx, but ctx.Deadline does not return it. An
	// engine may watch the deadline itself. If it fails at or after the deadline,
	// with whatever error or panic, ChatTimeout has passed (504,
	// [ErrChatTimeout]), and the engine's error is logged as the cause. An error
	// that comes when the chat has a reason to end already is dropped; a panic is
	// logged.
	//
	// ctx carries the values of the request's context, the account
	// ([AccountFrom]) and the request id ([RequestIDFrom]).
	//
	// req belongs to the engine, which may keep and change it.
	Chat(ctx context.Context, req *ChatRequest) iter.Seq2[string, error]
}

// ChatEngineFunc makes a [ChatEngine] of a function.
type ChatEngineFunc func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error]

// Chat calls f.
func (f ChatEngineFunc) Chat(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
	return f(ctx, req)
}

// CallbackEngine makes a [ChatEngine] of a function that calls emit for each
// fragment, the form of most model clients. The answer is complete when f returns
// nil; the error that f returns ends it, as one that is yielded does.
//
// emit returns an error when nothing more is wanted: the [context.Cause] of ctx, if
// ctx is done. f should return then; its own error is ignored. emit is safe for
// concurrent use. A call of emit that begins after f has returned does nothing but
// return an error.
//
// CallbackEngine panics if f is nil.
func CallbackEngine(f func(ctx context.Context, req *ChatRequest, emit func(text string) error) error) ChatEngine {
	if f == nil {
		panic("botapi: CallbackEngine: the function is nil")
	}
	return ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			e := emitter{ctx: ctx, yield: yield}
			defer e.close()
			if err := f(ctx, req, e.emit); err != nil && e.close() {
				yield("", err) // it has not returned false, and emit calls it no more
			}
		}
	})
}

// An emitter makes yield safe for concurrent use, and stops calling it once it has
// returned false or the engine is done.
type emitter struct {
	ctx   context.Context
	yield func(string, error) bool

	mu     sync.Mutex // held while emit calls yield
	closed bool       // yield has returned false, or f has returned
}

func (e *emitter) emit(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.yield(text, nil) {
		return nil
	}
	e.closed = true
	return cmp.Or(context.Cause(e.ctx), errNothingWanted)
}

// close sees that emit calls yield no more, and reports whether the emitter was open.
func (e *emitter) close() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	wasOpen := !e.closed
	e.closed = true
	return wasOpen
}

var errNothingWanted = errors.New("botapi: no more fragments are wanted")

// ChatRequest is one validated chat, as its engine gets it.
type ChatRequest struct {
	// Bot is what the BotStore returned for this request.
	Bot Bot
	// Messages is the whole conversation, with at least one message. A prompt
	// is its last, as a message of the user. Nothing is promised of the order
	// of the roles.
	Messages []ChatMessage
	// UserID is what the client says of its end user; it may be empty, and
	// nothing vouches for it.
	UserID string
	// Stream is whether the client asked for a stream. An engine may ignore it:
	// both kinds of response are made of its fragments.
	Stream bool
	// Extra holds the fields of the body that the interface does not define, by
	// name, with their values as they are in the body; nil if there are none.
	Extra map[string]json.RawMessage
}

// ChatMessage is one message of a conversation.
type ChatMessage struct {
	Role    Role   `json:"role"`
	Content string `json:"content"` // valid UTF-8; may be empty
}

// Role is the author of a message: one of the three constants in every
// [ChatRequest].
type Role string

// The roles of the interface.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// ChatReport tells how one chat went. Options.OnChat gets it, for metering
// and for abuse monitoring; it holds no text of the chat.
type ChatReport struct {
	RequestID, Account, UserID string
	Bot                        Bot
	Stream                     bool
	// Status is the status of the response: 200 once the sending of an answer has
	// begun, whether it succeeded or not. For an error response of which nothing
	// could be sent it is 0, as for a connection that was cut without a response.
	Status int
	// Fragments is how many fragments of the engine, whole or in part, were
	// handed to the connection, empty ones too. A JSON response is handed over
	// when its sending begins: all of it, or nothing if it failed before.
	Fragments int
	// Bytes is the answer text handed to the connection, in bytes of UTF-8 as
	// the client decodes it. A client that left may have received less.
	Bytes int64
	// FirstFragment is the time from the request's start to the engine's first
	// fragment that had text in it; 0 if there was none. Duration is the time
	// from the request's start until all that the client gets was sent.
	FirstFragment, Duration time.Duration
	// Err is why the answer ended early, nil when it is whole. errors.Is matches
	// at most one of ErrClientLeft, ErrClientStalled, ErrChatTimeout and
	// ErrEngineStalled. Else it is what the engine yielded, its panic or another
	// failure of its own (a nil iterator, runtime.Goexit, an answer too large for
	// a JSON response), or an error with the cause with which the host ended the
	// request's context.
	Err error
}

// Why an answer ended early, where only the handler can know: for errors.Is with
// ChatReport.Err and, in an engine, with the context.Cause of its context. An
// engine's own time-out or cancellation is none of them, unless it comes at or after
// the deadline of its context.
var (
	// ErrClientLeft: the client disconnected, a write failed, or the host cancelled
	// the request's context without a cause or with context.Canceled. It is
	// context.Canceled, too.
	ErrClientLeft = fmt.Errorf("botapi: the client left: %w", context.Canceled)
	// ErrClientStalled: the client did not read for WriteTimeout, or did not read the
	// rest of a complete answer in the time that Options.ChatTimeout leaves. It is
	// os.ErrDeadlineExceeded, too.
	ErrClientStalled = fmt.Errorf("botapi: the client did not read: %w", os.ErrDeadlineExceeded)
	// ErrChatTimeout: ChatTimeout passed before the engine was done (even if it failed
	// before the handler had noticed that) or, of a JSON response longer than 64 KiB,
	// before its last part was begun. It is context.DeadlineExceeded, too.
	ErrChatTimeout = fmt.Errorf("botapi: the answer took longer than ChatTimeout: %w", context.DeadlineExceeded)
	// ErrEngineStalled: the engine yielded nothing for StallTimeout. It is
	// context.DeadlineExceeded, too.
	ErrEngineStalled = fmt.Errorf("botapi: the engine yielded nothing for StallTimeout: %w", context.DeadlineExceeded)
)

// An engineCall is one engine answering one request. Its method run is the engine's
// goroutine. The handler's goroutine calls only cancel and silentFor, and receives
// from returned.
type engineCall struct {
	engine   ChatEngine
	request  ChatRequest
	listener listener
	detached detachedContext
	ctx      context.Context // what the engine is given, derived from detached
	cancel   context.CancelCauseFunc

	returned chan struct{} // closed when the engine has returned and the listener has been told

	hasStallTimeout bool
	silentSince     instant // since when the handler has been waiting for the engine; not set while yield runs, or without a StallTimeout
}

// A listener is told what an engine does. Times are counted from the start of the
// request.
type listener interface {
	// elapsed is safe for concurrent use.
	elapsed() time.Duration

	// fragment takes the next fragment, and reports whether more are wanted. It
	// and engineFailed are called by whichever goroutine calls yield: the engine's,
	// or another that the engine lets do so. The engine promises one call at a
	// time; a listener must survive two. After engineFailed or engineReturned,
	// fragment returns false.
	fragment(text string) (more bool)

	// engineFailed is called each time the engine yields an error. Only the first
	// call counts. The engine may go on after that, even for ever: engineReturned
	// need not follow.
	engineFailed(failure *ending, at time.Duration)

	// engineReturned is called by the engine's goroutine when the engine has
	// returned. failure is a panic, runtime.Goexit or a nil iterator; it is nil if
	// the iterator has returned. It may follow engineFailed, and where an engine has
	// let another goroutine yield, fragment and engineFailed may overlap it, or
	// follow.
	engineReturned(failure *ending, at time.Duration)
}

// An instant is an optional time, counted from the start of a request. It is safe
// for concurrent use. The zero value is not set.
type instant struct {
	plusOne atomic.Int64 // the time plus a nanosecond; 0 if it is not set
}

func (i *instant) set(at time.Duration) { i.plusOne.Store(int64(at) + 1) }
func (i *instant) clear()               { i.plusOne.Store(0) }

func (i *instant) get() (at time.Duration, isSet bool) {
	plusOne := i.plusOne.Load()
	return time.Duration(plusOne - 1), plusOne != 0
}

// A detachedContext has the values of the request's context and a deadline, but is
// never done. ([context.WithoutCancel] has no deadline.) The engine's context is
// derived from it, and cancelled by the handler when it has recorded why the chat
// stops. If the engine's context ended together with the request, the engine's error
// could come before the handler has noticed the end of the request, and would be
// recorded in its place.
type detachedContext struct {
	context.Context
	deadline time.Time // ChatTimeout's; zero if there is none
}

func (c *detachedContext) Done() <-chan struct{}       { return nil }
func (c *detachedContext) Err() error                  { return nil }
func (c *detachedContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

var (
	errNilIterator  = errors.New("the engine returned a nil iterator")
	errEngineExited = errors.New("the engine ended its goroutine with runtime.Goexit")
)

// run calls the engine and returns when the engine has returned. It recovers a panic,
// which would otherwise end the process.
func (call *engineCall) run() {
	err := errEngineExited // stands if the engine calls runtime.Goexit
	defer func() {
		v, at := recover(), call.listener.elapsed()
		if v != nil {
			err = recovered("running the engine", v)
		}
		var failure *ending
		if err != nil {
			failure = failureOf(err)
		}
		call.listener.engineReturned(failure, at)
		close(call.returned)
	}()
	err = call.iterate()
}

// iterate calls the iterator directly: with a range statement, an engine that goes
// on yielding after it was told to stop would panic.
func (call *engineCall) iterate() error {
	call.startSilence()
	fragments := call.engine.Chat(call.ctx, &call.request)
	if fragments == nil {
		return errNilIterator
	}
	fragments(call.yield)
	return nil
}

// yield is what the engine calls. After an error, the listener wants no more.
func (call *engineCall) yield(text string, err error) (more bool) {
	call.silentSince.clear()
	if err != nil {
		at := call.listener.elapsed() // before the error is read, which may block
		call.listener.engineFailed(failureOf(err), at)
		return false
	}
	more = call.listener.fragment(text)
	call.startSilence()
	return more
}

func (call *engineCall) startSilence() {
	if call.hasStallTimeout {
		call.silentSince.set(call.listener.elapsed())
	}
}

// silentFor is how long the handler has been waiting for the engine.
func (call *engineCall) silentFor() time.Duration {
	if since, isSet := call.silentSince.get(); isSet {
		return call.listener.elapsed() - since
	}
	return 0
}

// slots counts the chats in progress, for MaxConcurrentChats and
// MaxChatsPerAccount. A chat gets its slot at once or is refused: nothing queues.
type slots struct {
	total      *semaphore.Weighted // nil: no limit
	perAccount int64               // 0: no limit

	mu    sync.Mutex       // held by take and release if there is a limit for accounts
	inUse map[string]int64 // chats in progress by account; an account without any has no entry
}

func newSlots(total, perAccount int64) *slots {
	s := &slots{perAccount: perAccount, inUse: make(map[string]int64)}
	if total > 0 {
		s.total = semaphore.NewWeighted(total)
	}
	return s
}

// take takes a slot for a chat of the account, or returns the refusal for the limit
// that was reached: if both are, that for all chats. If the account's limit refuses,
// the slot of the total is given back before the lock is: no other call has seen it
// taken.
func (s *slots) take(account string) *ending {
	if s.perAccount > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	if s.total != nil && !s.total.TryAcquire(1) {
		return rejected(errTooManyChats)
	}
	if s.perAccount <= 0 {
		return nil
	}
	if s.inUse[account] >= s.perAccount {
		s.releaseTotal()
		return rejected(errTooManyAccountChats)
	}
	s.inUse[account]++
	return nil
}

func (s *slots) release(account string) {
	if s.perAccount > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.inUse[account]--; s.inUse[account] == 0 {
			delete(s.inUse, account)
		}
	}
	s.releaseTotal()
}

func (s *slots) releaseTotal() {
	if s.total != nil {
		s.total.Release(1)
	}
}

// A slot is what one chat uses of the limits, until its engine has returned and
// its answer has ended, whichever is later.
type slot struct {
	slots   *slots
	account string
	users   atomic.Int32 // how many of the two goroutines, the engine's and the handler's, still need it
}

func (s *slot) take(slots *slots, account string) *ending {
	if refusal := slots.take(account); refusal != nil {
		return refusal
	}
	s.slots, s.account = slots, account
	s.users.Store(2)
	return nil
}

// release is called once by the engine's goroutine and once by the handler's. The
// second call gives the slot back.
func (s *slot) release() {
	if s.users.Add(-1) == 0 {
		s.slots.release(s.account)
	}
}
