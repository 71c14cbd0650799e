package botapitest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

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

// request is a chat with the field of orders, unless that is empty.
func request(field string) *botapi.ChatRequest {
	req := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "hello"}}}
	if field != "" {
		req.Extra = map[string]json.RawMessage{probe.Field: json.RawMessage(field)}
	}
	return req
}

// answer returns the answer of an engine to a chat with a field of its own, and its error.
func answer(t *testing.T, engine botapi.ChatEngine, field string) (text string, err error) {
	t.Helper()
	for fragment, failed := range engine.Chat(t.Context(), request(field)) {
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
		is.True(!botapitest.IsProbe(request(field), probeSecret))
	}
	const probe = `{"secret": "0123456789abcdef", "chat": "a", "do": "play", "steps": [{"text": "probe", "times": 2}]}`
	text, err := answer(t, probed, probe)
	is := is.New(t)
	is.NoErr(err)
	is.Equal(text, "probeprobe")
	is.True(botapitest.IsProbe(request(probe), probeSecret))
	is.True(!botapitest.IsProbe(request(`{"secret": "", "chat": "a", "do": "play"}`), "")) // Probed returns the engine
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

// A chat goes on once for each number of an order, however often the order has come, and an
// order stays for a chat that has not begun.
func TestProbedObeysAnOrderOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		probed := botapitest.Probed(loud, probeSecret)
		answered := func(field string) chan string {
			answers := make(chan string, 1)
			go func() {
				text, err := answer(t, probed, field)
				answers <- fmt.Sprint(text, err)
			}()
			synctest.Wait()
			return answers
		}
		first := answered(`{"secret": "0123456789abcdef", "chat": "a", "do": "go", "count": 1, "stay": 5000}`)
		other := answered(`{"secret": "0123456789abcdef", "chat": "b", "do": "go", "count": 1, "stay": 5000}`)
		is.Equal(len(first), 0)
		play := answered(`{"secret": "0123456789abcdef", "chat": "a", "do": "play", "steps": [
			{"await": "go", "millis": 1000}, {"text": "one"}, {"await": "go", "millis": 1000}, {"text": "two"}]}`)
		is.True(strings.Contains(<-first, `"runs":[{`))
		again := answered(`{"secret": "0123456789abcdef", "chat": "a", "do": "go", "count": 1}`)
		is.True(strings.Contains(<-again, `"yielded":1`))
		is.Equal(<-play, "one<nil>") // nothing has ended the second wait
		is.True(strings.Contains(<-other, `"runs":null`))
	})
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
