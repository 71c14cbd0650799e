package main

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestListsOfOneAccount has an account list bots over a hundred connections, in each
// way, until it is rejected. Meanwhile another account chats and lists.
func TestListsOfOneAccount(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	other := createKey(t, env, "globex")
	runtime := says(t, "Hello")
	p := serve(t, env, "--openai", "--runtime", "local="+runtime.URL)
	for _, c := range []struct{ path, rejected string }{
		{"/v1/bots", `{"detail":"Too many lists or failed requests"}`},
		{"/v1/models", `{"error":{"message":"Too many lists or failed requests","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`},
	} {
		ctx, stop := context.WithTimeout(t.Context(), patience)
		rejections := make(chan string, 100)
		var clients sync.WaitGroup
		for range cap(rejections) {
			clients.Go(func() {
				for ctx.Err() == nil {
					response, err := request(ctx, http.DefaultClient, key, "GET", p.url+c.path, "")
					if err != nil {
						return
					}
					body := bodyOf(response, nil)
					if response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "1" {
						rejections <- body
						return
					}
				}
			})
		}
		var first string
		select {
		case first = <-rejections:
		case <-ctx.Done():
			t.Fatalf("%s: nothing was rejected", c.path)
		}
		is.Equal(askStatus(t, other, "GET", p.url+"/v1/bots", ""), http.StatusOK)
		is.Equal(askStatus(t, other, "POST", p.url+"/v1/chat", chatBody("Hi", false)), http.StatusOK)
		is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", false)), http.StatusOK) // its chats have their own limits
		stop()
		clients.Wait()
		is.Equal(strings.TrimSpace(first), c.rejected)
	}
}

// TestFailuresOfOneAccount has an account repeat a chat over more connections than a
// replica may have chats: one over its limit, and one with an invalid field. They hold no
// slot while they wait, so all chats of another account are answered.
func TestFailuresOfOneAccount(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	other := createKey(t, env, "globex")
	runtime := says(t, "Hello")
	is.Equal(command(t, "", env, "limits", "set", "--account", "acme", "--tokens-per-day", "1").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", redistest.NewServer(t).URL, "--answers", "--max-chats", "20")
	ask(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true)) // uses the token up
	for _, body := range []string{chatBody("Hi", true), strings.Replace(chatBody("Hi", true), "{", `{"max_words":0,`, 1)} {
		ctx, stop := context.WithCancel(t.Context())
		throttled := make(chan struct{}, 60)
		var clients sync.WaitGroup
		for range cap(throttled) {
			clients.Go(func() {
				for ctx.Err() == nil {
					response, err := request(ctx, http.DefaultClient, key, "POST", p.url+"/v1/chat", body)
					if strings.Contains(bodyOf(response, err), "Too many lists or failed requests") {
						select {
						case throttled <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		for range 20 {
			<-throttled
			is.Equal(askStatus(t, other, "POST", p.url+"/v1/chat", chatBody("Hi", false)), http.StatusOK)
		}
		stop()
		clients.Wait()
	}
}
