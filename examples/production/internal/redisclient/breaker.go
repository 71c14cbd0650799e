package redisclient

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/redis/go-redis/v9"
)

var (
	// ErrAway is the error of a command that was not sent because Redis is away.
	ErrAway = errors.New("redis is away")
	// ErrForeign means that the keys under the prefix belong to another
	// deployment.
	ErrForeign = errors.New("redis has another deployment's keys under this prefix")
)

// Rejected reports whether err is Redis's own response to a command that would
// most likely fail again: a key of another type, a missing right, no room.
func Rejected(err error) bool {
	_, answered := errors.AsType[redis.Error](err)
	return answered && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT")
}

// breaker keeps commands from waiting for a Redis that is away. It implements
// the library's circuit breaker interface.
type breaker struct {
	probe      *redis.Client
	prefix     string
	owner      string
	logger     *slog.Logger
	rejections telemetry.Repeats[struct{}]
	full       atomic.Bool

	mu       sync.Mutex
	away     bool
	answered time.Time     // the last time
	checking time.Time     // since when; zero if no check is in progress
	took     time.Duration // the last check
	rejected time.Time     // the last time
	closed   bool
	probing  sync.WaitGroup
	ctx      context.Context // of the probing
	stop     context.CancelFunc
}

func newBreaker(probe *redis.Client, o Options) *breaker {
	ctx, stop := context.WithCancel(context.Background())
	return &breaker{
		probe: probe, prefix: o.Prefix, owner: o.Owner,
		logger: o.Logger, ctx: ctx, stop: stop,
	}
}

// Allow is called before each command.
func (b *breaker) Allow() error {
	if b.isAway() {
		return ErrAway
	}
	return nil
}

func (b *breaker) isAway() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

func (b *breaker) obeys() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.away && time.Since(b.rejected) > telemetry.LogPeriod
}

// ReportResult is called after each command. An error that Redis itself returns
// counts as a response, unless it means that Redis can serve nobody: one failing
// command must not make all others go without Redis.
func (b *breaker) ReportResult(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch late, isNet := errors.AsType[net.Error](err); {
	case errors.Is(err, ErrForeign), unfit(err):
		b.goAway(err)
	case err == nil, errors.Is(err, redis.Nil):
		b.answered = time.Now()
	case Rejected(err):
		b.answered, b.rejected = time.Now(), time.Now()
		b.rejections.Count(struct{}{}, func(times int64) {
			b.logger.Warn("redis rejects a command", slog.Any("error", err), slog.Int64("times", times))
		})
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		b.answered = time.Now()
	case errors.Is(err, context.Canceled), errors.Is(err, redis.ErrPoolTimeout):
		// These say nothing about Redis.
	case isNet && late.Timeout() && time.Since(b.answered) < slow:
		// It responds to others.
	default:
		b.goAway(err)
	}
}

// goAway is called with the lock held.
func (b *breaker) goAway(err error) {
	if b.away || b.closed {
		return
	}
	b.away = true
	b.logger.Warn("redis is away", slog.Any("error", err),
		slog.String("meanwhile", "limits are those of each replica, and answers are not kept"))
	b.probing.Go(b.lookForIt)
}

// unfit reports whether Redis rejects commands for a reason that has nothing to
// do with them: it cannot write to its disk, has become a replica or lost its
// own, is loading, runs somebody's script, or has another password now. A full
// Redis can still serve limits.
func unfit(err error) bool {
	if _, answered := errors.AsType[redis.Error](err); !answered {
		return false
	}
	for _, verdict := range []string{"READONLY ", "LOADING ", "MASTERDOWN ", "NOREPLICAS ", "MISCONF ", "BUSY ", "UNKILLABLE "} {
		if strings.Contains(err.Error(), verdict) { // a script's error may have a prefix
			return true
		}
	}
	return redis.IsAuthError(err)
}

var (
	//go:embed probe.lua
	probeSource string
	probeScript = redis.NewScript(probeSource)
)

// look checks that Redis can do all that limits need, even while it is away.
// PING would not do: it succeeds even if Redis accepts no writes.
func (b *breaker) look(ctx context.Context) error {
	defer b.endCheck(b.beginCheck())
	answer, err := probeScript.Run(ctx, b.probe, []string{b.prefix + "owner", b.prefix + "probe"},
		b.owner, ownerLasts.Milliseconds()).Slice()
	if err != nil {
		return err
	}
	if owner, _ := answer[0].(string); owner != b.owner {
		return fmt.Errorf("%w: %sowner is %q and not %q", ErrForeign, b.prefix, owner, b.owner)
	}
	full := answer[1] == int64(1)
	if before := b.full.Swap(full); full != before {
		b.logger.Warn("redis: room for answers", slog.Bool("full", full))
	}
	return nil
}

func (b *breaker) beginCheck() (began time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.checking = time.Now()
	return b.checking
}

// endCheck ends a check. A later one may be in progress: Watch and lookForIt check
// independently of each other.
func (b *breaker) endCheck(began time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.took = time.Since(began)
	if b.checking.Equal(began) {
		b.checking = time.Time{}
	}
}

// takes returns how long the last check took, or if that is longer, how long the
// one in progress has taken so far.
func (b *breaker) takes() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.checking.IsZero() {
		return b.took
	}
	return max(b.took, time.Since(b.checking))
}

// lookForIt returns when Redis is back or the client is closed.
func (b *breaker) lookForIt() {
	for b.look(b.ctx) != nil {
		select {
		case <-b.ctx.Done():
			return
		case <-time.After(probePeriod):
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away, b.answered = false, time.Now()
	b.logger.Info("redis is back")
}

func (b *breaker) close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.probing.Wait()
	b.rejections.Flush()
	return b.probe.Close()
}
