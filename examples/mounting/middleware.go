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

// CORS lets pages of other origins, such as https://app.example.com, use all that mux
// serves: botapi, its answers with a key, and the doors for OpenAI's, useChat's and
// Ollama's clients. "*" stands for all origins. Without origins, it does nothing.
//
// The middleware wraps the router, not single routes: a browser first sends an OPTIONS
// request (a preflight), without a key, and a page can read an error only with these
// headers. All request headers are allowed, since clients send headers of their own,
// and newer versions send more: OpenAI's has a dozen. Browsers hide most response
// headers from pages; ExposedHeaders lists those that clients read.
//
// Keys are sent in a header, and no cookies. A page that logs in with a cookie needs
// AllowCredentials, and then never "*": any page could act for its visitor.
func CORS(mux http.Handler, origins ...string) http.Handler {
	if len(origins) == 0 {
		return mux // to the library, no origins are all
	}
	return cors.New(cors.Options{
		AllowedOrigins: origins,
		AllowedMethods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete},
		AllowedHeaders: []string{"*"},
		ExposedHeaders: []string{"ETag", "Retry-After", "WWW-Authenticate", "X-Botapi-Answer", "X-Request-Id"},
		MaxAge:         7200, // seconds, the most that Chromium remembers; without it, preflights come every 5
	}).Handler(mux)
}
