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

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/runtimes"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/sdk/metric"
)

// The tests in examples/openai check what a runtime's failure means for the
// client. This one checks that it arrives, and which other endpoints are asked.
func TestUpstreamStatuses(t *testing.T) {
	for name, c := range map[string]struct {
		upstream int
		body     string
		header   []string

		status     int
		answer     string
		retryAfter string
		elsewhere  bool
	}{
		"our key is rejected":    {401, ``, nil, 502, `{"detail":"The model failed"}`, "", true},
		"the model is missing":   {404, ``, nil, 502, `{"detail":"The model failed"}`, "", true},
		"it is busy":             {429, ``, []string{"Retry-After", "17"}, 503, `{"detail":"The model is unavailable for the moment"}`, "17", true},
		"it is no runtime":       {200, `<html>Welcome!</html>`, nil, 502, `{"detail":"The model failed"}`, "", true},
		"it does not understand": {400, ``, nil, 502, `{"detail":"The model did not accept the request"}`, "", false},
		"too long": {400, `{"error":{"code":"context_length_exceeded"}}`, nil, 422,
			`{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			reject := func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Refuse(c.upstream, c.body, c.header...) }
			runtime, other := runtimetest.New(t, reject), runtimetest.New(t, reject)
			response, answer := chat(t, serve(t, options(t, runtime.URL, other.URL)), stream)
			is.Equal(response.StatusCode, c.status)
			is.Equal(strings.TrimSpace(answer), c.answer)
			is.Equal(response.Header.Get("Retry-After"), c.retryAfter)
			is.Equal(len(other.Requests()) == 1, c.elsewhere)
		})
	}
}

// A field that the model does not accept is told to the client that has sent it. If it is
// a setting of the bot, the service is to blame. No other endpoint is asked.
func TestFieldThatTheModelDoesNotAccept(t *testing.T) {
	for name, c := range map[string]struct {
		extra, param, field string
	}{
		"temperature":           {`,"temperature":1`, "temperature", "temperature"},
		"the bot's":             {``, "temperature", ""},
		"max_tokens":            {`,"max_tokens":200`, "max_tokens", "max_tokens"},
		"max_completion_tokens": {`,"max_completion_tokens":200`, "max_tokens", "max_completion_tokens"},
		"max_words":             {`,"max_words":50`, "max_tokens", "max_words"},
		"the bot's limit":       {`,"max_words":null`, "max_tokens", ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			rejects := func(s *runtimetest.Stream, _ *runtimetest.Request) {
				s.Refuse(400, `{"error":{"message":"m","param":"`+c.param+`"}}`)
			}
			a, b := runtimetest.New(t, rejects), runtimetest.New(t, rejects)
			o := options(t, a.URL, b.URL)
			o.Settings = func(context.Context, string) (postgres.Settings, error) {
				return postgres.Settings{Temperature: new(0.5), MaxTokens: new(int64(300))}, nil
			}
			response, answer := chat(t, serve(t, o), `{"bot_slug":"helper","prompt":"Hi","stream":false`+c.extra+`}`)
			is.Equal(len(a.Requests())+len(b.Requests()), 1)
			if c.field == "" {
				is.Equal(response.StatusCode, http.StatusBadGateway)
				is.Equal(answer, `{"detail":"The model did not accept the request"}`)
				return
			}
			is.Equal(response.StatusCode, http.StatusUnprocessableEntity)
			is.True(strings.HasPrefix(answer, `{"detail":[{"loc":["body","`+c.field+`"]`))
		})
	}
}

func TestRefusedConnection(t *testing.T) {
	is := is.New(t)
	var log bytes.Buffer
	o := options(t, "http://127.0.0.1:1/v1") // a port that no server gets by asking for any
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	response, answer := chat(t, serve(t, o), stream)
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.Equal(response.Header.Get("Retry-After"), "2")
	is.Equal(strings.TrimSpace(answer), `{"detail":"The model is unavailable for the moment"}`)
	is.True(strings.Contains(log.String(), "connection refused"))
}

// broken are the ways in which a stream can end before its answer is complete.
var broken = map[string]func(*runtimetest.Stream){
	"error object": func(s *runtimetest.Stream) {
		s.Raw(`data: {"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}` + "\n\n")
		s.Done()
	},
	"aborted by the runtime": func(s *runtimetest.Stream) {
		s.Raw(`data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}` + "\n\n")
		s.Usage(9, 2)
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
			is.True(err != nil) // aborted, so that nobody takes it for complete
			is.Equal(string(answer), "data: {\"content\":\"Once upon\"}\n\n"+
				"event: error\ndata: {\"detail\":\"The model's answer is incomplete\",\"status\":502}\n\n")
			is.Equal(len(runtime.Requests()), 1) // and no other try:
			is.Equal(len(other.Requests()), 0)   // text that was sent cannot be taken back
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
			is.Equal(len(runtime.Requests()), 2) // it is retried once

			other := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("other") })
			response, answer = chat(t, serve(t, options(t, runtime.URL, other.URL)), stream)
			is.Equal(response.StatusCode, http.StatusOK)
			is.Equal(text(t, answer), "other")
		})
	}
}

// TestLogHasNoTextOfTheRuntime checks the log lines about endpoints.
func TestLogHasNoTextOfTheRuntime(t *testing.T) {
	is := is.New(t)
	for _, fails := range []func(*runtimetest.Stream){
		func(s *runtimetest.Stream) { s.Refuse(400, `{"error":{"message":"bad prompt: SECRET","type":"bad"}}`) },
		func(s *runtimetest.Stream) {
			s.Raw(`data: {"error":{"message":"bad prompt: SECRET","type":"bad"}}` + "\n\n")
		},
	} {
		var log bytes.Buffer
		runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { fails(s) })
		o := options(t, runtime.URL)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		chat(t, serve(t, o), unstreamed)
		is.True(strings.Contains(log.String(), "a model runtime failed"))
		is.True(!strings.Contains(log.String(), "SECRET"))
	}
}

func TestEndpointThatIsDownIsALastResort(t *testing.T) {
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
		chat(t, service, unstreamed)
	}
	is.Equal(len(flaky.Requests()), 1) // once was enough

	recovered.Store(true)
	good.Close()
	_, answer := chat(t, service, unstreamed)
	is.Equal(text(t, answer), "flaky") // better than none
}

// What a model answers says nothing of its endpoint: after tool calls in place of a
// text, no other endpoint is asked, and this one counts as healthy.
func TestAnswerWithoutTextIsNoFaultOfTheEndpoint(t *testing.T) {
	is := is.New(t)
	callsTools := func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Raw(`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}` + "\n\n")
		s.Done()
	}
	a, b := runtimetest.New(t, callsTools), runtimetest.New(t, callsTools)
	service := serve(t, options(t, a.URL, b.URL))
	for range 4 {
		response, answer := chat(t, service, unstreamed)
		is.Equal(response.StatusCode, http.StatusBadGateway)
		is.Equal(answer, `{"detail":"The model's answer has no text"}`)
	}
	is.Equal(len(a.Requests()), 2)
	is.Equal(len(b.Requests()), 2)
}

func TestEndpointsTakeTurns(t *testing.T) {
	is := is.New(t)
	a := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("a") })
	b := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("b") })
	service := serve(t, options(t, a.URL, b.URL))
	for range 6 {
		chat(t, service, unstreamed)
	}
	is.Equal(len(a.Requests()), 3)
	is.Equal(len(b.Requests()), 3)
}

// TestDisconnectedClientStopsTheModel disconnects while an endpoint that has
// others of its name is thinking: none of those is asked then.
func TestDisconnectedClientStopsTheModel(t *testing.T) {
	is := is.New(t)
	asked, stopped := make(chan bool, 1), make(chan bool)
	thinks := runtimetest.New(t, func(_ *runtimetest.Stream, r *runtimetest.Request) {
		asked <- true
		<-r.Context().Done()
		close(stopped)
	})
	other := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("other") })
	engine, err := runtimes.New(options(t, thinks.URL, other.URL))
	is.NoErr(err)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-asked
		leave()
	}()
	for fragment := range engine.Chat(ctx, &botapi.ChatRequest{Bot: helper, Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hi"}}}) {
		is.Equal(fragment, "")
	}
	<-stopped
	is.Equal(len(other.Requests()), 0)
}

// TestTokensOfAFailedEndpoint has one that reports tokens and fails, and another that
// answers and reports none.
func TestTokensOfAFailedEndpoint(t *testing.T) {
	is := is.New(t)
	failing := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Usage(9, 0)
		s.Break()
	})
	other := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("other")
		s.Stop()
		s.Done()
	})
	telemetry := seen{reader: metric.NewManualReader()}
	o := options(t, failing.URL, other.URL)
	o.MeterProvider = metric.NewMeterProvider(metric.WithReader(telemetry.reader))
	engine, err := runtimes.New(o)
	is.NoErr(err)
	ctx, usage := openai.CountTokens(t.Context())
	for _, err := range engine.Chat(ctx, &botapi.ChatRequest{Bot: helper}) {
		is.NoErr(err)
	}
	is.Equal(len(failing.Requests()), 1)
	_, reported := usage.Tokens()
	is.True(!reported)
	is.Equal(usage.FinishReason(), "stop")
	is.Equal(telemetry.counts(t)["gen_ai.client.token.usage input"], int64(0))
}
