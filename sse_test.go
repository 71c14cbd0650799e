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
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// textOf returns the text that a client must get for an engine's bytes. As in Go's range,
// each byte that is not UTF-8 becomes one U+FFFD.
func textOf(yielded string) string {
	var b strings.Builder
	for _, r := range yielded {
		b.WriteRune(r)
	}
	return b.String()
}

// contentOf returns the content of a JSON response.
func contentOf(t testing.TB, body string) string {
	t.Helper()
	var read struct{ Content *string }
	if err := decodeStrictly(body, &read); err != nil || read.Content == nil {
		t.Fatalf("not a JSON response: %v: %.200q", err, body)
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

// Every way to split a few bytes into fragments gives the same text, in a stream and in a
// JSON response.
func TestStreamSplitsCharacters(t *testing.T) {
	for _, text := range []string{
		"é€ñ",               // good characters only
		"😀\xe2\x82x",        // a complete one, then an incomplete one
		"\xf0\x9f\x98é\xe2", // incomplete ones at both ends
		"\xf0\x90\x80[\"\xc3",
		"\xed\xa0\x80\xff\xf4\x90\x80", // never characters
		"\xe2\x80\xa8\xc2\x85\n\xf0",   // line ends of Python
	} {
		for splits := range 1 << (len(text) - 1) { // after each byte whose bit is set
			fragments := []string{""}
			for i := range len(text) {
				fragments[len(fragments)-1] += text[i : i+1]
				if splits>>i&1 == 1 {
					fragments = append(fragments, "")
				}
			}
			readBothWays(t, fragments)
		}
	}
}

// readBothWays plays a chat with these fragments as a stream and as a JSON response, and
// compares what a strict client reads.
func readBothWays(t testing.TB, fragments []string) {
	t.Helper()
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf(fragments...)
	h, want := New(o), textOf(strings.Join(fragments, ""))
	stream := postChat(h, chatBodyJSON("hi", true)).Body.String()
	if read := readStream(t, stream); read.text() != want || !read.done || read.rest != "" || strings.Count(stream, "[DONE]") != 1 {
		t.Fatalf("%q is streamed as %q", fragments, stream)
	}
	if content := contentOf(t, postChat(h, chatBodyJSON("hi", false)).Body.String()); content != want {
		t.Fatalf("%q joined is %q", fragments, content)
	}
}

// A streamRead is what a strict client reads from a stream, complete or not.
type streamRead struct {
	fragments  []string
	keepAlives int
	failure    string // the status and the detail of an error event
	done       bool
	rest       string // an incomplete event at the end
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

// parseStream accepts only what the API allows: complete events of at most 4 KiB,
// keep-alives between them, one end.
func parseStream(body string) (s streamRead, err error) {
	for body != "" {
		if s.done || s.failure != "" {
			return s, fmt.Errorf("after the end: %.100q", body)
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

// pythonLineBreaks are the characters at which Python's str.splitlines, which the published
// Python client uses, ends a line.
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
		var read errorData
		if err := decodeStrictly(value, &read); err != nil {
			return err
		}
		if read.Status < 400 || read.Status > 599 || read.RetryAfter != nil && *read.RetryAfter < 1 {
			return errors.New("a status that is no error, or no wait")
		}
		s.failure = fmt.Sprint(read.Status, " ", read.Detail)
		return nil
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

// errorData is the JSON of an error event.
type errorData struct {
	Detail     string
	Status     int
	RetryAfter *int64 `json:"retry_after"`
}

// An event has room for 4 KiB, whatever the text consists of. A text that fits into one
// event is not split.
func TestStreamLongFragment(t *testing.T) {
	const room = 4<<10 - len(`data: {"content":"`) - len("\"}\n\n")
	for character, size := range map[string]int{ // bytes in an event
		"a": 1, `"`: 2, "\n": 2, "[": 1, "\x00": 6, "é": 2, "€": 3, "😀": 4, "\u2028": 6, "\xff": 3, "[DONE]": 11,
	} {
		is := is.New(t)
		fits := strings.Repeat(character, room/size) + strings.Repeat("a", room%size)
		body := playChat(t, way{stream: true}, fragmentsOf(fits)).body
		is.Equal(len(readStream(t, body).fragments), 1)
		is.Equal(len(body), 4<<10+len(terminator))
		for _, longer := range []string{"a" + fits, fits + "a", fits + "é", fits + fits + "\xe2\x82", strings.Repeat(fits, 3)} {
			readBothWays(t, []string{longer})
			report := playChat(t, way{stream: true}, fragmentsOf(longer)).report(t)
			is.Equal(report.Fragments, 1)
			is.Equal(report.Bytes, int64(len(textOf(longer))))
		}
	}
}

// failing returns an engine that fails after these fragments.
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

// Fragments that are still queued when the engine fails are not lost.
func TestStreamQueuedBeforeTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		fragments := slices.Repeat([]string{"twelve bytes"}, 5000)
		got := playChat(t, way{stream: true}, failing(StatusError{Status: 502, Detail: "Model died"}, fragments...))
		is.Equal(got.err, io.ErrUnexpectedEOF)
		is.True(got.body == strings.Repeat(data("twelve bytes"), 5000)+errorEvent(502, "Model died"))
	})
}

// pacedEngine returns an engine that waits before each fragment.
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

// A quietFormat writes nothing but keep-alives.
type quietFormat struct{ plainFormat }

func (quietFormat) AppendText(dst, _ []byte) ([]byte, error) { return dst, nil }
func (quietFormat) AppendKeepAlive(dst []byte) []byte        { return append(dst, "alive\n"...) }

func TestKeepAlive(t *testing.T) {
	const s = time.Second
	silent := sleepsFor(20 * s).engine()
	for name, test := range map[string]struct {
		keepAlive time.Duration
		format    StreamFormat // nil: the API's own
		engine    ChatEngine
		want      string // what is received, and when: a fragment x, a keep-alive, the end
	}{
		"a silent beginning":             {0, nil, pacedEngine(40 * s), "15s alive, 30s alive, 40s x, 40s end"},
		"silence between fragments":      {0, nil, pacedEngine(10*s, 40*s), "10s x, 25s alive, 40s alive, 50s x, 50s end"},
		"no silence":                     {0, nil, pacedEngine(14*s, 14*s, 14*s), "14s x, 28s x, 42s x, 42s end"},
		"an interval of its own":         {s, nil, pacedEngine(5 * s / 2), "1s alive, 2s alive, 2.5s x, 2.5s end"},
		"never":                          {-1, nil, pacedEngine(300 * s), "5m0s x, 5m0s end"},
		"a fragment just before it":      {0, nil, pacedEngine(15*s-1, 15*s-1), "14.999999999s x, 29.999999998s x, 29.999999998s end"},
		"a fragment just after it":       {0, nil, pacedEngine(15*s + 1), "15s alive, 15.000000001s x, 15.000000001s end"},
		"many fragments, then silence":   {0, nil, pacedEngine(0, 0, 0, 0, 0, 20*s), "0s x, 0s x, 0s x, 0s x, 0s x, 15s alive, 20s x, 20s end"},
		"an engine that ends in silence": {0, nil, silent, "15s alive, 20s end"},
		"a format that writes no texts":  {0, quietFormat{}, pacedEngine(10*s, 10*s, 10*s, 10*s), "15s alive, 30s alive"}, // the client sees silence
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.KeepAlive, o.Engine = test.keepAlive, test.engine
				o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Stream = test.format })}
				began := time.Now()
				r := chatRequest(t, "http://memory", "hi", true)
				r.URL.Path = routePath
				res, err := serveInMemory(t, New(o)).client().Do(r)
				is.NoErr(err)
				defer res.Body.Close()
				names := strings.NewReplacer(`data: {"content":"x"}`, "x", ": keep-alive", "alive", "data: [DONE]", "end")
				var seen []string
				for lines := bufio.NewScanner(res.Body); lines.Scan(); {
					if lines.Text() != "" {
						seen = append(seen, fmt.Sprint(time.Since(began), " ", names.Replace(lines.Text())))
					}
				}
				is.Equal(strings.Join(seen, ", "), test.want)
			})
		})
	}
}

// Fragments that are ready together are written together, in order, in complete events and
// bounded writes. Slow ones are written immediately, one by one, even after rapid ones.
func TestStreamReadyFragmentsAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const rapid, slow = 20_000, 10
		var at []time.Duration
		began := time.Now()
		w := faulty("Write", 0, func() error { // each write waits until the engine is blocked, without any time passing
			synctest.Wait()
			at = append(at, time.Since(began))
			return nil
		})
		var events []string
		got := playOn(t, w, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for i := range rapid + slow {
				if i >= rapid {
					time.Sleep(time.Second)
				}
				text := fmt.Sprint(i, " ")
				events = append(events, data(text))
				yield(text, nil)
			}
		}))
		is.NoErr(got.err)
		is.Equal(got.body, strings.Join(events, "")+terminator)
		for _, write := range w.writes {
			is.True(len(write) <= 16<<10)
			is.True(strings.HasPrefix(write, "data: "))
			is.True(strings.HasSuffix(write, "\n\n"))
		}
		is.True(len(w.writes) < rapid/100)
		for i := range slow {
			last := len(w.writes) - 1 - slow + i // before the terminator
			is.Equal(w.writes[last], events[rapid+i])
			is.Equal(at[last], time.Duration(i+1)*time.Second)
		}
	})
}

// However the goroutines interleave, every event is written, without waiting for the next.
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
			case <-read: // the client has all of the burst
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
	overdue := time.AfterFunc(30*time.Second, func() { res.Body.Close() }) // a fault makes the test fail, not hang
	defer overdue.Stop()
	for range bursts {
		if _, err := io.ReadFull(res.Body, make([]byte, size*len(data("x")))); err != nil {
			t.Fatal("a burst did not arrive:", err)
		}
		read <- struct{}{}
	}
}

// The handler allocates nothing for a fragment: a chat with 20,000 fragments allocates no
// more than one with 2,000.
func TestStreamFragmentAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("with the race detector, sync.Pool drops objects at random")
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
	is.True(many-few < 18) // fewer than one for a thousand fragments: a garbage collection empties the pool
}

// FuzzEvents splits any bytes anywhere: a strict client reads exactly the text from the
// stream, and the same from the JSON response.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("Hello, world"), []byte{5, 2})
	f.Add([]byte("é€😀\u2028\u0085"), []byte{1, 1, 1, 1, 1, 1, 1, 1})
	f.Add([]byte("[DONE] [DO"), []byte{3})
	f.Add([]byte("\xf0\x9f\xf0\x9f\x98\x80\xed\xa0\x80\xe2"), []byte{2, 0, 1})
	f.Add([]byte("\x00\x1f\"\\\r\n"), []byte{})
	f.Add(bytes.Repeat([]byte("😀\x00a[DONE]"), 300), []byte{255, 0, 255})
	f.Fuzz(func(t *testing.T, text, sizes []byte) {
		readBothWays(t, splitBySizes(string(text), sizes))
	})
}

// splitBySizes splits a text into fragments of these sizes and the rest.
func splitBySizes(text string, sizes []byte) (fragments []string) {
	for _, size := range sizes {
		n := min(len(text), int(size))
		fragments = append(fragments, text[:n])
		text = text[n:]
	}
	return append(fragments, text)
}

// raceDetector reports whether this binary was built with -race.
var raceDetector = func() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Without a WriteTimeout, everything is written after the engine has finished.
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
		"once":             {1, 32, 0, 6 * time.Second}, // the first writes, for which the engine waits, and those until there is room for the rest
		"again, and again": {100, 16, time.Second, 180 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				var yielded time.Duration
				began := time.Now()
				got := playOn(t, faulty("Write", 0, takes(time.Second)), true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
					for range c.rounds {
						for range c.kilobytes {
							yield(strings.Repeat("x", 1<<10), nil)
						}
						time.Sleep(c.thinks)
					}
					yielded = time.Since(began)
				}))
				is.NoErr(got.err)
				if yielded > c.atMost {
					t.Errorf("the engine took %v", yielded)
				}
			})
		})
	}
}

func TestStreamLongFragmentInFewWrites(t *testing.T) {
	is := is.New(t)
	w := faulty("", 0, nil)
	playOn(t, w, true, fragmentsOf(strings.Repeat("x", 32<<10)))
	is.True(len(w.writes) <= 4) // including the terminator
}

// A write of a stream has maxWrite bytes at most, whatever it is filled with, and the pool
// keeps no batch that is larger.
func TestBatchIsBounded(t *testing.T) {
	is := is.New(t)
	for _, text := range []string{"", "x", strings.Repeat("x", 100), strings.Repeat("\x00", 700), strings.Repeat("x", maxEvent), strings.Repeat("x", 3*maxWrite)} {
		s, b := &stream{format: ownFormat{}}, new(batch)
		for !b.isFull() {
			if s.formatting == nil {
				s.formatting = newTextQueue()
				s.formatting.texts = append(s.formatting.texts, text)
			}
			is.NoErr(s.addEvent(b))
			is.True(cap(b.data) <= maxWrite)
		}
		is.True(len(b.data) <= maxWrite-64) // for the end of the answer
		is.True(len(b.data) > maxWrite-maxEvent-64)
	}
	for range 100 {
		large := &batch{data: make([]byte, 0, maxWrite+1)}
		large.free()
		is.True(cap(newBatch().data) <= maxWrite)
	}
}
