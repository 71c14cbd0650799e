package botapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

func TestNewPanicsWithoutARequiredOption(t *testing.T) {
	for text, changes := range map[string][]func(*Options){
		"New: Options.Bots is nil":   {func(o *Options) { o.Bots = nil }, func(o *Options) { o.Bots = (*MemoryStore)(nil) }},
		"New: Options.Keys is nil":   {func(o *Options) { o.Keys = nil }, func(o *Options) { o.Keys = KeyVerifierFunc(nil) }},
		"New: Options.Engine is nil": {func(o *Options) { o.Engine = nil }, func(o *Options) { o.Engine = ChatEngineFunc(nil) }},
		"CacheKeys: the KeyVerifier is nil": {
			func(*Options) { CacheKeys(nil, time.Hour) }, func(*Options) { CacheKeys(KeyVerifierFunc(nil), time.Hour) },
		},
	} {
		for _, change := range changes {
			func() {
				defer func() { is.New(t).Equal(recover(), "botapi: "+text) }()
				o := testOptions(t, t.Output())
				change(&o)
				New(o)
			}()
		}
	}
}

func TestNewDefaultLogger(t *testing.T) {
	is := is.New(t)
	defer slog.SetDefault(slog.Default())
	var atNew, later bytes.Buffer
	o := testOptions(t, io.Discard)
	o.Logger = nil
	o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return nil, errors.New("no table") }}
	slog.SetDefault(slog.New(slog.NewTextHandler(&atNew, nil)))
	h := New(o)
	slog.SetDefault(slog.New(slog.NewTextHandler(&later, nil)))
	listOf(h)
	is.True(strings.Contains(atNew.String(), "no table"))
	is.Equal(later.String(), "")
}

func TestMaxBodyBytes(t *testing.T) {
	for _, c := range []struct {
		limit        int64
		size, status int
	}{
		{0, 1 << 20, 200}, {0, 1<<20 + 1, 413},
		{-1, 1 << 20, 200}, {-1, 1<<20 + 1, 413},
		{1, 1, 422}, {1, 2, 413}, // 1 is a limit
		{100, 100, 200}, {100, 101, 413},
		{8 << 10, 8 << 10, 200}, {8 << 10, 8<<10 + 1, 413},
		{3 << 20, 3 << 20, 200}, {3 << 20, 3<<20 + 1, 413},
		{math.MaxInt64, 2 << 20, 200},
	} {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.MaxBodyBytes = c.limit
		body := (chatBodyJSON("hi", false) + strings.Repeat(" ", c.size))[:c.size]
		is.Equal(postChat(New(o), body).Code, c.status)
		r := newRequest("POST", "/v1/chat", strings.NewReader(body))
		r.ContentLength = -1 // sent in chunks
		is.Equal(record(New(o), r).Code, c.status)
	}
}

// A limit that is reached is not a failure: one line at level Info.
func TestLimitsAreLogged(t *testing.T) {
	for _, c := range []struct {
		limit func(*Options)
		body  string
		error string
	}{
		{func(o *Options) { o.MaxConcurrentChats = 1 }, chatBodyJSON("hi", false), "503 Too many chats in progress"},
		{func(o *Options) { o.MaxChatsPerAccount = 1 }, chatBodyJSON("hi", true), "429 Too many chats in progress for this key"},
		{func(o *Options) { o.MaxBodyBytes = 100 }, strings.Repeat(" ", 101), "413 Request body too large"},
	} {
		is := is.New(t)
		var log testLog
		o := testOptions(t, &log)
		c.limit(&o)
		var h http.Handler
		o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
			for range 3 { // while this chat is in progress
				record(h, newRequest("POST", "/v1/chat", strings.NewReader(c.body), "X-Request-Id", "r"))
			}
		})
		h = New(o)
		is.Equal(postChat(h, chatBodyJSON("hi", false)).Code, 200)
		lines := regexp.MustCompile("(?m)^time=[^ ]* ").ReplaceAllString(log.String(), "")
		is.Equal(lines, strings.Repeat("level=INFO msg=\"request rejected\" request_id=r error=\""+c.error+"\"\n", 3))
	}
}
