package service

import (
	"encoding/json"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

const (
	// tryElsewhere is the header by which the proxy says that it can ask another
	// replica, and which status requests that.
	tryElsewhere = "X-Botapi-Try-Elsewhere"

	// statusTryElsewhere is a status that this service does not use otherwise. A
	// 503 would not say whether a model was asked.
	statusTryElsewhere = http.StatusTooEarly
)

// responding counts error responses, by the detail that they send, and logs the
// notes of a request that has started no chat. All those details are written in
// code, so that no client can create time series.
func (r *replica) responding(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, t := req.Context(), turnOf(req.Context())
		response := &response{
			ResponseWriter: w,
			turn:           t,
			elsewhere:      req.Header.Get(tryElsewhere) == "425",
		}
		defer func() {
			if response.status == http.StatusTooManyRequests && t.account != "" {
				r.rejected.saw(t.account)
			}
			if t.account != "" && response.costsNoSlot() {
				r.failures.count(t.account)
			}
			if response.status >= http.StatusBadRequest {
				r.errorResponses.Add(ctx, 1, metric.WithAttributes(
					semconv.HTTPResponseStatusCode(response.status), attribute.String("reason", response.reason)))
			}
			if t.ended.Load() == 0 { // otherwise, see end
				r.logNotes(ctx, t)
			}
		}()
		next.ServeHTTP(response, req)
	})
}

// A response notes the status and the detail of an error response. It lets the
// proxy retry a request on another replica if this one cannot serve it and no
// model was asked.
type response struct {
	http.ResponseWriter
	turn      *turn
	elsewhere bool // the proxy can ask another replica
	status    int
	reason    string
}

func (w *response) WriteHeader(status int) {
	w.status, w.reason = status, http.StatusText(status)
	if w.elsewhere && status == http.StatusServiceUnavailable && w.turn.outcome.CompareAndSwap(open, handedBack) {
		status = statusTryElsewhere
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write reads the detail from the first write: botapi sends an error response in
// one. For a list, of what is wrong with a body, the reason is the name of the
// status.
func (w *response) Write(p []byte) (int, error) {
	if w.status >= http.StatusBadRequest {
		var failure struct{ Detail string }
		if json.Unmarshal(p, &failure) == nil && failure.Detail != "" {
			w.reason = failure.Detail
		}
	}
	return w.ResponseWriter.Write(p)
}

// costsNoSlot reports whether a request has failed through its client, or stopped an
// answer. Those that were throttled count already.
func (w *response) costsNoSlot() bool {
	failed := http.StatusBadRequest <= w.status && w.status < http.StatusInternalServerError
	return failed && w.reason != errThrottled.Detail || w.status == http.StatusNoContent
}

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
