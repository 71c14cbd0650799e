package limits_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redistest"
)

// TestContract holds an engine with limits against the contract of botapi.ChatEngine.
func TestContract(t *testing.T) {
	client := redistest.NewServer(t).Client(t)
	engine := func(model botapi.ChatEngineFunc) botapi.ChatEngine {
		engine := limits.New(limits.Options{
			Engine: model, Redis: client, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Limits: everybody(limits.Limits{ChatsPerMinute: 1000, ConcurrentChats: 100}),
			Used:   func(context.Context) int64 { return 1 },
		})
		t.Cleanup(engine.Close)
		return engine
	}
	botapitest.TestEngine(t, botapitest.Engine{
		Engine: engine(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				_ = yield("Grüße, ", nil) && yield("", nil) && yield("世界 ", nil) && yield("👋🏽\n", nil)
			}
		}),
		Answer: "Grüße, 世界 👋🏽\n",
		Failing: engine(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if yield("Grüße, ", nil) {
					yield("", errors.New("the model has failed"))
				}
			}
		}),
		Hanging: engine(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) { <-ctx.Done() }
		}),
		Endless: engine(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for yield("and so on ", nil) {
				}
			}
		}),
	})
}
