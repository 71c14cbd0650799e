package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

func TestKeyLife(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	key, id, err := d.CreateKey(t.Context(), "acme", "laptop")
	is.NoErr(err)
	_, _, err = d.CreateKey(t.Context(), "other", "")
	is.NoErr(err)

	account, err := d.VerifyKey(t.Context(), key)
	is.NoErr(err)
	is.Equal(account, "acme")
	for _, wrong := range []string{key + "x", strings.ToLower(key), "bot_", "\xff\x00"} {
		_, err := d.VerifyKey(t.Context(), wrong)
		is.True(errors.Is(err, botapi.ErrInvalidKey))
	}

	keys, err := d.Keys(t.Context(), "acme")
	is.NoErr(err)
	is.Equal(len(keys), 1)
	is.Equal(keys[0].ID, id)
	is.Equal(keys[0].Label, "laptop")
	is.Equal(keys[0].RevokedAt, nil)

	is.NoErr(d.RevokeKey(t.Context(), id))
	_, err = d.VerifyKey(t.Context(), key)
	is.True(errors.Is(err, botapi.ErrInvalidKey))
	revoked, err := d.Keys(t.Context(), "acme")
	is.NoErr(err)
	is.NoErr(d.RevokeKey(t.Context(), id)) // again
	again, err := d.Keys(t.Context(), "acme")
	is.NoErr(err)
	is.True(revoked[0].RevokedAt != nil)
	is.True(again[0].RevokedAt.Equal(*revoked[0].RevokedAt)) // the first revocation counts
	is.True(errors.Is(d.RevokeKey(t.Context(), id+1000), postgres.ErrKeyNotFound))

	everyone, err := d.Keys(t.Context(), "")
	is.NoErr(err)
	is.Equal(len(everyone), 2)
}

func TestKeyIsStoredOnlyAsDigest(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	key, _, err := d.CreateKey(t.Context(), "acme", "laptop")
	is.NoErr(err)

	var row string
	is.NoErr(connect(t, url).QueryRow(t.Context(), `SELECT row_to_json(api_keys)::text FROM api_keys`).Scan(&row))
	is.True(strings.Contains(row, "acme"))
	is.True(!strings.Contains(row, strings.TrimPrefix(key, "bot_")))
}

func TestLastUseIsCoarse(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	conn := connect(t, url)
	key, _, err := d.CreateKey(t.Context(), "acme", "")
	is.NoErr(err)
	use := func() (last time.Time, rowVersion uint32) {
		_, err := d.VerifyKey(t.Context(), key)
		is.NoErr(err)
		is.NoErr(conn.QueryRow(t.Context(), `SELECT last_used_at, xmin::text::bigint FROM api_keys`).Scan(&last, &rowVersion))
		return last, rowVersion
	}

	_, first := use()
	_, second := use()
	is.Equal(second, first) // used again within five minutes: nothing was written

	_, err = conn.Exec(t.Context(), `UPDATE api_keys SET last_used_at = now() - interval '6 minutes'`)
	is.NoErr(err)
	before := time.Now().Add(-time.Minute)
	last, _ := use()
	is.True(last.After(before))
}

func TestKeyWorksWhileTheDatabaseIsReadOnly(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	key, _, err := d.CreateKey(t.Context(), "acme", "")
	is.NoErr(err)

	_, err = connect(t, url).Exec(t.Context(), `DO $$ BEGIN
		EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database());
	END $$`)
	is.NoErr(err)
	readOnly := openWith(t, url, postgres.Options{})
	account, err := readOnly.VerifyKey(t.Context(), key)
	is.NoErr(err) // its last use could not be noted
	is.Equal(account, "acme")
}
