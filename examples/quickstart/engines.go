package main

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/quickstart/eliza"
	"example.com/botapi/examples/quickstart/guide"
)

// engines maps each supported Bot.Model to its engine.
type engines map[string]botapi.ChatEngine

// Chat delegates to the engine for the bot's Model.
func (e engines) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	engine, known := e[req.Bot.Model]
	if !known {
		return func(yield func(string, error) bool) {
			yield("", fmt.Errorf("bot %q: there is no engine for the model %q", req.Bot.Slug, req.Bot.Model))
		}
	}
	return engine.Chat(ctx, req)
}

// names lists the models for error messages.
func (e engines) names() string {
	return strings.Join(slices.Sorted(maps.Keys(e)), ", ")
}

// engines returns the engines that the settings ask for. The guide's answers are
// long, so it streams them faster.
func (s settings) engines() engines {
	all := engines{guide.Model: guide.Engine{Pace: s.pace / 4, Address: documentsAddress}}
	var asked repeats
	for _, model := range eliza.Models() {
		all[model] = botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			return eliza.Engine{Pace: s.pace, Again: asked.count(ctx, req)}.Chat(ctx, req)
		})
	}
	if s.runtime != nil {
		all[s.runtime.model] = s.runtime
	}
	return all
}

// withTokens gives each request an openai.Usage, for the token counts and the finish reason
// that a real model reports.
func withTokens(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, _ := openai.CountTokens(r.Context())
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func finishReason(ctx context.Context) string { return openai.UsageFrom(ctx).FinishReason() }
