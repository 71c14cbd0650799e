package service

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"example.com/botapi"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
)

// handler is everything that this replica answers. Paths are switched on by
// hand because http.ServeMux redirects some, and a redirected POST is lost.
func (r *replica) handler(engine botapi.ChatEngine) http.Handler {
	api := r.api(engine)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/health-check":
			w.WriteHeader(http.StatusOK) // the process is alive; published clients ask for it
		case "/readyz":
			r.readiness.ServeHTTP(w, req)
		case "/metrics":
			r.telemetry.Prometheus.ServeHTTP(w, req)
		default:
			api.ServeHTTP(w, req)
		}
	})
}

// api is the interface itself, with its traces and metrics.
func (r *replica) api(engine botapi.ChatEngine) http.Handler {
	api := botapi.New(botapi.Options{
		Bots:               r.database,
		Keys:               botapi.CacheKeys(r.database, r.config.KeyCache),
		Engine:             engine,
		ChatTimeout:        r.config.ChatTimeout,
		MaxConcurrentChats: r.config.MaxChats,
		MaxChatsPerAccount: r.config.MaxChatsPerAccount,
		Logger:             r.logger,
		OnChat:             r.onChat,
	})
	return otelhttp.NewHandler(named(api), "api",
		otelhttp.WithTracerProvider(r.telemetry.Traces),
		otelhttp.WithMeterProvider(r.telemetry.Metrics),
		otelhttp.WithPropagators(r.telemetry.Propagator),
		// Clients are not trusted to decide what is sampled: a trace that
		// comes with a request is linked, not continued.
		otelhttp.WithPublicEndpointFn(func(*http.Request) bool { return true }))
}

// named gives spans and metrics their route. Unknown paths have none: a
// scanner must not make a time series of each path that it tries.
func named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/bots", "/bots", "/v1/chat", "/chat":
			r.Pattern = r.URL.Path
		}
		next.ServeHTTP(w, r)
	})
}

// onChat writes one line and one record for each chat. The line leaves out the
// end user, who is in the record.
func (r *replica) onChat(ctx context.Context, report botapi.ChatReport) {
	attributes := []slog.Attr{
		slog.String("account", report.Account),
		slog.String("bot", report.Bot.Slug),
		slog.Bool("stream", report.Stream),
		slog.Int("status", report.Status),
		slog.Int("fragments", report.Fragments),
		slog.Int64("bytes", report.Bytes),
		slog.Float64("first_fragment_ms", milliseconds(report.FirstFragment)),
		slog.Float64("duration_ms", milliseconds(report.Duration)),
	}
	if report.Err != nil {
		attributes = append(attributes, slog.Any("error", report.Err))
	}
	r.logger.LogAttrs(ctx, slog.LevelInfo, "chat", attributes...)
	r.usage.OnChat(ctx, report)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
