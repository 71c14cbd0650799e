// Package redisclient connects to the Redis that the replicas share, in a way
// that a chat can afford: once Redis is away, nobody waits for it.
package redisclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

const (
	// DefaultTimeout is how long a chat waits for Redis in all.
	DefaultTimeout = 2 * time.Second
	// DefaultPrefix begins the names of all keys and channels.
	DefaultPrefix = "botapi:"

	// probePeriod is how often a Redis is looked for.
	probePeriod = time.Second
	// ownerLasts is how long keys belong to a deployment after its last replica:
	// as long as the longest of them lasts.
	ownerLasts = 24 * time.Hour
	// slow is how long there must have been no answer at all for a time-out to
	// mean that Redis is away, and not that somebody is busy.
	slow = 1500 * time.Millisecond
	// poolSize bounds the connections for commands; each has one for well under
	// a millisecond.
	poolSize = 32
)

// Options is how to use a Redis. URL is required.
type Options struct {
	URL string // as in redis://HOST:PORT/DB, or rediss:// with TLS

	// Prefix begins the names of all keys and channels. Owner is whose they are:
	// a client never uses keys that belong to another one. Prefix is
	// DefaultPrefix where it is empty.
	Prefix, Owner string

	// Timeout is how long each step of a command may take, and a chat may wait
	// for all of its commands together: see Client.Waiting. 0 means DefaultTimeout.
	Timeout time.Duration

	Meter  metric.Meter // nil for no metrics
	Logger *slog.Logger // nil means slog.Default()
}

func (o Options) completed() Options {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	if o.Meter == nil {
		o.Meter = noop.Meter{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// connection is how to connect, or says what is wrong with the URL.
func (o Options) connection() (*redis.Options, error) {
	options, err := redis.ParseURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("reading the Redis URL: %w", err)
	}
	options.DialTimeout, options.DialerRetries = o.Timeout, 1
	options.ReadTimeout, options.WriteTimeout, options.PoolTimeout = o.Timeout, o.Timeout, o.Timeout
	options.ContextTimeoutEnabled = true
	options.MaxRetries = -1
	options.PoolSize = poolSize
	options.DisableIdentity = true // two round trips less for a connection
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return options, nil
}

// Client is a client of the Redis that the replicas share. While that is away,
// or there but takes nothing, commands fail at once with ErrAway; that it goes
// and comes back is logged.
//
// A command is never sent twice: what it did is unknown when its answer is lost.
type Client struct {
	*redis.Client
	options Options
	breaker *breaker
}

// Open prepares a client. It does not connect: a service may start before its
// Redis does.
func Open(o Options) (*Client, error) {
	o = o.completed()
	connection, err := o.connection()
	if err != nil {
		return nil, err
	}
	redis.SetLogger(libraryLog{o.Logger})
	b := newBreaker(redis.NewClient(connection), o)
	guarded := *connection
	guarded.Limiter = b
	c := &Client{redis.NewClient(&guarded), o, b}
	if err := c.measure(o.Meter); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Key returns the name that a key or a channel has in Redis.
func (c *Client) Key(name string) string { return c.options.Prefix + name }

// Watch asks Redis once a second until ctx ends: that it is away is known then
// before a chat has waited for it, and when there are no chats.
func (c *Client) Watch(ctx context.Context) {
	next := time.NewTicker(probePeriod)
	defer next.Stop()
	for ctx.Err() == nil {
		if !c.Away() {
			c.breaker.ReportResult(c.breaker.look(ctx))
		}
		select {
		case <-ctx.Done():
		case <-next.C:
		}
	}
}

// Away reports whether Redis is away: whether a command that has just failed did
// so for more reason than being late.
func (c *Client) Away() bool { return c.breaker.isAway() }

// Reachable reports whether Redis does what it is asked to: it is not away, and
// has refused nothing lately.
func (c *Client) Reachable() bool { return c.breaker.obeys() }

// Full reports whether Redis has no room for anything but what begins with a
// command that frees some, as limits do.
func (c *Client) Full() bool { return c.breaker.full.Load() }

// Timeout is how long a chat waits for Redis in all.
func (c *Client) Timeout() time.Duration { return c.options.Timeout }

// Close ends the connections.
func (c *Client) Close() error {
	return errors.Join(c.Client.Close(), c.breaker.close())
}

// libraryLog keeps what the library says of its connections for those who look
// for it: what matters of it is in the breaker's lines.
type libraryLog struct{ logger *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	l.logger.DebugContext(ctx, fmt.Sprintf(format, v...))
}
