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

// A Model is a model in this process, as a binding to a C library is one. It need
// not be safe for concurrent use.
type Model interface {
	// Begin forgets the chat before and reads the conversation of the next one. It
	// returns how many tokens that has; ErrTooLong if they are too many. It should
	// look at ctx now and then.
	Begin(ctx context.Context, messages []botapi.ChatMessage, s openai.Settings) (tokens int64, err error)
	// Next returns the bytes of the next token of the answer, which may end inside a
	// character; io.EOF after the last. It is not called again after an error.
	Next() ([]byte, error)
}

// ErrTooLong is what a [Model] returns for a conversation that does not fit.
var ErrTooLong = errors.New("the conversation is too long for the model")

// Local is a botapi.ChatEngine around a [Model], which answers one chat at a time,
// in the order in which they come. Those that wait are bounded by
// MaxConcurrentChats only: put a [Line] in front.
//
// The model is free again when its answer has been handed over. A stream holds 32
// KiB for a client that is slow; beyond that, a client that does not read
// keeps the model, for WriteTimeout at most.
type Local struct {
	model Model
	turn  chan struct{}
}

// NewLocal returns an engine around a model, which nobody else may use.
func NewLocal(model Model) *Local {
	return &Local{model: model, turn: make(chan struct{}, 1)}
}

// Chat answers with the model when it is free.
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
		case e.turn <- struct{}{}:
		}
		defer func() { <-e.turn }() // also when the model panics
		if ctx.Err() != nil {       // select takes either when both are ready
			yield("", context.Cause(ctx))
			return
		}
		a := localAnswer{ctx: ctx, usage: openai.UsageFrom(ctx)}
		if err := a.run(e.model, req.Messages, settings, yield); err != nil {
			yield("", a.failed(err))
		}
	}
}

// A localAnswer is what has come of one chat.
type localAnswer struct {
	ctx    context.Context
	usage  *openai.Usage // nil if nobody counts
	tokens openai.Tokens
	begun  bool // text has come
}

// run returns nil when the answer is whole or nobody wants more of it.
func (a *localAnswer) run(m Model, messages []botapi.ChatMessage, s openai.Settings, yield func(string, error) bool) (err error) {
	if a.tokens.Prompt, err = m.Begin(a.ctx, messages, s); err != nil {
		return err
	}
	a.count()
	for s.MaxTokens == nil || a.tokens.Completion < *s.MaxTokens {
		if err := a.ctx.Err(); err != nil { // the client left, perhaps while the prompt was read
			return err
		}
		text, err := m.Next()
		if err == io.EOF {
			a.finish("stop")
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
	a.finish("length")
	return nil
}

// count notes each token at once, so that whoever leaves is counted, too.
func (a *localAnswer) count() {
	if a.usage != nil {
		a.usage.Report(a.tokens)
	}
}

func (a *localAnswer) finish(reason string) {
	if a.usage != nil {
		a.usage.Finish(reason)
	}
}

func (a *localAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	return (&openai.Failure{
		Status:  http.StatusInternalServerError,
		Begun:   a.begun,
		TooLong: errors.Is(err, ErrTooLong),
		Err:     fmt.Errorf("in this process: %w", err),
	}).Answer()
}
