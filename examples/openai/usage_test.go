package openai_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

func TestTokens(t *testing.T) {
	for name, c := range map[string]struct {
		answer   func(*runtimetest.Stream)
		tokens   openai.Tokens
		reported bool
		finish   string
	}{
		"counted at the end": {func(s *runtimetest.Stream) {
			s.Text("Hi")
			s.Stop()
			s.Usage(9, 7)
			s.Done()
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, "stop"},
		"counted along, and incomplete": {func(s *runtimetest.Stream) {
			s.Usage(9, 0)
			s.Text("Once upon")
			s.Usage(9, 2)
			s.Break()
		}, openai.Tokens{Prompt: 9, Completion: 2}, true, ""},
		"an impossible count": {func(s *runtimetest.Stream) {
			s.Text("Hi")
			s.Stop()
			s.Usage(9, 1<<62)
			s.Done()
		}, openai.Tokens{}, false, "stop"},
		"counted after [DONE]": {func(s *runtimetest.Stream) { // OpenCode Zen
			s.Text("Hi")
			s.Stop()
			s.Done()
			s.Raw(": ping\n\ndata: oops\n\n")
			s.Usage(9, 7)
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, "stop"},
		"of tool calls alone": {func(s *runtimetest.Stream) {
			s.Raw(`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}` + "\n\n")
			s.Usage(9, 7)
			s.Done()
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, ""},
		"aborted by the runtime": {func(s *runtimetest.Stream) {
			s.Text("Hi")
			s.Raw(`data: {"choices":[{"delta":{},"finish_reason":"abort"}]}` + "\n\n")
			s.Usage(9, 7)
			s.Done()
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, ""},
		"zeros after the count": {func(s *runtimetest.Stream) {
			s.Text("Hi")
			s.Usage(9, 7)
			s.Stop()
			s.Usage(0, 0)
			s.Done()
			s.Usage(0, 0)
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, "stop"},
		"zeros before the count": {func(s *runtimetest.Stream) {
			s.Usage(0, 0)
			s.Text("Hi")
			s.Stop()
			s.Usage(9, 7)
			s.Done()
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, "stop"},
		"a part of each count": {func(s *runtimetest.Stream) {
			s.Usage(9, 0)
			s.Text("Hi")
			s.Stop()
			s.Usage(0, 7)
			s.Done()
		}, openai.Tokens{Prompt: 9, Completion: 7}, true, "stop"},
		"no prompt": {func(s *runtimetest.Stream) {
			s.Usage(0, 1)
			s.Text("Hi")
			s.Stop()
			s.Usage(0, 7)
			s.Done()
		}, openai.Tokens{}, false, "stop"},
		"counts so far are not added up": {func(s *runtimetest.Stream) {
			s.Usage(9, 1)
			s.Text("Hi")
			s.Usage(9, 2)
			s.Stop()
			s.Usage(9, 3)
			s.Done()
		}, openai.Tokens{Prompt: 9, Completion: 3}, true, "stop"},
		"not counted": {func(s *runtimetest.Stream) { s.Whole("Hi") }, openai.Tokens{}, false, "stop"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			usages := make(chan *openai.Usage, 1)
			service := serve(t, openai.Config{BaseURL: runtimeSays(t, c.answer).URL}, func(o *botapi.Options) {
				o.OnChat = func(ctx context.Context, _ botapi.ChatReport) { usages <- openai.UsageFrom(ctx) }
			})
			chat(t, service, noStream)
			usage := <-usages
			tokens, reported := usage.Tokens()
			is.Equal(tokens, c.tokens)
			is.Equal(reported, c.reported)
			is.Equal(usage.Absurd(), name == "an impossible count")
			is.Equal(usage.FinishReason(), c.finish)
		})
	}
}

func TestTokensDuringTheStream(t *testing.T) {
	is := is.New(t)
	runtime := runtimeSays(t, func(s *runtimetest.Stream) {
		s.Usage(9, 1)
		s.Text("Once ")
		s.Usage(9, 2)
		s.Text("upon")
		s.Stop()
	})
	engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL, HTTPClient: http.DefaultClient})
	is.NoErr(err)
	ctx, usage := openai.CountTokens(t.Context())
	again, same := openai.CountTokens(ctx)
	is.Equal(again, ctx)
	is.Equal(same, usage)
	var seen []int64
	for _, err := range engine.Chat(ctx, &botapi.ChatRequest{Bot: helper}) {
		is.NoErr(err)
		tokens, _ := usage.Tokens()
		seen = append(seen, tokens.Completion)
	}
	is.Equal(seen, []int64{1, 2})

	for _, err := range engine.Chat(t.Context(), &botapi.ChatRequest{Bot: helper}) {
		is.NoErr(err) // a context without a Usage
	}
}

// A service whose middleware was forgotten reports nothing, and OnChat does not panic.
func TestNoUsage(t *testing.T) {
	is := is.New(t)
	usage := openai.UsageFrom(t.Context())
	usage.Report(openai.Tokens{Prompt: 9, Completion: 7})
	usage.Update(openai.Tokens{Prompt: 9, Completion: 7})
	usage.Finish("stop")
	usage.Reset()
	tokens, reported := usage.Tokens()
	is.Equal(tokens, openai.Tokens{})
	is.True(!reported)
	is.True(!usage.Absurd())
	is.Equal(usage.FinishReason(), "")
}

func TestImpossibleTokens(t *testing.T) {
	is := is.New(t)
	_, usage := openai.CountTokens(t.Context())
	for _, absurd := range []openai.Tokens{{Prompt: -1, Completion: 2}, {Prompt: 1, Completion: -2}, {Prompt: 1<<40 + 1}, {Completion: math.MaxInt64}} {
		for _, count := range []func(openai.Tokens){usage.Report, usage.Update} {
			usage.Reset()
			count(absurd)
			_, reported := usage.Tokens()
			is.True(!reported)
			is.True(usage.Absurd())
		}
	}
	usage.Report(openai.Tokens{Prompt: 1 << 40})
	is.True(!usage.Absurd())
	usage.Finish("stop")
	_, reported := usage.Tokens()
	is.True(reported)
	usage.Reset()
	tokens, reported := usage.Tokens()
	is.Equal(tokens, openai.Tokens{})
	is.True(!reported)
	is.Equal(usage.FinishReason(), "")
}

// Clients get a sensible Retry-After, whatever an engine puts into Failure.RetryAfter.
func TestRetryAfterIsBounded(t *testing.T) {
	is := is.New(t)
	for said, want := range map[time.Duration]time.Duration{
		0: 2 * time.Second, -time.Hour: time.Second, time.Millisecond: time.Second, time.Minute: time.Minute, math.MaxInt64: time.Hour,
	} {
		answer, ok := errors.AsType[*botapi.StatusError]((&openai.Failure{RetryAfter: said, Err: io.EOF}).Answer())
		is.True(ok)
		is.Equal(answer.RetryAfter, want)
	}
}
