package botapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// data is the event of a fragment whose JSON form is its own text.
func data(fragment string) string { return `data: {"content":"` + fragment + "\"}\n\n" }

const terminator = "data: [DONE]\n\n"

// broken is the event that ends a stream with an error.
func broken(detail string) string { return "event: error\ndata: {\"detail\":\"" + detail + "\"}\n\n" }

func TestStreamBytes(t *testing.T) {
	tests := map[string]struct {
		fragments []string
		want      string
	}{
		"fragments":                      {[]string{"Hello", ", ", "world!"}, data("Hello") + data(", ") + data("world!") + terminator},
		"no fragment":                    {nil, terminator},
		"an empty fragment first":        {[]string{"", "a"}, data("") + data("a") + terminator},
		"only empty fragments":           {[]string{"", "", ""}, data("") + data("") + data("") + terminator},
		"quotes and backslashes":         {[]string{`a"b\c/`}, data(`a\"b\\c/`) + terminator},
		"line breaks":                    {[]string{"a\nb\r\nc\td"}, data(`a\nb\r\nc\td`) + terminator},
		"a blank line":                   {[]string{"\n\n", "data: x\n\n"}, data(`\n\n`) + data(`data: x\n\n`) + terminator},
		"lines of Python only":           {[]string{"\v\f\x1c\x1d\x1e\u0085\u2028\u2029"}, data(`\u000b\u000c\u001c\u001d\u001e\u0085\u2028\u2029`) + terminator},
		"control characters":             {[]string{"\x00\x01\b\x1f\x7f"}, data("\\u0000\\u0001\\u0008\\u001f\x7f") + terminator},
		"HTML is not escaped":            {[]string{"<b>&amp;</b>'"}, data("<b>&amp;</b>'") + terminator},
		"UTF-8 is not escaped":           {[]string{"é€😀\ufeff\ufffd"}, data("é€😀\ufeff\ufffd") + terminator},
		"the terminator in a text":       {[]string{"[DONE]", "a[DONE]b[DONE]", "[[DONE]]"}, data(`\u005bDONE]`) + data(`a\u005bDONE]b\u005bDONE]`) + data(`[\u005bDONE]]`) + terminator},
		"almost the terminator":          {[]string{"[DONE", "]", "[done]", "[", "DONE]"}, data("[DONE") + data("]") + data("[done]") + data("[") + data("DONE]") + terminator},
		"a character cut in two":         {[]string{"caf\xc3", "\xa9!"}, data("caf") + data("é!") + terminator},
		"a character cut in four":        {[]string{"\xf0", "\x9f", "\x98", "\x80"}, data("") + data("") + data("") + data("😀") + terminator},
		"an empty fragment in a cut":     {[]string{"\xc3", "", "\xa9"}, data("") + data("") + data("é") + terminator},
		"a cut line separator":           {[]string{"\xe2\x80", "\xa8"}, data("") + data(`\u2028`) + terminator},
		"a cut character without a rest": {[]string{"a\xe2\x82"}, data("a") + data("\ufffd\ufffd") + terminator},
		"a cut character, then another":  {[]string{"\xe2\x82", "a"}, data("") + data("\ufffd\ufffda") + terminator},
		"a cut character, twice":         {[]string{"\xf0\x9f", "\xf0\x9f", "\x98\x80"}, data("") + data("\ufffd\ufffd") + data("😀") + terminator},
		"one U+FFFD for each bad byte":   {[]string{"a\xff\xfeb\x80"}, data("a\ufffd\ufffdb\ufffd") + terminator},
		"surrogates and overlong forms":  {[]string{"\xed\xa0\x80", "\xc0\xaf"}, data("\ufffd\ufffd\ufffd") + data("\ufffd\ufffd") + terminator},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, io.Discard)
			o.Engine = fragmentsOf(test.fragments...)
			got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
			is.Equal(got.status, 200)
			is.NoErr(got.err)
			is.Equal(got.body, test.want)

			whole := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", false))
			is.Equal(contentOf(t, whole.body), textOf(strings.Join(test.fragments, ""))) // the same text as one answer
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

// The head of a stream is exactly this on the connection: no Content-Length,
// no Connection, and nothing of HTML, caching or compression.
func TestStreamHead(t *testing.T) {
	is := is.New(t)
	server := httptest.NewServer(New(testOptions(t, io.Discard)))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	is.NoErr(err)
	defer conn.Close()
	r := chatRequest(t, server.URL, "hi", true)
	r.Header.Set("X-Request-Id", "of-the-client")
	is.NoErr(r.Write(conn))
	var head []string
	for lines := bufio.NewScanner(conn); lines.Scan() && lines.Text() != ""; {
		if line := lines.Text(); !strings.HasPrefix(line, "Date: ") {
			head = append(head, line)
		}
	}
	is.Equal(strings.Join(head, "\n"), strings.Join([]string{
		"HTTP/1.1 200 OK",
		"Cache-Control: no-cache, no-transform",
		"Content-Type: text/event-stream",
		"X-Accel-Buffering: no",
		"X-Request-Id: of-the-client",
		"Transfer-Encoding: chunked",
	}, "\n"))
}

// Every way to cut seven bytes into fragments gives the same text, streamed or
// whole.
func TestTheTextDoesNotDependOnTheCuts(t *testing.T) {
	is := is.New(t)
	for _, text := range []string{
		"é€ñ",               // good characters only
		"😀\xe2\x82x",        // a good one, then an unfinished one
		"\xf0\x9f\x98é\xe2", // unfinished at both ends
		"\xf0\x90\x80[\"\xc3",
		"\xed\xa0\x80\xff\xf4\x90\x80", // never characters
		"\xe2\x80\xa8\xc2\x85\n\xf0",   // line ends of Python
	} {
		for cuts := range 1 << (len(text) - 1) {
			o := testOptions(t, io.Discard)
			o.Engine = fragmentsOf(cut(text, cuts)...)
			h := New(o)
			read := readStream(t, serveInProcess(t, h, true).Body.String())
			is.Equal(strings.Join(read.fragments, ""), textOf(text))
			is.True(read.done)
			is.Equal(contentOf(t, serveInProcess(t, h, false).Body.String()), textOf(text))
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

// serveInProcess answers one chat into a recorder.
func serveInProcess(t testing.TB, h http.Handler, stream bool) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	if cut := serveOn(w, h, chatBodyJSON("hi", stream)); cut {
		t.Fatal("the answer was cut")
	}
	return w
}

// serveOn answers one chat on w, and reports whether the handler cut it.
func serveOn(w http.ResponseWriter, h http.Handler, body string) (cut bool) {
	r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+testKey)
	return serveRequest(w, h, r)
}

func serveRequest(w http.ResponseWriter, h http.Handler, r *http.Request) (cut bool) {
	defer func() {
		v := recover()
		if cut = v == any(http.ErrAbortHandler); v != nil && !cut {
			panic(v)
		}
	}()
	h.ServeHTTP(w, r)
	return false
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

// Eight and 32 bytes are looked at together: any byte, at any place, between any
// neighbours that could spill into it, must be found as by itself.
func TestPlainTextEndsAtTheFirstSpecialByte(t *testing.T) {
	is := is.New(t)
	for c := range 256 {
		for _, neighbour := range []byte{'a', ' ', '!', '#', ']', 'Z', 0x7f, 0, '"', '[', '\\', 0x80, 0xff} {
			for length := range 75 {
				for _, at := range []int{0, length / 2, length - 2, length - 1} {
					if at < 0 || at >= length {
						continue
					}
					text := bytes.Repeat([]byte{'z'}, length)
					text[at] = byte(c)
					if at+1 < length {
						text[at+1] = neighbour
					}
					want := 0
					for want < length && isPlain(text[want]) {
						want++
					}
					is.Equal(plainPrefix(string(text)), want)
				}
			}
		}
	}
	for length := range 120 {
		for at := range length {
			for _, special := range []string{"\n", `"`, `\`, "[", "é"} {
				is.Equal(plainPrefix(strings.Repeat("z", at)+special+strings.Repeat("z", length-at-1)), at)
			}
		}
	}
}

// Events have room for 4 KiB, whatever the text is made of, and a text that
// fits into one is not cut.
func TestALongFragmentIsCutBetweenCharacters(t *testing.T) {
	const room = 4<<10 - len(`data: {"content":"`) - len("\"}\n\n")
	tests := map[string]struct {
		character string
		size      int // of it, in an event
	}{
		"ASCII":               {"a", 1},
		"a quote":             {`"`, 2},
		"a line feed":         {"\n", 2},
		"a bracket":           {"[", 1},
		"a control character": {"\x00", 6},
		"two bytes":           {"é", 2},
		"three bytes":         {"€", 3},
		"four bytes":          {"😀", 4},
		"a line separator":    {"\u2028", 6},
		"no character":        {"\xff", 3},
		"[DONE]":              {"[DONE]", 11},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			fits := strings.Repeat(test.character, room/test.size)
			fits += strings.Repeat("a", room-room/test.size*test.size) // exactly 4 KiB
			for _, fragment := range []string{fits, "a" + fits, fits + "é", fits + fits + "\xe2\x82", strings.Repeat(fits, 3)} {
				o := testOptions(t, io.Discard)
				o.Engine = fragmentsOf(fragment)
				body := serveInProcess(t, New(o), true).Body.String()
				read := readStream(t, body)
				is.Equal(read.text(), textOf(fragment))
				if fragment == fits {
					is.Equal(len(read.fragments), 1)
					is.Equal(len(body), 4<<10+len(terminator))
				}
			}
		})
	}
}

func TestAFragmentOfTenMegabytes(t *testing.T) {
	is := is.New(t)
	fragment := strings.Repeat("0123456789 \"quoted\" [DONE] é€😀\n\u2028", 10<<20/40)
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("first", fragment, "last")
	var report ChatReport
	o.OnChat = func(_ context.Context, r ChatReport) { report = r }
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.NoErr(got.err)
	read := readStream(t, got.body)
	is.True(read.done)
	is.True(read.text() == "first"+fragment+"last") // is.Equal would print 20 MB
	is.True(len(got.body) < len(fragment)*2)
	is.Equal(report.Fragments, 3)
	is.Equal(report.Bytes, int64(len("first"+fragment+"last")))
}

// What an engine fails with before its first fragment has its own status.
func TestAStreamIsNotCommittedBeforeItsFirstFragment(t *testing.T) {
	for name, test := range failures {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { test.fail(yield) })
			got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
			is.Equal(got.status, test.status)
			is.Equal(got.header.Get("Content-Type"), "application/json")
			is.Equal(got.body, test.body)
			is.NoErr(got.err)
			is.Equal(strings.Contains(log.String(), "secret"), test.status >= 500) // logged, where it is a fault
		})
	}
}

// After it, the same failures are an error event and a cut connection.
func TestACommittedStreamBreaksVisibly(t *testing.T) {
	for name, test := range failures {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				yield("a", nil)
				test.fail(yield)
			})
			var report ChatReport
			o.OnChat = func(_ context.Context, r ChatReport) { report = r }
			got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
			is.Equal(got.status, 200)
			is.Equal(got.body, data("a")+broken(test.detail))
			is.Equal(got.err, io.ErrUnexpectedEOF)
			is.True(strings.Contains(log.String(), "answer broken off"))
			is.Equal(report.Status, 200)
			is.Equal(report.Fragments, 1)
			is.True(report.Err != nil)
		})
	}
}

// A testLog can be read while an engine that has not returned yet may write.
type testLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// failures are the ways of an engine to fail; each knows a secret.
var failures = map[string]struct {
	fail   func(yield func(string, error) bool)
	status int
	body   string // before the first fragment
	detail string // after it
}{
	"an error": {
		func(yield func(string, error) bool) { yield("", errors.New("secret")) },
		500, `{"detail":"Internal Server Error"}`, "Internal Server Error",
	},
	"an error beside a text": {
		func(yield func(string, error) bool) { yield("text", errors.New("secret")) },
		500, `{"detail":"Internal Server Error"}`, "Internal Server Error",
	},
	"an error, then more fragments": {
		func(yield func(string, error) bool) {
			yield("", StatusError{Status: 503, Detail: "Model is loading", Err: errors.New("secret")})
			yield("more", nil)
			yield("", errors.New("another error"))
			panic("and a panic")
		},
		503, `{"detail":"Model is loading"}`, "Model is loading",
	},
	"a StatusError": {
		func(yield func(string, error) bool) {
			yield("", fmt.Errorf("wrapped: %w", &StatusError{Status: 429, Detail: "Say [DONE]\n\u2028", Err: errors.New("cause")}))
		},
		429, `{"detail":"Say \u005bDONE]\n\u2028"}`, `Say \u005bDONE]\n\u2028`,
	},
	"an HTTPValidationError": {
		func(yield func(string, error) bool) {
			yield("", HTTPValidationError{[]ValidationError{{Loc: []any{"body", "top_k", 0}, Msg: "too many", Type: "value_error"}}})
		},
		422, `{"detail":[{"loc":["body","top_k",0],"msg":"too many","type":"value_error"}]}`, "Internal Server Error",
	},
	"a panic": {
		func(func(string, error) bool) { panic("secret") },
		500, `{"detail":"Internal Server Error"}`, "Internal Server Error",
	},
	"a nil dereference": {
		func(func(string, error) bool) {
			defer func() { panic(fmt.Errorf("secret: %v", recover())) }()
			var req *ChatRequest
			_ = req.UserID
		},
		500, `{"detail":"Internal Server Error"}`, "Internal Server Error",
	},
	"a panic with a StatusError is no way to choose": {
		func(func(string, error) bool) { panic(StatusError{Status: 418, Detail: "secret"}) },
		500, `{"detail":"Internal Server Error"}`, "Internal Server Error",
	},
}

// An engine that ends its goroutine, as t.FailNow does, has failed too.
func TestAnEngineThatExitsItsGoroutine(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.MaxConcurrentChats = 1
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
		if lastContent(req) == "late" {
			yield("a", nil)
		}
		runtime.Goexit()
	})
	h := New(o)
	is.Equal(do(t, h, "POST", "/v1/chat", chatBodyJSON("early", true)).status, 500)
	late := do(t, h, "POST", "/v1/chat", chatBodyJSON("late", true))
	is.Equal(late.body, data("a")+broken("Internal Server Error"))
	is.True(late.err != nil)
}

// An http.ErrAbortHandler asks for a cut, and gets one and nothing else.
func TestAnEngineThatAborts(t *testing.T) {
	for name, abort := range map[string]func(yield func(string, error) bool){
		"by a panic":       func(func(string, error) bool) { panic(http.ErrAbortHandler) },
		"by an error":      func(yield func(string, error) bool) { yield("", http.ErrAbortHandler) },
		"by a wrapped one": func(yield func(string, error) bool) { yield("", fmt.Errorf("proxy: %w", http.ErrAbortHandler)) },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
				if lastContent(req) == "late" {
					yield("a", nil)
				}
				abort(yield)
			})
			early, late := httptest.NewRecorder(), httptest.NewRecorder()
			is.True(serveOn(early, New(o), chatBodyJSON("early", true)))
			is.Equal(early.Body.String(), "")
			is.True(serveOn(late, New(o), chatBodyJSON("late", true)))
			is.Equal(late.Body.String(), data("a"))
			is.Equal(log.String(), "")
		})
	}
}

// Fragments that wait for the connection when the engine fails are not lost.
func TestQueuedFragmentsArriveBeforeTheError(t *testing.T) {
	is := is.New(t)
	const fragments = 5000
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for i := range fragments {
			yield(fmt.Sprint(i, " "), nil)
		}
		yield("", StatusError{Status: 502, Detail: "Model died"})
	})
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.True(got.err != nil)
	read := readStream(t, got.body)
	is.Equal(len(read.fragments), fragments)
	is.Equal(read.fragments[fragments-1], fmt.Sprint(fragments-1, " "))
	is.Equal(read.failure, "Model died")
}

// What a StatusError says arrives whole.
func TestALongErrorEvent(t *testing.T) {
	is := is.New(t)
	detail := strings.Repeat("0123456789", 300)
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		yield("a", nil)
		yield("", StatusError{Status: 502, Detail: detail})
	})
	w := httptest.NewRecorder()
	is.True(serveOn(w, New(o), chatBodyJSON("hi", true)))
	is.Equal(w.Body.String(), data("a")+broken(detail))
}

// The first half of a character is never sent in place of it.
func TestABrokenStreamDoesNotSendWhatItHoldsBack(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		yield("caf\xc3", nil)
		yield("", errors.New("died"))
	})
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.Equal(got.body, data("caf")+broken("Internal Server Error"))
}

// An arrival is a line of a stream, and when it came.
type arrival struct {
	after time.Duration // the request
	line  string        // without its end; blank lines do not count
}

// arrivals answers one chat in memory and returns what the client saw, when.
// It is for use inside a bubble, where time is exact.
func arrivals(t testing.TB, o Options) (seen []arrival, err error) {
	server := serveInMemory(t, New(o))
	began := time.Now()
	res, err := server.client().Do(chatRequest(t, "http://memory", "hi", true))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if lines.Text() != "" {
			seen = append(seen, arrival{time.Since(began), lines.Text()})
		}
	}
	return seen, lines.Err()
}

// chatRequest is a request to the echo bot with the test key.
func chatRequest(t testing.TB, base, prompt string, stream bool) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), "POST", base+"/v1/chat", strings.NewReader(chatBodyJSON(prompt, stream)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+testKey)
	return r
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

func TestKeepAlive(t *testing.T) {
	const s = time.Second
	x, alive, end := `data: {"content":"x"}`, ": keep-alive", "data: [DONE]"
	tests := map[string]struct {
		keepAlive time.Duration
		engine    ChatEngine
		want      []arrival
	}{
		"a silent beginning":             {0, pacedEngine(40 * s), []arrival{{15 * s, alive}, {30 * s, alive}, {40 * s, x}, {40 * s, end}}},
		"silence between fragments":      {0, pacedEngine(10*s, 40*s), []arrival{{10 * s, x}, {25 * s, alive}, {40 * s, alive}, {50 * s, x}, {50 * s, end}}},
		"no silence":                     {0, pacedEngine(14*s, 14*s, 14*s), []arrival{{14 * s, x}, {28 * s, x}, {42 * s, x}, {42 * s, end}}},
		"an interval of its own":         {time.Second, pacedEngine(2500 * time.Millisecond), []arrival{{1 * s, alive}, {2 * s, alive}, {2500 * time.Millisecond, x}, {2500 * time.Millisecond, end}}},
		"never":                          {-1, pacedEngine(5 * time.Minute), []arrival{{5 * time.Minute, x}, {5 * time.Minute, end}}},
		"a fragment just before it":      {0, pacedEngine(15*s-1, 15*s-1), []arrival{{15*s - 1, x}, {30*s - 2, x}, {30*s - 2, end}}},
		"a fragment just after it":       {0, pacedEngine(15*s + 1), []arrival{{15 * s, alive}, {15*s + 1, x}, {15*s + 1, end}}},
		"many fragments, then silence":   {0, pacedEngine(0, 0, 0, 0, 0, 0, 20*s), []arrival{{0, x}, {0, x}, {0, x}, {0, x}, {0, x}, {0, x}, {15 * s, alive}, {20 * s, x}, {20 * s, end}}},
		"an engine that ends in silence": {0, engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { time.Sleep(20 * s) }), []arrival{{15 * s, alive}, {20 * s, end}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.KeepAlive, o.Engine = test.keepAlive, test.engine
				seen, err := arrivals(t, o)
				is.NoErr(err)
				is.Equal(seen, test.want)
			})
		})
	}
}

// A keep-alive has no blank line of its own.
func TestKeepAliveBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = pacedEngine(0, 40*time.Second)
		server := serveInMemory(t, New(o))
		got := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", true))
		is.Equal(got.body, data("x")+": keep-alive\n: keep-alive\n"+data("x")+terminator)
		is.NoErr(got.err)
	})
}

// What a keep-alive has committed cannot have another status.
func TestAKeepAliveCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			time.Sleep(20 * time.Second)
			yield("", StatusError{Status: 503, Detail: "Model is loading"})
		})
		var report ChatReport
		o.OnChat = func(_ context.Context, r ChatReport) { report = r }
		server := serveInMemory(t, New(o))
		got := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", true))
		is.Equal(got.status, 200)
		is.Equal(got.body, ": keep-alive\n"+broken("Model is loading"))
		is.Equal(got.err, io.ErrUnexpectedEOF)
		is.Equal(report.Status, 200)
		is.Equal(report.Fragments, 0)
	})
}

// An engine that does not stop when its time is over holds its place, but
// neither its client nor the handler.
func TestAnEngineThatHangsPastChatTimeout(t *testing.T) {
	tests := map[string]struct {
		fragments int
		keepAlive time.Duration
		stream    bool
		status    int
		body      string
	}{
		"one answer":                  {0, -1, false, 504, `{"detail":"The answer took too long"}`},
		"one answer, begun":           {1, -1, false, 504, `{"detail":"The answer took too long"}`},
		"a stream without a fragment": {0, -1, true, 504, `{"detail":"The answer took too long"}`},
		"a stream that has begun":     {1, -1, true, 200, data("x") + broken("The answer took too long")},
		"a stream kept alive":         {0, 4 * time.Minute, true, 200, ": keep-alive\n: keep-alive\n" + broken("The answer took too long")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				wake := make(chan struct{})
				o := testOptions(t, io.Discard)
				o.MaxConcurrentChats, o.KeepAlive = 1, test.keepAlive
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for range test.fragments {
						yield("x", nil)
					}
					<-wake // whatever happens to ctx
					if ctx.Err() != nil && yield("too late", nil) {
						t.Error("a fragment was wanted after the answer had ended")
					}
				})
				var reports []ChatReport
				o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
				server := serveInMemory(t, New(o))
				chat := func() answered {
					return doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", test.stream))
				}

				began := time.Now()
				got := chat()
				cut := test.status == 200 // a stream that has begun, behind its error event
				if cut {
					began = began.Add(readTime + returnTime)
				}
				is.Equal(time.Since(began), DefaultChatTimeout)
				is.Equal(got.status, test.status)
				is.Equal(got.body, test.body)
				is.Equal(got.err != nil, cut)
				synctest.Wait() // OnChat comes after the answer
				is.Equal(len(reports), 1)
				is.Equal(reports[0].Status, test.status)
				is.True(errors.Is(reports[0].Err, context.DeadlineExceeded))

				is.Equal(chat().status, 503) // the engine has not returned
				close(wake)
				synctest.Wait()
				is.Equal(chat().status, 200) // it has
				synctest.Wait()              // OnChat comes after the answer
				is.Equal(len(reports), 2)
			})
		})
	}
}

// A client that stops reading holds its engine back in bounded memory; after
// WriteTimeout its stream is cut. Others are not slowed.
func TestAClientThatStopsReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		fragment := strings.Repeat("x", 1<<10)
		var taken, others atomic.Int64
		var engineEnded, reported atomic.Bool
		began := time.Now()
		var log testLog
		o := testOptions(t, &log)
		o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			if lastContent(req) == "stall" {
				for yield(fragment, nil) {
					taken.Add(1)
				}
				<-ctx.Done()
				engineEnded.Store(true)
				return
			}
			for range 1000 {
				yield(fragment, nil)
				others.Add(1)
			}
		})
		var report ChatReport
		o.OnChat = func(_ context.Context, r ChatReport) {
			if r.Err != nil {
				report = r
				reported.Store(true)
			}
		}
		server := serveInMemory(t, New(o))

		conn := server.dial() // net.Pipe has no buffer: nothing is taken that is not read
		defer conn.Close()
		is.NoErr(chatRequest(t, "http://memory", "stall", true).Write(conn))
		const read = 100 << 10
		_, err := io.ReadFull(conn, make([]byte, read))
		is.NoErr(err)
		synctest.Wait()
		unread := func() int { return int(taken.Load())*len(data(fragment)) - read }
		held := unread()
		t.Logf("the handler and net/http hold %d bytes", held)
		is.True(held > 0 && held <= 2*maxWrite) // what is being written, and the queue

		got := doAt(t, server.client(), "http://memory", "POST", "/v1/chat", chatBodyJSON("read", true))
		is.NoErr(got.err)
		is.Equal(others.Load(), int64(1000))
		is.Equal(time.Since(began), time.Duration(0))

		time.Sleep(DefaultWriteTimeout - time.Second)
		synctest.Wait()
		is.Equal(unread(), held)
		is.True(!engineEnded.Load() && !reported.Load())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		is.True(engineEnded.Load() && reported.Load())
		_, err = io.Copy(io.Discard, conn)
		is.NoErr(err) // the connection was closed
		is.Equal(report.Status, 200)
		is.True(report.Err != nil && !errors.Is(report.Err, context.Canceled))
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.Equal(log.String(), "") // clients do such things
	})
}

// A client may take its time, as long as it takes something: WriteTimeout is
// for one write.
func TestASlowReaderIsNotCut(t *testing.T) {
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

// A slowWriter is a client that takes a write only when everything else in the
// bubble waits: the slowest that there can be, without any time passing.
type slowWriter struct {
	*httptest.ResponseRecorder
	writes []arrival
	began  time.Time
}

func (w *slowWriter) Write(p []byte) (int, error) {
	synctest.Wait()
	w.writes = append(w.writes, arrival{time.Since(w.began), string(p)})
	return w.ResponseRecorder.Write(p)
}

// Rapid fragments leave together, in whole events and bounded writes, in
// order; slow ones leave one by one, at once, also after rapid ones.
func TestReadyFragmentsLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const rapid, slow = 20_000, 10
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for i := range rapid {
				yield(fmt.Sprint(i, " "), nil)
			}
			for i := range slow {
				time.Sleep(time.Second)
				yield(fmt.Sprint(rapid+i, " "), nil)
			}
		})
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), began: time.Now()}
		is.True(!serveOn(w, New(o), chatBodyJSON("hi", true)))

		read := readStream(t, w.Body.String())
		is.Equal(len(read.fragments), rapid+slow)
		for i, fragment := range read.fragments {
			is.Equal(fragment, fmt.Sprint(i, " "))
		}
		for _, write := range w.writes {
			is.True(len(write.line) <= 16<<10)
			is.True(strings.HasPrefix(write.line, "data: ") && strings.HasSuffix(write.line, "\n\n"))
		}
		last := w.writes[len(w.writes)-slow-1 : len(w.writes)-1]
		for i, write := range last {
			is.Equal(write, arrival{time.Duration(i+1) * time.Second, data(fmt.Sprint(rapid+i, " "))})
		}
		is.True(len(w.writes) < rapid/100)
	})
}

// Whatever a write finds ready goes with it, however the goroutines meet: no
// event waits for the next one.
func TestNoEventIsLeftBehind(t *testing.T) {
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

func TestAMillionEmptyFragments(t *testing.T) {
	is := is.New(t)
	const fragments = 1_000_000
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for range fragments {
			yield("", nil)
		}
	})
	var report ChatReport
	o.OnChat = func(_ context.Context, r ChatReport) { report = r }
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.NoErr(got.err)
	is.Equal(len(got.body), fragments*len(data(""))+len(terminator))
	is.Equal(strings.Count(got.body, data("")), fragments)
	is.Equal(report.Fragments, fragments)
	is.Equal(report.Bytes, int64(0))
	is.Equal(report.FirstFragment, time.Duration(0)) // there was none with text

	whole := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", false))
	is.Equal(whole.body, `{"content":""}`)
}

// The handler's own code allocates nothing for a fragment: a chat with 20,000
// of them allocates no more than one with 2,000.
func TestAFragmentAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("with the race detector, sync.Pool drops what it is given at random")
	}
	is := is.New(t)
	allocations := func(fragments int) float64 {
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for range fragments {
				yield("a \"word\" é ", nil)
			}
		})
		h := New(o)
		return testing.AllocsPerRun(10, func() { serveOn(&discardWriter{header: http.Header{}}, h, chatBodyJSON("hi", true)) })
	}
	few, many := allocations(2_000), allocations(20_000)
	t.Logf("%v allocations with 2,000 fragments, %v with 20,000", few, many)
	is.True(many-few < 18) // not one in a thousand: a garbage collection empties the pool
}

// A discardWriter is a client that takes everything at once.
type discardWriter struct{ header http.Header }

func (w *discardWriter) Header() http.Header         { return w.header }
func (w *discardWriter) WriteHeader(int)             {}
func (w *discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *discardWriter) FlushError() error           { return nil }

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
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf(cutBySizes(string(text), cuts)...)
		h := New(o)
		body := serveInProcess(t, h, true).Body.String()
		read := readStream(t, body)
		if got, want := read.text(), textOf(string(text)); got != want {
			t.Fatalf("read %q, want %q", got, want)
		}
		if !read.done || read.rest != "" || strings.Count(body, "[DONE]") != 1 {
			t.Fatalf("not ended once: %q", body)
		}
		if got, want := contentOf(t, serveInProcess(t, h, false).Body.String()), textOf(string(text)); got != want {
			t.Fatalf("one answer is %q, want %q", got, want)
		}
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
func TestAStreamWithoutWriteTimeoutEndsWhole(t *testing.T) {
	is := is.New(t)
	const fragments = 20_000
	o := testOptions(t, io.Discard)
	o.WriteTimeout = -1
	o.Engine = fragmentsOf(slices.Repeat([]string{"twelve bytes"}, fragments)...)
	for range 20 {
		got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
		is.NoErr(got.err)
		is.Equal(got.body, strings.Repeat(data("twelve bytes"), fragments)+doneEvent)
	}
}

// A slowConn takes a second for each write.
type slowConn struct{ *httptest.ResponseRecorder }

func (w slowConn) Write(p []byte) (int, error) {
	time.Sleep(time.Second)
	return w.ResponseRecorder.Write(p)
}

// A fragment that comes while a keep-alive is being written waits for it.
func TestAKeepAliveIsNotWrittenInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.KeepAlive = time.Second
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			time.Sleep(3 * time.Second / 2)
			yield("a", nil)
		})
		conn := slowConn{httptest.NewRecorder()}
		w := &guardedWriter{ResponseWriter: conn, control: http.NewResponseController(conn), fault: func(what string) { t.Error(what) }}
		is.True(!serveOn(w, New(o), chatBodyJSON("hi", true)))
		is.Equal(conn.Body.String(), keepAliveLine+data("a")+terminator)
	})
}

// While one batch is being written, the engine fills the next.
func TestAnEngineSpeaksDuringAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var said time.Duration
		began := time.Now()
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for range 2 * maxWrite >> 10 {
				yield(strings.Repeat("x", 1<<10), nil)
			}
			said = time.Since(began)
		})
		is.True(!serveOn(slowConn{httptest.NewRecorder()}, New(o), chatBodyJSON("hi", true)))
		is.True(said <= (rapidFragments+3)*time.Second) // its own writes, and those until there is room for the rest
	})
}

// A keep-alive whose timer has fired as the stream was stopped is not written.
func TestNoKeepAliveBehindTheEnd(t *testing.T) {
	is := is.New(t)
	w := httptest.NewRecorder()
	x := newExchange(New(testOptions(t, io.Discard)).(*handler), w, httptest.NewRequest("POST", "/v1/chat", nil))
	s := newStream(&x.conn, time.Nanosecond, func(error) bool { return true })
	s.settle()
	before := w.Body.Len()
	s.sendKeepAlive()
	is.Equal(w.Body.Len(), before)
}

// The methods of an error may panic: also where a stream has begun.
func TestAStreamThatBreaksByAnErrorThatPanics(t *testing.T) {
	for _, method := range []string{"Error", "Is", "As", "Unwrap"} {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("a", nil)
			yield("", trapError{method})
		})
		w := httptest.NewRecorder()
		is.True(serveOn(w, New(o), chatBodyJSON("hi", true))) // cut
		is.Equal(w.Body.String(), data("a")+broken("Internal Server Error"))
	}
}

// A client that is still there has its time to read why its stream was ended,
// also where the host has ended the request.
func TestAHostEndsAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			yield("a", nil)
			<-ctx.Done()
		})
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, StatusError{Status: 503, Detail: "Shutting down"})
		defer cancel()
		r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", true))).WithContext(ctx)
		r.Header.Set("Authorization", "Bearer "+testKey)
		began := time.Now()
		w := httptest.NewRecorder()
		is.True(serveRequest(w, New(o), r)) // cut
		is.Equal(w.Body.String(), data("a")+broken("Shutting down"))
		is.Equal(time.Since(began), time.Second+readTime)
	})
}

func TestALargeBufferIsNotKept(t *testing.T) {
	is := is.New(t)
	for range 100 { // a pool does not return each buffer to the next who asks
		b := newBatch("")
		b.data = append(b.data, make([]byte, 3*maxWrite)...)
		b.free(nil)
		is.True(cap(newBatch("").data) <= 2*maxWrite)
	}
}

// An engine that waits for room goes on when the next write begins, and fills
// the queue while that lasts.
func TestAWaitingEngineGoesOnWhenAWriteBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const rounds = 100
		var said time.Duration
		began := time.Now()
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for range rounds {
				for range maxWrite >> 10 {
					yield(strings.Repeat("x", 1<<10), nil)
				}
				time.Sleep(time.Second) // to think
			}
			said = time.Since(began)
		})
		is.True(!serveOn(slowConn{httptest.NewRecorder()}, New(o), chatBodyJSON("hi", true)))
		is.True(said <= 9*rounds/5*time.Second)
	})
}
