// Package botapi serves a bot listing and chat interface from any Go program,
// in front of whatever models the program has.
//
// [New] returns an [http.Handler] with two operations:
//
//	GET  /v1/bots   the published bots
//	POST /v1/chat   one answer of a bot, as a JSON body or as a stream
//
// The host program fills in three interfaces, and the handler does the rest:
//
//	request ──► KeyVerifier ──► BotStore ──► ChatEngine ──► answer or stream
//	            whose key?      which bot?   fragments of text
//
// [MemoryStore], [StaticKeys] and [CacheKeys] are ready parts for the first
// two. [ChatEngineFunc] makes an engine of a function that returns an iterator,
// [CallbackEngine] one of a function that passes each fragment to a callback.
// The limits, and what else can be chosen, are in [Options].
//
// # Errors
//
// A host decides an answer by the error it returns: [ErrInvalidKey],
// [ErrBotNotFound], a [StatusError] with any status and text, or an
// [HTTPValidationError]. They may be wrapped, mean the same from every part of
// the host, and the outermost StatusError stands before all others. With
// [http.ErrAbortHandler], returned or as a panic, the connection is cut. Every
// other error, and every other panic, is a 500 that shows nothing of it; the log
// has it, with the request id. An engine that fails at or after the deadline of
// its context is too late, whatever its error says: the answer is a 504.
//
// # Mounting
//
// The handler works at the root of a server, as a subtree of a mux
// (mux.Handle("/v1/", h)), and behind [http.StripPrefix]. It never redirects.
// Middleware that recovers panics must pass [http.ErrAbortHandler] on: that is
// how a broken stream is cut, so that no client takes it for a whole one.
package botapi

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What the zero values of [Options] stand for.
const (
	DefaultMaxBodyBytes = 1 << 20 // 1 MiB
	DefaultChatTimeout  = 10 * time.Minute
	DefaultKeepAlive    = 15 * time.Second
	DefaultWriteTimeout = 30 * time.Second
)

// Options say what a handler serves, and its limits. Bots, Keys and Engine are
// required. [New] copies them; changing them later changes nothing.
type Options struct {
	Bots   BotStore    // required: the published bots
	Keys   KeyVerifier // required: whose key a request carries
	Engine ChatEngine  // required: answers the chats

	// MaxBodyBytes bounds a request body; a larger one is answered 413.
	// Zero or negative means DefaultMaxBodyBytes.
	MaxBodyBytes int64

	// MaxConcurrentChats bounds the chats in progress; one more is answered
	// 503 at once. A chat is in progress until its engine has returned and its
	// answer has been sent. Zero or negative means no limit.
	MaxConcurrentChats int64

	// MaxChatsPerAccount bounds the chats in progress for one account; one
	// more is answered 429 at once. Zero or negative means no limit.
	MaxChatsPerAccount int64

	// ChatTimeout bounds one whole answer, from the call of the engine until
	// the answer has been sent. When it passes, the engine is stopped; the rest
	// of a stream, or the part of a JSON response that is being written, has one
	// WriteTimeout more. Zero means DefaultChatTimeout, negative no limit.
	ChatTimeout time.Duration

	// StallTimeout bounds the silence of an engine: the time from the call of
	// Chat, or from the return of yield, to the next yield (an empty fragment
	// counts) or to the iterator's return. The time that the client takes to
	// read does not count. Zero or negative means no limit.
	StallTimeout time.Duration

	// KeepAlive is how long a stream is silent before it carries a comment.
	// Zero means DefaultKeepAlive, negative never.
	KeepAlive time.Duration

	// WriteTimeout bounds one write to a client that does not read; then the
	// connection is cut. It may be exceeded by an eighth, at most by a second.
	// Zero means DefaultWriteTimeout, negative no limit; then ChatTimeout, if
	// there is one, bounds a write. A ResponseWriter that has no deadlines, and
	// no Unwrap to one that has, must bound its writes itself.
	WriteTimeout time.Duration

	// Logger gets what the client must not see, with the request id. It is never
	// given a key or a text of a chat. Nil means slog.Default() at the time of New.
	Logger *slog.Logger

	// OnChat, if not nil, is called once for each chat that reached the engine,
	// when the answer has ended and before the handler returns: the request is
	// not over while OnChat runs. (Behind a ResponseWriter that cannot flush, the
	// answer leaves only when OnChat has returned. A stream can use a Flush behind
	// Unwrap; a JSON response needs one on the writer itself.) It must be safe for
	// concurrent use. The context has the request's values and is not cancelled. A
	// panic is logged.
	OnChat func(context.Context, ChatReport)
}

// OpenAPI describes the interface for tools: an OpenAPI 3.0 document in JSON,
// with every operation, schema, status and header. The handler does not serve
// it; a host that wants to sends it as application/json. Its paths are those of
// a handler at the root of a server: a host that mounts the handler elsewhere
// says so in the document's servers.
//
//go:embed openapi.json
var OpenAPI string

// New returns the handler that the options describe. It serves GET /v1/bots
// and POST /v1/chat, each also without /v1. It panics, naming the field, when
// Bots, Keys or Engine is nil, or holds a nil *MemoryStore, KeyVerifierFunc or
// ChatEngineFunc.
func New(o Options) http.Handler {
	switch {
	case isNil(o.Bots):
		panic("botapi: New: Options.Bots is nil")
	case isNil(o.Keys):
		panic("botapi: New: Options.Keys is nil")
	case isNil(o.Engine):
		panic("botapi: New: Options.Engine is nil")
	}
	h := &handler{
		bots:         o.Bots,
		keys:         o.Keys,
		engine:       o.Engine,
		slots:        newSlots(o.MaxConcurrentChats, o.MaxChatsPerAccount),
		maxBodyBytes: o.MaxBodyBytes,
		chatTimeout:  orDefault(o.ChatTimeout, DefaultChatTimeout),
		stallTimeout: orDefault(o.StallTimeout, never),
		keepAlive:    orDefault(o.KeepAlive, DefaultKeepAlive),
		writeTimeout: orDefault(o.WriteTimeout, DefaultWriteTimeout),
		logger:       o.Logger,
		onChat:       o.OnChat,
	}
	if h.maxBodyBytes <= 0 {
		h.maxBodyBytes = DefaultMaxBodyBytes
	}
	if o.WriteTimeout < 0 {
		h.writeTimeout = h.chatTimeout
	}
	if h.logger == nil {
		h.logger = slog.Default()
	}
	return h
}

// isNil is also true of the package's own types that are nil in an interface:
// nothing could be done with them. A nil of a type of the host's may have methods
// that work.
func isNil(part any) bool {
	switch part := part.(type) {
	case nil:
		return true
	case *MemoryStore:
		return part == nil
	case KeyVerifierFunc:
		return part == nil
	case ChatEngineFunc:
		return part == nil
	}
	return false
}

// never is longer than any answer. It can be added to a moment.
const never = 100 * 365 * 24 * time.Hour

// orDefault completes a duration of the options.
func orDefault(d, whenZero time.Duration) time.Duration {
	if d < 0 {
		return never
	}
	return min(cmp.Or(d, whenZero), never)
}

type handler struct {
	bots   BotStore
	keys   KeyVerifier
	engine ChatEngine
	slots  *slots
	listed listing

	maxBodyBytes int64
	chatTimeout  time.Duration
	stallTimeout time.Duration
	keepAlive    time.Duration
	writeTimeout time.Duration
	logger       *slog.Logger
	onChat       func(context.Context, ChatReport)
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(h, w, r)
	defer x.endBody()
	if ended := x.serve(); ended != nil {
		x.writeError(x.realReason(ended))
	}
	x.conn.extendDeadlineForReturn()
	if x.cut {
		panic(http.ErrAbortHandler)
	}
}

// An exchange is one request and its response. It belongs to the goroutine in which
// net/http serves the request. The other goroutines of a chat only read what was set
// before they began, and write through conn only while they hold the stream's token.
type exchange struct {
	handler *handler
	r       *http.Request
	conn    connection // to the client
	body    requestBody
	account string
	ctx     context.Context // the request's, with the request id and the account

	cut bool // the connection is to be cut when the handler returns

	// What ctx and the headers point to, in the same allocation. There are two
	// contexts, since a goroutine of the verifier's may still read the first.
	identified, admitted requestContext
	values               [3]string // of X-Request-Id, Content-Type and Content-Length
}

func newExchange(h *handler, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{handler: h, r: r, body: requestBody{r: r}}
	x.conn.w = w
	x.conn.control = *http.NewResponseController(w)
	x.conn.start = time.Now()
	x.conn.timeout = h.writeTimeout
	x.conn.http2 = r.ProtoMajor != 1
	x.identified = requestContext{Context: r.Context(), requestID: requestID(r.Header)}
	x.ctx = &x.identified
	return x
}

// serve finds the route, checks the key, and answers. It returns nil, or an ending of
// which the client is still to be told.
func (x *exchange) serve() (ended *ending) {
	defer func() {
		if v := recover(); v != nil {
			ended = failureOf(recovered("serving the request", v))
		}
	}()
	x.setHeader("X-Request-Id", 0, x.identified.requestID)
	route, ended := x.route()
	if ended != nil {
		return ended
	}
	account, ended := x.authenticate()
	if ended != nil {
		return ended
	}
	x.admit(account)
	return route(x)
}

// route compares paths exactly: a redirect to a cleaner one would turn a POST
// into a GET.
func (x *exchange) route() (func(*exchange) *ending, *ending) {
	switch x.r.URL.Path {
	case "/v1/bots", "/bots":
		return (*exchange).listBots, x.allow(http.MethodGet, http.MethodHead)
	case "/v1/chat", "/chat":
		return (*exchange).chat, x.allow(http.MethodPost)
	}
	return nil, rejected(errNotFound)
}

func (x *exchange) allow(methods ...string) *ending {
	if slices.Contains(methods, x.r.Method) {
		return nil
	}
	x.conn.w.Header().Set("Allow", strings.Join(methods, ", "))
	return rejected(errMethodNotAllowed)
}

// admit adds the account to the exchange and its context.
func (x *exchange) admit(account string) {
	x.account = account
	x.admitted = x.identified
	x.admitted.account = account
	x.ctx = &x.admitted
}

// setHeader sets a header whose value is kept in x.values, at index i: that saves
// an allocation.
func (x *exchange) setHeader(canonical string, i int, value string) {
	x.values[i] = value
	x.conn.w.Header()[canonical] = x.values[i : i+1 : i+1]
}

// maxPart bounds one write of a response that is not a stream: it is what the
// slowest client must take within WriteTimeout.
const maxPart = 64 << 10

// send sends a response with a JSON body, and flushes it where the writer can: it is
// on its way before OnChat is called. Each part has its own WriteTimeout, but not
// beyond conn.limit, and no part but the first is begun after noPartAfter.
func (x *exchange) send(status int, body []byte, noPartAfter time.Duration) *ending {
	failure := x.conn.writeHeader(status, func() {
		x.setHeader("Content-Type", 1, "application/json")
		x.setHeader("Content-Length", 2, strconv.Itoa(len(body)))
	})
	if x.r.Method == http.MethodHead {
		return failure
	}
	for first := true; failure == nil && len(body) > 0; first = false {
		if !first && x.conn.elapsed() > noPartAfter {
			return endingOf(endingTooLate)
		}
		part := body[:min(len(body), maxPart)]
		body = body[len(part):]
		failure = x.conn.write(part, len(body) == 0)
	}
	return failure
}

// requestEnding reads how the request's context has ended, and returns nil if it has
// not. The context may belong to the host's middleware, and panic.
func (x *exchange) requestEnding() (ended *ending) {
	defer func() {
		if v := recover(); v != nil {
			ended = failureOf(recovered("asking the request's context", v))
		}
	}()
	ctx := x.r.Context()
	if ctx.Err() == nil {
		return nil
	}
	return endingOfCause(context.Cause(ctx))
}

// realReason replaces an ending that may be only a symptom: of the end of the
// request's context, or of a slow client.
//
//   - If the host has ended the context, that is why a client seems to have left, a
//     write has failed, or code of the host's has returned context.Canceled or
//     context.DeadlineExceeded.
//   - If the client has left, that is why code of the host's has returned
//     context.Canceled or context.DeadlineExceeded.
//   - If a write has used up its time, that is why the client seems to have left:
//     net/http cancels the context after every write that fails.
func (x *exchange) realReason(e *ending) *ending {
	if e == nil {
		return nil
	}
	byClient := e.kind == endingClientLeft || e.kind == endingClientStalled
	if !byClient && !e.isCanceled && !e.isDeadline {
		return e
	}
	request := x.requestEnding()
	switch {
	case request != nil && request.kind != endingClientLeft:
		return request // the host has ended it
	case request != nil && !byClient:
		return request
	case e.kind == endingClientLeft && x.conn.stalled():
		return endingOf(endingClientStalled)
	}
	return e
}

// A connection writes to one client, each write within WriteTimeout. Its times are
// durations since the start of the request: one clock, and eight bytes each.
type connection struct {
	// Set once.
	w       http.ResponseWriter
	control http.ResponseController
	start   time.Time     // of the request
	timeout time.Duration // WriteTimeout
	http2   bool          // not HTTP/1: a deadline that passes between two writes would end the stream, so each deadline is cleared after its write

	// Used by one goroutine at a time, the one that may write.
	writeDeadline time.Duration // the last that extendDeadline has set
	cannotFlush   bool          // the writer has no Flush for a stream, which leaves when the handler returns
	flushed       bool          // the last flush worked: nothing is left in the writer's buffer
	headSent      bool          // the head was sent, as far as can be known; set by write only, so not for a stream
	failure       *ending       // why writing has failed: nothing more is written. During a call it is writeExited, which stands if the call ends its goroutine

	// Safe for concurrent use.
	limit      instant // no write begins after it, and none that begins before has a later deadline; a write that was under way when it was set keeps its own
	writeBegan instant // when the write that is under way began, or the one that has failed

	mu             sync.Mutex // held while the host's SetWriteDeadline is called
	deadlineFrozen bool       // the write deadline is not changed any more, or cannot be
}

func (c *connection) elapsed() time.Duration { return time.Since(c.start) }

// liftServerDeadlines removes the server's ReadTimeout and WriteTimeout, which are
// meant for requests, not for answers that a model is still writing.
func (c *connection) liftServerDeadlines() {
	_ = guard(func() error { return c.control.SetReadDeadline(time.Time{}) }) // unsupported: then the host's writer has none
	c.setDeadline(time.Time{}, false)
}

// writeHeader sends the head, which net/http buffers. It calls set first, which sets
// the headers: the host's writer may fail there, too.
func (c *connection) writeHeader(status int, set func()) *ending {
	return c.writeWithDeadline(c.elapsed(), func() error {
		set()
		c.w.WriteHeader(status)
		return nil
	})
}

// write sends a part of a body, and flushes the last.
func (c *connection) write(part []byte, last bool) *ending {
	return c.writeWithDeadline(c.elapsed(), func() error {
		if _, err := c.w.Write(part); err != nil {
			return err
		}
		// On HTTP/2, the head is a frame of its own, which may leave even if the
		// body then cannot. On HTTP/1, both leave together.
		c.headSent = c.headSent || c.http2 || !last
		if !last {
			return nil
		}
		err := c.flushBody()
		c.headSent = c.headSent || err == nil
		return err
	})
}

// writeWithDeadline calls the host's ResponseWriter. If the call fails, panics or
// ends its goroutine, nothing more is written: the client is taken for one that has
// left, or that does not read.
func (c *connection) writeWithDeadline(now time.Duration, call func() error) *ending {
	if failure := c.blocked(now); failure != nil {
		return failure
	}
	c.failure = writeExited // which stands if the call ends this goroutine
	c.extendDeadline(now)
	c.writeBegan.set(now)
	c.failure = c.writeFailure(guard(call))
	if c.failure == nil {
		c.writeBegan.clear()
	}
	if c.http2 {
		c.setDeadline(time.Time{}, false)
	}
	return c.failure
}

// blocked returns why no write may begin, or nil if one may.
func (c *connection) blocked(now time.Duration) *ending {
	if c.failure == nil && c.pastLimit(now) {
		c.failure = endingOf(endingClientStalled)
	}
	return c.failure
}

// writeExited stands for a write in which the host has called runtime.Goexit. It
// counts as a client that left.
var writeExited = endingOf(endingClientLeft)

// writeFailure returns the ending for a call of the ResponseWriter that has failed:
// the client has stalled if the write has used up its time, and else has left. The
// error does not decide that. The stack of a panic is kept for the log.
func (c *connection) writeFailure(err error) *ending {
	if err == nil {
		return nil
	}
	e := endingOf(endingClientLeft)
	if c.stalled() {
		e = endingOf(endingClientStalled)
	}
	e.err = fmt.Errorf("%w: %w", e.err, err)
	if p, panicked := err.(*panicError); panicked && p.value != any(http.ErrAbortHandler) {
		e.text, e.stack = p.text, p.stack
	}
	return e
}

// stalled reports whether the write that is under way has used up its time, or
// has failed because of that. It is safe for concurrent use.
func (c *connection) stalled() bool {
	began, isSet := c.writeBegan.get()
	if !isSet {
		return false
	}
	now := c.elapsed()
	return now-began >= c.timeout || c.pastLimit(now)
}

// limitRemainingWrites gives all that is still to be written until one WriteTimeout
// after from, which may be in the future. A write that is under way keeps its
// deadline. It is safe for concurrent use.
func (c *connection) limitRemainingWrites(from time.Duration) { c.limit.set(from + c.timeout) }

func (c *connection) pastLimit(now time.Duration) bool {
	limit, isSet := c.limit.get()
	return isSet && now >= limit
}

// extendDeadline sees that a write that begins now has its whole timeout, and
// little more, but does not go on after the limit. On HTTP/1, a deadline that is
// neither too near nor beyond the limit stays as it is, and one that is too near is
// moved a little further than needed, since moving it costs.
func (c *connection) extendDeadline(now time.Duration) {
	limit, limited := c.limit.get()
	if c.http2 || c.writeDeadline < now+c.timeout || limited && c.writeDeadline > limit {
		c.writeDeadline = now + c.timeout + min(c.timeout/8, time.Second)
		if limited {
			c.writeDeadline = min(c.writeDeadline, limit)
		}
		c.setDeadline(c.start.Add(c.writeDeadline), false)
	}
}

// extendDeadlineForReturn sets a deadline for what net/http writes when the
// handler has returned: a whole WriteTimeout, since OnChat may have taken any time.
// On HTTP/2, it does so only if there may be something left to write.
func (c *connection) extendDeadlineForReturn() {
	c.limit.clear()
	if !c.http2 || !c.flushed {
		c.extendDeadline(c.elapsed())
	}
}

// interrupt makes the write that is under way fail, and every later one, where the
// writer has deadlines. It is safe for concurrent use until the handler returns.
func (c *connection) interrupt() { c.setDeadline(time.Unix(1, 0), true) }

// setDeadline sets the write deadline, unless it is frozen. Without support for
// deadlines, the host's writer must have bounds of its own.
func (c *connection) setDeadline(at time.Time, freeze bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadlineFrozen {
		c.deadlineFrozen = guard(func() error { return c.control.SetWriteDeadline(at) }) != nil || freeze
	}
}

// endReading makes the read that is under way fail, and every later one.
func (c *connection) endReading() {
	_ = guard(func() error { return c.control.SetReadDeadline(time.Unix(1, 0)) }) // unsupported: the host's writer has bounds of its own
}

// closeAfterResponse has net/http close the connection after the response, without
// reading the rest of the body before. net/http then first closes its own side and
// waits a while: if it closed at once, with bytes of the client unread, the
// connection would be reset and the response lost. Only http.MaxBytesReader can ask
// net/http for that, when its limit is reached.
func (c *connection) closeAfterResponse() {
	_ = guard(func() error {
		w := c.w
		for {
			wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
			if !ok {
				break
			}
			w = wrapper.Unwrap()
		}
		_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("more")), 0).Read(make([]byte, 1))
		return nil
	})
}

// flush sends what the writer has buffered of a stream. It may return the error of
// an earlier Write.
func (c *connection) flush() error {
	err := c.control.Flush()
	c.flushed = err == nil
	if errors.Is(err, errors.ErrUnsupported) {
		c.cannotFlush, err = true, nil
	}
	return err
}

// flushBody sends what the writer has buffered of a response that is not a stream,
// if the writer itself has a Flush. It does not use that of a writer behind Unwrap:
// a writer that buffers and has no Flush may not have sent its status yet. A
// response without a body is not flushed: behind compression, that would begin a
// body.
func (c *connection) flushBody() error {
	var err error
	switch w := c.w.(type) {
	case interface{ FlushError() error }:
		err = w.FlushError()
	case http.Flusher:
		w.Flush()
	default:
		return nil
	}
	c.flushed = err == nil
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	return err
}

// guard calls the host's ResponseWriter and turns a panic into an error.
func guard(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = recovered("calling the ResponseWriter", v)
		}
	}()
	return call()
}

// requestContext is the request's context with the request id and the account.
type requestContext struct {
	context.Context
	requestID, account string
}

type requestContextKey struct{}

func (c *requestContext) Value(key any) any {
	if key == (requestContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// AccountFrom returns what the [KeyVerifier] returned for the request that ctx
// belongs to. It is empty in other contexts, and while the verifier runs.
func AccountFrom(ctx context.Context) string {
	if c, ok := ctx.Value(requestContextKey{}).(*requestContext); ok {
		return c.account
	}
	return ""
}

// RequestIDFrom returns the id of the request that ctx belongs to: the one in
// the X-Request-Id header of its answer. It is empty in other contexts.
func RequestIDFrom(ctx context.Context) string {
	if c, ok := ctx.Value(requestContextKey{}).(*requestContext); ok {
		return c.requestID
	}
	return ""
}

// requestID keeps the client's own id if it is one that can be echoed and
// logged as it is.
func requestID(header http.Header) string {
	id := firstOf(header["X-Request-Id"])
	if id == "" || len(id) > 128 {
		return newRequestID()
	}
	for i := range len(id) {
		if id[i] < 0x21 || id[i] > 0x7E {
			return newRequestID()
		}
	}
	return id
}

// firstOf returns the first value of a header, or "". With the canonical name,
// firstOf(header["X-Request-Id"]) saves what Header.Get spends on making it.
func firstOf(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// newRequestID returns 128 random bits. They tell requests apart and guard
// nothing, so the kernel is not asked for them.
func newRequestID() string {
	var random [16]byte
	binary.NativeEndian.PutUint64(random[:], rand.Uint64())
	binary.NativeEndian.PutUint64(random[8:], rand.Uint64())
	var id [2 * len(random)]byte
	hex.Encode(id[:], random[:])
	return string(id[:])
}

// StatusError lets a store, a verifier or an engine choose the answer: return
// it, or wrap it. Both StatusError and *StatusError will do. For a 422, whose
// detail is a list in this interface, an [HTTPValidationError] is the better
// choice.
//
// A 5xx is logged at Error, unless it has a RetryAfter and no Err: then a limit
// was reached, which is logged at Info.
type StatusError struct {
	Status     int           // 4xx or 5xx; anything else is answered 500, without the Detail
	Detail     string        // sent to the client as {"detail": Detail}; empty means the status's own text, if it has one
	RetryAfter time.Duration // sent as Retry-After, in whole seconds rounded up, when positive
	Err        error         // cause: logged, never sent; may be nil
}

func (e StatusError) Error() string {
	text := strconv.Itoa(e.Status) + " " + e.Detail
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e StatusError) Unwrap() error { return e.Err }

// As matches a StatusError and a *StatusError.
func (e StatusError) As(target any) bool { return setEither(e, target) }

// HTTPValidationError is a 422 with a list of problems. An engine may yield one
// before its first fragment, for instance for a field of Extra. In a stream that has
// begun it is an error like any other. Both HTTPValidationError and
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

// setEither sets the target of errors.As, if it is an E or a *E.
func setEither[E error](e E, target any) bool {
	switch target := target.(type) {
	case *E:
		*target = e
	case **E:
		*target = &e
	default:
		return false
	}
	return true
}

// ValidationError is one problem of a request.
type ValidationError struct {
	Loc  []any  `json:"loc"` // strings and ints: "body", then field names and indexes
	Msg  string `json:"msg"`
	Type string `json:"type"`
}

// The error responses of the handler itself.
var (
	errNotFound            = StatusError{Status: http.StatusNotFound, Detail: "Not Found"}
	errMethodNotAllowed    = StatusError{Status: http.StatusMethodNotAllowed, Detail: "Method Not Allowed"}
	errNotAuthenticated    = StatusError{Status: http.StatusUnauthorized, Detail: "Not authenticated"}
	errKeyRefused          = StatusError{Status: http.StatusUnauthorized, Detail: "Invalid API key", Err: ErrInvalidKey}
	errNoSuchBot           = StatusError{Status: http.StatusNotFound, Detail: "Bot not found"}
	errBodyTooLarge        = StatusError{Status: http.StatusRequestEntityTooLarge, Detail: "Request body too large"}
	errBodyTooSlow         = StatusError{Status: http.StatusRequestTimeout, Detail: "Request body did not arrive in time"}
	errBodyBroken          = StatusError{Status: http.StatusBadRequest, Detail: "Request body could not be read"}
	errTooManyChats        = StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: time.Second}
	errTooManyAccountChats = StatusError{Status: http.StatusTooManyRequests, Detail: "Too many chats in progress for this key", RetryAfter: time.Second}
	errTooLong             = StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long"}
	errEndedByHost         = StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable"}
	errInternal            = StatusError{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
)

// An ending is why a request ends without a complete answer, and what its client,
// the log and OnChat get. A nil *ending stands for the opposite: a complete answer,
// or so far no reason to end. An error of the host's is read once, where it comes
// in (failureOf); from then on, only what was read of it counts. realReason may put
// another ending in its place.
type ending struct {
	kind      endingKind
	response  StatusError // the error response, and the detail of the error event
	list      []byte      // the body of the error response, if it is an HTTPValidationError
	challenge string      // the WWW-Authenticate of the error response
	err       error       // what OnChat and context.Cause are given
	text      string      // what is logged
	stack     []byte      // of a panic, logged as well
	hidden    bool        // the StatusError behind it has a cause that the client does not see

	// What was read of the error behind it, if there is one.
	chosen                 bool // it has a StatusError in it
	isCanceled, isDeadline bool // it is context.Canceled, context.DeadlineExceeded
}

type endingKind uint8

const (
	endingRejected      endingKind = iota // the handler does not accept the request
	endingFailed                          // the host's code returned an error, or panicked; or the body breaks a rule
	endingAborted                         // the host's code asked for the cut: http.ErrAbortHandler
	endingClientLeft                      // the client disconnected, or a write failed
	endingClientStalled                   // the client did not read for WriteTimeout, or not fast enough for the limit
	endingTooLate                         // ChatTimeout passed
	endingEngineStalled                   // StallTimeout passed
	endingByHost                          // the host cancelled the request's context
	endingTooLarge                        // the answer is too large for a JSON response
)

// outcomes says what follows from each kind of ending. An answer is committed when
// the sending of its head has begun. Before that, the client can get an error
// response. After that, a stream gets an error event and is then cut; a JSON response
// is only cut. Some endings leave nobody to tell: the connection is only cut.
//
//	                  before the commit     after the commit    logged  OnChat, context.Cause
//	complete (nil)    200                   [DONE]                      nil
//	rejected          the error response                        *       (not a chat yet)
//	failed            the host's choice,    error event, cut    *       the host's error
//	                  422 for a bad body,
//	                  else 500
//	aborted           cut                   cut                         the host's error
//	client left       cut                   cut                 *       ErrClientLeft
//	client stalled    cut                   cut                 *       ErrClientStalled
//	too late          504                   error event, cut    Error   ErrChatTimeout
//	engine stalled    504                   error event, cut    Error   ErrEngineStalled
//	by host           the host's choice,    error event, cut    *       the host's StatusError,
//	                  504 for a deadline,                               else one that wraps
//	                  else 503                                          the host's cause
//	too large         500                                       Error   errAnswerTooLarge
//
// * depends on the answer: see [ending.level].
//
// A host that cancels the request without a cause, or with one that is
// context.Canceled, cannot be told from a client that left.
var outcomes = [...]struct {
	tellsClient bool
	response    StatusError
	err         error
}{
	endingRejected:      {tellsClient: true},
	endingFailed:        {tellsClient: true},
	endingAborted:       {tellsClient: false},
	endingClientLeft:    {tellsClient: false, err: ErrClientLeft},
	endingClientStalled: {tellsClient: false, err: ErrClientStalled},
	endingTooLate:       {tellsClient: true, response: errTooLong, err: ErrChatTimeout},
	endingEngineStalled: {tellsClient: true, response: errTooLong, err: ErrEngineStalled},
	endingByHost:        {tellsClient: true, response: errEndedByHost},
	endingTooLarge:      {tellsClient: true, response: errInternal, err: errAnswerTooLarge},
}

// tellsClient reports whether the client gets an error response or an error event.
func (e *ending) tellsClient() bool { return outcomes[e.kind].tellsClient }

// cause is what OnChat and context.Cause are given.
func (e *ending) cause() error {
	if e == nil {
		return nil
	}
	return e.err
}

// level is the level at which the ending is logged, if it is. A limit that was
// reached is Info, even if it breaks off a stream, and the host's own included: a
// StatusError with a RetryAfter and no cause. A 5xx is Error, and so is every other
// answer of which the client is told that it is broken. Another error response is
// Info, if its StatusError has a cause that the client does not see. A cut of which
// the client is not told is not logged, unless the ResponseWriter has panicked.
func (e *ending) level(cut bool) (level slog.Level, logged bool) {
	switch {
	case !e.tellsClient():
		return slog.LevelError, e.stack != nil && e.kind != endingAborted // a panic of the ResponseWriter
	case e.response.isLimit():
		return slog.LevelInfo, true
	case cut || e.response.Status >= 500:
		return slog.LevelError, true
	}
	return slog.LevelInfo, e.hidden
}

// endingOf returns an ending that the handler itself has noticed.
func endingOf(kind endingKind) *ending {
	o := &outcomes[kind]
	e := &ending{kind: kind, response: o.response, err: o.err}
	if o.tellsClient {
		e.text = o.err.Error()
	}
	return e
}

// tooLateFor returns the ending for an engine that failed at or after its deadline:
// ChatTimeout, with the failure as the cause that is logged.
func tooLateFor(failure *ending) *ending {
	e := endingOf(endingTooLate)
	e.text, e.stack = e.text+": "+failure.text, failure.stack
	return e
}

// rejected returns the ending for a request that the handler does not accept.
func rejected(answer StatusError) *ending {
	return &ending{kind: endingRejected, response: answer, challenge: challenge(answer), text: answer.Error(), hidden: hasHiddenCause(answer)}
}

// failureOf reads an error of the host's: what an engine yielded, what a store or a
// verifier returned, or a panic. (It also reads the list of a bad body.) It is called
// where the error comes in, once: the methods of such an error may panic or block.
//
// If the host's code returns a reason that only the handler can know ([ErrClientLeft]
// and its like), it comes from another chat: an engine's context has this chat's only
// after it was recorded. It is kept as text, so that nobody takes it for this chat's.
// An http.ErrAbortHandler beside a StatusError is kept as text, too: the StatusError
// counts.
func failureOf(err error) (e *ending) {
	defer func() {
		if v := recover(); v != nil {
			e = failureOf(recovered("reading an error", v)) // has no methods of the host's
		}
	}()
	e = &ending{kind: endingFailed, err: err, text: err.Error(), stack: stackOf(err)}
	e.isCanceled, e.isDeadline = errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded)
	own, chosen := errors.AsType[StatusError](err)
	aborts := errors.Is(err, http.ErrAbortHandler)
	switch otherChat := isOfAnotherChat(err); {
	case chosen && (otherChat || aborts):
		own.Err = errors.New(e.text)
		e.err = own
	case otherChat:
		e.err = errors.New(e.text)
	case aborts:
		e.kind = endingAborted
		return e
	}
	e.response, e.chosen = statusOf(e.err), chosen
	e.challenge, e.hidden = challenge(e.response), hasHiddenCause(e.response)
	if invalid, isList := errors.AsType[HTTPValidationError](e.err); isList && !chosen {
		e.readList(invalid)
	}
	return e
}

// stackOf returns the stack of a panic. If an As of the host's returns true and sets
// nothing, stackOf panics, and failureOf reads that.
func stackOf(err error) []byte {
	p, panicked := errors.AsType[*panicError](err)
	switch {
	case !panicked:
		return nil
	case p == nil:
		panic("an As that returns true has set nothing")
	}
	return p.stack
}

// readList makes the ending a 422 with the list as its body. An error event has no
// room for a list: it has the text of a 500.
func (e *ending) readList(invalid HTTPValidationError) {
	list, err := invalid.body()
	if err != nil {
		e.text = "encoding a validation error: " + err.Error()
		return
	}
	e.list, e.challenge, e.hidden = list, "", false
	e.response = StatusError{Status: http.StatusUnprocessableEntity, Detail: errInternal.Detail}
}

// isOfAnotherChat reports whether an error of the host's is a reason that only the
// handler can know.
func isOfAnotherChat(err error) bool {
	for _, reason := range [...]error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// endingOfCause reads the cause with which a request's context was cancelled.
func endingOfCause(cause error) *ending {
	e := failureOf(cause)
	switch {
	case e.kind == endingAborted:
		return e
	case e.chosen:
	case e.isDeadline:
		e.answerWith(errTooLong)
	case e.isCanceled:
		return endingOf(endingClientLeft)
	default:
		e.answerWith(outcomes[endingByHost].response)
	}
	e.kind = endingByHost
	return e
}

// answerWith replaces the answer. What the ending was becomes the cause.
func (e *ending) answerWith(answer StatusError) {
	e.response, e.list, e.challenge = answer, nil, ""
	e.text = answer.Error() + ": " + e.text
	answer.Err = e.err
	e.err = answer
}

// statusOf returns the answer that an error of the host's chooses.
func statusOf(err error) StatusError {
	if own, ok := errors.AsType[StatusError](err); ok {
		return own.answerable()
	}
	switch {
	case errors.Is(err, ErrInvalidKey):
		return errKeyRefused
	case errors.Is(err, ErrBotNotFound):
		return errNoSuchBot
	}
	return errInternal
}

// answerable returns e as it is sent: with a text, and not with a status that is no
// error.
func (e StatusError) answerable() StatusError {
	if e.Status < 400 || e.Status > 599 {
		return errInternal
	}
	if e.Detail == "" {
		e.Detail = http.StatusText(e.Status)
	}
	return e
}

// isLimit reports whether a limit was reached, the handler's own or one of the
// host's, and nothing has failed.
func (e StatusError) isLimit() bool {
	return e.Err == nil && (e.RetryAfter > 0 || e == errBodyTooLarge)
}

// hasHiddenCause reports whether a StatusError has a cause of which its answer does not
// tell.
func hasHiddenCause(answer StatusError) bool {
	return answer.Err != nil && !errors.Is(answer.Err, ErrInvalidKey) && !errors.Is(answer.Err, ErrBotNotFound)
}

// challenge returns the answer's WWW-Authenticate, or "" if it has none.
func challenge(answer StatusError) string {
	switch {
	case answer.Status != http.StatusUnauthorized:
		return ""
	case errors.Is(answer.Err, ErrInvalidKey):
		return `Bearer error="invalid_token"`
	}
	return "Bearer"
}

// writeError sends an error response, or has the connection cut if the ending has
// none. Nothing else writes error responses. It returns the status, or 0 if none was
// sent.
func (x *exchange) writeError(e *ending) (status int) {
	if !e.tellsClient() {
		x.logAndCut(e)
		return 0
	}
	x.discardBody()
	x.logEnding(e, false)
	if err := guard(func() error { x.setErrorHeaders(e); return nil }); err != nil {
		x.logAndCut(x.conn.writeFailure(err))
		return 0
	}
	return x.sendErrorResponse(e)
}

// logAndCut logs the ending, and has the connection cut when the handler returns.
func (x *exchange) logAndCut(e *ending) {
	x.cut = true
	x.logEnding(e, true)
}

// sendErrorResponse returns the status, or 0 if none was sent.
func (x *exchange) sendErrorResponse(e *ending) (sent int) {
	body := e.list
	if body == nil {
		body = e.response.body()
	}
	if failure := x.send(e.response.Status, body, never); failure != nil {
		x.logAndCut(failure)
	}
	if !x.conn.headSent {
		return 0
	}
	return e.response.Status
}

func (x *exchange) setErrorHeaders(e *ending) {
	header := x.conn.w.Header()
	if e.challenge != "" {
		header.Set("WWW-Authenticate", e.challenge)
	}
	if e.response.RetryAfter > 0 {
		seconds := 1 + (e.response.RetryAfter-1)/time.Second
		header.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
}

// body returns {"detail": "text"}.
func (e StatusError) body() []byte {
	return append(appendString([]byte(`{"detail":`), e.Detail), '}')
}

// body returns the JSON of a 422, with [] for a nil Detail or Loc. It fails if a Loc
// has no JSON form.
func (e HTTPValidationError) body() ([]byte, error) {
	detail := make([]ValidationError, len(e.Detail)) // a copy: the host's is not changed
	for i, problem := range e.Detail {
		if problem.Loc == nil {
			problem.Loc = []any{}
		}
		detail[i] = problem
	}
	return json.Marshal(HTTPValidationError{detail})
}

// A requestBody is the body of a request, and how far it has been read.
type requestBody struct {
	r         *http.Request
	started   bool       // a read was tried: net/http has sent the 100 Continue that a client may wait for
	ended     bool       // it was read to its end
	discarded *bodyTimer // nil unless a rest is discarded
}

// A bodyTimer bounds how long the rest of a body is read.
type bodyTimer struct {
	timer   *time.Timer
	expired chan struct{} // closed when the timer has ended the reading
}

// Read turns a panic into an error: the body may be one of the host's middleware.
// The value of the panic may quote the body, so only its type is kept.
func (b *requestBody) Read(p []byte) (n int, err error) {
	defer func() {
		v := recover()
		if v != nil && v != any(http.ErrAbortHandler) {
			v = fmt.Sprintf("%T", v)
		}
		if v != nil {
			err = recovered("reading the request body", v)
		}
	}()
	b.started = true
	n, err = b.r.Body.Read(p)
	b.ended = err == io.EOF
	return n, err
}

const (
	discardBytes = 4 << 20
	discardTime  = 5 * time.Second
)

// bodyRemains reports whether net/http, on HTTP/1, would read a rest of the body when
// it sends the response, and after that.
func (x *exchange) bodyRemains() bool {
	return x.r.ProtoMajor == 1 && x.r.ContentLength != 0 && !x.body.ended
}

// discardBody reads what a client is still sending, within bounds, before it gets
// its response. Many clients read nothing before they have sent everything, and a
// connection that is closed with unread bytes is reset: the response would be lost.
// A client that waits for 100 Continue is not sending.
//
// The timer runs until endBody is called, after the response. It only brings
// the read deadline forward: the server's ReadTimeout may pass before.
func (x *exchange) discardBody() {
	if !x.bodyRemains() || x.body.discarded != nil {
		return
	}
	expired := make(chan struct{})
	x.body.discarded = &bodyTimer{expired: expired, timer: time.AfterFunc(discardTime, func() {
		defer close(expired)
		x.conn.endReading()
	})}
	waiting := !x.body.started && x.r.ProtoAtLeast(1, 1) && x.r.Header.Get("Expect") != ""
	if !waiting {
		_, _ = io.CopyN(io.Discard, &x.body, discardBytes)
	}
	if !x.body.ended {
		x.conn.closeAfterResponse()
	}
}

// endBody is called after the response. In every case, a rest of the body can no
// longer be read: net/http would wait for it.
func (x *exchange) endBody() {
	if d := x.body.discarded; d != nil && !d.timer.Stop() {
		<-d.expired
		return
	}
	if x.bodyRemains() {
		x.conn.endReading()
	}
}

// logEnding logs the ending, if it is one that is logged.
func (x *exchange) logEnding(e *ending, cut bool) {
	level, logged := e.level(cut)
	if !logged {
		return
	}
	switch h := x.handler; {
	case !e.tellsClient():
		h.log(x.ctx, level, "the ResponseWriter panicked", e.attributes()...)
	case cut:
		h.log(x.ctx, level, "answer broken off", e.attributes()...)
	case level == slog.LevelError:
		h.log(x.ctx, level, "request failed", e.attributes()...)
	default:
		h.log(x.ctx, level, "request refused", e.attributes()...)
	}
}

func (e *ending) attributes() []slog.Attr {
	attributes := []slog.Attr{slog.String("error", e.text)}
	if e.stack != nil {
		attributes = append(attributes, slog.String("stack", string(e.stack)))
	}
	return attributes
}

// log adds the request id. It recovers a panic of the Logger, since it is called in
// goroutines where nothing else would.
func (h *handler) log(ctx context.Context, level slog.Level, message string, attributes ...slog.Attr) {
	defer func() { _ = recover() }()
	id := slog.String("request_id", RequestIDFrom(ctx))
	h.logger.LogAttrs(ctx, level, message, append([]slog.Attr{id}, attributes...)...)
}

// A panicError is a recovered panic. A panic cannot choose an answer by its value:
// only http.ErrAbortHandler is recognized.
type panicError struct {
	value any
	text  string
	stack []byte
}

// recovered makes an error of what recover returned. Call it in the deferred
// function, while the stack still shows where the panic began. It calls the value's
// methods, which may block.
func recovered(doing string, value any) error {
	return &panicError{value: value, text: fmt.Sprintf("panic while %s: %v", doing, value), stack: debug.Stack()}
}

func (e *panicError) Error() string { return e.text }

func (e *panicError) Is(target error) bool {
	return target == http.ErrAbortHandler && e.value == any(target)
}
