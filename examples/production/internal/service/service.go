// Package service puts the parts together into one replica: it serves, says
// how it is, and ends without cutting anybody off.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/production/internal/usage"
)

// Config is how one replica serves.
type Config struct {
	Address   string
	Database  *postgres.Database // stays the caller's, to close
	Endpoints []runtimes.Endpoint

	FirstFragment, Stall time.Duration // see runtimes.Options
	KeyCache             time.Duration // how long a revoked key may go on working
	ChatTimeout          time.Duration
	MaxChats             int64 // in this replica; 0 means no limit
	MaxChatsPerAccount   int64 // in this replica; 0 means no limit

	DrainDelay time.Duration // between turning unready and taking no more requests
	Grace      time.Duration // for the chats that are in progress then

	Logger *slog.Logger
}

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10

	// cancelled is how long chats may take to end once they are told to, and
	// flush how long the last records and spans may take to be stored.
	cancelled = 5 * time.Second
	flush     = 10 * time.Second
)

// A replica is the service while it runs.
type replica struct {
	config    Config
	logger    *slog.Logger
	telemetry *telemetry.Telemetry
	database  *postgres.Database
	usage     *usage.Writer
	readiness readiness
}

// Run serves until ctx ends, and then goes on until it has ended in order:
//
//  1. /readyz turns unready. Requests are still taken, for DrainDelay, until
//     the proxy has noticed.
//  2. No new connections are taken. Chats in progress have Grace to end; then
//     their contexts are ended.
//  3. Usage and traces that wait are stored.
//
// It returns nil when it has ended because ctx did.
func Run(ctx context.Context, c Config) error {
	observed, err := telemetry.New(ctx, "botapi", c.Logger)
	if err != nil {
		return err
	}
	r := &replica{config: c, logger: c.Logger, telemetry: observed, database: c.Database}
	engine, err := runtimes.New(runtimes.Options{
		Endpoints:      c.Endpoints,
		Settings:       c.Database,
		FirstFragment:  c.FirstFragment,
		Stall:          c.Stall,
		Propagator:     observed.Propagator,
		TracerProvider: observed.Traces,
		MeterProvider:  observed.Metrics,
		Logger:         c.Logger,
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	r.usage = usage.NewWriter(c.Database, c.Logger)
	defer r.flush()
	return r.serve(ctx, listener, engine)
}

// serve serves until ctx ends and the shutdown is over, or until it fails.
func (r *replica) serve(ctx context.Context, listener net.Listener, engine botapi.ChatEngine) error {
	chats, cancelChats := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelChats()
	server := &http.Server{
		Handler:           r.handler(engine),
		BaseContext:       func(net.Listener) context.Context { return chats },
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(r.logger.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	r.logger.Info("serving", slog.String("address", listener.Addr().String()))

	defer r.becomeReady(ctx)()
	select {
	case err := <-failed:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	r.drain(server, cancelChats)
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// becomeReady waits for the schema behind the server's back. The function that
// it returns ends that.
func (r *replica) becomeReady(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.readiness.becomeReady(ctx, r.database.SchemaReady, r.logger)
	}()
	return func() {
		cancel()
		<-done
	}
}

// drain ends the server without cutting a chat, if they end in time.
func (r *replica) drain(server *http.Server, cancelChats func()) {
	r.readiness.end()
	r.logger.Info("draining: unready from now on", slog.String("for", r.config.DrainDelay.String()))
	time.Sleep(r.config.DrainDelay)

	r.logger.Info("draining: no new connections", slog.String("grace", r.config.Grace.String()))
	if shutDown(server, r.config.Grace) == nil {
		return
	}
	r.logger.Warn("draining: the grace time is over, chats in progress are cut")
	cancelChats()
	if shutDown(server, cancelled) != nil {
		server.Close()
	}
}

func shutDown(server *http.Server, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return server.Shutdown(ctx)
}

// flush stores what was kept in memory for a moment.
func (r *replica) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flush)
	defer cancel()
	r.usage.Close(ctx)
	if err := r.telemetry.Close(ctx); err != nil {
		r.logger.Warn("some traces were not sent", slog.Any("error", err))
	}
	r.logger.Info("ended")
}
