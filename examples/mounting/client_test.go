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

// patience bounds the waits of a test that has already failed; no test that
// passes waits for it.
const patience = 10 * time.Second

const (
	apiKey     = "key-of-acme"
	pageOrigin = "https://app.example.com"

	oneAnswer = `{"bot_slug":"echo","prompt":"Hello?","stream":false}`
	oneStream = `{"bot_slug":"echo","prompt":"Hello?","stream":true}`
)

// newHandler returns a handler with one bot, one key and this engine.
func newHandler(t *testing.T, engine botapi.ChatEngine) http.Handler {
	return botapi.New(options(t, engine, t.Output()))
}

// options are those of newHandler; what the handler logs goes to log.
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
		// The engine of a test that has failed must end too.
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

// breaking fails in the middle of its answer.
var breaking = botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if yield("Once", nil) {
			yield("", errors.New("the model died"))
		}
	}
})

// brokenStream is all that a client gets of the answer of breaking.
const brokenStream = `data: {"content":"Once"}

event: error
data: {"detail":"Internal Server Error"}

`

// A pacedEngine answers one chat with what it is told to say, when it is told.
type pacedEngine struct {
	started chan struct{} // closed when the chat has come
	next    chan string
	ended   chan error // why the context had ended when the engine returned
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

// receive waits for what must come.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatal("waited in vain")
		panic("unreachable")
	}
}

// A serveFunc serves a mounted handler with this engine until the test ends.
type serveFunc func(*testing.T, botapi.ChatEngine) client

// mountedBy serves what mount makes of the handler.
func mountedBy(mount func(http.Handler) http.Handler) serveFunc {
	return func(t *testing.T, engine botapi.ChatEngine) client {
		return serve(t, mount(newHandler(t, engine)))
	}
}

// serve serves on a loopback port until the test ends.
func serve(t *testing.T, mounted http.Handler) client {
	server := httptest.NewServer(mounted)
	t.Cleanup(server.Close)
	return newClient(server)
}

// serveHTTP2 is serve for clients that speak HTTP/2 and nothing else.
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

// A client is what the tests know of a server. It follows no redirects.
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

// An answered request, read to its end.
type answered struct {
	status int
	header http.Header
	body   string
	err    error // of reading the body: the answer was cut
}

// do sends a request with the test's key and reads the whole answer. The
// header is pairs of a name and a value.
func (c client) do(t *testing.T, method, path, body string, header ...string) answered {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := c.send(ctx, method, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	read, err := io.ReadAll(res.Body)
	return answered{res.StatusCode, res.Header, string(read), err}
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
	compressed bool // on its way; the client has asked for it and undoes it
	body       *bufio.Reader
}

// stream asks for a stream. It returns when the answer has begun; the client
// leaves when ctx or the test ends.
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

// event returns the lines of the next event, without the blank one behind it.
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

// end reads the end of the stream, which follows the last event at once.
func (s *eventStream) end() error {
	rest, err := io.ReadAll(s.body)
	if len(rest) > 0 {
		s.t.Fatalf("more after the last event: %q", rest)
	}
	return err
}
