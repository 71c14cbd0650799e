package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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

// A Migration is one step of the schema.
type Migration struct {
	Name string // such as 00001_bots.sql; it begins with the version
	SQL  string
}

// Schema returns the version of the schema, 0 for a database that has none, and
// the migrations that Migrate would apply now. It changes nothing.
func (d *Database) Schema(ctx context.Context) (version int64, pending []Migration, err error) {
	version, err = collectOne(ctx, d, "checking the schema version", pgx.RowTo[int64],
		`SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied`)
	if err != nil && !isUndefinedTable(err) {
		return 0, nil, err
	}
	return version, migrationsAfter(version), nil
}

func isUndefinedTable(err error) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failure.Code == "42P01"
}

// migrationsAfter returns the embedded migrations after a version, in order.
func migrationsAfter(version int64) (after []Migration) {
	files, _ := fs.Glob(migrationFiles, "migrations/*.sql")
	for _, file := range files {
		if number, err := goose.NumericComponent(file); err == nil && number > version {
			text, _ := migrationFiles.ReadFile(file)
			after = append(after, Migration{path.Base(file), string(text)})
		}
	}
	return after
}

// Migrate brings the schema up to date and returns the names of the migrations
// that it applied, even if a later one failed: none if there was nothing to do.
// Many processes may call it concurrently. One of them works; the others wait
// for it, up to a minute, and find nothing left to do.
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
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
		err = fmt.Errorf("%s: %w", path.Base(partial.Failed.Source.Path), partial.Err)
	}
	for _, result := range results {
		applied = append(applied, path.Base(result.Source.Path))
	}
	if err != nil {
		return applied, fmt.Errorf("migrating: %w", err)
	}
	return applied, nil
}

// SchemaReady reports whether this program can work with the database: nil,
// ErrSchema, or a failure to reach it. A newer schema is fine, so that old
// replicas keep working while new ones are rolled out.
func (d *Database) SchemaReady(ctx context.Context) error {
	version, pending, err := d.Schema(ctx)
	if err == nil && len(pending) > 0 {
		return fmt.Errorf("schema version %d: %w", version, ErrSchema)
	}
	return err
}
