package redisclient

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/semconv/v1.41.0/dbconv"
)

var durationBuckets = []float64{0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 2, 5}

// measure creates the metrics of this Redis.
func (c *Client) measure(meter metric.Meter) error {
	duration, err1 := dbconv.NewClientOperationDuration(meter, metric.WithExplicitBucketBoundaries(durationBuckets...))
	c.AddHook(stopwatch{duration})
	c.Apart.AddHook(stopwatch{duration})
	c.breaker.probe.AddHook(stopwatch{duration})
	return errors.Join(err1,
		telemetry.Flag(meter, "botapi.redis.reachable", "Whether Redis is up and has rejected no command of this replica in the last ten seconds.", c.Reachable),
		telemetry.Flag(meter, "botapi.redis.full", "Whether Redis has no room for answers. Limits still work.", c.Full))
}

// stopwatch measures commands, including failed ones. It records no keys and no
// values.
type stopwatch struct {
	duration dbconv.ClientOperationDuration
}

func (s stopwatch) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s stopwatch) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmd)
		s.record(ctx, cmd.Name(), time.Since(began), err)
		return err
	}
}

func (s stopwatch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		began := time.Now()
		err := next(ctx, cmds)
		s.record(ctx, "pipeline", time.Since(began), err)
		return err
	}
}

func (s stopwatch) record(ctx context.Context, name string, took time.Duration, err error) {
	attributes := []attribute.KeyValue{semconv.DBOperationName(name)}
	if kind := errorType(err); kind != "" {
		attributes = append(attributes, semconv.ErrorTypeKey.String(kind))
	}
	s.duration.Record(ctx, took.Seconds(), dbconv.SystemNameRedis, attributes...)
}

// verdicts are the Redis errors that have their own name in the metrics.
var verdicts = []string{"OOM", "NOPERM", "WRONGTYPE", "READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "MISCONF", "BUSY", "NOAUTH", "WRONGPASS", "UNKILLABLE"}

// errorType returns one of a few kinds of errors; empty if there is none.
func errorType(err error) string {
	late, isNet := errors.AsType[net.Error](err)
	switch {
	case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "NOSCRIPT"):
		return ""
	case errors.Is(err, ErrAway):
		return "away"
	case errors.Is(err, redis.ErrPoolTimeout), isNet && late.Timeout():
		return "timeout"
	case !Rejected(err):
		return "connection"
	}
	for _, verdict := range verdicts {
		if strings.Contains(err.Error(), verdict+" ") {
			return verdict
		}
	}
	return "ERR"
}
