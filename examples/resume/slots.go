package resume

import (
	"context"
	"sync"

	"example.com/botapi"
)

// A sharing is what one key uses of the application's limits in this process: the slots of
// its chats and of its model, which keeps that of the chat that started it. Of those, a
// client that comes back when a limit is reached shares one.
type sharing struct {
	slots map[*botapi.Slot]int // how many chats and models with the key hold each
	chats int64                // that share one: at most Readers of the Settings
}

// A loan is the slot that OnLimit has lent to a chat. The chat may join an answer in it, and
// start none: that is what the limit rejects.
type loan struct {
	slot   *botapi.Slot
	limit  error
	giveUp func() // ends it; only the first call counts
}

type loanKey struct{}

// loanOf returns the loan of a request, or one of nothing.
func loanOf(ctx context.Context) loan {
	l, isLent := botapi.RequestFrom(ctx).Value(loanKey{}).(loan)
	if !isLent {
		l.giveUp = func() {}
	}
	return l
}

// onlyJoins returns the limit if the chat runs in a slot that was lent: the handler has
// another one for it if that slot became free meanwhile.
func (l loan) onlyJoins(ctx context.Context) error {
	if l.slot != nil && l.slot == botapi.RequestFrom(ctx).Slot() {
		return l.limit
	}
	return nil
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
	case s.chats >= e.rules.Readers:
		return nil, errTooManyReaders
	}
	for slot := range s.slots {
		s.chats++
		giveUp := sync.OnceFunc(func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			s.chats--
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
		s = &sharing{slots: make(map[*botapi.Slot]int)}
		e.sharings[name] = s
	}
	s.slots[slot]++
	return func() {
		e.mu.Lock()
		if s.slots[slot]--; s.slots[slot] == 0 {
			delete(s.slots, slot)
		}
		if len(s.slots) == 0 {
			delete(e.sharings, name)
		}
		e.mu.Unlock()
		free()
	}
}
