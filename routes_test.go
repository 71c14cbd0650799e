package botapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestRoutes(t *testing.T) {
	h := New(testOptions(t, t.Output()))
	for _, c := range []struct {
		want  string
		allow string
		lines []string
	}{
		{"200 " + listedBots, "", []string{
			"GET /v1/bots", "GET /bots", "GET /v1/%62ots", "GET /v1%2Fbots", "GET http://elsewhere.example/v1/bots",
			"GET /v1/bots?page=2&x=%zz", "GET /v1/bots?a=/../b",
		}},
		{`200 {"content":"hi"}`, "", []string{"POST /v1/chat", "POST /chat", "POST /v1/ch%61t"}},
		{"200 ", "", []string{"HEAD /v1/bots", "HEAD /bots"}},
		{`404 {"detail":"Not Found"}`, "", []string{
			"GET /", "GET /v1", "GET /v1/", "GET /v2/bots", "GET /V1/bots", "GET /v1/Bots", "GET /v1/bots/", "POST /v1/chat/",
			"POST /chat/completions", "GET //v1/bots", "GET /v1//bots", "POST //chat", "GET /v1/./bots", "GET /v1/../v1/bots",
			"GET /v1/%2e%2e/bots", "GET /%2e%2e/v1/bots", "GET /x/../bots", "GET /v1/bots%00", "GET /v1/bots%20", "GET /v1/bots;v=1",
			"GET /v1/%2562ots", "GET /v1/bots#a", "GET http://elsewhere.example", "OPTIONS /v1/none", "CONNECT bots.example:443",
		}},
		{"404 ", "", []string{"HEAD /v1/none"}},
		{`405 {"detail":"Method Not Allowed"}`, "GET, HEAD", []string{
			"POST /v1/bots", "PUT /bots", "PATCH /v1/bots", "DELETE /v1/bots", "OPTIONS /v1/bots", "TRACE /v1/bots",
			"CONNECT /v1/bots", "get /v1/bots",
		}},
		{`405 {"detail":"Method Not Allowed"}`, "POST", []string{
			"GET /v1/chat", "GET /chat", "PUT /v1/chat", "PATCH /v1/chat", "OPTIONS /v1/chat", "CONNECT /chat", "BREW /v1/chat", "post /v1/chat",
		}},
		{"405 ", "POST", []string{"HEAD /v1/chat"}},
	} {
		for _, line := range c.lines {
			t.Run(line, func(t *testing.T) {
				is := is.New(t)
				r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(lines(line+" HTTP/1.1", host, key, "Content-Length: 48") + echoBody)))
				is.NoErr(err)
				got := record(h, r)
				is.Equal(fmt.Sprint(got.Code, " ", got.Body), c.want)
				is.Equal(got.Header().Get("Allow"), c.allow)
				is.Equal(got.Header().Get("Location"), "")
				is.Equal(got.Header().Get("Content-Type"), "application/json")
			})
		}
	}
}

func TestRoutesWhereverMounted(t *testing.T) {
	h := New(testOptions(t, t.Output()))
	subtree, patterns := http.NewServeMux(), http.NewServeMux()
	subtree.Handle("/v1/", h)
	patterns.Handle("GET /v1/bots", h)
	patterns.Handle("POST /v1/chat", h)
	for _, c := range []struct {
		name, prefix string
		handler      http.Handler
	}{
		{"as a subtree of a mux", "/v1", subtree},
		{"as two patterns of a mux", "/v1", patterns},
		{"behind a prefix", "/bots-api/v1", http.StripPrefix("/bots-api", h)},
		{"behind a prefix that takes the version", "/api", http.StripPrefix("/api", h)},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(do(t, c.handler, "GET", c.prefix+"/bots", "").body, listedBots)
			is.Equal(do(t, c.handler, "POST", c.prefix+"/chat", chatBodyJSON("hi", false)).body, `{"content":"hi"}`)
			is.Equal(do(t, c.handler, "POST", c.prefix+"/chat", chatBodyJSON("hi", true)).body, data("hi")+terminator)
			is.Equal(do(t, c.handler, "POST", c.prefix+"/chat", "{}", "Authorization", "-").status, 401)
		})
	}
}

// Each request would fail all later checks, too. The verifier is called once for each
// request, and not for an unknown path or a wrong method.
func TestChecksInOrder(t *testing.T) {
	const good, unknownBot, invalid = `{"bot_slug":"echo","prompt":"p","stream":false}`, `{"bot_slug":"nobody","prompt":"p","stream":false}`, `{"bot_slug":"nobody"}`
	tooLarge := invalid + strings.Repeat(" ", 200)
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		calls := countKeys(&o)
		o.MaxBodyBytes, o.MaxConcurrentChats, o.Engine = 100, 1, sleepsFor(time.Hour).engine()
		h := New(o)
		go postChat(h, good)
		defer time.Sleep(2 * time.Hour) // for its engine
		synctest.Wait()                 // it has the slot
		for _, c := range []struct {
			method, path, key, body string
			status, calls           int
		}{
			{"PUT", "/v1/none", "wrong", tooLarge, 404, 0},
			{"PUT", "/v1/chat", "wrong", tooLarge, 405, 0},
			{"POST", "/v1/chat", "wrong", tooLarge, 401, 1},
			{"POST", "/v1/chat", testKey, tooLarge, 413, 1},
			{"POST", "/v1/chat", testKey, invalid, 422, 1},
			{"POST", "/v1/chat", testKey, unknownBot, 404, 1},
			{"POST", "/v1/chat", testKey, good, 503, 1},
			{"GET", "/v1/bots", testKey, "", 200, 1},
		} {
			*calls = 0
			got := record(h, newRequest(c.method, c.path, strings.NewReader(c.body), "Authorization", "Bearer "+c.key))
			is.Equal(got.Code, c.status)
			is.Equal(*calls, c.calls)
		}
	})
}

// An addingWriter adds a value to every header when the headers are sent.
type addingWriter struct{ *httptest.ResponseRecorder }

func (w addingWriter) WriteHeader(status int) {
	for name := range w.Header() {
		w.Header().Add(name, "added")
	}
	w.ResponseRecorder.WriteHeader(status)
}

// Middleware may set headers before it calls the handler. The handler replaces those that it
// sets itself, and keeps the others. Adding to one header changes no other.
func TestHeadersOfMiddleware(t *testing.T) {
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
		yield("ok", map[string]error{"busy": StatusError{Status: 503, RetryAfter: 7 * time.Second}}[lastContent(req)])
	})
	h := New(o)
	for _, c := range []struct{ method, path, body, key string }{
		{"POST", "/v1/chat", chatBodyJSON("hi", false), testKey},
		{"POST", "/v1/chat", chatBodyJSON("hi", true), testKey},
		{"POST", "/v1/chat", chatBodyJSON("busy", false), testKey}, // Retry-After
		{"POST", "/v1/chat", "{}", testKey},
		{"GET", "/v1/bots", "", testKey}, // ETag
		{"HEAD", "/v1/bots", "", testKey},
		{"GET", "/v1/bots", "", "wrong"}, // WWW-Authenticate
		{"GET", "/v1/chat", "", testKey}, // Allow
		{"GET", "/", "", testKey},
	} {
		is := is.New(t)
		request := func() *http.Request {
			return newRequest(c.method, c.path, strings.NewReader(c.body), "X-Request-Id", "mine", "Authorization", "Bearer "+c.key)
		}
		want := record(h, request()).Header()
		w := addingWriter{httptest.NewRecorder()}
		for name := range want {
			w.Header().Set(name, "theirs")
			want.Add(name, "added")
		}
		w.Header().Set("Access-Control-Allow-Origin", "*")
		want["Access-Control-Allow-Origin"] = []string{"*", "added"}
		h.ServeHTTP(w, request())
		is.Equal(w.Header(), want)
	}
}

// The headers of a Reply may be shared by all requests, with room behind their values: what
// middleware adds to a response does not get into it.
func TestReplyHeadersAreNotChanged(t *testing.T) {
	is := is.New(t)
	values := append(make([]string, 0, 4), "one")
	reply := Reply{Header: http.Header{"X-Model": values}, Body: []byte("{}")}
	o := testOptions(t, t.Output())
	o.Routes = []Route{{
		Patterns: []string{"GET " + routePath, "GET /broken"},
		Serve: func(r *http.Request) (Response, error) {
			if r.URL.Path == routePath {
				return reply, nil
			}
			return nil, errBroken
		},
		Errors: func(context.Context, Failure) Reply { return reply },
	}}
	h := New(o)
	for _, path := range []string{routePath, "/broken"} {
		w := addingWriter{httptest.NewRecorder()}
		h.ServeHTTP(w, newRequest("GET", path, nil))
		is.Equal(w.Header()["X-Model"], []string{"one", "added"})
		is.Equal(values[:2], []string{"one", ""})
	}
}

// The names of a Reply's headers may be written in any case. They change nothing of what is
// the handler's.
func TestReplyHeaderNames(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Routes = []Route{routeTo(func(*http.Request) (Response, error) {
		return Reply{Header: http.Header{
			"content-type": {"text/plain"}, "x-a": {"b"},
			"content-length": {"9"}, "transfer-encoding": {"gzip"}, "x-request-id": {"another"},
		}, Body: []byte("hi")}, nil
	})}
	got := do(t, New(o), "GET", routePath, "", "X-Request-Id", "r-1")
	is.Equal(got.body, "hi")
	delete(got.header, "Date")
	is.Equal(got.header, http.Header{"Content-Type": {"text/plain"}, "X-A": {"b"}, "Content-Length": {"2"}, "X-Request-Id": {"r-1"}})
}

// routesOfTests are served beside the API. Each replies with its name and the values of its
// path, as text; the chat's name is its bot's.
func routesOfTests() []Route {
	serves := func(name string) func(*http.Request) (Response, error) {
		return func(r *http.Request) (Response, error) {
			text := name + " " + r.PathValue("model") + r.PathValue("path") + " of " + AccountFrom(r.Context())
			return Reply{Header: http.Header{"Content-Type": {"text/plain"}}, Body: []byte(text)}, nil
		}
	}
	formed := func(name string) func(context.Context, Failure) Reply {
		return func(_ context.Context, f Failure) Reply {
			return Reply{Header: http.Header{"Content-Type": {"text/plain"}}, Body: fmt.Append(nil, name, " ", f.Status, " ", f.Detail)}
		}
	}
	return []Route{
		{Patterns: []string{"GET /v1/models/{model}", "GET /models/{model}"}, Serve: serves("model"), Errors: formed("one")},
		{Patterns: []string{"DELETE /v1/models/{model}"}, Serve: serves("deleted"), Errors: formed("two")},
		{Patterns: []string{"PUT /v1/chat"}, Serve: serves("put"), Errors: formed("three")},
		{Patterns: []string{"GET /files/{path...}", "GET /files"}, Serve: serves("file")},
		{Patterns: []string{"GET /kept/{id}"}, Serve: func(*http.Request) (Response, error) { return echoChat("kept", false), nil }, Errors: formed("four")},
		{Patterns: []string{"GET /kept/{id}/stream"}, Serve: func(*http.Request) (Response, error) { return echoChat("kept", true), nil }},
	}
}

// Routes are found as those of the API: nothing is redirected, and what a ServeMux would
// reply does not get to a client.
func TestRoutesOfTheApplication(t *testing.T) {
	o := testOptions(t, t.Output())
	o.Routes = routesOfTests()
	for _, protocol := range protocols {
		base, client := serveOver(t, protocol, New(o))
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		for request, want := range map[string]string{
			"GET /v1/models/one":       "200 model one of acme",
			"GET /models/one":          "200 model one of acme",
			"GET /v1/models/a%2Fb%20c": "200 model a/b c of acme",
			"HEAD /v1/models/one":      "200 ",
			"DELETE /v1/models/one":    "200 deleted one of acme",
			"GET /files/a/b":           "200 file a/b of acme",
			"GET /files/":              "200 file  of acme",
			"GET /files":               "200 file  of acme",
			"PUT /v1/chat":             "200 put  of acme",
			"GET /kept/1":              `200 {"content":"kept"}`,
			"GET /kept/1/stream":       "200 " + data("kept") + terminator,
			"HEAD /kept/1":             "405 ",
			"HEAD /kept/1/stream":      "405 ",
			"PUT /v1/models/one":       "405 one 405 Method Not Allowed", // in the form of the first route
			"PUT /models/one":          "405 one 405 Method Not Allowed",
			"PATCH /files/a":           `405 {"detail":"Method Not Allowed"}`,
			"GET /v1/chat":             `405 {"detail":"Method Not Allowed"}`, // the API's own operations are the first
			"GET //v1/models/one":      `404 {"detail":"Not Found"}`,          // TestFind has others
			"GET /v1/models/a/../b":    `404 {"detail":"Not Found"}`,
			"GET /kept/1/":             `404 {"detail":"Not Found"}`,
			"GET /kept":                `404 {"detail":"Not Found"}`,
		} {
			t.Run(protocol+", "+request, func(t *testing.T) {
				is := is.New(t)
				method, path, _ := strings.Cut(request, " ")
				got := doAt(t, client, base, method, path, "")
				is.NoErr(got.err)
				is.Equal(fmt.Sprint(got.status, " ", got.body), want)
				is.Equal(got.header.Get("Location"), "")
				is.Equal(got.header.Get("Allow"), map[string]string{
					"PUT /v1/models/one": "DELETE, GET, HEAD", "PUT /models/one": "GET, HEAD", "PATCH /files/a": "GET, HEAD", "GET /v1/chat": "POST, PUT",
					"HEAD /kept/1": "GET", "HEAD /kept/1/stream": "GET",
				}[request])
				is.True(got.header.Get("X-Request-Id") != "")
			})
		}
	}
}

// A route gets a copy of the request, with the handler's context and body. The caller's
// request is not changed, and the values that a mux around the handler has found are kept.
func TestRouteGetsACopyOfItsRequest(t *testing.T) {
	for _, path := range []string{routePath, "/wild/card"} {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.Routes = []Route{{Patterns: []string{"POST " + routePath, "POST /wild/{name}"}, Serve: func(r *http.Request) (Response, error) {
			text, err := io.ReadAll(r.Body)
			_ = r.Body.Close()
			r.Method, r.Host = "GET", "elsewhere"
			return Reply{Body: fmt.Appendf(nil, "%s of %s, name %q, outer %q", text, AccountFrom(r.Context()), r.PathValue("name"), r.PathValue("outer"))}, err
		}}}
		h := New(o)
		r := newRequest("POST", path, strings.NewReader("hi"))
		r.SetPathValue("outer", "value")
		pattern, body, ctx := r.Pattern, r.Body, r.Context()
		want := `hi of acme, name "", outer "value"`
		if path != routePath {
			want = `hi of acme, name "card", outer "value"`
		}
		is.Equal(record(h, r).Body.String(), want)
		is.Equal(r.Pattern, pattern)
		is.Equal(r.Body, body)
		is.Equal(r.Context(), ctx)
		is.Equal(r.PathValue("name"), "")
		is.Equal(r.Method, "POST")
	}
}

func TestNewPanicsForARouteThatCannotBeServed(t *testing.T) {
	serve := func(*http.Request) (Response, error) { return Reply{}, nil }
	for name, c := range map[string]struct {
		routes []Route
		want   []string // parts of the text
	}{
		"without Serve":             {[]Route{{Patterns: []string{"GET /a"}}}, []string{"Routes[0]", "Serve"}},
		"without Patterns":          {[]Route{{Serve: serve}}, []string{"Routes[0]", "Patterns"}},
		"without a method":          {[]Route{{Patterns: []string{"GET /a"}, Serve: serve}, {Patterns: []string{"/b"}, Serve: serve}}, []string{"Routes[1]", `"/b"`}}, // TestAddRejects has others
		"as the API":                {[]Route{{Patterns: []string{"POST /v1/chat"}, Serve: serve}}, []string{"Routes[0]", `"POST /v1/chat"`}},
		"as the API, with wildcard": {[]Route{{Patterns: []string{"POST /{version}/{chat}"}, Serve: serve}, {Patterns: []string{"POST /v1/{x}"}, Serve: serve}, {Patterns: []string{"POST /{x}/chat"}, Serve: serve}}, []string{"Routes[2]", "POST /v1/{x}", "POST /{x}/chat"}},
		"as another":                {[]Route{{Patterns: []string{"POST /api/chat"}, Serve: serve}, {Patterns: []string{"POST /api/chat"}, Serve: serve}}, []string{"Routes[1]", `"POST /api/chat"`, "Routes[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			defer func() {
				text := fmt.Sprint(recover())
				is.True(strings.HasPrefix(text, "botapi: New: Options."))
				for _, want := range c.want {
					if !strings.Contains(text, want) {
						t.Errorf("%s\n\tis not in: %s", want, text)
					}
				}
			}()
			o := testOptions(t, t.Output())
			o.Routes = c.routes
			New(o)
		})
	}
}

// Options.Routes is copied.
func TestNewCopiesRoutes(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Routes = routesOfTests()
	h := New(o)
	clear(o.Routes)
	is.Equal(record(h, newRequest("GET", "/files/a", nil)).Body.String(), "file a of acme")
}

// Errors makes the response to every failure of its route, whatever fails, and may choose
// another status. The handler adds the headers that the original status asks for. A Reply
// that says nothing, has no valid status, or panics is the API's own form.
func TestErrorsOfARoute(t *testing.T) {
	failures := map[string]struct {
		request, key, body string
		want               Failure // without Err
		is                 error
		header             string // with its name
	}{
		"no key":              {"POST " + routePath, "", "", Failure{Status: 401, Detail: "Not authenticated"}, nil, "Www-Authenticate: Bearer"},
		"a wrong key":         {"POST " + routePath, "wrong", "", Failure{Status: 401, Detail: "Invalid API key"}, ErrInvalidKey, `Www-Authenticate: Bearer error="invalid_token"`},
		"a wrong method":      {"PUT " + routePath, testKey, "", Failure{Status: 405, Detail: "Method Not Allowed"}, nil, "Allow: GET, HEAD, POST"},
		"a chat for HEAD":     {"HEAD " + routePath, testKey, "", Failure{Status: 405, Detail: "Method Not Allowed"}, nil, "Allow: GET, POST"},
		"a body that is long": {"POST " + routePath, testKey, strings.Repeat(" ", 1001), Failure{Status: 413, Detail: "Request body too large"}, nil, ""},
		"an invalid body": {"POST " + routePath, testKey, `{"bot_slug":"echo","prompt":"hi"}`, Failure{Status: 422, Detail: "body.stream: field required", Problems: []ValidationError{
			{[]any{"body", "stream"}, "field required", "value_error.missing"},
		}}, nil, ""},
		"no such bot":      {"POST " + routePath, testKey, `{"bot_slug":"nobody","prompt":"hi","stream":true}`, Failure{Status: 404, Detail: "Bot not found"}, ErrBotNotFound, ""},
		"a limit":          {"POST " + routePath, testKey, chatBodyJSON("limit", false), Failure{Status: 429, Detail: "Too many chats in progress for this key", RetryAfter: time.Second}, ErrTooManyAccountChats, "Retry-After: 1"},
		"a failing engine": {"POST " + routePath, testKey, chatBodyJSON("fail", false), Failure{Status: 500, Detail: "Internal Server Error"}, errBroken, ""},
		"a failing stream": {"POST " + routePath, testKey, chatBodyJSON("fail", true), Failure{Status: 500, Detail: "Internal Server Error"}, errBroken, ""},
		"a busy engine":    {"POST " + routePath, testKey, chatBodyJSON("busy", true), Failure{Status: 503, Detail: "Busy", RetryAfter: 2 * time.Second}, errBroken, "Retry-After: 2"},
		"a problem of the engine": {"POST " + routePath, testKey, chatBodyJSON("invalid", true), Failure{Status: 422, Detail: "body.tools: unknown", Problems: []ValidationError{
			{[]any{"body", "tools"}, "unknown", "value_error"},
		}}, nil, ""},
		"a panic": {"POST " + routePath, testKey, chatBodyJSON("panic", true), Failure{Status: 500, Detail: "Internal Server Error"}, nil, ""},
	}
	replies := map[string]struct {
		reply func(Failure) Reply
		want  string // the status and the body; "": the API's own form
	}{
		"a form of its own":   {func(f Failure) Reply { return Reply{Body: fmt.Append(nil, "failed: ", f.Detail)} }, "STATUS failed: DETAIL"},
		"a status of its own": {func(Failure) Reply { return Reply{Status: 425, Body: []byte("early")} }, "425 early"},
		"no content":          {func(Failure) Reply { return Reply{Status: 204, Body: []byte("dropped")} }, "204 "},
		"a status only":       {func(Failure) Reply { return Reply{Status: 404} }, "404 "},
		"nothing":             {func(Failure) Reply { return Reply{} }, ""},
		"a low status":        {func(Failure) Reply { return Reply{Status: 199, Body: []byte("x")} }, ""},
		"a high status":       {func(Failure) Reply { return Reply{Status: 600, Body: []byte("x")} }, ""},
		"a panic":             {func(Failure) Reply { panic("a bug") }, ""},
		"a panic, aborts":     {func(Failure) Reply { panic(http.ErrAbortHandler) }, ""},
	}
	for name, c := range failures {
		for form, r := range replies {
			for _, http2 := range []bool{false, true} {
				t.Run(fmt.Sprint(name, ", ", form, ", HTTP/2 ", http2), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						is := is.New(t)
						var log testLog
						var failed []Failure
						limit := make(chan struct{})
						o := testOptions(t, &log)
						o.MaxBodyBytes, o.MaxChatsPerAccount = 1000, 1
						o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
							switch lastContent(req) {
							case "panic":
								panic("a bug in the engine")
							case "hold":
								<-limit
							}
							yield("", map[string]error{
								"fail": errBroken, "busy": StatusError{503, "Busy", 2 * time.Second, errBroken},
								"invalid": HTTPValidationError{[]ValidationError{{[]any{"body", "tools"}, "unknown", "value_error"}}},
							}[lastContent(req)])
						})
						route := chatRoute(nil)
						serve := route.Serve
						route.Serve = func(r *http.Request) (Response, error) {
							if r.Method == "HEAD" {
								return echoChat("hi", false), nil
							}
							return serve(r)
						}
						route.Errors = func(ctx context.Context, f Failure) Reply {
							failed = append(failed, f)
							return r.reply(f)
						}
						o.Routes = []Route{route}
						h := New(o)
						var holding sync.WaitGroup
						if name == "a limit" {
							holding.Go(func() { postChat(h, chatBodyJSON("hold", false)) })
							synctest.Wait()
						}
						method, path, _ := strings.Cut(c.request, " ")
						authorization := "Bearer " + c.key
						if c.key == "" {
							authorization = "-"
						}
						got := doAt(t, way{http2: http2}.serve(t, h).client(), "http://memory", method, path, c.body, "Authorization", authorization)
						close(limit)
						holding.Wait()
						is.NoErr(got.err)
						is.Equal(len(failed), 1) // called once
						f := failed[0]
						is.True(f.Err != nil)
						is.True(c.is == nil || errors.Is(f.Err, c.is))
						f.Err = nil
						is.Equal(f, c.want)
						want := strings.NewReplacer("STATUS", fmt.Sprint(c.want.Status), "DETAIL", c.want.Detail).Replace(r.want)
						switch {
						case want == "" && len(c.want.Problems) > 0:
							want = fmt.Sprint(c.want.Status, " ", string(HTTPValidationError{c.want.Problems}.body()))
						case want == "":
							want = fmt.Sprint(c.want.Status, ` {"detail":"`, c.want.Detail, `"}`)
						}
						if method == "HEAD" {
							want, _, _ = strings.Cut(want, " ")
							want += " "
						}
						is.Equal(fmt.Sprint(got.status, " ", got.body), want)
						if header, value, found := strings.Cut(c.header, ": "); found {
							is.Equal(got.header.Get(header), value)
						}
						is.Equal(strings.Count(log.String(), "the form of an error response panicked"), strings.Count(form, "panic"))
					})
				})
			}
		}
	}
}

// NotFound makes the response to unknown paths, as Errors does. No key is needed.
func TestNotFound(t *testing.T) {
	for form, c := range map[string]struct {
		reply func() Reply
		want  string
	}{
		"a form of its own":   {func() Reply { return Reply{Body: []byte(`{"error":"see /v1"}`)} }, `404 {"error":"see /v1"}`},
		"a status of its own": {func() Reply { return Reply{Status: 410, Body: []byte("gone")} }, "410 gone"},
		"nothing":             {func() Reply { return Reply{} }, `404 {"detail":"Not Found"}`},
		"a panic":             {func() Reply { panic("a bug") }, `404 {"detail":"Not Found"}`},
	} {
		t.Run(form, func(t *testing.T) {
			is := is.New(t)
			var seen []Failure
			verified := 0
			o := testOptions(t, t.Output())
			o.Routes = routesOfTests()
			o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { verified++; return "", ErrInvalidKey })
			o.NotFound = func(ctx context.Context, f Failure) Reply {
				seen = append(seen, f)
				if RequestIDFrom(ctx) != "r-1" || AccountFrom(ctx) != "" {
					t.Error("not the context of the request")
				}
				return c.reply()
			}
			h := New(o)
			for _, request := range []string{"GET /", "POST /v1/chats", "GET //v1/bots", "DELETE /v1/models/one/size"} {
				method, path, _ := strings.Cut(request, " ")
				got := record(h, newRequest(method, path, nil, "X-Request-Id", "r-1"))
				is.Equal(fmt.Sprint(got.Code, " ", got.Body), c.want)
				f := seen[len(seen)-1]
				is.Equal(f.Status, 404)
				is.Equal(f.Detail, "Not Found")
				is.True(f.Err != nil)
			}
			is.Equal(len(seen), 4)
			is.Equal(verified, 0)
			got := record(h, newRequest("GET", "/v1/bots", nil)) // the API's own errors are not its business
			is.Equal(got.Body.String(), `{"detail":"Invalid API key"}`)
			is.Equal(len(seen), 4)
		})
	}
}

// A key may be wherever the route says. It must be one that the API would accept.
func TestKeyOfARoute(t *testing.T) {
	o := testOptions(t, t.Output())
	asked := []string{}
	o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
		asked = append(asked, key)
		return key, map[string]error{"wrong": ErrInvalidKey}[key]
	})
	route := routeTo(func(r *http.Request) (Response, error) {
		return Reply{Body: fmt.Append(nil, AccountFrom(r.Context()))}, nil
	})
	route.Key = func(header http.Header) string { return header.Get("X-Api-Key") }
	o.Routes = []Route{route}
	h := New(o)
	for key, want := range map[string]string{
		"acme":                        "200 acme",
		"wrong":                       `401 {"detail":"Invalid API key"}`,
		"":                            `401 {"detail":"Not authenticated"}`,
		"two words":                   `401 {"detail":"Not authenticated"}`,
		"a\u00a0space":                `401 {"detail":"Not authenticated"}`,
		strings.Repeat("k", maxKey):   "200 " + strings.Repeat("k", maxKey),
		strings.Repeat("k", maxKey+1): `401 {"detail":"Invalid API key"}`,
	} {
		is := is.New(t)
		asked = nil
		got := record(h, newRequest("GET", routePath, nil, "X-Api-Key", key, "Authorization", "Bearer other"))
		is.Equal(fmt.Sprint(got.Code, " ", got.Body), want)
		is.Equal(asked != nil, strings.HasPrefix(want, "200") || key == "wrong")
	}
	is.New(t).Equal(record(h, newRequest("GET", "/v1/bots", nil, "X-Api-Key", "acme", "Authorization", "-")).Code, 401) // the API's own operations ask as ever
}

// A route that breaks its contract, or that of an engine, is a 500. The log names the route,
// and has nothing of what the client sent.
func TestRouteThatBreaksItsContract(t *testing.T) {
	const secret = "sent by the client"
	chatOf := func(messages ...ChatMessage) *Chat {
		return &Chat{BotSlug: "echo", Request: ChatRequest{Messages: messages}}
	}
	for name, c := range map[string]struct {
		response Response
		logged   string
	}{
		"nothing":                 {nil, "neither a Reply nor a *Chat"},
		"a nil chat":              {(*Chat)(nil), "neither a Reply nor a *Chat"},
		"a pointer to a reply":    {&Reply{Body: []byte(secret)}, "neither a Reply nor a *Chat"},
		"a status below 200":      {Reply{Status: 199, Body: []byte(secret)}, "the status 199"},
		"a status above 599":      {Reply{Status: 600}, "the status 600"},
		"a negative status":       {Reply{Status: -1}, "the status -1"},
		"no messages":             {chatOf(), "no messages"},
		"no role":                 {chatOf(ChatMessage{RoleUser, "hi"}, ChatMessage{"", secret}), "message 1"},
		"a wrong role":            {chatOf(ChatMessage{secret, secret}), "message 0"},
		"a role in capitals":      {chatOf(ChatMessage{"User", secret}), "message 0"},
		"not UTF-8":               {chatOf(ChatMessage{RoleUser, secret + "\xff"}), "message 0"},
		"not UTF-8, in an answer": {&Chat{Answer: answerOf("kept"), Request: chatOf(ChatMessage{RoleUser, "\xff"}).Request}, "message 0"},
		"a wrong role, answer":    {&Chat{Answer: answerOf("kept"), Request: chatOf(ChatMessage{"tool", secret}).Request}, "message 0"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			o := testOptions(t, &log)
			called := false
			o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { called = true })
			o.Routes = []Route{{Patterns: []string{"POST /v2/talk/{about}"}, Serve: func(*http.Request) (Response, error) { return c.response, nil }}}
			got := record(New(o), newRequest("POST", "/v2/talk/"+url.PathEscape(secret), strings.NewReader(secret)))
			is.Equal(fmt.Sprint(got.Code, " ", got.Body), `500 {"detail":"Internal Server Error"}`)
			is.True(!called)
			is.True(strings.Contains(log.String(), `the route \"POST /v2/talk/{about}\"`))
			is.True(strings.Contains(log.String(), c.logged))
			is.True(!strings.Contains(log.String(), secret))
		})
	}
}

// answerOf is an answer that exists already.
func answerOf(fragments ...string) func(context.Context) iter.Seq2[string, error] {
	return func(ctx context.Context) iter.Seq2[string, error] { return fragmentsOf(fragments...).Chat(ctx, nil) }
}

// A route may choose another response to an error of a body than TestBodyOfARoute has.
func TestRouteChoosesTheResponseToABodyError(t *testing.T) {
	o := testOptions(t, t.Output())
	o.MaxBodyBytes = 3
	o.Routes = []Route{routeTo(func(r *http.Request) (Response, error) {
		_, err := ReadBody(r)
		return nil, fmt.Errorf("a: %w", StatusError{Status: 400, Err: fmt.Errorf("b: %w", err)})
	})}
	is.New(t).Equal(record(New(o), newRequest("POST", routePath, strings.NewReader("1234"))).Code, 400)
}

// An answer that exists already is sent in place of an engine's, under the same contract.
// It needs neither a bot nor messages.
func TestAnswerOfARoute(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		if !w.route {
			return
		}
		is := is.New(t)
		for slug, status := range map[string]int{"": 200, "echo": 200, "nobody": 404} {
			got := playChat(t, w, nilIterator, func(o *Options) {
				o.Routes = []Route{chatRoute(func(_ *http.Request, chat *Chat) {
					chat.BotSlug, chat.Request.Messages, chat.Answer = slug, nil, answerOf("ke", "pt")
				})}
			})
			is.Equal(got.status, status)
			if status != 200 {
				continue
			}
			is.Equal(got.body, map[bool]string{true: data("ke") + data("pt") + terminator, false: `{"content":"kept"}`}[w.stream])
			is.Equal(got.report(t).Bot.Slug, slug)
		}
	})
}

// ReadBody, and what is found in a context, do nothing for requests of others.
func TestRequestOfOthers(t *testing.T) {
	is := is.New(t)
	_, err := ReadBody(newRequest("POST", "/", strings.NewReader("{}")))
	is.True(err != nil)
	is.Equal(RequestIDFrom(t.Context())+AccountFrom(t.Context()), "")
	r := RequestFrom(t.Context())
	is.Equal(r.Header(), http.Header{})
	is.True(!r.SetHeader("X-A", "b"))
	is.Equal(r.Slot(), (*Slot)(nil))
	release, held := r.Slot().Hold()
	is.True(!held)
	release()
	r.SetValue("key", "value")
	is.Equal(r.Value("key"), "value")
	chat, stall := r.Timeouts()
	is.Equal(chat+stall, time.Duration(0))
	is.Equal(RequestFrom(t.Context()).Value("key"), nil) // another one
}
