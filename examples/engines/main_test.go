package engines

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// TestMain fails if a goroutine is still running after the tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if leaked := leakedGoroutines(); code == 0 && leaked != "" {
		fmt.Fprintf(os.Stderr, "leaked goroutines:\n\n%s\n", leaked)
		code = 1
	}
	os.Exit(code)
}

func leakedGoroutines() string {
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	var leaked string
	for range 100 {
		buffer := make([]byte, 1<<20)
		var others bool
		if _, leaked, others = strings.Cut(string(buffer[:runtime.Stack(buffer, true)]), "\n\n"); !others {
			return ""
		}
		time.Sleep(50 * time.Millisecond)
	}
	return leaked
}

var helper = botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"}

const (
	stream   = `{"bot_slug":"helper","prompt":"Hi","stream":true}`
	noStream = `{"bot_slug":"helper","prompt":"Hi","stream":false}`
)

// A report is how a chat ended, with its token counts.
type report struct {
	err     error
	tokens  openai.Tokens
	counted bool
	finish  string
}

// A service is an HTTP server whose bots use an engine.
type service struct {
	url     string
	reports chan report
}

func handlerOf(t *testing.T, engine botapi.ChatEngine, options ...func(*botapi.Options)) http.Handler {
	t.Helper()
	bots, err := botapi.NewMemoryStore(helper)
	if err != nil {
		t.Fatal(err)
	}
	o := botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"key": "acme"}),
		Engine: engine,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, option := range options {
		option(&o)
	}
	return botapi.New(o)
}

func serve(t *testing.T, engine botapi.ChatEngine, options ...func(*botapi.Options)) service {
	t.Helper()
	s := service{reports: make(chan report, 100)}
	handler := handlerOf(t, engine, append(options, func(o *botapi.Options) {
		o.OnChat = func(ctx context.Context, r botapi.ChatReport) {
			usage := openai.UsageFrom(ctx)
			tokens, counted := usage.Tokens()
			s.reports <- report{r.Err, tokens, counted, usage.FinishReason()}
		}
	})...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, _ := openai.CountTokens(r.Context())
		handler.ServeHTTP(w, r.WithContext(ctx))
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func logTo(w io.Writer) func(*botapi.Options) {
	return func(o *botapi.Options) { o.Logger = slog.New(slog.NewTextHandler(w, nil)) }
}

func request(ctx context.Context, url, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, "POST", url+"/v1/chat", strings.NewReader(body))
	r.RequestURI = ""
	r.Header.Set("Authorization", "Bearer key")
	r.Header.Set("X-Request-Id", "request-1")
	return r
}

// An answer is a response as a client receives it.
type answer struct {
	status     int
	retryAfter string
	body       string
	aborted    bool // the body is incomplete
}

// complete reports whether a client takes it for a complete answer.
func (a answer) complete() bool {
	return a.status == 200 && !a.aborted && !strings.Contains(a.body, "event: error")
}

func (s service) chat(t *testing.T, body string) answer {
	t.Helper()
	response, err := http.DefaultClient.Do(request(t.Context(), s.url, body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header.Get("Retry-After"), strings.TrimSpace(string(text)), err != nil}
}
