package botapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
)

// A lineFormat is a StreamFormat of the tests: each event is one line.
type lineFormat struct {
	before   func(method string) error // called first in each method; nil: nothing is
	end      iter.Seq[[]byte]          // nil: one line
	calls    []string                  // of methods, in order
	calling  atomic.Bool
	overlaps atomic.Bool // two calls at the same time
}

func (f *lineFormat) call(method string) error {
	if f.calling.Swap(true) {
		f.overlaps.Store(true)
	}
	defer f.calling.Store(false)
	f.calls = append(f.calls, method)
	if f.before == nil {
		return nil
	}
	return f.before(method)
}

func (f *lineFormat) ContentType() string {
	_ = f.call("ContentType")
	return "application/x-lines"
}

func (f *lineFormat) AppendText(dst, text []byte) ([]byte, error) {
	if err := f.call("AppendText"); err != nil {
		return nil, err
	}
	return fmt.Appendf(dst, "\"%s\"\n", text), nil
}

func (f *lineFormat) AppendKeepAlive(dst []byte) []byte {
	_ = f.call("AppendKeepAlive")
	return append(dst, "alive\n"...)
}

func (f *lineFormat) End(context.Context) iter.Seq[[]byte] {
	_ = f.call("End")
	if f.end != nil {
		return f.end
	}
	return slices.Values([][]byte{[]byte("end\n")})
}

func (f *lineFormat) AppendError(dst []byte, failure Failure) []byte {
	_ = f.call("AppendError")
	return fmt.Appendf(dst, "%d %s\n", failure.Status, failure.Detail)
}

// in is for the options of a chat that is sent to routePath.
func (f *lineFormat) in(o *Options) {
	o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Stream = f })}
}

var routeStream = way{stream: true, route: true}

// The text before and after that of a JSON response is the application's: however long the
// answer, its memory is not used for other responses.
func TestJSONAroundTheTextIsNotReused(t *testing.T) {
	is := is.New(t)
	const start = `{"model":"one","created":1700000000,"content":"`
	before, after := append(make([]byte, 0, 1<<10), start...), append(make([]byte, 0, 1<<10), `"}`...)
	o := testOptions(t, t.Output())
	o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) {
		c.JSON = func(context.Context) ([]byte, []byte, error) { return before, after, nil }
	})}
	h := New(o)
	for _, size := range []int{1, 1 << 10, connection.MaxChunk - 20, connection.MaxChunk, 3 * connection.MaxChunk} {
		text := strings.Repeat("x", size)
		got := record(h, newRequest("POST", routePath, strings.NewReader(chatBodyJSON(text, false)))).Body.String()
		is.Equal(got, start+text+`"}`)
		postChat(h, chatBodyJSON("another account's text", false))
		is.Equal(string(before[:cap(before)]), start+strings.Repeat("\x00", cap(before)-len(before)))
		is.Equal(string(after[:cap(after)]), `"}`+strings.Repeat("\x00", cap(after)-len(after)))
	}
}

var errFormat = StatusError{Status: http.StatusTeapot, Detail: "I am a teapot"}

// What a method of a format may do instead of its work.
var formatFaults = map[string]func() error{
	"fails":  func() error { return errFormat },
	"panics": func() error { panic(errFormat) },
	"aborts": func() error { panic(http.ErrAbortHandler) },
	"exits":  func() error { runtime.Goexit(); return nil },
}

// A failure of a format is a failure of the answer, whichever goroutine calls it: before
// anything has been sent, it is an error response, afterwards the stream is aborted. In
// either case the format is not called again, and the slot is free. It makes no difference
// that the engine has returned already, nor that a part of the end has been written: it may be
// long, and is written while the format makes it.
func TestFormatFails(t *testing.T) {
	yieldsThen := func(end engineEnd, fragments ...string) ChatEngine {
		return engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			for fragment := range fragmentsOf(fragments...).Chat(ctx, req) {
				if !yield(fragment, nil) {
					return
				}
			}
			end(ctx, yield)
		})
	}
	silent := func(ctx context.Context, yield func(string, error) bool) { waits(40*time.Second)(ctx, yield) }
	for name, c := range map[string]struct {
		engine    ChatEngine
		method    string
		nth       int    // call of the method
		before    string // what is sent before; "": an error response is
		byHandler bool   // on the handler's goroutine
		late      bool   // the call takes a minute, and the engine returns meanwhile
	}{
		"the first fragment's type":         {fragmentsOf("a", "b"), "ContentType", 1, "", false, false},
		"the first keep-alive's type":       {engineEnd(silent).engine(), "ContentType", 1, "", false, false},
		"an empty answer's type":            {fragmentsOf(), "ContentType", 1, "", true, false},
		"the first fragment":                {fragmentsOf("a", "b"), "AppendText", 1, "", false, false},
		"the second fragment":               {fragmentsOf("a", "b", "c"), "AppendText", 2, "\"a\"\n", false, false},
		"a fragment of a burst":             {fragmentsOf(strings.Split(strings.Repeat("a", 1000), "")...), "AppendText", 20, "\"a\"\n\"a\"\n\"a\"\n", false, false},
		"an incomplete character":           {fragmentsOf("a\xe2"), "AppendText", 2, "\"a\"\n", true, false},
		"the first keep-alive":              {engineEnd(silent).engine(), "AppendKeepAlive", 1, "", false, false},
		"the second keep-alive":             {engineEnd(silent).engine(), "AppendKeepAlive", 2, "alive\n", false, false},
		"a keep-alive after a fragment":     {yieldsThen(silent, "a"), "AppendKeepAlive", 1, "\"a\"\n", false, false},
		"the end":                           {fragmentsOf("a"), "End", 1, "\"a\"\n", true, false},
		"an empty answer's end":             {fragmentsOf(), "End", 1, "", true, false},
		"the event of an error":             {yieldsThen(failsWith(errBroken), "a"), "AppendError", 1, "\"a\"\n", true, false},
		"a fragment, after the engine":      {yieldsThen(sleepsFor(time.Second), slices.Repeat([]string{"a"}, burstAfter+1)...), "AppendText", burstAfter + 1, "\"a\"\n\"a\"\n\"a\"\n", false, true},
		"a keep-alive, after the engine":    {yieldsThen(sleepsFor(DefaultKeepAlive+time.Second), "a"), "AppendKeepAlive", 1, "\"a\"\n", false, true},
		"a long end":                        {fragmentsOf("a"), "within End", 1, "\"a\"\nstart ", true, false},
		"an empty answer's long end":        {fragmentsOf(), "within End", 1, "start ", true, false},
		"the event of an error, of another": {yieldsThen(panicsWith("x"), "a", "b"), "AppendError", 1, "\"a\"\n\"b\"\n", true, false},
	} {
		for fault, does := range formatFaults {
			if fault == "fails" && c.method != "AppendText" {
				continue // it returns no error
			}
			for _, w := range []way{routeStream, {stream: true, route: true, http2: true}, {stream: true, route: true, hides: true}} {
				t.Run(fmt.Sprint(name, " ", fault, ", HTTP/2 ", w.http2, ", hides ", w.hides), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						is := is.New(t)
						nth, exited := c.nth, fault == "exits" && c.byHandler
						f := &lineFormat{before: func(method string) error {
							if method != c.method {
								return nil
							}
							if nth--; nth > 0 {
								return nil
							}
							if c.late {
								time.Sleep(time.Minute)
							}
							return does()
						}}
						if c.method == "within End" {
							f.end = func(yield func([]byte) bool) {
								_ = yield([]byte("start ")) && yield([]byte(strings.Repeat("x", maxWrite))) && f.call(c.method) == nil
							}
						}
						var engineContext context.Context
						got := playChat(t, w, ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
							engineContext = ctx
							return c.engine.Chat(ctx, req)
						}), f.in)
						is.Equal(f.calls[len(f.calls)-1], c.method) // not called again
						_, slotInUse := RequestFrom(engineContext).Slot().Hold()
						is.True(!slotInUse)
						is.True(!f.overlaps.Load())
						is.Equal(engineContext.Err(), context.Canceled)
						is.Equal(strings.Contains(got.log, "formatting a stream"), fault == "panics")
						switch {
						case c.before != "":
							is.True(got.err != nil) // aborted
							is.True(w.hides || strings.HasPrefix(got.body, c.before))
							is.True(!strings.Contains(got.body, "end"))
							is.True(!strings.Contains(got.body, "teapot"))
						case exited || fault == "aborts":
							is.Equal(got.status, 0)
						case fault == "fails":
							is.Equal(fmt.Sprint(got.status, " ", got.body), `418 {"detail":"I am a teapot"}`)
						default:
							is.Equal(fmt.Sprint(got.status, " ", got.body), `500 {"detail":"Internal Server Error"}`)
						}
						if !exited {
							is.True(got.report(t).Err != nil)
						}
					})
				})
			}
		}
	}
}

// An End that goes on when it should not is no failure of the answer: the client's is.
func TestEndGoesOnAfterAFailedWrite(t *testing.T) {
	is := is.New(t)
	f := &lineFormat{end: func(yield func([]byte) bool) {
		for range 3 {
			yield(make([]byte, maxWrite))
		}
	}}
	r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true)))
	got := playRequestOn(t, faulty("Write", 1, faultFails), r, fragmentsOf("a"), f.in)
	is.True(errors.Is(got.report(t).Err, ErrClientLeft))
	is.Equal(got.log, "")
}

// A plainFormat has no events: the stream is the text.
type plainFormat struct{}

func (plainFormat) ContentType() string                         { return "text/plain; charset=utf-8" }
func (plainFormat) AppendText(dst, text []byte) ([]byte, error) { return append(dst, text...), nil }
func (plainFormat) AppendKeepAlive(dst []byte) []byte           { return dst }
func (plainFormat) End(context.Context) iter.Seq[[]byte]        { return func(func([]byte) bool) {} }
func (plainFormat) AppendError(dst []byte, _ Failure) []byte    { return dst }

// A format need not write anything for a fragment, a keep-alive, the end or an error. The
// response has its head nevertheless.
func TestFormatWritesNothing(t *testing.T) {
	waitsThen := func(end engineEnd, fragments ...string) ChatEngine {
		return engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			fragmentsOf(fragments...).Chat(ctx, req)(yield)
			time.Sleep(time.Minute)
			end(ctx, yield)
		})
	}
	for name, c := range map[string]struct {
		engine ChatEngine
		want   string // the status and the body
	}{
		"a text":                {waitsThen(sleepsFor(0), "a", "b"), "200 ab"},
		"no fragment":           {waitsThen(sleepsFor(0)), "200 "},
		"an empty fragment":     {waitsThen(sleepsFor(0), ""), "200 "},
		"an error":              {waitsThen(failsWith(errOverloaded)), `529 {"detail":"Overloaded"}`}, // nothing was sent before
		"an error after a text": {waitsThen(failsWith(errOverloaded), "a"), "200 a, aborted"},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", HTTP/2 ", http2), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					got := playChat(t, way{stream: true, route: true, http2: http2}, c.engine, func(o *Options) {
						o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Stream = plainFormat{} })}
					})
					response := fmt.Sprint(got.status, " ", got.body)
					if got.err != nil {
						response += ", aborted"
					}
					is.Equal(response, c.want)
					if got.status == 200 {
						is.Equal(got.header.Get("Content-Type"), "text/plain; charset=utf-8")
						is.Equal(got.header.Get("Cache-Control"), "no-cache, no-transform")
					}
					is.Equal(got.report(t).Status, got.status)
				})
			})
		}
	}
}

// In the API's own format, fragments are not joined: they could make a terminator together.
func TestOwnFormatJoinsNoFragments(t *testing.T) {
	const text = "a [DONE] b"
	for at := range len(text) {
		for then := at; then < len(text); then++ {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				fragments := slices.Repeat([]string{text[:at], text[at:then], text[then:]}, 20)
				w := faulty("Write", 0, func() error { synctest.Wait(); return nil }) // meanwhile, the engine yields more
				r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true)))
				got := playRequestOn(t, w, r, fragmentsOf(fragments...), func(o *Options) {
					o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Stream, c.JoinsFragments = nil, true })}
				})
				read := readStream(t, got.body) // which accepts no terminator in a text
				is.Equal(read.text(), strings.Repeat(text, 20))
				is.True(read.done)
				is.Equal(len(read.fragments), len(fragments))
				is.Equal(got.report(t).Fragments, len(fragments))
			})
		}
	}
}

// readLines reads a stream of a lineFormat as a strict client does.
func readLines(body string) (texts []string, end string, err error) {
	for line := range strings.Lines(body) {
		line, found := strings.CutSuffix(line, "\n")
		switch {
		case !found || end != "":
			return texts, end, fmt.Errorf("an incomplete line, or one after the end: %.100q", line)
		case line == "alive":
		case !strings.HasPrefix(line, `"`):
			end = line
		case strings.ContainsAny(line, pythonLineBreaks):
			return texts, end, fmt.Errorf("a line break within a line: %.100q", line)
		case len(line) > maxEvent+2:
			return texts, end, fmt.Errorf("an event of %d bytes", len(line))
		default:
			var text string
			if err := json.Unmarshal([]byte(line), &text); err != nil {
				return texts, end, fmt.Errorf("%w in %.100q", err, line)
			}
			texts = append(texts, text)
		}
	}
	return texts, end, nil
}

// FuzzStreamFormat splits any bytes anywhere, and yields them while earlier ones are being
// written. A format of the application's own gets whole characters, and all together the text
// of a JSON response, whether fragments are joined or not.
func FuzzStreamFormat(f *testing.F) {
	f.Add([]byte("Hello, world"), []byte{5, 2}, false)
	f.Add([]byte("é€😀\u2028\u0085"), []byte{1, 1, 1, 1, 1, 1, 1, 1}, true)
	f.Add([]byte("[DONE] [DO"), []byte{3, 0, 0, 1}, true)
	f.Add([]byte("\xf0\x9f\xf0\x9f\x98\x80\xed\xa0\x80\xe2"), []byte{2, 0, 1}, true)
	f.Add([]byte("\x00\x1f\"\\\r\n\xe2\x80"), []byte{}, false)
	f.Add(bytes.Repeat([]byte("😀\x00a[DONE]"), 3000), bytes.Repeat([]byte{255, 0, 1}, 60), true)
	f.Add(bytes.Repeat([]byte{'x'}, 40<<10), []byte{}, true)
	f.Fuzz(func(t *testing.T, text, sizes []byte, joins bool) {
		fragments := splitBySizes(string(text), sizes)
		format := new(lineFormat)
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf(fragments...)
		o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Stream, c.JoinsFragments = format, joins })}
		var report ChatReport
		o.OnChat = func(_ context.Context, r ChatReport) { report = r }
		h := New(o)
		w := httptest.NewRecorder()
		h.ServeHTTP(slowRecorder{w}, newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true))))
		texts, end, err := readLines(w.Body.String())
		want := textOf(string(text))
		if err != nil || end != "end" || strings.Join(texts, "") != want || format.overlaps.Load() {
			t.Fatalf("%q, joined %t, is streamed as %q: %v", fragments, joins, w.Body, err)
		}
		if !joins && len(texts) < len(fragments) {
			t.Fatalf("%d events for %d fragments", len(texts), len(fragments))
		}
		if report.Fragments != len(fragments) || report.Bytes != int64(len(want)) {
			t.Fatalf("%d fragments and %d bytes are reported of %d and %d", report.Fragments, report.Bytes, len(fragments), len(want))
		}
		got := record(h, newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", false)))).Body.String()
		if contentOf(t, got) != want {
			t.Fatalf("%q is the JSON %q", fragments, got)
		}
	})
}

// A slowRecorder lets other goroutines run during a write.
type slowRecorder struct{ *httptest.ResponseRecorder }

func (w slowRecorder) Write(p []byte) (int, error) {
	for range 3 {
		runtime.Gosched()
	}
	return w.ResponseRecorder.Write(p)
}

// Fragments that are ready together are joined to few texts, which have room for as much as
// an event of the API has. Nothing waits for the next fragment.
func TestJoinsFragments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const rapid, slow = 20_000, 10
		f := new(lineFormat)
		w := faulty("Write", 0, func() error { synctest.Wait(); return nil }) // meanwhile, the engine yields as much as may wait
		r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true)))
		var want []string
		began := time.Now()
		got := playRequestOn(t, w, r, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for i := range rapid + slow {
				if i >= rapid {
					time.Sleep(time.Second)
				}
				want = append(want, fmt.Sprint(i, " "))
				yield(want[i], nil)
			}
		}), func(o *Options) {
			o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Stream, c.JoinsFragments = f, true })}
		})
		is.NoErr(got.err)
		is.Equal(time.Since(began), slow*time.Second)
		texts, end, err := readLines(got.body)
		is.NoErr(err)
		is.Equal(end, "end")
		is.Equal(strings.Join(texts, ""), strings.Join(want, ""))
		is.Equal(texts[len(texts)-slow:], want[rapid:]) // the slow ones are not joined
		is.True(len(texts) < rapid/100)
		is.Equal(got.report(t).Fragments, rapid+slow)
	})
}

// The handler calls one method of a format at a time, however keep-alives, fragments and the
// end of the answer coincide.
func TestFormatIsNotCalledConcurrently(t *testing.T) {
	for range 50 {
		is := is.New(t)
		f := &lineFormat{before: func(string) error { runtime.Gosched(); return nil }}
		w := faulty("Write", 0, func() error { runtime.Gosched(); return nil })
		r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true)))
		got := playRequestOn(t, w, r, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for i := range 100 {
				for range i % 20 {
					runtime.Gosched()
				}
				yield("x", nil)
			}
		}), func(o *Options) {
			f.in(o)
			o.KeepAlive = time.Microsecond
		})
		is.True(!f.overlaps.Load())
		texts, end, err := readLines(got.body)
		is.NoErr(err)
		is.Equal(strings.Join(texts, "")+end, strings.Repeat("x", 100)+"end")
	}
}

// The end of an answer, and what is around the text of a JSON response, may be longer than a
// client can read within WriteTimeout: each chunk of 64 KiB has its own. If the client stops
// reading, the end is not made any further.
func TestLongEndOfASlowReader(t *testing.T) {
	long := strings.Repeat("0123456789", 20<<10)
	for name, c := range map[string]struct {
		stream bool
		chunk  int // bytes of the end that the format yields at a time
	}{
		"in one chunk":       {true, len(long)},
		"in chunks":          {true, connection.MaxChunk},
		"in small chunks":    {true, 100},
		"of a JSON response": {false, 0},
	} {
		for _, stalls := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", stalls ", stalls), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					made := 0
					f := &lineFormat{end: func(yield func([]byte) bool) {
						for chunk := range slices.Chunk([]byte(long+"\n"), max(c.chunk, 1)) {
							if made += len(chunk); !yield(chunk) {
								return
							}
						}
					}}
					reports := make(chan ChatReport, 1)
					o := testOptions(t, io.Discard)
					o.Engine, o.WriteTimeout = fragmentsOf("a"), 70*time.Second // such a client needs 64 seconds for a chunk of 64 KiB
					o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
					o.Routes = []Route{chatRoute(func(_ *http.Request, chat *Chat) {
						chat.Stream = f
						chat.JSON = func(context.Context) ([]byte, []byte, error) { return []byte(long + `"`), []byte(`"` + long), nil }
					})}
					server := serveInMemory(t, New(o))
					if stalls {
						conn := server.dial()
						defer conn.Close()
						r, err := http.NewRequest("POST", "http://memory"+routePath, strings.NewReader(chatBodyJSON("hi", c.stream)))
						is.NoErr(err)
						setHeader(r, nil)
						is.NoErr(r.Write(conn))
						_, err = io.ReadFull(conn, make([]byte, 500))
						is.NoErr(err)
						report := <-reports
						is.True(errors.Is(report.Err, ErrClientStalled))
						is.Equal(report.Status, 200)
						is.True(made < len(long) || c.chunk == len(long) || !c.stream)
						return
					}
					client := server.client()
					client.Transport = slowTransport{client.Transport}
					got := doAt(t, client, "http://memory", "POST", routePath, chatBodyJSON("hi", c.stream))
					is.NoErr(got.err)
					is.Equal(len(got.body), map[bool]int{true: len("\"a\"\n" + long + "\n"), false: len(long + `"a"` + long)}[c.stream])
					is.True(strings.HasPrefix(got.body, map[bool]string{true: "\"a\"\n" + long, false: long + `"a"` + long}[c.stream]))
					is.NoErr((<-reports).Err)
				})
			})
		}
	}
}
