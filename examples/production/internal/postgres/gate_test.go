package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

// unknownKey returns a key that does not exist.
func unknownKey() string { return "bot_" + rand.Text() }

// locked locks a table until the function that it returns is called.
func locked(t *testing.T, url, table string) (unlock func()) {
	t.Helper()
	lock, err := connect(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Exec(t.Context(), `LOCK TABLE `+table); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMalformedKeyIsNotLookedUp(t *testing.T) {
	is := is.New(t)
	nowhere := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", postgrestest.FreePort(t))
	d := openWith(t, nowhere, postgres.Options{})
	random := rand.Text()
	for _, wrong := range []string{
		random, "bot_", "bot_" + random[1:], "bot-" + random, "bot_" + strings.ToLower(random), "bot_" + random[1:] + "1",
		"bot_" + random[1:] + "\x00", "bot_" + strings.Repeat(random, 1000),
	} {
		_, err := d.VerifyKey(t.Context(), wrong)
		is.True(errors.Is(err, botapi.ErrInvalidKey))
	}
	_, err := d.VerifyKey(t.Context(), "bot_"+random)
	is.True(!errors.Is(err, botapi.ErrInvalidKey)) // only the database could reject it
}

func TestRejectedKeyIsNotLookedUpAgain(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	key := unknownKey()
	revoked, id := createKey(t, d, 0)
	_, err := d.VerifyKey(t.Context(), revoked)
	is.NoErr(err)
	_, _, err = d.RevokeKey(t.Context(), id)
	is.NoErr(err)
	reject := func() {
		for _, key := range []string{key, revoked} {
			_, err := d.VerifyKey(t.Context(), key)
			is.True(errors.Is(err, botapi.ErrInvalidKey))
		}
	}
	reject()
	defer locked(t, url, "api_keys")()
	reject() // a lookup would fail now
}

func TestGuessingKeysDoesNotStarveOthers(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	open(t, url).Close()
	d := openWith(t, url, postgres.Options{MaxConnections: 4, QueryTimeout: time.Minute})
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "helper")}))
	key, _ := createKey(t, d, 0)
	_, err := d.VerifyKey(t.Context(), key)
	is.NoErr(err)
	watcher := connect(t, url)

	unlock := locked(t, url, "api_keys")
	const guesses = 6_000
	results := make(chan error, guesses)
	for range guesses {
		go func() {
			_, err := d.VerifyKey(t.Context(), unknownKey())
			results <- err
		}()
	}
	for range guesses - 5_000 { // those that exceed the limit
		answer, ok := errors.AsType[*botapi.StatusError](<-results)
		is.True(ok)
		is.Equal(answer.Status, http.StatusTooManyRequests)
		is.Equal(answer.RetryAfter, 2*time.Second)
	}
	waitFor(t, watcher, waiting+" = 2") // half of the connections
	bots, err := d.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 1)
	known := make(chan error)
	go func() {
		_, err := d.VerifyKey(t.Context(), key)
		known <- err
	}()
	waitFor(t, watcher, waiting+" = 3") // a key that was valid before does not wait

	unlock()
	is.NoErr(<-known)
	for range 5_000 {
		is.True(errors.Is(<-results, botapi.ErrInvalidKey))
	}
}

func TestDisconnectedClientsDoNotWait(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	open(t, url).Close()
	d := openWith(t, url, postgres.Options{MaxConnections: 4, QueryTimeout: time.Minute})
	key, _ := createKey(t, d, 0)

	unlock := locked(t, url, "api_keys")
	clients, leave := context.WithCancel(t.Context())
	results := make(chan error, 5_000)
	for range 5_000 {
		go func() {
			_, err := d.VerifyKey(clients, unknownKey())
			results <- err
		}()
	}
	waitFor(t, connect(t, url), waiting+" = 2")
	leave()
	for range 4_998 {
		is.True(errors.Is(<-results, context.Canceled))
	}
	unlock()
	for range 2 { // those that were being looked up meanwhile
		<-results
	}
	account, err := d.VerifyKey(t.Context(), key)
	is.NoErr(err)
	is.Equal(account, "acme")
}

func TestRejectedKeysAreLoggedAtABoundedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var log logtest.Log // a timer writes to it
		d, err := postgres.Open("postgres://127.0.0.1:1/none", postgres.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		is.NoErr(err)
		defer d.Close()
		reject := func(n int) {
			for range n {
				_, err := d.VerifyKey(t.Context(), "bot_SECRET")
				is.True(errors.Is(err, botapi.ErrInvalidKey))
			}
		}
		reject(5_000)
		is.Equal(strings.Count(log.String(), "\n"), 1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		is.Equal(strings.Count(log.String(), "\n"), 2)
		is.True(strings.HasSuffix(log.String(), `"msg":"API keys were rejected","times":4999}`+"\n"))
		is.True(!strings.Contains(log.String(), "SECRET"))
	})
}
