package runtimes_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/postgres"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// seen is the telemetry of an engine.
type seen struct {
	spans  *tracetest.SpanRecorder
	reader *metric.ManualReader
}

// watched returns a service whose runtime answers so, and its telemetry.
func watched(t *testing.T, answer func(*runtimetest.Stream, *runtimetest.Request)) (service string, s seen) {
	t.Helper()
	s = seen{spans: tracetest.NewSpanRecorder(), reader: metric.NewManualReader()}
	o := options(t, runtimetest.New(t, answer).URL)
	o.Settings = func(context.Context, string) (postgres.Settings, error) {
		return postgres.Settings{Instructions: "SECRET instructions", Temperature: new(0.5)}, nil
	}
	o.TracerProvider = trace.NewTracerProvider(trace.WithSpanProcessor(s.spans))
	o.MeterProvider = metric.NewMeterProvider(metric.WithReader(s.reader))
	return serve(t, o), s
}

// chat returns the span of the only chat, which contains the HTTP request's.
func (s seen) chat(t *testing.T) (span trace.ReadOnlySpan, attributes map[attribute.Key]string) {
	t.Helper()
	ended := s.spans.Ended()
	if len(ended) != 2 {
		t.Fatalf("%d spans", len(ended))
	}
	request, span := ended[0], ended[1]
	if request.Parent().SpanID() != span.SpanContext().SpanID() {
		t.Fatalf("%q is not inside %q", request.Name(), span.Name())
	}
	attributes = make(map[attribute.Key]string)
	for _, a := range span.Attributes() {
		attributes[a.Key] = a.Value.String()
	}
	return span, attributes
}

// counts returns, by instrument and token type or error type, the measurements
// of a histogram, the sum of a counter, or the value of a gauge for an endpoint.
func (s seen) counts(t *testing.T) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					counts[m.Name+kind(point.Attributes)] += int64(point.Count)
				}
			case metricdata.Histogram[int64]:
				for _, point := range data.DataPoints {
					counts[m.Name+kind(point.Attributes)] += point.Sum
				}
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					counts[m.Name] += point.Value
				}
			case metricdata.Gauge[int64]:
				for _, point := range data.DataPoints {
					counts[m.Name+kind(point.Attributes)] += point.Value
				}
			}
		}
	}
	return counts
}

func kind(attributes attribute.Set) string {
	for _, key := range []attribute.Key{"gen_ai.token.type", "error.type", "endpoint"} {
		if value, ok := attributes.Value(key); ok {
			return " " + value.AsString()
		}
	}
	return ""
}

func TestTelemetryOfAChat(t *testing.T) {
	is := is.New(t)
	service, seen := watched(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Role()
		s.Text("SECRET answer")
		s.Stop()
		s.Usage(9, 7)
		s.Done()
	})
	chat(t, service, `{"bot_slug":"helper","prompt":"SECRET prompt","stream":true,"user_id":"SECRET user","max_words":10}`)

	span, attributes := seen.chat(t)
	is.Equal(span.Name(), "chat m1")
	is.Equal(span.SpanKind().String(), "client")
	is.Equal(span.Status().Code, codes.Unset)
	for key, want := range map[attribute.Key]string{
		"gen_ai.operation.name":          "chat",
		"gen_ai.provider.name":           "openai",
		"gen_ai.request.model":           "m1",
		"gen_ai.request.temperature":     "0.5",
		"gen_ai.request.max_tokens":      "30",
		"gen_ai.response.model":          "m1-2026",
		"gen_ai.response.id":             "chatcmpl-1",
		"gen_ai.response.finish_reasons": `["stop"]`,
		"gen_ai.usage.input_tokens":      "9",
		"gen_ai.usage.output_tokens":     "7",
		"server.address":                 "127.0.0.1",
	} {
		is.Equal(attributes[key], want)
	}
	is.True(attributes["gen_ai.response.time_to_first_chunk"] != "")
	is.True(!strings.Contains(fmt.Sprint(attributes), "SECRET")) // no text, and no user

	counts := seen.counts(t)
	is.Equal(counts["gen_ai.client.operation.duration"], int64(1))
	is.Equal(counts["gen_ai.client.operation.time_to_first_chunk"], int64(1))
	is.Equal(counts["gen_ai.client.token.usage input"], int64(9))
	is.Equal(counts["gen_ai.client.token.usage output"], int64(7))
	is.Equal(counts["botapi.chats.in_progress"], int64(0))
}

func TestTelemetryOfAFailure(t *testing.T) {
	is := is.New(t)
	service, seen := watched(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Refuse(401, "SECRET") })
	chat(t, service, stream)

	span, attributes := seen.chat(t)
	is.Equal(span.Status().Code, codes.Error)
	is.Equal(attributes["error.type"], "502")
	counts := seen.counts(t)
	is.Equal(counts["gen_ai.client.operation.duration 502"], int64(1))
	is.Equal(counts["gen_ai.client.operation.time_to_first_chunk"], int64(0)) // there was none
}
