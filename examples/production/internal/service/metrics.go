package service

import (
	"context"
	"errors"

	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/production/internal/usage"
	"example.com/botapi/examples/resume"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

const scope = "example.com/botapi/examples/production/internal/service"

// measure creates the replica's own metrics.
func (r *replica) measure() error {
	meter := r.telemetry.Metrics.Meter(scope)
	var errs [2]error
	r.errorResponses, errs[0] = meter.Int64Counter("botapi.error_responses",
		metric.WithDescription("Error responses by status and reason, including those that the proxy then retried on another replica."))
	r.tokens, errs[1] = meter.Int64Counter("botapi.tokens", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens that chats have used, by how they are known: reported, or estimated because the runtime had not reported them, the answer is incomplete, or the report was absurd."))
	used := func() int64 { used, _ := r.database.Connections(); return int64(used) }
	most := func() int64 { _, most := r.database.Connections(); return int64(most) }
	return errors.Join(errs[0], errs[1],
		telemetry.Flag(meter, "botapi.database.reachable", "Whether this replica reached its database at the last check.", r.readiness.reaches.Load),
		telemetry.Gauge(meter, "botapi.database.connections", "", "Database connections in use.", used),
		telemetry.Gauge(meter, "botapi.database.connections.limit", "", "The maximum of database connections.", most),
		telemetry.Gauge(meter, "botapi.usage.waiting.records", "", "Usage records that wait for the database.",
			func() int64 { return r.usage.Backlog().Records }),
		telemetry.Gauge(meter, "botapi.usage.waiting", "By", "Memory of the usage records that wait for the database.",
			func() int64 { return r.usage.Backlog().Bytes }),
		telemetry.Gauge(meter, "botapi.usage.waiting.limit", "By", "The maximum memory of waiting usage records; records that do not fit are written to the log.",
			func() int64 { return usage.QueueBytes }),
		telemetry.Counter(meter, "botapi.usage.not_stored", "Usage records that are in the log and not in the database.",
			func() int64 { return r.usage.Backlog().NotStored }),
		telemetry.Counter(meter, "botapi.log.lines_lost", "Log lines that were dropped because nobody read the log.", r.config.LogLinesLost))
}

// countTokens counts the tokens of a chat that has ended.
func (r *replica) countTokens(ctx context.Context, runtime string, t usage.Tokens, why string) {
	known := metric.WithAttributes(attribute.String("runtime", runtime), attribute.String("known", why))
	r.tokens.Add(ctx, t.Prompt, known, metric.WithAttributes(semconv.GenAITokenTypeInput))
	r.tokens.Add(ctx, t.Completion, known, metric.WithAttributes(semconv.GenAITokenTypeOutput))
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
