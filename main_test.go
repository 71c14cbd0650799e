package botapi

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
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
	code := m.Run()
	if left := leftGoroutines(); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines left behind:\n\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// leftGoroutines waits a while for goroutines to end, and returns the stacks of
// those that do not: all but its own and the runtime's.
func leftGoroutines() string {
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	var left []string
	for range 100 {
		left = nil
		buffer := make([]byte, 1<<20)
		stacks := strings.Split(string(buffer[:runtime.Stack(buffer, true)]), "\n\n")
		for _, stack := range stacks[1:] {
			if !strings.Contains(stack, "os/signal.loop") {
				left = append(left, stack)
			}
		}
		if len(left) == 0 {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	return strings.Join(left, "\n\n")
}

// What the tests' servers know, unless a test says otherwise.
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

// testOptions are a handler with two bots, one key and an engine that answers
// with the last message. What it logs goes to log.
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

// engineOf makes an engine of the body of its iterator.
func engineOf(speak func(ctx context.Context, req *ChatRequest, yield func(string, error) bool)) ChatEngine {
	return ChatEngineFunc(func(ctx context.Context, req *ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { speak(ctx, req, yield) }
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

// fakeStore is a BotStore of functions; a nil one is not expected to be called.
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

// An answered request, read to its end.
type answered struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body: a cut answer
}

// do sends a request with the test key (unless the header names another) to a
// handler behind a real server on a loopback port. The header is pairs of a name
// and a value; the value "-" removes it.
func do(t testing.TB, h http.Handler, method, path, body string, header ...string) answered {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	return doAt(t, server.Client(), server.URL, method, path, body, header...)
}

// doAt is do for a server that is there already. Without an answer, the status is 0.
func doAt(t testing.TB, client *http.Client, base, method, path, body string, header ...string) answered {
	t.Helper()
	req, err := http.NewRequest(method, base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	setHeader(req, header)
	res, err := client.Do(req)
	if err != nil {
		t.Log(err)
		return answered{err: err}
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	return answered{res.StatusCode, res.Header, string(read), err}
}

// setHeader sets the test key, and then pairs of a name and a value; the value "-"
// removes the name.
func setHeader(r *http.Request, pairs []string) {
	r.Header.Set("Authorization", "Bearer "+testKey)
	for i := 0; i+1 < len(pairs); i += 2 {
		if r.Header.Set(pairs[i], pairs[i+1]); pairs[i+1] == "-" {
			r.Header.Del(pairs[i])
		}
	}
}

// newRequest is a request as do sends it, for a handler without a network.
func newRequest(method, path string, body io.Reader, header ...string) *http.Request {
	r := httptest.NewRequest(method, path, body)
	setHeader(r, header)
	return r
}

// record answers a request without a network.
func record(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// serveLogged is httptest.NewServer with a log for what net/http says.
func serveLogged(h http.Handler, log io.Writer) *httptest.Server {
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(log, nil), slog.LevelError)
	server.Start()
	return server
}

// chatBodyJSON is a body for the echo bot with one prompt.
func chatBodyJSON(prompt string, stream bool) string {
	return fmt.Sprintf(`{"bot_slug":"echo","prompt":%q,"stream":%t}`, prompt, stream)
}

// What one chat was for everybody who saw it.
type chatOutcome struct {
	answered              // the client; err is also that there was no answer at all
	reports  []ChatReport // OnChat
	log      string       // the Logger, at all levels
}

// playChat sends one chat with the prompt "hi" to a handler with this engine, in
// this way, and returns when the handler has returned. The handler's other options
// are testOptions, as change leaves them. A client that leaves in the middle has a
// way.leaves. It may be called within a synctest bubble and outside.
func playChat(t testing.TB, w way, engine ChatEngine, change ...func(*Options)) (p chatOutcome) {
	t.Helper()
	var log testLog
	o := testOptions(t, &log)
	o.Engine = engine
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
	got, err := w.ask(t, server)
	p.answered = got
	if err != nil {
		p.err = err
	}
	<-returned
	p.log = log.String()
	return p
}

// report returns the one report of the chat.
func (p chatOutcome) report(t testing.TB) ChatReport {
	t.Helper()
	if len(p.reports) != 1 {
		t.Fatalf("%d reports of one chat", len(p.reports))
	}
	return p.reports[0]
}

// A memoryServer is a real http.Server on connections in memory, for use inside
// a synctest bubble, where a network connection would stop the clock.
type memoryServer struct {
	*http.Server
	conns  chan net.Conn
	closed chan struct{}
	served chan struct{}
}

// serveInMemory serves h until the test (or the bubble) ends, from a server
// that is configured before it starts.
func serveInMemory(t testing.TB, h http.Handler, configure ...func(*http.Server)) *memoryServer {
	s := &memoryServer{
		Server: &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)},
		conns:  make(chan net.Conn),
		closed: make(chan struct{}),
		served: make(chan struct{}),
	}
	var open sync.WaitGroup // connections: net/http waits before it closes one on an unread body
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

// dial opens a connection; net.Pipe has no buffer, so a client that does not
// read stops the server's writes at once.
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
