package answers

import (
	"context"
	"errors"
	"sync/atomic"

	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/resume"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// measured has the metrics of answers.
type measured struct {
	chats, abandoned, outgrown metric.Int64Counter
	bytes                      atomic.Int64 // of all answers, at the last claim of this replica
}

func measure(meter metric.Meter, allBytes int64) (*measured, error) {
	m := new(measured)
	var errs [5]error
	m.chats, errs[0] = meter.Int64Counter("botapi.keyed.chats",
		metric.WithDescription("Chats with an Idempotency-Key, by outcome, and why their answer is not kept."))
	m.abandoned, errs[1] = meter.Int64Counter("botapi.answers.abandoned",
		metric.WithDescription("Answers that were stopped because no client returned in time."))
	m.outgrown, errs[2] = meter.Int64Counter("botapi.answers.outgrown",
		metric.WithDescription("Answers that outgrew their room, and were no longer kept."))
	errs[3] = telemetry.Gauge(meter, "botapi.answers.kept", "By", "Memory of answers in Redis, as this replica last saw it.", m.bytes.Load)
	errs[4] = telemetry.Gauge(meter, "botapi.answers.kept.limit", "By", "Maximum memory of answers in Redis.", func() int64 { return allBytes })
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	m.outgrown.Add(context.Background(), 0) // export 0 instead of nothing
	m.abandoned.Add(context.Background(), 0)
	return m, nil
}

// claimed counts a chat, unless it is rejected. all are the bytes of all answers.
func (m *measured) claimed(ctx context.Context, found resume.State, why string, all int64) {
	outcome := resume.NotKept
	switch found {
	case resume.Started:
		outcome = resume.Kept
	case resume.Found:
		outcome = resume.Joined
	case resume.NoRoom, "":
	default:
		return
	}
	if all > 0 {
		m.bytes.Store(all)
	}
	m.chats.Add(ctx, 1, metric.WithAttributes(attribute.String("outcome", string(outcome)), attribute.String("reason", why)))
}

func (m *measured) added(ctx context.Context, a resume.Added, texts int) {
	switch {
	case a.State == resume.Lost && a.Unattended > 0:
		m.abandoned.Add(ctx, 1)
	case a.State == resume.Outgrown && texts > 0: // only the first time does the engine send texts
		m.outgrown.Add(ctx, 1)
	}
}
