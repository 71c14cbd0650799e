package runtimes_test

import (
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/runtimes"
)

// TestContract holds the engine, behind which one of two runtimes is down, against the
// contract of botapi.ChatEngine.
func TestContract(t *testing.T) {
	engine := func(answer func(*runtimetest.Stream, *runtimetest.Request)) botapi.ChatEngine {
		engine, err := runtimes.New(options(t, "http://127.0.0.1:1/v1", runtimetest.New(t, answer).URL))
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
		Request: botapi.ChatRequest{Bot: helper},
		Answer:  "Grüße, 世界 👋🏽\n",
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
