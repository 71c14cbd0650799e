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

// Fallback calls the first of its engines, and the next one if that fails before its
// first text. A failure after the first text ends the answer, since a second model
// cannot continue it.
//
// The client's mistakes (a 4xx, a validation error, ErrBotNotFound, ErrInvalidKey) and
// http.ErrAbortHandler are final, and so is any error once the chat has ended. What only
// one model does not accept (openai.Failure.Mistake) is not: the next may. The context
// of an engine that has failed is cancelled immediately; the next engine is called when
// it has returned. Empty fragments before the first text are dropped, since they would
// commit the response. So StallTimeout counts the time of all engines until the first
// text.
type Fallback []botapi.ChatEngine

// Chat yields the answer of the first engine that does not fail before its first text.
func (f Fallback) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		failed := errors.New("there is no engine to fall back to")
		usage := openai.UsageFrom(ctx)
		for i, engine := range f {
			if i > 0 {
				usage.Reset() // the engine that failed may have reported tokens
			}
			err := tryEngine(ctx, engine, req, yield)
			switch {
			case err == nil:
				return
			case i > 0:
				err = fmt.Errorf("%w (earlier: %v)", err, failed)
			}
			if failed = err; !mayTryNext(ctx, err) {
				break
			}
		}
		yield("", failed)
	}
}

// tryEngine passes on what the engine yields. It returns an error only if the engine
// failed before its first text.
func tryEngine(ctx context.Context, engine botapi.ChatEngine, req *botapi.ChatRequest, yield func(string, error) bool) (failed error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the next engine is called
	own := *req    // an engine may modify its request
	own.Messages, own.Extra = slices.Clone(req.Messages), maps.Clone(req.Extra)
	answer := engine.Chat(ctx, &own)
	if answer == nil {
		return errors.New("the engine returned no iterator")
	}
	begun, ended := false, false
	answer(func(text string, err error) bool {
		switch {
		case ended: // the engine ignores that yield has returned false
		case err != nil && !begun:
			failed, ended = err, true
		case begun || text != "":
			begun = true
			ended = !yield(text, err) || err != nil
		}
		if ended {
			cancel() // the engine may wait for this before it returns
		}
		return !ended
	})
	return failed
}

func mayTryNext(ctx context.Context, err error) bool {
	final := func(e error) bool { return errors.Is(err, e) }
	if ctx.Err() != nil || slices.ContainsFunc([]error{botapi.ErrBotNotFound, botapi.ErrInvalidKey, http.ErrAbortHandler}, final) {
		return false
	}
	if failure, ok := errors.AsType[*openai.Failure](err); ok && failure.Mistake != nil {
		return true
	}
	if chosen, ok := errors.AsType[botapi.StatusError](err); ok {
		return chosen.Status < 400 || chosen.Status > 499 // botapi sends a 500 for an invalid status
	}
	_, invalid := errors.AsType[botapi.HTTPValidationError](err)
	return !invalid
}
