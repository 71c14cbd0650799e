package botapi_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/botapi"
)

// A server with one bot, two routes of this package and one of its own. A program calls
// http.ListenAndServe("127.0.0.1:8080", mux) at the end, as in the README, which begins with
// this example.
func ExampleNew() {
	bots, err := botapi.NewMemoryStore(botapi.Bot{
		UID: "6f1c0c5e-7a50-4d6c-9f0e-1f4b8c1c6a11", Slug: "parrot", Name: "Parrot", Model: "parrot-1",
	})
	if err != nil {
		log.Fatal(err)
	}
	parrot := func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, word := range strings.SplitAfter(req.Messages[len(req.Messages)-1].Content, " ") {
				if !yield(word, nil) {
					return // the client has disconnected
				}
			}
		}
	}
	api := botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"my-key": "me"}),
		Engine: botapi.ChatEngineFunc(parrot),

		MaxConcurrentChats: 100, // as many as your models can take
	})
	mux := http.NewServeMux()
	mux.Handle("/v1/", api)
	mux.HandleFunc("GET /health-check", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"ok"}`) })

	call(mux, "POST", "/v1/chat", "my-key", `{"bot_slug":"parrot","prompt":"Pretty Polly","stream":true}`)
	// Output:
	// 200
	// data: {"content":"Pretty "}
	//
	// data: {"content":"Polly"}
	//
	// data: [DONE]
}

// call sends a request to a handler and prints the response.
func call(h http.Handler, method, path, key, body string) {
	server := httptest.NewServer(h)
	defer server.Close()
	request, err := http.NewRequest(method, server.URL+path, strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(response.StatusCode)
	fmt.Println(strings.TrimSpace(string(text)))
}

// newOptions returns the options that an example is not about: one bot, one key, and
// an engine that repeats the prompt.
func newOptions() botapi.Options {
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"})
	if err != nil {
		log.Fatal(err)
	}
	return botapi.Options{
		Bots: bots,
		Keys: botapi.StaticKeys(map[string]string{"my-key": "me"}),
		Engine: botapi.CallbackEngine(func(_ context.Context, req *botapi.ChatRequest, emit func(string) error) error {
			return emit(req.Messages[len(req.Messages)-1].Content)
		}),
		Logger: slog.New(slog.DiscardHandler),
	}
}

const hello = `{"bot_slug":"parrot","prompt":"hello","stream":false}`

// Clients of a handler behind a prefix have the prefix in their base address.
func ExampleNew_prefix() {
	mux := http.NewServeMux()
	mux.Handle("/bots-api/", http.StripPrefix("/bots-api", botapi.New(newOptions())))

	call(mux, "POST", "/bots-api/v1/chat", "my-key", hello)
	// Output:
	// 200
	// {"content":"hello"}
}

// Middleware that recovers panics must pass http.ErrAbortHandler on: it aborts an incomplete
// stream. Middleware that wraps the ResponseWriter needs an Unwrap method, or streams cannot
// be flushed.
func ExampleNew_middleware() {
	recovering := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				v := recover()
				if v == http.ErrAbortHandler {
					panic(v)
				}
				if v != nil {
					http.Error(w, "sorry", http.StatusInternalServerError)
				}
			}()
			next.ServeHTTP(w, r)
		})
	}
	allowingOrigins := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
			if r.Method == http.MethodOptions {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	h := recovering(allowingOrigins(botapi.New(newOptions())))

	call(h, "OPTIONS", "/v1/chat", "", "")
	call(h, "POST", "/v1/chat", "my-key", hello)
	// Output:
	// 204
	//
	// 200
	// {"content":"hello"}
}

// Shutdown lets streams in progress finish. A program calls it when it gets a signal, and
// closes the server if that takes too long.
func ExampleNew_shutdown() {
	draining := make(chan struct{})
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		if err := emit("I am "); err != nil {
			return err
		}
		<-draining // an engine may finish early when the server shuts down
		return emit("done.")
	})
	served := httptest.NewUnstartedServer(botapi.New(o))
	server := served.Config // in a program, an http.Server with a ReadHeaderTimeout
	server.RegisterOnShutdown(func() { close(draining) })
	served.Start()

	request, err := http.NewRequest("POST", served.URL+"/v1/chat",
		strings.NewReader(`{"bot_slug":"parrot","prompt":"Are you there?","stream":true}`))
	if err != nil {
		log.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer my-key")
	response, err := http.DefaultClient.Do(request) // returns when the stream has begun
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()

	// In a program, after <-ctx.Done(), with the context of signal.NotifyContext.
	patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(patience); err != nil {
		_ = server.Close() // cancels the contexts of the engines that are still running
	}
	text, _ := io.ReadAll(response.Body)
	fmt.Println(strings.TrimSpace(string(text)))
	// Output:
	// data: {"content":"I am "}
	//
	// data: {"content":"done."}
	//
	// data: [DONE]
}

// OnChat is called for every chat that reached the engine, however it ended.
func ExampleOptions_onChat() {
	o := newOptions()
	o.OnChat = func(_ context.Context, r botapi.ChatReport) {
		fmt.Printf("%s said %d bytes in %d fragments to user %q of %s: status %d, error %v\n",
			r.Bot.Slug, r.Bytes, r.Fragments, r.UserID, r.Account, r.Status, r.Err)
	}

	call(botapi.New(o), "POST", "/v1/chat", "my-key", `{"bot_slug":"parrot","prompt":"hello","stream":false,"user_id":42}`)
	// Unordered output:
	// parrot said 5 bytes in 1 fragments to user "42" of me: status 200, error <nil>
	// 200
	// {"content":"hello"}
}

// A route of the application's own, under the same keys.
func ExampleRoute() {
	o := newOptions()
	o.Routes = []botapi.Route{{
		Patterns: []string{"GET /v1/me"},
		Serve: func(r *http.Request) (botapi.Response, error) {
			return botapi.Reply{Body: fmt.Appendf(nil, `{"account":%q}`, botapi.AccountFrom(r.Context()))}, nil
		},
	}}
	h := botapi.New(o)

	call(h, "GET", "/v1/me", "my-key", "")
	call(h, "GET", "/v1/me", "guessed", "")
	// Output:
	// 200
	// {"account":"me"}
	// 401
	// {"detail":"Invalid API key"}
}

// OnRequest is called for every request: what was rejected is counted by account, bot, route
// and status. None of the labels is a client's choice.
func ExampleOptions_onRequest() {
	type rejection struct {
		account, bot, route string
		status              int
	}
	rejections := make(map[rejection]int) // requests come one by one here: in a service, it needs a mutex
	o := newOptions()
	o.OnRequest = func(_ context.Context, r botapi.RequestReport) {
		if r.Status >= 400 {
			rejections[rejection{r.Account, r.Bot.Slug, r.Route, r.Status}]++
		}
	}
	h := botapi.New(o)

	call(h, "POST", "/v1/chat", "my-key", hello)
	call(h, "POST", "/v1/chat", "guessed", hello)
	call(h, "POST", "/v1/chat", "my-key", `{"bot_slug":"nobody","prompt":"hello","stream":false}`)
	call(h, "DELETE", "/v1/bots", "my-key", "")
	for _, r := range slices.SortedFunc(maps.Keys(rejections), func(a, b rejection) int { return cmp.Compare(a.status, b.status) }) {
		fmt.Printf("%+v: %d\n", r, rejections[r])
	}
	// Output:
	// 200
	// {"content":"hello"}
	// 401
	// {"detail":"Invalid API key"}
	// 404
	// {"detail":"Bot not found"}
	// 405
	// {"detail":"Method Not Allowed"}
	// {account: bot: route:POST /v1/chat status:401}: 1
	// {account:me bot: route:POST /v1/chat status:404}: 1
	// {account: bot: route:GET /v1/bots status:405}: 1
}

// At its limit, a chat of a customer who pays waits for room, and every other one is
// rejected with a text of its own.
func ExampleOptions_maxWaiting() {
	o := newOptions()
	o.MaxConcurrentChats = 1
	o.MaxWaiting, o.MaxWait = 100, 20*time.Second
	o.Keys = botapi.StaticKeys(map[string]string{"my-key": "paying", "other-key": "trial"})
	o.OnLimit = func(_ context.Context, l botapi.Limit) (*botapi.Slot, error) {
		if l.Account == "paying" {
			return nil, nil // it waits
		}
		return nil, botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Come back later, or subscribe", RetryAfter: time.Minute}
	}
	began, finish := make(chan struct{}, 2), make(chan struct{}, 2)
	o.Engine = botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		began <- struct{}{}
		<-finish
		return emit("done")
	})
	h := botapi.New(o)

	var first sync.WaitGroup
	first.Go(func() { call(h, "POST", "/v1/chat", "my-key", hello) })
	<-began
	call(h, "POST", "/v1/chat", "other-key", hello)
	finish <- struct{}{}
	finish <- struct{}{}
	call(h, "POST", "/v1/chat", "my-key", hello)
	first.Wait()
	// Unordered output:
	// 503
	// {"detail":"Come back later, or subscribe"}
	// 200
	// {"content":"done"}
	// 200
	// {"content":"done"}
}

// An engine holds the slot of its chat for work that goes on without it; a later chat of the
// same account shares it.
func ExampleOptions_onLimit() {
	o := newOptions()
	o.MaxChatsPerAccount = 1
	var held *botapi.Slot
	o.Engine = botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if held == nil {
				held = botapi.RequestFrom(ctx).Slot()
				held.Hold() // until release is called, which this example does not
			}
			yield("done", nil)
		}
	})
	o.OnLimit = func(_ context.Context, l botapi.Limit) (*botapi.Slot, error) {
		fmt.Println(errors.Is(l.Err, botapi.ErrTooManyAccountChats), l.Account)
		return held, nil
	}
	h := botapi.New(o)

	call(h, "POST", "/v1/chat", "my-key", hello)
	call(h, "POST", "/v1/chat", "my-key", hello)
	// Output:
	// 200
	// {"content":"done"}
	// true me
	// 200
	// {"content":"done"}
}

// An application's own keys, with their accounts.
func ExampleKeyVerifierFunc() {
	o := newOptions()
	o.Keys = botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
		account, ok := strings.CutPrefix(key, "sk-") // a real verifier queries a database
		if !ok {
			return "", botapi.ErrInvalidKey
		}
		return account, nil
	})
	h := botapi.New(o)

	call(h, "POST", "/v1/chat", "sk-alice", hello)
	call(h, "POST", "/v1/chat", "guessed", hello)
	// Output:
	// 200
	// {"content":"hello"}
	// 401
	// {"detail":"Invalid API key"}
}

// A slow verifier is called once a minute for each key.
func ExampleCacheKeys() {
	o := newOptions()
	o.Keys = botapi.CacheKeys(botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
		fmt.Println("asking the database")
		return "alice", nil
	}), time.Minute)
	h := botapi.New(o)

	call(h, "POST", "/v1/chat", "sk-1", hello)
	call(h, "POST", "/v1/chat", "sk-1", hello)
	// Output:
	// asking the database
	// 200
	// {"content":"hello"}
	// 200
	// {"content":"hello"}
}

// privateBots shows each account its own bot: the context that a store gets has the account.
type privateBots map[string]botapi.Bot // by account

func (s privateBots) Bots(ctx context.Context) ([]botapi.Bot, error) {
	bot, ok := s[botapi.AccountFrom(ctx)]
	if !ok {
		return nil, nil
	}
	return []botapi.Bot{bot}, nil
}

func (s privateBots) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	return s.find(ctx, func(bot botapi.Bot) bool { return bot.UID == uid })
}

func (s privateBots) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	return s.find(ctx, func(bot botapi.Bot) bool { return bot.Slug == slug })
}

func (s privateBots) find(ctx context.Context, matches func(botapi.Bot) bool) (botapi.Bot, error) {
	bot, ok := s[botapi.AccountFrom(ctx)]
	if !ok || !matches(bot) {
		return botapi.Bot{}, botapi.ErrBotNotFound
	}
	return bot, nil
}

func ExampleBotStore() {
	o := newOptions()
	o.Keys = botapi.StaticKeys(map[string]string{"key-a": "alice", "key-b": "bob"})
	o.Bots = privateBots{
		"alice": {UID: "u1", Slug: "parrot", Name: "Parrot", Description: "Alice's", Model: "parrot-1"},
	}
	h := botapi.New(o)

	call(h, "GET", "/v1/bots", "key-a", "")
	call(h, "GET", "/v1/bots", "key-b", "")
	call(h, "POST", "/v1/chat", "key-b", hello)
	// Output:
	// 200
	// [{"uid":"u1","slug":"parrot","name":"Parrot","description":"Alice's","welcome_message":"","model":"parrot-1","avatar_url":null}]
	// 200
	// []
	// 404
	// {"detail":"Bot not found"}
}

// An engine returns when yield returns false, and stops waiting when its context is done.
func ExampleChatEngineFunc() {
	o := newOptions()
	o.Engine = botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, token := range []string{"Ready", ", ", "steady", ", ", "go!"} {
				select {
				case <-ctx.Done(): // the client has disconnected, or the chat has timed out
					yield("", ctx.Err())
					return
				case <-time.After(time.Millisecond): // a model at work
				}
				if !yield(token, nil) {
					return
				}
			}
		}
	})

	call(botapi.New(o), "POST", "/v1/chat", "my-key", hello)
	// Output:
	// 200
	// {"content":"Ready, steady, go!"}
}

// A StatusError chooses the response. Its cause is logged.
func ExampleStatusError() {
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(context.Context, *botapi.ChatRequest, func(string) error) error {
		return botapi.StatusError{
			Status:     http.StatusServiceUnavailable,
			Detail:     "The model is loading",
			RetryAfter: 20 * time.Second,
			Err:        errors.New("dial tcp 10.1.2.3:8000: connection refused"),
		}
	})

	call(botapi.New(o), "POST", "/v1/chat", "my-key", hello)
	// Output:
	// 503
	// {"detail":"The model is loading"}
}

// Fields of the body that the API does not define reach the engine. It reports problems with
// them in the form of the API.
func ExampleChatRequest_extra() {
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(_ context.Context, req *botapi.ChatRequest, emit func(string) error) error {
		temperature := 1.0
		if raw, ok := req.Extra["temperature"]; ok && json.Unmarshal(raw, &temperature) != nil {
			return botapi.HTTPValidationError{Detail: []botapi.ValidationError{{
				Loc: []any{"body", "temperature"}, Msg: "value is not a valid float", Type: "type_error.float",
			}}}
		}
		return emit(fmt.Sprintf("at %.1f degrees", temperature))
	})
	h := botapi.New(o)

	call(h, "POST", "/v1/chat", "my-key", `{"bot_slug":"parrot","prompt":"hello","stream":false,"temperature":0.2}`)
	call(h, "POST", "/v1/chat", "my-key", `{"bot_slug":"parrot","prompt":"hello","stream":true,"temperature":"hot"}`)
	// Output:
	// 200
	// {"content":"at 0.2 degrees"}
	// 422
	// {"detail":[{"loc":["body","temperature"],"msg":"value is not a valid float","type":"type_error.float"}]}
}

// An engine's context has the account.
func ExampleAccountFrom() {
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(ctx context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		return emit("Hello, " + botapi.AccountFrom(ctx))
	})

	call(botapi.New(o), "POST", "/v1/chat", "my-key", hello)
	// Output:
	// 200
	// {"content":"Hello, me"}
}

// An engine notes token counts for OnChat, and tells the client, as long as the response has
// not begun: a JSON response begins when the answer is complete.
func ExampleRequestFrom() {
	type tokensKey struct{}
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
		request := botapi.RequestFrom(ctx)
		if err := emit("Hello, " + request.Header().Get("X-User-Name")); err != nil {
			return err
		}
		request.SetValue(tokensKey{}, 7)
		request.SetHeader("X-Tokens", "7") // false, and without effect, in a stream
		return nil
	})
	o.OnChat = func(ctx context.Context, r botapi.ChatReport) {
		fmt.Println(r.Account, "used", botapi.RequestFrom(ctx).Value(tokensKey{}), "tokens")
	}
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(hello))
	request.Header.Set("Authorization", "Bearer my-key")
	request.Header.Set("X-User-Name", "Ada")
	botapi.New(o).ServeHTTP(recorder, request)
	fmt.Println(recorder.Header().Get("X-Tokens"), recorder.Body)
	// Output:
	// me used 7 tokens
	// 7 {"content":"Hello, Ada"}
}

// An engine passes the request id on to the services that it calls, so that one id finds
// the request in all logs.
func ExampleRequestIDFrom() {
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(ctx context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		upstream, err := http.NewRequestWithContext(ctx, "POST", "http://model.internal/generate", nil)
		if err != nil {
			return err
		}
		upstream.Header.Set("X-Request-Id", botapi.RequestIDFrom(ctx))
		return emit(upstream.Header.Get("X-Request-Id"))
	})
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(hello))
	request.Header.Set("Authorization", "Bearer my-key")
	request.Header.Set("X-Request-Id", "checkout-7")
	botapi.New(o).ServeHTTP(recorder, request)
	fmt.Println(recorder.Header().Get("X-Request-Id"), recorder.Body)
	// Output:
	// checkout-7 {"content":"checkout-7"}
}

// Keys that are known when the program starts. Only their digests are kept.
func ExampleStaticKeys() {
	keys := botapi.StaticKeys(map[string]string{"key-a": "alice", "key-b": "bob"})

	fmt.Println(keys.VerifyKey(context.Background(), "key-b"))
	_, err := keys.VerifyKey(context.Background(), "key-c")
	fmt.Println(errors.Is(err, botapi.ErrInvalidKey))
	// Output:
	// bob <nil>
	// true
}

// NewMemoryStore rejects an invalid bot, and two bots with the same uid or slug.
func ExampleNewMemoryStore() {
	parrot := botapi.Bot{UID: "u1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"}
	_, err := botapi.NewMemoryStore(parrot, botapi.Bot{UID: "u2", Slug: "parrot", Name: "Polly", Model: "parrot-1"})
	fmt.Println(err)
	// Output:
	// botapi: bot 1 (slug "parrot"): slug: bot 0 has it too
}

// The bots come from a file that the operator can reload. A file with an error changes
// nothing, and no request fails.
func ExampleMemoryStore_Replace() {
	var store botapi.MemoryStore
	reload := func(file string) error { // for example on SIGHUP
		var bots []botapi.Bot
		if err := json.Unmarshal([]byte(file), &bots); err != nil {
			return err
		}
		return store.Replace(bots...)
	}

	fmt.Println(reload(`[{"uid":"u1","slug":"parrot","name":"Parrot","model":"parrot-1"}]`))
	fmt.Println(reload(`[{"uid":"u1","slug":"parrot","name":"Parrot"}]`))
	bots, _ := store.Bots(context.Background())
	fmt.Println(len(bots), bots[0].Name)
	// Output:
	// <nil>
	// botapi: bot 0 (slug "parrot"): model: cannot be blank.
	// 1 Parrot
}

// lineRuntime is an engine for a model runtime that responds over HTTP with one token on
// each line. The context cancels that request when the client disconnects.
type lineRuntime struct{ url string }

func (l lineRuntime) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		question := strings.NewReader(req.Messages[len(req.Messages)-1].Content)
		request, err := http.NewRequestWithContext(ctx, "POST", l.url, question)
		if err != nil {
			yield("", err)
			return
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			yield("", botapi.StatusError{Status: 503, Detail: "The model is not available", Err: err})
			return
		}
		defer response.Body.Close()
		tokens := bufio.NewScanner(response.Body)
		for tokens.Scan() {
			if !yield(tokens.Text(), nil) {
				return
			}
		}
		if err := tokens.Err(); err != nil {
			yield("", err)
		}
	}
}

func ExampleChatEngine() {
	runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "Hel\nlo\n!\n")
	}))
	defer runtime.Close()
	o := newOptions()
	o.Engine = lineRuntime{runtime.URL}

	call(botapi.New(o), "POST", "/v1/chat", "my-key", strings.Replace(hello, "false", "true", 1))
	// Output:
	// 200
	// data: {"content":"Hel"}
	//
	// data: {"content":"lo"}
	//
	// data: {"content":"!"}
	//
	// data: [DONE]
}

// CallbackEngine makes an engine of a model's client that calls a function for each token.
// The error that emit returns stops the client when the chat has ended.
func ExampleCallbackEngine() {
	generate := func(ctx context.Context, prompt string, onToken func(string) error) error { // the model's client
		for _, token := range strings.SplitAfter("You said: "+prompt, " ") {
			if err := onToken(token); err != nil {
				return err
			}
		}
		return nil
	}
	o := newOptions()
	o.Engine = botapi.CallbackEngine(func(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
		return generate(ctx, req.Messages[len(req.Messages)-1].Content, emit)
	})

	call(botapi.New(o), "POST", "/v1/chat", "my-key", hello)
	// Output:
	// 200
	// {"content":"You said: hello"}
}

// A web backend has one API key for all the people who are logged in. The verifier makes an
// account of each person, whom the backend knows from its own login, so that limits, reports
// and lists are those of the person. Not trusted: the user_id of the body, and any header
// that a client can send itself.
func ExampleKeyVerifier() {
	type personKey struct{}
	sessions := map[string]string{"session-1": "ann", "session-2": "ben"} // the backend's logins
	login := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			cookie, err := r.Cookie("session")
			if err != nil || sessions[cookie.Value] == "" {
				http.Error(w, `{"detail":"Log in first"}`, http.StatusUnauthorized)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), personKey{}, sessions[cookie.Value]))
			r.Header.Set("Authorization", "Bearer the-backends-key") // browsers never see it
			next.ServeHTTP(w, r)
		})
	}
	// The keys may be cached, but not the accounts: a cache knows the key alone.
	keys := botapi.CacheKeys(botapi.StaticKeys(map[string]string{"the-backends-key": "shop"}), time.Minute)
	o := newOptions()
	o.MaxChatsPerAccount = 1
	o.Keys = botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		account, err := keys.VerifyKey(ctx, key)
		if person, ok := ctx.Value(personKey{}).(string); ok && err == nil {
			account += "/" + person
		}
		return account, err
	})
	answering := make(chan struct{}, 2)
	o.Engine = botapi.CallbackEngine(func(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
		if strings.Contains(req.Messages[0].Content, "story") {
			answering <- struct{}{}
			<-ctx.Done() // a long answer: its client disconnects in the end
			return ctx.Err()
		}
		return emit("Hello, " + botapi.AccountFrom(ctx))
	})
	o.OnChat = func(_ context.Context, r botapi.ChatReport) {
		fmt.Printf("report: %s, who claims to be %s\n", r.Account, r.UserID)
	}
	h := login(botapi.New(o))
	ask := func(ctx context.Context, session, prompt string) {
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat", strings.NewReader(
			`{"bot_slug":"parrot","stream":false,"user_id":"ann","prompt":"`+prompt+`"}`))
		r.AddCookie(&http.Cookie{Name: "session", Value: session})
		w := httptest.NewRecorder()
		defer func() { _ = recover() }() // http.ErrAbortHandler, if the client has disconnected
		h.ServeHTTP(w, r)
		fmt.Println(sessions[session], w.Code, strings.TrimSpace(w.Body.String()))
	}

	ctx, disconnect := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ask(ctx, "session-1", "Tell me a story")
	}()
	<-answering
	ask(context.Background(), "session-1", "Hello?") // Ann has a chat in progress
	ask(context.Background(), "session-2", "Hello?") // Ben has none, whatever user_id he claims
	disconnect()
	<-ended
	// Output:
	// ann 429 {"detail":"Too many chats in progress for this key"}
	// report: shop/ben, who claims to be ann
	// ben 200 {"content":"Hello, shop/ben"}
	// report: shop/ann, who claims to be ann
}

// storing wraps an engine: it saves a conversation when its answer is complete, before the
// client learns that it is.
func storing(engine botapi.ChatEngine, save func(context.Context, *botapi.ChatRequest, string) error) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			var answer strings.Builder
			for text, err := range engine.Chat(ctx, req) {
				answer.WriteString(text)
				if !yield(text, err) || err != nil {
					return
				}
			}
			if err := save(ctx, req, answer.String()); err != nil {
				yield("", fmt.Errorf("save the conversation: %w", err))
			}
		}
	})
}

// The handler stores no conversations. An engine that wraps another one can: it has the
// messages, and sees the answer. The conversation's id is a field of the application's own.
func ExampleChatEngine_store() {
	type conversation struct{ account, id string }
	stored := map[conversation][]botapi.ChatMessage{} // in a program, a database
	o := newOptions()
	o.Engine = storing(o.Engine, func(ctx context.Context, req *botapi.ChatRequest, answer string) error {
		var id string
		if err := json.Unmarshal(req.Extra["conversation_id"], &id); err != nil {
			return nil // the client wants none stored
		}
		key := conversation{botapi.AccountFrom(ctx), id} // an id alone could be another account's
		stored[key] = append(slices.Clone(req.Messages), botapi.ChatMessage{Role: botapi.RoleAssistant, Content: answer})
		return nil
	})

	call(botapi.New(o), "POST", "/v1/chat", "my-key", `{"bot_slug":"parrot","prompt":"hello","stream":false,"conversation_id":"c-1"}`)
	fmt.Println(stored[conversation{"me", "c-1"}])
	// Output:
	// 200
	// {"content":"hello"}
	// [{user hello} {assistant hello}]
}
