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
// has it, with the request id.
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
	"sync/atomic"
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
	// the answer has been sent; a write that is under way then still has its
	// WriteTimeout. Zero means DefaultChatTimeout, negative no limit.
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
	// when the answer has ended and before the handler returns: the client has
	// what it is owed, but the request is not over while OnChat runs. (Behind a
	// ResponseWriter that cannot flush, the answer leaves only after it.) It
	// must be safe for concurrent use. The context has the request's values and is
	// not cancelled. A panic is logged.
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
	places *places
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
	if err := x.serve(); err != nil {
		x.refuse(failureOf(err))
	}
	if x.cut {
		panic(http.ErrAbortHandler)
	}
}

// An exchange is one request and its answer. It belongs to the goroutine that
// net/http serves the request in.
type exchange struct {
	handler *handler
	r       *http.Request
	conn    connection // to the client
	account string
	ctx     context.Context // the request's, with what the handler knows of it

	cut bool // the connection must not look as if the answer were whole

	// What the context and the headers point into, in one allocation with it.
	identified, admitted requestContext
	values               [3]string
}

func newExchange(h *handler, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{handler: h, r: r}
	x.conn.w = w
	x.conn.control = *http.NewResponseController(w)
	x.conn.began = time.Now()
	x.conn.timeout = h.writeTimeout
	x.conn.lifting = r.ProtoMajor != 1
	id := requestID(r.Header)
	x.identified = requestContext{Context: r.Context(), requestID: id}
	x.ctx = &x.identified
	x.setHeader("X-Request-Id", 0, id)
	return x
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
	x.conn.w.Header().Set("Allow", strings.Join(methods, ", "))
	return errMethodNotAllowed
}

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
	x.conn.w.Header()[canonical] = x.values[place : place+1 : place+1]
}

// send answers with a whole JSON body, and sees that it is on its way: on
// HTTP/2, what is left when the handler returns would have no deadline. Each
// write is of bounded size and has its own WriteTimeout, and none begins when
// more time has passed than limit.
func (x *exchange) send(status int, body []byte, limit time.Duration) error {
	length := len(body)
	if x.r.Method == http.MethodHead {
		body = nil
	}
	for first := true; first || len(body) > 0; first = false {
		now := x.conn.elapsed()
		if !first && now > limit {
			return ErrChatTimeout
		}
		part := body[:min(len(body), maxWrite)]
		body = body[len(part):]
		err := x.conn.within(now, func() error {
			if first {
				x.sendHead(status, length)
			}
			if _, err := x.conn.w.Write(part); err != nil {
				return err
			}
			if len(body) > 0 {
				return nil
			}
			return x.conn.flush()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exchange) sendHead(status, length int) {
	x.setHeader("Content-Type", 1, "application/json")
	x.setHeader("Content-Length", 2, strconv.Itoa(length))
	x.conn.w.WriteHeader(status)
}

// requestEnded says why the request's context has ended; nil if it has not. Its
// cause decides the answer: the host may have given one of its own. The context
// may be one of the host's middleware, too, and panic.
func (x *exchange) requestEnded() (reason error) {
	defer func() {
		if v := recover(); v != nil {
			reason = recovered("asking the request's context", v)
		}
	}()
	ctx := x.r.Context()
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	reason = failureOf(cause)
	_, chosen := errors.AsType[StatusError](reason)
	switch {
	case chosen:
		return reason
	case errors.Is(cause, context.DeadlineExceeded):
		return errTooLong.because(reason)
	case errors.Is(cause, context.Canceled):
		return ErrClientLeft
	}
	return errEndedByHost.because(reason)
}

// reasonBehind is why a client seems to have left: the host may have ended the
// request, and with it what its writer takes; or the client has only stopped
// reading, when net/http takes it for one that left.
func (x *exchange) reasonBehind(reason error) error {
	if !errors.Is(reason, ErrClientLeft) {
		return reason
	}
	if ended := x.requestEnded(); ended != nil && !errors.Is(ended, ErrClientLeft) {
		return ended
	}
	if x.conn.stalled() {
		return ErrClientStalled
	}
	return reason
}

// A connection writes to one client, each write within WriteTimeout. One
// goroutine at a time writes; any may call interrupt and stalled beside it, as
// long as the handler has not returned.
//
// It keeps every moment as time since the request began: that takes one look at
// one clock, and eight bytes.
type connection struct {
	w       http.ResponseWriter
	control http.ResponseController
	began   time.Time
	timeout time.Duration

	deadline   time.Duration // the last that arm has set
	lifting    bool          // each deadline is lifted behind its write, as HTTP/2 wants: one that passes ends the stream
	unflushing bool          // the writer cannot flush: everything leaves at the end
	failure    error         // why nothing more reaches the client

	writeBegan atomic.Int64 // 1 + when the write that is under way, or stalled, began; 0 if none is

	mu    sync.Mutex // held while a deadline is set
	fixed bool       // no other deadline is set any more
}

func (c *connection) elapsed() time.Duration { return time.Since(c.began) }

// outlive lifts the server's ReadTimeout and WriteTimeout, which are meant for
// requests, not for answers that a model is still writing.
func (c *connection) outlive() {
	_ = guard(func() error { return c.control.SetReadDeadline(time.Time{}) }) // unsupported: then the host's writer has none to lift
	c.setDeadline(time.Time{}, false)
}

// within calls the host's ResponseWriter, with a deadline. If that fails,
// panics, or ends its goroutine, it is the end of the connection: the error says
// whether the client left or did not read.
func (c *connection) within(now time.Duration, call func() error) error {
	if c.failure != nil {
		return c.failure
	}
	c.failure = ErrClientLeft // unless the calls return
	c.arm(now)
	c.writeBegan.Store(1 + int64(now))
	c.failure = c.explain(guard(call))
	if !errors.Is(c.failure, ErrClientStalled) {
		c.writeBegan.Store(0)
	}
	if c.lifting {
		c.setDeadline(time.Time{}, false)
	}
	return c.failure
}

// explain says what the failure of the write that is under way means.
func (c *connection) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case c.stalled():
		return fmt.Errorf("%w: %w", ErrClientStalled, err)
	}
	return fmt.Errorf("%w: %w", ErrClientLeft, err)
}

// stalled is whether the write that is under way has had its time, or has
// failed because of that.
func (c *connection) stalled() bool {
	began := c.writeBegan.Load()
	return began > 0 && c.elapsed()-time.Duration(began-1) >= c.timeout
}

// arm sees that a write that begins now has its whole timeout, and little
// more. On HTTP/1 the deadline is moved only once in a while, since moving it
// costs.
func (c *connection) arm(now time.Duration) {
	if c.lifting || c.deadline < now+c.timeout {
		c.deadline = now + c.timeout + min(c.timeout/8, time.Second)
		c.setDeadline(c.began.Add(c.deadline), false)
	}
}

// interrupt makes the write that is under way fail, and every later one.
func (c *connection) interrupt() { c.setDeadline(time.Unix(1, 0), true) }

// setDeadline sets the write deadline, unless one was set for good. A writer of
// the host's that has no deadlines has bounds of its own.
func (c *connection) setDeadline(at time.Time, forGood bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fixed {
		c.fixed = guard(func() error { return c.control.SetWriteDeadline(at) }) != nil || forGood
	}
}

// flush sends what the writer holds back. A write may fail only now, though
// Write has returned nil.
func (c *connection) flush() error {
	err := c.control.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		c.unflushing, err = true, nil
	}
	return err
}

// guard calls the host's ResponseWriter, and makes an error of its panic.
func guard(call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = recovered("calling the ResponseWriter", v)
		}
	}()
	return call()
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

// As lets [errors.As] find both forms by either.
func (e StatusError) As(target any) bool { return setEither(e, target) }

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

// As lets [errors.As] find both forms by either.
func (e HTTPValidationError) As(target any) bool { return setEither(e, target) }

// setEither is errors.As' question to an error: whether it is what target points
// to, or what a pointer there points to.
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

// What the handler itself refuses. A StatusError of the host stands before all
// of them.
var (
	errNotFound           = StatusError{Status: http.StatusNotFound, Detail: "Not Found"}
	errMethodNotAllowed   = StatusError{Status: http.StatusMethodNotAllowed, Detail: "Method Not Allowed"}
	errNotAuthenticated   = StatusError{Status: http.StatusUnauthorized, Detail: "Not authenticated"}
	errKeyRefused         = StatusError{Status: http.StatusUnauthorized, Detail: "Invalid API key", Err: ErrInvalidKey}
	errNoSuchBot          = StatusError{Status: http.StatusNotFound, Detail: "Bot not found"}
	errBodyTooLarge       = StatusError{Status: http.StatusRequestEntityTooLarge, Detail: "Request body too large"}
	errBodyTooSlow        = StatusError{Status: http.StatusRequestTimeout, Detail: "Request body did not arrive in time"}
	errBodyBroken         = StatusError{Status: http.StatusBadRequest, Detail: "Request body could not be read"}
	errAllPlacesTaken     = StatusError{Status: http.StatusServiceUnavailable, Detail: "Too many chats in progress", RetryAfter: time.Second}
	errAccountPlacesTaken = StatusError{Status: http.StatusTooManyRequests, Detail: "Too many chats in progress for this key", RetryAfter: time.Second}
	errTooLong            = StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long"}
	errEndedByHost        = StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable"}
	errInternal           = StatusError{Status: http.StatusInternalServerError, Detail: "Internal Server Error"}
)

// because is the same answer with a cause for the log.
func (e StatusError) because(cause error) StatusError {
	e.Err = cause
	return e
}

// statusOf decides how an error is answered: the one place that does.
func statusOf(err error) StatusError {
	if own, ok := errors.AsType[StatusError](err); ok {
		return own.answerable()
	}
	switch {
	case errors.Is(err, ErrInvalidKey):
		return errKeyRefused
	case errors.Is(err, ErrBotNotFound):
		return errNoSuchBot
	case errors.Is(err, ErrChatTimeout), errors.Is(err, ErrEngineStalled):
		return errTooLong
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

// checked returns err itself unless its own methods panic, as those of a nil
// *StatusError in an error do: that is a panic of the host's, here and not
// wherever the error is looked at later.
func checked(err error) (checked error) {
	defer func() {
		if v := recover(); v != nil {
			checked = recovered("reading an error", v)
		}
	}()
	_ = err.Error()
	if p, found := errors.AsType[*panicError](err); found && p == nil { // asks the whole chain
		panic("an As that returns true has set nothing")
	}
	_ = errors.Is(err, ErrClientLeft) // likewise
	return err
}

// failureOf is an error of the host's: what an engine yielded, what a store or a
// verifier returned, why the host ended a request. The reasons that only the
// handler can know are never among them: those come from another chat. Nor does
// an http.ErrAbortHandler, which asks for a cut, stand before a StatusError.
func failureOf(err error) error {
	err = checked(err)
	for _, reason := range []error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled, http.ErrAbortHandler} {
		if !errors.Is(err, reason) {
			continue
		}
		foreign := errors.New(err.Error())
		if own, ok := errors.AsType[StatusError](err); ok {
			return own.because(foreign)
		}
		if reason != http.ErrAbortHandler {
			return foreign
		}
	}
	return err
}

// refuse answers with the JSON form of an error, or cuts the connection where
// nothing must be answered. It returns the status sent, or 0. It is the one
// place that writes JSON errors, and the one that logs what they do not show.
func (x *exchange) refuse(err error) (status int) {
	err = x.reasonFor(err)
	if nobodyListens(err) {
		x.abort(err)
		return 0
	}
	x.discardBody()
	_, chosen := errors.AsType[StatusError](err) // its cause is never sent
	if invalid, ok := errors.AsType[HTTPValidationError](err); ok && !chosen {
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
		x.handler.logError(x.ctx, "request failed", err)
	case answer.hidesCause():
		x.handler.log(x.ctx, slog.LevelInfo, "request refused", slog.String("error", err.Error()))
	}
	x.setErrorHeaders(answer)
	x.sendError(answer.Status, answer.body())
	return answer.Status
}

// reasonFor returns err, or why the request's context has ended if that is all
// that err says.
func (x *exchange) reasonFor(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return cmp.Or(x.requestEnded(), err)
	}
	return err
}

// nobodyListens tells the errors that are not to be answered.
func nobodyListens(err error) bool {
	return errors.Is(err, ErrClientLeft) || errors.Is(err, ErrClientStalled) || errors.Is(err, http.ErrAbortHandler)
}

// abort has the connection cut when the handler returns. That nobody is left to
// answer is worth a line in the log only if it is the ResponseWriter's doing.
func (x *exchange) abort(err error) {
	x.cut = true
	if _, panicked := errors.AsType[*panicError](err); panicked && !errors.Is(err, http.ErrAbortHandler) {
		x.handler.logError(x.ctx, "the ResponseWriter panicked", err)
	}
}

func (x *exchange) sendError(status int, body []byte) {
	if err := x.send(status, body, never); err != nil {
		x.abort(err)
	}
}

func (x *exchange) setErrorHeaders(answer StatusError) {
	header := x.conn.w.Header()
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
func (e HTTPValidationError) body() (_ []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = recovered("encoding a validation error", v)
		}
	}()
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
	discardBytes = 4 << 20
	discardTime  = 5 * time.Second
)

// discardBody takes what a client is still sending on HTTP/1, within bounds,
// before it is refused: many clients read nothing before they have sent
// everything, and closing a connection with unread bytes resets it, so that the
// refusal would be lost. A client that waits for 100 Continue has sent nothing.
//
// The read deadline is only ever brought forward: the server's ReadTimeout may
// pass before.
func (x *exchange) discardBody() {
	if x.r.Body == nil || x.r.ProtoMajor != 1 || x.r.Header.Get("Expect") != "" {
		return
	}
	ended := make(chan struct{})
	expire := time.AfterFunc(discardTime, func() {
		defer close(ended)
		_ = guard(func() error { return x.conn.control.SetReadDeadline(time.Unix(1, 0)) }) // unsupported: the host's writer has bounds of its own
	})
	_, _ = io.CopyN(io.Discard, x.r.Body, discardBytes)
	if !expire.Stop() {
		<-ended
	}
}

// logError writes what is not for the client to see, with the stack of a panic.
func (h *handler) logError(ctx context.Context, message string, err error) {
	attributes := []slog.Attr{slog.String("error", err.Error())}
	if p, panicked := errors.AsType[*panicError](err); panicked {
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
