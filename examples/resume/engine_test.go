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
	"slices"
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

// optionsOf are the options of an API with these answers.
func optionsOf(t *testing.T, engine *resume.Engine, keys botapi.KeyVerifier) botapi.Options {
	t.Helper()
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	return botapi.Options{
		Bots: bots, Keys: keys, Engine: engine, Routes: engine.Routes(), OnLimit: engine.OnLimit, Logger: slog.New(slog.DiscardHandler),
	}
}

var acmeKeys = botapi.StaticKeys(map[string]string{"key": "acme", "other": "globex"})

// handler returns an API with answers. Its options may be changed.
func handler(t *testing.T, o resume.Options, change ...func(*botapi.Options)) (*resume.Engine, http.Handler) {
	t.Helper()
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	engine := resume.New(o)
	api := optionsOf(t, engine, acmeKeys)
	api.Logger = o.Logger
	for _, f := range change {
		f(&api)
	}
	return engine, botapi.New(api)
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
	api := optionsOf(t, engine, keys)
	api.MaxConcurrentChats = 1
	h := botapi.New(api)
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

// TestLimitsOfTheApplication has one account send 150 chats with fresh keys, each of which
// disconnects: its models never exceed the limits of the application.
func TestLimitsOfTheApplication(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		running, most, calls := 0, 0, 0
		var mu sync.Mutex
		engine, h := handler(t, resume.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				count := func(more int) {
					mu.Lock()
					defer mu.Unlock()
					running += more
					calls += max(0, more)
					most = max(most, running)
				}
				count(1)
				defer count(-1)
				yield("one", nil)
				<-ctx.Done()
			}
		})}, func(o *botapi.Options) { o.MaxChatsPerAccount, o.MaxConcurrentChats = 2, 4 })
		for i := range 150 {
			ctx, disconnect := context.WithTimeout(t.Context(), time.Second)
			serveAborted(h, httptest.NewRecorder(), request(ctx, "key", fmt.Sprintf("%s-%d", key, i), true))
			disconnect()
			time.Sleep(time.Second)
		}
		is.Equal(most, 2)
		is.True(calls > 2) // the first were abandoned
		time.Sleep(2 * time.Minute)
		is.Equal(running, 0)
		is.Equal(post(t, h, key+"-again").StatusCode, http.StatusGatewayTimeout) // after ChatTimeout of botapi.Options
		is.NoErr(engine.Close(t.Context()))
	})
}

// doorsOf are routes that choose the key of an answer: POST starts it, GET joins it. Their
// chats have one key each, whatever the header says.
func doorsOf(engine **resume.Engine) []botapi.Route {
	return []botapi.Route{
		{Patterns: []string{"POST /chats/{key}"}, Serve: func(r *http.Request) (botapi.Response, error) {
			return &botapi.Chat{
				Context: resume.WithKey(r.Context(), r.PathValue("key")),
				BotSlug: "helper",
				Request: botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hi"}}},
			}, nil
		}},
		{Patterns: []string{"GET /chats/{key}"}, Serve: func(r *http.Request) (botapi.Response, error) {
			key := r.PathValue("key")
			return &botapi.Chat{
				Context: resume.WithKey(r.Context(), key),
				Answer:  func(ctx context.Context) iter.Seq2[string, error] { return (*engine).Join(ctx, key) },
			}, nil
		}},
		{Patterns: []string{"POST /without"}, Serve: func(r *http.Request) (botapi.Response, error) {
			return &botapi.Chat{
				Context: resume.WithKey(r.Context(), ""),
				BotSlug: "helper",
				Request: botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hi"}}},
			}, nil
		}},
	}
}

// TestDoorChoosesTheKey has routes with keys of their own, and one slot: joining by key alone
// shares it.
func TestDoorChoosesTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var engine *resume.Engine
		goOn := make(chan struct{})
		outcomes := make(chan resume.Outcome, 10)
		engine, h := handler(t, resume.Options{Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				<-goOn
				yield("one", nil)
			}
		})}, func(o *botapi.Options) {
			o.Routes = append(o.Routes, doorsOf(&engine)...)
			o.MaxChatsPerAccount = 1
			o.OnRequest = func(ctx context.Context, _ botapi.RequestReport) { outcomes <- resume.OutcomeFrom(ctx) }
		})
		send := func(method, path string) *http.Response {
			r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
			r.Header.Set("Authorization", "Bearer key")
			r.Header.Set(resume.Header, "of-another-answer")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result()
		}
		var started, joined *http.Response
		var both sync.WaitGroup
		both.Go(func() { started = send("POST", "/chats/"+key) })
		synctest.Wait()
		both.Go(func() { joined = send("GET", "/chats/"+key) })
		synctest.Wait()
		is.Equal(send("GET", "/chats/"+key+"-other").StatusCode, http.StatusTooManyRequests)
		is.Equal(<-outcomes, resume.Outcome(""))
		close(goOn)
		both.Wait()
		is.Equal(text(t, started), `{"content":"one"}`)
		is.Equal(started.Header.Get(resume.OutcomeHeader), "kept")
		is.Equal(text(t, joined), `{"content":"one"}`)
		is.Equal(joined.Header.Get(resume.OutcomeHeader), "joined")
		is.Equal(map[resume.Outcome]bool{<-outcomes: true, <-outcomes: true}, map[resume.Outcome]bool{resume.Kept: true, resume.Joined: true})
		is.Equal(send("GET", "/chats/"+key+"-other").StatusCode, http.StatusNotFound)
		is.Equal(send("GET", "/chats/short").StatusCode, http.StatusNotFound)
		is.Equal(send("POST", "/without").Header.Get(resume.OutcomeHeader), "")
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestSharedSlotIsForJoining has a client come back at the limit in the instant in which its
// answer fails, with an engine that stays: there is no second model in the slot.
func TestSharedSlotIsForJoining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		stay, calls := make(chan struct{}), 0
		store := &slowStore{Store: resume.NewMemory(resume.Settings{Readers: 2})}
		engine, h := handler(t, resume.Options{Store: store, ChatTimeout: 10 * time.Second, Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) {
				calls++
				<-stay
			}
		})}, func(o *botapi.Options) { o.MaxChatsPerAccount = 1 })
		go post(t, h, key)
		time.Sleep(11 * time.Second) // it has failed, and its key leads to no answer
		response := post(t, h, key)
		is.Equal(response.StatusCode, http.StatusTooManyRequests)
		is.Equal(text(t, response), `{"detail":"Too many chats in progress for this key"}`)
		is.Equal(response.Header.Get(resume.OutcomeHeader), "")
		store.delay = 500 * time.Millisecond
		var bodies [4]string
		var all sync.WaitGroup
		for i := range bodies {
			all.Go(func() { bodies[i] = text(t, post(t, h, key)) })
		}
		all.Wait()
		slices.Sort(bodies[:])
		limit, readers := `{"detail":"Too many chats in progress for this key"}`, `{"detail":"Too many clients follow this answer"}`
		is.Equal(bodies, [4]string{limit, limit, readers, readers})
		is.Equal(calls, 1)
		close(stay)
		synctest.Wait()
		store.delay = 0
		is.Equal(post(t, h, key).StatusCode, http.StatusOK) // empty
		is.NoErr(engine.Close(t.Context()))
	})
}
