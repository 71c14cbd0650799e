package browser

import (
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestRealModel chats with a bot backed by a runtime, then with the runtime down.
func TestRealModel(t *testing.T) {
	is := is.New(t)
	ollama := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("I am ", "a llama.") })
	q := startQuickstart(t, "-runtime", ollama.URL, "-model", "llama3.2")
	tab := newTab(t)
	tab.open(q.address + "/#key=" + key)
	tab.see(".beginning")
	is.Equal(tab.text("#chat-name"), "llama3.2")
	is.True(strings.HasPrefix(tab.text("#chat-description"), "A real model, at 127.0.0.1:"))
	tab.say("Who are you?")
	tab.waitForAnswer()
	is.Equal(tab.text(".message:last-child .text"), "I am a llama.")

	host, _ := strings.CutSuffix(strings.TrimPrefix(ollama.URL, "http://"), "/v1")
	ollama.Close()
	tab.say("And now?")
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "No model runtime answers at "+host+". Is it running?")
}

// TestUnavailableRuntime checks that the page begins with the guide, which can
// answer.
func TestUnavailableRuntime(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t, "-runtime", "http://127.0.0.1:1/v1", "-model", "llama3.2")
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(q.address + "/#key=" + key)
	tab.see(".beginning")
	is.Equal(tab.text("#chat-name"), "Guide")
	is.Equal(tab.texts(".bot-name"), []string{"Guide", "Mira", "Juniper", "llama3.2"})
	is.True(strings.HasPrefix(tab.texts(".bot-description")[3], "At the start: no model runtime answers at 127.0.0.1:1"))
}
