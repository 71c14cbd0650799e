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
)

// A bot is looked up by its names as they are written. Where there are two, both must
// be the same bot's, by its uid: a store may make it anew for each look-up. A store
// that cannot say whose name it is has not said that it is nobody's; and it knows who
// asks.
func TestChatFindsItsBot(t *testing.T) {
	found := map[string]Bot{
		"uid u": echoBot, "slug s": echoBot, "uid 18446744073709551616": echoBot, "slug other": otherBot,
		"slug renamed": botWith(func(b *Bot) { b.Name = "Echo, renamed" }),
	}
	for name, c := range map[string]struct {
		names  string
		status int
		asked  []string
	}{
		"a uid":                {`"bot_uid":"u"`, 200, []string{"uid u"}},
		"a slug":               {`"bot_slug":"s"`, 200, []string{"slug s"}},
		"a number":             {`"bot_uid":18446744073709551616`, 200, []string{"uid 18446744073709551616"}},
		"an empty uid":         {`"bot_uid":"","bot_slug":"s"`, 200, []string{"slug s"}},
		"a slug as a uid":      {`"bot_uid":"s"`, 404, []string{"uid s"}},
		"both":                 {`"bot_uid":"u","bot_slug":"renamed"`, 200, []string{"uid u", "slug renamed"}},
		"those of two bots":    {`"bot_uid":"u","bot_slug":"other"`, 404, []string{"uid u", "slug other"}},
		"a uid of nobody":      {`"bot_uid":"x","bot_slug":"s"`, 404, []string{"uid x"}},
		"a slug of nobody":     {`"bot_uid":"u","bot_slug":"x"`, 404, []string{"uid u", "slug x"}},
		"no answer for a uid":  {`"bot_uid":"busy","bot_slug":"s"`, 529, []string{"uid busy"}},
		"no answer for a slug": {`"bot_uid":"u","bot_slug":"busy"`, 529, []string{"uid u", "slug busy"}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var asked []string
			find := func(by string) func(context.Context, string) (Bot, error) {
				return func(ctx context.Context, name string) (Bot, error) {
					is.Equal(AccountFrom(ctx)+", "+RequestIDFrom(ctx), "acme, r-1")
					asked = append(asked, by+name)
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
			is.Equal(asked, c.asked)
		})
	}
}

// An answer in one body is held in memory, so it must end somewhere: what is
// escaped counts, and where its characters are cut does not. An engine that recovers
// from panics loses no text.
func TestJSONResponseTooLarge(t *testing.T) {
	t.Parallel()
	whole := strings.Repeat("x", maxJSONResponse-len(jsonStart))
	for name, c := range map[string]struct {
		first string
		rest  []string
		fits  bool
	}{
		"all at once":                  {whole + "x", nil, false},
		"escaped":                      {strings.Repeat("\x00", maxJSONResponse/6), nil, false},
		"escaped, and fits":            {strings.Repeat("\x00", maxJSONResponse/6-3), nil, true},
		"a character":                  {whole[1:], []string{"é"}, false},
		"a character that fits":        {whole[2:], []string{"é"}, true},
		"a character and a byte":       {whole[2:], []string{"é", "x"}, false},
		"a cut character":              {whole[1:], []string{"\xc3", "\xa9"}, false},
		"a cut character that fits":    {whole[2:], []string{"\xc3", "\xa9"}, true},
		"a cut character and a byte":   {whole[2:], []string{"\xc3", "\xa9x"}, false},
		"a cut character and its room": {whole[3:], []string{"\xc3", "\xa9x"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var wanted bool
			var recovered any
			o := testOptions(t, t.Output())
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				defer func() { recovered = recover() }()
				for _, fragment := range append([]string{c.first}, c.rest...) {
					wanted = yield(fragment, nil)
				}
			})
			got := postChat(New(o), chatBodyJSON("hi", false))
			is.Equal(recovered, nil)
			is.Equal(wanted, c.fits)
			if !c.fits {
				is.Equal(got.Code, 500)
				return
			}
			is.Equal(got.Code, 200)
			is.True(strings.HasSuffix(got.Body.String(), strings.Join(c.rest, "")+jsonEnd))
		})
	}
}

// A pool keeps no buffer of a large answer: it would stay for long.
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
	runtime.KeepAlive(h) // else the engine's own text is collected, and makes up for what is kept
}

// An answer of any length leaves whole, however it is cut into writes.
func TestJSONResponseOfAnyLength(t *testing.T) {
	is := is.New(t)
	for _, size := range []int{maxPart - 1, maxPart, maxPart + 1, maxPart + 2, 2*maxPart + 1} {
		text := strings.Repeat("x", size-len(jsonStart+jsonEnd))
		got := playOn(t, httptest.NewRecorder(), false, fragmentsOf(text))
		is.Equal(got.body, jsonStart+text+jsonEnd)
		is.Equal(got.header.Get("Content-Length"), fmt.Sprint(size))
	}
}

// An engine that talks on and on is stopped when its time is up.
func TestChatTimeoutOfATalker(t *testing.T) {
	is := is.New(t)
	talksOn := engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for yield("", nil) {
		}
	})
	for range 100 {
		got := playChat(t, way{}, talksOn, func(o *Options) { o.ChatTimeout = time.Millisecond })
		is.Equal(got.status, 504)
		is.True(errors.Is(got.report(t).Err, ErrChatTimeout))
	}
}

// Of half a body there is nothing to read before the cut: it comes at once.
func TestChatTimeoutCutsAJSONResponseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		text := strings.Repeat("x", 2*maxPart)
		start := time.Now()
		got := playOn(t, faulty("Write", 0, takes(2*time.Second)), false, fragmentsOf(text), func(o *Options) { o.ChatTimeout = time.Second })
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(len(got.body), maxPart)
		is.Equal(time.Since(start), 2*time.Second)
	})
}
