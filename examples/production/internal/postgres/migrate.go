package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// ErrSchema is what SchemaReady returns, wrapped, for a database whose tables
// are missing or older than this program.
var ErrSchema = errors.New("the database schema is not up to date: run the migrate command")

// migrateTimeout bounds all migrations together, which may rewrite tables.
const migrateTimeout = 10 * time.Minute

// Migrate brings the schema up to date and returns the names of the migrations
// that it applied: none if there was nothing to do. Many processes may call it
// concurrently. One of them works; the others wait for it, up to a minute, and
// find nothing left to do.
//
// The lock belongs to a database session, so the URL must lead to PostgreSQL
// itself and not to a pooler in transaction mode.
func (d *Database) Migrate(ctx context.Context) (applied []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, migrateTimeout)
	defer cancel()
	db := stdlib.OpenDBFromPool(d.pool)
	defer func() { err = errors.Join(err, db.Close()) }()

	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 60))
	if err != nil {
		return nil, fmt.Errorf("preparing the migration lock: %w", err)
	}
	files, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, fmt.Errorf("reading the migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("reading the migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrating: %w", err)
	}
	for _, result := range results {
		applied = append(applied, path.Base(result.Source.Path))
	}
	return applied, nil
}

// SchemaReady reports whether this program can work with the database: nil,
// ErrSchema, or a failure to reach it. A newer schema is fine, so that old
// replicas keep working while new ones are rolled out.
func (d *Database) SchemaReady(ctx context.Context) error {
	var version int64
	err := d.run(ctx, "checking the schema version", func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`).Scan(&version)
	})
	if isUndefinedTable(err) {
		return fmt.Errorf("checking the schema version: %w", ErrSchema)
	}
	if err == nil && version < latestMigration() {
		return fmt.Errorf("schema version %d: %w", version, ErrSchema)
	}
	return err
}

func isUndefinedTable(err error) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failure.Code == "42P01"
}

// latestMigration is the number of the last embedded migration.
func latestMigration() (latest int64) {
	files, _ := fs.Glob(migrationFiles, "migrations/*.sql")
	for _, file := range files {
		if number, err := goose.NumericComponent(file); err == nil {
			latest = max(latest, number)
		}
	}
	return latest
}
