package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestProtocols asks Mira in each protocol.
func TestProtocols(t *testing.T) {
	server := serveBuiltIn(t, "the-key", io.Discard)
	question, err := json.Marshal(firstQuestion(mira))
	is.New(t).NoErr(err)
	for path, c := range map[string]struct{ body, want string }{
		"/v1/chat/completions": {`{"model":"mira","messages":[{"role":"user","content":QUESTION}]}`, `"content":"ANSWER"`},
		"/v1/responses":        {`{"model":"mira","input":QUESTION}`, `"text":"ANSWER"`},
		"/api/chat?bot=mira":   {`{"id":"c","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":QUESTION}]}]}`, `"finishReason":"stop"`},
		"/ollama/api/chat":     {`{"model":"mira","stream":false,"messages":[{"role":"user","content":QUESTION}]}`, `"content":"ANSWER"`},
	} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			body := strings.ReplaceAll(c.body, "QUESTION", string(question))
			status, answer := ask(t, "POST", server.URL+path, "the-key", body)
			is.Equal(status, 200)
			is.True(strings.Contains(answer, strings.ReplaceAll(c.want, "ANSWER", answerOfMira)))
			status, _ = ask(t, "POST", server.URL+path, "", body)
			is.Equal(status, 401)
		})
	}
	for path, want := range map[string]string{
		"/v1/models":       `"id":"mira"`,
		"/ollama/api/tags": `"name":"mira:latest"`,
		"/ollama":          "Ollama is running",
	} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			status, list := ask(t, "GET", server.URL+path, "the-key", "")
			is.Equal(status, 200)
			is.True(strings.Contains(list, want))
		})
	}
}

// A client with a wrong base URL learns what is served.
func TestNotFoundNamesAllPaths(t *testing.T) {
	server := serveBuiltIn(t, "the-key", io.Discard)
	for _, path := range []string{"/v1/nothing", "/v1/v1/chat/completions", "/api/nothing", "/ollama/nothing"} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			status, body := ask(t, "POST", server.URL+path, "the-key", "")
			is.Equal(status, 404)
			for _, served := range []string{
				"POST /v1/chat", "GET /v1/bots", "DELETE /v1/answers", "POST /v1/chat/completions", "POST /v1/responses", "GET /v1/models",
				"POST /api/chat", "POST /ollama/api/chat",
			} {
				is.True(strings.Contains(body, served))
			}
		})
	}
}

// TestUseChatComesBack disconnects from an answer, and finds it by the id of its chat.
func TestUseChatComesBack(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	p := start(t, nil, "-pace", "20ms")
	send := func(method, path, body string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(method, p.base+path, strings.NewReader(body))
		is.NoErr(err)
		r.Header.Set("Authorization", "Bearer "+p.key)
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		is.NoErr(err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	resp := send("POST", "/api/chat?bot=mira", `{"id":"c","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"I am worried about my exam"}]}]}`)
	is.Equal(resp.StatusCode, 200)
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() && !strings.Contains(lines.Text(), `"text-delta"`) {
	}
	is.True(strings.Contains(lines.Text(), `"text-delta"`))
	resp.Body.Close()

	resp = send("GET", "/api/chat/c/stream", "")
	is.Equal(resp.StatusCode, 200)
	answer, err := io.ReadAll(resp.Body)
	is.NoErr(err)
	is.True(strings.Contains(string(answer), `"finishReason":"stop"`))
}

// TestMetrics also counts the tokens of a model, once for each answer.
func TestMetrics(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("I am a llama.")
		s.Stop()
		s.Usage(9, 7)
		s.Done()
	})
	p := start(t, nil, "-metrics", "-runtime", runtime.URL, "-model", "llama3.2")
	kept := func() *http.Response {
		r, err := http.NewRequest("POST", p.base+"/v1/chat", strings.NewReader(chatBody("model", "Hi", true)))
		is.NoErr(err)
		r.Header.Set("Authorization", "Bearer "+p.key)
		r.Header.Set("Idempotency-Key", "an-answer-that-is-kept")
		resp, err := http.DefaultClient.Do(r)
		is.NoErr(err)
		_, err = io.Copy(io.Discard, resp.Body)
		is.NoErr(err)
		return resp
	}
	is.Equal(kept().Header.Get("X-Botapi-Answer"), "kept")
	is.Equal(kept().Header.Get("X-Botapi-Answer"), "joined")
	status, _ := ask(t, "GET", p.base+"/v1/bots", "wrong", "")
	is.Equal(status, 401)
	_, text := ask(t, "GET", p.base+"/metrics", "", "")
	is.Equal(text, `# TYPE botapi_requests_total counter
botapi_requests_total{route="GET /v1/bots",bot="",status="401"} 1
botapi_requests_total{route="POST /v1/chat",bot="model",status="200"} 2
# TYPE botapi_tokens_total counter
botapi_tokens_total{bot="model",kind="completion"} 7
botapi_tokens_total{bot="model",kind="prompt"} 9
`)
}

func TestMetricsAreOptional(t *testing.T) {
	is := is.New(t)
	status, _ := ask(t, "GET", serveBuiltIn(t, "the-key", io.Discard).URL+"/metrics", "", "")
	is.Equal(status, 404)
}

func TestMetricsQuoteLabels(t *testing.T) {
	is := is.New(t)
	m := &metrics{counts: make(map[string]int64)}
	m.add(1, "n", `slug="%s"`, `a"b\c`)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, nil)
	is.Equal(w.Body.String(), "# TYPE n counter\n"+`n{slug="a\"b\\c"} 1`+"\n")
}
