package runtimes_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"example.com/botapi/examples/production/internal/runtimetest"
	"github.com/matryer/is"
)

func TestUpstreamStatuses(t *testing.T) {
	const (
		unavailable = `{"detail":"The model is unavailable for the moment"}`
		failed      = `{"detail":"The model failed"}`
		notAccepted = `{"detail":"The model did not accept the request"}`
		tooLong     = `{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`
	)
	for name, c := range map[string]struct {
		upstream int
		body     string
		header   []string

		status     int
		answer     string
		retryAfter string
	}{
		"our key is refused":       {401, `{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}`, nil, 502, failed, ""},
		"our account is shut out":  {403, `{"error":{"message":"Forbidden"}}`, nil, 502, failed, ""},
		"the model is not there":   {404, `{"object":"error","message":"The model does not exist.","code":404}`, nil, 502, failed, ""},
		"it is busy":               {429, `{"error":{"message":"Rate limit reached"}}`, []string{"Retry-After", "17"}, 503, unavailable, "17"},
		"it is busy, for how long": {429, ``, nil, 503, unavailable, "2"},
		"it is busy for ever":      {429, ``, []string{"Retry-After", "99999999999"}, 503, unavailable, "2"},
		"it starts":                {503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, nil, 503, unavailable, "2"},
		"its router is alone":      {502, `<html>Bad Gateway</html>`, nil, 503, unavailable, "2"},
		"it fails":                 {500, `Internal Server Error`, nil, 502, failed, ""},
		"it sends us away":         {301, ``, []string{"Location", "/elsewhere"}, 502, failed, ""},
		"it is no runtime":         {200, `<html>Welcome!</html>`, nil, 502, failed, ""},
		"it does not understand":   {400, `{"error":{"message":"temperature is not supported","type":"invalid_request_error"}}`, nil, 502, notAccepted, ""},
		"too long for OpenAI":      {400, `{"error":{"message":"Too many tokens.","type":"invalid_request_error","code":"context_length_exceeded"}}`, nil, 422, tooLong, ""},
		"too long for vLLM":        {400, `{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000.","type":"BadRequestError","param":null,"code":400}}`, nil, 422, tooLong, ""},
		"too long for llama.cpp":   {400, `{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_ctx":4096}}`, nil, 422, tooLong, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, body := range []string{stream, oneBody} {
				is := is.New(t)
				runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
					s.Refuse(c.upstream, c.body, c.header...)
				})
				response, answer := chat(t, serve(t, options(t, runtime.URL)), body)
				is.Equal(response.StatusCode, c.status)
				is.Equal(strings.TrimSpace(answer), c.answer)
				is.Equal(response.Header.Get("Retry-After"), c.retryAfter)
			}
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, nil)
	runtime.Close()
	var log bytes.Buffer
	o := options(t, runtime.URL)
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	response, answer := chat(t, serve(t, o), stream)
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.Equal(response.Header.Get("Retry-After"), "2")
	is.Equal(strings.TrimSpace(answer), `{"detail":"The model is unavailable for the moment"}`)
	is.True(strings.Contains(log.String(), "connection refused"))
}

// broken are the ways in which a stream ends before its answer does.
var broken = map[string]func(*runtimetest.Stream){
	"error object": func(s *runtimetest.Stream) {
		s.Raw(`data: {"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}` + "\n\n")
		s.Done()
	},
	"abrupt close":             func(s *runtimetest.Stream) { s.Break() },
	"close without an end":     func(*runtimetest.Stream) {},
	"done without an end":      func(s *runtimetest.Stream) { s.Done() },
	"cut inside a chunk":       func(s *runtimetest.Stream) { s.Raw(`data: {"choices":[{"ind`); s.Break() },
	"something else than JSON": func(s *runtimetest.Stream) { s.Raw("data: oops\n\n") },
}

func TestStreamThatBreaksAfterItsFirstFragment(t *testing.T) {
	for name, breaks := range broken {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
				s.Role()
				s.Text("Once upon")
				breaks(s)
			})
			other := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("other") })
			service := serve(t, options(t, runtime.URL, other.URL))

			response := post(t, t.Context(), service, stream)
			answer, err := io.ReadAll(response.Body)
			is.True(err != nil) // cut, so that nobody takes it for whole
			is.Equal(string(answer), "data: {\"content\":\"Once upon\"}\n\n"+
				"event: error\ndata: {\"detail\":\"The model's answer broke off\"}\n\n")
			is.Equal(len(runtime.Requests()), 1) // and no other try:
			is.Equal(len(other.Requests()), 0)   // half an answer cannot be taken back
		})
	}
}

func TestStreamThatBreaksBeforeItsFirstFragment(t *testing.T) {
	for name, breaks := range broken {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
				s.Role()
				breaks(s)
			})
			response, answer := chat(t, serve(t, options(t, runtime.URL)), stream)
			is.Equal(response.StatusCode, http.StatusBadGateway)
			is.Equal(strings.TrimSpace(answer), `{"detail":"The model failed"}`)
			is.Equal(len(runtime.Requests()), 2) // one more try

			other := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("other") })
			response, answer = chat(t, serve(t, options(t, runtime.URL, other.URL)), stream)
			is.Equal(response.StatusCode, http.StatusOK)
			is.Equal(text(t, answer), "other")
		})
	}
}

func TestOneBodyOfABrokenStream(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Text("Once upon") })
	response, answer := chat(t, serve(t, options(t, runtime.URL)), oneBody)
	is.Equal(response.StatusCode, http.StatusBadGateway)
	is.Equal(strings.TrimSpace(answer), `{"detail":"The model's answer broke off"}`)
}

func TestTooLongInAStream(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Raw(`data: {"error":{"message":"the request exceeds the available context size","type":"exceed_context_size_error","code":400}}` + "\n\n")
	})
	response, _ := chat(t, serve(t, options(t, runtime.URL)), stream)
	is.Equal(response.StatusCode, http.StatusUnprocessableEntity)
}

func TestEndOfAnAnswerThatIsWhole(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("whole")
		s.Stop()
		s.Break() // neither usage nor [DONE]: the answer itself is there
	})
	response, answer := chat(t, serve(t, options(t, runtime.URL)), stream)
	is.Equal(response.StatusCode, http.StatusOK)
	is.True(strings.HasSuffix(answer, "data: [DONE]\n\n"))
}

func TestLogHasNoTextOfTheRuntime(t *testing.T) {
	is := is.New(t)
	for _, fails := range []func(*runtimetest.Stream){
		func(s *runtimetest.Stream) { s.Refuse(400, `{"error":{"message":"bad prompt: SECRET","type":"bad"}}`) },
		func(s *runtimetest.Stream) { s.Refuse(500, `SECRET`) },
		func(s *runtimetest.Stream) {
			s.Raw(`data: {"error":{"message":"bad prompt: SECRET","type":"bad"}}` + "\n\n")
		},
		func(s *runtimetest.Stream) { s.Raw("data: SECRET\n\n") },
	} {
		var log bytes.Buffer
		runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { fails(s) })
		o := options(t, runtime.URL)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		chat(t, serve(t, o), oneBody)
		is.True(strings.Contains(log.String(), "a model runtime failed"))
		is.True(!strings.Contains(log.String(), "SECRET"))
	}
}

func TestFailover(t *testing.T) {
	for name, fails := range map[string]func(*runtimetest.Stream){
		"busy":          func(s *runtimetest.Stream) { s.Refuse(429, "") },
		"starting":      func(s *runtimetest.Stream) { s.Refuse(503, "") },
		"failing":       func(s *runtimetest.Stream) { s.Refuse(500, "") },
		"key refused":   func(s *runtimetest.Stream) { s.Refuse(401, "") },
		"model missing": func(s *runtimetest.Stream) { s.Refuse(404, "") },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			bad := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { fails(s) })
			good := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("good") })
			service := serve(t, options(t, bad.URL, good.URL))
			for range 4 {
				_, answer := chat(t, service, oneBody)
				is.Equal(text(t, answer), "good")
			}
			is.Equal(len(good.Requests()), 4)
		})
	}
}

func TestEndpointThatIsDownIsTheLastChoice(t *testing.T) {
	is := is.New(t)
	var recovered atomic.Bool
	flaky := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		if !recovered.Load() {
			s.Refuse(503, "")
			return
		}
		s.Whole("flaky")
	})
	good := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("good") })
	service := serve(t, options(t, flaky.URL, good.URL))
	for range 6 {
		chat(t, service, oneBody)
	}
	is.Equal(len(flaky.Requests()), 1) // once was enough

	recovered.Store(true)
	good.Close()
	_, answer := chat(t, service, oneBody)
	is.Equal(text(t, answer), "flaky") // better than none
}

func TestEndpointsTakeTurns(t *testing.T) {
	is := is.New(t)
	a := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("a") })
	b := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("b") })
	service := serve(t, options(t, a.URL, b.URL))
	for range 6 {
		chat(t, service, oneBody)
	}
	is.Equal(len(a.Requests()), 3)
	is.Equal(len(b.Requests()), 3)
}

func TestClientThatLeavesStopsTheModel(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		begun bool
	}{
		"a stream":                       {stream, true},
		"a stream before its first text": {stream, false},
		"one body":                       {oneBody, true},
	} {
		t.Run(name, func(t *testing.T) {
			asked, stopped := make(chan bool), make(chan bool)
			runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
				s.Role()
				if c.begun {
					s.Text("Once upon")
				}
				asked <- true
				<-r.Context().Done() // the connection was closed
				close(stopped)
			})
			service := serve(t, options(t, runtime.URL))
			ctx, leave := context.WithCancel(t.Context())
			gone := make(chan bool)
			go func() {
				defer close(gone)
				request, _ := http.NewRequestWithContext(ctx, "POST", service+"/v1/chat", strings.NewReader(c.body))
				request.Header.Set("Authorization", "Bearer key")
				if response, err := http.DefaultClient.Do(request); err == nil {
					io.Copy(io.Discard, response.Body)
					response.Body.Close()
				}
			}()
			<-asked
			leave()
			<-stopped
			<-gone
		})
	}
}
