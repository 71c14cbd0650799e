// Package botapi serves a bot listing and chat API from any Go program, in front
// of whatever models the program has.
//
// [New] returns an [http.Handler] with two operations:
//
//	GET  /v1/bots   the published bots
//	POST /v1/chat   one answer of a bot, as a JSON response or as a stream
//
// The application implements three interfaces, and the handler does the rest:
//
//	request ──► KeyVerifier ──► BotStore ──► ChatEngine ──► JSON response or stream
//	            whose key?      which bot?   fragments of text
//
// [MemoryStore], [StaticKeys] and [CacheKeys] implement the first two. [ChatEngineFunc]
// makes an engine of a function that returns an iterator, [CallbackEngine] one of a
// function that passes each fragment to a callback. [Options] has the limits and
// everything else that can be configured.
//
// # Errors
//
// The application chooses a response by the error it returns: [ErrInvalidKey],
// [ErrBotNotFound], a [StatusError] with any status and text, or an
// [HTTPValidationError]. They may be wrapped, and mean the same from a verifier, a
// store and an engine. If an error wraps several of them, the outermost StatusError
// decides. [http.ErrAbortHandler], returned or as a panic, aborts the connection. Every
// other error, and every other panic, is a 500 that shows nothing of it; the log has it,
// with the request id. An engine that fails at or after the deadline of its context has
// timed out, whatever its error: the response is a 504.
//
// # Mounting
//
// The handler works at the root of a server, as a subtree of a mux
// (mux.Handle("/v1/", h)), and behind [http.StripPrefix]. It never redirects.
// Middleware that recovers panics must pass [http.ErrAbortHandler] on: this is how the
// handler aborts the connection, so that no client takes an incomplete answer for a
// complete one.
package botapi

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/botapi/internal/jsontext"
	"example.com/botapi/internal/requestid"
	"example.com/botapi/internal/responsewriter"
)

// Defaults of [Options].
const (
	DefaultMaxBodyBytes = 1 << 20 // 1 MiB
	DefaultChatTimeout  = 10 * time.Minute
	DefaultKeepAlive    = 15 * time.Second
	DefaultWriteTimeout = 30 * time.Second
)

// Options configure a handler. Bots, Keys and Engine are required. [New] copies them;
// later changes have no effect.
type Options struct {
	Bots   BotStore    // required: the published bots
	Keys   KeyVerifier // required: whose key a request carries
	Engine ChatEngine  // required: answers the chats

	// MaxBodyBytes bounds a request body; a larger one is a 413.
	// Zero or negative means DefaultMaxBodyBytes.
	MaxBodyBytes int64

	// MaxConcurrentChats bounds the chats in progress; one more is immediately
	// rejected with a 503. A chat is in progress until its engine has returned and its
	// answer has been sent. Zero or negative means no limit.
	MaxConcurrentChats int64

	// MaxChatsPerAccount bounds the chats in progress for one account; one more is
	// immediately rejected with a 429. Zero or negative means no limit.
	MaxChatsPerAccount int64

	// ChatTimeout bounds one complete answer, from the call of the engine until the
	// answer has been sent. When it passes, the engine's context is cancelled, and the
	// answer ends within one more WriteTimeout, the error event included. If the engine
	// has returned in time, the rest of a stream is still sent, each write within its own
	// WriteTimeout; a JSON response ends with the chunk of 64 KiB that is being written.
	// Zero means DefaultChatTimeout, negative no limit.
	ChatTimeout time.Duration

	// StallTimeout bounds the silence of an engine: the time from the call of Chat, or
	// from the return of yield, to the next yield (an empty fragment counts) or to the
	// iterator's return. The time that the client takes to read does not count. Zero or
	// negative means no limit.
	StallTimeout time.Duration

	// KeepAlive is how long a stream is silent before the handler sends a comment.
	// Zero means DefaultKeepAlive, negative never.
	KeepAlive time.Duration

	// WriteTimeout bounds one write to a client that does not read; then the connection
	// is aborted. The actual limit can be up to 12.5 % longer (at most 1 s). Zero means
	// DefaultWriteTimeout, negative no limit; then ChatTimeout, if there is one, bounds
	// a write. A ResponseWriter without deadlines, and without an Unwrap to one that has
	// them, must bound its writes itself.
	WriteTimeout time.Duration

	// Logger gets what the client must not see, with the request id. It never gets a
	// key or a text of a chat. Nil means slog.Default() at the time of New.
	Logger *slog.Logger

	// OnChat, if not nil, is called once for each chat that reached the engine, when
	// the answer has ended and before the handler returns: the request is not over
	// while OnChat runs. (Behind a ResponseWriter that cannot flush, the answer is sent
	// only when OnChat has returned. A stream is flushed even if only a writer behind
	// Unwrap can; a JSON response only if the outermost writer can, which may need to
	// buffer it.) It must be safe for concurrent use. The context has the request's values
	// and is not cancelled. A panic is logged.
	OnChat func(context.Context, ChatReport)
}

// OpenAPI describes the API for tools: an OpenAPI 3.0 document in JSON, with every
// operation, schema, status and header. The handler does not serve it; an application
// that wants to sends it as application/json. Its paths are those of a handler at the
// root of a server: an application that mounts the handler elsewhere says so in the
// document's servers.
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
		maxBodyBytes: cmp.Or(max(o.MaxBodyBytes, 0), DefaultMaxBodyBytes),
		chatTimeout:  orDefault(o.ChatTimeout, DefaultChatTimeout),
		stallTimeout: orDefault(o.StallTimeout, never),
		keepAlive:    orDefault(o.KeepAlive, DefaultKeepAlive),
		writeTimeout: orDefault(o.WriteTimeout, DefaultWriteTimeout),
		logger:       cmp.Or(o.Logger, slog.Default()),
		onChat:       o.OnChat,
	}
	if o.WriteTimeout < 0 {
		h.writeTimeout = h.chatTimeout
	}
	return h
}

// isNil knows the package's own types: a nil of another type may have methods that work.
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

// never is longer than any answer. It can be added to a time.
const never = 100 * 365 * 24 * time.Hour

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
	if end := x.serve(); end != nil {
		x.writeError(x.realEnding(end))
	}
	x.conn.extendDeadlineForReturn()
	if x.aborted {
		panic(http.ErrAbortHandler)
	}
}

// An exchange is one request and its response. The handler's goroutine is the one in which
// net/http calls ServeHTTP.
type exchange struct {
	// Set by newExchange.
	handler *handler
	r       *http.Request

	// Owned by the handler's goroutine until an engine starts, and then only read.
	ctx           *requestContext // &unverified, and then &verified
	unverified    requestContext  // a goroutine of the verifier's may still read it when ctx is &verified
	verified      requestContext  // with the account
	unverifiedKey string          // "" once the verifier has accepted it; its error may quote the key

	// Owned by the handler's goroutine or, while a stream is open, by the holder of its token.
	conn connection

	// Owned by the handler's goroutine.
	body    requestBody
	aborted bool // ServeHTTP aborts the connection
}

func newExchange(h *handler, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{
		handler: h, r: r, body: requestBody{r: r},
		unverified: requestContext{Context: r.Context(), requestID: requestid.Of(r.Header)},
		conn:       connection{w: w, control: *http.NewResponseController(w), start: time.Now(), timeout: h.writeTimeout, http2: r.ProtoMajor != 1},
	}
	x.ctx = &x.unverified
	return x
}

// serve returns nil, or an ending that still has to be written.
func (x *exchange) serve() (end *ending) {
	defer func() {
		if v := recover(); v != nil {
			end = failureOf(recovered("serving the request", v))
		}
	}()
	if x.conn.http2 {
		x.conn.setWriteDeadline(0) // the server's WriteTimeout would reset an HTTP/2 stream while application code runs
	}
	x.conn.w.Header().Set("X-Request-Id", x.ctx.requestID)
	operation, end := x.route()
	if end != nil {
		return end
	}
	account, end := x.authenticate()
	if end != nil {
		return end
	}
	x.verified = requestContext{x.ctx.Context, x.ctx.requestID, account}
	x.ctx = &x.verified
	return operation(x)
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

// maxChunk is what the slowest client must read within WriteTimeout.
const maxChunk = 64 << 10

// send sends a JSON response, and flushes it where the writer can: it is on its way before
// OnChat is called. No chunk but the first is begun after lastBegin.
func (x *exchange) send(status, length int, body [][]byte, lastBegin time.Duration) *ending {
	failed := x.conn.write(x.conn.elapsed(), 0, func() error {
		header := x.conn.w.Header()
		header.Set("Content-Type", "application/json")
		header.Set("Content-Length", strconv.Itoa(length))
		x.conn.w.WriteHeader(status)
		return nil
	})
	if failed != nil || x.r.Method == http.MethodHead {
		return failed
	}
	left := length
	for _, bytes := range body {
		for chunk := range slices.Chunk(bytes, maxChunk) {
			now := x.conn.elapsed()
			if left < length && now > lastBegin {
				return chatTimedOut
			}
			left -= len(chunk)
			if failed := x.conn.writeChunk(now, chunk, left == 0); failed != nil {
				return failed
			}
		}
	}
	return nil
}

// cancellation returns nil while the request's context has not ended.
func (x *exchange) cancellation() *ending {
	if ctx := x.r.Context(); ctx.Err() != nil {
		return cancelledBy(context.Cause(ctx))
	}
	return nil
}

// realEnding returns the cause of an ending that is only its symptom; otherwise the ending
// itself. There are three causes with symptoms:
//   - The application has cancelled the request's context: the client seems to have
//     disconnected or stopped reading, or application code has returned the context's error.
//   - The client has disconnected: application code has returned the context's error.
//   - A write has used up its time: the client seems to have disconnected, since net/http
//     cancels the request's context after every write that fails.
func (x *exchange) realEnding(end *ending) *ending {
	if end == nil || !end.isOfClient() && !end.mayBeSymptom {
		return end
	}
	cancelled := x.cancellation()
	switch {
	case cancelled != nil && !cancelled.isOfClient(): // by the application
		return cancelled
	case cancelled != nil && end.mayBeSymptom:
		return cancelled
	case end.kind == kindClientDisconnected && x.conn.stalled():
		return clientStalled
	}
	return end
}

// A connection writes to one client. Its times are durations since the request's start.
type connection struct {
	// Set by newExchange.
	w       http.ResponseWriter
	control http.ResponseController
	start   time.Time     // of the request
	timeout time.Duration // WriteTimeout
	http2   bool          // or later: a deadline that passes between two writes ends the stream, so it is cleared after each write

	// Owned by the goroutine that may write.
	writeDeadline time.Duration // the last one set; 0 if there is none
	cannotFlush   bool          // the writer has no Flush for a stream, which is sent when the handler returns
	flushed       bool          // the last flush worked: nothing is left in the writer's buffer
	headSent      bool          // the status of a response with a body, other than a stream, was sent
	failed        *ending       // why a write has failed: nothing more is written

	// Safe for concurrent use, as are stalled and interrupt.
	writeBegan instant // when the write in progress began, or the one that has failed

	mu             sync.Mutex // held during SetWriteDeadline
	deadlineFrozen bool       // the write deadline is not changed any longer: after interrupt, or since it could not be set
}

func (c *connection) elapsed() time.Duration { return time.Since(c.start) }

// write calls the ResponseWriter. The call has until deadline; if that is 0, it has
// WriteTimeout. If it fails or panics, nothing more is written.
func (c *connection) write(now, deadline time.Duration, call func() error) *ending {
	if c.failed != nil {
		return c.failed
	}
	if deadline == 0 {
		c.extendDeadline(now)
	} else {
		c.setWriteDeadline(deadline)
	}
	c.writeBegan.set(now)
	if err := guard(call); err != nil {
		c.failed = writeFailed(err, c.stalled())
	} else {
		c.writeBegan.clear()
	}
	if c.http2 {
		c.setWriteDeadline(0)
	}
	return c.failed
}

func (c *connection) writeChunk(now time.Duration, chunk []byte, last bool) *ending {
	var written bool
	failed := c.write(now, 0, func() error {
		_, err := c.w.Write(chunk)
		written = err == nil
		if err != nil || !last {
			return err
		}
		if c.flushed, err = responsewriter.FlushOutermost(c.w); errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
		return err
	})
	// If only the flush has failed, HTTP/1 has kept the head in its buffer; HTTP/2 has sent it.
	c.headSent = c.headSent || failed == nil || written && c.http2
	return failed
}

// stalled reports whether the write in progress, or the one that has failed, began at least
// WriteTimeout ago.
func (c *connection) stalled() bool {
	began, isSet := c.writeBegan.get()
	return isSet && c.elapsed()-began >= c.timeout
}

// extendDeadline gives a write that begins now all of its time. It moves the deadline a
// little further than needed, since moving it costs.
func (c *connection) extendDeadline(now time.Duration) {
	if c.writeDeadline < now+c.timeout {
		c.setWriteDeadline(now + c.timeout + min(c.timeout/8, time.Second))
	}
}

// extendDeadlineForReturn sets a deadline for what net/http writes when the handler has
// returned: on HTTP/2 only if there may be something left to write.
func (c *connection) extendDeadlineForReturn() {
	if !c.http2 || !c.flushed {
		c.extendDeadline(c.elapsed())
	}
}

// setWriteDeadline sets the deadline for writes; 0 means none.
func (c *connection) setWriteDeadline(at time.Duration) {
	c.writeDeadline = at
	if at == 0 {
		c.changeDeadline(time.Time{}, false)
	} else {
		c.changeDeadline(c.start.Add(at), false)
	}
}

// interrupt makes the write in progress fail, and every later one.
func (c *connection) interrupt() { c.changeDeadline(longAgo, true) }

var longAgo = time.Unix(1, 0) // a deadline that has passed

func (c *connection) changeDeadline(at time.Time, freeze bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadlineFrozen {
		c.deadlineFrozen = guard(func() error { return c.control.SetWriteDeadline(at) }) != nil || freeze
	}
}

func (c *connection) setReadDeadline(at time.Time) {
	_ = guard(func() error { return c.control.SetReadDeadline(at) })
}

// flush sends what the writer has buffered of a stream. It may return the error of an
// earlier Write.
func (c *connection) flush() error {
	err := c.control.Flush()
	c.flushed = err == nil
	if errors.Is(err, errors.ErrUnsupported) {
		c.cannotFlush, err = true, nil
	}
	return err
}

func guard(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = recovered("calling the ResponseWriter", v)
		}
	}()
	return call()
}

// StatusError lets a store, a verifier or an engine choose the response: return
// it, or wrap it. Both StatusError and *StatusError will do. For a 422, whose
// detail is a list in this API, an [HTTPValidationError] is the better choice.
//
// A 5xx is logged at Error, unless it has a RetryAfter and no Err: then a limit
// was reached, which is logged at Info.
type StatusError struct {
	Status     int           // 4xx or 5xx; anything else becomes a 500, without the Detail
	Detail     string        // sent to the client as {"detail": Detail}; empty means the status's own text, if it has one
	RetryAfter time.Duration // sent as Retry-After (in an error event, as retry_after), in whole seconds rounded up, when positive
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
	errKeyRejected         = StatusError{Status: http.StatusUnauthorized, Detail: "Invalid API key", Err: ErrInvalidKey}
	errNoSuchBot           = StatusError{Status: http.StatusNotFound, Detail: "Bot not found"}
	errBodyTooLarge        = StatusError{Status: http.StatusRequestEntityTooLarge, Detail: "Request body too large"}
	errBodyTooSlow         = StatusError{Status: http.StatusRequestTimeout, Detail: "Request body did not arrive in time"}
	errBodyUnreadable      = StatusError{Status: http.StatusBadRequest, Detail: "Request body could not be read"}
	errTooManyChats        = StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: time.Second}
	errTooManyAccountChats = StatusError{Status: http.StatusTooManyRequests, Detail: "Too many chats in progress for this key", RetryAfter: time.Second}
	errTooLong             = StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long"}
	errUnavailable         = StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable"}
	errInternal            = StatusError{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
)

// An ending is why a request ends without a complete answer. It is never changed. A nil
// *ending is a complete answer or, while a chat runs, no reason to end it.
type ending struct {
	kind         endingKind
	response     StatusError // the error response, or what an error event says; its Err, if set, is a cause that the client does not see
	list         []byte      // the body of a 422; otherwise nil
	err          error       // what OnChat and context.Cause get
	text         string      // what is logged
	stack        []byte      // of a panic; logged, too
	mayBeSymptom bool        // the application has returned context.Canceled or context.DeadlineExceeded: perhaps a symptom (realEnding)
}

type endingKind uint8

const (
	kindRejected endingKind = 1 + iota
	kindInvalid
	kindFailed
	kindAborted
	kindClientDisconnected
	kindClientStalled
	kindChatTimedOut
	kindEngineStalled
	kindCancelled
	kindTooLarge
)

// outcomes is the one table of what follows from an ending. Until the sending of its head
// has begun (the commit), the client can get an error response. From then on, a stream gets
// an error event and is aborted; a JSON response is only aborted. docs/operating.md has the
// same table.
var outcomes = [...]struct {
	name     string      // in docs/operating.md
	tells    bool        // the client gets a response or an event; otherwise the connection is only aborted
	response StatusError // if it does not depend on the error
	err      error       // what OnChat and context.Cause get, if it is not the application's error
}{
	kindRejected:           {name: "rejected", tells: true},
	kindInvalid:            {name: "invalid", tells: true, response: StatusError{Status: http.StatusUnprocessableEntity, Detail: errInternal.Detail}}, // an event says this in place of the list
	kindFailed:             {name: "failed", tells: true},
	kindAborted:            {name: "aborted"},
	kindClientDisconnected: {name: "client disconnected", err: ErrClientLeft},
	kindClientStalled:      {name: "client stopped reading", err: ErrClientStalled},
	kindChatTimedOut:       {name: "chat timed out", tells: true, response: errTooLong, err: ErrChatTimeout},
	kindEngineStalled:      {name: "engine stalled", tells: true, response: errTooLong, err: ErrEngineStalled},
	kindCancelled:          {name: "cancelled by the application", tells: true},
	kindTooLarge:           {name: "too large", tells: true, response: errInternal, err: errAnswerTooLarge},
}

// The endings that are the same in every chat.
var (
	clientDisconnected = alwaysOf(kindClientDisconnected)
	clientStalled      = alwaysOf(kindClientStalled)
	chatTimedOut       = alwaysOf(kindChatTimedOut)
	engineStalled      = alwaysOf(kindEngineStalled)
	answerTooLarge     = alwaysOf(kindTooLarge)
)

func alwaysOf(kind endingKind) *ending {
	o := &outcomes[kind]
	return &ending{kind: kind, response: o.response, err: o.err, text: o.err.Error()}
}

func rejected(response StatusError) *ending {
	return &ending{kind: kindRejected, response: response, text: response.Error()}
}

// failureOf returns the ending for what an engine yielded, what a store or a verifier
// returned, a panic, or the problems of a body.
func failureOf(err error) *ending { return classify(kindFailed, err) }

// cancelledBy returns the ending for the cause with which the request's context was
// cancelled. An application that cancels it without a cause, or with one that is
// context.Canceled, cannot be told from a client that disconnected.
func cancelledBy(cause error) *ending { return classify(kindCancelled, cause) }

// classify is called where an error of the application's comes in. kind is what the error
// is unless it says otherwise.
func classify(kind endingKind, err error) (end *ending) {
	defer func() {
		if v := recover(); v != nil { // in a method of err, as that of a typed nil
			end = failureOf(recovered("classifying an error", v))
		}
	}()
	var response StatusError
	var list, stack []byte
	chosen, isChosen := errors.AsType[StatusError](err)
	invalid, isInvalid := errors.AsType[HTTPValidationError](err)
	isCanceled, isDeadline := errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded)
	if p, panicked := errors.AsType[*panicError](err); panicked {
		stack = p.stack
	}
	switch {
	case isChosen:
		response = chosen.sendable()
	case errors.Is(err, http.ErrAbortHandler):
		kind = kindAborted
	case kind == kindCancelled && isCanceled && !isDeadline:
		return clientDisconnected
	case kind == kindCancelled:
		response = errUnavailable
		if isDeadline {
			response = errTooLong
		}
		response.Err = err
		err = response
	case isInvalid:
		list, kind, response = invalid.body(), kindInvalid, outcomes[kindInvalid].response
	case errors.Is(err, ErrInvalidKey):
		response = errKeyRejected
	case errors.Is(err, ErrBotNotFound):
		response = errNoSuchBot
	default:
		response = errInternal
	}
	return &ending{kind: kind, response: response, list: list, err: hideReasons(err), text: err.Error(), stack: stack, mayBeSymptom: isCanceled || isDeadline}
}

// timedOutWith is chatTimedOut, with what the engine has failed with for the log.
func timedOutWith(failure *ending) *ending {
	end := *chatTimedOut
	end.text, end.stack = end.text+": "+failure.text, failure.stack
	return &end
}

// writeFailed returns an ending that is logged only if the ResponseWriter has panicked.
func writeFailed(err error, stalled bool) *ending {
	end := *clientDisconnected
	if stalled {
		end = *clientStalled
	}
	end.err = fmt.Errorf("%w: %w", end.err, hideReasons(err))
	if p, panicked := err.(*panicError); panicked && p.value != any(http.ErrAbortHandler) {
		end.text, end.stack = p.text, p.stack
	}
	return &end
}

func (e *ending) tellsClient() bool { return outcomes[e.kind].tells }

func (e *ending) isOfClient() bool {
	return e.kind == kindClientDisconnected || e.kind == kindClientStalled
}

func (e *ending) cause() error {
	if e == nil {
		return nil
	}
	return e.err
}

// level says how an ending is logged of which the client is told: a limit that was reached (a
// response with RetryAfter and no cause, or the 413) at Info; otherwise a 5xx at Error, and at
// Info a 4xx after the commit, or with a cause that the client does not see.
func (e *ending) level(committed bool) (level slog.Level, logged bool) {
	r := &e.response
	switch {
	case !e.tellsClient():
		return slog.LevelError, e.stack != nil && e.isOfClient() // only if the ResponseWriter has panicked
	case r.Err == nil && (r.RetryAfter > 0 || *r == errBodyTooLarge):
		return slog.LevelInfo, true
	case r.Status >= 500:
		return slog.LevelError, true
	}
	return slog.LevelInfo, committed || r.Err != nil && r.Err != ErrInvalidKey
}

// sendable returns e with a text and an error status. Its Err is nil if the response says
// all of it, and ErrInvalidKey, for setErrorHeaders, if the key is invalid.
func (e StatusError) sendable() StatusError {
	if e.Status < 400 || e.Status > 599 {
		return errInternal
	}
	if e.Detail == "" {
		e.Detail = http.StatusText(e.Status)
	}
	switch {
	case errors.Is(e.Err, ErrInvalidKey):
		e.Err = ErrInvalidKey
	case errors.Is(e.Err, ErrBotNotFound):
		e.Err = nil
	}
	return e
}

// writeError sends the error response of an ending, or aborts the connection. Nothing else
// writes error responses. It returns the status, or 0 if none was sent.
func (x *exchange) writeError(end *ending) (status int) {
	if !end.tellsClient() {
		x.abortOnReturn(end)
		return 0
	}
	x.discardBody()
	x.logEnding(end, false)
	body := end.list
	if body == nil {
		body = end.response.body()
	}
	if err := guard(func() error { x.setErrorHeaders(end.response); return nil }); err != nil {
		x.abortOnReturn(writeFailed(err, false))
		return 0
	}
	if failure := x.send(end.response.Status, len(body), [][]byte{body}, never); failure != nil {
		x.abortOnReturn(failure)
	}
	if !x.conn.headSent {
		return 0
	}
	return end.response.Status
}

func (x *exchange) abortOnReturn(end *ending) {
	x.aborted = true
	x.logEnding(end, true)
}

func (x *exchange) setErrorHeaders(response StatusError) {
	header := x.conn.w.Header()
	switch {
	case response.Status != http.StatusUnauthorized:
	case response.Err == ErrInvalidKey:
		header.Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	default:
		header.Set("WWW-Authenticate", "Bearer")
	}
	if seconds := response.retryAfter(); seconds > 0 {
		header.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
}

// retryAfter is in whole seconds. The client gets it only if it is positive.
func (e StatusError) retryAfter() int64 { return int64(math.Ceil(e.RetryAfter.Seconds())) }

func (e StatusError) body() []byte {
	return append(jsontext.AppendString([]byte(`{"detail":`), e.Detail), '}')
}

// eventData is the JSON of an error event, with what the head of a response would say.
func (e StatusError) eventData() []byte {
	data := fmt.Appendf(jsontext.AppendString([]byte(`{"detail":`), e.Detail), `,"status":%d`, e.Status)
	if seconds := e.retryAfter(); seconds > 0 {
		data = fmt.Appendf(data, `,"retry_after":%d`, seconds)
	}
	return append(data, '}')
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

func (x *exchange) logEnding(end *ending, committed bool) {
	level, logged := end.level(committed)
	if !logged {
		return
	}
	attributes := x.attributes(end)
	switch h := x.handler; {
	case !end.tellsClient():
		h.log(x.ctx, level, "the ResponseWriter panicked", attributes...)
	case committed:
		h.log(x.ctx, level, "answer aborted", attributes...)
	case level == slog.LevelError:
		h.log(x.ctx, level, "request failed", attributes...)
	default:
		h.log(x.ctx, level, "request rejected", attributes...)
	}
}

func (x *exchange) attributes(end *ending) []slog.Attr {
	attributes := []slog.Attr{slog.String("error", end.text)}
	if x.unverifiedKey != "" && quotesKey(end.text, x.unverifiedKey) {
		attributes[0].Value = slog.StringValue("not logged: the text of the error contains the key")
	}
	if end.stack != nil {
		attributes = append(attributes, slog.String("stack", string(end.stack)))
	}
	return attributes
}

// log recovers a panic of the Logger, since it is also called on goroutines where nothing
// else would.
func (h *handler) log(ctx context.Context, level slog.Level, message string, attributes ...slog.Attr) {
	defer func() { _ = recover() }()
	id := slog.String("request_id", RequestIDFrom(ctx))
	h.logger.LogAttrs(ctx, level, message, append([]slog.Attr{id}, attributes...)...)
}

// A panicError is a recovered panic. Its value cannot choose a response, except
// http.ErrAbortHandler.
type panicError struct {
	value any
	text  string
	stack []byte
}

// recovered makes an error of what recover returned. Call it in the deferred function: the
// stack still shows where the panic began.
func recovered(doing string, value any) (err error) {
	p := &panicError{value: value, text: "panic while " + doing, stack: debug.Stack()}
	err = p
	defer func() { _ = recover() }() // from a method of the value
	p.text += fmt.Sprintf(": %v", value)
	return err
}

func (e *panicError) Error() string { return e.text }

func (e *panicError) Is(target error) bool {
	return target == http.ErrAbortHandler && e.value == any(target)
}
