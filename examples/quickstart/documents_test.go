package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/guide"
	"github.com/matryer/is"
)

func serveDocuments(t *testing.T) *httptest.Server {
	t.Helper()
	s := settings{key: "the-key"}
	store := new(botapi.MemoryStore)
	is.New(t).NoErr(s.loadBots(store))
	server := httptest.NewServer(s.handler(store, slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	return server
}

// TestLLMs checks that llms.txt lists every document, and that its links work.
func TestLLMs(t *testing.T) {
	is := is.New(t)
	server := serveDocuments(t)
	status, list := ask(t, "GET", server.URL+"/llms.txt", "", "")
	is.Equal(status, 200)
	is.True(strings.HasPrefix(list, "# botapi\n\n> "))
	is.True(regexp.MustCompile(`\n- \[[^\]]+\]\(docs/[A-Za-z-]+\.md#[^)]+\): a table of every field of `).MatchString(list))
	for name := range guide.Documents() {
		is.True(strings.Contains(list, "](docs/"+name+"#"))
	}
	for _, link := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(list, -1) {
		status, _ := ask(t, "GET", server.URL+"/"+link[1], "", "")
		is.Equal(status, 200)
	}
}

func TestDocument(t *testing.T) {
	is := is.New(t)
	server := serveDocuments(t)
	response, err := http.Get(server.URL + "/docs/wire.md")
	is.NoErr(err)
	is.NoErr(response.Body.Close())
	is.Equal(response.StatusCode, 200)
	is.Equal(response.Header.Get("Content-Type"), "text/markdown; charset=utf-8")
	r, err := http.NewRequest("GET", server.URL+"/docs/wire.md", nil)
	is.NoErr(err)
	r.Header.Set("If-None-Match", response.Header.Get("ETag"))
	again, err := http.DefaultClient.Do(r)
	is.NoErr(err)
	is.NoErr(again.Body.Close())
	is.Equal(again.StatusCode, 304)
	for path, want := range map[string]int{"/docs": 200, "/docs/": 404, "/docs/nothing.md": 404} {
		status, _ := ask(t, "GET", server.URL+path, "", "")
		is.Equal(status, want)
	}
}

// TestGuideLinksToDocuments follows the links of an answer.
func TestGuideLinksToDocuments(t *testing.T) {
	is := is.New(t)
	server := serveDocuments(t)
	_, answer := ask(t, "POST", server.URL+"/v1/chat", "the-key", chatBody("guide", "What is botapi?", false))
	links := regexp.MustCompile(`\]\((`+server.URL+`/docs/[^)#]*)`).FindAllStringSubmatch(answer, -1)
	is.True(len(links) > 0)
	for _, link := range links {
		status, _ := ask(t, "GET", link[1], "", "")
		is.Equal(status, 200)
	}
}

// TestHostIsNoMarkdown checks that a strange Host adds nothing to an answer.
func TestHostIsNoMarkdown(t *testing.T) {
	for host, want := range map[string]string{
		"127.0.0.1:8080": "http://127.0.0.1:8080/docs/", "bots.example": "http://bots.example/docs/", "a)[b](c": "", "": "",
	} {
		got := "not called"
		h := withDocuments(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = documentsAddress(r.Context()) }))
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = host
		h.ServeHTTP(httptest.NewRecorder(), r)
		is.New(t).Equal(got, want)
	}
}
