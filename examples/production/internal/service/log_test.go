package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/matryer/is"
)

// recorded is a usage.Store in memory.
type recorded struct {
	mu  sync.Mutex
	all []*usage.Record
}

func (r *recorded) InsertUsage(_ context.Context, records []*usage.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, records...)
	return nil
}

// TestChatIsRecordedWhenItsEngineHasReturned has an engine that ignores
// cancellation, and reports its tokens long after its client has disconnected. The
// replica waits for it when it ends.
func TestChatIsRecordedWhenItsEngineHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		r, log, stored := recording(slog.LevelInfo)
		stubborn := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if _, err := r.Settings(ctx, "u1"); err != nil {
					t.Error(err)
				}
				time.Sleep(3 * time.Second)
				openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 9, Completion: 7})
				openai.UsageFrom(ctx).Finish("stop")
			}
		})
		r.model = usage.Metered(stubborn, func(_ context.Context, runtime string, _ usage.Tokens, _ string) { is.Equal(runtime, "standard") })
		bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
		is.NoErr(err)
		api := r.identified(botapi.New(botapi.Options{
			Bots: bots, Keys: botapi.StaticKeys(map[string]string{"key": "acme"}), Engine: botapi.ChatEngineFunc(r.chat),
			OnChat: r.onChat, Logger: r.notedLogger(),
		}))
		ctx, disconnect := context.WithCancel(t.Context())
		request := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":true}`))
		request.Header.Set("Authorization", "Bearer key")
		time.AfterFunc(time.Second, disconnect)
		func() {
			defer func() { is.Equal(recover(), http.ErrAbortHandler) }()
			api.ServeHTTP(httptest.NewRecorder(), request)
		}()
		is.Equal(r.unrecorded.Load(), int64(1))
		r.awaitEngines(time.Second)
		r.awaitEngines(time.Minute)
		is.Equal(strings.Count(log.String(), `are not recorded","chats":1}`), 1) // by the first call
		r.usage.Close(t.Context())
		is.Equal(len(stored.all), 1)
		is.Equal(stored.all[0].Tokens, &usage.Tokens{Prompt: 9, Completion: 7})
		is.True(!stored.all[0].Complete)
	})
}

// TestLineOfAChat ends chats in every way, each with a failing runtime, the error of
// the chat, a panic and a warning among the lines that wait for it.
func TestLineOfAChat(t *testing.T) {
	failed, disconnected := errors.New("502 Bad Gateway: connection refused"), botapi.ErrClientLeft
	for name, c := range map[string]struct {
		outcome        int32
		status         int
		fails          error
		message, level string
		notes          int
		isStored       bool
		rejected       string // in its record
	}{
		"complete":              {asked, 200, nil, "chat", "ERROR", 4, true, ""},
		"the model failed":      {asked, 502, failed, "chat", "ERROR", 3, true, ""},
		"rejected":              {open, 502, failed, "chat rejected", "ERROR", 3, true, "502 Bad Gateway"},
		"rejected for good":     {final, 502, failed, "chat rejected", "ERROR", 3, true, "502 Bad Gateway"},
		"without a client":      {open, 0, disconnected, "chat rejected", "ERROR", 4, true, "the client disconnected"},
		"handed back":           {handedBack, 502, failed, "request handed back to the proxy", "WARN", 3, false, ""},
		"joined and incomplete": {open, 200, failed, "chat", "ERROR", 3, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r, log, stored := recording(slog.LevelInfo)
			one := new(turn)
			one.outcome.Store(c.outcome)
			ctx := context.WithValue(t.Context(), turnKey{}, one)
			noted := r.notedLogger()
			noted.WarnContext(ctx, "a model runtime failed", "error", "connection refused")
			noted.ErrorContext(ctx, "request failed", "error", failed)
			noted.ErrorContext(ctx, "it panicked", "error", failed, "stack", "main.go:1")
			noted.WarnContext(ctx, "not flushed")
			r.onChat(ctx, botapi.ChatReport{Account: "acme", Status: c.status, Err: c.fails})
			is.Equal(log.String(), "") // its engine has not returned
			r.end(ctx)

			var line struct {
				Msg, Level string
				Times      int
				Notes      []map[string]string
			}
			is.NoErr(json.Unmarshal(log.Bytes(), &line)) // one line
			is.Equal(line.Msg, c.message)
			is.Equal(line.Level, c.level)
			is.Equal(line.Times == 1, c.message != "chat")
			is.Equal(len(line.Notes), c.notes)
			is.Equal(line.Notes[0], map[string]string{"msg": "a model runtime failed", "error": "connection refused"})
			is.Equal(line.Notes[c.notes-2]["stack"], "main.go:1")
			log.Reset()
			noted.ErrorContext(ctx, "too late for the line")
			is.True(strings.Contains(log.String(), "too late"))

			r.usage.Close(t.Context())
			is.Equal(len(stored.all) == 1, c.isStored)
			for _, record := range stored.all {
				is.Equal(record.Rejected, c.rejected)
			}
		})
	}
}

// TestRejectionsHideNoWarning has an account's chats rejected for one reason, one of
// them with a warning among its notes.
func TestRejectionsHideNoWarning(t *testing.T) {
	is := is.New(t)
	r, log, stored := recording(slog.LevelInfo)
	for _, warns := range []bool{false, true, false, false} {
		ctx := context.WithValue(t.Context(), turnKey{}, &turn{account: "acme"})
		if warns {
			r.notedLogger().WarnContext(ctx, "an answer cannot be kept")
		}
		r.onChat(ctx, botapi.ChatReport{Account: "acme", Err: botapi.ErrClientLeft})
		r.end(ctx)
	}
	r.repeats.writeAll()
	is.Equal(strings.Count(log.String(), "\n"), 3)
	is.Equal(strings.Count(log.String(), `"level":"WARN"`), 1)
	is.Equal(strings.Count(log.String(), "an answer cannot be kept"), 1)
	r.usage.Close(t.Context())
	var chats int64
	for _, record := range stored.all {
		chats += record.Chats
	}
	is.Equal(chats, int64(4))
}

// TestLogLevelCountsForChats has a chat of which there is nothing to say.
func TestLogLevelCountsForChats(t *testing.T) {
	for level, lines := range map[slog.Level]int{slog.LevelInfo: 1, slog.LevelWarn: 0} {
		is := is.New(t)
		r, log, _ := recording(level)
		ctx := context.WithValue(t.Context(), turnKey{}, new(turn))
		r.onChat(ctx, botapi.ChatReport{Status: http.StatusOK})
		r.end(ctx)
		r.usage.Close(t.Context())
		is.Equal(strings.Count(log.String(), "\n"), lines)
		is.True(!strings.Contains(log.String(), "notes"))
	}
}

func recording(level slog.Level) (*replica, *bytes.Buffer, *recorded) {
	log, stored := new(bytes.Buffer), new(recorded)
	return &replica{
		config:  Config{Endpoints: []runtimes.Endpoint{{Runtime: "standard"}}},
		logger:  slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: level})),
		usage:   usage.NewWriter(stored, slog.Default()),
		repeats: repeats{kinds: make(map[kind]repeat)},
	}, log, stored
}
