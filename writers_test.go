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
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// This file is about the http.ResponseWriter that a host gives the handler: first
// those of middleware, which work in their own way, then those that fail.

// middlewares are what hosts put around the handler.
var middlewares = map[string]struct {
	wrap    func(http.Handler) http.Handler
	flushes bool // a stream arrives fragment by fragment
	warns   bool // that it cannot flush
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

// wrapped hides everything of a writer but its methods and Unwrap.
func wrapped(h http.Handler) http.Handler {
	return wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return unwrapper{w} })
}

type unwrapper struct{ http.ResponseWriter }

func (w unwrapper) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// compressed is gzip middleware as there is much of it.
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
	w.Header().Del("Content-Length") // also where nobody calls WriteHeader
	return w.to.Write(p)
}

func (w gzipWriter) FlushError() error {
	if err := w.to.Flush(); err != nil {
		return err
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// buffered is middleware that holds an answer back until it is whole, to sign it
// or to count it. It hands on no Flush, though what is behind it could.
func buffered(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held := &bufferedWriter{unwrapper: unwrapper{w}}
		h.ServeHTTP(held, r)
		if held.status != http.StatusOK { // else it is sent with the body, or was when a stream was flushed
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
// nor is one that cannot be made a failure. A stream that breaks is cut behind all of
// it, even where that ends its own format properly.
func TestWriterMiddleware(t *testing.T) {
	partial := data("a") + broken("Internal Server Error")
	for name, middleware := range middlewares {
		for _, protocol := range protocols {
			t.Run(protocol+", "+name, func(t *testing.T) {
				t.Parallel() // before a stream is cut, there is a pause
				is := is.New(t)
				var log testLog
				o := testOptions(t, &log)
				o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
					switch lastContent(req) {
					case "busy":
						yield("hi", errOverloaded)
					case "breaks":
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
					answer             string
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
					is.Equal(got.body, c.answer)
				}
				got := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("breaks", true))
				is.True(got.err != nil) // cut
				if middleware.flushes {
					is.Equal(got.body, partial)
				}
				is.True(strings.HasPrefix(partial, got.body))
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
// read the one before: a stream that is held back anywhere never ends.
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

// follow asks for a stream and reads it fragment by fragment, to its end.
func (l lockstep) follow(t testing.TB, client *http.Client, base string) *http.Response {
	t.Helper()
	is := is.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a fault fails the test, and does not hang it
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

// http.TimeoutHandler ends the request's context: the engine hears of it, and
// nothing is written behind the handler's back.
func TestWriterTimeoutHandler(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				w := way{stream: stream, behind: func(h http.Handler) http.Handler { return http.TimeoutHandler(h, 50*time.Millisecond, "too slow") }}
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

// A faultyWriter works until one of its methods is called the given number of
// times. From then on, each call begins with the fault. It notes what it is given.
type faultyWriter struct {
	*httptest.ResponseRecorder
	method string
	after  int
	fault  func() error

	writes      []string    // those that worked
	given       []byte      // what the last Write was given, and not a copy
	read, write []time.Time // deadlines
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
					is.True(got.err != nil)           // cut
					is.True(got.report(t).Err != nil) // and told
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
// so that it does not look whole, whatever the server makes of a handler that
// returns, and reported with what the client has got. What the client must not see is
// logged all the same.
func TestWriterFailsInAnyAnswer(t *testing.T) {
	const chat = "POST /v1/chat"
	text, stream := chatBodyJSON("hi", false), chatBodyJSON("hi", true)
	broken, retried := failing(errBroken), failing(StatusError{Status: 503, RetryAfter: time.Second, Err: errBroken})
	for name, c := range map[string]struct {
		request, key, body string
		engine             ChatEngine // nil: the request is refused before its chat begins
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
				if fault == "fails" && strings.HasSuffix(method, "Header") {
					continue // it has no way to
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
							is.Equal(len(got.reports), 0) // there is no chat yet
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

// A client may leave, or its connection break, before the engine has said anything:
// the first keep-alive finds out, even before the engine is called.
func TestWriterFailsInTheFirstKeepAlive(t *testing.T) {
	is := is.New(t)
	for range 300 { // in some of them the engine is called later
		w := faulty("Write", 0, faultFails)
		got := playOn(t, w, true, engineEnd(untilDone).engine(), func(o *Options) { o.KeepAlive = 1 })
		is.Equal(string(w.given), keepAliveLine)
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, "")
		is.True(errors.Is(got.report(t).Err, ErrClientLeft))
	}
}

// What a failed write was given is not used again: the writer of HTTP/2 returns when
// its stream is reset, though a frame of it is still being written, and it could go
// out to that client with the text of another's.
func TestWriterFailsAndItsBufferIsNotUsedAgain(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Bots = &fakeStore{
		bots:   func(ctx context.Context) ([]Bot, error) { return []Bot{{Name: RequestIDFrom(ctx)}}, nil },
		bySlug: func(context.Context, string) (Bot, error) { return Bot{}, nil },
	}
	h := New(o)
	for what, request := range map[string]func(text string) *http.Request{
		"a stream": func(text string) *http.Request { return chatRequest(t, "", text, true) },
		"one body": func(text string) *http.Request { return chatRequest(t, "", text, false) },
		"a list":   func(text string) *http.Request { return newRequest("GET", "/v1/bots", nil, "X-Request-Id", text) },
	} {
		t.Run(what, func(t *testing.T) {
			is := is.New(t)
			for range 20 { // a pool does not return each buffer to the next who asks
				w := faulty("Write", 0, faultFails)
				serveRequest(w, h, request("mine"))
				record(h, request("ours"))
				is.True(strings.Contains(string(w.given), "mine"))
			}
		})
	}
}

// A response whose first part was taken has its status, even if the last part fails.
func TestWriterFailsBehindTheFirstPart(t *testing.T) {
	got := playOn(t, faulty("Flush", 0, faultFails), false, failing(StatusError{Status: 503, Detail: strings.Repeat("x", maxPart)}))
	is := is.New(t)
	is.Equal(got.err, http.ErrAbortHandler)
	is.Equal(got.report(t).Status, 503)
}

// To move a deadline costs a call of the system: it is not done for every write.
func TestWriterDeadlineIsSeldomMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := faulty("", 0, nil)
		playOn(t, w, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for yield("a", nil) && len(w.writes) < 90 {
				time.Sleep(time.Second / 9)
			}
		}))
		is.New(t).True(len(w.write) < 15) // in ten seconds
	})
}

// Deadlines are more than a writer need have: it may panic when it is asked for
// them. If it ends the handler's goroutine, that costs no slot.
func TestWriterFailsToSetDeadlines(t *testing.T) {
	for _, method := range []string{"SetReadDeadline", "SetWriteDeadline"} {
		for after := range 4 {
			for _, stream := range []bool{false, true} {
				is := is.New(t)
				play := func(fault func() error) chatOutcome {
					r := chatRequest(t, "", "hi", stream)
					r.ProtoMajor = 2 // where each write has a deadline of its own
					return playRequestOn(t, faulty(method, after, fault), r, fragmentsOf("a", "b", "c", "d", "e"))
				}
				play(faultExits)
				got := play(faultPanics)
				is.NoErr(got.err)
				is.True(strings.Contains(got.body, "e"))
				is.True(strings.Count(got.log, "\n") <= 2) // once for each kind of deadline
			}
		}
	}
}

// A write that fails after WriteTimeout is a client that did not read, whatever the
// failure. It is told all the same, and a panic logged.
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
				is.Equal(endsOf(err), []error{ErrClientStalled})
				is.True(strings.HasSuffix(err.Error(), map[string]string{"fails": "broken pipe", "panics": "a bug in the writer"}[fault]))
				is.Equal(strings.Contains(got.log, "a bug in the writer"), fault == "panics")
			})
		}
	}
}

// A writer that keeps no deadline is called no more when what the client is still
// owed has had its WriteTimeout: here, one queued write is begun, and no error event.
func TestWriterWithoutDeadlinesIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		got := playOn(t, faulty("Write", 0, takes(20*time.Second)), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for _, fragment := range []string{"a", "b", "c", "d"} {
				yield(fragment, nil)
			}
			time.Sleep(time.Second) // a burst writes the last
			yield("e", nil)
			yield("", errBroken)
		}), func(o *Options) { o.KeepAlive = -1 })
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.report(t).Err, errBroken)
		is.Equal(got.body, data("a")+data("b")+data("c")+data("d")+data("e"))
	})
}

// A faultyContext is one of the host's middleware.
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

// A host that ends the handler's goroutine in the middle of a chat leaves
// nothing behind: no engine that is never told, no keep-alive that writes when
// the handler has returned.
func TestHostExitsInTheHandler(t *testing.T) {
	for _, place := range []string{"Err", "SetWriteDeadline"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(place, ", stream ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					ctx, leave := context.WithCancel(t.Context())
					time.AfterFunc(time.Second, leave)
					exits := func() error {
						if ctx.Err() != nil {
							runtime.Goexit()
						}
						return nil
					}
					w := faulty(place, 0, exits)
					told := false
					got := playRequestOn(t, w, chatRequest(t, "", "hi", stream).WithContext(faultyContext{ctx, place, exits}), engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) {
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

func TestHostContextPanicsWithoutASlot(t *testing.T) {
	is := is.New(t)
	r := chatRequest(t, "", "hi", false)
	got := playRequestOn(t, httptest.NewRecorder(), r.WithContext(faultyContext{r.Context(), "Done", faultPanics}), fragmentsOf("a"))
	is.NoErr(got.err)
	is.Equal(got.status, 500)
	is.Equal(len(got.reports), 0)
}

// A contradictoryContext is done, but has not ended.
type contradictoryContext struct{ context.Context }

func (contradictoryContext) Err() error { return nil }

func TestHostContextContradictsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, end := context.WithTimeout(t.Context(), breakPause/2) // while the client has time to read the error event
		defer end()
		began := time.Now()
		r := chatRequest(t, "", "hi", true).WithContext(contradictoryContext{ctx})
		got := playRequestOn(t, httptest.NewRecorder(), r, failing(errBroken, "a"))
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, data("a")+broken(internalError))
		is.Equal(time.Since(began), breakPause)
	})
}

// What is written to a client that has left is not given more time.
func TestClientLeavesAndNoDeadlineMoves(t *testing.T) {
	for major := 1; major <= 2; major++ {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			ctx, leave := context.WithCancel(t.Context())
			w := faulty("Write", 0, func() error {
				leave()
				time.Sleep(time.Second)
				return nil // it is taken nevertheless
			})
			r := chatRequest(t, "", "hi", true).WithContext(ctx)
			r.ProtoMajor = major
			is.Equal(playRequestOn(t, w, r, fragmentsOf("a")).err, http.ErrAbortHandler)
			last := w.write[len(w.write)-1]
			is.True(last.Before(time.Now()))
			is.True(!last.IsZero()) // which would be none
		})
	}
}
