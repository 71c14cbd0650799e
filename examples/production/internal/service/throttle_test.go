package service

import (
	"context"
	"errors"
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
				switch err := lists.list(t.Context(), "acme"); {
				case err == nil:
					served.Add(1)
				case errors.Is(err, errTooManyLists):
					rejected.Add(1)
				}
			})
		}
		synctest.Wait()
		is.Equal(served.Load(), int64(throttleBurst)) // immediately
		is.NoErr(lists.list(t.Context(), "other"))
		is.Equal(time.Since(began), time.Duration(0))

		clients.Wait()
		is.Equal(time.Since(began), throttleWait)
		is.Equal(served.Load(), int64(throttleBurst+throttleRate))
		is.Equal(rejected.Load(), 1000-served.Load())
	})
}

// TestErrorsAreThrottled has an account repeat requests for ten seconds, over a
// hundred connections, that get one status. Those that the client has caused are held
// back, and nothing of another account.
func TestErrorsAreThrottled(t *testing.T) {
	const clients, work, period = 100, 10 * time.Millisecond, 10 * time.Second
	for status, isHeldBack := range map[int]bool{200: false, 404: true, 422: true, 429: true, 503: false} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			r := &replica{errorResponses: noop.Int64Counter{}, rejected: newRejected(), throttle: newThrottle()}
			handler := r.identified(r.responding(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				time.Sleep(work)
				turnOf(req.Context()).account = req.Header.Get("Authorization")
				w.WriteHeader(status)
			})))
			send := func(account string) {
				req := httptest.NewRequest("POST", "/v1/chat", nil)
				req.Header.Set("Authorization", account)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, req)
				is.Equal(w.Code, status)
			}
			var sent atomic.Int64
			var sending sync.WaitGroup
			began := time.Now()
			for range clients {
				sending.Go(func() {
					for time.Since(began) < period {
						send("acme")
						sent.Add(1)
					}
				})
			}
			time.Sleep(period / 2)
			asked := time.Now()
			send("other")
			is.Equal(time.Since(asked), work)
			sending.Wait()
			most := int64(throttleBurst + (clients/int64(throttleWait/time.Second)+throttleRate)*int64(period/time.Second))
			is.Equal(sent.Load() <= most, isHeldBack)
		})
	}
}

// TestListOfADisconnectedClient ends with its client.
func TestListOfADisconnectedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		lists := newThrottle()
		for range throttleBurst {
			is.NoErr(lists.list(t.Context(), "acme"))
		}
		gone, disconnect := context.WithCancelCause(t.Context())
		disconnect(botapi.ErrClientLeft)
		is.Equal(lists.list(gone, "acme"), botapi.ErrClientLeft)
	})
}
