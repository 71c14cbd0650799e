// Package eliza is a chat engine in the tradition of ELIZA, the program that
// Joseph Weizenbaum wrote in 1966. It looks for keywords in the user's message,
// takes the sentence apart around them, turns "my" into "your", and puts the
// parts into an answer. It uses no model and learns nothing: everything that a
// bot can say is in its script.
//
// It keeps no state between chats. What it remembers comes from the messages of
// the request.
package eliza

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/speech"
)

// scripts maps each model name to its script.
var scripts = map[string]*script{
	"eliza-listener": listener,
	"eliza-gardener": gardener,
}

// Models returns the model names that the engine supports, sorted. Each has its
// own script.
func Models() []string {
	return slices.Sorted(maps.Keys(scripts))
}

// Engine is a [botapi.ChatEngine] for bots whose Model is one of [Models]. It
// fails for any other bot. The zero value streams without delay.
type Engine struct {
	// Pace is the delay before each word of a stream but the first. A JSON
	// response is not delayed.
	Pace time.Duration
}

var _ botapi.ChatEngine = Engine{}

// Chat answers the last message of the conversation, word by word.
func (e Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		script, ok := scripts[req.Bot.Model]
		if !ok {
			yield("", fmt.Errorf("bot %q: there is no script for the model %q", req.Bot.Slug, req.Bot.Model))
			return
		}
		pace := e.Pace
		if !req.Stream {
			pace = 0
		}
		words := strings.SplitAfterSeq(script.answer(req.Bot.Name, req.Messages), " ")
		speech.Speak(ctx, words, pace, yield)
	}
}
