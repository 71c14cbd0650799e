package botapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
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
		o.MaxBodyBytes, o.MaxConcurrentChats, o.Engine = 100, 1, newHeldEngine(t)
		h := New(o)
		go postChat(h, good)
		synctest.Wait() // it has the slot
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

func TestChecksKeyBeforeBody(t *testing.T) {
	is := is.New(t)
	read := false
	body := faultyBody(func() error { read = true; return io.EOF })
	o := testOptions(t, t.Output())
	o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
		return "", http.ErrAbortHandler // with an error response, the handler would discard the body
	})
	is.True(serveRequest(httptest.NewRecorder(), New(o), newRequest("POST", "/v1/chat", body))) // aborted
	is.True(!read)
}

// A client's own request id is used if it can be sent and logged unchanged.
func TestRequestIDs(t *testing.T) {
	is := is.New(t)
	h := New(testOptions(t, t.Output()))
	idOf := func(sent ...string) string {
		r := newRequest("GET", "/", nil)
		r.Header["X-Request-Id"] = sent
		ids := record(h, r).Header()["X-Request-Id"]
		is.Equal(len(ids), 1)
		return ids[0]
	}
	const everyByte = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	for _, kept := range []string{"x", everyByte, strings.Repeat("i", 128)} {
		is.Equal(idOf(kept, "second"), kept)
	}
	made := regexp.MustCompile(`^[0-9A-Za-z]{16,32}$`)
	one := idOf()
	is.True(made.MatchString(one))
	for _, replaced := range []string{"", strings.Repeat("i", 129), "a b", "a\tb", "é", "\xff", "a\x7f", "a\nb", "\x00"} {
		if id := idOf(replaced); !made.MatchString(id) {
			t.Errorf("%q for %q", id, replaced)
		}
	}
	varies := make([]bool, len(one))
	for range 200 {
		for i, other := range []byte(idOf()) {
			varies[i] = varies[i] || other != one[i]
		}
	}
	is.True(!slices.Contains(varies, false)) // every character is random
}

func TestRequestIDsAndAccountsInContexts(t *testing.T) {
	is := is.New(t)
	seen := []string{}
	see := func(ctx context.Context) { seen = append(seen, RequestIDFrom(ctx)+" of "+AccountFrom(ctx)) }
	see(t.Context())
	o := testOptions(t, t.Output())
	o.Keys = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { see(ctx); return testAccount, nil })
	o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) { see(ctx); return echoBot, nil }}
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) { see(ctx) })
	is.Equal(record(New(o), newRequest("POST", "/v1/chat", strings.NewReader(echoBody), "X-Request-Id", "r-1")).Code, 200)
	is.Equal(seen, []string{" of ", "r-1 of ", "r-1 of acme", "r-1 of acme"}) // there is no account while the verifier runs
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
			"GET /v1/models/one":        "200 model one of acme",
			"GET /models/one":           "200 model one of acme",
			"GET /v1/models/a%2Fb%20c":  "200 model a/b c of acme",
			"HEAD /v1/models/one":       "200 ",
			"DELETE /v1/models/one":     "200 deleted one of acme",
			"GET /files/a/b":            "200 file a/b of acme",
			"GET /files/":               "200 file  of acme",
			"GET /files":                "200 file  of acme",
			"PUT /v1/chat":              "200 put  of acme",
			"GET /kept/1":               `200 {"content":"kept"}`,
			"GET /kept/1/stream":        "200 " + data("kept") + terminator,
			"HEAD /kept/1":              "405 ",
			"HEAD /kept/1/stream":       "405 ",
			"PUT /v1/models/one":        "405 one 405 Method Not Allowed", // in the form of the first route
			"PUT /models/one":           "405 one 405 Method Not Allowed",
			"PATCH /files/a":            `405 {"detail":"Method Not Allowed"}`,
			"GET /v1/chat":              `405 {"detail":"Method Not Allowed"}`, // the API's own operations are the first
			"GET //v1/models/one":       `404 {"detail":"Not Found"}`,
			"GET /v1//models/one":       `404 {"detail":"Not Found"}`,
			"GET /v1/models/one/":       `404 {"detail":"Not Found"}`,
			"GET /v1/models/":           `404 {"detail":"Not Found"}`,
			"GET /v1/models/a/../b":     `404 {"detail":"Not Found"}`,
			"GET /files/a//b":           `404 {"detail":"Not Found"}`,
			"DELETE /v1//models/one":    `404 {"detail":"Not Found"}`,
			"GET /kept/1/":              `404 {"detail":"Not Found"}`,
			"GET /kept":                 `404 {"detail":"Not Found"}`,
			"POST /v1/models/one/train": `404 {"detail":"Not Found"}`,
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
		"without a method":          {[]Route{{Patterns: []string{"GET /a"}, Serve: serve}, {Patterns: []string{"/b"}, Serve: serve}}, []string{"Routes[1]", `"/b"`}},
		"with a host":               {[]Route{{Patterns: []string{"GET bots.example/a"}, Serve: serve}}, []string{"Routes[0]", `"GET bots.example/a"`}},
		"as the API":                {[]Route{{Patterns: []string{"POST /v1/chat"}, Serve: serve}}, []string{"Routes[0]", `"POST /v1/chat"`}},
		"as the API, with wildcard": {[]Route{{Patterns: []string{"POST /{version}/{chat}"}, Serve: serve}, {Patterns: []string{"POST /v1/{x}"}, Serve: serve}, {Patterns: []string{"POST /{x}/chat"}, Serve: serve}}, []string{"Routes[2]", "POST /v1/{x}", "POST /{x}/chat"}},
		"as another":                {[]Route{{Patterns: []string{"POST /api/chat"}, Serve: serve}, {Patterns: []string{"POST /api/chat"}, Serve: serve}}, []string{"Routes[1]", `"POST /api/chat"`, "conflicts"}},
		"as itself":                 {[]Route{{Patterns: []string{"GET /a/{b}", "GET /a/{c}"}, Serve: serve}}, []string{"Routes[0]", `GET /a/{b}`, `GET /a/{c}`}},
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
