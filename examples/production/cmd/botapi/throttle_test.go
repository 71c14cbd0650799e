package main

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestListsOfOneAccount has an account list bots over a hundred connections, in each
// way, until it is rejected. Meanwhile another account chats and lists.
func TestListsOfOneAccount(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	other := createKeyOf(t, env, "globex")
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("Hello") })
	p := serve(t, env, "--openai", "--runtime", "local="+runtime.URL)
	p.ready(t)
	for _, c := range []struct{ path, rejected string }{
		{"/v1/bots", `{"detail":"Too many requests for bots"}`},
		{"/v1/models", `{"error":{"message":"Too many requests for bots","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}`},
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
		status, _ := ask(t, other, "GET", p.url+"/v1/bots", "")
		is.Equal(status, http.StatusOK)
		status, _ = ask(t, other, "POST", p.url+"/v1/chat", chatBody("Hi", false))
		is.Equal(status, http.StatusOK)
		status, _ = ask(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", false)) // its chats have their own limits
		is.Equal(status, http.StatusOK)
		stop()
		clients.Wait()
		is.Equal(strings.TrimSpace(first), c.rejected)
	}
}
