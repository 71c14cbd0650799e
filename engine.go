package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// ChatEngine answers chats: a model runtime, or code that calls one. The application
// implements it. It must be safe for concurrent use.
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
	// The answer is complete when the iterator returns; without fragments it is the
	// empty text. Fragments may have any size, may be empty, and may end anywhere, even
	// inside a UTF-8 character.
	//
	// # Errors
	//
	// A non-nil error ends the answer: the text beside it is not sent, and what is
	// yielded after it is ignored. A nil iterator, a panic and [runtime.Goexit] count as
	// errors.
	//
	// Before anything has been sent, the error decides the response: a [StatusError] its
	// status and text, an [HTTPValidationError] a 422 with its list, [ErrBotNotFound] a
	// 404, [ErrInvalidKey] a 401; [http.ErrAbortHandler] aborts the connection; any other
	// error is a 500 that shows nothing of it. A JSON response is sent only when the
	// answer is complete, so this is always the case there. A stream begins with the
	// first fragment or keep-alive. From then on, the client gets an error event, with
	// the status, detail and RetryAfter that a response would have had, and the connection
	// is aborted; for http.ErrAbortHandler, it is aborted without an event.
	//
	// # Calls
	//
	// The handler calls Chat, and runs the iterator once, in a separate goroutine for
	// each chat. yield must not be called by several goroutines at the same time; the
	// emit of a [CallbackEngine] may.
	//
	// yield blocks while the client does not read, so a slow client slows its engine
	// down. It returns false once the chat has ended; return then. After everything else
	// is done, the handler waits for the engine for at most half a second. An engine that
	// goes on keeps its goroutine, and its slot under MaxConcurrentChats and
	// MaxChatsPerAccount, until it returns.
	//
	// # Context
	//
	// ctx is cancelled when the chat ends, for whatever reason. Do not pass it to work
	// that must outlive the chat. ctx.Err is always [context.Canceled], even at the
	// deadline; [context.Cause] gives the reason:
	//   - [ErrClientLeft], [ErrClientStalled], [ErrChatTimeout] or [ErrEngineStalled];
	//   - the engine's error, if the engine failed;
	//   - an error with the application's cause, if the application has cancelled the
	//     request's context with a cause (without one, or with context.Canceled, it is
	//     ErrClientLeft);
	//   - [context.Canceled], if the answer is complete.
	//
	// What is yielded once ctx is done does not reach the client.
	//
	// The deadline of ctx is ChatTimeout's. A deadline that the application has set on
	// the request's context cancels ctx, but ctx.Deadline does not return it. An engine
	// may watch the deadline itself. If it fails at or after the deadline, with any error
	// or panic, ChatTimeout has passed (504, [ErrChatTimeout]), and the engine's error is
	// logged as the cause. An error that comes after the chat has ended is dropped; a
	// panic is logged.
	//
	// ctx carries the values of the request's context, the account ([AccountFrom]) and
	// the request id ([RequestIDFrom]).
	//
	// The engine owns req, and may keep and change it.
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
// nil. An error that f returns ends the answer as one that is yielded does.
//
// emit returns an error once the chat has ended: the [context.Cause] of ctx, if ctx is
// done. f should return then; its own error is ignored. emit is safe for concurrent
// use. A call of emit that begins after f has returned only returns an error.
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
				yield("", err) // allowed: it has not returned false, and emit does not call it any more
			}
		}
	})
}

// An emitter makes yield safe for concurrent use.
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
	return cmp.Or(context.Cause(e.ctx), errChatEnded)
}

func (e *emitter) close() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	wasOpen := !e.closed
	e.closed = true
	return wasOpen
}

var errChatEnded = errors.New("botapi: the chat has ended")

// ChatRequest is one validated chat, as its engine gets it.
type ChatRequest struct {
	// Bot is what the BotStore returned for this request.
	Bot Bot
	// Messages is the whole conversation, with at least one message. A prompt is its
	// last, as a message of the user. The roles may come in any order.
	Messages []ChatMessage
	// UserID is the end user that the client has named. It may be empty, and is not
	// verified.
	UserID string
	// Stream is whether the client asked for a stream. An engine may ignore it: both
	// kinds of response are made of its fragments.
	Stream bool
	// Extra holds the fields of the body that the API does not define, by name, with
	// their values as they are in the body; nil if there are none.
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

// The roles of the API.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
)

// ChatReport is the report of one chat. Options.OnChat gets it, for metering and for
// abuse monitoring; it holds no text of the chat.
type ChatReport struct {
	RequestID, Account, UserID string
	Bot                        Bot
	Stream                     bool
	// Status is the status of the response: 200 once the sending of an answer has
	// begun, whether it succeeded or not. It is 0 for an error response of which
	// nothing could be sent, and for a connection that was aborted without a response.
	Status int
	// Fragments is how many of the engine's fragments, empty ones too, were handed to
	// the connection, completely or in part. A JSON response is handed over when its
	// sending begins: all of it, or nothing if it failed before.
	Fragments int
	// Bytes is the answer text handed to the connection, in bytes of UTF-8 as the
	// client decodes it. A client that disconnected may have received less.
	Bytes int64
	// FirstFragment is the time from the request's start to the engine's first
	// fragment with text; 0 if there was none. Duration is the time from the request's
	// start until everything that the client gets was sent.
	FirstFragment, Duration time.Duration
	// Err is why the answer is incomplete; nil if it is complete. errors.Is matches at
	// most one of ErrClientLeft, ErrClientStalled, ErrChatTimeout and ErrEngineStalled.
	// Otherwise it is what the engine yielded, its panic or another failure of the
	// engine's (a nil iterator, runtime.Goexit, an answer too large for a JSON
	// response), or an error with the cause with which the application has cancelled the
	// request's context.
	Err error
}

// Why an answer is incomplete, where only the handler can know: for errors.Is with
// ChatReport.Err and, in an engine, with the context.Cause of its context. An engine's
// own timeout or cancellation is none of them, unless it comes at or after the deadline
// of its context.
var (
	// ErrClientLeft: the client disconnected, a write failed, or the application
	// cancelled the request's context without a cause or with context.Canceled. It is
	// also context.Canceled.
	ErrClientLeft = fmt.Errorf("botapi: the client disconnected: %w", context.Canceled)
	// ErrClientStalled: a write to the client took longer than WriteTimeout. It is also
	// os.ErrDeadlineExceeded.
	ErrClientStalled = fmt.Errorf("botapi: the client stopped reading: %w", os.ErrDeadlineExceeded)
	// ErrChatTimeout: ChatTimeout passed before the engine was done, or the engine failed
	// at the same moment; or, for a JSON response longer than 64 KiB,
	// before its last chunk was begun. It is also context.DeadlineExceeded.
	ErrChatTimeout = fmt.Errorf("botapi: the answer took longer than ChatTimeout: %w", context.DeadlineExceeded)
	// ErrEngineStalled: the engine yielded nothing for StallTimeout. It is also
	// context.DeadlineExceeded.
	ErrEngineStalled = fmt.Errorf("botapi: the engine yielded nothing for StallTimeout: %w", context.DeadlineExceeded)
)

// hideReasons hides that an error of application code matches one of the four reasons: such
// an error comes from another chat, for example from an engine that shares answers.
func hideReasons(err error) error {
	if slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(err, reason) }) {
		return errorOfAnotherChat{err}
	}
	return err
}

var reasons = []error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled}

type errorOfAnotherChat struct{ err error }

func (e errorOfAnotherChat) Error() string { return e.err.Error() }

func (e errorOfAnotherChat) Is(target error) bool {
	return !slices.Contains(reasons, target) && errors.Is(e.err, target)
}

func (e errorOfAnotherChat) As(target any) bool { return errors.As(e.err, target) }

// An engineCall is one engine answering one request. The handler's goroutine starts run,
// calls cancel and silentFor, and receives from returned.
type engineCall struct {
	// Set before run.
	engine          ChatEngine
	request         *ChatRequest
	listener        listener
	detached        detachedContext
	ctx             context.Context // the engine's, derived from detached
	cancel          context.CancelCauseFunc
	hasStallTimeout bool
	returned        chan struct{} // closed when the engine has returned and the listener knows it

	// Safe for concurrent use.
	silentSince instant // since when the engine has been silent; not set while yield runs, or without a StallTimeout
}

// A listener learns what an engine does. All of its methods are safe for concurrent use:
// an engine may yield from several goroutines, although it must not.
type listener interface {
	// elapsed is the time since the start of the request.
	elapsed() time.Duration

	// fragment takes the next fragment, and reports whether the answer takes more. After
	// engineFailed or engineReturned, it returns false.
	fragment(text string) (more bool)

	// engineFailed is called each time the engine yields an error. Only the first call
	// counts. engineReturned need not follow, since the engine may go on for ever.
	engineFailed(failure *ending)

	// engineReturned is called once, by the engine's goroutine. failure is a panic,
	// runtime.Goexit or a nil iterator, or nil if the iterator has returned.
	engineReturned(failure *ending)
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

// A detachedContext has the values of the request's context and a deadline, but is never
// done. ([context.WithoutCancel] has no deadline.) The engine's context is derived from it:
// the handler notices the end of a request first, and then cancels the engine. Otherwise
// every client that disconnects could look like an engine that fails.
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

// run is the engine's goroutine.
func (call *engineCall) run() {
	failure := engineExited
	defer func() {
		call.listener.engineReturned(failure)
		close(call.returned)
	}()
	failure = call.iterate()
}

var engineExited = failureOf(errEngineExited)

// iterate calls the iterator directly: with a range statement, an engine that goes on
// yielding after yield has returned false would panic.
func (call *engineCall) iterate() (failure *ending) {
	defer func() {
		if v := recover(); v != nil {
			failure = failureOf(recovered("running the engine", v))
		}
	}()
	call.startSilence()
	fragments := call.engine.Chat(call.ctx, call.request)
	if fragments == nil {
		return failureOf(errNilIterator)
	}
	fragments(call.yield)
	return nil
}

func (call *engineCall) yield(text string, err error) (more bool) {
	call.silentSince.clear()
	if err != nil {
		call.listener.engineFailed(failureOf(err))
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

func (call *engineCall) silentFor() time.Duration {
	if since, isSet := call.silentSince.get(); isSet {
		return call.listener.elapsed() - since
	}
	return 0
}

// slots counts the chats in progress, under one lock: a chat that its account's limit
// rejects must not take the last of all slots from another chat for a moment.
type slots struct {
	perAccount int64 // 0 or less: no limit

	mu    sync.Mutex
	total *semaphore.Weighted
	inUse map[string]int64 // by account, if there is a limit; an account without chats in progress has no entry
}

func newSlots(total, perAccount int64) *slots {
	if total <= 0 {
		total = math.MaxInt64
	}
	return &slots{perAccount: perAccount, total: semaphore.NewWeighted(total), inUse: make(map[string]int64)}
}

// take rejects the chat if a limit was reached: if both are, by the one for all chats.
func (s *slots) take(account string) *ending {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.total.TryAcquire(1):
		return rejected(errTooManyChats)
	case s.perAccount <= 0:
	case s.inUse[account] >= s.perAccount:
		s.total.Release(1)
		return rejected(errTooManyAccountChats)
	default:
		s.inUse[account]++
	}
	return nil
}

func (s *slots) release(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Release(1)
	if s.perAccount <= 0 {
		return
	}
	if s.inUse[account]--; s.inUse[account] == 0 {
		delete(s.inUse, account)
	}
}

// A slot is what one chat uses of the limits, until its engine has returned and its answer
// has ended.
type slot struct {
	slots   *slots
	account string
	users   atomic.Int32 // how many of the two goroutines, the engine's and the handler's, still need it
}

func (s *slot) take(slots *slots, account string) *ending {
	if end := slots.take(account); end != nil {
		return end
	}
	s.slots, s.account = slots, account
	s.users.Store(2)
	return nil
}

// release is called once by the engine's goroutine and once by the handler's.
func (s *slot) release() {
	if s.users.Add(-1) == 0 {
		s.slots.release(s.account)
	}
}
