package engines

import (
	"context"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/openai"
)

// TestContract holds every engine against the contract of botapi.ChatEngine.
func TestContract(t *testing.T) {
	for _, c := range columns {
		t.Run(c.name, func(t *testing.T) {
			answering := c.start(t, func(w Wire, _ Asked) {
				w.Think("Hm. ")
				for _, text := range []string{"Grüße, ", "", "世界 ", "👋🏽", "\n"} {
					w.Text(text)
				}
				w.End()
			})
			botapitest.TestEngine(t, botapitest.Engine{
				Engine:  answering.engine,
				Request: botapi.ChatRequest{Bot: botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"}},
				Answer:  "Grüße, 世界 👋🏽\n",

				OneAtATime: c.name == "local", // its only slot is taken until the client has read the answer

				Context: func(ctx context.Context) context.Context {
					ctx, _ = openai.CountTokens(ctx)
					return ctx
				},
				Tokens: func(ctx context.Context) (prompt, completion int64, reported bool) {
					counted, reported := openai.UsageFrom(ctx).Tokens()
					return counted.Prompt, counted.Completion, reported
				},
				Failing: c.start(t, func(w Wire, _ Asked) {
					w.Text("Grüße, ")
					w.Fail(internalError)
				}).engine,
				Hanging: c.start(t, func(_ Wire, a Asked) { <-a.Ctx.Done() }).engine,
				Endless: c.start(t, func(w Wire, a Asked) {
					for a.Ctx.Err() == nil {
						w.Text("and so on ")
					}
				}).engine,
			})
		})
	}
}
