package service

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/production/internal/usage"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
)

// counts counts the tokens of chats, by whether their runtimes reported them or
// they are estimates.
type counts struct {
	tokens metric.Int64Counter
	logger *slog.Logger
	absurd *telemetry.Sparing

	mu      sync.Mutex
	reports map[string]bool // whether a runtime reported tokens, the last time that it should have
}

func newCounts(meter metric.Meter, logger *slog.Logger) (*counts, error) {
	c := &counts{logger: logger, absurd: telemetry.NewSparing(), reports: make(map[string]bool)}
	var err1, err2 error
	c.tokens, err1 = meter.Int64Counter("botapi.tokens", metric.WithUnit("{token}"),
		metric.WithDescription("Tokens that chats have used, by how they are known: reported, or estimated because the runtime had not reported them, the answer is incomplete, or the report was absurd."))
	_, err2 = meter.Int64ObservableGauge("botapi.runtime.reports_tokens",
		metric.WithDescription("Whether a runtime reported the tokens of its last complete answer."),
		metric.WithInt64Callback(c.observe))
	return c, errors.Join(err1, err2)
}

func (c *counts) observe(_ context.Context, o metric.Int64Observer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for runtime, does := range c.reports {
		var value int64
		if does {
			value = 1
		}
		o.Observe(value, metric.WithAttributes(attribute.String("runtime", runtime)))
	}
	return nil
}

// over counts the tokens of a chat that has ended.
func (c *counts) over(ctx context.Context, runtime string, t usage.Tokens, why string) {
	known := metric.WithAttributes(attribute.String("runtime", runtime), attribute.String("known", why))
	c.tokens.Add(ctx, t.Prompt, known, metric.WithAttributes(semconv.GenAITokenTypeInput))
	c.tokens.Add(ctx, t.Completion, known, metric.WithAttributes(semconv.GenAITokenTypeOutput))
	switch why {
	case usage.Reported, usage.Unreported:
		c.saw(runtime, why == usage.Reported)
	case usage.Absurd:
		c.saw(runtime, false)
		c.absurd.Count(func(times int64) {
			c.logger.WarnContext(ctx, "a runtime reports an impossible number of tokens", slog.String("runtime", runtime), slog.Int64("times", times))
		})
	}
}

// saw notes whether a runtime reports tokens, and logs when it begins not to.
func (c *counts) saw(runtime string, reports bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.reports[runtime]
	c.reports[runtime] = reports
	if !reports && (before || !known) {
		c.logger.Warn("a runtime reports no usable tokens: they are estimated", slog.String("runtime", runtime))
	}
}
