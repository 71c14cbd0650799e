package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// ChatEngine answers chats: a model runtime, or whatever stands in front of
// one. The host provides it; the handler calls it from many goroutines at once.
type ChatEngine interface {
	// Chat yields the answer to req in fragments, in order. The answer is
	// whole when the iterator returns; an answer without fragments is the
	// empty text. Fragments may be of any size, may be empty, and may be cut
	// anywhere, also inside a UTF-8 character.
	//
	// A non-nil error ends the answer: the text beside it is not sent, and
	// what is yielded after it is not read. Before the first fragment the
	// error chooses the client's answer: a [StatusError] its status and text,
	// an [HTTPValidationError] a 422 with its list, anything else a 500 that
	// shows nothing of it. After the first fragment a stream can only break:
	// the client gets an error event (with the detail of a StatusError) and
	// the connection is cut. A one-body answer has sent nothing yet, so there
	// the error always chooses. A nil iterator and a panic count as errors.
	//
	// The handler calls Chat, and runs the iterator once, in a goroutine that
	// belongs to this chat. A yield blocks while the client does not take what
	// it was sent, so a slow reader holds its engine back. When yield returns
	// false, nothing more is wanted, and the engine should return soon.
	//
	// The context answers [AccountFrom] and [RequestIDFrom], and ends when the
	// client goes away, when Options.ChatTimeout has passed, or when the
	// answer is over: an engine must not give it to work that is to outlive
	// the chat. An iterator that returns after the context has ended counts as
	// cut short, with or without an error. One that does not return holds its
	// place under the limits until it does, but its client does not wait for
	// it: it is answered at once, and its connection closed soon after. (On
	// HTTP/1 the iterator runs in the goroutine of the request, so ServeHTTP
	// itself returns only when the engine has.)
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
	// handed to the connection, empty ones too. A one-body answer that failed
	// has handed over none.
	Fragments int
	// Bytes is the answer text handed to the connection, in bytes of UTF-8 as
	// the client decodes it. A client that left may have received less.
	Bytes int64
	// FirstFragment is the time from the request's start to the engine's first
	// fragment that had text in it; 0 if there was none. Duration is the time
	// from the request's start to the end of the answer.
	FirstFragment, Duration time.Duration
	// Err is why the answer ended early, nil when it is whole. It is
	// context.Canceled (by errors.Is) when the client left,
	// context.DeadlineExceeded when ChatTimeout passed, the failed write's
	// error when the client stopped reading, else what the engine yielded.
	Err error
}

var (
	errNilIterator  = errors.New("the engine returned a nil iterator")
	errEngineExited = errors.New("the engine ended its goroutine with runtime.Goexit")
)

// run lets the engine of the chat speak until it has really returned, and only
// then gives the chat's place back. Whatever the engine does stops the answer:
// it must never take the process down. What it does after its context has ended
// is no reason for anything.
func (c *chat) run() {
	err := errEngineExited
	defer func() {
		v := recover()
		if v != nil {
			err = recovered("running the engine", v)
		}
		c.places.release(c.account)
		cause := c.engineContext.cause()
		if first := c.answer.stop(cmp.Or(cause, err)); v != nil && (cause != nil || !first) {
			c.logError(&c.engineContext, "the engine panicked after its answer had ended", err)
		}
	}()
	err = c.speak()
}

// speak calls the iterator directly: a range statement would panic in an engine
// that goes on yielding after it was told to stop.
func (c *chat) speak() error {
	fragments := c.engine.Chat(&c.engineContext, &c.request)
	if fragments == nil {
		return errNilIterator
	}
	fragments(c.yield)
	return c.failure
}

// yield hands fragments on until one comes with an error. The engine is about to
// return then, and the answer is concluded soon if it does not.
func (c *chat) yield(text string, err error) bool {
	if c.failure != nil {
		return false
	}
	if err == nil {
		return c.answer.fragment(text)
	}
	if c.failure = c.engineContext.cause(); c.failure == nil {
		c.failure = sound(err)
	}
	if c.answer.stop(c.failure) {
		c.concludeSoon()
	}
	return false
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

// take takes a place for a chat of the account, or says which limit is reached.
func (p *places) take(account string) error {
	if p.all != nil && !p.all.TryAcquire(1) {
		return errAllPlacesTaken
	}
	if !p.takeForAccount(account) {
		p.releaseOfAll()
		return errAccountPlacesTaken
	}
	return nil
}

// release gives a place back. It is called in one place only, when the engine
// of the chat has returned.
func (p *places) release(account string) {
	p.releaseForAccount(account)
	p.releaseOfAll()
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
