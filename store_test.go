package botapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/invopop/validation"
	"github.com/matryer/is"
)

// botWith is a bot that may be listed, with a change.
func botWith(change func(*Bot)) Bot {
	bot := echoBot
	change(&bot)
	return bot
}

func TestValidate(t *testing.T) {
	const (
		blank  = "cannot be blank"
		spaced = "must not contain white space or control characters"
		noURL  = "must be an absolute URL"
	)
	for _, c := range []struct {
		name   string
		change func(*Bot)
		field  string // "" where the bot is valid
		msg    string
	}{
		{"as it is", func(*Bot) {}, "", ""},
		{"no uid", func(b *Bot) { b.UID = "" }, "uid", blank},
		{"no slug", func(b *Bot) { b.Slug = "" }, "slug", blank},
		{"no name", func(b *Bot) { b.Name = "" }, "name", blank},
		{"no model", func(b *Bot) { b.Model = "" }, "model", blank},
		{"no description", func(b *Bot) { b.Description = "" }, "", ""},
		{"no welcome", func(b *Bot) { b.WelcomeMessage = "" }, "", ""},
		{"no avatar", func(b *Bot) { b.AvatarURL = "" }, "", ""},
		{"a uid that is no UUID", func(b *Bot) { b.UID = "bot/7?x=1#é" }, "", ""},
		{"a slug with upper-case letters", func(b *Bot) { b.Slug = "Max_Mustermann" }, "", ""},
		{"a slug of digits", func(b *Bot) { b.Slug = "007" }, "", ""},
		{"a uid with a space", func(b *Bot) { b.UID = "bot 7" }, "uid", spaced},
		{"a uid with a line break", func(b *Bot) { b.UID = "bot\n7" }, "uid", spaced},
		{"a uid of a space", func(b *Bot) { b.UID = " " }, "uid", ""},
		{"a slug with a tab", func(b *Bot) { b.Slug = "bot\t7" }, "slug", spaced},
		{"a slug with a no-break space", func(b *Bot) { b.Slug = "bot\u00A07" }, "slug", spaced},
		{"a slug with a NUL", func(b *Bot) { b.Slug = "bot\x007" }, "slug", spaced},
		{"a slug with a delete", func(b *Bot) { b.Slug = "bot\x7f" }, "slug", spaced},
		{"a slug with a C1 control", func(b *Bot) { b.Slug = "bot\u0085" }, "slug", spaced},
		{"a name with spaces and lines", func(b *Bot) { b.Name = "Max\nMustermann" }, "", ""},
		{"an avatar on another scheme", func(b *Bot) { b.AvatarURL = "data:image/png;base64,AA==" }, "", ""},
		{"an avatar without a host", func(b *Bot) { b.AvatarURL = "blob:echo" }, "", ""},
		{"an avatar's path alone", func(b *Bot) { b.AvatarURL = "/echo.png" }, "avatar_url", noURL},
		{"an avatar without a scheme", func(b *Bot) { b.AvatarURL = "//bots.example.com/echo.png" }, "avatar_url", noURL},
		{"an avatar that is no URL", func(b *Bot) { b.AvatarURL = "https://bots example.com/%zz" }, "avatar_url", noURL},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			err := botWith(c.change).Validate()
			if c.field == "" {
				is.NoErr(err)
				return
			}
			var fields validation.Errors
			is.True(errors.As(err, &fields))
			is.Equal(len(fields), 1)
			is.True(fields[c.field] != nil)
			is.True(strings.HasPrefix(fields[c.field].Error(), c.msg))
			code := map[string]string{blank: "validation_required", spaced: "bot_identifier", noURL: "bot_avatar_url"}[c.msg]
			is.True(c.msg == "" || fields[c.field].(validation.Error).Code() == code)
		})
	}
	t.Run("every field at once", func(t *testing.T) {
		is := is.New(t)
		var fields validation.Errors
		is.True(errors.As(Bot{AvatarURL: "x"}.Validate(), &fields))
		is.Equal(len(fields), 5)
	})
}

func TestAMemoryStoreSaysWhichBotIsWrong(t *testing.T) {
	for _, c := range []struct {
		name  string
		bots  []Bot
		wants []string // in the error
	}{
		{"not valid", []Bot{echoBot, {UID: "u", Slug: "s", Name: "n"}}, []string{"bot 1", `"s"`, "model"}},
		{"a uid twice", []Bot{otherBot, echoBot, botWith(func(b *Bot) { b.Slug = "echo2" })}, []string{"bot 2", `"echo2"`, "uid", echoBot.UID, "bot 1"}},
		{"a slug twice", []Bot{echoBot, botWith(func(b *Bot) { b.UID = "u2" })}, []string{"bot 1", `"echo"`, "slug", "bot 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			store, err := NewMemoryStore(c.bots...)
			is.True(err != nil)
			is.True(store == nil)
			for _, want := range append(c.wants, "botapi: ") {
				is.True(strings.Contains(err.Error(), want))
			}

			store, err = NewMemoryStore(echoBot)
			is.NoErr(err)
			is.True(store.Replace(c.bots...) != nil)
			bots, err := store.Bots(t.Context())
			is.NoErr(err)
			is.Equal(bots, []Bot{echoBot}) // nothing has changed
			_, err = store.BotByUID(t.Context(), otherBot.UID)
			is.True(errors.Is(err, ErrBotNotFound))
		})
	}
	t.Run("names are compared exactly", func(t *testing.T) {
		is := is.New(t)
		_, err := NewMemoryStore(echoBot, botWith(func(b *Bot) { b.UID, b.Slug = "u2", "Echo" }), botWith(func(b *Bot) { b.UID, b.Slug = "echo", "e3" }))
		is.NoErr(err)
	})
}

func TestAMemoryStoreFindsItsBots(t *testing.T) {
	is := is.New(t)
	given := []Bot{otherBot, echoBot}
	store, err := NewMemoryStore(given...)
	is.NoErr(err)
	given[0], given[1] = Bot{}, Bot{} // the store has its own
	bots, err := store.Bots(t.Context())
	is.NoErr(err)
	is.Equal(bots, []Bot{otherBot, echoBot}) // in the order given
	for _, want := range bots {
		byUID, err := store.BotByUID(t.Context(), want.UID)
		is.NoErr(err)
		is.Equal(byUID, want)
		bySlug, err := store.BotBySlug(t.Context(), want.Slug)
		is.NoErr(err)
		is.Equal(bySlug, want)
	}
	for _, name := range []string{"", "ECHO", "echo ", "nobody"} {
		_, err := store.BotBySlug(t.Context(), name)
		is.True(errors.Is(err, ErrBotNotFound))
		_, err = store.BotByUID(t.Context(), name)
		is.True(errors.Is(err, ErrBotNotFound))
	}

	is.NoErr(store.Replace(echoBot))
	_, err = store.BotBySlug(t.Context(), otherBot.Slug)
	is.True(errors.Is(err, ErrBotNotFound))
	is.NoErr(store.Replace())
	bots, err = store.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 0)
}

// A store in front of this one, which hides bots, may do so in place.
func TestAMemoryStoreLendsNothing(t *testing.T) {
	is := is.New(t)
	store, err := NewMemoryStore(echoBot, otherBot)
	is.NoErr(err)
	lent, err := store.Bots(t.Context())
	is.NoErr(err)
	_ = slices.DeleteFunc(lent, func(bot Bot) bool { return bot.UID == echoBot.UID })
	bots, err := store.Bots(t.Context())
	is.NoErr(err)
	is.Equal(bots, []Bot{echoBot, otherBot})
	bot, err := store.BotByUID(t.Context(), echoBot.UID)
	is.NoErr(err)
	is.Equal(bot, echoBot)
}

func TestAZeroMemoryStoreIsEmpty(t *testing.T) {
	is := is.New(t)
	var store MemoryStore
	bots, err := store.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 0)
	_, err = store.BotByUID(t.Context(), "u")
	is.Equal(err, ErrBotNotFound)
	_, err = store.BotBySlug(t.Context(), "s")
	is.Equal(err, ErrBotNotFound)
	is.NoErr(store.Replace(echoBot))
	_, err = store.BotBySlug(t.Context(), "echo")
	is.NoErr(err)
}

// A name that no bot can have is none: some databases fail when asked for it,
// and any client can ask.
func TestNamesThatNoBotCanHave(t *testing.T) {
	o := testOptions(t, t.Output())
	asked := 0
	find := func(context.Context, string) (Bot, error) {
		asked++
		return echoBot, nil
	}
	o.Bots = &fakeStore{byUID: find, bySlug: find}
	h := New(o)
	for _, c := range []struct {
		names  string
		status int
	}{
		{`"bot_slug":"echo"`, 200},
		{`"bot_uid":"\ud800"`, 200}, // U+FFFD: neither white space nor a control character
		{`"bot_slug":"e\u0000"`, 404},
		{`"bot_uid":"\u0000"`, 404},
		{`"bot_slug":"echo "`, 404},
		{`"bot_uid":" "`, 404},
		{`"bot_slug":"a\nb"`, 404},
		{`"bot_slug":"\u007f"`, 404},
		{`"bot_slug":"\u0085"`, 404},
		{`"bot_slug":"a\u00a0b"`, 404},
		{`"bot_slug":"a\u2028b"`, 404},
		{`"bot_uid":"u","bot_slug":"e\u0000"`, 404},
		{`"bot_uid":"u\u0000","bot_slug":"echo"`, 404},
	} {
		t.Run(c.names, func(t *testing.T) {
			is := is.New(t)
			asked = 0
			got := do(t, h, "POST", "/v1/chat", `{`+c.names+`,"prompt":"hi","stream":false}`)
			is.Equal(got.status, c.status)
			is.Equal(asked > 0, c.status == 200)
			if c.status == 404 {
				is.Equal(got.body, `{"detail":"Bot not found"}`)
			}
		})
	}
}

// Every reader sees one set or the other, whole.
func TestReplaceWhileOthersRead(t *testing.T) {
	set := func(name string) (bots []Bot) {
		for i := range 20 {
			bots = append(bots, Bot{UID: fmt.Sprint("u", i), Slug: fmt.Sprint("s", i), Name: name, Model: "m"})
		}
		return bots
	}
	store, err := NewMemoryStore(set("old")...)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 200 {
				bots, err := store.Bots(t.Context())
				mixed := slices.ContainsFunc(bots, func(bot Bot) bool { return bot.Name != bots[0].Name })
				if err != nil || len(bots) != 20 || mixed {
					t.Errorf("%v %v", bots, err)
				}
				if bot, err := store.BotBySlug(t.Context(), "s7"); err != nil || bot.UID != "u7" {
					t.Errorf("%v %v", bot, err)
				}
				if bot, err := store.BotByUID(t.Context(), "u7"); err != nil || bot.Slug != "s7" {
					t.Errorf("%v %v", bot, err)
				}
			}
		})
	}
	for range 2 {
		group.Go(func() {
			for i := range 100 {
				if err := store.Replace(set([]string{"old", "new"}[i%2])...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

func TestABotAsJSON(t *testing.T) {
	is := is.New(t)
	const echoJSON = `{"uid":"11111111-1111-4111-8111-111111111111","slug":"echo","name":"Echo","description":"Says what it hears",` +
		`"welcome_message":"Hello!\nSay something.","model":"echo-1","avatar_url":"https://bots.example.com/echo.png"}`
	encoded, err := json.Marshal(echoBot)
	is.NoErr(err)
	is.Equal(string(encoded), echoJSON)
	encoded, err = json.Marshal(&Bot{})
	is.NoErr(err)
	is.Equal(string(encoded), `{"uid":"","slug":"","name":"","description":"","welcome_message":"","model":"","avatar_url":null}`)

	for _, bot := range []Bot{echoBot, otherBot, {}, {Name: "\"\\\n\u2028<b>[DONE]😀"}} {
		encoded, err := json.Marshal(map[string]any{"bot": bot})
		is.NoErr(err)
		var decoded map[string]Bot
		is.NoErr(json.Unmarshal(encoded, &decoded))
		is.Equal(decoded["bot"], bot)
	}

	encoded, err = Bot{Name: "a\xff\xe2\x82"}.MarshalJSON()
	is.NoErr(err)
	is.True(strings.Contains(string(encoded), "\"name\":\"a\uFFFD\uFFFD\uFFFD\""))
}
