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
	// At one replica, an account may send this many requests a second that list bots,
	// and as many that fail: they cost work, and no slot and no token.
	throttleRate  = 50
	throttleBurst = 100

	// throttleWait is how long a request over that waits: for its turn, or for its
	// rejection, so that a client that asks again immediately costs little.
	throttleWait = time.Second

	throttleAccounts = 10_000 // that are distinguished
)

var errThrottled = &botapi.StatusError{
	Status:     http.StatusTooManyRequests,
	Detail:     "Too many lists or failed requests",
	RetryAfter: time.Second,
}

// A throttle bounds what an account can take of a replica with requests that no
// limit of chats counts.
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

// wait returns when it is the turn of a request of an account, or an error if
// that is too far away.
func (t *throttle) wait(ctx context.Context, account string) error {
	turn := t.of(account).Reserve()
	wait, rejected := turn.Delay(), error(nil)
	if wait > throttleWait {
		turn.Cancel()
		wait, rejected = throttleWait, errThrottled
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

// count counts a request that was not known to count when it came.
func (t *throttle) count(account string) {
	if limiter := t.of(account); limiter.Tokens() > -throttleRate*throttleWait.Seconds() {
		limiter.Reserve()
	}
}

// admit returns when an account that has sent too many requests lately may send one
// more.
func (t *throttle) admit(ctx context.Context, account string) error {
	if limiter, ok := t.limiters.Peek(account); !ok || limiter.Tokens() >= 0 {
		return nil // each request comes here, so an account without failures gets no limiter
	}
	return t.wait(ctx, account)
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
