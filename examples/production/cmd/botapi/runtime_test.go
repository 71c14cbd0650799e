package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestRuntimeThatHangs has one that accepts requests and never responds: a chat
// goes to another, or fails in time.
func TestRuntimeThatHangs(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	hangs := runtimetest.New(t, func(_ *runtimetest.Stream, r *runtimetest.Request) { <-r.Context().Done() })
	stops := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("Once upon")
		<-r.Context().Done()
	})
	good := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("good") })

	p := serve(t, env, "--runtime", "local="+hangs.URL, "--runtime", "local="+good.URL, "--attempt-timeout", "100ms")
	p.ready(t)
	for range 4 {
		status, answer := ask(t, key, "POST", p.url+"/v1/chat", `{"bot_slug":"helper","prompt":"Hi","stream":false}`)
		is.Equal(status, http.StatusOK)
		is.Equal(answer, `{"content":"good"}`)
	}
	is.Equal(len(hangs.Requests()), 1)

	p = serve(t, env, "--runtime", "local="+hangs.URL, "--stall-timeout", "200ms")
	p.ready(t)
	status, answer := ask(t, key, "POST", p.url+"/v1/chat", `{"bot_slug":"helper","prompt":"Hi","stream":true}`)
	is.Equal(status, http.StatusGatewayTimeout)
	is.Equal(strings.TrimSpace(answer), `{"detail":"The answer took too long"}`)

	p = serve(t, env, "--runtime", "local="+stops.URL, "--stall-timeout", "200ms")
	p.ready(t)
	response, err := request(t.Context(), http.DefaultClient, key, "POST", p.url+"/v1/chat", `{"bot_slug":"helper","prompt":"Hi","stream":true}`)
	is.NoErr(err)
	defer response.Body.Close()
	broken, err := io.ReadAll(response.Body)
	is.True(err != nil) // aborted
	is.Equal(string(broken), "data: {\"content\":\"Once upon\"}\n\nevent: error\ndata: {\"detail\":\"The answer took too long\",\"status\":504}\n\n")
}

func TestRuntimeGetsNoHeadersOfTheClient(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("ok") })
	p := serve(t, env, "--runtime", "local="+runtime.URL)
	p.ready(t)

	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	r, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":true}`))
	is.NoErr(err)
	for name, value := range map[string]string{
		"Authorization": "Bearer " + key,
		"Traceparent":   "00-" + trace + "-00f067aa0ba902b7-01",
		"Tracestate":    "vendor=1",
		"Baggage":       "user=someone",
	} {
		r.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(r)
	is.NoErr(err)
	response.Body.Close()

	upstream := runtime.Requests()[0].Header
	is.Equal(upstream.Get("Baggage"), "")
	is.Equal(upstream.Get("Tracestate"), "")
	is.True(upstream.Get("Traceparent") != "") // the trace of the service itself
	is.True(!strings.Contains(upstream.Get("Traceparent"), trace))
}
