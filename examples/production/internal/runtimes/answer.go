package runtimes

import (
	"context"
	"errors"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// An answer is one try at one endpoint.
type answer struct {
	endpoint *endpoint
	others   []*endpoint // to try after it
	tries    bool        // this chat finds out whether the endpoint has recovered
	attempt  time.Duration
	observed *observation
	yield    func(string, error) bool

	ctx    context.Context // of this try; it ends with the chat's, or with errSilent
	cancel context.CancelCauseFunc
	heard  bool // the endpoint has sent a chunk
	begun  bool // text was passed on

	spoken, alive time.Time // the last text and the last sign of life, or when the try began
}

// run passes the endpoint's text on. It returns nil when the answer is complete.
func (a *answer) run(req *botapi.ChatRequest) error {
	a.observed.askedAt(a.endpoint)
	openai.UsageFrom(a.ctx).Reset() // it has that of an endpoint that has failed
	for chunk, err := range a.endpoint.engine.Chunks(a.ctx, req) {
		switch {
		case err != nil:
			return err
		case chunk.Alive:
			a.isAlive()
			continue
		case !a.hears():
			return errSilent
		}
		a.observed.saw(chunk)
		if !a.pass(chunk.Text) {
			return errChatEnded
		}
	}
	return nil
}

// errSilent means that the endpoint has sent nothing to any chat for too long.
var errSilent = errors.New("the endpoint does not answer")

// begin creates the context of this try, and bounds the wait for anything from
// the endpoint. A busy runtime may let one chat wait while it answers others.
// That is no reason to ask another one, which is probably just as busy.
func (a *answer) begin(ctx context.Context) (end func()) {
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.spoken = time.Now()
	a.alive = a.spoken
	a.endpoint.begin(a)
	timer := a.listen(a.endpoint.heard.Load())
	return func() {
		timer.Stop()
		a.endpoint.end(a)
		a.cancel(nil)
	}
}

// listen checks once per attempt, until the first word, whether the endpoint has
// sent anything to any chat.
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

// isAlive notes that the endpoint has sent something, if only a comment: it does
// not hang. Its first word is still to come.
func (a *answer) isAlive() {
	a.endpoint.heard.Add(1)
	a.alive = time.Now()
}

// stalls reports whether the endpoint hangs: it has been silent for most of the
// time since its last text. One that reads a long prompt or thinks is not.
func (a *answer) stalls() bool {
	return time.Since(a.alive) > time.Since(a.spoken)/2
}

// hears notes that the endpoint has sent a chunk. It returns false if the chat
// has already moved to another endpoint.
func (a *answer) hears() bool {
	a.isAlive()
	if !a.heard {
		a.heard = true
		return a.endpoint.speaks(a)
	}
	return true
}

// pass hands text on. It returns false once the chat has ended. Chunks without
// text, such as for a role or the token count, do not reach the client.
func (a *answer) pass(text string) bool {
	if text == "" {
		return true
	}
	a.spoken = a.alive
	if !a.begun {
		a.begun = true
		a.observed.firstFragment(a.ctx)
	}
	return a.yield(text, nil)
}
