package resume_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A badStore is a store that takes a millisecond to add, end or leave, and whose calls may
// fail, before or after their effect, or find nothing.
type badStore struct {
	resume.Store
	adds       atomic.Int64
	away       atomic.Bool // all calls fail
	losesReply atomic.Bool // Add fails after its effect
	failsOnce  atomic.Bool // the next Read
	loses      atomic.Bool // the answer that is read next
	forgets    atomic.Bool // all fragments of running answers but one
	hangs      atomic.Bool // Add and Leave return when their context ends
}

var errAway = errors.New("the connection is lost")

const terminator = "data: [DONE]\n\n"

func (s *badStore) Add(ctx context.Context, a resume.Ref, from int, texts []string, attended bool) (resume.Added, error) {
	s.adds.Add(1)
	time.Sleep(time.Millisecond)
	if s.hangs.Load() {
		<-ctx.Done()
		return resume.Added{}, ctx.Err()
	}
	if s.away.Load() {
		return resume.Added{}, errAway
	}
	added, err := s.Store.Add(ctx, a, from, texts, attended)
	if s.losesReply.Load() {
		return resume.Added{}, errAway
	}
	if s.forgets.Load() && added.State == resume.Running {
		added.Have = 1
	}
	return added, err
}

func (s *badStore) End(ctx context.Context, a resume.Ref, fragments int, e resume.Ending) (resume.State, error) {
	time.Sleep(time.Millisecond)
	return s.Store.End(ctx, a, fragments, e)
}

func (s *badStore) Leave(ctx context.Context, a resume.Ref, name string) error {
	time.Sleep(time.Millisecond)
	if s.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Leave(ctx, a, name)
}

func (s *badStore) Read(ctx context.Context, a resume.Ref, reader string, from int) (resume.Part, error) {
	if s.away.Load() || s.failsOnce.CompareAndSwap(true, false) {
		return resume.Part{}, errAway
	}
	if s.loses.CompareAndSwap(true, false) {
		_, _ = s.Store.End(ctx, a, -1, resume.Ending{})
	}
	return s.Store.Read(ctx, a, reader, from)
}

// TestStoreFailsOnceAfterASilence has a store that fails once, when the engine has been silent
// and then fills its window: the answer is kept.
func TestStoreFailsOnceAfterASilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{})}
		engine, h := handler(t, resume.Options{Store: store, Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("a", nil)
				time.Sleep(2 * time.Second)
				store.away.Store(true)
				time.AfterFunc(200*time.Millisecond, func() { store.away.Store(false) })
				for range 100 {
					yield(strings.Repeat("b", 1024), nil)
				}
			}
		})})
		for _, want := range []string{"kept", "joined"} {
			response := post(t, h, key)
			is.Equal(len(text(t, response)), len(`{"content":"a"}`)+100<<10)
			is.Equal(response.Header.Get(resume.OutcomeHeader), want)
		}
		is.NoErr(engine.Close(t.Context()))
	})
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
		engine, h := handler(t, resume.Options{Store: store, Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			return long(200, pause)(ctx, req)
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
		engine, h := handler(t, resume.Options{Store: resume.NewMemory(resume.Settings{AnswerBytes: 100_000}), Engine: long(150, time.Millisecond)})
		w := slowWriter{httptest.NewRecorder(), make(chan struct{})}
		time.AfterFunc(25*time.Second, func() { close(w.reads) })
		serveAborted(h, &w, request(t.Context(), "key", key, true))
		is.Equal(strings.Count(w.Body.String(), "x"), 150_000)
		is.True(strings.HasSuffix(w.Body.String(), terminator))
		is.NoErr(engine.Close(t.Context()))
	})
}

// A pacedWriter takes a while for each write.
type pacedWriter struct{ *httptest.ResponseRecorder }

func (w pacedWriter) Write(p []byte) (int, error) {
	time.Sleep(100 * time.Millisecond)
	return w.ResponseRecorder.Write(p)
}

// A hastyStore has another request join an answer before the one that starts it knows of it.
type hastyStore struct {
	resume.Store
	join func() // returns when the request has joined
	once sync.Once
}

func (s *hastyStore) Claim(ctx context.Context, c resume.Claim) (resume.Claimed, error) {
	found, err := s.Store.Claim(ctx, c)
	if found.State == resume.Started {
		s.once.Do(s.join)
	}
	return found, err
}

// TestJoinBeforeTheStart has a client join an answer of its process before that has begun. The
// answer outgrows its room, and goes on for the client, as for all who follow it in its process.
func TestJoinBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &hastyStore{Store: resume.NewMemory(resume.Settings{AnswerBytes: 100_000})}
		engine, h := handler(t, resume.Options{Store: store, Engine: long(300, 10*time.Millisecond)})
		joined, done := httptest.NewRecorder(), make(chan struct{})
		store.join = func() {
			go func() {
				defer close(done)
				serveAborted(h, joined, request(t.Context(), "key", key, true))
			}()
			time.Sleep(200 * time.Millisecond)
		}
		h.ServeHTTP(httptest.NewRecorder(), request(t.Context(), "key", key, true))
		<-done
		is.Equal(strings.Count(joined.Body.String(), "x"), 300_000)
		is.True(strings.HasSuffix(joined.Body.String(), terminator))
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestOutgrownAnswerDoesNotAskItsStore has an engine wait for the reader of an answer that has
// outgrown its room: the store has no say in that.
func TestOutgrownAnswerDoesNotAskItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{AnswerBytes: 100_000})}
		engine, h := handler(t, resume.Options{Store: store, Engine: long(1000, 0)})
		w := pacedWriter{httptest.NewRecorder()}
		h.ServeHTTP(w, request(t.Context(), "key", key, true))
		is.Equal(strings.Count(w.Body.String(), "x"), 1_000_000)
		is.True(store.adds.Load() < 20)
		is.NoErr(engine.Close(t.Context()))
	})
}

// long says so many fragments of 1,000 bytes, one each period.
func long(fragments int, period time.Duration) botapi.ChatEngineFunc {
	return func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range fragments {
				if !yield(strings.Repeat("x", 1000), nil) {
					return
				}
				time.Sleep(period)
			}
		}
	}
}

// TestOneFailureAfterALongWrite has the store fail once, after a client has read
// nothing for longer than a lease.
func TestOneFailureAfterALongWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{})}
		engine, h := handler(t, resume.Options{Store: store, Engine: long(300, time.Millisecond)})
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

// counting says a number each period, 300 of them.
func counting(period time.Duration, asked *atomic.Int64) botapi.ChatEngineFunc {
	return func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			asked.Add(1)
			for i := range 300 {
				if !yield(fmt.Sprint(i, " "), nil) {
					return
				}
				time.Sleep(period)
			}
		}
	}
}

// isCounted says that a stream has all that counting says.
func isCounted(body string) bool {
	return strings.Count(body, `"content"`) == 300 && strings.HasSuffix(body, terminator)
}

// TestAnswerIsKeptNoLonger has an answer outgrow its room, and a store that goes away:
// the client gets all of the answer, and the store is asked ten times a second until
// the answer is given up, and three times a lease afterwards.
func TestAnswerIsKeptNoLonger(t *testing.T) {
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			store := &badStore{Store: resume.NewMemory(resume.Settings{AnswerBytes: 2000})}
			if away {
				store.Store = resume.NewMemory(resume.Settings{})
				time.AfterFunc(time.Second, func() { store.away.Store(true) })
			}
			engine, h := handler(t, resume.Options{Store: store, Engine: counting(100*time.Millisecond, new(atomic.Int64))})
			time.AfterFunc(20*time.Second, func() {
				is.True(store.adds.Load() <= 120)
				store.adds.Store(0)
			})
			w := httptest.NewRecorder()
			h.ServeHTTP(w, request(t.Context(), "key", key, true)) // for 30 s
			is.True(isCounted(w.Body.String()))
			is.True(store.adds.Load() <= 6)
			is.NoErr(engine.Close(t.Context()))
		})
	}
}

// TestFastAnswerWithoutItsStore has a store go away while an engine says a megabyte a
// second. The client does not wait for it for longer than Wait.
func TestFastAnswerWithoutItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{AnswerBytes: 8 << 20})}
		engine, h := handler(t, resume.Options{Store: store, Engine: long(2000, time.Millisecond)})
		time.AfterFunc(time.Second, func() { store.away.Store(true) })
		w, began := httptest.NewRecorder(), time.Now()
		h.ServeHTTP(w, request(t.Context(), "key", key, true))
		is.True(time.Since(began) < 4*time.Second)
		is.Equal(strings.Count(w.Body.String(), "x"), 2_000_000)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestEndWithoutItsStore has another reader leave an answer while its end waits for a
// store that is away: the wait does not begin again.
func TestEndWithoutItsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{})}
		var over time.Time
		engine, h := handler(t, resume.Options{Store: store, Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("one", nil)
				time.Sleep(2 * time.Second)
				store.away.Store(true)
				over = time.Now()
			}
		})})
		leaving, leave := context.WithTimeout(t.Context(), 2950*time.Millisecond)
		defer leave()
		time.AfterFunc(time.Second, func() { serveAborted(h, httptest.NewRecorder(), request(leaving, "key", key, true)) })
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t.Context(), "key", key, true))
		is.True(strings.HasSuffix(w.Body.String(), terminator))
		is.True(time.Since(over) <= time.Second)
		time.Sleep(time.Second) // for the handler of the other
		store.away.Store(false)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestStoreHangs has a store that does not return before its context ends. An answer that has
// ended, complete or not, does not wait for it for long, nor does an engine that is ahead of it.
func TestStoreHangs(t *testing.T) {
	for name, c := range map[string]struct {
		engine botapi.ChatEngineFunc
		end    string
	}{
		"complete": {words("one"), terminator},
		"failed": {func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("", &botapi.StatusError{Status: 503, Detail: "No model"})
			}
		}, `{"detail":"No model"}`},
		"ahead": {long(200, 0), terminator},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				store := &badStore{Store: resume.NewMemory(resume.Settings{Lease: time.Minute})}
				store.hangs.Store(true)
				engine, h := handler(t, resume.Options{Store: store, Engine: c.engine})
				w, began := httptest.NewRecorder(), time.Now()
				h.ServeHTTP(w, request(t.Context(), "key", key, true))
				is.True(strings.HasSuffix(w.Body.String(), c.end))
				is.True(time.Since(began) < 5*time.Second) // Wait is one
				store.hangs.Store(false)
				is.NoErr(engine.Close(t.Context()))
			})
		})
	}
}

// TestStoreLearnsOfTheEndFirst has a client that may have one model running send its next
// requests in the instant in which it has an answer.
func TestStoreLearnsOfTheEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{RunningPerOwner: 1})}
		owner := func(context.Context) string { return "acme" }
		engine, h := handler(t, resume.Options{Store: store, Owner: owner, Engine: long(30, time.Millisecond)})
		for i := range 3 {
			is.Equal(post(t, h, fmt.Sprint(key, i)).StatusCode, http.StatusOK)
		}
		is.NoErr(engine.Stop(t.Context(), key+"2")) // of a complete answer: no effect
		response := post(t, h, key+"2")
		is.Equal(response.Header.Get(resume.OutcomeHeader), "joined")
		is.Equal(strings.Count(text(t, response), "x"), 30_000)
		store.away.Store(true) // a complete answer does not wait for it for long
		began := time.Now()
		is.Equal(post(t, h, key+"3").StatusCode, http.StatusOK)
		is.True(time.Since(began) < 2*time.Second)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestStopBeforeTheStoreLearnsOfTheEnd stops an answer whose engine has returned half a
// millisecond ago. The stop was accepted, so its client gets no complete answer either.
func TestStopBeforeTheStoreLearnsOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{})}
		owner := func(context.Context) string { return "acme" }
		engine, h := handler(t, resume.Options{Store: store, Owner: owner, Engine: long(1, 20*time.Millisecond)})
		time.AfterFunc(20500*time.Microsecond, func() { is.NoErr(engine.Stop(t.Context(), key)) })
		for range 2 {
			response := post(t, h, key)
			is.Equal(response.StatusCode, http.StatusGone)
			is.Equal(text(t, response), `{"detail":"The answer was stopped"}`)
		}
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestStoreComesBack has a store that has lost its replies for longer than a lease, or
// most of an answer: a client that comes later does not get stuck with what is left.
func TestStoreComesBack(t *testing.T) {
	for name, breaks := range map[string]func(*badStore){
		"replies":   func(s *badStore) { s.losesReply.Store(true); time.Sleep(12 * time.Second); s.losesReply.Store(false) },
		"fragments": func(s *badStore) { s.forgets.Store(true); time.Sleep(2 * time.Second); s.forgets.Store(false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				store := &badStore{Store: resume.NewMemory(resume.Settings{})}
				var asked atomic.Int64
				engine, h := handler(t, resume.Options{Store: store, Engine: counting(time.Second, &asked)})
				first, done := httptest.NewRecorder(), make(chan struct{})
				go func() {
					defer close(done)
					h.ServeHTTP(first, request(t.Context(), "key", key, true))
				}()
				time.Sleep(5500 * time.Millisecond)
				breaks(store)
				time.Sleep(5 * time.Second)
				second := httptest.NewRecorder()
				h.ServeHTTP(second, request(t.Context(), "key", key, true))
				<-done
				for _, w := range []*httptest.ResponseRecorder{first, second} {
					is.Equal(w.Header().Get(resume.OutcomeHeader), "kept")
					is.True(isCounted(w.Body.String()))
				}
				is.Equal(asked.Load(), int64(2))
				is.NoErr(engine.Close(t.Context()))
			})
		})
	}
}

// TestJoinedAnswerIsLost has a store lose an answer that a client of another process has
// read a part of, and one that does not come back.
func TestJoinedAnswerIsLost(t *testing.T) {
	for name, breaks := range map[string]func(*badStore){
		"lost": func(s *badStore) { s.loses.Store(true) },
		"away": func(s *badStore) { s.away.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				memory := resume.NewMemory(resume.Settings{})
				store := &badStore{Store: memory}
				var asked atomic.Int64
				e := counting(time.Second, &asked)
				engine, first := handler(t, resume.Options{Store: memory, Engine: e})
				other, second := handler(t, resume.Options{Store: store, Engine: e})
				go serveAborted(first, httptest.NewRecorder(), request(t.Context(), "key", key, true))
				time.Sleep(5500 * time.Millisecond)
				time.AfterFunc(5*time.Second, func() { breaks(store) })
				w, began := httptest.NewRecorder(), time.Now()
				serveAborted(second, w, request(t.Context(), "key", key, true))
				is.True(time.Since(began) < 20*time.Second)
				is.True(strings.Contains(w.Body.String(), `"content":"9 "`))
				is.True(strings.HasSuffix(w.Body.String(), "event: error\ndata: {\"detail\":\"The answer is incomplete\",\"status\":502,\"retry_after\":1}\n\n"))
				is.Equal(asked.Load(), int64(1))
				is.NoErr(engine.Close(t.Context()))
				is.NoErr(other.Close(t.Context()))
			})
		})
	}
}

// A brokenWriter writes nothing until its connection breaks.
type brokenWriter struct {
	*httptest.ResponseRecorder
	breaks chan struct{}
}

func (w brokenWriter) Write([]byte) (int, error) {
	<-w.breaks
	return 0, errAway
}

// TestStalledReaderOfAnOutgrownAnswer has two clients follow an answer that has outgrown
// its room, one of which does not read. The engine waits for it, for longer than
// StallTimeout, and goes on when it disconnects.
func TestStalledReaderOfAnOutgrownAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var said atomic.Int64
		engine, h := handler(t, resume.Options{
			Store:        resume.NewMemory(resume.Settings{AnswerBytes: 100_000}),
			StallTimeout: time.Minute,
			Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for text := range long(1000, time.Millisecond)(nil, nil) {
						if said.Add(1); !yield(text, nil) {
							return
						}
					}
				}
			}),
		})
		stalled := brokenWriter{httptest.NewRecorder(), make(chan struct{})}
		go serveAborted(h, stalled, request(t.Context(), "key", key, true))
		time.Sleep(20 * time.Millisecond)
		w := httptest.NewRecorder()
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(w, request(t.Context(), "key", key, true))
		}()
		time.Sleep(2 * time.Minute)
		is.True(said.Load() < 300)
		close(stalled.breaks)
		<-done
		is.Equal(w.Header().Get(resume.OutcomeHeader), "joined")
		is.Equal(strings.Count(w.Body.String(), "x"), 1_000_000)
		is.True(strings.HasSuffix(w.Body.String(), terminator))
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestAbandonedInTime has a client disconnect: the model ends when Abandon has passed, also
// if a lease is longer, and the store is not asked more often for that.
func TestAbandonedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &badStore{Store: resume.NewMemory(resume.Settings{Abandon: 30 * time.Second, Lease: 3 * time.Minute})}
		var left time.Time
		engine, h := handler(t, resume.Options{Store: store, Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("one", nil)
				<-ctx.Done()
				is.Equal(context.Cause(ctx), resume.ErrAbandoned)
				is.True(time.Since(left) >= 30*time.Second && time.Since(left) < 30*time.Second+50*time.Millisecond)
			}
		})})
		ctx, disconnect := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, func() {
			left = time.Now()
			disconnect()
		})
		serveAborted(h, httptest.NewRecorder(), request(ctx, "key", key, true))
		time.Sleep(time.Minute)
		is.True(store.adds.Load() <= 8)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestErrorsOfEngines has an engine fail in each way. The clients that follow its answer
// get the same error, those of another process too, and the next one asks again.
func TestErrorsOfEngines(t *testing.T) {
	for name, failure := range map[string]error{
		"a status":                       &botapi.StatusError{Status: 429, Detail: "Later", RetryAfter: time.Second},
		"a status as a value":            botapi.StatusError{Status: 418, Detail: "Tea"},
		"no status":                      &botapi.StatusError{Detail: "The model broke"},
		"a status of a success":          &botapi.StatusError{Status: 200, Detail: "OK"},
		"validation":                     &botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body"}, Msg: "m", Type: "t"}}},
		"a status for validation":        &botapi.StatusError{Status: 418, Detail: "Tea", Err: &botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Msg: "m"}}}},
		"a bot that is gone":             botapi.ErrBotNotFound,
		"an invalid key":                 botapi.ErrInvalidKey,
		"an error":                       errAway,
		"a status that is nil":           (*botapi.StatusError)(nil),
		"a validation error that is nil": (*botapi.HTTPValidationError)(nil),
	} {
		t.Run(name, func(t *testing.T) {
			for _, stream := range []bool{true, false} {
				synctest.Test(t, func(t *testing.T) { errorOfEngine(t, failure, stream) })
			}
		})
	}
}

func errorOfEngine(t *testing.T, failure error, stream bool) {
	is := is.New(t)
	var asked atomic.Int64
	o := resume.Options{Store: resume.NewMemory(resume.Settings{}), Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			asked.Add(1)
			if yield("half", nil) {
				time.Sleep(time.Second)
				yield("", failure)
			}
		}
	})}
	first, h := handler(t, o)
	second, other := handler(t, o)
	var clients sync.WaitGroup
	var got [3]string
	for i, h := range []http.Handler{h, h, other} {
		clients.Go(func() {
			w := httptest.NewRecorder()
			serveAborted(h, w, request(t.Context(), "key", key, stream))
			got[i] = fmt.Sprint(w.Code, " ", w.Body.String())
		})
		time.Sleep(100 * time.Millisecond)
	}
	clients.Wait()
	is.True(stream == strings.Contains(got[0], "event: error"))
	is.Equal(got[1], got[0])
	is.Equal(got[2], got[0])
	is.Equal(asked.Load(), int64(1))
	serveAborted(other, httptest.NewRecorder(), request(t.Context(), "key", key, stream))
	is.Equal(asked.Load(), int64(2))
	is.NoErr(first.Close(t.Context()))
	is.NoErr(second.Close(t.Context()))
}

// TestJoinIsCancelled joins an answer with a context that ends before it: what it has
// yielded is not taken for the answer.
func TestJoinIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		owner := func(context.Context) string { return "acme" }
		engine, h := handler(t, resume.Options{Owner: owner, Engine: counting(time.Second, new(atomic.Int64))})
		go serveAborted(h, httptest.NewRecorder(), request(t.Context(), "key", key, true))
		time.Sleep(1500 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var last error
		for _, last = range engine.Join(ctx, key) {
		}
		is.Equal(last, context.DeadlineExceeded)
		is.NoErr(engine.Stop(t.Context(), key))
		is.NoErr(engine.Close(t.Context()))
	})
}
