package service

import (
	"context"
	"errors"

	"example.com/botapi/examples/production/internal/usage"
	"example.com/botapi/examples/resume"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

const scope = "example.com/botapi/examples/production/internal/service"

// measure creates the replica's own metrics.
func (r *replica) measure() (err error) {
	meter := r.telemetry.Metrics.Meter(scope)
	r.errorResponses, err = meter.Int64Counter("botapi.error_responses",
		metric.WithDescription("Error responses by status and reason, including those that the proxy then retried on another replica."))
	var err2 error
	r.tokens, err2 = meter.Int64Counter("botapi.tokens", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens that chats have used, by how they are known: reported, or estimated because the runtime had not reported them, the answer is incomplete, or the report was absurd."))
	return errors.Join(err, err2, r.measureDatabase(meter), r.measureUsage(meter), r.measureLog(meter))
}

// countTokens counts the tokens of a chat that has ended.
func (r *replica) countTokens(ctx context.Context, runtime string, t usage.Tokens, why string) {
	known := metric.WithAttributes(attribute.String("runtime", runtime), attribute.String("known", why))
	r.tokens.Add(ctx, t.Prompt, known, metric.WithAttributes(semconv.GenAITokenTypeInput))
	r.tokens.Add(ctx, t.Completion, known, metric.WithAttributes(semconv.GenAITokenTypeOutput))
}

// measureLog creates the metric of a log that nobody reads.
func (r *replica) measureLog(meter metric.Meter) error {
	if r.config.LogLinesLost == nil {
		return nil
	}
	_, err := meter.Int64ObservableCounter("botapi.log.lines_lost",
		metric.WithDescription("Log lines that were dropped because nobody read the log."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(r.config.LogLinesLost())
			return nil
		}))
	return err
}

// measureDatabase creates the metrics of the database connections.
func (r *replica) measureDatabase(meter metric.Meter) error {
	reachable, err1 := meter.Int64ObservableGauge("botapi.database.reachable",
		metric.WithDescription("Whether this replica reached its database at the last check."))
	used, err2 := meter.Int64ObservableGauge("botapi.database.connections",
		metric.WithDescription("Database connections in use."))
	most, err3 := meter.Int64ObservableGauge("botapi.database.connections.limit",
		metric.WithDescription("The maximum of database connections."))
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

// measureUsage creates the metrics of usage that is not stored yet, or will
// never be.
func (r *replica) measureUsage(meter metric.Meter) error {
	records, err1 := meter.Int64ObservableGauge("botapi.usage.waiting.records",
		metric.WithDescription("Usage records that wait for the database."))
	size, err2 := meter.Int64ObservableGauge("botapi.usage.waiting", metric.WithUnit("By"),
		metric.WithDescription("Memory of the usage records that wait for the database."))
	most, err3 := meter.Int64ObservableGauge("botapi.usage.waiting.limit", metric.WithUnit("By"),
		metric.WithDescription("The maximum memory of waiting usage records; records that do not fit are written to the log."))
	notStored, err4 := meter.Int64ObservableCounter("botapi.usage.not_stored",
		metric.WithDescription("Usage records that are in the log and not in the database."))
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

// measureAnswers creates the metric of answers in progress; their store has the
// others.
func (r *replica) measureAnswers(engine *resume.Engine) error {
	_, err := r.telemetry.Metrics.Meter(scope).Int64ObservableGauge("botapi.answers.in_progress",
		metric.WithDescription("Answers with an Idempotency-Key in progress in this replica, and whether they have the client that started them."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			all, alone := engine.InProgress()
			o.Observe(int64(all-alone), metric.WithAttributes(attribute.Bool("client", true)))
			o.Observe(int64(alone), metric.WithAttributes(attribute.Bool("client", false)))
			return nil
		}))
	return err
}
