package postgres_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/jackc/pgx/v5"
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
	is.Equal(slices.Concat(applied...), []string{"00001_bots.sql", "00002_api_keys.sql", "00003_usage.sql", "00004_tokens.sql", "00005_account_limits.sql", "00006_estimates.sql", "00007_key_expiry.sql", "00008_rejected_chats.sql", "00009_replaced_keys.sql", "00010_joins.sql"}) // each one once
}

// TestMigrateReturnsWhatItDid has a table in the way of the second migration.
func TestMigrateReturnsWhatItDid(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := openWith(t, url, postgres.Options{})
	execute(t, connect(t, url), `CREATE TABLE api_keys ()`)

	applied, err := d.Migrate(t.Context())
	is.Equal(applied, []string{"00001_bots.sql"})
	is.True(strings.HasPrefix(err.Error(), "migrating: 00002_api_keys.sql: "))
	version, pending, err := d.Schema(t.Context())
	is.NoErr(err)
	is.Equal(version, int64(1))
	is.Equal(pending[0].Name, "00002_api_keys.sql")
}

// TestMigrateBesideThePreviousVersion runs the statements of the version before
// keys could expire while the schema is migrated: first while somebody reads a
// table for long, as a backup does, and then without.
func TestMigrateBesideThePreviousVersion(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	conn := connect(t, url)
	execute(t, conn, `ALTER TABLE api_keys DROP COLUMN expires_at, DROP COLUMN replaced_by; ALTER TABLE usage DROP COLUMN chats, DROP COLUMN rejected, DROP COLUMN joins;
		DELETE FROM goose_db_version WHERE version_id >= 7`)

	old := connect(t, url)
	for _, step := range []struct {
		reads   string
		applied []string
		fails   string
	}{
		{"api_keys", nil, "00007_key_expiry.sql: "},
		{"usage", []string{"00007_key_expiry.sql"}, "00008_rejected_chats.sql: "},
		{"bots", []string{"00008_rejected_chats.sql", "00009_replaced_keys.sql", "00010_joins.sql"}, ""},
	} {
		backup, err := conn.Begin(t.Context())
		is.NoErr(err)
		execute(t, backup, `LOCK TABLE `+step.reads+` IN ACCESS SHARE MODE`)
		applied, err := migrateBeside(t, d, old)
		is.Equal(applied, step.applied)
		if step.fails != "" {
			is.True(strings.Contains(err.Error(), step.fails)) // run it again
			is.True(strings.Contains(err.Error(), "lock timeout"))
		} else {
			is.NoErr(err)
		}
		is.NoErr(backup.Commit(t.Context()))
	}
	useAsBefore(t, old)
}

// migrateBeside migrates while an old replica uses the database.
func migrateBeside(t *testing.T, d *postgres.Database, old *pgx.Conn) (applied []string, err error) {
	t.Helper()
	migrated := make(chan struct{})
	go func() {
		defer close(migrated)
		applied, err = d.Migrate(t.Context())
	}()
	for {
		useAsBefore(t, old)
		select {
		case <-migrated:
			return applied, err
		default:
		}
	}
}

// useAsBefore does what the version before keys could expire does with a key, and
// with usage.
func useAsBefore(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	is := is.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sum := sha256.Sum256([]byte(rand.Text()))
	var id int64
	is.NoErr(conn.QueryRow(ctx, `INSERT INTO api_keys (digest, account, label) VALUES ($1, $2, $3) RETURNING id`, sum[:], "acme", "").Scan(&id))
	var account string
	var stale bool
	is.NoErr(conn.QueryRow(ctx, `
		SELECT id, account, coalesce(last_used_at < now() - $2::interval, true)
		FROM api_keys WHERE digest = $1 AND revoked_at IS NULL`, sum[:], 5*time.Minute).Scan(&id, &account, &stale))
	is.Equal(account, "acme")
	_, err := conn.Exec(ctx, `UPDATE api_keys SET last_used_at = now() WHERE id = $1`, id)
	is.NoErr(err)
	_, err = conn.Exec(ctx, `UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1`, id)
	is.NoErr(err)
	rows, _ := conn.Query(ctx, `SELECT id, account, label, created_at, last_used_at, revoked_at FROM api_keys WHERE id = $1`, id)
	listed, err := pgx.CollectRows(rows, pgx.RowToMap)
	is.NoErr(err)
	is.Equal(len(listed), 1)
	_, err = conn.Exec(ctx, `
		INSERT INTO usage (id, ended_at, request_id, account, user_id, bot_uid, model, stream, status, complete,
			fragments, bytes, first_fragment_ms, duration_ms, prompt_tokens, completion_tokens, tokens_estimated)
		VALUES ($1, now(), 'r', 'acme', '', 'u1', 'm1', true, 200, true, 1, 3, NULL, 5, NULL, NULL, false)`, rand.Text())
	is.NoErr(err)
	var chats int64
	is.NoErr(conn.QueryRow(ctx, `SELECT count(*) FROM usage WHERE ended_at >= now() - interval '1 day' AND account = 'acme'`).Scan(&chats))
	is.True(chats > 0)
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
	execute(t, conn, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (1000, true)`)
	is.NoErr(d.SchemaReady(t.Context())) // newer than this program

	execute(t, conn, `DELETE FROM goose_db_version WHERE version_id > 1`)
	is.True(errors.Is(d.SchemaReady(t.Context()), postgres.ErrSchema)) // older than this program
}
