package main

import (
	"net/http"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestRuntimeThatHangs has one that accepts requests and never responds: chats go
// to another.
func TestRuntimeThatHangs(t *testing.T) {
	is := is.New(t)
	hangs := runtimetest.New(t, func(_ *runtimetest.Stream, r *runtimetest.Request) { <-r.Context().Done() })
	good := says(t, "good")

	p, key := serveOneBot(t, "--runtime", "local="+hangs.URL, "--runtime", "local="+good.URL, "--attempt-timeout", "100ms")
	for range 4 {
		status, answer := ask(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", false))
		is.Equal(status, http.StatusOK)
		is.Equal(answer, `{"content":"good"}`)
	}
	is.Equal(len(hangs.Requests()), 1)
}

func TestRuntimeGetsNoHeadersOfTheClient(t *testing.T) {
	is := is.New(t)
	runtime := says(t, "ok")
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)

	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true),
		"Traceparent", "00-"+trace+"-00f067aa0ba902b7-01", "Tracestate", "vendor=1", "Baggage", "user=someone")

	upstream := runtime.Requests()[0].Header
	is.Equal(upstream.Get("Baggage"), "")
	is.Equal(upstream.Get("Tracestate"), "")
	is.True(upstream.Get("Traceparent") != "") // the trace of the service itself
	is.True(!strings.Contains(upstream.Get("Traceparent"), trace))
}
