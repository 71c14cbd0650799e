// Package eliza is a conversation engine in the tradition of ELIZA, the program
// that Joseph Weizenbaum wrote in 1966: it looks for keywords in what the user
// says, takes the sentence apart around them, turns "my" into "your", and puts
// what it has into an answer. There is no model behind it and nothing is
// learned; all that a bot can say stands in its script.
//
// It keeps no state between chats. What it remembers of a conversation, it
// reads from the messages of the request.
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

// scripts are the characters that bots can have, by the model names that
// choose them.
var scripts = map[string]*script{
	"eliza-listener": listener,
	"eliza-gardener": gardener,
}

// Models returns the names that a bot's Model can have, sorted. Each stands
// for a script of its own.
func Models() []string {
	return slices.Sorted(maps.Keys(scripts))
}

// Engine is a [botapi.ChatEngine] that answers for every bot whose Model is one
// of [Models], and fails for any other. Its zero value streams without waiting.
type Engine struct {
	// Pace is the wait before each word of a stream but the first. An answer
	// that goes out as one body does not wait.
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
