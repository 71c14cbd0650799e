package runtimes

import (
	"context"
	"errors"
	"time"

	"example.com/botapi"
)

// An answer is one try at one endpoint.
type answer struct {
	endpoint *endpoint
	others   []*endpoint // that are tried after it
	tries    bool        // whether the endpoint is well again
	attempt  time.Duration
	observed *observation
	yield    func(string) bool

	ctx    context.Context // of this try; it ends with the chat's, or with errSilent
	cancel context.CancelCauseFunc
	heard  bool // the endpoint has sent something
	begun  bool // text was passed on
}

// run passes the endpoint's text on. It returns nil when the answer is whole.
func (a *answer) run(req *botapi.ChatRequest) error {
	a.observed.askedAt(a.endpoint)
	for chunk, err := range a.endpoint.engine.Chunks(a.ctx, req) {
		switch {
		case err != nil:
			return err
		case !a.hears():
			return errSilent
		}
		a.observed.saw(chunk)
		if !a.pass(chunk.Text) {
			return errUnwanted
		}
	}
	return nil
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
