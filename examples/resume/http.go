package resume

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"example.com/botapi"
)

// Header is the request header that names an answer.
const Header = "Idempotency-Key"

// OutcomeHeader is the response header that says what happened to the answer.
const OutcomeHeader = "X-Botapi-Answer"

// An Outcome is the value of OutcomeHeader.
type Outcome string

// Outcomes.
const (
	Kept    Outcome = "kept"     // this request started the answer, and others can join it
	Joined  Outcome = "joined"   // another request has started it
	NotKept Outcome = "not-kept" // answered as without a key
)

// A request is a chat with a key: what the handler and the Engine tell each other
// about it.
type request struct {
	keys        []string        // as received
	credentials string          // the key of the API and the Idempotency-Key
	ctx         context.Context // before its API key is verified
	cancel      context.CancelFunc
	served      chan struct{} // closed when it has been served
	owner       atomic.Value  // a string, once it is known
	reached     atomic.Bool   // the Engine
	outcome     atomic.Value  // an Outcome, once it is known
}

type requestKey struct{}

// requestFrom returns nil for a request without a key.
func requestFrom(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// OutcomeFrom returns what happened to the key of a request, for OnChat: code that
// bills there must not bill a Joined answer again. It is empty without a key, and
// for a request that was rejected.
func OutcomeFrom(ctx context.Context) (o Outcome) {
	if r := requestFrom(ctx); r != nil {
		o, _ = r.outcome.Load().(Outcome)
	}
	return o
}

// tell notes what happened to the key of a request.
func tell(ctx context.Context, o Outcome) {
	if r := requestFrom(ctx); r != nil { // Join may be called for any request
		r.outcome.Store(o)
	}
}

// Handler returns a handler around api, which is the handler of botapi.New or one
// in front of it. It passes the Idempotency-Key of each request on to the Engine,
// and serves DELETE /v1/answers, which stops the answer under the key of the
// request. keys is the KeyVerifier of api.
func (e *Engine) Handler(api http.Handler, keys botapi.KeyVerifier) http.Handler {
	h := &handler{e, api, botapi.New(botapi.Options{Bots: calls{}, Keys: keys, Engine: e, Logger: e.options.Logger})}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/answers" || r.URL.Path == "/answers":
			h.stop(w, r)
		case len(r.Header[Header]) > 0:
			h.chat(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

type handler struct {
	engine *Engine
	api    http.Handler
	list   http.Handler // calls a function for a request with a valid API key
}

// call calls f if a request has a valid API key. It is made within a request for the
// list of bots, so that botapi verifies the key, and writes and logs the errors.
func (h *handler) call(w http.ResponseWriter, r *http.Request, method string, f func(context.Context) error) {
	list := r.Clone(context.WithValue(r.Context(), callKey{}, f))
	list.Method, list.URL.Path, list.URL.RawPath = method, "/v1/bots", ""
	list.Header.Del("If-None-Match")
	h.list.ServeHTTP(w, list)
}

// calls is a BotStore whose list is a call. It is asked for nothing else.
type calls struct{ botapi.BotStore }

type callKey struct{}

func (calls) Bots(ctx context.Context) ([]botapi.Bot, error) {
	return nil, ctx.Value(callKey{}).(func(context.Context) error)(ctx)
}

func (h *handler) stop(w http.ResponseWriter, r *http.Request) {
	method := http.MethodGet
	if r.Method != http.MethodDelete {
		method = http.MethodPut // which the list rejects, too
	}
	held := &response{ResponseWriter: w, holds: func(int) bool { return true }}
	h.call(held, r, method, func(ctx context.Context) error {
		if keys := r.Header[Header]; len(keys) == 1 {
			return h.engine.Stop(ctx, keys[0])
		}
		return h.engine.badKey
	})
	switch held.status {
	case http.StatusOK:
		held.status = http.StatusNoContent
		held.body.Reset()
		for _, name := range []string{"Content-Type", "Content-Length", "Etag", "Cache-Control"} {
			w.Header().Del(name)
		}
	case http.StatusMethodNotAllowed:
		w.Header().Set("Allow", http.MethodDelete)
	}
	held.send()
}

// chat serves a chat with a key. A client that comes back may find that the limits
// of botapi still count the request that it has lost, perhaps for as long as the
// answer runs: a phone without a network does not say goodbye. Then the new request
// takes the slot of the lost one, if both have the same owner and key.
func (h *handler) chat(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	keys := r.Header[Header]
	chat := &request{keys: keys, credentials: r.Header.Get("Authorization") + "\n" + keys[0], ctx: ctx, cancel: cancel, served: make(chan struct{})}
	defer close(chat.served)
	isOnly := h.engine.enter(chat)
	defer h.engine.exit(chat)
	r = r.WithContext(context.WithValue(ctx, requestKey{}, chat))
	if isOnly || !h.hasValidKey(r, chat) { // nothing to take, or nobody who may; the body may be long
		h.api.ServeHTTP(flushing(&response{ResponseWriter: w, request: chat}), r)
		return
	}
	header, body := w.Header().Clone(), new(bytes.Buffer)
	r.Body = io.NopCloser(io.TeeReader(r.Body, body))
	for tries := 1; ; tries++ {
		held := &response{ResponseWriter: w, request: chat, holds: func(status int) bool {
			return limitDetails[status] != "" && !chat.reached.Load()
		}}
		h.api.ServeHTTP(flushing(held), r)
		if held.status == 0 {
			return
		}
		if !held.isLimit() || tries == maxTries || !h.takeSlot(chat) {
			held.send()
			return
		}
		clear(w.Header())
		maps.Copy(w.Header(), header)
		r = r.WithContext(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body.Bytes())) // all of it: the limits come after the body
	}
}

// maxTries bounds how often a chat is served again with the slot of an earlier request,
// which another may take first.
const maxTries = 8

// takeSlot ends the oldest of the earlier requests with the same owner and key, and
// reports whether there was one. A later one is not ended: of several reloads, the
// last gets the answer.
func (h *handler) takeSlot(chat *request) bool {
	h.engine.mu.Lock()
	all := h.engine.chats[chat.credentials]
	oldest := all[slices.IndexFunc(all, func(one *request) bool { return one.owner.Load() == chat.owner.Load() })]
	h.engine.mu.Unlock()
	if oldest == chat {
		return false
	}
	oldest.cancel() // as if its client had disconnected
	select {
	case <-oldest.served:
		return true
	case <-chat.ctx.Done():
	case <-time.After(h.engine.rules.Wait):
	}
	return false
}

// hasValidKey reports whether the API key of a chat is valid, and notes its owner.
func (h *handler) hasValidKey(r *http.Request, chat *request) bool {
	r = r.WithContext(r.Context()) // a copy
	r.Body, r.ContentLength = http.NoBody, 0
	h.call(discard{}, r, http.MethodGet, func(ctx context.Context) error {
		chat.owner.Store(h.engine.options.Owner(ctx))
		return nil
	})
	return chat.owner.Load() != nil
}

// enter notes that a chat is being served. It reports whether it is the only one
// with its credentials.
func (e *Engine) enter(chat *request) (isOnly bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.chats[chat.credentials] = append(e.chats[chat.credentials], chat)
	return len(e.chats[chat.credentials]) == 1
}

func (e *Engine) exit(chat *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := slices.DeleteFunc(e.chats[chat.credentials], func(other *request) bool { return other == chat })
	if e.chats[chat.credentials] = left; len(left) == 0 {
		delete(e.chats, chat.credentials)
	}
}

// limitDetails are what botapi says when a limit has rejected a chat, as a JSON
// string: a handler between may have put it into another object.
var limitDetails = map[int]string{
	http.StatusTooManyRequests:    `"Too many chats in progress for this key"`,
	http.StatusServiceUnavailable: `"Too many chats in progress"`,
}

// A response says what happened to the key, and may be held back.
type response struct {
	http.ResponseWriter
	request *request              // nil if it has nothing to say
	holds   func(status int) bool // nil if nothing is held back
	status  int                   // of what is held back; 0 if nothing is
	body    bytes.Buffer

	wroteHeader bool
}

func (w *response) WriteHeader(status int) {
	w.wroteHeader = true
	if w.holds != nil && w.holds(status) {
		w.status = status
		return
	}
	if w.request != nil && status < http.StatusBadRequest { // a rejected request is neither kept nor joined
		if outcome, _ := w.request.outcome.Load().(Outcome); outcome != "" {
			w.Header().Set(OutcomeHeader, string(outcome))
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(body []byte) (int, error) {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if w.status != 0 {
		return w.body.Write(body)
	}
	return w.ResponseWriter.Write(body)
}

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) isLimit() bool {
	return bytes.Contains(w.body.Bytes(), []byte(limitDetails[w.status]))
}

// send sends what is held back.
func (w *response) send() {
	w.ResponseWriter.WriteHeader(w.status)
	_, _ = w.ResponseWriter.Write(w.body.Bytes()) // a disconnected client needs no response
}

// flushing has a Flush if the writer of w has one: botapi flushes the outermost
// writer only, since one that buffers may have a reason to.
func flushing(w *response) http.ResponseWriter {
	switch w.ResponseWriter.(type) {
	case http.Flusher, interface{ FlushError() error }:
		return flushingResponse{w}
	}
	return w
}

type flushingResponse struct{ *response }

func (w flushingResponse) FlushError() error {
	if w.status != 0 {
		return nil
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// discard is the ResponseWriter of a response that nobody gets.
type discard struct{}

func (discard) Header() http.Header            { return http.Header{} }
func (discard) Write(body []byte) (int, error) { return len(body), nil }
func (discard) WriteHeader(int)                {}
