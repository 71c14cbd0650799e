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

// botWith returns a valid bot with a change.
func botWith(change func(*Bot)) Bot {
	bot := echoBot
	change(&bot)
	return bot
}

func TestBotValidate(t *testing.T) {
	blank := [2]string{"cannot be blank", "validation_required"}
	spaced := [2]string{"must be UTF-8 without white space or control characters", "bot_identifier"}
	noURL := [2]string{"must be an absolute URL", "bot_avatar_url"}
	valid := [2]string{}
	for _, c := range []struct {
		field  string
		want   [2]string // message and code
		values []string
	}{
		{"uid", valid, []string{"bot/7?x=1#é"}}, // it need not be a UUID
		{"uid", blank, []string{""}},
		{"uid", spaced, []string{" ", "bot 7", "bot\n7"}},
		{"slug", valid, []string{"Max_Mustermann", "007"}},
		{"slug", blank, []string{""}},
		{"slug", spaced, []string{"bot\t7", "bot\u00A07", "a\u2028b", "bot\x007", "bot\x7f", "bot\u0085"}},
		{"name", valid, []string{"Max\nMustermann"}},
		{"name", blank, []string{""}},
		{"model", blank, []string{""}},
		{"description", valid, []string{""}},
		{"welcome_message", valid, []string{""}},
		{"avatar_url", valid, []string{"", "data:image/png;base64,AA==", "blob:echo"}},
		{"avatar_url", noURL, []string{"/echo.png", "//bots.example.com/echo.png", "https://bots example.com/%zz"}},
	} {
		for _, value := range c.values {
			t.Run(fmt.Sprintf("%s %q", c.field, value), func(t *testing.T) {
				is := is.New(t)
				bot := echoBot
				change, err := json.Marshal(map[string]string{c.field: value})
				is.NoErr(err)
				is.NoErr(json.Unmarshal(change, &bot))
				err = bot.Validate()
				if c.want == valid {
					is.NoErr(err)
					return
				}
				fields, _ := errors.AsType[validation.Errors](err)
				is.Equal(len(fields), 1)
				problem, found := fields[c.field].(validation.Error)
				is.True(found)
				is.Equal([2]string{problem.Error(), problem.Code()}, c.want)
			})
		}
	}
	fields, _ := errors.AsType[validation.Errors](Bot{AvatarURL: "x"}.Validate())
	is.New(t).Equal(len(fields), 5) // all problems are reported
}

// holds checks which bots a store has, in which order.
func holds(t *testing.T, store *MemoryStore, want ...Bot) {
	t.Helper()
	is := is.New(t)
	bots, err := store.Bots(t.Context())
	is.NoErr(err)
	is.True(slices.Equal(bots, want))
	for _, bot := range append(want, echoBot, otherBot, Bot{}, Bot{UID: "ECHO", Slug: "ECHO"}, Bot{UID: "echo ", Slug: "echo "}) {
		byUID, uidErr := store.BotByUID(t.Context(), bot.UID)
		bySlug, slugErr := store.BotBySlug(t.Context(), bot.Slug)
		if slices.Contains(want, bot) {
			is.NoErr(errors.Join(uidErr, slugErr))
			is.Equal(byUID, bot)
			is.Equal(bySlug, bot)
		} else {
			is.Equal(uidErr, ErrBotNotFound)
			is.Equal(slugErr, ErrBotNotFound)
		}
	}
}

// The store copies what it is given and what it returns: a store that wraps it may filter
// the slice in place.
func TestMemoryStore(t *testing.T) {
	is := is.New(t)
	given := []Bot{otherBot, echoBot}
	store, err := NewMemoryStore(given...)
	is.NoErr(err)
	clear(given)
	lent, err := store.Bots(t.Context())
	is.NoErr(err)
	clear(lent)
	holds(t, store, otherBot, echoBot)
	is.NoErr(store.Replace(echoBot))
	holds(t, store, echoBot)
	is.NoErr(store.Replace())
	holds(t, store)

	store = new(MemoryStore)
	holds(t, store)
	is.NoErr(store.Replace(echoBot))
	holds(t, store, echoBot)
}

func TestMemoryStoreInvalid(t *testing.T) {
	for _, c := range []struct {
		name  string
		bots  []Bot
		wants []string // in the error
	}{
		{"not valid", []Bot{echoBot, {UID: "u", Slug: "s", Name: "n"}}, []string{"bot 1", `"s"`, "model"}},
		{"a uid that is not UTF-8", []Bot{botWith(func(b *Bot) { b.UID = "u\xff" })}, []string{"bot 0", "uid", "must be UTF-8"}},
		{"a slug that is not UTF-8", []Bot{botWith(func(b *Bot) { b.Slug = "s\xc3" })}, []string{"bot 0", "slug", "must be UTF-8"}},
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
			holds(t, store, echoBot) // unchanged
		})
	}
	t.Run("names are compared exactly", func(t *testing.T) {
		is := is.New(t)
		_, err := NewMemoryStore(echoBot, botWith(func(b *Bot) { b.UID, b.Slug = "u2", "Echo" }), botWith(func(b *Bot) { b.UID, b.Slug = "echo", "e3" }))
		is.NoErr(err)
	})
}

// The store is not asked for a name that no bot can have: some databases fail for such
// names, and any client can send one.
func TestBotNameInvalid(t *testing.T) {
	for names, status := range map[string]int{
		`"bot_slug":"echo"`:                     200,
		`"bot_uid":"\ud800"`:                    200, // U+FFFD: neither white space nor a control character
		`"bot_slug":"e\u0000"`:                  404,
		`"bot_uid":"\u0000"`:                    404,
		`"bot_slug":"echo "`:                    404,
		`"bot_uid":"u","bot_slug":"e\u0000"`:    404,
		`"bot_uid":"u\u0000","bot_slug":"echo"`: 404,
	} {
		t.Run(names, func(t *testing.T) {
			is := is.New(t)
			calls := 0
			find := func(context.Context, string) (Bot, error) {
				calls++
				return echoBot, nil
			}
			o := testOptions(t, t.Output())
			o.Bots = &fakeStore{byUID: find, bySlug: find}
			is.Equal(postChat(New(o), `{`+names+`,"prompt":"hi","stream":false}`).Code, status)
			is.Equal(calls > 0, status == 200)
		})
	}
}

// FindBot finds bots as the handler does: by both names, which must agree.
// The store is not asked for a name that no bot can have, nor without a name, which a route may
// leave out.
func TestFindBot(t *testing.T) {
	store, unasked := testOptions(t, t.Output()).Bots, new(fakeStore) // whose functions must not be called
	for _, c := range []struct {
		bots      BotStore
		uid, slug string
		want      Bot
	}{
		{store, echoBot.UID, "", echoBot}, {store, "", "Other", otherBot}, {store, echoBot.UID, "echo", echoBot},
		{store, echoBot.UID, "Other", Bot{}}, {store, "", "other", Bot{}},
		{unasked, "", "", Bot{}}, {unasked, "", "two words", Bot{}}, {unasked, "\xff", "", Bot{}}, {unasked, "", "s\xc3", Bot{}}, {unasked, echoBot.UID, "s\x00", Bot{}},
	} {
		is := is.New(t)
		got, err := FindBot(t.Context(), c.bots, c.uid, c.slug)
		is.Equal(errors.Is(err, ErrBotNotFound), c.want == Bot{})
		if err == nil {
			is.Equal(got, c.want)
		}
	}
}

// Every call sees either the old set or the new one.
func TestMemoryStoreReplaceConcurrently(t *testing.T) {
	set := func(name string) (bots []Bot) {
		for i := range 20 {
			bots = append(bots, Bot{UID: fmt.Sprint("u", i), Slug: fmt.Sprint("s", i), Name: name, Model: "m"})
		}
		return bots
	}
	old, other := set("old"), set("new")
	store, err := NewMemoryStore(old...)
	is.New(t).NoErr(err)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 200 {
				bots, err := store.Bots(t.Context())
				bySlug, slugErr := store.BotBySlug(t.Context(), "s7")
				byUID, uidErr := store.BotByUID(t.Context(), "u7")
				isSet := slices.Equal(bots, old) || slices.Equal(bots, other)
				if err := errors.Join(err, slugErr, uidErr); err != nil || !isSet || bySlug.UID != "u7" || byUID.Slug != "s7" {
					t.Errorf("%v %v %v %v", err, bots, bySlug, byUID)
				}
			}
		})
	}
	for _, set := range [][]Bot{old, other} {
		group.Go(func() {
			for range 100 {
				if err := store.Replace(set...); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
}

// MarshalJSON encodes a bot as the list does.
func TestBotJSON(t *testing.T) {
	is := is.New(t)
	encoded, err := json.Marshal([]any{echoBot, &otherBot})
	is.NoErr(err)
	is.Equal(string(encoded), listedBots)
	bot := Bot{UID: "a\xffb", Name: "\"\\/\b\f\n\r\t\x00\x1f\x7f", Description: "<b>&amp;</b>", WelcomeMessage: "\u0085\u2028\u2029[DONE]😀\xf0\x9f\x98"}
	listed := listOf(New(bots(t, func(context.Context) ([]Bot, error) { return []Bot{bot}, nil }))).Body.String()
	encoded, err = bot.MarshalJSON()
	is.NoErr(err)
	is.Equal(listed, "["+string(encoded)+"]")
	is.True(!strings.ContainsAny(listed, "\u0085\u2028\u2029"))
	var decoded []Bot
	is.NoErr(json.Unmarshal([]byte(listed), &decoded))
	bot.UID, bot.WelcomeMessage = "a\uFFFDb", "\u0085\u2028\u2029[DONE]😀\uFFFD\uFFFD\uFFFD"
	is.Equal(decoded, []Bot{bot})
}
