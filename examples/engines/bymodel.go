package engines

import (
	"context"
	"fmt"
	"iter"

	"example.com/botapi"
)

// ByModel has an engine for each Model that a bot can have; the one for "", if it
// is there, is for all others.
type ByModel map[string]botapi.ChatEngine

// Chat answers with the engine of the bot's Model.
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
