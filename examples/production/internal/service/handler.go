package service

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/production/internal/postgres"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// public serves everything that clients can reach. It compares the path itself
// because http.ServeMux redirects some, and a redirected POST is lost.
func (r *replica) public() http.Handler {
	r.serveAPI(nil)
	api := r.identified(r.observed(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		(*r.api.Load()).ServeHTTP(w, req)
	})))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/health-check" {
			w.WriteHeader(http.StatusOK) // the process is alive; the published Python client requests this
			return
		}
		api.ServeHTTP(w, req)
	})
}

// internal serves the proxy, probes and Prometheus, at an address that clients
// cannot reach.
func (r *replica) internal() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", r.readiness.serveReady)
	mux.HandleFunc("GET /readyz-without-database", r.readiness.serveWithoutDatabase)
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, req *http.Request) {
		r.telemetry.Prometheus.ServeHTTP(w, req)
		_ = http.NewResponseController(w).Flush() // before the address is closed
		select {
		case r.scraped <- struct{}{}:
		default:
		}
	})
	return mux
}

// serveAPI serves the API from now on, with what the replicas share; nil if they share
// no Redis, or before the database has been reached.
func (r *replica) serveAPI(s *shared) {
	bots := notedBots{r.database, r.lists, r.hasRuntime}
	o := botapi.Options{
		Bots:               bots,
		Keys:               botapi.KeyVerifierFunc(r.verifyKey),
		Engine:             r.model,
		MaxBodyBytes:       r.config.MaxBodyBytes,
		ChatTimeout:        r.config.ChatTimeout,
		StallTimeout:       r.config.StallTimeout,
		MaxConcurrentChats: r.config.MaxChats,
		MaxChatsPerAccount: r.config.MaxChatsPerAccount,
		Logger:             r.notedLogger(),
		OnRequest:          r.onRequest,
	}
	if r.config.OpenAI {
		o.Routes = openai.Routes(openai.Options{Bots: bots})
	}
	switch {
	case r.config.Shared == nil:
	case s == nil:
		o.Engine = notStarted{}
	default:
		o.Engine = s
		if s.resume != nil {
			o.Routes, o.OnLimit = append(o.Routes, s.resume.Routes()...), s.resume.OnLimit
		}
	}
	if r.config.OpenAI {
		o.NotFound = openai.NotFound(o.Routes)
	}
	api := botapi.New(o)
	r.api.Store(&api)
}

// notStarted rejects the chats that come before the engine is known.
type notStarted struct{}

func (notStarted) Chat(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", errStarting) }
}

// verifyKey throttles an account whose requests fail, before their bodies are read.
func (r *replica) verifyKey(ctx context.Context, key string) (account string, err error) {
	account, err = r.keys.VerifyKey(ctx, key)
	if err != nil {
		return "", err
	}
	return account, r.failures.admit(ctx, account)
}

// notedBots are the bots in the database. It keeps a bot's settings in the turn,
// so that a chat queries the database once, bounds how often an account can list
// bots, and rejects chats of a bot whose runtime this replica lacks, which another
// may have.
type notedBots struct {
	*postgres.Database
	lists      *throttle
	hasRuntime func(name string) bool
}

func (b notedBots) Bots(ctx context.Context) ([]botapi.Bot, error) {
	if err := b.lists.wait(ctx, botapi.AccountFrom(ctx)); err != nil {
		return nil, err
	}
	return b.Database.Bots(ctx)
}

func (b notedBots) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	found, err := b.Database.BotByUID(ctx, uid)
	return b.noted(ctx, found, err)
}

func (b notedBots) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	found, err := b.Database.BotBySlug(ctx, slug)
	return b.noted(ctx, found, err)
}

func (b notedBots) noted(ctx context.Context, found postgres.Bot, err error) (botapi.Bot, error) {
	turnOf(ctx).settings = found.Settings
	if err == nil && found.Runtime != "" && !b.hasRuntime(found.Runtime) { // its row was changed directly: import and publish reject it
		err = &botapi.StatusError{
			Status:     http.StatusServiceUnavailable,
			Detail:     "The model is unavailable for the moment",
			RetryAfter: 10 * time.Second,
			Err:        fmt.Errorf("bot %q: no runtime is configured as %q", found.UID, found.Runtime),
		}
	}
	return found.Bot, err
}

// notedLogger logs the lines of requests that are still being answered.
func (r *replica) notedLogger() *slog.Logger { return slog.New(notedLines{r.logger.Handler()}) }

// observed gives each request its span and its metrics. An aborted stream leaves
// its handler by a panic, which would skip both, so the panic is delayed until
// they are written.
func (r *replica) observed(next http.Handler) http.Handler {
	observe := otelhttp.NewMiddleware("api",
		otelhttp.WithTracerProvider(r.telemetry.Traces),
		otelhttp.WithMeterProvider(r.telemetry.Metrics),
		otelhttp.WithPropagators(r.telemetry.Propagator),
		// Clients are not trusted to decide what is sampled: a trace that
		// comes with a request is linked, not continued.
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }))
	return http.HandlerFunc(func(client http.ResponseWriter, asked *http.Request) {
		var aborted any
		observe(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			t := turnOf(req.Context())
			defer func() {
				req.Pattern = t.route // otelhttp reads it when this has returned, for the metrics
				if _, path, ok := strings.Cut(t.route, " "); ok {
					trace.SpanFromContext(req.Context()).SetAttributes(semconv.HTTPRoute(path))
				}
				if aborted = recover(); aborted != nil {
					markAborted(req)
				}
			}()
			next.ServeHTTP(&head{client, w, t, req.Header.Get(tryElsewhere) == "425"}, req)
		})).ServeHTTP(client, asked)
		if aborted != nil {
			panic(aborted)
		}
	})
}

// markAborted distinguishes an aborted stream from a complete one: both have
// status 200.
func markAborted(r *http.Request) {
	const reason = "aborted"
	trace.SpanFromContext(r.Context()).SetStatus(codes.Error, reason)
	if labels, ok := otelhttp.LabelerFromContext(r.Context()); ok {
		labels.Add(attribute.String("error.type", reason))
	}
}
