package service

import (
	"context"
	"errors"

	"example.com/botapi/examples/production/internal/usage"
	"go.opentelemetry.io/otel/metric"
)

const scope = "example.com/botapi/examples/production/internal/service"

// measure makes the replica's own metrics.
func (r *replica) measure() (err error) {
	meter := r.telemetry.Metrics.Meter(scope)
	r.refusals, err = meter.Int64Counter("botapi.refusals",
		metric.WithDescription("Answers that are errors, by what they tell the client, also those that the proxy then took elsewhere."))
	return errors.Join(err, r.measureDatabase(meter), r.measureUsage(meter))
}

// measureDatabase lets the metrics have what this replica knows of its
// database.
func (r *replica) measureDatabase(meter metric.Meter) error {
	reachable, err1 := meter.Int64ObservableGauge("botapi.database.reachable",
		metric.WithDescription("Whether this replica reached its database the last time it looked."))
	used, err2 := meter.Int64ObservableGauge("botapi.database.connections",
		metric.WithDescription("Connections to the database that are in use."))
	most, err3 := meter.Int64ObservableGauge("botapi.database.connections.limit",
		metric.WithDescription("Connections to the database that there may be."))
	_, err4 := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		var reaches int64
		if r.readiness.reaches.Load() {
			reaches = 1
		}
		inUse, limit := r.database.Connections()
		o.ObserveInt64(reachable, reaches)
		o.ObserveInt64(used, int64(inUse))
		o.ObserveInt64(most, int64(limit))
		return nil
	}, reachable, used, most)
	return errors.Join(err1, err2, err3, err4)
}

// measureUsage lets the metrics have what is not in the usage table yet, and
// what will never be.
func (r *replica) measureUsage(meter metric.Meter) error {
	records, err1 := meter.Int64ObservableGauge("botapi.usage.waiting.records",
		metric.WithDescription("Records of usage that wait for the database."))
	size, err2 := meter.Int64ObservableGauge("botapi.usage.waiting", metric.WithUnit("By"),
		metric.WithDescription("Memory of the records of usage that wait for the database."))
	most, err3 := meter.Int64ObservableGauge("botapi.usage.waiting.limit", metric.WithUnit("By"),
		metric.WithDescription("Memory for the records of usage that wait; what does not fit goes to the log."))
	notStored, err4 := meter.Int64ObservableCounter("botapi.usage.not_stored",
		metric.WithDescription("Records of usage that are in the log and not in the database."))
	_, err5 := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		backlog := r.usage.Backlog()
		o.ObserveInt64(records, backlog.Records)
		o.ObserveInt64(size, backlog.Bytes)
		o.ObserveInt64(most, usage.QueueBytes)
		o.ObserveInt64(notStored, backlog.NotStored)
		return nil
	}, records, size, most, notStored)
	return errors.Join(err1, err2, err3, err4, err5)
}
