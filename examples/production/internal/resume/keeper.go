package resume

import (
	"context"
	"log/slog"
	"time"

	"example.com/botapi"
)

const (
	// retryPeriod is how long keep waits after a failure of Redis.
	retryPeriod = 100 * time.Millisecond
	// shortest prevents a busy loop when a wait is nearly over.
	shortest = 10 * time.Millisecond
)

// A keeper copies one answer to Redis.
type keeper struct {
	*answer
	known time.Time     // when Redis last responded about the answer
	alone time.Duration // how long nobody has followed it, according to Redis
	large bool          // Redis has no room for all of it
	lost  bool          // Redis no longer has the answer
}

// A load is what a keeper sends to Redis in one step.
type load struct {
	progress
	from       int
	missing    bool // fragments before these were dropped
	unattended bool // nobody follows the answer in this replica
}

// load returns what Redis lacks.
func (a *answer) load() load {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := load{from: a.written, missing: a.written < a.first, unattended: len(a.cursors) == 0}
	l.progress = a.since(max(a.written, a.first))
	if len(l.texts) > addedAtOnce {
		l.texts, l.over = l.texts[:addedAtOnce], false
	}
	return l
}

// wrote notes how many fragments Redis has.
func (a *answer) wrote(have int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written = have
}

// keep copies fragments to Redis as they arrive, renews the lease of the answer,
// and ends the answer if no client returns. It returns when the answer is over
// and Redis has all of it, or has lost it. The context is for the log.
func (a *answer) keep(ctx context.Context) {
	defer a.engine.forget(a.id)
	k := keeper{answer: a, known: time.Now()}
	for {
		l := a.load()
		failed := k.write(ctx, l)
		if l.over && !failed && (k.lost || k.has(l)) {
			return
		}
		if k.lost && l.unattended {
			k.cancel(botapi.ErrClientLeft) // as without a key
		}
		changed := l.changed
		if failed {
			changed = nil // after a failure, new fragments wait, too
		}
		if !failed && !k.lost && !k.has(l) {
			continue
		}
		select {
		case <-changed:
		case <-time.After(k.pause(l, failed)):
		}
	}
}

// has reports whether Redis has everything up to this load.
func (k *keeper) has(l load) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.written >= l.from+len(l.texts) && len(l.texts) < addedAtOnce
}

// write sends a load to Redis, and reports whether that failed. An answer is
// lost if Redis has not responded for the duration of its lease.
func (k *keeper) write(ctx context.Context, l load) (failed bool) {
	if k.lost {
		return false
	}
	if l.missing {
		k.outgrown(ctx)
		k.lost = true
		k.engine.later(func() { _ = k.engine.store.end(k.title, endingOf(errBroken(nil))) })
		return false
	}
	now, err := k.engine.store.add(k.title, l.from, l.texts, l.unattended)
	if err == nil {
		k.known, k.alone = time.Now(), now.alone
		err = k.obey(ctx, l, now)
	}
	if err != nil && time.Since(k.known) > k.engine.options.Lease {
		k.lose(ctx, err)
		return false
	}
	return err != nil
}

// obey does what the state of the answer in Redis requires.
func (k *keeper) obey(ctx context.Context, l load, now added) error {
	switch now.state {
	case stateRunning, stateLarge:
		k.wrote(now.have)
		if now.state == stateLarge {
			k.outgrown(ctx)
		}
		if l.over && k.has(l) {
			return k.engine.store.end(k.title, k.ending(l.err))
		}
	case stateStopped:
		k.cancel(errStopped)
		k.lost = true
	case stateAbandoned, stateDisplaced:
		k.engine.measured.abandoned(ctx, now.state)
		k.cancel(botapi.ErrClientLeft)
		k.lost = true
	case stateLost:
		k.lose(ctx, nil)
	}
	return nil
}

// outgrown has the answer continue as without a key.
func (k *keeper) outgrown(ctx context.Context) {
	if k.large {
		return
	}
	k.large = true
	k.keepNoLonger()
	k.engine.measured.outgrown(ctx)
	k.engine.logger.InfoContext(ctx, "an answer is no longer kept: it has outgrown its room")
}

func (k *keeper) lose(ctx context.Context, err error) {
	k.lost = true
	k.keepNoLonger()
	k.engine.logger.WarnContext(ctx, "an answer is no longer kept", slog.Any("error", err))
}

func (a *answer) ending(err error) ending {
	ended := endingOf(err)
	ended.Unasked = err != nil && !a.asked()
	return ended
}

// pause is how long keep may wait for a change.
func (k *keeper) pause(l load, failed bool) time.Duration {
	if failed {
		return retryPeriod
	}
	pause := k.engine.options.Lease / 3
	if l.unattended {
		pause = min(pause, k.engine.options.Alone-k.alone)
	}
	return max(pause, shortest)
}
