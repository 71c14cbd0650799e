package service

import (
	"context"
	"net/http"
	"time"

	"example.com/botapi"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
)

const (
	// An account may list bots, or ask for bots that do not exist, so often at one
	// replica. Each costs a query, and no slot and no token.
	lookupsPerSecond = 50
	lookupBurst      = 100

	// lookupWait is how long a request over that waits: for its turn, or for its
	// rejection, so that a client that asks again immediately costs little.
	lookupWait = time.Second

	lookupAccounts = 10_000 // that are distinguished
)

var errTooManyLookups = &botapi.StatusError{
	Status:     http.StatusTooManyRequests,
	Detail:     "Too many requests for bots",
	RetryAfter: time.Second,
}

// lookups bounds what an account can take of a replica with requests that are no
// chats; those have their own limits.
type lookups struct {
	limiters *lru.Cache[string, *rate.Limiter]
}

func newLookups() *lookups {
	limiters, err := lru.New[string, *rate.Limiter](lookupAccounts)
	if err != nil {
		panic(err) // the size is wrong
	}
	return &lookups{limiters}
}

// wait returns when it is the turn of a request of an account, or an error if
// that is too far away.
func (l *lookups) wait(ctx context.Context, account string) error {
	turn := l.of(account).Reserve()
	wait, rejected := turn.Delay(), error(nil)
	if wait > lookupWait {
		turn.Cancel()
		wait, rejected = lookupWait, errTooManyLookups
	}
	if wait == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(wait):
		return rejected
	}
}

func (l *lookups) of(account string) *rate.Limiter {
	if known, ok := l.limiters.Get(account); ok {
		return known
	}
	limiter := rate.NewLimiter(lookupsPerSecond, lookupBurst)
	if known, ok, _ := l.limiters.PeekOrAdd(account, limiter); ok {
		return known
	}
	return limiter
}
