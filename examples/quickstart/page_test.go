package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/matryer/is"
)

// pages serves the pages for these bots.
func pages(t *testing.T, bots ...botapi.Bot) http.Handler {
	t.Helper()
	store := new(botapi.MemoryStore)
	if err := store.Replace(bots...); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	handlePages(mux, store)
	return mux
}

func get(h http.Handler, path string) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Result()
}

func TestPageFiles(t *testing.T) {
	tests := []struct {
		path        string
		status      int
		contentType string
	}{
		{"/", 200, "text/html; charset=utf-8"},
		{"/docs", 200, "text/html; charset=utf-8"},
		{"/openapi.json", 200, "application/json"},
		{"/page/chat.js", 200, "text/javascript; charset=utf-8"},
		{"/page/style.css", 200, "text/css; charset=utf-8"},
		{"/page/icon.svg", 200, "image/svg+xml"},
		{"/page/", 404, "text/plain; charset=utf-8"},
		{"/page/main.go", 404, "text/plain; charset=utf-8"},
		{"/nothing", 404, "text/plain; charset=utf-8"},
	}
	h := pages(t)
	for _, test := range tests {
		t.Run(test.path, func(t *testing.T) {
			is := is.New(t)
			response := get(h, test.path)
			is.Equal(response.StatusCode, test.status)
			is.Equal(response.Header.Get("Content-Type"), test.contentType)
		})
	}
}

// TestPageKnowsKeepAlive has the chat page wait for what the handler sends.
func TestPageKnowsKeepAlive(t *testing.T) {
	is := is.New(t)
	html, err := io.ReadAll(get(pages(t), "/").Body)
	is.NoErr(err)
	is.True(strings.Contains(string(html), fmt.Sprintf(`<meta name="keep-alive" content="%g">`, botapi.DefaultKeepAlive.Seconds())))
}

func TestPagesAreGuarded(t *testing.T) {
	h := pages(t)
	for _, path := range []string{"/", "/docs", "/page/chat.js", "/page/icon.svg", "/openapi.json"} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			header := get(h, path).Header
			policy := header.Get("Content-Security-Policy")
			is.True(strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "))
			is.True(!strings.Contains(policy, "unsafe"))
			is.Equal(header.Get("X-Content-Type-Options"), "nosniff")
			is.Equal(header.Get("Referrer-Policy"), "no-referrer")
		})
	}
}

// TestAvatarsMayComeFromTheirServers lets the pages load the bots' pictures,
// and nothing else with them.
func TestAvatarsMayComeFromTheirServers(t *testing.T) {
	is := is.New(t)
	var bots []botapi.Bot
	for i, avatar := range []string{
		"https://pictures.example/a.png",
		"https://pictures.example/b.png",
		"http://127.0.0.1:9000/c.png",
		"https://sly.example;script-src/d.png",
		"ftp://files.example/e.png",
		"",
	} {
		id := string(rune('a' + i))
		bots = append(bots, botapi.Bot{UID: id, Slug: id, Name: id, Model: "eliza-listener", AvatarURL: avatar})
	}
	policy := get(pages(t, bots...), "/").Header.Get("Content-Security-Policy")
	is.True(strings.Contains(policy, "; img-src 'self' data: http://127.0.0.1:9000 https://pictures.example; "))
	is.True(!strings.Contains(policy, "sly.example"))
}
