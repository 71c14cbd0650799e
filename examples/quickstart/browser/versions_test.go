package browser

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// versions returns the places of all versions to choose from, as "2 / 3".
func (tab *tab) versions() []string {
	tab.t.Helper()
	return tab.texts(".versions:not([hidden]) .place")
}

func (tab *tab) seeLast(answer string) {
	tab.t.Helper()
	tab.wait(fmt.Sprintf(`!document.querySelector(".arriving, .filling") && Array.from(document.querySelectorAll(".assistant .text")).at(-1)?.textContent === %q`, answer))
}

// TestVersionsOfAnAnswer regenerates answers, also one with messages after it. All
// versions outlive a reload.
func TestVersionsOfAnAnswer(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.say("Hello")
	tab.seeLast("Answer 1")
	is.Equal(tab.versions(), []string{})
	place := `document.querySelector(".message:last-child .regenerate").getBoundingClientRect().left`
	left := evaluate[float64](tab, place)
	for _, answer := range []string{"Answer 2", "Answer 3"} {
		tab.click(".message:last-child .regenerate")
		tab.seeLast(answer)
		is.Equal(evaluate[float64](tab, place), left)
	}
	is.Equal(bot.last(), []botapi.ChatMessage{user("Hello")})
	is.Equal(tab.versions(), []string{"3 / 3"})
	tab.click(".assistant .earlier")
	tab.seeLast("Answer 2")
	is.Equal(tab.text("#announcement"), "Another version of the answer is on show.")
	is.Equal(evaluate[string](tab, `document.activeElement.getAttribute("aria-label")`), "Earlier version of the answer")
	tab.enter()
	tab.seeLast("Answer 1")
	is.Equal(evaluate[string](tab, `document.activeElement.getAttribute("aria-label")`), "Later version of the answer")
	tab.enter()
	tab.seeLast("Answer 2")
	tab.do(chromedp.Reload())
	tab.seeLast("Answer 2")
	is.Equal(tab.versions(), []string{"2 / 3"})

	tab.say("more")
	tab.seeLast("Answer 4")
	is.Equal(bot.last(), []botapi.ChatMessage{user("Hello"), assistant("Answer 2"), user("more")})
	evaluate[any](tab, `document.querySelector(".regenerate:not([hidden])").click(); null`) // of the first answer
	tab.seeLast("Answer 5")
	is.Equal(bot.last(), []botapi.ChatMessage{user("Hello")})
	is.Equal(tab.answers(), []string{"Answer 5"})
	is.Equal(tab.versions(), []string{"4 / 4"})
	is.Equal(tab.text(".message:last-child > .note"), "Another version begins here: ‹ brings back the messages that followed.")
	evaluate[any](tab, `document.querySelector(".assistant .earlier:enabled").click(); null`)
	tab.seeLast("Answer 3")
	evaluate[any](tab, `document.querySelector(".assistant .earlier:enabled").click(); null`)
	tab.seeLast("Answer 4") // what followed is back
	is.Equal(tab.answers(), []string{"Answer 2", "Answer 4"})
	is.Equal(tab.texts(".assistant > .note")[1:], []string{"", ""})
}

// TestRegenerateMira asks a bot of the quickstart for another answer.
func TestRegenerateMira(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t, "-pace", "0")
	tab := newTab(t)
	tab.open(q.address + "/#key=" + key + "&bot=mira")
	tab.click(".suggestion")
	tab.seeLast("What is it about your exam that makes you worried?")
	tab.click(".message:last-child .regenerate")
	tab.seeLast("When your exam comes to mind, where do you feel it?")
	is.Equal(tab.versions(), []string{"2 / 2"})
}

// TestRegenerateAgain has a service that keeps no answers, and is silent when an answer
// is regenerated. The page asks again for that version, and without an answer returns
// to the earlier one.
func TestRegenerateAgain(t *testing.T) {
	for _, isStopped := range []bool{true, false} {
		t.Run(fmt.Sprintf("stopped %t", isStopped), func(t *testing.T) {
			is := is.New(t)
			requests := 0
			h := startService(t, botapi.Options{}, func(w http.ResponseWriter, r *http.Request) {
				requests++
				text := fmt.Sprintf("data: {\"content\":\"Answer %d\"}\n\ndata: [DONE]\n\n", requests)
				if requests == 2 || isStopped && requests > 1 {
					text = ": nothing yet\n\n"
				}
				stream(text, !strings.Contains(text, "DONE"))(w, r)
			})
			tab := newTab(t)
			tab.open(h.URL + "/#key=" + key)
			tab.say("Hello")
			tab.seeLast("Answer 1")
			tab.click(".message:last-child .regenerate")
			tab.see(".arriving .progress")
			is.Equal(tab.versions(), []string{})
			tab.forward(time.Minute)
			tab.click(".arriving .silence button")
			if !isStopped {
				tab.seeLast("Answer 3")
				is.Equal(tab.versions(), []string{"2 / 2"})
				return
			}
			tab.see(".arriving")
			tab.do(chromedp.KeyEvent(kb.Escape))
			tab.seeLast("Answer 1")
			is.Equal(tab.versions(), []string{})
			tab.do(chromedp.Reload())
			tab.seeLast("Answer 1")
		})
	}
}

// TestVersionsOfAQuestion edits messages, and returns to what was there before.
func TestVersionsOfAQuestion(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	for _, message := range []string{"one", "two", "three"} {
		tab.say(message)
		tab.waitForAnswer()
	}
	edit := func(at int, text string) {
		evaluate[any](tab, fmt.Sprintf(`document.querySelectorAll(".user .edit")[%d].click(); document.querySelector("#message").value = ""; null`, at))
		tab.say(text)
		tab.waitForAnswer()
	}
	edit(1, "2")
	is.Equal(bot.last(), []botapi.ChatMessage{user("one"), assistant("Answer 1"), user("2")})
	edit(0, "I")
	is.Equal(tab.texts(".user .text"), []string{"I"})
	is.Equal(tab.texts(".user .place"), []string{"2 / 2"})
	tab.click(".message:last-child .regenerate")
	tab.seeLast("Answer 6")
	is.Equal(tab.versions(), []string{"2 / 2", "2 / 2"}) // of the question and of its answer
	tab.do(chromedp.Reload())
	tab.seeLast("Answer 6")
	evaluate[any](tab, `document.querySelector(".user .earlier").click(); null`)
	tab.seeLast("Answer 4")
	is.Equal(tab.texts(".user .text"), []string{"one", "2"})
	is.Equal(tab.versions(), []string{"1 / 2", "2 / 2"})
	evaluate[any](tab, `document.querySelectorAll(".user .earlier")[1].click(); null`)
	tab.seeLast("Answer 3")
	is.Equal(tab.answers(), []string{"Answer 1", "Answer 2", "Answer 3"})
}

// TestVersionsOfBoth regenerates an earlier version of a question. A question keeps its number,
// and the way back leads to the answer that was on show last.
func TestVersionsOfBoth(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("tired")
	tab.seeLast("Answer 1")
	tab.click(".user .edit")
	evaluate[any](tab, `document.querySelector("#message").value = ""; null`)
	tab.say("happy")
	tab.seeLast("Answer 2")
	tab.click(".user .earlier")
	tab.seeLast("Answer 1")
	tab.click(".message:last-child .regenerate")
	tab.seeLast("Answer 3")
	is.Equal(tab.versions(), []string{"1 / 2", "2 / 2"})
	is.True(evaluate[bool](tab, `document.querySelector(".user .earlier").disabled`))

	toHappyAndBack := func(answer string) {
		tab.click(".user .later")
		tab.seeLast("Answer 2")
		is.Equal(tab.texts(".user .text"), []string{"happy"})
		is.Equal(tab.versions(), []string{"2 / 2"})
		tab.click(".user .earlier")
		tab.seeLast(answer)
		is.Equal(tab.texts(".user .text"), []string{"tired"})
	}
	toHappyAndBack("Answer 3")
	tab.click(".assistant .earlier")
	tab.seeLast("Answer 1")
	is.Equal(tab.versions(), []string{"1 / 2", "1 / 2"})
	toHappyAndBack("Answer 1")
	tab.do(chromedp.Reload())
	tab.seeLast("Answer 1")
	toHappyAndBack("Answer 1")
	tab.click(".assistant .later")
	tab.seeLast("Answer 3")
	is.Equal(tab.texts(".user .text"), []string{"tired"})
	is.Equal(tab.versions(), []string{"1 / 2", "2 / 2"})
}

// TestVersionsOfAFailedQuestion edits a message that got no answer: it is kept, too.
func TestVersionsOfAFailedQuestion(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: fails("", nil, errors.New("a failure"))}, nil).URL + "/#key=" + key)
	tab.click("#message")
	tab.say("a long question")
	tab.see(".failure .change")
	tab.click(".failure .again")
	tab.see(".failure .change")
	is.Equal(tab.versions(), []string{}) // the same question is asked again
	tab.click(".failure .change")
	evaluate[any](tab, `document.querySelector("#message").value = ""; null`)
	tab.say("short")
	tab.see(".failure .change")
	is.Equal(tab.texts(".user .place"), []string{"2 / 2"})
	tab.click(".user .earlier")
	tab.wait(`document.querySelector(".user .text").textContent === "a long question"`)
	tab.see(".failure .again")
}

// TestVersionsInTwoTabs begins another version in one tab, and chooses one in another.
func TestVersionsInTwoTabs(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: new(moody)}, nil)
	first := newTab(t)
	first.open(h.URL + "/#key=" + key)
	first.say("wait")
	first.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	second := first.another()
	second.open(h.URL + "/#key=" + key)
	second.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	second.do(chromedp.KeyEvent(kb.Escape))
	second.see(".stopped")
	second.click(".user .edit")
	evaluate[any](second, `document.querySelector("#message").value = ""; null`)
	second.say("one")
	second.seeLast("Answer 2")
	is.Equal(second.versions(), []string{"2 / 2"})
	first.wait(`document.querySelector(".user .text").textContent === "one"`)
	first.seeLast("Answer 2")
	first.click(".user .earlier")
	first.seeLast("Well,")
	second.seeLast("Well,")
}

// TestVersionChosenElsewhere shows the earlier version in one tab while another one
// arrives in a second, from a service that keeps no answers.
func TestVersionChosenElsewhere(t *testing.T) {
	is := is.New(t)
	gate := make(chan struct{})
	requests := 0
	h := startPage(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			requests++
			if requests == 2 {
				<-gate
			}
			yield(fmt.Sprintf("Answer %d", requests), nil)
		}
	})}, page.Options{})
	second := newTab(t)
	second.open(h.URL + "/#key=" + key)
	second.say("Hello")
	second.seeLast("Answer 1")
	second.click(".message:last-child .regenerate")
	second.see(".arriving")
	first := second.another()
	first.open(h.URL + "/#key=" + key)
	first.wait(`document.querySelector(".assistant .place")?.textContent === "2 / 2"`)
	first.click(".assistant .earlier")
	first.seeLast("Answer 1")
	close(gate)
	second.seeLast("Answer 2")
	first.click(".assistant .later")
	first.seeLast("Answer 2")
	is.Equal(evaluate[int](first, `Object.values(localStorage).join("").split("Answer 1").length - 1`), 1) // it is stored once
}

// TestVersionsInAFile saves a conversation with versions of an answer and of a question,
// and imports it after that.
func TestVersionsInAFile(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.seeLast("Answer 1")
	tab.click(".message:last-child .regenerate")
	tab.seeLast("Answer 2")
	tab.click(".user .edit")
	evaluate[any](tab, `document.querySelector("#message").value = ""; null`)
	tab.say("two")
	tab.seeLast("Answer 3")
	tab.click(".user .earlier")
	tab.seeLast("Answer 2") // which was on show
	tab.click(".assistant .earlier")
	tab.seeLast("Answer 1")
	saved := tab.saved("#save-json")
	_, file, _ := strings.Cut(saved, " application/json ")
	tab.click("#delete-all")
	tab.click("#delete-now")
	tab.wait(`document.querySelectorAll(".user").length === 0`)
	tab.importFile(file)
	tab.seeLast("Answer 1")
	is.Equal(tab.saved("#save-json"), saved)
	is.Equal(tab.versions(), []string{"1 / 2", "1 / 2"})
	tab.click(".assistant .later")
	tab.seeLast("Answer 2")
	tab.click(".user .later")
	tab.seeLast("Answer 3")
}

// TestOlderConversations opens what earlier versions of the page have stored, and what
// something else has damaged.
func TestOlderConversations(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	evaluate[any](tab, `{
		const turn = (question, more) => ({ id: question, question, answer: "An old answer", state: "whole", stopped: false, failure: null, pending: null, ...more });
		const store = (id, turn) => localStorage.setItem("botapi.chat." + id, JSON.stringify({ bot: "`+ada.UID+`", name: "Ada", slug: "ada", changed: 1, turns: [turn] }));
		store("old", turn("old"));
		store("damaged", turn("damaged", { before: [[{ id: 1 }], 7, []], after: "x" }));
		null }`)
	tab.do(chromedp.Reload())
	for _, title := range []string{"old", "damaged"} {
		tab.click(fmt.Sprintf(`.conversation-item a[href$="chat=%s"]`, title))
		tab.wait(fmt.Sprintf(`document.querySelector(".user .text")?.textContent === %q`, title))
		is.Equal(tab.versions(), []string{})
		tab.click(".message:last-child .regenerate")
		tab.wait(`document.querySelector(".assistant .place").textContent === "2 / 2"`)
		tab.waitForAnswer()
	}
}
