package resume

import (
	"context"
	"sync"

	"example.com/botapi"
)

// A sharing is what one key uses of the application's limits in this process: the slots of
// its chats and of its model, which keeps that of the chat that started it. A client that
// comes back when a limit is reached shares one of them.
type sharing struct {
	holders map[*botapi.Slot]int // chats and models with the key, by their slot
	loans   int64                // chats that share one, or are about to; at most Readers of the Settings
}

// A loan is the slot that OnLimit has lent to a chat.
type loan struct {
	slot   *botapi.Slot
	limit  error
	giveUp func() // ends it; only the first call counts
}

type loanKey struct{}

// loanOf returns the limit that a chat has passed in a slot that was lent: it may join an
// answer, and start none. (The handler has a slot of its own for it if the other became free
// meanwhile.) giveUp ends the loan.
func loanOf(ctx context.Context) (limit error, giveUp func()) {
	r := botapi.RequestFrom(ctx)
	l, isLent := r.Value(loanKey{}).(loan)
	switch {
	case !isLent:
		return nil, func() {}
	case l.slot != r.Slot():
		return nil, l.giveUp
	}
	return l.limit, l.giveUp
}

// OnLimit is for [botapi.Options]. A client that comes back for its answer when a limit is
// reached shares a slot that its key has in this process. A chat that can share none waits
// for room under MaxWaiting, or is rejected, as without OnLimit: an OnLimit of the
// application's own may call this one first.
func (e *Engine) OnLimit(ctx context.Context, l botapi.Limit) (*botapi.Slot, error) {
	key, err := e.keyOf(ctx)
	if key == "" || err != nil {
		return nil, nil // the Engine rejects it, once there is room
	}
	name := Ref{Owner: e.options.Owner(ctx), Key: key}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sharings[name]
	switch {
	case s == nil:
		return nil, nil
	case s.loans >= e.rules.Readers:
		return nil, errTooManyReaders
	}
	for slot := range s.holders {
		s.loans++
		giveUp := sync.OnceFunc(func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			s.loans--
		})
		context.AfterFunc(ctx, giveUp) // in case that the Engine is not called
		botapi.RequestFrom(ctx).SetValue(loanKey{}, loan{slot, l.Err, giveUp})
		return slot, nil
	}
	return nil, nil
}

// hold keeps the slot of a request in use, for a chat or a model with a key.
func (e *Engine) hold(ctx context.Context, name Ref) (release func()) {
	slot := botapi.RequestFrom(ctx).Slot()
	free, isHeld := slot.Hold()
	if !isHeld { // not within a botapi.Handler
		return free
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sharings[name]
	if s == nil {
		s = &sharing{holders: make(map[*botapi.Slot]int)}
		e.sharings[name] = s
	}
	s.holders[slot]++
	return func() {
		e.mu.Lock()
		if s.holders[slot]--; s.holders[slot] == 0 {
			delete(s.holders, slot)
		}
		if len(s.holders) == 0 {
			delete(e.sharings, name)
		}
		e.mu.Unlock()
		free()
	}
}
