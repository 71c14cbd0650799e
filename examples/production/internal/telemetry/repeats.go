package telemetry

import (
	"sync"
	"time"
)

// LogPeriod is the least time between two log lines of one kind of Repeats.
const LogPeriod = 10 * time.Second

// Repeats write what may happen in any number: of each kind, once in LogPeriod, with how
// often it has happened since. The first of a kind is written immediately. The zero value
// is ready for use, and safe for concurrent use.
type Repeats[Kind comparable] struct {
	mu    sync.Mutex
	kinds map[Kind]repeat // those of the last period
}

// A repeat is what has happened of one kind.
type repeat struct {
	times int64             // that are not written
	write func(times int64) // of the last of them
}

// Count counts one of a kind: it has write called, or that of a later one, with the lock
// of r held.
func (r *Repeats[Kind]) Count(k Kind, write func(times int64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds == nil {
		r.kinds = make(map[Kind]repeat)
	}
	one, isKnown := r.kinds[k]
	r.kinds[k] = repeat{one.times + 1, write}
	if !isKnown {
		r.write(k)
	}
}

// write writes what is not written of a kind, and is called again after a period.
// If there is nothing, it forgets the kind. It is called with the lock held.
func (r *Repeats[Kind]) write(k Kind) {
	one := r.kinds[k]
	if one.times == 0 {
		delete(r.kinds, k)
		return
	}
	one.write(one.times)
	r.kinds[k] = repeat{}
	time.AfterFunc(LogPeriod, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.write(k)
	})
}

// Flush writes everything.
func (r *Repeats[Kind]) Flush() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.kinds {
		r.write(k)
	}
}
