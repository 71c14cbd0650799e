package service

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/metric/noop"
)

// TestListsAreThrottled has an account send 1,000 lists at the same time. Another
// account does not wait.
func TestListsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		lists := newThrottle()
		var served, rejected atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range 1000 {
			clients.Go(func() {
				switch err := lists.wait(t.Context(), "acme"); {
				case err == nil:
					served.Add(1)
				case errors.Is(err, errThrottled):
					rejected.Add(1)
				}
			})
		}
		synctest.Wait()
		is.Equal(served.Load(), int64(throttleBurst)) // immediately
		is.NoErr(lists.wait(t.Context(), "other"))
		is.Equal(time.Since(began), time.Duration(0))

		clients.Wait()
		is.Equal(time.Since(began), throttleWait)
		is.Equal(served.Load(), int64(throttleBurst+throttleRate))
		is.Equal(rejected.Load(), 1000-served.Load())
	})
}

// TestFailuresAreThrottled has an account repeat requests for ten seconds, over a hundred
// connections, that get one status. Those that fail through their client, or stop an
// answer, are bounded, and nothing of another account.
func TestFailuresAreThrottled(t *testing.T) {
	const clients, work, seconds = 100, 10 * time.Millisecond, 10
	for status, isBounded := range map[int]bool{200: false, 204: true, 404: true, 422: true, 429: true, 503: false} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			r := &replica{errorResponses: noop.Int64Counter{}, rejected: newRejected(), failures: newThrottle()}
			keys := notedKeys(botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil }), r.failures)
			var served atomic.Int64 // of acme
			handler := r.identified(r.responding(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				account, err := keys.VerifyKey(req.Context(), req.Header.Get("Authorization"))
				if err != nil {
					is.Equal(err, errThrottled)
					w.WriteHeader(errThrottled.Status)
					fmt.Fprintf(w, `{"detail":%q}`, errThrottled.Detail)
					return
				}
				if account == "acme" {
					served.Add(1)
				}
				time.Sleep(work)
				w.WriteHeader(status)
			})))
			send := func(account string) (took time.Duration) {
				began := time.Now()
				req := httptest.NewRequest("POST", "/v1/chat", nil)
				req.Header.Set("Authorization", account)
				handler.ServeHTTP(httptest.NewRecorder(), req)
				return time.Since(began)
			}
			var sending sync.WaitGroup
			began := time.Now()
			for range clients {
				sending.Go(func() {
					for time.Since(began) < seconds*time.Second {
						send("acme")
					}
				})
			}
			time.Sleep(seconds * time.Second / 2)
			is.Equal(send("other"), work)
			sending.Wait()
			is.Equal(served.Load() <= throttleBurst+clients+throttleRate*(seconds+1), isBounded)

			time.Sleep(2 * time.Second) // later, a request of the account does not wait
			is.Equal(send("acme"), work)
		})
	}
}

// TestListOfADisconnectedClient ends with its client.
func TestListOfADisconnectedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		lists := newThrottle()
		for range throttleBurst {
			is.NoErr(lists.wait(t.Context(), "acme"))
		}
		gone, disconnect := context.WithCancelCause(t.Context())
		disconnect(botapi.ErrClientLeft)
		is.Equal(lists.wait(gone, "acme"), botapi.ErrClientLeft)
	})
}
