package mounting

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/rs/cors"
)

// Middleware mounts h behind middleware that a host writes itself. It works
// around any router that is an http.Handler.
func Middleware(h http.Handler, logger *slog.Logger) http.Handler {
	return logRequests(logger, recoverPanics(logger, ServeMux(h)))
}

// recoverPanics answers a panic of the host's own routes with a 500.
// http.ErrAbortHandler is no failure but an order to cut the connection, which
// only net/http can carry out.
func recoverPanics(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}
			logger.ErrorContext(r.Context(), "handler panicked", "panic", v)
			w.WriteHeader(http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, r)
	})
}

// logRequests logs each request when its answer has ended. It does so in a
// deferred function, because a stream that breaks ends with a panic. The id is
// the one that the client was sent and that botapi logs.
func logRequests(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		answer := &statusWriter{ResponseWriter: w}
		defer func() {
			logger.InfoContext(r.Context(), "request",
				"method", r.Method,
				"path", r.URL.Path,
				"status", answer.status,
				"duration", time.Since(began),
				"request_id", w.Header().Get("X-Request-Id"))
		}()
		next.ServeHTTP(answer, r)
	})
}

// A statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int // 0 until there is one
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find the writer that can flush and that
// has deadlines. Without it, a stream would be delivered whole at its end.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// CORS mounts h for pages of other origins.
//
// The middleware goes around the router, not around single routes: a browser
// asks with OPTIONS first, and without a key. Browsers hide all but a few
// headers from a page; these are worth showing.
func CORS(h http.Handler, origins ...string) http.Handler {
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost},
		AllowedHeaders: []string{"Authorization", "Content-Type", "If-None-Match", "X-Request-Id"},
		ExposedHeaders: []string{"ETag", "Retry-After", "WWW-Authenticate", "X-Request-Id"},
	}).Handler(ServeMux(h))
}
