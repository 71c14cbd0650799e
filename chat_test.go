package botapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
)

// A bot is looked up by exactly the names in the request. If there are two, both must
// name the same bot, compared by uid, since a store may build a new Bot for each lookup. An
// error of the store is not a 404. The store's context has the account and the request id.
func TestChatFindsItsBot(t *testing.T) {
	found := map[string]Bot{
		"uid u": echoBot, "slug s": echoBot, "uid 18446744073709551616": echoBot, "slug other": otherBot,
		"slug renamed": botWith(func(b *Bot) { b.Name = "Echo, renamed" }),
	}
	for name, c := range map[string]struct {
		names   string
		status  int
		lookups []string
	}{
		"a uid":               {`"bot_uid":"u"`, 200, []string{"uid u"}},
		"a slug":              {`"bot_slug":"s"`, 200, []string{"slug s"}},
		"a number":            {`"bot_uid":18446744073709551616`, 200, []string{"uid 18446744073709551616"}},
		"an empty uid":        {`"bot_uid":"","bot_slug":"s"`, 200, []string{"slug s"}},
		"a slug as a uid":     {`"bot_uid":"s"`, 404, []string{"uid s"}},
		"both":                {`"bot_uid":"u","bot_slug":"renamed"`, 200, []string{"uid u", "slug renamed"}},
		"those of two bots":   {`"bot_uid":"u","bot_slug":"other"`, 404, []string{"uid u", "slug other"}},
		"an unknown uid":      {`"bot_uid":"x","bot_slug":"s"`, 404, []string{"uid x"}},
		"an unknown slug":     {`"bot_uid":"u","bot_slug":"x"`, 404, []string{"uid u", "slug x"}},
		"an error for a uid":  {`"bot_uid":"busy","bot_slug":"s"`, 529, []string{"uid busy"}},
		"an error for a slug": {`"bot_uid":"u","bot_slug":"busy"`, 529, []string{"uid u", "slug busy"}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var lookups []string
			find := func(by string) func(context.Context, string) (Bot, error) {
				return func(ctx context.Context, name string) (Bot, error) {
					is.Equal(AccountFrom(ctx)+", "+RequestIDFrom(ctx), "acme, r-1")
					lookups = append(lookups, by+name)
					if bot, ok := found[by+name]; ok {
						return bot, nil
					}
					return Bot{}, map[bool]error{true: errOverloaded, false: ErrBotNotFound}[name == "busy"]
				}
			}
			o := testOptions(t, t.Output())
			o.Bots = &fakeStore{byUID: find("uid "), bySlug: find("slug ")}
			o.OnChat = func(_ context.Context, r ChatReport) { is.Equal(r.Bot, echoBot) }
			body := `{` + c.names + `,"prompt":"p","stream":false}`
			is.Equal(record(New(o), newRequest("POST", "/v1/chat", strings.NewReader(body), "X-Request-Id", "r-1")).Code, c.status)
			is.Equal(lookups, c.lookups)
		})
	}
}

// A JSON response is held in memory, so its size is limited. Escapes count; splitting a
// character between fragments makes no difference. yield never panics.
func TestJSONResponseTooLarge(t *testing.T) {
	t.Parallel()
	most := strings.Repeat("x", maxJSONResponse)
	for name, c := range map[string]struct {
		first string
		rest  []string
		fits  bool
	}{
		"one fragment":                 {most + "x", nil, false},
		"escaped":                      {strings.Repeat("\x00", maxJSONResponse/6+1), nil, false},
		"escaped, and fits":            {strings.Repeat("\x00", maxJSONResponse/6), nil, true},
		"a character":                  {most[1:], []string{"é"}, false},
		"a character that fits":        {most[2:], []string{"é"}, true},
		"a character and a byte":       {most[2:], []string{"é", "x"}, false},
		"a split character":            {most[1:], []string{"\xc3", "\xa9"}, false},
		"a split character that fits":  {most[2:], []string{"\xc3", "\xa9"}, true},
		"a split character and a byte": {most[2:], []string{"\xc3", "\xa9x"}, false},
		"and with room for both":       {most[3:], []string{"\xc3", "\xa9x"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var more bool
			var recovered any
			o := testOptions(t, t.Output())
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				defer func() { recovered = recover() }()
				for _, fragment := range append([]string{c.first}, c.rest...) {
					more = yield(fragment, nil)
				}
			})
			got := postChat(New(o), chatBodyJSON("hi", false))
			is.Equal(recovered, nil)
			is.Equal(more, c.fits)
			if !c.fits {
				is.Equal(got.Code, 500)
				return
			}
			is.Equal(got.Code, 200)
			is.True(strings.HasSuffix(got.Body.String(), strings.Join(c.rest, "")+jsonEnd))
		})
	}
}

// The buffers of a large answer are not pooled: they would stay in memory.
func TestJSONResponseIsNotKept(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf(strings.Repeat("x", 32<<20))
	h := New(o)
	before := heapInUse()
	serveOn(&discarded{header: http.Header{}}, h, chatBodyJSON("hi", false))
	runtime.GC() // only one: what is pooled survives it
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	is.New(t).True(int64(after.HeapAlloc)-before < 1<<20)
	runtime.KeepAlive(h) // otherwise the engine's own text would be collected, too
}

// A large answer allocates little more memory than its text needs.
func TestJSONResponseCostsItsText(t *testing.T) {
	for name, c := range map[string]struct {
		fragments []string
		times     int
	}{
		"long fragments": {[]string{strings.Repeat("x", 1<<20)}, 63},
		"single bytes":   {[]string{"\xc3", "\xa9"}, 4 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, io.Discard)
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				for range c.times {
					for _, fragment := range c.fragments {
						yield(fragment, nil)
					}
				}
			})
			h := New(o)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w := &discarded{header: http.Header{}}
			serveOn(w, h, chatBodyJSON("hi", false))
			runtime.ReadMemStats(&after)
			size := c.times * len(strings.Join(c.fragments, ""))
			is.New(t).True(after.TotalAlloc-before.TotalAlloc < uint64(size*5/4))
		})
	}
}

// An answer of any length is complete, in however many chunks it is written.
func TestJSONResponseOfAnyLength(t *testing.T) {
	is := is.New(t)
	for _, size := range []int{connection.MaxChunk - 1, connection.MaxChunk, connection.MaxChunk + 1, connection.MaxChunk + 2, 2*connection.MaxChunk + 1} {
		text := strings.Repeat("x", size-len(jsonStart+jsonEnd))
		got := playOn(t, httptest.NewRecorder(), false, fragmentsOf(text))
		is.Equal(got.body, jsonStart+text+jsonEnd)
		is.Equal(got.header.Get("Content-Length"), fmt.Sprint(size))
	}
}

// An engine that yields without end is stopped by ChatTimeout.
func TestChatTimeoutOfAnEndlessEngine(t *testing.T) {
	is := is.New(t)
	endless := engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for yield("", nil) {
		}
	})
	for range 100 {
		got := playChat(t, way{}, endless, func(o *Options) { o.ChatTimeout = time.Millisecond })
		is.Equal(got.status, 504)
		is.True(errors.Is(got.report(t).Err, ErrChatTimeout))
	}
}

// An incomplete JSON response is aborted without a pause: its client has no event to read.
func TestChatTimeoutAbortsAJSONResponseImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		text := strings.Repeat("x", 2*connection.MaxChunk)
		start := time.Now()
		got := playOn(t, faulty("Write", 0, takes(2*time.Second)), false, fragmentsOf(text), func(o *Options) { o.ChatTimeout = time.Second })
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(len(got.body), len(jsonStart)+chunkText)
		is.Equal(time.Since(start), 2*time.Second)
	})
}
