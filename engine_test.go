package botapi

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// A way is one in which an engine's fragments reach a client.
type way struct {
	name   string
	stream bool
	http2  bool
	hides  bool // all that the writer can do but write
}

var ways = []way{
	{name: "one answer"},
	{name: "one answer, HTTP/2", http2: true},
	{name: "one answer, the writer cannot flush", hides: true},
	{name: "stream", stream: true},
	{name: "stream, HTTP/2", stream: true, http2: true},
	{name: "stream, the writer cannot flush", stream: true, hides: true},
}

func (w way) mount(h http.Handler) http.Handler {
	if w.hides {
		return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return struct{ http.ResponseWriter }{w} })
	}
	return h
}

// serve serves h in memory.
func (w way) serve(t testing.TB, h http.Handler, configure ...func(*http.Server)) *memoryServer {
	return serveInMemory(t, w.mount(h), append(configure, func(s *http.Server) {
		if w.http2 {
			s.Protocols = clearTextHTTP2()
		}
	})...)
}

// do is the function do in this way.
func (w way) do(t testing.TB, h http.Handler, method, path, body string, header ...string) answered {
	t.Helper()
	server := httptest.NewUnstartedServer(w.mount(h))
	transport := &http.Transport{}
	if w.http2 {
		server.Config.Protocols, transport.Protocols = clearTextHTTP2(), clearTextHTTP2()
	}
	server.Start()
	defer server.Close() // when the handler has returned
	defer transport.CloseIdleConnections()
	return doAt(t, &http.Client{Transport: transport}, server.URL, method, path, body, header...)
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
				server := way.serve(t, New(o))
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
		o.Keys = StaticKeys(map[string]string{"a1": "a", "a2": "a", "b": "A", "c": "c"})
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
					server := way.serve(t, New(o))
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
						is.True(cmp.Or(err, got.err) != nil) // its own cancellation or, on HTTP/2, how the server answers that
					case ending.status == 200 && way.stream:
						is.Equal(got.body, "data: {\"content\":\"\"}\n\ndata: {\"content\":\"héllo\"}\n\ndata: {\"content\":\" you\"}\n\ndata: [DONE]\n\n")
						is.NoErr(got.err)
					case ending.status == 200:
						is.Equal(got.body, `{"content":"héllo you"}`)
						is.NoErr(got.err)
					case committed && way.hides:
						is.True(err != nil) // cut before anything left
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
				var log testLog
				o := testOptions(t, &log)
				o.KeepAlive, o.ChatTimeout, o.Engine = -1, time.Minute, engine
				o.MaxConcurrentChats, o.MaxChatsPerAccount = 2, 1
				server := way.serve(t, New(o))
				start := time.Now()
				got := ask(t, server, way.stream)
				is.Equal(got.status, 504)
				is.Equal(got.body, `{"detail":"The answer took too long"}`)
				took := time.Minute
				if way.http2 || way.hides { // where an answer ends when the handler returns
					took += 500 * time.Millisecond // for the engine to return
				}
				is.Equal(time.Since(start), took)
				is.NoErr(server.Shutdown(t.Context())) // which does not wait for the engine
				is.Equal(time.Since(start).Truncate(time.Minute), time.Minute)
				is.Equal(strings.Count(log.String(), "the engine has not returned"), 1)

				other := serveInMemory(t, server.Handler)
				is.Equal(ask(t, other, way.stream).status, 429)
				close(engine.release)
				synctest.Wait()
				is.Equal(ask(t, other, way.stream).status, 200)
			})
		})
	}
}

// What an engine panics with is the engine's: reading it may take as long as the
// engine itself.
func TestAPanicThatCannotBeRead(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.KeepAlive, o.ChatTimeout = -1, time.Minute
				err := heldError{make(chan struct{})}
				defer close(err.release)
				o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { panic(err) })
				server := way.serve(t, New(o))
				start := time.Now()
				is.Equal(ask(t, server, way.stream).status, 504)
				is.True(time.Since(start) < time.Minute+time.Second)
			})
		})
	}
}

// A heldError has no text until it is released.
type heldError struct{ release chan struct{} }

func (e heldError) Error() string {
	<-e.release
	return "released"
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
			got := way.do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", way.stream), "X-Request-Id", "r-1")
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
				server := way.serve(t, New(o))
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
			is.Equal(way.do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", way.stream)).status, 200)
			is.Equal(asked.Load(), int32(1))
			is.Equal(run.Load(), int32(1))
		})
	}
}

// withHostsValue is middleware whose value every context has to carry.
func withHostsValue(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), hostKey{}, "the host's")))
	})
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
				server := way.serve(t, withHostsValue(New(o)))
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
			is.Equal(way.do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", way.stream)).status, 200)
			ctx := <-late
			<-ctx.Done()
			is.Equal(ctx.Err(), context.Canceled)
		})
	}
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
				is.Equal(ask(t, way.serve(t, New(o)), way.stream).status, 200)
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
				server := way.serve(t, New(o), func(s *http.Server) {
					if !way.hides { // nor lift a deadline
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
		}, 503, `{"detail":"Service Unavailable"}`, errBroken},
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
					h := New(o)
					server := way.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// A host that gives one of the handler's own reasons as its cause takes it from
// another chat: it decides nothing here but what the host makes of it.
func TestAHostsCauseFromAnotherChat(t *testing.T) {
	for _, c := range []struct {
		name   string
		cause  error
		status int
		body   string
	}{
		{"a StatusError because a client left", StatusError{Status: 402, Detail: "Pay first", Err: ErrClientLeft}, 402, `{"detail":"Pay first"}`},
		{"a StatusError because of an abort", StatusError{Status: 402, Detail: "Pay first", Err: http.ErrAbortHandler}, 402, `{"detail":"Pay first"}`},
		{"a client that stalled", ErrClientStalled, 503, `{"detail":"Service Unavailable"}`},
		{"two time-outs", errors.Join(ErrChatTimeout, ErrEngineStalled), 504, `{"detail":"The answer took too long"}`},
	} {
		for _, way := range ways {
			t.Run(c.name+", "+way.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					reports := make(chan ChatReport, 1)
					o := testOptions(t, t.Output())
					engine := newHeldEngine()
					defer close(engine.release)
					o.Engine = engine
					o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
					h := New(o)
					server := way.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						ctx, cancel := context.WithTimeoutCause(r.Context(), time.Second, c.cause)
						defer cancel()
						h.ServeHTTP(w, r.WithContext(ctx))
					}))
					got := ask(t, server, way.stream)
					is.Equal(got.status, c.status)
					is.Equal(got.body, c.body)
					report := <-reports
					is.Equal(report.Status, c.status)
					is.Equal(endsOf(report.Err), nil)
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
			h := New(o)
			got := way.do(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
				var value any
				o.OnChat = func(ctx context.Context, _ ChatReport) {
					value = ctx.Value(hostKey{})
					ended <- ctx.Err()
				}
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				_, err := askAs(ctx, testKey, way.serve(t, withHostsValue(New(o))), way.stream)
				is.True(errors.Is(err, context.DeadlineExceeded)) // the client's own
				is.NoErr(<-ended)
				is.Equal(value, "the host's")
			})
		})
	}
}

func TestAPanicInOnChatSpoilsNoAnswer(t *testing.T) {
	for _, way := range ways {
		for _, v := range []any{"the meter is broken", http.ErrAbortHandler} {
			t.Run(fmt.Sprint(way.name, ", ", v), func(t *testing.T) {
				is := is.New(t)
				var logged bytes.Buffer
				o := testOptions(t, &logged)
				o.OnChat = func(context.Context, ChatReport) { panic(v) }
				got := way.do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", way.stream), "X-Request-Id", "r-1")
				is.Equal(got.status, 200)
				is.NoErr(got.err)
				is.True(strings.Contains(logged.String(), fmt.Sprint(v)))
				is.True(strings.Contains(logged.String(), "request_id=r-1"))
				is.True(strings.Contains(logged.String(), "engine_test.go")) // its stack
			})
		}
	}
}

func TestAPanicAfterTheAnswerIsLogged(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var logged testLog
				o := testOptions(t, &logged)
				o.ChatTimeout = time.Second
				o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
					time.Sleep(time.Minute)
					panic(errBroken)
				})
				got := ask(t, way.serve(t, New(o)), way.stream)
				is.Equal(got.status, 504)
				is.True(!strings.Contains(logged.String(), errBroken.Error()))
				time.Sleep(time.Hour)
				is.True(strings.Contains(logged.String(), errBroken.Error()))
			})
		})
	}
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
	reporting, reported := make(chan struct{}), make(chan struct{})
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		mu.Lock()
		defer mu.Unlock()
		yield("", errOverloaded)
		<-reporting
	})
	o.OnChat = func(context.Context, ChatReport) {
		close(reporting)
		mu.Lock()
		defer mu.Unlock()
		close(reported)
	}
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", false))
	is.Equal(got.status, 529)
	received(t, reported, "OnChat")
}

// lastWriteFails is a writer of which one write fails, a second after the engine
// has finished. A later one would not.
type lastWriteFails struct {
	hijackable
	writes int
}

func (w *lastWriteFails) Write(p []byte) (int, error) {
	if w.writes++; w.writes != rapidFragments+1 {
		return w.hijackable.Write(p)
	}
	time.Sleep(time.Second)
	return 0, io.ErrClosedPipe
}

// A write that fails when the engine has finished already is no less a failure:
// the answer must not end as if it were whole. What waited behind it was handed
// to nobody.
func TestAWriteThatFailsBehindTheEngineIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		w := &lastWriteFails{hijackable{httptest.NewRecorder()}, 0}
		reports := make(chan ChatReport, 1)
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for range rapidFragments + 1 {
				yield("x", nil)
			}
			synctest.Wait()
			yield("behind", nil)
		})
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		is.True(serveOn(w, New(o), chatBodyJSON("hi", true))) // cut
		report := <-reports
		is.True(errors.Is(report.Err, io.ErrClosedPipe))
		is.Equal(report.Fragments, rapidFragments+1)
		is.Equal(report.Bytes, int64(rapidFragments+1))
		is.True(!strings.Contains(w.Body.String(), "[DONE]"))
	})
}

// A place is taken until the answer has ended, too: what a limit bounds is work,
// and a slow reader's answer is some.
func TestAPlaceIsHeldUntilTheAnswerHasEnded(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				returned := make(chan struct{}, 2)
				o := testOptions(t, t.Output())
				o.MaxChatsPerAccount = 1
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					yield(strings.Repeat("x", maxEvent/2), nil)
					returned <- struct{}{}
				})
				server := serveInMemory(t, New(o))
				conn := server.dial() // what it does not read waits in the server
				defer conn.Close()
				go func() { _ = chatRequest(t, "http://memory", "hi", stream).Write(conn) }()
				if !stream { // of a stream, the engine waits for its fragment to be written
					<-returned
				}
				synctest.Wait()
				is.Equal(ask(t, server, stream).status, 429)

				go func() { _, _ = io.Copy(io.Discard, conn) }()
				synctest.Wait()
				is.Equal(ask(t, server, stream).status, 200)
			})
		})
	}
}

// Middleware may say why a client left. It has left all the same.
func TestAClientThatLeavesForAReason(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var log testLog
				reports := make(chan ChatReport, 1)
				causes := make(chan error, 1)
				o := testOptions(t, &log)
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					<-ctx.Done()
					causes <- context.Cause(ctx)
					yield("", ctx.Err())
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				h := New(o)
				server := way.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx, cancel := context.WithCancelCause(r.Context())
					time.AfterFunc(time.Second, func() { cancel(fmt.Errorf("connection reset: %w", context.Canceled)) })
					h.ServeHTTP(w, r.WithContext(ctx))
				}))
				_, err := askAs(t.Context(), testKey, server, way.stream)
				is.True(err != nil)
				report := <-reports
				is.True(errors.Is(report.Err, ErrClientLeft))
				is.Equal(report.Status, 0)
				is.True(errors.Is(<-causes, ErrClientLeft))
				is.True(!strings.Contains(log.String(), "ERROR"))
			})
		})
	}
}

// An error answer is on its way before OnChat is called, which may be slow.
func TestAnErrorAnswerDoesNotWaitForOnChat(t *testing.T) {
	for _, protocol := range protocols {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(protocol, ", stream ", stream), func(t *testing.T) {
				is := is.New(t)
				read := make(chan struct{})
				o := testOptions(t, t.Output())
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errOverloaded) })
				o.OnChat = func(context.Context, ChatReport) { received(t, read, "the client to have its answer") }
				base, client := serveOver(t, protocol, New(o))
				res, err := client.Do(chatRequest(t, base, "hi", stream))
				is.NoErr(err)
				defer res.Body.Close()
				is.Equal(res.StatusCode, 529)
				body := make([]byte, res.ContentLength)
				_, err = io.ReadFull(res.Body, body)
				is.NoErr(err)
				is.Equal(string(body), `{"detail":"Overloaded"}`)
				close(read)
			})
		}
	}
}

// A lockedLog is a log handler that shares a lock with an engine.
type lockedLog struct {
	slog.Handler
	logging, locked chan struct{}
	mu              sync.Mutex
}

func (l *lockedLog) Handle(context.Context, slog.Record) error {
	close(l.logging)
	<-l.locked
	l.mu.Lock()
	defer l.mu.Unlock()
	return nil
}

func TestALogMayWantALockThatTheEngineHolds(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				log := &lockedLog{Handler: slog.NewTextHandler(io.Discard, nil), logging: make(chan struct{}), locked: make(chan struct{})}
				o := testOptions(t, io.Discard)
				o.Logger = slog.New(log)
				o.ChatTimeout = time.Second
				wanted := make(chan bool, 1)
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					yield("a", nil)
					<-log.logging
					log.mu.Lock()
					defer log.mu.Unlock()
					close(log.locked)
					wanted <- yield("b", nil)
				})
				_, _ = askAs(t.Context(), testKey, way.serve(t, New(o)), way.stream)
				is.Equal(<-wanted, false)
			})
		})
	}
}

// ChatTimeout bounds the sending of an answer, too: a reader that takes a little
// each half minute must not hold its place for hours.
func TestChatTimeoutBoundsSending(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				reports := make(chan ChatReport, 1)
				o := testOptions(t, io.Discard)
				o.KeepAlive, o.ChatTimeout = -1, 5*time.Minute
				o.Engine = fragmentsOf(strings.Repeat("x", 1<<20))
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				conn := serveInMemory(t, New(o)).dial()
				defer conn.Close()
				start := time.Now()
				is.NoErr(chatRequest(t, "http://memory", "hi", stream).Write(conn))
				var err error
				for err == nil {
					_, err = io.ReadFull(conn, make([]byte, maxWrite))
					time.Sleep(29 * time.Second)
				}
				report := <-reports
				is.True(errors.Is(report.Err, ErrChatTimeout))
				is.Equal(report.Status, 200)
				is.True(time.Since(start) < 8*time.Minute)
			})
		})
	}
}

// ChatTimeout is the engine's: what the host's other parts take does not count.
func TestChatTimeoutBeginsWithTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.ChatTimeout = time.Minute
		o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) {
			time.Sleep(time.Hour)
			return echoBot, nil
		}}
		o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			deadline, _ := ctx.Deadline()
			is.Equal(time.Until(deadline), time.Minute)
			select {
			case <-time.After(time.Minute - 1):
				yield("ok", nil)
			case <-ctx.Done():
			}
		})
		got := postChat(New(o), chatBodyJSON("hi", false))
		is.Equal(got.Code, 200)
		is.Equal(got.Body.String(), `{"content":"ok"}`)
	})
}

func TestStallTimeout(t *testing.T) {
	second := func(yield func(string, error) bool, fragments ...string) bool {
		for _, fragment := range fragments {
			time.Sleep(900 * time.Millisecond)
			if !yield(fragment, nil) {
				return false
			}
		}
		return true
	}
	for _, c := range []struct {
		name   string
		engine ChatEngine
		status int // 0: a stream breaks, one answer is a 504
		after  time.Duration
	}{
		{"an engine that says something in time", engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			second(yield, "", "a", "", "", "b")
			time.Sleep(900 * time.Millisecond)
		}), 200, 5400 * time.Millisecond},
		{"silence before the first fragment", engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			<-ctx.Done()
			yield("", ctx.Err())
		}), 504, time.Second},
		{"silence in Chat", ChatEngineFunc(func(ctx context.Context, _ *ChatRequest) iter.Seq2[string, error] {
			<-ctx.Done()
			return fragmentsOf("late").Chat(ctx, nil)
		}), 504, time.Second},
		{"silence behind fragments", engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			if second(yield, "a", "") {
				<-ctx.Done()
			}
		}), 0, 2800 * time.Millisecond},
	} {
		for _, way := range ways {
			t.Run(c.name+", "+way.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					reports := make(chan ChatReport, 1)
					o := testOptions(t, io.Discard)
					o.StallTimeout = time.Second
					o.Engine = c.engine
					o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
					got, _ := askAs(t.Context(), testKey, way.serve(t, New(o)), way.stream)
					status := c.status
					switch {
					case status == 0 && way.stream:
						status = 200
						is.True(!strings.Contains(got.body, "[DONE]"))
					case status == 0:
						status = 504
					}
					report := <-reports
					is.Equal(report.Status, status)
					is.Equal(report.Duration, c.after)
					is.Equal(report.Err == nil, c.status == 200)
					if report.Err != nil {
						is.True(errors.Is(report.Err, ErrEngineStalled))
						is.True(errors.Is(report.Err, context.DeadlineExceeded))
						is.True(!errors.Is(report.Err, ErrChatTimeout))
					}
				})
			})
		}
	}
}

// The time that a client takes to read is not its engine's silence.
func TestAStalledClientIsNoStalledEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		reports := make(chan ChatReport, 1)
		o := testOptions(t, io.Discard)
		o.KeepAlive, o.StallTimeout = -1, time.Second
		o.Engine = fragmentsOf(strings.Repeat("x", 100<<10), "y")
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		conn := serveInMemory(t, New(o)).dial()
		defer conn.Close()
		is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(conn))
		reader := bufio.NewReader(conn)
		for range 5 {
			time.Sleep(5 * time.Second)
			_, err := io.CopyN(io.Discard, reader, 10<<10)
			is.NoErr(err)
		}
		rest, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\n\r\n"), reader)), nil)
		is.NoErr(err)
		go func() { _, _ = io.Copy(io.Discard, rest.Body) }()
		is.NoErr((<-reports).Err)
	})
}

// Why a chat has ended is known to its engine and in its report, in the same
// words; what an engine says of another chat is not believed.
func TestReasons(t *testing.T) {
	sentinels := map[string]error{"left": ErrClientLeft, "stalled": ErrClientStalled, "timeout": ErrChatTimeout, "engine": ErrEngineStalled}
	for name, sentinel := range sentinels {
		is := is.New(t)
		matching := 0
		for _, other := range sentinels {
			if errors.Is(sentinel, other) {
				matching++
			}
		}
		is.Equal(matching, 1)

		var reported ChatReport
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("", fmt.Errorf("another chat (%s): %w", name, sentinel))
		})
		o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
		got := postChat(New(o), chatBodyJSON("hi", false))
		is.Equal(got.Code, 500)
		is.True(!errors.Is(reported.Err, sentinel))
		is.True(strings.Contains(reported.Err.Error(), "another chat ("+name))

		chosen := StatusError{Status: 503, Detail: "Upstream is slow", Err: sentinel}
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", chosen) })
		is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Body.String(), `{"detail":"Upstream is slow"}`)
		is.True(!errors.Is(reported.Err, sentinel))
	}
	is := is.New(t)
	is.True(errors.Is(ErrClientLeft, context.Canceled))
	is.True(errors.Is(ErrClientStalled, os.ErrDeadlineExceeded))
	is.True(errors.Is(ErrChatTimeout, context.DeadlineExceeded))
	is.True(errors.Is(ErrEngineStalled, context.DeadlineExceeded))
}

func TestCallbackEngine(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(ctx context.Context, req *ChatRequest, emit func(string) error) error
		body string
		err  error
	}{
		{"whole", func(_ context.Context, req *ChatRequest, emit func(string) error) error {
			return cmp.Or(emit("you said "), emit(""), emit(lastContent(req)))
		}, `{"content":"you said hi"}`, nil},
		{"silent", func(context.Context, *ChatRequest, func(string) error) error { return nil }, `{"content":""}`, nil},
		{"an error", func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
			return cmp.Or(emit("a"), error(errOverloaded))
		}, `{"detail":"Overloaded"}`, errOverloaded},
		{"a cancellation of its own", func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
			return cmp.Or(emit("a"), context.Canceled)
		}, `{"detail":"Internal Server Error"}`, context.Canceled},
		{"from another goroutine", func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
			emitted := make(chan error)
			go func() { emitted <- emit("elsewhere") }()
			return <-emitted
		}, `{"content":"elsewhere"}`, nil},
		{"a panic", func(context.Context, *ChatRequest, func(string) error) error { panic(errBroken) }, `{"detail":"Internal Server Error"}`, new(panicError)},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var reported ChatReport
			o := testOptions(t, io.Discard)
			o.Engine = CallbackEngine(c.f)
			o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
			is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Body.String(), c.body)
			is.True(sameEnd(reported.Err, c.err))
		})
	}
}

// emit says that nothing more is wanted, and why. What a function makes of that
// is no failure of its own, and what it emits when it has returned is lost.
func TestACallbackEngineThatIsToStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		emitted := make(chan error, 3)
		var emitLater func(string) error
		reports := make(chan ChatReport, 1)
		o := testOptions(t, io.Discard)
		o.ChatTimeout = time.Second
		o.Engine = CallbackEngine(func(ctx context.Context, _ *ChatRequest, emit func(string) error) error {
			emitLater = emit
			emitted <- emit("a")
			<-ctx.Done()
			emitted <- emit("b")
			return fmt.Errorf("streaming: %w", emit("c"))
		})
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		got := ask(t, serveInMemory(t, New(o)), true)
		is.Equal(got.body, "data: {\"content\":\"a\"}\n\nevent: error\ndata: {\"detail\":\"The answer took too long\"}\n\n")
		is.NoErr(<-emitted)
		is.True(errors.Is(<-emitted, ErrChatTimeout))
		is.True(errors.Is((<-reports).Err, ErrChatTimeout))
		is.True(emitLater("too late") != nil)
	})
}

// An engine may be made of another one. Then a range statement takes the
// fragments, which panics if its body is called once too often.
func TestACallbackEngineWithinAnother(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted int // fragments
		err    error
		yields []string
	}{
		{"to its end", 9, nil, []string{"a", "b"}},
		{"to its error", 9, errBroken, []string{"a", "b", "the model is broken"}},
		{"not to its end", 1, nil, []string{"a"}},
		{"not to its error", 1, errBroken, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var emitLater func(string) error
			engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
				emitLater = emit
				for _, text := range []string{"a", "b"} {
					is.Equal(emit(text) == nil, c.wanted > 1)
				}
				return c.err
			})
			var yields []string
			for text, err := range engine.Chat(t.Context(), &ChatRequest{}) {
				if err != nil {
					text += err.Error()
				}
				yields = append(yields, text)
				if len(yields) == c.wanted {
					break
				}
			}
			is.Equal(yields, c.yields)
			is.True(emitLater("too late") != nil)
		})
	}
}

// An engine that waits for its client hears that the time is up when it is, and
// not when the write that it waits for has ended.
func TestAWaitingEngineIsToldAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		told, wanted := make(chan time.Duration, 1), false
		o := testOptions(t, io.Discard)
		o.ChatTimeout = time.Second
		o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			began := time.Now()
			for yield(strings.Repeat("x", 1<<10), nil) {
				wanted = wanted || ctx.Err() != nil
			}
			told <- time.Since(began)
		})
		conn := serveInMemory(t, New(o)).dial()
		defer conn.Close()
		is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(conn))
		_, err := io.ReadFull(conn, make([]byte, 100<<10)) // then another goroutine writes
		is.NoErr(err)
		is.Equal(<-told, time.Second)
		is.True(!wanted) // nothing more of an answer that has ended
	})
}

// OnChat may take longer than WriteTimeout: what net/http writes behind it has
// its own.
func TestASlowOnChatSpoilsNoAnswer(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.OnChat = func(context.Context, ChatReport) { time.Sleep(time.Hour) }
				got := ask(t, way.serve(t, New(o)), way.stream)
				is.NoErr(got.err)
				is.Equal(got.status, 200)
				time.Sleep(2 * time.Hour) // OnChat has returned
			})
		})
	}
}

// A client that leaves long after the last write was there until then.
func TestAClientThatLeavesInTheSilence(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				reports := make(chan ChatReport, 1)
				o := testOptions(t, io.Discard)
				o.ChatTimeout, o.KeepAlive = -1, -1
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					yield("a", nil)
					<-ctx.Done()
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				ctx, leave := context.WithTimeout(t.Context(), time.Hour)
				defer leave()
				_, _ = askAs(ctx, testKey, way.serve(t, New(o)), way.stream)
				report := <-reports
				is.True(errors.Is(report.Err, ErrClientLeft))
				is.Equal(report.Duration, time.Hour)
			})
		})
	}
}

// An account whose chats have all ended is forgotten, and not before.
func TestAccountsAreForgotten(t *testing.T) {
	is := is.New(t)
	for _, limit := range []int64{0, 2} {
		p := newPlaces(0, limit)
		chats := make([]place, 3)
		is.NoErr(chats[0].take(p, "a"))
		is.NoErr(chats[1].take(p, "a"))
		end := func(chat *place) { chat.release(); chat.release() }
		end(&chats[0])
		is.NoErr(chats[0].take(p, "a"))
		is.Equal(chats[2].take(p, "a") != nil, limit > 0)
		end(&chats[0])
		end(&chats[1])
		is.Equal(len(p.taken), 0)
	}
}

func TestNothingIsWantedAfterAnError(t *testing.T) {
	is := is.New(t)
	wanted := make(chan []bool, 1)
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		wanted <- []bool{yield("", errOverloaded), yield("more", nil), yield("", io.EOF)}
	})
	is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Code, 529)
	is.Equal(received(t, wanted, "the engine to end"), []bool{false, false, false})
}

// Where nothing bounds a write, ChatTimeout does. Else WriteTimeout does, and may
// be exceeded by an eighth.
func TestAWriteIsBounded(t *testing.T) {
	for _, c := range []struct{ chat, write, took time.Duration }{
		{4 * time.Second, -1, 4500 * time.Millisecond},
		{time.Minute, 4 * time.Second, 4500 * time.Millisecond},
		{time.Hour, time.Minute, 61 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			reports := make(chan ChatReport, 1)
			o := testOptions(t, io.Discard)
			o.ChatTimeout, o.WriteTimeout = c.chat, c.write
			o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
			conn := serveInMemory(t, New(o)).dial() // whose client does not read
			defer conn.Close()
			is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(conn))
			is.Equal((<-reports).Duration, c.took)
		})
	}
}

// An engine may change its request, and changes nothing for anyone else by that.
func TestAChangedRequestChangesNoReport(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			is := is.New(t)
			var reported ChatReport
			var log testLog
			o := testOptions(t, &log)
			o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
				*req = ChatRequest{UserID: "nobody", Stream: !req.Stream}
				yield("ok", nil)
			})
			o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
			got := way.do(t, New(o), "POST", "/v1/chat", fmt.Sprintf(`{"bot_slug":"echo","prompt":"p","stream":%t,"user_id":7}`, way.stream))
			is.Equal(got.status, 200)
			is.Equal(reported.UserID, "7")
			is.Equal(reported.Bot, echoBot)
			is.Equal(reported.Stream, way.stream)
			is.Equal(strings.Contains(log.String(), "cannot flush"), way.stream && way.hides)
		})
	}
}

// A function that has panicked has returned: an engine around it may go on, and
// then nothing that still emits comes between.
func TestACallbackEngineThatPanicsIsOver(t *testing.T) {
	is := is.New(t)
	var emitLater func(string) error
	engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
		emitLater = emit
		panic(errBroken)
	})
	func() {
		defer func() { is.Equal(recover(), errBroken) }()
		engine.Chat(t.Context(), &ChatRequest{})(func(string, error) bool {
			t.Error("a fragment behind the end")
			return true
		})
	}()
	is.True(emitLater("too late") != nil)
}

// What still emits when the function of an engine returns is waited for: the
// engine is not over before.
func TestACallbackEngineEndsWithItsLastYield(t *testing.T) {
	is := is.New(t)
	yielding, yielded := make(chan struct{}), false
	engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
		go emit("a")
		<-yielding
		return nil
	})
	engine.Chat(t.Context(), &ChatRequest{})(func(string, error) bool {
		close(yielding)
		for range 1000 {
			runtime.Gosched()
		}
		yielded = true
		return true
	})
	is.True(yielded)
}

// An account may have the empty name: it is counted as any other.
func TestAnAccountWithoutANameHasItsLimit(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.MaxChatsPerAccount = 1
	o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return "", nil })
	var h http.Handler
	statuses, nested := make(chan int, 1), false
	o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
		if !nested {
			nested = true
			statuses <- postChat(h, chatBodyJSON("hi", false)).Code
		}
	})
	h = New(o)
	is.Equal(postChat(h, chatBodyJSON("hi", false)).Code, 200)
	is.Equal(<-statuses, 429)
}

// A context says whose it is as long as somebody keeps it.
func TestContextsOutliveTheirRequests(t *testing.T) {
	is := is.New(t)
	kept := make(map[string]context.Context)
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		kept[RequestIDFrom(ctx)] = ctx
		yield("ok", nil)
	})
	h := New(o)
	for i := range 20 { // a pool does not return each thing to the next who asks
		r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", i%2 == 0)))
		r.Header.Set("Authorization", "Bearer "+testKey)
		r.Header.Set("X-Request-Id", fmt.Sprint("r-", i))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	is.Equal(len(kept), 20)
	for id, ctx := range kept {
		is.Equal(RequestIDFrom(ctx), id)
		is.Equal(AccountFrom(ctx), testAccount)
	}
}

// What the host has given as its reason stands before what lies behind it.
func TestAHostsStatusErrorBecauseOfADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) { <-ctx.Done() })
		h := New(o)
		server := serveInMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			cause := StatusError{Status: 402, Detail: "Your minute is over", Err: fmt.Errorf("budget: %w", context.DeadlineExceeded)}
			ctx, cancel := context.WithTimeoutCause(r.Context(), time.Second, cause)
			defer cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		}))
		got := ask(t, server, false)
		is.Equal(got.status, 402)
		is.Equal(got.body, `{"detail":"Your minute is over"}`)
	})
}
