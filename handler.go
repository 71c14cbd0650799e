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
// complete one. (Over HTTP/1.0 only the missing end of a stream tells them apart.)
package botapi

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/botapi/internal/connection"
	"example.com/botapi/internal/jsontext"
	"example.com/botapi/internal/panics"
	"example.com/botapi/internal/requestid"
	"example.com/botapi/internal/routing"
)

// The way of a request through the package, for a maintainer. Parts meet in chat.go.
//
//	[handler.ServeHTTP]      makes an [exchange], which owns the request and its response
//	[exchange.route]         finds the [operation]: the API's own, or an application's [Route]
//	[exchange.authenticate]  asks the [KeyVerifier] for the account (auth.go, which has [Request], too)
//	operation.serve          returns a [Reply], which [exchange.reply] sends, or a [Chat]
//	[exchange.play]          finds the bot (bots.go), takes a [Slot] (engine.go), makes a [chat]
//	[chat.run]               has an [engineCall] run the engine in a goroutine of its own, and waits
//	[stream], [jsonResponse] take the fragments from the engine (sse.go; chat.go, below)
//	[chat.finish]            ends the response, on the handler's goroutine; OnChat and OnRequest follow
//
// Some words mean one thing each. An [ending] is how a request or an answer ends: classify
// makes it of an application's error. The commit is the moment before the head of a response
// is sent ([Request.commit], auth.go): before it, an ending can lead to an error response
// ([exchange.writeError]); after it, the connection is aborted, and a stream gets an error event
// first ([chat.abort], [exchange.reply]). The token is the right to write of a stream: its holder
// formats and writes. A [Slot] is a place under the limits: the engine's goroutine and the
// handler's each release it for their chat.
//
// [exchange.send] (bots.go) sends every response that is no stream. Everything that writes to
// the client does so with [connection.Connection].

// Defaults of [Options].
const (
	DefaultMaxBodyBytes = 1 << 20 // 1 MiB
	DefaultChatTimeout  = 10 * time.Minute
	DefaultKeepAlive    = 15 * time.Second
	DefaultWriteTimeout = 30 * time.Second
	DefaultMaxWait      = 10 * time.Second
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

	// MaxConcurrentChats bounds the chats in progress; one more is rejected with a 503,
	// immediately unless OnLimit or MaxWaiting says otherwise. A chat is in progress until its
	// engine has returned and its answer has been sent. Zero or negative means no limit.
	MaxConcurrentChats int64

	// MaxChatsPerAccount bounds the chats in progress for one account; one more is rejected
	// with a 429, as under MaxConcurrentChats. Zero or negative means no limit.
	MaxChatsPerAccount int64

	// ChatTimeout bounds an engine, from its call, and the sending beside it. When it passes,
	// the engine's context is cancelled, and the answer ends within one more WriteTimeout, the
	// error event included. If the engine has returned in time, the rest of a stream is still
	// sent, each write within its own WriteTimeout; of a JSON response, no further chunk of
	// 64 KiB is begun, and it is aborted if any is left.
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
	// DefaultWriteTimeout, negative ChatTimeout for each write, or no limit without one. A
	// ResponseWriter without deadlines, and without an Unwrap to one that has them, must
	// bound its writes itself.
	WriteTimeout time.Duration

	// Routes are operations of the application's own, and other protocols, under the same
	// keys and limits. New panics if two of them, or one and the API, claim the same requests.
	Routes []Route

	// NotFound, if not nil, makes the response to a request for an unknown path, a 404
	// without a key. Its contract is that of Route.Errors.
	NotFound func(context.Context, Failure) Reply

	// OnLimit, if not nil, is asked once about a chat that finds no room, before it waits or is
	// rejected. If it returns the Slot of another chat in progress, whose engine has got and
	// kept it (Request.Slot), the chat shares that, and begins immediately; a Slot that has been released already counts as none. If it
	// returns an error, the chat is rejected: the error decides the response, as a store's
	// does; Limit.Err is the usual one. If it returns neither, the chat waits for room, if
	// MaxWaiting and MaxWait let it, and is rejected otherwise. OnLimit is called on the request's goroutine, without a lock, and must be safe for concurrent use.
	// The context is the chat's: it has the values of the request, and ends with it. A panic
	// is a 500.
	OnLimit func(context.Context, Limit) (share *Slot, err error)

	// MaxWaiting bounds the chats that wait for room, before their engines are called; of one
	// account, MaxChatsPerAccount wait at most. They get room in the order in which they came,
	// and leave when their clients disconnect. Zero or negative means that no chat waits.
	MaxWaiting int64

	// MaxWait bounds the wait of one chat; then it is rejected. Zero means DefaultMaxWait,
	// negative no limit.
	MaxWait time.Duration

	// Logger gets what the client must not see, with the request id: the errors of the
	// application, too, as they are, so these must not quote keys or texts. The package adds
	// neither. Nil means slog.Default() at the time of New.
	Logger *slog.Logger

	// OnChat, if not nil, is called once for each chat that reached the engine, when
	// the answer has ended and before the handler returns: the request is not over
	// while OnChat runs. (Behind a ResponseWriter that cannot flush, the answer is sent
	// only when OnChat has returned. A stream is flushed even if only a writer behind
	// Unwrap can; a JSON response only if the outermost writer can: one that cannot may
	// be buffering it.) It must be safe for concurrent use. The context has the request's values
	// and is not cancelled. A panic is logged.
	OnChat func(context.Context, ChatReport)

	// OnRequest, if not nil, is called once for each request when its response has ended,
	// after OnChat if the request was a chat that reached its engine. What was said of OnChat's
	// context, concurrency and panics is true of it. Neither is called if application code
	// ends the request's goroutine with runtime.Goexit.
	OnRequest func(context.Context, RequestReport)
}

// OpenAPI describes the API for tools: an OpenAPI 3.0 document in JSON, with every
// operation, schema, status and header, and with the operation of examples/resume, which
// exists where an application mounts it. The handler does not serve the document; an
// application that wants to sends it as application/json. Its paths are those of a handler
// at the root of a server: an application that mounts the handler elsewhere says so in the
// document's servers.
//
//go:embed openapi.json
var OpenAPI string

// README is the package's README.md, for programs that show its documents, such as
// examples/quickstart; package docs has the others. A program that does not use it does not
// contain it.
//
//go:embed README.md
var README string

// New returns the handler that the options describe. It serves GET /v1/bots and POST /v1/chat,
// each also without /v1, and the Routes. It panics, naming the field, when Bots, Keys or Engine is
// nil, or holds a nil *MemoryStore, KeyVerifierFunc or ChatEngineFunc, and when a Route cannot be served.
func New(o Options) http.Handler {
	switch {
	case isNil(o.Bots):
		panic("botapi: New: Options.Bots is nil")
	case isNil(o.Keys):
		panic("botapi: New: Options.Keys is nil")
	case isNil(o.Engine):
		panic("botapi: New: Options.Engine is nil")
	}
	o.MaxBodyBytes = cmp.Or(max(o.MaxBodyBytes, 0), DefaultMaxBodyBytes)
	o.ChatTimeout = orDefault(o.ChatTimeout, DefaultChatTimeout)
	o.StallTimeout = orDefault(o.StallTimeout, noLimit)
	o.KeepAlive = orDefault(o.KeepAlive, DefaultKeepAlive)
	o.MaxWait = orDefault(o.MaxWait, DefaultMaxWait)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.WriteTimeout < 0 {
		o.WriteTimeout = o.ChatTimeout
	}
	o.WriteTimeout = orDefault(o.WriteTimeout, DefaultWriteTimeout)
	h := &handler{options: o, slots: newSlots(o.MaxConcurrentChats, o.MaxChatsPerAccount, o.MaxWaiting)}
	h.addRoutes(o.Routes)
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

// noLimit is longer than any answer. It can be added to a time.
const noLimit = 100 * 365 * 24 * time.Hour

func orDefault(d, whenZero time.Duration) time.Duration {
	if d < 0 {
		return noLimit
	}
	return min(cmp.Or(d, whenZero), noLimit)
}

func zeroIfNoLimit(d time.Duration) time.Duration {
	if d == noLimit {
		return 0
	}
	return d
}

type handler struct {
	options Options // with defaults in place of zeros, and noLimit where there is none
	slots   *slots
	listed  listing
	routes  routing.Table[*operation]
}

// A Route is an operation of the application's own beside those of the API, or an operation
// of another protocol. The handler verifies the key, sets request id, account and deadlines,
// calls Serve, and writes what it returns.
type Route struct {
	// Patterns are those of [http.ServeMux] with a method and without a host, such as
	// "POST /v1/chat/completions" or "GET /v1/models/{model}". A pattern without wildcards
	// is compared with the decoded path. No request is redirected: a path that only lacks the
	// last slash of another pattern is a 404. GET serves HEAD, too,
	// unless Serve returns a chat: then HEAD is a 405. At least one is required.
	Patterns []string

	// Serve returns the response: a [Reply] or a [*Chat]. An error decides the response as
	// that of a store does. It is required, called on the request's goroutine once its key
	// has been verified, and must be safe for concurrent use. A panic is a 500.
	//
	// The request is a copy. Its context is the one that stores get, and its body has at most
	// MaxBodyBytes: an error of the body, returned wrapped or not, is a 413, 408 or 400.
	// [ReadBody] reads it as the API does. What Serve does not read of a body is, on HTTP/1,
	// discarded before a chat begins: if it does not come within 5 seconds, or is more than
	// 4 MiB, that is a 408 or 413. Before a Reply nothing is read: if something is left, the
	// connection is closed after it. Once Serve has returned, nothing may read the body. Serve
	// must not write: the handler does, when Serve has returned.
	Serve func(r *http.Request) (Response, error)

	// Errors makes the response to a request of this route that was rejected or has
	// failed, its 401 and 405 included; nil means the API's own form. The Reply may have
	// another status; 0 means that of the Failure, and a zero Reply the API's own form. The
	// handler adds WWW-Authenticate, Allow and Retry-After where the status of the Failure asks
	// for them. It is called at most once for a request, without a lock; after a panic, the API's own form is sent.
	Errors func(ctx context.Context, f Failure) Reply

	// Key returns the key of a request, or "" if it has none; nil means that of
	// "Authorization: Bearer". A key with white space, or of more than 8 KiB, is never
	// verified.
	Key func(header http.Header) string
}

// A Response is what a [Route] has to send: a [Reply] or a [*Chat].
type Response interface{ isResponse() }

// A Reply is a complete response.
type Reply struct {
	Status int         // 200 to 599; 0 means 200 or, in Route.Errors, that of the Failure
	Header http.Header // not changed; Content-Type is application/json unless it says otherwise
	Body   []byte      // not changed; not sent for HEAD, 204 and 304. The handler sets Content-Length

	free func(sent bool) // nil unless the body is pooled
}

func (Reply) isResponse() {}

// A Failure is why a request was rejected or has failed, in terms of a response.
type Failure struct {
	Status     int
	Detail     string // for the client; of a 422 with Problems, the first of them with its path, such as "body.stop: ..."
	RetryAfter time.Duration
	Problems   []ValidationError // of an HTTPValidationError, and of a body of the API's own

	// Err is the error of the application, perhaps wrapped, or one of this package, for
	// errors.Is and errors.AsType. It must not be sent.
	Err error
}

// An operation is one that the handler serves: the API's own, or a Route.
type operation struct {
	serve  func(*exchange) (Response, error)
	errors func(context.Context, Failure) Reply // nil for the API's own form
	key    func(http.Header) string
	isOwn  bool // of the API: its decoder has checked what checkChat checks
}

func (h *handler) addRoutes(routes []Route) {
	list := &operation{serve: (*exchange).listBots, key: BearerKey, isOwn: true}
	chat := &operation{serve: (*exchange).decodeChat, key: BearerKey, isOwn: true}
	for pattern, own := range map[string]*operation{"GET /v1/bots": list, "GET /bots": list, "POST /v1/chat": chat, "POST /chat": chat} {
		h.addRoute(pattern, "the API", own)
	}
	for i, route := range routes {
		name := fmt.Sprintf("Options.Routes[%d]", i)
		if route.Serve == nil || len(route.Patterns) == 0 {
			panic("botapi: New: " + name + ": Serve or Patterns are missing")
		}
		o := &operation{serve: func(x *exchange) (Response, error) { return route.Serve(x.routed()) }, errors: route.Errors, key: BearerKey}
		if route.Key != nil {
			o.key = route.Key
		}
		for _, pattern := range route.Patterns {
			h.addRoute(pattern, name, o)
		}
	}
}

func (h *handler) addRoute(pattern, name string, o *operation) {
	if err := h.routes.Add(pattern, name, o); err != nil {
		panic("botapi: New: " + err.Error())
	}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(h, w, r)
	defer x.abandonBody()
	if end := x.serve(); end != nil {
		x.writeError(x.realEnding(end))
	}
	x.callOnRequest()
	if x.played != nil {
		x.played.linger()
	}
	x.conn.ExtendDeadlineForReturn()
	if x.mustAbort {
		panic(http.ErrAbortHandler)
	}
}

// An exchange is one request and its response. The handler's goroutine is the one in which
// net/http calls ServeHTTP.
type exchange struct {
	// Set by newExchange.
	handler *handler
	r       *http.Request
	request Request // what the application may use of it; safe for concurrent use

	// Owned by the handler's goroutine until an engine starts, and then only read.
	matched      *http.Request // r or, if a pattern with wildcards has matched, a copy with the path's values
	operation    *operation    // nil for an unknown path
	pattern      string
	ctx          *requestContext // &anonymous, and then &identified or, with values of a route, another
	anonymous    requestContext  // without the account: a goroutine of the verifier's may read it later
	identified   requestContext  // with the account
	presentedKey string          // until the verifier has accepted it; its error may quote the key
	account      string          // even of a key that was rejected
	asked        *Chat           // that an operation has returned, until its engine is called

	// Owned by the handler's goroutine or, while a stream is open, by the holder of its token,
	// but for the methods that are safe for concurrent use.
	conn connection.Connection

	// Owned by the handler's goroutine. A chat has a status and an ending of its own, which are
	// what counts for its request.
	body      requestBody
	bounded   boundedBody // of body
	status    int         // of the response that send has sent; 0 unless the writer is known to have got its head
	bytes     int64       // of its body
	ending    *ending     // of an error response, or of a Reply that could not be sent; or nil
	played    *chat       // the chat that has begun; nil if none has, or after endAbruptly
	mustAbort bool        // ServeHTTP aborts the connection
}

func newExchange(h *handler, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{handler: h, r: r, body: requestBody{r: r}}
	x.request.exchange, x.bounded = x, boundedBody{x, h.options.MaxBodyBytes}
	x.anonymous = requestContext{Context: r.Context(), requestID: requestid.Of(r.Header), request: &x.request}
	x.ctx = &x.anonymous
	x.conn.Init(w, r.ProtoMajor != 1, h.options.WriteTimeout)
	return x
}

// serve returns an ending that still has to be written, or nil if there is nothing left to write.
func (x *exchange) serve() (unsent *ending) {
	defer func() {
		if v := recover(); v != nil {
			unsent = failureOf(panics.Recovered("serving the request", v))
		}
	}()
	x.conn.Header().Set("X-Request-Id", x.ctx.requestID)
	if end := x.route(); end != nil {
		return end
	}
	if end := x.authenticate(); end != nil {
		return end
	}
	response, err := x.operation.serve(x)
	if err != nil {
		return failureOf(err)
	}
	switch response := response.(type) {
	case Reply:
		return x.reply(response)
	case *Chat:
		if response != nil {
			return x.play(response)
		}
	}
	return x.misused(errors.New("it has returned neither a Reply nor a *Chat"))
}

// route compares paths exactly: a redirect to a cleaner one would turn a POST into a GET.
func (x *exchange) route() *ending {
	found, known := x.handler.routes.Find(x.r)
	if !known {
		return rejected(errNotFound)
	}
	x.operation, x.pattern, x.matched = found.Route, found.Pattern, found.Request
	if len(found.Allow) > 0 {
		return x.notAllowed(found.Allow...)
	}
	return nil
}

func (x *exchange) notAllowed(allowed ...string) *ending {
	x.conn.Header().Set("Allow", strings.Join(allowed, ", "))
	return rejected(errMethodNotAllowed)
}

// misused returns the ending for an operation that breaks the contract of a Route.
func (x *exchange) misused(err error) *ending {
	return failureOf(fmt.Errorf("the route %q: %w", x.pattern, err))
}

// routed returns the request for a Route, with the context and the body of the handler.
func (x *exchange) routed() *http.Request {
	r := x.matched.WithContext(x.ctx)
	r.Body = &x.bounded
	return r
}

func (x *exchange) callOnRequest() {
	h := x.handler
	if h.options.OnRequest == nil {
		return
	}
	report := RequestReport{
		RequestID: x.ctx.requestID, Account: x.account, Method: x.r.Method, Route: x.pattern,
		Status: x.status, Bytes: x.bytes, Duration: x.conn.Elapsed(), Err: x.ending.cause(),
	}
	if x.asked != nil {
		report.Bot = x.asked.Request.Bot
	}
	if x.played != nil {
		report.Chat, report.Status, report.Err = x.played.report, x.played.status, x.played.ending.cause()
		report.Bot, report.Duration = report.Chat.Bot, report.Chat.Duration // without the time of OnChat
		if x.played.answerBegun {
			report.Bytes = 0 // the text is counted in Chat
		}
	}
	x.callBack("OnRequest panicked", func() { h.options.OnRequest(context.WithoutCancel(x.ctx), report) })
}

// callBack calls a function of the application that cannot fail the request. If it panics,
// the message is logged.
func (x *exchange) callBack(message string, call func()) {
	err := panics.Catch("calling the application back", func() error { call(); return nil })
	if err != nil {
		x.handler.log(x.ctx, slog.LevelError, message, x.attributes(failureOf(err))...)
	}
}

// cancellation returns nil while the request's context has not ended.
func (x *exchange) cancellation() (end *ending) {
	err := panics.Catch("asking the request's context", func() error {
		if ctx := x.r.Context(); ctx.Err() != nil {
			end = cancelledBy(context.Cause(ctx))
		}
		return nil
	})
	if err != nil {
		return failureOf(err)
	}
	return end
}

// realEnding returns the cause of an ending that is only a symptom of it; otherwise the
// ending itself. It is asked before a response, a report or an error event follows from an
// ending.
func (x *exchange) realEnding(end *ending) *ending {
	switch {
	case end.mayComeOfContext:
		// Whatever has ended the request's context, if that has ended, is the cause.
		if cancelled := x.cancellation(); cancelled != nil {
			end = cancelled
		}
	case end.isOfClient():
		// The application may have cancelled the request: then writes fail, too.
		if cancelled := x.cancellation(); cancelled != nil && !cancelled.isOfClient() {
			end = cancelled
		}
	}
	// A client that seems to have disconnected may have stopped reading: net/http cancels the
	// request's context after every write that fails.
	if end.kind == kindClientDisconnected && x.conn.Stalled() {
		return clientStalled
	}
	return end
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
	Err        error         // cause: logged, unless it is or wraps ErrInvalidKey or ErrBotNotFound; never sent; may be nil
}

func (e StatusError) Error() string {
	text := strings.TrimSuffix(strconv.Itoa(e.Status)+" "+cmp.Or(e.Detail, http.StatusText(e.Status)), " ")
	if e.Err != nil && e.Err.Error() != e.Detail {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e StatusError) Unwrap() error { return e.Err }

// As matches a StatusError and a *StatusError.
func (e StatusError) As(target any) bool { return setEither(e, target) }

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

// The error responses of the handler itself.
var (
	errNotFound         = StatusError{Status: http.StatusNotFound, Detail: "Not Found"}
	errMethodNotAllowed = StatusError{Status: http.StatusMethodNotAllowed, Detail: "Method Not Allowed"}
	errNotAuthenticated = StatusError{Status: http.StatusUnauthorized, Detail: "Not authenticated"}
	errKeyRejected      = StatusError{Status: http.StatusUnauthorized, Detail: "Invalid API key", Err: ErrInvalidKey}
	errNoSuchBot        = StatusError{Status: http.StatusNotFound, Detail: "Bot not found", Err: ErrBotNotFound}
	errBodyTooLarge     = StatusError{Status: http.StatusRequestEntityTooLarge, Detail: "Request body too large"}
	errBodyTooSlow      = StatusError{Status: http.StatusRequestTimeout, Detail: "Request body did not arrive in time"}
	errBodyUnreadable   = StatusError{Status: http.StatusBadRequest, Detail: "Request body could not be read"}
	errTooLong          = StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long"}
	errUnavailable      = StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable"}
	errInternal         = StatusError{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
)

// An ending is how a request or an answer ends: answerComplete, or why there is no complete
// response. It is never changed once it is known to others. Where a function returns nil in
// place of one, its caller has nothing to do: nothing has gone wrong, or that was dealt with.
type ending struct {
	kind             endingKind
	response         StatusError       // the error response, or what an error event says; without an Err
	problems         []ValidationError // of a 422
	list             []byte            // their JSON; nil unless it is a 422 with a list
	err              error             // what the application gets: in reports, as context.Cause, in a Failure
	text             string            // what is logged
	hasCause         bool              // text says more than the response, which is logged for that; not set for a plain 500, which is always logged
	stack            []byte            // of a panic; logged, too
	mayComeOfContext bool              // if the request's context has ended, that is the cause (realEnding)
}

type endingKind uint8

const (
	kindComplete endingKind = iota
	kindFailed
	kindInvalid
	kindAborted
	kindClientDisconnected
	kindClientStalled
	kindChatTimedOut
	kindEngineStalled
	kindCancelled
)

// outcomes is what follows from the kind of an ending alone, as in docs/operating.md; classify
// finds the responses that depend on the error. After the commit, a stream gets an error event
// and is aborted; a JSON response is only aborted.
var outcomes = [...]struct {
	name     string      // in docs/operating.md
	tells    bool        // the client gets a response or an event; otherwise the connection is aborted without
	response StatusError // if it does not depend on the error
	err      error       // what the application gets, if it is not its own error
}{
	kindComplete:           {name: "complete"},
	kindFailed:             {name: "failed", tells: true},
	kindInvalid:            {name: "invalid", tells: true, response: StatusError{Status: http.StatusUnprocessableEntity}},
	kindAborted:            {name: "aborted"},
	kindClientDisconnected: {name: "client disconnected", err: ErrClientLeft},
	kindClientStalled:      {name: "client stopped reading", err: ErrClientStalled},
	kindChatTimedOut:       {name: "chat timed out", tells: true, response: errTooLong, err: ErrChatTimeout},
	kindEngineStalled:      {name: "engine stalled", tells: true, response: errTooLong, err: ErrEngineStalled},
	kindCancelled:          {name: "cancelled by the application", tells: true},
}

// The endings that are the same in every chat.
var (
	answerComplete     = &ending{kind: kindComplete}
	clientDisconnected = alwaysOf(kindClientDisconnected)
	clientStalled      = alwaysOf(kindClientStalled)
	chatTimedOut       = alwaysOf(kindChatTimedOut)
	engineStalled      = alwaysOf(kindEngineStalled)
	answerTooLarge     = failureOf(errAnswerTooLarge)
)

func alwaysOf(kind endingKind) *ending {
	o := &outcomes[kind]
	return &ending{kind: kind, response: o.response, err: o.err, text: o.err.Error()}
}

// rejected is for a request that the handler itself rejects, without a cause for the log: an Err
// only marks the response, for errors.Is.
func rejected(response StatusError) *ending {
	err := response
	response.Err = nil
	return &ending{kind: kindFailed, response: response, err: err, text: err.Error()}
}

// failureOf returns the ending for what an engine yielded, what a store, a verifier or a route
// returned, a panic, or a StatusError of the handler's own that has an Err for the log.
func failureOf(err error) *ending { return classify(kindFailed, err) }

// cancelledBy returns the ending for the cause with which the request's context was cancelled.
// Without a cause, or with context.Canceled, it cannot be told from a client that disconnected.
func cancelledBy(cause error) *ending { return classify(kindCancelled, cause) }

// classify is called where an error of the application's comes in. kind is what the error
// is unless it says otherwise.
func classify(kind endingKind, err error) (end *ending) {
	defer func() {
		if v := recover(); v != nil { // in a method of err, as that of a typed nil
			end = failureOf(panics.Recovered("classifying an error", v))
		}
	}()
	if known := knownEnding(err); known != nil {
		return known
	}
	end = &ending{kind: kind, err: hideReasons(err), text: err.Error()}
	chosen, isChosen := errors.AsType[StatusError](err)
	invalid, isInvalid := errors.AsType[HTTPValidationError](err)
	isCanceled, isDeadline := errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded)
	end.mayComeOfContext = isCanceled || isDeadline
	if p, panicked := errors.AsType[*panics.Error](err); panicked {
		end.stack = p.Stack
	}
	switch {
	case isChosen:
		end.response, end.hasCause = chosen.sendable()
	case errors.Is(err, http.ErrAbortHandler):
		end.kind = kindAborted
	case kind == kindCancelled && isCanceled && !isDeadline:
		return clientDisconnected
	case kind == kindCancelled && isDeadline:
		end.setCancelled(errTooLong, err)
	case kind == kindCancelled:
		end.setCancelled(errUnavailable, err)
	case isInvalid:
		end.kind, end.problems, end.list = kindInvalid, invalid.Detail, invalid.body()
		end.response = outcomes[kindInvalid].response
	case errors.Is(err, ErrInvalidKey):
		end.response = errKeyRejected
		end.response.Err = nil
	case errors.Is(err, ErrBotNotFound):
		end.response = errNoSuchBot
		end.response.Err = nil
	default:
		end.response = errInternal
	}
	return end
}

// knownEnding returns the ending that application code has passed on as an error, as that of
// a body's Read; nil if there is none, or if the application has wrapped it in a StatusError,
// which decides.
func knownEnding(err error) *ending {
	known, _ := errors.AsType[*ending](err)
	found, _ := errors.AsType[StatusError](err) // around the ending, or inside it: an ending unwraps to its error
	if _, isAround := errors.AsType[*ending](found.Err); isAround {
		return nil
	}
	return known
}

// setCancelled sets the response, and an error that has the cause and what it led to.
func (e *ending) setCancelled(response StatusError, cause error) {
	e.response, e.hasCause = response, true
	response.Err = cause
	e.err, e.text = hideReasons(response), response.Error()
}

// timedOutWith is chatTimedOut, with what the engine has failed with for the log.
func timedOutWith(failure *ending) *ending {
	end := *chatTimedOut
	end.text, end.stack = end.text+": "+failure.text, failure.stack
	return &end
}

// writeFailed returns an ending that is logged only if the ResponseWriter has panicked; nil
// for nil.
func writeFailed(failed *connection.WriteError) *ending {
	if failed == nil {
		return nil
	}
	end, err := *clientDisconnected, failed.Err
	if failed.Stalled {
		end = *clientStalled
	}
	panicked := panics.Catch("classifying an error of the ResponseWriter", func() error { err = hideReasons(err); return nil })
	if panicked != nil {
		err = panicked
	}
	if p, isPanic := err.(*panics.Error); isPanic && !errors.Is(p, http.ErrAbortHandler) {
		end.text, end.stack = p.Error(), p.Stack
	}
	end.err = fmt.Errorf("%w: %w", end.err, err)
	return &end
}

func (e *ending) isComplete() bool { return e.kind == kindComplete }

func (e *ending) tellsClient() bool { return outcomes[e.kind].tells }

func (e *ending) isOfClient() bool {
	return e.kind == kindClientDisconnected || e.kind == kindClientStalled
}

// An ending is an error on its way through a function of the application, as that of a body's
// Read.
func (e *ending) Error() string { return e.text }
func (e *ending) Unwrap() error { return e.err }

// cause is what the application gets; nil for no ending, and for a complete answer.
func (e *ending) cause() error {
	if e == nil {
		return nil
	}
	return e.err
}

// failure is what the form of an error gets.
func (e *ending) failure() Failure {
	detail := e.response.Detail
	if e.kind == kindInvalid {
		detail = firstProblem(e.problems)
	}
	return Failure{e.response.Status, detail, e.response.RetryAfter, e.problems, e.err}
}

// isLimit reports whether a limit was reached, and nothing else is to be said.
func (e *ending) isLimit() bool {
	return !e.hasCause && (e.response.RetryAfter > 0 || e.response.Status == http.StatusRequestEntityTooLarge)
}

// level says how an ending is logged, if at all. aborts is whether the connection is aborted:
// the client gets no error response.
func (e *ending) level(aborts bool) (level slog.Level, logged bool) {
	switch {
	case e.isOfClient(): // there is nobody to tell; a panic of the ResponseWriter is a defect
		return slog.LevelError, e.stack != nil
	case e.kind == kindAborted:
		return slog.LevelError, false
	case e.isLimit():
		return slog.LevelInfo, true
	case e.response.Status >= 500:
		return slog.LevelError, true
	}
	return slog.LevelInfo, aborts || e.hasCause
}

// sendable returns e with a text and an error status, and without its Err. hasCause is
// whether that says more than the response.
func (e StatusError) sendable() (response StatusError, hasCause bool) {
	if e.Status < 400 || e.Status > 599 {
		return errInternal, false
	}
	hasCause = e.Err != nil && !errors.Is(e.Err, ErrInvalidKey) && !errors.Is(e.Err, ErrBotNotFound)
	e.Detail, e.Err = cmp.Or(e.Detail, http.StatusText(e.Status)), nil
	return e, hasCause
}

// writeError sends the error response of an ending, or aborts the connection. Nothing else
// writes error responses.
func (x *exchange) writeError(end *ending) {
	x.ending = end
	if x.mustAbort || !end.tellsClient() { // mustAbort: by endAbruptly, if this package has panicked
		x.abortOnReturn(end)
		return
	}
	x.discardBody()
	x.logEnding(end, false)
	reply := x.errorReply(end)
	failed := panics.Catch("calling the ResponseWriter", func() error { x.setErrorHeaders(end); return nil })
	if failed != nil {
		x.abortOnReturn(writeFailed(&connection.WriteError{Err: failed}))
		return
	}
	if failed := x.send(reply.Status, reply.Header, [][]byte{reply.Body}, noLimit); failed != nil {
		x.abortOnReturn(failed)
	}
}

// errorReply is in the form of the route, or in the API's own.
func (x *exchange) errorReply(end *ending) (reply Reply) {
	var form func(context.Context, Failure) Reply
	switch {
	case x.operation != nil:
		form = x.operation.errors
	case end.response.Status == http.StatusNotFound:
		form = x.handler.options.NotFound
	}
	own := Reply{Status: end.response.Status, Body: end.body()}
	if form == nil {
		return own
	}
	x.callBack("the form of an error response panicked", func() { reply = form(x.ctx, end.failure()) })
	status := cmp.Or(reply.Status, own.Status)
	if reply.isZero() || status < 200 || status > 599 {
		return own
	}
	reply.Status = status
	return reply
}

func (r Reply) isZero() bool { return r.Status == 0 && r.Header == nil && r.Body == nil }

// abortOnReturn logs the ending, and has ServeHTTP abort the connection.
func (x *exchange) abortOnReturn(end *ending) {
	x.mustAbort = true
	x.logEnding(end, true)
}

func (x *exchange) setErrorHeaders(end *ending) {
	header := x.conn.Header()
	switch {
	case end.response.Status != http.StatusUnauthorized:
	case errors.Is(end.err, ErrInvalidKey):
		header.Set("WWW-Authenticate", `Bearer error="invalid_token"`)
	default:
		header.Set("WWW-Authenticate", "Bearer")
	}
	if seconds := wholeSeconds(end.response.RetryAfter); seconds > 0 {
		header.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
}

// wholeSeconds is rounded up. The client gets them only if they are positive.
func wholeSeconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// body is that of an error response in the API's own form.
func (e *ending) body() []byte {
	if e.list != nil {
		return e.list
	}
	return append(jsontext.AppendString([]byte(`{"detail":`), e.response.Detail), '}')
}

func (x *exchange) logEnding(end *ending, aborts bool) {
	level, logged := end.level(aborts)
	if !logged {
		return
	}
	attributes := x.attributes(end)
	switch h := x.handler; {
	case !end.tellsClient():
		h.log(x.ctx, level, "the ResponseWriter panicked", attributes...) // level logs no other such ending
	case aborts:
		h.log(x.ctx, level, "answer aborted", attributes...)
	case level == slog.LevelError:
		h.log(x.ctx, level, "request failed", attributes...)
	default:
		h.log(x.ctx, level, "request rejected", attributes...)
	}
}

func (x *exchange) attributes(end *ending) []slog.Attr {
	attributes := []slog.Attr{slog.String("error", end.text)}
	if x.presentedKey != "" && quotesKey(end.text, x.presentedKey) {
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
	h.options.Logger.LogAttrs(ctx, level, message, append([]slog.Attr{id}, attributes...)...)
}
