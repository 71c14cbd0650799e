package botapi

import (
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

	"github.com/invopop/validation"

	"example.com/botapi/internal/jsonscan"
	"example.com/botapi/internal/jsontext"
	"example.com/botapi/internal/readtext"
	"example.com/botapi/internal/responsewriter"
)

// POST /v1/chat: first the life of a chat, then the JSON response, then the request body
// and its rules.

// chat returns an ending if there was no chat. When it returns nil, the chat has been
// reported; its engine may still run.
func (x *exchange) chat() *ending {
	text, end := x.readBody()
	if end != nil {
		return end
	}
	body, err := decodeChat(text)
	if err != nil {
		return failureOf(err)
	}
	if end := x.findBot(body); end != nil {
		return end
	}
	x.conn.setReadDeadline(time.Time{}) // on HTTP/2, where the end of the body does not clear the server's
	c := &chat{exchange: x, requestDone: x.r.Context().Done(), stopped: make(chan struct{})}
	if end := c.slot.take(x.handler.slots, x.ctx.account); end != nil {
		return end
	}
	body.request.Extra = body.unknown.extra() // only now: it is many times as large as its part of the body
	c.prepare(&body.request)
	c.run()
	c.sendReport()
	c.awaitEngine()
	return nil
}

// A chat begins when its slot is taken.
//
//	running ─► stopped ─► ended ─► reported ─► the handler returns
//
// No variable holds the state: the states are names for the order of events. Any
// goroutine may stop a running chat. The handler's goroutine takes all later steps.
//
//   - running: the chat stops when its engine returns or fails, when a write fails, and
//     when a JSON response grows too large. wait notices that the client has disconnected,
//     that the application has cancelled the request, and that a timeout has passed.
//   - stopped: the first call of stop has recorded the ending. A yield that begins now
//     returns false. wait replaces an ending that is only a symptom (realEnding).
//   - ended: finish has cancelled the engine's context (only now that the ending is
//     recorded: otherwise an engine that yields ctx.Err() could come first), has closed
//     the answer, so that only the handler writes, and has sent the rest of a complete
//     answer, an error response or an error event. If the rest of a complete answer
//     cannot be sent, that is the ending, of which the engine learns nothing.
//   - reported: OnChat has returned.
//
// Then the handler gives the client time to read an error event, and waits a little for an
// engine that has not returned (awaitEngine). Nothing that such an engine does reaches the
// client.
type chat struct {
	// Set before the engine starts.
	exchange    *exchange
	startedAt   time.Duration   // since the start of the request
	requestDone <-chan struct{} // closed when the client disconnects, or the application cancels the request
	call        engineCall
	answer      answer

	// Safe for concurrent use.
	slot       slot
	firstText  instant       // when the engine's first text came
	stopCalled atomic.Bool   // only the first call of stop counts
	stopped    chan struct{} // closed by that call, when ending is set

	// Owned by the first call of stop and, when stopped is closed, by the handler's
	// goroutine.
	ending *ending // nil if the answer is complete

	// Owned by the handler's goroutine.
	report         *ChatReport // nil if there is no OnChat
	status         int         // of the response that was begun; 0 if none was
	errorEventSent bool
}

// An answer takes an engine's fragments to the client: as a stream, or as a JSON response.
// Only fragment and close are safe for concurrent use. The others are called after close,
// by the same goroutine.
type answer interface {
	// fragment takes the next fragment, and reports whether the answer takes more. After
	// close it returns false.
	fragment(text string) (more bool)

	// close waits for the write in progress, never for the engine. When it returns, the
	// answer takes no more fragments, and only the caller writes. It reports whether the
	// sending of the head has begun.
	close() (committed bool)

	// complete sends what is left of a complete answer. It is called at most once.
	complete() *ending

	// sendError sends what is left of an incomplete answer, and the error event with this
	// JSON, if it is not nil: all of it before the deadline. It is called at most once,
	// perhaps after a complete that has failed.
	sendError(errorData []byte, deadline time.Duration) (sent bool)

	// figures is what was handed to the connection; drop lets go of the rest.
	figures() (fragments int, bytes int64)
	drop()
}

var _, _ answer = (*stream)(nil), (*jsonResponse)(nil)

// prepare makes the report before the engine is started, which may change the request.
func (c *chat) prepare(request *ChatRequest) {
	x, h := c.exchange, c.exchange.handler
	c.startedAt = x.conn.elapsed()
	if h.onChat != nil {
		c.report = &ChatReport{RequestID: x.ctx.requestID, Account: x.ctx.account, Bot: request.Bot, Stream: request.Stream}
		c.report.UserID = strings.Clone(request.UserID) // a report that is kept must not retain the request body
	}
	var deadline time.Time
	if h.chatTimeout < never {
		deadline = x.conn.start.Add(c.timeoutAt())
	}
	c.call = engineCall{engine: h.engine, request: request, listener: c, hasStallTimeout: h.stallTimeout < never, returned: make(chan struct{})}
	c.call.detached = detachedContext{x.ctx, deadline}
	c.call.ctx, c.call.cancel = context.WithCancelCause(&c.call.detached)
	if request.Stream {
		c.answer = newStream(&x.conn, h.keepAlive, func(failed *ending) { c.stop(failed) })
	} else {
		c.answer = newJSONResponse(c)
	}
}

func (c *chat) run() {
	defer c.slot.release()
	go c.call.run()
	runtime.Gosched() // an engine that need not wait finishes now: that saves 2 µs and 3 allocations
	c.wait()
	c.finish()
}

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

// stop records why the chat stops, nil if its answer is complete, and wakes the handler's
// goroutine. Only the first call counts. It is safe for concurrent use.
func (c *chat) stop(end *ending) (first bool) {
	if !c.stopCalled.CompareAndSwap(false, true) {
		return false
	}
	c.ending = end
	close(c.stopped)
	return true
}

func (c *chat) timeoutAt() time.Duration { return c.startedAt + c.exchange.handler.chatTimeout }

// timeLeft returns the time until a timeout can pass at the earliest, and its ending. Ask
// again after that time: if the engine has yielded meanwhile, StallTimeout has begun anew.
func (c *chat) timeLeft() (left time.Duration, timeout *ending) {
	h := c.exchange.handler
	left, timeout = c.timeoutAt()-c.elapsed(), chatTimedOut
	if untilStall := h.stallTimeout - c.call.silentFor(); untilStall < left {
		left, timeout = untilStall, engineStalled
	}
	return left, timeout
}

func (c *chat) finish() {
	x := c.exchange
	c.call.cancel(c.ending.cause())
	defer c.answer.drop()                    // an engine that does not return must not keep its memory
	deadline := c.elapsed() + x.conn.timeout // of all that is still to be written of an incomplete answer
	if c.ending != nil && c.ending.kind == kindClientDisconnected {
		x.conn.interrupt() // any other ending leaves the write in progress its time, so that the error event can follow
	}
	committed := c.answer.close()
	if c.ending != nil && !committed {
		c.status = x.writeError(c.ending)
		return
	}
	c.status = http.StatusOK
	if c.ending == nil {
		c.ending = x.realEnding(c.answer.complete())
	}
	if c.ending != nil {
		c.abort(deadline)
	}
	if x.conn.cannotFlush {
		x.handler.log(x.ctx, slog.LevelWarn, "the ResponseWriter cannot flush: the stream is not sent before the handler returns")
	}
}

// abort has the connection aborted, even after an error event: most clients know none.
func (c *chat) abort(deadline time.Duration) {
	c.exchange.abortOnReturn(c.ending)
	switch {
	case c.ending.tellsClient():
		c.errorEventSent = c.answer.sendError(c.ending.response.eventData(), deadline)
	case c.ending.kind == kindAborted:
		c.answer.sendError(nil, deadline)
	}
}

func (c *chat) sendReport() {
	if c.report == nil {
		return
	}
	x := c.exchange
	c.report.Status, c.report.Err = c.status, c.ending.cause()
	if c.status == http.StatusOK {
		c.report.Fragments, c.report.Bytes = c.answer.figures()
	}
	if at, isSet := c.firstText.get(); isSet {
		c.report.FirstFragment = at
	}
	c.report.Duration = c.elapsed()
	defer func() {
		if v := recover(); v != nil {
			x.handler.log(x.ctx, slog.LevelError, "OnChat panicked", x.attributes(failureOf(recovered("calling OnChat", v)))...)
		}
	}()
	x.handler.onChat(context.WithoutCancel(x.ctx), *c.report)
}

const (
	// readTime is how long the client of an aborted stream has to read the error event:
	// browsers drop what they have not read when the connection is aborted.
	readTime = 250 * time.Millisecond
	// returnTime is how long the handler waits for an engine that should return:
	// http.Server.Shutdown waits for handlers, not for engines.
	returnTime = 500 * time.Millisecond
)

func (c *chat) awaitEngine() {
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
		if c.exchange.cancellation().kind != kindClientDisconnected {
			<-pause // the application has cancelled the request: the client is still there
		}
	}
}

func (c *chat) elapsed() time.Duration { return c.exchange.conn.elapsed() }

func (c *chat) fragment(text string) (more bool) {
	if c.stopCalled.Load() { // cheaper than isClosed(c.stopped)
		return false
	}
	if _, isSet := c.firstText.get(); !isSet && text != "" {
		c.firstText.set(max(c.elapsed(), 1)) // 0 in a report means that there was none
	}
	return c.answer.fragment(text)
}

func (c *chat) engineFailed(failure *ending) { c.stop(c.orTimedOut(failure)) }

// orTimedOut counts a failure at or after the deadline of the engine's context as
// ChatTimeout: an engine that watches that deadline fails at the same time as the handler's
// timer fires.
func (c *chat) orTimedOut(failure *ending) *ending {
	if failure != nil && c.elapsed() >= c.timeoutAt() {
		return timedOutWith(failure)
	}
	return failure
}

// engineReturned releases the engine's share of the slot first: before it wakes the handler
// and before it calls the Logger. The slot is free once run has released the handler's.
func (c *chat) engineReturned(failure *ending) {
	c.slot.release()
	if !c.stop(c.orTimedOut(failure)) && failure != nil && failure.stack != nil {
		c.exchange.handler.log(c.exchange.ctx, slog.LevelError, "the engine panicked after its answer had ended", c.exchange.attributes(failure)...)
	}
}

// The JSON response.

// A jsonResponse collects the fragments of an answer in chunks, which it sends when the
// answer is complete.
type jsonResponse struct {
	chat *chat

	mu sync.Mutex

	// Guarded by mu. After close, owned by the handler, except closed.
	closed    bool // no more fragments are accepted
	chunks    [][]byte
	few       [1][]byte // holds chunks while there is only one
	first     *batch    // the pooled buffer of the first chunk
	full      int       // bytes of all chunks but the last
	text      jsontext.Encoder
	fragments int
}

// maxJSONResponse bounds the memory of an answer that is not streamed.
const maxJSONResponse = 64 << 20

var errAnswerTooLarge = errors.New("the engine's answer is too large for a JSON response")

const (
	jsonStart = `{"content":"`
	jsonEnd   = `"}`
	// chunkText leaves room in a chunk for jsonEnd, and to complete a split character.
	chunkText = maxChunk - 32
)

func newJSONResponse(c *chat) *jsonResponse {
	j := &jsonResponse{chat: c, first: newBatch(jsonStart)}
	j.chunks = append(j.few[:0], j.first.data)
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
		if j.full+len(*last) > maxJSONResponse {
			j.closed = true
			j.chat.stop(answerTooLarge)
			return false
		}
		if text == "" && len(*last) < chunkText {
			return true
		}
		j.full += len(*last)
		j.chunks = append(j.chunks, make([]byte, 0, maxChunk))
	}
}

func (j *jsonResponse) close() (committed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	return false
}

// complete sends the response. No chunk but the first is begun after ChatTimeout.
func (j *jsonResponse) complete() *ending {
	last := &j.chunks[len(j.chunks)-1]
	*last = append(j.text.AppendHeld(*last), jsonEnd...)
	failed := j.chat.exchange.send(http.StatusOK, j.full+len(*last), j.chunks, j.chat.timeoutAt())
	j.first.data = j.chunks[0]
	j.first.free(failed)
	return failed
}

// sendError sends nothing: a response that is shorter than its Content-Length is an error
// to every client.
func (j *jsonResponse) sendError([]byte, time.Duration) (sent bool) { return false }

func (j *jsonResponse) drop() { j.chunks, j.few, j.first = nil, [1][]byte{}, nil }

func (j *jsonResponse) figures() (fragments int, bytes int64) { return j.fragments, j.text.Written() }

// The request body and its rules.

// readBody reads the body to its end: only then does net/http notice that a client has
// disconnected. Content-Length is not trusted: a body takes memory for what has arrived.
func (x *exchange) readBody() (string, *ending) {
	if x.r.ContentLength > x.handler.maxBodyBytes {
		return "", rejected(errBodyTooLarge)
	}
	if x.r.Body == nil { // as in a request that a test made with http.NewRequest
		return "", nil
	}
	text, err := readtext.All(&x.body, x.handler.maxBodyBytes)
	switch {
	case err == readtext.ErrTooLong:
		return "", rejected(errBodyTooLarge)
	case err != nil:
		return "", bodyError(err)
	}
	return text, nil
}

// bodyError returns the ending for a body that could not be read. The log gets the kind of
// the error, not its text: net/http's may quote what the client sent.
func bodyError(err error) *ending {
	if _, panicked := errors.AsType[*panicError](err); panicked {
		return failureOf(err)
	}
	response, kind := errBodyUnreadable, fmt.Sprintf("%T", err)
	limit, tooLarge := errors.AsType[*http.MaxBytesError](err)
	_, badTrailer := errors.AsType[textproto.ProtocolError](err)
	switch {
	case tooLarge:
		response, kind = errBodyTooLarge, limit.Error()
	case errors.Is(err, os.ErrDeadlineExceeded):
		response, kind = errBodyTooSlow, os.ErrDeadlineExceeded.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		kind = io.ErrUnexpectedEOF.Error()
	case badTrailer:
		kind = "malformed trailer"
	}
	response.Err = errors.New("reading the request body: " + kind)
	mayBeSymptom := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	return &ending{kind: kindRejected, response: response, text: response.Error(), mayBeSymptom: mayBeSymptom}
}

// A requestBody is the body of a request, and how far it has been read.
type requestBody struct {
	r       *http.Request
	started bool  // net/http has sent the 100 Continue that a client may wait for
	err     error // of the last read; endBody makes it io.EOF
}

// Read turns a panic into an error: the body may come from the application's middleware.
// The value of the panic may quote the body, so only its type is kept.
func (b *requestBody) Read(p []byte) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			if v != any(http.ErrAbortHandler) {
				v = fmt.Sprintf("%T", v)
			}
			err = recovered("reading the request body", v)
		}
		b.err = err
	}()
	b.started = true
	return b.r.Body.Read(p)
}

// remains reports whether net/http, on HTTP/1, would read more of the body.
func (b *requestBody) remains() bool {
	return b.r.ProtoMajor == 1 && b.r.ContentLength != 0 && b.err != io.EOF
}

const (
	discardBytes = 4 << 20
	discardTime  = 5 * time.Second
)

// discardBody reads what the client of a rejected request is still sending, within
// bounds. Many clients read nothing before they have sent everything, and a connection
// that is closed with unread bytes is reset: the response would be lost. The bound on
// time is a read deadline, which net/http clears at the end of the body.
func (x *exchange) discardBody() {
	awaitsContinue := !x.body.started && x.r.ProtoAtLeast(1, 1) && x.r.Header.Get("Expect") != ""
	if x.body.remains() && x.body.err == nil && !awaitsContinue {
		x.conn.setReadDeadline(time.Now().Add(discardTime))
		_, _ = io.CopyN(io.Discard, &x.body, discardBytes)
	}
	x.endBody()
}

// endBody keeps net/http from reading more of the body, for which it would wait, and has
// it close the connection after the response.
func (x *exchange) endBody() {
	if x.body.remains() {
		x.body.err = io.EOF
		x.conn.setReadDeadline(longAgo)
		_ = guard(func() error { responsewriter.CloseAfterResponse(x.conn.w); return nil })
	}
}

// A chatBody is a request body that has passed every rule. It is allocated apart from the
// chat, since an engine may keep the request.
type chatBody struct {
	botUID, botSlug string // at least one of them
	request         ChatRequest
	unknown         unknownFields
}

// decodeChat reads a body as the reference service does, which is built with FastAPI 0.92
// and pydantic 1.10. The error is an HTTPValidationError that lists every problem.
//
// Strings share the memory of the body where they can: the body stays in memory as long
// as any of them.
func decodeChat(body string) (*chatBody, error) {
	if body == "" {
		return nil, HTTPValidationError{problems{}.add(errMissing, "body")}
	}
	d := decoders.Get().(*decoder)
	defer d.free()
	d.parser = jsonscan.New(body, 0)
	d.decode()
	if err := d.parser.Err(); err != nil {
		return nil, HTTPValidationError{[]ValidationError{{[]any{"body", err.Offset}, err.Text, "value_error.jsondecode"}}}
	}
	if found := d.check(); len(found) > 0 {
		return nil, HTTPValidationError{found}
	}
	return d.result(body), nil
}

// The fields, in the order in which their problems are listed.
const (
	fieldBotUID = iota
	fieldBotSlug
	fieldPrompt
	fieldMessages
	fieldStream
	fieldUserID
	bodyFields
)

const (
	fieldRole = iota
	fieldContent
	messageFields
)

// A field is one that the API defines, with the rules for its value. The first rule that
// fails is the problem that is listed.
type field struct {
	name  string
	rules []validation.Rule
}

// The rules of a body: this table, and nothing else, says when a chat request is a 422.
// Codes and messages are the API's types and texts.
var (
	bodyRules = [bodyFields]field{
		fieldBotUID:   {"bot_uid", []validation.Rule{isNameOrNull}},
		fieldBotSlug:  {"bot_slug", []validation.Rule{isNameOrNull}},
		fieldPrompt:   {"prompt", []validation.Rule{isTextOrNull}},
		fieldMessages: {"messages", []validation.Rule{isListOrNull}},
		fieldStream:   {"stream", []validation.Rule{isPresent, isNotNull, isBoolean}},
		fieldUserID:   {"user_id", []validation.Rule{isNameOrNull}},
	}
	messageRules = [messageFields]field{
		fieldRole:    {"role", []validation.Rule{isPresent, isNotNull, isRole}},
		fieldContent: {"content", []validation.Rule{isPresent, isNotNull, isText}},
	}
	elementRules = []validation.Rule{isNotNull, isObject}
	wholeRules   = []validation.Rule{namesABot, saysSomething}
)

// The rules for a *jsonscan.Value.
var (
	isPresent    = rule(errMissing, func(v *jsonscan.Value) bool { return v.Kind != jsonscan.Absent })
	isNotNull    = rule(errNull, func(v *jsonscan.Value) bool { return v.Kind != jsonscan.Null })
	isBoolean    = ruleOfKinds(errNotBoolean, jsonscan.Boolean)
	isText       = ruleOfKinds(errNotText, jsonscan.Text)
	isTextOrNull = ruleOfKinds(errNotText, jsonscan.Absent, jsonscan.Null, jsonscan.Text)
	isNameOrNull = ruleOfKinds(errNotText, jsonscan.Absent, jsonscan.Null, jsonscan.Text, jsonscan.Integer)
	isListOrNull = ruleOfKinds(errNotList, jsonscan.Absent, jsonscan.Null, jsonscan.List)
	isObject     = ruleOfKinds(errNotObject, jsonscan.Object)
	isRole       = rule(errNotRole, func(v *jsonscan.Value) bool {
		return v.Kind == jsonscan.Text && slices.Contains(roles[:], Role(v.Text))
	})
)

func ruleOfKinds(problem validation.Error, kinds ...jsonscan.Kind) validation.Rule {
	return rule(problem, func(v *jsonscan.Value) bool { return slices.Contains(kinds, v.Kind) })
}

var roles = [...]Role{RoleSystem, RoleUser, RoleAssistant}

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

func rule[T any](problem validation.Error, holds func(*T) bool) validation.Rule {
	return validation.By(func(v any) error {
		if holds(v.(*T)) {
			return nil
		}
		return problem
	})
}

func firstProblem(rules []validation.Rule, v any) error {
	for _, rule := range rules {
		if err := rule.Validate(v); err != nil {
			return err
		}
	}
	return nil
}

type problems []ValidationError

// maxProblems bounds the list: a small body must not cause a huge response.
const maxProblems = 100

func (p problems) add(err error, loc ...any) problems {
	problem := err.(validation.Error)
	return append(p, ValidationError{Loc: loc, Msg: problem.Message(), Type: problem.Code()})
}

// A decoder reads all of a body, the last of a repeated field replacing the earlier ones.
// Then it applies the rules.
type decoder struct {
	parser   jsonscan.Parser
	document jsonscan.Value
	fields   [bodyFields]jsonscan.Value
	messages []ChatMessage // those without problems
	problems problems      // of messages
	unknown  unknownFields
	failed   [bodyFields]bool // did not pass its own rules

	// The message that is being read.
	element jsonscan.Value
	message [messageFields]jsonscan.Value
}

// Decoders are pooled: the rules get pointers into them, so they cannot be on the stack.
var decoders = sync.Pool{New: func() any { return new(decoder) }}

func (d *decoder) free() {
	*d = decoder{}
	decoders.Put(d)
}

func (d *decoder) decode() {
	p := &d.parser
	p.Begin()
	if p.Peek() == '{' {
		d.document.Kind = jsonscan.Object
		d.decodeBody()
	} else {
		d.document = p.Value()
	}
	p.End()
}

func (d *decoder) decodeBody() {
	p := &d.parser
	p.Enter()
	for first := true; p.Next('}', first); first = false {
		beforeName := p.Offset()
		known := fieldNamed(bodyRules[:], p.Name())
		switch {
		case known == fieldMessages && p.Peek() == '[':
			d.fields[fieldMessages] = jsonscan.Value{Kind: jsonscan.List}
			d.decodeMessages()
		case known >= 0:
			d.fields[known] = p.Value()
		default:
			if d.unknown.end == 0 {
				d.unknown.start = beforeName
			}
			value := p.Offset()
			p.Value()
			d.unknown.end = p.Offset()
			d.unknown.size += p.Offset() - value
		}
	}
}

func (d *decoder) decodeMessages() {
	p := &d.parser
	d.messages, d.problems = nil, nil
	p.Enter()
	for i := 0; p.Next(']', i == 0); i++ {
		d.decodeMessage(i)
	}
}

// decodeMessage leaves nothing of a bad message but its problems, so that a list of them
// costs no memory.
func (d *decoder) decodeMessage(i int) {
	d.readMessage()
	if len(d.problems) >= maxProblems {
		return
	}
	before := len(d.problems)
	if err := firstProblem(elementRules, &d.element); err != nil {
		d.problems = d.problems.add(err, "body", "messages", i)
		return
	}
	for f := range messageRules {
		if err := firstProblem(messageRules[f].rules, &d.message[f]); err != nil {
			d.problems = d.problems.add(err, "body", "messages", i, messageRules[f].name)
		}
	}
	if len(d.problems) > before {
		return
	}
	if len(d.messages) == cap(d.messages) { // append would make more room than the body can fill
		room := d.parser.Rest() / len(`{"role":"user","content":""},`)
		d.messages = slices.Grow(d.messages, 1+min(max(len(d.messages), 3), room))
	}
	d.messages = append(d.messages, ChatMessage{Role(d.message[fieldRole].Text), d.message[fieldContent].Text})
}

func (d *decoder) readMessage() {
	p := &d.parser
	if p.Peek() != '{' {
		d.element = p.Value()
		return
	}
	d.element = jsonscan.Value{Kind: jsonscan.Object}
	d.message = [messageFields]jsonscan.Value{}
	p.Enter()
	for first := true; p.Next('}', first); first = false {
		known := fieldNamed(messageRules[:], p.Name())
		v := p.Value()
		if known >= 0 {
			d.message[known] = v
		}
	}
}

// fieldNamed returns the index of the field with exactly this name, or -1.
func fieldNamed(fields []field, name string) int {
	return slices.IndexFunc(fields, func(f field) bool { return f.name == name })
}

func (d *decoder) check() problems {
	var found problems
	switch d.document.Kind {
	case jsonscan.Object:
	case jsonscan.Null:
		return found.add(errMissing, "body")
	default:
		return found.add(errNotObject, "body")
	}
	for f := range bodyRules {
		if err := firstProblem(bodyRules[f].rules, &d.fields[f]); err != nil {
			found = found.add(err, "body", bodyRules[f].name)
			d.failed[f] = true
		}
		if f == fieldMessages && d.fields[f].Kind == jsonscan.List && len(d.problems) > 0 {
			found = append(found, d.problems...)
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

// isSet reports whether a field has passed its rules, and is neither null nor empty.
func (d *decoder) isSet(f int) bool {
	v := &d.fields[f]
	return !d.failed[f] && (v.Text != "" || v.Kind == jsonscan.List && len(d.messages) > 0)
}

func (d *decoder) result(body string) *chatBody {
	b := &chatBody{botUID: d.fields[fieldBotUID].Text, botSlug: d.fields[fieldBotSlug].Text, unknown: d.unknown}
	b.unknown.body = body
	b.request.UserID = d.fields[fieldUserID].Text
	b.request.Stream = d.fields[fieldStream].Text == "true"
	if d.isSet(fieldMessages) {
		b.request.Messages = d.messages
	}
	if d.isSet(fieldPrompt) {
		b.request.Messages = append(b.request.Messages, ChatMessage{RoleUser, d.fields[fieldPrompt].Text})
	}
	return b
}

// unknownFields are the fields of a body that the API does not define. Only their place is
// kept: a small body may have very many.
type unknownFields struct {
	body       string
	size       int // of all their values
	start, end int // of the first and of the last in the body, with other fields between them; end is 0 if there are none
}

// extra reads the fields again, which are known to be JSON. Their values are copied, all
// together: an engine may change them, and keeping them must not retain the body.
func (u *unknownFields) extra() map[string]json.RawMessage {
	if u.end == 0 {
		return nil
	}
	values := make([]byte, 0, u.size)
	extra := make(map[string]json.RawMessage)
	p := jsonscan.New(u.body[:u.end], u.start)
	for first := true; p.Rest() > 0 && p.Next('}', first); first = false {
		name := p.Name()
		start := p.Offset()
		p.Value()
		if fieldNamed(bodyRules[:], name) < 0 {
			kept := len(values)
			values = append(values, p.Since(start)...)
			extra[strings.Clone(name)] = values[kept:len(values):len(values)]
		}
	}
	return extra
}
