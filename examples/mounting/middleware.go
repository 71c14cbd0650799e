package mounting

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/rs/cors"
)

// Middleware wraps h in the application's own middleware, which works with any router
// that is an http.Handler.
func Middleware(h http.Handler, logger *slog.Logger) http.Handler {
	return logRequests(logger, recoverPanics(logger, ServeMux(h)))
}

// recoverPanics sends a 500 if one of the application's own routes panics.
// http.ErrAbortHandler is not a failure: it tells net/http to abort the connection,
// so it must be passed on.
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

// logRequests logs each request when its response has ended. It logs in a deferred
// function, because a failed stream ends with a panic. The id is the one that the
// client gets and that botapi logs.
func logRequests(logger *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		response := &statusWriter{ResponseWriter: w}
		defer func() {
			logger.InfoContext(r.Context(), "request",
				"method", r.Method,
				"path", r.URL.Path,
				"status", response.status,
				"duration", time.Since(began),
				"request_id", w.Header().Get("X-Request-Id"))
		}()
		next.ServeHTTP(response, r)
	})
}

// A statusWriter records the status of a response.
type statusWriter struct {
	http.ResponseWriter
	status int // 0 until it is written
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

// Unwrap lets http.ResponseController find the writer that can flush and set
// deadlines. Without it, a stream would be delivered at its end.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// CORS mounts h for pages of other origins.
//
// The middleware wraps the router, not single routes: a browser first sends an
// OPTIONS request, without a key. Browsers hide most headers from pages;
// ExposedHeaders lists the useful ones.
func CORS(h http.Handler, origins ...string) http.Handler {
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost},
		AllowedHeaders: []string{"Authorization", "Content-Type", "If-None-Match", "X-Request-Id"},
		ExposedHeaders: []string{"ETag", "Retry-After", "WWW-Authenticate", "X-Request-Id"},
	}).Handler(ServeMux(h))
}
