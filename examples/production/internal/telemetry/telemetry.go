// Package telemetry makes the service visible from outside: traces, metrics
// and logs.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

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

// Telemetry is what the parts of the service report to.
type Telemetry struct {
	Traces     *trace.TracerProvider
	Metrics    *metric.MeterProvider
	Propagator propagation.TextMapPropagator
	Prometheus http.Handler // serves /metrics
}

// New sets telemetry up. Metrics are there to be scraped. Traces are sent only
// where the standard variables say so (OTEL_EXPORTER_OTLP_ENDPOINT or
// OTEL_EXPORTER_OTLP_TRACES_ENDPOINT); the OTEL_TRACES_SAMPLER and
// OTEL_RESOURCE_ATTRIBUTES variables count too. What goes wrong later, as when
// a collector is away, is in the log.
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
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector())
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return nil, fmt.Errorf("preparing the metrics: %w", err)
	}
	t.Metrics = metric.NewMeterProvider(metric.WithReader(exporter), metric.WithResource(described),
		metric.WithView(views...),
		metric.WithExemplarFilter(exemplar.AlwaysOffFilter)) // they would hold what the views leave out
	t.Prometheus = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})

	options := []trace.TracerProviderOption{trace.WithResource(described)}
	if tracesWanted() {
		exporter, err := otlptracehttp.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("preparing the traces: %w", err)
		}
		options = append(options, trace.WithBatcher(exporter))
	} else {
		// Spans have ids, for the log and for the runtimes, and nobody sees more of
		// them: what would be in them is not kept.
		options = append(options, trace.WithRawSpanLimits(trace.SpanLimits{}))
	}
	t.Traces = trace.NewTracerProvider(options...)
	return t, nil
}

// The buckets of the HTTP histograms, to the longest chat.
var seconds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640}

// views make the metrics of HTTP requests what they should be here. A label
// whose value a client chooses, as the host is, would let anybody make time
// series until there is no room for real ones: requests that are served have
// the labels that are named here and no others.
var views = []metric.View{
	metric.NewView(metric.Instrument{Name: "http.server.request.duration"}, served(seconds)),
	metric.NewView(metric.Instrument{Name: "http.server.*.body.size"}, metric.Stream{Aggregation: metric.AggregationDrop{}}), // it does not see answers
	metric.NewView(metric.Instrument{Name: "http.client.request.duration"}, metric.Stream{Aggregation: buckets(seconds)}),
}

func served(boundaries []float64) metric.Stream {
	return metric.Stream{
		Aggregation: buckets(boundaries),
		AttributeFilter: attribute.NewAllowKeysFilter(
			semconv.HTTPRequestMethodKey, semconv.HTTPRouteKey, semconv.HTTPResponseStatusCodeKey, semconv.ErrorTypeKey),
	}
}

func buckets(boundaries []float64) metric.Aggregation {
	return metric.AggregationExplicitBucketHistogram{Boundaries: boundaries}
}

func tracesWanted() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Close sends what has not been sent yet, as long as ctx lasts.
func (t *Telemetry) Close(ctx context.Context) error {
	return errors.Join(t.Traces.Shutdown(ctx), t.Metrics.Shutdown(ctx))
}
