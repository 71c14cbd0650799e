package runtimes_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/runtimetest"
	"github.com/matryer/is"
)

// settings stands in for the database: package postgres has tests of its own.
type settings func(uid string) (postgres.Settings, error)

func (s settings) Settings(_ context.Context, uid string) (postgres.Settings, error) { return s(uid) }

func noSettings(string) (postgres.Settings, error) { return postgres.Settings{}, nil }

var helper = botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"}

// options are those of an engine with one runtime at these addresses.
func options(t *testing.T, urls ...string) runtimes.Options {
	t.Helper()
	o := runtimes.Options{
		Settings: settings(noSettings),
		Logger:   slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, url := range urls {
		o.Endpoints = append(o.Endpoints, runtimes.Endpoint{Runtime: "local", URL: url})
	}
	return o
}

// serve returns the address of a service in front of an engine.
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
	server := httptest.NewServer(botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"key": "acme"}),
		Engine: engine,
		Logger: o.Logger,
	}))
	t.Cleanup(server.Close)
	return server.URL
}

const (
	stream  = `{"bot_slug":"helper","prompt":"Hi","stream":true}`
	oneBody = `{"bot_slug":"helper","prompt":"Hi","stream":false}`
)

func post(t *testing.T, ctx context.Context, url, body string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer key")
	r.Header.Set("X-Request-Id", "request-1")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// chat sends a chat and returns the answer, as far as it came.
func chat(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	response := post(t, t.Context(), url, body)
	answer, _ := io.ReadAll(response.Body)
	return response, string(answer)
}

// text joins the fragments of a stream, or of one body.
func text(t *testing.T, answer string) string {
	t.Helper()
	var joined strings.Builder
	for line := range strings.Lines(answer) {
		line = strings.TrimPrefix(line, "data: ")
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var fragment struct{ Content string }
		if err := json.Unmarshal([]byte(line), &fragment); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		joined.WriteString(fragment.Content)
	}
	return joined.String()
}

func TestRecordedStreams(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sse")
	if err != nil || len(files) == 0 {
		t.Fatal("no recorded streams", err)
	}
	for _, file := range files {
		recorded, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, size := range []int{1, 7, 1 << 20} { // 1 and 7 cut inside characters
			for name, body := range map[string]string{"stream": stream, "one body": oneBody} {
				t.Run(filepath.Base(file)+"/"+name, func(t *testing.T) {
					is := is.New(t)
					runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
						for rest := string(recorded); rest != ""; {
							n := min(size, len(rest))
							s.Raw(rest[:n])
							rest = rest[n:]
						}
					})
					response, answer := chat(t, serve(t, options(t, runtime.URL)), body)
					is.Equal(response.StatusCode, http.StatusOK)
					is.Equal(text(t, answer), "Grüße, 世界 👋🏽\n")
					is.Equal(strings.HasSuffix(answer, "data: [DONE]\n\n"), name == "stream")
				})
			}
		}
	}
}

func TestCharacterCutBetweenChunks(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Raw("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"caf\xc3\"}}]}\n\n")
		s.Raw("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xa9\"}}]}\n\n")
		s.Stop()
	})
	_, answer := chat(t, serve(t, options(t, runtime.URL)), stream)
	is.Equal(text(t, answer), "café")
}

func TestFragmentsPassAsTheyCome(t *testing.T) {
	is := is.New(t)
	next := make(chan string, 1)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Role()
		for fragment := range next {
			s.Text(fragment)
		}
		s.Stop()
		s.Done()
	})
	defer close(next)
	next <- "fragment"
	response := post(t, t.Context(), serve(t, options(t, runtime.URL)), stream)
	lines := bufio.NewScanner(response.Body)
	for range 5 {
		is.True(lines.Scan())
		is.Equal(lines.Text(), `data: {"content":"fragment"}`)
		is.True(lines.Scan())
		next <- "fragment" // only now that the client has read the one before
	}
}

func TestUpstreamRequest(t *testing.T) {
	is := is.New(t)
	t.Setenv("OPENAI_API_KEY", "a key for another place")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("ok") })
	o := options(t, runtime.URL)
	o.Settings = settings(func(uid string) (postgres.Settings, error) {
		is.Equal(uid, "u1")
		return postgres.Settings{Instructions: "Be kind.", Temperature: new(0.5)}, nil
	})
	service := serve(t, o)

	chat(t, service, `{"bot_slug":"helper","stream":false,"user_id":"someone@example.com","prompt":"And now?","messages":[
		{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}`)
	chat(t, service, `{"bot_slug":"helper","stream":true,"prompt":"Hi","max_words":20,"temperature":0,"other":[1]}`)

	requests := runtime.Requests()
	is.Equal(len(requests), 2)
	plain, wished := requests[0], requests[1]
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
	is.True(plain.Stream) // also for one body: see Engine
	is.True(plain.StreamOptions.IncludeUsage)
	is.Equal(plain.Header.Get("X-Request-Id"), "request-1")
	is.Equal(plain.Header.Get("Authorization"), "") // nothing from the environment

	is.Equal(wished.Messages[0], runtimetest.Message{Role: "system", Content: "Be kind.\n\nAnswer in at most 20 words."})
	is.Equal(*wished.Temperature, 0.0) // the client's
	is.Equal(*wished.MaxTokens, int64(60))
}

func TestEndpointKey(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("ok") })
	o := options(t, runtime.URL)
	o.Endpoints[0].Key = "sk-1"
	chat(t, serve(t, o), oneBody)
	is.Equal(runtime.Requests()[0].Header.Get("Authorization"), "Bearer sk-1")
}

func TestWishesThatMakeNoSense(t *testing.T) {
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
		`"temperature":true`:                  problem("temperature", "value is not a valid float", "type_error.float"),
		`"temperature":1e999`:                 problem("temperature", "value is not a valid float", "type_error.float"),
		`"temperature":-0.1`:                  problem("temperature", "ensure this value is greater than or equal to 0", "value_error.number.not_ge"),
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
			is.Equal(len(runtime.Requests()), before) // nobody was bothered
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
		"none named":          {status: 200, answer: "first"},
		"the second":          {settings: postgres.Settings{Runtime: "hosted"}, status: 200, answer: "second"},
		"one that is missing": {settings: postgres.Settings{Runtime: "gone"}, status: 500},
		"unpublished since":   {err: botapi.ErrBotNotFound, status: 404},
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
			o.Settings = settings(func(string) (postgres.Settings, error) { return c.settings, c.err })
			response, answer := chat(t, serve(t, o), oneBody)
			is.Equal(response.StatusCode, c.status)
			is.Equal(text(t, answer), c.answer)
		})
	}
}

func TestMistakesInOptions(t *testing.T) {
	for name, endpoints := range map[string][]runtimes.Endpoint{
		"no runtime is configured":                                      nil,
		`runtime "local": the URL has a user in it; it would be logged`: {{Runtime: "local", URL: "http://me:secret@127.0.0.1/v1"}},
		`runtime "local": "127.0.0.1:80" is not an http or https URL`:   {{Runtime: "local", URL: "127.0.0.1:80"}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			_, err := runtimes.New(runtimes.Options{Endpoints: endpoints, Settings: settings(noSettings)})
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
	engine, err := runtimes.New(runtimes.Options{Endpoints: []runtimes.Endpoint{endpoint}, Settings: settings(noSettings)})
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
