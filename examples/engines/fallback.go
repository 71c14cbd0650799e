package engines

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// Fallback asks the first of its engines, and the next one when that fails before
// the first text of its answer. What fails later breaks the answer: two halves of
// two models are no whole.
//
// A mistake of the client's (a 4xx, a validation error, ErrBotNotFound, ErrInvalidKey) is
// not tried elsewhere, nor is http.ErrAbortHandler, nor anything once the chat is over. An
// engine that has failed has its context ended at once, and returns before the next is asked. Empty fragments before the first text are dropped,
// since they would commit the answer; so StallTimeout counts all the engines' time
// until then.
type Fallback []botapi.ChatEngine

// Chat answers with the first engine that can.
func (f Fallback) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		failed := errors.New("there is no engine to fall back to")
		usage := openai.UsageFrom(ctx)
		for i, engine := range f {
			if i > 0 && usage != nil {
				usage.Reset() // tokens and a finish reason of the one that failed
			}
			err := tryEngine(ctx, engine, req, yield)
			switch {
			case err == nil:
				return
			case i > 0:
				err = fmt.Errorf("%w (and before it: %v)", err, failed)
			}
			if failed = err; !mayGoElsewhere(ctx, err) {
				break
			}
		}
		yield("", failed)
	}
}

// tryEngine hands on what the engine yields. Its error is one that came before any text.
func tryEngine(ctx context.Context, engine botapi.ChatEngine, req *botapi.ChatRequest, yield func(string, error) bool) (failed error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // nothing of this engine goes on beside the next
	own := *req    // an engine may change its request
	own.Messages, own.Extra = slices.Clone(req.Messages), maps.Clone(req.Extra)
	answer := engine.Chat(ctx, &own)
	if answer == nil {
		return errors.New("the engine returned no iterator")
	}
	begun, over := false, false
	answer(func(text string, err error) bool {
		switch {
		case over: // it goes on although it was told to stop
		case err != nil && !begun:
			failed, over = err, true
		case begun || text != "":
			begun = true
			over = !yield(text, err) || err != nil
		}
		if over {
			cancel() // which the engine may wait for, to clean up
		}
		return !over
	})
	return failed
}

func mayGoElsewhere(ctx context.Context, err error) bool {
	final := func(e error) bool { return errors.Is(err, e) }
	if ctx.Err() != nil || slices.ContainsFunc([]error{botapi.ErrBotNotFound, botapi.ErrInvalidKey, http.ErrAbortHandler}, final) {
		return false
	}
	if chosen, ok := errors.AsType[botapi.StatusError](err); ok {
		return chosen.Status < 400 || chosen.Status > 499 // what is no status at all becomes a 500
	}
	_, invalid := errors.AsType[botapi.HTTPValidationError](err)
	return !invalid
}
