package browser

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// A moody bot does what the last message says, and records all requests.
type moody struct {
	gate chan struct{} // "wait" waits until it is closed

	mu       sync.Mutex
	requests [][]botapi.ChatMessage
}

var errMood = errors.New("not in the mood")

func (m *moody) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	m.mu.Lock()
	m.requests = append(m.requests, req.Messages)
	count := len(m.requests)
	m.mu.Unlock()
	return func(yield func(string, error) bool) {
		switch said := req.Messages[len(req.Messages)-1].Content; {
		case said == "fail", said == "fail once" && count == 1:
			yield("", errMood)
		case said == "break", said == "break, then fail" && count == 1:
			_ = yield("Well,", nil) && yield("", errMood)
		case said == "break, then fail" && count == 2:
			yield("", errMood)
		case said == "wait":
			if yield("Well,", nil) {
				select {
				case <-ctx.Done():
				case <-m.gate:
				}
			}
		case said == "say nothing":
		default:
			yield(fmt.Sprintf("Answer %d", count), nil)
		}
	}
}

// last returns the messages of the last request.
func (m *moody) last() []botapi.ChatMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests[len(m.requests)-1]
}

func user(text string) botapi.ChatMessage {
	return botapi.ChatMessage{Role: botapi.RoleUser, Content: text}
}

func assistant(text string) botapi.ChatMessage {
	return botapi.ChatMessage{Role: botapi.RoleAssistant, Content: text}
}

// talkToMoody opens the page with a moody bot.
func talkToMoody(t *testing.T, o botapi.Options) (*moody, *tab) {
	t.Helper()
	bot := &moody{gate: make(chan struct{})}
	o.Engine = bot
	tab := newTab(t)
	tab.open(startService(t, o, nil).URL + "/#key=" + key)
	tab.see(".bot")
	return bot, tab
}

// answers returns the answers on the screen, without the welcome.
func (tab *tab) answers() []string {
	tab.t.Helper()
	tab.wait(`!document.querySelector(".filling")`) // after a reload, answers are shown soon
	return tab.texts(".assistant .text")[1:]
}

// TestRolesAlternate has answers that fail, are incomplete, stopped or empty. It
// checks that the page sends only questions that have an answer.
func TestRolesAlternate(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	for _, message := range []string{"one", "fail", "break", "say nothing", "two"} {
		tab.say(message)
		tab.waitForAnswer()
	}
	is.Equal(bot.last(), []botapi.ChatMessage{user("one"), assistant("Answer 1"), user("break"), assistant("Well,"), user("two")})

	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	tab.do(chromedp.KeyEvent(kb.Escape))
	tab.do(chromedp.Reload())
	tab.say("three")
	tab.waitForAnswer()
	is.Equal(bot.last()[5:], []botapi.ChatMessage{assistant("Answer 5"), user("wait"), assistant("Well,"), user("three")})
	is.Equal(len(tab.texts(".user.left-out")), 2) // the page marks the messages that it does not send
}

// TestRejectedMessage edits a message that is too large, and checks that the page
// does not send it again.
func TestRejectedMessage(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{MaxBodyBytes: 400})
	long := strings.Repeat("very ", 100) + "long"
	tab.say(long)
	tab.see(".failure")
	tab.say("short") // while the long one stays on the screen
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{user("short")})
	is.Equal(tab.texts(".user .text"), []string{long, "short"})

	tab.say(long)
	tab.see(".failure .change")
	tab.click(".message:last-child .change")
	is.Equal(evaluate[string](tab, `document.querySelector("#message").value`), long)
	evaluate[any](tab, `document.querySelector("#message").value = ""`)
	tab.say("shorter")
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{user("short"), assistant("Answer 1"), user("shorter")})
	is.Equal(tab.texts(".user .text"), []string{long, "short", "shorter"})
}

// TestLongConversation checks that the page warns before a conversation is too long
// for the service, and goes on with its most recent messages.
func TestLongConversation(t *testing.T) {
	is := is.New(t)
	const limit = 2000
	bot := new(moody)
	tab := newTab(t)
	tab.open(startPage(t, botapi.Options{Engine: bot, MaxBodyBytes: limit}, page.Options{MaxBodyBytes: limit}).URL + "/#key=" + key)
	tab.see(".bot")
	says := func() string {
		return evaluate[string](tab, `document.querySelector("#length").hidden ? "" : document.querySelector("#length").innerText`)
	}
	long := strings.Repeat("ü", 150)
	for i := range 4 {
		is.Equal(says(), "")
		tab.say(fmt.Sprint(i, long))
		tab.waitForAnswer()
	}
	is.Equal(says(), "")
	tab.write(strings.Repeat("e", 300))
	is.Equal(says(), "The conversation is almost too long for the server. Go on with the most recent messages")
	tab.write(strings.Repeat("e", 300))
	is.Equal(says(), "With this message, the conversation is too long for the server. Go on with the most recent messages")
	is.Equal(tab.text("#announcement"), "With this message, the conversation is too long for the server.")
	tab.click("#shorten")
	is.Equal(says(), "")
	is.Equal(tab.text("#announcement"), "The bot gets only the most recent messages from now on.")
	is.Equal(len(tab.texts(".user.left-out")), 2)
	is.Equal(tab.texts(".assistant .note")[1:], []string{"No longer sent to the bot.", "No longer sent to the bot.", "", ""})
	tab.enter()
	tab.see(".message:last-child .regenerate")
	is.Equal(bot.last()[:4], []botapi.ChatMessage{user("2" + long), assistant("Answer 3"), user("3" + long), assistant("Answer 4")})
	is.Equal(len(bot.last()), 5)

	tab.do(chromedp.Reload())
	tab.see(".message:last-child .regenerate")
	tab.say("one")
	tab.waitForAnswer()
	is.Equal(len(bot.last()), 7)
	is.Equal(len(tab.texts(".user .text")), 6) // all of them are still there
	tab.wait(`document.activeElement?.id === "message"`)
	tab.write(strings.Repeat("x", 3000)) // what is too long by itself does not get shorter
	is.Equal(says(), "This message is too long for the server, or almost.")
	tab.enter()
	tab.see(".failure .change")
	is.True(!evaluate[bool](tab, `document.querySelector(".failure .shorten") !== null`))
}

// TestTooLongForTheBot has a service with a lower limit than the page knows, and a
// model with one of its own.
func TestTooLongForTheBot(t *testing.T) {
	tooLong := botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "messages"}, Msg: "the conversation is too long for the model", Type: "value_error.messages.too_long"}}}
	tests := map[string]struct {
		limit int64
		err   error
		title string
	}{
		"service":     {limit: 400, title: "This is too long for the server."},
		"model":       {err: tooLong, title: "This is too long for the bot."},
		"application": {err: botapi.StatusError{Status: http.StatusBadRequest, Detail: "The prompt is too long"}, title: "The prompt is too long."},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var last []botapi.ChatMessage
			h := startPage(t, botapi.Options{MaxBodyBytes: test.limit, Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
				if test.err != nil && len(req.Messages) > 3 {
					return fails("", nil, test.err).Chat(ctx, req)
				}
				last = req.Messages
				return echo(ctx, req)
			})}, page.Options{})
			tab := newTab(t)
			tab.open(h.URL + "/#key=" + key)
			for _, message := range []string{"one " + strings.Repeat("a", 50), "two " + strings.Repeat("b", 50)} {
				tab.say(message)
				tab.waitForAnswer()
			}
			tab.say("three")
			tab.see(".failure")
			is.Equal(tab.text(".failure-title"), test.title)
			is.True(!evaluate[bool](tab, `document.querySelector(".again") !== null`)) // it would fail again
			tab.click(".failure .shorten")
			tab.wait(`!document.querySelector(".failure, .arriving")`)
			is.Equal(last[len(last)-1], user("three"))
			is.True(len(last) <= 3)
			is.Equal(tab.answers()[2], "three")
		})
	}
}

// TestPartialAnswer checks that an incomplete answer stays until there is a better
// one.
func TestPartialAnswer(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("break, then fail")
	tab.see(".failure")
	is.Equal(tab.answers(), []string{"Well,"})
	is.True(strings.HasSuffix(tab.text(".failure-advice"), "This answer is incomplete."))

	tab.do(chromedp.Reload())
	tab.see(".failure")
	is.Equal(tab.answers(), []string{"Well,"})
	is.True(strings.HasSuffix(tab.text(".failure-advice"), "This answer is incomplete."))

	tab.click(".again")
	tab.wait(`document.querySelector(".failure-title")?.textContent === "Something went wrong on the server."`)
	is.Equal(tab.answers(), []string{"Well,"})

	tab.click(".again")
	tab.wait(`!document.querySelector(".failure, .arriving")`)
	is.Equal(tab.answers(), []string{"Answer 3"})
}

// TestPartialMarkdown checks that open marks of an incomplete answer look as they
// did while it arrived, also after a reload.
func TestPartialMarkdown(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: fails("Some **bold", nil, errors.New("a failure"))}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.see(".failure")
	is.Equal(tab.text(".failure-title"), "The bot stopped in the middle of its answer.")
	tab.waitForAnswer()
	is.Equal(tab.texts(".text strong"), []string{"bold"})
	tab.do(chromedp.Reload())
	tab.see(".failure")
	tab.waitForAnswer()
	is.Equal(tab.texts(".text strong"), []string{"bold"})
}

// TestReloadWhereNothingIsKept checks that after a reload the page shows the text
// that had arrived, and says that it is incomplete, if the service does not keep
// answers.
func TestReloadWhereNothingIsKept(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, stream("data: {\"content\":\"Well,\"}\n\n", true)).URL + "/#key=" + key)
	tab.say("wait")
	tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
	tab.do(chromedp.Reload())
	tab.see(".failure")
	is.Equal(tab.answers(), []string{"Well,"})
	is.Equal(tab.text(".failure-title"), "This answer is incomplete.")
}

func TestEmptyAnswer(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("say nothing")
	tab.waitForAnswer()
	is.Equal(tab.text(".message:last-child .note"), "The answer is empty.")
	is.Equal(tab.texts(".failure"), []string{})
}

// TestRegenerate asks for another answer, and checks that the first one stays if
// that fails.
func TestRegenerate(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: new(moody)}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.waitForAnswer()
	is.Equal(tab.answers(), []string{"Answer 1"})
	tab.click(".regenerate")
	tab.wait(`document.querySelectorAll(".assistant .text")[1].textContent === "Answer 2"`)
	tab.waitForAnswer()

	h.CloseClientConnections()
	h.Close()
	tab.click(".message:last-child .regenerate")
	tab.see(".failure")
	is.Equal(tab.answers(), []string{"Answer 2"})
	is.True(strings.HasSuffix(tab.text(".failure-advice"), "The earlier answer stays."))
}

// TestEditLastMessage edits the last message with the up arrow.
func TestEditLastMessage(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	for _, message := range []string{"one", "two"} {
		tab.say(message)
		tab.waitForAnswer()
	}
	value := `document.querySelector("#message").value`
	tab.do(chromedp.KeyEvent(kb.ArrowUp))
	is.Equal(evaluate[string](tab, value), "two")
	tab.see("#editing")
	is.Equal(tab.texts(".edited .text"), []string{"two"})
	tab.do(chromedp.KeyEvent(kb.Escape))
	is.Equal(evaluate[string](tab, value), "")
	tab.wait(`document.querySelector("#editing").hidden`)
	is.Equal(len(tab.texts(".edited")), 0)

	tab.write("a draft")
	tab.do(chromedp.KeyEvent(kb.ArrowUp)) // moves the cursor in the draft
	is.Equal(evaluate[string](tab, value), "a draft")
	evaluate[any](tab, value+` = ""`)

	tab.do(chromedp.KeyEvent(kb.ArrowUp))
	tab.do(chromedp.KeyEvent(kb.End))
	tab.write(" and a half")
	tab.enter()
	tab.wait(`document.querySelectorAll(".user .text")[1].textContent === "two and a half"`)
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{user("one"), assistant("Answer 1"), user("two and a half")})
	is.Equal(tab.texts(".user .text"), []string{"one", "two and a half"})
	is.Equal(len(tab.texts(".edited")), 0)
}

// TestEditedMessageIsMarked checks that the edited message is marked and visible,
// also on a phone and when other messages follow it.
func TestEditedMessageIsMarked(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.do(chromedp.EmulateViewport(390, 400))
	for _, message := range []string{"one", "two", "three", "four", "five"} {
		tab.do(chromedp.Focus(chromedp.ID("message")))
		tab.say(message)
		tab.waitForAnswer()
	}
	evaluate[any](tab, `document.querySelector(".edit").click(); null`)
	tab.see(".edited .text")
	is.Equal(tab.text(".edited .text"), "one")
	is.True(evaluate[bool](tab, `document.querySelector(".edited").getBoundingClientRect().top >= document.querySelector("#scroller").getBoundingClientRect().top - 1`))
	is.Equal(evaluate[string](tab, `getComputedStyle(document.querySelector(".edited .text")).outlineStyle`), "solid")
}

func TestUndoStartOver(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	tab.clear()
	is.Equal(len(tab.answers()), 0)
	tab.click(".cleared button")
	is.Equal(tab.answers(), []string{"Answer 1"})
	tab.do(chromedp.Reload())
	tab.see(".bot")
	is.Equal(tab.answers(), []string{"Answer 1"})

	tab.clear()
	tab.see(".cleared")
	tab.say("two")
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{user("two")})
	is.Equal(tab.texts(".cleared"), []string{}) // undo is no longer offered
}

// TestConversationsOutliveTab checks that tabs share their conversations.
func TestConversationsOutliveTab(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: new(moody)}, nil)
	address := h.URL + "/#key=" + key
	first := newTab(t)
	first.open(address)
	first.say("one")
	first.waitForAnswer()

	second := first.another()
	second.open(address)
	second.see(".bot")
	is.Equal(second.answers(), []string{"Answer 1"})
	second.say("two")
	second.waitForAnswer()
	first.wait(`document.querySelectorAll(".assistant .text")[2]?.textContent === "Answer 2"`) // without a reload

	second.click("#delete-all")
	second.click("#delete-dialog .cancel")
	is.Equal(second.answers(), []string{"Answer 1", "Answer 2"})
	second.click("#delete-all")
	second.click("#delete-now")
	is.Equal(second.answers(), []string{})
	is.Equal(evaluate[int](second, "localStorage.length"), 0)
	first.wait(`document.querySelectorAll(".assistant .text").length === 1`)
}

// TestSentInAnotherTab checks that a draft that two tabs show is gone in both when one of
// them has sent it, and that a tab keeps what it has written itself.
func TestSentInAnotherTab(t *testing.T) {
	is := is.New(t)
	_, first := talkToMoody(t, botapi.Options{})
	first.say("one")
	first.waitForAnswer()
	first.write("two")
	first.do(chromedp.Reload())
	message := `document.querySelector("#message").value`
	first.wait(message + ` === "two"`)
	second, third := first.another(), first.another()
	for _, tab := range []*tab{second, third} {
		tab.open(evaluate[string](first, "location.origin") + "/#key=" + key)
		tab.wait(message + ` === "two"`)
	}
	third.write(" and three")
	fourth := first.another()
	fourth.open(evaluate[string](first, "location.origin") + "/#key=" + key)
	fourth.wait(message + ` === "two"`)
	fourth.click(".user .edit")
	first.enter()
	second.wait(message + ` === ""`)
	fourth.wait(`document.querySelectorAll(".user").length === 2`)
	fourth.click("#cancel-editing")
	fourth.wait(message + ` === ""`)
	is.Equal(evaluate[string](third, message), "two and three")
}

// TestForgetKeepsConversations checks that "Forget key" deletes the conversations
// only if the box is checked.
func TestForgetKeepsConversations(t *testing.T) {
	for _, deleted := range []bool{true, false} {
		t.Run(fmt.Sprint(deleted), func(t *testing.T) {
			is := is.New(t)
			_, tab := talkToMoody(t, botapi.Options{})
			tab.say("one")
			tab.waitForAnswer()
			tab.click("#forget-key")
			is.True(!evaluate[bool](tab, `document.querySelector("#forget-chats").checked`))
			if deleted {
				tab.click("#forget-chats")
			}
			tab.click("#forget-now")
			tab.see("#key")
			is.Equal(evaluate[bool](tab, "localStorage.length === 0"), deleted)
			tab.write(key)
			tab.enter()
			tab.see(".bot")
			is.Equal(len(tab.answers()) == 0, deleted)
		})
	}
}

// TestOneWayToAskAgain checks that there is one button where two would do the same.
func TestOneWayToAskAgain(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	asking := func() []string {
		return evaluate[[]string](tab, `Array.from(document.querySelectorAll(".message:last-child button"), (each) => each.checkVisibility() && each.textContent).filter((text) => /Regenerate|Try again/.test(text))`)
	}
	for _, test := range []struct {
		message string
		asking  []string
	}{
		{"one", []string{"Regenerate"}},
		{"fail", []string{"Try again"}},
		{"break", []string{"Try again"}},
	} {
		tab.say(test.message)
		tab.waitForAnswer()
		is.Equal(asking(), test.asking)
	}
}

// TestStoreFull checks that the page works when the browser stores nothing, and
// says so.
func TestStoreFull(t *testing.T) {
	is := is.New(t)
	bot, tab := talkToMoody(t, botapi.Options{})
	evaluate[any](tab, `Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); }; null`)
	tab.say("one")
	tab.waitForAnswer()
	tab.say("two")
	tab.waitForAnswer()
	is.Equal(bot.last(), []botapi.ChatMessage{user("one"), assistant("Answer 1"), user("two")})
	is.Equal(tab.text("#composer-hint"), "This browser has no room left: it will forget this conversation.")
}

// TestExport saves the conversation as a file.
func TestExport(t *testing.T) {
	is := is.New(t)
	_, tab := talkToMoody(t, botapi.Options{})
	tab.say("one")
	tab.waitForAnswer()
	tab.say("break")
	tab.waitForAnswer()
	is.Equal(tab.saved("#save-markdown"), "ada-one.md text/markdown # Ada\n\n## You\n\none\n\n## Ada\n\nAnswer 1\n\n## You\n\nbreak\n\n## Ada\n\nWell,\n\n*This answer is incomplete.*\n")
	is.Equal(tab.saved("#save-json"), `ada-one.json application/json {
  "bot": {
    "uid": "`+ada.UID+`",
    "slug": "ada",
    "name": "Ada"
  },
  "messages": [
    {
      "role": "user",
      "content": "one"
    },
    {
      "role": "assistant",
      "content": "Answer 1",
      "complete": true
    },
    {
      "role": "user",
      "content": "break"
    },
    {
      "role": "assistant",
      "content": "Well,",
      "complete": false
    }
  ]
}
`)
}

// saved clicks an entry of the menu, and returns the name, type and text of the
// file that the page offers for download.
func (tab *tab) saved(choice string) string {
	tab.t.Helper()
	evaluate[any](tab, `
		window.saved = undefined;
		URL.createObjectURL = (blob) => { window.blob = blob; return "#"; };
		HTMLAnchorElement.prototype.click = async function () { window.saved = this.download + " " + blob.type + " " + await blob.text(); };
		null`)
	tab.click("#menu-button")
	tab.click(choice)
	tab.wait("saved !== undefined")
	return evaluate[string](tab, "saved")
}
