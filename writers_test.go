package botapi

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
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

func TestFragmentsArriveOneByOne(t *testing.T) {
	middleware := map[string]func(http.Handler) http.Handler{
		"nothing around it": func(h http.Handler) http.Handler { return h },
		"writers that only unwrap, three deep": func(h http.Handler) http.Handler {
			return wrapped(wrapped(wrapped(h)))
		},
		"compression that flushes": compressed,
		"recovery that passes http.ErrAbortHandler on": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer func() {
					if v := recover(); v != nil {
						panic(v)
					}
				}()
				h.ServeHTTP(w, r)
			})
		},
	}
	for _, protocol := range protocols {
		for name, middleware := range middleware {
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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(unwrapper{w}, r) })
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

// A stream that breaks is cut behind every middleware that passes
// http.ErrAbortHandler on, even one that ends its own format properly.
func TestABrokenStreamIsCutBehindCompression(t *testing.T) {
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, io.Discard)
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				yield("a", nil)
				yield("", errors.New("died"))
			})
			base, client := serveOver(t, protocol, compressed(New(o)))
			got := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true))
			is.Equal(got.body, data("a")+broken("Internal Server Error"))
			is.True(got.err != nil)
		})
	}
}

// unflushable hides all of a writer's optional methods.
func unflushable(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
	})
}

func timeLimited(h http.Handler) http.Handler {
	return http.TimeoutHandler(h, 30*time.Second, "too slow")
}

// Where the writer cannot flush, a stream comes whole at its end, and one
// warning says why.
func TestAWriterThatCannotFlush(t *testing.T) {
	for name, middleware := range map[string]func(http.Handler) http.Handler{"no Flusher": unflushable, "http.TimeoutHandler": timeLimited} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				for range 1000 {
					yield("some text ", nil)
				}
			})
			h := middleware(New(o))
			whole := do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", false))
			is.Equal(whole.status, 200)
			is.Equal(whole.body, `{"content":"`+strings.Repeat("some text ", 1000)+`"}`)
			is.Equal(log.String(), "")

			stream := do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", true))
			is.Equal(stream.status, 200)
			is.Equal(stream.header.Get("Content-Type"), "text/event-stream")
			is.NoErr(stream.err)
			is.Equal(stream.body, strings.Repeat(data("some text "), 1000)+terminator)
			is.Equal(strings.Count(log.String(), "\n"), 1)
			is.True(strings.Contains(log.String(), "level=WARN"))
			is.True(strings.Contains(log.String(), "cannot flush"))
			is.True(strings.Contains(log.String(), "request_id="+stream.header.Get("X-Request-Id")))
		})
	}
}

// http.TimeoutHandler ends the request's context: the engine hears of it, and
// nothing is written behind the handler's back.
func TestATimeoutHandlerThatFires(t *testing.T) {
	engines := map[string]ChatEngine{
		"an engine that waits": engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("a", nil)
			<-ctx.Done()
			yield("too late", nil)
		}),
		"an engine that talks": engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for yield("a", nil) {
				time.Sleep(time.Millisecond)
			}
		}),
	}
	for name, engine := range engines {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					reports := make(chan ChatReport, 1)
					o := testOptions(t, io.Discard)
					o.Engine = engine
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
}

func TestAResponseRecorder(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("a", "b")
	stream, whole := serveInProcess(t, New(o), true), serveInProcess(t, New(o), false)
	is.Equal(stream.Code, 200)
	is.True(stream.Flushed)
	is.Equal(stream.Body.String(), data("a")+data("b")+terminator)
	is.Equal(whole.Body.String(), `{"content":"ab"}`)
}

// A faultyWriter works until one of its methods is called the given number of
// times.
type faultyWriter struct {
	*httptest.ResponseRecorder
	method string
	after  int
	fault  func() error

	wroteHeader bool
}

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
	return w.ResponseRecorder.Write(p)
}

func (w *faultyWriter) WriteHeader(status int) {
	w.wroteHeader = true
	_ = w.call("WriteHeader")
	w.ResponseRecorder.WriteHeader(status)
}

func (w *faultyWriter) FlushError() error                  { return w.call("Flush") }
func (w *faultyWriter) SetReadDeadline(time.Time) error    { return w.call("SetReadDeadline") }
func (w *faultyWriter) SetWriteDeadline(t time.Time) error { return w.call("SetWriteDeadline") }

// A writer that fails or panics, whichever goroutine calls it, ends its own
// chat and nothing else.
func TestAFaultyWriter(t *testing.T) {
	faults := map[string]func() error{
		"fails":              func() error { return errors.New("broken pipe") },
		"panics":             func() error { panic("a bug in the writer") },
		"ends its goroutine": func() error { runtime.Goexit(); return nil },
	}
	for _, method := range []string{"Write", "Flush"} {
		for verb, fault := range faults {
			for after := range 10 { // the first few are the engine's goroutine's, the others the handler's
				t.Run(fmt.Sprintf("%s %s after %d", method, verb, after), func(t *testing.T) {
					is := is.New(t)
					ended, taken := make(chan struct{}), 0
					var cause error
					o := testOptions(t, io.Discard)
					o.MaxConcurrentChats = 1
					o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						defer close(ended)
						for yield("some text", nil) {
							taken++
						}
						<-ctx.Done()
						cause = context.Cause(ctx)
					})
					var reports []ChatReport
					o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
					h := New(o)
					w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: after, fault: fault}
					served := make(chan bool, 1)
					go func() {
						defer close(served) // also when the writer has ended this goroutine
						served <- serveOn(w, h, chatBodyJSON("hi", true))
					}()
					cut, returned := <-served
					is.Equal(cut, returned)
					<-served
					is.Equal(len(reports), 1)
					is.True(reports[0].Err != nil)
					is.True(!readStream(t, w.Body.String()).done)
					received(t, ended, "the engine to end")
					if verb != "ends its goroutine" { // which may be the engine's
						is.True(errors.Is(cause, ErrClientLeft))
					}
					if after < rapidFragments { // written in place
						is.Equal(taken, after)
					}
				})
			}
		}
	}
}

// Deadlines are more than a writer need have.
func TestAWriterWhoseDeadlinesPanic(t *testing.T) {
	for _, method := range []string{"SetReadDeadline", "SetWriteDeadline"} {
		for after := range 3 {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			o.Engine = fragmentsOf("a", "b", "c", "d", "e")
			w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: after, fault: func() error { panic("a bug in the writer") }}
			is.True(!serveOn(w, asHTTP2(New(o)), chatBodyJSON("hi", true)))
			is.Equal(readStream(t, w.Body.String()).text(), "abcde")
			is.True(strings.Count(log.String(), "\n") <= 2) // once for each kind of deadline
		}
	}
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
func TestABufferWhoseWriteFailedIsNotUsedAgain(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
		yield(req.Messages[0].Content, nil)
	})
	o.Bots = &fakeStore{
		bots:   func(ctx context.Context) ([]Bot, error) { return []Bot{{Name: RequestIDFrom(ctx)}}, nil },
		bySlug: func(context.Context, string) (Bot, error) { return Bot{}, nil },
	}
	h := New(o)
	for what, request := range map[string]func(text string) *http.Request{
		"a stream": func(text string) *http.Request {
			return httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON(text, true)))
		},
		"one body": func(text string) *http.Request {
			return httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON(text, false)))
		},
		"a list": func(text string) *http.Request {
			r := httptest.NewRequest("GET", "/v1/bots", nil)
			r.Header.Set("X-Request-Id", text)
			return r
		},
	} {
		t.Run(what, func(t *testing.T) {
			is := is.New(t)
			serve := func(w http.ResponseWriter, text string) {
				r := request(text)
				r.Header.Set("Authorization", "Bearer "+testKey)
				serveRequest(w, h, r)
			}
			for range 20 { // a pool does not return each buffer to the next who asks
				w := &lingeringWriter{ResponseWriter: httptest.NewRecorder()}
				serve(w, "mine")
				serve(httptest.NewRecorder(), "ours")
				is.True(strings.Contains(string(w.given), "mine"))
			}
		})
	}
}

// The host is asked before a place is taken: what it does then costs none.
func TestAWriterThatEndsItsGoroutineInADeadline(t *testing.T) {
	for _, method := range []string{"SetReadDeadline", "SetWriteDeadline"} {
		for after := range 4 {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprint(method, " after ", after, ", stream ", stream), func(t *testing.T) {
					is := is.New(t)
					o := testOptions(t, io.Discard)
					o.MaxConcurrentChats = 1
					o.Engine = fragmentsOf("a", "b", "c", "d", "e")
					h := New(o)
					w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: after, fault: func() error { runtime.Goexit(); return nil }}
					served := make(chan bool)
					go func() {
						defer close(served)
						serveOn(w, asHTTP2(h), chatBodyJSON("hi", stream))
					}()
					<-served
					is.True(serveInProcess(t, h, false).Code != 503)
				})
			}
		}
	}
}

// A faultyContext is one of the host's middleware.
type faultyContext struct{ context.Context }

func (faultyContext) Done() <-chan struct{} { panic("a bug in the middleware") }

func TestAFaultyContextHoldsNoPlace(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.MaxConcurrentChats = 1
	h := New(o)
	w := httptest.NewRecorder()
	is.True(!serveOn(w, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(faultyContext{r.Context()}))
	}), chatBodyJSON("hi", false)))
	is.Equal(w.Code, 500)
	is.Equal(serveInProcess(t, h, false).Code, 200)
}

// asHTTP2 has h believe that its requests came over HTTP/2.
func asHTTP2(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
		h.ServeHTTP(w, r)
	})
}

// A chat whose writer panics before anything is sent is reported, and gives its
// place back, whether it had an answer or an error to send.
func TestAFaultyWriterHoldsNoPlace(t *testing.T) {
	for _, method := range []string{"WriteHeader", "Write"} {
		for _, stream := range []bool{false, true} {
			for prompt, engine := range map[string]ChatEngine{
				"an answer": fragmentsOf("a"),
				"an error":  engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errors.New("died")) }),
			} {
				t.Run(fmt.Sprint(method, " panics, stream ", stream, ", ", prompt), func(t *testing.T) {
					is := is.New(t)
					var log testLog
					o := testOptions(t, &log)
					o.MaxConcurrentChats = 1
					o.Engine = engine
					var reports []ChatReport
					o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
					h := New(o)
					w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: 0, fault: func() error { panic("a bug in the writer") }}
					cut := serveOn(w, h, chatBodyJSON(prompt, stream))
					is.Equal(len(reports), 1)
					is.True(cut)
					is.True(reports[0].Err != nil)
					is.True(strings.Contains(log.String(), "a bug in the writer"))
					again := serveInProcess(t, h, false)
					is.True(again.Code != 503)
				})
			}
		}
	}
}

// Half of a refusal must not look like all of it, whatever the server makes of a
// handler that returns.
func TestARefusalThatCannotBeWritten(t *testing.T) {
	for _, method := range []string{"Write", "Flush"} {
		for name, body := range map[string]string{"of a body": `{}`, "of an engine": chatBodyJSON("hi", false), "of an engine, stream": chatBodyJSON("hi", true)} {
			t.Run(name+", "+method+" fails", func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errBroken) })
				w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, fault: func() error { return errors.New("broken pipe") }}
				cut := serveOn(w, New(o), body)
				is.True(w.Code >= 400)
				is.True(cut)
			})
		}
	}
}

// A stream must not look whole either, because its terminator is all that is missing.
func TestAnEndThatCannotBeWritten(t *testing.T) {
	for _, method := range []string{"Write", "Flush"} {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf("a")
		w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: 1, fault: func() error { return errBroken }}
		is.True(serveOn(w, New(o), chatBodyJSON("hi", true)))
	}
}

// The report does not take it for whole when the writer ends the goroutine that
// writes it.
func TestAnEndWhoseWriterEndsItsGoroutine(t *testing.T) {
	for _, stream := range []bool{false, true} {
		is := is.New(t)
		var reports []ChatReport
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf()
		o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
		w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", fault: func() error { runtime.Goexit(); return nil }}
		served := make(chan bool)
		go func() {
			defer close(served)
			serveOn(w, New(o), chatBodyJSON("hi", stream))
		}()
		<-served
		is.Equal(len(reports), 1)
		is.True(errors.Is(reports[0].Err, ErrClientLeft))
	}
}

// An error is not sent for ever either, to a client that does not read: the
// server's own deadline, which was lifted for the chat, would have ended it.
func TestARefusalThatIsNotRead(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errors.New("died")) })
				conn := serveInMemory(t, New(o), func(s *http.Server) { s.WriteTimeout = time.Second }).dial()
				defer conn.Close()
				is.NoErr(chatRequest(t, "http://memory", "hi", stream).Write(conn))
				time.Sleep(time.Minute)
				_, err := conn.Read(make([]byte, 1))
				is.Equal(err, io.EOF) // closed long ago
			})
		})
	}
}

// A failingWriter takes nothing, and can neither flush nor be hijacked.
type failingWriter struct{ header http.Header }

func (w *failingWriter) Header() http.Header       { return w.header }
func (w *failingWriter) WriteHeader(int)           {}
func (w *failingWriter) Write([]byte) (int, error) { return 0, errBroken }

// The first keep-alive may fail before the engine has begun.
func TestAKeepAliveMayFailAtOnce(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.KeepAlive = 1
	var reports atomic.Int64
	o.OnChat = func(context.Context, ChatReport) { reports.Add(1) }
	h := New(o)
	for range 300 {
		r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", true)))
		r.Header.Set("Authorization", "Bearer "+testKey)
		func() {
			defer func() { is.Equal(recover(), http.ErrAbortHandler) }()
			h.ServeHTTP(&failingWriter{make(http.Header)}, r)
		}()
	}
	is.Equal(reports.Load(), int64(300))
}

// A deadlineWriter is a connection over HTTP/2 of which every write after the
// first so many lasts until its deadline, or as long as the test wants. The end
// of its time ends the request, too.
type deadlineWriter struct {
	*httptest.ResponseRecorder
	ctx    context.Context
	cancel context.CancelFunc
	fast   int           // writes that take no time
	slow   time.Duration // of the first after these; 0: to its deadline

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
		w.deadline = time.AfterFunc(time.Until(at), func() { w.cancel(); close(passed) })
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

// serve answers a stream on the writer, whose client leaves in time, if ever. The
// cause is what the engine is told.
func (w *deadlineWriter) serve(t *testing.T, leaves time.Duration) (report ChatReport, cause error) {
	w.ctx, w.cancel = context.WithCancel(t.Context())
	defer w.cancel()
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		time.Sleep(time.Second)
		for range rapidFragments + 1 {
			yield("x", nil)
		}
		time.Sleep(time.Nanosecond) // the last of these is being written
		yield("behind", nil)
		<-ctx.Done()
		cause = context.Cause(ctx)
	})
	o.OnChat = func(_ context.Context, r ChatReport) { report = r }
	r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", true)))
	r.Header.Set("Authorization", "Bearer "+testKey)
	if leaves > 0 {
		time.AfterFunc(leaves, w.cancel)
	}
	serveRequest(w, asHTTP2(New(o)), r.WithContext(w.ctx))
	return report, cause
}

// A write that has had its time ends the request on HTTP/2. That is no client
// that has left.
func TestAStalledClientWhoseRequestEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder(), fast: rapidFragments}
		report, cause := w.serve(t, 0)
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.True(errors.Is(cause, ErrClientStalled))
	})
}

// When a client has left, no other write may last.
func TestNoWriteOutlivesItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		w := &deadlineWriter{ResponseRecorder: httptest.NewRecorder(), fast: rapidFragments, slow: 3 * time.Second}
		report, cause := w.serve(t, 2*time.Second)
		is.True(errors.Is(report.Err, ErrClientLeft))
		is.True(errors.Is(cause, ErrClientLeft))
		is.True(report.Duration < DefaultWriteTimeout)
	})
}

// A long fragment leaves in few writes.
func TestALongFragmentLeavesInFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf(strings.Repeat("x", 2*maxWrite))
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), began: time.Now()}
		is.True(!serveOn(w, New(o), chatBodyJSON("hi", true)))
		is.True(len(w.writes) <= 4) // the terminator among them
	})
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
func TestNoDeadlineIsMovedForAClientThatHasLeft(t *testing.T) {
	is := is.New(t)
	for major := 1; major <= 2; major++ {
		ctx, leave := context.WithCancel(t.Context())
		w := &leftWriter{ResponseRecorder: httptest.NewRecorder(), leave: leave, past: make(chan struct{})}
		is.True(serveOn(w, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.ProtoMajor = major
			New(testOptions(t, t.Output())).ServeHTTP(w, r.WithContext(ctx))
		}), chatBodyJSON("hi", true)))
		is.Equal(len(w.deadlines), 0)
	}
}

// What the client must not see is logged, whatever the writer does with what it
// may see.
func TestAFailureIsLoggedThoughItsAnswerEndsTheGoroutine(t *testing.T) {
	is := is.New(t)
	var log testLog
	o := testOptions(t, &log)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errBroken) })
	w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", fault: func() error { runtime.Goexit(); return nil }}
	served := make(chan struct{})
	go func() {
		defer close(served)
		serveOn(w, New(o), chatBodyJSON("hi", false))
	}()
	<-served
	is.True(strings.Contains(log.String(), errBroken.Error()))
}

// A stream that breaks behind a writer that cannot flush has been as late.
func TestABrokenStreamBehindAWriterThatCannotFlush(t *testing.T) {
	is := is.New(t)
	var log testLog
	o := testOptions(t, &log)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		_ = yield("some text", nil) && yield("", errBroken)
	})
	is.True(serveOn(struct{ http.ResponseWriter }{httptest.NewRecorder()}, New(o), chatBodyJSON("hi", true)))
	is.True(strings.Contains(log.String(), "answer broken off"))
	is.True(strings.Contains(log.String(), "cannot flush"))
}
