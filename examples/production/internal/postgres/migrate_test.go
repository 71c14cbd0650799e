package postgres_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
	"golang.org/x/sync/errgroup"
)

func TestMigrateFromManyReplicasConcurrently(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	applied := make([][]string, 4)

	var replicas errgroup.Group
	for i := range applied {
		replica := openWith(t, url, postgres.Options{})
		replicas.Go(func() (err error) {
			applied[i], err = replica.Migrate(t.Context())
			return err
		})
	}
	is.NoErr(replicas.Wait())
	is.Equal(slices.Concat(applied...), []string{"00001_bots.sql", "00002_api_keys.sql", "00003_usage.sql", "00004_tokens.sql", "00005_account_limits.sql", "00006_estimates.sql"}) // each one once
}

func TestSchemaChangesNothing(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := openWith(t, url, postgres.Options{})
	version, pending, err := d.Schema(t.Context())
	is.NoErr(err)
	is.Equal(version, int64(0))
	var tables int
	is.NoErr(connect(t, url).QueryRow(t.Context(), `SELECT count(*) FROM pg_tables WHERE schemaname = 'public'`).Scan(&tables))
	is.Equal(tables, 0)

	applied, err := d.Migrate(t.Context())
	is.NoErr(err)
	var names []string
	for _, migration := range pending {
		names = append(names, migration.Name)
	}
	is.Equal(applied, names) // it does what Schema has said
}

// TestMigrateReturnsWhatItDid has a table in the way of the second migration.
func TestMigrateReturnsWhatItDid(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := openWith(t, url, postgres.Options{})
	_, err := connect(t, url).Exec(t.Context(), `CREATE TABLE api_keys ()`)
	is.NoErr(err)

	applied, err := d.Migrate(t.Context())
	is.Equal(applied, []string{"00001_bots.sql"})
	is.True(strings.HasPrefix(err.Error(), "migrating: 00002_api_keys.sql: "))
	version, pending, err := d.Schema(t.Context())
	is.NoErr(err)
	is.Equal(version, int64(1))
	is.Equal(pending[0].Name, "00002_api_keys.sql")
}

func TestMigrateTwice(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "helper")}))

	applied, err := d.Migrate(t.Context())
	is.NoErr(err)
	is.Equal(len(applied), 0)
	bots, err := d.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 1)
}

func TestSchemaReady(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := openWith(t, url, postgres.Options{})
	is.True(errors.Is(d.SchemaReady(t.Context()), postgres.ErrSchema)) // an empty database

	_, err := d.Migrate(t.Context())
	is.NoErr(err)
	is.NoErr(d.SchemaReady(t.Context()))

	conn := connect(t, url)
	_, err = conn.Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000, true)`)
	is.NoErr(err)
	is.NoErr(d.SchemaReady(t.Context())) // newer than this program

	_, err = conn.Exec(t.Context(), `DELETE FROM goose_db_version WHERE version_id > 1`)
	is.NoErr(err)
	is.True(errors.Is(d.SchemaReady(t.Context()), postgres.ErrSchema)) // older than this program
}
