package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

// TestContracts holds the bots and the keys against the contracts of botapi's interfaces,
// also with a database whose tables are locked, and with one that is not there.
func TestContracts(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	hidden := published("u0", "hidden")
	hidden.Published = new(false)
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("u2", "helper"), hidden, published("U2", "Helper"), published("u1", "größer-語")}))
	key, _ := createKey(t, d, 0)
	bots, err := d.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 3)

	url := postgrestest.Database(t)
	open(t, url)
	hanging := openWith(t, url, postgres.Options{QueryTimeout: time.Second})
	defer locked(t, url, "bots, api_keys")()
	failing := openWith(t, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres", postgrestest.FreePort(t)), postgres.Options{})

	botapitest.TestStore(t, botapitest.Store{Bots: store{d}, Published: bots, Unpublished: []botapi.Bot{hidden.Bot}, Failing: store{failing}, Hanging: store{hanging}})
	for name, verifier := range map[string]func(botapi.KeyVerifier) botapi.KeyVerifier{
		"each key looked up": func(v botapi.KeyVerifier) botapi.KeyVerifier { return v },
		"lookups joined":     func(v botapi.KeyVerifier) botapi.KeyVerifier { return botapi.CacheKeys(v, 0) }, // as the service does
	} {
		t.Run(name, func(t *testing.T) {
			botapitest.TestKeys(t, botapitest.Keys{Verifier: verifier(d), Good: key, Account: "acme", Bad: unknownKey(), Failing: verifier(failing), Hanging: verifier(hanging)})
		})
	}
}
