package browser

import (
	"fmt"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

const storesNothing = "This browser stores nothing: the key and your conversations are gone when you reload or close this page."

// TestNothingIsStored blocks storage in the ways in which browsers do. The pages work as long as they are open, and say
// what is gone after that.
func TestNothingIsStored(t *testing.T) {
	for name, block := range map[string]string{
		"blocked":         `for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } })`,
		"missing":         `for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { value: null })`,
		"without room":    `Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); }`,
		"without methods": `for (const name of ["getItem", "setItem", "removeItem"]) Storage.prototype[name] = () => { throw new DOMException("denied", "SecurityError"); }`,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			bot := new(moody)
			address := startService(t, botapi.Options{Engine: bot}, nil).URL
			tab := newTab(t)
			_, err := chromedp.Call(tab.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: block})
			is.NoErr(err)
			link := address + "/#key=" + key + "&bot=bo"
			tab.open(link)
			tab.wait(`document.querySelector("#announcement").textContent === ` + quoted(storesNothing))
			is.Equal(tab.text("#composer-hint"), storesNothing)
			is.True(evaluate[bool](tab, `document.querySelector("#keep-offer").hidden`))
			is.Equal(tab.text("#chat-name"), "Bo")
			tab.say("one")
			tab.waitForAnswer()
			is.Equal(tab.text("#announcement"), "Bo: Answer 1") // it says the other once
			is.Equal(tab.text("#composer-hint"), storesNothing)
			tab.newChat()
			tab.write("a draft")
			tab.click(".conversation-item a")
			tab.wait(`document.activeElement?.id === "message" && document.querySelectorAll(".user").length === 1`)
			tab.say("two")
			tab.waitForAnswer()
			is.Equal(bot.last(), []botapi.ChatMessage{user("one"), assistant("Answer 1"), user("two")})
			tab.click("#new-chat")
			tab.wait(`document.querySelector("#message").value === "a draft"`)
			is.Equal(tab.titles(), []string{"one"})
			tab.click("#theme")
			is.Equal(evaluate[string](tab, "document.documentElement.dataset.theme"), "light")

			tab.do(chromedp.Reload())
			tab.see("#key")
			is.Equal(tab.text("#key-unstored"), storesNothing)
			is.True(!evaluate[bool](tab, `document.querySelector("#key-elsewhere").checkVisibility() || document.querySelector("#keep-key").checkVisibility()`))
			tab.write("wrong")
			tab.enter()
			tab.wait(`document.querySelector("#key-problem").textContent === "The server did not accept this key."`)
			tab.write(key)
			tab.enter()
			tab.see(".bot")
			is.Equal(tab.titles(), []string{})
			tab.click("#forget-key")
			tab.click("#forget-now")
			tab.see("#key")
			tab.open(link) // on the same page
			tab.see(".bot")
			tab.do(chromedp.Reload())
			tab.see("#key")
			tab.open(link)
			tab.see(".bot")

			for _, path := range []string{"/docs", "/docs/operating.md"} {
				tab.open(address + path)
				tab.see("main h1")
			}
			tab.open(address + "/docs")
			tab.see("#chat .trial-key")
			tab.do(chromedp.Focus(chromedp.CSS("#chat .trial-key input")))
			tab.write(key)
			tab.enter()
			tab.wait(`document.querySelector("#chat .trial-key").hidden`)
			tab.click("#chat .send")
			tab.wait(`document.querySelector("#chat .answer").textContent.includes("Answer 3")`)
		})
	}
}

// TestInstructionsBeforeTheFirstMessage reloads the page between the instructions and the first message. A change of
// conversation keeps the instructions, too, and later conversations do not have them.
func TestInstructionsBeforeTheFirstMessage(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	const isSet = `document.querySelector("#menu-button").matches(".set")`
	instruct := func() {
		tab.click("#menu-button")
		tab.click("#set")
		tab.write("Be brief.")
		tab.click("#settings-dialog .primary")
		tab.wait(isSet)
	}
	reload := func() {
		tab.do(chromedp.Reload())
		tab.wait(`document.activeElement?.id === "message"`)
	}
	instruct()
	reload()
	is.True(evaluate[bool](tab, isSet))
	tab.say("one")
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{{Role: botapi.RoleSystem, Content: "Be brief."}, user("one")})

	tab.newChat()
	is.True(!evaluate[bool](tab, isSet))
	instruct()
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait("!" + isSet)
	tab.click(`.conversation-item a`)
	tab.wait(`document.querySelectorAll(".user").length === 1`)
	tab.say("two") // in another conversation with the same bot
	tab.waitForAnswer()
	tab.newChat()
	tab.wait(isSet)
	reload()
	tab.say("three")
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{{Role: botapi.RoleSystem, Content: "Be brief."}, user("three")})

	tab.clear()
	reload()
	is.True(evaluate[bool](tab, isSet))
	tab.click("#delete-all")
	tab.click("#delete-now")
	tab.wait("!" + isSet)
	is.Equal(evaluate[int](tab, "localStorage.length"), 0)
}

// TestEditSurvivesAReload reloads the page while a message is edited. The edit goes on where it was, beside the draft.
func TestEditSurvivesAReload(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.do(chromedp.EmulateViewport(1280, 500))
	for _, message := range []string{"one", strings.Repeat("two\n", 60) + "two"} {
		tab.wait(`document.activeElement?.id === "message"`)
		tab.write(message)
		tab.enter()
		tab.see(".assistant:last-child .regenerate")
	}
	tab.write("a draft")
	const value = `document.querySelector("#message").value`
	evaluate[any](tab, `document.querySelector(".user .edit").click(); null`)
	tab.wait(value + ` === "one"`)
	tab.write(" and a half")
	isEditing := func(text string) {
		tab.wait(`!document.querySelector("#editing").hidden && ` + value + ` === ` + quoted(text))
		is.Equal(tab.texts(".edited .text"), []string{"one"})
		tab.wait(`document.querySelector(".edited").getBoundingClientRect().top >= document.querySelector("#scroller").getBoundingClientRect().top - 1`)
	}
	tab.do(chromedp.Reload())
	tab.wait(`document.activeElement?.id === "message"`)
	isEditing("one and a half")
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	is.Equal(evaluate[string](tab, value), "")
	tab.do(chromedp.Reload()) // while another conversation is on show
	tab.click(`.conversation-item a`)
	isEditing("one and a half")

	tab.click(".conversation-item .delete")
	tab.wait(value + ` === ""`)
	is.True(!evaluate[bool](tab, `JSON.stringify(localStorage).includes("and a half")`))
	tab.click(".deleted .restore")
	isEditing("one and a half")
	tab.do(chromedp.Reload())
	isEditing("one and a half")

	tab.click("#cancel-editing")
	is.Equal(evaluate[string](tab, value), "a draft")
	tab.do(chromedp.Reload())
	tab.wait(value + ` === "a draft"`)
	is.True(evaluate[bool](tab, `document.querySelector("#editing").hidden`))

	evaluate[any](tab, `document.querySelector(".user .edit").click(); null`)
	tab.wait(value + ` === "one"`)
	tab.do(chromedp.Reload())
	isEditing("one")
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write("!")
	tab.enter()
	tab.see(".assistant:last-child .regenerate")
	is.Equal(bot.last(), []botapi.ChatMessage{user("one!")})
	tab.do(chromedp.Reload())
	tab.wait(value + ` === "a draft"`)

	evaluate[any](tab, `document.querySelector(".user .edit").click(); null`)
	tab.wait(value + ` === "one!"`)
	tab.do(chromedp.Reload())
	tab.wait(`!document.querySelector("#editing")?.hidden && ` + value + ` === "one!"`)
	second := tab.another()
	second.open(evaluate[string](tab, "location.origin") + "/#key=" + key)
	second.click("#delete-all")
	second.click("#delete-now")
	tab.see(".cleared")
	tab.do(chromedp.Reload())
	tab.wait(value + ` === "a draft"`)
	is.Equal(evaluate[[]string](tab, "Object.keys(localStorage)"), []string{"botapi.draft." + ada.UID})
}

// TestDeletedForRoom checks that conversations that are deleted for want of room leave the list, also if this tab has
// shown them. The one on show and one that is being answered stay, although they are the oldest.
func TestDeletedForRoom(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	evaluate[any](tab, fmt.Sprintf(`for (let i = 0; i < 10; i++) {
		const answer = "x".repeat(i < 2 ? 10 : 499_000);
		localStorage.setItem("botapi.chat.old" + i, JSON.stringify({ bot: %q, changed: Date.now() + i + 1, turns: [{ id: "t", question: "old " + i, answer, state: "whole" }] }));
	}
	dispatchEvent(new StorageEvent("storage", { key: null })); null`, bo.UID))
	address := evaluate[string](tab, "location.origin") + "/#bot=bo&chat="
	for _, id := range []string{"old1", "old0"} {
		tab.open(address + id)
		tab.wait(`document.querySelector(".user .text")?.textContent.replace(" ", "") === ` + quoted(id))
	}
	is.Equal(tab.titles(), []string{"wait", "old 9", "old 8", "old 7", "old 6", "old 5", "old 4", "old 3", "old 2", "old 1", "old 0"})
	tab.importFile(fmt.Sprintf(`{"bot":{"uid":%q,"slug":"ada","name":"Ada"},"messages":[{"role":"user","content":"imported"},{"role":"assistant","content":%q,"complete":true}]}`, ada.UID, strings.Repeat("x ", 5000)))
	tab.wait(`document.querySelector(".user .text")?.textContent === "imported"`)
	is.Equal(tab.text("#announcement"), "This browser had no room left: your oldest conversations are deleted.")
	is.Equal(tab.titles()[:2], []string{"imported", "wait"})
	tab.click(`.bot[href="#bot=bo"]`) // which leads to the one that was on show
	tab.wait(`document.querySelector(".user .text")?.textContent === "old 0"`)
	is.Equal(tab.titles(), []string{"imported", "wait", "old 9", "old 8", "old 7", "old 6", "old 5", "old 4", "old 3", "old 0"})
	tab.open(address + "old1")
	tab.wait(`document.querySelectorAll(".user").length === 0`)
	close(bot.gate)
	tab.wait(`document.querySelector(".bot .state").textContent === "has a new answer"`)
	tab.do(chromedp.Reload())
	tab.see(".conversation-item")
	is.Equal(tab.titles(), []string{"imported", "wait", "old 9", "old 8", "old 7", "old 6", "old 5", "old 4", "old 3", "old 0"})
}
