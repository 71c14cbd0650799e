// Package postgres keeps the bots, the API keys and the usage records of every
// replica in one PostgreSQL database.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// DefaultQueryTimeout is how long one query may take, the wait for a
	// connection included.
	DefaultQueryTimeout = 3 * time.Second

	connectTimeout = 2 * time.Second
	retryAfter     = 2 * time.Second
)

// Database is the store of bots, keys and usage. It is safe for concurrent use.
//
// Every method has a deadline of its own besides that of its context. While
// the database cannot be reached, methods return a botapi.StatusError with
// status 503 and a Retry-After; nothing has to be restarted when it is back.
type Database struct {
	pool         *pgxpool.Pool
	queryTimeout time.Duration
	logger       *slog.Logger
}

// Options is how to use the database. The zero value is usable.
type Options struct {
	QueryTimeout   time.Duration // 0 means DefaultQueryTimeout
	MaxConnections int32         // 0 means what the URL says, or pgx's default: 4 or the number of CPUs
	Logger         *slog.Logger  // nil means slog.Default()
}

// Open prepares a pool for the database at url, a URL or a key=value string as
// libpq takes them. It does not connect: a service may start before its
// database does.
func Open(url string, o Options) (*Database, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("reading the database URL: %w", err)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if o.MaxConnections > 0 {
		config.MaxConns = o.MaxConnections
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("preparing the database pool: %w", err)
	}
	d := &Database{pool: pool, queryTimeout: o.QueryTimeout, logger: o.Logger}
	if d.queryTimeout == 0 {
		d.queryTimeout = DefaultQueryTimeout
	}
	if d.logger == nil {
		d.logger = slog.Default()
	}
	return d, nil
}

// Close ends the connections, waiting for those in use.
func (d *Database) Close() { d.pool.Close() }

// bounded returns the context of one query.
func (d *Database) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d.queryTimeout)
}

// failed says what was being done when err happened, and makes it a 503 if the
// database could not be reached or could not keep up. The context is that of
// the caller: when it has ended, nobody waits for an answer.
func failed(ctx context.Context, doing string, err error) error {
	err = fmt.Errorf("%s: %w", doing, err)
	if ctx.Err() != nil || !unavailable(err) {
		return err
	}
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The service is unavailable for the moment",
		RetryAfter: retryAfter,
		Err:        err,
	}
}

// unavailable reports whether err is anything but PostgreSQL's own verdict on
// a statement: no connection, a broken one, a deadline, a server that is
// starting, stopping or full.
func unavailable(err error) bool {
	verdict, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return true
	}
	const (
		connectionException   = "08"
		insufficientResources = "53"
		operatorIntervention  = "57"
	)
	for _, class := range []string{connectionException, insufficientResources, operatorIntervention} {
		if strings.HasPrefix(verdict.Code, class) {
			return true
		}
	}
	return false
}
