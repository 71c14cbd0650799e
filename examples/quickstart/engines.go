package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/eliza"
	"example.com/botapi/examples/quickstart/guide"
)

// engines has an engine for each Model that a bot can have.
type engines map[string]botapi.ChatEngine

// Chat answers with the engine of the bot's Model.
func (e engines) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	engine, known := e[req.Bot.Model]
	if !known {
		return func(yield func(string, error) bool) {
			yield("", fmt.Errorf("bot %q: there is no engine for the model %q", req.Bot.Slug, req.Bot.Model))
		}
	}
	return engine.Chat(ctx, req)
}

// names lists the models, for people.
func (e engines) names() string {
	return strings.Join(slices.Sorted(maps.Keys(e)), ", ")
}

// engines returns those that the settings ask for. The guide says much at once,
// so it says it faster.
func (s settings) engines() engines {
	all := engines{guide.Model: guide.Engine{Pace: s.pace / 4}}
	for _, model := range eliza.Models() {
		all[model] = eliza.Engine{Pace: s.pace}
	}
	if s.runtime != nil {
		all[s.runtime.model] = s.runtime
	}
	return all
}
