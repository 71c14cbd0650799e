package engines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// A Model is a model in this process, such as a binding to a C library. It need not be
// safe for concurrent use.
type Model interface {
	// Begin discards the previous chat and reads the conversation of the next one. It
	// returns the number of its tokens, or ErrTooLong if there are too many. It should
	// check ctx regularly.
	Begin(ctx context.Context, messages []botapi.ChatMessage, s openai.Settings) (tokens int64, err error)
	// Next returns the bytes of the next token of the answer, which may end inside a
	// character, and io.EOF after the last token. It is not called again after an error.
	Next() ([]byte, error)
}

// ErrTooLong is returned by a [Model] if the conversation exceeds its context.
var ErrTooLong = errors.New("the conversation is too long for the model")

// Local is a botapi.ChatEngine for a [Model]. It runs one chat at a time, in order of
// arrival. Only MaxConcurrentChats bounds how many wait: wrap it in a [Line].
//
// The model is free again when its whole answer has been yielded. A stream queues at most
// 32 KiB of text for a slow client; after that, a client that does not read occupies the
// model for at most WriteTimeout.
type Local struct {
	model Model
	slot  chan struct{}
}

// NewLocal returns an engine for a model, which must not be used elsewhere.
func NewLocal(model Model) *Local {
	return &Local{model: model, slot: make(chan struct{}, 1)}
}

// Chat yields the model's answer as soon as the model is free.
func (e *Local) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		settings, err := openai.ReadExtra(req.Extra)
		if err != nil {
			yield("", err)
			return
		}
		select {
		case <-ctx.Done():
			yield("", context.Cause(ctx))
			return
		case e.slot <- struct{}{}:
		}
		defer func() { <-e.slot }() // even if the model panics
		if ctx.Err() != nil {       // select chooses at random if both are ready
			yield("", context.Cause(ctx))
			return
		}
		a := localAnswer{ctx: ctx, usage: openai.UsageFrom(ctx)}
		if err := a.run(e.model, req.Messages, settings, yield); err != nil {
			yield("", a.failed(err))
		}
	}
}

// A localAnswer is the state of one chat.
type localAnswer struct {
	ctx    context.Context
	usage  *openai.Usage // may be nil
	tokens openai.Tokens
	begun  bool // the model has returned text
}

// run returns nil if the answer is complete or yield has returned false.
func (a *localAnswer) run(m Model, messages []botapi.ChatMessage, s openai.Settings, yield func(string, error) bool) (err error) {
	if a.tokens.Prompt, err = m.Begin(a.ctx, messages, s); err != nil {
		return err
	}
	a.count()
	for s.MaxTokens == nil || a.tokens.Completion < *s.MaxTokens {
		if err := a.ctx.Err(); err != nil { // perhaps cancelled while Begin read the prompt
			return err
		}
		text, err := m.Next()
		if err == io.EOF {
			a.usage.Finish("stop")
			return nil
		}
		if err != nil {
			return err
		}
		a.tokens.Completion++
		a.count()
		a.begun = a.begun || len(text) > 0
		if len(text) > 0 && !yield(string(text), nil) {
			return nil
		}
	}
	a.usage.Finish("length")
	return nil
}

// count reports each token immediately, so that an incomplete answer has a count, too.
func (a *localAnswer) count() {
	a.usage.Report(a.tokens)
}

func (a *localAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	return (&openai.Failure{
		Status:  http.StatusInternalServerError,
		Begun:   a.begun,
		TooLong: errors.Is(err, ErrTooLong),
		Err:     fmt.Errorf("the model in this process: %w", err),
	}).Answer()
}
