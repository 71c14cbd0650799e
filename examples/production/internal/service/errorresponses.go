package service

import (
	"encoding/json"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// countingErrors counts error responses by the detail that they send. All those
// texts are written in code, so that no client can create time series.
func (r *replica) countingErrors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		response := &errorWriter{ResponseWriter: w}
		defer func() {
			if response.status == http.StatusTooManyRequests {
				if account := turnOf(req.Context()).account; account != "" {
					r.rejected.saw(account)
				}
			}
			if response.status >= http.StatusBadRequest {
				r.errorResponses.Add(req.Context(), 1, metric.WithAttributes(
					semconv.HTTPResponseStatusCode(response.status), attribute.String("reason", response.reason)))
			}
		}()
		next.ServeHTTP(response, req)
	})
}

// errorWriter notes the status and the detail of an error response.
type errorWriter struct {
	http.ResponseWriter
	status int
	reason string
}

func (w *errorWriter) WriteHeader(status int) {
	w.status, w.reason = status, http.StatusText(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write reads the detail from the first write: botapi sends an error response in
// one. For a list, of what is wrong with a body, the reason is the name of the
// status.
func (w *errorWriter) Write(p []byte) (int, error) {
	if w.status >= http.StatusBadRequest {
		var failure struct{ Detail string }
		if json.Unmarshal(p, &failure) == nil && failure.Detail != "" {
			w.reason = failure.Detail
		}
	}
	return w.ResponseWriter.Write(p)
}

func (w *errorWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
