package telemetry

import (
	"context"
	"io"
	"log/slog"

	"example.com/botapi"
	"go.opentelemetry.io/otel/trace"
)

// NewLogger returns a logger that writes JSON lines. A line that is logged with
// a request's context has its request_id, client, trace_id and span_id. client returns the
// client's address, or "".
func NewLogger(w io.Writer, level slog.Leveler, client func(context.Context) string) *slog.Logger {
	return slog.New(identified{slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}), client})
}

// identified adds the ids of a context.
type identified struct {
	slog.Handler
	client func(context.Context) string
}

func (h identified) Handle(ctx context.Context, record slog.Record) error {
	record = record.Clone()
	if id := botapi.RequestIDFrom(ctx); id != "" && !has(record, "request_id") {
		record.AddAttrs(slog.String("request_id", id))
	}
	if client := h.client(ctx); client != "" {
		record.AddAttrs(slog.String("client", client))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		record.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.Handler.Handle(ctx, record)
}

// has reports whether a line already has an attribute: botapi adds the request
// id to its own lines.
func has(record slog.Record, key string) (found bool) {
	record.Attrs(func(a slog.Attr) bool {
		found = a.Key == key
		return !found
	})
	return found
}

func (h identified) WithAttrs(attrs []slog.Attr) slog.Handler {
	return identified{h.Handler.WithAttrs(attrs), h.client}
}

func (h identified) WithGroup(name string) slog.Handler {
	return identified{h.Handler.WithGroup(name), h.client}
}
