package mounting

import (
	"context"
	"net/http"
	"sync"

	"golang.org/x/time/rate"

	"example.com/botapi"
)

// LimitRate returns a verifier that lets each account make so many requests a second, and
// that many more in a burst. Others are a 429 with Retry-After, and no chats: they
// reach neither the store nor an engine. There is one limiter for each account that v knows.
// Requests for lists count, too. Wrap it around botapi.CacheKeys, not the other way round:
// what the cache knows would not be counted.
func LimitRate(v botapi.KeyVerifier, perSecond float64, burst int) botapi.KeyVerifier {
	limiters := new(sync.Map) // by account
	return botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		account, err := v.VerifyKey(ctx, key)
		if err != nil {
			return account, err
		}
		limiter, _ := limiters.LoadOrStore(account, rate.NewLimiter(rate.Limit(perSecond), burst))
		turn := limiter.(*rate.Limiter).Reserve()
		if wait := turn.Delay(); wait > 0 {
			turn.Cancel() // a rejected request does not count
			return account, botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many requests for this key", RetryAfter: wait}
		}
		return account, nil
	})
}
