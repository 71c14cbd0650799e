package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
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

// A chat is one chat that has its place, up to the report of how it went.
//
// The engine runs in the handler's goroutine where that can be afforded: a
// second one costs a silent stream a stack, a paced one a wake-up for each
// fragment, and is the dearest part of an answer that is there at once. Then it
// is the end of the context, in a goroutine of its own, that answers for an
// engine that hangs, and takes the connection from under it. On HTTP/2 an
// answer is not complete until the handler returns, and a writer that cannot
// flush sends nothing until then: there the engine has its own goroutine, and
// may outlive the handler.
type chat struct {
	*exchange
	answer    answer
	failure   error         // what the engine has yielded; used in its goroutine
	heard     bool          // some text of the engine
	firstText time.Duration // from the start of the request until then
	conn      connection

	whole         wholeAnswer // the answer, unless it is a stream
	engineContext chatContext // what the engine is given
	request       ChatRequest // likewise
	report        *ChatReport // what is known from the start; nil if nobody wants it

	ended     chan struct{} // closed when the answer has stopped; nil if nobody waits for that
	concluded sync.Once     // with early and broken
	early     bool          // before the engine has returned
	broken    bool          // with an error event

	older, younger *chat // among the youngChats

	mu       sync.Mutex
	returned bool        // the engine has, and the answer is concluded
	detached bool        // the connection is closed already; not written any more when returned
	timeout  *time.Timer // these two watch the context, once the chat is no longer young
	leaving  func() bool
	slow     *time.Timer // these two wait for an engine that should return
	hanging  *time.Timer
}

// An answer takes an engine's fragments to the client.
type answer interface {
	// fragment takes the next fragment and reports whether more are wanted. It
	// is called in the goroutine of the engine.
	fragment(text string) bool

	// stop says that there will be no more, and why; nil if the answer is
	// whole. Only the first call counts: stop reports whether it was that.
	stop(err error) (first bool)

	// conclude sends what comes at the end of the answer, and tells how it
	// ended. It is called once, after stop, and is the last to touch the
	// ResponseWriter.
	conclude() outcome
}

// An outcome is how an answer ended, in the terms of a ChatReport.
type outcome struct {
	status, fragments int
	bytes             int64
	err               error
}

// newChat has the engine run apart from the handler's goroutine, or in it. A
// stream may be writing when it returns.
func newChat(x *exchange, request ChatRequest, engineApart bool) *chat {
	c := &chat{
		exchange:      x,
		engineContext: chatContext{x: x, began: x.elapsed()},
		request:       request,
		conn:          newConnection(x),
	}
	if x.onChat != nil {
		c.report = &ChatReport{ // now: the engine may change its request
			RequestID: x.identified.requestID,
			Account:   x.account,
			UserID:    request.UserID,
			Bot:       request.Bot,
			Stream:    request.Stream,
		}
	}
	if engineApart {
		c.ended = make(chan struct{})
	}
	if request.Stream {
		c.answer = newStream(c)
	} else {
		c.whole.chat = c
		c.answer = &c.whole
	}
	return c
}

// holdsHandler is whether the engine runs in the handler's goroutine.
func (c *chat) holdsHandler() bool { return c.ended == nil }

// converse lets the engine answer. When it returns, nobody will touch the
// ResponseWriter any more.
func (c *chat) converse() {
	c.young.add(c)
	defer c.linger()
	defer c.leave()
	defer c.conclude() // also when the engine ends this goroutine
	if c.holdsHandler() {
		c.run()
		return
	}
	go c.run()
	<-c.ended
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

// hear is called by the answer for each fragment that it takes.
func (c *chat) hear(text string) {
	if !c.heard && text != "" {
		c.heard, c.firstText = true, c.elapsed()
	}
}

// stopped is called by the answer, once, when it takes no more fragments.
func (c *chat) stopped() {
	if !c.holdsHandler() {
		close(c.ended)
	}
}

// endEarly ends the answer because its context has ended, and concludes it,
// before the engine has returned.
func (c *chat) endEarly() {
	if c.answer.stop(c.engineContext.cause()) {
		c.concludeEarly()
	}
}

// returnGrace is how long an engine may take to return after its last word
// before its answer is concluded without it.
const returnGrace = 20 * time.Millisecond

// concludeSoon sees that an answer that has stopped is concluded, also if the
// engine does not return. The caller is on the engine's stack, where nothing of
// the host's may be called, or holds a lock of the answer.
func (c *chat) concludeSoon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holdsHandler() && !c.returned {
		c.slow = time.AfterFunc(returnGrace, c.concludeEarly)
	}
}

// concludeEarly does not leave it to the handler's goroutine to conclude an
// answer that has stopped, if the engine is there and may stay.
func (c *chat) concludeEarly() {
	defer func() {
		if v := recover(); v != nil {
			c.logError(c.ctx, "request failed", recovered("ending the answer", v))
		}
	}()
	if c.holdsHandler() {
		c.concluded.Do(func() { c.concludeOnce(true) })
	}
}

// conclude ends the answer for the client, and reports it.
func (c *chat) conclude() {
	c.mu.Lock()
	if c.slow != nil {
		c.slow.Stop() // the engine has returned
	}
	c.mu.Unlock()
	c.concluded.Do(func() { c.concludeOnce(false) })
}

func (c *chat) concludeOnce(early bool) {
	c.early = early
	ended := c.answer.conclude()
	c.engineContext.end()
	if early {
		c.detachLater()
	}
	c.reportEnd(ended)
}

func (c *chat) detachLater() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.returned {
		c.hanging = time.AfterFunc(detachAfter, c.detach)
	}
}

// fail answers with an error instead of what the engine said. If the engine
// still holds the handler's goroutine, the answer does not wait for that, and
// the connection can serve nothing else.
func (c *chat) fail(err error) (status int) {
	c.conn.arm(c.elapsed())
	if c.early {
		_ = c.attempt(func() error { c.w.Header().Set("Connection", "close"); return nil })
	}
	status = c.refuse(err)
	if c.holdsHandler() && !c.cut {
		_ = c.attempt(c.control.Flush) // failed: the client is gone
	}
	return status
}

func (c *chat) reportEnd(ended outcome) {
	if c.report == nil {
		return
	}
	c.report.Status, c.report.Err = ended.status, ended.err
	c.report.Fragments, c.report.Bytes = ended.fragments, ended.bytes
	c.report.FirstFragment, c.report.Duration = c.firstText, c.elapsed()
	ctx := context.WithoutCancel(c.ctx)
	defer func() {
		if v := recover(); v != nil {
			c.logError(ctx, "OnChat panicked", recovered("calling OnChat", v))
		}
	}()
	c.onChat(ctx, *c.report)
}

// watch has the answer ended when its context ends. It calls the context of the
// host's middleware, which may do anything: only the end of this chat waits.
func (c *chat) watch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if v := recover(); v != nil {
			c.logError(c.ctx, "a leaving client will not be noticed", recovered("watching the request's context", v))
		}
	}()
	if c.returned {
		return
	}
	if c.chatTimeout > 0 {
		c.timeout = time.AfterFunc(c.chatTimeout-c.engineContext.age(), c.endEarly)
	}
	c.leaving = context.AfterFunc(c.r.Context(), c.endEarly)
}

// youngChats are the chats that nobody watches yet, the oldest first. Many
// answers are there at once, and watching a context is the dearest part of
// them: what has not ended when it is youth old is watched from then on, or
// from no more than twice that age.
type youngChats struct {
	mu               sync.Mutex
	oldest, youngest *chat
	growing          bool // grow is about to be called
}

const youth = 10 * time.Millisecond

func (y *youngChats) add(c *chat) {
	if 0 < c.chatTimeout && c.chatTimeout < 2*youth {
		c.watch()
		return
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	if c.older = y.youngest; c.older != nil {
		c.older.younger = c
	} else {
		y.oldest = c
	}
	y.youngest = c
	if !y.growing {
		y.growing = true
		time.AfterFunc(youth, y.grow)
	}
}

// remove is called when the chat is over.
func (y *youngChats) remove(c *chat) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.unlink(c)
}

// unlink does nothing to a chat that is not among them.
func (y *youngChats) unlink(c *chat) {
	if c.older != nil {
		c.older.younger = c.younger
	} else if y.oldest == c {
		y.oldest = c.younger
	}
	if c.younger != nil {
		c.younger.older = c.older
	} else if y.youngest == c {
		y.youngest = c.older
	}
	c.older, c.younger = nil, nil
}

func (y *youngChats) grow() {
	y.mu.Lock()
	defer y.mu.Unlock()
	for c := y.oldest; c != nil && c.engineContext.age() >= youth; c = y.oldest {
		y.unlink(c)
		go c.watch() // for which no other chat waits
	}
	if y.growing = y.oldest != nil; y.growing {
		time.AfterFunc(youth, y.grow)
	}
}

// lingerTime is how long an answer that broke visibly stays uncut.
const lingerTime = 250 * time.Millisecond

// linger waits for the client to leave, as those do that know an error event.
// Browsers drop what they have not read yet of an answer that is cut, and with
// it the event that says why.
func (c *chat) linger() {
	if !c.broken || c.detached {
		return
	}
	timer := time.NewTimer(lingerTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.r.Context().Done():
	}
}

// leave is called when the engine has returned (or has a goroutine of its own)
// and the answer is concluded: nothing here will touch the ResponseWriter after
// it.
func (c *chat) leave() {
	c.young.remove(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.returned = true
	for _, timer := range []*time.Timer{c.timeout, c.slow, c.hanging} {
		if timer != nil {
			timer.Stop()
		}
	}
	if c.leaving != nil {
		c.leaving()
	}
	c.conn.arm(c.elapsed()) // OnChat may have taken long, and net/http has the last bytes to write
}

// detachAfter is how long an engine may take to return when its answer has
// ended, before its connection is taken from it.
const detachAfter = lingerTime

// detach takes the connection from the server and closes it, so that neither
// the client nor http.Server.Shutdown waits for an engine that does not return.
// An answer that middleware has encoded anew is left alone: its end is still to
// be written.
func (c *chat) detach() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.returned {
		return
	}
	_ = c.attempt(func() error {
		if !c.cut && c.w.Header().Get("Content-Length") == "" {
			return nil
		}
		conn, _, err := c.control.Hijack()
		if err != nil {
			return err
		}
		c.detached = true
		return conn.Close()
	})
}

// canDetach is whether an answer can be sent, and its connection taken, before
// the handler returns. It looks behind middleware as http.ResponseController
// does.
func canDetach(w http.ResponseWriter) bool {
	flushes, hijacks := false, false
	for {
		switch w.(type) {
		case http.Flusher, interface{ FlushError() error }:
			flushes = true
		}
		if _, ok := w.(http.Hijacker); ok {
			hijacks = true
		}
		wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if flushes && hijacks || !ok {
			return flushes && hijacks
		}
		w = wrapped.Unwrap()
	}
}

// A chatContext is the context of one engine. The context that really ends is
// made when somebody asks for it: an engine that answers at once never does,
// and making one is dear.
type chatContext struct {
	x     *exchange
	began time.Duration // age counts from then

	mu     sync.Mutex
	made   context.Context
	cancel context.CancelFunc
	over   bool
}

func (c *chatContext) Deadline() (time.Time, bool) { return c.ending().Deadline() }
func (c *chatContext) Done() <-chan struct{}       { return c.ending().Done() }
func (c *chatContext) Err() error                  { return c.ending().Err() }

func (c *chatContext) Value(key any) any {
	if key == (requestContextKey{}) {
		return &c.x.admitted
	}
	return c.ending().Value(key) // also what package context asks for, to end contexts derived from this one
}

// ending is the context that really ends.
func (c *chatContext) ending() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made == nil {
		c.made, c.cancel = c.make()
		if c.over {
			c.cancel()
		}
	}
	return c.made
}

func (c *chatContext) make() (context.Context, context.CancelFunc) {
	if c.x.chatTimeout <= 0 {
		return context.WithCancel(&c.x.admitted)
	}
	return context.WithDeadlineCause(&c.x.admitted, c.x.began.Add(c.began).Add(c.x.chatTimeout), errTooLong)
}

// age is what ChatTimeout bounds.
func (c *chatContext) age() time.Duration { return c.x.elapsed() - c.began }

// end ends the context because the answer is over.
func (c *chatContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.made != nil {
		c.cancel()
	}
}

// cause says why the context has ended before the answer was over; nil if it
// has not. A host that cancels the contexts of its requests may give a cause,
// which then decides the answer; its context may panic, where nobody else would
// recover.
func (c *chatContext) cause() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = recovered("asking the request's context", v)
		}
	}()
	switch cause := context.Cause(&c.x.admitted); {
	case cause == context.Canceled:
		return errClientLeft
	case cause == context.DeadlineExceeded: // set by the host's middleware
		return errTooLong
	case cause != nil:
		return cause
	case c.x.chatTimeout > 0 && c.age() >= c.x.chatTimeout:
		return errTooLong
	}
	return nil
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
