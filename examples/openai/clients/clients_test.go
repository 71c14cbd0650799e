package clients

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

// A client wraps a published library.
type client struct {
	models  func(ctx context.Context) ([]string, error) // nil if the library cannot list models
	ask     func(ctx context.Context, prompt string) (string, error)
	stream  func(ctx context.Context, prompt string, emit func(text string)) error
	endings func(ctx context.Context, prompt string) ([]string, error) // how an answer and a stream have ended; nil if the library does not say
	useTool func(ctx context.Context, prompt string) error             // asks with a tool that the model may call
	details func(error) (status int, message string)                   // of an error; the status is 0 if there is none
}

const key = "sk-bots"

// hostile is text that stream parsers get wrong. It is sent byte by byte, which splits
// its characters.
const hostile = "data: [DONE]\n\n\r\nGrüße, 世界 👋🏽\u2028\u2029\u0085\x00\"\\</script>"

// A service is the server that the clients talk to.
type service struct {
	url   string     // base URL for clients
	ended chan error // the context's cause when a "wait" has ended
}

// newService starts a service whose bot obeys its prompt: "say" and a text, "fail" and
// a status, "break", "wait", "count",
// "before", "nothing", or "hostile".
func newService(t *testing.T) *service {
	t.Helper()
	s := &service{ended: make(chan error, 1)}
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"},
		botapi.Bot{UID: "u2", Slug: "pirate", Name: "Pirate", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{key: "acme"}),
		Engine: botapi.CallbackEngine(s.obey),
		Routes: openai.Routes(openai.Options{Bots: bots}),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}))
	t.Cleanup(server.Close)
	s.url = server.URL + "/v1"
	return s
}

func (s *service) obey(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
	order, rest, _ := strings.Cut(req.Messages[len(req.Messages)-1].Content, " ")
	switch order {
	case "say":
		for _, word := range strings.SplitAfter(rest, " ") {
			if err := emit(word); err != nil {
				return err
			}
		}
	case "hostile":
		for i := range len(hostile) {
			if err := emit(hostile[i : i+1]); err != nil {
				return err
			}
		}
	case "count": // many fragments
		for i := range 10_000 {
			if err := emit(strconv.Itoa(i) + " "); err != nil {
				return err
			}
		}
	case "before": // the two messages before
		last := len(req.Messages) - 1
		return emit(req.Messages[last-2].Content + "/" + req.Messages[last-1].Content)
	case "nothing":
	case "fail":
		return failure(rest)
	case "break":
		_ = emit("Once upon")
		return &botapi.StatusError{Status: 502, Detail: "The model's answer is incomplete"}
	case "wait":
		_ = emit("Once upon")
		<-ctx.Done()
		s.ended <- context.Cause(ctx)
	}
	return nil
}

func failure(status string) error {
	n, _ := strconv.Atoi(status)
	if n == 422 {
		return &botapi.HTTPValidationError{Detail: []botapi.ValidationError{{
			Loc: []any{"body", "messages"}, Msg: "the conversation is too long for the model", Type: "value_error.messages.too_long"}}}
	}
	return &botapi.StatusError{Status: n, Detail: "This is a " + status, RetryAfter: time.Second}
}

// The libraries with "responses" in their names use the Responses API, the others that of
// chat completions.
func TestGoClients(t *testing.T) {
	for name, make := range map[string]func(url, key, model string) client{
		"openai-go": openaiGo, "openai-go-responses": openaiGoResponses,
		"go-openai": sashabaranov, "go-openai-responses": sashabaranovResponses,
		"langchaingo": langchaingo,
	} {
		t.Run(name, func(t *testing.T) { testClient(t, name, make) })
	}
}

func TestNodeClients(t *testing.T) {
	n := startNode(t)
	for _, library := range []string{
		"openai", "openai-responses", "openai-helpers",
		"ai-sdk-compatible", "ai-sdk-chat", "ai-sdk-responses",
		"langchain", "langchain-responses", "agents-chat", "agents-responses", "xsai",
	} {
		t.Run(library, func(t *testing.T) { testClient(t, library, n.client(library)) })
	}
}

// The versions that many have installed.
func TestEarlierNodeClients(t *testing.T) {
	n := startEarlier(t)
	for _, library := range []string{
		"openai-4", "openai-4-responses", "openai-4-helpers",
		"openai-5", "openai-5-responses", "openai-5-helpers",
		"openai-6", "openai-6-responses", "openai-6-helpers",
		"ai-sdk-4-compatible", "ai-sdk-4-chat", "ai-sdk-4-responses",
		"ai-sdk-5-compatible", "ai-sdk-5-chat", "ai-sdk-5-responses",
		"ai-sdk-6-compatible", "ai-sdk-6-chat", "ai-sdk-6-responses",
	} {
		t.Run(library, func(t *testing.T) { testClient(t, library, n.client(library)) })
	}
}

func testClient(t *testing.T, name string, make func(url, key, model string) client) {
	s := newService(t)
	c := make(s.url, key, "helper")
	t.Run("lists", func(t *testing.T) {
		if c.models == nil {
			t.Skip("the library cannot list models")
		}
		is := is.New(t)
		models, err := c.models(t.Context())
		is.NoErr(err)
		is.Equal(models, []string{"helper", "pirate"})
	})
	t.Run("endings", func(t *testing.T) {
		if c.endings == nil {
			t.Skip("the library does not say how an answer has ended")
		}
		is := is.New(t)
		endings, err := c.endings(t.Context(), "say Hello there")
		is.NoErr(err)
		is.Equal(endings, []string{"stop", "stop"})
	})
	t.Run("hostile text", func(t *testing.T) {
		is := is.New(t)
		text, err := c.ask(t.Context(), "hostile")
		is.NoErr(err)
		is.Equal(text, hostile)
		text, err = streamed(t.Context(), c, "hostile")
		is.NoErr(err)
		is.Equal(text, hostile)
	})
	t.Run("many fragments", func(t *testing.T) {
		is := is.New(t)
		text, err := streamed(t.Context(), c, "count")
		is.NoErr(err)
		is.Equal(strings.Count(text, " "), 10_000)
		is.True(strings.HasPrefix(text, "0 1 2 ") && strings.HasSuffix(text, " 9998 9999 "))
	})
	t.Run("no text", func(t *testing.T) {
		if name == "agents-chat" {
			t.Skip("the library asks again for an answer without text")
		}
		is := is.New(t)
		text, err := c.ask(t.Context(), "nothing")
		is.NoErr(err)
		is.Equal(text, "")
		text, err = streamed(t.Context(), c, "nothing")
		is.NoErr(err)
		is.Equal(text, "")
	})
	for order, want := range map[string]struct {
		status int
		text   string
	}{
		"fail 403": {403, "This is a 403"},
		"fail 422": {400, "the conversation is too long for the model"},
		"fail 429": {429, "This is a 429"},
		"fail 500": {500, "This is a 500"},
		"fail 502": {502, "This is a 502"},
		"fail 503": {503, "This is a 503"},
		"fail 504": {504, "This is a 504"},
	} {
		t.Run(order, func(t *testing.T) {
			is := is.New(t)
			_, err := c.ask(t.Context(), order)
			isError(is, c, err, want.status, want.text)
			_, err = streamed(t.Context(), c, order)
			isError(is, c, err, want.status, want.text)
		})
	}
	t.Run("a wrong key", func(t *testing.T) {
		is := is.New(t)
		wrongKey := make(s.url, "sk-wrong", "helper")
		_, err := wrongKey.ask(t.Context(), "say Hello")
		isError(is, wrongKey, err, 401, "Invalid API key")
	})
	t.Run("no such model", func(t *testing.T) {
		is := is.New(t)
		parrot := make(s.url, key, "parrot")
		_, err := parrot.ask(t.Context(), "say Hello")
		isError(is, parrot, err, 404, "the model does not exist")
	})
	t.Run("a tool", func(t *testing.T) {
		is := is.New(t)
		isError(is, c, c.useTool(t.Context(), "say Hello"), 400, `tools: bots cannot honour this value`)
	})
	t.Run("an incomplete stream", func(t *testing.T) {
		is := is.New(t)
		text, err := streamed(t.Context(), c, "break")
		is.True(err != nil) // the library does not take it for complete
		is.Equal(text, "Once upon")
	})
	t.Run("aborts a stream", func(t *testing.T) {
		is := is.New(t)
		ctx, abort := context.WithCancel(t.Context())
		_ = c.stream(ctx, "wait", func(text string) { // some libraries return no error for a stream that they aborted
			if text != "" {
				abort()
			}
		})
		is.True(errors.Is(<-s.ended, botapi.ErrClientLeft))
		text, err := c.ask(t.Context(), "say Hello again")
		is.NoErr(err)
		is.Equal(text, "Hello again")
	})
}

func streamed(ctx context.Context, c client, prompt string) (text string, err error) {
	err = c.stream(ctx, prompt, func(fragment string) { text += fragment })
	return text, err
}

func isError(is *is.I, c client, err error, status int, text string) {
	is.Helper()
	is.True(err != nil)
	got, message := c.details(err)
	is.Equal(got, status)
	if !strings.Contains(message, text) {
		is.Equal(message, text)
	}
}
