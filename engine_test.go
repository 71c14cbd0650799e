package botapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// The ways in which an engine's fragments reach a client. A one-body answer has
// two: where the writer can flush, the engine runs in the handler's goroutine.
var ways = []struct {
	name   string
	stream bool
	mount  func(http.Handler) http.Handler
}{
	{"one answer", false, func(h http.Handler) http.Handler { return h }},
	{"one answer, the writer cannot flush", false, hidingTheWriter},
	{"stream", true, func(h http.Handler) http.Handler { return h }},
}

func hidingTheWriter(h http.Handler) http.Handler {
	return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return struct{ http.ResponseWriter }{w} })
}

// askAs sends a chat with a key, and returns an error where there is no answer.
func askAs(ctx context.Context, key string, server *memoryServer, stream bool) (answered, error) {
	request, err := http.NewRequestWithContext(ctx, "POST", "http://memory/v1/chat", strings.NewReader(chatBodyJSON("hi", stream)))
	if err != nil {
		return answered{}, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	res, err := server.client().Do(request)
	if err != nil {
		return answered{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answered{res.StatusCode, res.Header, string(body), err}, nil
}

func ask(t testing.TB, server *memoryServer, stream bool) answered {
	t.Helper()
	got, err := askAs(t.Context(), testKey, server, stream)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A heldEngine answers "ok" in each chat once it is released. It does not care
// for its context.
type heldEngine struct{ release chan struct{} }

func newHeldEngine() *heldEngine { return &heldEngine{make(chan struct{})} }

func (e *heldEngine) Chat(context.Context, *ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		<-e.release
		yield("ok", nil)
	}
}

func TestAChatTooManyIsRefusedAtOnce(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				engine := newHeldEngine()
				o := testOptions(t, t.Output())
				o.Engine, o.MaxConcurrentChats = engine, 2
				server := serveInMemory(t, way.mount(New(o)))
				statuses := make(chan int, 2)
				for range 2 {
					go func() { statuses <- ask(t, server, way.stream).status }()
				}
				synctest.Wait()
				refused := ask(t, server, way.stream)
				is.Equal(refused.status, 503)
				is.Equal(refused.body, `{"detail":"Too many chats in progress"}`)
				is.Equal(refused.header.Get("Retry-After"), "1")
				is.Equal(doAt(t, server.client(), "http://memory", "GET", "/v1/bots", "").status, 200) // bots are no chats
				close(engine.release)
				is.Equal([]int{<-statuses, <-statuses}, []int{200, 200})
				synctest.Wait()
				is.Equal(ask(t, server, way.stream).status, 200)
			})
		})
	}
}

func TestEachAccountHasItsOwnLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine := newHeldEngine()
		o := testOptions(t, t.Output())
		o.Keys = StaticKeys(map[string]string{"a1": "a", "a2": "a", "b": "b", "c": "c"})
		o.Engine, o.MaxChatsPerAccount, o.MaxConcurrentChats = engine, 1, 2
		server := serveInMemory(t, New(o))
		held := make(chan int, 2)
		go func() {
			got, _ := askAs(t.Context(), "a1", server, true)
			held <- got.status
		}()
		synctest.Wait()
		for range 5 { // a refused chat takes no place of the others
			refused, err := askAs(t.Context(), "a2", server, false)
			is.NoErr(err)
			is.Equal(refused.status, 429)
			is.Equal(refused.body, `{"detail":"Too many chats in progress for this key"}`)
			is.Equal(refused.header.Get("Retry-After"), "1")
		}
		go func() {
			got, _ := askAs(t.Context(), "b", server, false)
			held <- got.status
		}()
		synctest.Wait()
		refused, err := askAs(t.Context(), "c", server, false)
		is.NoErr(err)
		is.Equal(refused.status, 503)
		refused, err = askAs(t.Context(), "a1", server, false) // both limits are reached: all chats count first
		is.NoErr(err)
		is.Equal(refused.status, 503)
		close(engine.release)
		is.Equal([]int{<-held, <-held}, []int{200, 200})
		synctest.Wait()
		for _, key := range []string{"a2", "b", "c"} {
			got, err := askAs(t.Context(), key, server, true)
			is.NoErr(err)
			is.Equal(got.status, 200)
		}
	})
}

func TestWithoutLimitsNoChatIsRefused(t *testing.T) {
	for _, limit := range []int64{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			engine := newHeldEngine()
			o := testOptions(t, t.Output())
			o.Engine, o.MaxChatsPerAccount, o.MaxConcurrentChats = engine, limit, limit
			server := serveInMemory(t, New(o))
			statuses := make(chan int)
			for range 50 {
				go func() { statuses <- ask(t, server, false).status }()
			}
			synctest.Wait()
			close(engine.release)
			for range 50 {
				is.Equal(<-statuses, 200)
			}
		})
	}
}

var errOverloaded = StatusError{Status: 529, Detail: "Overloaded"}

// Every ending of a chat: what its client gets, and what is reported of it.
//
// Each engine yields "", "héllo" and " you", one a second, before it ends.
var endings = []struct {
	name    string
	timeout time.Duration                                             // 0: the default
	leaves  time.Duration                                             // when the client leaves; 0: never
	early   bool                                                      // before the first fragment
	end     func(ctx context.Context, yield func(string, error) bool) // how the engine ends
	status  int                                                       // of an answer that has not begun; 0: the connection is cut
	err     error                                                     // the report's
	took    time.Duration
}{
	{name: "whole", end: func(context.Context, func(string, error) bool) {}, status: 200, took: 3 * time.Second},
	{name: "a StatusError", end: func(_ context.Context, yield func(string, error) bool) { yield("", errOverloaded) }, status: 529, err: errOverloaded, took: 3 * time.Second},
	{name: "a StatusError early", early: true, end: func(_ context.Context, yield func(string, error) bool) { yield("", errOverloaded) }, status: 529, err: errOverloaded},
	{name: "an error beside text", end: func(_ context.Context, yield func(string, error) bool) { yield("lost", errOverloaded) }, status: 529, err: errOverloaded, took: 3 * time.Second},
	{name: "an error, and more after it", early: true, end: func(_ context.Context, yield func(string, error) bool) {
		for yield("", errOverloaded) || yield("more", nil) || yield("", io.EOF) {
			panic("more is wanted after an error")
		}
	}, status: 529, err: errOverloaded},
	{name: "an error, and a long way home", early: true, end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		time.Sleep(time.Hour)
	}, status: 529, err: errOverloaded},
	{name: "an error, then a panic", early: true, end: func(_ context.Context, yield func(string, error) bool) {
		yield("", errOverloaded)
		panic("and now?")
	}, status: 529, err: errOverloaded},
	{name: "a plain error", end: func(_ context.Context, yield func(string, error) bool) { yield("", io.ErrUnexpectedEOF) }, status: 500, err: io.ErrUnexpectedEOF, took: 3 * time.Second},
	{name: "a panic", end: func(context.Context, func(string, error) bool) { panic(fmt.Errorf("%w", errBroken)) }, status: 500, err: new(panicError), took: 3 * time.Second},
	{name: "a panic early", early: true, end: func(context.Context, func(string, error) bool) { panic(errBroken) }, status: 500, err: new(panicError)},
	{name: "runtime.Goexit", end: func(context.Context, func(string, error) bool) { runtime.Goexit() }, status: 500, err: errEngineExited, took: 3 * time.Second},
	{name: "runtime.Goexit early", early: true, end: func(context.Context, func(string, error) bool) { runtime.Goexit() }, status: 500, err: errEngineExited},
	{name: "too late", timeout: 5 * time.Second, end: untilDone, status: 504, err: context.DeadlineExceeded, took: 5 * time.Second},
	{name: "too late, early", timeout: 5 * time.Second, early: true, end: untilDone, status: 504, err: context.DeadlineExceeded, took: 5 * time.Second},
	{name: "too late, with its context's error", timeout: 5 * time.Second, end: func(ctx context.Context, yield func(string, error) bool) {
		<-ctx.Done()
		yield("", ctx.Err())
	}, status: 504, err: context.DeadlineExceeded, took: 5 * time.Second},
	{name: "too late, and does not stop", timeout: 5 * time.Second, early: true, end: func(context.Context, func(string, error) bool) { time.Sleep(time.Hour) },
		status: 504, err: context.DeadlineExceeded, took: 5 * time.Second},
	{name: "too late by default", end: untilDone, status: 504, err: context.DeadlineExceeded, took: DefaultChatTimeout},
	{name: "the client leaves", leaves: 4 * time.Second, end: untilDone, err: context.Canceled, took: 4 * time.Second},
	{name: "the client leaves early", leaves: 4 * time.Second, early: true, end: untilDone, err: context.Canceled, took: 4 * time.Second},
	{name: "the client leaves, and the engine does not stop", leaves: 4 * time.Second, early: true,
		end: func(context.Context, func(string, error) bool) { time.Sleep(time.Hour) }, err: context.Canceled, took: 4 * time.Second},
}

var errBroken = errors.New("the model is broken")

func untilDone(ctx context.Context, _ func(string, error) bool) { <-ctx.Done() }

func TestEndings(t *testing.T) {
	for _, ending := range endings {
		for _, way := range ways {
			t.Run(ending.name+", "+way.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					reports := make(chan ChatReport, 10)
					o := testOptions(t, t.Output())
					o.KeepAlive, o.MaxConcurrentChats, o.ChatTimeout = -1, 1, ending.timeout
					o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
					o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						for _, fragment := range []string{"", "héllo", " you"} {
							if ending.early {
								break
							}
							time.Sleep(time.Second)
							if !yield(fragment, nil) {
								return
							}
						}
						ending.end(ctx, yield)
					})
					server := serveInMemory(t, way.mount(New(o)))
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					if ending.leaves > 0 {
						time.AfterFunc(ending.leaves, leave)
					}
					got, err := askAs(ctx, testKey, server, way.stream)
					synctest.Wait()

					committed := way.stream && !ending.early
					switch {
					case ending.leaves > 0:
						is.True(errors.Is(err, context.Canceled) || errors.Is(got.err, context.Canceled))
					case ending.status == 200 && way.stream:
						is.Equal(got.body, "data: {\"content\":\"\"}\n\ndata: {\"content\":\"héllo\"}\n\ndata: {\"content\":\" you\"}\n\ndata: [DONE]\n\n")
						is.NoErr(got.err)
					case ending.status == 200:
						is.Equal(got.body, `{"content":"héllo you"}`)
						is.NoErr(got.err)
					case committed:
						is.Equal(got.status, 200)
						is.True(!strings.Contains(got.body, "[DONE]"))
						is.True(!strings.Contains(got.body, "lost"))
						failure := statusOf(ending.err)
						if ending.status == 504 {
							failure = errTooLong
						}
						is.True(strings.HasSuffix(got.body, "event: error\ndata: "+string(failure.body())+"\n\n"))
						is.True(got.err != nil) // cut
					default:
						is.NoErr(err)
						is.NoErr(got.err)
						is.Equal(got.status, ending.status)
						is.Equal(got.header.Get("Content-Type"), "application/json")
						is.True(!strings.Contains(got.body, "llo"))
						is.True(!strings.Contains(got.body, "lost"))
					}

					want := ChatReport{Account: testAccount, Bot: echoBot, Stream: way.stream, Status: ending.status, Duration: ending.took}
					if ending.name == "an error, and a long way home" && way.name != "one answer, the writer cannot flush" {
						want.Duration = returnGrace // where the engine holds the handler's goroutine
					}
					if !ending.early {
						want.FirstFragment = 2 * time.Second
					}
					if committed {
						want.Status = 200
					}
					if committed || ending.status == 200 {
						want.Fragments, want.Bytes = 3, int64(len("héllo you"))
					}
					is.Equal(len(reports), 1)
					report := <-reports
					is.True(report.RequestID != "")
					reportedErr := report.Err
					report.RequestID, report.Err = "", nil
					is.Equal(report, want)
					is.True(sameEnd(reportedErr, ending.err))

					time.Sleep(2 * time.Hour) // the engine has returned
					synctest.Wait()
					is.Equal(len(reports), 0)
					again, err := askAs(t.Context(), testKey, server, false)
					is.NoErr(err)
					is.True(again.status != 503) // its place is free again
					time.Sleep(2 * time.Hour)
				})
			})
		}
	}
}

// sameEnd compares errors by errors.Is, and panics by their kind.
func sameEnd(err, want error) bool {
	if _, panicked := want.(*panicError); panicked {
		return errors.As(err, new(*panicError))
	}
	return errors.Is(err, want)
}

func TestAHangingEngineKeepsItsPlaceButNotItsClient(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				engine := newHeldEngine()
				o := testOptions(t, t.Output())
				o.KeepAlive, o.ChatTimeout, o.Engine = -1, time.Minute, engine
				o.MaxConcurrentChats, o.MaxChatsPerAccount = 2, 1
				server := serveInMemory(t, way.mount(New(o)))
				start := time.Now()
				got := ask(t, server, way.stream)
				is.Equal(got.status, 504)
				is.Equal(got.body, `{"detail":"The answer took too long"}`)
				is.Equal(time.Since(start), time.Minute)
				is.NoErr(server.Shutdown(t.Context())) // which does not wait for the engine
				is.Equal(time.Since(start).Truncate(time.Minute), time.Minute)

				other := serveInMemory(t, server.Handler)
				is.Equal(ask(t, other, way.stream).status, 429)
				close(engine.release)
				synctest.Wait()
				is.Equal(ask(t, other, way.stream).status, 200)
			})
		})
	}
}

func TestANilIteratorIsAFailure(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			is := is.New(t)
			var logged bytes.Buffer
			var reports []ChatReport
			o := testOptions(t, &logged)
			o.Engine = nilIterator
			o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
			got := do(t, way.mount(New(o)), "POST", "/v1/chat", chatBodyJSON("hi", way.stream), "X-Request-Id", "r-1")
			is.Equal(got.status, 500)
			is.Equal(got.body, `{"detail":"Internal Server Error"}`)
			is.True(strings.Contains(logged.String(), "nil iterator"))
			is.True(strings.Contains(logged.String(), "request_id=r-1"))
			is.Equal(len(reports), 1)
			is.Equal(reports[0].Status, 500)
			is.Equal(reports[0].RequestID, "r-1")
		})
	}
}

// A range statement would panic in an engine that yields again after it was
// told to stop.
func TestAnEngineMayYieldAfterItWasToldToStop(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var logged bytes.Buffer
				answers := make(chan bool, 3)
				o := testOptions(t, &logged)
				o.ChatTimeout = time.Second
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					<-ctx.Done()
					synctest.Wait()
					answers <- yield("a", nil)
					answers <- yield("b", nil)
					answers <- yield("", io.EOF)
				})
				server := serveInMemory(t, way.mount(New(o)))
				got := ask(t, server, way.stream)
				is.Equal(got.status, 504)
				is.Equal([]bool{<-answers, <-answers, <-answers}, []bool{false, false, false})
				synctest.Wait()
				is.True(!strings.Contains(logged.String(), "panic"))
			})
		})
	}
}

func TestAnEngineRunsOnce(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			is := is.New(t)
			var asked, run atomic.Int32
			o := testOptions(t, t.Output())
			o.Engine = ChatEngineFunc(func(context.Context, *ChatRequest) iter.Seq2[string, error] {
				asked.Add(1)
				return func(func(string, error) bool) { run.Add(1) }
			})
			is.Equal(do(t, way.mount(New(o)), "POST", "/v1/chat", chatBodyJSON("hi", way.stream)).status, 200)
			is.Equal(asked.Load(), int32(1))
			is.Equal(run.Load(), int32(1))
		})
	}
}

type hostKey struct{}

func TestAnEnginesContext(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				contexts := make(chan context.Context, 2)
				o := testOptions(t, t.Output())
				o.ChatTimeout = time.Minute
				o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
					is.NoErr(ctx.Err())
					deadline, ok := ctx.Deadline()
					is.True(ok)
					is.Equal(time.Until(deadline), time.Minute)
					is.Equal(AccountFrom(ctx), testAccount)
					is.Equal(RequestIDFrom(ctx), "r-1")
					is.Equal(ctx.Value(hostKey{}), "the host's")
					derived, cancel := context.WithTimeout(ctx, time.Hour)
					context.AfterFunc(derived, cancel) // it ends with the context that it is made of
					is.Equal(AccountFrom(derived), testAccount)
					contexts <- ctx
					contexts <- derived
					yield("ok", nil)
				})
				withValue := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					way.mount(New(o)).ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), hostKey{}, "the host's")))
				})
				server := serveInMemory(t, withValue)
				got := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", way.stream), "X-Request-Id", "r-1")
				is.Equal(got.status, 200)
				synctest.Wait()
				is.Equal((<-contexts).Err(), context.Canceled) // the answer is over
				is.Equal((<-contexts).Err(), context.Canceled)
			})
		})
	}
}

func TestAnEngineThatLooksAtItsContextOnlyLater(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			is := is.New(t)
			late := make(chan context.Context, 1)
			o := testOptions(t, t.Output())
			o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				late <- ctx
				yield("ok", nil)
			})
			is.Equal(do(t, way.mount(New(o)), "POST", "/v1/chat", chatBodyJSON("hi", way.stream)).status, 200)
			ctx := <-late
			<-ctx.Done()
			is.Equal(ctx.Err(), context.Canceled)
		})
	}
}

// A chat is not watched from its first moment: what happens in it is noticed
// all the same, and no later than twice its youth.
func TestAYoungChatIsWatchedInTime(t *testing.T) {
	for _, way := range ways {
		for _, after := range []time.Duration{1, youth - 1, youth, youth + 1, 2*youth - 1, 2 * youth, 3 * youth} {
			t.Run(fmt.Sprint(way.name, ", ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					ended := make(chan time.Time, 1)
					o := testOptions(t, t.Output())
					o.KeepAlive = -1
					o.OnChat = func(_ context.Context, r ChatReport) {
						if r.Err != nil {
							ended <- time.Now()
						}
					}
					var before atomic.Bool
					o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
						if !before.CompareAndSwap(false, true) {
							time.Sleep(time.Hour) // ignores its context
						}
					})
					begin := func() (*memoryServer, time.Time) {
						server := serveInMemory(t, way.mount(New(o)))
						before.Store(false)
						is.Equal(ask(t, server, way.stream).status, 200) // an older one
						time.Sleep(youth / 2)
						return server, time.Now()
					}

					server, start := begin()
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					time.AfterFunc(after, leave)
					_, err := askAs(ctx, testKey, server, way.stream)
					is.True(errors.Is(err, context.Canceled))
					if heard := (<-ended).Sub(start); heard != after {
						is.True(after < heard && heard <= 2*youth)
					}

					o.ChatTimeout = after
					server, start = begin()
					is.Equal(ask(t, server, way.stream).status, 504)
					is.Equal((<-ended).Sub(start), o.ChatTimeout)
					time.Sleep(2 * time.Hour)
				})
			})
		}
	}
}

func TestYoungChatsEndInAnyOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		var running atomic.Int64
		o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
			running.Add(1)
			defer running.Add(-1)
			takes, err := time.ParseDuration(lastContent(req))
			time.Sleep(takes)
			yield(lastContent(req), err)
		})
		h := New(o).(*handler)
		server := serveInMemory(t, h)
		random := rand.New(rand.NewPCG(1, 1))
		var all sync.WaitGroup
		for range 500 {
			takes := time.Duration(random.IntN(30)) * time.Millisecond
			all.Go(func() {
				got := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON(takes.String(), false))
				is.Equal(got.body, fmt.Sprintf(`{"content":"%v"}`, takes))
			})
			time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)

			synctest.Wait()
			h.young.mu.Lock()
			forward, backward := 0, 0
			for c := h.young.oldest; c != nil; c = c.younger {
				is.True(c.engineContext.age() <= 2*youth)
				forward++
			}
			for c := h.young.youngest; c != nil; c = c.older {
				backward++
			}
			is.Equal(forward, backward)
			is.True(forward <= int(running.Load()))
			h.young.mu.Unlock()
		}
		all.Wait()
		time.Sleep(2 * youth)
		is.True(h.young.oldest == nil && h.young.youngest == nil)
		is.Equal(h.young.growing, false)
	})
}

// A hostContext is one that middleware has made itself.
type hostContext struct {
	context.Context
	done func()
	err  func()
}

func (c hostContext) Done() <-chan struct{} { c.done(); return c.Context.Done() }
func (c hostContext) Err() error            { c.err(); return c.Context.Err() }

func TestAContextThatPanicsIsOneChatsOnly(t *testing.T) {
	panics := func() { panic("no context") }
	for _, c := range []struct {
		name      string
		done, err func()
		body, log string
	}{
		{"in Done", panics, func() {}, `{"content":"ok"}`, "a leaving client will not be noticed"},
		{"in Err", func() {}, panics, `{"detail":"Internal Server Error"}`, "request failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var log bytes.Buffer
			o := testOptions(t, &log)
			o.ChatTimeout = 5 * youth
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				time.Sleep(3 * youth)
				yield("ok", nil)
				if c.name == "in Err" {
					time.Sleep(3 * youth) // past ChatTimeout
				}
			})
			h := New(o)
			got := do(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(w, r.WithContext(hostContext{r.Context(), c.done, c.err}))
			}), "POST", "/v1/chat", chatBodyJSON("hi", false))
			is.Equal(got.body, c.body)
			is.True(strings.Contains(log.String(), c.log))
			is.True(strings.Contains(log.String(), "no context"))
		})
	}
}

func TestAContextThatBlocksHoldsUpNoOtherChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		var chats atomic.Int64
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			if chats.Add(1) == 1 {
				time.Sleep(time.Minute)
			}
			yield("ok", nil)
		})
		h := New(o)
		blocks := func() { time.Sleep(time.Second) }
		blocking := serveInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r.WithContext(hostContext{r.Context(), blocks, func() {}}))
		}))
		var all sync.WaitGroup
		all.Go(func() { is.Equal(ask(t, blocking, false).body, `{"content":"ok"}`) })
		time.Sleep(3 * youth)
		start := time.Now()
		is.Equal(ask(t, serveInMemory(t, h), false).body, `{"content":"ok"}`)
		is.Equal(time.Since(start), time.Duration(0))
		all.Wait()
	})
}

func TestNoChatTimeout(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				o.ChatTimeout, o.KeepAlive = -1, -1
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					_, ok := ctx.Deadline()
					is.Equal(ok, false)
					time.Sleep(24 * time.Hour)
					yield("ok", ctx.Err())
				})
				is.Equal(ask(t, serveInMemory(t, way.mount(New(o))), way.stream).status, 200)
			})
		})
	}
}

func TestTheLongestLimits(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				o.ChatTimeout, o.KeepAlive, o.WriteTimeout = math.MaxInt64, math.MaxInt64, math.MaxInt64
				o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
					time.Sleep(time.Second) // the chat begins later than its request
					return testAccount, nil
				})
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					time.Sleep(24 * time.Hour)
					yield("ok", ctx.Err())
				})
				server := serveInMemory(t, way.mount(New(o)), func(s *http.Server) {
					if way.name != "one answer, the writer cannot flush" { // nor lift a deadline
						s.WriteTimeout = time.Minute
					}
				})
				is.Equal(ask(t, server, way.stream).status, 200)
			})
		})
	}
}

// A host may end the contexts of its requests, and may give a cause.
func TestAHostEndsARequest(t *testing.T) {
	draining := StatusError{Status: 503, Detail: "Shutting down", RetryAfter: 5 * time.Second}
	for _, c := range []struct {
		name   string
		end    func(context.Context) (context.Context, context.CancelFunc)
		status int // 0: the connection is cut
		body   string
		err    error
	}{
		{"with a StatusError", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Second, draining)
		}, 503, `{"detail":"Shutting down"}`, draining},
		{"with another cause", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(ctx, time.Second, errBroken)
		}, 500, `{"detail":"Internal Server Error"}`, errBroken},
		{"with a deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		}, 504, `{"detail":"The answer took too long"}`, context.DeadlineExceeded},
		{"without a cause", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		}, 0, "", context.Canceled},
	} {
		for _, way := range ways {
			t.Run(c.name+", "+way.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					reports := make(chan ChatReport, 1)
					o := testOptions(t, t.Output())
					o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						<-ctx.Done()
						yield("", ctx.Err())
					})
					o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
					h := way.mount(New(o))
					server := serveInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						ctx, cancel := c.end(r.Context())
						defer cancel()
						h.ServeHTTP(w, r.WithContext(ctx))
					}))
					got, err := askAs(t.Context(), testKey, server, way.stream)
					is.Equal(err != nil, c.status == 0)
					is.Equal(got.status, c.status)
					is.Equal(got.body, c.body)
					report := <-reports
					is.Equal(report.Status, c.status)
					is.True(errors.Is(report.Err, c.err))
				})
			})
		}
	}
}

func TestOnlyChatsThatReachedTheEngineAreReported(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.OnChat = func(context.Context, ChatReport) { t.Error("reported") }
	o.MaxConcurrentChats = 1
	h := New(o)
	h.(*handler).places.all.TryAcquire(1) // another chat
	for status, body := range map[int]string{422: `{}`, 404: `{"bot_slug":"nobody","prompt":"p","stream":true}`, 503: chatBodyJSON("hi", true)} {
		is.Equal(do(t, h, "POST", "/v1/chat", body).status, status)
	}
	is.Equal(do(t, h, "GET", "/v1/bots", "").status, 200)
	is.Equal(do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", true), "Authorization", "-").status, 401)
}

func TestWhatIsReportedOfARequest(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			is := is.New(t)
			reported, returned := 0, false
			var engine context.Context
			o := testOptions(t, t.Output())
			o.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
				engine = ctx
				return fragmentsOf("a\xff", "", "b\xe2\x82").Chat(ctx, req)
			})
			o.OnChat = func(ctx context.Context, r ChatReport) {
				reported++
				is.Equal(returned, false)
				is.Equal(engine.Err(), context.Canceled) // its answer is over
				is.NoErr(ctx.Err())
				is.Equal(RequestIDFrom(ctx), "r-1")
				is.Equal(AccountFrom(ctx), testAccount)
				is.Equal(r.RequestID, "r-1")
				is.Equal(r.Account, testAccount)
				is.Equal(r.UserID, "7")
				is.Equal(r.Bot, otherBot)
				is.Equal(r.Stream, way.stream)
				is.Equal(r.Fragments, 3)
				is.Equal(r.Bytes, int64(len("a\uFFFDb\uFFFD\uFFFD"))) // as the client decodes it
				is.NoErr(r.Err)
			}
			h := way.mount(New(o))
			got := do(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(w, r)
				returned = true
			}), "POST", "/v1/chat", fmt.Sprintf(`{"bot_slug":"Other","prompt":"p","stream":%t,"user_id":7}`, way.stream), "X-Request-Id", "r-1")
			is.Equal(got.status, 200)
			is.Equal(reported, 1)
		})
	}
}

func TestOnChatOutlivesItsClient(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				ended := make(chan error, 1)
				o := testOptions(t, t.Output())
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) { <-ctx.Done() })
				o.OnChat = func(ctx context.Context, _ ChatReport) { ended <- ctx.Err() }
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				_, err := askAs(ctx, testKey, serveInMemory(t, way.mount(New(o))), way.stream)
				is.True(errors.Is(err, context.DeadlineExceeded)) // the client's own
				is.NoErr(<-ended)
			})
		})
	}
}

func TestAPanicInOnChatSpoilsNoAnswer(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			is := is.New(t)
			var logged bytes.Buffer
			o := testOptions(t, &logged)
			o.OnChat = func(context.Context, ChatReport) { panic("the meter is broken") }
			got := do(t, way.mount(New(o)), "POST", "/v1/chat", chatBodyJSON("hi", way.stream), "X-Request-Id", "r-1")
			is.Equal(got.status, 200)
			is.NoErr(got.err)
			is.True(strings.Contains(logged.String(), "the meter is broken"))
			is.True(strings.Contains(logged.String(), "request_id=r-1"))
			is.True(strings.Contains(logged.String(), "engine_test.go")) // its stack
		})
	}
}

func TestAPanicAfterTheAnswerIsLogged(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var logged lockedBuffer
				o := testOptions(t, &logged)
				o.ChatTimeout = time.Second
				o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
					time.Sleep(time.Minute)
					panic(errBroken)
				})
				got := ask(t, serveInMemory(t, way.mount(New(o))), way.stream)
				is.Equal(got.status, 504)
				is.True(!strings.Contains(logged.String(), errBroken.Error()))
				time.Sleep(time.Hour)
				is.True(strings.Contains(logged.String(), errBroken.Error()))
			})
		})
	}
}

func TestARequestBelongsToItsEngine(t *testing.T) {
	is := is.New(t)
	var reported ChatReport
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
		*req = ChatRequest{Stream: true}
		yield("ok", nil)
	})
	o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
	got := postChat(New(o), chatBodyJSON("hi", false))
	is.Equal(got.Body.String(), `{"content":"ok"}`)
	is.Equal(reported.Bot, echoBot)
	is.Equal(reported.Stream, false)
}

// Two servers on one handler share its limits, as a host may serve it on two
// ports.
func TestLimitsAreTheHandlersNotTheServers(t *testing.T) {
	is := is.New(t)
	started, release := make(chan struct{}), make(chan struct{})
	o := testOptions(t, t.Output())
	o.MaxConcurrentChats = 1
	o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
		close(started)
		<-release
	})
	h := New(o)
	first := httptest.NewServer(h)
	defer first.Close()
	done := make(chan answered)
	go func() { done <- doAt(t, first.Client(), first.URL, "POST", "/v1/chat", chatBodyJSON("hi", true)) }()
	<-started
	is.Equal(do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", true)).status, 503)
	close(release)
	is.Equal((<-done).status, 200)
}

// An engine may hold a lock while it yields, and OnChat may want the same one:
// nothing of the host's is called on the engine's stack.
func TestOnChatMayWantALockThatTheEngineHolds(t *testing.T) {
	is := is.New(t)
	var mu sync.Mutex
	reported := make(chan struct{})
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		mu.Lock()
		defer mu.Unlock()
		yield("", errOverloaded)
		time.Sleep(2 * returnGrace)
	})
	o.OnChat = func(context.Context, ChatReport) {
		mu.Lock()
		defer mu.Unlock()
		close(reported)
	}
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", false))
	is.Equal(got.status, 529)
	received(t, reported, "OnChat")
}

// lastWriteFails is a writer of which one write fails, once the engine has
// finished. A later one would not.
type lastWriteFails struct {
	hijackable
	writes   int
	finished chan struct{}
}

func (w *lastWriteFails) Write(p []byte) (int, error) {
	if w.writes++; w.writes != rapidFragments+1 {
		return w.hijackable.Write(p)
	}
	<-w.finished
	return 0, io.ErrClosedPipe
}

// A write that fails when the engine has finished already is no less a failure:
// the answer must not end as if it were whole.
func TestAWriteThatFailsBehindTheEngineIsNotForgotten(t *testing.T) {
	is := is.New(t)
	w := &lastWriteFails{hijackable{httptest.NewRecorder()}, 0, make(chan struct{})}
	reports := make(chan ChatReport, 1)
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for range rapidFragments + 1 {
			yield("x", nil)
		}
		time.AfterFunc(10*time.Millisecond, func() { close(w.finished) })
	})
	o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
	r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", true)))
	r.Header.Set("Authorization", "Bearer "+testKey)
	is.True(serveRequest(w, New(o), r)) // cut
	is.True(errors.Is(received(t, reports, "OnChat").Err, io.ErrClosedPipe))
	is.True(!strings.Contains(w.Body.String(), "[DONE]"))
}
