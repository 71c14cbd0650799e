package postgres

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Identity returns what tells this database from every other one, by whichever
// address it is reached: the system that it is in, and which of it it is. It
// stays the same after a failover. A copy of the whole system, as from a snapshot
// of its disks, has that of the original.
func (d *Database) Identity(ctx context.Context) (identity string, err error) {
	err = d.run(ctx, "asking the database who it is", func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())
			FROM pg_control_system()`).Scan(&identity)
	})
	return identity, err
}
