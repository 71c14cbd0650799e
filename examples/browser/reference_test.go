package browser

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestReference finds everything of the document on the page.
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
	tab.open(q.address + "/docs")
	tab.see("#chat")
	page := tab.text("main")
	for path := range api.Paths {
		is.True(strings.Contains(page, path))
	}
	for name, schema := range api.Components.Schemas {
		is.True(strings.Contains(tab.text("#schema-"+name), name))
		for member := range schema.Properties {
			is.True(strings.Contains(tab.text("#schema-"+name), member))
		}
	}
	for _, nonsense := range []string{"undefined", "[object"} {
		is.True(!strings.Contains(page, nonsense))
	}
	is.Equal(evaluate[int](tab, `Array.from(document.querySelectorAll("a[href^='#']")).filter((link) => !document.getElementById(link.getAttribute("href").slice(1))).length`), 0) // links to nowhere

	tab.click(`a[href="#schema-ChatRequest"]`)
	tab.click(`a[href="./"]`)
	tab.do(chromedp.WaitVisible(chromedp.ID("key")))
}

// TestReferenceListsEachOperationOnce has the paths without a version stand
// beside those with one.
func TestReferenceListsEachOperationOnce(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startQuickstart(t).address + "/docs")
	tab.see("#chat")
	is.Equal(tab.texts(".route"), []string{"GET /v1/bots or /bots", "POST /v1/chat or /chat"})
	links := tab.texts("#contents a")
	slices.Sort(links)
	is.Equal(slices.Compact(slices.Clone(links)), links)
}

// TestReferenceExamples copies each example with its button and runs it: the
// curls in a shell, the rest in the page.
func TestReferenceExamples(t *testing.T) {
	is := is.New(t)
	h := startHost(t, botapi.Options{}, nil)
	guide := ada
	guide.UID, guide.Slug = "11111111-1111-4111-8111-111111111111", "guide"
	is.NoErr(h.bots.Replace(guide))
	tab := newTab(t)
	tab.open(h.URL + "/docs")
	tab.see("#chat")
	answers := map[string]string{
		"listBots curl":          `"slug":"guide"`,
		"listBots JavaScript":    `"slug":"guide"`,
		"chat curl":              `{"content":"What is on the first floor?"}`,
		"chat JavaScript":        `{"content":"What is on the first floor?"}`,
		"chat curl stream":       "[DONE]",
		"chat JavaScript stream": "And above it?",
	}
	for _, figure := range evaluate[[]string](tab, `Array.from(document.querySelectorAll("figure.code"), (figure, i) => {
		figure.id = "example-" + i;
		const streams = /-N |BotClient/.test(figure.querySelector("pre").textContent) ? " stream" : "";
		return figure.id + " " + figure.closest("section").id + " " + figure.querySelector("span").textContent + streams;
	})`) {
		id, name, _ := strings.Cut(figure, " ")
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			example := tab.copied("#" + id + " .copy")
			var answer string
			if strings.Contains(name, "curl") {
				answer = runInShell(t, example)
			} else {
				answer = evaluate[string](tab, runInPage(t, example))
			}
			is.True(answers[name] != "")
			is.True(strings.Contains(answer, answers[name]))
			delete(answers, name)
		})
	}
	is.Equal(len(answers), 0) // all were there
}

// copied presses a button that copies, and returns what it copied.
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
		panic(err) // text is always JSON
	}
	return string(quoted)
}

func runInShell(t *testing.T, example string) string {
	command := exec.CommandContext(t.Context(), "sh", "-c", example)
	command.Env = append(os.Environ(), "BOTAPI_KEY="+key)
	output, err := command.Output()
	is.New(t).NoErr(err)
	return string(output)
}

// runInPage wraps an example so that it is worth what it would print.
func runInPage(t *testing.T, example string) string {
	t.Helper()
	if rest, ok := strings.CutPrefix(example, "import { BotClient }"); ok {
		_, rest, _ = strings.Cut(rest, "\n")
		example = `const { BotClient } = await import("/page/client.js");` + rest
	}
	return `(async () => {
		const key = ` + quoted(key) + `, printed = [];
		const console = { log: (value) => printed.push(typeof value === "string" ? value : JSON.stringify(value)) };
		` + example + `
		return printed.join("");
	})()`
}
