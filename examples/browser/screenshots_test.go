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

var screenshots = flag.String("screenshots", "", "a `folder` to leave pictures of the pages in")

// TestScreenshots takes pictures for a person to look at.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("no -screenshots folder")
	}
	q := startQuickstart(t, "-pace", "5ms")
	failing := startHost(t, botapi.Options{Engine: fails("", nil, errors.New("a failure"))}, nil)
	converse := func(tab *tab) {
		tab.open(q.address + "/#key=" + key + "&bot=mira")
		tab.see("#message")
		tab.do(chromedp.Focus(chromedp.ID("message")))
		tab.say("I am worried about my exam")
		tab.waitForAnswer()
		tab.say("It is about trees, and I have read none of the books that my teacher has asked us to read before it")
		tab.waitForAnswer()
	}
	pages := map[string]func(*tab){
		"key":     func(tab *tab) { tab.open(q.address); tab.see("#key") },
		"refused": func(tab *tab) { tab.open(q.address + "/#key=wrong"); tab.see("#key-problem") },
		"list":    func(tab *tab) { tab.open(q.address + "/#key=" + key); tab.see(".bot") },
		"chat":    converse,
		"failure": func(tab *tab) {
			tab.open(failing.URL + "/#key=" + key + "&bot=ada")
			tab.see("#message")
			tab.do(chromedp.Focus(chromedp.ID("message")))
			tab.say("Hello")
			tab.see(".failure")
		},
		"reference": func(tab *tab) { tab.open(q.address + "/docs#chat"); tab.see("#chat") },
	}
	screens := map[string][2]int64{"wide": {1200, 800}, "narrow": {390, 780}}
	for page, show := range pages {
		for screen, size := range screens {
			for _, scheme := range []string{"light", "dark"} {
				name := page + "-" + screen + "-" + scheme
				t.Run(name, func(t *testing.T) {
					is := is.New(t)
					tab := newTab(t)
					tab.prefer("prefers-color-scheme", scheme)
					tab.do(chromedp.EmulateViewport(size[0], size[1]))
					show(tab)
					picture, err := chromedp.Run(tab.ctx, chromedp.CaptureScreenshot())
					is.NoErr(err)
					is.NoErr(os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644))
				})
			}
		}
	}
}
