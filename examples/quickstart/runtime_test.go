package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// runtimeAt returns a runtime for the model llama3.2.
func runtimeAt(t *testing.T, address string) *modelRuntime {
	t.Helper()
	r, err := newRuntime(address, "llama3.2")
	is.New(t).NoErr(err)
	return r
}

func TestRealModel(t *testing.T) {
	is := is.New(t)
	t.Setenv("BOTAPI_RUNTIME_KEY", "its-key")
	ollama := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("I am ", "a llama.") })
	s := settings{key: "the-key", runtime: runtimeAt(t, ollama.URL)}
	store := new(botapi.MemoryStore)
	is.NoErr(s.loadBots(store))
	server := httptest.NewServer(s.handler(store, slog.New(slog.DiscardHandler)))
	defer server.Close()

	_, bots := ask(t, "GET", server.URL+"/v1/bots", "the-key", "")
	is.True(strings.HasPrefix(bots, `[{"uid":"model","slug":"model","name":"llama3.2","description":"A real model, at 127.0.0.1:`))
	is.True(strings.Contains(bots, `"slug":"guide"`)) // the built-in bots stay
	_, answer := ask(t, "POST", server.URL+"/v1/chat", "the-key", chatBody("model", "Who are you?", false))
	is.Equal(answer, `{"content":"I am a llama."}`)
	request := ollama.Requests()[0]
	is.Equal(request.Model, "llama3.2")
	is.Equal(request.Messages, []runtimetest.Message{{Role: "user", Content: "Who are you?"}})
	is.Equal(request.Header.Get("Authorization"), "Bearer its-key")
}

// TestRealModelFails checks that the response says what the person who runs the
// program can do.
func TestRealModelFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer func(*runtimetest.Stream, *runtimetest.Request) // nil: no runtime is running
		status int
		detail string // %s is the runtime's host
	}{
		{"no runtime", nil, 503, "No model runtime answers at %s. Is it running?"},
		{"a wrong key", func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Refuse(401, `{"error":{"message":"no"}}`) }, 502,
			"The model runtime at %s rejects the key. Set BOTAPI_RUNTIME_KEY, and start the quickstart again"},
		{"a wrong address", func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Refuse(404, "404 page not found") }, 502,
			"The server at %s has no OpenAI-compatible API at the address of -runtime. Such an address often ends in /v1"},
		{"no such model", func(s *runtimetest.Stream, _ *runtimetest.Request) {
			s.Refuse(404, `{"error":{"message":"model \"llama3.2\" not found, try pulling it first","type":"api_error","param":null,"code":null}}`)
		}, 502,
			"The model runtime at %s does not have the model llama3.2. With Ollama: ollama pull llama3.2"},
		{"too busy", func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Refuse(429, `{}`) }, 503, "The model is unavailable for the moment"},
		{"an incomplete answer", func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Text("Half"); s.Break() }, 502, "The model's answer is incomplete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			address := "http://127.0.0.1:1/v1" // a port that no server gets by asking for any
			if c.answer != nil {
				address = runtimetest.New(t, c.answer).URL
			}
			s := settings{key: "the-key", runtime: runtimeAt(t, address)}
			store := new(botapi.MemoryStore)
			is.NoErr(s.loadBots(store))
			server := httptest.NewServer(s.handler(store, slog.New(slog.DiscardHandler)))
			defer server.Close()
			status, body := ask(t, "POST", server.URL+"/v1/chat", "the-key", chatBody("model", "Hello", false))
			is.Equal(status, c.status)
			is.Equal(body, fmt.Sprintf(`{"detail":%q}`, strings.ReplaceAll(c.detail, "%s", s.runtime.host())))
		})
	}
}

// TestProbe checks the one-line error for each problem of a runtime.
func TestProbe(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		list   string
		says   string // empty: no error
	}{
		{"the model is there", 200, `{"data":[{"id":"mistral"},{"id":"llama3.2:latest"}]}`, ""},
		{"another model", 200, `{"data":[{"id":"mistral:latest"},{"id":"qwen3:8b"}]}`, `the model runtime at %s does not have the model llama3.2; it has mistral, qwen3:8b`},
		{"no model", 200, `{"data":[]}`, `the model runtime at %s has no models; with Ollama: ollama pull llama3.2`},
		{"no model of Ollama", 200, `{"object":"list","data":null}`, `the model runtime at %s has no models; with Ollama: ollama pull llama3.2`},
		{"an error of LM Studio", 200, `{"error":"Unexpected endpoint or method. (GET /models)"}`, `the server at %s is not a model runtime: its list of models is something else; the address often ends in /v1`},
		{"a page", 200, `<h1>Welcome</h1>`, `the server at %s is not a model runtime: its list of models is something else; the address often ends in /v1`},
		{"a wrong key", 401, ``, `the model runtime at %s rejects the key: set BOTAPI_RUNTIME_KEY`},
		{"no list", 404, ``, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			mux := http.NewServeMux()
			mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.list)
			})
			server := httptest.NewServer(mux)
			defer server.Close()
			r := runtimeAt(t, server.URL+"/v1/?api-version=1")
			err := r.probe(t.Context())
			is.Equal(err == nil, c.says == "")
			if err != nil {
				is.Equal(err.Error(), strings.ReplaceAll(c.says, "%s", r.host()))
			}
		})
	}
}

// TestProbeWithoutV1 checks what the program suggests if the runtime is at the address with
// /v1. It does not repeat what may be a secret.
func TestProbeWithoutV1(t *testing.T) {
	for _, c := range []struct {
		address string // after that of the server
		status  int
		page    string // of a server at the address without /v1
		says    string // %s is the address of the server
	}{
		{"", 404, "404 page not found", "the address of the model runtime lacks its /v1: start the quickstart with -runtime %s/v1"},
		{"/", 404, "404 page not found", "the address of the model runtime lacks its /v1: start the quickstart with -runtime %s/v1"},
		{"", 200, "<h1>Welcome</h1>", "the address of the model runtime lacks its /v1: start the quickstart with -runtime %s/v1"},
		{"", 200, `{"error":"Unexpected endpoint or method. (GET /models)"}`, "the address of the model runtime lacks its /v1: start the quickstart with -runtime %s/v1"},
		{"/secret/", 404, "", "the address of the model runtime lacks its /v1: start the quickstart with -runtime and /v1 at the end of its path"},
		{"?secret=1", 404, "", "the address of the model runtime lacks its /v1: start the quickstart with -runtime and /v1 at the end of its path"},
	} {
		t.Run(c.address+" "+c.page, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, "/v1/models") {
					_, _ = io.WriteString(w, `{"data":[{"id":"llama3.2"}]}`)
					return
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.page)
			}))
			defer server.Close()
			err := runtimeAt(t, server.URL+c.address).probe(t.Context())
			is.New(t).Equal(fmt.Sprint(err), strings.ReplaceAll(c.says, "%s", server.URL))
		})
	}
}

// TestUnavailableRuntime checks that the program starts without its runtime and
// lists the guide first, which can answer.
func TestUnavailableRuntime(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := start(t, nil, "-runtime", "http://127.0.0.1:1/v1?api-key=secret", "-model", "llama3.2")
	is.Equal(p.awaitLog("quickstart:"), "quickstart: no model runtime answers at 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused")
	list := p.list()
	is.True(strings.HasPrefix(list, `[{"uid":"2f6a9d3c-4a0b-4f0e-9d55-6b1f3a7c8e20","slug":"guide"`))
	is.True(strings.Contains(list, `"name":"llama3.2","description":"At the start: no model runtime answers at 127.0.0.1:1:`))
	is.True(strings.Contains(p.commands[1], `"bot_slug":"guide"`))
}

// TestRuntimeLacksTheModel checks that the log and the list of bots say so.
func TestRuntimeLacksTheModel(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	models := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"data":[{"id":"mistral"}]}`) }
	server := httptest.NewServer(http.HandlerFunc(models))
	defer server.Close()
	p := start(t, nil, "-runtime", server.URL+"/v1", "-model", "llama3.2")
	problem := "the model runtime at " + strings.TrimPrefix(server.URL, "http://") + " does not have the model llama3.2; it has mistral"
	is.Equal(p.awaitLog("quickstart:"), "quickstart: "+problem)
	is.True(strings.Contains(p.list(), problem))
}
