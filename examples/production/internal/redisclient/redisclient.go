// Package redisclient connects to the Redis that the replicas share, in a way
// that a chat can afford: once Redis is away, nobody waits for it.
package redisclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

const (
	// Timeout is how long each step of a command may take. Chats wait for it,
	// once, when Redis hangs.
	Timeout = 5 * time.Second
	// probePeriod is how often a Redis that is away is looked for.
	probePeriod = time.Second
	// probeKey is what is written to find out whether it takes anything.
	probeKey = "botapi:probe"
	// slow is how long there must have been no answer at all for a time-out to
	// mean that Redis is away, and not that somebody is busy.
	slow = time.Second
	// poolSize bounds the connections for commands; each has one for well under
	// a millisecond.
	poolSize = 32
)

// ErrAway is the error of a command that was not sent, because Redis is away.
var ErrAway = errors.New("redis is away")

// Client is a client of the Redis that the replicas share. While that is away,
// or there but takes nothing, commands fail at once with ErrAway; that it goes
// and comes back is logged.
//
// A command is never sent twice: what it did is unknown when its answer is lost.
type Client struct {
	*redis.Client
	breaker *breaker
}

// Open prepares a client for the Redis at url, as in redis://HOST:PORT/DB or
// rediss:// with TLS. It does not connect: a service may start before its Redis
// does.
func Open(url string, logger *slog.Logger) (*Client, error) {
	options, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("reading the Redis URL: %w", err)
	}
	redis.SetLogger(libraryLog{logger})
	options.DialTimeout, options.DialerRetries = Timeout, 1
	options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = Timeout, Timeout, Timeout
	options.MaxRetries = -1
	options.PoolSize = poolSize
	options.DisableIdentity = true // two round trips less for a connection
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	b := newBreaker(redis.NewClient(options), logger)
	guarded := *options
	guarded.Limiter = b
	return &Client{redis.NewClient(&guarded), b}, nil
}

// Admitted returns an error if Redis answers and lets this client do nothing: its
// password, its user or its database is wrong, which whoever runs the service has
// to put right. That Redis is away is no error.
func (c *Client) Admitted(ctx context.Context) error {
	err := c.breaker.look(ctx)
	if redis.IsAuthError(err) || redis.IsPermissionError(err) || redis.HasErrorPrefix(err, "DB index") {
		return fmt.Errorf("redis does not let this service in: %w", err)
	}
	return nil
}

// Watch asks Redis once a second until ctx ends: that it is away is known then
// before a chat has waited for it, and when there are no chats.
func (c *Client) Watch(ctx context.Context) {
	next := time.NewTicker(probePeriod)
	defer next.Stop()
	for ctx.Err() == nil {
		_ = c.Set(ctx, probeKey, "", probePeriod).Err() // the breaker has seen it
		select {
		case <-ctx.Done():
		case <-next.C:
		}
	}
}

// Away reports whether Redis is away: whether a command that has just failed did
// so for more reason than being late.
func (c *Client) Away() bool { return c.breaker.isAway() }

// Close ends the connections.
func (c *Client) Close() error {
	return errors.Join(c.Client.Close(), c.breaker.close())
}

// Blocking returns a further client of the same Redis, for up to size commands
// at once that wait on the server: those must not take the connections of others.
func (c *Client) Blocking(size int) *redis.Client {
	options := *c.Options()
	options.PoolSize, options.Limiter = size, nil
	return redis.NewClient(&options)
}

// breaker keeps commands from waiting for a Redis that is away. It is the
// circuit breaker that the library asks for.
type breaker struct {
	probe  *redis.Client
	logger *slog.Logger

	mu       sync.Mutex
	away     bool
	answered time.Time // the last time
	closed   bool
	probing  sync.WaitGroup
	ctx      context.Context // of the probing
	stop     context.CancelFunc
}

func newBreaker(probe *redis.Client, logger *slog.Logger) *breaker {
	ctx, stop := context.WithCancel(context.Background())
	return &breaker{probe: probe, logger: logger, ctx: ctx, stop: stop}
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

// ReportResult is called after each command. What Redis itself says is an
// answer, also if it refuses, unless it can do nothing for anybody.
func (b *breaker) ReportResult(err error) {
	_, answered := errors.AsType[redis.Error](err)
	late, isNet := errors.AsType[net.Error](err)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil || answered && !unfit(err):
		b.answered = time.Now()
	case errors.Is(err, context.Canceled), errors.Is(err, redis.ErrPoolTimeout):
		// These say nothing of Redis.
	case isNet && late.Timeout() && time.Since(b.answered) < slow:
		// It is there for others.
	case !b.away && !b.closed:
		b.away = true
		b.logger.Warn("redis is away", slog.Any("error", err))
		b.probing.Go(b.lookForIt)
	}
}

// unfit reports whether Redis refuses for a reason that has nothing to do with
// the command: it has no room, cannot write to its disk, has become a replica or
// lost its own, is still loading, or has another password now.
func unfit(err error) bool {
	return redis.IsAuthError(err) || redis.IsOOMError(err) || redis.IsReadOnlyError(err) || redis.IsLoadingError(err) ||
		redis.IsMasterDownError(err) || redis.IsNoReplicasError(err) || redis.HasErrorPrefix(err, "MISCONF")
}

// look asks Redis whatever is known of it. PING is answered by those that take
// nothing.
func (b *breaker) look(ctx context.Context) error {
	return b.probe.Set(ctx, probeKey, "", probePeriod).Err()
}

// lookForIt returns when Redis is back, or the client is closed.
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
	return b.probe.Close()
}

// libraryLog keeps what the library says of its connections for those who look
// for it: what matters of it is in the breaker's lines.
type libraryLog struct{ logger *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	l.logger.DebugContext(ctx, fmt.Sprintf(format, v...))
}
