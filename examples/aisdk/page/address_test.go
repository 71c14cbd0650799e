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
