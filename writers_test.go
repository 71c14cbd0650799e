package botapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// A lockstep engine yields the next fragment only when its client has read the
// one before: a stream that is held back anywhere never ends.
type lockstep struct{ read chan struct{} }

const lockstepFragments = 20

func newLockstep() lockstep { return lockstep{make(chan struct{})} }

func (l lockstep) engine() ChatEngine {
	return engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for i := range lockstepFragments {
			if !yield(fmt.Sprint(i, " "), nil) {
				return
			}
			select {
			case <-l.read:
			case <-ctx.Done():
				return
			}
		}
	})
}

// follow reads a stream fragment by fragment, to its end.
func (l lockstep) follow(t testing.TB, body io.Reader) {
	t.Helper()
	lines := bufio.NewScanner(body)
	next := 0
	for lines.Scan() {
		switch line := lines.Text(); line {
		case "", ": keep-alive":
		case "data: [DONE]":
			if next != lockstepFragments {
				t.Errorf("the stream ended after %d fragments", next)
			}
			return
		default:
			if want := fmt.Sprintf(`data: {"content":"%d "}`, next); line != want {
				t.Fatalf("read %q, want %q", line, want)
			}
			next++
			select {
			case l.read <- struct{}{}:
			case <-time.After(10 * time.Second):
				t.Fatal("the engine has given up")
			}
		}
	}
	t.Fatalf("the stream broke after %d fragments: %v", next, lines.Err())
}

// hangLimit bounds a request of a test whose stream may hang.
func hangLimit(t testing.TB, r *http.Request) *http.Request {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return r.WithContext(ctx)
}

func TestWriterFragmentsArriveOneByOne(t *testing.T) {
	for name, middleware := range map[string]func(http.Handler) http.Handler{
		"nothing around it":                    func(h http.Handler) http.Handler { return h },
		"writers that only unwrap, three deep": func(h http.Handler) http.Handler { return wrapped(wrapped(wrapped(h))) },
		"compression that flushes":             compressed,
		"recovery that passes http.ErrAbortHandler on": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if serveRequest(w, h, r) {
					panic(http.ErrAbortHandler)
				}
			})
		},
	} {
		for _, protocol := range protocols {
			t.Run(protocol+", "+name, func(t *testing.T) {
				is := is.New(t)
				steps := newLockstep()
				o := testOptions(t, io.Discard)
				o.Engine = steps.engine()
				base, client := serveOver(t, protocol, middleware(New(o)))
				res, err := client.Do(hangLimit(t, chatRequest(t, base, "hi", true))) // net/http's client decompresses
				is.NoErr(err)
				defer res.Body.Close()
				is.Equal(res.Uncompressed, name == "compression that flushes")
				steps.follow(t, res.Body)
			})
		}
	}
}

// wrapped hides everything of a writer but its methods and Unwrap.
func wrapped(h http.Handler) http.Handler {
	return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return unwrapper{w} })
}

type unwrapper struct{ http.ResponseWriter }

func (w unwrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// compressed is gzip middleware as there is much of it.
func compressed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		zipped := gzipWriter{w, gzip.NewWriter(w)}
		defer zipped.to.Close()
		w.Header().Set("Content-Encoding", "gzip")
		h.ServeHTTP(zipped, r)
	})
}

type gzipWriter struct {
	http.ResponseWriter
	to *gzip.Writer
}

func (w gzipWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func (w gzipWriter) Write(p []byte) (int, error) { return w.to.Write(p) }

func (w gzipWriter) FlushError() error {
	if err := w.to.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w gzipWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// buffered is middleware that holds an answer back until it is whole, to sign it
// or to count it. It hands on no Flush, though what is behind it could.
func buffered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held := &bufferedWriter{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(held, r)
		w.WriteHeader(held.status)
		_, _ = held.body.WriteTo(w)
	})
}

type bufferedWriter struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (w *bufferedWriter) WriteHeader(status int)      { w.status = status }
func (w *bufferedWriter) Write(p []byte) (int, error) { return w.body.Write(p) }
func (w *bufferedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// unsupporting is middleware whose writer says only when it is asked that it
// cannot flush.
func unsupporting(h http.Handler) http.Handler {
	return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return unsupportingWriter{w} })
}

type unsupportingWriter struct{ http.ResponseWriter }

func (w unsupportingWriter) FlushError() error {
	return fmt.Errorf("this writer: %w", errors.ErrUnsupported)
}

// What middleware does with an answer is its own: the handler's flush neither
// begins a body where there is none, nor sends a status that is not decided yet,
// nor is one that cannot be made a failure.
func TestWriterMiddleware(t *testing.T) {
	for name, middleware := range map[string]func(http.Handler) http.Handler{
		"compression":                  compressed,
		"a buffer":                     buffered,
		"a buffer within compression":  func(h http.Handler) http.Handler { return compressed(buffered(h)) },
		"a writer that only unwraps":   wrapped,
		"a writer that cannot flush":   unflushable,
		"a writer that says it cannot": unsupporting,
		"http.TimeoutHandler":          timeLimited,
	} {
		for _, protocol := range protocols {
			t.Run(protocol+", "+name, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
					yield("hi", map[string]error{"busy": errOverloaded}[lastContent(req)])
				})
				base, client := serveOver(t, protocol, middleware(New(o)))
				for _, c := range []struct {
					method, path, body string
					header             []string
					status             int
					answer             string
				}{
					{"GET", "/v1/bots", "", nil, 200, listedBots},
					{"HEAD", "/v1/bots", "", nil, 200, ""},
					{"GET", "/v1/bots", "", []string{"If-None-Match", "*"}, 304, ""},
					{"GET", "/v1/bots", "", []string{"Authorization", "-"}, 401, `{"detail":"Not authenticated"}`},
					{"HEAD", "/v1/bots", "", []string{"Authorization", "-"}, 401, ""},
					{"GET", "/v1/chat", "", nil, 405, `{"detail":"Method Not Allowed"}`},
					{"POST", "/v1/chat", chatBodyJSON("hi", false), nil, 200, `{"content":"hi"}`},
					{"POST", "/v1/chat", chatBodyJSON("busy", false), nil, 529, `{"detail":"Overloaded"}`},
					{"POST", "/v1/chat", chatBodyJSON("busy", true), nil, 529, `{"detail":"Overloaded"}`},
				} {
					got := doAt(t, client, base, c.method, c.path, c.body, c.header...)
					is.NoErr(got.err)
					is.Equal(got.status, c.status)
					is.Equal(got.body, c.answer)
				}
			})
		}
	}
}

// A stream that breaks is cut behind every middleware that passes
// http.ErrAbortHandler on, even one that ends its own format properly.
func TestWriterCompressionBrokenStream(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.Engine = failing(errBroken, "a")
				client := clientInMemory(t, protocol, compressed(New(o)), nil)
				got := doAt(t, client, "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", true))
				is.Equal(got.body, data("a")+broken("Internal Server Error"))
				is.True(got.err != nil)
			})
		})
	}
}

// unflushable hides all of a writer's optional methods.
func unflushable(h http.Handler) http.Handler { return way{hides: true}.mount(h) }

func timeLimited(h http.Handler) http.Handler {
	return http.TimeoutHandler(h, 30*time.Second, "too slow")
}

// Where the writer cannot flush, a stream comes whole at its end, or as far as it
// got, and one warning says why.
func TestWriterCannotFlush(t *testing.T) {
	some := slices.Repeat([]string{"some text "}, 1000)
	for name, middleware := range map[string]func(http.Handler) http.Handler{"no Flusher": unflushable, "http.TimeoutHandler": timeLimited} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				for _, c := range []struct {
					engine   ChatEngine
					stream   bool
					body     string
					warnings int
				}{
					{fragmentsOf(some...), false, jsonStart + strings.Join(some, "") + jsonEnd, 0},
					{fragmentsOf(some...), true, strings.Repeat(data("some text "), 1000) + terminator, 1},
					{failing(errBroken, "some text "), true, data("some text ") + broken("Internal Server Error"), 1},
				} {
					w := httptest.NewRecorder()
					var log testLog
					o := testOptions(t, &log)
					o.Engine = c.engine
					if cut := serveOn(w, middleware(New(o)), chatBodyJSON("hi", c.stream)); cut && name == "http.TimeoutHandler" {
						continue // it drops what it held back
					}
					is.Equal(w.Code, 200)
					is.Equal(w.Header().Get("Content-Type") == "text/event-stream", c.stream)
					is.Equal(w.Body.String(), c.body)
					is.Equal(strings.Count(log.String(), "level=WARN"), c.warnings)
					is.Equal(strings.Count(log.String(), "cannot flush"), c.warnings)
					is.Equal(strings.Count(log.String(), "request_id="+w.Header().Get("X-Request-Id")), strings.Count(log.String(), "\n"))
				}
			})
		})
	}
}

// http.TimeoutHandler ends the request's context: the engine hears of it, and
// nothing is written behind the handler's back.
func TestWriterTimeoutHandler(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				reports := make(chan ChatReport, 1)
				o := testOptions(t, io.Discard)
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for yield("a", nil) {
						time.Sleep(time.Millisecond)
					}
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				got := ask(t, serveInMemory(t, http.TimeoutHandler(New(o), 50*time.Millisecond, "too slow")), stream)
				is.Equal(got.status, 503)
				is.Equal(got.body, "too slow")
				is.True(errors.Is((<-reports).Err, context.DeadlineExceeded))
				time.Sleep(time.Second) // the handler, too, has returned
			})
		})
	}
}

// A faultyWriter works until one of its methods is called the given number of
// times. From then on, each call begins with the fault.
type faultyWriter struct {
	*httptest.ResponseRecorder
	method string
	after  int
	fault  func() error

	wroteHeader bool
	writes      []string
}

func faulty(method string, after int, fault func() error) *faultyWriter {
	return &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: after, fault: fault}
}

// faults are what the host's writer may do instead of its work.
var faults = map[string]func() error{"fails": faultFails, "panics": faultPanics, "exits": faultExits}

func faultFails() error  { return errors.New("broken pipe") }
func faultPanics() error { panic("a bug in the writer") }
func faultExits() error  { runtime.Goexit(); return nil }

// takes is a fault that is none, but slow.
func takes(d time.Duration) func() error { return func() error { time.Sleep(d); return nil } }

func (w *faultyWriter) call(method string) error {
	if method != w.method {
		return nil
	}
	if w.after--; w.after >= 0 {
		return nil
	}
	return w.fault()
}

func (w *faultyWriter) Write(p []byte) (int, error) {
	if !w.wroteHeader {
		w.WriteHeader(http.StatusOK)
	}
	if err := w.call("Write"); err != nil {
		return 0, err
	}
	w.writes = append(w.writes, string(p))
	return w.ResponseRecorder.Write(p)
}

func (w *faultyWriter) WriteHeader(status int) {
	w.wroteHeader = true
	_ = w.call("WriteHeader")
	w.ResponseRecorder.WriteHeader(status)
}

func (w *faultyWriter) Header() http.Header {
	_ = w.call("Header")
	return w.ResponseRecorder.Header()
}

func (w *faultyWriter) FlushError() error                  { return w.call("Flush") }
func (w *faultyWriter) SetReadDeadline(time.Time) error    { return w.call("SetReadDeadline") }
func (w *faultyWriter) SetWriteDeadline(t time.Time) error { return w.call("SetWriteDeadline") }

// errExited stands for a handler whose goroutine was ended.
var errExited = errors.New("the handler's goroutine was ended")

// A stream that never ends is ended by a writer that fails, whichever goroutine
// calls it.
func TestWriterFails(t *testing.T) {
	for _, method := range []string{"Write", "Flush"} {
		for name, fault := range faults {
			for after := range 10 { // the first few are the engine's goroutine's, the others the handler's
				t.Run(fmt.Sprintf("%s %s after %d", method, name, after), func(t *testing.T) {
					is := is.New(t)
					ended, taken := make(chan struct{}), 0
					var cause error
					got := playOn(t, faulty(method, after, fault), true, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						defer close(ended)
						for yield("some text", nil) {
							taken++
						}
						<-ctx.Done()
						cause = context.Cause(ctx)
					}))
					<-ended
					is.True(got.err != nil)
					is.True(got.report(t).Err != nil)
					is.True(!readStream(t, got.body).done)
					if name != "exits" { // which may be the engine's goroutine
						is.True(errors.Is(cause, ErrClientLeft))
					}
					if after < burstAfter { // written in place
						is.Equal(taken, after)
					}
				})
			}
		}
	}
}

// Any answer may meet a writer that fails, panics or ends its goroutine: it is cut,
// so that it does not look whole, and reported with what the client has got. What
// the client must not see is logged all the same.
func TestWriterFailsAnyAnswer(t *testing.T) {
	for answer, engine := range map[string]ChatEngine{
		"nothing":           fragmentsOf(),
		"a text":            fragmentsOf("a"),
		"an error":          failing(errBroken),
		"a bad request":     failing(HTTPValidationError{}),
		"an error to retry": failing(StatusError{Status: 503, RetryAfter: time.Second, Err: errBroken}),
	} {
		for _, stream := range []bool{false, true} {
			for _, method := range []string{"Header", "WriteHeader", "Write", "Flush"} {
				for name, fault := range faults {
					if name == "fails" && strings.HasSuffix(method, "Header") {
						continue // it has no way to
					}
					t.Run(fmt.Sprint(answer, ", stream ", stream, ", ", method, " ", name), func(t *testing.T) {
						isError := !slices.Contains([]string{"nothing", "a text"}, answer)
						after := 0
						if method == "Header" {
							after = 1 // the first is before the chat
						}
						for reached := true; reached; after++ {
							is := is.New(t)
							reached = false
							got := playOn(t, faulty(method, after, func() error { reached = true; return fault() }), stream, engine)
							is.Equal(got.err != nil, reached)
							is.Equal(strings.Contains(got.log, "a bug in the writer"), reached && name == "panics")
							is.Equal(strings.Contains(got.log, errBroken.Error()), isError && answer != "a bad request")
							report := got.report(t)
							is.Equal(report.Err != nil, reached || isError)
							is.Equal(errors.Is(report.Err, ErrClientLeft), reached && !isError)
							if isError {
								is.Equal(report.Status, map[bool]int{false: got.status}[reached])
							}
						}
					})
				}
			}
		}
	}
}

// Deadlines are more than a writer need have: it may panic when it is asked for
// them. If it ends the handler's goroutine, that costs no place.
func TestWriterDeadlinesFail(t *testing.T) {
	fragments := []string{"a", "b", "c", "d", "e"}
	for _, method := range []string{"SetReadDeadline", "SetWriteDeadline"} {
		for after := range 4 {
			for _, stream := range []bool{false, true} {
				is := is.New(t)
				got := playRequestOn(t, faulty(method, after, faultPanics), overHTTP2(chatRequest(t, "", "hi", stream)), fragmentsOf(fragments...))
				is.NoErr(got.err)
				is.True(strings.Contains(got.body, "e"))
				is.True(strings.Count(got.log, "\n") <= 2) // once for each kind of deadline
				playRequestOn(t, faulty(method, after, faultExits), overHTTP2(chatRequest(t, "", "hi", stream)), fragmentsOf(fragments...))
			}
		}
	}
}

// overHTTP2 makes a request one that came over HTTP/2.
func overHTTP2(r *http.Request) *http.Request {
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	return r
}

// A lingeringWriter fails, and still reads what it was given: that of HTTP/2
// returns when its stream is reset, though a frame of it is being written.
type lingeringWriter struct {
	http.ResponseWriter
	given []byte
}

func (w *lingeringWriter) Write(p []byte) (int, error) {
	w.given = p
	return 0, errBroken
}

// What a failed write was given is not used again: it could go out to that
// client with the text of another's.
func TestWriterBufferIsNotUsedAgain(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Bots = &fakeStore{
		bots:   func(ctx context.Context) ([]Bot, error) { return []Bot{{Name: RequestIDFrom(ctx)}}, nil },
		bySlug: func(context.Context, string) (Bot, error) { return Bot{}, nil },
	}
	h := New(o)
	for what, request := range map[string]func(text string) *http.Request{
		"a stream": func(text string) *http.Request { return chatRequest(t, "", text, true) },
		"one body": func(text string) *http.Request { return chatRequest(t, "", text, false) },
		"a list": func(text string) *http.Request {
			r := httptest.NewRequest("GET", "/v1/bots", nil)
			r.Header = http.Header{"Authorization": {"Bearer " + testKey}, "X-Request-Id": {text}}
			return r
		},
	} {
		t.Run(what, func(t *testing.T) {
			is := is.New(t)
			for range 20 { // a pool does not return each buffer to the next who asks
				w := &lingeringWriter{ResponseWriter: httptest.NewRecorder()}
				serveRequest(w, h, request("mine"))
				serveRequest(httptest.NewRecorder(), h, request("ours"))
				is.True(strings.Contains(string(w.given), "mine"))
			}
		})
	}
}

// An exitingContext ends the goroutine that asks why it has ended.
type exitingContext struct{ context.Context }

func (exitingContext) Err() error {
	runtime.Goexit()
	return nil
}

// A host that ends the handler's goroutine in the middle of a chat leaves
// nothing behind: no engine that is never told, no keep-alive that writes when
// the handler has returned.
func TestWriterExitsInTheHandler(t *testing.T) {
	for _, place := range []string{"the context's Err", "SetWriteDeadline"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(place, ", stream ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					ctx, leave := context.WithCancel(t.Context())
					var left atomic.Bool
					time.AfterFunc(time.Second, func() { left.Store(true); leave() })
					r := chatRequest(t, "", "hi", stream).WithContext(ctx)
					if place == "the context's Err" {
						r = r.WithContext(exitingContext{ctx})
					}
					w := faulty(place, 0, func() error {
						if left.Load() {
							runtime.Goexit()
						}
						return nil
					})
					told := false
					got := playRequestOn(t, w, r, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						<-ctx.Done()
						told = true
					}))
					is.Equal(got.err, errExited)
					is.True(told)
					is.True(got.report(t).Err != nil)
					time.Sleep(time.Hour)
					is.Equal(len(w.writes), 0)
				})
			})
		}
	}
}

// A writer that keeps no deadline is called no more when what the client is still
// owed has had its WriteTimeout: here, one queued write is begun, and no error event.
func TestWriterWithoutDeadlinesIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		w := faulty("Write", 0, takes(20*time.Second))
		got := playOn(t, w, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for _, fragment := range []string{"a", "b", "c", "d"} {
				yield(fragment, nil)
			}
			time.Sleep(time.Second) // a burst writes the last
			yield("e", nil)
			yield("", errBroken)
		}), func(o *Options) { o.KeepAlive = -1 })
		is.True(got.err != nil) // cut
		is.Equal(got.report(t).Err, errBroken)
		is.Equal(got.body, data("a")+data("b")+data("c")+data("d")+data("e"))
	})
}

// A faultyContext is one of the host's middleware.
type faultyContext struct{ context.Context }

func (faultyContext) Done() <-chan struct{} { panic("a bug in the middleware") }

func TestHostContextPanicsWithoutASlot(t *testing.T) {
	is := is.New(t)
	r := chatRequest(t, "", "hi", false)
	got := playRequestOn(t, httptest.NewRecorder(), r.WithContext(faultyContext{r.Context()}), fragmentsOf("a"))
	is.NoErr(got.err)
	is.Equal(got.status, 500)
	is.Equal(len(got.reports), 0)
}

// Half of a refusal must not look like all of it, whatever the server makes of a
// handler that returns. A writer that panics is the writer's failure and no other.
func TestWriterFailsARefusal(t *testing.T) {
	for name, c := range map[string]struct{ method, path, key string }{
		"a bad body":     {"POST", "/v1/chat", testKey},
		"a bad key":      {"GET", "/v1/bots", "wrong"},
		"a wrong method": {"GET", "/v1/chat", testKey},
	} {
		for _, method := range []string{"Header", "WriteHeader", "Write", "Flush"} {
			t.Run(name+", "+method, func(t *testing.T) {
				for after, reached := 0, true; reached; after++ {
					is := is.New(t)
					reached = false
					var log testLog
					r := httptest.NewRequest(c.method, c.path, strings.NewReader("{}"))
					r.Header.Set("Authorization", "Bearer "+c.key)
					w := faulty(method, after, func() error { reached = true; return faultPanics() })
					is.Equal(serveRequest(w, New(testOptions(t, &log)), r), reached)
					is.Equal(strings.Contains(log.String(), "a bug in the writer"), reached)
				}
			})
		}
	}
}

// The first keep-alive may fail before the engine has begun.
func TestWriterFailsInAKeepAlive(t *testing.T) {
	is := is.New(t)
	for range 300 {
		got := playOn(t, faulty("Write", 0, faultFails), true, fragmentsOf("a"), func(o *Options) { o.KeepAlive = 1 })
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, "")
		is.True(errors.Is(got.report(t).Err, ErrClientLeft))
	}
}

// A deadlineWriter is a connection over HTTP/2 of which every write after the
// first so many lasts until its deadline, or as long as the test wants. The end
// of its time ends the request, too.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
	fast  int           // writes that take no time
	slow  time.Duration // of the first after these; 0: to its deadline

	deadline *time.Timer
	passed   chan struct{}
}

func (w *deadlineWriter) SetWriteDeadline(at time.Time) error {
	if w.deadline != nil {
		w.deadline.Stop()
	}
	w.passed = make(chan struct{})
	if !at.IsZero() {
		passed := w.passed
		w.deadline = time.AfterFunc(time.Until(at), func() { w.leave(); close(passed) })
	}
	return nil
}

func (w *deadlineWriter) Write(p []byte) (int, error) {
	if w.fast--; w.fast >= 0 {
		return w.ResponseRecorder.Write(p)
	}
	if slow := w.slow; slow > 0 {
		w.slow = 0
		time.Sleep(slow)
		return w.ResponseRecorder.Write(p)
	}
	<-w.passed
	time.Sleep(time.Second) // the request has ended before the write returns
	return 0, os.ErrDeadlineExceeded
}

// A write that has had its time ends the request on HTTP/2. That is no client
// that has left. When one has, no other write may last.
func TestClientStallsOrLeavesDuringAWrite(t *testing.T) {
	for name, c := range map[string]struct {
		slow, leaves time.Duration
		want         error
	}{
		"stalls": {0, time.Hour, ErrClientStalled},
		"leaves": {3 * time.Second, 2 * time.Second, ErrClientLeft},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				ctx, leave := context.WithCancel(t.Context())
				defer time.AfterFunc(c.leaves, leave).Stop()
				w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder(), leave: leave, fast: burstAfter, slow: c.slow}
				var cause error
				got := playRequestOn(t, w, overHTTP2(chatRequest(t, "", "hi", true).WithContext(ctx)), engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					time.Sleep(time.Second)
					for range burstAfter + 1 {
						yield("x", nil)
					}
					time.Sleep(time.Nanosecond) // the last of these is being written
					yield("behind", nil)
					<-ctx.Done()
					cause = context.Cause(ctx)
				}))
				is.True(errors.Is(got.report(t).Err, c.want))
				is.True(errors.Is(cause, c.want))
				is.True(got.report(t).Duration <= time.Second+DefaultWriteTimeout+2*time.Second)
			})
		})
	}
}

// A leftWriter is one of a client that has left during a write that is taken
// nevertheless.
type leftWriter struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
	past  chan struct{}

	deadlines []time.Time // behind the client's back
}

func (w *leftWriter) Write(p []byte) (int, error) {
	w.leave()
	<-w.past
	return w.ResponseRecorder.Write(p)
}

func (w *leftWriter) SetWriteDeadline(at time.Time) error {
	select {
	case <-w.past:
		w.deadlines = append(w.deadlines, at)
	default:
		if at.Before(time.Now()) && !at.IsZero() {
			close(w.past)
		}
	}
	return nil
}

// What is written to a client that has left is not given more time.
func TestClientLeavesAndNoDeadlineMoves(t *testing.T) {
	for major := 1; major <= 2; major++ {
		is := is.New(t)
		ctx, leave := context.WithCancel(t.Context())
		w := &leftWriter{ResponseRecorder: httptest.NewRecorder(), leave: leave, past: make(chan struct{})}
		r := chatRequest(t, "", "hi", true).WithContext(ctx)
		r.ProtoMajor = major
		is.Equal(playRequestOn(t, w, r, fragmentsOf("a")).err, http.ErrAbortHandler)
		is.Equal(len(w.deadlines), 0)
	}
}
