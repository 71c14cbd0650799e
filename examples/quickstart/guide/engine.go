// Package guide is a chat engine that explains botapi from the project's own
// documents. It uses no model: it searches for the section that fits the words
// of the question best, and quotes it.
package guide

import (
	"context"
	"iter"
	"strings"
	"time"
	"unicode"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/speech"
)

// Model is the Bot.Model of bots that use this engine.
const Model = "no-model"

// Engine is a [botapi.ChatEngine] that answers the last message of a
// conversation from the documents. The zero value streams without delay.
type Engine struct {
	// Pace is the delay before each word of a stream but the first. A JSON
	// response is not delayed.
	Pace time.Duration
	// Address returns the address at which the program serves the Documents, with a
	// slash at its end; answers link to them. If it is nil, or returns "", answers have
	// only the names of documents.
	Address func(context.Context) string
}

var _ botapi.ChatEngine = Engine{}

// Chat answers in Markdown, word by word.
func (e Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		pace := e.Pace
		if !req.Stream {
			pace = 0
		}
		address := ""
		if e.Address != nil {
			address = e.Address(ctx)
		}
		text := linked(answer(req.Messages[len(req.Messages)-1].Content), address)
		speech.Speak(ctx, words(text), pace, yield)
	}
}

// words splits a text after each run of white space.
func words(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for text != "" {
			end := strings.IndexFunc(text, unicode.IsSpace)
			if end >= 0 {
				end = strings.IndexFunc(text[end:], func(r rune) bool { return !unicode.IsSpace(r) }) + end
			}
			if end <= 0 {
				end = len(text)
			}
			if !yield(text[:end]) {
				return
			}
			text = text[end:]
		}
	}
}
