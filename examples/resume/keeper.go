package resume

import (
	"context"
	"log/slog"
	"time"
)

const (
	batchPeriod = 100 * time.Millisecond // whose fragments the store gets together
	retryPeriod = 100 * time.Millisecond // after a failure of the store
	minPause    = 10 * time.Millisecond  // when Abandon is nearly over
)

// A keeper copies an answer to the store.
type keeper struct {
	*answer
	answeredAt time.Time     // when the store last did all that it was asked
	failingAt  time.Time     // when it has failed first since then; zero if it has not
	unattended time.Duration // how long nobody has followed the answer, in any process
}

// keep copies the answer to the store as it arrives, ten times a second, renews its
// lease and that of its model, and ends it there. It returns when the answer is settled
// and the engine has returned.
func (a *answer) keep(ctx context.Context) {
	defer a.engine.dismiss(a)
	k := keeper{answer: a, answeredAt: time.Now()}
	for s := a.load(); !s.stored.isFinal() || !s.returned; s = a.load() {
		stored, have, err := k.tell(s)
		switch {
		case err == nil:
			k.answeredAt, k.failingAt = time.Now(), time.Time{}
		case k.givesUp(s):
			stored, err = Lost, nil
		}
		if err == nil {
			k.act(ctx, s, stored)
			k.noteStored(stored, have)
		}
		k.pause(s, err)
	}
}

// givesUp reports whether a store that has failed is given up: when the lease of the answer is
// over, and after Wait if the engine and a client wait for it. (A call that has not returned
// after Wait has failed.)
func (k *keeper) givesUp(s state) bool {
	if k.failingAt.IsZero() {
		k.failingAt = time.Now()
	}
	isAwaited := s.size > window && s.attended
	return time.Since(k.answeredAt) > k.engine.rules.Lease || isAwaited && time.Since(k.failingAt) > k.engine.rules.Wait
}

// tell tells the store what it lacks of the answer, and returns what it has then.
func (k *keeper) tell(s state) (stored State, have int, err error) {
	store := k.engine.store
	ctx, cancel := context.WithTimeout(context.Background(), k.engine.rules.Wait)
	defer cancel()
	added, err := store.Add(ctx, k.Ref, s.first, s.texts, s.attended)
	if err != nil {
		return "", 0, err
	}
	k.unattended = added.Unattended
	switch {
	case added.State == Running && (s.stored != Running || added.Have < s.first):
		_, err := store.End(ctx, k.Ref, forgotten, Ending{}) // a store that was given up is back, or lacks what was trimmed here: nobody may join it
		return Lost, 0, err
	case added.State.isFinal() || s.stored.isFinal() || !s.hasEnded():
		return added.State, added.Have, nil
	}
	stored, err = store.End(ctx, k.Ref, s.first+len(s.texts), endingOf(s.err)) // a number that counts only while it is Running
	return stored, added.Have, err
}

// act does what the store says: it ends an answer that was stopped. One of which the store takes
// no more (abandoned, outgrown, lost, or the store was given up) is cancelled when nobody here
// follows it: nobody could come back for it.
func (k *keeper) act(ctx context.Context, s state, stored State) {
	if stored == Stopped {
		k.cancel(ErrStopped)
		k.end(ctx, ErrStopped)
	}
	if stored != Running && !s.attended && !s.hasEnded() {
		k.cancel(ErrAbandoned)
	}
	if s.stored == Running && (stored == Outgrown || stored == Lost) {
		k.engine.log(ctx, slog.LevelInfo, "an answer is no longer kept", slog.String("state", string(stored)))
	}
	if s.returned && stored.isFinal() {
		k.engine.dismiss(k.answer) // before a reader learns of the end
	}
}

// pause waits until the store should hear of the answer again.
func (k *keeper) pause(s state, failed error) {
	pause := k.engine.rules.Lease / 3
	switch {
	case failed != nil:
		pause, s.changed = retryPeriod, nil
	case !s.attended && !s.hasEnded():
		pause = max(minPause, min(pause, k.engine.rules.Abandon-k.unattended))
	}
	select {
	case <-s.changed:
		select { // more fragments may come
		case <-k.urgent:
		case <-time.After(batchPeriod):
		}
	case <-k.urgent:
	case <-time.After(pause):
	}
}

// dismiss takes an answer off the list of those in progress when its engine has returned, and
// releases the slot of its model in the store, which keeps the text. Only the first call counts.
func (e *Engine) dismiss(a *answer) {
	e.mu.Lock()
	known := e.answers[a.ID] == a
	delete(e.answers, a.ID)
	e.mu.Unlock()
	if known {
		ctx, cancel := context.WithTimeout(context.Background(), e.rules.Wait)
		defer cancel()
		_ = e.store.Leave(ctx, a.Ref, a.ID) // otherwise its lease expires
	}
}
