package browser

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/guide"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

var (
	screenshots = flag.String("screenshots", "", "the `folder` for screenshots of the pages")
	picture     = flag.String("picture", "", "the `file` for the README's picture")
)

// TestPicture takes the picture in the README: the quickstart's first bot, and an
// answer.
func TestPicture(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t, "-pace", "0")
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1120, 940))
	askGuide(tab, q.address+"/#key="+key)
	is.Equal(tab.text(".user .text"), guide.Questions[asked])
	tab.see(".message:last-child .text h5")
	if *picture != "" {
		tab.shoot(*picture)
	}
}

// asked is the suggestion that askGuide clicks: its answer has text and code, and fits on
// the picture.
const asked = 4

// askGuide clicks a suggestion: the guide quotes a section for it.
func askGuide(tab *tab, address string) {
	tab.open(address)
	tab.see(".suggestion")
	evaluate[any](tab, fmt.Sprintf(`document.querySelectorAll(".suggestion")[%d].click(); null`, asked))
	tab.wait(`document.querySelector(".message:last-child .regenerate")?.checkVisibility()`)
}

// TestScreenshots takes screenshots for a person to look at.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("no -screenshots folder")
	}
	q := startQuickstart(t)
	failing := startService(t, botapi.Options{Engine: fails("", nil, errors.New("a failure"))}, nil)
	waiting := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil)
	explaining := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(explain)}, nil)
	is.New(t).NoErr(explaining.bots.Replace(guides...))
	echoing := startService(t, botapi.Options{}, nil)
	pages := map[string]func(*tab){
		"key":                 func(tab *tab) { tab.open(q.address); tab.see("#key") },
		"rejected":            func(tab *tab) { tab.open(q.address + "/#key=wrong"); tab.see("#key-problem") },
		"list":                func(tab *tab) { tab.open(q.address + "/#key=" + key); tab.see(".bot") },
		"guide":               func(tab *tab) { askGuide(tab, q.address+"/#key="+key+"&bot=guide") },
		"beginning":           func(tab *tab) { tab.open(q.address + "/#key=" + key + "&bot=guide"); tab.see(".suggestion") },
		"beginning-unwelcome": func(tab *tab) { tab.open(explaining.URL + "/#key=" + key + "&bot=juniper"); tab.see(".beginning") },
		"chat":                func(tab *tab) { converse(tab, explaining.URL+"/#key="+key+"&bot=gopher") },
		"reading-back": func(tab *tab) {
			converse(tab, explaining.URL+"/#key="+key+"&bot=gopher")
			evaluate[any](tab, `document.querySelector("#scroller").scrollTop = 0`)
			tab.click("#menu-button")
			tab.see("#menu")
		},
		"arriving": func(tab *tab) { greet(tab, waiting.URL+"/#key="+key+"&bot=ada"); tab.see(".arriving") },
		"failure":  func(tab *tab) { greet(tab, failing.URL+"/#key="+key+"&bot=ada"); tab.see(".failure") },
		"thought": func(tab *tab) {
			tab.open(echoing.URL + "/#key=" + key + "&bot=bo")
			for i, folded := range []bool{false, true} {
				tab.click("#message")
				tab.say("<think>\nIs it *two* and two?\n\n- Four, then.\n</think>\n\nIt is **four**.")
				tab.wait(fmt.Sprintf(`document.querySelectorAll(".regenerate").length > %d`, i))
				tab.waitForAnswer()
				if !folded {
					tab.click(".thought summary")
				}
			}
		},
		"deleted-elsewhere": func(tab *tab) {
			greet(tab, explaining.URL+"/#key="+key+"&bot=gopher")
			tab.waitForAnswer()
			evaluate[any](tab, `localStorage.clear(); dispatchEvent(new StorageEvent("storage", { key: null })); null`)
			tab.see(".cleared")
		},
		"editing": func(tab *tab) {
			converse(tab, explaining.URL+"/#key="+key+"&bot=gopher")
			evaluate[any](tab, `document.querySelector(".edit").click(); null`)
			tab.see("#editing")
		},
		"conversations": func(tab *tab) { manyChats(tab, explaining.URL+"/#key="+key+"&bot=gopher") },
		"conversation-list": func(tab *tab) {
			manyChats(tab, explaining.URL+"/#key="+key+"&bot=gopher")
			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.see(".conversation-item")
		},
		"days": func(tab *tab) {
			manyChats(tab, explaining.URL+"/#key="+key+"&bot=gopher")
			tab.age()
			evaluate[any](tab, `location.hash = "bots"; null`)
			tab.see(".day")
		},
		"instructions": func(tab *tab) {
			tab.open(explaining.URL + "/#key=" + key + "&bot=gopher")
			tab.click("#menu-button")
			tab.click("#set")
			tab.see("#settings-dialog")
		},
		"shortcuts": func(tab *tab) {
			tab.open(explaining.URL + "/#key=" + key)
			tab.click("#help")
			tab.see("#help-dialog")
		},
		"forget": func(tab *tab) {
			tab.open(q.address + "/#key=" + key)
			tab.click("#forget-key")
			tab.see("#forget-dialog")
		},
		"reference": func(tab *tab) { tab.open(q.address + "/docs#chat"); tab.see("#chat") },
		"reference-sent": func(tab *tab) {
			tab.open(q.address + "/#key=" + key)
			tab.see("[href='#bot=guide']")
			tab.open(q.address + "/docs#chat")
			tab.click("#chat .send")
			tab.wait(`document.querySelector("#chat .sent").textContent.includes("complete after")`)
			evaluate[any](tab, `document.querySelector("#chat .sending").scrollIntoView(); null`)
		},
		"document":   func(tab *tab) { tab.open(q.address + "/docs/operating.md"); tab.see("main h1") },
		"references": func(tab *tab) { tab.open(q.address + "/docs"); tab.see("#chat") },
	}
	screens := map[string][2]int64{"wide": {1280, 800}, "narrow": {390, 780}, "tiny": {320, 256}}
	for page, show := range pages {
		for screen, size := range screens {
			for _, scheme := range []string{"light", "dark"} {
				name := page + "-" + screen + "-" + scheme
				t.Run(name, func(t *testing.T) {
					tab := newTab(t)
					tab.prefer("prefers-color-scheme", scheme)
					tab.do(chromedp.EmulateViewport(size[0], size[1]))
					show(tab)
					tab.shoot(filepath.Join(*screenshots, name+".png"))
				})
			}
		}
	}
}

func (tab *tab) shoot(file string) {
	tab.t.Helper()
	is := is.New(tab.t)
	picture, err := chromedp.Run(tab.ctx, chromedp.CaptureScreenshot())
	is.NoErr(err)
	is.NoErr(os.WriteFile(file, picture, 0o644))
}

func greet(tab *tab, address string) {
	tab.open(address)
	tab.see("#message")
	tab.do(chromedp.Focus(chromedp.ID("message")))
	tab.say("Hello")
}

func converse(tab *tab, address string) {
	tab.open(address)
	tab.see("#message")
	tab.do(chromedp.Focus(chromedp.ID("message")))
	tab.say("Which loop reads a file line by line?")
	tab.waitForAnswer()
}

// guides are the bots on the screenshots.
var guides = []botapi.Bot{
	{UID: "1", Slug: "gopher", Name: "Gopher", Description: "Explains Go, with code.", WelcomeMessage: "Hello, I am Gopher. What would you like to know about Go?", Model: "small-coder"},
	{UID: "5", Slug: "mira", Name: "Mira", Description: "Listens, and asks back.", WelcomeMessage: "Hello, I am Mira.", Model: "listener"},
	{UID: "3", Slug: "juniper", Name: "Juniper", Description: "Gardens, and sees a garden in everything.", Model: "gardener"},
}
