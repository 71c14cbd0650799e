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

// Bots of the model "small" are answered in this process, by a model that takes one
// chat at a time; when eight are waiting, or the model fails before its first token, or
// that takes it more than two seconds (which is noticed when it is there), by a hosted
// one. All others have the hosted one at once. Nobody reads a word that is refused.
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
				return &botapi.StatusError{Status: http.StatusForbidden, Detail: "The answer was refused"}
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

		MaxConcurrentChats: 100, // more than the line holds
		StallTimeout:       0,   // the line has the clock
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
	// 403 {"detail":"The answer was refused"}
}

// A parrot is a model of little sense: a token is a byte.
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
