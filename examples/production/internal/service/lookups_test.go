package service

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

// TestLookupsOfOneAccount has an account send 1,000 requests at the same time,
// and a client of it ask again whenever it is rejected. Another account does not
// wait.
func TestLookupsOfOneAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		l := newLookups()
		var served, rejected atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range 1000 {
			clients.Go(func() {
				err := l.wait(t.Context(), "acme")
				switch answer, ok := errors.AsType[*botapi.StatusError](err); {
				case err == nil:
					served.Add(1)
				case ok && answer.Status == 429 && answer.RetryAfter > 0:
					rejected.Add(1)
				}
			})
		}
		synctest.Wait()
		is.Equal(served.Load(), int64(lookupBurst)) // immediately
		is.NoErr(l.wait(t.Context(), "other"))
		is.Equal(time.Since(began), time.Duration(0))

		clients.Wait()
		is.Equal(time.Since(began), lookupWait)
		is.Equal(served.Load(), int64(lookupBurst+lookupsPerSecond))
		is.Equal(rejected.Load(), 1000-served.Load())
	})
}

// TestLookupOfADisconnectedClient ends with its client.
func TestLookupOfADisconnectedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		l := newLookups()
		for range lookupBurst {
			is.NoErr(l.wait(t.Context(), "acme"))
		}
		gone, disconnect := context.WithCancelCause(t.Context())
		disconnect(botapi.ErrClientLeft)
		is.Equal(l.wait(gone, "acme"), botapi.ErrClientLeft)
	})
}
