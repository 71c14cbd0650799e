package botapitest_test

import (
	"context"
	"fmt"
	"iter"
	"net/http/httptest"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
)

// t is that of the test.
var t *testing.T

// In a test of the package with the store. Failing and Hanging are further stores, for
// instance in front of an address where no database is, and of one whose tables are locked.
func ExampleTestStore() {
	bots := []botapi.Bot{
		{UID: "1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"},
		{UID: "2", Slug: "llama", Name: "Llama", Model: "llama3.2"},
	}
	store, err := botapi.NewMemoryStore(bots...) // or the application's own
	if err != nil {
		t.Fatal(err)
	}
	botapitest.TestStore(t, botapitest.Store{Bots: store, Published: bots})
}

// In a test of the package with the verifier.
func ExampleTestKeys() {
	keys := botapi.StaticKeys(map[string]string{"my-key": "me"}) // or the application's own
	botapitest.TestKeys(t, botapitest.Keys{Verifier: keys, Good: "my-key", Account: "me", Bad: "your-key"})
}

// In a test of the package with the engine. Failing, Hanging and Endless are the same engine in
// front of models that fail, do not respond, and do not end.
func ExampleTestEngine() {
	engine := botapi.CallbackEngine(func(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
		for _, word := range []string{"Pretty ", "Polly"} { // or what a model says
			if err := emit(word); err != nil {
				return err
			}
		}
		return nil
	})
	botapitest.TestEngine(t, botapitest.Engine{Engine: engine, Answer: "Pretty Polly"})
}

// In a test of what an application does with its engine, its keys or its callbacks.
func ExampleNewServer() {
	var reports []botapi.ChatReport
	server := botapitest.NewServer(t, botapi.Options{
		OnChat: func(_ context.Context, r botapi.ChatReport) { reports = append(reports, r) },
	})
	answer, err := server.Client.Ask(t.Context(), botapitest.Chat{Bot: "bot", Prompt: "Pretty Polly"})
	if err != nil || answer != "Pretty Polly" {
		t.Errorf("got %q and %v", answer, err)
	}
}

// A client of a service that the application mounts itself.
func ExampleClient() {
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"})
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(botapi.New(botapi.Options{ // or the application's mux
		Bots: bots,
		Keys: botapi.StaticKeys(map[string]string{"my-key": "me"}),
		Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if yield("Pretty ", nil) {
					yield("", &botapi.StatusError{Status: 503, Detail: "The parrot is asleep"})
				}
			}
		}),
	}))
	defer server.Close()

	client := &botapitest.Client{URL: server.URL, Key: "my-key"}
	for text, err := range client.Stream(context.Background(), botapitest.Chat{Bot: "parrot", Prompt: "Hi"}) {
		fmt.Printf("%q, %v\n", text, err)
	}
	// Output:
	// "Pretty ", <nil>
	// "", 503 The parrot is asleep
}
