package resume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"example.com/botapi"
)

// An answer is an answer in progress in this replica. Three parties use it: the
// chat engine, which adds fragments; the clients, namely the one that started it
// and followers that cannot read from Redis; and keep, which copies it to Redis.
// While the answer is kept, none of them waits for another. An answer that is no
// longer kept continues as without a key: the engine waits for the clients, and
// fragments that they have are dropped.
type answer struct {
	title
	engine *Engine
	cancel context.CancelCauseFunc // cancels the chat engine's context
	stall  *time.Timer             // cancels it when the engine stalls; nil if there is no limit
	asked  func() bool             // whether a model may have been asked

	mu       sync.Mutex
	texts    []string
	first    int   // number of texts[0]: 0 while the answer is kept
	size     int64 // of the texts
	large    bool  // no longer kept
	written  int   // fragments that Redis has
	over     bool
	err      error         // why it is incomplete, once it is over
	changed  chan struct{} // closed, and replaced, on each change
	cursors  map[*cursor]struct{}
	returned bool     // the chat engine has returned
	whenOver []func() // called then
}

// A cursor is the position of a client of this replica.
type cursor struct{ next int }

// window is how far the engine may be ahead of the clients of an answer that is
// not kept.
const window = 64 << 10

var errExited = errors.New("the engine ended its goroutine with runtime.Goexit")

// run runs the chat engine. The answer is over when the engine has returned or
// its context has ended, whichever comes first.
func (a *answer) run(ctx context.Context, req *botapi.ChatRequest) {
	defer a.engineReturned()
	defer a.cancel(nil)
	if timeout := a.engine.options.ChatTimeout; timeout > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, timeout, botapi.ErrChatTimeout)
		defer done()
	}
	if timeout := a.engine.options.StallTimeout; timeout > 0 {
		a.stall = time.AfterFunc(timeout, func() { a.cancel(botapi.ErrEngineStalled) })
		defer a.stall.Stop()
	}
	stop := context.AfterFunc(ctx, func() { a.end(answerTo(context.Cause(ctx))) })
	defer stop()
	err := errExited
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic while running the engine: %v\n%s", v, debug.Stack())
		}
		if err = cmp.Or(answerTo(context.Cause(ctx)), err); a.end(err) && err != nil {
			a.engine.logger.WarnContext(ctx, "an answer without clients failed", slog.Any("error", err))
		}
	}()
	err = a.speak(ctx, req)
}

func (a *answer) speak(ctx context.Context, req *botapi.ChatRequest) (err error) {
	fragments := a.engine.next.Chat(ctx, req)
	fragments(func(text string, failed error) bool {
		if failed != nil {
			err = cmp.Or(err, failed)
			return false
		}
		if a.stall != nil {
			a.stall.Stop()
			defer a.stall.Reset(a.engine.options.StallTimeout)
		}
		a.add(text)
		return a.wait(ctx)
	})
	return err
}

func (a *answer) add(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	a.texts = append(a.texts, text)
	a.size += int64(len(text)) + fragmentBytes
	a.large = a.large || a.size > a.engine.options.AnswerBytes
	a.trim()
	a.notify()
}

// wait returns when the engine may continue, immediately while the answer is
// kept. It returns false once the answer is over.
func (a *answer) wait(ctx context.Context) (more bool) {
	for {
		a.mu.Lock()
		ready, changed := a.over || !a.large || a.ahead() <= window, a.changed
		more := !a.over
		a.mu.Unlock()
		if ready {
			return more
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// ahead is how many bytes the slowest client has not taken yet.
func (a *answer) ahead() (bytes int64) {
	next := a.slowest()
	for _, text := range a.texts[next-a.first:] {
		bytes += int64(len(text)) + fragmentBytes
	}
	return bytes
}

func (a *answer) slowest() int {
	next := a.first + len(a.texts)
	for c := range a.cursors {
		next = min(next, c.next)
	}
	return next
}

// trim drops fragments of an answer that is not kept once nobody needs them.
// Redis still gets all of it, unless it is much slower than the clients.
func (a *answer) trim() {
	if !a.large {
		return
	}
	needed := a.slowest()
	if a.size <= 2*a.engine.options.AnswerBytes {
		needed = min(needed, max(a.written, a.first))
	}
	for ; a.first < needed; a.first++ {
		a.size -= int64(len(a.texts[0])) + fragmentBytes
		a.texts = a.texts[1:]
	}
}

// keepNoLonger has the answer continue as without a key.
func (a *answer) keepNoLonger() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.large {
		a.large = true
		a.trim()
		a.notify()
	}
}

// end ends the answer; only the first call counts. It reports whether this was
// the first call and the answer has no clients here.
func (a *answer) end(err error) (unseen bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.over, a.err = true, err
	a.notify()
	return len(a.cursors) == 0
}

// callWhenOver registers f to be called when the chat engine has returned. It
// returns false if the engine has returned already.
func (a *answer) callWhenOver(f func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.returned {
		return false
	}
	a.whenOver = append(a.whenOver, f)
	return true
}

func (a *answer) engineReturned() {
	a.mu.Lock()
	a.returned = true
	a.mu.Unlock()
	for _, f := range a.whenOver {
		f()
	}
}

// notify is called with the lock held.
func (a *answer) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// progress is the part of an answer from some fragment on.
type progress struct {
	texts   []string
	over    bool // nothing comes after the texts
	err     error
	changed <-chan struct{} // closed when there is more
}

// since is called with the lock held.
func (a *answer) since(next int) progress {
	return progress{texts: a.texts[next-a.first:], over: a.over, err: a.err, changed: a.changed}
}

// join adds a client that continues from a fragment, if that is still available.
// Its follow removes it.
func (a *answer) join(next int) (*cursor, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if next < a.first || next > a.first+len(a.texts) {
		return nil, false
	}
	c := &cursor{next}
	a.cursors[c] = struct{}{}
	return c, true
}

func (a *answer) leave(c *cursor) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.cursors, c)
	a.trim()
	if len(a.cursors) == 0 || a.large {
		a.notify()
	}
}

// take counts fragments as taken, and returns the next ones.
func (a *answer) take(c *cursor, texts int) progress {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.next += texts
	if a.large && texts > 0 {
		a.trim()
		a.notify()
	}
	return a.since(c.next)
}

// follow yields the answer from the client's position on.
func (a *answer) follow(ctx context.Context, c *cursor) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer a.leave(c)
		for taken := 0; ; {
			p := a.take(c, taken)
			for _, text := range p.texts {
				if !yield(text, nil) {
					return
				}
			}
			taken = len(p.texts)
			if p.over {
				if p.err != nil {
					yield("", p.err)
				}
				return
			}
			if taken > 0 {
				continue
			}
			select {
			case <-p.changed:
			case <-ctx.Done():
				return
			}
		}
	}
}
