package browser

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

const key = "a-key"

// buildQuickstart builds the program once for all tests.
var buildQuickstart = sync.OnceValues(func() (string, error) {
	directory, err := os.MkdirTemp("", "quickstart")
	if err != nil {
		return "", err
	}
	cleanups = append(cleanups, func() { _ = os.RemoveAll(directory) })
	program := filepath.Join(directory, "quickstart")
	build := exec.Command("go", "build", "-o", program, "example.com/botapi/examples/quickstart")
	build.Stderr = os.Stderr
	return program, build.Run()
})

// A quickstart is the running program.
type quickstart struct {
	address string
	log     *lines // what it writes to standard error
}

// startQuickstart starts the program on a free port and stops it at the end of
// the test.
func startQuickstart(t *testing.T, flags ...string) *quickstart {
	t.Helper()
	if _, err := findChromium(); err != nil {
		t.Skip("Chromium is not installed")
	}
	is := is.New(t)
	program, err := buildQuickstart()
	is.NoErr(err)
	q := &quickstart{log: &lines{more: make(chan struct{}, 1)}}
	command := exec.Command(program, append([]string{"-addr", "127.0.0.1:0", "-key", key}, flags...)...)
	command.Stderr = q.log
	stdout, err := command.StdoutPipe()
	is.NoErr(err)
	is.NoErr(command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	first, err := bufio.NewReader(stdout).ReadString('\n')
	is.NoErr(err)
	q.address = regexp.MustCompile(`http://[^ ]+`).FindString(first)
	is.True(q.address != "") // the program prints its address
	return q
}

// lines collects what a program writes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.more <- struct{}{}:
	default:
	}
	return l.text.Write(p)
}

// wait waits for a line that contains the text, and returns it.
func (l *lines) wait(t *testing.T, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		if line := l.find(text); line != "" {
			return line
		}
		select {
		case <-l.more:
		case <-ctx.Done():
			t.Fatalf("no line with %q", text)
		}
	}
}

func (l *lines) find(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// A service is the quickstart's pages with another API, so that a test decides what
// the bots answer.
type service struct {
	*httptest.Server
	bots *botapi.MemoryStore
}

// startService serves the API with the options, of which Bots is replaced and Keys
// and Engine have defaults. If answer is not nil, it handles POST /v1/chat instead
// of the API, like a failing proxy or network.
func startService(t *testing.T, o botapi.Options, answer http.HandlerFunc) *service {
	t.Helper()
	is := is.New(t)
	pages, err := url.Parse(startQuickstart(t).address)
	is.NoErr(err)
	return serve(t, o, answer, httputil.NewSingleHostReverseProxy(pages))
}

// startPage serves the API with the options, and the pages with theirs.
func startPage(t *testing.T, o botapi.Options, pages page.Options) *service {
	t.Helper()
	if _, err := findChromium(); err != nil {
		t.Skip("Chromium is not installed")
	}
	return serve(t, o, nil, page.Handler(pages))
}

func serve(t *testing.T, o botapi.Options, answer http.HandlerFunc, pages http.Handler) *service {
	t.Helper()
	is := is.New(t)
	bots, err := botapi.NewMemoryStore(ada, bo)
	is.NoErr(err)
	o.Bots = bots
	if o.Keys == nil {
		o.Keys = botapi.StaticKeys(map[string]string{key: "an account"})
	}
	if o.Engine == nil {
		o.Engine = botapi.ChatEngineFunc(echo)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	answers := resume.New(resume.Options{Engine: o.Engine, Logger: o.Logger})
	o.Engine, o.Routes, o.OnLimit = answers, answers.Routes(), answers.OnLimit
	mux := http.NewServeMux()
	mux.Handle("/", pages)
	mux.Handle("/v1/", botapi.New(o))
	if answer != nil {
		mux.Handle("POST /v1/chat", answer)
	}
	server := httptest.NewUnstartedServer(mux)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		now, cancel := context.WithCancel(context.Background())
		cancel()
		is.NoErr(answers.Close(now))
	})
	return &service{server, bots}
}

var ada = botapi.Bot{
	UID:            "0a4a4e4e-0000-4000-8000-00000000ada0",
	Slug:           "ada",
	Name:           "Ada",
	Description:    "Repeats what you say.",
	WelcomeMessage: "Hello.\n\nI am <b>Ada</b>.",
	Model:          "echo",
}

var bo = botapi.Bot{
	UID:   "0b000000-0000-4000-8000-0000000000b0",
	Slug:  "bo",
	Name:  "Bo",
	Model: "echo",
}

// echo answers with the last message, word by word.
func echo(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for word := range strings.SplitAfterSeq(req.Messages[len(req.Messages)-1].Content, " ") {
			if !yield(word, nil) {
				return
			}
		}
	}
}

// fails yields text, waits for the gate if there is one, and fails.
func fails(text string, gate <-chan struct{}, err error) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if text != "" && !yield(text, nil) {
				return
			}
			if gate != nil {
				select {
				case <-gate:
				case <-ctx.Done():
				}
			}
			yield("", err)
		}
	})
}

// waits yields one word and then waits until the client disconnects.
func waits(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if yield("Well,", nil) {
			<-ctx.Done()
		}
	}
}

// stream answers a chat with this text as its stream. The response ends
// immediately or, with hold, when the client disconnects or the test closes the
// connection.
func stream(text string, hold bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // net/http notices a disconnect only after this
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		if hold {
			<-r.Context().Done()
		}
	}
}
