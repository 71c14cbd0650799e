package service

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// schemaPeriod is how often a starting replica looks for its schema.
const schemaPeriod = time.Second

// readiness is whether the proxy should send requests here.
//
// A replica is ready once it has seen the database with its schema, and until
// it is told to end. It does not turn unready when the database goes away
// later: all replicas share the database and would vanish together, and what
// clients need then is the 503 with Retry-After that a replica gives them.
type readiness struct {
	state atomic.Int32 // starting, ready, ending; it only grows
}

const (
	starting = iota
	ready
	ending
)

// becomeReady waits for the schema, and returns when it is there or ctx ends.
func (r *readiness) becomeReady(ctx context.Context, schema func(context.Context) error, logger *slog.Logger) {
	for {
		err := schema(ctx)
		if err == nil {
			r.state.CompareAndSwap(starting, ready)
			logger.Info("ready")
			return
		}
		if ctx.Err() == nil {
			logger.Warn("not ready yet", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(schemaPeriod):
		}
	}
}

func (r *readiness) end() { r.state.Store(ending) }

func (r *readiness) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	switch r.state.Load() {
	case ready:
		w.WriteHeader(http.StatusOK)
	case ending:
		http.Error(w, "ending", http.StatusServiceUnavailable)
	default:
		http.Error(w, "starting", http.StatusServiceUnavailable)
	}
}
