package resumetest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

const patience = time.Minute

// A model answers each prompt as the test says, word by word.
type model struct {
	mu    sync.Mutex
	turns []*turn
	begun chan *turn
}

func newModel() *model { return &model{begun: make(chan *turn, 1000)} }

// A turn is one answer of the model.
type turn struct {
	words chan string // sent one by one; the answer is complete when it is closed
	fails chan error
	ended chan struct{} // closed when the engine has returned
	cause error         // why its context ended
}

func (m *model) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		said := &turn{words: make(chan string), fails: make(chan error), ended: make(chan struct{})}
		defer close(said.ended)
		m.mu.Lock()
		m.turns = append(m.turns, said)
		m.mu.Unlock()
		m.begun <- said
		for {
			select {
			case word, more := <-said.words:
				if !more {
					return
				}
				if !yield(word, nil) {
					said.cause = context.Cause(ctx)
					return
				}
			case err := <-said.fails:
				yield("", err)
				return
			case <-ctx.Done():
				said.cause = context.Cause(ctx)
				return
			}
		}
	}
}

// next returns the next turn that begins.
func (m *model) next(t *testing.T) *turn {
	t.Helper()
	return receive(t, m.begun)
}

// begins has the next turn begin with a word: only then is its client connected.
func (m *model) begins(word string) <-chan *turn {
	said := make(chan *turn, 1)
	go func() {
		turn := <-m.begun
		turn.words <- word
		said <- turn
	}()
	return said
}

func (m *model) asked() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.turns)
}

func (said *turn) say(t *testing.T, words ...string) {
	t.Helper()
	for _, word := range words {
		select {
		case said.words <- word:
		case <-time.After(patience):
			t.Fatal("the model may not go on")
		}
	}
}

// isOver waits until the engine has returned.
func (said *turn) isOver(t *testing.T) {
	t.Helper()
	receive(t, said.ended)
}

func receive[T any](t *testing.T, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatalf("nothing came in %v", patience)
	}
	return value
}

// A replica is a service with resumable answers. Its API keys are the accounts'
// names.
type replica struct {
	*resume.Engine
	url string
}

// serve starts a replica. The options of the API may be changed.
func serve(t *testing.T, o resume.Options, change ...func(*botapi.Options)) replica {
	t.Helper()
	level := slog.LevelError
	if testing.Verbose() {
		level = slog.LevelInfo
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	engine := resume.New(o)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	keys := botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
		if key == "wrong" {
			return "", botapi.ErrInvalidKey
		}
		return key, nil
	})
	api := botapi.Options{Bots: bots, Keys: keys, Engine: engine, Routes: engine.Routes(), OnLimit: engine.OnLimit, Logger: o.Logger}
	for _, f := range change {
		f(&api)
	}
	server := httptest.NewServer(botapi.New(api))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := engine.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return replica{engine, server.URL}
}

// A chat is one request.
type chat struct {
	account    string // "acme" if empty
	keys       []string
	prompt     string
	unstreamed bool
}

// hi is a chat under a key, which is filled up to its minimal length.
func hi(key string) chat { return chat{keys: []string{long(key)}, prompt: "Hi"} }

func long(key string) string { return key + strings.Repeat("-", max(0, 16-len(key))) }

func (c chat) as(account string) chat {
	c.account = account
	return c
}

func (c chat) asJSON() chat {
	c.unstreamed = true
	return c
}

func (r replica) send(ctx context.Context, c chat) (*http.Response, error) {
	body, _ := json.Marshal(map[string]any{"bot_slug": "helper", "prompt": c.prompt, "stream": !c.unstreamed})
	request, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat", strings.NewReader(string(body)))
	if err != nil {
		return nil, err
	}
	if c.account == "" {
		c.account = "acme"
	}
	request.Header.Set("Authorization", "Bearer "+c.account)
	request.Header[resume.Header] = c.keys
	return http.DefaultClient.Do(request)
}

// A client reads a stream event by event.
type client struct {
	response   *http.Response
	lines      *bufio.Scanner
	disconnect context.CancelFunc
}

// connect sends a chat, and returns when its answer begins.
func (r replica) connect(t *testing.T, c chat) *client {
	t.Helper()
	ctx, disconnect := context.WithTimeout(t.Context(), patience)
	t.Cleanup(disconnect)
	response, err := r.send(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(response, disconnect)
}

func newClient(response *http.Response, disconnect context.CancelFunc) *client {
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return &client{response, lines, disconnect}
}

// outcome is the value of the header that says what happened to a key.
func (c *client) outcome() string { return c.response.Header.Get(resume.OutcomeHeader) }

// next returns the text of the next event; ok is false at the end, complete or
// not.
func (c *client) next() (text string, ok bool) {
	for c.lines.Scan() {
		data, isData := strings.CutPrefix(c.lines.Text(), "data: ")
		if !isData {
			continue
		}
		var fragment struct{ Content, Detail string }
		if json.Unmarshal([]byte(data), &fragment) != nil {
			return data, false // [DONE]
		}
		return fragment.Content + fragment.Detail, fragment.Detail == ""
	}
	return "aborted", false
}

// rest returns the remaining text, and the end.
func (c *client) rest() (text, end string) {
	var all strings.Builder
	for {
		next, ok := c.next()
		if !ok {
			return all.String(), next
		}
		all.WriteString(next)
	}
}

// A reply is a response with its body.
type reply struct {
	status     int
	body       string
	retryAfter string
}

func rejectedWith(status int, detail string) reply {
	r := reply{status: status, body: `{"detail":"` + detail + `"}`}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		r.retryAfter = "1"
	}
	return r
}

func (r replica) reply(ctx context.Context, c chat) reply {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := r.send(ctx, c)
	if err != nil {
		return reply{body: err.Error()}
	}
	return read(response)
}

func read(response *http.Response) reply {
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return reply{response.StatusCode, strings.TrimSpace(string(body)), response.Header.Get("Retry-After")}
}

// inBackground sends a chat and returns a channel for its reply.
func (r replica) inBackground(t *testing.T, c chat) <-chan reply {
	t.Helper()
	replies := make(chan reply, 1)
	go func() { replies <- r.reply(t.Context(), c) }()
	return replies
}

// call sends a request about an answer.
func (r replica) call(t *testing.T, method, account string, keys ...string) reply {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.url+"/v1/answers", nil)
	if err != nil {
		t.Fatal(err)
	}
	if account != "" {
		request.Header.Set("Authorization", "Bearer "+account)
	}
	request.Header[resume.Header] = keys
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	return read(response)
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not true after %v: %s", patience, what)
		}
	}
}
