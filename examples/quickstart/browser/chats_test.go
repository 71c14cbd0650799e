package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// TestRename names a conversation: in the list, the header, the tab's title and the
// names of files.
func TestRename(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: new(moody)}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("one")
	tab.waitForAnswer()
	is.Equal(tab.text("#chat-description"), "one")
	is.Equal(evaluate[string](tab, "document.title"), "one · Ada · Bots")
	other := tab.another()
	other.open(h.URL + "/#key=" + key)
	other.see(".bot")

	tab.click("#menu-button")
	tab.click("#rename")
	is.Equal(evaluate[string](tab, `document.activeElement.value`), "one")
	tab.write("Ärger: 1/2?")
	tab.enter()
	tab.wait(`!document.querySelector("#rename-dialog").open`)
	is.Equal(tab.titles(), []string{"Ärger: 1/2?"})
	is.Equal(tab.text("#chat-description"), "Ärger: 1/2?")
	is.Equal(evaluate[string](tab, "document.title"), "Ärger: 1/2? · Ada · Bots")
	is.True(strings.HasPrefix(tab.saved("#save-markdown"), "ada-ärger-1-2.md text/markdown # Ärger: 1/2?\n"))
	other.wait(`document.querySelector("#chat-description").textContent === "Ärger: 1/2?"`)

	tab.do(chromedp.Reload())
	tab.say("two")
	tab.waitForAnswer()
	is.Equal(tab.titles(), []string{"Ärger: 1/2?"})
	tab.click("#menu-button")
	tab.click("#rename")
	tab.do(chromedp.KeyEvent(kb.Backspace)) // without a name, it has its first words
	tab.enter()
	tab.wait(`document.querySelector(".title").textContent === "one"`)
}

// TestTooltip checks that a title that does not fit can be read.
func TestTooltip(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	long := strings.TrimSpace(strings.Repeat("word ", 20))
	tab.say(long)
	tab.waitForAnswer()
	is.Equal(evaluate[string](tab, `document.querySelector(".conversation-item a").title`), long)
	is.True(evaluate[bool](tab, `(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth)(document.querySelector(".conversation-item .title"))`)) // the page cuts it
	is.Equal(evaluate[string](tab, `document.querySelector("#chat-description").title`), long)
}

// TestSearch finds conversations by their titles, questions and answers, also of
// versions that are not on show.
func TestSearch(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("about Apples")
	tab.waitForAnswer()
	is.True(!evaluate[bool](tab, `document.querySelector("#search").checkVisibility()`)) // among what?
	tab.newChat()
	tab.say("about pears")
	tab.seeLast("Answer 2")
	tab.click(".message:last-child .regenerate")
	tab.seeLast("Answer 3")
	for words, titles := range map[string][]string{
		"apple":    {"about Apples"},
		"answer 2": {"about pears"},
		"":         {"about pears", "about Apples"},
	} {
		tab.search(words)
		is.Equal(tab.titles(), titles)
	}
	tab.search("apple")
	is.Equal(tab.texts(".bot-name"), []string{"Ada"})
	tab.do(chromedp.KeyEvent(kb.ArrowDown))
	is.Equal(evaluate[string](tab, "document.activeElement.title"), "about Apples")
	evaluate[any](tab, `document.querySelector("#search").focus(); null`)
	tab.enter()
	tab.wait(`document.querySelector("#chat-description").textContent === "about Apples"`)
	is.Equal(evaluate[string](tab, "document.activeElement.id"), "message")
	tab.search("answer 2")
	tab.enter()
	tab.seeLast("Answer 2") // the version with these words
	is.Equal(tab.versions(), []string{"1 / 2"})
	tab.search("answer 3")
	tab.enter() // for a conversation that is on show already
	tab.seeLast("Answer 3")
	tab.search("plums")
	is.Equal(tab.titles(), []string{})
	tab.see("#not-found")
	is.Equal(tab.text("#announcement"), "No conversation has these words.")
	tab.do(chromedp.KeyEvent(kb.Escape))
	is.Equal(len(tab.titles()), 2)
	tab.wait(`document.querySelector("#not-found").hidden`)
}

// TestSearchWords finds conversations that have all the words, in any order and anywhere: in
// their names and messages. Case and accents do not matter.
func TestSearchWords(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("Bananas are yellow")
	tab.seeLast("Answer 1")
	tab.click(".message:last-child .regenerate")
	tab.seeLast("Answer 2")
	tab.say("Lemons are sour")
	tab.seeLast("Answer 3")
	tab.newChat()
	tab.say("Apples are red")
	tab.seeLast("Answer 4")
	tab.rename("Ünïcode näme")
	for words, titles := range map[string][]string{
		"bananas yellow":       {"Bananas are yellow"},
		"yellow  bananas":      {"Bananas are yellow"},
		`"yellow bananas"`:     {"Bananas are yellow"},
		"sour YÉLLOW 3":        {"Bananas are yellow"},
		"are":                  {"Ünïcode näme", "Bananas are yellow"},
		"unicode name":         {"Ünïcode näme"},
		"NÄME red":             {"Ünïcode näme"},
		"U\u0308nicode apples": {"Ünïcode näme"},
		"bananas red":          {},
	} {
		tab.search(words)
		is.Equal(tab.titles(), titles)
	}
	tab.search("1 yellow")
	tab.enter()
	tab.seeLast("Answer 1") // the version with these words
	tab.search("2 lemons")
	tab.enter()
	tab.seeLast("Answer 3")
	is.Equal(tab.answers(), []string{"Answer 2", "Answer 3"})
	tab.search("1 lemons") // which are in different versions
	tab.enter()
	tab.seeLast("Answer 3")
}

// rename names the conversation on show.
func (tab *tab) rename(name string) {
	tab.t.Helper()
	tab.click("#menu-button")
	tab.click("#rename")
	tab.write(name)
	tab.enter()
	tab.wait(`!document.querySelector("#rename-dialog").open`)
}

func (tab *tab) search(words string) {
	tab.t.Helper()
	evaluate[any](tab, `document.querySelector("#search").focus(); document.querySelector("#search").select(); null`)
	tab.do(chromedp.KeyEvent(kb.Backspace))
	tab.write(words)
}

// age makes the conversations one day older, and two days, and so on.
func (tab *tab) age() {
	tab.t.Helper()
	evaluate[any](tab, `Object.keys(localStorage).filter((name) => name.startsWith("botapi.chat.")).forEach((name, i) => {
		const conversation = JSON.parse(localStorage.getItem(name));
		localStorage.setItem(name, JSON.stringify({ ...conversation, changed: Date.now() - (i + 1) * 86_400_000 }));
	}); dispatchEvent(new StorageEvent("storage", { key: null })); null`)
}

// TestDays groups conversations by the days of their last messages.
func TestDays(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	evaluate[any](tab, `{
		const noon = new Date().setHours(12);
		for (const days of [0, 1, 3, 3, 400]) {
			const id = days + Math.random().toString(36);
			const turn = { id, question: days + " days", answer: "", state: "none", failure: null, pending: null };
			localStorage.setItem("botapi.chat." + id, JSON.stringify({ bot: "`+ada.UID+`", changed: noon - days * 86_400_000, turns: [turn] }));
		}
		window.expected = [3, 400].map((days) => new Date(noon - days * 86_400_000).toLocaleDateString("en", days < 7 ? { weekday: "long" } : { month: "long", year: "numeric" }));
		dispatchEvent(new StorageEvent("storage", { key: null }));
		null }`)
	expected := evaluate[[]string](tab, "expected")
	is.Equal(tab.texts(".conversations:not([hidden]) > li"), []string{"0 days", "Yesterday", "1 days", expected[0], "3 days", "3 days", expected[1], "400 days"})
}

// focusListOfTwo has the conversations "two" and "one" in the list, and the focus on their bot.
func focusListOfTwo(t *testing.T) *tab {
	t.Helper()
	_, tab := talkToMoody(t, botapi.Options{})
	for _, message := range []string{"one", "two"} {
		tab.say(message)
		tab.waitForAnswer()
		tab.newChat()
	}
	evaluate[any](tab, `document.querySelector(".bot").focus(); null`)
	return tab
}

// TestOneTabStop checks that the Tab key stops once at each conversation, and that the
// Delete key deletes it.
func TestOneTabStop(t *testing.T) {
	is := is.New(t)
	tab := focusListOfTwo(t)
	for _, title := range []string{"two", "one"} {
		tab.do(chromedp.KeyEvent(kb.Tab))
		is.Equal(evaluate[string](tab, `document.activeElement.title`), title)
	}
	tab.do(chromedp.KeyEvent(kb.Delete))
	is.Equal(tab.titles(), []string{"two"})
	is.Equal(evaluate[string](tab, `document.activeElement.textContent`), "Undo")
	tab.enter()
	is.Equal(tab.titles(), []string{"two", "one"})
}

// TestArrowsInTheList moves through bots and conversations, past nothing that is hidden.
func TestArrowsInTheList(t *testing.T) {
	is := is.New(t)
	tab := focusListOfTwo(t)
	for _, step := range []struct{ key, to string }{
		{kb.ArrowUp, "Ada"}, {kb.ArrowDown, "two"}, {kb.ArrowDown, "one"}, {kb.ArrowDown, "Bo"}, {kb.ArrowDown, "Bo"},
		{kb.ArrowUp, "one"}, {kb.Delete, "Undo"}, {kb.ArrowUp, "two"}, {kb.End, "Bo"}, {kb.ArrowUp, "Undo"}, {kb.Home, "Ada"},
	} {
		tab.do(chromedp.KeyEvent(step.key))
		is.Equal(evaluate[string](tab, `(document.activeElement.querySelector(".bot-name, .title") ?? document.activeElement).textContent`), step.to)
	}
}

// A recorder answers with a word, and records the messages and the other fields of the
// last request.
type recorder struct {
	mu       sync.Mutex
	messages []botapi.ChatMessage
	extra    map[string]json.RawMessage
}

func (r *recorder) Chat(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.messages, r.extra = req.Messages, req.Extra
	return func(yield func(string, error) bool) { yield("Yes.", nil) }
}

// TestInstructions gives a conversation a system message and parameters, which are kept
// with it, exported and imported.
func TestInstructions(t *testing.T) {
	is := is.New(t)
	bot := new(recorder)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: bot}, nil).URL + "/#key=" + key)
	tab.see(".bot")
	const mark = `getComputedStyle(document.querySelector("#menu-button"), "::after").content`
	is.Equal(evaluate[string](tab, mark), "none")
	tab.click("#menu-button")
	is.Equal(tab.texts("#menu button:not([hidden])"), []string{"Instructions and parameters"}) // of a conversation without messages
	tab.click("#set")
	tab.write("Be brief.")
	tab.do(chromedp.Focus(chromedp.ID("temperature")))
	tab.write("0.5")
	tab.do(chromedp.Focus(chromedp.ID("max_tokens")))
	tab.write("100")
	tab.enter()
	tab.wait(`!document.querySelector("#settings-dialog").open`)
	is.Equal(evaluate[string](tab, mark), `""`)
	is.Equal(evaluate[string](tab, `document.querySelector("#menu-button").ariaLabel`), "More for this conversation, which has instructions or parameters")
	evaluate[any](tab, `document.querySelector("#message").focus(); null`)
	tab.say("Hello")
	tab.waitForAnswer()
	is.Equal(bot.messages, []botapi.ChatMessage{{Role: botapi.RoleSystem, Content: "Be brief."}, user("Hello")})
	is.Equal(bot.extra, map[string]json.RawMessage{"temperature": json.RawMessage("0.5"), "max_tokens": json.RawMessage("100")})

	tab.do(chromedp.Reload())
	tab.say("again")
	tab.waitForAnswer()
	is.Equal(bot.messages[0].Content, "Be brief.")
	is.Equal(len(bot.messages), 4)

	_, text, _ := strings.Cut(tab.saved("#save-markdown"), " text/markdown ")
	is.True(strings.HasPrefix(text, "# Ada\n\n## Instructions\n\nBe brief.\n\n## Parameters\n\n- temperature: 0.5\n- max_tokens: 100\n\n## You\n\nHello\n"))
	_, file, _ := strings.Cut(tab.saved("#save-json"), " application/json ")
	tab.newChat()
	is.Equal(evaluate[string](tab, mark), "none")
	tab.say("other")
	tab.waitForAnswer()
	is.Equal(bot.messages, []botapi.ChatMessage{user("other")})
	is.Equal(len(bot.extra), 0)
	tab.importFile(file)
	tab.wait(`document.querySelectorAll(".user").length === 2`)
	tab.wait(`document.activeElement?.id === "message"`)
	tab.say("imported")
	tab.waitForAnswer()
	is.Equal(bot.messages[0].Content, "Be brief.")
	is.Equal(string(bot.extra["max_tokens"]), "100")
}

// TestImport opens a file that the page has saved, also in a browser that does not know
// its bot, and rejects other files.
func TestImport(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	tab.say("break")
	tab.waitForAnswer()
	saved := tab.saved("#save-json")
	_, file, _ := strings.Cut(saved, " application/json ")
	tab.click("#delete-all")
	tab.click("#delete-now")
	tab.wait(`document.querySelectorAll(".user").length === 0`)

	for _, other := range []string{"", "{", "null", `{"bot":{"uid":"1","slug":"a","name":"A"},"messages":[]}`, strings.Replace(file, `"user"`, `"assistant"`, 1), strings.Replace(file, `"one"`, `1`, 1)} {
		tab.importFile(other)
		tab.wait(`document.querySelector("#bots-note").textContent === "This file has no conversation: choose one from “Save as JSON”."`)
		is.Equal(tab.titles(), []string{})
		evaluate[any](tab, `document.querySelector("#bots-note").textContent = ""; null`)
	}
	tab.importFile(file)
	tab.wait(`document.querySelectorAll(".user").length === 2`)
	is.Equal(tab.answers(), []string{"Answer 1", "Well,"})
	is.Equal(tab.text(".failure-title"), "This answer is incomplete.")
	is.Equal(tab.saved("#save-json"), saved)
	tab.importFile(strings.ReplaceAll(strings.ReplaceAll(file, ada.UID, "unknown"), `"ada"`, `"unknown"`))
	tab.see("#gone-note")
	is.Equal(tab.titles(), []string{"one", "Ada: one"})
}

// importFile chooses a file with this text.
func (tab *tab) importFile(text string) {
	tab.t.Helper()
	file := filepath.Join(tab.t.TempDir(), fmt.Sprintf("%d.json", len(text)))
	is.New(tab.t).NoErr(os.WriteFile(file, []byte(text), 0o644))
	tab.do(chromedp.SetUploadFiles(chromedp.CSS("#import-file"), []string{file}))
}

// TestConversion presses Enter to confirm a conversion. Safari says with the key's code
// alone that it does.
func TestConversion(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write("日本")
	for _, conversion := range []string{"isComposing: true", "keyCode: 229"} {
		evaluate[any](tab, `document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, `+conversion+` })); null`)
	}
	is.Equal(tab.texts(".user"), []string{})
	tab.enter()
	tab.wait(`document.querySelector(".user .text")?.textContent === "日本"`)
}
