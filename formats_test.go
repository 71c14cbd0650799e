package botapi

import (
	"context"
	"fmt"
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
// either case the format is not called again, and the next chat gets the slot.
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
	}{
		"the first fragment's type":         {fragmentsOf("a", "b"), "ContentType", 1, "", false},
		"the first keep-alive's type":       {engineEnd(silent).engine(), "ContentType", 1, "", false},
		"an empty answer's type":            {fragmentsOf(), "ContentType", 1, "", true},
		"the first fragment":                {fragmentsOf("a", "b"), "AppendText", 1, "", false},
		"the second fragment":               {fragmentsOf("a", "b", "c"), "AppendText", 2, "\"a\"\n", false},
		"a fragment of a burst":             {fragmentsOf(strings.Split(strings.Repeat("a", 1000), "")...), "AppendText", 20, "\"a\"\n\"a\"\n\"a\"\n", false},
		"an incomplete character":           {fragmentsOf("a\xe2"), "AppendText", 2, "\"a\"\n", true},
		"the first keep-alive":              {engineEnd(silent).engine(), "AppendKeepAlive", 1, "", false},
		"the second keep-alive":             {engineEnd(silent).engine(), "AppendKeepAlive", 2, "alive\n", false},
		"a keep-alive after a fragment":     {yieldsThen(silent, "a"), "AppendKeepAlive", 1, "\"a\"\n", false},
		"the end":                           {fragmentsOf("a"), "End", 1, "\"a\"\n", true},
		"an empty answer's end":             {fragmentsOf(), "End", 1, "", true},
		"the event of an error":             {yieldsThen(failsWith(errBroken), "a"), "AppendError", 1, "\"a\"\n", true},
		"the event of an error, of another": {yieldsThen(panicsWith("x"), "a", "b"), "AppendError", 1, "\"a\"\n\"b\"\n", true},
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
							if method == c.method {
								if nth--; nth <= 0 {
									return does()
								}
							}
							return nil
						}}
						var engineContext context.Context
						got := playChat(t, w, ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
							engineContext = ctx
							return c.engine.Chat(ctx, req)
						}), f.in)
						is.Equal(f.calls[len(f.calls)-1], c.method) // not called again
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
			t.Run(name+" "+fault+", the slot", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					nth := c.nth
					f := &lineFormat{before: func(method string) error {
						if method == c.method {
							if nth--; nth == 0 {
								return does()
							}
						}
						return nil
					}}
					r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true)))
					playRequestOn(t, httptest.NewRecorder(), r, c.engine, f.in) // playRequestOn checks the slot
				})
			})
		}
	}
}

// The end of an answer may be long: it is written while the format makes it. If the format
// fails then, it is not called again either.
func TestFormatFailsWithinALongEnd(t *testing.T) {
	for fault, does := range formatFaults {
		for _, fragments := range [][]string{nil, {"a"}} {
			if fault == "fails" {
				continue // an iterator returns no error
			}
			t.Run(fmt.Sprint(fault, ", fragments ", fragments), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					f := &lineFormat{end: func(yield func([]byte) bool) {
						_ = yield([]byte("start ")) && yield([]byte(strings.Repeat("x", maxWrite))) && does() == nil
					}}
					got := playChat(t, routeStream, fragmentsOf(fragments...), f.in)
					is.True(got.err != nil) // aborted
					is.True(strings.HasSuffix(got.body, "start "))
					is.True(!slices.Contains(f.calls, "AppendError"))
					is.Equal(strings.Contains(got.log, "formatting a stream"), fault == "panics")
				})
			})
		}
	}
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
