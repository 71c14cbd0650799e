// Package telemetry sets up traces, metrics and logs.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/exemplar"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// Telemetry has the providers that the packages of the service report to.
type Telemetry struct {
	Traces     *trace.TracerProvider
	Metrics    *metric.MeterProvider
	Propagator propagation.TextMapPropagator
	Prometheus http.Handler // serves /metrics
}

// New sets telemetry up. Metrics are scraped. Traces are sent only if the
// standard variables say where (OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT); OTEL_TRACES_SAMPLER and
// OTEL_RESOURCE_ATTRIBUTES are respected, too. Later failures, such as an
// unreachable collector, are logged.
func New(ctx context.Context, service string, logger *slog.Logger) (*Telemetry, error) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		logger.Warn("telemetry failed", slog.Any("error", err))
	}))
	described, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName(service)),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describing the service to OpenTelemetry: %w", err)
	}
	t := &Telemetry{Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(live), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, fmt.Errorf("preparing the metrics: %w", err)
	}
	t.Metrics = metric.NewMeterProvider(metric.WithReader(exporter), metric.WithResource(described),
		metric.WithView(views...),
		metric.WithExemplarFilter(exemplar.AlwaysOffFilter)) // exemplars would contain what the views omit
	t.Prometheus = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	options := []trace.TracerProviderOption{trace.WithResource(described)}
	if tracesWanted() {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("preparing the traces: %w", err)
		}
		options = append(options, trace.WithBatcher(exporter))
	} else {
		// Nobody receives the spans. They have ids, for the log and the
		// runtimes, but keep nothing else.
		options = append(options, trace.WithRawSpanLimits(trace.SpanLimits{}))
	}
	t.Traces = trace.NewTracerProvider(options...)
	return t, nil
}

// live adds what a garbage collection cannot free, for an alert: unlike the memory
// in use, it does not grow to GOMEMLIMIT when nothing is wrong.
var live = collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: regexp.MustCompile(`^/gc/heap/live:bytes$`)})

// The buckets of the HTTP histograms, to the longest chat.
var seconds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}

// views restricts the metrics of HTTP requests. A label whose value a client
// chooses, such as the Host header, would let anybody create time series without
// limit. So served requests have only the labels that are named here.
var views = []metric.View{
	metric.NewView(metric.Instrument{Name: "http.server.request.duration"}, metric.Stream{
		Aggregation: buckets(seconds),
		AttributeFilter: attribute.NewAllowKeysFilter(
			semconv.HTTPRequestMethodKey, semconv.HTTPRouteKey, semconv.HTTPResponseStatusCodeKey, semconv.ErrorTypeKey),
	}),
	metric.NewView(metric.Instrument{Name: "http.server.*.body.size"}, metric.Stream{Aggregation: metric.AggregationDrop{}}), // headObserver hides bodies from it
	metric.NewView(metric.Instrument{Name: "http.client.request.duration"}, metric.Stream{Aggregation: buckets(seconds)}),
}

func buckets(boundaries []float64) metric.Aggregation {
	return metric.AggregationExplicitBucketHistogram{Boundaries: boundaries}
}

func tracesWanted() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}
