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
