package runtimetest_test

import (
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
)

// t is that of the test.
var t *testing.T

// A runtime whose answer breaks off after its first text: the client of an engine must not
// take it for a complete one.
func Example() {
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Role()
		s.Text("Once upon ")
		s.Break()
	})
	engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL}) // or the application's own
	if err != nil {
		t.Fatal(err)
	}
	service := botapitest.NewServer(t, botapi.Options{Engine: engine})
	_, answer := runtimetest.Chat(t, service.URL, `{"bot_slug": "bot", "prompt": "A story, please", "stream": true}`)
	if runtimetest.Text(t, answer) != "Once upon " || strings.Contains(answer, "[DONE]") {
		t.Errorf("the answer looks complete: %s", answer)
	}
	if asked := runtime.Requests(); len(asked) != 1 || asked[0].Model != "none" {
		t.Errorf("%d requests have arrived", len(asked))
	}
}
