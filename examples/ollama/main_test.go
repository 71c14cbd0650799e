package ollama_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/ollama"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

const key = "my-key"

// bots has a bot whose slug is a word, and one whose slug has a tag.
func bots(t testing.TB) *botapi.MemoryStore {
	t.Helper()
	store, err := botapi.NewMemoryStore(
		botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Description: "It helps", Model: "llama"},
		botapi.Bot{UID: "u2", Slug: "pirate:7b", Name: "Pirate", Model: "llama"},
	)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// options are those of a service with Ollama's routes.
func options(t testing.TB, engine func(context.Context, *botapi.ChatRequest, func(string, error) bool)) botapi.Options {
	return botapi.Options{
		Bots: bots(t),
		Keys: botapi.StaticKeys(map[string]string{key: "acme"}),
		Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { engine(ctx, req, yield) }
		}),
		Routes: ollama.Routes(ollama.Options{Bots: bots(t)}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// say is an engine that answers with a text.
func say(text string) func(context.Context, *botapi.ChatRequest, func(string, error) bool) {
	return func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) { yield(text, nil) }
}

// call calls a handler without a network.
func call(h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// errorOf returns what a response says is wrong.
func errorOf(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	is := is.New(t)
	var said map[string]string
	is.NoErr(json.Unmarshal(w.Body.Bytes(), &said))
	is.Equal(len(said), 1)
	is.Equal(w.Header().Get("Content-Type"), "application/json")
	return said["error"]
}

// A played answer is what an engine does, one step a line: a quoted fragment, "wait" and a
// time, "count" and two numbers, "finish" and a reason, "status" and a quoted detail, or
// "fail".
type played []string

func (steps played) chat(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
	for _, step := range steps {
		what, how, _ := strings.Cut(step, " ")
		var n, m int64
		switch {
		case step == "":
		case strings.HasPrefix(step, `"`):
			text, err := strconv.Unquote(step)
			if !yield(text, err) {
				return
			}
		case what == "wait":
			pause, _ := time.ParseDuration(how)
			time.Sleep(pause)
		case what == "count":
			_, _ = fmt.Sscan(how, &n, &m)
			openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: n, Completion: m})
		case what == "finish":
			openai.UsageFrom(ctx).Finish(how)
		case what == "status":
			var detail string
			_, _ = fmt.Sscanf(how, "%d %q", &n, &detail)
			yield("", botapi.StatusError{Status: int(n), Detail: detail})
		default:
			yield("", errors.New(step))
		}
	}
}

// converse sends a request over HTTP/1.1 to a server in memory, and returns the response as
// it is on the wire, but for the date and the chunks.
func converse(t *testing.T, h http.Handler, request string) string {
	t.Helper()
	is := is.New(t)
	client, server := net.Pipe()
	listener := &oneConn{conn: server, closed: make(chan struct{})}
	s := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(listener) })
	defer serving.Wait()
	defer s.Close()
	defer client.Close()

	head, body, _ := strings.Cut(request, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	head = strings.ReplaceAll(head, "\n", "\r\n")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = fmt.Fprintf(client, "%s\r\nContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}()
	r, err := http.NewRequest("POST", "/", nil)
	is.NoErr(err)
	response, err := http.ReadResponse(bufio.NewReader(client), r)
	is.NoErr(err)
	defer response.Body.Close()
	text, aborted := io.ReadAll(response.Body)
	_ = client.Close()
	<-sent
	response.Header.Del("Date")
	var header bytes.Buffer
	is.NoErr(response.Header.Write(&header))
	said := response.Proto + " " + response.Status + "\n" + strings.ReplaceAll(header.String(), "\r\n", "\n") + "\n" + string(text)
	if !strings.HasSuffix(said, "\n") {
		said += "\n"
	}
	if aborted != nil {
		said += "-- aborted --\n"
	}
	return said
}

// oneConn is a listener with one connection.
type oneConn struct {
	mu     sync.Mutex
	conn   net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	l.mu.Lock()
	conn := l.conn
	l.conn = nil
	l.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }
