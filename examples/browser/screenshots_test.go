package browser

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

var (
	screenshots = flag.String("screenshots", "", "a `folder` to leave pictures of the pages in")
	picture     = flag.String("picture", "", "the `file` to leave the README's picture in")
)

// TestPicture takes the picture of the chat page that the README shows.
func TestPicture(t *testing.T) {
	if *picture == "" {
		t.Skip("no -picture file")
	}
	h := startHost(t, botapi.Options{Engine: botapi.ChatEngineFunc(explain)}, nil)
	is.New(t).NoErr(h.bots.Replace(guides...))
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1120, 880))
	converse(tab, h.URL+"/#key="+key+"&bot=gopher")
	tab.shoot(*picture)
}

// TestScreenshots takes pictures for a person to look at.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("no -screenshots folder")
	}
	q := startQuickstart(t)
	failing := startHost(t, botapi.Options{Engine: fails("", nil, errors.New("a failure"))}, nil)
	waiting := startHost(t, botapi.Options{Engine: botapi.ChatEngineFunc(waits)}, nil)
	explaining := startHost(t, botapi.Options{Engine: botapi.ChatEngineFunc(explain)}, nil)
	is.New(t).NoErr(explaining.bots.Replace(guides...))
	pages := map[string]func(*tab){
		"key":     func(tab *tab) { tab.open(q.address); tab.see("#key") },
		"refused": func(tab *tab) { tab.open(q.address + "/#key=wrong"); tab.see("#key-problem") },
		"list":    func(tab *tab) { tab.open(q.address + "/#key=" + key); tab.see(".bot") },
		"chat":    func(tab *tab) { converse(tab, explaining.URL+"/#key="+key+"&bot=gopher") },
		"reading-back": func(tab *tab) {
			converse(tab, explaining.URL+"/#key="+key+"&bot=gopher")
			evaluate[any](tab, `document.querySelector("#scroller").scrollTop = 0`)
			tab.click("#menu-button")
			tab.see("#menu")
		},
		"arriving": func(tab *tab) { greet(tab, waiting.URL+"/#key="+key+"&bot=ada"); tab.see(".arriving") },
		"failure":  func(tab *tab) { greet(tab, failing.URL+"/#key="+key+"&bot=ada"); tab.see(".failure") },
		"editing": func(tab *tab) {
			greet(tab, failing.URL+"/#key="+key+"&bot=ada")
			tab.click(".change")
			tab.see("#editing")
		},
		"forget": func(tab *tab) {
			tab.open(q.address + "/#key=" + key)
			tab.click("#forget-key")
			tab.see("#forget-dialog")
		},
		"reference":  func(tab *tab) { tab.open(q.address + "/docs#chat"); tab.see("#chat") },
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

// guides are bots to look at.
var guides = []botapi.Bot{
	{UID: "1", Slug: "gopher", Name: "Gopher", Description: "Explains Go, with code.", WelcomeMessage: "Hello, I am Gopher. What would you like to know about Go?", Model: "small-coder"},
	{UID: "5", Slug: "mira", Name: "Mira", Description: "Listens, and asks back.", WelcomeMessage: "Hello, I am Mira.", Model: "listener"},
	{UID: "3", Slug: "juniper", Name: "Juniper", Description: "Gardens, and sees a garden in everything.", Model: "gardener"},
}
