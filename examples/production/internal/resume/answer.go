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

// fragmentBytes is what a fragment counts besides its text: about what it costs
// to keep.
const fragmentBytes = 64

// An answer is one that is under way in this replica. It has three parties,
// none of which waits for another: the chat engine, which adds to it; those who
// follow it; and keep, which brings it to Redis.
type answer struct {
	name, id string
	engine   *Engine
	cancel   context.CancelCauseFunc // ends the chat engine's context
	stall    *time.Timer             // does that when the engine is silent; nil if it may be

	mu        sync.Mutex
	texts     []string
	size      int64
	over      bool
	err       error         // why it is not whole, once it is over
	changed   chan struct{} // closed, and replaced, when there is news
	followers int           // in this replica
	left      time.Time     // when the last of them left
	returned  bool          // the chat engine has
	whenOver  []func()      // called when it has
}

var errExited = errors.New("the engine ended its goroutine with runtime.Goexit")

// run lets the chat engine answer. The answer is over when it has returned or
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
			a.engine.logger.WarnContext(ctx, "an answer nobody waits for failed", slog.Any("error", err))
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
			a.stall.Reset(a.engine.options.StallTimeout)
		}
		return a.add(text)
	})
	return err
}

// add reports whether more is wanted.
func (a *answer) add(text string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	size := a.size + int64(len(text)) + fragmentBytes
	if size > a.engine.options.AnswerBytes {
		a.over, a.err = true, errTooLong
	} else {
		a.texts, a.size = append(a.texts, text), size
	}
	a.notify()
	return !a.over
}

// end ends the answer; only the first call counts. It reports whether that was
// so, and nobody here saw it.
func (a *answer) end(err error) (unseen bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return false
	}
	a.over, a.err = true, err
	a.notify()
	return a.followers == 0
}

// callWhenOver reports whether f will be called: not when it is too late for that.
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

// progress is what there is of an answer from some fragment on.
type progress struct {
	texts   []string
	over    bool // nothing comes after the texts
	err     error
	changed <-chan struct{} // closed when there is more
	alone   time.Duration   // how long nobody here has followed
}

func (a *answer) from(next int) progress {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := progress{texts: a.texts[next:], over: a.over, err: a.err, changed: a.changed}
	if a.followers == 0 {
		p.alone = max(time.Since(a.left), 1)
	}
	return p
}

// join counts a follower. Its follow counts it off.
func (a *answer) join() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followers++
}

func (a *answer) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.followers--
	if a.followers == 0 {
		a.left = time.Now()
		a.notify()
	}
}

// follow yields the answer from its first fragment on.
func (a *answer) follow(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		defer a.leave()
		for next := 0; ; {
			p := a.from(next)
			for _, text := range p.texts {
				if !yield(text, nil) {
					return
				}
			}
			next += len(p.texts)
			if p.over {
				if p.err != nil {
					yield("", p.err)
				}
				return
			}
			select {
			case <-p.changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

const (
	// retryPeriod is how long keep waits for a Redis that has failed.
	retryPeriod = 100 * time.Millisecond
	// shortest keeps waits that are nearly over from being a busy loop.
	shortest = 10 * time.Millisecond
)

// A keeper brings one answer to Redis.
type keeper struct {
	*answer
	written  int           // fragments that Redis has
	known    time.Time     // when Redis last knew of the answer
	followed time.Duration // how long ago somebody elsewhere followed it
	lost     bool          // nobody elsewhere can follow the answer any more
}

// keep brings fragments to Redis as they come, renews the lease of the answer,
// and ends the answer when nobody comes back for it. It returns when the answer
// is over and Redis has all of it, or has lost it. The context is for the log.
func (a *answer) keep(ctx context.Context) {
	defer a.engine.forget(a.id)
	k := keeper{answer: a, known: time.Now()}
	for {
		p := a.from(k.written)
		failed := k.write(ctx, &p)
		if p.over && !failed {
			return
		}
		k.endIfAbandoned(p.alone)
		changed := p.changed
		if failed {
			changed = nil // news has to wait, too
		}
		select {
		case <-changed:
		case <-time.After(k.pause(p.alone, failed)):
		}
	}
}

// write brings to Redis what it lacks, and reports whether that failed. An
// answer that Redis has not heard of for as long as its lease lasts is lost.
func (k *keeper) write(ctx context.Context, p *progress) (failed bool) {
	if k.lost {
		return false
	}
	state, followed, err := k.engine.store.add(k.name, k.id, k.written, p.texts)
	if err == nil {
		k.written += len(p.texts)
		k.known, k.followed = time.Now(), followed
	}
	if err == nil && p.over {
		err = k.engine.store.end(k.name, k.id, p.err, k.length())
	}
	switch {
	case err != nil && time.Since(k.known) > k.engine.options.Lease, err == nil && state == stateLost:
		k.lost = true
		k.engine.logger.WarnContext(ctx, "an answer is not kept any more", slog.Any("error", err))
	case err != nil:
		return true
	case state == stateStopped:
		k.cancel(errStopped)
	}
	return false
}

func (a *answer) length() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.size
}

// endIfAbandoned ends an answer that nobody came back for. One that is lost is
// as one without a key: only who is there can have it.
func (k *keeper) endIfAbandoned(alone time.Duration) {
	if alone > 0 && (k.lost || min(alone, k.followed) >= k.engine.options.Within) {
		k.cancel(botapi.ErrClientLeft)
	}
}

// pause is how long keep may wait for news.
func (k *keeper) pause(alone time.Duration, failed bool) time.Duration {
	if failed {
		return retryPeriod
	}
	pause := k.engine.options.Lease / 3
	if alone > 0 {
		pause = min(pause, k.engine.options.Within-min(alone, k.followed))
	}
	return max(pause, shortest)
}
