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
	// The answer is whole when the iterator returns; an answer without
	// fragments is the empty text. Fragments may have any size, may be empty,
	// and may be cut anywhere, even inside a UTF-8 character.
	//
	// A non-nil error ends the answer: the text beside it is not sent, and what
	// is yielded after it is not read. A nil iterator, a panic and
	// [runtime.Goexit] count as errors.
	//
	// What the client sees of an error depends on whether a stream has begun,
	// which it does with the first fragment or keep-alive. Before that, and
	// always in a one-body answer, the error decides the answer: a [StatusError]
	// its status and text, an [HTTPValidationError] a 422 with its list,
	// [ErrBotNotFound] a 404, any other a 500 that shows nothing of it. A
	// stream that has begun gets an error event, with the detail of a
	// StatusError, and its connection is cut.
	//
	// The handler calls Chat, and runs the iterator once, in a goroutine that
	// belongs to this chat. A yield blocks while the client does not read, so a
	// slow client holds its engine back. When yield returns false, nothing more
	// is wanted and the engine should return soon. The client does not wait for
	// an engine that goes on, but such an engine keeps its goroutine, and its
	// place under the limits, until it returns.
	//
	// The context is cancelled when the client disconnects, when
	// Options.ChatTimeout or Options.StallTimeout passes, when the host ends
	// the request's context, and when the answer has ended: an engine must not
	// give it to work that is to outlive the chat. [context.Cause] tells which
	// ([ErrClientLeft], [ErrClientStalled], [ErrChatTimeout],
	// [ErrEngineStalled], or the host's own cause). Its deadline is
	// ChatTimeout's; one that the host gave the request ends it without being
	// its deadline. Whatever the engine does
	// after that changes nothing for the client. The context carries the values
	// of the request's context, the account ([AccountFrom]) and the request id
	// ([RequestIDFrom]).
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
// fragment, the form of most model clients. The answer is whole when f returns
// nil; the error that f returns ends it, as one that is yielded does.
//
// emit returns an error when nothing more is wanted: the reason, as
// [context.Cause] has it, or one that only says so. f should return then; what
// it returns does not matter any more. emit is safe for concurrent use. After f
// has returned, emit only returns an error.
func CallbackEngine(f func(ctx context.Context, req *ChatRequest, emit func(text string) error) error) ChatEngine {
	return ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			e := emitter{ctx: ctx, yield: yield}
			defer e.stop()
			if err := f(ctx, req, e.emit); err != nil && e.stop() {
				yield("", err)
			}
		}
	})
}

// An emitter guards a yield that is not to be called again.
type emitter struct {
	ctx   context.Context
	yield func(string, error) bool

	mu      sync.Mutex // held while yield runs
	stopped bool
}

func (e *emitter) emit(text string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.stopped && e.yield(text, nil) {
		return nil
	}
	e.stopped = true
	return cmp.Or(context.Cause(e.ctx), errNothingWanted)
}

// stop reports whether more was wanted until now.
func (e *emitter) stop() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := !e.stopped
	e.stopped = true
	return wanted
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
	// Stream is whether the client asked for a stream. An engine need not
	// care: both kinds of answer are made of its fragments.
	Stream bool
	// Extra holds the members of the body that the interface does not define,
	// by name, as they stand in the body; nil if there are none.
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
	// Status is the HTTP status that was sent, 200 for a stream that broke
	// later; 0 if the client was gone before there was one.
	Status int
	// Fragments is how many fragments of the engine, whole or in part, were
	// handed to the connection, empty ones too. A one-body answer is handed over
	// when its sending begins: all of it, or nothing if it failed before.
	Fragments int
	// Bytes is the answer text handed to the connection, in bytes of UTF-8 as
	// the client decodes it. A client that left may have received less.
	Bytes int64
	// FirstFragment is the time from the request's start to the engine's first
	// fragment that had text in it; 0 if there was none. Duration is the time
	// from the request's start to the end of the answer.
	FirstFragment, Duration time.Duration
	// Err is why the answer ended early, nil when it is whole. By errors.Is it
	// is at most one of ErrClientLeft, ErrClientStalled, ErrChatTimeout and
	// ErrEngineStalled; else it is what the engine yielded, its panic, or the
	// cause with which the host ended the request's context.
	Err error
}

// Why an answer ended early, where it was neither the engine's doing nor the
// host's: for errors.Is with ChatReport.Err and, in an engine, with the
// context.Cause of its context. An engine's own time-out or cancellation is
// none of them.
var (
	// ErrClientLeft: the client disconnected. It is context.Canceled, too.
	ErrClientLeft = fmt.Errorf("botapi: the client left: %w", context.Canceled)
	// ErrClientStalled: the client did not read for WriteTimeout. It is
	// os.ErrDeadlineExceeded, too.
	ErrClientStalled = fmt.Errorf("botapi: the client did not read: %w", os.ErrDeadlineExceeded)
	// ErrChatTimeout: ChatTimeout passed. It is context.DeadlineExceeded, too.
	ErrChatTimeout = fmt.Errorf("botapi: the answer took longer than ChatTimeout: %w", context.DeadlineExceeded)
	// ErrEngineStalled: the engine yielded nothing for StallTimeout. It is
	// context.DeadlineExceeded, too.
	ErrEngineStalled = fmt.Errorf("botapi: the engine yielded nothing for StallTimeout: %w", context.DeadlineExceeded)
)

// An engineRun is one engine answering one request, in a goroutine of its own.
type engineRun struct {
	engine   ChatEngine
	request  ChatRequest
	listener listener
	values   engineValues
	ctx      context.Context // what the engine is given
	cancel   context.CancelCauseFunc

	failure  error         // what the engine has yielded
	returned chan struct{} // closed when the engine has

	timed bool         // there is a StallTimeout
	asked atomic.Int64 // 1 + when the engine was asked for what comes next; 0 while it is not
}

// A listener takes what an engine says. All is called in the engine's goroutine.
type listener interface {
	elapsed() time.Duration

	// fragment takes the next fragment, and reports whether more are wanted.
	fragment(text string) (more bool)

	// stop is called when the engine has yielded an error; it has not returned
	// yet, and may never.
	stop(err error) (first bool)

	// engineReturned is called when the engine has returned: nil if its answer
	// is whole. It comes last.
	engineReturned(err error)
}

// engineValues are the values of a request's context, with a deadline. They are
// never done: the context derived from them is cancelled by the owner of the
// chat, once the reason is recorded. Else an engine that yields ctx.Err() would
// make a failure of every disconnect.
type engineValues struct {
	context.Context
	deadline time.Time // ChatTimeout's; zero if there is none
}

func (c *engineValues) Done() <-chan struct{}       { return nil }
func (c *engineValues) Err() error                  { return nil }
func (c *engineValues) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

var (
	errNilIterator  = errors.New("the engine returned a nil iterator")
	errEngineExited = errors.New("the engine ended its goroutine with runtime.Goexit")
)

// run lets the engine speak until it has returned. Whatever it does must not
// take the process down.
func (run *engineRun) run() {
	err := errEngineExited
	defer func() {
		if v := recover(); v != nil {
			err = checked(recovered("running the engine", v)) // here, since the value's methods may block
		}
		run.listener.engineReturned(err)
		close(run.returned)
	}()
	err = run.speak()
}

// speak calls the iterator directly: a range statement would panic in an engine
// that goes on yielding after it was told to stop.
func (run *engineRun) speak() error {
	run.ask()
	fragments := run.engine.Chat(run.ctx, &run.request)
	if fragments == nil {
		return errNilIterator
	}
	fragments(run.yield)
	return nil // or the error that it yielded has stopped the chat
}

// yield hands fragments on until one comes with an error.
func (run *engineRun) yield(text string, err error) (more bool) {
	run.asked.Store(0)
	switch {
	case run.failure != nil:
		return false
	case err != nil:
		run.failure = failureOf(err)
		run.listener.stop(run.failure)
		return false
	}
	more = run.listener.fragment(text)
	run.ask()
	return more
}

func (run *engineRun) ask() {
	if run.timed {
		run.asked.Store(1 + int64(run.listener.elapsed()))
	}
}

// silence is how long the engine has said nothing although it was asked.
func (run *engineRun) silence() time.Duration {
	if asked := run.asked.Load(); asked > 0 {
		return run.listener.elapsed() - time.Duration(asked-1)
	}
	return 0
}

// places are what MaxConcurrentChats and MaxChatsPerAccount count. A chat has
// its place at once or is refused; nothing queues.
type places struct {
	all        *semaphore.Weighted // nil: no limit
	perAccount int64               // 0: no limit

	mu    sync.Mutex
	taken map[string]int64 // chats in progress by account; no zeros
}

func newPlaces(all, perAccount int64) *places {
	p := &places{perAccount: perAccount, taken: make(map[string]int64)}
	if all > 0 {
		p.all = semaphore.NewWeighted(all)
	}
	return p
}

// A place is what one chat takes up under the limits until its engine has
// returned and its answer has ended, whichever is later.
type place struct {
	places  *places
	account string
	holders atomic.Int32
}

// take takes a place for a chat of the account, or says which limit is reached.
func (p *place) take(places *places, account string) error {
	if places.all != nil && !places.all.TryAcquire(1) {
		return errAllPlacesTaken
	}
	if !places.takeForAccount(account) {
		places.releaseOfAll()
		return errAccountPlacesTaken
	}
	p.places, p.account = places, account
	p.holders.Store(2)
	return nil
}

// release is called twice, by the engine's goroutine and by the handler's: the
// second call gives the place back.
func (p *place) release() {
	if p.holders.Add(-1) == 0 {
		p.places.releaseForAccount(p.account)
		p.places.releaseOfAll()
	}
}

func (p *places) releaseOfAll() {
	if p.all != nil {
		p.all.Release(1)
	}
}

func (p *places) takeForAccount(account string) bool {
	if p.perAccount <= 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[account] >= p.perAccount {
		return false
	}
	p.taken[account]++
	return true
}

func (p *places) releaseForAccount(account string) {
	if p.perAccount <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[account]--; p.taken[account] == 0 {
		delete(p.taken, account)
	}
}
