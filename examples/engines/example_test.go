package engines_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/engines"
	"example.com/botapi/examples/openai"
)

// Bots with the model "small" use a model in this process, which runs one chat at a time.
// A hosted model answers instead if eight chats are waiting, or if the local model fails
// before its first token or takes more than two seconds for it (which is noticed when the
// token arrives). All other bots use the hosted model. Clients never get a rejected word.
func Example() {
	hosted := engines.NewAnthropic(engines.AnthropicConfig{Key: "sk-...", Model: "claude-sonnet-4-5"})
	own := engines.NewLine(engines.NewLocal(new(parrot)), engines.LineOptions{Waiting: 8, Stall: 2 * time.Second})
	engine := engines.Guard{
		Engine: engines.ByModel{
			"small": engines.Fallback{own, hosted},
			"":      hosted,
		},
		Whole: engines.Words,
		Check: func(_ context.Context, part string) error {
			if strings.Contains(strings.ToLower(part), "cracker") {
				return &botapi.StatusError{Status: http.StatusForbidden, Detail: "The answer was rejected"}
			}
			return nil
		},
	}
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "polly", Name: "Polly", Model: "small"})
	if err != nil {
		fmt.Println(err)
		return
	}
	api := botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"my-key": "me"}),
		Engine: engine,

		MaxConcurrentChats: 100, // more than AtOnce plus Waiting
		StallTimeout:       0,   // the line's Stall is used instead
	})
	for _, prompt := range []string{"Pretty Polly", "Polly wants a cracker"} {
		r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(`{"bot_slug":"polly","stream":false,"prompt":"`+prompt+`"}`))
		r.Header.Set("Authorization", "Bearer my-key")
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 {"content":"Pretty Polly"}
	// 403 {"detail":"The answer was rejected"}
}

// A parrot is a model that repeats the prompt. Each token is a byte.
type parrot struct{ rest string }

func (p *parrot) Begin(_ context.Context, messages []botapi.ChatMessage, _ openai.Settings) (int64, error) {
	p.rest = messages[len(messages)-1].Content
	return int64(len(p.rest)), nil
}

func (p *parrot) Next() ([]byte, error) {
	if p.rest == "" {
		return nil, io.EOF
	}
	token := p.rest[:1]
	p.rest = p.rest[1:]
	return []byte(token), nil
}
