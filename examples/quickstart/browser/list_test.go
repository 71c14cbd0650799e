package browser

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// titles returns the titles of the listed conversations.
func (tab *tab) titles() []string {
	tab.t.Helper()
	return evaluate[[]string](tab, `Array.from(document.querySelectorAll(".conversation-item:not(.deleted) .title"), (each) => each.textContent)`)
}

func (tab *tab) newChat() {
	tab.t.Helper()
	tab.click("#new-chat")
	tab.wait(`document.querySelector("#new-chat").hidden`)
}

// clear removes the messages of the conversation on show.
func (tab *tab) clear() {
	tab.t.Helper()
	tab.click("#menu-button")
	tab.click("#start-over")
}

// TestConversations switches between several conversations with each bot.
func TestConversations(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.say("one\nand more")
	tab.waitForAnswer()
	tab.newChat()
	is.Equal(tab.answers(), []string{})
	long := "  " + strings.Repeat("word ", 20)
	tab.write(long)
	tab.enter()
	tab.see(".assistant:last-child .regenerate")
	is.Equal(bot.last(), []botapi.ChatMessage{user(strings.TrimSpace(long))}) // without messages of the other conversation
	is.Equal(tab.titles(), []string{strings.TrimSpace(long), "one and more"})
	is.Equal(tab.text(".conversation-item [aria-current] .title"), tab.titles()[0])

	tab.click(".conversation-item:last-child a")
	tab.wait(`document.querySelector(".user .text").textContent.startsWith("one")`)
	is.Equal(tab.answers(), []string{"Answer 1"})
	tab.do(chromedp.NavigateBack())
	tab.wait(`document.querySelector(".user .text").textContent.startsWith("word")`)
	tab.do(chromedp.Reload())
	tab.wait(`document.querySelector(".user .text")?.textContent.startsWith("word")`)

	tab.click(`.bot[href="#bot=bo"]`)
	tab.say("for Bo")
	tab.waitForAnswer()
	is.Equal(len(tab.titles()), 3)
	tab.click(`.bot[href="#bot=ada"]`) // leads to the last one
	tab.wait(`document.querySelector(".user .text").textContent.startsWith("word")`)

	tab.clear()
	is.Equal(tab.titles(), []string{"one and more", "for Bo"})
	tab.click(".cleared button")
	is.Equal(len(tab.titles()), 3)
	evaluate[any](tab, `location.hash = document.querySelector("a[href^='#bot=ada&chat=']").hash.replace("ada", "bo"); null`) // an id that belongs to another bot
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	is.Equal(tab.texts(".user .text"), []string{"for Bo"})
}

// TestDeleteConversation undoes deletions, also of a conversation on show whose
// answer is arriving.
func TestDeleteConversation(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	tab.newChat()
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)

	tab.click(".conversation-item:first-child .delete")
	tab.wait(`document.querySelector(".user .text")?.textContent === "one"`) // the other one takes its place
	is.Equal(tab.titles(), []string{"one"})
	is.Equal(evaluate[string](tab, `document.activeElement.id`), "message") // with the Delete key, it is "Undo"
	is.Equal(evaluate[int](tab, "localStorage.length"), 1)
	tab.click(".deleted .restore")
	tab.wait(`document.querySelector(".user .text").textContent === "wait"`)
	is.Equal(tab.answers(), []string{"Well,"})
	is.Equal(tab.titles(), []string{"wait", "one"})

	tab.click(".conversation-item:last-child .delete")
	tab.click(".conversation-item:first-child .delete")
	tab.wait(`document.querySelectorAll(".message.user").length === 0`)
	is.Equal(tab.titles(), []string{})
	tab.click(".conversation-item:last-child .restore")
	is.Equal(tab.titles(), []string{"one"})
	tab.click(".conversation-item:first-child .restore")
	is.Equal(tab.titles(), []string{"wait", "one"})

	tab.click(".conversation-item:last-child .delete")
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(tab.titles(), []string{"wait"})
}

// TestManyDeletions checks that the last five can be undone.
func TestManyDeletions(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	for i := range 7 {
		tab.say(fmt.Sprint("chat ", i))
		tab.waitForAnswer()
		tab.newChat()
	}
	for i := range 6 {
		tab.click(fmt.Sprintf(`.conversation-item .delete[aria-label="Delete “chat %d”"]`, i))
		is.Equal(len(tab.texts(".conversation-item.deleted")), min(i+1, 5))
	}
	is.Equal(tab.titles(), []string{"chat 6"})
	for range 5 {
		tab.click(".deleted .restore")
	}
	is.Equal(tab.titles(), []string{"chat 6", "chat 5", "chat 4", "chat 3", "chat 2", "chat 1"})
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(len(tab.titles()), 6)
}

// TestUnseenInTwoTabs checks that a new answer that somebody has seen in one tab is not new in
// another.
func TestUnseenInTwoTabs(t *testing.T) {
	bot, first := talkToMoody(t, botapi.Options{})
	const states = `[...document.querySelectorAll(".conversation-item [data-state=unseen]")].length === %d`
	first.say("wait")
	first.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	first.newChat()
	close(bot.gate)
	first.wait(fmt.Sprintf(states, 1))
	first.click(".conversation-item .delete")
	first.click(".deleted .restore")
	first.wait(fmt.Sprintf(states, 1)) // Undo brings back its mark
	second := first.another()
	second.open(evaluate[string](first, "location.origin") + "/#key=" + key + "&bot=bo")
	second.wait(fmt.Sprintf(states, 1))
	first.click(".conversation-item a")
	first.wait(fmt.Sprintf(states, 0))
	second.wait(fmt.Sprintf(states, 0))

}

// TestFailedAnswerIsNotNew has an answer fail that is not on show, first after some of its text and
// then before any.
func TestFailedAnswerIsNotNew(t *testing.T) {
	is := is.New(t)
	gates := make(chan string)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			text := <-gates
			_ = (text == "" || yield(text, nil)) && yield("", errMood)
		}
	})}, nil).URL + "/#key=" + key)
	tab.say("one")
	gates <- "Well,"
	tab.see(".failure")
	tab.click(".again")
	tab.newChat()
	tab.see(".conversation-item [data-state=answering]")
	gates <- ""
	tab.wait(`!document.querySelector("[data-state=answering]")`)
	is.Equal(len(tab.texts("[data-state=unseen]")), 0)
}

// TestDeletedIsNotOnShow checks that "Back" to a deleted conversation leads to none in which
// something new would be lost by Undo.
func TestDeletedIsNotOnShow(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	tab.newChat()
	tab.click(".conversation-item .delete")
	tab.do(chromedp.NavigateBack())
	tab.wait(`document.activeElement?.id === "message"`)
	tab.say("two")
	tab.waitForAnswer()
	tab.click(".deleted .restore")
	is.Equal(tab.titles(), []string{"two", "one"})
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(tab.titles(), []string{"two", "one"})
}

// TestAddressOfANewBot checks that the conversation on show does not take the place of a bot that
// the page does not know yet.
func TestAddressOfANewBot(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("one")
	tab.waitForAnswer()
	cy := bo
	cy.UID, cy.Slug, cy.Name = "0c", "cy", "Cy"
	is.NoErr(h.bots.Replace(ada, bo, cy))
	evaluate[any](tab, `location.hash = "bot=cy"; null`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Cy"`)
}

// TestOrderStays checks that nothing moves in the list while answers arrive, or when one of
// them is stopped.
func TestOrderStays(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	for _, title := range []string{"wait", "wait, too", "say"} {
		tab.say(strings.TrimSuffix(title, ", too"))
		if title != "say" {
			tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
		} else {
			tab.waitForAnswer()
		}
		tab.click("#menu-button")
		tab.click("#rename")
		tab.write(title)
		tab.enter()
		tab.wait(fmt.Sprintf(`document.querySelector("#chat-description").textContent === %q`, title))
		tab.newChat()
	}
	want := []string{"say", "wait, too", "wait"}
	is.Equal(tab.titles(), want)
	close(bot.gate)
	tab.wait(`document.querySelectorAll(".conversation-item [data-state=unseen]").length === 2`)
	is.Equal(tab.titles(), want)
	tab.do(chromedp.Reload())
	tab.wait(`document.querySelectorAll(".conversation-item [data-state=unseen]").length === 2`)
	is.Equal(tab.titles(), want)
	tab.click(".conversation-item:last-child a")
	tab.wait(`document.querySelectorAll(".conversation-item [data-state=unseen]").length === 1`)
}

// TestBackFromNewChat checks that the browser's button leads to the conversation that was on
// show, also if it was begun at the address of its bot.
func TestBackFromNewChat(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	tab.say("one")
	tab.waitForAnswer()
	tab.newChat()
	tab.do(chromedp.NavigateBack())
	tab.seeAnswer("Answer 1")
	is.Equal(tab.texts(".user .text"), []string{"one"})
}

// TestNewChatOrClear checks that only one of the buttons beside the bot's name begins
// something new. What clears the conversation is in the menu.
func TestNewChatOrClear(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	is.Equal(tab.texts("#chat-header > :is(a, button):not([hidden]):not(.back)"), []string{"New chat", ""})
	is.True(!evaluate[bool](tab, `document.querySelector("#start-over").checkVisibility()`))
	tab.click("#menu-button")
	tab.see("#start-over")
	is.Equal(tab.texts("#menu button"), []string{"Rename", "Instructions and parameters", "Save as Markdown", "Save as JSON", "Clear this conversation"})
	tab.click("#start-over")
	tab.see(".cleared")
	is.True(!evaluate[bool](tab, `document.querySelector("#menu").checkVisibility()`))
	is.Equal(tab.text("#announcement"), "The conversation is cleared.")
}

// TestBotGone removes a bot from the list. Its conversations can still be read, saved
// and deleted, and go on when the bot is back.
func TestBotGone(t *testing.T) {
	for _, width := range []int64{1280, 390} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			is := is.New(t)
			h := startService(t, botapi.Options{}, nil)
			tab := newTab(t)
			tab.do(chromedp.EmulateViewport(width, 800))
			greet(tab, h.URL+"/#key="+key+"&bot=ada")
			tab.waitForAnswer()
			is.NoErr(h.bots.Replace(bo))
			evaluate[any](tab, `document.dispatchEvent(new Event("visibilitychange")); null`) // while it is on show
			tab.see("#gone-note")
			is.Equal(tab.text("#gone-note"), "This bot is no longer here. You can read this conversation, save it and delete it.")
			is.Equal(tab.answers(), []string{"Hello"})
			for _, hidden := range []string{"#message", "#send", "#new-chat", ".edit", ".regenerate"} {
				is.True(!evaluate[bool](tab, fmt.Sprintf(`document.querySelector(%q).checkVisibility()`, hidden)))
			}

			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.wait(`document.querySelector("#chat-name").textContent === "Bo" || document.querySelector("#composer").hidden`)
			is.Equal(tab.text("#gone-title"), "No longer here")
			is.Equal(tab.titles(), []string{"Ada: Hello"})
			tab.click(".conversation-item a")
			tab.see("#gone-note")
			is.Equal(tab.answers(), []string{"Hello"})
			tab.do(chromedp.Reload())
			tab.see("#gone-note")
			is.Equal(tab.text("#chat-name"), "Ada")
			is.True(strings.HasPrefix(tab.saved("#save-markdown"), "ada-hello.md text/markdown # Ada\n\n## You\n\nHello"))

			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.click(".conversation-item .delete")
			tab.see(".deletion")
			is.Equal(evaluate[int](tab, `Object.keys(localStorage).filter((name) => name.startsWith("botapi.chat")).length`), 0)
			tab.click(".deleted .restore")
			tab.wait(`document.querySelector(".conversation-item:not(.deleted)") !== null`)
			tab.see(".conversation-item a")

			is.NoErr(h.bots.Replace(bo, ada))
			evaluate[any](tab, `document.dispatchEvent(new Event("visibilitychange")); null`)
			tab.see(`.bot[href="#bot=ada"]`)
			is.Equal(tab.titles(), []string{"Hello"})
			is.Equal(tab.texts("#gone-title"), []string{})
			tab.click(".conversation-item a")
			tab.wait(`document.querySelector("#chat-name").textContent === "Ada"`)
			tab.see("#message")
			tab.do(chromedp.Focus(chromedp.ID("message")))
			tab.say("again")
			tab.waitForAnswer()
			is.Equal(tab.texts(".assistant .text"), []string{"Hello", "again"})
		})
	}
}

// TestKeyInAnotherTab opens a link without the key, in a tab beside one that has it.
func TestKeyInAnotherTab(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	first := newTab(t)
	first.do(chromedp.EmulateViewport(390, 780))
	first.open(h.URL)
	first.see("#key")
	is.True(!evaluate[bool](first, `document.querySelector("#key-elsewhere").checkVisibility()`)) // nobody was here before
	greet(first, h.URL+"/#key="+key+"&bot=ada")
	first.waitForAnswer()
	first.click(".back")

	second := first.another()
	second.open(h.URL + "/#bot=bo")
	second.see("#key-elsewhere")
	is.Equal(second.text("#key-elsewhere"), "This link does not contain the key. If another tab shows the bots, choose “Keep it in this browser” below its list: this tab then goes on by itself.")
	third := first.another()
	third.open(h.URL + "/docs")
	third.see("#chat .trial-key")
	is.True(strings.Contains(third.text("#chat .trial-key"), "Or choose “Keep it in this browser” in a tab that has it."))
	first.click("#keep-now")
	second.see("#composer")
	is.Equal(second.text("#chat-name"), "Bo")
	third.do(chromedp.Reload())
	third.see("#chat .trial > .hint")
}

// TestStates checks that the list marks bots that are answering or have an unseen
// answer.
func TestStates(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	is.Equal(tab.texts(".bot .state"), []string{"is answering", ""})
	is.Equal(tab.texts(".conversation-item .state"), []string{"is answering"})
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	is.Equal(tab.texts(".bot .state"), []string{"is answering", ""})
	tab.do(chromedp.KeyEvent(kb.Escape)) // stops only an answer on show
	close(bot.gate)
	tab.wait(`document.querySelector(".bot .state").textContent === "has a new answer"`)
	tab.see(`.bot[data-state="unseen"] .dot`)
	tab.click(`.conversation-item a`)
	tab.wait(`document.querySelector(".bot .state").textContent === ""`)
	is.Equal(tab.answers(), []string{"Well,"})
}

// TestStoreIsBounded checks that the oldest conversations are deleted when there
// are too many conversations or characters, and that the page says so.
func TestStoreIsBounded(t *testing.T) {
	fill := func(count, size int) string {
		return fmt.Sprintf(`for (let i = 0; i < %d; i++) {
			localStorage.setItem("botapi.chat.old" + i, JSON.stringify({ bot: %q, changed: i + 1, turns: [{ id: "t", question: "old " + i, answer: "x".repeat(%d), state: "whole" }] }));
		}; null`, count, ada.UID, size)
	}
	count := `Object.keys(localStorage).filter((name) => name.startsWith("botapi.chat.")).length`
	for _, test := range []struct {
		name, fill string
		kept       int
	}{
		{"number", fill(200, 10), 200},
		{"characters", fill(8, 499_000), 8},
		{"browser's own bound", fill(5, 300_000) + `; localStorage.setItem("another", "x".repeat(5_242_880 - 7 - 5 * 300_000 - 5 * 150)); null`, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			_, tab := talkToMoody(t, botapi.Options{})
			evaluate[any](tab, test.fill)
			tab.do(chromedp.Reload())
			tab.click("#new-chat")
			tab.wait(`document.querySelector("#new-chat").hidden`)
			long := strings.Repeat("long ", 2000)
			tab.write(long)
			tab.enter()
			tab.see(".assistant:last-child .regenerate")
			is.Equal(tab.text("#composer-hint"), "This browser had no room left: your oldest conversations are deleted.")
			is.Equal(evaluate[int](tab, count), test.kept)
			is.Equal(evaluate[bool](tab, `"botapi.chat.old0" in localStorage`), false) // the oldest one
			is.Equal(evaluate[bool](tab, `"botapi.chat.old1" in localStorage`), true)
			is.True(strings.HasPrefix(tab.titles()[0], "long long"))
		})
	}
}

// TestDamagedStore checks that the page ignores invalid entries in the store.
func TestDamagedStore(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	evaluate[any](tab, fmt.Sprintf(`
		["", "{", "null", "[]", "{}", '{"bot":1,"turns":[]}', '{"bot":%[1]q,"turns":{}}', '{"bot":%[1]q,"turns":[null,{}]}'].forEach((text, i) => localStorage.setItem("botapi.chat." + i, text));
		localStorage.setItem("botapi.chat.good", '{"bot":%[1]q,"changed":"x","turns":[null,{"id":"a","question":"good","answer":"","state":"none"}]}');
		null`, ada.UID))
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(tab.titles(), []string{"good"})
	is.Equal(tab.texts(".user .text"), []string{"good"})
}

// TestKeepKey keeps the key in the browser and forgets it.
func TestKeepKey(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	first := newTab(t)
	first.open(h.URL)
	first.wait(`document.activeElement?.id === "key"`)
	is.True(strings.Contains(first.text("#key-hint"), "in the terminal where you started it"))
	first.write(key)
	first.click("#keep-key")
	first.click("#key-form .primary")
	first.see(".bot")

	second := first.another()
	second.open(h.URL)
	second.see(".bot")
	second.click("#forget-key")
	second.click("#forget-now")
	second.see("#key")
	is.Equal(evaluate[int](second, "localStorage.length"), 0)
}

// TestForgetKeyInAllTabs forgets the key in one of two tabs that have it only for
// themselves. Neither tells how to get it from another tab.
func TestForgetKeyInAllTabs(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	first := newTab(t)
	greet(first, h.URL+"/#key="+key)
	first.waitForAnswer()
	second := first.another()
	second.open(h.URL + "/#key=" + key)
	second.click("#forget-key")
	second.click("#forget-now")
	for _, tab := range []*tab{first, second} {
		tab.see("#key")
		is.True(!evaluate[bool](tab, `document.querySelector("#key-elsewhere").checkVisibility()`))
		is.Equal(evaluate[int](tab, `sessionStorage.length`), 0)
	}
}

// TestTypingAfterKeep checks that what is typed after the key was kept is a message: on a button,
// a space would open "Forget key".
func TestTypingAfterKeep(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.click("#keep-now")
	tab.wait(`document.querySelector("#keep-offer").hidden`)
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
	tab.click("#menu-button")
	tab.click("#set")
	tab.click("#settings-dialog .primary")
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
}

// TestKeepKeyOfTheLink keeps a key in the browser that came with the printed link.
func TestKeepKeyOfTheLink(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	first := newTab(t)
	first.do(chromedp.EmulateViewport(390, 780))
	first.open(h.URL + "/#key=" + key)
	first.see("#keep-offer")
	is.Equal(first.text("#keep-offer"), "Only this tab has the key. Keep it in this browser")
	first.click("#keep-now")
	first.wait(`document.querySelector("#keep-offer").hidden`)
	is.Equal(first.text("#announcement"), "This browser keeps the key until you forget it.")
	is.True(evaluate[bool](first, `document.activeElement.matches(".bot")`))

	second := first.another()
	second.do(chromedp.EmulateViewport(390, 780))
	second.open(h.URL)
	second.see(".bot")
	is.True(evaluate[bool](second, `document.querySelector("#keep-offer").hidden`))
}

// TestKeyWithoutLocalStorage checks that the key stays in the tab if the browser
// cannot keep it.
func TestKeyWithoutLocalStorage(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(h.URL + "/#key=" + key)
	tab.see("#keep-offer")
	evaluate[any](tab, `{
		const set = Storage.prototype.setItem;
		Storage.prototype.setItem = function (...pair) {
			if (this === localStorage) throw new DOMException("no room", "QuotaExceededError");
			set.apply(this, pair);
		};
	} null`)
	tab.click("#keep-now")
	tab.wait(`document.querySelector("#announcement").textContent === "This browser cannot keep the key."`)
	tab.see("#keep-offer")
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(evaluate[string](tab, `sessionStorage.getItem("botapi.key")`), key)
}

// manyChats shows an edited conversation, with others in the list, one of which is
// deleted.
func manyChats(tab *tab, address string) {
	tab.open(address)
	for _, question := range []string{"What is a slice?", "Which loop reads a file line by line?", "Why is my channel closed twice, and how do I find out who closes it?"} {
		tab.see("#message")
		tab.do(chromedp.Focus(chromedp.ID("message")))
		tab.say(question)
		tab.waitForAnswer()
		tab.see("#new-chat")
		evaluate[any](tab, `document.querySelector("#new-chat").click(); null`)
		tab.wait(`document.querySelector("#new-chat").hidden`)
	}
	evaluate[any](tab, `document.querySelectorAll(".conversation-item .delete")[2].click(); document.querySelector(".conversation-item a").click(); null`)
	tab.wait(`document.querySelector(".user .text")?.textContent.startsWith("Why")`)
	evaluate[any](tab, `document.querySelector(".edit").click(); document.querySelector("#composer").requestSubmit(); null`)
	tab.see(".versions:not([hidden])")
	tab.waitForAnswer()
}

// TestManyConversations checks that only a few conversations are listed of a bot
// that is not on show, and all of them on request.
func TestManyConversations(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	evaluate[any](tab, fmt.Sprintf(`for (let i = 0; i < 6; i++) {
		localStorage.setItem("botapi.chat.old" + i, JSON.stringify({ bot: %q, changed: i, turns: [{ id: "t", question: "old " + i, answer: "", state: "none" }] }));
	}; null`, bo.UID))
	tab.do(chromedp.Reload())
	tab.see(".all:not([hidden])")
	is.Equal(tab.titles(), []string{"old 5", "old 4", "old 3"})
	is.Equal(tab.text(".all:not([hidden])"), "Show all 6")
	tab.click(".all:not([hidden])")
	tab.wait(`document.querySelectorAll(".conversation-item").length === 6`)
	tab.do(chromedp.Reload())
	tab.see(".all:not([hidden])")
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelectorAll(".conversation-item").length === 6`)
}
