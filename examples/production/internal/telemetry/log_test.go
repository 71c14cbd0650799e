package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/trace"
)

// TestLinesOfARequest logs what an application and what botapi itself report
// about one request: each line names the request and its trace, once.
func TestLinesOfARequest(t *testing.T) {
	is := is.New(t)
	var log bytes.Buffer
	logger := telemetry.NewLogger(&log, slog.LevelInfo, func(ctx context.Context) string { return "192.0.2." + botapi.RequestIDFrom(ctx) })
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	is.NoErr(err)
	h := botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"key": "acme"}),
		Logger: logger,
		Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			logger.With("part", "engine").InfoContext(ctx, "about to fail")
			return func(yield func(string, error) bool) { yield("", errors.New("out of order")) }
		}),
	})
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	ctx := trace.ContextWithSpanContext(t.Context(), span)
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":false}`))
	r.Header.Set("Authorization", "Bearer key")
	r.Header.Set("X-Request-Id", "request-1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)

	is.Equal(w.Code, http.StatusInternalServerError)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	is.Equal(len(lines), 2)
	is.True(strings.Contains(lines[0], `"msg":"about to fail","part":"engine"`))
	is.True(strings.Contains(lines[1], "out of order"))
	for _, line := range lines {
		is.Equal(strings.Count(line, `"request_id":"request-1"`), 1)
		is.Equal(strings.Count(line, `"client":"192.0.2.request-1"`), 1)
		is.Equal(strings.Count(line, `"trace_id":"01000000000000000000000000000000"`), 1)
		is.Equal(strings.Count(line, `"span_id":"0200000000000000"`), 1)
	}
}

func TestLevel(t *testing.T) {
	is := is.New(t)
	var log bytes.Buffer
	logger := telemetry.NewLogger(&log, slog.LevelWarn, func(context.Context) string { return "" })
	logger.Info("no")
	is.Equal(log.Len(), 0)
	logger.Warn("yes")
	is.True(!strings.Contains(log.String(), "request_id")) // there is none
	is.True(!strings.Contains(log.String(), "client"))
}
