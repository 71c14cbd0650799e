package browser

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// axe returns the source of axe-core, which checks accessibility. npm installs the
// version in axe/package-lock.json.
var axe = sync.OnceValues(func() (string, error) {
	install := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = "axe"
	if output, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm ci: %w\n%s", err, output)
	}
	source, err := os.ReadFile(filepath.Join("axe", "node_modules", "axe-core", "axe.min.js"))
	return string(source), err
})

// TestAxe checks that axe finds nothing on any screen, wide and narrow, light and
// dark.
func TestAxe(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	source, err := axe()
	is.New(t).NoErr(err)
	explaining := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(explain)}, nil)
	failing := startService(t, botapi.Options{Engine: fails("Well,", nil, errors.New("a failure"))}, nil)
	waiting := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil)
	echoing := startService(t, botapi.Options{}, nil)
	cy := botapi.Bot{UID: "c", Slug: "cy", Name: "Cy", Model: "echo"}
	short := startPage(t, botapi.Options{}, page.Options{MaxBodyBytes: 160})
	rejecting := startPage(t, botapi.Options{MaxBodyBytes: 64}, page.Options{})
	home := "/#key=" + key
	screens := map[string]func(*tab){
		"key":     func(tab *tab) { tab.open(failing.URL + "/#key=wrong"); tab.see("#key-problem") },
		"list":    func(tab *tab) { tab.open(failing.URL + home); tab.see(".bot") },
		"chat":    func(tab *tab) { greet(tab, explaining.URL+home+"&bot=ada"); tab.see(".actions .regenerate") },
		"failure": func(tab *tab) { greet(tab, failing.URL+home+"&bot=ada"); tab.see(".failure") },
		"silence": func(tab *tab) {
			greet(tab, waiting.URL+home+"&bot=ada")
			tab.wait(`document.querySelector(".arriving .text")?.textContent === "Well,"`)
			tab.forward(time.Minute)
			tab.see(".arriving .silence")
		},
		"wide formula": func(tab *tab) {
			tab.open(echoing.URL + home + "&bot=bo")
			tab.see(".beginning")
			tab.click("#message")
			tab.say(wideFormula)
			tab.see(".assistant .formula[tabindex]")
		},
		"thought": func(tab *tab) {
			tab.open(echoing.URL + home + "&bot=bo")
			tab.see(".beginning")
			tab.click("#message")
			tab.say("<think>Two and two</think>Four.")
			tab.click(".thought summary")
			tab.see(".thought p")
		},
		"editing": func(tab *tab) {
			greet(tab, explaining.URL+home+"&bot=ada")
			tab.click(".message:last-child .regenerate")
			tab.waitForAnswer()
			tab.click(".edit")
			tab.see("#editing")
		},
		"reading back": func(tab *tab) {
			tab.do(chromedp.EmulateViewport(390, 400))
			greet(tab, explaining.URL+home+"&bot=ada")
			tab.see(".actions .regenerate")
			evaluate[any](tab, `document.querySelector("#scroller").scrollTop = 0; null`)
			tab.see("#latest")
		},
		"cleared": func(tab *tab) {
			greet(tab, explaining.URL+home+"&bot=ada")
			tab.see(".actions .regenerate")
			tab.clear()
			tab.see(".cleared")
		},
		"conversations": func(tab *tab) { manyChats(tab, explaining.URL+home+"&bot=ada") },
		"conversation list": func(tab *tab) {
			manyChats(tab, explaining.URL+home+"&bot=ada")
			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.see(".conversation-item .delete")
		},
		"menu": func(tab *tab) {
			greet(tab, explaining.URL+home+"&bot=ada")
			tab.see(".actions .regenerate")
			tab.click("#menu-button")
			tab.see("#menu")
		},
		"rename": func(tab *tab) {
			greet(tab, explaining.URL+home+"&bot=ada")
			tab.see(".actions .regenerate")
			tab.click("#menu-button")
			tab.click("#rename")
			tab.see("#rename-dialog")
		},
		"instructions": func(tab *tab) {
			tab.open(explaining.URL + home + "&bot=ada")
			tab.click("#menu-button")
			tab.click("#set")
			tab.see("#settings-dialog")
		},
		"with instructions": func(tab *tab) {
			tab.open(explaining.URL + home + "&bot=ada")
			tab.click("#menu-button")
			tab.click("#set")
			tab.write("Be brief.")
			tab.click("#settings-dialog .primary")
			tab.see("#menu-button.set")
			tab.click("#menu-button")
			tab.see("#set")
		},
		"shortcuts": func(tab *tab) {
			tab.open(explaining.URL + home)
			tab.click("#help")
			tab.see("#help-dialog")
		},
		"days": func(tab *tab) {
			manyChats(tab, explaining.URL+home+"&bot=ada")
			tab.age()
			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.see(".day")
		},
		"nothing found": func(tab *tab) {
			manyChats(tab, explaining.URL+home+"&bot=ada")
			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.search("nothing")
			tab.see("#not-found")
		},
		"bot gone": func(tab *tab) {
			changing := startService(tab.t, botapi.Options{}, nil)
			is.New(tab.t).NoErr(changing.bots.Replace(ada, cy))
			greet(tab, changing.URL+home+"&bot=cy")
			tab.waitForAnswer()
			is.New(tab.t).NoErr(changing.bots.Replace(ada))
			tab.do(chromedp.Reload())
			tab.see("#gone-note")
			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.see("#gone-title")
		},
		"too long": func(tab *tab) {
			greet(tab, rejecting.URL+home+"&bot=ada")
			tab.see(".failure")
		},
		"left out": func(tab *tab) {
			greet(tab, short.URL+home+"&bot=bo")
			tab.waitForAnswer()
			tab.write(strings.Repeat("long ", 10))
			tab.click("#shorten")
			tab.see(".left-out")
		},
		"key elsewhere": func(tab *tab) { tab.open(failing.URL + "/#bot=ada"); tab.see("#key-elsewhere") },
		"forget": func(tab *tab) {
			tab.open(failing.URL + home)
			tab.click("#forget-key")
			tab.see("#forget-dialog")
		},
		"beginning":                 func(tab *tab) { tab.open(failing.URL + home + "&bot=ada"); tab.see(".beginning") },
		"beginning without welcome": func(tab *tab) { tab.open(failing.URL + home + "&bot=bo"); tab.see(".beginning") },
		"reference":                 func(tab *tab) { tab.open(failing.URL + "/docs"); tab.see("#chat .trial-key") },
		"document":                  func(tab *tab) { tab.open(failing.URL + "/docs/wire.md"); tab.see("main h1") },
		"reference, sent": func(tab *tab) {
			tab.open(explaining.URL + home)
			tab.see(".bot")
			tab.open(explaining.URL + "/docs")
			tab.click("#chat .send")
			tab.wait(`document.querySelector("#chat .sent").textContent.includes("complete after")`)
			tab.click("#chat .trial summary")
			tab.choose("#chat textarea", "oops")
			tab.see("#chat .trial > .problem")
		},
	}
	for name, show := range screens {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			tab := newTab(t)
			tab.do(chromedp.EmulateViewport(390, 800))
			show(tab)
			evaluate[any](tab, source+"; null")
			for _, width := range []int64{390, 1280} {
				tab.do(chromedp.EmulateViewport(width, 800))
				for _, scheme := range []string{"light", "dark"} {
					tab.prefer("prefers-color-scheme", scheme, "prefers-reduced-motion", "reduce")
					is.Equal(evaluate[[]string](tab, violations), []string{})
				}
			}
		})
	}
}

// violations lists the problems that axe finds, and their elements.
const violations = `axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
	violations.flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => id + ": " + html.slice(0, 200) + " " + failureSummary)))`
