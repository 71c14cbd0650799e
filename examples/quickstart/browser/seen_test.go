package browser

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestFailureInHistory checks that an old failure has only a note. Only the last
// failure has a box, and only one button to edit its message.
func TestFailureInHistory(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("fail")
	tab.see(".failure")
	edits := `Array.from(document.querySelectorAll("button")).filter((each) => each.textContent === "Edit" && each.checkVisibility()).length`
	is.Equal(evaluate[int](tab, edits), 1)
	tab.say("break")
	tab.see(".failure")
	tab.say("two")
	tab.waitForAnswer()
	is.Equal(tab.texts(".failure"), []string{})
	is.Equal(tab.texts(".assistant .note")[1:], []string{
		"Something went wrong on the server. This message is no longer sent to the bot.",
		"This answer is incomplete.",
		"",
	})
	is.Equal(evaluate[int](tab, edits), 3)
}

// TestCountDown checks that "Try again" is disabled for the time that the server
// asks for.
func TestCountDown(t *testing.T) {
	is := is.New(t)
	busy := botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Slow down", RetryAfter: 90 * time.Second}
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: fails("", nil, busy)}, nil).URL + "/#key=" + key)
	tab.say("Hello")
	tab.see(".failure .again:disabled")
	is.True(strings.HasPrefix(tab.text(".again"), "Try again in 1 min "))
	tab.forward(60 * time.Second)
	tab.wait(`/^Try again in [12]\d s$/.test(document.querySelector(".again").textContent)`)
	is.True(evaluate[bool](tab, `/^Try again in [12]\d seconds\.$/.test(document.querySelector(".failure-advice").textContent)`))
	tab.forward(60 * time.Second)
	tab.wait(`!document.querySelector(".again").disabled`)
	is.Equal(tab.text(".again"), "Try again")
	is.Equal(tab.text(".failure-advice"), "")
	tab.click(".again")
	tab.see(".failure .again:disabled")

	tab.do(chromedp.Reload()) // the countdown continues
	tab.see(".failure .again:disabled")
}

// TestNothingToSend checks that an empty message cannot be sent.
func TestNothingToSend(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.see("#send:disabled")
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write(" \n")
	is.True(evaluate[bool](tab, `document.querySelector("#send").disabled`))
	tab.write("Hello")
	is.True(!evaluate[bool](tab, `document.querySelector("#send").disabled`))
	tab.click("#send")
	tab.waitForAnswer()
	is.Equal(len(tab.answers()), 1)
	tab.see("#send:disabled")
	tab.click(".user .edit")
	tab.see("#send:not(:disabled)")
}

// TestNoChoice checks that the page does not ask to choose a bot if there is none.
func TestNoChoice(t *testing.T) {
	h := startService(t, botapi.Options{}, nil)
	asks := `getComputedStyle(document.querySelector("#scroller"), "::before").content`
	for name, open := range map[string]func(*tab){
		"no bots": func(tab *tab) {
			is.New(tab.t).NoErr(h.bots.Replace())
			tab.open(h.URL + "/#key=" + key)
			tab.wait(`document.querySelector("#bots-note").textContent === "No bot is published here yet."`)
		},
		"no server": func(tab *tab) {
			tab.open(h.URL)
			tab.see("#key")
			evaluate[any](tab, `window.fetch = () => Promise.reject(new TypeError("no server")); null`)
			tab.write(key)
			tab.enter()
			tab.wait(`document.querySelector("#bots-note").textContent.startsWith("The server cannot be reached.")`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tab := newTab(t)
			open(tab)
			is.New(t).Equal(evaluate[string](tab, asks), "none")
		})
	}
}

// TestNamesBesideAvatars checks that names in any script are beside their pictures.
func TestNamesBesideAvatars(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	arabic := botapi.Bot{UID: "1", Slug: "layla", Name: "ليلى", Description: "تجيب عن كل سؤال", Model: "echo"}
	is.NoErr(h.bots.Replace(arabic))
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(h.URL + "/#key=" + key)
	tab.say("مرحبا")
	tab.waitForAnswer()
	for _, pair := range [][2]string{{".bot .avatar", ".bot-name"}, {".bot .avatar", ".bot-description"}, {"#chat-avatar", "#chat-name"}, {"#chat-avatar", "#chat-description"}, {".conversations", ".conversation-item .title"}} {
		gap := evaluate[float64](tab, fmt.Sprintf(`(() => {
			const range = document.createRange();
			range.selectNodeContents(document.querySelector(%q));
			const { left, right } = document.querySelector(%q).getBoundingClientRect();
			return range.getBoundingClientRect().left - (right - left > 100 ? left : right);
		})()`, pair[1], pair[0]))
		t.Logf("%s: %v", pair[1], gap)
		is.True(gap > 0 && gap < 40)
	}
}

// TestNoRingOnName checks that there is no focus ring around the bot's name, which
// has the focus only so that a screen reader says it.
func TestNoRingOnName(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780, chromedp.EmulateMobile, chromedp.EmulateTouch))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key + "&bot=ada")
	tab.do(chromedp.Reload())
	tab.wait(`document.activeElement?.id === "chat-name"`)
	is.Equal(evaluate[string](tab, `getComputedStyle(document.activeElement).outlineStyle`), "none")
}
