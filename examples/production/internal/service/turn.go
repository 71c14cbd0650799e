package service

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/usage"
)

// A turn is one request at this replica: what its middleware, its engines and its log
// tell each other about it.
type turn struct {
	usage.Meter                   // of its chat
	client      string            // its address
	outcome     atomic.Int32      // open, or what follows; it changes once
	settings    postgres.Settings // of the bot that was looked up
	route       string            // its pattern, when the response has ended

	mu     sync.Mutex
	notes  []slog.Record // see notedLines
	logged bool
}

const (
	open       = iota
	asked      // a model may have been asked: the request must not be retried
	final      // the request must not be retried, and asks no model here
	handedBack // the proxy retries it on another replica: no model may be asked any more
)

// becomes reports whether the outcome of an open turn is this one from now on.
func (t *turn) becomes(outcome int32) bool { return t.outcome.CompareAndSwap(open, outcome) }

// turnOf returns the turn of the request that a context belongs to, or nil.
func turnOf(ctx context.Context) *turn {
	t, _ := usage.RequestOf(ctx).(*turn)
	return t
}

// ClientFrom returns the address of the client of a request, or "".
func ClientFrom(ctx context.Context) string {
	if t := turnOf(ctx); t != nil {
		return t.client
	}
	return ""
}

// identified begins the turn of a request.
func (r *replica) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		client := clientAddress(req, r.config.TrustedProxies)
		req = req.WithContext(usage.With(req.Context(), &turn{client: client}))
		req.Header["X-Forwarded-For"] = []string{client} // otelhttp reads it
		next.ServeHTTP(w, req)
	})
}

var errNotAsked = errors.New("the request has ended, or was handed back to the proxy")

// Settings returns the settings of the bot of a turn, just before its model is asked.
// It fails if the turn has been handed back; otherwise it notes that the turn can no
// longer be handed back.
func (r *replica) Settings(ctx context.Context, _ string) (postgres.Settings, error) {
	t := turnOf(ctx)
	if cause := context.Cause(ctx); cause != nil { // nobody would hear the model
		return postgres.Settings{}, cause
	}
	if !t.becomes(asked) {
		return postgres.Settings{}, errNotAsked
	}
	usage.Asks(ctx, usage.Asking{
		Runtime:      cmp.Or(t.settings.Runtime, r.config.Endpoints[0].Runtime),
		Instructions: t.settings.Instructions,
	})
	return t.settings, nil
}

// withProbe has a probe answer the chats of the doctor. They ask no model and cost no tokens,
// and yet are not handed back: the doctor checks what happens to chats that have asked one.
func (r *replica) withProbe(models botapi.ChatEngine) botapi.ChatEngine {
	secret := r.config.DoctorSecret
	if secret == "" {
		return models
	}
	probed := botapitest.Probed(models, secret)
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		if botapitest.IsProbe(req, secret) && !turnOf(ctx).becomes(asked) {
			return func(yield func(string, error) bool) { yield("", errNotAsked) }
		}
		return probed.Chat(ctx, req)
	})
}

const (
	// tryElsewhere is the header by which the proxy says that it can ask another
	// replica, and which status requests that.
	tryElsewhere = "X-Botapi-Try-Elsewhere"

	// statusTryElsewhere is a status that this service does not use otherwise. A
	// 503 would not say whether a model was asked.
	statusTryElsewhere = http.StatusTooEarly
)

// A head lets the proxy retry a request on another replica if this one cannot serve it
// and no model was asked. It passes only the status to the observing writer. The body goes
// to the client directly, so that each fragment of a stream costs less.
type head struct {
	http.ResponseWriter // the client's
	observing           http.ResponseWriter
	turn                *turn
	elsewhere           bool // the proxy can ask another replica
}

func (w *head) WriteHeader(status int) {
	if w.elsewhere && status == http.StatusServiceUnavailable && w.turn.becomes(handedBack) {
		status = statusTryElsewhere
	}
	w.observing.WriteHeader(status)
}

func (w *head) Unwrap() http.ResponseWriter { return w.ResponseWriter }
