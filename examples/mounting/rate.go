package mounting

import (
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"example.com/botapi"
)

// LimitRate returns a verifier that lets each account make so many requests a second, and
// that many more in a burst. Others are a 429 with Retry-After, and no chats: they
// reach neither the store nor an engine. There is one limiter for each account that v knows.
func LimitRate(v botapi.KeyVerifier, perSecond float64, burst int) botapi.KeyVerifier {
	limiters := new(sync.Map) // by account
	return botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		account, err := v.VerifyKey(ctx, key)
		if err != nil {
			return account, err
		}
		limiter, _ := limiters.LoadOrStore(account, rate.NewLimiter(rate.Limit(perSecond), burst))
		if !limiter.(*rate.Limiter).Allow() {
			wait := time.Duration(math.Ceil(1/perSecond)) * time.Second
			return account, botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many requests for this key", RetryAfter: wait}
		}
		return account, nil
	})
}
