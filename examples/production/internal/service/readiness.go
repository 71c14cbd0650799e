package service

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"example.com/botapi/examples/production/internal/telemetry"
)

// databasePeriod is how often a replica checks its database.
const databasePeriod = time.Second

// readiness is whether the proxy should send requests to this replica. There are
// two checks, since a replica cannot know whether only its own connection to the
// database is broken or the database is down for all; the proxy, which checks
// all replicas, can.
//
//   - /readyz: the replica has seen the database with its schema, reaches it
//     now, and is not shutting down. The proxy sends requests to these replicas.
//   - /readyz-without-database: the same, whether or not it reaches the
//     database now. If no replica is ready, the proxy sends requests to these:
//     they give each client the right response, and requests succeed as soon as
//     the database is back.
type readiness struct {
	state    atomic.Int32 // starting, started, ending; it only grows
	reaches  atomic.Bool  // the database, at the last check
	starting telemetry.Repeats[struct{}]
}

const (
	starting = iota
	started
	ending
)

// watch checks the database until ctx ends.
func (r *readiness) watch(ctx context.Context, schema func(context.Context) error, logger *slog.Logger) {
	next := time.NewTicker(databasePeriod)
	defer next.Stop()
	for {
		err := schema(ctx)
		if ctx.Err() != nil {
			return
		}
		r.saw(err, logger)
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
	}
}

// saw notes whether the database could be reached, and logs changes.
func (r *readiness) saw(err error, logger *slog.Logger) {
	before := r.reaches.Swap(err == nil)
	switch {
	case err == nil && r.state.CompareAndSwap(starting, started):
		logger.Info("ready")
	case err == nil && !before:
		logger.Info("ready: the database is back")
	case err != nil && r.state.Load() == starting:
		r.starting.Count(struct{}{}, func(times int64) {
			logger.Warn("not ready yet", slog.Any("error", err), slog.Int64("times", times))
		})
	case err != nil && before:
		logger.Warn("not ready: the database is out of reach", slog.Any("error", err))
	}
}

func (r *readiness) end() { r.state.Store(ending) }

func (r *readiness) serveReady(w http.ResponseWriter, req *http.Request) {
	if r.state.Load() == started && !r.reaches.Load() {
		http.Error(w, "the database is out of reach", http.StatusServiceUnavailable)
		return
	}
	r.serveWithoutDatabase(w, req)
}

func (r *readiness) serveWithoutDatabase(w http.ResponseWriter, _ *http.Request) {
	switch r.state.Load() {
	case started:
		w.WriteHeader(http.StatusOK)
	case ending:
		http.Error(w, "ending", http.StatusServiceUnavailable)
	default:
		http.Error(w, "starting", http.StatusServiceUnavailable)
	}
}
