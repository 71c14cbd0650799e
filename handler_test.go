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
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestRoutes(t *testing.T) {
	server := httptest.NewServer(New(testOptions(t, t.Output())))
	defer server.Close()
	for _, c := range []struct {
		want  string // the start of the answer
		allow string
		lines []string
	}{
		{`200 [{"uid":"11111111-`, "", []string{
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
				got := sendRaw(t, server, lines(line+" HTTP/1.1", host, key, "Content-Length: 48")+echoBody)
				is.NoErr(got.err)
				is.True(strings.HasPrefix(fmt.Sprint(got.status, " ", got.body), c.want))
				is.Equal(got.header.Get("Allow"), c.allow)
				is.Equal(got.header.Get("Location"), "")
				is.Equal(got.header.Get("Content-Type"), "application/json")
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
		{"at the root", "/v1", h},
		{"without the version", "", h},
		{"as a subtree of a mux", "/v1", subtree},
		{"as two patterns of a mux", "/v1", patterns},
		{"behind a prefix", "/bots-api/v1", http.StripPrefix("/bots-api", h)},
		{"behind a prefix that takes the version", "/api", http.StripPrefix("/api", h)},
		{"behind a writer that unwraps", "/v1", wrapped(h)},
		{"behind a writer that hides everything", "/v1", way{hides: true}.mount(h)},
		{"behind a TimeoutHandler", "/v1", http.TimeoutHandler(h, time.Minute, "late")},
		{"behind CORS", "/v1", allowAnyOrigin(h)},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(do(t, c.handler, "GET", c.prefix+"/bots", "").body, listedBots)
			is.Equal(do(t, c.handler, "POST", c.prefix+"/chat", chatBodyJSON("hi", false)).body, `{"content":"hi"}`)
			stream := do(t, c.handler, "POST", c.prefix+"/chat", chatBodyJSON("hi", true))
			is.NoErr(stream.err)
			is.Equal(stream.body, "data: {\"content\":\"hi\"}\n\ndata: [DONE]\n\n")
			is.Equal(stream.header.Get("Content-Type"), "text/event-stream")
			is.Equal(do(t, c.handler, "POST", c.prefix+"/chat", "{}", "Authorization", "-").status, 401)
		})
	}
	is := is.New(t)
	refused := do(t, allowAnyOrigin(h), "POST", "/v1/chat", "{", "Origin", "https://a.example")
	is.Equal(refused.status, 422)
	is.Equal(refused.header.Get("Access-Control-Allow-Origin"), "*") // a refusal keeps the middleware's header
}

func wrapping(h http.Handler, wrap func(http.ResponseWriter) http.ResponseWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(wrap(w), r) })
}

func allowAnyOrigin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		h.ServeHTTP(w, r)
	})
}

// A deadlineNotes writer notes the deadlines that it is given.
type deadlineNotes struct {
	*httptest.ResponseRecorder
	read, write []time.Time
}

func (w *deadlineNotes) SetReadDeadline(at time.Time) error {
	w.read = append(w.read, at)
	return nil
}

func (w *deadlineNotes) SetWriteDeadline(at time.Time) error {
	w.write = append(w.write, at)
	return nil
}

// A host may serve the handler with a later protocol than net/http has. There, each
// deadline that passes ends a stream for good.
func TestRoutesOnHTTP3(t *testing.T) {
	for _, c := range []struct {
		method, path, key string
		body              io.Reader
		status            int
	}{
		{"GET", "/v1/bots", testKey, nil, 200},
		{"POST", "/v1/chat", testKey, strings.NewReader(chatBodyJSON("hi", false)), 200},
		{"POST", "/v1/chat", testKey, strings.NewReader(chatBodyJSON("hi", true)), 200},
		{"POST", "/v1/chat", "wrong", neverRead{t}, 401},
	} {
		is := is.New(t)
		r := newRequest(c.method, c.path, c.body, "Authorization", "Bearer "+c.key)
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/3.0", 3, 0
		w := &deadlineNotes{ResponseRecorder: httptest.NewRecorder()}
		New(testOptions(t, t.Output())).ServeHTTP(w, r)
		is.Equal(w.Code, c.status)
		is.True(slices.ContainsFunc(w.write, func(at time.Time) bool { return !at.IsZero() }))
		is.True(w.write[len(w.write)-1].IsZero())
		is.Equal(len(w.read) > 0, c.path == "/v1/chat" && c.status == 200) // the time to read the request in is lifted
	}
}

func TestNilPanics(t *testing.T) {
	newWith := func(change func(*Options)) func() {
		return func() {
			o := testOptions(t, t.Output())
			change(&o)
			New(o)
		}
	}
	for text, calls := range map[string][]func(){
		"New: Options.Bots is nil":          {newWith(func(o *Options) { o.Bots = nil }), newWith(func(o *Options) { o.Bots = (*MemoryStore)(nil) })},
		"New: Options.Keys is nil":          {newWith(func(o *Options) { o.Keys = nil }), newWith(func(o *Options) { o.Keys = KeyVerifierFunc(nil) })},
		"New: Options.Engine is nil":        {newWith(func(o *Options) { o.Engine = nil }), newWith(func(o *Options) { o.Engine = ChatEngineFunc(nil) })},
		"CacheKeys: the KeyVerifier is nil": {func() { CacheKeys(nil, time.Hour) }, func() { CacheKeys(KeyVerifierFunc(nil), time.Hour) }},
	} {
		for _, call := range calls {
			func() {
				defer func() { is.New(t).Equal(recover(), "botapi: "+text) }()
				call()
			}()
		}
	}
}

func TestNewDefaultLogger(t *testing.T) {
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

func TestBodyLimit(t *testing.T) {
	for _, c := range []struct {
		limit        int64
		size, status int
	}{
		{0, 1 << 20, 200}, {0, 1<<20 + 1, 413},
		{-1, 1 << 20, 200}, {-1, 1<<20 + 1, 413},
		{1, 1, 422}, {1, 2, 413}, // the smallest is not taken for none
		{100, 100, 200}, {100, 101, 413},
		{8 << 10, 8 << 10, 200}, {8 << 10, 8<<10 + 1, 413},
		{3 << 20, 3 << 20, 200}, {3 << 20, 3<<20 + 1, 413},
		{math.MaxInt64, 2 << 20, 200},
	} {
		for _, announced := range []int64{int64(c.size), -1} {
			t.Run(fmt.Sprintf("%d bytes of %d, announced as %d", c.size, c.limit, announced), func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				o.MaxBodyBytes = c.limit
				body := (chatBodyJSON("hi", false) + strings.Repeat(" ", c.size))[:c.size]
				r := newRequest("POST", "/v1/chat", strings.NewReader(body))
				r.ContentLength = announced
				is.Equal(record(New(o), r).Code, c.status)
			})
		}
	}
}

// A limit that is reached is no failure: one line each, which nobody is woken by.
func TestLogOfLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limit func(*Options)
		body  string
		error string
	}{
		"all chats":      {func(o *Options) { o.MaxConcurrentChats = 1 }, chatBodyJSON("hi", false), "503 Too many chats in progress"},
		"of one account": {func(o *Options) { o.MaxChatsPerAccount = 1 }, chatBodyJSON("hi", true), "429 Too many chats in progress for this key"},
		"bytes":          {func(o *Options) { o.MaxBodyBytes = 100 }, strings.Repeat(" ", 101), "413 Request body too large"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var log bytes.Buffer
			o := testOptions(t, &log)
			c.limit(&o)
			var h http.Handler
			o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
				for range 3 {
					record(h, newRequest("POST", "/v1/chat", strings.NewReader(c.body), "X-Request-Id", "r"))
				}
			})
			h = New(o)
			is.Equal(postChat(h, chatBodyJSON("hi", false)).Code, 200)
			lines := regexp.MustCompile("(?m)^time=[^ ]* ").ReplaceAllString(log.String(), "")
			is.Equal(lines, strings.Repeat("level=INFO msg=\"request refused\" request_id=r error=\""+c.error+"\"\n", 3))
		})
	}
}

// Many clients read nothing before they have sent everything: a refusal that does
// not take what they send is lost to a reset. So it is taken, within bounds of size
// and time. A list has no use for a body, either. Here no buffer of the system takes
// it in the handler's stead.
func TestBodyRest(t *testing.T) {
	const silent = "Content-Length: 999999999"
	refused, tooLarge := `401 {"detail":"Not authenticated"}`, `413 {"detail":"Request body too large"}`
	notFound, notAllowed := `404 {"detail":"Not Found"}`, `405 {"detail":"Method Not Allowed"}`
	listed, last := "200 "+listedBots, lines(listLine, host, key, closing)
	long := strings.Repeat(" ", 7<<19) // 3.5 MiB
	length, chunked, tooMuch := fmt.Sprint("Content-Length: ", len(long)), "Transfer-Encoding: chunked", strings.Repeat(" ", 64<<20)
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(long), long)
	for name, c := range map[string]struct {
		send        string
		readTimeout time.Duration // the server's
		want        []string      // the answers
		took        time.Duration
	}{
		"too large":                       {lines(chatLine, host, key, length) + long + last, 0, []string{tooLarge, listed}, 0},
		"too large, in chunks":            {lines(chatLine, host, key, chunked) + chunks + last, 0, []string{tooLarge, listed}, 0},
		"too large, and silent":           {lines(chatLine, host, key, chunked) + "100001\r\n" + long[:1<<20+1], time.Hour, []string{tooLarge}, discardTime},
		"too large, behind 100 Continue":  {lines(chatLine, host, key, "Expect: 100-continue", chunked) + chunks + last, 0, []string{"100 ", tooLarge, listed}, 0},
		"too large, on HTTP/1.0":          {lines("POST /v1/chat HTTP/1.0", key, "Expect: 100-continue", length) + long, 0, []string{tooLarge}, 0},
		"without a key":                   {lines(chatLine, host, length) + long + last, 0, []string{refused, listed}, 0},
		"without a key, in chunks":        {lines(chatLine, host, chunked) + chunks + last, 0, []string{refused, listed}, 0},
		"without a key, on HTTP/1.0":      {lines("POST /v1/chat HTTP/1.0", "Expect: 100-continue", length) + long, 0, []string{refused}, 0},
		"without a key, and endless":      {lines(chatLine, host, silent) + tooMuch, 0, []string{refused}, 0},
		"without a key, and silent":       {lines(chatLine, host, silent) + "x", 0, []string{refused}, discardTime},
		"without a key, and out of time":  {lines(chatLine, host, silent) + "x", time.Second, []string{refused}, time.Second},
		"wrong path":                      {lines("POST /v1/chats HTTP/1.1", host, key, length) + long + last, 0, []string{notFound, listed}, 0},
		"wrong method":                    {lines("PUT /v1/bots HTTP/1.1", host, key, length) + long + last, 0, []string{notAllowed, listed}, 0},
		"out of time":                     {lines(chatLine, host, key, "Content-Length: 100") + `{"bot`, 20 * time.Second, []string{`408 {"detail":"Request body did not arrive in time"}`}, 20 * time.Second},
		"a list":                          {lines(listLine, host, key, "Content-Length: 10") + long[:10] + last, 0, []string{listed, listed}, 0},
		"a list, and silent":              {lines(listLine, host, key, "Content-Length: 10"), 0, []string{listed}, discardTime},
		"a list, silent for long":         {lines(listLine, host, key, silent), time.Hour, []string{listed}, discardTime},
		"a list, silent between chunks":   {lines(listLine, host, key, chunked), 0, []string{listed}, discardTime},
		"a list, out of time":             {lines(listLine, host, key, "Content-Length: 10"), time.Second, []string{listed}, time.Second},
		"a list, waiting for 100":         {lines(listLine, host, key, "Content-Length: 10", "Expect: 100-continue"), 0, []string{listed}, 0},
		"a list that is the same, silent": {lines(listLine, host, key, "Content-Length: 10", "If-None-Match: *"), 0, []string{"304 "}, discardTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				conn := serveInMemory(t, New(testOptions(t, t.Output())), func(s *http.Server) { s.ReadTimeout = c.readTimeout }).dial()
				defer conn.Close()
				start, sent := time.Now(), make(chan int, 1)
				go func() {
					n, _ := io.WriteString(conn, c.send)
					sent <- n
				}()
				from := bufio.NewReader(conn)
				for _, want := range c.want {
					got := readAnswer(t, from, "GET")
					is.NoErr(got.err)
					is.Equal(fmt.Sprint(got.status, " ", got.body), want)
				}
				is.Equal(time.Since(start), c.took)
				rest, err := io.ReadAll(from)
				is.NoErr(err) // the server has closed the connection
				is.Equal(len(rest), 0)
				is.True(time.Since(start) < c.took+time.Second) // and waits for no more
				if taken := <-sent; len(c.send) > len(tooMuch) {
					is.True(taken < 5<<20)
				} else {
					is.Equal(taken, len(c.send))
				}
			})
		})
	}
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
func TestBodyRestIsReadToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		c := &slowDeadline{httptest.NewRecorder(), make(chan struct{}), false}
		New(testOptions(t, io.Discard)).ServeHTTP(c, httptest.NewRequest("POST", "/v1/chat", c))
		is.Equal(c.Code, 401)
		is.True(c.idle)
	})
}

// On HTTP/2 a refusal need not wait for what the client still sends.
func TestBodyRestIsNotReadOnHTTP2(t *testing.T) {
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

// http.NewRequest gives a request without a body no Body, as hosts' tests do.
func TestBodyNil(t *testing.T) {
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
		r := newRequest(c.method, c.path, nil, "Authorization", "Bearer "+c.key)
		r.Body = nil
		is.Equal(record(New(testOptions(t, io.Discard)), r).Code, c.status)
	}
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

// Middleware that unpacks a body leaves its announced length; and a reader may
// return nothing for once.
func TestBodyIsReadToItsEnd(t *testing.T) {
	is := is.New(t)
	body := `{"bot_slug":"echo","stream":false,"prompt":"` + strings.Repeat("x", 20<<10) + `"}`
	for _, length := range []int64{-1, 0, 10, bodyChunk, 16 << 10, int64(len(body)), int64(len(body)) + 1000} {
		r := newRequest("POST", "/v1/chat", &hesitantReader{from: strings.NewReader(body)})
		r.ContentLength = length
		got := record(New(testOptions(t, t.Output())), r)
		is.Equal(got.Code, 200)
		is.Equal(got.Body.Len(), len(`{"content":""}`)+20<<10)
	}
}

// What a client announces of its body is not believed before some has come.
func TestBodyAnnouncedCostsNothing(t *testing.T) {
	is := is.New(t)
	h := New(testOptions(t, t.Output()))
	r := newRequest("POST", "/v1/chat", io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)))
	r.ContentLength = DefaultMaxBodyBytes
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := record(h, r)
	runtime.ReadMemStats(&after)
	is.Equal(got.Code, 400)
	is.True(after.TotalAlloc-before.TotalAlloc < DefaultMaxBodyBytes/2)
}

// A faultyBody is one of the host's middleware.
type faultyBody func() error

func (b faultyBody) Read([]byte) (int, error) { return 0, b() }

// Whatever the host's body does, its request alone suffers. Errors and panics may
// quote what was read: only those that are known are logged.
func TestBodyFails(t *testing.T) {
	for name, c := range map[string]struct {
		read   faultyBody
		status int // of a chat; 0: none, the connection is cut
		logged string
	}{
		"a panic":            {func() error { panic("Bearer " + testKey) }, 500, "panic while reading the request body: string"},
		"a panic's error":    {func() error { panic(textproto.ProtocolError(testKey)) }, 500, "panic while reading the request body: textproto.ProtocolError"},
		"an order to cut":    {func() error { panic(http.ErrAbortHandler) }, 0, ""},
		"an error":           {func() error { return fmt.Errorf("unpacking %q", testKey) }, 400, "reading the request body: *"},
		"an end too early":   {func() error { return io.ErrUnexpectedEOF }, 400, io.ErrUnexpectedEOF.Error()},
		"a deadline":         {func() error { return fmt.Errorf("unpacking: %w", os.ErrDeadlineExceeded) }, 408, "timeout"},
		"a limit of its own": {func() error { return &http.MaxBytesError{Limit: 10} }, 413, "http: request body too large"}, // the answer does not say whose limit it was
		"runtime.Goexit":     {func() error { runtime.Goexit(); return nil }, 0, ""},
	} {
		for _, request := range []struct {
			method, path string
			status       int
		}{{"POST", "/v1/chat", c.status}, {"PUT", "/v1/bots", 405}} {
			t.Run(name+", "+request.method, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					var log testLog
					w := &deadlineNotes{ResponseRecorder: httptest.NewRecorder()}
					ended := make(chan any)
					go func() {
						defer func() { ended <- recover() }()
						New(testOptions(t, &log)).ServeHTTP(w, newRequest(request.method, request.path, c.read))
					}()
					escaped := <-ended
					set := len(w.read)
					time.Sleep(2 * discardTime)
					is.Equal(len(w.read), set) // nothing is left that would end the connection's next request
					is.True(!strings.Contains(log.String(), testKey))
					switch {
					case name == "runtime.Goexit":
					case request.status == 0:
						is.Equal(escaped, http.ErrAbortHandler)
					default:
						is.Equal(escaped, nil)
						is.Equal(w.Code, request.status)
						is.True(request.method != "POST" || strings.Contains(log.String(), c.logged))
					}
				})
			})
		}
	}
}

// net/http quotes what it cannot read. Nothing of that gets into a log, whatever
// part of a request holds the key or the text of a chat.
func TestLogQuotesNoClient(t *testing.T) {
	const text = "the text of a chat"
	var log testLog
	server := serveLogged(New(testOptions(t, &log)), &log)
	chunked := lines(chatLine, host, key, "Transfer-Encoding: chunked", closing)
	unread := 0 // bodies
	for name, request := range map[string]string{
		"a body behind the last chunk": chunked + "0\r\n" + chatBodyJSON(text, false) + "\r\n\r\n",
		"a key behind the last chunk":  chunked + "0\r\n " + key + "\r\n\r\n",
		"a trailer without a colon":    chunked + "0\r\n" + text + "\r\n\r\n",
		"a trailer without an end":     chunked + "0\r\nX-Text: " + strings.Repeat(text, 1000),
		"a body for a chunk's size":    chunked + text + "\r\n",
		"a body for a chunk's end":     chunked + "1\r\n{" + text + "\r\n0\r\n\r\n",
		"a body that breaks off":       lines(chatLine, host, key, "Content-Length: 1000") + chatBodyJSON(text, false),
		"a host":                       lines(listLine, "Host: "+text+testKey, key),
		"a path":                       lines("GET /"+testKey+"/%zz HTTP/1.1", host, key),
		"a query":                      lines("GET /v1/bots?"+testKey+";%zz HTTP/1.1", host, key, closing),
		"a header without a colon":     lines(listLine, host, key, text),
		"a length":                     lines(chatLine, host, key, "Content-Length: "+text),
		"a coding":                     lines(chatLine, host, key, "Transfer-Encoding: "+text),
	} {
		t.Run(name, func(t *testing.T) {
			answers, _ := converse(t, server, request)
			is.New(t).Equal(len(answers), 1)
			if strings.HasPrefix(request, chatLine) && strings.Contains(answers[0], "detail") {
				unread++
			}
		})
	}
	server.Close()
	is := is.New(t)
	is.True(!strings.Contains(log.String(), testKey))
	is.True(!strings.Contains(log.String(), text))
	is.Equal(strings.Count(log.String(), "reading the request body"), unread)
}

// Each request is wrong in everything that comes later, too.
func TestChecksInOrder(t *testing.T) {
	const good, unknownBot, invalid = `{"bot_slug":"echo","prompt":"p","stream":false}`, `{"bot_slug":"nobody","prompt":"p","stream":false}`, `{"bot_slug":"nobody"}`
	tooLarge := invalid + strings.Repeat(" ", 200)
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine := newHeldEngine(t)
		o := testOptions(t, t.Output())
		o.MaxBodyBytes, o.MaxConcurrentChats, o.Engine = 100, 1, engine
		h := New(o)
		go postChat(h, good)
		synctest.Wait() // it has the place
		for _, c := range []struct {
			method, path, key, body string
			status                  int
		}{
			{"PUT", "/v1/none", "wrong", tooLarge, 404},
			{"PUT", "/v1/chat", "wrong", tooLarge, 405},
			{"POST", "/v1/chat", "wrong", tooLarge, 401},
			{"POST", "/v1/chat", testKey, tooLarge, 413},
			{"POST", "/v1/chat", testKey, invalid, 422},
			{"POST", "/v1/chat", testKey, unknownBot, 404},
			{"POST", "/v1/chat", testKey, good, 503},
		} {
			got := record(h, newRequest(c.method, c.path, strings.NewReader(c.body), "Authorization", "Bearer "+c.key))
			is.Equal(got.Code, c.status)
		}
	})
}

// neverRead is a body that must not be touched.
type neverRead struct{ t testing.TB }

func (b neverRead) Read([]byte) (int, error) {
	b.t.Error("the body is read before the key has been found good")
	return 0, io.EOF
}

func TestChecksKeyBeforeBody(t *testing.T) {
	is := is.New(t)
	asked := false
	o := testOptions(t, t.Output())
	o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
		asked = true
		return "", http.ErrAbortHandler // a refusal without an answer takes nothing of the body either
	})
	is.True(serveRequest(httptest.NewRecorder(), New(o), newRequest("POST", "/v1/chat", neverRead{t}))) // cut
	is.True(asked)
}

func TestRequestIDs(t *testing.T) {
	made := regexp.MustCompile(`^[0-9A-Za-z]{16,32}$`)
	const everyByte = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	kept := [][]string{{"x"}, {everyByte}, {strings.Repeat("i", 128)}, {"first", "second"}}
	replaced := [][]string{nil, {""}, {strings.Repeat("i", 129)}, {"a b"}, {"a\tb"}, {"é"}, {"\xff"}, {"a\x7f"}, {"a\nb"}, {"\x00"}}
	for i, sent := range append(kept, replaced...) {
		t.Run(fmt.Sprintf("%.40q", sent), func(t *testing.T) {
			is := is.New(t)
			var seen []string
			see := func(ctx context.Context) { seen = append(seen, RequestIDFrom(ctx)+" of "+AccountFrom(ctx)) }
			var log testLog
			o := testOptions(t, &log)
			o.Keys = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { see(ctx); return testAccount, nil })
			o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) { see(ctx); return echoBot, nil }}
			o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				see(ctx)
				yield("", errBroken)
			})
			r := newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)))
			r.Header["X-Request-Id"] = sent
			got := record(New(o), r)
			is.Equal(got.Code, 500)
			is.Equal(len(got.Header()["X-Request-Id"]), 1)
			id := got.Header().Get("X-Request-Id")
			is.True(i < len(kept) && id == sent[0] || i >= len(kept) && made.MatchString(id))
			is.Equal(seen, []string{id + " of ", id + " of acme", id + " of acme"}) // the verifier has yet to say whose it is
			is.True(strings.Contains(log.String(), "request_id="+id) || strings.Contains(log.String(), "request_id="+strconv.Quote(id)))
		})
	}
	t.Run("made ones differ", func(t *testing.T) {
		is := is.New(t)
		h := New(testOptions(t, t.Output()))
		one := record(h, newRequest("GET", "/", nil)).Header().Get("X-Request-Id")
		varies := make([]bool, len(one))
		for range 200 {
			for i, other := range []byte(record(h, newRequest("GET", "/", nil)).Header().Get("X-Request-Id")) {
				varies[i] = varies[i] || other != one[i]
			}
		}
		is.True(!slices.Contains(varies, false)) // all of it is random
	})
	t.Run("other contexts have none", func(t *testing.T) {
		is := is.New(t)
		is.Equal(RequestIDFrom(t.Context()), "")
		is.Equal(AccountFrom(t.Context()), "")
	})
}

// A hostPart is one of the host's that fails, with what an error or a panic of fail
// says, in a chat or a list.
type hostPart struct {
	name               string
	method, path, body string
	install            func(o *Options, fail func(context.Context) error)
}

var hostParts = []hostPart{
	{"verifier", "POST", "/v1/chat", chatBodyJSON("hi", false), func(o *Options, fail func(context.Context) error) {
		o.Keys = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { return "", fail(ctx) })
	}},
	{"cached verifier", "POST", "/v1/chat", chatBodyJSON("hi", false), func(o *Options, fail func(context.Context) error) {
		o.Keys = CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) { return "", fail(ctx) }), time.Hour)
	}},
	{"store", "POST", "/v1/chat", chatBodyJSON("hi", false), func(o *Options, fail func(context.Context) error) {
		o.Bots = &fakeStore{bySlug: func(ctx context.Context, _ string) (Bot, error) { return Bot{}, fail(ctx) }}
	}},
	{"store's list", "GET", "/v1/bots", "", func(o *Options, fail func(context.Context) error) {
		o.Bots = &fakeStore{bots: func(ctx context.Context) ([]Bot, error) { return []Bot{echoBot}, fail(ctx) }}
	}},
	{"engine", "POST", "/v1/chat", chatBodyJSON("hi", false), failingEngine},
	{"engine, in a stream", "POST", "/v1/chat", chatBodyJSON("hi", true), failingEngine},
	{"engine, when it is called", "POST", "/v1/chat", chatBodyJSON("hi", true), func(o *Options, fail func(context.Context) error) {
		o.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
			err := fail(ctx)
			return func(yield func(string, error) bool) { yield("", err) }
		})
	}},
}

func failingEngine(o *Options, fail func(context.Context) error) {
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) { yield("", fail(ctx)) })
}

// play has the part fail, and returns what the client and the log saw.
func (p hostPart) play(t *testing.T, fail func(context.Context) error) (got answered, log string) {
	var logged testLog
	reports := []ChatReport{}
	o := testOptions(t, &logged)
	p.install(&o, fail)
	o.OnChat = func(_ context.Context, r ChatReport) { reports = append(reports, r) }
	got = do(t, New(o), p.method, p.path, p.body, "X-Request-Id", "one-of-many")
	for _, report := range reports {
		is.New(t).Equal(report.Status, got.status)
	}
	return got, logged.String()
}

// What a host's error becomes is the same wherever it comes from.
func TestErrorResponseOfTheHost(t *testing.T) {
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
		{"half a second", StatusError{Status: 503, Detail: "x", RetryAfter: time.Second / 2}, 503, "x", http.Header{"Retry-After": {"1"}}, true},
		{"a whole minute", StatusError{Status: 503, Detail: "x", RetryAfter: time.Minute}, 503, "x", http.Header{"Retry-After": {"60"}}, true},
		{"a nanosecond more", StatusError{Status: 503, Detail: "x", RetryAfter: time.Minute + 1}, 503, "x", http.Header{"Retry-After": {"61"}}, true},
		{"for ever", StatusError{Status: 503, Detail: "x", RetryAfter: math.MaxInt64}, 503, "x", http.Header{"Retry-After": {"9223372037"}}, true},
		{"a pause, whatever the status", StatusError{Status: 402, Detail: "x", RetryAfter: time.Hour}, 402, "x", http.Header{"Retry-After": {"3600"}}, true},
		{"a pause with a cause", StatusError{Status: 503, Detail: "x", RetryAfter: time.Minute, Err: cause}, 503, "x", http.Header{"Retry-After": {"60"}}, true},
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
	} {
		for _, part := range hostParts {
			t.Run(c.name+" from the "+part.name, func(t *testing.T) {
				is := is.New(t)
				got, log := part.play(t, func(context.Context) error { return c.err })
				is.NoErr(got.err)
				is.Equal(got.status, c.status)
				is.Equal(got.header.Get("Content-Type"), "application/json")
				is.Equal(decodedJSON(t, got.body), map[string]any{"detail": c.detail})
				is.Equal(got.header["Retry-After"], c.header["Retry-After"])
				is.Equal(got.header["Www-Authenticate"], c.header["Www-Authenticate"])
				is.True(!strings.Contains(got.body+fmt.Sprint(got.header), "10.0.0.7"))
				if c.logged {
					is.True(strings.Contains(log, "10.0.0.7") || strings.Contains(log, c.detail))
					is.True(strings.Contains(log, " request_id=one-of-many error="))
				}
				limit := c.header["Retry-After"] != nil && !strings.Contains(log, "10.0.0.7") // the host's, without a cause
				is.Equal(strings.Contains(log, "level=ERROR"), c.status >= 500 && !limit)
				is.Equal(log != "", c.logged || c.status >= 500)
			})
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

type faultyJSON struct{}

func (faultyJSON) MarshalJSON() ([]byte, error) { panic("a bug in the host") }

// Panics, orders to cut, lists of what is invalid, and errors that are faulty
// themselves mean the same wherever they come from, too.
func TestErrorResponseOfAPanic(t *testing.T) {
	const internal, reading = `{"detail":"Internal Server Error"}`, "panic while reading an error: "
	const invalid = `{"detail":[{"loc":["body","tools",0,"<name>"],"msg":"unknown tool","type":"value_error.tool"}]}`
	problem := ValidationError{Loc: []any{"body", "tools", 0, "<name>"}, Msg: "unknown tool", Type: "value_error.tool"}
	list := HTTPValidationError{[]ValidationError{problem}}
	noPlace := []ValidationError{{Msg: "unknown tool", Type: "value_error.tool"}}
	panics := func(value any) func() error { return func() error { panic(value) } }
	returns := func(err error) func() error { return func() error { return err } }
	trapped := func(trap string) func() error {
		return returns(fmt.Errorf("wrapped: %w", &StatusError{Status: 418, Err: trapError{trap}}))
	}
	for name, c := range map[string]struct {
		fail   func() error
		status int // 0: no answer
		body   string
		logged string // "": nothing is
	}{
		"a panic with a text":                    {panics("no table bots"), 500, internal, "panic while "},
		"a panic with an error":                  {panics(errors.New("no table bots")), 500, internal, "panic while "},
		"a panic with a StatusError":             {panics(StatusError{Status: 418, Detail: "no table bots"}), 500, internal, "panic while "},
		"a panic with a sentinel":                {panics(ErrBotNotFound), 500, internal, "panic while "},
		"a panic around an abort":                {panics(fmt.Errorf("no table bots: %w", http.ErrAbortHandler)), 500, internal, "panic while "},
		"a panic that cannot be compared":        {panics([]string{"no table bots"}), 500, internal, "panic while "},
		"a panic with nil":                       {panics(nil), 500, internal, "panic while "},
		"an index out of range":                  {func() error { var bots []Bot; _ = bots[len(testKey)]; return nil }, 500, internal, "panic while "},
		"a nil pointer":                          {func() error { var r *ChatRequest; _ = r.Bot; return nil }, 500, internal, "panic while "},
		"an abort":                               {panics(http.ErrAbortHandler), 0, "", ""},
		"an abort that is returned":              {returns(fmt.Errorf("proxy: %w", http.ErrAbortHandler)), 0, "", ""},
		"a list":                                 {returns(list), 422, invalid, ""},
		"a pointer to a list":                    {returns(&list), 422, invalid, ""},
		"a wrapped list":                         {returns(fmt.Errorf("tools: %w", list)), 422, invalid, ""},
		"a wrapped pointer to a list":            {returns(fmt.Errorf("tools: %w", &list)), 422, invalid, ""},
		"a list without problems":                {returns(HTTPValidationError{}), 422, `{"detail":[]}`, ""},
		"a list without a place":                 {returns(HTTPValidationError{noPlace}), 422, `{"detail":[{"loc":[],"msg":"unknown tool","type":"value_error.tool"}]}`, ""},
		"a list that has no JSON form":           {returns(HTTPValidationError{[]ValidationError{{Loc: []any{make(chan int)}}}}), 500, internal, "unsupported type: chan int"},
		"a list whose JSON form panics":          {returns(HTTPValidationError{[]ValidationError{{Loc: []any{faultyJSON{}}}}}), 500, internal, reading + "a bug in the host"},
		"a list beside a StatusError":            {returns(errors.Join(list, StatusError{Status: 502})), 502, `{"detail":"Bad Gateway"}`, "unknown tool"},
		"a list that is a StatusError's cause":   {returns(StatusError{Status: 502, Err: list}), 502, `{"detail":"Bad Gateway"}`, "unknown tool"},
		"a trap in Error":                        {returns(trapError{"Error"}), 500, internal, reading + "a trap in Error"},
		"a trap in Is":                           {returns(trapError{"Is"}), 500, internal, reading + "a trap in Is"},
		"a trap in Is, behind a StatusError":     {trapped("Is"), 500, internal, reading + "a trap in Is"},
		"a trap in As":                           {returns(trapError{"As"}), 500, internal, reading + "a trap in As"},
		"a trap in As, behind a StatusError":     {trapped("As"), 500, internal, reading + "a trap in As"},
		"an As that lies":                        {returns(trapError{"As, which lies"}), 500, internal, reading + "an As that returns true has set nothing"},
		"an As that lies, behind a StatusError":  {trapped("As, which lies"), 500, internal, reading + "an As that returns true has set nothing"},
		"a trap in Unwrap":                       {returns(trapError{"Unwrap"}), 500, internal, reading + "a trap in Unwrap"},
		"a trap in Unwrap, behind a StatusError": {trapped("Unwrap"), 500, internal, reading + "a trap in Unwrap"},
	} {
		for _, part := range hostParts {
			t.Run(name+" in the "+part.name, func(t *testing.T) {
				is := is.New(t)
				got, log := part.play(t, func(context.Context) error { return c.fail() })
				is.Equal(got.status, c.status)
				if c.status == 0 {
					is.True(errors.Is(got.err, io.EOF)) // not even a head
				} else {
					is.Equal(got.header.Get("Content-Type"), "application/json")
					is.Equal(decodedJSON(t, got.body), decodedJSON(t, c.body))
				}
				is.Equal(log != "", c.logged != "")
				is.True(strings.Contains(log, c.logged))
				if c.logged == "panic while " {
					is.True(!strings.Contains(log, "panic while :"))
					is.True(strings.Contains(log, " request_id=one-of-many"))
					is.True(strings.Contains(log, " stack="))
					is.True(strings.Contains(log, "handler_test.go")) // the stack, from where it began
				}
			})
		}
	}
	is.New(t).Equal(noPlace[0].Loc, nil) // the host's own is not changed
}

func TestErrorTexts(t *testing.T) {
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

var nilIterator = ChatEngineFunc(func(context.Context, *ChatRequest) iter.Seq2[string, error] { return nil })

// What a host ends a request with is its answer, whichever part notices. A client
// that leaves is nobody's failure, nor is an order to cut.
func TestHostEndsARequestInEachPart(t *testing.T) {
	for cause, want := range map[error]string{
		errBroken: `503 {"detail":"Service Unavailable"}`,
		StatusError{Status: 402, Detail: "Pay first"}: `402 {"detail":"Pay first"}`,
		context.DeadlineExceeded:                      `504 {"detail":"The answer took too long"}`,
		context.Canceled:                              "cut",
		http.ErrAbortHandler:                          "cut",
	} {
		for _, part := range hostParts {
			t.Run(fmt.Sprint(cause, ", in the ", part.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					var log testLog
					began, told := time.Now(), make(chan time.Duration, 1)
					o := testOptions(t, &log)
					part.install(&o, func(ctx context.Context) error {
						<-ctx.Done()
						told <- time.Since(began)
						return fmt.Errorf("asking the database: %w", ctx.Err())
					})
					o.OnChat = func(_ context.Context, r ChatReport) {
						if answer, _ := errors.AsType[StatusError](r.Err); answer.Status != r.Status || !errors.Is(r.Err, cause) {
							t.Error(r.Status, r.Err)
						}
					}
					ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
					defer cancel()
					w := httptest.NewRecorder()
					cut := serveRequest(w, New(o), newRequest(part.method, part.path, strings.NewReader(part.body)).WithContext(ctx))
					is.Equal(<-told, time.Second)
					is.Equal(cut, want == "cut")
					if cut {
						is.Equal(w.Body.Len(), 0)
						is.Equal(log.String(), "")
					} else {
						is.Equal(fmt.Sprint(w.Code, " ", w.Body), want)
					}
				})
			})
		}
	}
}

// A client that does not read has stalled, though ChatTimeout passes meanwhile: a
// write that is under way then still has its WriteTimeout.
func TestChatTimeoutDuringAStalledWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan ChatReport, 1)
		o := testOptions(t, t.Output())
		o.ChatTimeout = time.Second
		o.Engine = fragmentsOf(strings.Repeat("x", 3*maxPart))
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		conn := serveInMemory(t, New(o)).dial()
		defer conn.Close()
		is := is.New(t)
		is.NoErr(chatRequest(t, "http://memory", "hi", false).Write(conn))
		report := <-reports
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.True(report.Duration >= DefaultWriteTimeout)
	})
}

// A trapContext panics when it is asked whether it is over.
type trapContext struct{ context.Context }

func (trapContext) Err() error { panic("a trap in the context") }

func TestHostContextPanics(t *testing.T) {
	is := is.New(t)
	var log testLog
	o := testOptions(t, &log)
	o.Bots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { return Bot{}, context.Canceled }}
	r := newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)))
	is.Equal(record(New(o), r.WithContext(trapContext{r.Context()})).Code, 500)
	is.True(strings.Contains(log.String(), "a trap in the context"))
}

// A trapLog panics at each line.
type trapLog struct{ slog.Handler }

func (trapLog) Handle(context.Context, slog.Record) error { panic("a trap in the log") }

func TestLoggerPanics(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Logger = slog.New(trapLog{o.Logger.Handler()})
	o.MaxConcurrentChats = 1
	failingEngine(&o, func(context.Context) error { return errBroken })
	h := New(o)
	for range 2 { // the second has the place of the first
		got := postChat(h, chatBodyJSON("hi", true))
		is.Equal(got.Code, 500)
		is.Equal(got.Body.String(), `{"detail":"Internal Server Error"}`)
	}
}

// What middleware has put into the headers does not stand beside what the
// handler says.
func TestHeadersReplaceTheHosts(t *testing.T) {
	busy := chatBodyJSON("busy", false)
	for _, c := range []struct {
		method, path, body, key string
		want                    map[string]string
	}{
		{"POST", "/v1/chat", chatBodyJSON("hi", false), testKey, map[string]string{"Content-Type": "application/json"}},
		{"POST", "/v1/chat", chatBodyJSON("hi", true), testKey, map[string]string{
			"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}},
		{"POST", "/v1/chat", "{}", testKey, map[string]string{"Content-Type": "application/json"}},
		{"POST", "/v1/chat", busy, testKey, map[string]string{"Retry-After": "7"}},
		{"GET", "/v1/bots", "", testKey, map[string]string{"Cache-Control": "private, no-cache"}},
		{"HEAD", "/v1/bots", "", testKey, map[string]string{"Cache-Control": "private, no-cache"}},
		{"GET", "/v1/bots", "", "wrong", map[string]string{"Www-Authenticate": `Bearer error="invalid_token"`}},
		{"GET", "/v1/chat", "", testKey, map[string]string{"Allow": "POST"}},
		{"GET", "/", "", testKey, map[string]string{"Content-Type": "application/json"}},
	} {
		is := is.New(t)
		o := testOptions(t, t.Output())
		if c.body == busy {
			failingEngine(&o, func(context.Context) error { return StatusError{Status: 503, RetryAfter: 7 * time.Second} })
		}
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
func TestHeadersMayBeAddedTo(t *testing.T) {
	is := is.New(t)
	w := addingWriter{httptest.NewRecorder()}
	New(testOptions(t, t.Output())).ServeHTTP(w, newRequest("GET", "/v1/bots", nil, "X-Request-Id", "mine"))
	is.Equal(w.Header()["X-Request-Id"], []string{"mine", "theirs"})
	is.Equal(w.Header()["Content-Type"], []string{"application/json", "theirs"})
	is.Equal(w.Header()["Content-Length"], []string{fmt.Sprint(w.Body.Len()), "theirs"})
}
