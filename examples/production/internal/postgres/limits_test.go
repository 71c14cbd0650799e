package postgres_test

import (
	"errors"
	"testing"

	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

func TestLimits(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	limitsOf := func(account string) limits.Limits {
		t.Helper()
		found, err := d.Limits(t.Context(), account)
		is.NoErr(err)
		return found
	}
	number := func(n int64) *int64 { return &n }
	is.Equal(limitsOf("acme"), limits.Limits{}) // nobody has limits

	is.NoErr(d.SetLimits(t.Context(), postgres.AccountLimits{ChatsPerMinute: number(60), ConcurrentChats: number(5)}))
	is.NoErr(d.SetLimits(t.Context(), postgres.AccountLimits{Account: "acme", TokensPerDay: number(1)}))
	is.NoErr(d.SetLimits(t.Context(), postgres.AccountLimits{Account: "acme", TokensPerDay: number(1000), ChatsPerMinute: number(0)}))
	is.Equal(limitsOf("acme"), limits.Limits{ChatsPerMinute: 0, TokensPerDay: 1000, ConcurrentChats: 5}) // its own take precedence
	is.Equal(limitsOf("other"), limits.Limits{ChatsPerMinute: 60, ConcurrentChats: 5})

	all, err := d.AllLimits(t.Context())
	is.NoErr(err)
	is.Equal(len(all), 2)
	is.Equal(all[0].Account, "")
	is.Equal(all[1], postgres.AccountLimits{Account: "acme", TokensPerDay: number(1000), ChatsPerMinute: number(0)})

	removed, err := d.RemoveLimits(t.Context(), "acme", postgres.WhichLimits{ChatsPerMinute: true})
	is.NoErr(err)
	is.Equal(removed, postgres.AccountLimits{Account: "acme", ChatsPerMinute: number(0)})
	is.Equal(limitsOf("acme"), limits.Limits{ChatsPerMinute: 60, TokensPerDay: 1000, ConcurrentChats: 5}) // the rest is kept
	whole := postgres.WhichLimits{ChatsPerMinute: true, TokensPerDay: true, ConcurrentChats: true}
	removed, err = d.RemoveLimits(t.Context(), "acme", whole)
	is.NoErr(err)
	is.Equal(removed, postgres.AccountLimits{Account: "acme", TokensPerDay: number(1000)})
	is.Equal(limitsOf("acme"), limitsOf("other"))
	_, err = d.RemoveLimits(t.Context(), "acme", whole)
	is.True(errors.Is(err, postgres.ErrNoLimits))
	all, err = d.AllLimits(t.Context())
	is.NoErr(err)
	is.Equal(len(all), 1)
	_, err = d.RemoveLimits(t.Context(), "", whole)
	is.NoErr(err)
	is.Equal(limitsOf("acme"), limits.Limits{})
}
