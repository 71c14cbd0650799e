package postgres_test

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

func echo(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		yield(req.Messages[len(req.Messages)-1].Content, nil)
	}
}

func published(uid, slug string) postgres.ImportedBot {
	return postgres.ImportedBot{
		Bot:       botapi.Bot{UID: uid, Slug: slug, Name: "Bot " + slug, Model: "m1"},
		Published: new(true),
	}
}

func TestListingShowsPublishedBotsWithoutInternals(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	key, _, err := d.CreateKey(t.Context(), "acme", "")
	is.NoErr(err)

	zebra := published("u1", "zebra")
	zebra.AvatarURL = "https://example.com/zebra.png"
	zebra.Settings = postgres.Settings{Instructions: "SECRET", Runtime: "hosted", Temperature: new(0.5)}
	draft := published("u2", "draft")
	draft.Published = nil
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{zebra, draft, published("u3", "ant")}))

	status, _, body := send(t, serve(t, d), key, "GET", "/v1/bots", "")
	is.Equal(status, http.StatusOK)
	is.Equal(strings.TrimSpace(body), `[`+
		`{"uid":"u1","slug":"zebra","name":"Bot zebra","description":"","welcome_message":"","model":"m1","avatar_url":"https://example.com/zebra.png"},`+
		`{"uid":"u3","slug":"ant","name":"Bot ant","description":"","welcome_message":"","model":"m1","avatar_url":null}`+
		`]`)

	settings, err := d.Settings(t.Context(), "u1")
	is.NoErr(err)
	is.Equal(settings, zebra.Settings)
}

func TestUnknownBots(t *testing.T) {
	d := open(t, postgrestest.Database(t))
	draft := published("u2", "draft")
	draft.Published = new(false)
	if err := d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "helper"), draft}); err != nil {
		t.Fatal(err)
	}
	key, _, err := d.CreateKey(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	h := serve(t, d)
	for name, c := range map[string]struct {
		bot    string
		status int
	}{
		"by slug":                {`"bot_slug":"helper"`, http.StatusOK},
		"by uid":                 {`"bot_uid":"u1"`, http.StatusOK},
		"by both":                {`"bot_uid":"u1","bot_slug":"helper"`, http.StatusOK},
		"unknown slug":           {`"bot_slug":"nobody"`, http.StatusNotFound},
		"unknown uid":            {`"bot_uid":"helper"`, http.StatusNotFound},
		"slug in another case":   {`"bot_slug":"Helper"`, http.StatusNotFound},
		"not published":          {`"bot_slug":"draft"`, http.StatusNotFound},
		"not published, by uid":  {`"bot_uid":"u2"`, http.StatusNotFound},
		"a NUL, which SQL lacks": {`"bot_slug":"helper\u0000"`, http.StatusNotFound},
		"quotes":                 {`"bot_slug":"' OR true --"`, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			status, _, _ := send(t, h, key, "POST", "/v1/chat", `{`+c.bot+`,"prompt":"Hi","stream":false}`)
			is.Equal(status, c.status)
		})
	}
}

func TestPublishAndUnpublish(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	bot := published("u1", "helper")
	bot.Published = nil
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{bot}))
	listed := func() int {
		bots, err := d.Bots(t.Context())
		is.NoErr(err)
		return len(bots)
	}
	is.Equal(listed(), 0)

	is.NoErr(d.SetPublished(t.Context(), "helper", true))
	is.Equal(listed(), 1)

	bot.Name = "Renamed"
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{bot})) // says nothing of published
	is.Equal(listed(), 1)

	is.NoErr(d.SetPublished(t.Context(), "helper", false))
	is.Equal(listed(), 0)
	_, err := d.Settings(t.Context(), "u1")
	is.True(errors.Is(err, botapi.ErrBotNotFound))
	is.True(errors.Is(d.SetPublished(t.Context(), "nobody", true), botapi.ErrBotNotFound))

	all, err := d.AllBots(t.Context())
	is.NoErr(err)
	is.Equal(len(all), 1)
	is.Equal(all[0].Name, "Renamed")
}

func TestImportIsAllOrNothing(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "one"), published("u2", "two")}))

	err := d.ImportBots(t.Context(), []postgres.ImportedBot{published("u3", "three"), published("u4", "")})
	is.True(err != nil)
	is.True(strings.Contains(err.Error(), `bot 2 (slug "")`))
	err = d.ImportBots(t.Context(), []postgres.ImportedBot{published("u3", "three"), published("u4", "one")})
	is.True(err != nil)
	is.True(strings.Contains(err.Error(), "two bots would have the same slug"))

	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "two"), published("u2", "one")})) // they swap
	bots, err := d.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 2)
	is.Equal(bots[0].UID+bots[0].Slug, "u1two")
	is.Equal(bots[1].UID+bots[1].Slug, "u2one")
}
