package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"example.com/botapi"
	"github.com/matryer/is"
)

func TestBuiltInBots(t *testing.T) {
	is := is.New(t)
	bots := loaded(t, "")
	is.Equal(len(bots), 3)
	models := map[string]bool{}
	for _, bot := range bots {
		models[bot.Model] = true
		is.True(len(questions[bot.Slug]) > 1)
		is.True(bot.Description != "")
		is.True(bot.WelcomeMessage != "")
	}
	is.Equal(len(models), len(bots)) // all different
}

const (
	ivy = `{"uid":"1","slug":"ivy","name":"Ivy","model":"eliza-gardener"}`
	oak = `{"uid":"2","slug":"oak","name":"Oak","description":"Old.","welcome_message":"Sit\ndown.",
		"model":"eliza-listener","avatar_url":"https://example.com/oak.png"}`
)

func TestBotsFile(t *testing.T) {
	is := is.New(t)
	is.Equal(loaded(t, writeBots(t, "["+ivy+","+oak+"]")), []botapi.Bot{
		{UID: "1", Slug: "ivy", Name: "Ivy", Model: "eliza-gardener"},
		{UID: "2", Slug: "oak", Name: "Oak", Description: "Old.", WelcomeMessage: "Sit\ndown.",
			Model: "eliza-listener", AvatarURL: "https://example.com/oak.png"},
	})
}

func TestBotsFileErrors(t *testing.T) {
	for _, c := range []struct {
		name, data string
		says       string // after the name of the file
	}{
		{"nothing", "", "line 1, column 1: unexpected end of JSON input"},
		{"a missing comma", "[\n  " + ivy + "\n  {\"uid\":\"2\"}\n]",
			"line 3, column 3: invalid character '{' after array element"},
		{"columns count characters", `[{"name":"Ä" x]`, "line 1, column 14: invalid character 'x' after object key:value pair"},
		{"truncated", "[" + ivy + ",\n\n", "line 2, column 1: unexpected end of JSON input"},
		{"an object", ivy, "it must be an array of bots"},
		{"null", "null", "there are no bots in it"},
		{"no bots", "[]", "there are no bots in it"},
		{"not a bot", "[" + ivy + `,"oak"]`, `bot 1 (slug ""): it must be an object`},
		{"an unknown field", `[{"slug":"ivy","modle":"eliza-gardener"}]`, `bot 0 (slug "ivy"): unknown field "modle"`},
		{"field names are case-sensitive", `[{"slug":"ivy","Name":"Ivy"}]`, `bot 0 (slug "ivy"): unknown field "Name"`},
		{"a field of the wrong type", `[{"slug":"ivy","uid":7}]`, `bot 0 (slug "ivy"): uid: must be a string`},
		{"a slug of the wrong type", `[{"slug":["ivy"]}]`, `bot 0 (slug ""): slug: must be a string`},
		{"no model", `[{"slug":"ivy","uid":"1","name":"Ivy"}]`,
			`bot 0 (slug "ivy"): model: "" is not one of eliza-gardener, eliza-listener, no-model`},
		{"an unknown model", "[" + ivy + "," + strings.Replace(oak, "eliza-listener", "gpt", 1) + "]",
			`bot 1 (slug "oak"): model: "gpt" is not one of eliza-gardener, eliza-listener, no-model`},
		{"no name", strings.Replace("["+ivy+"]", `"name":"Ivy",`, "", 1),
			`botapi: bot 0 (slug "ivy"): name: cannot be blank.`},
		{"a slug with a space", strings.Replace("["+ivy+"]", `"ivy"`, `"i vy"`, 1),
			`botapi: bot 0 (slug "i vy"): slug: must be UTF-8 without white space or control characters.`},
		{"an avatar that is not a URL", strings.Replace("["+oak+"]", "https://example.com/", "", 1),
			`botapi: bot 0 (slug "oak"): avatar_url: must be an absolute URL.`},
		{"a repeated slug", "[" + ivy + "," + strings.Replace(ivy, `"1"`, `"2"`, 1) + "]",
			`botapi: bot 1 (slug "ivy"): slug: bot 0 has it too`},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			file := writeBots(t, c.data)
			store, err := botapi.NewMemoryStore(botapi.Bot{UID: "0", Slug: "old", Name: "Old", Model: "m"})
			is.NoErr(err)

			err = settings{botsFile: file}.loadBots(store)
			is.True(err != nil)
			is.Equal(err.Error(), file+": "+c.says)

			_, err = store.BotBySlug(context.Background(), "old")
			is.NoErr(err) // the store is unchanged
		})
	}
}

func TestHangupReloads(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	file := writeBots(t, "["+ivy+"]")
	p := start(t, nil, "-bots", file)

	rewrite(t, file, "["+oak+"]")
	p.signal(syscall.SIGHUP)
	p.awaitLog(`level=INFO msg="bots reloaded"`)
	is.True(strings.Contains(p.list(), `"slug":"oak"`))

	rewrite(t, file, `[{"slug":"elm","colour":"green"}]`)
	p.signal(syscall.SIGHUP)
	line := p.awaitLog(`level=ERROR msg="bots not reloaded"`)
	is.True(strings.Contains(line, file+`: bot 0 (slug \"elm\"): unknown field \"colour\"`))
	is.True(strings.Contains(p.list(), `"slug":"oak"`))

	p.signal(syscall.SIGINT)
	is.Equal(p.exitCode(), 0)
}

// list returns the list of bots as the process sends it.
func (p *process) list() string {
	p.t.Helper()
	_, body := ask(p.t, "GET", p.base+"/v1/bots", p.key, "")
	return body
}

func TestReloadDropsNoRequest(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	small, large := writeBots(t, "["+ivy+"]"), writeBots(t, "["+oak+","+ivy+"]")
	store := new(botapi.MemoryStore)
	is.NoErr(settings{botsFile: small}.loadBots(store))
	server := httptest.NewServer(settings{key: "k"}.handler(store, slog.New(slog.DiscardHandler)))
	defer server.Close()

	reloading, stop := context.WithCancel(context.Background())
	var reloads sync.WaitGroup
	reloads.Go(func() {
		for reloading.Err() == nil {
			settings{botsFile: large}.reload(store, slog.New(slog.DiscardHandler))
			settings{botsFile: small}.reload(store, slog.New(slog.DiscardHandler))
		}
	})
	var clients sync.WaitGroup
	failures := make(chan error, 8)
	for range cap(failures) {
		clients.Go(func() { failures <- chatWithIvy(server.URL, 50) })
	}
	clients.Wait()
	stop()
	reloads.Wait()
	for range cap(failures) {
		is.NoErr(<-failures)
	}
}

// chatWithIvy chats with a bot that both bots files contain.
func chatWithIvy(base string, times int) error {
	for range times {
		_, answer, err := request("POST", base+"/v1/chat", "k", chatBody("ivy", "Hello", true))
		if err != nil {
			return err
		}
		if !strings.HasSuffix(answer, "data: [DONE]\n\n") {
			return errors.New(answer)
		}
	}
	return nil
}

func loaded(t *testing.T, file string) []botapi.Bot {
	t.Helper()
	store := new(botapi.MemoryStore)
	if err := (settings{botsFile: file}).loadBots(store); err != nil {
		t.Fatal(err)
	}
	bots, err := store.Bots(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return bots
}

func writeBots(t *testing.T, data string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "bots.json")
	rewrite(t, file, data)
	return file
}

func rewrite(t *testing.T, file, data string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}
