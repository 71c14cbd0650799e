package resume_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A slowStore takes its time for each call, or fails.
type slowStore struct {
	resume.Store
	delay time.Duration
	err   error
}

func (s *slowStore) Claim(ctx context.Context, c resume.Claim) (resume.Claimed, error) {
	found, err := s.Store.Claim(ctx, c) // with an effect, even if its caller does not wait
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
		return resume.Claimed{}, ctx.Err()
	}
	return found, errors.Join(err, s.err)
}

func words(words ...string) botapi.ChatEngineFunc {
	return func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, word := range words {
				if !yield(word, nil) {
					return
				}
			}
		}
	}
}

func handler(t *testing.T, o resume.Options) (*resume.Engine, http.Handler) {
	t.Helper()
	o.Logger = slog.New(slog.DiscardHandler)
	engine := resume.New(o)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	keys := botapi.StaticKeys(map[string]string{"key": "acme"})
	return engine, engine.Handler(botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: engine, Logger: o.Logger}), keys)
}

func post(t *testing.T, h http.Handler, key string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":false}`))
	r.Header.Set("Authorization", "Bearer key")
	r.Header.Set(resume.Header, key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, response *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

const key = "0123456789abcdef"

// TestSlowStore has a store whose claims take effect, but too late: the chat is
// answered as without a key after one second in all, and so is its retry, which
// finds what the late claim has left.
func TestSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		store := &slowStore{Store: resume.NewMemory(resume.Settings{}), delay: 2 * time.Second}
		engine, h := handler(t, resume.Options{Engine: words("one"), Store: store})
		begun := time.Now()
		for i := range 3 {
			response := post(t, h, key)
			is.Equal(text(t, response), `{"content":"one"}`)
			is.Equal(response.Header.Get(resume.OutcomeHeader), "not-kept")
			is.Equal(time.Since(begun), time.Duration(i+1)*time.Second)
		}
		synctest.Wait() // the last late claim is taken back
		store.delay = 0
		response := post(t, h, key)
		is.Equal(text(t, response), `{"content":"one"}`)
		is.Equal(response.Header.Get(resume.OutcomeHeader), "kept")
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestOthersLearnNothing sends the key of an answer of somebody else, with a valid
// and with an invalid API key: nothing more is done with it than with any key.
func TestOthersLearnNothing(t *testing.T) {
	is := is.New(t)
	calls := make(chan string, 10)
	keys := botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
		calls <- key
		if key == "invalid" {
			return "", botapi.ErrInvalidKey
		}
		return key, nil
	})
	begun, goOn := make(chan struct{}, 1), make(chan struct{})
	engine := resume.New(resume.Options{Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(func(string, error) bool) {
			begun <- struct{}{}
			<-goOn
		}
	})})
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	is.NoErr(err)
	h := engine.Handler(botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: engine, MaxConcurrentChats: 1, Logger: slog.New(slog.DiscardHandler)}), keys)
	send := func(apiKey, key string) int {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":false}`))
		r.Header.Set("Authorization", "Bearer "+apiKey)
		r.Header.Set(resume.Header, key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		send("alice", key)
	}()
	is.Equal(<-calls, "alice")
	<-begun
	for _, other := range []string{key, "another-0123456789"} {
		is.Equal(send("bob", other), http.StatusServiceUnavailable)
		is.Equal(send("invalid", other), http.StatusUnauthorized)
		is.Equal(<-calls, "bob")
		is.Equal(<-calls, "invalid")
		is.Equal(len(calls), 0)
	}
	close(goOn)
	<-done
	is.NoErr(engine.Close(t.Context()))
}

// TestStoreThatFails answers as without a key.
func TestStoreThatFails(t *testing.T) {
	is := is.New(t)
	engine, h := handler(t, resume.Options{Engine: words("one"), Store: &slowStore{Store: resume.NewMemory(resume.Settings{}), err: errors.New("down")}})
	response := post(t, h, key)
	is.Equal(text(t, response), `{"content":"one"}`)
	is.Equal(response.Header.Get(resume.OutcomeHeader), "not-kept")
	is.NoErr(engine.Close(t.Context()))
}

// TestHangingEngine does not return when it is cancelled: Close says so.
func TestHangingEngine(t *testing.T) {
	is := is.New(t)
	stay := make(chan struct{})
	synctest.Test(t, func(t *testing.T) {
		stay = make(chan struct{})
		engine, h := handler(t, resume.Options{ChatTimeout: time.Second, Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) { <-stay }
		})})
		is.Equal(post(t, h, key).StatusCode, http.StatusGatewayTimeout)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		is.Equal(engine.Close(ctx), resume.ErrHanging)
		close(stay)
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestOnAnswerPanics on the model's own goroutine, which must not end the process.
func TestOnAnswerPanics(t *testing.T) {
	is := is.New(t)
	engine, h := handler(t, resume.Options{Engine: words("one"), OnAnswer: func(context.Context, resume.Report) { panic("SECRET") }})
	is.Equal(text(t, post(t, h, key)), `{"content":"one"}`)
	is.NoErr(engine.Close(t.Context()))
}

// TestNewWithoutEngine panics, naming the field.
func TestNewWithoutEngine(t *testing.T) {
	defer func() { is.New(t).Equal(recover(), "resume: Options.Engine is nil") }()
	resume.New(resume.Options{})
}
