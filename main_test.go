package botapi

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestMain fails a run that leaves a goroutine behind.
//
// The load benchmarks start the test binary again, as a server.
func TestMain(m *testing.M) {
	if kind := os.Getenv(loadServerVariable); kind != "" {
		serveLoad(kind)
		return
	}
	if !slices.ContainsFunc(os.Args, func(arg string) bool { return strings.HasPrefix(arg, "-test.fuzz=") }) { // whose workers are as many
		// Tests that wait for proxies and other programs run beside those that compute.
		_ = flag.Set("test.parallel", "8") // unless the command line has -parallel
	}
	code := m.Run()
	if leaked := leakedGoroutines(); code == 0 && leaked != "" {
		fmt.Fprintf(os.Stderr, "goroutines left behind:\n\n%s\n", leaked)
		code = 1
	}
	os.Exit(code)
}

// leakedGoroutines waits up to five seconds for goroutines to end, and returns the
// stacks of those that do not, except the calling one and the runtime's.
func leakedGoroutines() string {
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	var leaked []string
	for range 100 {
		leaked = nil
		buffer := make([]byte, 1<<20)
		stacks := strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n")
		for _, stack := range stacks[1:] {
			if !strings.Contains(stack, "os/signal.loop") {
				leaked = append(leaked, stack)
			}
		}
		if len(leaked) == 0 {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	return strings.Join(leaked, "\n\n")
}

// The key and account of testOptions.
const (
	testKey     = "key-of-acme"
	testAccount = "acme"
)

var (
	echoBot = Bot{
		UID:            "11111111-1111-4111-8111-111111111111",
		Slug:           "echo",
		Name:           "Echo",
		Description:    "Says what it hears",
		WelcomeMessage: "Hello!\nSay something.",
		Model:          "echo-1",
		AvatarURL:      "https://bots.example.com/echo.png",
	}
	otherBot = Bot{UID: "2b22c2d2-2222-4222-8222-22222222abcd", Slug: "Other", Name: "Other", Model: "echo-1"}
)

// testOptions returns options with two bots, one key, and an engine that replies with
// the last message. The Logger writes to log.
func testOptions(t testing.TB, log io.Writer) Options {
	store, err := NewMemoryStore(echoBot, otherBot)
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Bots: store,
		Keys: StaticKeys(map[string]string{testKey: testAccount}),
		Engine: engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			yield(lastContent(req), nil)
		}),
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

func lastContent(req *ChatRequest) string { return req.Messages[len(req.Messages)-1].Content }

// engineOf makes an engine of its iterator's body.
func engineOf(iterate func(ctx context.Context, req *ChatRequest, yield func(string, error) bool)) ChatEngine {
	return ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { iterate(ctx, req, yield) }
	})
}

// fragmentsOf is an engine that yields the same fragments in every chat.
func fragmentsOf(fragments ...string) ChatEngine {
	return engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for _, fragment := range fragments {
			if !yield(fragment, nil) {
				return
			}
		}
	})
}

// An engineEnd is what an engine does last.
type engineEnd func(ctx context.Context, yield func(string, error) bool)

func failsWith(err error) engineEnd {
	return func(_ context.Context, yield func(string, error) bool) { yield("", err) }
}

func panicsWith(v any) engineEnd {
	return func(context.Context, func(string, error) bool) { panic(v) }
}

func sleepsFor(d time.Duration) engineEnd {
	return func(context.Context, func(string, error) bool) { time.Sleep(d) }
}

func untilDone(ctx context.Context, _ func(string, error) bool) { <-ctx.Done() }

// engine returns an engine that does nothing else.
func (end engineEnd) engine() ChatEngine {
	return engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) { end(ctx, yield) })
}

// fakeStore is a BotStore made of functions. A nil function must not be called.
type fakeStore struct {
	bots   func(context.Context) ([]Bot, error)
	byUID  func(context.Context, string) (Bot, error)
	bySlug func(context.Context, string) (Bot, error)
}

var _ BotStore = (*fakeStore)(nil)

func (s *fakeStore) Bots(ctx context.Context) ([]Bot, error) { return s.bots(ctx) }

func (s *fakeStore) BotByUID(ctx context.Context, uid string) (Bot, error) { return s.byUID(ctx, uid) }

func (s *fakeStore) BotBySlug(ctx context.Context, slug string) (Bot, error) {
	return s.bySlug(ctx, slug)
}

// withApplicationValue is middleware that sets a value, which every context must carry.
func withApplicationValue(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), applicationKey{}, "the application's")))
	})
}

type applicationKey struct{}

const routePath = "/route"

// routeTo returns a route of POST and GET.
func routeTo(serve func(*http.Request) (Response, error)) Route {
	return Route{Patterns: []string{"POST " + routePath, "GET " + routePath}, Serve: serve}
}

// chatRoute serves POST /v1/chat's bodies, and writes its bytes, with a StreamFormat and a
// JSON of its own. change, if it is not nil, changes each chat.
func chatRoute(change func(*http.Request, *Chat)) Route {
	return routeTo(func(r *http.Request) (Response, error) {
		text, err := ReadBody(r)
		if err != nil {
			return nil, err
		}
		body, problems := bodies.Read(text)
		if len(problems) > 0 {
			return nil, rejectedBody(problems)
		}
		c := &Chat{BotUID: body.BotUID, BotSlug: body.BotSlug, Extra: body.Unknown.Extra, Stream: new(restating)}
		c.Request = ChatRequest{Messages: body.Messages, UserID: body.UserID, Stream: body.Stream}
		c.JSON = func(context.Context) (before, after []byte, err error) {
			return []byte(jsonStart), []byte(jsonEnd), nil
		}
		if change != nil {
			change(r, c)
		}
		return c, nil
	})
}

// echoChat is the chat of chatBodyJSON.
func echoChat(prompt string, stream bool) *Chat {
	return &Chat{BotSlug: echoBot.Slug, Request: ChatRequest{Messages: []ChatMessage{{RoleUser, prompt}}, Stream: stream}}
}

// restating is a StreamFormat that has a state, and writes the API's own events.
type restating struct{ texts int }

func (f *restating) ContentType() string { return "text/event-stream" }

func (f *restating) AppendText(dst, text []byte) ([]byte, error) {
	f.texts++
	return fmt.Appendf(dst, "data: {\"content\":\"%s\"}\n\n", text), nil
}

func (f *restating) AppendKeepAlive(dst []byte) []byte { return append(dst, ": keep-alive\n"...) }

func (f *restating) End(context.Context) iter.Seq[[]byte] {
	return slices.Values([][]byte{[]byte("data: "), nil, []byte("[DONE]\n\n")})
}

func (f *restating) AppendError(dst []byte, failure Failure) []byte {
	return fmt.Appendf(dst, "event: error\ndata: %s\n\n", failure.eventData())
}

// A fullResponse is a response, read to its end.
type fullResponse struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body; not nil if it was aborted
}

// do sends a request with the test key to a handler on a real server on a loopback
// port. header holds pairs of a name and a value; the value "-" removes the header.
func do(t testing.TB, h http.Handler, method, path, body string, header ...string) fullResponse {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	return doAt(t, server.Client(), server.URL, method, path, body, header...)
}

// doAt is do for a server that is already running. Without a response, the status is 0.
func doAt(t testing.TB, client *http.Client, base, method, path, body string, header ...string) fullResponse {
	t.Helper()
	req, err := http.NewRequest(method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	setHeader(req, header)
	res, err := client.Do(req)
	if err != nil {
		t.Log(err)
		return fullResponse{err: err}
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	return fullResponse{res.StatusCode, res.Header, string(read), err}
}

// setHeader sets the test key, and then pairs of a name and a value; the value "-"
// removes the header.
func setHeader(r *http.Request, pairs []string) {
	r.Header.Set("Authorization", "Bearer "+testKey)
	for i := 0; i+1 < len(pairs); i += 2 {
		if r.Header.Set(pairs[i], pairs[i+1]); pairs[i+1] == "-" {
			r.Header.Del(pairs[i])
		}
	}
}

// newRequest returns a request as do sends it, for a handler without a network.
func newRequest(method, path string, body io.Reader, header ...string) *http.Request {
	r := httptest.NewRequest(method, path, body)
	setHeader(r, header)
	return r
}

// record serves a request without a network.
func record(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// chatBodyJSON returns a body for the echo bot with one prompt.
func chatBodyJSON(prompt string, stream bool) string {
	return fmt.Sprintf(`{"bot_slug":"echo","prompt":%q,"stream":%t}`, prompt, stream)
}

// postChat sends a chat with the test key to a handler without a network.
func postChat(h http.Handler, body string) *httptest.ResponseRecorder {
	return record(h, newRequest("POST", "/v1/chat", strings.NewReader(body)))
}

// chatRequest returns a request to the echo bot with the test key.
func chatRequest(t testing.TB, base, prompt string, stream bool) *http.Request {
	r, err := http.NewRequestWithContext(t.Context(), "POST", base+"/v1/chat", strings.NewReader(chatBodyJSON(prompt, stream)))
	if err != nil {
		t.Fatal(err)
	}
	setHeader(r, nil)
	return r
}

// serveOn serves one chat on w, and reports whether the handler aborted it.
func serveOn(w http.ResponseWriter, h http.Handler, body string) (aborted bool) {
	return serveRequest(w, h, newRequest("POST", "/v1/chat", strings.NewReader(body)))
}

func serveRequest(w http.ResponseWriter, h http.Handler, r *http.Request) (aborted bool) {
	defer func() {
		v := recover()
		if aborted = v == any(http.ErrAbortHandler); v != nil && !aborted {
			panic(v)
		}
	}()
	h.ServeHTTP(w, r)
	return false
}

const terminator = "data: [DONE]\n\n"

// data returns the event of a fragment that needs no escapes in JSON.
func data(fragment string) string { return `data: {"content":"` + fragment + "\"}\n\n" }

// errorEvent returns the event that ends an incomplete stream.
func errorEvent(status int, detail string) string {
	return fmt.Sprintf("event: error\ndata: {\"detail\":\"%s\",\"status\":%d}\n\n", detail, status)
}

// serveLogged is httptest.NewServer with a log for net/http's own messages.
func serveLogged(h http.Handler, log io.Writer) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(log, nil), slog.LevelError)
	server.Start()
	return server
}

// A way is how an engine's fragments reach a client.
type way struct {
	name        string
	stream      bool
	http2       bool
	hides       bool                            // the writer's Unwrap and every optional method
	route       bool                            // the request is for chatRoute
	middleware  func(http.Handler) http.Handler // of the application; nil: none
	disconnects time.Duration                   // when the client does; 0: never
}

var ways = []way{
	{name: "JSON response"},
	{name: "JSON response, HTTP/2", http2: true},
	{name: "JSON response, the writer cannot flush", hides: true},
	{name: "stream", stream: true},
	{name: "stream, HTTP/2", stream: true, http2: true},
	{name: "stream, the writer cannot flush", stream: true, hides: true},
	{name: "JSON response of a route, HTTP/2", http2: true, route: true},
	{name: "stream of a route", stream: true, route: true},
}

// inEachWay runs a test once for each way, in a synctest bubble. Goroutines that are
// still running after the test have two hours to end.
func inEachWay(t *testing.T, name string, test func(t *testing.T, w way)) {
	for _, w := range ways {
		t.Run(strings.TrimPrefix(name+", "+w.name, ", "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				defer time.Sleep(2 * time.Hour)
				test(t, w)
			})
		})
	}
}

func wrapping(h http.Handler, wrap func(http.ResponseWriter) http.ResponseWriter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(wrap(w), r) })
}

func (w way) mount(h http.Handler) http.Handler {
	if w.hides {
		h = wrapping(h, func(w http.ResponseWriter) http.ResponseWriter { return struct{ http.ResponseWriter }{w} })
	}
	if w.middleware != nil {
		h = w.middleware(h)
	}
	return h
}

// serve serves h in memory. configure is called before the server starts.
func (w way) serve(t testing.TB, h http.Handler, configure ...func(*http.Server)) *memoryServer {
	return serveInMemory(t, w.mount(h), append(configure, func(s *http.Server) {
		if w.http2 {
			s.Protocols = clearTextHTTP2()
		}
	})...)
}

// ask sends a chat. Without a response, the status is 0.
func (w way) ask(t testing.TB, server *memoryServer) fullResponse {
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	if w.disconnects > 0 {
		defer time.AfterFunc(w.disconnects, disconnect).Stop()
	}
	request := chatRequest(t, "http://memory", "hi", w.stream).WithContext(ctx)
	request.URL.Path = w.path()
	res, err := server.client().Do(request)
	if err != nil {
		return fullResponse{err: err}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return fullResponse{res.StatusCode, res.Header, string(body), err}
}

// path is that of a chat.
func (w way) path() string {
	if w.route {
		return routePath
	}
	return "/v1/chat"
}

// routes are the routes that a chat needs.
func (w way) routes() []Route {
	if w.route {
		return []Route{chatRoute(nil)}
	}
	return nil
}

// A chatOutcome is what the client, OnChat and the Logger saw of one chat.
type chatOutcome struct {
	fullResponse // err is also set if there was no response
	reports      []ChatReport
	log          string // at all levels
}

// playChat sends one chat with the prompt "hi" to a handler with this engine, in
// this way, and returns when the handler has returned. The handler's other options
// are testOptions, modified by change. way.disconnects makes the client disconnect. It
// may be called inside a synctest bubble and outside.
func playChat(t testing.TB, w way, engine ChatEngine, change ...func(*Options)) (p chatOutcome) {
	t.Helper()
	var log testLog
	o := testOptions(t, &log)
	o.Engine, o.Routes = engine, w.routes()
	for _, change := range change {
		change(&o)
	}
	onChat := o.OnChat
	o.OnChat = func(ctx context.Context, report ChatReport) {
		p.reports = append(p.reports, report)
		if onChat != nil {
			onChat(ctx, report)
		}
	}
	h, returned := New(o), make(chan struct{})
	server := w.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(returned)
		h.ServeHTTP(w, r)
	}))
	p.fullResponse = w.ask(t, server)
	<-returned
	p.log = log.String()
	return p
}

// report returns the report of the chat, which must be the only one.
func (p chatOutcome) report(t testing.TB) ChatReport {
	t.Helper()
	if len(p.reports) != 1 {
		t.Fatalf("%d reports of one chat", len(p.reports))
	}
	return p.reports[0]
}

// errExited is the err of a chatOutcome if runtime.Goexit ended the handler's goroutine.
var errExited = errors.New("the handler's goroutine was ended")

// playOn is playChat without a server, on a writer of the test's own. err says how
// the handler ended: nil if it returned. Whatever the writer does, the slot must be
// released.
func playOn(t testing.TB, w http.ResponseWriter, stream bool, engine ChatEngine, change ...func(*Options)) chatOutcome {
	t.Helper()
	return playRequestOn(t, w, chatRequest(t, "", "hi", stream), engine, change...)
}

func playRequestOn(t testing.TB, w http.ResponseWriter, r *http.Request, engine ChatEngine, change ...func(*Options)) chatOutcome {
	t.Helper()
	var log testLog
	var reports []ChatReport
	o := testOptions(t, &log)
	o.MaxConcurrentChats = 1
	o.Engine = ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
		if lastContent(req) == "again" {
			return fragmentsOf("ok").Chat(ctx, req)
		}
		return engine.Chat(ctx, req)
	})
	o.OnChat = func(_ context.Context, report ChatReport) { reports = append(reports, report) }
	for _, change := range change {
		change(&o)
	}
	h, ended := New(o), make(chan error, 1)
	go func() {
		defer close(ended)
		if serveRequest(w, h, r) {
			ended <- http.ErrAbortHandler
			return
		}
		ended <- nil
	}()
	err, returned := <-ended
	if !returned {
		err = errExited
	}
	p := chatOutcome{fullResponse{err: err}, reports, log.String()}
	if w, recorded := w.(interface{ Result() *http.Response }); recorded {
		res := w.Result()
		body, _ := io.ReadAll(res.Body)
		p.status, p.header, p.body = res.StatusCode, res.Header, string(body)
	}
	if again := postChat(h, chatBodyJSON("again", false)); again.Code != 200 {
		t.Errorf("the next chat: %d %s", again.Code, again.Body)
	}
	return p
}

// A memoryServer is a real http.Server on connections in memory, for use inside
// a synctest bubble, where a network connection would stop the clock.
type memoryServer struct {
	*http.Server
	conns  chan net.Conn
	closed chan struct{}
	served chan struct{}
}

// serveInMemory serves h until the test (or the bubble) ends. configure is called before
// the server starts.
func serveInMemory(t testing.TB, h http.Handler, configure ...func(*http.Server)) *memoryServer {
	s := &memoryServer{
		Server: &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)},
		conns:  make(chan net.Conn),
		closed: make(chan struct{}),
		served: make(chan struct{}),
	}
	var open sync.WaitGroup // connections: net/http waits before it closes one with an unread body
	s.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Done()
		}
	}
	for _, configure := range configure {
		configure(s.Server)
	}
	go func() {
		defer close(s.served)
		_ = s.Serve(s)
	}()
	t.Cleanup(func() {
		_ = s.Server.Close()
		<-s.served
		open.Wait()
	})
	return s
}

// dial opens a connection. net.Pipe has no buffer: a client that does not read blocks
// the server's writes immediately.
func (s *memoryServer) dial() net.Conn {
	client, server := net.Pipe()
	s.conns <- server
	return client
}

// client returns an http.Client whose connections end in the server.
func (s *memoryServer) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return s.dial(), nil },
		DisableKeepAlives: true,
		Protocols:         s.Protocols,
	}}
}

func (s *memoryServer) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *memoryServer) Close() error {
	close(s.closed)
	return nil
}

func (s *memoryServer) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "memory"} }

// serveOver serves h on a loopback port, and returns a client for the protocol.
func serveOver(t testing.TB, protocol string, h http.Handler) (base string, client *http.Client) {
	server := httptest.NewUnstartedServer(h)
	t.Cleanup(server.Close)
	switch protocol {
	case "HTTP/1.1":
		server.Start()
		return server.URL, server.Client()
	case "HTTP/2 over TLS":
		server.EnableHTTP2 = true
		server.StartTLS()
		return server.URL, server.Client()
	}
	server.Config.Protocols = clearTextHTTP2()
	server.Start()
	transport := &http.Transport{Protocols: clearTextHTTP2()}
	t.Cleanup(transport.CloseIdleConnections)
	return server.URL, &http.Client{Transport: transport}
}

func clearTextHTTP2() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// received waits up to ten seconds for a value.
func received[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(10 * time.Second):
		t.Fatal("timed out waiting for ", what)
	}
	return v
}

// A testLog can be read while an engine that has not returned yet may write.
type testLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *testLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
