package postgres_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/matryer/is"
)

// open returns the database at url with its schema.
func open(t *testing.T, url string) *postgres.Database {
	t.Helper()
	d := openWith(t, url, postgres.Options{})
	if _, err := d.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return d
}

func openWith(t *testing.T, url string, o postgres.Options) *postgres.Database {
	t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	d, err := postgres.Open(url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// connect returns a connection outside the pool, to check what is stored.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// execute runs a statement on a connection, or in a transaction.
func execute(t *testing.T, conn interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
}, sql string, arguments ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, arguments...); err != nil {
		t.Fatal(err)
	}
}

// createKey creates a key of acme.
func createKey(t *testing.T, d *postgres.Database, expires time.Duration) (key string, id int64) {
	t.Helper()
	key, id, err := d.CreateKey(t.Context(), "acme", "", expires)
	if err != nil {
		t.Fatal(err)
	}
	return key, id
}

// keysOf returns the keys of an account, or all.
func keysOf(t *testing.T, d *postgres.Database, account string) []postgres.Key {
	t.Helper()
	keys, err := d.Keys(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// store is the botapi.BotStore of a database.
type store struct{ *postgres.Database }

func (s store) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	bot, err := s.Database.BotByUID(ctx, uid)
	return bot.Bot, err
}

func (s store) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	bot, err := s.Database.BotBySlug(ctx, slug)
	return bot.Bot, err
}

func TestSlowDatabaseIsUnavailable(t *testing.T) {
	url := postgrestest.Database(t)
	open(t, url)
	d := openWith(t, url, postgres.Options{QueryTimeout: 50 * time.Millisecond})

	defer locked(t, url, "bots, api_keys")()

	calls := map[string]func(context.Context) error{
		"Bots":      func(ctx context.Context) error { _, err := d.Bots(ctx); return err },
		"BotBySlug": func(ctx context.Context) error { _, err := d.BotBySlug(ctx, "helper"); return err },
		"BotByUID":  func(ctx context.Context) error { _, err := d.BotByUID(ctx, "u1"); return err },
		"VerifyKey": func(ctx context.Context) error { _, err := d.VerifyKey(ctx, unknownKey()); return err },
		"Keys":      func(ctx context.Context) error { _, err := d.Keys(ctx, ""); return err },
		"RevokeKey": func(ctx context.Context) error { _, _, err := d.RevokeKey(ctx, 1); return err },
		"Publish":   func(ctx context.Context) error { return d.SetPublished(ctx, "helper", true) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			answer, ok := errors.AsType[*botapi.StatusError](call(t.Context()))
			is.True(ok) // the deadline is the database's, so the response is a 503
			is.Equal(answer.Status, http.StatusServiceUnavailable)
			is.Equal(answer.RetryAfter, 2*time.Second)
			is.True(errors.Is(answer.Err, context.DeadlineExceeded))

			disconnected, disconnect := context.WithCancel(t.Context())
			disconnect()
			is.True(errors.Is(call(disconnected), context.Canceled)) // a disconnected client is no outage
		})
	}
}

// TestWithoutPreparedStatements runs every statement as behind a pooler in
// transaction mode.
func TestWithoutPreparedStatements(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	open(t, url)
	d := openWith(t, url+"?default_query_exec_mode=exec", postgres.Options{})

	is.NoErr(d.SchemaReady(t.Context()))
	bot := published("u1", "helper")
	bot.Temperature = new(0.5)
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{bot, published("u2", "other")}))
	is.NoErr(d.SetPublished(t.Context(), "other", false))
	for _, find := range []func() (postgres.Bot, error){
		func() (postgres.Bot, error) { return d.BotByUID(t.Context(), "u1") },
		func() (postgres.Bot, error) { return d.BotBySlug(t.Context(), "helper") },
	} {
		found, err := find()
		is.NoErr(err)
		is.Equal(*found.Temperature, 0.5)
	}
	all, err := d.AllBots(t.Context())
	is.NoErr(err)
	is.Equal(len(all), 2)

	key, id := createKey(t, d, 0)
	account, err := d.VerifyKey(t.Context(), key)
	is.NoErr(err)
	is.Equal(account, "acme")
	is.NoErr(d.InsertUsage(t.Context(), []*usage.Record{{ID: "a", Chats: 1}, {ID: "b", Chats: 1, FirstFragment: time.Second, Tokens: &usage.Tokens{Prompt: 9}}}))
	days, err := d.DailyUsage(t.Context(), "", time.Time{}, time.Now())
	is.NoErr(err)
	is.Equal(days[0].Chats, int64(2))
	deleted, err := d.DeleteUsage(t.Context(), time.Now(), 1)
	is.NoErr(err)
	is.Equal(deleted, int64(2))
	_, _, err = d.RevokeKey(t.Context(), id)
	is.NoErr(err)
	d.StoreKeyUses(t.Context())
	keys := keysOf(t, d, "acme")
	is.True(keys[0].LastUsedAt != nil)
}
