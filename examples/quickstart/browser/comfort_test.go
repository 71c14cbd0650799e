package browser

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// forward moves the page's clock, so that a test does not have to wait.
func (tab *tab) forward(duration time.Duration) {
	tab.t.Helper()
	evaluate[any](tab, fmt.Sprintf(`(() => { const now = Date.now; Date.now = () => now() + %d; })()`, duration.Milliseconds()))
}

// TestSilence checks that the page reports a connection on which nothing arrives,
// and offers to connect again.
func TestSilence(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	tab.forward(20 * time.Second)
	tab.wait(`/^2\d s$/.test(document.querySelector(".arriving .elapsed").textContent)`)
	is.True(!evaluate[bool](tab, `document.querySelector(".arriving .silence").checkVisibility()`))
	tab.forward(60 * time.Second)
	tab.see(".arriving .silence")
	is.True(strings.HasPrefix(tab.text(".arriving .silence"), "Nothing has arrived for 1 min "))
	is.Equal(evaluate[string](tab, `document.querySelector("#announcement").textContent`), "Nothing has arrived for a while. The connection may be lost.")
	tab.click(".arriving .silence button")
	tab.wait(`!document.querySelector(".silence:not([hidden]), .lost:not([hidden])")`)
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	bot.mu.Lock()
	defer bot.mu.Unlock()
	is.Equal(len(bot.requests), 1) // the page has joined the same answer
	tab.mu.Lock()
	defer tab.mu.Unlock()
	chats := slices.DeleteFunc(slices.Clone(tab.requested), func(address string) bool { return !strings.HasSuffix(address, "/v1/chat") })
	is.Equal(len(chats), 2)
}

// TestKeepAliveIsNoSilence checks that keep-alive comments count as activity.
func TestKeepAliveIsNoSilence(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{KeepAlive: 10 * time.Millisecond})
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	tab.forward(70 * time.Second)
	tab.wait(`/^1 min /.test(document.querySelector(".arriving .elapsed").textContent)`)
	is.True(!evaluate[bool](tab, `document.querySelector(".arriving .silence").checkVisibility()`))
}

// TestDirection checks that each message and the composer have the direction of
// their text.
func TestDirection(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.see(".bot")
	direction := func(selector string) string {
		return evaluate[string](tab, fmt.Sprintf(`getComputedStyle(Array.from(document.querySelectorAll(%q)).at(-1)).direction`, selector))
	}
	for _, test := range []struct{ text, direction string }{{"שלום, world", "rtl"}, {"hello, עולם", "ltr"}, {"- שלום\n- world", "rtl"}} {
		tab.write(test.text)
		is.Equal(direction("#message"), test.direction)
		tab.enter()
		tab.wait(fmt.Sprintf(`Array.from(document.querySelectorAll(".user .text")).at(-1)?.textContent === %s`, quoted(test.text)))
		tab.waitForAnswer()
		is.Equal(direction(".user .text"), test.direction)
		is.Equal(direction(".assistant .text .part > *"), test.direction)
	}
}

// TestHugeMessage sends a message of many lines.
func TestHugeMessage(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	evaluate[any](tab, `document.querySelector("#message").value = "line\n".repeat(20_000); document.querySelector("#composer").requestSubmit(); null`)
	tab.wait(`document.querySelectorAll(".assistant .text")[1]?.textContent === "Answer 1"`)
	is.Equal(evaluate[int](tab, `document.querySelector(".user .text").textContent.length`), 5*20_000-1)
}

// TestBotListChanges checks that the page loads the list again when its tab becomes
// visible, and for an unknown bot.
func TestBotListChanges(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.waitForAnswer()
	tab.write("a draft")
	renamed, fresh := ada, botapi.Bot{UID: "c", Slug: "cy", Name: "Cy", Model: "echo"}
	renamed.Name = "Ada Lovelace"
	is.NoErr(h.bots.Replace(fresh, renamed))
	evaluate[any](tab, `document.dispatchEvent(new Event("visibilitychange"))`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Ada Lovelace"`)
	is.Equal(tab.texts(".bot-name"), []string{"Cy", "Ada Lovelace"})
	is.Equal(tab.text(".bot[aria-current] .bot-name"), "Ada Lovelace")
	is.Equal(len(tab.answers()), 1) // the conversation stays
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), "a draft")

	newest := botapi.Bot{UID: "d", Slug: "di", Name: "Di", Model: "echo"}
	is.NoErr(h.bots.Replace(fresh, renamed, newest))
	evaluate[any](tab, `location.hash = "bot=di"; null`) // a bot that the page does not know yet
	tab.wait(`document.querySelector("#chat-name").textContent === "Di"`)
	tab.click(`.bot[href="#bot=ada"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Ada Lovelace"`)

	is.NoErr(h.bots.Replace(fresh))
	tab.wait(`document.activeElement.id === "message"`)
	tab.enter()
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "This bot is not available any more.")
	tab.wait(`document.querySelectorAll(".bot").length === 1`)
}

// TestLongAnswerShowsProgress checks that the page says that it has not shown all of
// an answer yet, also when it was loaded. The test decides when the browser draws.
func TestLongAnswerShowsProgress(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.say("Hello")
	tab.waitForAnswer()
	is.True(!evaluate[bool](tab, `document.querySelector(".message:last-child .progress").checkVisibility()`))
	evaluate[any](tab, `{
		window.frames = [];
		window.requestAnimationFrame = (draw) => frames.push(draw);
		const name = Object.keys(localStorage).find((name) => name.startsWith("botapi.chat."));
		const conversation = JSON.parse(localStorage.getItem(name));
		conversation.turns[0].answer = "`+"```\\ncode\\n```\\n\\n"+`".repeat(20_000);
		localStorage.setItem(name, JSON.stringify(conversation));
		dispatchEvent(new StorageEvent("storage", { key: name }));
	} null`)
	tab.see(".filling .progress .dots")
	is.True(evaluate[bool](tab, `/^Showing the answer: \d %$/.test(document.querySelector(".filling .elapsed").textContent)`))
	evaluate[any](tab, `while (frames.length > 0) frames.shift()(0); null`)
	tab.waitForAnswer()
	is.True(!evaluate[bool](tab, `document.querySelector(".message:last-child .progress").checkVisibility()`))
	is.Equal(evaluate[int](tab, `document.querySelectorAll(".code").length`), 20_000)
}

// TestDraftsAndPositions checks that each conversation keeps its draft and scroll
// position.
func TestDraftsAndPositions(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	value := `document.querySelector("#message").value`
	position := `Math.round(document.querySelector("#scroller").scrollTop)`
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write(strings.Repeat("line\n", 100))
	tab.enter()
	tab.see(".assistant:last-child .actions")
	tab.see(".assistant .text p") // the welcome, which is shown as it was written at first
	evaluate[any](tab, `document.querySelector("#scroller").scrollTop = 120; null`)
	tab.see("#latest")
	tab.write("for Ada")

	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	is.Equal(evaluate[string](tab, value), "")
	tab.write("for Bo")

	tab.click(`.bot[href="#bot=ada"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Ada"`)
	is.Equal(evaluate[string](tab, value), "for Ada")
	is.Equal(evaluate[int](tab, position), 120)

	tab.click(`.bot[href="#bot=bo"]`)
	tab.do(chromedp.Reload())
	tab.wait(`document.querySelector("#chat-name")?.textContent === "Bo"`)
	is.Equal(evaluate[string](tab, value), "for Bo")
}

// TestEscape checks that Escape stops the answer wherever the focus is.
func TestEscape(t *testing.T) {
	focuses := map[string]string{
		"list":     `document.querySelector(".bot").focus()`,
		"nowhere":  `document.activeElement.blur()`,
		"scroller": `document.querySelector("#scroller").focus()`,
		"button":   `document.querySelector("#forget-key").focus()`,
	}
	for name, focus := range focuses {
		t.Run(name, func(t *testing.T) {
			_, tab := talkToMoody(t, botapi.Options{})
			tab.say("wait")
			tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
			evaluate[any](tab, focus+"; null")
			tab.do(chromedp.KeyEvent(kb.Escape))
			tab.see(".stopped")
		})
	}
}

// TestSendTooEarly sends a message, and an edited one, while an answer arrives. Nothing is sent or
// lost, and a note says why until the answer ends or another conversation is on show.
func TestSendTooEarly(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	const note = "The answer is still arriving. You can send this when it has ended, or stop it."
	tab.say("one")
	tab.seeLast("Answer 1")
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	is.True(!evaluate[bool](tab, `document.querySelector("#too-early").checkVisibility()`))
	tab.enter() // there is nothing to send
	is.True(!evaluate[bool](tab, `document.querySelector("#too-early").checkVisibility()`))
	tab.write("two")
	tab.enter()
	tab.see("#too-early")
	is.Equal(tab.text("#too-early"), note)
	is.Equal(tab.text("#announcement"), note)
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), "two")
	tab.click("#new-chat")
	tab.wait(`!document.querySelector("#too-early").checkVisibility()`)
	tab.do(chromedp.NavigateBack())
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well," && document.activeElement.id === "message"`)
	is.True(!evaluate[bool](tab, `document.querySelector("#too-early").checkVisibility()`))

	tab.click(".user .edit")
	tab.write(" and a half")
	tab.enter()
	tab.see("#too-early")
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), "one and a half")
	is.Equal(bot.last(), []botapi.ChatMessage{user("one"), assistant("Answer 1"), user("wait")})
	close(bot.gate)
	tab.waitForAnswer()
	tab.wait(`!document.querySelector("#too-early").checkVisibility()`)
	tab.enter()
	tab.seeLast("Answer 3")
	is.Equal(bot.last(), []botapi.ChatMessage{user("one and a half")})
	tab.wait(`document.querySelector("#message").value === "two"`)
}

// TestJumpToLatest checks that arriving text does not scroll a reader who has
// scrolled back.
func TestJumpToLatest(t *testing.T) {
	is := is.New(t)
	gate, more := make(chan struct{}), make(chan struct{})
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, wait := range []chan struct{}{gate, more} {
				if !yield(strings.Repeat("a line\n\n", 100), nil) {
					return
				}
				select {
				case <-wait:
				case <-ctx.Done():
					return
				}
			}
		}
	})}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	atEnd := `(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight > 2000 && scrollHeight - scrollTop - clientHeight < 2)(document.querySelector("#scroller"))`
	tab.wait(atEnd) // the page follows arriving text
	evaluate[any](tab, `document.querySelector("#scroller").scrollTop = 50; null`)
	tab.see("#latest")
	close(gate)
	tab.wait(`document.querySelectorAll(".arriving p").length > 190`)
	is.Equal(evaluate[int](tab, `document.querySelector("#scroller").scrollTop`), 50)
	tab.click("#latest")
	tab.wait(atEnd)
	tab.wait(`document.querySelector("#latest").hidden`)
	close(more)
	tab.waitForAnswer()
	tab.wait(atEnd)
}

// TestCode checks that a block of code scrolls, names its language, and can be
// copied.
func TestCode(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(explain)}, nil)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780))
	tab.open(h.URL + "/#key=" + key + "&bot=ada")
	tab.see("#message")
	tab.do(chromedp.Focus(chromedp.ID("message")))
	tab.say("Hello")
	tab.waitForAnswer()
	is.Equal(tab.text(".code figcaption span"), "go")
	is.True(evaluate[bool](tab, `(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.querySelector(".code pre"))`))
	tab.checkWidth()
	code := tab.copied(".code .copy")
	is.True(strings.HasPrefix(code, "scanner := bufio.NewScanner(file)\nfor scanner.Scan() {\n\tfmt.Println"))
	is.True(strings.HasSuffix(code, "\n}\n"))
	is.Equal(tab.copied(".assistant:last-child > .actions .copy"), explanation)
	link := `document.querySelector(".assistant .text a")`
	is.Equal(evaluate[string](tab, link+".href"), "https://pkg.go.dev/os#Open")
	is.Equal(evaluate[string](tab, link+".target + ' ' + "+link+".rel"), "_blank noopener noreferrer")
}

// TestSmallScreen checks that there is room for the conversation on a screen of the
// size of a business card, which is also a large screen at 400 % zoom.
func TestSmallScreen(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(320, 256))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key + "&bot=ada")
	tab.see("#composer")
	is.True(evaluate[float64](tab, `document.querySelector("#scroller").clientHeight / innerHeight`) > 0.5)
	tab.checkWidth()
	tab.do(chromedp.Focus(chromedp.ID("message")))
	tab.write(strings.Repeat("many lines\n", 30))
	is.True(evaluate[float64](tab, `document.querySelector("#scroller").clientHeight / innerHeight`) > 0.3)
	tab.checkWidth()
}
