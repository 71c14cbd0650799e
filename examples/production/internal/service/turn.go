package service

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"

	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/telemetry"
)

// A turn is one request at this replica: what the parts that it passes through
// tell each other about it.
type turn struct {
	outcome atomic.Int32 // open, asked or handedBack; it changes once
	notes   notes
}

const (
	open       = iota
	asked      // a model may have been asked: the request must not be tried again
	handedBack // the proxy has it back: no model may be asked any more
)

type turnKey struct{}

// turnOf returns the turn of the request that a context belongs to; it is nil
// in other contexts.
func turnOf(ctx context.Context) *turn {
	t, _ := ctx.Value(turnKey{}).(*turn)
	return t
}

// identified begins the turn of a request, and says whose it is: from here on
// the client's address is known to the log and to the span.
func (r *replica) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		client := clientAddress(req, r.config.TrustedProxies)
		ctx := telemetry.WithClient(req.Context(), client)
		req = req.WithContext(context.WithValue(ctx, turnKey{}, new(turn)))
		req.Header["X-Forwarded-For"] = []string{client} // otelhttp reads it
		next.ServeHTTP(w, req)
	})
}

const (
	// tryElsewhere is the header by which the proxy says that it can ask
	// another replica, and with which status it is to be told to.
	tryElsewhere = "X-Botapi-Try-Elsewhere"

	// statusTryElsewhere is a status that this service has no other use for.
	// A 503 does not tell whether a model was asked.
	statusTryElsewhere = http.StatusTooEarly
)

// handingBack answers a request that this replica cannot serve, and that has
// reached no model, in a way that lets the proxy ask another replica. Only a
// proxy that asks for it gets such an answer.
func handingBack(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get(tryElsewhere) == "425" {
			w = &handingBackWriter{w, turnOf(req.Context())}
		}
		next.ServeHTTP(w, req)
	})
}

type handingBackWriter struct {
	http.ResponseWriter
	turn *turn
}

func (w *handingBackWriter) WriteHeader(status int) {
	if status == http.StatusServiceUnavailable && w.turn.outcome.CompareAndSwap(open, handedBack) {
		status = statusTryElsewhere
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *handingBackWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// askingOnce are the settings of bots: the last thing that is looked up before
// a model is asked.
type askingOnce struct{ bots runtimes.Settings }

var errHandedBack = errors.New("the request has been handed back to the proxy")

// Settings ends a turn that has been handed back, and else notes that it can no
// longer be.
func (s askingOnce) Settings(ctx context.Context, uid string) (postgres.Settings, error) {
	found, err := s.bots.Settings(ctx, uid)
	if err != nil {
		return found, err
	}
	if !turnOf(ctx).outcome.CompareAndSwap(open, asked) {
		return found, errHandedBack
	}
	return found, nil
}
