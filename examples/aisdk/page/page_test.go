package main

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// TestStorage has a browser that cannot store the conversation, or that has stored
// something else. The page works, and says it.
func TestStorage(t *testing.T) {
	for name, script := range map[string]string{
		"full":    `for (let size = 1 << 22; size >= 1; size /= 2) try { localStorage.setItem(size, "x".repeat(size)); } catch {}`,
		"blocked": `Object.defineProperty(window, "localStorage", { get() { throw new DOMException("Access is denied", "SecurityError"); } });`,
	} {
		t.Run(name, func(t *testing.T) {
			_, _, server := newLine(t)
			tab := openPage(t, server.URL+"/#key="+key, script)
			tab.waitFor(`status === "ready"`)
			tab.say("say Hello")
			tab.waitFor(`status === "ready" && last === "Hello" && footer.includes("cannot store this conversation")`)
			tab.say("say Bye")
			tab.waitFor(`status === "ready" && last === "Bye"`)
		})
	}
	for _, stored := range []string{`{`, `{}`, `7`, `null`} {
		t.Run("damaged: "+stored, func(t *testing.T) {
			_, _, server := newLine(t)
			tab := openPage(t, server.URL+"/#chat=a-chat&key="+key, `localStorage.setItem("a-chat", "`+stored+`");`)
			tab.waitFor(`status === "ready"`)
			tab.say("say Hello")
			tab.waitFor(`status === "ready" && last === "Hello" && !footer.includes("cannot store")`)
		})
	}
}

// TestMarkdown shows an answer with structure. Nothing in it reaches another server or
// becomes a script.
func TestMarkdown(t *testing.T) {
	is := is.New(t)
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key)
	tab.waitFor(`status === "ready"`)
	tab.say(`say **bold** ~~gone~~ [a link](https://example.com/) [a script](javascript:alert(1)) ![a picture](https://example.com/p.png) <img src=x onerror=alert(1)>`)
	tab.waitFor(`status === "ready" && last.startsWith("bold gone a link a script")`)
	is.Equal(evaluate[string](tab, `document.querySelector(".assistant strong").textContent + document.querySelector(".assistant del").textContent`), "boldgone")
	is.Equal(evaluate[[]string](tab, `Array.from(document.querySelectorAll(".assistant a"), (a) => [a.getAttribute("href"), a.target, a.rel].join(" "))`),
		[]string{"https://example.com/ _blank noreferrer", " _blank noreferrer"})
	is.Equal(evaluate[int](tab, `document.querySelectorAll(".assistant img").length`), 0)
	is.Equal(evaluate[int](tab, `document.querySelectorAll(".user strong").length`), 0)
}

// TestAnotherLine regenerates an answer of the bots that the program serves.
func TestAnotherLine(t *testing.T) {
	h, answers := newService(newEngine(), key)
	tab := openPage(t, serve(t, h, answers).URL+"/#key="+key)
	tab.waitFor(`status === "ready"`)
	tab.say("I am tired")
	tab.waitFor(`status === "ready" && last === "What has taken so much out of you?"`)
	tab.click("#regenerate")
	tab.waitFor(`status === "ready" && last === "When did you last rest without a bad conscience?"`)
}

// TestComposer is at the bottom. Enter sends a message, but for one that confirms a
// conversion or is pressed with shift.
func TestComposer(t *testing.T) {
	is := is.New(t)
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key)
	tab.waitFor(`status === "ready" && document.activeElement.matches("textarea")`)
	const atBottom = `(() => { const { bottom } = document.querySelector("footer").getBoundingClientRect(); return bottom <= innerHeight && bottom > innerHeight - 40; })()`
	is.True(evaluate[bool](tab, atBottom))

	tab.write("say Hello")
	for _, conversion := range []string{`isComposing: true`, `keyCode: 229`} {
		evaluate[bool](tab, `document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, `+conversion+` }))`)
	}
	tab.enter(kb.ModifierShift)
	tab.write("there")
	is.Equal(evaluate[string](tab, `document.activeElement.value`), "say Hello\nthere")
	is.Equal(len(tab.texts()), 0)
	tab.enter()
	tab.waitFor(`status === "ready" && last === "Hello\nthere"`)
	is.Equal(evaluate[string](tab, `document.activeElement.value`), "")

	tab.say("count 5000") // longer than the screen
	tab.waitFor(`status === "ready" && last.endsWith("4999")`)
	is.True(evaluate[bool](tab, atBottom))
	// The end is in view: the view counts from there.
	is.True(evaluate[bool](tab, `(() => { const view = document.querySelector("main"); return view.scrollHeight > 2 * view.clientHeight && view.scrollTop > -2; })()`))
}

func TestColoursAndIcon(t *testing.T) {
	is := is.New(t)
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key)
	tab.waitFor(`status === "ready"`)
	const colours = `[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color].join()`
	for _, scheme := range []struct{ name, colours string }{
		{"light", "rgb(255, 255, 255),rgb(28, 28, 30)"}, {"dark", "rgb(22, 23, 25),rgb(232, 233, 235)"},
	} {
		_, err := chromedp.Call(tab.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme.name}}})
		is.NoErr(err)
		is.Equal(evaluate[string](tab, colours), scheme.colours)
	}
	evaluate[any](tab, `
		const icon = new Image();
		icon.onload = icon.onerror = ({ type }) => (window.icon = type);
		icon.src = document.querySelector("link[rel=icon]").href; null`)
	tab.waitFor(`window.icon === "load"`)
}
