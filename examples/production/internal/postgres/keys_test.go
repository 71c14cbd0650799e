package postgres_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/invopop/validation"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

func TestKeysExpire(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	valid := func(key string) bool {
		account, err := d.VerifyKey(t.Context(), key)
		is.True(err == nil && account == "acme" || errors.Is(err, botapi.ErrInvalidKey))
		return err == nil
	}
	expired, id := createKey(t, d, time.Microsecond)
	is.True(!valid(expired))
	_, err := d.ExpireKey(t.Context(), id, time.Hour)
	is.True(errors.Is(err, postgres.ErrKeyNotFound)) // it stays so
	_, _, _, err = d.RotateKey(t.Context(), id, time.Hour, 0)
	is.True(errors.Is(err, postgres.ErrKeyNotFound))

	key, id := createKey(t, d, time.Hour)
	is.True(valid(key))
	later, err := d.ExpireKey(t.Context(), id, 2*time.Hour)
	is.NoErr(err)
	is.True(later.ExpiresAt.After(later.CreatedAt.Add(90 * time.Minute)))
	is.True(valid(key))
	_, err = d.ExpireKey(t.Context(), id, 0)
	is.NoErr(err)
	is.True(!valid(key))

	revoked, id := createKey(t, d, time.Hour)
	_, _, err = d.RevokeKey(t.Context(), id)
	is.NoErr(err)
	_, err = d.ExpireKey(t.Context(), id, time.Hour)
	is.True(errors.Is(err, postgres.ErrKeyNotFound))
	is.True(!valid(revoked))
}

func TestRotationGivesNoMoreTime(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	_, id := createKey(t, d, time.Hour)
	before := keysOf(t, d, "acme")
	_, _, old, err := d.RotateKey(t.Context(), id, 24*time.Hour, 0)
	is.NoErr(err)
	is.True(old.ExpiresAt.Equal(*before[0].ExpiresAt))
}

// TestRotationsOfOneKey rotates a key from many places concurrently: it gets one
// successor.
func TestRotationsOfOneKey(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	_, id := createKey(t, d, 0)
	const rotations = 8
	results := make(chan error, rotations)
	for range rotations {
		go func() {
			_, _, _, err := d.RotateKey(t.Context(), id, time.Hour, 0)
			results <- err
		}()
	}
	var replaced int
	for range rotations {
		switch err := <-results; {
		case err == nil:
			replaced++
		case !errors.Is(err, postgres.ErrKeyReplaced):
			t.Error(err)
		}
	}
	is.Equal(replaced, 1)
	keys := keysOf(t, d, "")
	is.Equal(len(keys), 2)
}

func TestUnusedKeys(t *testing.T) {
	url := postgrestest.Database(t)
	d := open(t, url)
	conn := connect(t, url)
	day := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	before, after := day.Add(-3*time.Hour), day.Add(time.Minute)
	for name, c := range map[string]struct {
		created                time.Time
		used, expires, revoked *time.Time
		want                   int
	}{
		"never used":         {created: before, want: 1},
		"used before":        {created: before, used: new(day.Add(-2 * time.Hour)), want: 1},
		"perhaps used since": {created: before, used: new(day.Add(-30 * time.Minute)), want: 0},
		"used since":         {created: before, used: &after, want: 0},
		"created since":      {created: after, want: 0},
		"has expired":        {created: before, expires: &after, want: 0},
		"expires later":      {created: before, expires: new(time.Now().Add(time.Hour)), want: 1},
		"was revoked":        {created: before, revoked: &after, want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			execute(t, conn, `DELETE FROM api_keys`)
			_, _ = createKey(t, d, 0)
			execute(t, conn, `UPDATE api_keys SET created_at = $1, last_used_at = $2, expires_at = $3, revoked_at = $4`,
				c.created, c.used, c.expires, c.revoked)
			keys, err := d.UnusedKeys(t.Context(), "", day)
			is.NoErr(err)
			is.Equal(len(keys), c.want)
		})
	}
}

func TestKeyIsStoredOnlyAsDigest(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	key, _, err := d.CreateKey(t.Context(), "acme", "laptop", 0)
	is.NoErr(err)

	var row string
	is.NoErr(connect(t, url).QueryRow(t.Context(), `SELECT row_to_json(api_keys)::text FROM api_keys`).Scan(&row))
	is.True(strings.Contains(row, "acme"))
	is.True(!strings.Contains(row, strings.TrimPrefix(key, "bot_")))
}

// TestLastUseIsStoredOnceAnHour uses two keys at two replicas.
func TestLastUseIsStoredOnceAnHour(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	replicas := []*postgres.Database{d, openWith(t, url, postgres.Options{})}
	conn := connect(t, url)
	var keys []string
	for range 2 {
		key, _ := createKey(t, d, 0)
		keys = append(keys, key)
	}
	// versions are the versions of the rows, in order.
	versions := func() (versions []int64) {
		rows, _ := conn.Query(t.Context(), `SELECT xmin::text::bigint FROM api_keys ORDER BY id`)
		versions, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		is.NoErr(err)
		return versions
	}
	// writes uses each key twice at each replica, and returns how many rows are
	// written for that.
	writes := func() (written int) {
		for _, replica := range replicas {
			for _, key := range append(keys, keys...) {
				_, err := replica.VerifyKey(t.Context(), key)
				is.NoErr(err)
			}
		}
		for _, replica := range replicas {
			before := versions()
			replica.StoreKeyUses(t.Context())
			for i, version := range versions() {
				if version != before[i] {
					written++
				}
			}
		}
		return written
	}

	is.Equal(writes(), 2)
	is.Equal(writes(), 0)
	execute(t, conn, `UPDATE api_keys SET last_used_at = now() - interval '59 minutes'`)
	is.Equal(writes(), 0)
	execute(t, conn, `UPDATE api_keys SET last_used_at = now() - interval '61 minutes'`)
	is.Equal(writes(), 2)
	var used int
	is.NoErr(conn.QueryRow(t.Context(), `SELECT count(*) FROM api_keys WHERE last_used_at > now() - interval '1 minute'`).Scan(&used))
	is.Equal(used, 2)
}

// TestLastUseOutlivesAnOutage uses a key just before the database is stopped.
func TestLastUseOutlivesAnOutage(t *testing.T) {
	is := is.New(t)
	server := postgrestest.NewServer(t)
	d := open(t, server.URL)
	key, _ := createKey(t, d, 0)
	_, err := d.VerifyKey(t.Context(), key)
	is.NoErr(err)

	server.Stop(t)
	d.StoreKeyUses(t.Context())
	server.Start(t)
	d.StoreKeyUses(t.Context())
	keys := keysOf(t, d, "acme")
	is.True(keys[0].LastUsedAt != nil)
}

// TestLastUseDoesNotWaitForLocks has somebody else hold one of two keys.
func TestLastUseDoesNotWaitForLocks(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	for range 2 {
		key, _ := createKey(t, d, 0)
		_, err := d.VerifyKey(t.Context(), key)
		is.NoErr(err)
	}
	other, err := connect(t, url).Begin(t.Context())
	is.NoErr(err)
	execute(t, other, `UPDATE api_keys SET last_used_at = now() WHERE id = 1`)

	d.StoreKeyUses(t.Context())
	keys := keysOf(t, d, "")
	is.Equal(keys[0].LastUsedAt, nil)
	is.True(keys[1].LastUsedAt != nil)
	is.NoErr(other.Rollback(t.Context()))
}

func TestKeysWorkWhileTheDatabaseIsReadOnly(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	key, _ := createKey(t, d, 0)

	execute(t, connect(t, url), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
	END $$`)
	var log bytes.Buffer
	readOnly, err := postgres.Open(url, postgres.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	is.NoErr(err)
	defer readOnly.Close()
	for range 5 {
		account, err := readOnly.VerifyKey(t.Context(), key)
		is.NoErr(err)
		is.Equal(account, "acme")
		readOnly.StoreKeyUses(t.Context())
	}
	is.Equal(strings.Count(log.String(), "the last uses of keys were not stored"), 1)
}

func TestAccountsAndLabelsAreOneLine(t *testing.T) {
	d := open(t, postgrestest.Database(t))
	for name, c := range map[string]struct{ account, label, fault string }{
		"no account":          {"", "", "account"},
		"two lines":           {"acme\nother", "", "account"},
		"a tab":               {"acme\tother", "", "account"},
		"a line separator":    {"acme\u2028other", "", "account"},
		"an invisible mark":   {"acme\u200b", "", "account"},
		"space around it":     {"acme ", "", "account"},
		"not UTF-8":           {"acme\xff", "", "account"},
		"too long":            {strings.Repeat("a", 201), "", "account"},
		"a label of lines":    {"acme", "old\nlaptop", "label"},
		"an ordinary name":    {"Société Générale, Paris", "laptop", ""},
		"the longest":         {strings.Repeat("a", 200), "", ""},
		"a label with spaces": {"acme", "the old laptop", ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, _, err := d.CreateKey(t.Context(), c.account, c.label, 0)
			faults, rejected := errors.AsType[validation.Errors](err)
			is.Equal(rejected, c.fault != "")
			if rejected {
				is.True(faults[c.fault] != nil)
			}
		})
	}
}

// TestCachedKeyExpires has a cache that would keep a key for longer than it works. A
// key that has been given more time meanwhile goes on.
func TestCachedKeyExpires(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	open(t, url).Close()
	d := openWith(t, url, postgres.Options{KeyCache: time.Hour})
	valid := func(key string) bool {
		_, err := d.VerifyKey(t.Context(), key)
		is.True(err == nil || errors.Is(err, botapi.ErrInvalidKey))
		return err == nil
	}
	const lifetime = 300 * time.Millisecond
	ends, _ := createKey(t, d, lifetime)
	goesOn, id, err := d.CreateKey(t.Context(), "acme", "", lifetime)
	is.NoErr(err)
	is.True(valid(ends))
	is.True(valid(goesOn))
	_, err = d.ExpireKey(t.Context(), id, time.Hour)
	is.NoErr(err)
	for valid(ends) {
		time.Sleep(10 * time.Millisecond)
	}
	is.True(valid(goesOn))
}

// TestKeyIsCached uses two keys, of which one expires later than the cache forgets
// it, and locks their table.
func TestKeyIsCached(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	open(t, url).Close()
	d := openWith(t, url, postgres.Options{KeyCache: time.Hour, QueryTimeout: time.Second})
	never, _ := createKey(t, d, 0)
	later, _ := createKey(t, d, 100*24*time.Hour)
	for _, key := range []string{never, later} {
		_, err := d.VerifyKey(t.Context(), key)
		is.NoErr(err)
	}
	defer locked(t, url, "api_keys")()
	for _, key := range []string{never, later} {
		account, err := d.VerifyKey(t.Context(), key)
		is.NoErr(err) // a lookup would fail now
		is.Equal(account, "acme")
	}
}
