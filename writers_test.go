package botapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
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

	"example.com/botapi/internal/connection"
)

// This file tests the handler with different ResponseWriters: first those of middleware,
// then writers that fail.

// middlewares are middleware as applications use it.
var middlewares = map[string]struct {
	wrap    func(http.Handler) http.Handler
	flushes bool // a stream arrives fragment by fragment
	warns   bool // the handler logs that the writer cannot flush
}{
	"nothing":                      {wrap: func(h http.Handler) http.Handler { return h }, flushes: true},
	"three writers that unwrap":    {wrap: func(h http.Handler) http.Handler { return wrapped(wrapped(wrapped(h))) }, flushes: true},
	"compression":                  {wrap: compressed, flushes: true},
	"a buffer":                     {wrap: buffered},
	"a buffer within compression":  {wrap: func(h http.Handler) http.Handler { return compressed(buffered(h)) }},
	"a writer that cannot flush":   {wrap: way{hides: true}.mount, warns: true},
	"a writer that says it cannot": {wrap: unsupporting, warns: true},
	"http.TimeoutHandler":          {wrap: func(h http.Handler) http.Handler { return http.TimeoutHandler(h, 30*time.Second, "too slow") }, warns: true},
}

// wrapped hides the optional methods of a writer, except behind Unwrap.
func wrapped(h http.Handler) http.Handler {
	return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return unwrapper{w} })
}

type unwrapper struct{ http.ResponseWriter }

func (w unwrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// compressed is typical gzip middleware.
func compressed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		zipped := gzipWriter{unwrapper{w}, gzip.NewWriter(w)}
		defer zipped.to.Close()
		w.Header().Set("Content-Encoding", "gzip")
		h.ServeHTTP(zipped, r)
	})
}

type gzipWriter struct {
	unwrapper
	to *gzip.Writer
}

func (w gzipWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func (w gzipWriter) Write(p []byte) (int, error) {
	w.Header().Del("Content-Length") // in case WriteHeader is not called
	return w.to.Write(p)
}

func (w gzipWriter) FlushError() error {
	if err := w.to.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// buffered is middleware that buffers a response until it is complete, for instance to sign
// it. It has no Flush of its own, but Unwrap leads to one.
func buffered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held := &bufferedWriter{unwrapper: unwrapper{w}}
		h.ServeHTTP(held, r)
		if held.status != http.StatusOK { // a 200 is sent with the body, or has been sent by a flush
			w.WriteHeader(held.status)
		}
		_, _ = held.body.WriteTo(w)
	})
}

type bufferedWriter struct {
	unwrapper
	status int
	body   bytes.Buffer
}

func (w *bufferedWriter) WriteHeader(status int)      { w.status = status }
func (w *bufferedWriter) Write(p []byte) (int, error) { return w.body.Write(p) }

// unsupporting is middleware whose writer has a FlushError that is not supported.
func unsupporting(h http.Handler) http.Handler {
	return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return unsupportingWriter{w} })
}

type unsupportingWriter struct{ http.ResponseWriter }

func (w unsupportingWriter) FlushError() error {
	return fmt.Errorf("this writer: %w", errors.ErrUnsupported)
}

// The handler works with all middleware: its flush neither starts a body where there must
// be none, nor sends a status before the middleware has chosen it, and a writer that cannot
// flush is no failure. An incomplete stream is aborted even if the middleware completes its
// own format.
func TestWriterMiddleware(t *testing.T) {
	incomplete := data("a") + errorEvent(500, "Internal Server Error")
	for name, middleware := range middlewares {
		for _, protocol := range protocols {
			t.Run(protocol+", "+name, func(t *testing.T) {
				t.Parallel() // there is a pause before a stream is aborted
				is := is.New(t)
				var log testLog
				o := testOptions(t, &log)
				o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
					switch lastContent(req) {
					case "busy":
						yield("hi", errOverloaded)
					case "fail":
						_ = yield("a", nil) && yield("", errBroken)
					default:
						yield("hi", nil)
					}
				})
				base, client := serveOver(t, protocol, middleware.wrap(New(o)))
				for _, c := range []struct {
					method, path, body string
					header             []string
					status             int
					want               string
				}{
					{"GET", "/v1/bots", "", nil, 200, listedBots},
					{"HEAD", "/v1/bots", "", nil, 200, ""},
					{"GET", "/v1/bots", "", []string{"If-None-Match", "*"}, 304, ""},
					{"GET", "/v1/bots", "", []string{"Authorization", "-"}, 401, `{"detail":"Not authenticated"}`},
					{"HEAD", "/v1/bots", "", []string{"Authorization", "-"}, 401, ""},
					{"GET", "/v1/chat", "", nil, 405, `{"detail":"Method Not Allowed"}`},
					{"POST", "/v1/chat", chatBodyJSON("hi", false), nil, 200, `{"content":"hi"}`},
					{"POST", "/v1/chat", chatBodyJSON("hi", true), nil, 200, data("hi") + terminator},
					{"POST", "/v1/chat", chatBodyJSON("busy", false), nil, 529, `{"detail":"Overloaded"}`},
					{"POST", "/v1/chat", chatBodyJSON("busy", true), nil, 529, `{"detail":"Overloaded"}`},
				} {
					got := doAt(t, client, base, c.method, c.path, c.body, c.header...)
					is.NoErr(got.err)
					is.Equal(got.status, c.status)
					is.Equal(got.body, c.want)
				}
				got := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("fail", true))
				is.True(got.err != nil) // aborted
				if middleware.flushes {
					is.Equal(got.body, incomplete)
				}
				is.True(strings.HasPrefix(incomplete, got.body))
				is.Equal(strings.Count(log.String(), "cannot flush"), map[bool]int{true: 2}[middleware.warns]) // once for each stream
			})
		}
	}
}

func TestWriterMiddlewareFragmentsArriveOneByOne(t *testing.T) {
	for name, middleware := range middlewares {
		for _, protocol := range protocols {
			if !middleware.flushes {
				continue
			}
			t.Run(protocol+", "+name, func(t *testing.T) {
				o := testOptions(t, io.Discard)
				steps := newLockstep()
				o.Engine = steps
				base, client := serveOver(t, protocol, middleware.wrap(New(o)))
				res := steps.follow(t, client, base)
				is.New(t).Equal(res.Uncompressed, name == "compression") // by net/http's client
			})
		}
	}
}

// A lockstep is an engine that yields the next fragment only when its client has
// read the previous one: if a fragment is held back anywhere, the stream never ends.
type lockstep struct{ read chan struct{} }

const lockstepFragments = 20

func newLockstep() lockstep { return lockstep{make(chan struct{})} }

func (l lockstep) Chat(ctx context.Context, _ *ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
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
	}
}

// follow requests a stream and reads it fragment by fragment, to its end.
func (l lockstep) follow(t testing.TB, client *http.Client, base string) *http.Response {
	t.Helper()
	is := is.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a fault makes the test fail, not hang
	defer cancel()
	res, err := client.Do(chatRequest(t, base, "hi", true).WithContext(ctx))
	is.NoErr(err)
	defer res.Body.Close()
	var got, want strings.Builder
	for i := range lockstepFragments {
		want.WriteString(data(fmt.Sprint(i, " ")))
	}
	want.WriteString(terminator)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if lines.Text() == ": keep-alive" {
			continue
		}
		fmt.Fprintln(&got, lines.Text())
		if strings.HasPrefix(lines.Text(), "data: {") {
			select {
			case l.read <- struct{}{}:
			case <-ctx.Done():
			}
		}
	}
	is.Equal(got.String(), want.String())
	return res
}

// http.TimeoutHandler cancels the request's context: this ends the chat, and nothing is
// written after the handler has returned.
func TestWriterTimeoutHandler(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				w := way{stream: stream, middleware: func(h http.Handler) http.Handler { return http.TimeoutHandler(h, 50*time.Millisecond, "too slow") }}
				got := playChat(t, w, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for yield("a", nil) {
						time.Sleep(time.Millisecond)
					}
				}))
				is.Equal(got.status, 503)
				is.Equal(got.body, "too slow")
				is.True(errors.Is(got.report(t).Err, context.DeadlineExceeded))
			})
		})
	}
}

// A faultyWriter works until one of its methods has been called so many times. From then
// on, each call begins with the fault. It records writes and deadlines.
type faultyWriter struct {
	*httptest.ResponseRecorder
	method string
	after  int
	fault  func() error

	writes      []string    // the successful ones
	given       []byte      // the slice passed to the last Write, not a copy
	read, write []time.Time // deadlines
}

func faulty(method string, after int, fault func() error) *faultyWriter {
	return &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: method, after: after, fault: fault}
}

// faults are what a ResponseWriter may do instead of its work. An error is asked on the
// goroutine of a burst, too, where a panic would end the process.
var faults = map[string]func() error{
	"fails": faultFails, "panics": faultPanics,
	"fails with an error that panics": func() error { return panickingError{} },
}

func faultFails() error  { return errors.New("broken pipe") }
func faultPanics() error { panic("a bug in the writer") }

// A panickingError panics where its methods are called, as a nil pointer of many types does.
type panickingError struct{}

func (panickingError) Error() string { return "broken pipe" }
func (panickingError) Is(error) bool { panic("a nil pointer") }

// net/http cancels the request's context when a write fails. An engine that watches it, and
// learns of the failure first, does not hide that the client has stopped reading.
func TestEngineLearnsFirstThatTheClientStalled(t *testing.T) {
	for range 20 { // the order of two goroutines varies
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			ctx, cancel := context.WithCancel(t.Context())
			r := chatRequest(t, "", "hi", true).WithContext(ctx)
			w := faulty("Write", burstAfter, func() error {
				time.Sleep(DefaultWriteTimeout + time.Second)
				cancel()
				time.Sleep(time.Second)
				return os.ErrDeadlineExceeded
			})
			got := playRequestOn(t, w, r, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				for range burstAfter + 1 {
					yield("x", nil)
				}
				<-ctx.Done()
				yield("", ctx.Err())
			}), func(o *Options) { o.KeepAlive = -1 })
			is.True(errors.Is(got.report(t).Err, ErrClientStalled))
		})
	}
}

// takes makes a call slow; the call succeeds.
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
	w.given = p
	if err := w.call("Write"); err != nil {
		return 0, err
	}
	w.writes = append(w.writes, string(p))
	return w.ResponseRecorder.Write(p)
}

func (w *faultyWriter) WriteHeader(status int) {
	_ = w.call("WriteHeader")
	w.ResponseRecorder.WriteHeader(status)
}

func (w *faultyWriter) Header() http.Header {
	_ = w.call("Header")
	return w.ResponseRecorder.Header()
}

func (w *faultyWriter) FlushError() error { return w.call("Flush") }

func (w *faultyWriter) SetReadDeadline(at time.Time) error {
	w.read = append(w.read, at)
	return w.call("SetReadDeadline")
}

func (w *faultyWriter) SetWriteDeadline(at time.Time) error {
	w.write = append(w.write, at)
	return w.call("SetWriteDeadline")
}

// A write that fails ends an endless stream, whichever goroutine makes it.
func TestWriterFails(t *testing.T) {
	for _, method := range []string{"Write", "Flush"} {
		for name, fault := range faults {
			for after := range 10 { // the engine's goroutine makes the first few writes, bursts make the others
				t.Run(fmt.Sprintf("%s %s after %d", method, name, after), func(t *testing.T) {
					is := is.New(t)
					ended, accepted := make(chan struct{}), 0
					var cause error
					got := playOn(t, faulty(method, after, fault), true, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						defer close(ended)
						for yield("some text", nil) {
							accepted++
						}
						<-ctx.Done()
						cause = context.Cause(ctx)
					}))
					<-ended
					is.True(got.err != nil) // aborted
					is.True(got.report(t).Err != nil)
					is.True(!readStream(t, got.body).done)
					is.True(errors.Is(cause, ErrClientLeft))
					if after < burstAfter { // written in place
						is.Equal(accepted, after)
					}
				})
			}
		}
	}
}

// If the writer fails or panics, any response is aborted, so that it does not look
// complete, and reported with the status that was sent. The error that the client must not
// see is logged nevertheless.
func TestWriterFailsInAnyAnswer(t *testing.T) {
	const chat = "POST /v1/chat"
	text, stream := chatBodyJSON("hi", false), chatBodyJSON("hi", true)
	broken, retried := failing(errBroken), failing(StatusError{Status: 503, RetryAfter: time.Second, Err: errBroken})
	for name, c := range map[string]struct {
		request, key, body string
		engine             ChatEngine // nil: the request is rejected before its chat begins
		logs               string
	}{
		"a wrong key":                 {"GET /v1/bots", "wrong", "", nil, ""},
		"a wrong key, HEAD":           {"HEAD /v1/bots", "wrong", "", nil, ""},
		"a wrong method":              {"GET /v1/chat", testKey, "", nil, ""},
		"a bad body":                  {chat, testKey, "{}", nil, ""},
		"nothing":                     {chat, testKey, text, fragmentsOf(), ""},
		"nothing, streamed":           {chat, testKey, stream, fragmentsOf(), ""},
		"a text":                      {chat, testKey, text, fragmentsOf("a"), ""},
		"a text, streamed":            {chat, testKey, stream, fragmentsOf("a"), ""},
		"an error":                    {chat, testKey, text, broken, errBroken.Error()},
		"an error, streamed":          {chat, testKey, stream, broken, errBroken.Error()},
		"an error to retry":           {chat, testKey, text, retried, errBroken.Error()},
		"an error to retry, streamed": {chat, testKey, stream, retried, errBroken.Error()},
		"a bad request":               {chat, testKey, stream, failing(HTTPValidationError{}), ""},
	} {
		for _, method := range []string{"Header", "WriteHeader", "Write", "Flush"} {
			for fault, does := range faults {
				if fault != "panics" && strings.HasSuffix(method, "Header") {
					continue // it returns no error
				}
				t.Run(fmt.Sprint(name, ", ", method, " ", fault), func(t *testing.T) {
					verb, path, _ := strings.Cut(c.request, " ")
					fails := c.logs != "" || name == "a bad request"
					for after, reached := 0, true; reached; after++ {
						is := is.New(t)
						reached = false
						r := newRequest(verb, path, strings.NewReader(c.body), "Authorization", "Bearer "+c.key)
						got := playRequestOn(t, faulty(method, after, func() error { reached = true; return does() }), r, c.engine)
						is.Equal(got.err != nil, reached)
						is.Equal(strings.Contains(got.log, "a bug in the writer"), reached && fault == "panics")
						if c.engine == nil || method == "Header" && after == 0 {
							is.Equal(len(got.reports), 0) // there is no chat
							continue
						}
						is.Equal(strings.Contains(got.log, errBroken.Error()), c.logs != "")
						report := got.report(t)
						is.Equal(report.Err != nil, reached || fails)
						is.Equal(errors.Is(report.Err, ErrClientLeft), reached && !fails)
						if fails {
							is.Equal(report.Status, map[bool]int{false: got.status}[reached])
						}
					}
				})
			}
		}
	}
}

// A client may disconnect before the engine has yielded anything: the first keep-alive
// notices it, even before the engine is called.
func TestWriterFailsInTheFirstKeepAlive(t *testing.T) {
	is := is.New(t)
	for range 300 { // in some rounds, the engine is called after the keep-alive
		w := faulty("Write", 0, faultFails)
		got := playOn(t, w, true, engineEnd(untilDone).engine(), func(o *Options) { o.KeepAlive = 1 })
		is.Equal(string(w.given), keepAliveLine)
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, "")
		is.True(errors.Is(got.report(t).Err, ErrClientLeft))
	}
}

// The buffer of a failed write is not reused: on HTTP/2, Write returns when its stream is
// reset, while a frame may still be written from the buffer. The client could get the text
// of another chat.
func TestWriterFailsAndItsBufferIsNotUsedAgain(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Bots = &fakeStore{
		bots:   func(ctx context.Context) ([]Bot, error) { return []Bot{{Name: RequestIDFrom(ctx)}}, nil },
		bySlug: func(context.Context, string) (Bot, error) { return Bot{}, nil },
	}
	h := New(o)
	for what, request := range map[string]func(text string) *http.Request{
		"a stream":        func(text string) *http.Request { return chatRequest(t, "", text, true) },
		"a JSON response": func(text string) *http.Request { return chatRequest(t, "", text, false) },
		"a list":          func(text string) *http.Request { return newRequest("GET", "/v1/bots", nil, "X-Request-Id", text) },
	} {
		t.Run(what, func(t *testing.T) {
			is := is.New(t)
			for range 20 { // a pool does not always return what was put into it last
				w := faulty("Write", 0, faultFails)
				serveRequest(w, h, request("mine"))
				record(h, request("ours"))
				is.True(strings.Contains(string(w.given), "mine"))
			}
		})
	}
}

// If the first chunk of a response was written, its status is reported, even if a later
// chunk fails.
func TestWriterFailsAfterTheFirstChunk(t *testing.T) {
	got := playOn(t, faulty("Flush", 0, faultFails), false, failing(StatusError{Status: 503, Detail: strings.Repeat("x", connection.MaxChunk)}))
	is := is.New(t)
	is.Equal(got.err, http.ErrAbortHandler)
	is.Equal(got.report(t).Status, 503)
}

// A write that fails after WriteTimeout means that the client stopped reading, whatever the
// error. The report has the error nevertheless, and a panic is logged.
func TestWriterFailsAfterWriteTimeout(t *testing.T) {
	for _, stream := range []bool{false, true} {
		for _, fault := range []string{"fails", "panics"} {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				w := faulty("Write", 0, func() error {
					time.Sleep(DefaultWriteTimeout)
					return faults[fault]()
				})
				got := playOn(t, w, stream, fragmentsOf("a"))
				err := got.report(t).Err
				is.Equal(reasonsIn(err), []error{ErrClientStalled})
				is.True(strings.HasSuffix(err.Error(), map[string]string{"fails": "broken pipe", "panics": "a bug in the writer"}[fault]))
				is.Equal(strings.Contains(got.log, "a bug in the writer"), fault == "panics")
			})
		}
	}
}

// An engine that aborts its stream does not take back what it has yielded before.
func TestAbortedStreamSendsWhatIsQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		got := playOn(t, faulty("Write", 0, takes(time.Second)), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for _, fragment := range []string{"a", "b", "c", "d"} {
				yield(fragment, nil)
			}
			time.Sleep(time.Second / 2) // a burst writes the last
			yield("e", nil)
			yield("", http.ErrAbortHandler)
		}))
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, data("a")+data("b")+data("c")+data("d")+data("e"))
	})
}

// A faultyContext is a context of the application's middleware.
type faultyContext struct {
	context.Context
	method string
	fault  func() error
}

func (c faultyContext) Done() <-chan struct{} {
	if c.method == "Done" {
		_ = c.fault()
	}
	return c.Context.Done()
}

func (c faultyContext) Err() error {
	if c.method == "Err" {
		_ = c.fault()
	}
	return c.Context.Err()
}

func (c faultyContext) Value(key any) any {
	if c.method == "Value" {
		_ = c.fault()
	}
	return c.Context.Value(key)
}

// A context of the application may panic, or end the goroutine that asks it: a Value that
// asserts the type of its key does. Whatever asks it, and whenever, the chat ends: its
// engine is cancelled, its slot is free, its stream is aborted, and nothing is written after
// the handler has returned.
func TestContextFailsDuringAChat(t *testing.T) {
	for _, method := range []string{"Value", "Err"} {
		for fault, does := range map[string]func() error{"panics": faultPanics, "exits": func() error { runtime.Goexit(); return nil }} {
			for _, moment := range []string{"the client disconnects", "the application cancels", "ChatTimeout", "the engine asks it", "complete"} {
				inEachWay(t, fmt.Sprint(method, " ", fault, ", ", moment), func(t *testing.T, w way) {
					is := is.New(t)
					contexts := make(map[string]context.Context) // of engines, by request id
					var returned atomic.Bool
					var writer *watchedWriter
					o := testOptions(t, io.Discard)
					o.MaxConcurrentChats, o.KeepAlive, o.Routes = 1, 100*time.Millisecond, w.routes()
					if moment == "ChatTimeout" {
						o.ChatTimeout = time.Second
					}
					o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
						id := RequestIDFrom(ctx)
						contexts[id] = ctx
						yield("a", nil)
						if id != "faulty" || moment == "complete" {
							return
						}
						if moment == "the engine asks it" {
							time.Sleep(time.Second)
							_ = ctx.Value(routeKey{})
							yield("", context.Canceled)
						}
						<-ctx.Done()
					})
					h, over := New(o), make(chan struct{}, 2)
					server := w.serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						defer func() { over <- struct{}{} }()
						if r.Header.Get("X-Request-Id") != "faulty" {
							h.ServeHTTP(rw, r)
							return
						}
						defer returned.Store(true)
						ctx := r.Context()
						if moment == "the application cancels" {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeoutCause(ctx, time.Second, errBroken)
							defer cancel()
						}
						writer = watch(rw, w.stream, DefaultWriteTimeout, func() time.Duration { return 0 }, &returned)
						h.ServeHTTP(writer, r.WithContext(faultyContext{ctx, method, does}))
					}))
					ctx, disconnect := context.WithCancel(t.Context())
					defer disconnect()
					if moment == "the client disconnects" {
						defer time.AfterFunc(time.Second, disconnect).Stop()
					}
					r, err := http.NewRequestWithContext(ctx, "POST", "http://memory"+w.path(), strings.NewReader(chatBodyJSON("hi", w.stream)))
					is.NoErr(err)
					setHeader(r, []string{"X-Request-Id", "faulty"})
					res, err := server.client().Do(r)
					if err == nil {
						var body []byte
						body, err = io.ReadAll(res.Body)
						if res.StatusCode == 200 && moment != "complete" {
							is.True(err != nil || !strings.Contains(string(body), "[DONE]"))
							is.True(err != nil || !w.stream) // aborted
						}
					}
					<-over
					time.Sleep(time.Minute) // a keep-alive timer would write
					is.Equal(contexts["faulty"].Err(), context.Canceled)
					is.Equal(writer.offence, "")
					again := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", false))
					is.Equal(again.body, `{"content":"a"}`)
				})
			}
		}
	}
}

// Nothing is promised of the response when application code ends a goroutine at a place
// where it must not. But the slot is released.
func TestSlotIsReleasedWhateverExits(t *testing.T) {
	exits := func() error { runtime.Goexit(); return nil }
	for name, c := range map[string]struct {
		method string // of the ResponseWriter, or of the request's context
		engine ChatEngine
	}{
		"a panic's Error method":  {"", panicsWith(exitingError{}).engine()},
		"an error's Error method": {"", failing(exitingError{})},
		"Write":                   {"Write", fragmentsOf("a", "b", "c", "d", "e")},
		"Flush":                   {"Flush", fragmentsOf("a", "b", "c", "d", "e")},
		"SetWriteDeadline":        {"SetWriteDeadline", fragmentsOf("a")},
		"Err":                     {"Err", failing(context.Canceled)},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := chatRequest(t, "", "hi", stream)
					r = r.WithContext(faultyContext{r.Context(), c.method, exits})
					playRequestOn(t, faulty(c.method, 0, exits), r, c.engine, func(o *Options) { o.ChatTimeout = time.Minute }) // playRequestOn checks the slot
				})
			})
		}
	}
}

// An exitingError ends the goroutine that asks for its text.
type exitingError struct{}

func (exitingError) Error() string { runtime.Goexit(); return "" }

func TestContextPanicsBeforeTheSlotIsTaken(t *testing.T) {
	is := is.New(t)
	r := chatRequest(t, "", "hi", false)
	got := playRequestOn(t, httptest.NewRecorder(), r.WithContext(faultyContext{r.Context(), "Done", faultPanics}), fragmentsOf("a"))
	is.NoErr(got.err)
	is.Equal(got.status, 500)
	is.Equal(len(got.reports), 0)
}

// A write to a client that has disconnected gets no more time.
func TestClientDisconnectsAndNoDeadlineMoves(t *testing.T) {
	for major := 1; major <= 2; major++ {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			ctx, disconnect := context.WithCancel(t.Context())
			w := faulty("Write", 0, func() error {
				disconnect()
				time.Sleep(time.Second)
				return nil // the write succeeds nevertheless
			})
			r := chatRequest(t, "", "hi", true).WithContext(ctx)
			r.ProtoMajor = major
			is.Equal(playRequestOn(t, w, r, fragmentsOf("a")).err, http.ErrAbortHandler)
			last := w.write[len(w.write)-1]
			is.True(last.Before(time.Now()))
			is.True(!last.IsZero()) // zero would mean no deadline
		})
	}
}
