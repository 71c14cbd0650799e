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
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/metric/noop"
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

func recording(level slog.Level) (*replica, *bytes.Buffer, *recorded) {
	log, stored := new(bytes.Buffer), new(recorded)
	return &replica{
		config:         Config{Endpoints: []runtimes.Endpoint{{Runtime: "standard"}}},
		logger:         slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: level})),
		usage:          usage.NewWriter(stored, slog.New(slog.NewJSONHandler(log, nil))),
		errorResponses: noop.Int64Counter{},
		failures:       newThrottle(),
	}, log, stored
}

// servesWith serves chats with an engine.
func (r *replica) servesWith(t *testing.T, engine botapi.ChatEngine, o botapi.Options) http.Handler {
	t.Helper()
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	o.Bots, o.Keys, o.Engine = bots, botapi.StaticKeys(map[string]string{"key": "acme"}), engine
	o.OnRequest, o.Logger = r.onRequest, r.notedLogger()
	api := botapi.New(o)
	return r.identified(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		api.ServeHTTP(&head{w, w, turnOf(req.Context()), req.Header.Get(tryElsewhere) == "425"}, req)
	}))
}

// models is an engine of models that are asked, metered and recorded.
func (r *replica) models(t *testing.T, answer func(ctx context.Context, yield func(string, error) bool)) botapi.ChatEngine {
	engine := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if _, err := r.Settings(ctx, "u1"); err != nil {
				t.Error(err)
			}
			answer(ctx, yield)
		}
	})
	return r.usage.Recorded(usage.Metered(engine, func(context.Context, string, usage.Tokens, string) {}))
}

// send has a chat, and reports whether its stream was aborted.
func send(ctx context.Context, api http.Handler, header http.Header) (status int, aborted bool) {
	request := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":true}`))
	if header != nil {
		request.Header = header.Clone()
	}
	request.Header.Set("Authorization", "Bearer key")
	w := httptest.NewRecorder()
	defer func() { status, aborted = w.Code, recover() != nil }()
	api.ServeHTTP(w, request)
	return
}

// TestChatIsRecordedWhenItsEngineHasReturned has an engine that ignores
// cancellation, and reports its tokens long after its client has disconnected. The
// replica waits for it when it ends.
func TestChatIsRecordedWhenItsEngineHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		r, log, stored := recording(slog.LevelInfo)
		stubborn := r.models(t, func(ctx context.Context, _ func(string, error) bool) {
			time.Sleep(3 * time.Second)
			openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 9, Completion: 7})
			openai.UsageFrom(ctx).Finish("stop")
		})
		ctx, disconnect := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, disconnect)
		_, aborted := send(ctx, r.servesWith(t, stubborn, botapi.Options{}), nil)
		is.True(aborted)
		is.Equal(strings.Count(log.String(), `"msg":"chat"`), 1) // the client's side has ended
		r.usage.AwaitEngines(time.Second)
		r.usage.AwaitEngines(time.Minute)
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
		rejected       string // in its record; the model's work has another
	}{
		"complete":          {asked, 200, nil, "chat", "ERROR", 4, ""},
		"the model failed":  {asked, 502, failed, "chat", "ERROR", 3, ""},
		"rejected":          {open, 502, failed, "chat rejected", "ERROR", 3, "502 Bad Gateway"},
		"rejected for good": {final, 502, failed, "chat rejected", "ERROR", 3, "502 Bad Gateway"},
		"without a client":  {open, 0, disconnected, "chat rejected", "ERROR", 4, "the client disconnected"},
		"handed back":       {handedBack, 502, failed, "request handed back to the proxy", "WARN", 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r, log, stored := recording(slog.LevelInfo)
			one := new(turn)
			one.outcome.Store(c.outcome)
			ctx := usage.With(t.Context(), one)
			noted := r.notedLogger()
			noted.WarnContext(ctx, "a model runtime failed", "error", "connection refused")
			noted.ErrorContext(ctx, "request failed", "error", failed)
			noted.ErrorContext(ctx, "it panicked", "error", failed, "stack", "main.go:1")
			noted.WarnContext(ctx, "not flushed")
			is.Equal(log.String(), "") // its response has not ended
			r.onRequest(ctx, reportOf(c.status, c.fails))

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
			is.Equal(len(stored.all) == 1, c.rejected != "")
			for _, record := range stored.all {
				is.Equal(record.Rejected, c.rejected)
			}
			_, err := r.Settings(ctx, "u1")
			is.True(err != nil) // from now on, no model is asked
		})
	}
}

func reportOf(status int, err error) botapi.RequestReport {
	return botapi.RequestReport{Account: "acme", Status: status, Err: err, Chat: &botapi.ChatReport{Account: "acme", Status: status, Err: err}}
}

// TestJoinsAreWrittenTogether has an answer joined 30 times: that is one chat.
func TestJoinsAreWrittenTogether(t *testing.T) {
	is := is.New(t)
	r, log, stored := recording(slog.LevelInfo)
	answers := resume.New(resume.Options{
		Engine:   r.models(t, func(_ context.Context, yield func(string, error) bool) { yield("one", nil) }),
		ValidKey: func(string) bool { return true },
		Store:    resume.NewMemory(resume.Settings{Readers: 100}),
	})
	api := r.servesWith(t, answers, botapi.Options{Routes: answers.Routes(), OnLimit: answers.OnLimit})
	const joins = resume.JoinBurst
	for range 1 + joins {
		status, aborted := send(t.Context(), api, http.Header{"Idempotency-Key": {"k"}})
		is.Equal(status, http.StatusOK)
		is.True(!aborted)
	}
	r.repeats.Flush()
	r.usage.Close(t.Context())
	is.Equal(strings.Count(log.String(), `"msg":"chat"`), 1)
	is.Equal(strings.Count(log.String(), `"msg":"chat joined an answer"`), 2)
	is.Equal(len(stored.all), 3)
	var chats, joined int64
	for _, record := range stored.all {
		chats += record.Chats
		joined += record.Joins
		is.Equal(record.Tokens != nil, record.Joins == 0)
	}
	is.Equal([]int64{chats, joined}, []int64{1, joins})
}

// TestAnswerWhoseClientHasDisconnected goes on before its model is asked: it is one chat
// and no rejection.
func TestAnswerWhoseClientHasDisconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		r, log, stored := recording(slog.LevelInfo)
		model := r.models(t, func(_ context.Context, yield func(string, error) bool) { yield("one", nil) })
		waiting := botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			time.Sleep(2 * time.Second) // for Redis
			return model.Chat(ctx, req)
		})
		answers := resume.New(resume.Options{Engine: waiting, ValidKey: func(string) bool { return true }})
		ctx, disconnect := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, disconnect)
		_, aborted := send(ctx, r.servesWith(t, answers, botapi.Options{}), http.Header{"Idempotency-Key": {"k"}})
		is.True(aborted)
		is.NoErr(answers.Close(t.Context()))
		r.repeats.Flush()
		r.usage.Close(t.Context())
		is.Equal(strings.Count(log.String(), `"msg":"chat"`), 1)
		is.Equal(strings.Count(log.String(), `"msg":"chat rejected"`), 0)
		is.Equal(len(stored.all), 1)
		is.Equal([]any{stored.all[0].Chats, stored.all[0].Complete}, []any{int64(1), true})
	})
}

// TestRejectionsHideNoWarning has an account's chats rejected for one reason, one of
// them with a warning among its notes.
func TestRejectionsHideNoWarning(t *testing.T) {
	is := is.New(t)
	r, log, stored := recording(slog.LevelInfo)
	for _, warns := range []bool{false, true, false, false} {
		ctx := usage.With(t.Context(), new(turn))
		if warns {
			r.notedLogger().WarnContext(ctx, "an answer cannot be kept")
		}
		r.onRequest(ctx, reportOf(0, botapi.ErrClientLeft))
	}
	r.repeats.Flush()
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
		one := new(turn)
		one.outcome.Store(asked)
		r.onRequest(usage.With(t.Context(), one), reportOf(http.StatusOK, nil))
		r.usage.Close(t.Context())
		is.Equal(strings.Count(log.String(), "\n"), lines)
		is.True(!strings.Contains(log.String(), "notes"))
	}
}

// TestReasonsHaveNoTextOfAClient has a client choose the number of a message that is wrong.
func TestReasonsHaveNoTextOfAClient(t *testing.T) {
	is := is.New(t)
	is.Equal(about("400 messages[17].content: str type expected: invalid_type"), "400 messages")
	const wrong = "messages[17].content: str type expected"
	is.Equal(reasonOf(botapi.RequestReport{Status: 400, Err: botapi.StatusError{Status: 400, Detail: wrong}}), "messages")
	is.Equal(about("botapi: the client disconnected: context canceled"), "the client disconnected")
}
