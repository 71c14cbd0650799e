package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"example.com/botapi/examples/production/internal/telemetry"
)

// mostKinds bounds the kinds that repeats distinguish: some dozens for requests,
// and a few for each account whose chats are rejected. Further ones of an account
// with the same message share one: only rejected chats have usage records.
const mostKinds = 1000

// repeats write what clients can cause in any number: of each kind, once in
// telemetry.LogPeriod, with how often it has happened since. The first of a kind
// is written immediately.
type repeats struct {
	mu    sync.Mutex
	kinds map[kind]*repeat
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
	due   time.Time         // when it may be written
}

// count counts one of a kind: it has write called, or that of a later one.
func (r *repeats) count(k kind, write func(times int64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kinds[k] == nil && len(r.kinds) >= mostKinds {
		k = kind{message: k.message, account: k.account}
	}
	one := r.kinds[k]
	if one == nil {
		one = new(repeat)
		r.kinds[k] = one
	}
	one.times, one.write = one.times+1, write
	one.writeBy(time.Now())
}

func (r *repeat) writeBy(now time.Time) {
	if r.times > 0 && !now.Before(r.due) {
		r.write(r.times)
		*r = repeat{due: now.Add(telemetry.LogPeriod)}
	}
}

// writeBy writes what is due by then, and forgets kinds that happen no longer.
func (r *repeats) writeBy(then time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, one := range r.kinds {
		if one.times == 0 && !then.Before(one.due) {
			delete(r.kinds, k)
		}
		one.writeBy(then)
	}
}

// writeAll writes everything.
func (r *repeats) writeAll() { r.writeBy(time.Now().Add(telemetry.LogPeriod)) }

// watch writes what is due until ctx ends.
func (r *repeats) watch(ctx context.Context) {
	next := time.NewTicker(time.Second)
	defer next.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case now := <-next.C:
			r.writeBy(now)
		}
	}
}
