package engines

import (
	"context"
	"fmt"
	"iter"

	"example.com/botapi"
)

// ByModel has an engine for each Bot.Model. The engine for "", if there is one, serves
// all other models.
type ByModel map[string]botapi.ChatEngine

// Chat calls the engine for the bot's Model.
func (e ByModel) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	engine := e[req.Bot.Model]
	if engine == nil {
		engine = e[""]
	}
	if engine == nil {
		return func(yield func(string, error) bool) {
			yield("", fmt.Errorf("bot %q: there is no engine for the model %q", req.Bot.Slug, req.Bot.Model))
		}
	}
	return engine.Chat(ctx, req)
}
