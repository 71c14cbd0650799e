package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Identity distinguishes this database from every other one, whatever address it
// is reached by: it has the system's identifier and the database's number in it.
// It stays the same after a failover. A copy of the whole system, as from a
// snapshot of its disks, has the identity of the original.
func (d *Database) Identity(ctx context.Context) (string, error) {
	return collectOne(ctx, d, "asking the database for its identity", pgx.RowTo[string], `
		SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
		FROM pg_control_system()`)
}
