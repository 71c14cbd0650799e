// Package postgres keeps the bots, the API keys and the usage records of every
// replica in one PostgreSQL database.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/telemetry"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// DefaultQueryTimeout is how long one query may take, including the wait for
	// a connection.
	DefaultQueryTimeout = 3 * time.Second

	connectTimeout = 2 * time.Second
	retryAfter     = 2 * time.Second
)

// Database is the store of bots, keys and usage. It is safe for concurrent use.
//
// Every method has a deadline besides that of its context. While the database is
// unreachable, methods return a botapi.StatusError with status 503 and a
// Retry-After; nothing needs a restart when it is back.
type Database struct {
	pool         *pgxpool.Pool
	gate         *gate // limits lookups of keys
	uses         keyUses
	unstored     telemetry.Repeats[struct{}] // logs that uses of keys were not stored
	queryTimeout time.Duration
	keyCache     time.Duration
	logger       *slog.Logger
}

// Options is how to use the database. The zero value is usable.
type Options struct {
	QueryTimeout   time.Duration // 0 means DefaultQueryTimeout
	MaxConnections int32         // 0 means what the URL says, or pgx's default: 4 or the number of CPUs
	KeyCache       time.Duration // how long a revoked key may still work; 0 means not at all
	Logger         *slog.Logger  // nil means slog.Default()
}

// Open prepares a pool for the database at url, a URL or a key=value string as
// for libpq. It does not connect: a service may start before its database does.
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
	d := &Database{
		pool:         pool,
		uses:         keyUses{last: make(map[int64]time.Time)},
		queryTimeout: o.QueryTimeout,
		keyCache:     o.KeyCache,
		logger:       o.Logger,
	}
	if d.queryTimeout == 0 {
		d.queryTimeout = DefaultQueryTimeout
	}
	if d.logger == nil {
		d.logger = slog.Default()
	}
	d.gate = newGate(max(1, int64(config.MaxConns)/2), d.queryTimeout, d.logger)
	return d, nil
}

// Close closes the connections. It waits for those in use as long as one query
// may take. The rest close on their own, or with the process: after a query was
// cancelled, pgx tries for 15 seconds to tell the server so, even one that does
// not respond.
func (d *Database) Close() {
	d.unstored.Flush()
	d.gate.rejections.Flush()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(d.queryTimeout):
	}
}

// run calls do with a connection, and adds what was being done to its error.
//
// Waiting for a connection ends with ctx. Once do has begun, it continues to its
// end or to the deadline, even if ctx ends: pgx closes the connection of a
// cancelled query, so disconnecting clients would force new connections all the
// time.
func (d *Database) run(ctx context.Context, doing string, do func(context.Context, *pgxpool.Conn) error) error {
	deadline := time.Now().Add(d.queryTimeout)
	waiting, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := d.pool.Acquire(waiting)
	if err != nil {
		return failed(ctx, doing, err)
	}
	defer conn.Release()
	begun, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	return failed(ctx, doing, do(begun, conn))
}

// collect returns the rows that a query finds.
func collect[T any](ctx context.Context, d *Database, doing string, row pgx.RowToFunc[T], sql string, arguments ...any) (found []T, err error) {
	err = d.run(ctx, doing, func(ctx context.Context, conn *pgxpool.Conn) error {
		rows, _ := conn.Query(ctx, sql, arguments...) // its error is in rows, too
		found, err = pgx.CollectRows(rows, row)
		return err
	})
	return found, err
}

// collectOne returns the only row that a statement finds, or pgx.ErrNoRows.
func collectOne[T any](ctx context.Context, d *Database, doing string, row pgx.RowToFunc[T], sql string, arguments ...any) (found T, err error) {
	err = d.run(ctx, doing, func(ctx context.Context, conn *pgxpool.Conn) error {
		rows, _ := conn.Query(ctx, sql, arguments...)
		found, err = pgx.CollectExactlyOneRow(rows, row)
		return err
	})
	return found, err
}

// runLong is run for queries that a person waits for: only ctx limits it.
func (d *Database) runLong(ctx context.Context, doing string, do func(context.Context, *pgxpool.Conn) error) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return failed(ctx, doing, err)
	}
	defer conn.Release()
	return failed(ctx, doing, do(ctx, conn))
}

// failed adds what was being done to err, and makes it a 503 if the database was
// unreachable or could not keep up. ctx is the caller's: when it has ended,
// nobody waits for a response.
func failed(ctx context.Context, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w: %w", doing, context.Cause(ctx), err)
	case !unavailable(err):
		return fmt.Errorf("%s: %w", doing, err)
	}
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The service is unavailable for the moment",
		RetryAfter: retryAfter,
		Err:        fmt.Errorf("%s: %w", doing, err),
	}
}

// temporary are the classes of PostgreSQL's error codes, and one code, that do not
// mean that the statement is wrong: it may succeed when it is tried again.
var temporary = []string{
	"08",    // the connection
	"25006", // a read-only database, as after a failover
	"40",    // a transaction rolled back: a deadlock, a conflict
	"53",    // no memory, no disk space, too many connections
	"55",    // something is in use, or locked
	"57",    // starting, stopping, cancelled by an operator
}

// unavailable reports whether err may be temporary: no connection, a broken one, a
// deadline, or a temporary code. Every failure to connect counts, even a wrong
// password: the statement is not at fault.
func unavailable(err error) bool {
	if errors.Is(err, pgx.ErrNoRows) {
		return false
	}
	if _, unconnected := errors.AsType[*pgconn.ConnectError](err); unconnected {
		return true
	}
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || slices.ContainsFunc(temporary, func(code string) bool {
		return strings.HasPrefix(failure.Code, code)
	})
}
