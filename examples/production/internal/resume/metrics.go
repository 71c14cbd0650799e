package resume

import (
	"context"
	"errors"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scope = "example.com/botapi/examples/production/internal/resume"

// measured has the metrics of answers.
type measured struct {
	chats, left metric.Int64Counter
	large       metric.Int64Counter
	gauges      metric.Registration
	bytes       atomic.Int64 // of all answers, at the last claim of this replica
}

func measure(e *Engine, provider metric.MeterProvider) (*measured, error) {
	m, meter := new(measured), provider.Meter(scope)
	var errs [8]error
	m.chats, errs[0] = meter.Int64Counter("botapi.keyed.chats",
		metric.WithDescription("Chats with an Idempotency-Key, by outcome, and why their answer is not kept."))
	m.left, errs[1] = meter.Int64Counter("botapi.answers.abandoned",
		metric.WithDescription("Answers that were ended without a client: none returned in time, or their account had too many."))
	m.large, errs[2] = meter.Int64Counter("botapi.answers.outgrown",
		metric.WithDescription("Answers that outgrew their room, and were no longer kept."))
	inProgress, err := meter.Int64ObservableGauge("botapi.answers.in_progress",
		metric.WithDescription("Answers with an Idempotency-Key in progress in this replica, and whether they have a client."))
	errs[3] = err
	bytes, err := meter.Int64ObservableGauge("botapi.answers.kept", metric.WithUnit("By"),
		metric.WithDescription("Memory of answers in Redis, as this replica last saw it."))
	errs[4] = err
	limit, err := meter.Int64ObservableGauge("botapi.answers.kept.limit", metric.WithUnit("By"),
		metric.WithDescription("Maximum memory of answers in Redis."))
	errs[5] = err
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	m.gauges, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		with, without := e.inProgress()
		o.ObserveInt64(inProgress, with, metric.WithAttributes(attribute.Bool("client", true)))
		o.ObserveInt64(inProgress, without, metric.WithAttributes(attribute.Bool("client", false)))
		o.ObserveInt64(bytes, m.bytes.Load())
		o.ObserveInt64(limit, e.options.AllBytes)
		return nil
	}, inProgress, bytes, limit)
	m.large.Add(context.Background(), 0) // export 0 instead of nothing
	for _, state := range []string{stateAbandoned, stateDisplaced} {
		m.left.Add(context.Background(), 0, metric.WithAttributes(attribute.String("reason", state)))
	}
	return m, err
}

// inProgress counts the answers of this replica, with and without the client
// that started them.
func (e *Engine) inProgress() (with, without int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.answers {
		if a.load().unattended {
			without++
		} else {
			with++
		}
	}
	return with, without
}

func (m *measured) chat(ctx context.Context, o Outcome, reason string) {
	m.chats.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", string(o)), attribute.String("reason", reason)))
}

func (m *measured) sawBytes(c claimed) {
	if c.bytes > 0 {
		m.bytes.Store(c.bytes)
	}
}

func (m *measured) abandoned(ctx context.Context, state string) {
	m.left.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", state)))
}

func (m *measured) outgrown(ctx context.Context) { m.large.Add(ctx, 1) }

// end unregisters the gauges, which read from the engine.
func (m *measured) end() { _ = m.gauges.Unregister() }
