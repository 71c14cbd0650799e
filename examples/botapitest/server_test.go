package botapitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// collect returns the text of a stream and its error.
func collect(stream seq) (text string, err error) {
	for fragment, failed := range stream {
		text, err = text+fragment, failed
	}
	return text, err
}

func TestServerWithDefaults(t *testing.T) {
	is := is.New(t)
	c := NewServer(t, botapi.Options{}).Client
	bots, err := c.Bots(t.Context())
	is.NoErr(err)
	is.Equal(bots, []botapi.Bot{DefaultBot()})
	answer, err := c.Ask(t.Context(), Chat{Bot: "bot", Prompt: "Pretty Polly 👋🏽"})
	is.NoErr(err)
	is.Equal(answer, "Pretty Polly 👋🏽")
	var words []string
	for word, err := range c.Stream(t.Context(), Chat{BotUID: DefaultBot().UID, Prompt: "Pretty Polly"}) {
		is.NoErr(err)
		words = append(words, word)
	}
	is.Equal(words, []string{"Pretty ", "Polly"})
}

// TestServerWithOptions checks that a service has the parts that it is given.
func TestServerWithOptions(t *testing.T) {
	is := is.New(t)
	var asked *botapi.ChatRequest
	s := NewServer(t, botapi.Options{
		Bots: storeOf(t, twoBots...),
		Keys: goodKeys,
		Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) seq {
			asked = req
			return wordsOf(botapi.AccountFrom(ctx) + " " + botapi.RequestIDFrom(ctx))
		}),
	})
	_, err := s.Client.Bots(t.Context())
	is.Equal(err, botapi.StatusError{Status: 401, Detail: "Invalid API key"})
	s.Client.Key = "good-key"
	bots, err := s.Client.Bots(t.Context())
	is.NoErr(err)
	is.Equal(bots, twoBots)
	answer, err := s.Client.Ask(t.Context(), Chat{
		Bot: "parrot", UserID: "someone", Prompt: "And now?", Extra: map[string]any{"temperature": 0.5},
		Messages: []botapi.ChatMessage{{Role: botapi.RoleSystem, Content: "Be kind."}}, Header: http.Header{"X-Request-Id": {"request-1"}},
	})
	is.NoErr(err)
	is.Equal(answer, "acme request-1")
	is.Equal(asked.Messages, []botapi.ChatMessage{{Role: botapi.RoleSystem, Content: "Be kind."}, {Role: botapi.RoleUser, Content: "And now?"}})
	is.Equal(asked.UserID, "someone")
	is.Equal(asked.Bot, twoBots[1])
	is.Equal(string(asked.Extra["temperature"]), "0.5")
}

// TestClientErrors has every way in which an answer can end.
func TestClientErrors(t *testing.T) {
	busy := &botapi.StatusError{Status: 503, Detail: "The model is busy", RetryAfter: 2 * time.Second}
	invalid := botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "stop"}, Msg: "too long", Type: "value_error"}}}
	for name, c := range map[string]struct {
		engine botapi.ChatEngineFunc
		chat   Chat
		text   string // of the stream
		stream error
		answer error // of the JSON response
	}{
		"no such bot":           {chat: Chat{Bot: "nobody", Prompt: "Hi"}, stream: botapi.StatusError{Status: 404, Detail: "Bot not found"}, answer: botapi.StatusError{Status: 404, Detail: "Bot not found"}},
		"before the first text": {engine: failing("", busy), stream: *busy, answer: *busy},
		"a 422":                 {engine: failing("", invalid), stream: invalid, answer: invalid},
		"after the first text":  {engine: failing("Once ", busy), text: "Once ", stream: *busy, answer: *busy},
		"aborted":               {engine: failing("Once ", http.ErrAbortHandler), text: "Once ", stream: io.ErrUnexpectedEOF, answer: io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			o := botapi.Options{}
			if c.engine != nil {
				o.Engine = c.engine
			}
			if c.chat.Bot == "" {
				c.chat = Chat{Bot: "bot", Prompt: "Hi"}
			}
			client := NewServer(t, o).Client
			text, err := collect(client.Stream(t.Context(), c.chat))
			is.Equal(text, c.text)
			mustBe(t, err, c.stream)
			text, err = client.Ask(t.Context(), c.chat)
			is.Equal(text, "")
			mustBe(t, err, c.answer)
		})
	}
}

func failing(text string, err error) botapi.ChatEngineFunc {
	return func(context.Context, *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			if text == "" || yield(text, nil) {
				yield("", err)
			}
		}
	}
}

// mustBe compares errors of the API by their fields.
func mustBe(t *testing.T, got, want error) {
	t.Helper()
	if _, isSentinel := want.(interface{ As(any) bool }); isSentinel && fmt.Sprintf("%#v", got) == fmt.Sprintf("%#v", want) || errors.Is(got, want) {
		return
	}
	t.Errorf("got %#v, want %#v", got, want)
}

// TestStreamThatEndsWithoutAMark has a server that is not botapi: the answer ends like a
// complete one, and has no [DONE].
func TestStreamThatEndsWithoutAMark(t *testing.T) {
	is := is.New(t)
	for name, body := range map[string]string{
		"reading a stream: it ended without [DONE]: unexpected EOF": "data: {\"content\":\"Once \"}\n\n",
		`reading a stream: this is no event: "<html>"`:              "data: <html>\n\n",
		"502 Bad Gateway, said the proxy":                           "",
	} {
		s := start(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if body == "" {
				w.WriteHeader(502)
				body = "Bad Gateway, said the proxy"
			}
			_, _ = io.WriteString(w, body)
		}))
		_, err := collect(s.Client.Stream(t.Context(), Chat{Bot: "bot", Prompt: "Hi"}))
		is.True(err != nil)
		is.Equal(err.Error(), name)
	}
}

// TestLoopThatEndsDisconnects checks that an engine notices it.
func TestLoopThatEndsDisconnects(t *testing.T) {
	is := is.New(t)
	causes := make(chan error, 1)
	c := NewServer(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			yield("Once ", nil)
			<-ctx.Done()
			causes <- context.Cause(ctx)
		}
	})}).Client
	for text, err := range c.Stream(t.Context(), Chat{Bot: "bot", Prompt: "Hi"}) {
		is.NoErr(err)
		is.Equal(text, "Once ")
		break
	}
	is.Equal(<-causes, botapi.ErrClientLeft)
}

// TestResumeAndStop has a client that comes back for its answer, and one that stops it.
func TestResumeAndStop(t *testing.T) {
	is := is.New(t)
	goOn := make(chan struct{})
	asked := 0
	answers := resume.New(resume.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
		asked++
		return func(yield func(string, error) bool) {
			if !yield("Once ", nil) {
				return
			}
			select {
			case <-goOn:
				yield("upon a time", nil)
			case <-ctx.Done():
			}
		}
	})})
	c := NewServer(t, botapi.Options{Engine: answers, Routes: answers.Routes(), OnLimit: answers.OnLimit}).Client
	chat := Chat{Bot: "bot", Prompt: "A story, please", IdempotencyKey: "a-key-of-20-characters"}
	for range c.Stream(t.Context(), chat) {
		break
	}
	back := make(chan string)
	go func() {
		text, err := collect(c.Stream(context.Background(), chat))
		back <- fmt.Sprint(text, err)
	}()
	close(goOn)
	is.Equal(<-back, "Once upon a time<nil>")
	is.Equal(asked, 1)

	goOn = nil
	chat.IdempotencyKey = "another-key-of-characters"
	for _, err := range c.Stream(t.Context(), chat) {
		if err == nil {
			is.NoErr(c.Stop(t.Context(), chat.IdempotencyKey))
			continue
		}
		mustBe(t, err, botapi.StatusError{Status: 410, Detail: "The answer was stopped"})
	}
	is.Equal(asked, 2)
	mustBe(t, c.Stop(t.Context(), "a-key-that-has-no-answer"), botapi.StatusError{Status: 404, Detail: "Answer not found"})
}
