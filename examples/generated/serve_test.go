package generated

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

const key = "a-key"

var echoBot = botapi.Bot{
	UID:            "11111111-1111-4111-8111-111111111111",
	Slug:           "echo",
	Name:           "Echo",
	WelcomeMessage: "Say something.\nIt comes back.",
	Model:          "echo",
	AvatarURL:      "https://bots.example.org/echo.png",
}

var otherBot = botapi.Bot{
	UID:   "2b22c2d2-2222-4222-8222-22222222abcd",
	Slug:  "other",
	Name:  "Other",
	Model: "echo",
}

// serve starts a server with the handler. Options that are missing get defaults.
func serve(t *testing.T, o botapi.Options) *httptest.Server {
	t.Helper()
	return serveWithin(t, o, 0)
}

// serveWithin is serve with a ReadTimeout.
func serveWithin(t *testing.T, o botapi.Options, readTimeout time.Duration) *httptest.Server {
	t.Helper()
	is := is.New(t)
	if o.Bots == nil {
		bots, err := botapi.NewMemoryStore(echoBot, otherBot)
		is.NoErr(err)
		o.Bots = bots
	}
	if o.Keys == nil {
		o.Keys = botapi.StaticKeys(map[string]string{key: "an account"})
	}
	if o.Engine == nil {
		o.Engine = botapi.ChatEngineFunc(echo)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	server := httptest.NewUnstartedServer(botapi.New(o))
	server.Config.ReadTimeout = readTimeout
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server
}

// echo answers with the last message. Some messages make it fail.
func echo(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		switch text := req.Messages[len(req.Messages)-1].Content; text {
		case "fail":
			yield("", errors.New("the engine's own words"))
		case "fail halfway":
			_ = yield("half", nil) && yield("", errors.New("the engine's own words"))
		case "be closed":
			yield("", botapi.StatusError{Status: http.StatusTeapot, Detail: "The museum is closed today", RetryAfter: time.Hour})
		case "be busy":
			yield("", botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "One at a time"})
		case "be full":
			yield("", botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The museum is full", RetryAfter: time.Minute})
		case "be invalid":
			yield("", botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "colour"}, Msg: "no such colour", Type: "value_error"}}})
		case "wait":
			<-ctx.Done()
		default:
			yield(text, nil)
		}
	}
}

type failingStore struct{ err error }

func (s failingStore) Bots(context.Context) ([]botapi.Bot, error) { return nil, s.err }
func (s failingStore) BotByUID(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, s.err
}
func (s failingStore) BotBySlug(context.Context, string) (botapi.Bot, error) {
	return botapi.Bot{}, s.err
}

// keeping returns the options of a service that keeps answers.
func keeping(o resume.Options) botapi.Options {
	o.Engine, o.Logger = botapi.ChatEngineFunc(echo), slog.New(slog.DiscardHandler)
	answers := resume.New(o)
	return botapi.Options{Engine: answers, Routes: answers.Routes(), OnLimit: answers.OnLimit}
}

// failingAnswers is a store of answers that cannot stop one.
type failingAnswers struct {
	resume.Store
	stop func() error
}

func (s failingAnswers) Stop(context.Context, string, string) (bool, error) { return false, s.stop() }

// send sends a request with a key and reads the response. The body of an aborted
// stream is incomplete.
func send(t *testing.T, method, url, body string, header http.Header) exchange {
	t.Helper()
	is := is.New(t)
	request, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader([]byte(body)))
	is.NoErr(err)
	request.Header.Set("Authorization", "Bearer "+key)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		request.Header[name] = values
	}
	response, err := http.DefaultClient.Do(request)
	is.NoErr(err)
	defer response.Body.Close()
	received, err := io.ReadAll(response.Body)
	is.True(err == nil || errors.Is(err, io.ErrUnexpectedEOF))
	return exchange{request, []byte(body), response, received}
}
