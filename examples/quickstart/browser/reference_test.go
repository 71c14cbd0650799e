package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
)

// TestReference checks that the page shows everything in openapi.json.
func TestReference(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	response, err := http.Get(q.address + "/openapi.json")
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.Header.Get("Content-Type"), "application/json")
	text, err := io.ReadAll(response.Body)
	is.NoErr(err)
	var api struct {
		Paths      map[string]map[string]struct{ Summary string }
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
			}
		}
	}
	is.NoErr(json.Unmarshal(text, &api))

	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800)) // wide enough for the contents
	tab.open(q.address + "/docs")
	tab.see("#chat")
	page := tab.text("main")
	for path := range api.Paths {
		is.True(strings.Contains(page, path))
	}
	for name, schema := range api.Components.Schemas {
		is.True(strings.Contains(tab.text("#schema-"+name), name))
		for field := range schema.Properties {
			is.True(strings.Contains(tab.text("#schema-"+name), field))
		}
	}
	for _, nonsense := range []string{"undefined", "[object"} {
		is.True(!strings.Contains(page, nonsense))
	}
	is.Equal(evaluate[int](tab, `Array.from(document.querySelectorAll("a[href^='#']")).filter((link) => !document.getElementById(link.getAttribute("href").slice(1))).length`), 0) // links to nowhere

	tab.click(`a[href="#schema-ChatRequest"]`)
	tab.click(`#to-chat`)
	tab.do(chromedp.WaitVisible(chromedp.ID("key")))
}

// TestBackToTheChat checks that the link to the chat page leads to the conversation that was on show.
func TestBackToTheChat(t *testing.T) {
	tab := newTab(t)
	h := startService(t, botapi.Options{}, nil)
	tab.open(h.URL + "/#key=" + key)
	tab.click(`.bot[href="#bot=bo"]`)
	tab.wait(`document.querySelector("#chat-name").textContent === "Bo"`)
	tab.say("one")
	tab.waitForAnswer()
	for _, page := range []string{"/docs", "/docs/operating.md"} {
		tab.open(h.URL + page)
		tab.wait(`Boolean(document.querySelector("#to-chat")?.hash)`)
		tab.click("#to-chat")
		tab.wait(`document.querySelector("#chat-name")?.textContent === "Bo"`)
		tab.seeAnswer("one")
	}
}

// TestReferenceListsEachOperationOnce checks that a path without a version is shown
// beside the path with one.
func TestReferenceListsEachOperationOnce(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800)) // wide enough for the contents
	tab.open(startQuickstart(t).address + "/docs")
	tab.see("#chat")
	is.Equal(tab.texts(".route"), []string{"GET /v1/bots or /bots", "POST /v1/chat or /chat", "DELETE /v1/answers or /answers"})
	is.Equal(evaluate[string](tab, `fetch(Array.from(document.querySelectorAll("nav a")).find(({ textContent }) => textContent === "On the wire").href).then((response) => response.text())`)[:1], "#") // Markdown
	links := tab.texts("#contents a")
	slices.Sort(links)
	is.Equal(slices.Compact(slices.Clone(links)), links)
}

// TestReferencePrograms copies each program of each operation and runs it, with the
// tab's key and with the key in the environment. The programs print the answer
// unchanged.
func TestReferencePrograms(t *testing.T) {
	const answer = "Hello! Who are you?\nIn two lines, \"please\"."
	echoed := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return echo(ctx, &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Content: answer}}})
	})
	for _, inTab := range []bool{true, false} {
		h := startService(t, botapi.Options{Engine: echoed}, nil)
		bot := ada
		bot.UID, bot.Slug = "uid-of-your-bot", "your-bot"
		if inTab {
			bot.UID, bot.Slug = "3", "o'brien" // which the page gets from the list
		}
		is.New(t).NoErr(h.bots.Replace(bot))
		tab := newTab(t)
		if inTab {
			tab.open(h.URL + "/#key=" + key)
			tab.see(".bot")
		}
		tab.open(h.URL + "/docs")
		tab.see(map[bool]string{true: "#chat .trial > .hint", false: "#chat .trial-key"}[inTab])
		for _, name := range []string{"listBots", "chat 0", "chat 1"} {
			operation, example, _ := strings.Cut(name, " ")
			if example != "" {
				tab.choose("#"+operation+" .field ~ .field select", example)
			}
			for i, language := range []string{"curl", "Python", "Go", "JavaScript"} {
				t.Run(fmt.Sprint(name, " ", language, " ", inTab), func(t *testing.T) {
					tab.click(fmt.Sprintf("#%s [role=tab]:nth-child(%d)", operation, i+1))
					program := tab.copied("#" + operation + " .program .copy")
					is := is.New(t)
					is.Equal(strings.Contains(program, key), inTab)
					printed, complained, err := runProgram(t, language, program)
					if err != nil {
						t.Fatalf("%v: %s\n%s", err, complained, program)
					}
					switch {
					case operation == "listBots":
						is.True(strings.Contains(printed, `"slug"`))
					case language != "curl":
						is.Equal(printed, answer+"\n")
					case example == "0":
						is.Equal(printed, `{"content":"`+strings.NewReplacer("\n", `\n`, `"`, `\"`).Replace(answer)+`"}`)
					default:
						is.True(strings.HasPrefix(printed, "data: {\"content\":\"Hello! \"}\n\n"))
						is.True(strings.HasSuffix(printed, "data: [DONE]\n\n"))
					}
				})
			}
		}
	}
}

// runProgram runs a program as the page describes.
func runProgram(t *testing.T, language, program string) (printed, complained string, err error) {
	t.Helper()
	is := is.New(t)
	commands := map[string][]string{
		"curl":       {"sh", "call.sh"},
		"Python":     {"python3", "call.py"},
		"Go":         {"go", "run", "call.go"},
		"JavaScript": {"node", "call.js"},
	}
	run := commands[language]
	if _, err := exec.LookPath(run[0]); err != nil {
		t.Skipf("%s is not installed", run[0])
	}
	directory := t.TempDir()
	is.NoErr(os.WriteFile(filepath.Join(directory, run[len(run)-1]), []byte(program), 0o600))
	command := exec.CommandContext(t.Context(), run[0], run[1:]...)
	command.Dir = directory
	command.Env = append(os.Environ(), "BOTAPI_KEY="+key)
	var complaints strings.Builder
	command.Stderr = &complaints
	output, err := command.Output()
	return string(output), complaints.String(), err
}

// TestReferenceProgramsReportFailures checks that each program reports an incomplete
// answer and a rejected request.
func TestReferenceProgramsReportFailures(t *testing.T) {
	failures := map[string]struct {
		answer http.HandlerFunc
		says   string
	}{
		"error event": {stream("data: {\"content\":\"Well,\"}\n\nevent: error\ndata: {\"detail\":\"It fell asleep\",\"status\":503}\n\n", false), "It fell asleep"},
		"no [DONE]":   {stream("data: {\"content\":\"Well,\"}\n\n", false), "incomplete"},
		"rejection": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"detail":"Too many chats in progress"}`, http.StatusServiceUnavailable)
		}, "503"},
	}
	for name, test := range failures {
		tab := newTab(t)
		h := startService(t, botapi.Options{}, test.answer)
		tab.open(h.URL + "/#key=" + key)
		tab.see(".bot")
		tab.open(h.URL + "/docs")
		tab.see("#chat .trial > .hint")
		tab.choose("#chat .field ~ .field select", "1")
		for i, language := range []string{"Python", "Go", "JavaScript"} {
			t.Run(name+" "+language, func(t *testing.T) {
				tab.click(fmt.Sprintf("#chat [role=tab]:nth-child(%d)", i+2))
				is := is.New(t)
				_, complained, err := runProgram(t, language, tab.copied("#chat .copy"))
				is.True(err != nil) // the exit code is not 0
				is.True(strings.Contains(complained, test.says))
				is.True(name != "rejection" || strings.Contains(complained, `{"detail":"Too many chats in progress"}`))
				is.True(!strings.Contains(complained, "Traceback"))
			})
		}
	}
}

// TestReferenceSends clicks Send with a key that was typed into the page.
func TestReferenceSends(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/docs")
	tab.see("#chat .trial-key")
	is.True(evaluate[bool](tab, `document.querySelector("#chat .send").disabled`))
	is.True(strings.Contains(tab.text("#chat .program pre"), `{"bot_slug":"your-bot","prompt":"Hello! Who are you?","stream":false}`))
	is.Equal(evaluate[string](tab, "document.title"), "API reference · Bots")
	tab.do(chromedp.Focus(chromedp.CSS("#chat .trial-key input")))
	tab.write("wrong")
	tab.enter()
	tab.wait(`document.querySelector("#chat .problem").textContent === "The server did not accept this key."`)
	evaluate[any](tab, `document.querySelector("#chat .trial-key input").value = ""; null`)
	tab.write(key)
	tab.enter()
	tab.wait(`!document.querySelector("#chat .send").disabled`)
	is.Equal(tab.text("#chat .trial > .hint"), "With the key of this tab.")

	tab.click("#listBots .send")
	tab.wait(`document.querySelector("#listBots .sent").textContent.includes("complete after")`)
	is.True(strings.HasPrefix(tab.text("#listBots .sent"), "200 OK · headers after "))
	is.True(strings.Contains(tab.text("#listBots .answer"), `"slug": "ada"`))
	tab.click("#listBots .trial summary")
	is.True(strings.Contains(tab.text("#listBots .trial details pre"), "x-request-id: "))

	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .sent").textContent.includes("complete after")`)
	is.Equal(strings.TrimSpace(tab.text("#chat .answer")), "{\n  \"content\": \"Hello! Who are you?\"\n}")

	for _, body := range []string{`[{"bot_slug": "ada"}]`, `"ada"`, "1", "null", "", "\ufeff{}", `{"bot_slug": "ada", "prompt": "oops"`} {
		tab.choose("#chat textarea", body)
		is.True(strings.HasPrefix(tab.text("#chat .trial > .problem"), "This is not a JSON object."))
	}
	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .sent").textContent.startsWith("422")`)
	tab.wait(`document.querySelector("#chat .answer").textContent.includes("value_error.jsondecode")`)

	tab.open(h.URL + "/") // the chat page has the key, too
	tab.see(".bot")
}

// TestReferenceShowsAStreamAsItArrives checks that the first event is shown before
// the next one arrives, and stops the stream.
func TestReferenceShowsAStreamAsItArrives(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	tab.open(h.URL + "/docs")
	tab.see("#chat .trial > .hint")
	tab.choose("#chat .field ~ .field select", "1")
	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .answer").textContent === 'data: {"content":"Well,"}\n\n'`)
	is.Equal(tab.text("#chat .send"), "Stop")
	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .sent").textContent.endsWith("stopped")`)
	is.Equal(tab.text("#chat .send"), "Send")
}

// TestReferenceStopsAnAnswer stops answers that were sent with the page, with the page
// and with each program.
func TestReferenceStopsAnAnswer(t *testing.T) {
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	tab.open(h.URL + "/docs")
	tab.see("#chat .trial > .hint")
	tab.choose("#chat .field ~ .field select", "1")
	for i, language := range []string{"curl", "Python", "Go", "JavaScript", ""} {
		t.Run(language, func(t *testing.T) {
			is := is.New(t)
			tab.click("#chat .trial > .link")
			tab.click("#chat .send")
			tab.wait(`document.querySelector("#chat .answer").textContent.includes("Well,")`)
			named := evaluate[string](tab, `document.querySelector("#stopAnswer .field input").value`)
			is.True(strings.Contains(tab.text("#chat .program pre"), named))
			if language == "" {
				tab.click("#stopAnswer .send")
				tab.wait(`document.querySelector("#stopAnswer .sent").textContent.startsWith("204")`)
			} else {
				tab.click(fmt.Sprintf("#stopAnswer [role=tab]:nth-child(%d)", i+1))
				printed, complained, err := runProgram(t, language, tab.copied("#stopAnswer .program .copy"))
				if err != nil {
					t.Fatalf("%v: %s", err, complained)
				}
				is.True(strings.Contains(printed, "204"))
			}
			tab.wait(`document.querySelector("#chat .answer").textContent.includes("The answer was stopped")`)
			tab.wait(`document.querySelector("#chat .send").textContent === "Send"`)
		})
	}
}

// TestReferenceStopButton stops a chat that the service keeps. The key of that chat is
// offered where an answer is stopped, also after another one was made.
func TestReferenceStopButton(t *testing.T) {
	is := is.New(t)
	m, address := startModel(t)
	tab := newTab(t)
	tab.open(address)
	tab.see(".bot")
	tab.open(strings.Split(address, "#")[0] + "docs")
	tab.see("#chat .trial > .hint")
	tab.choose("#chat .field ~ .field select", "1")
	is.True(!evaluate[bool](tab, `document.querySelector("#stopAnswer .trial > .link").checkVisibility()`)) // there was no chat
	tab.click("#chat .trial > .link")
	tab.click("#chat .send")
	m.fragments <- "Well,"
	tab.wait(`document.querySelector("#chat .answer").textContent.includes("Well,")`)
	named := evaluate[string](tab, `document.querySelector("#chat .field input").value`)
	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .sent").textContent.endsWith("· stopped")`)
	is.True(m.end(t) != nil)

	tab.click("#chat .trial > .link")
	is.True(evaluate[string](tab, `document.querySelector("#stopAnswer .field input").value`) != named)
	tab.click("#stopAnswer .trial > .link")
	is.Equal(evaluate[string](tab, `document.querySelector("#stopAnswer .field input").value`), named)
}

// TestReferenceOffersAllBots chooses a bot. An edited body keeps everything but the
// bot's name.
func TestReferenceOffersAllBots(t *testing.T) {
	is := is.New(t)
	h := startService(t, botapi.Options{}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see(".bot")
	tab.open(h.URL + "/docs")
	bots, body := "#chat .field select", `document.querySelector("#chat textarea").value`
	tab.see("#chat .trial > .hint")
	is.Equal(tab.texts(bots + " option")[:2], []string{"Ada", "Bo"})
	tab.choose(bots, "1")
	is.True(strings.Contains(evaluate[string](tab, body), `"bot_slug": "bo"`))
	is.True(strings.Contains(tab.text("#chat .program pre"), `{"bot_slug":"bo",`))
	tab.click("#chat .send")
	tab.wait(`document.querySelector("#chat .sent").textContent.includes("complete after")`)
	is.True(strings.HasPrefix(tab.text("#chat .sent"), "200"))

	tab.choose("#chat textarea", `{"prompt":"My \"bot_slug\": \"x\"","bot_slug" : "b\"o","n":12345678901234567890}`)
	tab.choose(bots, "0")
	is.Equal(evaluate[string](tab, body), `{"prompt":"My \"bot_slug\": \"x\"","bot_slug" : "ada","n":12345678901234567890}`)
	tab.choose("#chat textarea", `{"bot_slug": oops`)
	tab.choose(bots, "1")
	is.Equal(evaluate[string](tab, body), `{"bot_slug": oops`)
	tab.choose("#chat .field ~ .field select", "1")
	is.True(strings.Contains(evaluate[string](tab, body), bo.UID)) // the example is for the chosen bot
}

// TestReferenceProgramsSendTheBody checks that each program sends the JSON of the body
// exactly: numbers that no language has, and characters that its source text cannot
// contain.
func TestReferenceProgramsSendTheBody(t *testing.T) {
	const body = "{\n  \"bot_slug\": \"ada\", \"prompt\": \"a\ufeffb\u2028 ` ${x} ' \\\" \\\\ \\n \\u0000 \\/ 😀 \\ud83d \",\n\t\"stream\" : %t, \"z\": [12345678901234567890123, 1e400, -0, 1.0, 0.1234567890123456789, {\"\": \"\"}]}"
	for _, streams := range []bool{false, true} {
		var mu sync.Mutex
		var received []byte
		answer := func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			received, _ = io.ReadAll(r.Body)
			if streams {
				_, _ = io.WriteString(w, "data: {\"content\":\""+strings.Repeat("long ", 50_000)+"\"}\n\ndata: [DONE]\n\n")
			} else {
				_, _ = io.WriteString(w, `{"content":"Well."}`)
			}
		}
		tab := newTab(t)
		h := startService(t, botapi.Options{}, answer)
		tab.open(h.URL + "/#key=" + key)
		tab.see(".bot")
		tab.open(h.URL + "/docs")
		tab.see("#chat .trial > .hint")
		sent := fmt.Sprintf(body, streams)
		tab.choose("#chat textarea", sent)
		is.New(t).True(!evaluate[bool](tab, `document.querySelector("#chat .trial > .problem").checkVisibility()`))
		for i, language := range []string{"curl", "Python", "Go", "JavaScript"} {
			t.Run(fmt.Sprint(language, " ", streams), func(t *testing.T) {
				tab.click(fmt.Sprintf("#chat [role=tab]:nth-child(%d)", i+1))
				is := is.New(t)
				program := tab.copied("#chat .program .copy")
				printed, complained, err := runProgram(t, language, program)
				if err != nil {
					t.Fatalf("%v: %s\n%s", err, complained, program)
				}
				is.True(strings.Contains(printed, map[bool]string{false: "Well.", true: strings.Repeat("long ", 50_000)}[streams]))
				mu.Lock()
				defer mu.Unlock()
				is.Equal(tokensOf(t, received), tokensOf(t, []byte(sent)))
			})
		}
	}
}

// tokensOf returns the tokens of a JSON text. Numbers are as they were written.
func tokensOf(t *testing.T, text []byte) (tokens []string) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return tokens
		}
		is.New(t).NoErr(err)
		tokens = append(tokens, fmt.Sprintf("%T %v", token, token))
	}
}

// TestReferenceTabs switches the language with the arrow keys, and checks that all
// programs on the page follow.
func TestReferenceTabs(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startQuickstart(t).address + "/docs")
	tab.click("#chat [role=tab]")
	tab.do(chromedp.KeyEvent(kb.ArrowRight))
	is.Equal(evaluate[string](tab, "document.activeElement.textContent"), "Python")
	is.Equal(tab.texts("[role=tab][aria-selected=true]"), []string{"Python", "Python", "Python"})
	is.True(strings.HasPrefix(tab.text("#listBots [role=tabpanel]"), "import json"))
	tab.copied("#listBots .copy")
	tab.do(chromedp.Focus(chromedp.CSS("#chat [role=tab][aria-selected=true]")))
	tab.do(chromedp.KeyEvent(kb.ArrowLeft))
	is.Equal(tab.text("#listBots .copy"), "Copy") // this text is not copied
	tab.do(chromedp.KeyEvent(kb.ArrowLeft))
	is.Equal(tab.texts("[role=tab][aria-selected=true]"), []string{"JavaScript", "JavaScript", "JavaScript"})
}

// TestReferenceOnAPhone checks that a Send button is visible without scrolling, and
// that the table of contents is folded.
func TestReferenceOnAPhone(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780))
	tab.open(startQuickstart(t).address + "/docs")
	tab.see("#overview")
	is.True(evaluate[float64](tab, `document.querySelector("#overview h1").getBoundingClientRect().top`) < 200)
	is.True(evaluate[float64](tab, `document.querySelector(".send").getBoundingClientRect().bottom`) < 780)
	is.True(!evaluate[bool](tab, `document.querySelector("#contents a").checkVisibility()`))
	tab.click("#contents-box summary")
	tab.click(`#contents a[href="#chat"]`)
	tab.wait(`!document.querySelector("#contents a").checkVisibility()`)
	tab.wait(`Math.abs(document.querySelector("#chat").getBoundingClientRect().top) < 100`)
	is.True(evaluate[bool](tab, `document.documentElement.scrollWidth <= innerWidth`)) // no horizontal scrolling
}

// choose sets the value of a field as a person does, with its events.
func (tab *tab) choose(selector, value string) {
	tab.t.Helper()
	evaluate[any](tab, fmt.Sprintf(`{
		const field = document.querySelector(%s);
		field.value = %s;
		field.dispatchEvent(new Event("input"));
		field.dispatchEvent(new Event("change"));
	} null`, quoted(selector), quoted(value)))
}

// copied clicks a copy button and returns the copied text.
func (tab *tab) copied(selector string) string {
	tab.t.Helper()
	evaluate[any](tab, `navigator.clipboard.writeText = (text) => { window.clipboard = text; return Promise.resolve(); }; null`)
	tab.click(selector)
	tab.wait(`document.querySelector(` + quoted(selector) + `).textContent === "Copied"`)
	return evaluate[string](tab, "clipboard")
}

func quoted(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // impossible for a string
	}
	return string(quoted)
}
