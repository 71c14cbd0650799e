package runtimes

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// An answer is one try at one endpoint.
type answer struct {
	endpoint *endpoint
	patience *patience
	observed *observation
	yield    func(string) bool

	response *http.Response // nil if the endpoint did not answer
	begun    bool           // text was passed on
}

// errCutShort is a stream that ended without saying that the answer is whole.
var errCutShort = errors.New("the stream ended before the answer did")

// run passes the endpoint's text on. It returns nil when the answer is whole.
func (a *answer) run(params openai.ChatCompletionNewParams, requestID string) error {
	stream := a.endpoint.chats.NewStreaming(a.patience.ctx, params,
		option.WithResponseInto(&a.response),
		option.WithHeader("X-Request-Id", requestID))
	defer stream.Close()
	a.observed.askedAt(a.endpoint)
	finished := false
	for a.next(stream.Next) {
		chunk := stream.Current()
		a.observed.saw(chunk)
		for _, choice := range chunk.Choices {
			if !a.pass(choice.Delta.Content + choice.Delta.Refusal) {
				return errUnwanted
			}
			finished = finished || choice.FinishReason != ""
		}
	}
	if err := stream.Err(); err != nil && !finished {
		return err
	}
	if !finished {
		return errCutShort
	}
	return nil
}

// next waits for a chunk as long as the patience lasts. The time that a client
// takes to read is not the runtime's: the clock stands still meanwhile.
func (a *answer) next(next func() bool) bool {
	if !a.begun {
		return next()
	}
	defer a.patience.waits()()
	return next()
}

// pass hands text on and reports whether more is wanted. Chunks without text,
// as for a role or the count of tokens, are not for the client.
func (a *answer) pass(text string) bool {
	if text == "" {
		return true
	}
	if !a.begun {
		a.begun = true
		a.patience.begun()
		a.observed.firstFragment(a.patience.ctx)
	}
	return a.yield(text)
}

// patience bounds how long a runtime may be silent. Its context ends with the
// chat, or with the cause errLate or errStalled.
type patience struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	first  *time.Timer
	stall  time.Duration
}

var (
	errLate    = errors.New("no text in time")
	errStalled = errors.New("silent in the middle of an answer")
)

func newPatience(ctx context.Context, first, stall time.Duration) *patience {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patience{ctx: ctx, cancel: cancel, stall: stall}
	p.first = time.AfterFunc(first, func() { cancel(errLate) })
	return p
}

// begun ends the wait for the first text.
func (p *patience) begun() { p.first.Stop() }

// waits starts the wait for one further chunk; the function that it returns
// ends it.
func (p *patience) waits() (done func() bool) {
	return time.AfterFunc(p.stall, func() { p.cancel(errStalled) }).Stop
}

func (p *patience) end() {
	p.first.Stop()
	p.cancel(nil)
}
