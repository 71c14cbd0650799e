// Package service assembles one replica: it serves, reports its state, and shuts
// down without aborting chats.
//
// A request passes through these handlers and engines. What they tell each other
// about it is in its turn.
//
//	identified       begins the turn and the meter of tokens
//	observed         the span and the metrics; asks the proxy to try another replica
//	                 instead of a 503, unless a model was asked
//	botapi           verifyKey, notedBots: the settings of the bot go into the turn
//	 ├ its routes, with --openai those of completions, with --answers DELETE /v1/answers
//	 └ onRequest     writes down how the request has ended
//	shared.chat      with --redis
//	resume.Engine    with --answers: joins an answer, or starts it
//	limits.Engine    with --redis: takes a slot, reserves tokens
//	usage.Writer     records what the model has done, when it has returned
//	usage.Metered    counts the tokens
//	withProbe        with --doctor-secret: answers the chats of the doctor
//	runtimes.Engine  Settings: from now on, the request is not handed back
package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/production/internal/usage"
	"go.opentelemetry.io/otel/metric"
)

// Config is how one replica serves.
type Config struct {
	Address         string
	InternalAddress string             // for /readyz and /metrics
	Database        *postgres.Database // the caller closes it
	Endpoints       []runtimes.Endpoint
	TrustedProxies  []netip.Prefix // whose X-Forwarded-For is trusted
	OpenAI          bool           // whether OpenAI-compatible clients are served, too
	DoctorSecret    string         // of the probe, see botapitest.Probed; empty for none

	Attempt            time.Duration // see runtimes.Options
	StallTimeout       time.Duration // see botapi.Options
	DatabaseTimeout    time.Duration // of Database, for one query
	ReadTimeout        time.Duration // how long a client may take to send a request
	ChatTimeout        time.Duration
	MaxBodyBytes       int64
	MaxChats           int64   // in this replica; 0 means no limit
	MaxChatsPerAccount int64   // in this replica; 0 means no limit
	Shared             *Shared // nil if replicas share no Redis

	DrainDelay time.Duration // between becoming unready and accepting no more connections
	Grace      time.Duration // for the chats that are in progress then

	Logger       *slog.Logger
	LogLinesLost func() int64 // of Logger
}

// ShutdownTime is the longest that Run, followed by closing the database and the
// log, takes once Run's context has ended. A supervisor must wait longer before it kills
// the process.
func (c Config) ShutdownTime() time.Duration {
	all := c.DrainDelay + c.Grace + cancelled + flush + lastScrape + 2*c.DatabaseTimeout + telemetry.LogEnds
	if c.Shared != nil {
		all += 2 * cmp.Or(c.Shared.Redis.Timeout, redisclient.DefaultTimeout) // for the last tokens
	}
	return all
}

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
	sendBuffer        = 64 << 10 // of a connection, in the kernel, which doubles it on Linux

	// cancelled is how long chats may take to end once they are cancelled, and
	// flush how long storing the last records and spans may take. A query that
	// has begun by then is waited for.
	cancelled = 5 * time.Second
	flush     = 10 * time.Second

	// lastScrape is how long the metrics of a replica that has written usage to its log
	// wait for one more scrape: otherwise no alert would say so.
	lastScrape = 30 * time.Second
)

// errGraceOver is the response of chats that still run when a shutdown's grace
// time ends.
var errGraceOver = &botapi.StatusError{
	Status:     http.StatusServiceUnavailable,
	Detail:     "The service is restarting",
	RetryAfter: time.Second,
	Err:        errors.New("the grace time of the shutdown is over"),
}

// A replica is the service while it runs.
type replica struct {
	config         Config
	logger         *slog.Logger
	telemetry      *telemetry.Telemetry
	database       *postgres.Database
	keys           botapi.KeyVerifier // joins the lookups of one key
	model          botapi.ChatEngine  // the runtimes, metered and recorded
	api            atomic.Pointer[http.Handler]
	usage          *usage.Writer
	errorResponses metric.Int64Counter
	tokens         metric.Int64Counter
	lists          *throttle
	failures       *throttle // also of requests that stop an answer
	repeats        telemetry.Repeats[kind]
	readiness      readiness
	shared         atomic.Pointer[shared] // nil if replicas share no Redis, and until the database has been reached
	fatal          chan error             // ends the replica
	warned         sync.Once              // about runtimes that bots name

	probed  *http.Server   // of the internal address; nil until it serves
	scraped chan struct{}  // gets one after a scrape
	serving sync.WaitGroup // the servers
}

// Run serves until ctx ends, and then shuts down:
//
//  1. /readyz becomes unready. Requests are still accepted, for DrainDelay, until
//     the proxy has noticed.
//  2. No new connections are accepted. Chats in progress, with and without their
//     clients, have Grace to end; then they are ended with a 503.
//  3. Waiting usage and traces are stored. Until then, and for one more scrape if usage
//     could not be stored, /metrics is served.
//
// It returns nil if it ended because ctx did.
func Run(ctx context.Context, c Config) error {
	observed, err := telemetry.New(ctx, "botapi", c.Logger)
	if err != nil {
		return err
	}
	r := &replica{
		config:    c,
		logger:    c.Logger,
		telemetry: observed,
		database:  c.Database,
		keys:      botapi.CacheKeys(c.Database, 0),
		usage:     usage.NewWriter(c.Database, c.Logger),
		lists:     newThrottle(),
		failures:  newThrottle(),
		fatal:     make(chan error, 1),
		scraped:   make(chan struct{}, 1),
	}
	defer r.close()
	engine, err := runtimes.New(runtimes.Options{
		Endpoints:      c.Endpoints,
		Settings:       r.Settings,
		Attempt:        c.Attempt,
		TracerProvider: observed.Traces,
		MeterProvider:  observed.Metrics,
		Logger:         r.notedLogger(),
	})
	if err != nil {
		return err
	}
	if err := r.measure(); err != nil {
		return fmt.Errorf("preparing the metrics: %w", err)
	}
	public, err := listen(ctx, c.Address)
	if err != nil {
		return err
	}
	internal, err := listen(ctx, c.InternalAddress)
	if err != nil {
		return errors.Join(err, public.Close())
	}
	defer engine.Watch()()
	r.model = r.usage.Recorded(usage.Metered(r.withProbe(engine), r.countTokens))
	return r.serve(ctx, public, internal)
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	return listener, nil
}

// serve serves until ctx ends and the shutdown is over, or until it fails.
func (r *replica) serve(ctx context.Context, public, internal net.Listener) error {
	chats, endChats := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endChats(nil)
	server := r.server(r.public())
	server.BaseContext = func(net.Listener) context.Context { return chats }
	server.ConnContext = withSendBuffer
	r.probed = r.server(r.internal())
	failed := make(chan error, 2)
	r.serving.Go(func() { failed <- server.Serve(public) })
	r.serving.Go(func() { failed <- r.probed.Serve(internal) })
	r.logger.Info("serving", slog.String("address", public.Addr().String()), slog.String("internal_address", internal.Addr().String()))

	defer r.watch(ctx)()
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("serving: %w", err)
	case err = <-r.fatal:
	case <-ctx.Done():
		r.drain(server, endChats)
	}
	if err != nil {
		server.Close()
		now, cancel := context.WithDeadline(ctx, time.Now())
		defer cancel()
		r.endAnswers(now)
	}
	return err
}

func (r *replica) server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       r.config.ReadTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(r.logger.Handler(), slog.LevelWarn),
	}
}

// withSendBuffer bounds what the kernel keeps of an answer that a client does not
// read: by default it takes some MiB, and the chat ends as if they had been read.
func withSendBuffer(ctx context.Context, conn net.Conn) context.Context {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBuffer) // if it fails, the connection has ended
	}
	return ctx
}

// watch checks the readiness of the replica and stores when keys were used, in
// goroutines. The function that it returns ends them.
func (r *replica) watch(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { r.readiness.watch(ctx, r.schemaReady, r.logger) })
	watching.Go(func() { r.database.KeepKeyUses(ctx) })
	return func() {
		cancel()
		watching.Wait()
	}
}

// drain shuts the server down. It aborts no chat that ends within the grace
// time.
func (r *replica) drain(server *http.Server, endChats context.CancelCauseFunc) {
	r.readiness.end()
	r.logger.Info("draining: unready from now on",
		slog.String("for", r.config.DrainDelay.String()),
		slog.String("all_over_within", r.config.ShutdownTime().String()))
	time.Sleep(r.config.DrainDelay)

	r.logger.Info("draining: no new connections", slog.String("grace", r.config.Grace.String()))
	grace, cancel := context.WithTimeout(context.Background(), r.config.Grace)
	defer cancel()
	if server.Shutdown(grace) == nil {
		r.endAnswers(grace)
		return
	}
	r.logger.Warn("draining: the grace time is over, chats in progress are ended")
	endChats(errGraceOver)
	var answers sync.WaitGroup
	answers.Go(func() { r.endAnswers(grace) })
	defer answers.Wait()
	last, cancel := context.WithTimeout(context.Background(), cancelled)
	defer cancel()
	if server.Shutdown(last) != nil {
		server.Close()
	}
}

// close ends what the replica has begun, after the last chat, and stores the
// usage, uses of keys, and traces that are still in memory.
func (r *replica) close() {
	ctx, cancel := context.WithTimeout(context.Background(), flush)
	defer cancel()
	r.usage.AwaitEngines(flush / 2)
	if s := r.shared.Load(); s != nil {
		_ = s.close() // Redis may be away
	}
	r.repeats.Flush()
	before := r.usage.Backlog().NotStored
	r.usage.Close(ctx)
	r.database.StoreKeyUses(ctx)
	if err := r.telemetry.Traces.Shutdown(ctx); err != nil {
		r.logger.Warn("some traces were not sent", slog.Any("error", err))
	}
	if r.probed != nil {
		r.closeInternal(r.usage.Backlog().NotStored > before)
	}
	_ = r.telemetry.Metrics.Shutdown(ctx) // which only fails if it is called twice
	r.logger.Info("ended")
}

// closeInternal closes the internal address, after one more scrape if there is
// something to see.
func (r *replica) closeInternal(something bool) {
	if something {
		select {
		case <-r.scraped: // before usage was closed
		default:
		}
		select {
		case <-r.scraped:
		case <-time.After(lastScrape):
		}
	}
	r.probed.Close()
	r.serving.Wait()
}
