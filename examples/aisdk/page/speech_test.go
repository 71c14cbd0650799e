package main

import (
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// listening is a script that keeps what a screen reader says of its own accord: each text
// that comes into a live region.
const listening = `
	window.heard = [];
	addEventListener("DOMContentLoaded", () => new MutationObserver((changes) => {
		const regions = new Set(changes.map(({ target }) => (target.closest ? target : target.parentElement)?.closest("[role=status], [role=alert]")));
		for (const region of regions) if (region?.textContent) heard.push(region.textContent);
	}).observe(document, { childList: true, characterData: true, subtree: true }));
`

func (tab *tab) heard() []string {
	tab.t.Helper()
	return evaluate[[]string](tab, "heard.splice(0)")
}

// items returns the conversation as a screen reader reads it.
func (tab *tab) items() []string {
	tab.t.Helper()
	return evaluate[[]string](tab, `Array.from(document.querySelectorAll(".conversation > li"), (item) => item.textContent)`)
}

// TestSpeakers has two bots in one conversation: each message says whose it is, also after a
// reload, and when another bot answers a message again.
func TestSpeakers(t *testing.T) {
	is := is.New(t)
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key)
	tab.waitFor(`status === "ready" && ` + shows("Mira"))
	tab.say("say **Hello**")
	tab.waitFor(`status === "ready" && last === "Hello"`)
	tab.choose("Juniper")
	tab.say("say Bye")
	tab.waitFor(`status === "ready" && last === "Bye"`)
	is.Equal(tab.items(), []string{"You: say **Hello**", "Mira: Hello", "You: say Bye", "Juniper: Bye"})
	tab.do(chromedp.Reload())
	tab.waitFor(`status === "ready" && last === "Bye" && ` + shows("Juniper"))
	is.Equal(tab.items(), []string{"You: say **Hello**", "Mira: Hello", "You: say Bye", "Juniper: Bye"})

	tab.choose("Mira")
	is.Equal(tab.items()[3], "Juniper: Bye")
	tab.click("#regenerate")
	tab.waitFor(`status === "ready" && document.querySelector("li:last-child").textContent === "Mira: Bye"`)

	// Only screen readers get the names, which make the page no higher.
	is.True(evaluate[bool](tab, `[...document.querySelectorAll(".conversation > li > .unseen")].every((name) => name.getBoundingClientRect().width === 1)`))
	tab.say("count 5000")
	tab.waitFor(`status === "ready" && last.endsWith("4999")`)
	is.True(evaluate[bool](tab, `document.documentElement.scrollHeight <= innerHeight`))
}

// TestAnnouncements tells screen readers that a bot is answering, and its answer when that is
// complete.
func TestAnnouncements(t *testing.T) {
	is := is.New(t)
	engine, l, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, listening)
	tab.waitFor(`status === "ready" && ` + shows("Mira"))
	is.Equal(tab.heard(), []string{})
	for range 2 {
		tab.say("tell")
		tab.waitFor(`status === "streaming" && last === "Once"`)
		is.Equal(tab.heard(), []string{"Mira is answering."})
		engine.goOn <- struct{}{}
		tab.waitFor(`status === "ready" && heard.length > 0`)
		is.Equal(tab.heard(), []string{tab.items()[len(tab.items())-1]})
	}
	is.Equal(tab.items()[1], "Mira: Once upon a time, 1")

	l.breaks(l.service.ServeHTTP) // it works, and the test knows when
	tab.do(chromedp.Reload())     // the answer comes again, and is nothing new
	is.Equal(l.reads(t), http.MethodGet)
	l.works()
	tab.waitFor(`status === "ready" && ` + shows("Mira"))
	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	is.Equal(tab.heard(), []string{"Mira is answering."})

	tab.do(chromedp.Reload())
	tab.waitFor(`status === "streaming" && last === "Once" && ` + shows("Mira"))
	engine.goOn <- struct{}{}
	tab.waitFor(`status === "ready" && heard.at(-1) === "Mira: Once upon a time, 5"`)
	tab.heard()

	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	tab.click("#stop")
	tab.waitFor(`status === "ready" && heard.length > 1`)
	is.Equal(tab.heard(), []string{"Mira is answering.", "The last answer is incomplete. Regenerate asks for another."})
}
