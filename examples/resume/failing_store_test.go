package resume_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A badStore is a store whose calls take a millisecond, and whose reads may fail or
// find nothing.
type badStore struct {
	resume.Store
	adds      atomic.Int64
	failsOnce atomic.Bool // the next Read
	lost      bool        // all answers
}

func (s *badStore) Add(ctx context.Context, a resume.Ref, from int, texts []string, attended bool) (resume.Added, error) {
	s.adds.Add(1)
	time.Sleep(time.Millisecond)
	return s.Store.Add(ctx, a, from, texts, attended)
}

func (s *badStore) Read(ctx context.Context, a resume.Ref, reader string, from int) (resume.Part, error) {
	if s.failsOnce.CompareAndSwap(true, false) {
		return resume.Part{}, errors.New("the connection is lost")
	}
	if s.lost {
		return resume.Part{State: resume.Lost}, nil
	}
	return s.Store.Read(ctx, a, reader, from)
}

// Watch takes so long that a model can say something meanwhile.
func (s *badStore) Watch(id string, onlyStop bool) (<-chan struct{}, func()) {
	if !onlyStop {
		time.Sleep(10 * time.Millisecond)
	}
	return s.Store.Watch(id, onlyStop)
}

// serveAborted serves a request whose response may be aborted.
func serveAborted(h http.Handler, w http.ResponseWriter, r *http.Request) {
	defer func() { _ = recover() }() // http.ErrAbortHandler
	h.ServeHTTP(w, r)
}

// TestStopWithFragmentsLeft stops an answer with fragments that the store does not have
// yet, and an engine that ignores its cancellation: the store hears of the engine three
// times a lease.
func TestStopWithFragmentsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{})}
		stopped, stay := make(chan struct{}), make(chan struct{})
		owner := func(context.Context) string { return "acme" }
		engine, h := handler(t, resume.Options{Store: store, Owner: owner, Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for yield("word ", nil) && ctx.Err() == nil {
					time.Sleep(20 * time.Microsecond)
				}
				close(stopped)
				<-stay
			}
		})})
		go serveAborted(h, httptest.NewRecorder(), request(t.Context(), "key", key, true))
		time.Sleep(50 * time.Millisecond)
		is.NoErr(engine.Stop(t.Context(), key))
		<-stopped
		before := store.adds.Load()
		time.Sleep(time.Minute)
		is.True(store.adds.Load()-before <= 25)
		close(stay)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestFragmentsAreStoredTogether has an engine say a word every 10 ms for two seconds:
// the store gets them ten times a second. Its end, and text that comes all at once, do
// not wait.
func TestFragmentsAreStoredTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{RunningPerOwner: 1})}
		var pause time.Duration
		engine, h := handler(t, resume.Options{Store: store, Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				for range 200 {
					if !yield(strings.Repeat("x", 1000), nil) {
						return
					}
					time.Sleep(pause)
				}
			}
		})})
		ask := func(name string) (took time.Duration) {
			began := time.Now()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request(t.Context(), "key", name, true))
			is.Equal(strings.Count(w.Body.String(), "x"), 200_000)
			is.Equal(w.Header().Get(resume.OutcomeHeader), string(resume.Kept))
			return time.Since(began)
		}
		pause = 10 * time.Millisecond
		ask(key)
		is.True(store.adds.Load() >= 15 && store.adds.Load() <= 25)
		time.Sleep(2 * time.Millisecond) // the store hears of the end
		pause = 0
		is.True(ask(key+"2") < 50*time.Millisecond)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestSlowReaderOfAnOutgrownAnswer has a client read only after two leases. The store
// has the beginning of its answer until then.
func TestSlowReaderOfAnOutgrownAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, h := handler(t, resume.Options{Store: resume.NewMemory(resume.Settings{AnswerBytes: 100_000}), Engine: long(150)})
		w := slowWriter{httptest.NewRecorder(), make(chan struct{})}
		time.AfterFunc(25*time.Second, func() { close(w.reads) })
		serveAborted(h, &w, request(t.Context(), "key", key, true))
		is.Equal(strings.Count(w.Body.String(), "x"), 150_000)
		is.True(strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n"))
		is.NoErr(engine.Close(t.Context()))
	})
}

// long says so many fragments of 1,000 bytes.
func long(fragments int) botapi.ChatEngineFunc {
	return func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range fragments {
				if !yield(strings.Repeat("x", 1000), nil) {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
}

// TestLostBeforeItIsRead has a store lose an answer before the request that started it
// has read of it: it is incomplete, and not empty.
func TestLostBeforeItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{}), lost: true}
		engine, h := handler(t, resume.Options{Store: store, Engine: words("one")})
		response := post(t, h, key)
		is.Equal(response.StatusCode, http.StatusBadGateway)
		is.Equal(text(t, response), `{"detail":"The answer is incomplete"}`)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestOneFailureAfterALongWrite has the store fail once, after a client has read
// nothing for longer than a lease.
func TestOneFailureAfterALongWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{})}
		engine, h := handler(t, resume.Options{Store: store, Engine: long(300)})
		h.ServeHTTP(httptest.NewRecorder(), request(t.Context(), "key", key, true))
		w := slowWriter{httptest.NewRecorder(), make(chan struct{})}
		time.AfterFunc(20*time.Second, func() {
			store.failsOnce.Store(true)
			close(w.reads)
		})
		serveAborted(h, &w, request(t.Context(), "key", key, true))
		is.Equal(w.Header().Get(resume.OutcomeHeader), "joined")
		is.Equal(strings.Count(w.Body.String(), "x"), 300_000)
		is.True(!store.failsOnce.Load())
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestBodyWithoutAValidKey sends two bodies with the same keys, of which that of the API
// is not valid: neither is held in memory.
func TestBodyWithoutAValidKey(t *testing.T) {
	is := is.New(t)
	_, h := handler(t, resume.Options{Engine: words("one")})
	send := func(body io.Reader) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat", body)
		r.ContentLength = 4 << 20
		r.Header.Set("Authorization", "Bearer invalid")
		r.Header.Set(resume.Header, key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		is.Equal(w.Code, http.StatusUnauthorized)
	}
	first, unblock := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		send(first)
	}()
	_, err := unblock.Write([]byte("{")) // the first body is being read
	is.NoErr(err)
	second := strings.NewReader(strings.Repeat("x", 4<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	send(second)
	runtime.ReadMemStats(&after)
	is.True(after.TotalAlloc-before.TotalAlloc < 1<<20)
	is.NoErr(unblock.Close())
	<-sent
}
