package botapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// sendRaw sends bytes over a connection of their own, all of them before it
// reads anything, and returns the answer.
func sendRaw(t testing.TB, server *httptest.Server, request string) answered {
	t.Helper()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return sendOver(t, conn, request)
}

func sendOver(t testing.TB, conn net.Conn, request string) answered {
	t.Helper()
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatalf("not everything was taken: %v", err)
	}
	method, _, _ := strings.Cut(request, " ")
	return readAnswer(t, bufio.NewReader(conn), method)
}

func readAnswer(t testing.TB, from *bufio.Reader, method string) answered {
	t.Helper()
	res, err := http.ReadResponse(from, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	return answered{res.StatusCode, res.Header, string(body), err}
}

func TestRoutes(t *testing.T) {
	const (
		notFound   = `{"detail":"Not Found"}`
		notAllowed = `{"detail":"Method Not Allowed"}`
	)
	server := httptest.NewServer(New(testOptions(t, t.Output())))
	defer server.Close()
	for _, c := range []struct {
		line   string
		status int
		allow  string
	}{
		{"GET /v1/bots", 200, ""},
		{"GET /bots", 200, ""},
		{"HEAD /v1/bots", 200, ""},
		{"HEAD /bots", 200, ""},
		{"POST /v1/chat", 200, ""},
		{"POST /chat", 200, ""},
		{"GET /v1/bots?page=2&x=%zz", 200, ""},
		{"GET http://elsewhere.example/v1/bots", 200, ""},
		{"GET /v1/%62ots", 200, ""},
		{"GET /v1%2Fbots", 200, ""},
		{"POST /v1/ch%61t", 200, ""},

		{"GET /", 404, ""},
		{"GET /v1", 404, ""},
		{"GET /v1/", 404, ""},
		{"GET /v2/bots", 404, ""},
		{"GET /V1/bots", 404, ""},
		{"GET /v1/Bots", 404, ""},
		{"GET /v1/bots/", 404, ""},
		{"POST /v1/chat/", 404, ""},
		{"POST /chat/completions", 404, ""},
		{"GET //v1/bots", 404, ""},
		{"GET /v1//bots", 404, ""},
		{"POST //chat", 404, ""},
		{"GET /v1/./bots", 404, ""},
		{"GET /v1/../v1/bots", 404, ""},
		{"GET /v1/%2e%2e/bots", 404, ""},
		{"GET /x/../bots", 404, ""},
		{"GET /v1/bots%00", 404, ""},
		{"GET /v1/bots%20", 404, ""},
		{"GET /v1/bots;v=1", 404, ""},
		{"GET /v1/%2562ots", 404, ""},
		{"HEAD /v1/none", 404, ""},
		{"OPTIONS /v1/none", 404, ""},
		{"CONNECT bots.example:443", 404, ""},

		{"POST /v1/bots", 405, "GET, HEAD"},
		{"PUT /bots", 405, "GET, HEAD"},
		{"PATCH /v1/bots", 405, "GET, HEAD"},
		{"DELETE /v1/bots", 405, "GET, HEAD"},
		{"OPTIONS /v1/bots", 405, "GET, HEAD"},
		{"TRACE /v1/bots", 405, "GET, HEAD"},
		{"CONNECT /v1/bots", 405, "GET, HEAD"},
		{"get /v1/bots", 405, "GET, HEAD"},
		{"GET /v1/chat", 405, "POST"},
		{"HEAD /v1/chat", 405, "POST"},
		{"GET /chat", 405, "POST"},
		{"PUT /v1/chat", 405, "POST"},
		{"PATCH /v1/chat", 405, "POST"},
		{"OPTIONS /v1/chat", 405, "POST"},
		{"CONNECT /chat", 405, "POST"},
		{"post /v1/chat", 405, "POST"},
	} {
		t.Run(c.line, func(t *testing.T) {
			is := is.New(t)
			body := chatBodyJSON("hi", false)
			got := sendRaw(t, server, fmt.Sprintf("%s HTTP/1.1\r\nHost: bots.example\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
				c.line, testKey, len(body), body))
			is.NoErr(got.err)
			is.Equal(got.status, c.status)
			is.Equal(got.header.Get("Allow"), c.allow)
			is.Equal(got.header.Get("Location"), "")
			is.Equal(got.header.Get("Content-Type"), "application/json")
			switch {
			case strings.HasPrefix(c.line, "HEAD"):
				is.Equal(got.body, "")
			case c.status == 404:
				is.Equal(got.body, notFound)
			case c.status == 405:
				is.Equal(got.body, notAllowed)
			case strings.HasPrefix(c.line, "POST"):
				is.Equal(got.body, `{"content":"hi"}`)
			default:
				is.True(strings.HasPrefix(got.body, `[{"uid":"11111111-`))
			}
		})
	}
}

func TestTheHandlerWorksWhereverItIsMounted(t *testing.T) {
	h := New(testOptions(t, t.Output()))
	subtree := http.NewServeMux()
	subtree.Handle("/v1/", h)
	patterns := http.NewServeMux()
	patterns.Handle("GET /v1/bots", h)
	patterns.Handle("POST /v1/chat", h)
	for _, c := range []struct {
		name, prefix string
		handler      http.Handler
	}{
		{"at the root", "/v1", h},
		{"without the version", "", h},
		{"as a subtree of a mux", "/v1", subtree},
		{"as two patterns of a mux", "/v1", patterns},
		{"behind a prefix", "/bots-api/v1", http.StripPrefix("/bots-api", h)},
		{"behind a prefix that takes the version", "/api", http.StripPrefix("/api", h)},
		{"behind a writer that unwraps", "/v1", wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return &unwrappingWriter{w} })},
		{"behind a writer that hides everything", "/v1", wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return struct{ http.ResponseWriter }{w} })},
		{"behind a TimeoutHandler", "/v1", http.TimeoutHandler(h, time.Minute, "late")},
		{"behind CORS", "/v1", allowAnyOrigin(h)},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			server := httptest.NewServer(c.handler)
			defer server.Close()
			list := doAt(t, server.Client(), server.URL, "GET", c.prefix+"/bots", "")
			is.Equal(list.status, 200)
			is.True(strings.Contains(list.body, `"slug":"echo"`))
			one := doAt(t, server.Client(), server.URL, "POST", c.prefix+"/chat", chatBodyJSON("hi", false))
			is.Equal(one.body, `{"content":"hi"}`)
			stream := doAt(t, server.Client(), server.URL, "POST", c.prefix+"/chat", chatBodyJSON("hi", true))
			is.Equal(stream.body, "data: {\"content\":\"hi\"}\n\ndata: [DONE]\n\n")
			is.Equal(stream.header.Get("Content-Type"), "text/event-stream")
			is.NoErr(stream.err)
			refused := doAt(t, server.Client(), server.URL, "POST", c.prefix+"/chat", "{}", "Authorization", "-")
			is.Equal(refused.status, 401)
		})
	}
	t.Run("a preflight is the CORS middleware's", func(t *testing.T) {
		is := is.New(t)
		got := do(t, allowAnyOrigin(h), "OPTIONS", "/v1/chat", "", "Authorization", "-", "Origin", "https://a.example", "Access-Control-Request-Method", "POST")
		is.Equal(got.status, 204)
		is.Equal(got.header.Get("Access-Control-Allow-Headers"), "Authorization, Content-Type")
	})
	t.Run("a refusal keeps the CORS middleware's headers", func(t *testing.T) {
		is := is.New(t)
		got := do(t, allowAnyOrigin(h), "POST", "/v1/chat", "{", "Origin", "https://a.example")
		is.Equal(got.status, 422)
		is.Equal(got.header.Get("Access-Control-Allow-Origin"), "*")
	})
}

func wrapping(h http.Handler, wrap func(http.ResponseWriter) http.ResponseWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(wrap(w), r) })
}

// unwrappingWriter can do nothing itself but lets http.ResponseController pass.
type unwrappingWriter struct{ inner http.ResponseWriter }

func (w *unwrappingWriter) Header() http.Header         { return w.inner.Header() }
func (w *unwrappingWriter) WriteHeader(status int)      { w.inner.WriteHeader(status) }
func (w *unwrappingWriter) Write(p []byte) (int, error) { return w.inner.Write(p) }
func (w *unwrappingWriter) Unwrap() http.ResponseWriter { return w.inner }

func allowAnyOrigin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		if r.Method == http.MethodOptions {
			w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func TestNewPanicsWithTheNameOfWhatIsMissing(t *testing.T) {
	for field, remove := range map[string]func(*Options){
		"Options.Bots":   func(o *Options) { o.Bots = nil },
		"Options.Keys":   func(o *Options) { o.Keys = nil },
		"Options.Engine": func(o *Options) { o.Engine = nil },
	} {
		t.Run(field, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, t.Output())
			remove(&o)
			defer func() { is.Equal(recover(), "botapi: New: "+field+" is nil") }()
			New(o)
			t.Error("New has returned")
		})
	}
}

func TestNewCopiesItsOptions(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Logger = nil
	h := New(o)
	is.Equal(o.MaxBodyBytes, int64(0)) // nothing is completed in the caller's struct
	is.Equal(o.ChatTimeout, time.Duration(0))
	is.Equal(o.KeepAlive, time.Duration(0))
	is.Equal(o.WriteTimeout, time.Duration(0))
	is.Equal(o.Logger, nil)
	o.Bots, o.Keys, o.Engine, o.MaxBodyBytes = nil, nil, nil, 1
	is.Equal(do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", false)).body, `{"content":"hi"}`)
}

func TestTheDefaultLoggerIsTheOneAtTheTimeOfNew(t *testing.T) {
	is := is.New(t)
	before := slog.Default()
	defer slog.SetDefault(before)
	var atNew, later bytes.Buffer
	o := testOptions(t, io.Discard)
	o.Logger = nil
	o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return nil, errors.New("no table") }}
	slog.SetDefault(slog.New(slog.NewTextHandler(&atNew, nil)))
	h := New(o)
	slog.SetDefault(slog.New(slog.NewTextHandler(&later, nil)))
	do(t, h, "GET", "/v1/bots", "")
	is.True(strings.Contains(atNew.String(), "no table"))
	is.Equal(later.String(), "")
}

func TestTheBodyLimit(t *testing.T) {
	const frame = `{"bot_slug":"echo","stream":false,"prompt":""}`
	bodyOf := func(size int) string { return frame[:len(frame)-2] + strings.Repeat("x", size-len(frame)) + `"}` }
	for _, c := range []struct {
		limit int64
		size  int
		want  int
	}{
		{0, 1 << 20, 200}, {0, 1<<20 + 1, 413},
		{-1, 1 << 20, 200}, {-1, 1<<20 + 1, 413},
		{100, 100, 200}, {100, 101, 413},
		{8 << 10, 8 << 10, 200}, {8 << 10, 8<<10 + 1, 413},
		{3 << 20, 3 << 20, 200}, {3 << 20, 3<<20 + 1, 413},
		{math.MaxInt64, 2 << 20, 200},
	} {
		t.Run(fmt.Sprintf("%d bytes of %d", c.size, c.limit), func(t *testing.T) {
			t.Parallel() // net/http lets half a second pass before it closes a connection on an unread body
			is := is.New(t)
			o := testOptions(t, t.Output())
			o.MaxBodyBytes = c.limit
			server := httptest.NewServer(New(o))
			defer server.Close()
			body := bodyOf(c.size)
			for _, framing := range []string{
				fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
				fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n1f\r\n%31s\r\n0\r\n\r\n", len(body)-31, body[:len(body)-31], body[len(body)-31:]),
			} {
				got := sendRaw(t, server, "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+testKey+"\r\n"+framing)
				is.NoErr(got.err)
				is.Equal(got.status, c.want)
				if c.want == 413 {
					is.Equal(got.body, `{"detail":"Request body too large"}`)
				}
			}
		})
	}
}

// A body that is too large is refused when it is, not when it is over.
func TestABodyTooLargeThatPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.MaxBodyBytes = 100
		server := serveInMemory(t, New(o), func(s *http.Server) { s.ReadTimeout = time.Hour })
		conn := server.dial()
		defer conn.Close()
		start := time.Now()
		fmt.Fprintf(conn, "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nTransfer-Encoding: chunked\r\n\r\nc8\r\n%s\r\n",
			testKey, strings.Repeat(" ", 200))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		is.NoErr(err)
		is.Equal(res.StatusCode, 413)
		is.True(res.Close)
		is.Equal(time.Since(start), discardTime)
	})
}

// Many clients read nothing before they have sent everything. A refusal that
// does not take what they send is lost to a reset. Here no buffer of the system
// takes it in the handler's stead.
func TestARefusalReachesAClientThatSendsEverythingFirst(t *testing.T) {
	body := strings.Repeat("x", 7<<19) // 3.5 MiB
	for _, c := range []struct {
		name, line, key string
		status          int
	}{
		{"too large", "POST /v1/chat", testKey, 413},
		{"wrong key", "POST /v1/chat", "wrong", 401},
		{"wrong path", "POST /v1/chats", testKey, 404},
		{"wrong method", "PUT /v1/bots", testKey, 405},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				server := serveInMemory(t, New(testOptions(t, t.Output())))
				head := c.line + " HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + c.key + "\r\n"
				for _, framed := range []string{
					fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
					fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body),
				} {
					got := sendOver(t, server.dial(), head+framed)
					is.NoErr(got.err)
					is.Equal(got.status, c.status)
				}
				time.Sleep(time.Second) // net/http waits before it closes a connection on an unread body
			})
		})
	}
}

// What a refused client may send is bounded, in size and in time.
func TestARefusedClientIsNotTakenForEver(t *testing.T) {
	const head = "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer wrong\r\nContent-Length: 999999999\r\n\r\n"
	t.Run("one that sends too much", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			conn := serveInMemory(t, New(testOptions(t, t.Output()))).dial()
			defer conn.Close()
			_, err := io.WriteString(conn, head)
			is.NoErr(err)
			taken := make(chan int64)
			go func() {
				n, _ := io.Copy(conn, strings.NewReader(strings.Repeat("x", 64<<20)))
				taken <- n
			}()
			is.Equal(readAnswer(t, bufio.NewReader(conn), "POST").status, 401)
			is.True(<-taken < 5<<20)
			time.Sleep(time.Second)
		})
	})
	t.Run("one that sends too slowly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			conn := serveInMemory(t, New(testOptions(t, t.Output()))).dial()
			defer conn.Close()
			start := time.Now()
			_, err := io.WriteString(conn, head+"x")
			is.NoErr(err)
			is.Equal(readAnswer(t, bufio.NewReader(conn), "POST").status, 401)
			is.Equal(time.Since(start), 5*time.Second)
			time.Sleep(time.Second)
		})
	})
}

// A client that waits for 100 Continue is spared the sending of a body that
// will be refused, and the server the taking of it.
func TestARefusedBodyIsNotAskedFor(t *testing.T) {
	server := httptest.NewServer(New(testOptions(t, t.Output())))
	defer server.Close()
	body := chatBodyJSON("hi", false)
	for _, c := range []struct {
		name, head string
		status     int
	}{
		{"wrong key", "POST /v1/chat HTTP/1.1\r\nAuthorization: Bearer wrong\r\nContent-Length: 50", 401},
		{"wrong key, and another spelling", "POST /v1/chat HTTP/1.1\r\nExpect: 100-Continue\r\nContent-Length: 50", 401},
		{"wrong path", "POST /v1/chats HTTP/1.1\r\nAuthorization: Bearer " + testKey + "\r\nContent-Length: 50", 404},
		{"too large", "POST /v1/chat HTTP/1.1\r\nAuthorization: Bearer " + testKey + "\r\nContent-Length: 99000000", 413},
		{"good", fmt.Sprintf("POST /v1/chat HTTP/1.1\r\nAuthorization: Bearer %s\r\nContent-Length: %d", testKey, len(body)), 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			is.NoErr(err)
			defer conn.Close()
			_, err = io.WriteString(conn, c.head+"\r\nHost: a\r\nExpect: 100-continue\r\n\r\n")
			is.NoErr(err)
			from := bufio.NewReader(conn)
			line, err := from.ReadString('\n')
			is.NoErr(err)
			is.True(strings.HasPrefix(line, fmt.Sprintf("HTTP/1.1 %d ", c.status)))
			if c.status != http.StatusContinue {
				return
			}
			_, err = from.ReadString('\n')
			is.NoErr(err)
			_, err = io.WriteString(conn, body)
			is.NoErr(err)
			is.Equal(readAnswer(t, from, "POST").body, `{"content":"hi"}`)
		})
	}
}

func TestABodyThatBreaksOff(t *testing.T) {
	for _, framing := range []string{
		"Content-Length: 100\r\n\r\n{\"bot_slug\":",
		"Transfer-Encoding: chunked\r\n\r\n50\r\n{\"bot_slug\":",
		"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n",
	} {
		is := is.New(t)
		server := httptest.NewServer(New(testOptions(t, t.Output())))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		is.NoErr(err)
		_, err = io.WriteString(conn, "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+testKey+"\r\n"+framing)
		is.NoErr(err)
		is.NoErr(conn.(*net.TCPConn).CloseWrite())
		got := readAnswer(t, bufio.NewReader(conn), "POST")
		is.Equal(got.status, http.StatusBadRequest)
		is.Equal(got.body, `{"detail":"Request body could not be read"}`)
		_ = conn.Close()
		server.Close()
	}
}

func TestABodyThatDoesNotArriveInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var log testLog
		server := serveInMemory(t, New(testOptions(t, &log)), func(s *http.Server) { s.ReadTimeout = 20 * time.Second })
		conn := server.dial()
		defer conn.Close()
		_, err := io.WriteString(conn, "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+testKey+"\r\nContent-Length: 100\r\n\r\n{\"bot")
		is.NoErr(err)
		got := readAnswer(t, bufio.NewReader(conn), "POST")
		is.Equal(got.status, http.StatusRequestTimeout)
		is.Equal(got.body, `{"detail":"Request body did not arrive in time"}`)
		is.True(strings.Contains(log.String(), "request refused") && strings.Contains(log.String(), "timeout"))
	})
}

// Each request is wrong in everything that comes later, too.
func TestTheOrderOfChecks(t *testing.T) {
	const good, unknownBot = `{"bot_slug":"echo","prompt":"p","stream":false}`, `{"bot_slug":"nobody","prompt":"p","stream":false}`
	invalid := `{"bot_slug":"nobody"}`
	tooLarge := invalid + strings.Repeat(" ", 200)
	hold, held := make(chan struct{}), make(chan struct{})
	o := testOptions(t, t.Output())
	o.MaxBodyBytes, o.MaxConcurrentChats = 100, 1
	o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
		close(held)
		<-hold
	})
	server := httptest.NewServer(New(o))
	defer server.Close()
	first := make(chan answered)
	go func() { first <- doAt(t, server.Client(), server.URL, "POST", "/v1/chat", good) }()
	<-held
	for _, c := range []struct {
		name, method, path, key, body string
		status                        int
	}{
		{"path", "PUT", "/v1/none", "wrong", tooLarge, 404},
		{"method", "PUT", "/v1/chat", "wrong", tooLarge, 405},
		{"key", "POST", "/v1/chat", "wrong", tooLarge, 401},
		{"size", "POST", "/v1/chat", testKey, tooLarge, 413},
		{"body", "POST", "/v1/chat", testKey, invalid, 422},
		{"bot", "POST", "/v1/chat", testKey, unknownBot, 404},
		{"places", "POST", "/v1/chat", testKey, good, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := doAt(t, server.Client(), server.URL, c.method, c.path, c.body, "Authorization", "Bearer "+c.key)
			is.New(t).Equal(got.status, c.status)
		})
	}
	close(hold)
	is.New(t).Equal((<-first).status, 200)
}

// neverRead is a body that must not be touched.
type neverRead struct{ t testing.TB }

func (b neverRead) Read([]byte) (int, error) {
	b.t.Error("the body is read before the key has been found good")
	return 0, io.EOF
}

func TestTheKeyIsCheckedBeforeTheBodyIsRead(t *testing.T) {
	is := is.New(t)
	asked := false
	o := testOptions(t, t.Output())
	o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
		asked = true
		return "", http.ErrAbortHandler // a refusal without an answer takes nothing of the body either
	})
	request := httptest.NewRequest("POST", "/v1/chat", neverRead{t})
	request.Header.Set("Authorization", "Bearer x")
	defer func() {
		is.Equal(recover(), http.ErrAbortHandler)
		is.True(asked)
	}()
	New(o).ServeHTTP(httptest.NewRecorder(), request)
}

func TestRequestIDs(t *testing.T) {
	made := regexp.MustCompile(`^[0-9A-Za-z]{16,32}$`)
	for _, c := range []struct {
		name, sent string
		kept       bool
	}{
		{"one byte", "x", true},
		{"every byte that may stand in one", visible(), true},
		{"128 bytes", strings.Repeat("i", 128), true},
		{"129 bytes", strings.Repeat("i", 129), false},
		{"none", "", false},
		{"a space", "a b", false},
		{"a tab", "a\tb", false},
		{"UTF-8", "é", false},
		{"a high byte", "\xff", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var inVerifier, inStore, inEngine string
			var logged bytes.Buffer
			o := testOptions(t, &logged)
			o.Keys = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
				inVerifier = RequestIDFrom(ctx)
				is.Equal(AccountFrom(ctx), "") // not known yet
				return testAccount, nil
			})
			o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) {
				inStore = RequestIDFrom(ctx)
				is.Equal(AccountFrom(ctx), testAccount)
				return echoBot, nil
			}}
			o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				inEngine = RequestIDFrom(ctx)
				yield("", errors.New("out of tokens"))
			})
			body := chatBodyJSON("hi", false)
			server := httptest.NewServer(New(o))
			got := sendRaw(t, server, fmt.Sprintf("POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s",
				testKey, c.sent, len(body), body))
			server.Close()
			is.Equal(got.status, 500)
			id := got.header.Get("X-Request-Id")
			if c.kept {
				is.Equal(id, c.sent)
			} else {
				is.True(made.MatchString(id))
			}
			is.Equal(len(got.header.Values("X-Request-Id")), 1)
			is.Equal([]string{inVerifier, inStore, inEngine}, []string{id, id, id})
			is.True(strings.Contains(logged.String(), "request_id="+quotedForLog(id)))
		})
	}
	t.Run("on every answer", func(t *testing.T) {
		is := is.New(t)
		h := New(testOptions(t, t.Output()))
		for _, got := range []answered{
			do(t, h, "GET", "/", "", "X-Request-Id", "mine"),
			do(t, h, "PUT", "/v1/bots", "", "X-Request-Id", "mine"),
			do(t, h, "GET", "/v1/bots", "", "X-Request-Id", "mine", "Authorization", "-"),
			do(t, h, "GET", "/v1/bots", "", "X-Request-Id", "mine"),
			do(t, h, "HEAD", "/v1/bots", "", "X-Request-Id", "mine"),
			do(t, h, "POST", "/v1/chat", "", "X-Request-Id", "mine"),
			do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", false), "X-Request-Id", "mine"),
			do(t, h, "POST", "/v1/chat", chatBodyJSON("hi", true), "X-Request-Id", "mine"),
		} {
			is.Equal(got.header.Get("X-Request-Id"), "mine")
		}
	})
	t.Run("bytes that net/http lets nobody send", func(t *testing.T) {
		is := is.New(t)
		for _, sent := range []string{"a\x7f", "a\nb", "\x00"} {
			recorder := httptest.NewRecorder()
			request := httptest.NewRequest("GET", "/", nil)
			request.Header.Set("X-Request-Id", sent)
			New(testOptions(t, t.Output())).ServeHTTP(recorder, request)
			is.True(made.MatchString(recorder.Header().Get("X-Request-Id")))
		}
	})
	t.Run("made ones differ", func(t *testing.T) {
		is := is.New(t)
		h := New(testOptions(t, t.Output()))
		first, second := do(t, h, "GET", "/", ""), do(t, h, "GET", "/", "")
		is.True(first.header.Get("X-Request-Id") != second.header.Get("X-Request-Id"))
		one, varies := newRequestID(), [32]bool{}
		for range 200 {
			for i, other := range []byte(newRequestID()) {
				varies[i] = varies[i] || other != one[i]
			}
		}
		is.True(!slices.Contains(varies[:], false)) // every digit is random
	})
	t.Run("of several the first counts", func(t *testing.T) {
		is := is.New(t)
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest("GET", "/", nil)
		request.Header["X-Request-Id"] = []string{"first", "second"}
		New(testOptions(t, t.Output())).ServeHTTP(recorder, request)
		is.Equal(recorder.Header()["X-Request-Id"], []string{"first"})
	})
	t.Run("other contexts have none", func(t *testing.T) {
		is := is.New(t)
		is.Equal(RequestIDFrom(t.Context()), "")
		is.Equal(AccountFrom(t.Context()), "")
	})
}

func visible() string {
	var all strings.Builder
	for c := byte(0x21); c <= 0x7E; c++ {
		all.WriteByte(c)
	}
	return all.String()
}

// quotedForLog is how slog's TextHandler writes a value.
func quotedForLog(s string) string {
	if strings.ContainsAny(s, " =\"\\") {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// What a host's error becomes is the same wherever it comes from.
func TestHostErrorsBecomeAnswers(t *testing.T) {
	cause := errors.New("dial tcp 10.0.0.7: refused")
	for _, c := range []struct {
		name   string
		err    error
		status int
		detail string
		header http.Header // what must be there
		logged bool        // the cause, or the error itself
	}{
		{"a StatusError", StatusError{Status: 429, Detail: "Slow down", RetryAfter: 1500 * time.Millisecond, Err: cause}, 429, "Slow down", http.Header{"Retry-After": {"2"}}, true},
		{"a pointer to one", &StatusError{Status: 429, Detail: "Slow down", Err: cause}, 429, "Slow down", nil, true},
		{"a wrapped one", fmt.Errorf("asking: %w", StatusError{Status: 451, Detail: "Not here", Err: cause}), 451, "Not here", nil, true},
		{"a wrapped pointer to one", fmt.Errorf("asking: %w", &StatusError{Status: 503, Detail: "Closed", Err: cause}), 503, "Closed", nil, true},
		{"one of several", errors.Join(cause, &StatusError{Status: 502, Detail: "Bad upstream"}), 502, "Bad upstream", nil, true},
		{"one around a pointer to another", StatusError{Status: 503, Detail: "Closed", Err: &StatusError{Status: 404, Detail: "No row 7"}}, 503, "Closed", nil, true},
		{"a pointer to one around another", &StatusError{Status: 429, Detail: "Slow down", Err: StatusError{Status: 503, Detail: "Pool is empty"}}, 429, "Slow down", nil, true},
		{"one around a bot that is not found", StatusError{Status: 410, Detail: "Gone", Err: ErrBotNotFound}, 410, "Gone", nil, false},
		{"one without a detail", StatusError{Status: 402, Err: cause}, 402, "Payment Required", nil, true},
		{"one without a detail or a known status", StatusError{Status: 499, Err: cause}, 499, "", nil, true},
		{"a 401", StatusError{Status: 401, Detail: "Log in again", Err: cause}, 401, "Log in again", http.Header{"Www-Authenticate": {"Bearer"}}, true},
		{"a 403", StatusError{Status: 403, Detail: "Not yours", Err: cause}, 403, "Not yours", nil, true},
		{"a 401 for a bad key", StatusError{Status: 401, Detail: "Key expired", Err: ErrInvalidKey}, 401, "Key expired", http.Header{"Www-Authenticate": {`Bearer error="invalid_token"`}}, false},
		{"a detail that needs escapes", StatusError{Status: 400, Detail: "\"a\"\n<b>\u2028[DONE]\xff"}, 400, "\"a\"\n<b>\u2028[DONE]\uFFFD", nil, false},
		{"a status that is no error", StatusError{Status: 200, Detail: "OK", Err: cause}, 500, "Internal Server Error", nil, true},
		{"a redirect", StatusError{Status: 302, Detail: "Elsewhere", Err: cause}, 500, "Internal Server Error", nil, true},
		{"no status", StatusError{Detail: "what?", Err: cause}, 500, "Internal Server Error", nil, true},
		{"a status above all", StatusError{Status: 600, Detail: "what?", Err: cause}, 500, "Internal Server Error", nil, true},
		{"the lowest status", StatusError{Status: 400, Detail: "low"}, 400, "low", nil, false},
		{"the highest status", StatusError{Status: 599, Detail: "high", Err: cause}, 599, "high", nil, true},
		{"half a second", StatusError{Status: 503, Detail: "x", RetryAfter: time.Second / 2}, 503, "x", http.Header{"Retry-After": {"1"}}, false},
		{"a whole minute", StatusError{Status: 503, Detail: "x", RetryAfter: time.Minute}, 503, "x", http.Header{"Retry-After": {"60"}}, false},
		{"a nanosecond more", StatusError{Status: 503, Detail: "x", RetryAfter: time.Minute + 1}, 503, "x", http.Header{"Retry-After": {"61"}}, false},
		{"for ever", StatusError{Status: 503, Detail: "x", RetryAfter: math.MaxInt64}, 503, "x", http.Header{"Retry-After": {"9223372037"}}, false},
		{"a pause, whatever the status", StatusError{Status: 402, Detail: "x", RetryAfter: time.Hour}, 402, "x", http.Header{"Retry-After": {"3600"}}, false},
		{"never", StatusError{Status: 503, Detail: "x", RetryAfter: -time.Minute}, 503, "x", nil, false},
		{"any other error", cause, 500, "Internal Server Error", nil, true},
		{"a bot that is not found", fmt.Errorf("row 7: %w", ErrBotNotFound), 404, "Bot not found", nil, false},
		{"a key that is not accepted", fmt.Errorf("row 7: %w", ErrInvalidKey), 401, "Invalid API key", http.Header{"Www-Authenticate": {`Bearer error="invalid_token"`}}, false},
		{"a cancellation of the host's own", context.Canceled, 500, "Internal Server Error", nil, false},
		{"a deadline of the host's own", context.DeadlineExceeded, 500, "Internal Server Error", nil, false},
		{"that another client left", fmt.Errorf("asked together: %w", ErrClientLeft), 500, "Internal Server Error", nil, false},
		{"that another client did not read", fmt.Errorf("asked together: %w", ErrClientStalled), 500, "Internal Server Error", nil, false},
		{"that another chat took too long", fmt.Errorf("asked together: %w", ErrChatTimeout), 500, "Internal Server Error", nil, false},
		{"one around an abort", StatusError{Status: 502, Detail: "Bad upstream", Err: fmt.Errorf("proxy: %w", http.ErrAbortHandler)}, 502, "Bad upstream", nil, true},
		{"one around the end of another chat", StatusError{Status: 502, Detail: "Bad upstream", Err: ErrClientLeft}, 502, "Bad upstream", nil, true},
		{"a typed nil", (*StatusError)(nil), 500, "Internal Server Error", nil, false},
		{"a panic in its JSON form", HTTPValidationError{[]ValidationError{{Loc: []any{faultyJSON{}}}}}, 500, "Internal Server Error", nil, false},
	} {
		for place, h := range failingEverywhere(c.err) {
			t.Run(c.name+place, func(t *testing.T) {
				is := is.New(t)
				var logged bytes.Buffer
				o := h(testOptions(t, &logged))
				got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", strings.Contains(place, "stream")), "X-Request-Id", "one-of-many")
				is.NoErr(got.err)
				is.Equal(got.status, c.status)
				is.Equal(got.header.Get("Content-Type"), "application/json")
				is.Equal(decodedJSON(t, got.body), map[string]any{"detail": c.detail})
				is.Equal(got.header["Retry-After"], c.header["Retry-After"])
				is.Equal(got.header["Www-Authenticate"], c.header["Www-Authenticate"])
				is.True(!strings.Contains(got.body+fmt.Sprint(got.header), "10.0.0.7"))
				if c.logged {
					is.True(strings.Contains(logged.String(), "10.0.0.7") || strings.Contains(logged.String(), c.detail))
					is.True(strings.Contains(logged.String(), " request_id=one-of-many error="))
				}
				is.Equal(strings.Contains(logged.String(), "level=ERROR"), c.status >= 500)
				is.Equal(logged.Len() > 0, c.logged || c.status >= 500)
			})
		}
	}
}

type faultyJSON struct{}

func (faultyJSON) MarshalJSON() ([]byte, error) { panic("a bug in the host") }

// failingEverywhere returns options that fail with err in each host interface.
func failingEverywhere(err error) map[string]func(Options) Options {
	engine := engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", err) })
	return map[string]func(Options) Options{
		" from a verifier": func(o Options) Options {
			o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return "", err })
			return o
		},
		" from a cached verifier": func(o Options) Options {
			o.Keys = CacheKeys(KeyVerifierFunc(func(context.Context, string) (string, error) { return "", err }), time.Hour)
			return o
		},
		" from a store": func(o Options) Options {
			o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { return Bot{}, err }}
			return o
		},
		" from an engine": func(o Options) Options {
			o.Engine = engine
			return o
		},
		" from an engine's stream": func(o Options) Options {
			o.Engine = engine
			return o
		},
	}
}

func TestHostPanicsAreInternalErrors(t *testing.T) {
	for what, panics := range map[string]func(){
		"text":               func() { panic("no table bots") },
		"error":              func() { panic(errors.New("no table bots")) },
		"StatusError":        func() { panic(StatusError{Status: 418, Detail: "no table bots"}) },
		"a sentinel":         func() { panic(ErrBotNotFound) },
		"around an abort":    func() { panic(fmt.Errorf("no table bots: %w", http.ErrAbortHandler)) },
		"runtime error":      func() { var bots []Bot; _ = bots[len(testKey)] },
		"nil pointer":        func() { var r *ChatRequest; _ = r.Bot },
		"nil":                func() { panic(nil) },
		"uncomparable value": func() { panic([]string{"no table bots"}) },
	} {
		for place, set := range map[string]func(*Options){
			"verifier": func(o *Options) {
				o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { panics(); return "", nil })
			},
			"cached verifier": func(o *Options) {
				o.Keys = CacheKeys(KeyVerifierFunc(func(context.Context, string) (string, error) { panics(); return "", nil }), time.Hour)
			},
			"store": func(o *Options) {
				o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { panics(); return Bot{}, nil }}
			},
			"engine": func(o *Options) {
				o.Engine = ChatEngineFunc(func(context.Context, *ChatRequest) iter.Seq2[string, error] { panics(); return nil })
			},
			"iterator": func(o *Options) {
				o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { panics() })
			},
		} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s in %s, stream %t", what, place, stream), func(t *testing.T) {
					is := is.New(t)
					var logged bytes.Buffer
					o := testOptions(t, &logged)
					set(&o)
					got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", stream), "X-Request-Id", "one-of-many")
					is.NoErr(got.err)
					is.Equal(got.status, 500)
					is.Equal(got.body, `{"detail":"Internal Server Error"}`)
					is.True(strings.Contains(logged.String(), "request_id=one-of-many"))
					is.True(strings.Contains(logged.String(), "panic while ") && !strings.Contains(logged.String(), "panic while :"))
					is.True(strings.Contains(logged.String(), " stack="))
					is.True(strings.Contains(logged.String(), "handler_test.go")) // the stack, from where it began
				})
			}
		}
	}
}

func TestARecoveredAbortIsPassedOn(t *testing.T) {
	abort := func() { panic(http.ErrAbortHandler) }
	for name, set := range map[string]func(*Options){
		"verifier": func(o *Options) {
			o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { abort(); return "", nil })
		},
		"store": func(o *Options) {
			o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { abort(); return Bot{}, nil }}
		},
		"engine": func(o *Options) {
			o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { abort() })
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var logged bytes.Buffer
			o := testOptions(t, &logged)
			set(&o)
			server := httptest.NewServer(New(o))
			defer server.Close()
			request, err := http.NewRequest("POST", server.URL+"/v1/chat", strings.NewReader(chatBodyJSON("hi", false)))
			is.NoErr(err)
			request.Header.Set("Authorization", "Bearer "+testKey)
			res, err := server.Client().Do(request)
			if err == nil {
				_ = res.Body.Close()
			}
			is.True(errors.Is(err, io.EOF)) // no answer at all
			is.Equal(logged.String(), "")
		})
	}
}

func TestAnEngineMayFindTheRequestInvalid(t *testing.T) {
	problem := ValidationError{Loc: []any{"body", "tools", 0, "<name>"}, Msg: "unknown tool", Type: "value_error.tool"}
	noPlace := []ValidationError{{Msg: "unknown tool", Type: "value_error.tool"}}
	const body = `{"detail":[{"loc":["body","tools",0,"<name>"],"msg":"unknown tool","type":"value_error.tool"}]}`
	for _, c := range []struct {
		name   string
		err    error
		status int
		body   string
	}{
		{"by value", HTTPValidationError{[]ValidationError{problem}}, 422, body},
		{"by pointer", &HTTPValidationError{[]ValidationError{problem}}, 422, body},
		{"wrapped", fmt.Errorf("tools: %w", HTTPValidationError{[]ValidationError{problem}}), 422, body},
		{"wrapped pointer", fmt.Errorf("tools: %w", &HTTPValidationError{[]ValidationError{problem}}), 422, body},
		{"without problems", HTTPValidationError{}, 422, `{"detail":[]}`},
		{"without a place", HTTPValidationError{noPlace}, 422, `{"detail":[{"loc":[],"msg":"unknown tool","type":"value_error.tool"}]}`},
		{"that has no JSON form", HTTPValidationError{[]ValidationError{{Loc: []any{make(chan int)}}}}, 500, `{"detail":"Internal Server Error"}`},
		{"beside a StatusError", errors.Join(HTTPValidationError{[]ValidationError{problem}}, StatusError{Status: 502}), 502, `{"detail":"Bad Gateway"}`},
		{"that is a StatusError's cause", StatusError{Status: 502, Err: HTTPValidationError{[]ValidationError{problem}}}, 502, `{"detail":"Bad Gateway"}`},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %t", c.name, stream), func(t *testing.T) {
				is := is.New(t)
				var log testLog
				var report ChatReport
				o := testOptions(t, &log)
				o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", c.err) })
				o.OnChat = func(_ context.Context, r ChatReport) { report = r }
				got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", stream))
				is.Equal(got.status, c.status)
				is.Equal(report.Status, c.status)
				is.Equal(strings.Contains(log.String(), "unsupported type: chan int"), c.status == 500)
				is.Equal(got.header.Get("Content-Type"), "application/json")
				is.Equal(decodedJSON(t, got.body), decodedJSON(t, c.body))
				is.Equal(noPlace[0].Loc, nil) // the host's own is not changed
			})
		}
	}
}

// So may every other part of the host.
func TestAnyPartMayFindTheRequestInvalid(t *testing.T) {
	invalid := HTTPValidationError{[]ValidationError{{Loc: []any{"header", "x"}, Msg: "too old", Type: "value_error"}}}
	for _, err := range []error{invalid, &invalid, fmt.Errorf("wrapped: %w", invalid)} {
		for place, failing := range failingEverywhere(err) {
			t.Run(fmt.Sprintf("%T%s", err, place), func(t *testing.T) {
				is := is.New(t)
				got := postChat(New(failing(testOptions(t, t.Output()))), chatBodyJSON("hi", strings.Contains(place, "stream")))
				is.Equal(got.Code, 422)
				is.Equal(got.Body.String(), `{"detail":[{"loc":["header","x"],"msg":"too old","type":"value_error"}]}`)
			})
		}
	}
}

func TestErrorsSayWhatTheyAre(t *testing.T) {
	is := is.New(t)
	cause := errors.New("pool is empty")
	err := StatusError{Status: 503, Detail: "Busy", Err: cause}
	is.Equal(err.Error(), "503 Busy: pool is empty")
	is.True(errors.Is(err, cause))
	is.Equal(StatusError{Status: 404, Detail: "No"}.Error(), "404 No")
	isFoundEitherWay(t, err)
	is.True(!errors.As(err, new(HTTPValidationError)))
	invalid := HTTPValidationError{[]ValidationError{{Msg: "bad"}}}
	isFoundEitherWay(t, invalid)
	is.True(!errors.As(invalid, new(StatusError)))
	is.Equal(HTTPValidationError{}.Error(), "invalid request")
	is.Equal(HTTPValidationError{[]ValidationError{{[]any{"body", "x"}, "bad", "t"}, {}}}.Error(), "invalid request: [body x]: bad (2 in all)")
}

// isFoundEitherWay looks for an error by value and as a pointer, where it stands
// by value and as a pointer.
func isFoundEitherWay[E error, P interface {
	*E
	error
}](t *testing.T, err E) {
	t.Helper()
	is := is.New(t)
	for _, either := range []error{err, P(&err)} {
		value, ok := errors.AsType[E](fmt.Errorf("asking: %w", either))
		is.True(ok)
		is.Equal(value, err)
		pointer, ok := errors.AsType[P](fmt.Errorf("asking: %w", either))
		is.True(ok)
		is.Equal(*pointer, err)
	}
}

// A marked key is sent down every path, and then looked for in everything that
// was written.
func TestAKeyIsWrittenNowhere(t *testing.T) {
	const key = "sk-MARKED-7d1f0c9a"
	is := is.New(t)
	var written testLog
	keep := func(parts ...any) {
		for _, part := range parts {
			fmt.Fprintf(&written, "%v\n%+v\n%#v\n", part, part, part)
		}
	}
	verifiers := map[string]KeyVerifier{
		"good":    StaticKeys(map[string]string{key: testAccount}),
		"cached":  CacheKeys(StaticKeys(map[string]string{key: testAccount}), time.Hour),
		"refused": StaticKeys(nil),
		"refused, named": KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
			return "", fmt.Errorf("%s: %w", key, ErrInvalidKey)
		}),
		"error": KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "", fmt.Errorf("SELECT %q: no table", key) }),
		"StatusError": KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
			return "", StatusError{Status: 429, Detail: "Used up", Err: errors.New("quota of " + key)}
		}),
		"panic":        KeyVerifierFunc(func(_ context.Context, key string) (string, error) { panic("no row for " + key) }),
		"cached error": CacheKeys(KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "", errors.New(key) }), time.Hour),
		"cached panic": CacheKeys(KeyVerifierFunc(func(_ context.Context, key string) (string, error) { panic(key) }), time.Hour),
	}
	statuses := map[int]int{}
	for _, verifier := range verifiers {
		for _, failing := range []func(*Options){
			func(*Options) {},
			func(o *Options) { o.Engine = nilIterator },
			func(o *Options) {
				o.Bots = &fakeStore{
					bots:   func(context.Context) ([]Bot, error) { return nil, errors.New("no table") },
					bySlug: func(context.Context, string) (Bot, error) { panic("no table") },
				}
			},
		} {
			o := testOptions(t, &written)
			o.Keys, o.MaxBodyBytes = verifier, 1000
			o.OnChat = func(_ context.Context, r ChatReport) { keep(r, r.Err) }
			failing(&o)
			server := httptest.NewUnstartedServer(New(o))
			server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(&written, nil), slog.LevelError)
			server.Start()
			for _, request := range [][]string{
				{"GET", "/v1/bots", ""}, {"HEAD", "/bots", ""}, {"GET", "/none", ""}, {"DELETE", "/v1/bots", ""},
				{"POST", "/v1/chat", chatBodyJSON("hi", false)}, {"POST", "/v1/chat", chatBodyJSON("hi", true)},
				{"POST", "/v1/chat", "{"}, {"POST", "/v1/chat", "[]"}, {"POST", "/v1/chat", strings.Repeat(" ", 2000)},
			} {
				for _, authorization := range []string{"Bearer " + key, "bearer   " + key, key, "Basic " + key, "Bearer a " + key} {
					got := doAt(t, server.Client(), server.URL, request[0], request[1], request[2], "Authorization", authorization)
					keep(got.header, got.body)
					statuses[got.status]++
				}
			}
			server.Close()
			if cache, ok := verifier.(*keyCache); ok {
				cache.mu.Lock()
				keep(cache.known, cache.verifier)
				cache.mu.Unlock()
			} else {
				keep(o, verifier, New(o))
			}
		}
	}
	for _, status := range []int{200, 401, 404, 405, 413, 422, 429, 500} {
		is.True(statuses[status] > 0) // this path was taken
	}
	is.True(strings.Contains(written.String(), "quota of [key]")) // what was struck out is marked
	is.True(!strings.Contains(written.String(), key))
	is.True(!strings.Contains(written.String(), "MARKED"))
}

var nilIterator = ChatEngineFunc(func(context.Context, *ChatRequest) iter.Seq2[string, error] { return nil })

// http.NewRequest gives a request without a body no Body, as hosts' tests do.
func TestARequestWithoutABody(t *testing.T) {
	for _, c := range []struct {
		method, path, key string
		status            int
	}{
		{"POST", "/v1/chat", testKey, 422},
		{"POST", "/v1/chat", "wrong", 401},
		{"POST", "/v1/nothing", testKey, 404},
		{"GET", "/v1/bots", testKey, 200},
	} {
		is := is.New(t)
		r, err := http.NewRequest(c.method, c.path, nil)
		is.NoErr(err)
		r.Header.Set("Authorization", "Bearer "+c.key)
		w := httptest.NewRecorder()
		New(testOptions(t, io.Discard)).ServeHTTP(w, r)
		is.Equal(w.Code, c.status)
		if c.status == 422 {
			is.Equal(w.Body.String(), `{"detail":[{"loc":["body"],"msg":"field required","type":"value_error.missing"}]}`)
		}
	}
}

// A trapError panics when one of its methods is called.
type trapError struct{ trap string }

func (e trapError) Error() string   { e.spring("Error"); return "a trap" }
func (e trapError) Is(error) bool   { e.spring("Is"); return false }
func (e trapError) As(any) bool     { e.spring("As"); return e.trap == "As, which lies" }
func (e trapError) Unwrap() []error { e.spring("Unwrap"); return nil }

func (e trapError) spring(method string) {
	if e.trap == method {
		panic("a trap in " + method)
	}
}

func TestAnErrorWhoseMethodsPanic(t *testing.T) {
	for _, method := range []string{"Error", "Is", "As", "As, which lies", "Unwrap"} {
		for _, wrapped := range []error{trapError{method}, fmt.Errorf("wrapped: %w", &StatusError{Status: 418, Err: trapError{method}})} {
			if method == "Error" && wrapped != error(trapError{method}) {
				continue // fmt.Errorf survives it
			}
			for _, part := range []string{"verifier", "store", "engine"} {
				t.Run(fmt.Sprint(part, ", ", method), func(t *testing.T) {
					is := is.New(t)
					var log testLog
					o := testOptions(t, &log)
					switch part {
					case "verifier":
						o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return "", wrapped })
					case "store":
						o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { return Bot{}, wrapped }}
					case "engine":
						o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", wrapped) })
					}
					got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", true))
					is.Equal(got.status, 500)
					is.Equal(got.body, `{"detail":"Internal Server Error"}`)
					is.True(strings.Contains(log.String(), "a trap in "+method) || strings.Contains(log.String(), "an As that returns true has set nothing"))
				})
			}
		}
	}
}

// A refused body is not waited for longer than the server's own ReadTimeout.
func TestARefusedBodyIsNotWaitedForBeyondReadTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		server := serveInMemory(t, New(testOptions(t, io.Discard)), func(s *http.Server) { s.ReadTimeout = time.Second })
		conn := server.dial()
		defer conn.Close()
		start := time.Now()
		fmt.Fprint(conn, "POST /v1/chat HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		is.NoErr(err)
		is.Equal(res.StatusCode, 401)
		is.Equal(time.Since(start), time.Second)
	})
}

// The smallest limit that there can be is not taken for none.
func TestABodyLimitOfOneByte(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.MaxBodyBytes = 1
	is.Equal(postChat(New(o), "7").Code, 422)
	is.Equal(postChat(New(o), "{}").Code, 413)
}

// A limit of the host's on bodies is answered as the handler's own.
func TestABodyLimitOfTheHosts(t *testing.T) {
	is := is.New(t)
	var log testLog
	got := postChat(http.MaxBytesHandler(New(testOptions(t, &log)), 10), chatBodyJSON("hi", false))
	is.Equal(got.Code, 413)
	is.True(strings.Contains(log.String(), "http: request body too large")) // the answer does not say whose limit it was
	is.Equal(got.Body.String(), `{"detail":"Request body too large"}`)
}

// Middleware that unpacks a body leaves its announced length; and a reader may
// return nothing for once.
func TestABodyIsReadToItsEnd(t *testing.T) {
	is := is.New(t)
	body := `{"bot_slug":"echo","stream":false,"prompt":"` + strings.Repeat("x", 20<<10) + `"}`
	for _, length := range []int64{-1, 0, 10, bodyChunk, 16 << 10, int64(len(body)), int64(len(body)) + 1000} {
		r := httptest.NewRequest("POST", "/v1/chat", &hesitantReader{from: strings.NewReader(body)})
		r.Header.Set("Authorization", "Bearer "+testKey)
		r.ContentLength = length
		w := httptest.NewRecorder()
		New(testOptions(t, t.Output())).ServeHTTP(w, r)
		is.Equal(w.Code, 200)
		is.Equal(w.Body.Len(), len(`{"content":""}`)+20<<10)
	}
}

// Middleware may wrap what the connection says of the time.
func TestABodyThatIsLateBehindMiddleware(t *testing.T) {
	is := is.New(t)
	late := iotest.ErrReader(fmt.Errorf("unpacking: %w", os.ErrDeadlineExceeded))
	r := httptest.NewRequest("POST", "/v1/chat", late)
	r.Header.Set("Authorization", "Bearer "+testKey)
	w := httptest.NewRecorder()
	New(testOptions(t, t.Output())).ServeHTTP(w, r)
	is.Equal(w.Code, 408)
}

// A hesitantReader returns nothing every other time.
type hesitantReader struct {
	from  io.Reader
	ready bool
}

func (r *hesitantReader) Read(p []byte) (int, error) {
	if r.ready = !r.ready; r.ready {
		return 0, nil
	}
	return r.from.Read(p)
}

// What a client announces of its body is not believed before some has come.
func TestAnAnnouncedBodyCostsNothing(t *testing.T) {
	is := is.New(t)
	var log testLog
	h := New(testOptions(t, &log))
	r := httptest.NewRequest("POST", "/v1/chat", io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.ContentLength = DefaultMaxBodyBytes
	w := httptest.NewRecorder()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h.ServeHTTP(w, r)
	runtime.ReadMemStats(&after)
	is.Equal(w.Code, 400)
	is.True(after.TotalAlloc-before.TotalAlloc < DefaultMaxBodyBytes/2)
	is.True(strings.Contains(log.String(), io.ErrUnexpectedEOF.Error()))
}

// A deadline that the host has put on the request is the reason, wherever it is
// noticed.
func TestAStoreThatRunsIntoTheHostsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) {
			<-ctx.Done()
			return Bot{}, ctx.Err()
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false))).WithContext(ctx)
		r.Header.Set("Authorization", "Bearer "+testKey)
		w := httptest.NewRecorder()
		New(o).ServeHTTP(w, r)
		is.Equal(w.Code, 504)
		is.Equal(w.Body.String(), `{"detail":"The answer took too long"}`)
	})
}

// A trapContext panics when it is asked whether it is over.
type trapContext struct{ context.Context }

func (trapContext) Err() error { panic("a trap in the context") }

func TestAContextThatPanics(t *testing.T) {
	is := is.New(t)
	var log testLog
	o := testOptions(t, &log)
	o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { return Bot{}, context.Canceled }}
	r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)))
	r.Header.Set("Authorization", "Bearer "+testKey)
	w := httptest.NewRecorder()
	New(o).ServeHTTP(w, r.WithContext(trapContext{r.Context()}))
	is.Equal(w.Code, 500)
	is.True(strings.Contains(log.String(), "a trap in the context"))
}

// A slowDeadline is a connection whose body comes to an end when its read
// deadline passes, and which takes a second to set one.
type slowDeadline struct {
	*httptest.ResponseRecorder
	passed chan struct{}
	idle   bool
}

func (c *slowDeadline) SetReadDeadline(time.Time) error {
	c.idle = false
	close(c.passed)
	time.Sleep(time.Second)
	c.idle = true
	return nil
}

func (c *slowDeadline) Read([]byte) (int, error) {
	<-c.passed
	return 0, os.ErrDeadlineExceeded
}

// What ends the wait for a refused body is over before the handler returns.
func TestTheEndOfARefusedBodyIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		c := &slowDeadline{httptest.NewRecorder(), make(chan struct{}), false}
		New(testOptions(t, io.Discard)).ServeHTTP(c, httptest.NewRequest("POST", "/v1/chat", c))
		is.Equal(c.Code, 401)
		is.True(c.idle)
	})
}

// On HTTP/2 a refusal need not wait for what the client still sends.
func TestARefusalOnHTTP2WaitsForNoBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		server := serveInMemory(t, New(testOptions(t, io.Discard)), func(s *http.Server) { s.Protocols = clearTextHTTP2() })
		body, sending := io.Pipe()
		defer sending.Close()
		began := time.Now()
		r, err := http.NewRequestWithContext(t.Context(), "POST", "http://memory/v1/chat", body)
		is.NoErr(err)
		client := server.client()
		res, err := client.Do(r)
		is.NoErr(err)
		defer client.CloseIdleConnections()
		defer res.Body.Close()
		is.Equal(res.StatusCode, 401)
		is.Equal(time.Since(began), time.Duration(0))
	})
}

// A trapLog panics at each line.
type trapLog struct{ slog.Handler }

func (trapLog) Handle(context.Context, slog.Record) error { panic("a trap in the log") }

func TestALogThatPanicsSpoilsNoAnswer(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Logger = slog.New(trapLog{o.Logger.Handler()})
	o.MaxConcurrentChats = 1
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", errBroken) })
	h := New(o)
	for range 2 { // the second has the place of the first
		got := postChat(h, chatBodyJSON("hi", true))
		is.Equal(got.Code, 500)
		is.Equal(got.Body.String(), `{"detail":"Internal Server Error"}`)
	}
}

// An http3Writer is one of a server whose deadlines, each that passes, end a
// stream for good.
type http3Writer struct {
	*httptest.ResponseRecorder
	deadline  time.Time
	armed     bool
	unhurried bool // the time to read the request in is lifted
}

func (w *http3Writer) SetReadDeadline(at time.Time) error {
	w.unhurried = at.IsZero()
	return nil
}

func (w *http3Writer) SetWriteDeadline(at time.Time) error {
	w.deadline, w.armed = at, w.armed || !at.IsZero()
	return nil
}

// A host may serve the handler with a later protocol than net/http has.
func TestAProtocolAfterHTTP2(t *testing.T) {
	for _, c := range []struct {
		method, path, key string
		body              io.Reader
		status            int
	}{
		{"GET", "/v1/bots", testKey, nil, 200},
		{"POST", "/v1/chat", testKey, strings.NewReader(chatBodyJSON("hi", false)), 200},
		{"POST", "/v1/chat", "wrong", failingReader{t}, 401},
	} {
		is := is.New(t)
		r := httptest.NewRequest(c.method, c.path, c.body)
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/3.0", 3, 0
		r.Header.Set("Authorization", "Bearer "+c.key)
		w := &http3Writer{ResponseRecorder: httptest.NewRecorder()}
		New(testOptions(t, t.Output())).ServeHTTP(w, r)
		is.Equal(w.Code, c.status)
		is.True(w.armed)
		is.True(w.deadline.IsZero()) // it would end the stream
		is.Equal(w.unhurried, c.path == "/v1/chat" && c.status == 200)
	}
}

// A failingReader must not be read.
type failingReader struct{ t *testing.T }

func (r failingReader) Read([]byte) (int, error) {
	r.t.Error("read")
	return 0, io.EOF
}

// What middleware has put into the headers does not stand beside what the
// handler says.
func TestTheHandlersHeadersReplaceTheHosts(t *testing.T) {
	for _, c := range []struct {
		method, path, body, key string
		want                    map[string]string
	}{
		{"POST", "/v1/chat", chatBodyJSON("hi", false), testKey, map[string]string{"Content-Type": "application/json"}},
		{"POST", "/v1/chat", chatBodyJSON("hi", true), testKey, map[string]string{
			"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}},
		{"POST", "/v1/chat", "{}", testKey, map[string]string{"Content-Type": "application/json"}},
		{"POST", "/v1/chat", chatBodyJSON("busy", false), testKey, map[string]string{"Retry-After": "7"}},
		{"GET", "/v1/bots", "", testKey, map[string]string{"Cache-Control": "private, no-cache"}},
		{"GET", "/v1/bots", "", "wrong", map[string]string{"Www-Authenticate": `Bearer error="invalid_token"`}},
		{"GET", "/v1/chat", "", testKey, map[string]string{"Allow": "POST"}},
	} {
		is := is.New(t)
		o := testOptions(t, t.Output())
		o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
			if lastContent(req) == "busy" {
				yield("", StatusError{Status: 503, RetryAfter: 7 * time.Second})
			}
		})
		h := New(o)
		got := do(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Request-Id", "theirs")
			for name := range c.want {
				w.Header().Set(name, "theirs")
			}
			h.ServeHTTP(w, r)
		}), c.method, c.path, c.body, "X-Request-Id", "mine", "Authorization", "Bearer "+c.key)
		is.Equal(got.header["X-Request-Id"], []string{"mine"})
		for name, value := range c.want {
			is.Equal(got.header[name], []string{value})
		}
	}
}

// An addingWriter is middleware that adds to every header when it is sent.
type addingWriter struct{ *httptest.ResponseRecorder }

func (w addingWriter) WriteHeader(status int) {
	for name := range w.Header() {
		w.Header().Add(name, "theirs")
	}
	w.ResponseRecorder.WriteHeader(status)
}

// What a host adds to one header changes no other.
func TestAHostMayAddToTheHandlersHeaders(t *testing.T) {
	is := is.New(t)
	r := httptest.NewRequest("GET", "/v1/bots", nil)
	r.Header.Set("Authorization", "Bearer "+testKey)
	r.Header.Set("X-Request-Id", "mine")
	w := addingWriter{httptest.NewRecorder()}
	New(testOptions(t, t.Output())).ServeHTTP(w, r)
	is.Equal(w.Header()["X-Request-Id"], []string{"mine", "theirs"})
	is.Equal(w.Header()["Content-Type"], []string{"application/json", "theirs"})
	is.Equal(w.Header()["Content-Length"], []string{fmt.Sprint(w.Body.Len()), "theirs"})
}
