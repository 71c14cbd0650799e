package botapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
	"example.com/botapi/internal/panics"
)

type routeKey struct{}

// chatContext is a Chat.Context with a value, that has been cancelled.
func chatContext(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, routeKey{}, "the route's"))
	cancel(errors.New("the route has returned"))
	return ctx
}

// A seeingFormat notes the context of End.
type seeingFormat struct {
	restating
	see func(who string, ctx context.Context)
}

func (f *seeingFormat) End(ctx context.Context) iter.Seq[[]byte] {
	f.see("End", ctx)
	return f.restating.End(ctx)
}

// Whatever comes after the route sees the values of Chat.Context, and those of the request,
// from which it need not be derived. That it has been cancelled does not count.
func TestChatContext(t *testing.T) {
	for name, c := range map[string]struct {
		engine engineEnd
		stream []string
		json   []string
	}{
		"complete": {sleepsFor(0), []string{"store", "engine", "End", "OnChat", "OnRequest"}, []string{"store", "engine", "JSON", "OnChat", "OnRequest"}},
		"failed":   {failsWith(errBroken), []string{"store", "engine", "Errors", "OnChat", "OnRequest"}, []string{"store", "engine", "Errors", "OnChat", "OnRequest"}},
	} {
		for _, own := range []bool{false, true} {
			inEachWay(t, fmt.Sprint(name, ", own ", own), func(t *testing.T, w way) {
				if !w.route {
					return
				}
				is := is.New(t)
				var seen []string
				see := func(who string, ctx context.Context) {
					if ctx.Value(routeKey{}) != "the route's" || ctx.Value(applicationKey{}) != "the application's" {
						who += " without a value"
					}
					if AccountFrom(ctx) != testAccount || RequestIDFrom(ctx) == "" || ctx.Err() != nil {
						who += " without the request"
					}
					seen = append(seen, who)
				}
				w.middleware = withApplicationValue
				playChat(t, w, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					see("engine", ctx)
					c.engine(ctx, yield)
				}), func(o *Options) {
					o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) { see("store", ctx); return echoBot, nil }}
					o.OnChat = func(ctx context.Context, _ ChatReport) { see("OnChat", ctx) }
					o.OnRequest = func(ctx context.Context, _ RequestReport) { see("OnRequest", ctx) }
					route := chatRoute(func(r *http.Request, c *Chat) {
						parent := r.Context()
						if own {
							parent = context.Background()
						}
						c.Context, c.Stream = chatContext(parent), &seeingFormat{see: see}
						c.JSON = func(ctx context.Context) ([]byte, []byte, error) { see("JSON", ctx); return nil, nil, nil }
					})
					route.Errors = func(ctx context.Context, _ Failure) Reply { see("Errors", ctx); return Reply{} }
					o.Routes = []Route{route}
				})
				want := c.json
				if w.stream {
					want = c.stream
				}
				is.Equal(seen, want)
			})
		}
	}
}

// If the application cancels a request, that is the cause, although the route has cancelled
// a context of its own before.
func TestChatContextHasTheCauseOfTheRequest(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	var cause error
	o := testOptions(t, t.Output())
	o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) { c.Context = chatContext(ctx) })}
	o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) {
		cancel(errOverloaded)
		<-ctx.Done()
		cause = context.Cause(ctx)
		return Bot{}, cause
	}}
	got := record(New(o), newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", false))).WithContext(ctx))
	is.Equal(got.Code, 529)
	is.Equal(cause, errOverloaded)
}

// Each request is reported once, however it ends: with the route, account and bot as far as
// they are known, the original error, the bytes of a response that is no answer, and the time
// until all was sent, however long OnChat takes. OnChat is called only for a chat that
// reached its engine.
func TestOnRequest(t *testing.T) {
	expired, closed := errors.New("the key has expired"), StatusError{Status: 410, Detail: "Gone", Err: errBroken}
	chat := func(prompt string) string { return chatBodyJSON(prompt, false) }
	stream := func(prompt string) string { return chatBodyJSON(prompt, true) }
	const api = "POST /v1/chat"
	for name, c := range map[string]struct {
		request, key, body string
		route              string // of the report
		account            string
		bot                bool
		status             int
		err                error // nil: there is none
		chat               bool
	}{
		"an unknown path":            {"GET /v1", testKey, "", "", "", false, 404, errNotFound, false},
		"a wrong method":             {"DELETE /v1/bots", testKey, "", "GET /v1/bots", "", false, 405, errMethodNotAllowed, false},
		"a wrong method of a route":  {"PUT /models/one", testKey, "", "GET /models/{model}", "", false, 405, errMethodNotAllowed, false},
		"no key":                     {"GET /bots", "", "", "GET /bots", "", false, 401, errNotAuthenticated, false},
		"a wrong key":                {"GET /bots", "wrong", "", "GET /bots", "", false, 401, ErrInvalidKey, false},
		"a key of a known account":   {api, "expired", "", api, "former", false, 401, expired, false},
		"a verifier that fails":      {api, "broken", "", api, "", false, 500, errBroken, false},
		"a list":                     {"GET /v1/bots", testKey, "", "GET /v1/bots", "acme", false, 200, nil, false},
		"a list for HEAD":            {"HEAD /v1/bots", testKey, "", "GET /v1/bots", "acme", false, 200, nil, false},
		"a reply":                    {"GET /models/one", testKey, "", "GET /models/{model}", "acme", false, 404, nil, false},
		"a reply for HEAD":           {"HEAD /models/one", testKey, "", "GET /models/{model}", "acme", false, 404, nil, false},
		"an error of a route":        {"GET /models/gone", testKey, "", "GET /models/{model}", "acme", false, 410, closed, false},
		"an error in another form":   {"DELETE /models/gone", testKey, "", "DELETE /models/{model}", "acme", false, 204, closed, false},
		"a panic of a route":         {"GET /models/panic", testKey, "", "GET /models/{model}", "acme", false, 500, new(panics.Error), false},
		"an abort of a route":        {"GET /models/abort", testKey, "", "GET /models/{model}", "acme", false, 0, http.ErrAbortHandler, false},
		"an invalid body":            {api, testKey, "{}", api, "acme", false, 422, new(HTTPValidationError), false},
		"a body that is too long":    {api, testKey, strings.Repeat(" ", 1001), api, "acme", false, 413, errBodyTooLarge, false},
		"no such bot":                {api, testKey, `{"bot_slug":"nobody","prompt":"hi","stream":true}`, api, "acme", false, 404, ErrBotNotFound, false},
		"a limit":                    {api, "full", chat("hi"), api, "full", true, 429, ErrTooManyAccountChats, false},
		"a complete answer":          {"POST /chat", testKey, chat("hi"), "POST /chat", "acme", true, 200, nil, true},
		"a complete stream":          {api, testKey, stream("hi"), api, "acme", true, 200, nil, true},
		"a complete chat of a route": {"POST " + routePath, testKey, stream("hi"), "POST " + routePath, "acme", true, 200, nil, true},
		"an engine that fails":       {api, testKey, stream("fail"), api, "acme", true, 500, errBroken, true},
		"a stream that fails":        {api, testKey, stream("late"), api, "acme", true, 200, errBroken, true},
		"an engine that panics":      {api, testKey, chat("panic"), api, "acme", true, 500, new(panics.Error), true},
		"an engine that aborts":      {api, testKey, chat("abort"), api, "acme", true, 0, http.ErrAbortHandler, true},
		"an engine that times out":   {api, testKey, stream("hang"), api, "acme", true, 504, ErrChatTimeout, true},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", HTTP/2 ", http2), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					defer time.Sleep(2 * time.Hour) // for the engine that hangs
					is := is.New(t)
					var reports []RequestReport
					var chats []ChatReport
					var endedAt []time.Duration // when OnChat and OnRequest were called
					began := time.Now()
					o := testOptions(t, io.Discard)
					o.MaxBodyBytes, o.MaxChatsPerAccount, o.ChatTimeout = 1000, 1, 10*time.Second
					o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
						switch key {
						case "expired":
							return "former", fmt.Errorf("row 7: %w", errors.Join(ErrInvalidKey, expired))
						case "broken":
							return "", errBroken
						case "full":
							return "full", nil
						}
						return StaticKeys(map[string]string{testKey: testAccount}).VerifyKey(t.Context(), key)
					})
					o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
						time.Sleep(time.Second)
						switch lastContent(req) {
						case "fail":
							yield("", errBroken)
						case "late":
							_ = yield("a", nil) && yield("", errBroken)
						case "panic":
							panic("a bug")
						case "abort":
							yield("", http.ErrAbortHandler)
						case "hang":
							time.Sleep(time.Hour)
						default:
							yield("ok", nil)
						}
					})
					serve := func(r *http.Request) (Response, error) {
						switch r.PathValue("model") {
						case "gone":
							return nil, closed
						case "panic":
							panic("a bug")
						case "abort":
							return nil, http.ErrAbortHandler
						}
						return Reply{Status: 404, Body: make([]byte, 3*connection.MaxChunk)}, nil
					}
					o.Routes = []Route{
						chatRoute(nil), {Patterns: []string{"GET /models/{model}"}, Serve: serve},
						{Patterns: []string{"DELETE /models/{model}"}, Serve: serve, Errors: func(context.Context, Failure) Reply { return Reply{Status: 204} }},
					}
					o.OnChat = func(_ context.Context, r ChatReport) {
						chats, endedAt = append(chats, r), append(endedAt, time.Since(began))
						time.Sleep(time.Minute)
					}
					o.OnRequest = func(_ context.Context, r RequestReport) {
						reports, endedAt = append(reports, r), append(endedAt, time.Since(began))
					}
					h, returned := New(o), make(chan struct{})
					if c.key == "full" {
						slots := h.(*handler).slots
						_, err := slots.take("full")
						is.NoErr(err)
					}
					server := way{http2: http2}.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						defer close(returned)
						h.ServeHTTP(w, r)
					}))
					method, path, _ := strings.Cut(c.request, " ")
					authorization := "Bearer " + c.key
					if c.key == "" {
						authorization = "-"
					}
					got := doAt(t, server.client(), "http://memory", method, path, c.body, "Authorization", authorization, "X-Request-Id", "r-1")
					<-returned
					is.Equal(got.status, c.status)
					is.Equal(len(reports), 1)
					r := reports[0]
					is.Equal(r.RequestID, "r-1")
					is.Equal(r.Method, method)
					is.Equal(r.Route, c.route)
					is.Equal(r.Account, c.account)
					is.Equal(r.Bot == echoBot, c.bot)
					is.Equal(r.Bot == Bot{}, !c.bot)
					is.Equal(r.Status, c.status)
					isOriginal(t, r.Err, c.err)
					is.Equal(r.Chat != nil, c.chat)
					is.Equal(len(chats) == 1, c.chat)
					if c.chat {
						is.Equal(*r.Chat, chats[0])
						is.Equal(r.Chat.Err, r.Err)
						is.Equal(endedAt[1], endedAt[0]+time.Minute) // after OnChat, without waiting for the engine
					}
					if c.chat && c.status == 200 {
						got.body = "" // ChatReport.Bytes counts it
					}
					is.Equal(r.Bytes, int64(len(got.body)))
					is.Equal(r.Duration, endedAt[0])
				})
			})
		}
	}
}

// isOriginal reports an error that is not what was returned: by errors.Is, or by its type if
// the original is a panic or a list.
func isOriginal(t *testing.T, err, original error) {
	t.Helper()
	is := is.New(t)
	is.Helper()
	switch original.(type) {
	case nil:
		is.NoErr(err)
	case *panics.Error:
		is.True(errors.As(err, new(*panics.Error)))
	case *HTTPValidationError:
		is.True(errors.As(err, new(HTTPValidationError)))
	default:
		is.True(errors.Is(err, original))
	}
}

// Whatever runs within a request may set headers of its response, if that is a 2xx.
func TestSetHeader(t *testing.T) {
	set := func(ctx context.Context, who string) { RequestFrom(ctx).SetHeader("X-"+who, "set") }
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		headers            string // those that are sent
	}{
		"a JSON response":           {"POST", "/v1/chat", chatBodyJSON("hi", false), 200, "Engine Format Late Store Verifier"}, // which begins when the answer is complete,
		"a stream":                  {"POST", "/v1/chat", chatBodyJSON("hi", true), 200, "Engine Store Verifier"},
		"a JSON response, route":    {"POST", routePath, chatBodyJSON("hi", false), 200, "Engine Format Late Serve Store Verifier"},
		"a stream of a route":       {"POST", routePath, chatBodyJSON("hi", true), 200, "Engine Serve Store Verifier"}, // its end is too late
		"an empty stream, route":    {"POST", routePath, chatBodyJSON("nothing", true), 200, "Engine Format Serve Store Verifier"},
		"a list":                    {"GET", "/v1/bots", "", 200, "Store Verifier"},
		"a reply":                   {"GET", "/reply?201", "", 201, "Serve Verifier"},
		"a reply for HEAD":          {"HEAD", "/reply?200", "", 200, "Serve Verifier"},
		"a reply that is no 2xx":    {"GET", "/reply?404", "", 404, ""},
		"a reply that redirects":    {"GET", "/reply?304", "", 304, ""},
		"an error of the engine":    {"POST", "/v1/chat", chatBodyJSON("fail", true), 500, ""},
		"an error in a form of 2xx": {"POST", routePath, chatBodyJSON("fail", true), 202, "Engine Errors Serve Store Verifier"},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", HTTP/2 ", http2), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					late := make(map[string]bool)
					o := testOptions(t, io.Discard)
					o.Keys = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { set(ctx, "Verifier"); return testAccount, nil })
					o.Bots = &fakeStore{
						bots:   func(ctx context.Context) ([]Bot, error) { set(ctx, "Store"); return nil, nil },
						bySlug: func(ctx context.Context, _ string) (Bot, error) { set(ctx, "Store"); return echoBot, nil },
					}
					o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
						set(ctx, "Engine")
						switch lastContent(req) {
						case "fail":
							yield("", errBroken)
						case "nothing":
						default:
							yield("a", nil)
							late["engine"] = !RequestFrom(ctx).SetHeader("X-Late", "set")
						}
					})
					route := chatRoute(func(r *http.Request, c *Chat) {
						set(r.Context(), "Serve")
						c.Stream = &seeingFormat{see: func(_ string, ctx context.Context) { set(ctx, "Format") }}
						c.JSON = func(ctx context.Context) ([]byte, []byte, error) { set(ctx, "Format"); return nil, nil, nil }
					})
					route.Errors = func(ctx context.Context, _ Failure) Reply { set(ctx, "Errors"); return Reply{Status: 202} }
					o.Routes = []Route{route, {Patterns: []string{"GET /reply"}, Serve: func(r *http.Request) (Response, error) {
						set(r.Context(), "Serve")
						status, err := strconv.Atoi(r.URL.RawQuery)
						return Reply{Status: status}, err
					}}}
					o.OnChat = func(ctx context.Context, r ChatReport) {
						late["OnChat"] = !RequestFrom(ctx).SetHeader("X-Late", "set")
					}
					o.OnRequest = func(ctx context.Context, r RequestReport) {
						late["OnRequest"] = !RequestFrom(ctx).SetHeader("X-Late", "set")
					}
					returned := make(chan struct{})
					h := New(o)
					got := doAt(t, way{http2: http2}.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						defer close(returned)
						h.ServeHTTP(w, r)
					})).client(), "http://memory", c.method, c.path, c.body)
					<-returned
					is.Equal(got.status, c.status)
					var headers []string
					for _, who := range []string{"Engine", "Errors", "Format", "Late", "Serve", "Store", "Verifier"} {
						if got.header.Get("X-"+who) == "set" {
							headers = append(headers, who)
						}
					}
					if c.path == "/v1/chat" {
						c.headers = strings.Replace(c.headers, "Format ", "", 1)
					}
					is.Equal(strings.Join(headers, " "), c.headers)
					is.True(late["OnRequest"])
					if c.status == 200 && c.headers != "" {
						is.Equal(late["OnChat"], c.method == "POST")
						is.Equal(late["engine"], strings.Contains(c.body, `"stream":true`) && strings.Contains(c.body, `"hi"`))
					}
				})
			})
		}
	}
}

// The last value counts, and an empty one deletes a header, also one of middleware's. Headers of
// the handler's own, and what cannot be sent as a header, are not set.
func TestSetHeaderValues(t *testing.T) {
	is := is.New(t)
	results := make(map[string]bool)
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		r := RequestFrom(ctx)
		for _, line := range []string{
			"X-Last: a", "X-Last: ", "X-Last: c", "X-None: a", "X-None: ", "x-middleware: ", "Vary: Accept",
			"X-Tokens: 7", "x-lower: 1", "ETag: \"1\"", "Set-Cookie: a=b", "Cache-Control: public", "X-Accel-Buffering: yes", "X-Empty: ",
			"Content-Type: text/html", "content-length: 3", "Content-Encoding: gzip", "Content-Security-Policy: x", "X-Request-Id: mine", "Date: now",
			"Connection: close", "Keep-Alive: 5", "Proxy-Connection: close", "TE: trailers", "Trailer: X", "transfer-encoding: chunked", "Upgrade: h2c",
			": no name", "X A: b", "X-\u00e9: b", "X:Y: b", "X-A\x00: b", "X-Break: a\nb", "X-Break: a\r\nX-B: c", "X-Null: a\x00b", "X-Delete: a\x7fb",
		} {
			name, value, _ := strings.Cut(line, ": ")
			results[line] = r.SetHeader(name, value)
		}
		yield("ok", nil)
	})
	h := New(o)
	got := do(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Middleware"] = []string{"one", "two"}
		w.Header()["Vary"] = []string{"Origin"}
		h.ServeHTTP(w, r)
	}), "POST", "/v1/chat", chatBodyJSON("hi", false), "X-Request-Id", "r-1")
	var accepted []string
	for line, ok := range results {
		if ok {
			accepted = append(accepted, line)
		}
	}
	slices.Sort(accepted)
	is.Equal(accepted, []string{
		"ETag: \"1\"", "Set-Cookie: a=b", "Vary: Accept", "X-Empty: ", "X-Last: ", "X-Last: a", "X-Last: c", "X-None: ", "X-None: a", "X-Tokens: 7",
		"x-lower: 1", "x-middleware: ",
	})
	delete(got.header, "Date")
	is.Equal(got.header, http.Header{
		"X-Tokens": {"7"}, "X-Lower": {"1"}, "Etag": {`"1"`}, "Set-Cookie": {"a=b"}, "X-Last": {"c"}, "Vary": {"Accept"},
		"Content-Type": {"application/json"}, "Content-Length": {"16"}, "X-Request-Id": {"r-1"},
	})
}

// Headers and values may be set at any time, by any goroutine, also while the response
// begins and after it has ended.
func TestRequestConcurrently(t *testing.T) {
	is := is.New(t)
	var setting sync.WaitGroup
	stop := make(chan struct{})
	accepted := make([]atomic.Int64, 4)
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		r := RequestFrom(ctx)
		for i := range accepted {
			setting.Go(func() {
				for n := 1; ; n++ {
					if !r.SetHeader(fmt.Sprint("X-", i), fmt.Sprint(n)) {
						break
					}
					accepted[i].Store(int64(n))
					r.SetValue(i, n)
					_ = r.Value(i)
					_ = r.Header().Get("Authorization")
					_, _ = r.Slot().Hold()
				}
				<-stop
				r.SetHeader("X-Late", "set")
				r.SetValue(i, "late")
			})
		}
		for i := range accepted {
			for accepted[i].Load() == 0 {
				runtime.Gosched()
			}
		}
		yield("ok", nil)
	})
	got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
	close(stop)
	setting.Wait()
	for i := range accepted {
		is.Equal(got.header.Get(fmt.Sprint("X-", i)), fmt.Sprint(accepted[i].Load()))
	}
	is.Equal(got.header.Get("X-Late"), "")
}

// What an engine notes is read by whatever comes later in the same request, and in no other.
func TestRequestValues(t *testing.T) {
	type key struct{}
	for _, stream := range []bool{false, true} {
		is := is.New(t)
		var seen []any
		see := func(ctx context.Context) { seen = append(seen, RequestFrom(ctx).Value(key{})) }
		o := testOptions(t, t.Output())
		o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			see(ctx)
			yield("ok", nil)
			RequestFrom(ctx).SetValue(key{}, "first")
			RequestFrom(ctx).SetValue(key{}, 7)
		})
		o.Routes = []Route{chatRoute(func(_ *http.Request, c *Chat) {
			c.Stream = &seeingFormat{see: func(_ string, ctx context.Context) { see(ctx) }}
			c.JSON = func(ctx context.Context) ([]byte, []byte, error) { see(ctx); return nil, nil, nil }
		})}
		o.OnChat = func(ctx context.Context, _ ChatReport) { see(ctx) }
		o.OnRequest = func(ctx context.Context, _ RequestReport) { see(ctx) }
		h := New(o)
		for range 2 {
			seen = nil
			is.Equal(record(h, newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", stream)))).Code, 200)
			is.Equal(seen, []any{nil, 7, 7, 7})
		}
	}
}

// A request's own headers, method, path and the timeouts of its chat are those of the request.
func TestRequestFrom(t *testing.T) {
	is := is.New(t)
	var seen []string
	see := func(ctx context.Context) {
		r := RequestFrom(ctx)
		chat, stall := r.Timeouts()
		seen = append(seen, fmt.Sprint(r.Method(), " ", r.Path(), " ", r.Header().Get("Accept"), " ", chat, " ", stall, " ", r.Slot() != nil))
	}
	o := testOptions(t, t.Output())
	keys := o.Keys
	o.Keys = KeyVerifierFunc(func(ctx context.Context, key string) (string, error) { see(ctx); return keys.VerifyKey(ctx, key) })
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) { see(ctx) })
	o.OnRequest = func(ctx context.Context, _ RequestReport) { see(ctx) }
	for _, c := range []struct {
		chat, stall time.Duration
		want        string
	}{
		{0, 0, "10m0s 0s"}, {time.Minute, time.Second, "1m0s 1s"}, {-1, -1, "0s 0s"},
	} {
		seen = nil
		o.ChatTimeout, o.StallTimeout = c.chat, c.stall
		record(New(o), newRequest("POST", "/v1/ch%61t", strings.NewReader(chatBodyJSON("hi", false)), "Accept", "any"))
		is.Equal(seen, []string{"POST /v1/chat any " + c.want + " false", "POST /v1/chat any " + c.want + " true", "POST /v1/chat any " + c.want + " true"})
	}
}
