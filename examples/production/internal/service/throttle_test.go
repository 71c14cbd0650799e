package service

import (
	"context"
	"errors"
	"log/slog"
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
			r := &replica{errorResponses: noop.Int64Counter{}, failures: newThrottle(), logger: slog.New(slog.DiscardHandler)}
			bots, err := botapi.NewMemoryStore()
			is.NoErr(err)
			var served atomic.Int64 // of acme
			handler := r.identified(botapi.New(botapi.Options{
				Bots: bots, OnRequest: r.onRequest, Logger: r.notedLogger(),
				Engine: botapi.CallbackEngine(func(context.Context, *botapi.ChatRequest, func(string) error) error { return nil }),
				Keys: botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
					return key, r.failures.admit(ctx, key)
				}),
				Routes: []botapi.Route{{Patterns: []string{"POST /v1/work"}, Serve: func(req *http.Request) (botapi.Response, error) {
					if botapi.AccountFrom(req.Context()) == "acme" {
						served.Add(1)
					}
					time.Sleep(work)
					return botapi.Reply{Status: status}, nil
				}}},
			}))
			send := func(account string) (took time.Duration) {
				began := time.Now()
				req := httptest.NewRequest("POST", "/v1/work", nil)
				req.Header.Set("Authorization", "Bearer "+account)
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
