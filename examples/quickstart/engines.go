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
	var asked eliza.Repeats
	for _, model := range eliza.Models() {
		all[model] = botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			engine := eliza.Engine{Pace: s.pace}
			if isForAnother(ctx) {
				engine.Again = asked.Count(req)
			}
			return engine.Chat(ctx, req)
		})
	}
	if s.runtime != nil {
		all[s.runtime.model] = s.runtime
	}
	return all
}

// isForAnother reports whether a request is for an answer of its own, by its Idempotency-Key: a
// client chooses another one for each answer, and a request with a key that is known does not
// reach the engine. Those without a key, as of curl, get the same answer each time.
func isForAnother(ctx context.Context) bool {
	return botapi.RequestFrom(ctx).Header().Get("Idempotency-Key") != ""
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
