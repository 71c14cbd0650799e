package runtimes

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"example.com/botapi"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// An answer is one try at one endpoint.
type answer struct {
	endpoint *endpoint
	others   []*endpoint // that are tried after it
	tries    bool        // whether the endpoint is well again
	attempt  time.Duration
	observed *observation
	yield    func(string) bool

	ctx      context.Context // of this try; it ends with the chat's, or with errSilent
	cancel   context.CancelCauseFunc
	response *http.Response // nil if the endpoint did not answer
	heard    bool           // the endpoint has sent something
	begun    bool           // text was passed on
	whole    bool           // the runtime says that the answer is over
}

// errCutShort is a stream that ended without saying that the answer is whole.
var errCutShort = errors.New("the stream ended before the answer did")

// run passes the endpoint's text on. It returns nil when the answer is whole.
//
// The client makes the request; its types for chunks are not used: see chunk.
func (a *answer) run(params openai.ChatCompletionNewParams) error {
	a.observed.askedAt(a.endpoint)
	stream := a.endpoint.chats.NewStreaming(a.ctx, params,
		option.WithResponseInto(&a.response),
		option.WithHeader("X-Request-Id", botapi.RequestIDFrom(a.ctx)))
	defer stream.Close()
	if err := stream.Err(); err != nil {
		return err
	}
	events := ssestream.NewDecoder(a.response)
	for events.Next() && !isDone(events.Event()) {
		if !a.hears() {
			return errSilent
		}
		chunk, err := read(events.Event())
		if err != nil {
			return a.unlessWhole(err)
		}
		a.observed.saw(chunk)
		if !a.pass(chunk.text) {
			return errUnwanted
		}
		a.whole = a.whole || len(chunk.finish) > 0
	}
	return a.unlessWhole(cmp.Or(events.Err(), errCutShort))
}

func isDone(event ssestream.Event) bool { return bytes.HasPrefix(event.Data, []byte("[DONE]")) }

func read(event ssestream.Event) (chunk, error) {
	c, err := readChunk(event.Data)
	if err == nil && c.failed {
		err = &ssestream.StreamError{Message: "the stream has an error in it", Event: event}
	}
	return c, err
}

// unlessWhole is err, or nil after a finish_reason: what goes wrong then, goes
// wrong with the count of tokens at most.
func (a *answer) unlessWhole(err error) error {
	if a.whole {
		return nil
	}
	return err
}

// errSilent is an endpoint that nobody has heard of for too long.
var errSilent = errors.New("the endpoint does not answer")

// begin makes the context of this try, and bounds the wait for anything from the
// endpoint. A runtime that has much to do lets one chat wait while it answers
// others: that is no reason to ask another one, which most likely has as much
// to do.
func (a *answer) begin(ctx context.Context) (end func()) {
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.endpoint.begin(a)
	timer := a.listen(a.endpoint.heard.Load())
	return func() {
		timer.Stop()
		a.endpoint.end(a)
		a.cancel(nil)
	}
}

// listen looks, once for each attempt's time and as long as there is no first
// word, whether anybody has heard of the endpoint.
func (a *answer) listen(heard uint64) *time.Timer {
	return time.AfterFunc(a.attempt, func() {
		if !a.endpoint.awaited(a) {
			return
		}
		now := a.endpoint.heard.Load()
		if now == heard {
			a.endpoint.hangs(a)
		}
		a.listen(now)
	})
}

// hears notes a sign of life. It is false when the first word comes too late:
// the chat has been sent elsewhere.
func (a *answer) hears() bool {
	a.endpoint.heard.Add(1)
	if !a.heard {
		a.heard = true
		return a.endpoint.speaks(a)
	}
	return true
}

// pass hands text on and reports whether more is wanted. Chunks without text,
// as for a role or the count of tokens, are not for the client.
func (a *answer) pass(text []byte) bool {
	if len(text) == 0 {
		return true
	}
	if !a.begun {
		a.begun = true
		a.observed.firstFragment(a.ctx)
	}
	return a.yield(string(text))
}
