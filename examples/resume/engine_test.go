package resume_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	engine := resume.New(o)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	keys := botapi.StaticKeys(map[string]string{"key": "acme"})
	return engine, engine.Handler(botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: engine, Logger: o.Logger}), keys)
}

func request(ctx context.Context, apiKey, key string, stream bool) *http.Request {
	body := fmt.Sprintf(`{"bot_slug":"helper","prompt":"Hi","stream":%t}`, stream)
	r := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+apiKey)
	r.Header.Set(resume.Header, key)
	return r
}

func post(t *testing.T, h http.Handler, key string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(t.Context(), "key", key, false))
	return w.Result()
}

// serveAborted serves a request whose response may be aborted.
func serveAborted(h http.Handler, w http.ResponseWriter, r *http.Request) {
	defer func() { _ = recover() }() // http.ErrAbortHandler
	h.ServeHTTP(w, r)
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
		w := httptest.NewRecorder()
		h.ServeHTTP(w, request(t.Context(), apiKey, key, false))
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

// A slowWriter writes nothing before its client reads.
type slowWriter struct {
	*httptest.ResponseRecorder
	reads chan struct{} // closed when the client reads
}

func (w *slowWriter) Write(text []byte) (int, error) {
	<-w.reads
	return w.ResponseRecorder.Write(text)
}

// TestSlowReadersOfFailure has clients that read an answer only long after it has
// failed: the one that started it, and those that joined it. They get all of its text
// and its error.
func TestSlowReadersOfFailure(t *testing.T) {
	for _, clients := range []int{1, 3} {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowReadersOfFailure(t, make([]slowWriter, clients)) })
		})
	}
}

func slowReadersOfFailure(t *testing.T, readers []slowWriter) {
	is := is.New(t)
	asked, fails := 0, make(chan struct{})
	engine, h := handler(t, resume.Options{Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			asked++
			for range 500 {
				if !yield(strings.Repeat("x", 1000), nil) {
					return
				}
			}
			<-fails
			yield("", &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Later", RetryAfter: time.Second})
		}
	})})
	var all sync.WaitGroup
	for i := range readers {
		readers[i] = slowWriter{httptest.NewRecorder(), make(chan struct{})}
		all.Go(func() { serveAborted(h, &readers[i], request(t.Context(), "key", key, true)) })
		synctest.Wait()
	}
	close(fails)
	time.Sleep(5 * time.Minute)
	for _, reader := range readers {
		close(reader.reads)
	}
	all.Wait()
	for _, reader := range readers {
		body := reader.Body.String()
		is.Equal(strings.Count(body, "x"), 500_000)
		is.True(strings.HasSuffix(body, "event: error\ndata: {\"detail\":\"Later\",\"status\":429,\"retry_after\":1}\n\n"))
	}
	is.Equal(asked, 1)
	is.NoErr(engine.Close(t.Context()))
}

// A logged line is its level, message and error.
type logged chan string

func (logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithAttrs([]slog.Attr) slog.Handler     { return l }
func (l logged) WithGroup(string) slog.Handler          { return l }
func (l logged) Handle(_ context.Context, r slog.Record) error {
	attributes := make(map[string]string)
	r.Attrs(func(a slog.Attr) bool {
		attributes[a.Key] = a.Value.String()
		return true
	})
	l <- fmt.Sprint(r.Level, " ", r.Message, ": ", attributes["error"], " ", attributes["request_id"])
	return nil
}

// TestTimeoutsAreLogged has a model time out: botapi logs it for a client that waits,
// the package for one that has disconnected.
func TestTimeoutsAreLogged(t *testing.T) {
	for name, c := range map[string]struct {
		options resume.Options
		err     error
	}{
		"chat":  {resume.Options{ChatTimeout: 30 * time.Second}, botapi.ErrChatTimeout},
		"stall": {resume.Options{StallTimeout: 30 * time.Second}, botapi.ErrEngineStalled},
	} {
		for client, want := range map[string]string{
			"waits":        "ERROR request failed: 504 The answer took too long: %v the-request",
			"disconnected": "WARN an answer without readers failed: %v the-request",
		} {
			t.Run(name+", client "+client, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					lines := make(logged, 10)
					o := c.options
					o.Logger = slog.New(lines)
					o.Engine = botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
						return func(func(string, error) bool) { <-ctx.Done() }
					})
					engine, h := handler(t, o)
					ctx, disconnect := context.WithCancel(t.Context())
					defer disconnect()
					r := request(ctx, "key", key, false)
					r.Header.Set("X-Request-Id", "the-request")
					if client == "disconnected" {
						time.AfterFunc(time.Second, disconnect)
					}
					serveAborted(h, httptest.NewRecorder(), r)
					time.Sleep(time.Minute)
					is.NoErr(engine.Close(t.Context()))
					synctest.Wait()
					close(lines)
					var got []string
					for line := range lines {
						got = append(got, line)
					}
					is.Equal(got, []string{fmt.Sprintf(want, c.err)})
				})
			})
		}
	}
}

// TestReloads has a client reload several times, when its lost request still has the
// only slot of its account. The last request gets the answer.
func TestReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		const reloads = 5
		goOn := make(chan struct{})
		engine := resume.New(resume.Options{Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				<-goOn
				yield("one", nil)
			}
		})})
		bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
		is.NoErr(err)
		keys := &arrivals{all: make(chan struct{}, reloads)}
		h := engine.Handler(botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: engine, MaxChatsPerAccount: 1, Logger: slog.New(slog.DiscardHandler)}), keys)
		var all sync.WaitGroup
		var responses [reloads]*httptest.ResponseRecorder
		send := func(i int) {
			responses[i] = httptest.NewRecorder()
			all.Go(func() { serveAborted(h, responses[i], request(t.Context(), "key", key, false)) })
		}
		send(0)
		synctest.Wait()
		keys.hold = make(chan struct{})
		for i := range reloads - 1 { // all of them before the first of them has a slot
			send(i + 1)
			<-keys.all
		}
		close(keys.hold)
		synctest.Wait()
		close(goOn)
		all.Wait()
		for _, response := range responses[:reloads-1] {
			is.True(response.Body.String() != `{"content":"one"}`)
		}
		is.Equal(responses[reloads-1].Body.String(), `{"content":"one"}`)
		is.NoErr(engine.Close(t.Context()))
	})
}

// arrivals are the API keys of requests, which may be held.
type arrivals struct {
	all  chan struct{}
	hold chan struct{}
}

func (a *arrivals) VerifyKey(context.Context, string) (string, error) {
	if a.hold != nil {
		select {
		case a.all <- struct{}{}:
		default:
		}
		<-a.hold
	}
	return "acme", nil
}
