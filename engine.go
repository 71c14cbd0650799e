package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"example.com/botapi/internal/instant"
	"example.com/botapi/internal/panics"
)

// ChatEngine answers chats: a model runtime, or code that calls one. The application
// implements it. It must be safe for concurrent use. The package examples/botapitest tests
// an implementation.
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
	// down. Meanwhile, hold nothing that another chat waits for, such as a lock or the
	// only connection, unless the model takes no more chats. yield returns false once
	// the chat has ended; return then. After everything else is done, the handler waits
	// for the engine for at most half a second. An engine that goes on keeps its
	// goroutine, and its slot under MaxConcurrentChats and MaxChatsPerAccount, until it
	// returns.
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

// A RequestReport is the report of one request, for counting and for logs.
type RequestReport struct {
	RequestID string
	// Account is what the KeyVerifier returned, even together with an error.
	Account string
	Method  string
	// Route is the pattern of the route, such as "POST /v1/chat"; for a method that is not
	// allowed, that of the path's first route; "" for an unknown path.
	Route string
	// Bot is that of a chat, once the store has returned it.
	Bot Bot
	// Status is that of the response; 0 if none was sent, as far as is known.
	Status int
	// Bytes is the length of the body that was handed to the connection; 0 for the answer of
	// a chat, of which Chat counts the text.
	Bytes int64
	// Duration is the time from the request's start until everything was sent.
	Duration time.Duration
	// Chat is what OnChat got; nil if no engine was called.
	Chat *ChatReport
	// Err is why the request was rejected, or has failed: the error of the application, or one
	// of this package. It is nil if the response is complete and says no error.
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
	// ErrChatTimeout: ChatTimeout passed before the engine was done or, if a JSON response is
	// longer than 64 KiB, before its last chunk was begun; or the engine failed at its deadline
	// or later. It is also context.DeadlineExceeded.
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
	chat            *chat
	engine          ChatEngine
	request         *ChatRequest
	detached        detachedContext
	ctx             context.Context // the engine's, derived from detached
	cancel          context.CancelCauseFunc
	hasStallTimeout bool
	returned        chan struct{} // closed when the engine has returned and the chat knows it

	// Safe for concurrent use.
	silentSince instant.Instant // since when the engine has been silent; not set while yield runs, or without a StallTimeout
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
		call.chat.engineReturned(failure)
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
			failure = failureOf(panics.Recovered("running the engine", v))
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
	call.endSilence()
	if err != nil {
		call.chat.engineFailed(failureOf(err))
		return false
	}
	more = call.chat.fragment(text)
	call.startSilence()
	return more
}

func (call *engineCall) startSilence() {
	if call.hasStallTimeout {
		call.silentSince.Set(call.chat.elapsed())
	}
}

func (call *engineCall) endSilence() {
	if call.hasStallTimeout {
		call.silentSince.Clear()
	}
}

func (call *engineCall) silentFor() time.Duration {
	if since, isSet := call.silentSince.Get(); isSet {
		return call.chat.elapsed() - since
	}
	return 0
}

// The limits that reject a chat: for errors.Is with Limit.Err, Failure.Err and
// RequestReport.Err. Each is a StatusError.
var (
	// ErrTooManyChats is MaxConcurrentChats: a 503.
	ErrTooManyChats error = StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: time.Second}
	// ErrTooManyAccountChats is MaxChatsPerAccount: a 429.
	ErrTooManyAccountChats error = StatusError{Status: http.StatusTooManyRequests, Detail: "Too many chats in progress for this key", RetryAfter: time.Second}
)

// A Limit is one that a chat has reached, for Options.OnLimit.
type Limit struct {
	Err     error // ErrTooManyChats or ErrTooManyAccountChats; if both are reached, the first
	Account string
	Bot     Bot
	Waiting int // how many chats wait for room

	request *ChatRequest
	extra   func() map[string]json.RawMessage
}

// Request returns the request of the chat, with its Extra, which may be many times as large
// as its part of the body. It must not be changed, and Request must not be called when OnLimit
// has returned. Each call reads Extra again.
func (l Limit) Request() *ChatRequest {
	request := *l.request
	if l.extra != nil {
		request.Extra = l.extra()
	}
	return &request
}

// slots counts the chats in progress, under one lock: a chat that its account's limit
// rejects must not take the last of all slots from another chat for a moment. Nobody waits
// in the semaphore: those who wait have an order, in waiting.
type slots struct {
	perAccount int64 // 0 or less: no limit
	maxWaiting int64

	mu      sync.Mutex
	total   *semaphore.Weighted
	inUse   map[string]int64 // by account, if there is a limit; an account without chats in progress has no entry
	waiting []*waiter        // in the order in which they came; none of them has room
}

// A waiter is a chat that waits for room.
type waiter struct {
	account string
	granted chan *Slot // gets one at most; buffered, since it is sent with slots.mu held
}

func newSlots(total, perAccount, maxWaiting int64) *slots {
	if total <= 0 {
		total = math.MaxInt64
	}
	return &slots{perAccount: perAccount, maxWaiting: maxWaiting, total: semaphore.NewWeighted(total), inUse: make(map[string]int64)}
}

// take returns a slot for a chat, or the limit that was reached.
func (s *slots) take(account string) (*Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.takeLocked(account)
}

func (s *slots) takeLocked(account string) (*Slot, error) {
	if !s.total.TryAcquire(1) {
		return nil, ErrTooManyChats
	}
	if s.perAccount > 0 {
		if s.inUse[account] >= s.perAccount {
			s.total.Release(1)
			return nil, ErrTooManyAccountChats
		}
		s.inUse[account]++
	}
	return &Slot{slots: s, account: account, users: chatUsers}, nil
}

// waitFor takes a slot if there is room after all. Otherwise it waits for one, if maxWaiting
// lets it: at most maxWait, and while done is not closed. Without a slot, limit or the end of
// the request rejects the chat.
func (s *slots) waitFor(account string, limit error, maxWait time.Duration, done <-chan struct{}) (*Slot, error) {
	w, slot := s.enqueue(account)
	if w == nil {
		return slot, limitUnless(slot, limit)
	}
	timeout := time.NewTimer(maxWait)
	defer timeout.Stop()
	select {
	case slot = <-w.granted:
	case <-timeout.C:
		slot = s.leave(w)
	case <-done:
		if slot = s.leave(w); slot != nil {
			slot.giveBack()
		}
		return nil, context.Canceled // realEnding finds the cause
	}
	return slot, limitUnless(slot, limit)
}

func limitUnless(slot *Slot, limit error) error {
	if slot != nil {
		return nil
	}
	return limit
}

// enqueue returns a waiter, or a slot if there is room after all, or neither if as many wait
// as may.
func (s *slots) enqueue(account string) (*waiter, *Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, limit := s.takeLocked(account)
	if limit == nil {
		return nil, slot
	}
	own := int64(0)
	for _, w := range s.waiting {
		if w.account == account {
			own++
		}
	}
	if int64(len(s.waiting)) >= s.maxWaiting || s.perAccount > 0 && own >= s.perAccount {
		return nil, nil
	}
	w := &waiter{account, make(chan *Slot, 1)}
	s.waiting = append(s.waiting, w)
	return w, nil
}

// leave ends a wait. It returns a slot that was granted meanwhile.
func (s *slots) leave(w *waiter) *Slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(other *waiter) bool { return other == w })
	select {
	case slot := <-w.granted:
		return slot
	default:
		return nil
	}
}

func (s *slots) countWaiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// freeLocked is called with the lock held, when the last use of a slot has ended. Room goes to the first chat that waits for
// it: one whose account has no room lets others pass.
func (s *slots) freeLocked(account string) {
	s.total.Release(1)
	if s.perAccount > 0 {
		if s.inUse[account]--; s.inUse[account] == 0 {
			delete(s.inUse, account)
		}
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(w *waiter) bool {
		slot, limit := s.takeLocked(w.account)
		if limit == nil {
			w.granted <- slot
		}
		return limit == nil
	})
}

// A Slot is a place under MaxConcurrentChats and MaxChatsPerAccount. A chat takes one, or shares
// one by OnLimit. It is in use until the engines of its chats have returned, their answers have
// ended, and each Hold was released. An engine finds
// that of its chat with [RequestFrom]. It is safe for concurrent use.
type Slot struct {
	slots   *slots
	account string
	users   int // guarded by slots.mu
}

// chatUsers are the engine's goroutine and the handler's: each releases its use once.
const chatUsers = 2

// Hold keeps the slot in use until release is called, which may be called more than once.
// ok is false if the slot is free already, or nil; then release does nothing.
func (s *Slot) Hold() (release func(), ok bool) {
	if s == nil || !s.use(1) {
		return func() {}, false
	}
	return sync.OnceFunc(s.release), true
}

// use adds users to a slot that is in use.
func (s *Slot) use(users int) bool {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.users == 0 {
		return false
	}
	s.users += users
	return true
}

// giveBack releases the slot of a chat that does not begin.
func (s *Slot) giveBack() {
	for range chatUsers {
		s.release()
	}
}

// release ends one use: the slot is free when none is left.
func (s *Slot) release() {
	s.slots.mu.Lock()
	defer s.slots.mu.Unlock()
	if s.users--; s.users == 0 {
		s.slots.freeLocked(s.account)
	}
}
