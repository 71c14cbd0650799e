package browser

import (
	"fmt"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestKeyboard uses the page without a mouse, and checks that the focus is visible.
func TestKeyboard(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL)
	tab.wait(`document.activeElement.id === "key"`)
	tab.write(key)
	tab.enter()
	tab.say("one two")
	tab.waitForAnswer()

	tab.tabTo("#forget-key")
	tab.tabTo(`.bot[href="#bot=bo"]`)
	is.True(evaluate[bool](tab, `document.activeElement.matches(":focus-visible")`))
	is.True(evaluate[bool](tab, `getComputedStyle(document.activeElement).outlineStyle !== "none"`))
	tab.enter()
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	tab.say("three")
	tab.waitForAnswer()
	is.Equal(tab.texts(".conversation .text"), []string{"three", "three"}) // Bo has no welcome

	tab.tabTo("#scroller") // which the arrow keys scroll
	tab.tabTo("#menu-button")
	tab.enter()
	tab.tabTo("#start-over")
	tab.enter()
	tab.wait(`document.querySelectorAll(".message").length === 0`)
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")

	tab.do(chromedp.NavigateBack())
	tab.wait(`document.querySelector("#chat-name").textContent === "Ada"`)
	is.Equal(tab.texts(".conversation .text")[1:], []string{"one two", "one two"})
}

// TestStopKeepsFocus checks that the focus moves on when the button that has it
// disappears.
func TestStopKeepsFocus(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil).URL + "/#key=" + key)
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write("Hello")
	tab.tabTo("#send")
	tab.enter()
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "stop")
	tab.do(chromedp.KeyEvent(" "))
	tab.see(".stopped")
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
}

// TestStopByTouch checks that no keyboard covers the answer that somebody has stopped or
// asked for again with a finger.
func TestStopByTouch(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780, chromedp.EmulateMobile, chromedp.EmulateTouch))
	tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil).URL + "/#key=" + key + "&bot=ada")
	tab.click("#message")
	tab.write("Hello")
	tab.enter() // starts a line
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), "Hello\n")
	tab.click("#send")
	for _, again := range []string{".regenerate", ""} {
		tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
		tab.click("#stop")
		tab.see(".stopped")
		is.Equal(evaluate[string](tab, "document.activeElement.id"), "chat-name")
		if again != "" {
			tab.click(again)
			is.Equal(evaluate[string](tab, "document.activeElement.id"), "chat-name")
		}
	}
}

// TestAnnouncements checks the texts that a screen reader says.
func TestAnnouncements(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.see(".bot")
	evaluate[any](tab, `
		window.heard = [];
		new MutationObserver(() => heard.push(document.querySelector("[role=status]").textContent))
			.observe(document.querySelector("[role=status]"), { childList: true });
		null`)
	tab.say("one two")
	tab.waitForAnswer()
	is.Equal(evaluate[[]string](tab, "heard"), []string{"Ada is answering.", "Ada: one two"}) // once, and completely
	is.Equal(tab.texts(".author"), []string{"Ada:", "You:", "Ada:"})
}

// TestNames checks that every control has a name.
func TestNames(t *testing.T) {
	h := startService(t, botapi.Options{Engine: fails("Well,", nil, fmt.Errorf("a failure"))}, nil)
	pages := map[string]func(*tab){
		"key":       func(tab *tab) { tab.open(h.URL); tab.see("#key") },
		"chat":      func(tab *tab) { tab.open(h.URL + "/#key=" + key); tab.say("Hello"); tab.see(".failure") },
		"reference": func(tab *tab) { tab.open(h.URL + "/docs"); tab.see("#chat") },
	}
	for page, open := range pages {
		t.Run(page, func(t *testing.T) {
			is := is.New(t)
			tab := newTab(t)
			open(tab)
			tree, err := chromedp.Call(tab.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
			is.NoErr(err)
			named := 0
			for _, node := range tree.Nodes {
				switch role := value(node.Role); role {
				case "button", "link", "textbox", "main", "navigation", "heading":
					if name := value(node.Name); name == "" && role != "main" {
						t.Errorf("a %s without a name: %+v", role, node.Properties)
					}
					named++
				}
			}
			is.True(named > 3)
			is.Equal(evaluate[string](tab, "document.documentElement.lang"), "en")
			is.Equal(evaluate[int](tab, `Array.from(document.querySelectorAll("main")).filter((each) => each.checkVisibility()).length`), 1)
		})
	}
}

func value(v *accessibility.Value) string {
	if v == nil {
		return ""
	}
	return strings.Trim(string(v.Value), `"`)
}

// TestNarrowScreen checks that a narrow screen shows either the list or the
// conversation, without horizontal scrolling.
func TestNarrowScreen(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(320, 600, chromedp.EmulateMobile, chromedp.EmulateTouch))
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	is.True(!evaluate[bool](tab, `document.querySelector("#composer").checkVisibility()`))
	tab.checkWidth()

	tab.click(`.bot[href="#bot=ada"]`)
	tab.see("#composer")
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "chat-name") // no keyboard comes up yet
	is.True(!evaluate[bool](tab, `document.querySelector(".bot").checkVisibility()`))
	tab.click("#message")
	tab.say(strings.Repeat("verylongword", 20))
	tab.waitForAnswer()
	tab.checkWidth()

	tab.click(".back")
	tab.see(".bot")
	is.Equal(evaluate[string](tab, `document.activeElement.getAttribute("href")`), "#bot=ada")

	tab.open(h.URL + "/docs")
	tab.see("#chat")
	tab.checkWidth()
}

func (tab *tab) checkWidth() {
	tab.t.Helper()
	is.New(tab.t).True(evaluate[bool](tab, "document.documentElement.scrollWidth <= innerWidth"))
}

// TestPageNeverScrolls checks that only the list and the conversation scroll, not the page
// around them, however long they are.
func TestPageNeverScrolls(t *testing.T) {
	h := startService(t, botapi.Options{}, nil)
	for _, width := range []int64{1280, 390} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			is := is.New(t)
			tab := newTab(t)
			tab.do(chromedp.EmulateViewport(width, 600))
			tab.open(h.URL + "/#key=" + key + "&bot=ada")
			tab.see(".beginning")
			tab.checkHeight()
			tab.click("#message")
			tab.say(strings.Repeat("line\n", 50) + "end")
			tab.waitForAnswer()
			tab.say("And then?")
			tab.waitForAnswer()
			is.True(evaluate[bool](tab, `document.querySelector("#scroller").scrollHeight > 2 * innerHeight`))
			tab.checkHeight()

			evaluate[any](tab, `
				const chat = Object.keys(localStorage).find((name) => name.startsWith("botapi.chat."));
				for (let i = 0; i < 60; i++) localStorage.setItem(chat + i, localStorage.getItem(chat));
				location.hash = "bots"; null`)
			tab.do(chromedp.Reload())
			tab.wait(`document.querySelectorAll(".conversation-item").length >= 3`)
			evaluate[any](tab, `document.querySelector(".all:not([hidden])")?.click(); null`)
			tab.wait(`document.querySelectorAll(".conversation-item").length > 60`)
			tab.checkHeight()
		})
	}
}

// TestScrollbarMovesNothing checks that the messages stay where they are when their
// scrollbar appears.
func TestScrollbarMovesNothing(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 600))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.see(".beginning")
	is.True(evaluate[bool](tab, `(({ offsetWidth, clientWidth }) => offsetWidth > clientWidth)(document.querySelector("#scroller"))`)) // there is room for a scrollbar
	const left = `document.querySelector(".conversation").getBoundingClientRect().left`
	before := evaluate[float64](tab, left)
	tab.say(strings.Repeat("line\n", 50) + "end")
	tab.waitForAnswer()
	is.True(evaluate[bool](tab, `(({ scrollHeight, clientHeight }) => scrollHeight > clientHeight)(document.querySelector("#scroller"))`))
	is.Equal(evaluate[float64](tab, left), before)
	is.Equal(before, evaluate[float64](tab, `document.querySelector("#composer").getBoundingClientRect().left`)) // above each other
}

func (tab *tab) checkHeight() {
	tab.t.Helper()
	is.New(tab.t).Equal(evaluate[int](tab, "document.scrollingElement.scrollHeight - innerHeight"), 0)
}

// TestContrast checks the contrast of all text, in light and dark.
func TestContrast(t *testing.T) {
	h := startService(t, botapi.Options{Engine: fails("Well,", nil, fmt.Errorf("a failure"))}, nil)
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			is := is.New(t)
			tab := newTab(t)
			tab.prefer("prefers-color-scheme", scheme)
			tab.open(h.URL + "/#key=wrong")
			tab.see("#key-problem")
			is.Equal(evaluate[[]string](tab, lowContrast), []string{})
			tab.write(key)
			tab.enter()
			tab.say("Hello")
			tab.see(".failure")
			is.Equal(evaluate[[]string](tab, lowContrast), []string{})
			tab.open(h.URL + "/docs")
			tab.see("#chat")
			is.Equal(evaluate[[]string](tab, lowContrast), []string{})
		})
	}
}

// lowContrast lists the texts whose contrast with their background is below 4.5
// to 1, which WCAG requires for text of any size.
const lowContrast = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
	const paint = (...colours) => {
		canvas.clearRect(0, 0, 1, 1);
		for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
		return Array.from(canvas.getImageData(0, 0, 1, 1).data);
	};
	const luminance = ([r, g, b]) => [r, g, b]
		.map((c) => c / 255).map((c) => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
	const backgrounds = (element) => element ? [...backgrounds(element.parentElement), getComputedStyle(element).backgroundColor] : [];
	const hasText = (element) => Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
	return Array.from(document.body.querySelectorAll("*"))
		.filter((element) => hasText(element) && element.checkVisibility() && !element.matches(".unseen, option"))
		.flatMap((element) => {
			const behind = backgrounds(element);
			const [a, b] = [luminance(paint(...behind)), luminance(paint(...behind, getComputedStyle(element).color))];
			const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
			return contrast < 4.5 ? [element.className + " " + element.textContent.slice(0, 30) + " " + contrast.toFixed(2)] : [];
		});
})()`

func TestReducedMotion(t *testing.T) {
	for preference, animation := range map[string]string{"no-preference": "waiting", "reduce": "none"} {
		t.Run(preference, func(t *testing.T) {
			is := is.New(t)
			tab := newTab(t)
			tab.prefer("prefers-reduced-motion", preference)
			tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil).URL + "/#key=" + key)
			tab.say("Hello")
			tab.see(".arriving")
			is.Equal(evaluate[string](tab, `getComputedStyle(document.querySelector(".arriving .dots")).animationName`), animation)
		})
	}
}
