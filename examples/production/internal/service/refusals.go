package service

import (
	"encoding/json"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// countingRefusals counts the answers that are errors by what they tell the
// client. All those texts are written in code, so that no client can make time
// series with them.
func (r *replica) countingRefusals(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer := &refusalWriter{ResponseWriter: w}
		defer func() {
			if answer.status >= http.StatusBadRequest {
				r.refusals.Add(req.Context(), 1, metric.WithAttributes(
					semconv.HTTPResponseStatusCode(answer.status), attribute.String("reason", answer.reason)))
			}
		}()
		next.ServeHTTP(answer, req)
	})
}

// refusalWriter notes what an error tells the client.
type refusalWriter struct {
	http.ResponseWriter
	status int
	reason string
}

func (w *refusalWriter) WriteHeader(status int) {
	w.status, w.reason = status, http.StatusText(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write reads an error out of the first write: the package sends one whole. One
// that is a list, of what is wrong with a body, keeps the name of its status.
func (w *refusalWriter) Write(p []byte) (int, error) {
	if w.status >= http.StatusBadRequest {
		var refusal struct{ Detail string }
		if json.Unmarshal(p, &refusal) == nil && refusal.Detail != "" {
			w.reason = refusal.Detail
		}
	}
	return w.ResponseWriter.Write(p)
}

func (w *refusalWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
