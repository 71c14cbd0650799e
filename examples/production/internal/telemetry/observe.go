package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// Gauge creates a gauge of what a function returns.
func Gauge(meter metric.Meter, name, unit, description string, value func() int64) error {
	_, err := meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description), observe(value))
	return err
}

// Flag creates a gauge that is 1 while a function returns true, and 0 otherwise.
func Flag(meter metric.Meter, name, description string, so func() bool) error {
	return Gauge(meter, name, "", description, func() int64 {
		if so() {
			return 1
		}
		return 0
	})
}

// Counter creates a counter of what a function returns, which never falls.
func Counter(meter metric.Meter, name, description string, value func() int64) error {
	_, err := meter.Int64ObservableCounter(name, metric.WithDescription(description), observe(value))
	return err
}

func observe(value func() int64) metric.Int64ObservableOption {
	return metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(value())
		return nil
	})
}
