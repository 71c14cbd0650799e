package browser

import (
	"regexp"
	"strings"
	"testing"

	"example.com/botapi/examples/quickstart/guide"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// linksOfGuide asks the guide a question, whose answer has links to documents.
func linksOfGuide(t *testing.T) *tab {
	t.Helper()
	q := startQuickstart(t)
	tab := newTab(t)
	tab.open(q.address + "/#key=" + key + "&bot=guide")
	tab.say(guide.Questions[len(guide.Questions)-1])
	tab.waitForAnswer()
	return tab
}

// TestGuideLinksToDocuments clicks a link of the guide's answer, which leads to a heading
// of a document that is shown as a page.
func TestGuideLinksToDocuments(t *testing.T) {
	is := is.New(t)
	tab := linksOfGuide(t)
	const link = `[...document.querySelectorAll(".message:last-child a[href*='/docs/']")].at(-1)`
	tab.wait(link + ` !== undefined`)
	heading := evaluate[string](tab, `decodeURIComponent(`+link+`.hash.slice(1))`)
	is.True(heading != "")
	evaluate[any](tab, link+`.target = ""; `+link+`.id = "clicked"; null`)
	tab.click("#clicked")
	tab.wait(`location.pathname.startsWith("/docs/") && document.getElementById(` + quoted(heading) + `)?.localName.startsWith("h")`)
	tab.wait(`Math.abs(document.getElementById(` + quoted(heading) + `).getBoundingClientRect().top) < 100`)
	is.True(evaluate[bool](tab, `scrollY > 0`))
}

// TestDocumentInAnotherTab opens a document from the guide's answer as a person does, in a
// tab that knows the key: it leads to the chat and to the reference without asking.
func TestDocumentInAnotherTab(t *testing.T) {
	is := is.New(t)
	tab := linksOfGuide(t)
	opened := chromedp.WaitNewTarget(tab.ctx, func(info *target.Info) bool { return strings.Contains(info.URL, "/docs/") })
	tab.click(".message:last-child a[href*='/docs/']")
	document := openTab(t, tab.ctx, chromedp.WithTargetID(<-opened))
	document.see("main h1")
	document.click("nav a[href='../docs']")
	document.wait(`document.querySelector("#chat .trial-key")?.checkVisibility() === false`)
	document.click("#to-chat")
	document.see(".bot")
	is.Equal(evaluate[int](tab, `localStorage.length`), 1) // the conversation: the browser does not keep the key
}

var (
	fencedCode   = regexp.MustCompile("(?ms)^```.*?^```$")
	indentedCode = regexp.MustCompile(`\n\n    \S`) // its first line
)

// TestDocumentsLinkToEachOther checks on the page of each document that every link leads to
// a heading of a page, or to the web, and that code is shown as code.
func TestDocumentsLinkToEachOther(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	tab := newTab(t)
	lands := map[string]bool{q.address + "/": true, q.address + "/docs": true}
	var links []string
	for name, text := range guide.Documents() {
		page := q.address + "/docs/" + name
		tab.open(page)
		tab.wait(`document.querySelectorAll("main h1").length === 1`)
		lands[page] = true
		for _, id := range evaluate[[]string](tab, `Array.from(document.querySelectorAll("main [id]"), ({ id }) => id)`) {
			lands[page+"#"+id] = true
		}
		links = append(links, evaluate[[]string](tab, `Array.from(document.querySelectorAll("a"), ({ href }) => href)`)...)
		code := len(fencedCode.FindAllString(text, -1)) + len(indentedCode.FindAllString(fencedCode.ReplaceAllString(text, ""), -1))
		is.Equal(evaluate[int](tab, `document.querySelectorAll("figure.code").length`), code)
		is.True(!strings.Contains(tab.text("main"), "]("))
	}
	for _, link := range regexp.MustCompile(`\]\(([^)]*)\)`).FindAllStringSubmatch(guide.Contents(q.address+"/docs/"), -1) {
		links = append(links, link[1]) // as in the guide's answers and llms.txt
	}
	is.True(len(links) > 30)
	for _, link := range links {
		if !lands[link] && !strings.HasPrefix(link, "https://") {
			t.Errorf("a link leads nowhere: %s", link)
		}
	}
}

// TestDocumentOnAPhone opens the contents of a document, which lead to its headings.
func TestDocumentOnAPhone(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 780))
	tab.open(q.address + "/docs/wire.md")
	tab.see("main h1")
	is.True(!evaluate[bool](tab, `document.querySelector("#contents a").checkVisibility()`))
	tab.click("#contents-box summary")
	tab.click("#contents li:nth-child(3) a")
	tab.wait(`!document.querySelector("#contents a").checkVisibility()`)
	tab.wait(`Math.abs(document.querySelectorAll("main h2")[2].getBoundingClientRect().top) < 100`)
	tab.checkWidth()
	tab.do(chromedp.EmulateViewport(1280, 780))
	tab.see("#contents a")
}
