package runtimes_test

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/runtimes"
	"github.com/matryer/is"
)

// noSettings replaces the database: package postgres has tests of its own.
func noSettings(context.Context, string) (postgres.Settings, error) { return postgres.Settings{}, nil }

var helper = botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"}

// options are those of an engine with one runtime at these addresses.
func options(t *testing.T, urls ...string) runtimes.Options {
	t.Helper()
	o := runtimes.Options{
		Settings: noSettings,
		Logger:   slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, url := range urls {
		o.Endpoints = append(o.Endpoints, runtimes.Endpoint{Runtime: "local", URL: url})
	}
	return o
}

// serve returns the address of a service with an engine.
func serve(t *testing.T, o runtimes.Options) string {
	t.Helper()
	engine, err := runtimes.New(o)
	if err != nil {
		t.Fatal(err)
	}
	bots, err := botapi.NewMemoryStore(helper)
	if err != nil {
		t.Fatal(err)
	}
	return botapitest.NewServer(t, botapi.Options{Bots: bots, Engine: engine, Logger: o.Logger}).URL
}

const (
	stream     = `{"bot_slug":"helper","prompt":"Hi","stream":true}`
	unstreamed = `{"bot_slug":"helper","prompt":"Hi","stream":false}`
)

var post, chat, text = runtimetest.Post, runtimetest.Chat, runtimetest.Text

func TestUpstreamRequest(t *testing.T) {
	is := is.New(t)
	t.Setenv("OPENAI_API_KEY", "a key for something else")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("ok") })
	o := options(t, runtime.URL)
	o.Settings = func(_ context.Context, uid string) (postgres.Settings, error) {
		is.Equal(uid, "u1")
		return postgres.Settings{Instructions: "Be kind.", Temperature: new(0.5)}, nil
	}
	service := serve(t, o)

	chat(t, service, `{"bot_slug":"helper","stream":false,"user_id":"someone@example.com","prompt":"And now?","messages":[
		{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}`)
	chat(t, service, `{"bot_slug":"helper","stream":true,"prompt":"Hi","max_words":20,"temperature":0,"other":[1],"stop":"."}`)
	chat(t, service, `{"bot_slug":"helper","stream":true,"prompt":"Hi","max_words":20,"max_tokens":7,"temperature":null}`)

	chat(t, service, `{"bot_slug":"helper","stream":true,"prompt":"Hi","max_tokens":1,"max_completion_tokens":100000}`)
	chat(t, service, `{"bot_slug":"helper","stream":true,"prompt":"Hi","max_completion_tokens":9}`)

	requests := runtime.Requests()
	is.Equal(len(requests), 5)
	plain, wished, short := requests[0], requests[1], requests[2]
	for i, tokens := range []string{"1", "9"} { // the reservation is what a runtime is told, whichever field the client uses
		is.True(strings.Contains(requests[3+i].Body, `"max_tokens":`+tokens+`,`))
		is.True(!strings.Contains(requests[3+i].Body, "max_completion_tokens"))
	}
	is.Equal(plain.Model, "m1")
	is.Equal(plain.Messages, []runtimetest.Message{
		{Role: "system", Content: "Be kind."},
		{Role: "system", Content: "s"},
		{Role: "user", Content: "u"},
		{Role: "assistant", Content: "a"},
		{Role: "user", Content: "And now?"},
	})
	is.Equal(*plain.Temperature, 0.5) // the bot's
	is.Equal(plain.MaxTokens, nil)
	is.True(plain.Stream) // for a JSON response, too: see Engine
	is.True(plain.StreamOptions.IncludeUsage)
	is.Equal(plain.Header.Get("X-Request-Id"), "request-1")
	is.Equal(plain.Header.Get("Authorization"), "") // nothing from the environment

	is.Equal(wished.Messages[0], runtimetest.Message{Role: "system", Content: "Be kind.\n\nAnswer in at most 20 words."})
	is.Equal(*wished.Temperature, 0.0) // the client's
	is.Equal(*wished.MaxTokens, int64(60))
	is.True(strings.Contains(wished.Body, `"stop":"."`)) // passed on
	is.True(!strings.Contains(wished.Body, "other"))     // and no unknown field
	is.Equal(*short.MaxTokens, int64(7))                 // the smaller of two bounds
	is.Equal(*short.Temperature, 0.5)                    // null does not count
}

func TestEndpointKey(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("ok") })
	o := options(t, runtime.URL)
	o.Endpoints[0].Key = "sk-1"
	chat(t, serve(t, o), unstreamed)
	is.Equal(runtime.Requests()[0].Header.Get("Authorization"), "Bearer sk-1")
}

// TestInvalidExtra has max_words, and one of the fields that the engine in
// examples/openai checks.
func TestInvalidExtra(t *testing.T) {
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("ok") })
	service := serve(t, options(t, runtime.URL))
	problem := func(field, msg, kind string) string {
		return `{"loc":["body","` + field + `"],"msg":"` + msg + `","type":"` + kind + `"}`
	}
	for extra, want := range map[string]string{
		`"max_words":null,"temperature":null`: "",
		`"max_words":100000,"temperature":2`:  "",
		`"max_words":"many"`:                  problem("max_words", "value is not a valid integer", "type_error.integer"),
		`"max_words":1.5`:                     problem("max_words", "value is not a valid integer", "type_error.integer"),
		`"max_words":0`:                       problem("max_words", "ensure this value is greater than or equal to 1", "value_error.number.not_ge"),
		`"max_words":100001`:                  problem("max_words", "ensure this value is less than or equal to 100000", "value_error.number.not_le"),
		`"temperature":2.1,"max_words":[]`: problem("max_words", "value is not a valid integer", "type_error.integer") + "," +
			problem("temperature", "ensure this value is less than or equal to 2", "value_error.number.not_le"),
	} {
		t.Run(extra, func(t *testing.T) {
			is := is.New(t)
			before := len(runtime.Requests())
			response, answer := chat(t, service, `{"bot_slug":"helper","prompt":"Hi","stream":true,`+extra+`}`)
			if want == "" {
				is.Equal(response.StatusCode, http.StatusOK)
				return
			}
			is.Equal(response.StatusCode, http.StatusUnprocessableEntity)
			is.Equal(strings.TrimSpace(answer), `{"detail":[`+want+`]}`)
			is.Equal(len(runtime.Requests()), before) // no runtime was asked
		})
	}
}

func TestBotsOfOtherRuntimes(t *testing.T) {
	for name, c := range map[string]struct {
		settings postgres.Settings
		err      error
		status   int
		answer   string
	}{
		"none named": {status: 200, answer: "first"},
		"the second": {settings: postgres.Settings{Runtime: "hosted"}, status: 200, answer: "second"},
		"the database is down": {
			err: &botapi.StatusError{Status: 503, Detail: "The service is unavailable for the moment"}, status: 503,
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			first := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("first") })
			second := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("second") })
			o := options(t, first.URL)
			o.Endpoints = append(o.Endpoints, runtimes.Endpoint{Runtime: "hosted", URL: second.URL})
			o.Settings = func(context.Context, string) (postgres.Settings, error) { return c.settings, c.err }
			response, answer := chat(t, serve(t, o), unstreamed)
			is.Equal(response.StatusCode, c.status)
			is.Equal(text(t, answer), c.answer)
		})
	}
}

func TestMistakesInOptions(t *testing.T) {
	for name, endpoints := range map[string][]runtimes.Endpoint{
		"no runtime is configured": nil,
		`runtime "local": openai: the base URL has a user in it, which would be logged`:                      {{Runtime: "local", URL: "http://me:secret@127.0.0.1/v1"}},
		`runtime "local": openai: the base URL is not an http or https URL, as in http://127.0.0.1:11434/v1`: {{Runtime: "local", URL: "127.0.0.1:80"}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := runtimes.New(runtimes.Options{Endpoints: endpoints, Settings: noSettings})
			is.True(err != nil)
			is.Equal(err.Error(), name)
		})
	}
}

// TestRealRuntime chats with a real model at RUNTIME_URL, for instance
// RUNTIME_URL=http://127.0.0.1:11434/v1 RUNTIME_MODEL=llama3.2.
func TestRealRuntime(t *testing.T) {
	url := os.Getenv("RUNTIME_URL")
	if url == "" {
		t.Skip("RUNTIME_URL is not set: this test needs a real model runtime, and RUNTIME_MODEL and RUNTIME_KEY where it asks for them")
	}
	is := is.New(t)
	endpoint := runtimes.Endpoint{Runtime: "real", URL: url, Key: os.Getenv("RUNTIME_KEY")}
	engine, err := runtimes.New(runtimes.Options{Endpoints: []runtimes.Endpoint{endpoint}, Settings: noSettings})
	is.NoErr(err)
	bot := helper
	bot.Model = cmp.Or(os.Getenv("RUNTIME_MODEL"), "default")
	var answer strings.Builder
	for fragment, err := range engine.Chat(t.Context(), &botapi.ChatRequest{
		Bot:      bot,
		Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Say hello."}},
		Extra:    map[string]json.RawMessage{"max_words": json.RawMessage("20")},
	}) {
		is.NoErr(err)
		answer.WriteString(fragment)
	}
	is.True(answer.Len() > 0)
}
