package botapitest_test

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/internal/probe"
	"github.com/matryer/is"
)

// loud repeats the last message in capitals.
var loud = botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		yield(strings.ToUpper(req.Messages[len(req.Messages)-1].Content), nil)
	}
})

const probeSecret = "0123456789abcdef"

// answer returns the answer of an engine to a chat with a field of its own, and its error.
func answer(t *testing.T, engine botapi.ChatEngine, field string) (text string, err error) {
	t.Helper()
	req := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "hello"}}}
	if field != "" {
		req.Extra = map[string]json.RawMessage{probe.Field: json.RawMessage(field)}
	}
	for fragment, failed := range engine.Chat(t.Context(), req) {
		if failed != nil {
			return text, failed
		}
		text += fragment
	}
	return text, nil
}

func TestProbedPassesOtherChatsOn(t *testing.T) {
	probed := botapitest.Probed(loud, probeSecret)
	for _, field := range []string{
		"",
		`{"secret": "0123456789abcdeF", "chat": "a", "do": "play", "steps": [{"text": "probe"}]}`,
		`{"secret": "", "chat": "a", "do": "play", "steps": [{"text": "probe"}]}`,
		`{"chat": "a", "do": "play"}`,
		`{"secret": 16}`,
		`"0123456789abcdef"`,
		`null`,
	} {
		is := is.New(t)
		text, err := answer(t, probed, field)
		is.NoErr(err)
		is.Equal(text, "HELLO")
	}
	text, err := answer(t, probed, `{"secret": "0123456789abcdef", "chat": "a", "do": "play", "steps": [{"text": "probe", "times": 2}]}`)
	is.New(t).NoErr(err)
	is.New(t).Equal(text, "probeprobe")
}

func TestProbedIsBounded(t *testing.T) {
	probed := botapitest.Probed(loud, probeSecret)
	for _, steps := range []string{
		`[{"text": "x", "times": 67108865}]`,
		`[{"text": "xx", "times": 33554432}, {"text": "x"}]`,
		`[{"text": "x", "times": -1}]`,
		`[{"await": "time", "millis": 600001}]`,
		`[{"await": "time", "millis": -1}]`,
		`[{"await": "time", "millis": 400000}, {"await": "go", "millis": 400000}]`,
		"[" + strings.Repeat(`{"text": "x"},`, 64) + `{"text": "x"}]`,
	} {
		is := is.New(t)
		text, err := answer(t, probed, `{"secret": "0123456789abcdef", "chat": "b", "do": "play", "steps": `+steps+`}`)
		is.True(err != nil)
		is.Equal(text, "")
	}
	for range 8 { // runs of one chat are remembered
		_, err := answer(t, probed, `{"secret": "0123456789abcdef", "chat": "c", "do": "play"}`)
		is.New(t).NoErr(err)
	}
	_, err := answer(t, probed, `{"secret": "0123456789abcdef", "chat": "c", "do": "play"}`)
	is.New(t).True(err != nil)
	for i := range 100 { // the oldest chats are forgotten
		id, _ := json.Marshal(strings.Repeat("x", i+1)[:min(i+1, 60)] + string(rune('a'+i%26)))
		_, err := answer(t, probed, `{"secret": "0123456789abcdef", "chat": `+string(id)+`, "do": "play"}`)
		is.New(t).NoErr(err)
	}
	text, err := answer(t, probed, `{"secret": "0123456789abcdef", "chat": "c", "do": "see"}`)
	is.New(t).NoErr(err)
	is.New(t).True(strings.Contains(text, `"runs":null`))
}

func TestProbedNeedsALongSecret(t *testing.T) {
	is := is.New(t)
	text, err := answer(t, botapitest.Probed(loud, ""), `{"secret": "", "chat": "a", "do": "play"}`)
	is.NoErr(err)
	is.Equal(text, "HELLO")
	for _, f := range []func(){
		func() { botapitest.Probed(loud, "too-short") },
		func() { botapitest.Probed(nil, probeSecret) },
	} {
		func() {
			defer func() { is.True(recover() != nil) }()
			f()
		}()
	}
}

func ExampleProbed() {
	engine := loud // the application's own
	secret := ""   // from the environment; without one, Probed returns the engine
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"})
	if err != nil {
		slog.Error("bots", "error", err)
		return
	}
	_ = botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{"my-key": "me"}),
		Engine: botapitest.Probed(engine, secret),
	})
}
