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
	// At one replica, an account may send this many requests a second that list bots
	// or end in a 4xx. They cost work, and no slot and no token.
	throttleRate  = 50
	throttleBurst = 100

	// throttleWait is how long such a request waits at most, a list for its turn and
	// an error response to be sent. Who sends the next request immediately waits, too.
	throttleWait = time.Second

	throttleAccounts = 10_000 // that are distinguished
)

var errTooManyLists = &botapi.StatusError{
	Status:     http.StatusTooManyRequests,
	Detail:     "Too many requests for bots",
	RetryAfter: time.Second,
}

// A throttle bounds what an account can take of a replica with requests that no
// limit of chats counts. The chats of the account do not wait.
type throttle struct {
	limiters *lru.Cache[string, *rate.Limiter]
}

func newThrottle() *throttle {
	limiters, err := lru.New[string, *rate.Limiter](throttleAccounts)
	if err != nil {
		panic(err) // the size is wrong
	}
	return &throttle{limiters}
}

// list returns when it is the turn of a list, or an error if that is too far away.
func (t *throttle) list(ctx context.Context, account string) error {
	wait, ok := t.turn(account)
	if !ok {
		return errTooManyLists
	}
	return sleep(ctx, wait)
}

// fail returns when an error response may be sent.
func (t *throttle) fail(ctx context.Context, account string) {
	wait, _ := t.turn(account)
	_ = sleep(ctx, wait)
}

// turn returns how long a request of an account has to wait, at most throttleWait. If
// its turn is too far away, ok is false and the request is not counted.
func (t *throttle) turn(account string) (wait time.Duration, ok bool) {
	reserved := t.of(account).Reserve()
	if wait = reserved.Delay(); wait > throttleWait {
		reserved.Cancel()
		return throttleWait, false
	}
	return wait, true
}

func sleep(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func (t *throttle) of(account string) *rate.Limiter {
	if known, ok := t.limiters.Get(account); ok {
		return known
	}
	limiter := rate.NewLimiter(throttleRate, throttleBurst)
	if known, ok, _ := t.limiters.PeekOrAdd(account, limiter); ok {
		return known
	}
	return limiter
}
