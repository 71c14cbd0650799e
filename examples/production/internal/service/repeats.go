package service

import (
	"log/slog"
	"sync"
	"time"

	"example.com/botapi/examples/production/internal/telemetry"
)

// repeats write what clients can cause in any number: of each kind, once in
// telemetry.LogPeriod, with how often it has happened since. The first of a kind
// is written immediately.
type repeats struct {
	mu    sync.Mutex
	kinds map[kind]repeat // those of the last period
}

// A kind is what is counted as one. Nothing in it comes from a client, so that
// many failing requests of one kind hide no other failure.
type kind struct {
	level   slog.Level
	message string
	about   string // the error, see about
	account string // empty without a valid key: such requests hide none of an account
}

// A repeat is what has happened of one kind.
type repeat struct {
	times int64             // that are not written
	write func(times int64) // of the last of them
}

// count counts one of a kind: it has write called, or that of a later one.
func (r *repeats) count(k kind, write func(times int64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one, isKnown := r.kinds[k]
	r.kinds[k] = repeat{one.times + 1, write}
	if !isKnown {
		r.write(k)
	}
}

// write writes what is not written of a kind, and is called again after a period.
// If there is nothing, it forgets the kind. It is called with the lock held.
func (r *repeats) write(k kind) {
	one := r.kinds[k]
	if one.times == 0 {
		delete(r.kinds, k)
		return
	}
	one.write(one.times)
	r.kinds[k] = repeat{}
	time.AfterFunc(telemetry.LogPeriod, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.write(k)
	})
}

// writeAll writes everything.
func (r *repeats) writeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.kinds {
		r.write(k)
	}
}
