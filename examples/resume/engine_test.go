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
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
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

// TestContract holds the engine against the contract of botapi.ChatEngine. Its chats have no
// key: those with one outlive their clients.
func TestContract(t *testing.T) {
	failing := botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		return errors.Join(emit("Once "), errors.New("the model has failed"))
	})
	hanging := botapi.CallbackEngine(func(ctx context.Context, _ *botapi.ChatRequest, _ func(string) error) error {
		<-ctx.Done()
		return ctx.Err()
	})
	endless := botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		for emit("and so on ") == nil {
		}
		return nil
	})
	botapitest.TestEngine(t, botapitest.Engine{
		Engine:  resume.New(resume.Options{Engine: words("Once ", "", "upon ", "a 👋\xf0\x9f", "\x8f\xbd")}),
		Answer:  "Once upon a 👋🏽",
		Failing: resume.New(resume.Options{Engine: failing}),
		Hanging: resume.New(resume.Options{Engine: hanging}),
		Endless: resume.New(resume.Options{Engine: endless}),
	})
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

// TestEngineWatchesItsDeadline has an engine that fails by itself at ChatTimeout: its context
// is as botapi promises, and the response a 504.
func TestEngineWatchesItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var after error
		engine, h := handler(t, resume.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				deadline, _ := ctx.Deadline()
				time.Sleep(time.Until(deadline))
				yield("", errors.New("too late"))
				<-ctx.Done()
				after = ctx.Err()
			}
		})}, func(o *botapi.Options) { o.ChatTimeout = time.Second })
		is.Equal(post(t, h, key).StatusCode, http.StatusGatewayTimeout)
		is.NoErr(engine.Close(t.Context()))
		is.Equal(after, context.Canceled)
	})
}

// TestEngineFailsAndStays has an engine that yields an error and does not return until it is
// cancelled: immediately, with its error, as botapi does it.
func TestEngineFailsAndStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		tooMany := &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many"}
		var cause error
		engine, h := handler(t, resume.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("", tooMany)
				<-ctx.Done()
				cause = context.Cause(ctx)
			}
		})})
		is.Equal(post(t, h, key).StatusCode, http.StatusTooManyRequests)
		is.NoErr(engine.Close(t.Context()))
		is.Equal(cause, tooMany)
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
		api     botapi.Options
		err     error
	}{
		"chat":            {resume.Options{ChatTimeout: 30 * time.Second}, botapi.Options{}, botapi.ErrChatTimeout},
		"stall":           {resume.Options{StallTimeout: 30 * time.Second}, botapi.Options{}, botapi.ErrEngineStalled},
		"chat of botapi":  {resume.Options{}, botapi.Options{ChatTimeout: 30 * time.Second}, botapi.ErrChatTimeout},
		"stall of botapi": {resume.Options{}, botapi.Options{StallTimeout: 30 * time.Second}, botapi.ErrEngineStalled},
	} {
		for client, want := range map[string]string{
			"waits":        "ERROR request failed:",
			"disconnected": "WARN an answer without readers failed:",
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
					engine, h := handler(t, o, func(o *botapi.Options) { o.ChatTimeout, o.StallTimeout = c.api.ChatTimeout, c.api.StallTimeout })
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
					is.Equal(len(got), 1) // whichever of the two timeouts comes first
					is.True(strings.HasPrefix(got[0], want))
					is.True(strings.Contains(got[0], c.err.Error()))
					is.True(strings.HasSuffix(got[0], " the-request"))
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
		var running, most, calls atomic.Int64
		engine, h := handler(t, resume.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				calls.Add(1)
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				yield("one", nil)
				<-ctx.Done()
			}
		})}, func(o *botapi.Options) { o.MaxChatsPerAccount, o.MaxConcurrentChats = 2, 4 })
		for i := range 150 {
			ctx, disconnect := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, disconnect)
			serveAborted(h, httptest.NewRecorder(), request(ctx, "key", fmt.Sprintf("%s-%d", key, i), true))
			time.Sleep(2 * time.Second)
		}
		is.Equal(most.Load(), int64(2))
		is.True(calls.Load() > 2) // the first were abandoned
		time.Sleep(2 * time.Minute)
		is.Equal(running.Load(), int64(0))
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
		stay := make(chan struct{})
		var calls atomic.Int64
		store := &slowStore{Store: resume.NewMemory(resume.Settings{Readers: 2})}
		engine, h := handler(t, resume.Options{Store: store, ChatTimeout: 10 * time.Second, Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) {
				calls.Add(1)
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
		is.Equal(calls.Load(), int64(1))
		close(stay)
		synctest.Wait()
		store.delay = 0
		is.Equal(post(t, h, key).StatusCode, http.StatusOK) // empty
		is.NoErr(engine.Close(t.Context()))
	})
}

// TestSpacingOfTheRetry repeats a chat with other spacing and another order of members: only
// another value is another chat.
func TestSpacingOfTheRetry(t *testing.T) {
	is := is.New(t)
	engine, h := handler(t, resume.Options{Engine: words("one")})
	send := func(key, fields string) int {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/chat", strings.NewReader(`{"bot_slug":"helper","prompt":"Hi","stream":false,`+fields+`}`))
		r.Header.Set("Authorization", "Bearer key")
		r.Header.Set(resume.Header, key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	is.Equal(send(key, `"a":{"b":[1,"\u00e9"],"c":null},"d":1.50`), http.StatusOK)
	for fields, want := range map[string]int{
		"\"d\": 1.50,\n\"a\": {\"c\" : null, \"b\": [1, \"é\"]}": http.StatusOK,
		`"a":{"b":[1,"e"],"c":null},"d":1.50`:                    http.StatusConflict,
		`"a":{"b":["1","é"],"c":null},"d":1.50`:                  http.StatusConflict,
		`"a":{"b":["é",1],"c":null},"d":1.50`:                    http.StatusConflict,
		`"a":{"b":[1,"é"]},"d":1.50`:                             http.StatusConflict,
		`"a":{"b":[1,"é"],"c":null}`:                             http.StatusConflict,
		`"a":{"b":[1,"é"],"c":null},"d":1.50,"e":1`:              http.StatusConflict,
		`"a":{"b":[1,"é"],"c":null},"e":1.50`:                    http.StatusConflict,
	} {
		if got := send(key, fields); got != want {
			t.Errorf("%s: %d", fields, got)
		}
	}
	long := strings.Repeat(" ", 100_000) // the same, but longer than what is compared by value
	is.Equal(send(key+"-long", `"a":["x"`+long+`]`), http.StatusOK)
	is.Equal(send(key+"-long", `"a":["x"`+long+`]`), http.StatusOK)
	is.Equal(send(key+"-long", `"a":["x" `+long+`]`), http.StatusConflict)
	is.NoErr(engine.Close(t.Context()))
}

// TestStatusBeforeMore has an engine go on after its error, whatever yield says: the error
// decides the response, and the log has the panic.
func TestStatusBeforeMore(t *testing.T) {
	is := is.New(t)
	lines := make(logged, 10)
	var report resume.Report
	engine, h := handler(t, resume.Options{
		Logger:   slog.New(lines),
		OnAnswer: func(_ context.Context, r resume.Report) { report = r },
		Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				yield("", &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Later", RetryAfter: time.Second})
				yield("more", nil)
				panic("much later")
			}
		}),
	})
	response := post(t, h, key)
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.Equal(text(t, response), `{"detail":"Later"}`)
	is.NoErr(engine.Close(t.Context()))
	is.Equal(report.Fragments, 0)
	response503, isStatus := report.Err.(*botapi.StatusError)
	is.True(isStatus)
	is.Equal(response503.Status, http.StatusServiceUnavailable)
	close(lines)
	var got []string
	for line := range lines {
		got = append(got, line[:30])
	}
	slices.Sort(got)
	is.Equal(got, []string{"ERROR the engine panicked afte", "INFO request rejected: 503 Lat"})
}

// TestPanicAfterATimeout has an engine panic when its context has ended: the log has that, and
// not the way in which a reverse proxy aborts.
func TestPanicAfterATimeout(t *testing.T) {
	for _, c := range []struct {
		value any
		lines int
	}{{"much later", 1}, {http.ErrAbortHandler, 0}} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			lines := make(logged, 10)
			engine, h := handler(t, resume.Options{
				Logger:      slog.New(lines),
				ChatTimeout: time.Second,
				Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
					return func(func(string, error) bool) {
						<-ctx.Done()
						panic(c.value)
					}
				}),
			})
			is.Equal(post(t, h, key).StatusCode, http.StatusGatewayTimeout)
			is.NoErr(engine.Close(t.Context()))
			close(lines)
			panicked := 0
			for line := range lines {
				if strings.Contains(line, "the engine panicked after") {
					panicked++
				}
			}
			is.Equal(panicked, c.lines)
		})
	}
}

// TestDisconnectWithoutKey has clients without a key disconnect, which an engine learns from
// yield before its context ends, or from its context, whose error it yields: OnAnswer says
// what OnChat says.
func TestDisconnectWithoutKey(t *testing.T) {
	waits := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			<-ctx.Done()
			yield("", ctx.Err())
		}
	})
	for i := range 100 {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			var ofChat, ofAnswer error
			engine, h := handler(t, resume.Options{
				Engine:   []botapi.ChatEngine{words("one", "two", "three"), waits}[i%2],
				OnAnswer: func(_ context.Context, r resume.Report) { ofAnswer = r.Err },
			}, func(o *botapi.Options) { o.OnChat = func(_ context.Context, r botapi.ChatReport) { ofChat = r.Err } })
			r := request(t.Context(), "key", "", true)
			delete(r.Header, resume.Header)
			w := brokenWriter{httptest.NewRecorder(), make(chan struct{})}
			close(w.breaks)
			ctx, disconnect := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, disconnect)
			serveAborted(h, w, r.WithContext(ctx))
			is.NoErr(engine.Close(t.Context()))
			is.True(errors.Is(ofChat, botapi.ErrClientLeft))
			is.True(errors.Is(ofAnswer, botapi.ErrClientLeft))
		})
	}
}

// TestEngineInFront has an engine in front take only the beginning of an answer. The chat is
// complete, and the answer was not read to its end.
func TestEngineInFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var report resume.Report
		engine, h := handler(t, resume.Options{
			Engine:   words("one", "two"),
			OnAnswer: func(_ context.Context, r resume.Report) { report = r },
		}, func(o *botapi.Options) {
			answers := o.Engine
			o.Engine = botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for text, err := range answers.Chat(ctx, req) {
						yield(text, err)
						return
					}
				}
			})
		})
		r := request(t.Context(), "key", "", false)
		delete(r.Header, resume.Header)
		w, began := httptest.NewRecorder(), time.Now()
		h.ServeHTTP(w, r)
		is.Equal(w.Body.String(), `{"content":"one"}`)
		is.Equal(time.Since(began), time.Duration(0))
		is.NoErr(engine.Close(t.Context()))
		is.Equal(report.Fragments, 1)
		is.True(strings.Contains(report.Err.Error(), "not read to its end"))
	})
}

// TestShutdownIsNoFailure closes the engine while an answer goes on without its client.
func TestShutdownIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		lines := make(logged, 10)
		engine, h := handler(t, resume.Options{Logger: slog.New(lines), Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(func(string, error) bool) { <-ctx.Done() }
		})})
		ctx, disconnect := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, disconnect)
		serveAborted(h, httptest.NewRecorder(), request(ctx, "key", key, true))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		is.NoErr(engine.Close(ended))
		is.True(strings.HasPrefix(<-lines, "INFO an answer without readers failed: 503 Service Unavailable"))
		is.Equal(len(lines), 0)
	})
}

// TestWaitsForRoom has a chat with a key wait for room under MaxWaiting, as one without.
func TestWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, h := handler(t, resume.Options{Engine: long(2, time.Second)}, func(o *botapi.Options) {
			o.MaxConcurrentChats, o.MaxWaiting = 1, 1
		})
		go post(t, h, key)
		synctest.Wait()
		is.Equal(post(t, h, key+"2").StatusCode, http.StatusOK)
		is.NoErr(engine.Close(t.Context()))
	})
}
