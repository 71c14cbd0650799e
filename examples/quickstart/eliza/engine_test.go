package eliza

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"github.com/matryer/is"
)

const pace = 75 * time.Millisecond

func request(stream bool) *botapi.ChatRequest {
	return &botapi.ChatRequest{
		Bot:      botapi.Bot{Slug: "mira", Name: "Mira", Model: "eliza-listener"},
		Messages: []botapi.ChatMessage{user("I hate rain")},
		Stream:   stream,
	}
}

func TestStreamComesWordByWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		start := time.Now()
		var words []string
		for word, err := range (Engine{Pace: pace}).Chat(t.Context(), request(true)) {
			is.NoErr(err)
			is.Equal(time.Since(start), time.Duration(len(words))*pace)
			words = append(words, word)
		}
		is.Equal(words, []string{"What ", "did ", "rain ", "do ", "to ", "you?"})
		is.Equal(time.Since(start), 5*pace) // no delay after the last word
	})
}

func TestJSONResponseIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		start := time.Now()
		var answer strings.Builder
		for word, err := range (Engine{Pace: pace}).Chat(t.Context(), request(false)) {
			is.NoErr(err)
			answer.WriteString(word)
		}
		is.Equal(answer.String(), "What did rain do to you?")
		is.Equal(time.Since(start), time.Duration(0))
	})
}

func TestDelayEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		ctx, cancel := context.WithTimeout(t.Context(), pace/2)
		defer cancel()
		start := time.Now()
		words := 0
		var last error
		for _, err := range (Engine{Pace: pace}).Chat(ctx, request(true)) {
			if last = err; err == nil {
				words++
			}
		}
		is.Equal(words, 1)
		is.True(errors.Is(last, context.DeadlineExceeded))
		is.Equal(time.Since(start), pace/2)
	})
}

func TestNoYieldAfterItReturnedFalse(t *testing.T) {
	is := is.New(t)
	words := 0
	for range (Engine{}).Chat(t.Context(), request(true)) {
		words++
		break
	}
	is.Equal(words, 1)
}

func TestUnknownModelIsAnError(t *testing.T) {
	is := is.New(t)
	req := request(false)
	req.Bot.Model = "eliza-pirate"
	yielded := 0
	for _, err := range (Engine{}).Chat(t.Context(), req) {
		yielded++
		is.Equal(err.Error(), `bot "mira": there is no script for the model "eliza-pirate"`)
	}
	is.Equal(yielded, 1)
}

func TestContract(t *testing.T) {
	unknown := botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		req.Bot.Model = "eliza-pirate"
		return Engine{}.Chat(ctx, req)
	})
	bot := botapi.Bot{UID: "1", Slug: "mira", Name: "Mira", Model: "eliza-listener"}
	botapitest.TestEngine(t, botapitest.Engine{
		Engine:  Engine{Pace: 5 * time.Millisecond},
		Request: botapi.ChatRequest{Bot: bot, Messages: []botapi.ChatMessage{user("I hate rain")}},
		Answer:  "What did rain do to you?",
		Failing: unknown,
		Hanging: Engine{Pace: time.Hour},
	})
}
