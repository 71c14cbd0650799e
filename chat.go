package botapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"unicode/utf16"
	"unicode/utf8"

	"github.com/invopop/validation"
)

// This file is POST /v1/chat, in four parts: the life of a chat; the answer that
// is one JSON response; the request body and its rules; reading JSON.

// The life of a chat.

// chat answers POST /v1/chat. It returns why there was no chat, of which the client is
// still to be told; live does all that follows from the end of a chat.
//
// newChat is a function of its own so that its variables are not on the stack while the
// chat waits: the runtime makes new stacks as large as the existing ones are, on average,
// in use.
func (x *exchange) chat() *ending {
	c, refused := x.newChat()
	if refused != nil {
		return refused
	}
	c.live()
	return nil
}

// newChat reads the request, and returns its chat, or why there is none.
func (x *exchange) newChat() (*chat, *ending) {
	text, ended := x.readBody()
	if ended != nil {
		return nil, ended
	}
	body, err := decodeChat(text)
	if err != nil {
		return nil, failureOf(err)
	}
	bot, ended := x.findBot(body.botUID, body.botSlug)
	if ended != nil {
		return nil, ended
	}
	c := &chat{exchange: x, requestDone: x.r.Context().Done(), stopped: make(chan struct{})}
	x.conn.liftServerDeadlines()
	// Until live has deferred the release of the slot, no code of the host's may run in
	// this goroutine: it could panic, or call runtime.Goexit.
	if ended := c.slot.take(x.handler.slots, x.account); ended != nil {
		return nil, ended
	}
	c.prepare(ChatRequest{
		Bot:      bot,
		Messages: body.messages,
		UserID:   body.userID,
		Stream:   body.stream,
		Extra:    body.unknown.extra(), // only now: it is many times as large as its part of the body
	})
	return c, nil
}

// findBot finds the bot by its UID, by its slug, or by both, which must agree. One of
// them is given.
func (x *exchange) findBot(uid, slug string) (Bot, *ending) {
	if !isIdentifier(uid) || !isIdentifier(slug) {
		return Bot{}, rejected(errNoSuchBot)
	}
	bot, err := x.lookUpBot(uid, slug)
	if err != nil {
		return Bot{}, failureOf(err)
	}
	return bot, nil
}

func (x *exchange) lookUpBot(uid, slug string) (Bot, error) {
	bots := x.handler.bots
	if uid == "" {
		return bots.BotBySlug(x.ctx, slug)
	}
	bot, err := bots.BotByUID(x.ctx, uid)
	if err != nil || slug == "" {
		return bot, err
	}
	same, err := bots.BotBySlug(x.ctx, slug)
	if err == nil && same.UID != bot.UID {
		err = errNoSuchBot
	}
	return bot, err
}

// A chat begins when its slot is taken.
//
//	running ─► stopped ─► ended ─► reported ─► the handler returns
//
// No variable holds the state: the states are names for the order of events. Any
// goroutine may stop a running chat: the handler's, the engine's (or another that
// calls yield), or one that writes the stream. All later steps are taken by the
// handler's goroutine, in live.
//
//   - running: wait notices that the client has left, that the host has ended the
//     request, and that time is up. The chat also stops when the engine returns or
//     fails, when a write fails, and when a JSON response grows too large.
//   - stopped: the first call of stop has recorded the reason. A yield that begins
//     now returns false. One that had begun may still add its text: a stream sends it
//     if it can; of a JSON response that is not complete, nothing is sent. wait
//     replaces a reason that may be only a symptom (realReason).
//   - ended: end has returned. In this order, it cancels the engine's context (only
//     now that the reason is recorded: an engine that yields ctx.Err() must not give
//     it), bounds the writes that remain, settles the answer, so that only the handler
//     writes, and sends the rest of a complete answer, an error response or an error
//     event. If the rest of a complete answer cannot be sent, that is the reason.
//   - reported: OnChat has returned.
//
// Then the handler waits until the client has had time to read an error event, and
// for an engine that has not returned, but not for long (waitToReturn). Nothing that
// such an engine does reaches the client.
//
// Until stopped is closed, reason belongs to the call of stop that has won; then to
// the handler's goroutine, which may replace it (wait) or find another (end).
type chat struct {
	// Set before the engine starts, and only read from then on.
	exchange    *exchange
	startedAt   time.Duration   // since the start of the request
	requestDone <-chan struct{} // closed when the client leaves, or the host ends the request

	// Shared by all goroutines of the chat.
	slot      slot
	call      engineCall
	answer    answer        // fragment and settle are safe for concurrent use; the rest is the handler's
	stopping  atomic.Bool   // set by the call of stop that wins
	stopped   chan struct{} // closed by that call, when reason has been written
	reason    *ending       // why the answer is not complete; nil if it is. It means nothing before stopped is closed
	firstText instant       // when the engine's first text came

	// The handler's goroutine's.
	errorEventSent bool
	status         int         // sent; 0 if none was
	report         *ChatReport // nil if there is no OnChat
}

// An answer takes an engine's fragments to the client: a stream, or a JSON
// response.
type answer interface {
	// fragment takes the next fragment and reports whether more are wanted. It is
	// called by whichever goroutine calls yield. The engine promises one call at a
	// time; an answer must survive two. A call may overlap settle. One that comes
	// after settle returns false.
	fragment(text string) (more bool)

	// settle has the answer take no more fragments and returns when nobody but
	// the caller writes any more. It waits for the write that is under way and for
	// what is queued, never for the engine: only the deadlines of writes bound it.
	// It reports whether the sending of the head has begun. It may be called again.
	settle() (committed bool)

	// finish sends what is left of a complete answer. It is called at most once,
	// after settle.
	finish() *ending

	// sendErrorEvent tells the client that the answer is not complete, and reports
	// whether it could. It is called at most once, after settle, and also after a
	// finish that has failed.
	sendErrorEvent(detail []byte) (sent bool)

	// figures is what was handed to the connection, for the report. It is called
	// after settle.
	figures() (fragments int, bytes int64)
}

var _, _ answer = (*stream)(nil), (*jsonResponse)(nil)

// prepare begins the report, before the engine may change the request, and makes
// the engine's context and the answer.
func (c *chat) prepare(request ChatRequest) {
	x, h := c.exchange, c.exchange.handler
	c.startedAt = x.conn.elapsed()
	if h.onChat != nil {
		c.report = &ChatReport{RequestID: x.admitted.requestID, Account: x.account, Bot: request.Bot, Stream: request.Stream}
		c.report.UserID = strings.Clone(request.UserID) // a host that keeps the report must not keep the request body
	}
	var deadline time.Time
	if h.chatTimeout < never {
		deadline = x.conn.start.Add(c.timeoutAt())
	}
	c.call = engineCall{engine: h.engine, request: request, listener: c, hasStallTimeout: h.stallTimeout < never, returned: make(chan struct{})}
	c.call.detached = detachedContext{&x.admitted, deadline}
	c.call.ctx, c.call.cancel = context.WithCancelCause(&c.call.detached)
	if request.Stream {
		c.answer = newStream(&x.conn, h.keepAlive, func(failure *ending) { c.stop(failure) })
	} else {
		c.answer = &jsonResponse{chat: c, body: newBatch(jsonStart)}
	}
}

// live takes the chat through its life. The deferred calls run in the order
// ensureSettled, release, reportEnd, waitToReturn, also when code of the host's calls
// runtime.Goexit.
func (c *chat) live() {
	defer c.waitToReturn()
	defer c.reportEnd()
	defer c.slot.release()
	defer c.ensureSettled()
	go c.call.run()
	runtime.Gosched() // an engine that need not wait finishes now, which saves wait's timer: some 3 % of a short chat
	c.wait()
	c.end()
}

// wait returns when the chat has been stopped.
func (c *chat) wait() {
	for !isClosed(c.stopped) { // checked before select, which would make a timer
		left, limit := c.timeLeft()
		if left <= 0 {
			c.stop(endingOf(limit))
		}
		select {
		case <-c.stopped:
		case <-c.requestDone:
			c.stop(endingOf(endingClientLeft)) // unless realReason finds another
		case <-time.After(left):
		}
	}
	c.reason = c.exchange.realReason(c.reason)
}

func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// stop records why the chat stops, nil if its answer is complete, and reports
// whether this is the first call. It does nothing else: the rest is done by the
// handler's goroutine, which it wakes. It is safe for concurrent use.
func (c *chat) stop(reason *ending) (first bool) {
	if !c.stopping.CompareAndSwap(false, true) {
		return false
	}
	c.reason = reason
	close(c.stopped)
	return true
}

// timeoutAt is when ChatTimeout passes, since the start of the request.
func (c *chat) timeoutAt() time.Duration { return c.startedAt + c.exchange.handler.chatTimeout }

// timeLeft returns how long it is at least until a limit passes, and which one. When
// that time is over, ask again: if the engine has yielded meanwhile, StallTimeout has
// begun anew.
func (c *chat) timeLeft() (left time.Duration, limit endingKind) {
	h := c.exchange.handler
	left, limit = c.timeoutAt()-c.elapsed(), endingTooLate
	if untilStall := h.stallTimeout - c.call.silentFor(); untilStall < left {
		left, limit = untilStall, endingEngineStalled
	}
	return left, limit
}

// end ends the answer for the client: the rest of it is sent, or an error response,
// or an error event and the cut.
func (c *chat) end() {
	x := c.exchange
	c.call.cancel(c.reason.cause())
	c.limitSending()
	committed := c.answer.settle()
	if c.reason != nil && !committed {
		x.conn.limit.clear() // of an error response, only each part is bounded, by WriteTimeout
		c.status = x.writeError(c.reason)
		return
	}
	c.status = http.StatusOK
	if c.reason == nil {
		c.reason = x.realReason(c.answer.finish())
	}
	if c.reason != nil {
		x.logAndCut(c.reason) // the cut comes when the handler returns, even behind an error event, which most clients do not know
		c.errorEventSent = c.reason.tellsClient() && c.answer.sendErrorEvent(c.reason.response.body())
	}
	if x.conn.cannotFlush {
		x.handler.log(x.ctx, slog.LevelWarn, "the ResponseWriter cannot flush: the stream is not sent before the handler returns")
	}
}

// limitSending bounds what is still to be sent. A complete answer has until
// ChatTimeout and one WriteTimeout more; of a JSON response, no part but the first is
// begun after ChatTimeout (finish). Of a stream that is not complete, the queue
// and the error event have one WriteTimeout together. A write that is under way keeps
// its deadline: if it were cut short, the error event could not follow. Only if the
// client has left is that write made to fail.
func (c *chat) limitSending() {
	conn := &c.exchange.conn
	if c.reason == nil {
		conn.limitRemainingWrites(c.timeoutAt())
		return
	}
	if c.reason.kind == endingClientLeft {
		conn.interrupt()
	}
	conn.limitRemainingWrites(c.elapsed())
}

// ensureSettled cancels the engine's context and settles the answer once more. That
// does nothing, unless code of the host's has called runtime.Goexit before end had
// done so.
// The client is not told: net/http closes the connection. No code of the host's runs
// in this goroutine before stopped is closed, so reason may be read.
func (c *chat) ensureSettled() {
	c.call.cancel(c.reason.cause())
	c.answer.settle()
}

// reportEnd calls OnChat.
func (c *chat) reportEnd() {
	if c.report == nil {
		return
	}
	x := c.exchange
	ended := cmp.Or(c.reason, x.conn.failure) // if code of the host's called runtime.Goexit during finish, the failure is writeExited, and reason still nil
	c.report.Status, c.report.Err = c.status, ended.cause()
	if c.status == http.StatusOK {
		c.report.Fragments, c.report.Bytes = c.answer.figures()
	}
	if at, isSet := c.firstText.get(); isSet {
		c.report.FirstFragment = at
	}
	c.report.Duration = c.elapsed()
	defer func() {
		if v := recover(); v != nil {
			x.handler.log(x.ctx, slog.LevelError, "OnChat panicked", failureOf(recovered("calling OnChat", v)).attributes()...)
		}
	}()
	x.handler.onChat(context.WithoutCancel(x.ctx), *c.report)
}

const (
	// readTime is how long the client of a broken stream has to read the error
	// event: browsers drop what they have not read when the connection is cut.
	readTime = 250 * time.Millisecond
	// returnTime is how long the handler waits for an engine that should
	// return: http.Server.Shutdown waits for handlers, not for engines.
	returnTime = 500 * time.Millisecond
)

// waitToReturn waits until the client has had time to read an error event, and the
// engine to return.
func (c *chat) waitToReturn() {
	if c.errorEventSent {
		c.waitToBeRead()
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

// waitToBeRead gives the client time to read the error event, unless it has left.
func (c *chat) waitToBeRead() {
	pause := time.After(readTime)
	select {
	case <-pause:
	case <-c.requestDone:
		if ended := c.exchange.requestEnding(); ended == nil || ended.kind != endingClientLeft {
			<-pause // the host has ended the request (nil: with a context that contradicts itself): the client is still there
		}
	}
}

// What follows is the engine's listener.

func (c *chat) elapsed() time.Duration { return c.exchange.conn.elapsed() }

func (c *chat) fragment(text string) (more bool) {
	if c.stopping.Load() {
		return false
	}
	if text != "" {
		if _, isSet := c.firstText.get(); !isSet {
			c.firstText.set(max(c.elapsed(), 1)) // 0 in a report means that there was none
		}
	}
	return c.answer.fragment(text)
}

func (c *chat) engineFailed(failure *ending, at time.Duration) { c.stop(c.orTooLate(failure, at)) }

// orTooLate is how an engine's failure ends the chat: as ChatTimeout if it came at or
// after the deadline of the engine's context. An engine that watches that deadline
// itself fails at the moment at which the handler's timer fires.
func (c *chat) orTooLate(failure *ending, at time.Duration) *ending {
	if failure != nil && at >= c.timeoutAt() {
		return tooLateFor(failure)
	}
	return failure
}

// engineReturned gives up the engine's share of the slot before it wakes the handler.
// So when a client has the end of a complete answer, only the handler's share can still
// hold the slot, for the moment until live releases it.
func (c *chat) engineReturned(failure *ending, at time.Duration) {
	c.slot.release()
	if !c.stop(c.orTooLate(failure, at)) && failure != nil && failure.stack != nil {
		c.exchange.handler.log(c.exchange.ctx, slog.LevelError, "the engine panicked after its answer had ended", failure.attributes()...)
	}
}

// The answer that is one JSON response.

// A jsonResponse collects the fragments of an answer and sends them when it is
// complete.
type jsonResponse struct {
	chat *chat

	mu        sync.Mutex
	body      *batch
	text      textEncoder
	fragments int
	closed    bool // no more fragments are accepted
}

// maxJSONResponse bounds the memory of an answer that is not streamed.
const maxJSONResponse = 64 << 20

var errAnswerTooLarge = errors.New("the engine's answer is too large for a JSON response")

const (
	jsonStart = `{"content":"`
	jsonEnd   = `"}`
)

func (j *jsonResponse) fragment(text string) (more bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.fragments++
	j.body.data, text = j.text.append(j.body.data, text, maxJSONResponse)
	if text != "" || len(j.body.data) > maxJSONResponse { // a character that was cut is completed beyond the limit
		j.closed = true
		j.chat.stop(endingOf(endingTooLarge))
	}
	return !j.closed
}

func (j *jsonResponse) settle() (committed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	return false
}

// finish sends the response. No part of it but the first is begun after ChatTimeout.
func (j *jsonResponse) finish() *ending {
	j.body.data = append(j.text.appendHeld(j.body.data), jsonEnd...)
	failure := j.chat.exchange.send(http.StatusOK, j.body.data, j.chat.timeoutAt())
	j.body.free(failure)
	return failure
}

// sendErrorEvent sends nothing: a response of which a part is missing is an error to
// every client.
func (j *jsonResponse) sendErrorEvent([]byte) (sent bool) { return false }

func (j *jsonResponse) figures() (fragments int, bytes int64) { return j.fragments, j.text.bytes }

// The request body and its rules.

// readBody reads the body to its end: only then does net/http notice that a
// client left. Content-Length is not trusted: a body takes memory for what has come
// of it.
func (x *exchange) readBody() (string, *ending) {
	if x.r.ContentLength > x.handler.maxBodyBytes {
		return "", rejected(errBodyTooLarge)
	}
	if x.r.Body == nil { // as in a request that a test made with http.NewRequest
		return "", nil
	}
	var few [2]*[bodyChunk]byte
	chunks := few[:0] // all but the last are full
	defer func() {
		for _, chunk := range chunks {
			bodyChunks.Put(chunk)
		}
	}()
	for left := x.handler.maxBodyBytes; ; {
		chunk := bodyChunks.Get().(*[bodyChunk]byte)
		chunks = append(chunks, chunk)
		n, err := fill(chunk[:1+min(left, bodyChunk-1)], &x.body)
		left -= int64(n)
		switch {
		case left < 0:
			return "", rejected(errBodyTooLarge)
		case err == io.EOF:
			return joined(chunks, n), nil
		case err != nil:
			return "", bodyError(err)
		}
	}
}

// joined is the text of the chunks. The last holds only that many bytes.
func joined(chunks []*[bodyChunk]byte, last int) string {
	full := len(chunks) - 1
	var body strings.Builder
	body.Grow(full*bodyChunk + last)
	for _, chunk := range chunks[:full] {
		body.Write(chunk[:])
	}
	body.Write(chunks[full][:last])
	return body.String()
}

const bodyChunk = 8 << 10

var bodyChunks = sync.Pool{New: func() any { return new([bodyChunk]byte) }}

// fill reads until p is full or an error ends it. Unlike io.ReadFull, it leaves
// the error as it is: one is a body that was cut short.
func fill(p []byte, from io.Reader) (n int, err error) {
	for n < len(p) && err == nil {
		var read int
		read, err = from.Read(p[n:])
		n += read
	}
	return n, err
}

// bodyError is how a body that could not be read is refused. The log gets the
// kind of the error, not its text: net/http's may quote what the client sent.
func bodyError(err error) *ending {
	if _, panicked := errors.AsType[*panicError](err); panicked {
		return failureOf(err)
	}
	answer, kind := errBodyBroken, fmt.Sprintf("%T", err)
	limit, tooLarge := errors.AsType[*http.MaxBytesError](err)
	_, badTrailer := errors.AsType[textproto.ProtocolError](err)
	switch {
	case tooLarge:
		answer, kind = errBodyTooLarge, limit.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		answer, kind = errBodyTooSlow, os.ErrDeadlineExceeded.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		kind = io.ErrUnexpectedEOF.Error()
	case badTrailer:
		kind = "malformed trailer"
	}
	answer.Err = errors.New("reading the request body: " + kind)
	e := rejected(answer)
	e.isCanceled, e.isDeadline = errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded)
	return e
}

// A chatBody is a request body that has passed every rule.
type chatBody struct {
	botUID, botSlug string // at least one of them
	messages        []ChatMessage
	userID          string
	stream          bool
	unknown         unknownFields
}

// decodeChat reads a body as the interface's reference does. The error is an
// HTTPValidationError that lists every problem.
//
// Strings are cut out of the body where they can be: the body stays in memory
// as long as any of them.
func decodeChat(body string) (chatBody, error) {
	if body == "" {
		return chatBody{}, HTTPValidationError{problems{}.add(errMissing, "body")}
	}
	d := decoders.Get().(*decoder)
	defer d.free()
	d.parser.body = body
	d.decode()
	if d.parser.err != nil {
		return chatBody{}, d.parser.err
	}
	if found := d.check(); len(found) > 0 {
		return chatBody{}, HTTPValidationError{found}
	}
	return d.result(), nil
}

// The fields of a body, in the order in which their problems are listed.
const (
	fieldBotUID = iota
	fieldBotSlug
	fieldPrompt
	fieldMessages
	fieldStream
	fieldUserID
	bodyFields
)

// The fields of a message, in the order in which their problems are listed.
const (
	fieldRole = iota
	fieldContent
	messageFields
)

// A field is one that the interface defines, with the rules for its value. The
// first rule that fails is the problem that is listed.
type field struct {
	name  string
	rules []validation.Rule
}

// The rules of a body: this table, and nothing else, says what a chat request
// must look like. Codes and messages are the interface's types and texts.
var (
	bodyRules = [bodyFields]field{
		fieldBotUID:   {"bot_uid", []validation.Rule{isIdentifierOrNull}},
		fieldBotSlug:  {"bot_slug", []validation.Rule{isIdentifierOrNull}},
		fieldPrompt:   {"prompt", []validation.Rule{isTextOrNull}},
		fieldMessages: {"messages", []validation.Rule{isListOrNull}},
		fieldStream:   {"stream", []validation.Rule{isPresent, isNotNull, isBoolean}},
		fieldUserID:   {"user_id", []validation.Rule{isIdentifierOrNull}},
	}
	messageRules = [messageFields]field{
		fieldRole:    {"role", []validation.Rule{isPresent, isNotNull, isRole}},
		fieldContent: {"content", []validation.Rule{isPresent, isNotNull, isText}},
	}
	elementRules = []validation.Rule{isNotNull, isObject}
	wholeRules   = []validation.Rule{namesABot, saysSomething}
)

// The rules by themselves, for a *value.
var (
	isPresent          = rule(errMissing, func(v *value) bool { return v.kind != absent })
	isNotNull          = rule(errNull, func(v *value) bool { return v.kind != null })
	isBoolean          = rule(errNotBoolean, func(v *value) bool { return v.kind == boolean })
	isText             = rule(errNotText, func(v *value) bool { return v.kind == text })
	isTextOrNull       = rule(errNotText, func(v *value) bool { return v.kind <= null || v.kind == text })
	isIdentifierOrNull = rule(errNotText, func(v *value) bool { return v.kind <= null || v.kind == text || v.kind == integer })
	isListOrNull       = rule(errNotList, func(v *value) bool { return v.kind <= null || v.kind == list })
	isObject           = rule(errNotObject, func(v *value) bool { return v.kind == object })
	isRole             = rule(errNotRole, func(v *value) bool { return roleOf(v.text) != "" })
)

// The rules for a *decoder, whose fields have been checked.
var (
	namesABot     = rule(errNoBot, func(d *decoder) bool { return d.isSet(fieldBotUID) || d.isSet(fieldBotSlug) })
	saysSomething = rule(errNoInput, func(d *decoder) bool { return d.isSet(fieldPrompt) || d.isSet(fieldMessages) })
)

var (
	errMissing    = validation.NewError("value_error.missing", "field required")
	errNull       = validation.NewError("type_error.none.not_allowed", "none is not an allowed value")
	errNotBoolean = validation.NewError("type_error.bool", "value could not be parsed to a boolean")
	errNotText    = validation.NewError("type_error.str", "str type expected")
	errNotList    = validation.NewError("type_error.list", "value is not a valid list")
	errNotObject  = validation.NewError("type_error.dict", "value is not a valid dict")
	errNotRole    = validation.NewError("type_error.enum", "value is not a valid enumeration member; permitted: 'system', 'user', 'assistant'")
	errNoBot      = validation.NewError("value_error", `Either "bot_uid" or "bot_slug" is required`)
	errNoInput    = validation.NewError("value_error", `Either "prompt" or "messages" is required`)
)

// rule makes a validation rule of a test that needs no allocation.
func rule[T any](problem validation.Error, holds func(*T) bool) validation.Rule {
	return &ruleOf[T]{problem, holds}
}

type ruleOf[T any] struct {
	problem validation.Error
	holds   func(*T) bool
}

func (r *ruleOf[T]) Validate(v any) error {
	if r.holds(v.(*T)) {
		return nil
	}
	return r.problem
}

// roleOf returns the constant for a role, so that no message holds on to the
// body for its role alone, or "".
func roleOf(s string) Role {
	switch role := Role(s); role {
	case RoleSystem:
		return RoleSystem
	case RoleUser:
		return RoleUser
	case RoleAssistant:
		return RoleAssistant
	}
	return ""
}

// firstProblem returns the first rule's error that does not hold, or nil.
func firstProblem(rules []validation.Rule, v any) error {
	for _, rule := range rules {
		if err := rule.Validate(v); err != nil {
			return err
		}
	}
	return nil
}

// problems is the list of a 422 answer.
type problems []ValidationError

// maxProblems bounds the list: a small body must not buy a huge answer.
const maxProblems = 100

func (p problems) add(err error, loc ...any) problems {
	problem := err.(validation.Error)
	return append(p, ValidationError{Loc: loc, Msg: problem.Message(), Type: problem.Code()})
}

// A decoder reads one body: first all of it, the last of a repeated field replacing
// the earlier ones; then the rules are applied.
type decoder struct {
	parser   parser
	document value
	fields   [bodyFields]value
	messages messageList
	unknown  unknownFields
	failed   [bodyFields]bool // did not pass its own rules

	// The message that is being read. It is a field so that the rules can be given
	// a pointer to it without an allocation.
	element value
	message [messageFields]value
}

// Decoders are pooled: the rules get pointers into them, so they cannot stand
// on the stack.
var decoders = sync.Pool{New: func() any { return new(decoder) }}

func (d *decoder) free() {
	*d = decoder{}
	decoders.Put(d)
}

// A messageList is what has been read of the last field called messages.
type messageList struct {
	good     []ChatMessage
	problems problems // none: all elements are good
}

func (d *decoder) decode() {
	p := &d.parser
	p.skipByteOrderMark()
	p.space()
	if p.peek() == '{' {
		d.document.kind = object
		d.decodeBody()
	} else {
		d.document = p.value()
	}
	p.end()
}

func (d *decoder) decodeBody() {
	p := &d.parser
	p.enter()
	for first := true; p.next('}', first); first = false {
		start := p.at
		known := fieldNamed(bodyRules[:], p.name())
		switch {
		case known == fieldMessages && p.peek() == '[':
			d.fields[fieldMessages] = value{kind: list}
			d.decodeMessages()
		case known >= 0:
			d.fields[known] = p.value()
		default:
			u, value := &d.unknown, p.at
			p.value()
			if u.end == 0 {
				u.start = start
			}
			u.size, u.end = u.size+p.at-value, p.at
		}
	}
}

func (d *decoder) decodeMessages() {
	p := &d.parser
	d.messages = messageList{}
	p.enter()
	for i := 0; p.next(']', i == 0); i++ {
		d.decodeMessage(i)
	}
}

// decodeMessage reads and checks one message. A bad one leaves nothing but its
// problems, so that a list of bad elements costs no memory.
func (d *decoder) decodeMessage(i int) {
	m := &d.messages
	d.readMessage()
	if len(m.problems) >= maxProblems {
		return
	}
	before := len(m.problems)
	if err := firstProblem(elementRules, &d.element); err != nil {
		m.problems = m.problems.add(err, "body", "messages", i)
		return
	}
	for f := range messageRules {
		if err := firstProblem(messageRules[f].rules, &d.message[f]); err != nil {
			m.problems = m.problems.add(err, "body", "messages", i, messageRules[f].name)
		}
	}
	if len(m.problems) == before {
		m.good = append(withRoom(m.good, d.parser.rest()/len(`{"role":"user","content":""},`)), ChatMessage{roleOf(d.message[fieldRole].text), d.message[fieldContent].text})
	}
}

// withRoom makes room for one element more, and for no more than the rest of the
// body can hold.
func withRoom[E any](elements []E, rest int) []E {
	if len(elements) < cap(elements) {
		return elements
	}
	return slices.Grow(elements, 1+min(max(len(elements), 3), rest))
}

func (d *decoder) readMessage() {
	p := &d.parser
	if p.peek() != '{' {
		d.element = p.value()
		return
	}
	d.element = value{kind: object}
	d.message = [messageFields]value{}
	p.enter()
	for first := true; p.next('}', first); first = false {
		known := fieldNamed(messageRules[:], p.name())
		v := p.value()
		if known >= 0 {
			d.message[known] = v
		}
	}
}

// fieldNamed returns the index of the field with exactly this name, or -1.
func fieldNamed(fields []field, name string) int {
	for i := range fields {
		if fields[i].name == name {
			return i
		}
	}
	return -1
}

// check lists the problems of what was read, in the interface's order.
func (d *decoder) check() problems {
	var found problems
	switch d.document.kind {
	case null:
		return found.add(errMissing, "body")
	case object:
	default:
		return found.add(errNotObject, "body")
	}
	for f := range bodyRules {
		if err := firstProblem(bodyRules[f].rules, &d.fields[f]); err != nil {
			found = found.add(err, "body", bodyRules[f].name)
			d.failed[f] = true
		}
		if f == fieldMessages && d.fields[f].kind == list && len(d.messages.problems) > 0 {
			found = append(found, d.messages.problems...)
			d.failed[f] = true
		}
	}
	for _, rule := range wholeRules {
		if err := rule.Validate(d); err != nil {
			found = found.add(err, "body", "__root__")
		}
	}
	return found[:min(len(found), maxProblems)]
}

// isSet reports whether a field counts as present: it passed its own rules and
// is neither null nor empty.
func (d *decoder) isSet(f int) bool {
	v := &d.fields[f]
	switch {
	case d.failed[f]:
		return false
	case v.kind == list:
		return len(d.messages.good) > 0
	}
	return v.text != ""
}

// result is what an engine needs of a body without problems.
func (d *decoder) result() chatBody {
	b := chatBody{
		botUID:  d.fields[fieldBotUID].text,
		botSlug: d.fields[fieldBotSlug].text,
		userID:  d.fields[fieldUserID].text,
		stream:  d.fields[fieldStream].text == "true",
		unknown: d.unknown,
	}
	b.unknown.body = d.parser.body
	if d.isSet(fieldMessages) {
		b.messages = d.messages.good
	}
	if d.isSet(fieldPrompt) {
		b.messages = append(b.messages, ChatMessage{RoleUser, d.fields[fieldPrompt].text})
	}
	return b
}

// unknownFields are the fields of a body that the interface does not define.
// It is only known where they stand: a small body may have very many.
type unknownFields struct {
	body       string
	size       int // of all their values
	start, end int // of the first and of the last in the body, where others may stand between; end is 0 if there are none
}

// extra reads the fields again, which have passed as JSON. Their values are
// copied, all together: an engine may change them, and keeping them must not
// keep the body.
func (u *unknownFields) extra() map[string]json.RawMessage {
	if u.end == 0 {
		return nil
	}
	values := make([]byte, 0, u.size)
	extra := make(map[string]json.RawMessage)
	p := parser{body: u.body[:u.end], at: u.start}
	for first := true; p.rest() > 0 && p.next('}', first); first = false {
		name := p.name()
		start := p.at
		p.value()
		if fieldNamed(bodyRules[:], name) < 0 {
			kept := len(values)
			values = append(values, p.body[start:p.at]...)
			extra[strings.Clone(name)] = values[kept:len(values):len(values)]
		}
	}
	return extra
}

// Reading JSON.

// A value is one JSON value, as far as the rules look at it.
type value struct {
	kind kind
	text string // a text's characters; an integer's or a boolean's own text
}

type kind uint8

const (
	absent kind = iota
	null
	boolean
	integer
	number // with a fraction or an exponent
	text
	list
	object
)

// A parser reads RFC 8259 JSON in UTF-8, and stops for good at the first byte
// that cannot be part of it.
type parser struct {
	body  string
	at    int
	depth int
	err   error
}

const maxDepth = 10_000

// fail keeps the first error, with its offset, line and column in the form of the
// reference service. The rest of the body is not read.
func (p *parser) fail(what string) {
	if p.err != nil {
		return
	}
	read := p.body[:p.at]
	line := 1 + strings.Count(read, "\n")
	column := p.at - strings.LastIndexByte(read, '\n')
	p.err = HTTPValidationError{Detail: []ValidationError{{
		Loc:  []any{"body", p.at},
		Msg:  fmt.Sprintf("%s: line %d column %d (char %d)", what, line, column, p.at),
		Type: "value_error.jsondecode",
	}}}
	p.body = read
}

// rest is how many bytes are still to be read.
func (p *parser) rest() int { return len(p.body) - p.at }

// peek returns the byte that comes next, or 0, which is never part of JSON.
func (p *parser) peek() byte {
	if p.at < len(p.body) {
		return p.body[p.at]
	}
	return 0
}

func (p *parser) skipByteOrderMark() {
	if strings.HasPrefix(p.body, "\uFEFF") {
		p.at = len("\uFEFF")
	}
}

func (p *parser) space() {
	for p.at < len(p.body) {
		switch p.body[p.at] {
		case ' ', '\n', '\r', '\t':
			p.at++
		default:
			return
		}
	}
}

// end makes sure that nothing but space is left.
func (p *parser) end() {
	p.space()
	if p.at < len(p.body) {
		p.fail("Extra data")
	}
}

// enter steps into the object or array that comes next.
func (p *parser) enter() {
	if p.depth++; p.depth > maxDepth {
		p.fail("Too many levels")
		return
	}
	p.at++
	p.space()
}

// next steps to the next element of the object or array that the closing
// bracket belongs to, or behind the bracket.
func (p *parser) next(closing byte, first bool) bool {
	if !first {
		p.space()
	}
	switch c := p.peek(); {
	case p.err != nil:
		return false
	case c == closing:
		p.at++
		p.depth--
		return false
	case first:
		return true
	case c != ',':
		p.fail("Expecting ',' delimiter")
		return false
	}
	p.at++
	p.space()
	return true
}

// name reads the name of a field, up to where its value begins.
func (p *parser) name() string {
	if p.peek() != '"' {
		p.fail("Expecting property name enclosed in double quotes")
		return ""
	}
	name := p.string()
	p.space()
	if p.peek() != ':' {
		p.fail("Expecting ':' delimiter")
		return ""
	}
	p.at++
	p.space()
	return name
}

// value reads one value. What stands inside objects and arrays is checked but
// not kept.
func (p *parser) value() value {
	switch c := p.peek(); {
	case c == '{':
		p.skip()
		return value{kind: object}
	case c == '[':
		p.skip()
		return value{kind: list}
	default:
		return p.scalar()
	}
}

// skip reads an object or array without recursion: a hostile body is nested
// deeply.
func (p *parser) skip() {
	var few [64]byte
	open := few[:0] // the closing brackets that are still to come
	for p.err == nil {
		c := p.peek()
		entered := c == '{' || c == '['
		if entered {
			p.enter()
			open = append(open, c+2) // in ASCII, the closing one
		} else {
			p.scalar()
		}
		for !p.next(open[len(open)-1], entered) {
			if open = open[:len(open)-1]; len(open) == 0 {
				return
			}
			entered = false
		}
		if open[len(open)-1] == '}' {
			p.name()
		}
	}
}

func (p *parser) scalar() value {
	switch c := p.peek(); {
	case c == '"':
		return value{text, p.string()}
	case c == '-' || isDigit(c):
		return p.number()
	case c == 't':
		return p.literal("true", boolean)
	case c == 'f':
		return p.literal("false", boolean)
	case c == 'n':
		return p.literal("null", null)
	}
	p.fail("Expecting value")
	return value{}
}

func (p *parser) literal(word string, k kind) value {
	for i := range len(word) {
		if p.peek() != word[i] {
			p.fail("Expecting value")
			return value{}
		}
		p.at++
	}
	if k == null {
		word = ""
	}
	return value{k, word}
}

func (p *parser) number() value {
	start, k := p.at, integer
	if p.peek() == '-' {
		p.at++
	}
	if p.peek() == '0' {
		p.at++
	} else {
		p.digits()
	}
	if p.peek() == '.' {
		k = number
		p.at++
		p.digits()
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		k = number
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		p.digits()
	}
	return value{k, p.body[start:p.at]}
}

// digits reads one digit or more.
func (p *parser) digits() {
	if !isDigit(p.peek()) {
		p.fail("Expecting a digit")
	}
	for isDigit(p.peek()) {
		p.at++
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// string reads a string. One without escapes is cut out of the body.
func (p *parser) string() string {
	p.at++
	start := p.at
	p.characters()
	if p.peek() == '"' {
		p.at++
		return p.body[start : p.at-1]
	}
	decoded := make([]byte, 0, min(2*(p.at-start)+32, p.at-start+p.rest()))
	for p.err == nil {
		decoded = append(decoded, p.body[start:p.at]...)
		if p.peek() == '"' {
			p.at++
			return string(decoded)
		}
		decoded = p.escape(decoded)
		start = p.at
		p.characters()
	}
	return ""
}

// characters reads up to a quote or a backslash, which must come.
func (p *parser) characters() {
	for p.at < len(p.body) {
		p.at += plainPrefix(p.body[p.at:])
		switch c := p.peek(); {
		case p.at == len(p.body):
		case c == '"' || c == '\\':
			return
		case c == '[':
			p.at++
		case c < utf8.RuneSelf:
			p.fail("Invalid control character at")
		default:
			_, size := utf8.DecodeRuneInString(p.body[p.at:])
			if size == 1 {
				p.fail("Not UTF-8")
				return
			}
			p.at += size
		}
	}
	p.fail("Unterminated string")
}

// escape decodes the escape that comes next. A lone surrogate is U+FFFD.
func (p *parser) escape(dst []byte) []byte {
	p.at++
	c := p.peek()
	if c == 'u' {
		return utf8.AppendRune(dst, p.unicodeEscape())
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		p.fail("Invalid \\escape")
		return dst
	}
	p.at++
	return append(dst, "\"\\/\b\f\n\r\t"[i])
}

// unicodeEscape reads u and four digits, and a second such escape where both
// together are one character. Half a pair is U+FFFD.
func (p *parser) unicodeEscape() rune {
	r := p.hexDigits()
	if !strings.HasPrefix(p.body[p.at:], `\u`) {
		return r
	}
	second := *p
	second.at++
	if pair := utf16.DecodeRune(r, second.hexDigits()); pair != utf8.RuneError {
		p.at = second.at
		return pair
	}
	return r
}

func (p *parser) hexDigits() (r rune) {
	p.at++
	for range 4 {
		digit, ok := hexDigit(p.peek())
		if !ok {
			p.fail("Invalid \\uXXXX escape")
			return 0
		}
		r = r<<4 | digit
		p.at++
	}
	return r
}

func hexDigit(c byte) (digit rune, ok bool) {
	switch {
	case isDigit(c):
		return rune(c - '0'), true
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}
