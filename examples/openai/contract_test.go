package openai_test

import (
	"context"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
)

// TestContract holds the engine against the contract of botapi.ChatEngine.
func TestContract(t *testing.T) {
	engine := func(answer func(*runtimetest.Stream, *runtimetest.Request)) botapi.ChatEngine {
		engine, err := openai.NewEngine(openai.Config{BaseURL: runtimetest.New(t, answer).URL})
		if err != nil {
			t.Fatal(err)
		}
		return engine
	}
	botapitest.TestEngine(t, botapitest.Engine{
		Engine: engine(func(s *runtimetest.Stream, _ *runtimetest.Request) {
			s.Role()
			for _, text := range []string{"Grüße, ", "", "世界 ", "👋🏽", "\n"} {
				s.Text(text)
			}
			s.Stop()
			s.Usage(7, 3)
			s.Done()
		}),
		Answer: "Grüße, 世界 👋🏽\n",
		Context: func(ctx context.Context) context.Context {
			ctx, _ = openai.CountTokens(ctx)
			return ctx
		},
		Tokens: func(ctx context.Context) (prompt, completion int64, reported bool) {
			counted, reported := openai.UsageFrom(ctx).Tokens()
			return counted.Prompt, counted.Completion, reported
		},
		Failing: engine(func(s *runtimetest.Stream, _ *runtimetest.Request) {
			s.Text("Grüße, ")
			s.Break()
		}),
		Hanging: engine(func(_ *runtimetest.Stream, r *runtimetest.Request) { <-r.Context().Done() }),
		Endless: engine(func(s *runtimetest.Stream, _ *runtimetest.Request) {
			for s.Raw("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"and so on \"}}]}\n\n") {
			}
		}),
	})
}
