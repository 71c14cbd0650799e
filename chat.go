package botapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/textproto"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"example.com/botapi/internal/chatbody"
	"example.com/botapi/internal/connection"
	"example.com/botapi/internal/instant"
	"example.com/botapi/internal/jsontext"
	"example.com/botapi/internal/panics"
	"example.com/botapi/internal/readtext"
)

// A Chat is a [Response] that is the answer of an engine. A [Route] makes it of its request:
// the handler takes a slot, runs the engine, and sends the answer as a stream or as JSON. It
// belongs to the handler once Serve has returned it.
type Chat struct {
	// Context adds its values to the request's context, which has them from then on: for the
	// store, OnLimit, the engine, the formats, and the reports. Its cancellation does not count. Nil
	// adds none.
	Context context.Context

	// BotUID and BotSlug name the bot, as in [FindBot]. With Answer, there may be neither.
	BotUID, BotSlug string

	// Request is what the engine gets. The handler sets its Bot. Its Messages are the
	// conversation, at least one unless Answer is set, with the three roles and valid UTF-8;
	// otherwise the response is a 500, and the log names the route. Its Stream decides
	// whether the answer is a stream.
	Request ChatRequest

	// Extra, if not nil, makes Request.Extra. It is called when the chat has got its slot, and
	// by each Limit.Request: the extra fields of a chat that is rejected stay as they are in
	// its body, which takes less memory.
	Extra func() map[string]json.RawMessage

	// Answer, if not nil, is called in place of Options.Engine, under the same contract: for
	// an answer that exists already.
	Answer func(context.Context) iter.Seq2[string, error]

	// Stream is the format of a stream; nil means the API's own.
	Stream StreamFormat

	// JoinsFragments makes one text of fragments that are ready together. Otherwise, and in
	// the API's own format, each fragment is at least one event. (The "[DONE]" that joining
	// makes of two fragments is not escaped: the API's clients would stop at it.)
	JoinsFragments bool

	// JSON returns what is sent before and after the text of a JSON response: the text is the
	// inside of a JSON string, so before ends with a quote and after begins with one. Nil means
	// the API's own. It is called when the answer is
	// complete: what the engine has noted is final. An error or a panic is a failure of the
	// answer. Its context has the request's values.
	JSON func(context.Context) (before, after []byte, err error)
}

func (*Chat) isResponse() {}

// play plays the chat that an operation asks for. It returns an ending if no chat began. When it
// returns nil, the chat has been reported; its engine may still run.
func (x *exchange) play(asked *Chat) *ending {
	if x.r.Method == http.MethodHead {
		return x.notAllowed(x.handler.routes.Allowed(x.r, http.MethodHead)...)
	}
	x.asked = asked
	if asked.Context != nil {
		x.ctx = &requestContext{&routeContext{x.ctx.Context, context.WithoutCancel(asked.Context)}, x.ctx.requestID, x.ctx.account, x.ctx.request}
	}
	if err := x.checkChat(asked); err != nil {
		return x.misused(err)
	}
	if asked.Answer == nil || asked.BotUID != "" || asked.BotSlug != "" {
		bot, err := FindBot(x.ctx, x.handler.options.Bots, asked.BotUID, asked.BotSlug)
		if err != nil {
			return failureOf(err)
		}
		asked.Request.Bot = bot
	}
	requestDone := x.r.Context().Done() // asked before there is a slot: an application's context may panic
	x.conn.SetReadDeadline(time.Time{}) // clears the server's: on HTTP/2, the end of the body does not
	if end := x.readRestOfBody(); end != nil {
		return end
	}
	slot, err := x.takeSlot(asked, requestDone)
	if err != nil {
		return failureOf(err)
	}
	c, err := x.newChat(asked, slot, requestDone)
	if err != nil {
		return failureOf(err)
	}
	x.played = c
	c.run()
	c.callOnChat()
	return nil
}

// checkChat holds a route to the contract of an engine's request.
func (x *exchange) checkChat(asked *Chat) error {
	switch {
	case x.operation.isOwn:
		return nil
	case asked.Answer == nil && len(asked.Request.Messages) == 0:
		return errors.New("a chat has no messages")
	}
	for i, message := range asked.Request.Messages {
		switch {
		case !slices.Contains(roles[:], message.Role):
			return fmt.Errorf("message %d of a chat has none of the three roles", i)
		case !utf8.ValidString(message.Content):
			return fmt.Errorf("message %d of a chat is not UTF-8", i)
		}
	}
	return nil
}

var roles = [...]Role{RoleSystem, RoleUser, RoleAssistant}

// takeSlot asks OnLimit about a chat that finds no room, before it waits or is rejected.
func (x *exchange) takeSlot(asked *Chat, requestDone <-chan struct{}) (*Slot, error) {
	h, account := x.handler, x.ctx.account
	slot, limit := h.slots.take(account)
	if limit == nil {
		return slot, nil
	}
	if h.options.OnLimit != nil {
		reached := Limit{limit, account, asked.Request.Bot, h.slots.countWaiting(), &asked.Request, asked.Extra}
		share, err := h.options.OnLimit(x.ctx, reached)
		switch {
		case err != nil:
			return nil, err
		case share != nil && share.use(chatUsers):
			return share, nil
		}
	}
	return h.slots.waitFor(account, limit, h.options.MaxWait, requestDone)
}

// A chat begins when newChat has made it, with its slot.
//
//	running ─► stopped ─► finished ─► reported ─► the handler returns
//
// No variable holds the state: the states are names for the order of events. Any
// goroutine may stop a running chat. The handler's goroutine takes all later steps.
//
//   - running: the chat stops when its engine returns or fails, when a write or a format
//     fails, and when a JSON response grows too large. wait notices that the client has disconnected,
//     that the application has cancelled the request, and that a timeout has passed. If the
//     handler's goroutine ends, endAbruptly stops the chat, in place of the later steps.
//   - stopped: the first call of stop has recorded the ending. A yield that begins now
//     returns false: for the engine, the chat has ended. wait replaces an ending that is only a
//     symptom (realEnding).
//   - finished: finish has cancelled the engine's context (only now that the ending is
//     recorded: otherwise an engine that yields ctx.Err() could come first), has closed
//     the answer, so that only the handler writes, and has sent the rest of a complete
//     answer, an error response or an error event. If the rest of a complete answer
//     cannot be sent, that is the ending, of which the engine learns nothing.
//   - reported: OnChat has returned.
//
// Then OnRequest is called, and the handler gives the client time to read an error event, and
// waits a little for an engine that has not returned (linger). Nothing that such an engine does reaches the
// client.
type chat struct {
	// Set before the engine starts.
	exchange    *exchange
	startedAt   time.Duration   // since the start of the request
	requestDone <-chan struct{} // closed when the client disconnects, or the application cancels the request
	call        engineCall
	answer      answer

	// Safe for concurrent use.
	slot       *Slot
	firstText  instant.Instant // when the engine's first text came
	stopCalled atomic.Bool     // only the first call of stop counts
	stopped    chan struct{}   // closed by that call, when ending is set

	// Owned by the first call of stop and, when stopped is closed, by the handler's
	// goroutine.
	ending *ending // answerComplete, or why the answer is not complete

	// Owned by the handler's goroutine.
	report         *ChatReport // nil if there is neither OnChat nor OnRequest
	status         int         // 200 once the answer was begun; otherwise that of the exchange
	answerBegun    bool        // the sending of the head of the answer has begun: the response is no error response
	errorEventSent bool
}

// An answer takes an engine's fragments to the client: as a stream, or as a JSON response. (The
// Answer of a Chat is at the other end: it is in place of an engine.)
// Only fragment and close are safe for concurrent use. The others are called after close,
// by the same goroutine.
type answer interface {
	// fragment takes the next fragment, and reports whether the answer takes more. After
	// close it returns false.
	fragment(text string) (more bool)

	// close waits for the write, or the call of a format, that is in progress, never for the
	// engine. When it returns, the answer takes no more fragments, and only the caller writes.
	close()

	// complete sends what is left of a complete answer. It is called at most once.
	complete(ctx context.Context) *ending

	// sendError sends what is left of an incomplete answer and, if f is not nil, the error:
	// all of it before the deadline, a moment. It is called at most once. failed is a failure
	// that sendError itself has met: it is nil if all was sent, and if nothing was tried, since
	// something had failed before, the deadline has passed, or the answer is a JSON response.
	sendError(f *Failure, deadline time.Duration) (sent bool, failed *ending)

	// drop lets go of what was not sent.
	drop()

	// figures is what was handed to the connection or, of a JSON response, all that was
	// collected. It is asked only if the answer has begun, also after drop.
	figures() (fragments int, bytes int64)
}

var _, _ answer = (*stream)(nil), (*jsonResponse)(nil)

// newChat makes the report before the engine can change its request, and the answer last: the
// keep-alive timer of a stream may write, and stop the chat, from then on. Without a chat, the
// slot is released.
func (x *exchange) newChat(asked *Chat, slot *Slot, requestDone <-chan struct{}) (c *chat, err error) {
	made := false
	defer func() {
		if !made {
			slot.giveBack()
		}
	}()
	h, request := x.handler, &asked.Request
	err = panics.Catch("reading the extra fields", func() error {
		if asked.Extra != nil {
			request.Extra = asked.Extra()
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c = &chat{exchange: x, slot: slot, startedAt: x.conn.Elapsed(), requestDone: requestDone, stopped: make(chan struct{})}
	x.request.setSlot(slot)
	if h.options.OnChat != nil || h.options.OnRequest != nil {
		c.report = x.newReport(request)
	}
	c.call = engineCall{chat: c, engine: h.options.Engine, request: request, hasStallTimeout: h.options.StallTimeout < noLimit, returned: make(chan struct{})}
	if answer := asked.Answer; answer != nil {
		c.call.engine = ChatEngineFunc(func(ctx context.Context, _ *ChatRequest) iter.Seq2[string, error] { return answer(ctx) })
	}
	c.call.detached = detachedContext{Context: x.ctx}
	if h.options.ChatTimeout < noLimit {
		c.call.detached.deadline = x.conn.Start.Add(c.timeoutAt())
	}
	c.call.ctx, c.call.cancel = context.WithCancelCause(&c.call.detached)
	c.answer = c.newAnswer(asked)
	made, x.asked = true, nil
	*asked = Chat{Request: asked.Request} // what an engine gets is a part of asked: if it keeps that, the rest must not stay
	return c, nil
}

// newReport copies the user: a report that is kept must not retain the request body.
func (x *exchange) newReport(request *ChatRequest) *ChatReport {
	return &ChatReport{
		RequestID: x.ctx.requestID, Account: x.ctx.account, UserID: strings.Clone(request.UserID), Bot: request.Bot, Stream: request.Stream,
	}
}

func (c *chat) newAnswer(asked *Chat) answer {
	switch {
	case !asked.Request.Stream:
		return newJSONResponse(c, asked.JSON)
	case asked.Stream == nil:
		return newStream(c, ownFormat{}, false)
	}
	return newStream(c, asked.Stream, asked.JoinsFragments)
}

func (c *chat) run() {
	defer c.slot.release()
	finished := false
	defer func() {
		if !finished { // by runtime.Goexit, as of a format or the Logger, or a panic of this package, which serve recovers
			c.endAbruptly()
		}
	}()
	go c.call.run()
	runtime.Gosched() // an engine that need not wait finishes now: that saves 2 µs and 3 allocations
	c.wait()
	c.finish()
	finished = true
}

// endAbruptly calls nothing of the application but its Logger. What the client has got stays
// incomplete.
func (c *chat) endAbruptly() {
	c.stop(abruptEnd)
	<-c.stopped // another call of stop may have come first
	c.call.cancel(abruptEnd.err)
	c.exchange.conn.Interrupt()
	c.answer.close()
	c.answer.drop()
	c.exchange.mustAbort = true
	c.linger()
	c.exchange.played = nil // OnRequest reports no chat, since OnChat was not called; and ServeHTTP need not linger again
}

var abruptEnd = failureOf(errors.New("the handling of the request has ended abruptly"))

func (c *chat) wait() {
	for !isClosed(c.stopped) { // checked before select, which would make a timer
		left, timeout := c.timeLeft()
		if left <= 0 {
			c.stop(timeout)
		}
		select {
		case <-c.stopped:
		case <-c.requestDone:
			c.stop(clientDisconnected) // unless realEnding finds another
		case <-time.After(left):
		}
	}
	c.ending = c.exchange.realEnding(c.ending)
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// stop records why the chat stops, answerComplete if it is complete, and wakes the handler's
// goroutine. Only the first call counts. It is safe for concurrent use.
func (c *chat) stop(end *ending) (first bool) {
	if !c.stopCalled.CompareAndSwap(false, true) {
		return false
	}
	c.ending = end
	close(c.stopped)
	return true
}

func (c *chat) timeoutAt() time.Duration { return c.startedAt + c.exchange.handler.options.ChatTimeout }

// timeLeft returns the time until a timeout can pass at the earliest, and its ending. Ask
// again after that time: if the engine has yielded meanwhile, StallTimeout has begun anew.
func (c *chat) timeLeft() (left time.Duration, timeout *ending) {
	h := c.exchange.handler
	left, timeout = c.timeoutAt()-c.elapsed(), chatTimedOut
	if untilStall := h.options.StallTimeout - c.call.silentFor(); untilStall < left {
		left, timeout = untilStall, engineStalled
	}
	return left, timeout
}

func (c *chat) finish() {
	x := c.exchange
	c.call.cancel(c.ending.cause())
	defer c.answer.drop()                                    // an engine that does not return must not keep its memory
	deadline := c.elapsed() + x.handler.options.WriteTimeout // of all that is still to be written of an incomplete answer
	if c.ending.kind == kindClientDisconnected {
		x.conn.Interrupt() // any other ending leaves the write in progress its time, so that the error event can follow
	}
	c.answer.close()
	if c.ending.isComplete() {
		c.complete()
	}
	// Asked before writeError, which commits, too: until then, it says whether the answer has begun.
	c.answerBegun = x.request.isCommitted()
	switch {
	case c.ending.isComplete():
		c.status = http.StatusOK
	case c.answerBegun:
		c.status = http.StatusOK
		c.abort(deadline)
	default:
		x.writeError(c.ending)
		c.status = x.status
	}
	if x.conn.CannotFlush {
		x.handler.log(x.ctx, slog.LevelWarn, "the ResponseWriter cannot flush: the stream is not sent before the handler returns")
	}
}

// complete sends the rest of a complete answer. If that fails, it is the ending.
func (c *chat) complete() {
	if failed := c.answer.complete(c.exchange.ctx); failed != nil {
		c.ending = c.exchange.realEnding(failed)
	}
}

// abort sends what is queued and the error event, unless the client has gone; of an engine that
// has aborted (http.ErrAbortHandler), only what is queued. It has ServeHTTP abort the connection
// at its end, since most clients know no error event.
func (c *chat) abort(deadline time.Duration) {
	x := c.exchange
	var failed *ending
	switch {
	case c.ending.tellsClient():
		failure := c.ending.failure()
		c.errorEventSent, failed = c.answer.sendError(&failure, deadline)
	case c.ending.kind == kindAborted:
		_, failed = c.answer.sendError(nil, deadline)
	}
	x.abortOnReturn(c.ending) // last: a slow Logger must not delay the error event
	if failed != nil && !failed.isOfClient() && failed.kind != kindAborted {
		x.handler.log(x.ctx, slog.LevelError, "the format of a stream failed after its answer had ended", x.attributes(failed)...)
	}
}

func (c *chat) callOnChat() {
	if c.report == nil {
		return
	}
	c.report.Status, c.report.Err = c.status, c.ending.cause()
	if c.answerBegun {
		c.report.Fragments, c.report.Bytes = c.answer.figures()
	}
	if at, isSet := c.firstText.Get(); isSet {
		c.report.FirstFragment = at
	}
	c.report.Duration = c.elapsed()
	x := c.exchange
	if onChat := x.handler.options.OnChat; onChat != nil {
		x.callBack("OnChat panicked", func() { onChat(context.WithoutCancel(x.ctx), *c.report) })
	}
}

const (
	// readTime is how long the client of an aborted stream has to read the error event:
	// browsers drop what they have not read when the connection is aborted.
	readTime = 250 * time.Millisecond
	// returnTime is how long the handler waits for an engine that should return:
	// http.Server.Shutdown waits for handlers, not for engines.
	returnTime = 500 * time.Millisecond
)

// linger gives the client time to read an error event, and the engine time to return.
func (c *chat) linger() {
	if c.errorEventSent {
		c.awaitReading()
	}
	if isClosed(c.call.returned) { // checked before select, which would make a timer
		return
	}
	select {
	case <-c.call.returned:
	case <-time.After(returnTime):
		c.exchange.handler.log(c.exchange.ctx, slog.LevelWarn, "the engine has not returned although its answer has ended")
	}
}

func (c *chat) awaitReading() {
	pause := time.After(readTime)
	select {
	case <-pause:
	case <-c.requestDone:
		if c.exchange.realEnding(clientDisconnected) != clientDisconnected {
			<-pause // the application has cancelled the request: the client is still there
		}
	}
}

func (c *chat) elapsed() time.Duration { return c.exchange.conn.Elapsed() }

// fragment takes the next fragment, and reports whether the answer takes more. Like all that
// an engineCall calls, it is safe for concurrent use: an engine may yield from several
// goroutines, although it must not.
func (c *chat) fragment(text string) (more bool) {
	if c.stopCalled.Load() { // cheaper than isClosed(c.stopped)
		return false
	}
	if _, isSet := c.firstText.Get(); !isSet && text != "" {
		c.firstText.Set(max(c.elapsed(), 1)) // 0 in a report means that there was none
	}
	return c.answer.fragment(text)
}

// setStreamHead commits the response, and adds the application's headers.
func (c *chat) setStreamHead(header http.Header) { c.exchange.request.commit(header, http.StatusOK) }

// engineFailed is called each time the engine yields an error. engineReturned need not follow:
// the engine may go on for ever.
func (c *chat) engineFailed(failure *ending) { c.stop(c.orTimedOut(failure)) }

// orTimedOut counts a failure at or after the deadline of the engine's context as
// ChatTimeout: an engine that watches that deadline fails at the same time as the handler's
// timer fires.
func (c *chat) orTimedOut(failure *ending) *ending {
	if c.elapsed() >= c.timeoutAt() {
		return timedOutWith(failure)
	}
	return failure
}

// engineReturned is called once. failure is a panic, runtime.Goexit or a nil iterator, or nil.
// It releases the engine's use of the slot first: before it wakes the handler and before it
// calls the Logger. The handler's use is released by chat.run.
func (c *chat) engineReturned(failure *ending) {
	c.slot.release()
	end := answerComplete
	if failure != nil {
		end = c.orTimedOut(failure)
	}
	if !c.stop(end) && failure != nil && failure.stack != nil && failure.kind != kindAborted {
		c.exchange.handler.log(c.exchange.ctx, slog.LevelError, "the engine panicked after its answer had ended", c.exchange.attributes(failure)...)
	}
}

// The JSON response.

// A jsonResponse collects the fragments of an answer in chunks, which it sends when the
// answer is complete.
type jsonResponse struct {
	chat   *chat
	around func(context.Context) (before, after []byte, err error)

	mu sync.Mutex

	// Guarded by mu. Once close has returned, owned by the handler, except closed.
	closed     bool // no more fragments are accepted
	chunks     [][]byte
	few        [1][]byte // holds chunks while there is only one
	pooled     *batch    // the buffer of the first chunk
	beforeLast int       // bytes of all chunks but the last
	text       jsontext.Encoder
	fragments  int
}

// maxJSONResponse bounds the memory of an answer that is not streamed: its text, escaped.
const maxJSONResponse = 64 << 20

var errAnswerTooLarge = errors.New("the engine's answer is too large for a JSON response")

const (
	jsonStart = `{"content":"`
	jsonEnd   = `"}`
	// chunkText leaves room in a chunk for what is around a short answer, and to complete a
	// split character.
	chunkText = connection.MaxChunk - 32
)

// aroundOwn is what the API's own JSON has around the text.
func aroundOwn(context.Context) (before, after []byte, err error) { return ownBefore, ownAfter, nil }

var ownBefore, ownAfter = []byte(jsonStart), []byte(jsonEnd)

func newJSONResponse(c *chat, around func(context.Context) (before, after []byte, err error)) *jsonResponse {
	if around == nil {
		around = aroundOwn
	}
	j := &jsonResponse{chat: c, around: around, pooled: newBatch()}
	j.chunks = append(j.few[:0], j.pooled.data)
	return j
}

func (j *jsonResponse) fragment(text string) (more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.fragments++
	for {
		last := &j.chunks[len(j.chunks)-1]
		*last, text = j.text.Append(*last, text, chunkText)
		if j.beforeLast+len(*last) > maxJSONResponse {
			j.closed = true
			j.chat.stop(answerTooLarge)
			return false
		}
		if text == "" && len(*last) < chunkText {
			return true
		}
		j.beforeLast += len(*last)
		j.chunks = append(j.chunks, make([]byte, 0, connection.MaxChunk))
	}
}

func (j *jsonResponse) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
}

// complete sends the response. No chunk but the first is begun after ChatTimeout.
func (j *jsonResponse) complete(ctx context.Context) *ending {
	var before, after []byte
	err := panics.Catch("formatting a JSON response", func() (err error) {
		before, after, err = j.around(ctx)
		return err
	})
	if err != nil {
		return failureOf(err)
	}
	last := &j.chunks[len(j.chunks)-1]
	*last = j.text.AppendHeld(*last)
	textAt := j.enclose(before, after)
	failed := j.chat.exchange.send(http.StatusOK, nil, j.chunks, j.chat.timeoutAt())
	if failed == nil { // otherwise, net/http may still read it on HTTP/2
		j.pooled.data = j.chunks[textAt]
		j.pooled.free()
	}
	return failed
}

// enclose puts the text between before and after, in the chunks of the text if they fit. It
// returns the index of the first chunk of the text, which is pooled; one in front of it is the
// application's.
func (j *jsonResponse) enclose(before, after []byte) (first int) {
	if text := &j.chunks[0]; len(before)+len(*text) <= connection.MaxChunk {
		*text = slices.Insert(*text, 0, before...)
	} else {
		j.chunks, first = slices.Insert(j.chunks, 0, before), 1
	}
	if last := &j.chunks[len(j.chunks)-1]; len(*last)+len(after) <= connection.MaxChunk {
		*last = append(*last, after...)
	} else {
		j.chunks = append(j.chunks, after)
	}
	return first
}

// sendError sends nothing: a response that is shorter than its Content-Length is an error
// to every client.
func (j *jsonResponse) sendError(*Failure, time.Duration) (sent bool, failed *ending) {
	return false, nil
}

func (j *jsonResponse) drop() { j.chunks, j.few, j.pooled = nil, [1][]byte{}, nil }

func (j *jsonResponse) figures() (fragments int, bytes int64) { return j.fragments, j.text.Written() }

// The request body.

// decodeChat is POST /v1/chat.
func (x *exchange) decodeChat() (Response, error) {
	text, err := x.readBody()
	if err != nil {
		return nil, err
	}
	body, problems := bodies.Read(text)
	if len(problems) > 0 {
		return nil, rejectedBody(problems)
	}
	chat := &Chat{BotUID: body.BotUID, BotSlug: body.BotSlug}
	chat.Request = ChatRequest{Messages: body.Messages, UserID: body.UserID, Stream: body.Stream}
	if body.Unknown.Any() {
		chat.Extra = body.Unknown.Extra
	}
	return chat, nil
}

var bodies = chatbody.New(func(role, content string) ChatMessage { return ChatMessage{Role(role), content} })

func rejectedBody(problems []chatbody.Problem) error {
	err := HTTPValidationError{make([]ValidationError, len(problems))}
	for i, problem := range problems {
		err.Detail[i] = ValidationError(problem)
	}
	return err
}

// HTTPValidationError is a 422 with a list of problems. An engine may yield one
// before its first fragment, for instance for a field of Extra. In a stream that has
// begun, the error event has the status 422, but not the list. Both HTTPValidationError and
// *HTTPValidationError will do.
type HTTPValidationError struct {
	Detail []ValidationError `json:"detail"`
}

func (e HTTPValidationError) Error() string {
	if len(e.Detail) == 0 {
		return "invalid request"
	}
	first := e.Detail[0]
	return fmt.Sprintf("invalid request: %v: %s (%d in all)", first.Loc, first.Msg, len(e.Detail))
}

// As matches an HTTPValidationError and an *HTTPValidationError.
func (e HTTPValidationError) As(target any) bool { return setEither(e, target) }

// ValidationError is one problem of a request.
type ValidationError struct {
	Loc  []any  `json:"loc"` // strings and ints: "body", then field names and indexes
	Msg  string `json:"msg"`
	Type string `json:"type"`
}

// body returns the JSON of a 422, with [] for a nil Detail or Loc. It panics if a Loc has
// no JSON form.
func (e HTTPValidationError) body() []byte {
	detail := make([]ValidationError, len(e.Detail)) // a copy: the application's is not changed
	for i, problem := range e.Detail {
		if problem.Loc == nil {
			problem.Loc = []any{}
		}
		detail[i] = problem
	}
	body, err := json.Marshal(HTTPValidationError{detail})
	if err != nil {
		panic(fmt.Errorf("encoding a validation error: %w", err))
	}
	return body
}

// firstProblem says it in one line, for what has no room for a list.
func firstProblem(problems []ValidationError) string {
	if len(problems) == 0 {
		return http.StatusText(http.StatusUnprocessableEntity)
	}
	first := problems[0]
	path := make([]string, len(first.Loc))
	for i, step := range first.Loc {
		path[i] = fmt.Sprint(step)
	}
	return strings.TrimPrefix(strings.Join(path, ".")+": "+first.Msg, ": ")
}

// ReadBody reads the body of a request that a [Route] serves, to its end: so a client that
// disconnects later is noticed. A Body that the route has replaced is not read. The memory is
// that of the bytes that have arrived. An error, returned by Serve wrapped or not, decides the
// response: a 413, 408 or 400. The package examples/jsonbody decodes a body in no more memory.
func ReadBody(r *http.Request) (string, error) {
	x := RequestFrom(r.Context()).exchange
	if x == &nowhere {
		return "", errors.New("botapi: ReadBody: the request is not one that a Route serves")
	}
	return x.readBody()
}

// readBody reads the body to its end: only then does net/http notice that a client has
// disconnected. Content-Length is not trusted: a body takes memory for what has arrived.
func (x *exchange) readBody() (string, error) {
	if x.r.ContentLength > x.handler.options.MaxBodyBytes {
		return "", rejected(errBodyTooLarge)
	}
	return readtext.All(&x.bounded)
}

// A boundedBody is the body of a request as a route reads it: its errors are endings.
type boundedBody struct {
	exchange *exchange
	left     int64 // of MaxBodyBytes
}

func (b *boundedBody) Read(p []byte) (n int, err error) {
	x := b.exchange
	atMost := min(int64(len(p))-1, b.left) + 1 // min(len(p), left+1), if left+1 fits: one byte more shows that there is too much
	n, err = x.body.Read(p[:atMost])
	b.left -= int64(n)
	switch {
	case b.left < 0:
		return max(n-1, 0), rejected(errBodyTooLarge) // 0 if it is read again
	case err != nil && err != io.EOF:
		return n, x.bodyError(err)
	}
	return n, err
}

// Close does nothing: the handler ends the body.
func (b *boundedBody) Close() error { return nil }

// bodyError returns the ending for a body that could not be read. The log gets the kind of
// the error, not its text: net/http's may quote what the client sent. A client that has
// stopped in the middle is not logged.
func (x *exchange) bodyError(err error) *ending {
	if _, panicked := errors.AsType[*panics.Error](err); panicked {
		return failureOf(err)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return rejected(errBodyUnreadable)
	}
	response, kind := errBodyUnreadable, fmt.Sprintf("%T", err)
	limit, tooLarge := errors.AsType[*http.MaxBytesError](err)
	_, badTrailer := errors.AsType[textproto.ProtocolError](err)
	switch {
	case tooLarge:
		response, kind = errBodyTooLarge, limit.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		response, kind = errBodyTooSlow, os.ErrDeadlineExceeded.Error()
	case badTrailer:
		kind = "malformed trailer"
	}
	response.Err = errors.New("reading the request body: " + kind)
	end := failureOf(response)
	// realEnding looks at the context later: what ends it between now and then is not the cause.
	wasCancelled := response.Status == errBodyUnreadable.Status && x.cancellation() != nil
	end.mayComeOfContext = wasCancelled || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return end
}

// A requestBody is the body of a request, and how far it has been read.
type requestBody struct {
	r         *http.Request
	begun     bool  // Read was called: net/http has sent the 100 Continue that a client may wait for
	err       error // of the last Read
	abandoned bool  // by abandonBody: nothing reads the rest
}

// Read turns a panic into an error: the body may come from the application's middleware.
// The value of the panic may quote the body, so only its type is kept.
func (b *requestBody) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			if v != any(http.ErrAbortHandler) {
				v = fmt.Sprintf("%T", v)
			}
			err = panics.Recovered("reading the request body", v)
		}
		b.err = err
	}()
	b.begun = true
	if b.r.Body == nil { // as in a request that a test made with http.NewRequest, or by middleware
		return 0, io.EOF
	}
	return b.r.Body.Read(p)
}

// remains reports whether there may be more of the body, which net/http, on HTTP/1, would
// read: no Read has returned io.EOF.
func (b *requestBody) remains() bool {
	return b.r.ProtoMajor == 1 && b.r.ContentLength != 0 && b.err != io.EOF && !b.abandoned
}

const (
	discardBytes = 4 << 20
	discardTime  = 5 * time.Second
)

// discardBody reads what the client is still sending of a body that nobody reads, within
// bounds. Many clients read nothing before they have sent everything, and a connection
// that is closed with unread bytes is reset: the response would be lost.
func (x *exchange) discardBody() {
	awaitsContinue := !x.body.begun && x.r.ProtoAtLeast(1, 1) && x.r.Header.Get("Expect") != ""
	if x.body.remains() && x.body.err == nil && !awaitsContinue {
		_ = x.discard(discardBytes)
	}
	x.abandonBody()
}

// readRestOfBody reads what a route has left of the body of a chat: only at its end does
// net/http notice that a client has disconnected.
func (x *exchange) readRestOfBody() *ending {
	if !x.body.remains() {
		return nil
	}
	switch err := x.discard(discardBytes + 1); err {
	case io.EOF:
		return nil
	case nil:
		return rejected(errBodyTooLarge)
	default:
		return x.bodyError(err)
	}
}

// discard reads so many bytes of the body, or to its end, which is io.EOF. The bound on time is
// a read deadline. net/http clears it at the end of its own body; that may have come before, if
// middleware has read it and put another in its place.
func (x *exchange) discard(n int64) error {
	x.conn.SetReadDeadline(time.Now().Add(discardTime))
	_, err := io.CopyN(io.Discard, &x.body, n)
	if err == io.EOF {
		x.conn.SetReadDeadline(time.Time{})
	}
	return err
}

// abandonBody keeps net/http from waiting for what is left of the body.
func (x *exchange) abandonBody() {
	if x.body.remains() {
		x.body.abandoned = true
		x.conn.EndReading()
	}
}
