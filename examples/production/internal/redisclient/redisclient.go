// Package redisclient connects to the Redis that the replicas share, so that no
// chat waits for it once it is away.
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

	// probePeriod is how often Redis is checked.
	probePeriod = time.Second
	// ownerLasts is how long keys belong to a deployment after its last replica:
	// as long as the longest-lived key.
	ownerLasts = 24 * time.Hour
	// slow is how long Redis must not have responded at all for a timeout to
	// mean that it is away, and not that this replica is busy.
	slow = 1500 * time.Millisecond
	// poolSize bounds the connections for commands, and those of Apart; each command uses
	// one for well under a millisecond.
	poolSize = 32
)

// Options is how to use a Redis. URL is required.
type Options struct {
	URL string // as in redis://HOST:PORT/DB, or rediss:// with TLS

	// Prefix begins the names of all keys and channels; empty means
	// DefaultPrefix. Owner is whose they are: a client never uses keys that
	// belong to another owner.
	Prefix, Owner string

	// Timeout is how long each step of a command may take, and how long a chat
	// may wait for all of its commands together: see Client.Waiting. 0 means
	// DefaultTimeout.
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

// connection returns how to connect, or what is wrong with the URL.
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
	options.DisableIdentity = true // saves two round trips per connection
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return options, nil
}

// Client is a client of the Redis that the replicas share. Redis is away if it
// does not respond, or if it can serve nobody. Commands then fail immediately
// with ErrAway; the client logs when Redis goes away and comes back.
//
// A command is never sent twice: if its response was lost, its effect is
// unknown.
type Client struct {
	*redis.Client
	// Apart has connections of its own, for commands that nobody may wait for any longer:
	// while Redis is slow, such a command keeps its connection until the response, and
	// what a chat waits for would need a new one.
	Apart   *redis.Client
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
	apart := guarded
	c := &Client{redis.NewClient(&guarded), redis.NewClient(&apart), o, b}
	if err := c.measure(o.Meter); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Key returns the full name of a key or channel in Redis.
func (c *Client) Key(name string) string { return c.options.Prefix + name }

// Watch checks Redis once a second until ctx ends. So an outage is noticed
// before a chat has to wait for Redis, and even without chats.
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

// Away reports whether Redis is away. After a failed command, this distinguishes
// an outage from a timeout of that command only.
func (c *Client) Away() bool { return c.breaker.isAway() }

// Reachable reports whether Redis is not away, and has rejected no command
// lately.
func (c *Client) Reachable() bool { return c.breaker.obeys() }

// Slow reports whether Redis needs longer than this for a command, as the checks
// of Watch show.
func (c *Client) Slow(than time.Duration) bool { return c.breaker.takes() > than }

// Full reports whether Redis accepts only scripts that begin with a command that
// frees memory, as those of limits do.
func (c *Client) Full() bool { return c.breaker.full.Load() }

// Timeout is how long a chat waits for Redis in all.
func (c *Client) Timeout() time.Duration { return c.options.Timeout }

// Close closes the connections.
func (c *Client) Close() error {
	return errors.Join(c.Client.Close(), c.Apart.Close(), c.breaker.close())
}

// libraryLog logs the library's messages about its connections at level debug:
// what matters is in the breaker's lines.
type libraryLog struct{ logger *slog.Logger }

func (l libraryLog) Printf(ctx context.Context, format string, v ...any) {
	l.logger.DebugContext(ctx, fmt.Sprintf(format, v...))
}
