package resume

import (
	"context"
	"slices"
	"sync"

	"example.com/botapi"
)

// This file is about the slots of botapi's limits; those of the store are its own. A chat with
// a key uses one, and its model keeps that until it has returned. A client that comes back when
// a limit is reached shares such a slot of its key, in this process: OnLimit lends it.

// A loan is a slot that OnLimit has lent to a chat.
type loan struct {
	slot   *botapi.Slot
	limit  error
	giveUp func() // ends it; only the first call counts
}

type loanKey struct{}

// loanOf returns what ends the loan of a chat, and the response if there is no answer to join:
// a chat with a slot that was lent may start none. (The handler has a slot of its own for the chat
// if the one that was lent became free meanwhile.)
func loanOf(ctx context.Context) (giveUp func(), ifNone error) {
	r := botapi.RequestFrom(ctx)
	l, isLent := r.Value(loanKey{}).(loan)
	switch {
	case !isLent:
		return func() {}, nil
	case l.slot != r.Slot():
		return l.giveUp, nil
	}
	return l.giveUp, l.limit
}

// OnLimit is for [botapi.Options]. A client that comes back for its answer when a limit is
// reached shares a slot that its key has in this process; Readers of the [Settings] bounds how
// many do. A chat that can share none waits for room under MaxWaiting, or is rejected, as
// without OnLimit: an OnLimit of the application's own may call this one first.
func (e *Engine) OnLimit(ctx context.Context, l botapi.Limit) (*botapi.Slot, error) {
	key, err := e.keyOf(ctx)
	if key == "" || err != nil {
		return nil, nil // the Engine rejects it, once there is room
	}
	n := name{e.options.Owner(ctx), key}
	slot := e.heldBy(n)
	switch {
	case slot == nil:
		return nil, nil
	case !e.loans.take(n, e.rules.Readers):
		return nil, errTooManyReaders
	}
	giveUp := sync.OnceFunc(func() { e.loans.release(n) })
	context.AfterFunc(ctx, giveUp) // in case that the Engine is not called
	botapi.RequestFrom(ctx).SetValue(loanKey{}, loan{slot, l.Err, giveUp})
	return slot, nil
}

// heldBy returns a slot that a key has in this process, or nil.
func (e *Engine) heldBy(n name) *botapi.Slot {
	e.mu.Lock()
	defer e.mu.Unlock()
	if held := e.slots[n]; len(held) > 0 {
		return held[0]
	}
	return nil
}

// hold keeps the slot of a request in use, for a chat or a model with a key.
func (e *Engine) hold(ctx context.Context, n name) (release func()) {
	slot := botapi.RequestFrom(ctx).Slot()
	free, isHeld := slot.Hold()
	if !isHeld { // not within a handler of botapi
		return free
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slots[n] = append(e.slots[n], slot)
	return func() {
		e.mu.Lock()
		i := slices.Index(e.slots[n], slot)
		if e.slots[n] = slices.Delete(e.slots[n], i, i+1); len(e.slots[n]) == 0 {
			delete(e.slots, n)
		}
		e.mu.Unlock()
		free()
	}
}
