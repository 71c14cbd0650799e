package service

import (
	"context"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"go.opentelemetry.io/otel/metric"
)

const (
	// An account is rejected all the time if that has gone on for rejectedLong, with
	// no pause of rejectedPause.
	rejectedLong  = 10 * time.Minute
	rejectedPause = 2 * time.Minute

	rejectedAccounts = 10_000 // that are distinguished
)

// rejected notes which accounts get 429 all the time. The metric only has their
// number: their names are in the log and in the usage table.
type rejected struct {
	mu       sync.Mutex
	accounts *lru.Cache[string, rejections]
}

type rejections struct{ first, last time.Time }

func newRejected() *rejected {
	accounts, err := lru.New[string, rejections](rejectedAccounts)
	if err != nil {
		panic(err) // the size is wrong
	}
	return &rejected{accounts: accounts}
}

// saw notes that a request of an account was rejected.
func (r *rejected) saw(account string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	known, ok := r.accounts.Get(account)
	if !ok || now.Sub(known.last) > rejectedPause {
		known.first = now
	}
	known.last = now
	r.accounts.Add(account, known)
}

// allTheTime is how many accounts are rejected all the time.
func (r *rejected) allTheTime() (count int64) {
	now := time.Now()
	for _, known := range r.accounts.Values() {
		if now.Sub(known.last) <= rejectedPause && known.last.Sub(known.first) >= rejectedLong {
			count++
		}
	}
	return count
}

// measure creates the metric of them.
func (r *rejected) measure(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("botapi.accounts.rejected",
		metric.WithDescription("Accounts that this replica has rejected with 429 for ten minutes, with no pause of two."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(r.allTheTime())
			return nil
		}))
	return err
}
