package botapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestStreamBytes(t *testing.T) {
	for name, test := range map[string]struct {
		fragments []string
		want      string // before the terminator
	}{
		"only empty fragments":           {[]string{"", "", ""}, data("") + data("") + data("")},
		"quotes and backslashes":         {[]string{`a"b\c/`}, data(`a\"b\\c/`)},
		"lines of Python only":           {[]string{"\v\f\x1c\x1d\x1e\u0085\u2028\u2029"}, data(`\u000b\u000c\u001c\u001d\u001e\u0085\u2028\u2029`)},
		"control characters":             {[]string{"\x00\x01\b\t\x1f\x7f"}, data("\\u0000\\u0001\\u0008\\t\\u001f\x7f")},
		"HTML is not escaped":            {[]string{"<b>&amp;</b>'"}, data("<b>&amp;</b>'")},
		"UTF-8 is not escaped":           {[]string{"é€😀\ufeff\ufffd"}, data("é€😀\ufeff\ufffd")},
		"the terminator in a text":       {[]string{"[DONE]", "a[DONE]b[DONE]", "[[DONE]]"}, data(`\u005bDONE]`) + data(`a\u005bDONE]b\u005bDONE]`) + data(`[\u005bDONE]]`)},
		"almost the terminator":          {[]string{"[DONE", "]", "[done]", "[", "DONE]"}, data("[DONE") + data("]") + data("[done]") + data("[") + data("DONE]")},
		"a character cut in four":        {[]string{"\xf0", "\x9f", "\x98", "\x80"}, data("") + data("") + data("") + data("😀")},
		"an empty fragment in a cut":     {[]string{"\xc3", "", "\xa9"}, data("") + data("") + data("é")},
		"a cut line separator":           {[]string{"\xe2\x80", "\xa8"}, data("") + data(`\u2028`)},
		"a cut character without a rest": {[]string{"a\xe2\x82"}, data("a") + data("\ufffd\ufffd")},
		"a cut character, then another":  {[]string{"\xe2\x82", "a"}, data("") + data("\ufffd\ufffda")},
		"a cut character, twice":         {[]string{"\xf0\x9f", "\xf0\x9f", "\x98\x80"}, data("") + data("\ufffd\ufffd") + data("😀")},
		"one U+FFFD for each bad byte":   {[]string{"a\xff\xfeb\x80"}, data("a\ufffd\ufffdb\ufffd")},
		"surrogates and overlong forms":  {[]string{"\xed\xa0\x80", "\xc0\xaf"}, data("\ufffd\ufffd\ufffd") + data("\ufffd\ufffd")},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine := fragmentsOf(test.fragments...)
			is.Equal(playChat(t, way{stream: true}, engine).body, test.want+terminator)
			is.Equal(contentOf(t, playChat(t, way{}, engine).body), textOf(strings.Join(test.fragments, "")))
		})
	}
}

// textOf is what a client must get of an engine's bytes: Go's own reading, one
// U+FFFD for each byte that is not UTF-8.
func textOf(yielded string) string {
	var b strings.Builder
	for _, r := range yielded {
		b.WriteRune(r)
	}
	return b.String()
}

// contentOf reads {"content":"..."}.
func contentOf(t testing.TB, body string) string {
	t.Helper()
	var read struct{ Content *string }
	if err := decodeStrictly(body, &read); err != nil || read.Content == nil {
		t.Fatalf("not an answer: %v: %.200q", err, body)
	}
	return *read.Content
}

func decodeStrictly(body string, into any) error {
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

// Every way to cut seven bytes into fragments gives the same text, streamed or
// whole.
func TestStreamCutsCharacters(t *testing.T) {
	for _, text := range []string{
		"é€ñ",               // good characters only
		"😀\xe2\x82x",        // a good one, then an unfinished one
		"\xf0\x9f\x98é\xe2", // unfinished at both ends
		"\xf0\x90\x80[\"\xc3",
		"\xed\xa0\x80\xff\xf4\x90\x80", // never characters
		"\xe2\x80\xa8\xc2\x85\n\xf0",   // line ends of Python
	} {
		for cuts := range 1 << (len(text) - 1) {
			readBothWays(t, cut(text, cuts))
		}
	}
}

// cut cuts a text behind each byte whose bit is set.
func cut(text string, cuts int) (fragments []string) {
	from := 0
	for i := range len(text) {
		if cuts>>i&1 == 1 {
			fragments = append(fragments, text[from:i+1])
			from = i + 1
		}
	}
	return append(fragments, text[from:])
}

// readBothWays plays a chat with these fragments as a stream and whole, and compares
// what a strict client reads.
func readBothWays(t testing.TB, fragments []string) {
	t.Helper()
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf(fragments...)
	h, want := New(o), textOf(strings.Join(fragments, ""))
	stream := postChat(h, chatBodyJSON("hi", true)).Body.String()
	if read := readStream(t, stream); read.text() != want || !read.done || read.rest != "" || strings.Count(stream, "[DONE]") != 1 {
		t.Fatalf("%q is streamed as %q", fragments, stream)
	}
	if whole := contentOf(t, postChat(h, chatBodyJSON("hi", false)).Body.String()); whole != want {
		t.Fatalf("%q joined is %q", fragments, whole)
	}
}

// A streamRead is what a strict client reads of a stream, whole or not.
type streamRead struct {
	fragments  []string
	keepAlives int
	failure    string // the detail of an error event
	done       bool
	rest       string // the start of an event whose end did not come
}

func (s streamRead) text() string { return strings.Join(s.fragments, "") }

func readStream(t testing.TB, body string) streamRead {
	t.Helper()
	read, err := parseStream(body)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// parseStream accepts what the interface allows, and nothing else: whole
// events of at most 4 KiB, keep-alives between them, one end.
func parseStream(body string) (s streamRead, err error) {
	for body != "" {
		if s.done || s.failure != "" {
			return s, fmt.Errorf("behind the end: %.100q", body)
		}
		if rest, found := strings.CutPrefix(body, ": keep-alive\n"); found {
			s.keepAlives++
			body = rest
			continue
		}
		event, rest, found := strings.Cut(body, "\n\n")
		if !found {
			s.rest = body
			break
		}
		if err := s.add(event); err != nil {
			return s, fmt.Errorf("%w: %.100q", err, event)
		}
		body = rest
	}
	return s, nil
}

// pythonLineBreaks are where Python's str.splitlines ends a line, which is how
// published clients read.
const pythonLineBreaks = "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029"

func (s *streamRead) add(event string) error {
	if len(event)+len("\n\n") > 4<<10 {
		return fmt.Errorf("an event of %d bytes", len(event)+2)
	}
	event, isError := strings.CutPrefix(event, "event: error\n")
	value, isData := strings.CutPrefix(event, "data: ")
	switch {
	case !isData:
		return errors.New("not an event")
	case strings.ContainsAny(value, pythonLineBreaks):
		return errors.New("a line break within a line")
	case isError:
		var read struct{ Detail string }
		err := decodeStrictly(value, &read)
		s.failure = read.Detail
		return err
	case value == "[DONE]":
		s.done = true
		return nil
	case strings.Contains(value, "[DONE]"):
		return errors.New("the terminator in a text")
	}
	var read struct{ Content *string }
	if err := decodeStrictly(value, &read); err != nil {
		return err
	}
	if read.Content == nil {
		return errors.New("no content")
	}
	s.fragments = append(s.fragments, *read.Content)
	return nil
}

// Eight and 32 bytes are looked at together: any byte, at any place, before a
// neighbour that it could spill into, must be found as by itself.
func TestStreamPlainPrefix(t *testing.T) {
	const neighbours = "az !#]Z\x7f\x00\"[\\\x80\xff"
	for length := range 75 {
		for at := range length {
			for c := range 256 {
				text := append(bytes.Repeat([]byte("z"), at), byte(c), neighbours[(length+at+c)%len(neighbours)])
				text = append(text, bytes.Repeat([]byte("z"), length-at)...)[:length]
				want := slices.IndexFunc(text, func(c byte) bool { return !isPlain(c) })
				if got := plainPrefix(string(text)); got != want && (want >= 0 || got != length) {
					t.Fatalf("%d of %q is plain, not %d", want, text, got)
				}
			}
		}
	}
}

// Events have room for 4 KiB, whatever the text is made of, and a text that
// fits into one is not cut.
func TestStreamLongFragment(t *testing.T) {
	const room = 4<<10 - len(`data: {"content":"`) - len("\"}\n\n")
	for character, size := range map[string]int{ // of it, in an event
		"a": 1, `"`: 2, "\n": 2, "[": 1, "\x00": 6, "é": 2, "€": 3, "😀": 4, "\u2028": 6, "\xff": 3, "[DONE]": 11,
	} {
		is := is.New(t)
		fits := strings.Repeat(character, room/size) + strings.Repeat("a", room%size)
		body := playChat(t, way{stream: true}, fragmentsOf(fits)).body
		is.Equal(len(readStream(t, body).fragments), 1)
		is.Equal(len(body), 4<<10+len(terminator))
		for _, longer := range []string{"a" + fits, fits + "é", fits + fits + "\xe2\x82", strings.Repeat(fits, 3)} {
			readBothWays(t, []string{longer})
			report := playChat(t, way{stream: true}, fragmentsOf(longer)).report(t)
			is.Equal(report.Fragments, 1)
			is.Equal(report.Bytes, int64(len(textOf(longer))))
		}
	}
}

// failing is an engine that fails after these fragments.
func failing(err error, fragments ...string) ChatEngine {
	return engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
		for fragment := range fragmentsOf(fragments...).Chat(ctx, req) {
			if !yield(fragment, nil) {
				return
			}
		}
		yield("", err)
	})
}

// failures are the ways of an engine to fail, besides those of testdata/wire. Each
// knows a secret.
var failures = map[string]struct {
	fail   func(yield func(string, error) bool)
	status int // before the first fragment
	detail string
}{
	"an error beside a text": {func(yield func(string, error) bool) { yield("text", errors.New("secret")) }, 500, "Internal Server Error"},
	"an error, then more fragments": {func(yield func(string, error) bool) {
		yield("", StatusError{Status: 503, Detail: "Model is loading", Err: errors.New("secret")})
		yield("more", nil)
		yield("", errors.New("another error"))
		panic("and a panic")
	}, 503, "Model is loading"},
	"a StatusError": {func(yield func(string, error) bool) {
		yield("", fmt.Errorf("wrapped: %w", &StatusError{Status: 429, Detail: "Say [DONE]\n\u2028", Err: errors.New("cause")}))
	}, 429, `Say \u005bDONE]\n\u2028`},
	"a long detail": {func(yield func(string, error) bool) {
		yield("", StatusError{Status: 429, Detail: strings.Repeat("0123456789", 500)})
	}, 429, strings.Repeat("0123456789", 500)},
	"a panic with a StatusError is no way to choose": {func(func(string, error) bool) { panic(StatusError{Status: 418, Detail: "secret"}) }, 500, "Internal Server Error"},
	"runtime.Goexit":               {func(func(string, error) bool) { runtime.Goexit() }, 500, "Internal Server Error"},
	"an error that panics, Error":  {func(yield func(string, error) bool) { yield("", trapError{"Error"}) }, 500, "Internal Server Error"},
	"an error that panics, Is":     {func(yield func(string, error) bool) { yield("", trapError{"Is"}) }, 500, "Internal Server Error"},
	"an error that panics, As":     {func(yield func(string, error) bool) { yield("", trapError{"As"}) }, 500, "Internal Server Error"},
	"an error that panics, Unwrap": {func(yield func(string, error) bool) { yield("", trapError{"Unwrap"}) }, 500, "Internal Server Error"},
}

// What an engine fails with before its first fragment has its own status. After
// it, the same failure is an error event and a cut connection.
func TestStreamBreaksVisibly(t *testing.T) {
	for name, test := range failures {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				early := playChat(t, way{stream: true}, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					test.fail(yield)
				}))
				is.NoErr(early.err)
				is.Equal(early.status, test.status)
				is.Equal(early.header.Get("Content-Type"), "application/json")
				is.Equal(early.body, `{"detail":"`+test.detail+`"}`)
				is.Equal(strings.Contains(early.log, "level=ERROR"), test.status >= 500) // where it is a fault

				late := playChat(t, way{stream: true}, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					yield("a", nil)
					test.fail(yield)
				}))
				is.Equal(late.err, io.ErrUnexpectedEOF)
				is.Equal(late.status, 200)
				is.Equal(late.body, data("a")+broken(test.detail))
				is.True(strings.Contains(late.log, "answer broken off"))
				report := late.report(t)
				is.Equal(report.Status, 200)
				is.Equal(report.Fragments, 1)
				is.True(report.Err != nil)
			})
		})
	}
}

// An http.ErrAbortHandler asks for a cut, and gets one and nothing else.
func TestStreamEngineAborts(t *testing.T) {
	for name, abort := range map[string]func(yield func(string, error) bool){
		"by a panic":       func(func(string, error) bool) { panic(http.ErrAbortHandler) },
		"by an error":      func(yield func(string, error) bool) { yield("", http.ErrAbortHandler) },
		"by a wrapped one": func(yield func(string, error) bool) { yield("", fmt.Errorf("proxy: %w", http.ErrAbortHandler)) },
	} {
		for _, text := range []string{"", "a"} {
			t.Run(name+" after "+strconv.Quote(text), func(t *testing.T) {
				is := is.New(t)
				got := playOn(t, httptest.NewRecorder(), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					if text != "" {
						yield(text, nil)
					}
					abort(yield)
				}))
				is.Equal(got.err, http.ErrAbortHandler)
				is.Equal(got.body, strings.Repeat(data("a"), len(text)))
				is.Equal(got.log, "")
			})
		}
	}
}

// Fragments that wait for the connection when the engine fails are not lost.
func TestStreamQueuedBeforeTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		fragments := slices.Repeat([]string{"twelve bytes"}, 5000)
		got := playChat(t, way{stream: true}, failing(StatusError{Status: 502, Detail: "Model died"}, fragments...))
		is.Equal(got.err, io.ErrUnexpectedEOF)
		is.True(got.body == strings.Repeat(data("twelve bytes"), 5000)+broken("Model died"))
	})
}

// pacedEngine waits before each fragment.
func pacedEngine(waits ...time.Duration) ChatEngine {
	return engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for _, wait := range waits {
			time.Sleep(wait)
			if !yield("x", nil) {
				return
			}
		}
	})
}

// An arrival is a line of a stream, and when it came.
type arrival struct {
	after time.Duration // the request
	line  string        // without its end; blank lines do not count
}

func TestKeepAlive(t *testing.T) {
	const s = time.Second
	x, alive, end := `data: {"content":"x"}`, ": keep-alive", "data: [DONE]"
	for name, test := range map[string]struct {
		keepAlive time.Duration
		engine    ChatEngine
		want      []arrival
	}{
		"a silent beginning":             {0, pacedEngine(40 * s), []arrival{{15 * s, alive}, {30 * s, alive}, {40 * s, x}, {40 * s, end}}},
		"silence between fragments":      {0, pacedEngine(10*s, 40*s), []arrival{{10 * s, x}, {25 * s, alive}, {40 * s, alive}, {50 * s, x}, {50 * s, end}}},
		"no silence":                     {0, pacedEngine(14*s, 14*s, 14*s), []arrival{{14 * s, x}, {28 * s, x}, {42 * s, x}, {42 * s, end}}},
		"an interval of its own":         {s, pacedEngine(5 * s / 2), []arrival{{s, alive}, {2 * s, alive}, {5 * s / 2, x}, {5 * s / 2, end}}},
		"never":                          {-1, pacedEngine(300 * s), []arrival{{300 * s, x}, {300 * s, end}}},
		"a fragment just before it":      {0, pacedEngine(15*s-1, 15*s-1), []arrival{{15*s - 1, x}, {30*s - 2, x}, {30*s - 2, end}}},
		"a fragment just after it":       {0, pacedEngine(15*s + 1), []arrival{{15 * s, alive}, {15*s + 1, x}, {15*s + 1, end}}},
		"many fragments, then silence":   {0, pacedEngine(0, 0, 0, 0, 0, 0, 20*s), []arrival{{0, x}, {0, x}, {0, x}, {0, x}, {0, x}, {0, x}, {15 * s, alive}, {20 * s, x}, {20 * s, end}}},
		"an engine that ends in silence": {0, engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { time.Sleep(20 * s) }), []arrival{{15 * s, alive}, {20 * s, end}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.KeepAlive, o.Engine = test.keepAlive, test.engine
				began := time.Now()
				res, err := serveInMemory(t, New(o)).client().Do(chatRequest(t, "http://memory", "hi", true))
				is.NoErr(err)
				defer res.Body.Close()
				var seen []arrival
				for lines := bufio.NewScanner(res.Body); lines.Scan(); {
					if lines.Text() != "" {
						seen = append(seen, arrival{time.Since(began), lines.Text()})
					}
				}
				is.Equal(seen, test.want)
			})
		})
	}
}

// A client that stops reading holds its engine back in bounded memory; after
// WriteTimeout its stream is cut. Others are not slowed.
func TestStreamClientStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const fragment, read = 1 << 10, 100 << 10
		var taken atomic.Int64
		var log testLog
		reports, ended := make(chan ChatReport, 2), make(chan struct{})
		o := testOptions(t, &log)
		o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			if lastContent(req) == "read" {
				yield(strings.Repeat("x", 1000*fragment), nil)
				return
			}
			for yield(strings.Repeat("x", fragment), nil) {
				taken.Add(1)
			}
			<-ctx.Done()
			close(ended)
		})
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		server := serveInMemory(t, New(o))
		began := time.Now()
		conn := server.dial() // net.Pipe has no buffer: nothing is taken that is not read
		defer conn.Close()
		is.NoErr(chatRequest(t, "http://memory", "stall", true).Write(conn))
		_, err := io.ReadFull(conn, make([]byte, read))
		is.NoErr(err)
		synctest.Wait()
		unread := func() int { return int(taken.Load())*(fragment+len(data(""))) - read }
		held := unread()
		t.Logf("the handler and net/http hold %d bytes", held)
		is.True(held > 0 && held <= 2*maxWrite) // what is being written, and the queue

		is.NoErr(doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("read", true)).err)
		is.NoErr((<-reports).Err)
		is.Equal(time.Since(began), time.Duration(0))
		is.Equal(unread(), held)

		report := <-reports
		<-ended
		is.Equal(report.Status, 200)
		is.True(errors.Is(report.Err, ErrClientStalled) && !errors.Is(report.Err, context.Canceled))
		is.True(report.Duration >= DefaultWriteTimeout && report.Duration <= DefaultWriteTimeout+time.Second)
		_, err = io.Copy(io.Discard, conn)
		is.NoErr(err)              // the connection was closed
		is.Equal(log.String(), "") // clients do such things
	})
}

// A client may take its time, as long as it takes something: WriteTimeout is
// for one write.
func TestStreamSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		text := strings.Repeat("0123456789", 20<<10)
		o.Engine = fragmentsOf(text)
		server := serveInMemory(t, New(o))
		res, err := server.client().Do(chatRequest(t, "http://memory", "hi", true))
		is.NoErr(err)
		defer res.Body.Close()
		body, err := io.ReadAll(slowReader{res.Body})
		is.NoErr(err)
		is.Equal(readStream(t, string(body)).text(), text)
	})
}

// A slowReader takes 1 KiB a second.
type slowReader struct{ io.Reader }

func (r slowReader) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return r.Reader.Read(p[:min(len(p), 1<<10)])
}

// Rapid fragments leave together, in whole events and bounded writes, in
// order; slow ones leave one by one, at once, also after rapid ones.
func TestStreamReadyFragmentsLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const rapid, slow = 20_000, 10
		var at []time.Duration
		began := time.Now()
		w := faulty("Write", 0, func() error { // the slowest client that there can be, without any time passing
			synctest.Wait()
			at = append(at, time.Since(began))
			return nil
		})
		got := playOn(t, w, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for i := range rapid {
				yield(fmt.Sprint(i, " "), nil)
			}
			for i := range slow {
				time.Sleep(time.Second)
				yield(fmt.Sprint(rapid+i, " "), nil)
			}
		}))
		is.NoErr(got.err)
		read := readStream(t, got.body)
		is.Equal(len(read.fragments), rapid+slow)
		for i, fragment := range read.fragments {
			is.Equal(fragment, fmt.Sprint(i, " "))
		}
		for _, write := range w.writes {
			is.True(len(write) <= 16<<10)
			is.True(strings.HasPrefix(write, "data: ") && strings.HasSuffix(write, "\n\n"))
		}
		is.True(len(w.writes) < rapid/100)
		for i := range slow {
			last := len(w.writes) - 1 - slow + i // before the terminator
			is.Equal(w.writes[last], data(fmt.Sprint(rapid+i, " ")))
			is.Equal(at[last], time.Duration(i+1)*time.Second)
		}
	})
}

// Whatever a write finds ready goes with it, however the goroutines meet: no
// event waits for the next one.
func TestStreamLosesNoEvent(t *testing.T) {
	o := testOptions(t, io.Discard)
	read := make(chan struct{})
	const bursts, size = 300, 7
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for range bursts {
			for range size {
				yield("x", nil)
			}
			select {
			case <-read: // the client has the whole burst
			case <-ctx.Done():
				return
			}
		}
	})
	server := httptest.NewServer(New(o))
	defer server.Close()
	res, err := server.Client().Do(chatRequest(t, server.URL, "hi", true))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	overdue := time.AfterFunc(30*time.Second, func() { res.Body.Close() }) // so that a fault fails the test, and does not hang it
	defer overdue.Stop()
	for range bursts {
		if _, err := io.ReadFull(res.Body, make([]byte, size*len(data("x")))); err != nil {
			t.Fatal("a burst did not arrive:", err)
		}
		read <- struct{}{}
	}
}

func TestStreamEmptyFragments(t *testing.T) {
	is := is.New(t)
	const fragments = 200_000
	engine := fragmentsOf(make([]string, fragments)...)
	got := playChat(t, way{stream: true}, engine)
	is.NoErr(got.err)
	is.True(got.body == strings.Repeat(data(""), fragments)+terminator)
	report := got.report(t)
	is.Equal(report.Fragments, fragments)
	is.Equal(report.Bytes, int64(0))
	is.Equal(report.FirstFragment, time.Duration(0)) // there was none with text
	is.Equal(playChat(t, way{}, engine).body, `{"content":""}`)
}

// The handler's own code allocates nothing for a fragment: a chat with 20,000
// of them allocates no more than one with 2,000.
func TestStreamFragmentAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("with the race detector, sync.Pool drops what it is given at random")
	}
	is := is.New(t)
	allocations := func(fragments int) float64 {
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf(slices.Repeat([]string{"a \"word\" é "}, fragments)...)
		h := New(o)
		return testing.AllocsPerRun(10, func() { serveOn(&discarded{header: http.Header{}}, h, chatBodyJSON("hi", true)) })
	}
	few, many := allocations(2_000), allocations(20_000)
	t.Logf("%v allocations with 2,000 fragments, %v with 20,000", few, many)
	is.True(many-few < 18) // not one in a thousand: a garbage collection empties the pool
}

// FuzzEvents cuts any bytes anywhere: a strict client reads exactly the text,
// and the one-body answer holds the same.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("Hello, world"), []byte{5, 2})
	f.Add([]byte("é€😀\u2028\u0085"), []byte{1, 1, 1, 1, 1, 1, 1, 1})
	f.Add([]byte("[DONE] [DO"), []byte{3})
	f.Add([]byte("\xf0\x9f\xf0\x9f\x98\x80\xed\xa0\x80\xe2"), []byte{2, 0, 1})
	f.Add([]byte("\x00\x1f\"\\\r\n"), []byte{})
	f.Add(bytes.Repeat([]byte("😀\x00a[DONE]"), 300), []byte{255, 0, 255})
	f.Fuzz(func(t *testing.T, text, cuts []byte) {
		readBothWays(t, cutBySizes(string(text), cuts))
	})
}

// cutBySizes cuts a text into fragments of these sizes and the rest.
func cutBySizes(text string, sizes []byte) (fragments []string) {
	for _, size := range sizes {
		n := min(len(text), int(size))
		fragments = append(fragments, text[:n])
		text = text[n:]
	}
	return append(fragments, text)
}

// raceDetector is whether this binary was built with it.
var raceDetector = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Without a WriteTimeout, an engine that has finished leaves what is still being
// written to be written.
func TestStreamWithoutWriteTimeout(t *testing.T) {
	is := is.New(t)
	const fragments = 20_000
	for range 20 {
		got := playChat(t, way{stream: true}, fragmentsOf(slices.Repeat([]string{"twelve bytes"}, fragments)...), func(o *Options) { o.WriteTimeout = -1 })
		is.NoErr(got.err)
		is.True(got.body == strings.Repeat(data("twelve bytes"), fragments)+terminator)
	}
}

// An engine fills the next batch while one is being written. If it has to wait for
// room, it goes on when the next write begins.
func TestStreamEngineYieldsDuringAWrite(t *testing.T) {
	for name, c := range map[string]struct {
		rounds, kilobytes int
		thinks, atMost    time.Duration // each write takes a second
	}{
		"once":             {1, 2 * maxWrite >> 10, 0, (burstAfter + 3) * time.Second}, // its own writes, and those until there is room for the rest
		"again, and again": {100, maxWrite >> 10, time.Second, 180 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var said time.Duration
				began := time.Now()
				got := playOn(t, faulty("Write", 0, takes(time.Second)), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for range c.rounds {
						for range c.kilobytes {
							yield(strings.Repeat("x", 1<<10), nil)
						}
						time.Sleep(c.thinks)
					}
					said = time.Since(began)
				}))
				is.NoErr(got.err)
				is.True(said <= c.atMost)
			})
		})
	}
}

func TestStreamLongFragmentInFewWrites(t *testing.T) {
	is := is.New(t)
	w := faulty("", 0, nil)
	playOn(t, w, true, fragmentsOf(strings.Repeat("x", 2*maxWrite)))
	is.True(len(w.writes) <= 4) // the terminator among them
}

// A stream whose engine is done is sent until ChatTimeout and one WriteTimeout: a
// reader that takes a little now and then must not keep its slot for longer.
func TestStreamIsSentUntilChatTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		reports := make(chan ChatReport, 1)
		o := testOptions(t, io.Discard)
		o.KeepAlive, o.ChatTimeout, o.WriteTimeout = -1, time.Minute, 10*time.Second
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			time.Sleep(59 * time.Second)
			for range 16 {
				yield(strings.Repeat("x", 1<<10), nil)
			}
		})
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		conn := serveInMemory(t, New(o)).dial()
		defer conn.Close()
		is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(conn))
		_, err := io.ReadFull(conn, make([]byte, 6<<10))
		for ; err == nil; _, err = io.ReadFull(conn, make([]byte, 2<<10)) {
			time.Sleep(4 * time.Second)
		}
		report := <-reports
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.True(report.Duration <= 70*time.Second)
	})
}

// A client that is still there has its time to read why its stream was ended,
// also where the host has ended the request.
func TestStreamEndedByTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, StatusError{Status: 503, Detail: "Shutting down"})
		defer cancel()
		began := time.Now()
		got := playRequestOn(t, httptest.NewRecorder(), chatRequest(t, "", "hi", true).WithContext(ctx), engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("a", nil)
			<-ctx.Done()
		}))
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(got.body, data("a")+broken("Shutting down"))
		is.Equal(time.Since(began), time.Second+250*time.Millisecond)
	})
}

// What the client of a broken stream is still owed has one WriteTimeout in all:
// the write under way, what is queued behind it, and the error event.
func TestStreamThatBreaksBeforeASlowReader(t *testing.T) {
	for name, c := range map[string]struct{ breaks, first, each time.Duration }{ // the client reads
		"not at all":                     {time.Second, time.Hour, time.Hour},
		"each 20s":                       {time.Second, 20 * time.Second, 20 * time.Second},
		"each 29s":                       {time.Second, 29 * time.Second, 29 * time.Second},
		"while the last deadline is new": {500 * time.Millisecond, 700 * time.Millisecond, time.Hour}, // which is later, and is moved back
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				broke, reports := make(chan time.Time, 1), make(chan ChatReport, 1)
				o := testOptions(t, io.Discard)
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for i := range burstAfter + 10 {
						yield(strings.Repeat("x", 1<<10), nil)
						if i == burstAfter {
							time.Sleep(c.breaks) // this one is being written, the others are queued
						}
					}
					broke <- time.Now()
					yield("", errBroken)
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				conn := serveInMemory(t, New(o)).dial()
				defer time.Sleep(2 * c.each) // the reader has noticed
				defer conn.Close()
				is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(conn))
				_, err := io.ReadFull(conn, make([]byte, (burstAfter+1)<<10)) // the rest of the next is being written
				is.NoErr(err)
				go func() {
					time.Sleep(c.first)
					for err := error(nil); err == nil; time.Sleep(c.each) {
						_, err = io.ReadFull(conn, make([]byte, 6<<10))
					}
				}()
				is.True(errors.Is((<-reports).Err, errBroken))
				is.Equal(time.Since(<-broke), DefaultWriteTimeout)
			})
		})
	}
}
