package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/invopop/validation"
	"github.com/matryer/is"
	"golang.org/x/sync/errgroup"
)

func published(uid, slug string) postgres.ImportedBot {
	return postgres.ImportedBot{
		Bot:       botapi.Bot{UID: uid, Slug: slug, Name: "Bot " + slug, Model: "m1"},
		Published: new(true),
	}
}

func TestPublishedBots(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	zebra := published("u1", "zebra")
	zebra.AvatarURL = "https://example.com/zebra.png"
	zebra.Settings = postgres.Settings{Instructions: "SECRET", Runtime: "hosted", Temperature: new(0.5)}
	draft := published("u2", "draft")
	draft.Published = nil
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{zebra, draft, published("u3", "ant")}))

	bots, err := d.Bots(t.Context())
	is.NoErr(err)
	is.Equal(bots, []botapi.Bot{zebra.Bot, published("u3", "ant").Bot})

	for _, find := range []func() (postgres.Bot, error){
		func() (postgres.Bot, error) { return d.BotByUID(t.Context(), "u1") },
		func() (postgres.Bot, error) { return d.BotBySlug(t.Context(), "zebra") },
	} {
		found, err := find()
		is.NoErr(err)
		is.Equal(found, postgres.Bot{Bot: zebra.Bot, Published: true, Settings: zebra.Settings})
	}
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

	_, rejected := errors.AsType[validation.Errors](d.ImportBots(t.Context(), []postgres.ImportedBot{published("u3", "three"), published("u3", "four")}))
	is.True(rejected) // which of the two would it be?

	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "two"), published("u2", "one")})) // they swap
	bots, err := d.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 2)
	is.Equal(bots[0].UID+bots[0].Slug, "u1two")
	is.Equal(bots[1].UID+bots[1].Slug, "u2one")
}

func TestOrderOfImports(t *testing.T) {
	url := postgrestest.Database(t)
	d := open(t, url)
	conn := connect(t, url)
	for name, c := range map[string]struct {
		imports []string // of bots with these uids, separated by spaces
		want    string
	}{
		"a second import comes after the first": {[]string{"a b c", "x y"}, "a b c x y"},
		"a bot alone keeps its position":        {[]string{"a b c", "b"}, "a b c"},
		"all again, in a different order":       {[]string{"a b c", "c a b"}, "c a b"},
		"some swap positions":                   {[]string{"a b c d", "d b"}, "a d c b"},
		"new ones before old ones":              {[]string{"a b", "x b y"}, "a x b y"},
		"new ones after old ones":               {[]string{"a b c", "b x"}, "a b c x"},
		"no bots":                               {[]string{"a b", ""}, "a b"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			execute(t, conn, `DELETE FROM bots`)
			for _, uids := range c.imports {
				var bots []postgres.ImportedBot
				for _, uid := range strings.Fields(uids) {
					bots = append(bots, published(uid, "z-"+uid))
				}
				is.NoErr(d.ImportBots(t.Context(), bots))
			}
			is.Equal(listing(t, d), c.want)
		})
	}
}

// TestBotsThatShareAPosition repairs the positions of an earlier version, each
// of whose imports began at 1.
func TestBotsThatShareAPosition(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("a", "a"), published("b", "b"), published("c", "c")}))
	execute(t, connect(t, url), `UPDATE bots SET position = 1`)
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published("c", "c"), published("b", "b"), published("a", "a")}))
	is.Equal(listing(t, d), "c b a")
}

func listing(t *testing.T, d *postgres.Database) string {
	t.Helper()
	bots, err := d.Bots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var uids []string
	for _, bot := range bots {
		uids = append(uids, bot.UID)
	}
	return strings.Join(uids, " ")
}

func TestConcurrentImportsTakeTurns(t *testing.T) {
	is := is.New(t)
	d := openWith(t, postgrestest.Database(t), postgres.Options{MaxConnections: 8, QueryTimeout: time.Minute})
	_, err := d.Migrate(t.Context())
	is.NoErr(err)
	var imports errgroup.Group
	for i := range 20 {
		name := fmt.Sprint("bot", i)
		imports.Go(func() error {
			return d.ImportBots(t.Context(), []postgres.ImportedBot{published(name+"-1", name+"-1"), published(name+"-0", name+"-0")})
		})
	}
	is.NoErr(imports.Wait())
	names := strings.Fields(listing(t, d))
	is.Equal(len(names), 40)
	for i := 0; i < len(names); i += 2 { // each import is contiguous
		is.Equal(strings.TrimSuffix(names[i], "-1"), strings.TrimSuffix(names[i+1], "-0"))
	}
}

func TestNamesAreBounded(t *testing.T) {
	is := is.New(t)
	d := open(t, postgrestest.Database(t))
	longest := strings.Repeat("n", 200)
	is.NoErr(d.ImportBots(t.Context(), []postgres.ImportedBot{published(longest, longest)}))
	for _, wrong := range []postgres.ImportedBot{published(longest+"n", "slug"), published("uid", longest+"n")} {
		_, rejected := errors.AsType[validation.Errors](d.ImportBots(t.Context(), []postgres.ImportedBot{wrong}))
		is.True(rejected)
	}
	d.Close()
	for _, find := range []func(context.Context, string) (postgres.Bot, error){d.BotByUID, d.BotBySlug} {
		for _, impossible := range []string{strings.Repeat("n", 1<<20), "a NUL, which SQL lacks: \x00"} {
			_, err := find(t.Context(), impossible)
			is.True(errors.Is(err, botapi.ErrBotNotFound)) // without the database
		}
	}
}
