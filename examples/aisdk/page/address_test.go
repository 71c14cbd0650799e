package main

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// choose chooses a bot from the list.
func (tab *tab) choose(name string) {
	tab.t.Helper()
	tab.waitFor(`document.querySelectorAll("option").length >= 2`)
	evaluate[bool](tab, `(() => {
		const list = document.querySelector("select");
		list.selectedIndex = [...list.options].findIndex((option) => option.text === "`+name+`");
		return list.dispatchEvent(new Event("change", { bubbles: true }));
	})()`)
	tab.waitFor(shows(name))
}

// shows is true when the list of bots shows one.
func shows(name string) string {
	return `document.querySelector("select").selectedOptions[0]?.text === "` + name + `"`
}

// TestBotOutlivesReload chooses a bot: it is the chat's after a reload, and in another tab.
func TestBotOutlivesReload(t *testing.T) {
	is := is.New(t)
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key)
	tab.waitFor(`status === "ready" && ` + shows("Mira"))
	tab.say("name")
	tab.waitFor(`status === "ready" && last === "Mira"`)
	tab.choose("Juniper")
	tab.say("name")
	tab.waitFor(`status === "ready" && last === "Juniper"`)

	tab.do(chromedp.Reload())
	tab.waitFor(`status === "ready" && last === "Juniper" && ` + shows("Juniper"))
	tab.say("name")
	tab.waitFor(`status === "ready" && last === "Juniper"`)
	is.Equal(tab.texts(), []string{"name", "Mira", "name", "Juniper", "name", "Juniper"})

	other := openTab(t, tab.ctx, evaluate[string](tab, "location.href"))
	other.waitFor(`status === "ready" && last === "Juniper" && ` + shows("Juniper"))
}

// TestUnknownBot opens a chat whose bot is not there any more. The page does not put another
// in its place.
func TestUnknownBot(t *testing.T) {
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key+"&chat=a-chat&bot=gone")
	tab.waitFor(`status === "ready" && document.querySelectorAll("option").length === 3 && ` + shows("gone"))
	tab.say("name")
	tab.waitFor(`status === "error" && document.querySelector("[role=alert]").textContent.includes("not found")`)
	tab.choose("Juniper")
	tab.say("name")
	tab.waitFor(`status === "ready" && last === "Juniper"`)
}

// TestNewKey opens the link with another key in the tab that shows the page: its browser then
// changes the address only. The page takes the key, and the conversation stays, also one that
// the browser cannot store.
func TestNewKey(t *testing.T) {
	is := is.New(t)
	engine, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key="+key, `Object.defineProperty(window, "localStorage", { get() { throw new DOMException("Access is denied", "SecurityError"); } });`)
	tab.waitFor(`status === "ready"`)
	tab.choose("Juniper")
	tab.say("say Hello")
	tab.waitFor(`status === "ready" && last === "Hello"`)

	tab.do(chromedp.Navigate(server.URL + "/#key=of-yesterday"))
	tab.say("tell")
	tab.waitFor(`status === "error" && document.querySelector("[role=alert]").textContent === "Invalid API key"`)
	evaluate[any](tab, `document.querySelector("textarea").focus()`)
	tab.write("say Bye")
	tab.do(chromedp.Navigate(server.URL + "/#key=" + key))
	tab.waitFor(`status === "ready" && !document.querySelector("[role=alert]") && ` + shows("Juniper"))
	is.Equal(tab.texts(), []string{"say Hello", "Hello", "tell"})
	is.Equal(evaluate[string](tab, `document.querySelector("textarea").value`), "say Bye")

	tab.click("#regenerate")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	tab.do(chromedp.Navigate(server.URL + "/#key=" + key)) // again, in the middle of an answer
	engine.goOn <- struct{}{}
	tab.waitFor(`status === "ready" && last === "Once upon a time, 3"`)
	is.Equal(tab.texts(), []string{"say Hello", "Hello", "tell", "Once upon a time, 3"})
}

// TestKeyAfterWrongOne opens the link in a tab whose page never had the right key.
func TestKeyAfterWrongOne(t *testing.T) {
	_, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#key=of-yesterday")
	tab.waitFor(`status === "error" && document.querySelector("[role=alert]").textContent === "Invalid API key"`)
	tab.do(chromedp.Navigate(server.URL + "/#key=" + key))
	tab.waitFor(`status === "ready" && !document.querySelector("[role=alert]") && ` + shows("Mira"))
	tab.say("name")
	tab.waitFor(`status === "ready" && last === "Mira"`)
}

// TestOtherChat opens the address of another chat in the tab, and goes back.
func TestOtherChat(t *testing.T) {
	is := is.New(t)
	engine, _, server := newLine(t)
	tab := openPage(t, server.URL+"/#chat=one&bot=juniper&key="+key)
	tab.waitFor(`status === "ready" && ` + shows("Juniper"))
	tab.say("tell")
	tab.waitFor(`status === "streaming" && last === "Once"`)
	tab.do(chromedp.Navigate(server.URL + "/#chat=two&bot=mira"))
	tab.waitFor(`status === "ready" && last === undefined && ` + shows("Mira"))
	tab.say("name")
	tab.waitFor(`status === "ready" && last === "Mira"`)
	engine.goOn <- struct{}{}
	tab.do(chromedp.NavigateBack())
	tab.waitFor(`status === "ready" && last === "Once upon a time, 1" && ` + shows("Juniper"))
	is.Equal(tab.texts(), []string{"tell", "Once upon a time, 1"})
	tab.do(chromedp.Reload())
	tab.waitFor(`status === "ready" && last === "Once upon a time, 1" && ` + shows("Juniper"))
}
