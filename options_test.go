package botapi

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
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

// A limit that is reached is not a failure: one line at level Info.
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
		var log testLog
		o := testOptions(t, &log)
		o.MaxBodyBytes = c.limit
		body := (chatBodyJSON("hi", false) + strings.Repeat(" ", c.size))[:c.size]
		is.Equal(postChat(New(o), body).Code, c.status)
		logged := log.String()
		is.Equal(strings.Count(logged, "\n"), map[bool]int{true: 1}[c.status == 413])
		is.True(logged == "" || strings.Contains(logged, `level=INFO msg="request rejected"`))
		is.True(logged == "" || strings.Contains(logged, `error="413 Request body too large"`))
		r := newRequest("POST", "/v1/chat", strings.NewReader(body))
		r.ContentLength = -1 // sent in chunks
		is.Equal(record(New(o), r).Code, c.status)
	}
}
