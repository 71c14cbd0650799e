package resume

import (
	"context"
	"log/slog"
	"net/http"
	"sync"

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

// A request is what the handler and the Engine tell each other about a request
// with a key.
type request struct {
	keys        []string // as received
	credentials string   // the key of the API and the Idempotency-Key
	cancel      context.CancelCauseFunc
	done        chan struct{} // closed when it has been served

	mu         sync.Mutex
	reached    bool // the Engine
	identified bool // owner is known
	owner      string
	outcome    Outcome
}

type requestKey struct{}

func requestFrom(ctx context.Context) (r *request, ok bool) {
	r, ok = ctx.Value(requestKey{}).(*request)
	return r, ok
}

// OutcomeFrom returns what happened to the key of a request, for OnChat: whoever
// bills there must not bill a Joined answer again. It is empty without a key, and
// for a request that was rejected.
func OutcomeFrom(ctx context.Context) Outcome {
	r, ok := requestFrom(ctx)
	if !ok {
		return ""
	}
	return r.told()
}

func (r *request) told() Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcome
}

// tell notes what happened to the key of a request.
func tell(ctx context.Context, o Outcome) {
	if r, ok := requestFrom(ctx); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outcome = o
	}
}

func (r *request) reach(owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reached, r.identified, r.owner = true, true, owner
}

// Handler returns a handler around api, which is the handler of botapi.New or one
// in front of it. It passes the Idempotency-Key of each request on to the Engine,
// and serves DELETE /v1/answers, which stops the answer under the key of the
// request. keys is the KeyVerifier of api.
func (e *Engine) Handler(api http.Handler, keys botapi.KeyVerifier) http.Handler {
	stop := e.listHandler(keys, func(ctx context.Context, r *request) error {
		if len(r.keys) != 1 {
			return e.badKey
		}
		return e.Stop(ctx, r.keys[0])
	}, e.logger)
	t := &takeover{engine: e, api: api, owners: e.listHandler(keys, func(ctx context.Context, r *request) error {
		r.reach(e.options.Owner(ctx))
		return nil
	}, slog.New(slog.DiscardHandler))}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys := r.Header.Values(Header)
		switch {
		case r.URL.Path == "/v1/answers" || r.URL.Path == "/answers":
			serveStop(stop, w, withRequest(r, &request{keys: keys}))
		case len(keys) > 0:
			t.serve(w, r, keys)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

func withRequest(r *http.Request, keyed *request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, keyed))
}

// tellingClient has the response say what happened to the key.
func tellingClient(w http.ResponseWriter, r *request) http.ResponseWriter {
	telling := &outcomeWriter{w, r}
	switch w.(type) {
	case http.Flusher, interface{ FlushError() error }:
		return flushingWriter{telling}
	}
	return telling // botapi flushes the outermost writer only, since one that buffers may have a reason to
}

type outcomeWriter struct {
	http.ResponseWriter
	request *request
}

func (w *outcomeWriter) WriteHeader(status int) {
	outcome := w.request.told()
	if outcome != "" && status < http.StatusBadRequest { // a rejected request is neither kept nor joined
		w.Header().Set(OutcomeHeader, string(outcome))
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *outcomeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type flushingWriter struct{ *outcomeWriter }

func (w flushingWriter) FlushError() error {
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// listHandler calls f for each request that has a valid API key, as a list of
// bots: botapi authenticates the request, responds to its errors and logs them.
func (e *Engine) listHandler(keys botapi.KeyVerifier, f func(context.Context, *request) error, logger *slog.Logger) http.Handler {
	return botapi.New(botapi.Options{Bots: listing(f), Keys: keys, Engine: e, Logger: logger})
}

// listing is a BotStore whose list is a call.
type listing func(context.Context, *request) error

func (l listing) Bots(ctx context.Context) ([]botapi.Bot, error) {
	r, _ := requestFrom(ctx)
	return nil, l(ctx, r)
}

func (listing) BotByUID(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, botapi.ErrBotNotFound
}

func (listing) BotBySlug(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, botapi.ErrBotNotFound
}

// asList is a request for the list with the credentials of another request.
func asList(r *http.Request, method string) *http.Request {
	list := r.Clone(r.Context())
	list.Method, list.URL.Path, list.URL.RawPath = method, "/v1/bots", ""
	list.Header.Del("If-None-Match")
	return list
}

func serveStop(list http.Handler, w http.ResponseWriter, r *http.Request) {
	method := http.MethodGet
	if r.Method != http.MethodDelete {
		method = http.MethodPut // which the list rejects, too
	}
	list.ServeHTTP(&stopWriter{ResponseWriter: w}, asList(r, method))
}

// A stopWriter turns the response of a list into that of a DELETE.
type stopWriter struct {
	http.ResponseWriter
	stopped bool // there is no body
}

func (w *stopWriter) WriteHeader(status int) {
	header := w.Header()
	switch status {
	case http.StatusOK:
		w.stopped, status = true, http.StatusNoContent
		for _, name := range []string{"Content-Type", "Content-Length", "Etag", "Cache-Control"} {
			header.Del(name)
		}
	case http.StatusMethodNotAllowed:
		header.Set("Allow", http.MethodDelete)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *stopWriter) Write(body []byte) (int, error) {
	if w.stopped {
		return len(body), nil
	}
	return w.ResponseWriter.Write(body)
}

func (w *stopWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
