package service

import (
	"log/slog"
	"net/http"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// public serves everything that clients can reach. It compares paths itself
// because http.ServeMux redirects some, and a redirected POST is lost.
func (r *replica) public(engine botapi.ChatEngine) http.Handler {
	api := r.identified(r.observed(r.openAI(r.responding(r.api(engine)))))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/health-check" {
			w.WriteHeader(http.StatusOK) // the process is alive; the published Python client requests this
			return
		}
		api.ServeHTTP(w, req)
	})
}

// openAI also serves OpenAI-compatible clients, if that is configured. The
// handlers that it wraps count and log their chats like all others.
func (r *replica) openAI(api http.Handler) http.Handler {
	if !r.config.OpenAI {
		return api
	}
	return openai.NewHandler(api, openai.HandlerOptions{MaxBodyBytes: r.config.MaxBodyBytes, Logger: r.notedLogger()})
}

// internal serves the proxy, probes and Prometheus, at an address that clients
// cannot reach.
func (r *replica) internal() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", r.readiness.serveReady)
	mux.HandleFunc("GET /readyz-without-database", r.readiness.serveWithoutDatabase)
	mux.Handle("GET /metrics", r.telemetry.Prometheus)
	return mux
}

// api serves the API.
func (r *replica) api(engine botapi.ChatEngine) http.Handler {
	keys := notedKeys(botapi.CacheKeys(r.database, r.config.KeyCache), r.failures)
	return r.resumable(botapi.New(botapi.Options{
		Bots:               notedBots{r.database, r.lists, r.hasRuntime},
		Keys:               keys,
		Engine:             engine,
		MaxBodyBytes:       r.config.MaxBodyBytes,
		ChatTimeout:        r.config.ChatTimeout,
		StallTimeout:       r.config.StallTimeout,
		MaxConcurrentChats: r.config.MaxChats,
		MaxChatsPerAccount: r.config.MaxChatsPerAccount,
		Logger:             r.notedLogger(),
		OnChat:             r.onChat,
	}), keys)
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
		asked.Pattern = route(asked)
		observe(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			defer func() {
				if aborted = recover(); aborted != nil {
					markAborted(req)
				}
			}()
			next.ServeHTTP(&headObserver{client, w}, req)
		})).ServeHTTP(client, asked)
		if aborted != nil {
			panic(aborted)
		}
	})
}

// A headObserver passes only the status to the observing writer. The body goes
// to the client directly, so that each fragment of a stream costs less.
type headObserver struct {
	http.ResponseWriter // the client's
	observing           http.ResponseWriter
}

func (w *headObserver) WriteHeader(status int) { w.observing.WriteHeader(status) }

func (w *headObserver) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// route is the path of an operation. Unknown paths have none, so that a scanner
// does not create a time series for each path that it tries.
func route(r *http.Request) string {
	switch r.URL.Path {
	case "/v1/bots", "/bots", "/v1/chat", "/chat", "/v1/answers", "/answers", // and of the OpenAI-compatible API:
		"/v1/models", "/models", "/v1/chat/completions", "/chat/completions", "/v1/responses", "/responses":
		return r.URL.Path
	}
	for _, below := range []string{"/v1/models/", "/models/"} {
		if strings.HasPrefix(r.URL.Path, below) {
			return below
		}
	}
	return ""
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
