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
// two; [ChatEngineFunc] makes an engine of a function that returns an iterator.
//
// # Errors
//
// A host decides an answer by the error it returns: [ErrInvalidKey],
// [ErrBotNotFound], a [StatusError] with any status and text, or, from an
// engine, an [HTTPValidationError]. Every other error, and every panic, is a
// 500 that shows nothing of it; the log has it, with the request id.
//
// # Mounting
//
// The handler works at the root of a server, as a subtree of a mux
// (mux.Handle("/v1/", h)), and behind [http.StripPrefix]. It never redirects.
// Middleware that recovers panics must pass [http.ErrAbortHandler] on: that is
// how a broken stream is cut, so that no client takes it for a whole one.
package botapi

import (
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
	// Zero or less means DefaultMaxBodyBytes.
	MaxBodyBytes int64

	// MaxConcurrentChats bounds the chats in progress; one more is answered
	// 503 at once. Zero or less means no limit.
	MaxConcurrentChats int64

	// MaxChatsPerAccount bounds the chats in progress for one account; one
	// more is answered 429 at once. Zero or less means no limit.
	MaxChatsPerAccount int64

	// ChatTimeout bounds one whole answer, from the moment the chat has its
	// place until the engine has finished; sending what it said is bounded by
	// WriteTimeout, write by write. Zero means DefaultChatTimeout, less than
	// zero no limit.
	ChatTimeout time.Duration

	// KeepAlive is how long a stream is silent before it carries a comment.
	// Zero means DefaultKeepAlive, less than zero never.
	KeepAlive time.Duration

	// WriteTimeout bounds one write that the client does not take; then the
	// answer is cut. It may be exceeded by an eighth, at most by a second.
	// Zero means DefaultWriteTimeout, less than zero no limit: then a client
	// that does not read holds its chat, past ChatTimeout too.
	WriteTimeout time.Duration

	// Logger gets what the client must not see, with the request id. Nil means
	// slog.Default() at the time of New.
	Logger *slog.Logger

	// OnChat, when it is not nil, is called once for each chat that reached
	// the engine, when its client's answer has ended and before the handler
	// returns: while it runs, the request is not over. Calls come from many
	// goroutines at once. The context has the request's values but not its
	// end. A panic is logged.
	OnChat func(context.Context, ChatReport)
}

// OpenAPI describes the interface for tools: an OpenAPI 3.1 document in JSON,
// with every operation, schema, status and header. The handler does not serve
// it; a host that wants to sends it as application/json. Its paths are those of
// a handler at the root of a server: a host that mounts the handler elsewhere
// says so in the document's servers.
//
//go:embed openapi.json
var OpenAPI string

// New returns the handler that the options describe. It serves GET /v1/bots
// and POST /v1/chat, each also without /v1. It panics, naming the field, when
// Bots, Keys or Engine is nil.
func New(o Options) http.Handler {
	switch {
	case o.Bots == nil:
		panic("botapi: New: Options.Bots is nil")
	case o.Keys == nil:
		panic("botapi: New: Options.Keys is nil")
	case o.Engine == nil:
		panic("botapi: New: Options.Engine is nil")
	}
	h := &handler{
		bots:         o.Bots,
		keys:         o.Keys,
		engine:       o.Engine,
		places:       newPlaces(o.MaxConcurrentChats, o.MaxChatsPerAccount),
		maxBodyBytes: o.MaxBodyBytes,
		chatTimeout:  orDefault(o.ChatTimeout, DefaultChatTimeout),
		keepAlive:    orDefault(o.KeepAlive, DefaultKeepAlive),
		writeTimeout: orDefault(o.WriteTimeout, DefaultWriteTimeout),
		logger:       o.Logger,
		onChat:       o.OnChat,
	}
	if h.maxBodyBytes <= 0 {
		h.maxBodyBytes = DefaultMaxBodyBytes
	}
	if h.keepAlive < 0 {
		h.keepAlive = never
	}
	if h.logger == nil {
		h.logger = slog.Default()
	}
	return h
}

// never is longer than any answer.
const never = 100 * 365 * 24 * time.Hour

// orDefault completes a duration; what is left below zero means no limit. What
// it returns can be added to a moment.
func orDefault(d, whenZero time.Duration) time.Duration {
	if d == 0 {
		return whenZero
	}
	return min(d, never)
}

type handler struct {
	bots   BotStore
	keys   KeyVerifier
	engine ChatEngine
	places *places
	young  youngChats
	listed listing

	maxBodyBytes int64
	chatTimeout  time.Duration // below zero: no limit
	writeTimeout time.Duration // below zero: no limit
	keepAlive    time.Duration
	logger       *slog.Logger
	onChat       func(context.Context, ChatReport)
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := newExchange(h, w, r)
	if err := x.serve(); err != nil {
		x.refuse(sound(err))
	}
	if x.cut {
		panic(http.ErrAbortHandler)
	}
}

// serve finds the route, checks the key, and answers. The error it returns is
// still to be told to the client.
func (x *exchange) serve() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = recovered("serving the request", v)
		}
	}()
	route, err := x.route()
	if err != nil {
		return err
	}
	account, err := x.authenticate()
	if err != nil {
		return err
	}
	x.admit(account)
	return route(x)
}

// route compares paths exactly: a redirect to a cleaner one would turn a POST
// into a GET.
func (x *exchange) route() (func(*exchange) error, error) {
	switch x.r.URL.Path {
	case "/v1/bots", "/bots":
		return (*exchange).listBots, x.allow(http.MethodGet, http.MethodHead)
	case "/v1/chat", "/chat":
		return (*exchange).chat, x.allow(http.MethodPost)
	}
	return nil, errNotFound
}

func (x *exchange) allow(methods ...string) error {
	if slices.Contains(methods, x.r.Method) {
		return nil
	}
	x.w.Header().Set("Allow", strings.Join(methods, ", "))
	return errMethodNotAllowed
}

// An exchange is one request and its answer. One goroutine at a time uses it:
// the one that net/http serves the request in, but for what a chat says of its
// own.
type exchange struct {
	*handler
	w       http.ResponseWriter
	r       *http.Request
	control http.ResponseController
	began   time.Time
	account string
	ctx     context.Context

	bodyRead bool // to its end
	cut      bool // the connection must not look as if the answer were whole

	// What the context and the headers point into, in one allocation with it.
	identified, admitted requestContext
	values               [3]string
}

func newExchange(h *handler, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{
		handler: h,
		w:       w,
		r:       r,
		control: *http.NewResponseController(w),
		began:   time.Now(),
	}
	id := requestID(r.Header)
	x.identified = requestContext{Context: r.Context(), requestID: id}
	x.ctx = &x.identified
	x.setHeader("X-Request-Id", 0, id)
	return x
}

// elapsed is the time since the request began. Every moment of an answer is
// kept as that: it takes one look at one clock, and eight bytes.
func (x *exchange) elapsed() time.Duration { return time.Since(x.began) }

// admit makes the account known to everything that comes after.
func (x *exchange) admit(account string) {
	x.account = account
	x.admitted = x.identified
	x.admitted.account = account
	x.ctx = &x.admitted
}

// setHeader sets a header that has its place in x.values.
func (x *exchange) setHeader(canonical string, place int, value string) {
	x.values[place] = value
	x.w.Header()[canonical] = x.values[place : place+1 : place+1]
}

// setJSONHeaders begins an answer with a whole JSON body.
func (x *exchange) setJSONHeaders(status, length int) {
	x.setHeader("Content-Type", 1, "application/json")
	x.setHeader("Content-Length", 2, strconv.Itoa(length))
	x.w.WriteHeader(status)
}

// send answers with a whole JSON body.
func (x *exchange) send(status int, body []byte) error {
	x.setJSONHeaders(status, len(body))
	if x.r.Method == http.MethodHead {
		return nil
	}
	_, err := x.w.Write(body)
	return err
}

// requestContext is the request's context with what the handler knows of it.
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

// firstOf returns the first value of a header, or "". Asked for in the spelling
// that net/http gives its name, it is found without making that spelling anew.
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
	binary.NativeEndian.PutUint64(random[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(random[8:], rand.Uint64())
	var id [2 * len(random)]byte
	hex.Encode(id[:], random[:])
	return string(id[:])
}

// StatusError lets a store, a verifier or an engine choose the answer: return
// it, or wrap it. Both StatusError and *StatusError will do. For a 422, whose
// detail is a list in this interface, an [HTTPValidationError] is the better
// choice.
type StatusError struct {
	Status     int           // 4xx or 5xx; anything else is answered 500, without the Detail
	Detail     string        // sent to the client as {"detail": Detail}; empty means the status's own text
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

// HTTPValidationError is a 422 answer; an engine may return one before its
// first fragment, for instance for a member of Extra. In a stream that has begun
// it is an error like any other. Both HTTPValidationError and
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

// ValidationError is one problem of a request.
type ValidationError struct {
	Loc  []any  `json:"loc"` // strings and ints: "body", then field names and indexes
	Msg  string `json:"msg"`
	Type string `json:"type"`
}

// What the handler itself refuses. A StatusError of the host stands before all
// of them.
var (
	errNotFound           = StatusError{Status: http.StatusNotFound, Detail: "Not Found"}
	errMethodNotAllowed   = StatusError{Status: http.StatusMethodNotAllowed, Detail: "Method Not Allowed"}
	errNotAuthenticated   = StatusError{Status: http.StatusUnauthorized, Detail: "Not authenticated"}
	errKeyRefused         = StatusError{Status: http.StatusUnauthorized, Detail: "Invalid API key", Err: ErrInvalidKey}
	errNoSuchBot          = StatusError{Status: http.StatusNotFound, Detail: "Bot not found", Err: ErrBotNotFound}
	errBodyTooLarge       = StatusError{Status: http.StatusRequestEntityTooLarge, Detail: "Request body too large"}
	errBodyTooSlow        = StatusError{Status: http.StatusRequestTimeout, Detail: "Request body did not arrive in time"}
	errBodyBroken         = StatusError{Status: http.StatusBadRequest, Detail: "Request body could not be read"}
	errAllPlacesTaken     = StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: time.Second}
	errAccountPlacesTaken = StatusError{Status: http.StatusTooManyRequests, Detail: "Too many chats in progress for this key", RetryAfter: time.Second}
	errTooLong            = StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long", Err: context.DeadlineExceeded}
	errInternal           = StatusError{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
)

// errClientLeft is why a chat ended whose client is gone.
var errClientLeft = fmt.Errorf("the client left: %w", context.Canceled)

// statusOf decides how an error is answered: the one place that does.
func statusOf(err error) StatusError {
	if own, ok := asEither[StatusError](err); ok {
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

// answerable is the error with a status that says it is one.
func (e StatusError) answerable() StatusError {
	if e.Status < 400 || e.Status > 599 {
		return errInternal
	}
	if e.Detail == "" {
		e.Detail = http.StatusText(e.Status)
	}
	return e
}

// hidesCause tells a cause worth logging from one that the answer itself says.
func (e StatusError) hidesCause() bool {
	return e.Err != nil && !errors.Is(e.Err, ErrInvalidKey) && !errors.Is(e.Err, ErrBotNotFound)
}

// sound returns err itself unless its own methods panic, as those of a nil
// *StatusError in an error do: that is a panic of the host's, here and not
// wherever the error is looked at later.
func sound(err error) (checked error) {
	defer func() {
		if v := recover(); v != nil {
			checked = recovered("reading an error", v)
		}
	}()
	_ = err.Error()
	_ = errors.As(err, new(*panicError)) // asks the whole chain
	return err
}

// asEither finds an E or a *E in the chain of err.
func asEither[E error, P interface {
	*E
	error
}](err error) (found E, ok bool) {
	var pointer P
	if errors.As(err, &pointer) && pointer != nil {
		return *pointer, true
	}
	ok = errors.As(err, &found)
	return found, ok
}

// refuse answers with the JSON form of an error, or cuts the connection where
// nothing must be answered. It returns the status sent, or 0. It is the one
// place that writes JSON errors, and the one that logs what they do not show.
func (x *exchange) refuse(err error) (status int) {
	if errors.Is(err, http.ErrAbortHandler) || x.clientLeft(err) {
		x.cut = true
		return 0
	}
	x.drain()
	if invalid, ok := asEither[HTTPValidationError](err); ok {
		body, noJSON := invalid.body()
		if noJSON == nil {
			x.sendError(http.StatusUnprocessableEntity, body)
			return http.StatusUnprocessableEntity
		}
		err = fmt.Errorf("encoding a validation error: %w", noJSON)
	}
	answer := statusOf(err)
	switch {
	case answer.Status >= 500:
		x.logError(x.ctx, "request failed", err)
	case answer.hidesCause():
		x.log(x.ctx, slog.LevelInfo, "request refused", slog.String("error", err.Error()))
	}
	x.setErrorHeaders(answer)
	x.sendError(answer.Status, answer.body())
	return answer.Status
}

// clientLeft tells an error that is only the request's end from one that
// somebody should hear of.
func (x *exchange) clientLeft(err error) bool {
	return errors.Is(err, context.Canceled) && context.Cause(x.ctx) == context.Canceled
}

// sendError does not tell of a failed write: the client is gone, and was to be
// refused.
func (x *exchange) sendError(status int, body []byte) {
	if x.attempt(func() error { return x.send(status, body) }) != nil {
		x.cut = true
	}
}

// attempt calls the host's ResponseWriter, and makes an error of its panic.
func (x *exchange) attempt(call func() error) (err error) {
	defer x.survive(&err)
	return call()
}

// survive is deferred where the host's ResponseWriter is called: a chat is to
// end properly all the same, in whichever goroutine that is.
func (x *exchange) survive(err *error) {
	if v := recover(); v != nil {
		*err = recovered("calling the ResponseWriter", v)
		x.logError(x.ctx, "the ResponseWriter panicked", *err)
	}
}

func (x *exchange) setErrorHeaders(answer StatusError) {
	header := x.w.Header()
	if answer.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", challenge(answer))
	}
	if answer.RetryAfter > 0 {
		seconds := 1 + (answer.RetryAfter-1)/time.Second
		header.Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
	}
}

func challenge(answer StatusError) string {
	if errors.Is(answer, ErrInvalidKey) {
		return `Bearer error="invalid_token"`
	}
	return "Bearer"
}

// body is {"detail": "text"}.
func (e StatusError) body() []byte {
	return append(appendString([]byte(`{"detail":`), e.Detail), '}')
}

// body is the 422 form, with lists even where they are empty. A Loc that has no
// JSON form is a mistake of the host's engine.
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

const (
	drainBytes = 4 << 20
	drainTime  = 5 * time.Second
)

// drain takes what a client is still sending on HTTP/1, within bounds, before
// it is refused: many clients read nothing before they have sent everything,
// and closing a connection with unread bytes resets it, so that the refusal
// would be lost. A client that waits for 100 Continue has sent nothing.
func (x *exchange) drain() {
	if x.bodyRead || x.r.ProtoMajor != 1 || x.r.Header.Get("Expect") != "" {
		return
	}
	_ = x.control.SetReadDeadline(time.Now().Add(drainTime)) // unsupported: the server's own deadline counts
	_, _ = io.CopyN(io.Discard, x.r.Body, drainBytes)
}

// logError writes what is not for the client to see, with the stack of a panic.
func (h *handler) logError(ctx context.Context, message string, err error) {
	attributes := []slog.Attr{slog.String("error", err.Error())}
	if p := (*panicError)(nil); errors.As(err, &p) {
		attributes = append(attributes, slog.String("stack", string(p.stack)))
	}
	h.log(ctx, slog.LevelError, message, attributes...)
}

// log outlives a Logger that panics: it may be called where nobody recovers.
func (h *handler) log(ctx context.Context, level slog.Level, message string, attributes ...slog.Attr) {
	defer func() { _ = recover() }()
	id := slog.String("request_id", RequestIDFrom(ctx))
	h.logger.LogAttrs(ctx, level, message, append([]slog.Attr{id}, attributes...)...)
}

// panicError is what a recovered panic becomes. It is no way to choose an
// answer: only http.ErrAbortHandler shows through it.
type panicError struct {
	doing string
	value any
	stack []byte
}

// recovered makes an error of what recover returned. It is called in the
// deferred function, while the stack still shows where the panic began.
func recovered(doing string, value any) error {
	return &panicError{doing: doing, value: value, stack: debug.Stack()}
}

func (e *panicError) Error() string {
	return fmt.Sprintf("panic while %s: %v", e.doing, e.value)
}

func (e *panicError) Is(target error) bool {
	return target == http.ErrAbortHandler && e.value == any(target)
}
