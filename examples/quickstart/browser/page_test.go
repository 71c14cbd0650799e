package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

func TestFirstVisit(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	tab := newTab(t)
	tab.open(q.address)
	tab.wait(`document.activeElement.id === "key"`)
	tab.write("not the key")
	tab.enter()
	is.Equal(tab.text("#key-problem"), "A key has no spaces and no accented letters.")
	evaluate[any](tab, `document.querySelector("#key").value = ""`)
	tab.write("wrong")
	tab.enter()
	tab.wait(`document.querySelector("#key-problem").textContent === "The server did not accept this key."`)
	tab.write(" \t" + key + " ") // as it may be pasted
	tab.enter()

	tab.see(".bot")
	is.Equal(tab.texts(".bot-name"), []string{"Guide", "Mira", "Juniper"})
	is.Equal(tab.texts(".bot-description"), []string{"Explains botapi. No model, just its documents.", "Listens, and asks back.", "Gardens, and sees a garden in everything."})
	is.Equal(tab.texts(".bot .avatar"), []string{"G", "M", "J"})
	is.True(strings.HasPrefix(tab.text(".conversation .text"), "Hello. I explain botapi, from its own documents."))
	is.Equal(evaluate[string](tab, "document.title"), "Guide · Bots")
}

func TestKeyInAddress(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	tab := newTab(t)
	tab.open(q.address + "/#key=" + key + "&bot=juniper")
	tab.see(".bot")
	is.Equal(tab.text("#chat-name"), "Juniper")
	is.Equal(evaluate[string](tab, "location.href"), q.address+"/#bot=juniper")
	is.Equal(evaluate[int](tab, "history.length"), 2) // the empty tab and the page: the key is in neither
	is.Equal(evaluate[bool](tab, "document.cookie === '' && localStorage.length === 0"), true)

	tab.do(chromedp.Reload())
	tab.see(".bot")

	tab.click("#forget-key")
	tab.click("#forget-dialog .cancel")
	is.Equal(evaluate[[]string](tab, "Object.keys(sessionStorage).sort()"), []string{"botapi.key", "botapi.place"})
	tab.click("#forget-key")
	tab.click("#forget-now")
	tab.see("#key")
	is.Equal(evaluate[int](tab, "sessionStorage.length"), 0)
}

// TestAvatars checks that the page shows pictures from other servers, and an
// initial for a picture that does not load.
func TestAvatars(t *testing.T) {
	is := is.New(t)
	pictures := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/ada.svg" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "image/svg+xml")
		_, _ = io.WriteString(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><path d="M0 0h1v1H0z"/></svg>`)
	}))
	defer pictures.Close()
	bots := filepath.Join(t.TempDir(), "bots.json")
	is.NoErr(os.WriteFile(bots, fmt.Appendf(nil, `[
		{"uid": "1", "slug": "ada", "name": "Ada", "model": "eliza-listener", "avatar_url": "%[1]s/ada.svg"},
		{"uid": "2", "slug": "bo", "name": "bo", "model": "eliza-listener", "avatar_url": "%[1]s/missing.svg"}
	]`, pictures.URL), 0o600))
	q := startQuickstart(t, "-bots", bots)
	tab := newTab(t)
	tab.pictures = pictures.Listener.Addr().String()
	tab.open(q.address + "/#key=" + key)
	tab.wait(`document.querySelector("#chat-avatar img")?.naturalWidth > 0`)
	tab.wait(`document.querySelector("[href='#bot=ada'] .avatar img")?.naturalWidth > 0`)
	is.Equal(tab.text("[href='#bot=bo'] .avatar"), "B")
}

// TestChat chats with a bot of the quickstart and watches the answer grow.
func TestChat(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t, "-pace", "20ms")
	tab := newTab(t)
	tab.open(q.address + "/#key=" + key + "&bot=mira")
	tab.see(".bot")
	evaluate[any](tab, `
		window.seen = [];
		new MutationObserver(() => {
			const text = document.querySelector(".conversation > :last-child.assistant .text")?.textContent;
			if (text !== undefined && text !== seen.at(-1)) seen.push(text);
		}).observe(document.querySelector("#scroller"), { subtree: true, childList: true, characterData: true });
		null`)
	tab.say("I am worried about my exam")
	tab.waitForAnswer()

	is.Equal(tab.text(".user .text"), "I am worried about my exam")
	grown := evaluate[[]string](tab, "seen")
	is.True(len(grown) > 3) // the answer arrives in several steps
	for i := range len(grown) - 1 {
		is.True(strings.HasPrefix(grown[i+1], grown[i])) // the text only grows
	}
	is.Equal(tab.texts(".assistant .text")[1], grown[len(grown)-1])
	is.True(strings.Contains(q.log.wait(t, "msg=chat"), "outcome=complete"))
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
	is.Equal(evaluate[string](tab, "document.activeElement.value"), "")
}

// TestConversation checks that the page sends the earlier messages.
func TestConversation(t *testing.T) {
	is := is.New(t)
	requests := make(chan *botapi.ChatRequest, 2)
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(
		func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			requests <- req
			return echo(ctx, req)
		})}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	is.Equal(tab.text(".conversation .text"), "Hello.\n\nI am <b>Ada</b>.") // text, not markup

	tab.say("one")
	tab.waitForAnswer()
	is.Equal((<-requests).Messages, []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "one"}})
	tab.do(chromedp.Reload())
	tab.see(".bot")
	tab.waitForAnswer()
	is.Equal(tab.texts(".conversation .text"), []string{"Hello.\n\nI am <b>Ada</b>.", "one", "one"})

	tab.write("two")
	tab.enter(kb.ModifierShift)
	tab.write("lines")
	tab.enter()
	tab.waitForAnswer()
	is.Equal((<-requests).Messages, []botapi.ChatMessage{
		{Role: botapi.RoleUser, Content: "one"},
		{Role: botapi.RoleAssistant, Content: "one"},
		{Role: botapi.RoleUser, Content: "two\nlines"},
	})

	tab.clear()
	is.Equal(len(tab.texts(".conversation .text")), 1)
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(len(tab.texts(".conversation .text")), 1)
}

// TestStop checks that stopping an answer cancels it on the server.
func TestStop(t *testing.T) {
	ways := map[string]func(*tab){
		"button": func(tab *tab) { tab.click("#stop") },
		"Escape": func(tab *tab) { tab.do(chromedp.KeyEvent(kb.Escape)) },
	}
	for way, stop := range ways {
		t.Run(way, func(t *testing.T) {
			is := is.New(t)
			q := startQuickstart(t, "-pace", "1h")
			tab := newTab(t)
			tab.open(q.address + "/#key=" + key + "&bot=mira")
			tab.say("I am worried about my exam")
			tab.wait(`document.querySelector(".arriving .text")?.textContent.length > 0`)
			stop(tab)
			tab.see(".stopped")
			is.True(tab.text(".stopped .text") != "") // the text that has arrived stays
			is.Equal(tab.texts(".failure"), []string{})
			is.True(!strings.Contains(q.log.wait(t, "msg=chat"), "outcome=complete"))
			is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
		})
	}
}

// TestFailures checks what the page shows for each kind of failure.
func TestFailures(t *testing.T) {
	const fragment = "data: {\"content\":\"Well,\"}\n\n"
	tests := []struct {
		name          string
		options       botapi.Options
		answer        http.HandlerFunc
		disconnect    bool   // after the text has arrived
		text          string // of the answer
		title, advice string
	}{
		{
			name:    "engine fails",
			options: botapi.Options{Engine: fails("", nil, errors.New("the engine's own words"))},
			title:   "Something went wrong on the server.",
			advice:  "This is not your fault. Try again. If it keeps happening, tell the server's operator.",
		}, {
			name:   "error event",
			answer: stream(fragment+"event: error\r\ndata: {\"detail\":\"Internal Server Error\",\"status\":500}\r\n\r\n", true),
			text:   "Well,",
			title:  "The bot stopped in the middle of its answer.",
			advice: "Something went wrong on the server. This answer is incomplete.",
		}, {
			name:   "error event with the application's text",
			answer: stream(fragment+"event: error\ndata: {\"detail\":\"The model went to sleep\",\"status\":503,\"retry_after\":7200}\n\n", true),
			text:   "Well,",
			title:  "The bot stopped in the middle of its answer.",
			advice: "The model went to sleep. Try again in 2 hours. This answer is incomplete.",
		}, {
			name:   "error event about an incomplete answer",
			answer: stream(fragment+"event: error\ndata: {\"detail\":\"The model's answer is incomplete\",\"status\":502}\n\n", true),
			text:   "Well,",
			title:  "The bot stopped in the middle of its answer.",
			advice: "The model's answer is incomplete.", // once
		}, {
			name:    "engine takes too long",
			options: botapi.Options{ChatTimeout: time.Millisecond, Engine: botapi.ChatEngineFunc(silent)},
			title:   "The bot took too long to answer.",
			advice:  "Try again, perhaps with a simpler question.",
		}, {
			name: "invalid for the engine",
			options: botapi.Options{Engine: fails("", nil, botapi.HTTPValidationError{Detail: []botapi.ValidationError{
				{Loc: []any{"body", "messages", 0, "content"}, Msg: "is too rude", Type: "value_error"},
			}})},
			title:  "The server could not use this message.",
			advice: "body › messages › 0 › content: is too rude",
		}, {
			name:    "application's text",
			options: botapi.Options{Engine: fails("", nil, botapi.StatusError{Status: http.StatusPaymentRequired, Detail: "Your trial has ended", RetryAfter: 2 * time.Hour})},
			title:   "Your trial has ended.",
			advice:  "Try again in 2 hours.",
		}, {
			name:    "large body",
			options: botapi.Options{MaxBodyBytes: 64},
			title:   "This is too long for the server.",
			advice:  "Edit the message to make it shorter, or start a new chat.",
		}, {
			name: "a proxy's page",
			answer: func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "<h1>Bad Gateway</h1>", http.StatusBadGateway)
			},
			title: "The server answered with an error (status 502).",
		}, {
			name:       "aborted stream",
			answer:     stream(fragment+"data: {\"con", true),
			disconnect: true,
			text:       "Well,",
			title:      "The connection was lost.",
			advice:     "This answer is incomplete.",
		}, {
			name:   "stream without [DONE]",
			answer: stream(fragment, false),
			text:   "Well,",
			title:  "The connection was lost.",
			advice: "This answer is incomplete.",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			h := startService(t, test.options, test.answer)
			tab := newTab(t)
			tab.open(h.URL + "/#key=" + key)
			tab.say("Hello")
			tab.wait(fmt.Sprintf(`document.querySelector(".user + .assistant .text")?.textContent === %q`, test.text))
			if test.disconnect {
				h.CloseClientConnections()
			}
			tab.see(".failure")
			is.Equal(tab.text(".failure-title"), test.title)
			is.Equal(tab.text(".failure-advice"), test.advice)
			is.Equal(tab.texts(".assistant .text")[1], test.text)
			is.Equal(evaluate[string](tab, `document.querySelector("#announcement").textContent`), strings.TrimSpace(test.title+" "+test.advice))
			if test.answer == nil {
				is.True(strings.HasPrefix(tab.text(".request-id"), "Request ")) // to name in a report
			}
		})
	}
}

// TestEngineFailsHalfway has an engine that fails, so that the handler sends its
// error event and aborts the connection. A browser may then discard what it has
// not read, so the page sees either the event or an aborted stream.
func TestEngineFailsHalfway(t *testing.T) {
	is := is.New(t)
	gate := make(chan struct{})
	h := startService(t, botapi.Options{Engine: fails("Well,", gate, errors.New("the engine's own words"))}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	close(gate)
	tab.see(".failure")
	is.Equal(tab.texts(".assistant .text")[1], "Well,")
	is.True(slices.Contains([]string{"The bot stopped in the middle of its answer.", "The connection was lost."}, tab.text(".failure-title")))
	is.True(strings.HasSuffix(tab.text(".failure-advice"), "This answer is incomplete."))
}

// silent yields nothing and waits for the end of its context.
func silent(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(func(string, error) bool) { <-ctx.Done() }
}

// TestAllSlotsTaken chats with two bots at the same time where there is one slot.
func TestAllSlotsTaken(t *testing.T) {
	tests := []struct {
		name          string
		options       botapi.Options
		title, advice string
	}{
		{
			"server", botapi.Options{MaxConcurrentChats: 1},
			"The server is busy with other conversations.", "Try again in a second.",
		}, {
			"account", botapi.Options{MaxChatsPerAccount: 1},
			"Too many conversations are going on with your key.", "Wait for another answer to end, or stop it. Try again in a second.",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			test.options.Engine = botapi.ChatEngineFunc(waits)
			tab := newTab(t)
			tab.open(startService(t, test.options, nil).URL + "/#key=" + key)
			tab.say("Hello")
			tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
			tab.click(`.bot[href="#bot=bo"]`)
			tab.say("Hello")
			tab.see(".failure")
			is.Equal(tab.text(".failure-title"), test.title)
			is.Equal(tab.text(".failure-advice"), test.advice)

			tab.click(`.bot[href="#bot=ada"]`) // whose answer is still arriving
			tab.click("#stop")
			tab.see(".stopped")
		})
	}
}

func TestTryAgain(t *testing.T) {
	is := is.New(t)
	var tries atomic.Int32
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(
		func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
			if tries.Add(1) == 1 {
				return fails("", nil, errors.New("once")).Chat(ctx, req)
			}
			return echo(ctx, req)
		})}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.see(".failure")
	tab.click(".again")
	tab.wait(`!document.querySelector(".failure")`)
	tab.waitForAnswer()
	is.Equal(tab.texts(".conversation .text")[1:], []string{"Hello", "Hello"})
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
}

func TestBotRemoved(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	is.NoErr(h.bots.Replace(bo))
	tab.say("Hello")
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "This bot is not available any more.")
	is.Equal(tab.text(".failure-advice"), "Choose another one.")
}

func TestKeyRevoked(t *testing.T) {
	is := is.New(t)
	var revoked atomic.Bool
	h := startService(t, botapi.Options{Keys: botapi.KeyVerifierFunc(func(context.Context, string) (string, error) {
		if revoked.Load() {
			return "", botapi.ErrInvalidKey
		}
		return "an account", nil
	})}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	revoked.Store(true)
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write("Hello")
	tab.enter()
	tab.see("#key")
	is.Equal(tab.text("#key-problem"), "The server does not accept this key any more.")

	revoked.Store(false)
	tab.write(key)
	tab.enter()
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "This message has no answer yet.")
	tab.click(".again")
	tab.wait(`!document.querySelector(".failure")`)
	tab.waitForAnswer()
	is.Equal(tab.texts(".conversation .text")[1:], []string{"Hello", "Hello"})
}

func TestServerDown(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	h.CloseClientConnections()
	h.Close()
	tab.say("Hello")
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "The server cannot be reached.")
}

func TestNoBots(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	is.NoErr(h.bots.Replace())
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.wait(`document.querySelector("#bots-note").textContent === "No bot is published here yet."`)
	is.True(!evaluate[bool](tab, `document.querySelector("#composer").checkVisibility()`))
}
