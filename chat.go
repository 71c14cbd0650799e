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

// chat answers POST /v1/chat.
func (x *exchange) chat() error {
	body, err := x.readBody()
	if err != nil {
		return err
	}
	asked, err := decodeChat(body)
	if err != nil {
		return err
	}
	bot, err := x.findBot(asked.botUID, asked.botSlug)
	if err != nil {
		return err
	}
	c := &chat{exchange: x, requestDone: x.r.Context().Done(), stopped: make(chan struct{})}
	x.conn.outlive() // as all that may panic, before there is a place to lose
	if err := c.place.take(x.handler.places, x.account); err != nil {
		return err
	}
	c.prepare(ChatRequest{
		Bot:      bot,
		Messages: asked.messages,
		UserID:   asked.userID,
		Stream:   asked.stream,
		Extra:    asked.extra,
	})
	c.live()
	return nil
}

// A chat is one chat that has its place, up to the report of how it went.
//
//	asked ─► running ─► stopped ─► ended ─► reported ─► the handler returns
//
// The handler's goroutine owns it, and moves it from each state to the next:
//
//   - asked: the engine has a goroutine of its own, which hands each fragment to
//     the answer. A stream writes it there and then.
//   - running: the handler waits, in one place, for the first reason to stop.
//     The engine and a failed write give theirs; that the client has left, that
//     the host has ended the request, or that time is up, the handler sees
//     itself.
//   - stopped: the first reason is recorded; what comes later is none. From now
//     on no fragment is taken. Only then the engine's context is cancelled: it
//     may yield that as an error, which must not be the reason.
//   - ended: nobody writes any more but the handler, which has sent what belongs
//     at the end. If that fails, this is the reason for an answer that was whole
//     until then.
//   - reported: OnChat knows.
//
// An engine that has not returned is waited for, but not for long. Nothing that
// it does reaches the client.
//
// What goroutines share is atomic here, and guarded by the lock of the answer
// there. reason belongs to whoever has set stopping; once stopped is closed, to
// the handler, like all else.
type chat struct {
	exchange    *exchange
	place       place
	run         engineRun
	answer      answer
	streamed    bool
	began       time.Duration   // when the engine was asked
	requestDone <-chan struct{} // closed when the client leaves, or the host ends the request
	stopping    atomic.Bool     // there is a reason to stop
	stopped     chan struct{}   // closed when it is recorded
	reason      error           // nil if the answer is whole
	firstText   atomic.Int64    // when the engine's first text came; 0 if none has
	told        bool            // the client has an error event to read
	status      int             // sent
	report      *ChatReport     // nil if nobody wants one
}

// An answer takes an engine's fragments to the client.
type answer interface {
	// fragment takes the next fragment, in the engine's goroutine, and reports
	// whether more are wanted.
	fragment(text string) (more bool)

	// settle takes no more fragments, and returns when only the caller will
	// write any more. It reports whether something has been sent. Then finish
	// or tellFailure may follow, once.
	settle() (committed bool)

	// finish sends what is left of an answer that is whole.
	finish() error

	// tellFailure says to the client that the answer is not whole, and reports
	// whether it could.
	tellFailure(detail []byte) (told bool)

	// figures are what the client was sent, for the report.
	figures() (fragments int, bytes int64)
}

var _, _ answer = (*stream)(nil), (*wholeAnswer)(nil)

// prepare makes ready what live needs. The report is begun here, since the engine
// may change its request.
func (c *chat) prepare(request ChatRequest) {
	x, h := c.exchange, c.exchange.handler
	c.began = x.conn.elapsed()
	if h.onChat != nil {
		c.report = &ChatReport{RequestID: x.admitted.requestID, Account: x.account, Bot: request.Bot, Stream: request.Stream}
		c.report.UserID = strings.Clone(request.UserID) // else it keeps the body that it is cut out of
	}
	var deadline time.Time
	if h.chatTimeout < never {
		deadline = x.conn.began.Add(c.began + h.chatTimeout)
	}
	c.run = engineRun{engine: h.engine, request: request, listener: c, timed: h.stallTimeout < never, returned: make(chan struct{})}
	c.run.values = engineValues{&x.admitted, deadline}
	c.run.ctx, c.run.cancel = context.WithCancelCause(&c.run.values)
	if c.streamed = request.Stream; c.streamed {
		c.answer = newStream(&x.conn, h.keepAlive, c.stop)
	} else {
		c.answer = &wholeAnswer{chat: c, body: newBatch(wholeStart)}
	}
}

// live takes the chat through its life. What is deferred happens also when the
// host's ResponseWriter ends this goroutine.
func (c *chat) live() {
	defer c.waitToReturn()
	defer c.reportEnd()
	go c.run.run()
	runtime.Gosched() // to an engine that need not wait: often there is nothing to wait for, then
	c.wait()
	c.end()
}

// wait returns when there is a reason to stop.
func (c *chat) wait() {
	for !isClosed(c.stopped) {
		left, late := c.timeLeft()
		if left <= 0 {
			c.stop(late)
		}
		select {
		case <-c.stopped:
		case <-c.requestDone:
			c.stop(ErrClientLeft) // or another, behind this
		case <-time.After(left):
		}
	}
	c.reason = c.exchange.reasonBehind(c.reason)
}

// isClosed is asked before a wait, since a wait begins by making its timer.
func isClosed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// stop records why the chat stops, if nothing has stopped it yet.
func (c *chat) stop(reason error) (first bool) {
	if !c.stopping.CompareAndSwap(false, true) {
		return false
	}
	c.reason = reason
	close(c.stopped)
	return true
}

// timeLeft is how long the chat may still go on, and why no longer.
func (c *chat) timeLeft() (left time.Duration, late error) {
	h := c.exchange.handler
	left, late = c.began+h.chatTimeout-c.elapsed(), ErrChatTimeout
	if engine := h.stallTimeout - c.run.silence(); engine < left {
		left, late = engine, ErrEngineStalled
	}
	return left, late
}

// end ends the answer for the client: the one place that does. A write that is
// under way is made to fail if the client has left; else it has its
// WriteTimeout, since the client is still owed the end.
func (c *chat) end() {
	x := c.exchange
	c.run.cancel(c.reason)
	if errors.Is(c.reason, ErrClientLeft) {
		x.conn.interrupt()
	}
	committed := c.answer.settle()
	if c.reason != nil && !committed {
		c.status = x.refuse(c.reason)
		return
	}
	c.status = http.StatusOK
	if c.reason == nil {
		c.reason = c.answer.finish()
	}
	switch {
	case c.reason == nil:
	case nobodyListens(c.reason):
		x.abort(c.reason)
	default:
		x.cut = true // most clients do not know an error event, and none must take the answer for a whole one
		x.handler.logError(x.ctx, "answer broken off", c.reason)
		c.told = c.answer.tellFailure(statusOf(c.reason).body())
	}
	if x.conn.unflushing && c.streamed {
		x.handler.log(x.ctx, slog.LevelWarn, "the ResponseWriter cannot flush: the stream was delivered whole at its end")
	}
}

// reportEnd tells OnChat, which may be slow: the place has been given up.
func (c *chat) reportEnd() {
	c.place.release()
	if c.report == nil {
		return
	}
	x := c.exchange
	c.report.Status, c.report.Err = c.status, cmp.Or(c.reason, x.conn.failure)
	if c.status == http.StatusOK {
		c.report.Fragments, c.report.Bytes = c.answer.figures()
	}
	c.report.FirstFragment, c.report.Duration = time.Duration(c.firstText.Load()), c.elapsed()
	defer func() {
		if v := recover(); v != nil {
			x.handler.logError(x.ctx, "OnChat panicked", recovered("calling OnChat", v))
		}
	}()
	x.handler.onChat(context.WithoutCancel(x.ctx), *c.report)
}

const (
	// readTime is how long a client that was told of a broken stream has to
	// read that: browsers drop an unread event with the connection.
	readTime = 250 * time.Millisecond
	// returnTime is how long the handler waits for an engine that should
	// return: http.Server.Shutdown waits for handlers, not for engines.
	returnTime = 500 * time.Millisecond
)

// waitToReturn returns when the handler may.
func (c *chat) waitToReturn() {
	if c.told {
		pause := time.After(readTime)
		select {
		case <-c.requestDone:
			if !errors.Is(c.exchange.requestEnded(), ErrClientLeft) {
				<-pause // the host has ended the request: the client is still there
			}
		case <-pause:
		}
	}
	if !isClosed(c.run.returned) {
		select {
		case <-c.run.returned:
		case <-time.After(returnTime):
			c.exchange.handler.log(c.exchange.ctx, slog.LevelWarn, "the engine has not returned although its answer has ended")
		}
	}
	if conn := &c.exchange.conn; !conn.lifting {
		conn.arm(c.elapsed()) // for the last bytes, which net/http writes when the handler has returned
	}
}

// What follows is the listener of the engine, called in its goroutine.

func (c *chat) elapsed() time.Duration { return c.exchange.conn.elapsed() }

func (c *chat) fragment(text string) (more bool) {
	if c.stopping.Load() {
		return false
	}
	if text != "" && c.firstText.Load() == 0 {
		c.firstText.Store(int64(max(c.elapsed(), 1)))
	}
	return c.answer.fragment(text)
}

// engineReturned gives up the engine's part of the place first: a client whose
// answer is whole may ask again at once.
func (c *chat) engineReturned(err error) {
	c.place.release()
	if _, panicked := errors.AsType[*panicError](err); !c.stop(err) && panicked {
		c.exchange.handler.logError(c.exchange.ctx, "the engine panicked after its answer had ended", err)
	}
}

// readBody reads the body to its end: only then does net/http notice that a
// client left. What a body announces of its length is believed only when some
// of it has come.
func (x *exchange) readBody() (string, error) {
	if x.r.ContentLength > x.handler.maxBodyBytes {
		return "", errBodyTooLarge
	}
	if x.r.Body == nil { // as in a request that a test made with http.NewRequest
		return "", nil
	}
	chunk := bodyChunks.Get().(*[bodyChunk]byte)
	defer bodyChunks.Put(chunk)
	var body strings.Builder
	for {
		left := x.handler.maxBodyBytes - int64(body.Len())
		n, err := fill(chunk[:1+min(left, bodyChunk-1)], x.r.Body)
		if int64(n) > left {
			return "", errBodyTooLarge
		}
		if n == bodyChunk {
			body.Grow(max(n, int(x.r.ContentLength)-body.Len()))
		}
		body.Write(chunk[:n])
		if err == io.EOF {
			return body.String(), nil
		}
		if err != nil {
			return "", bodyError(err)
		}
	}
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

func bodyError(err error) error {
	refusal := errBodyBroken
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		refusal = errBodyTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		refusal = errBodyTooSlow
	}
	refusal.Err = err
	return refusal
}

// findBot finds the bot that both names name, where both are given.
func (x *exchange) findBot(uid, slug string) (Bot, error) {
	if !isIdentifier(uid) || !isIdentifier(slug) {
		return Bot{}, errNoSuchBot
	}
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

// A wholeAnswer gathers the fragments of an answer that is sent at its end.
type wholeAnswer struct {
	chat *chat

	mu        sync.Mutex
	body      *batch
	text      textEncoder
	fragments int
	stopped   bool // no more fragments are taken
}

// maxWhole bounds an answer that is held in memory until it is whole.
const maxWhole = 64 << 20

var errAnswerTooLarge = errors.New("the engine's answer is larger than one body may be")

const (
	wholeStart = `{"content":"`
	wholeEnd   = `"}`
)

func (w *wholeAnswer) fragment(text string) (more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	w.fragments++
	if w.body.data, text = w.text.append(w.body.data, text, maxWhole); text != "" {
		w.stopped = true
		w.chat.stop(errAnswerTooLarge)
	}
	return !w.stopped
}

func (w *wholeAnswer) settle() (committed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	return false
}

// finish sends the body within ChatTimeout.
func (w *wholeAnswer) finish() error {
	w.body.data = append(w.text.appendHeld(w.body.data), wholeEnd...)
	err := w.chat.exchange.send(http.StatusOK, w.body.data, w.chat.began+w.chat.exchange.handler.chatTimeout)
	w.body.free(err)
	return err
}

// tellFailure can say nothing: half a body is sign enough.
func (w *wholeAnswer) tellFailure([]byte) (told bool) { return false }

func (w *wholeAnswer) figures() (fragments int, bytes int64) { return w.fragments, w.text.bytes }

// A chatBody is a request body that has passed every rule.
type chatBody struct {
	botUID, botSlug string // at least one of them
	messages        []ChatMessage
	userID          string
	stream          bool
	extra           map[string]json.RawMessage
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

// The fields of a message, likewise.
const (
	fieldRole = iota
	fieldContent
	messageFields
)

// A field is a member that the interface defines, with what must hold for its
// value. Its first rule that fails is its problem.
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
	namesABot     = rule(errNoBot, func(d *decoder) bool { return d.says(fieldBotUID) || d.says(fieldBotSlug) })
	saysSomething = rule(errNoInput, func(d *decoder) bool { return d.says(fieldPrompt) || d.says(fieldMessages) })
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

// A decoder reads one body: first everything that stands in it, the last of a
// repeated member replacing the earlier ones; then the rules are applied.
type decoder struct {
	parser   parser
	document value
	fields   [bodyFields]value
	messages messageList
	unknown  []member
	failed   [bodyFields]bool // did not pass its own rules

	// The message that is being read, here so that the rules can be given a
	// pointer to it without an allocation.
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

// A messageList is what has been read of the last member called messages.
type messageList struct {
	good     []ChatMessage
	problems problems // none: all elements are good
}

// A member is one that the interface does not define.
type member struct {
	name       string
	start, end int // of its value, in the body
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
		name := p.name()
		start := p.at
		known := fieldNamed(bodyRules[:], name)
		switch {
		case known == fieldMessages && p.peek() == '[':
			d.fields[fieldMessages] = value{kind: list}
			d.decodeMessages()
		case known >= 0:
			d.fields[known] = p.value()
		default:
			p.value()
			d.unknown = append(withRoom(d.unknown, p.rest()/len(`"":0,`)), member{name, start, p.at})
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

// says reports whether a field counts as present: it passed its own rules and
// is neither null nor empty.
func (d *decoder) says(f int) bool {
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
		extra:   d.extra(),
	}
	if d.says(fieldMessages) {
		b.messages = d.messages.good
	}
	if d.says(fieldPrompt) {
		b.messages = append(b.messages, ChatMessage{RoleUser, d.fields[fieldPrompt].text})
	}
	return b
}

// extra copies the values, all together: an engine may change them, and keeping
// them must not keep the body.
func (d *decoder) extra() map[string]json.RawMessage {
	if len(d.unknown) == 0 {
		return nil
	}
	size := 0
	for _, m := range d.unknown {
		size += m.end - m.start
	}
	values := make([]byte, 0, size)
	extra := make(map[string]json.RawMessage, min(len(d.unknown), 64)) // a name may stand there many times
	for _, m := range d.unknown {
		start := len(values)
		values = append(values, d.parser.body[m.start:m.end]...)
		extra[strings.Clone(m.name)] = values[start:len(values):len(values)]
	}
	return extra
}

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

// fail keeps the first error, with the place as the interface's reference
// writes it. What is left of the body is not read.
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

// enter steps into the object or array that begins here.
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

// name reads the name of a member, up to where its value begins.
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
	decoded := make([]byte, 0, 2*(p.at-start)+32)
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

// escape decodes the escape that begins here. Surrogates count in pairs only.
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
