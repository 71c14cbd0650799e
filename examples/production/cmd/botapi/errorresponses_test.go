package main

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

func TestErrorsAreCountedByReason(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("Once upon")
		<-r.Context().Done()
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL, "--max-body-bytes", "1000", "--max-chats", "2", "--max-chats-per-account", "1")
	first := openStream(t, key, p.url)
	is.Equal(first.next(), `{"content":"Once upon"}`)

	fails := func(key, path, body string, status int) {
		t.Helper()
		got, _ := ask(t, key, "POST", p.url+path, body)
		is.Equal(got, status)
	}
	for i := range 3 {
		fails("guessed", "/v1/chat", chatBody("Hi", true), http.StatusUnauthorized)
		fails(key, fmt.Sprintf("/v2/chat/%d", i), "", http.StatusNotFound)
		fails(key, "/v1/chat", fmt.Sprintf(`{"bot_slug":"nobody-%d","prompt":"Hi","stream":true}`, i), http.StatusNotFound)
		fails(key, "/v1/chat", fmt.Sprintf(`{"stream":"%d"}`, i), http.StatusUnprocessableEntity)
	}
	fails(key, "/v1/chat", chatBody(strings.Repeat("x", 1000), true), http.StatusRequestEntityTooLarge)
	fails(key, "/v1/chat", chatBody("Hi", true), http.StatusTooManyRequests)
	other := createKey(t, p.env, "other")
	is.Equal(openStream(t, other, p.url).next(), `{"content":"Once upon"}`)
	fails(createKey(t, p.env, "third"), "/v1/chat", chatBody("Hi", true), http.StatusServiceUnavailable)

	wanted := map[string]string{
		"401 Invalid API key":                         "3",
		"404 Not Found":                               "3",
		"404 Bot not found":                           "3",
		"413 Request body too large":                  "1",
		"422 Unprocessable Entity":                    "3",
		"429 Too many chats in progress for this key": "1",
		"503 Too many chats in progress":              "1",
	}
	eventually(t, "each is counted under its reason", func() bool { return maps.Equal(errorsOf(t, p), wanted) })
}

// errorsOf returns the error responses that a replica has counted, by status and
// reason.
func errorsOf(t *testing.T, p *process) map[string]string {
	t.Helper()
	counted := make(map[string]string)
	series := regexp.MustCompile(`botapi_error_responses_total\{http_response_status_code="(\d+)",.*reason="([^"]*)"\} (\d+)`)
	for _, found := range series.FindAllStringSubmatch(scrape(t, p), -1) {
		counted[found[1]+" "+found[2]] = found[3]
	}
	return counted
}
