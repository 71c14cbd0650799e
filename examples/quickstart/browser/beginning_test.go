package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestSuggestedQuestion begins a conversation with a click.
func TestSuggestedQuestion(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startQuickstart(t, "-pace", "0").address + "/#key=" + key)
	tab.see(".suggestion")
	is.Equal(tab.texts(".suggestion")[0], "What is botapi?")
	tab.click(".suggestion")
	tab.see(".message:last-child .regenerate")
	tab.see(".message:last-child .text p") // once the page has its library for Markdown
	is.Equal(tab.text(".user .text"), "What is botapi?")
	is.True(strings.HasPrefix(tab.text(".message:last-child .text p"), "botapi is a Go package"))
	is.Equal(len(tab.texts(".suggestion")), 0)
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")

	tab.clear()
	tab.see(".suggestion")
}

// TestPagesBelowAPath mounts the pages and the API at different paths, with
// page.Options.
func TestPagesBelowAPath(t *testing.T) {
	is := is.New(t)
	bots, err := botapi.NewMemoryStore(ada, bo)
	is.NoErr(err)
	api := botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.StaticKeys(map[string]string{key: "an account"}),
		Engine: botapi.ChatEngineFunc(echo),
	})
	mux := http.NewServeMux()
	mux.Handle("/our/bots/", http.StripPrefix("/our/bots", api))
	mux.Handle("/talk/", page.Handler(page.Options{
		Title:     `Tom & "Jerry"`,
		BasePath:  "/talk",
		APIPath:   "/our/bots",
		Bots:      bots,
		Questions: map[string][]string{"ada": {`Is it "safe" & <b>sound</b>?`}},
	}))
	server := httptest.NewServer(mux)
	defer server.Close()
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(server.URL + "/talk/#key=" + key)
	tab.see(".suggestion")
	is.Equal(tab.text("#bots-title"), `Tom & "Jerry"`)
	is.Equal(evaluate[string](tab, "document.title"), `Ada · Tom & "Jerry"`)
	tab.click(".suggestion")
	tab.see(".message:last-child .regenerate")
	is.Equal(tab.text(".user .text"), `Is it "safe" & <b>sound</b>?`)

	tab.click(`a[href="docs"]`)
	tab.see(".service")
	is.Equal(tab.text(".service"), `Tom & "Jerry"`)
	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .answer").textContent.includes('Is it \\"safe\\" & <b>sound</b>?')`)
	is.True(strings.Contains(tab.text("#chat .program pre"), server.URL+"/our/bots/v1/chat"))
}

// TestBeginningWithoutQuestions checks that the page suggests a general question
// if the application sets none, unless it sets an empty list.
func TestBeginningWithoutQuestions(t *testing.T) {
	tests := []struct {
		name      string
		questions map[string][]string
		bot       botapi.Bot
		suggested []string
	}{
		{"welcome", nil, ada, []string{"Hello! What can you do?"}},
		{"no welcome", nil, bo, []string{"Hello! What can you do?"}},
		{"no welcome, for another bot", map[string][]string{"ada": {"Who?"}}, bo, []string{"Hello! What can you do?"}},
		{"welcome, empty list", map[string][]string{"": {}}, ada, []string{}},
		{"no welcome, empty list", map[string][]string{"": {}}, bo, []string{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			bots, err := botapi.NewMemoryStore(test.bot)
			is.NoErr(err)
			mux := http.NewServeMux()
			mux.Handle("/v1/", botapi.New(botapi.Options{
				Bots:   bots,
				Keys:   botapi.StaticKeys(map[string]string{key: "an account"}),
				Engine: botapi.ChatEngineFunc(echo),
			}))
			mux.Handle("/", page.Handler(page.Options{Bots: bots, Questions: test.questions}))
			server := httptest.NewServer(mux)
			defer server.Close()
			tab := newTab(t)
			tab.do(chromedp.EmulateViewport(390, 780))
			tab.open(server.URL + "/#key=" + key)
			tab.see("#composer")
			is.Equal(tab.texts(".suggestion"), test.suggested)
			is.True(strings.Contains(tab.text("#scroller"), test.bot.Name))
		})
	}
}

// TestBeginningWithoutWelcome checks that the page introduces a bot without a
// welcome message.
func TestBeginningWithoutWelcome(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key + "&bot=bo")
	tab.see(".beginning")
	is.Equal(tab.text(".beginning .introduced"), "Bo")
	is.Equal(tab.texts(".suggestion"), []string{"Hello! Who are you?", "What can you help me with?"})
	tab.click(".suggestion")
	tab.see(".message:last-child .regenerate")
	is.Equal(tab.text(".message:last-child .text"), "Hello! Who are you?") // its echo
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "chat-name")
}
