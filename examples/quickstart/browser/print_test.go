package browser

import (
	"regexp"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// pages returns the number of pages that the page has on paper.
func (tab *tab) pages() int {
	tab.t.Helper()
	pdf, err := chromedp.Call(tab.ctx, page.PrintToPDF, page.PrintToPDFParams{})
	is.New(tab.t).NoErr(err)
	return len(regexp.MustCompile(`/Type /Page\b`).FindAll(pdf.Data, -1))
}

// TestPrint prints a conversation: all of it, and nothing else, and in black on white where the
// theme is dark.
func TestPrint(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.click("#theme")
	tab.click("#theme")
	is.Equal(tab.text("#theme"), "Theme: dark")
	tab.click("#message")
	row := strings.TrimSpace("|" + strings.Repeat(" `internationalisation()` |", 12))
	for _, message := range []string{
		"```go\n" + strings.Repeat("wide() ", 60) + "\n```",
		row + "\n|" + strings.Repeat("---|", 12) + "\n" + row,
		wideFormula,
		strings.TrimSpace(strings.Repeat("A paragraph of an answer.\n\n", 120)),
	} {
		tab.say(message)
		tab.waitForAnswer()
	}
	tab.do(chromedp.Reload())
	tab.waitForAnswer()
	is.Equal(evaluate[int](tab, `document.querySelectorAll(".assistant .formula .katex").length`), 0) // the formula is not in view
	tab.wait(`dispatchEvent(new Event("beforeprint")) && document.querySelectorAll(".assistant .formula .katex").length === 1`)
	evaluate[any](tab, `document.querySelector("#scroller").scrollTop -= 100; null`)
	position := evaluate[float64](tab, `document.querySelector("#scroller").scrollTop`)
	pages := tab.pages()
	is.True(pages > 5) // the last message and its answer alone have more
	is.Equal(evaluate[float64](tab, `document.querySelector("#scroller").scrollTop`), position)

	tab.do(chromedp.EmulateViewport(718, 1047)) // the room on paper
	_, err := chromedp.Call(tab.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
	is.NoErr(err)
	is.Equal(evaluate[int](tab, `[...document.querySelectorAll("nav, header, form, button, .actions")].filter((each) => each.checkVisibility()).length`), 0)
	is.True(evaluate[bool](tab, `[...document.querySelectorAll(".message .text")].every((each) => each.checkVisibility())`))
	is.Equal(evaluate[[]string](tab, `[...document.querySelectorAll("body, .chat, .scroller, .code pre, .code code, .text .table, .text td, .text .formula.display")]
		.filter((each) => each.scrollWidth > Math.max(each.clientWidth, each.offsetWidth) && getComputedStyle(each).display !== "inline" || getComputedStyle(each).overflow !== "visible").map((each) => each.outerHTML.slice(0, 80))`), []string{})
	is.Equal(evaluate[[]string](tab, `[getComputedStyle(document.body).backgroundColor, ...new Set([...document.querySelectorAll(".message .text, .text td, .code pre")].map((each) => getComputedStyle(each).color))]`), []string{"rgb(255, 255, 255)", "rgb(0, 0, 0)"})
}
