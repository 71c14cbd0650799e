package mounting

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
)

// patience bounds the waits of a failing test. A passing test does not wait for it.
const patience = 10 * time.Second

const (
	apiKey     = "key-of-acme"
	pageOrigin = "https://app.example.com"

	oneAnswer = `{"bot_slug":"echo","prompt":"Hello?","stream":false}`
	oneStream = `{"bot_slug":"echo","prompt":"Hello?","stream":true}`
)

// newHandler returns a handler with the engine, one bot and one key.
func newHandler(t *testing.T, engine botapi.ChatEngine) http.Handler {
	return botapi.New(options(t, engine, t.Output()))
}

// options returns the options of newHandler. The handler logs to log.
func options(t *testing.T, engine botapi.ChatEngine, log io.Writer) botapi.Options {
	t.Helper()
	store, err := botapi.NewMemoryStore(botapi.Bot{
		UID:   "11111111-1111-4111-8111-111111111111",
		Slug:  "echo",
		Name:  "Echo",
		Model: "echo-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	return botapi.Options{
		Bots:   store,
		Keys:   botapi.StaticKeys(map[string]string{apiKey: "acme"}),
		Engine: engine,
		// So that the engine ends even if the test fails.
		ChatTimeout: patience,
		Logger:      slog.New(slog.NewTextHandler(log, nil)),
	}
}

// echoing answers with the last message.
var echoing = botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		yield(req.Messages[len(req.Messages)-1].Content, nil)
	}
})

// failing fails in the middle of its answer.
var failing = botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if yield("Once", nil) {
			yield("", errors.New("the model died"))
		}
	}
})

// failedStream is all that a client gets of the answer of failing.
const failedStream = `data: {"content":"Once"}

event: error
data: {"detail":"Internal Server Error","status":500}

`

// A pacedEngine serves one chat. It yields each fragment when the test calls say.
type pacedEngine struct {
	started chan struct{} // closed when the chat has begun
	next    chan string
	ended   chan error // the context's error when the engine returned
}

var _ botapi.ChatEngine = (*pacedEngine)(nil)

func newPacedEngine() *pacedEngine {
	return &pacedEngine{
		started: make(chan struct{}),
		next:    make(chan string, 1),
		ended:   make(chan error, 1),
	}
}

func (e *pacedEngine) say(fragment string) { e.next <- fragment }

func (e *pacedEngine) finish() { close(e.next) }

func (e *pacedEngine) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		close(e.started)
		defer func() { e.ended <- ctx.Err() }()
		for {
			select {
			case fragment, more := <-e.next:
				if !more || !yield(fragment, nil) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// receive receives a value, and fails the test if there is none.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("timed out")
		panic("unreachable")
	}
}

// A serveFunc starts a server with a mounted handler and the engine.
type serveFunc func(*testing.T, botapi.ChatEngine) client

// mountedBy returns a serveFunc that mounts the handler with mount.
func mountedBy(mount func(http.Handler) http.Handler) serveFunc {
	return func(t *testing.T, engine botapi.ChatEngine) client {
		return serve(t, mount(newHandler(t, engine)))
	}
}

// serve starts a server on a loopback port. It is closed when the test ends.
func serve(t *testing.T, mounted http.Handler) client {
	server := httptest.NewServer(mounted)
	t.Cleanup(server.Close)
	return newClient(server)
}

// serveHTTP2 is serve for a client that uses only HTTP/2.
func serveHTTP2(t *testing.T, mounted http.Handler) client {
	server := httptest.NewUnstartedServer(mounted)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	only2 := new(http.Protocols)
	only2.SetHTTP2(true)
	server.Client().Transport.(*http.Transport).Protocols = only2
	return newClient(server)
}

// A client sends requests to a server. It follows no redirects.
type client struct {
	http   *http.Client
	server string
	prefix string // of every path
}

func newClient(server *httptest.Server) client {
	client := client{http: server.Client(), server: server.URL}
	client.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

func (c client) below(prefix string) client {
	c.prefix = prefix
	return c
}

// A response, read to its end.
type response struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body, if the response was aborted
}

// do sends a request with the test's key and reads the response. header has pairs
// of name and value.
func (c client) do(t *testing.T, method, path, body string, header ...string) response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := c.send(ctx, method, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	return response{res.StatusCode, res.Header, string(read), err}
}

func (c client) send(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.server+c.prefix+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return c.http.Do(req)
}

// An eventStream is a stream that is read event by event.
type eventStream struct {
	t          *testing.T
	status     int
	header     http.Header
	compressed bool // by the server; http.Client has decompressed it
	body       *bufio.Reader
}

// stream starts a stream. It returns when the response has begun. The client
// disconnects when ctx or the test ends.
func (c client) stream(t *testing.T, ctx context.Context) *eventStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	res, err := c.send(ctx, "POST", "/v1/chat", oneStream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return &eventStream{
		t:          t,
		status:     res.StatusCode,
		header:     res.Header,
		compressed: res.Uncompressed,
		body:       bufio.NewReader(res.Body),
	}
}

// event returns the lines of the next event, without the blank line after it.
func (s *eventStream) event() string {
	s.t.Helper()
	var event strings.Builder
	for {
		line, err := s.body.ReadString('\n')
		if err != nil {
			s.t.Fatalf("reading an event after %q: %v", event.String()+line, err)
		}
		if line == "\n" {
			return strings.TrimSuffix(event.String(), "\n")
		}
		event.WriteString(line)
	}
}

// end reads the end of the stream, which must follow the last event directly.
func (s *eventStream) end() error {
	rest, err := io.ReadAll(s.body)
	if len(rest) > 0 {
		s.t.Fatalf("more after the last event: %q", rest)
	}
	return err
}
