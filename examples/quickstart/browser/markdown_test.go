package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/matryer/is"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
)

// TestCommonMark shows the examples of CommonMark's specification that the page
// supports: in one piece, and character by character as they might arrive. Both results
// must be the same.
func TestCommonMark(t *testing.T) {
	is := is.New(t)
	var examples []sample
	outside := 0
	for _, example := range specification(t) {
		if example.outside() != "" {
			outside++
			continue
		}
		examples = append(examples, sample{fmt.Sprint(example.Example), example.Markdown, example.HTML})
	}
	is.True(len(examples) > 400) // of 652
	newMarkdownTab(t).compare(examples)
	t.Logf("%d examples, and %d that are not supported", len(examples), outside)
}

// TestGrowingText reads texts character by character, and checks that each
// beginning gives the same result as when it is read at once.
func TestGrowingText(t *testing.T) {
	is := is.New(t)
	texts := []string{"a\r\nb\rc\n\r\nd", "| a | b |\n|---|---|\n| 1 | 2 |\r\n| 3 | 4\n> quote\n", "- a\n\n- b\n  - c\n\n\n  d\n1. e\n"}
	for _, example := range specification(t) {
		texts = append(texts, example.Markdown)
	}
	list, err := json.Marshal(texts)
	is.NoErr(err)
	is.Equal(evaluate[[]string](newMarkdownTab(t), fmt.Sprintf("growing(%s, 1)", list)), []string{})
}

// TestGrowingLongText does the same with texts that are split, in larger steps.
func TestGrowingLongText(t *testing.T) {
	is := is.New(t)
	many := func(text string) string { return strings.Repeat(text, 250) }
	list, err := json.Marshal([]string{
		many("one *it* and `code` [a](https://a.example) **bold words in a row**, & h\n"),
		strings.Repeat("abcdefghij😀", 2500),
		"a " + many("word\n") + "\n| " + many("long ") + many("head ") + " | b |\n|---|---|\n| c | d |\n",
		many("- a\n") + "\n" + many("- b\n  1. c\n"),
		many("> - a\n> - b\n\n"),
		"| a | b |\n|---|---|\n" + many("| c | d |\n") + "\n" + many("# e\n\nf\n"),
		"```go\n" + many("x := 1\n") + "```\n\n" + many("    y\n"),
	})
	is.NoErr(err)
	is.Equal(evaluate[[]string](newMarkdownTab(t), fmt.Sprintf("growing(%s, 97)", list)), []string{})
}

// TestCuts checks that long texts are shown in parts, completely and without
// repetition.
func TestCuts(t *testing.T) {
	tab := newMarkdownTab(t)
	many := func(text string) string { return strings.Repeat(text, 1000) }
	for _, test := range []struct {
		name, text  string
		parts, each string // selectors
		cuts, count int    // at least so many parts, exactly so many others
	}{
		{"paragraph", many("one *it* and `code` "), "p", "em", 5, 1000},
		{"paragraph without a space", many("abcdefghijkl😀"), "p", "p:not(.continued)", 4, 1},
		{"Chinese paragraph", many("这是**“一”**个很长的句子。"), "p", "strong", 4, 1000},
		{"emphasis without an end", "*" + many("word word "), "p", "p:not(.continued)", 3, 1},
		{"link across a cut", strings.Repeat("word ", 800) + "[" + strings.Repeat("linked ", 30) + "](https://a.example) " + many("word "), "p", "a", 3, 1},
		{"list", many("1. a\n"), "ol", "ol > li", 3, 1000},
		{"list in a list", "- a\n" + many("  - b\n"), "ul ul", "ul ul > li", 3, 1000},
		{"numbered list in a list", "1. a\n" + many("   1. b\n"), "ol ol", "ol ol > li", 3, 1000},
		{"item", "1. a\n" + many("\n   b *c*\n"), "ol", "em", 3, 1000},
		{"long line in a list", "- a\n  1. " + many("b *c* ") + "\n- d", "ul ol p", "em", 2, 1000},
		{"table", "| a |\n|---|\n" + many("| b |\n"), ".table.even", "td", 3, 1000},
		{"table in a list", "- a\n\n  | a |\n  |---|\n" + many("  | b |\n"), "li .table.even", "td", 3, 1000},
		{"heads of a table", "| a |\n|---|\n" + many("| b |\n"), ".table", "th", 3, 1},
		{"wide table", strings.Repeat("| a ", 7) + "\n" + strings.Repeat("|---", 7) + "\n" + many("| b |\n"), ".table:not(.even)", "tr", 10, 1001},
		{"blocks", many("a\n\n"), ".part", "p", 10, 1000},
		{"blocks in a quote", many("> a\n>\n"), "blockquote", "p", 3, 1000},
		{"list in a quote", "> a\n>\n" + many("> - b\n"), "blockquote ul", "li", 3, 1000},
		{"footnote", "[^1]: a\n\n" + many("    b\n\n"), ".footnote", ".footnote p", 3, 1001},
		{"label of a footnote", "[^1]: a\n\n" + many("    b\n\n"), ".footnote", ".label", 3, 1},
		{"code", "```\n" + many("a\n") + "```", "code > .piece", "pre", 20, 1},
		{"code in a list", "1. a\n   ```go\n" + many("   x := 1\n") + "   ```\n2. b\n", "code > .piece", "pre", 10, 1},
		{"indented code", many("    a\n\n"), "code > .piece", "pre", 10, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			is := is.New(t)
			counts := evaluate[[]int](tab, fmt.Sprintf("counts(%s, %q, %q)", quoted(test.text), test.parts, test.each))
			is.True(counts[0] >= test.cuts)
			is.Equal(counts[1], test.count)
			text := evaluate[string](tab, fmt.Sprintf("text(shown(%s))", quoted(test.text)))
			is.True(!strings.Contains(text, "\uE000")) // what a prefix shows
			is.Equal(evaluate[string](tab, fmt.Sprintf("text(arrived(%s, 501))", quoted(test.text))), text)
		})
	}
	is := is.New(t)
	is.True(evaluate[bool](tab, fmt.Sprintf("[...shown(%s).querySelectorAll('ol')].every((list, i, all) => i === 0 || list.start === all[i - 1].start + all[i - 1].childElementCount)", quoted(many("1. a\n")))))
	code := strings.Repeat("a\n\n\tb\n", 1000)
	is.Equal(evaluate[string](tab, fmt.Sprintf("shown(%s).querySelector('code').textContent", quoted("```\n"+code+"```"))), code)
	indented := "    " + strings.TrimRight(strings.ReplaceAll(code, "\n", "\n    "), " \n\t")
	is.Equal(evaluate[string](tab, fmt.Sprintf("shown(%s).querySelector('code').textContent", quoted(indented))), strings.TrimRight(code, "\n")+"\n")
	line := strings.Repeat("a ``` - b", 2000)
	is.Equal(evaluate[string](tab, fmt.Sprintf("shown(%s).querySelector('code').textContent", quoted("```\n"+line))), line+"\n")
}

// TestFinishedBlocks checks that blocks that can no longer change are not read or
// shown again.
func TestFinishedBlocks(t *testing.T) {
	tab := newMarkdownTab(t)
	for _, text := range []string{"- a\n- b\n- c", "1. a\n1. b\n1. c", "> a\n>\n> b\n>\n> c", "a\n\nb\n\nc", "| a |\n|---|\n| b |\n| c |\n| d"} {
		t.Run(text, func(t *testing.T) {
			is.New(t).True(evaluate[bool](tab, fmt.Sprintf("keepsTheFirst(%s)", quoted(text))))
		})
	}
}

// TestDirections checks that each block has the direction of its first letter.
func TestDirections(t *testing.T) {
	is := is.New(t)
	is.Equal(evaluate[[]string](newMarkdownTab(t), `directions("(1)", "(1) שלום", "(1) שלום a", "(1) שלום a\n\nb", "(1) שלום a\n\nb c")`),
		[]string{"ltr", "rtl", "rtl", "rtl ltr", "rtl ltr", "rtl ltr"})
}

// TestMarkdownLooks checks the styles of lists, headings and code in several
// contexts.
func TestMarkdownLooks(t *testing.T) {
	tab := newMarkdownTab(t)
	for _, test := range []struct{ text, selector, property, value string }{
		{"- a\n  - b\n    - c", "ul", "list-style-type", "disc"},
		{"- a\n  - b\n    - c", "ul ul", "list-style-type", "circle"},
		{"- a\n  - b\n    - c", "ul ul ul", "list-style-type", "square"},
		{"1. a", "ol", "list-style-type", "decimal"},
		{"## a\n\nb", ".h2", "margin-bottom", "0px"},
		{"#### a\n\nb", ".h4", "margin-bottom", "0px"},
		{"**`a`**", "code", "font-weight", "700"},
		{"*`a`*", "code", "font-style", "italic"},
		{"`a`", "code", "font-weight", "400"},
	} {
		t.Run(test.text+" "+test.selector, func(t *testing.T) {
			is.New(t).Equal(evaluate[string](tab, fmt.Sprintf("look(%s, %q, %q)", quoted(test.text), test.selector, test.property)), test.value)
		})
	}
}

// TestTables compares tables, which CommonMark does not have, with goldmark's.
func TestTables(t *testing.T) {
	is := is.New(t)
	renderer := goldmark.New(goldmark.WithExtensions(extension.NewTable(extension.WithTableCellAlignMethod(extension.TableCellAlignAttribute))))
	var examples []sample
	for _, text := range []string{
		"| a | b |\n|---|---|\n| 1 | 2 |\n",
		"a | b\n-|-\n1 | 2\n3 | 4\n",
		"| left | right | middle |\n|:--|--:|:-:|\n| **a** | `b` | c |\n",
		"| a | b |\n|---|---|\n| only one |\n| one | two | three |\n",
		"| a | b |\n|---|---|\n| a \\| bar | 2 |\n\nafter\n",
		"| a | b |\n|---|---|\n| 1 | 2 |\n> quote\n",
		"| a | b |\n|---|\n",
		"> | a |\n> |---|\n> | 1 |\n",
		"- | a |\n  |---|\n  | 1 |\n",
		"| a |\n| - |\n",
		"no table\n---\n",
	} {
		var html bytes.Buffer
		is.NoErr(renderer.Convert([]byte(text), &html))
		examples = append(examples, sample{text, text, html.String()})
	}
	newMarkdownTab(t).compare(examples)
}

// TestWordsOfTables checks that a table on a phone scrolls in its box, so that words and
// numbers stay whole. Only what is longer than a cell can be breaks.
func TestWordsOfTables(t *testing.T) {
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 800))
	tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(echo)}, nil).URL + "/#key=" + key + "&bot=bo")
	tab.see(".beginning")
	tab.click("#message")
	row := "| Liechtenstein | 1234567890 | `MaxConcurrentChats` | extraordinarily |\n"
	for name, rows := range map[string]string{
		"short": row,
		"long":  strings.Repeat(row, 60), // shown in parts
		"wide":  "| " + strings.Repeat("w", 200) + " | 1234567890 | a | b |\n",
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			tab.say(strings.TrimSpace("| Country | Population | Option | Remark |\n|---|--:|---|---|\n" + rows))
			tab.waitForAnswer()
			is.Equal(evaluate[[]string](tab, `[...document.querySelectorAll(".message:last-child :is(th, td)")]
				.filter((cell) => cell.textContent.length < 30)
				.filter((cell) => {
					const words = document.createRange();
					words.selectNodeContents(cell);
					const ends = [...words.getClientRects()].map(({ bottom }) => bottom);
					return Math.max(...ends) - Math.min(...ends) > 10;
				}).map(({ textContent }) => textContent)`), []string{})
			is.True(evaluate[bool](tab, `[...document.querySelectorAll(".message:last-child .table")].every((box) => box.scrollWidth > box.clientWidth)`))
			is.True(evaluate[bool](tab, `[...document.querySelectorAll(".message:last-child td")].every((cell) => cell.scrollWidth <= cell.clientWidth)`))
			tab.checkWidth()
		})
	}
}

// TestPartsOfATable checks that the parts of a long table share the widths of their
// columns, fit into a wide window, and scroll together on a phone.
func TestPartsOfATable(t *testing.T) {
	table := "| field | type | default | meaning |\n|---|---|---|---|\n" + strings.Repeat("| `MaxWaiting` | `time.Duration` | none | what a chat waits for, "+strings.Repeat("and ", 20)+"|\n", 30)
	for _, width := range []int64{1280, 390} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			is := is.New(t)
			tab := newTab(t)
			tab.do(chromedp.EmulateViewport(width, 800))
			tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(echo)}, nil).URL + "/#key=" + key + "&bot=bo")
			tab.see(".beginning")
			tab.click("#message")
			tab.say(strings.TrimSpace(table))
			tab.waitForAnswer()
			parts := `[...document.querySelectorAll(".message:last-child .table")]`
			is.True(evaluate[int](tab, parts+".length") > 1)
			widths := `[...new Set(` + parts + `.map((part) => [...part.querySelector("tr").cells].map(({ offsetWidth }) => offsetWidth).join()))]`
			is.Equal(len(evaluate[[]string](tab, widths)), 1)
			is.Equal(evaluate[bool](tab, parts+`.every((part) => part.scrollWidth === part.clientWidth)`), width == 1280)
			if width == 390 {
				evaluate[any](tab, parts+`.at(-1).scrollLeft = 50; null`)
				tab.wait(parts + `.every(({ scrollLeft }) => scrollLeft === 50)`)
			}
			before := evaluate[[]string](tab, widths) // the same as when all of it is shown in one step
			address := evaluate[string](tab, `document.querySelector(".conversation-item a").hash`)
			tab.newChat()
			tab.do(chromedp.Reload())
			tab.wait(`document.querySelector(".conversation-item a") && !document.querySelector(".user")`)
			evaluate[any](tab, `performance.now = () => 0; location.hash = `+quoted(address)+`; null`)
			tab.wait(parts + `.length > 1`)
			tab.waitForAnswer()
			is.Equal(evaluate[[]string](tab, widths), before)
		})
	}
}

// TestUnfinished checks how text looks while it arrives.
func TestUnfinished(t *testing.T) {
	tests := []struct{ text, html string }{
		{"so **bol", "<p>so <strong>bol</strong></p>"},
		{"so **bold*", "<p>so <strong>bold</strong></p>"},
		{"so **bold and *both", "<p>so <strong>bold and <em>both</em></strong></p>"},
		{"so *", "<p>so</p>"},
		{"2*3 is", "<p>2*3 is</p>"},
		{"use `fmt.Pri", "<p>use <code>fmt.Pri</code></p>"},
		{"use `", "<p>use</p>"},
		{"so ~~gon", "<p>so <del>gon</del></p>"},
		{"so ~~gone~", "<p>so <del>gone</del></p>"},
		{"- [", "<ul><li></li></ul>"},
		{"- [x]", "<ul><li></li></ul>"},
		{"- [x] d", "<ul><li task done>d</li></ul>"},
		{"see [the ma", "<p>see the ma</p>"},
		{"see [the manual](https://exa", "<p>see the manual</p>"},
		{"text\n-", "<p>text</p>"},
		{"text\n- ", "<p>text</p>"},
		{"text\n--", "<p>text</p>"},
		{"text\n\n##", "<p>text</p>"},
		{"text\n\n1", "<p>text</p>"},
		{"text\n\n1.", "<p>text</p>"},
		{"| a | b |", "<table><tr><th>a</th><th>b</th></tr></table>"},
		{"| a | b |\n|--", "<table><tr><th>a</th><th>b</th></tr></table>"},
		{"```go\nfunc", "<pre><code class=\"language-go\">func\n</code></pre>"},
		{"```go\nfunc\n``", "<pre><code class=\"language-go\">func\n</code></pre>"},
		{"> quo", "<blockquote><p>quo</p></blockquote>"},
	}
	tab := newMarkdownTab(t)
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			is.New(t).Equal(evaluate[string](tab, fmt.Sprintf("unfinished(%s)", quoted(test.text))), canonical(test.html))
		})
	}
}

// TestExtensions checks the syntax beyond CommonMark and tables.
func TestExtensions(t *testing.T) {
	tests := []struct{ text, html string }{
		{"a ~~b **c**~~ d", "<p>a <del>b <strong>c</strong></del> d</p>"},
		{"about ~5 and ~6, ~~~ and ~~ ~~", "<p>about ~5 and ~6, ~~~ and ~~ ~~</p>"},
		{"`~~a~~` \\~~b~~", "<p><code>~~a~~</code> ~~b~~</p>"},
		{"- [ ] a\n- [x] b\n- [X]\n- [y] c\n- [ ]d", `<ul><li task>a</li><li task done>b</li><li>[X]</li><li>[y] c</li><li>[ ]d</li></ul>`},
		{"1. [x] **a**\n\n   b", `<ol><li task done><p><strong>a</strong></p><p>b</p></li></ol>`},
		{"[x] a", "<p>[x] a</p>"},
		{"| a<br>b | `<br>` |\n|---|---|\n| c<BR />d<br/>e | <b> |", "<table><tr><th>a<br>b</th><th><code><br></code></th></tr><tr><td>c<br>d<br>e</td><td><b></td></tr></table>"},
		{"a<br>b", "<p>a<br>b</p>"},
	}
	tab := newMarkdownTab(t)
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			is := is.New(t)
			for _, way := range []string{"shown", "arrived"} {
				got := evaluate[string](tab, fmt.Sprintf("written(%s(%s))", way, quoted(test.text)))
				is.Equal(strings.NewReplacer("⟨", "<", "⟩", ">").Replace(got), test.html)
			}
		})
	}
}

// TestEastAsianText checks emphasis beside the punctuation of Chinese, Japanese and
// Korean, and bare links in their sentences.
func TestEastAsianText(t *testing.T) {
	link := func(address, rest string) string {
		return "<a " + address + ">" + strings.TrimSuffix(address, "/") + "</a>" + rest
	}
	tests := []struct{ text, html string }{
		{"**这是“重点”。**后面", "<p><strong>这是“重点”。</strong>后面</p>"},
		{"これは**「重要」**です。", "<p>これは<strong>「重要」</strong>です。</p>"},
		{"**注意：**请看", "<p><strong>注意：</strong>请看</p>"},
		{"**중요(重要)**입니다", "<p><strong>중요(重要)</strong>입니다</p>"},
		{"這是~~“舊的”~~文字", "<p>這是<del>“舊的”</del>文字</p>"},
		{"a**(b)**c", "<p>a**(b)**c</p>"}, // as CommonMark says
		{"详见https://a.example/docs，然后继续。", "<p>详见" + link("https://a.example/docs", "，然后继续。") + "</p>"},
		{"https://a.example。これは文です", "<p>" + link("https://a.example/", "。これは文です") + "</p>"},
		{"（https://a.example/b）を見て", "<p>（" + link("https://a.example/b", "）を見て") + "</p>"},
		{"https://a.exampleを見て", "<p>" + link("https://a.example/", "を見て") + "</p>"},
		{"https://a.example를 보세요", "<p>" + link("https://a.example/", "를 보세요") + "</p>"},
		{"http://localhost:8080/docs、それ", "<p>" + link("http://localhost:8080/docs", "、それ") + "</p>"},
		{"「https://a.example/?q=1」", "<p>「" + link("https://a.example/?q=1", "」") + "</p>"},
	}
	tab := newMarkdownTab(t)
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			is := is.New(t)
			for _, way := range []string{"shown", "arrived"} {
				got := evaluate[string](tab, fmt.Sprintf("written(%s(%s))", way, quoted(test.text)))
				is.Equal(strings.NewReplacer("⟨", "<", "⟩", ">").Replace(got), test.html)
			}
		})
	}
}

// TestFormulas checks what is a formula, and that KaTeX is loaded only for one.
func TestFormulas(t *testing.T) {
	tab := newMarkdownTab(t)
	formulas := func(text string) []string {
		return evaluate[[]string](tab, fmt.Sprintf(`Array.from(shown(%s).querySelectorAll(".formula"), (each) => (each.matches(".display") ? "display " : "") + each.dataset.formula)`, quoted(text)))
	}
	for text, want := range map[string][]string{
		"It costs $5 and $10, or US$6 to US$7.": {},
		"`$x$` \\$y$ $ z $":                     {},
		"a $x_1 * y_2 * z$ b":                   {"$x_1 * y_2 * z$"},
		"so \\(a_1\\) and \\[b\\]":              {"\\(a_1\\)", "display \\[b\\]"},
		"$$\nx\n+ y\n- z\n$$\nafter":            {"display $$\nx\n+ y\n- z\n$$"},
		"- a\n\n  $$\n  x\n  $$":                {"display $$\nx\n$$"},
		"$" + strings.Repeat("x", 2000) + "$":   {},
		"$$\nnever closed":                      {},
	} {
		t.Run(text[:min(len(text), 30)], func(t *testing.T) {
			is.New(t).Equal(formulas(text), want)
		})
	}

	is := is.New(t)
	loaded := `performance.getEntriesByType("resource").filter(({ name }) => name.includes("/lib/formulas") || name.includes("/fonts/")).length`
	answer := "The area is $\\pi r^2$, and\n\n$$\n\\int_0^1 \\sqrt{x}\\,dx = \\frac{2}{3}\n$$\n\nbut not $\\oops{$."
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(echo)}, nil)
	tab = newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("Hello")
	tab.waitForAnswer()
	is.Equal(evaluate[int](tab, loaded), 0)
	tab.say(answer)
	tab.waitForAnswer()
	tab.wait(`document.querySelectorAll(".assistant .formula .katex").length === 2`)
	tab.wait(`document.fonts.check("16px KaTeX_Main")`)
	tab.wait(`scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop < 4`) // the end stays in view
	is.True(strings.Contains(tab.text(".message:last-child .text"), "$\\oops{$"))      // as it was written
	is.True(evaluate[float64](tab, `document.querySelector(".formula.display .katex-html").getBoundingClientRect().height`) > 30)
}

// TestCopiedFormulas copies a selection with formulas, which is as they were written, also
// where only a part of a formula is selected.
func TestCopiedFormulas(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	const first, display, list = "The area is $\\pi r^2$, **and** $5.", "$$\n\\int_0^1 \\frac{x}{2}\n$$", "so \\(a_1\\)"
	tab.say(first + "\n\n" + display + "\n\n- " + list)
	tab.wait(`document.querySelectorAll(".assistant .formula .katex").length === 3`)
	tab.waitForAnswer()
	evaluate[any](tab, `addEventListener("copy", (event) => { window.copied = event.defaultPrevented ? event.clipboardData.getData("text/plain") : "as selected: " + getSelection(); }); null`)
	copied := func(selection string) string {
		evaluate[any](tab, `(() => {
			const text = [...document.querySelectorAll(".assistant .text")].at(-1);
			const [inline, display, last] = text.querySelectorAll(".formula");
			`+selection+`
			window.content = text.innerHTML;
			return null;
		})()`)
		tab.command("copy")
		is.True(evaluate[bool](tab, `[...document.querySelectorAll(".assistant .text")].at(-1).innerHTML === content`)) // nothing has changed
		return evaluate[string](tab, "copied")
	}
	const firstShown = "The area is $\\pi r^2$, and $5."
	is.Equal(copied(`getSelection().selectAllChildren(text);`), firstShown+"\n\n"+display+"\n\n"+list)
	is.Equal(copied(`getSelection().selectAllChildren(text.querySelector("p"));`), firstShown)
	is.Equal(copied(`getSelection().setBaseAndExtent(inline.querySelector(".katex-html .mord").firstChild, 0, inline.nextSibling, 1);`), "$\\pi r^2$,")
	is.Equal(copied(`getSelection().setBaseAndExtent(text.querySelector("p").firstChild, 9, inline.querySelector(".katex-html .mord").firstChild, 1);`), "is $\\pi r^2$")
	is.Equal(copied(`getSelection().setBaseAndExtent(last.querySelector(".katex-html .mord").firstChild, 0, last.querySelector(".katex-html .mord").firstChild, 1);`), "\\(a_1\\)")
	is.Equal(copied(`getSelection().setBaseAndExtent(last.querySelector(".katex-html .mord").firstChild, 1, display.querySelector(".katex-html .mord").firstChild ?? display, 0);`), display+"\n\n"+list)
	is.Equal(copied(`getSelection().selectAllChildren(text.querySelector("strong"));`), "as selected: and")
}

// command gives the browser an editing command, such as "copy", by a key that has it.
func (tab *tab) command(name string) {
	tab.t.Helper()
	_, err := chromedp.Call(tab.ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kb.KeyDown, Commands: []string{name}})
	is.New(tab.t).NoErr(err)
}

// TestStretchedSigns checks the signs of which KaTeX sets the width with a style attribute, which
// the policy of the page ignores.
func TestStretchedSigns(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key)
	tab.say(`$\vec{a} + \overrightarrow{AB}$`)
	tab.waitForAnswer()
	tab.wait(`document.querySelector(".assistant .formula svg") !== null`)
	is.True(evaluate[bool](tab, `[...document.querySelectorAll(".assistant .formula svg")].every((svg) => svg.checkVisibility() && svg.getBoundingClientRect().width > 2)`))
	is.Equal(evaluate[string](tab, `document.querySelector(".assistant .formula svg[data-width]").style.width`), "0.471em")
}

// TestLimitsHaveRoom checks that nothing of a formula is above or below its box, which cuts it.
func TestLimitsHaveRoom(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(390, 800))
	tab.open(startService(t, botapi.Options{}, nil).URL + "/#key=" + key + "&bot=ada")
	tab.see("#message")
	tab.do(chromedp.Focus(chromedp.ID("message")))
	tab.say("$$\\int_{-\\infty}^{\\infty} e^{-x^2}\\,dx = \\sqrt{\\pi}$$")
	tab.waitForAnswer()
	tab.wait(`document.querySelector(".assistant .formula .katex-html") !== null`)
	is.True(evaluate[bool](tab, `(() => {
		const box = document.querySelector(".assistant .formula").getBoundingClientRect();
		return [...document.querySelectorAll(".assistant .formula .mord")].every((part) => (({ top, bottom }) => top >= box.top && bottom <= box.bottom)(part.getBoundingClientRect()));
	})()`))
}

const wideFormula = "$$\n\\sum_{i=1}^{n} a_i = a_1 + a_2 + a_3 + a_4 + a_5 + a_6 + a_7 + a_8 + a_9 + a_{10} + a_{11} + a_{12}\n$$"

// TestWideFormula checks that a formula that must scroll can get the focus and has a name,
// and that nothing of it is cut off.
func TestWideFormula(t *testing.T) {
	is := is.New(t)
	tab := newTab(t)
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(echo)}, nil).URL + "/#key=" + key)
	tab.say(wideFormula)
	tab.wait(`document.querySelector(".assistant .formula.display .katex") !== null`)
	is.True(!evaluate[bool](tab, `document.querySelector(".assistant .formula").hasAttribute("tabindex")`))
	const fits = `(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight)(document.querySelector(".assistant .formula"))`
	is.True(evaluate[bool](tab, fits))
	tab.do(chromedp.EmulateViewport(390, 800))
	tab.wait(`document.querySelector(".assistant .formula").matches("[tabindex='0'][role=group][aria-label=Formula]")`)
	is.True(strings.Contains(evaluate[string](tab, `getComputedStyle(document.querySelector(".assistant .formula")).backgroundImage`), "gradient")) // a shadow at its edge
	is.True(evaluate[bool](tab, fits))
	tab.do(chromedp.EmulateViewport(1280, 800))
	tab.wait(`!document.querySelector(".assistant .formula").hasAttribute("tabindex")`)
}

// TestFootnotes checks that a footnote that is explained later becomes a button, which
// leads to its explanation.
func TestFootnotes(t *testing.T) {
	is := is.New(t)
	tab := newMarkdownTab(t)
	notes := func(text string) string {
		return evaluate[string](tab, fmt.Sprintf(`Array.from(shown(%s).querySelectorAll(".note, .footnote"), (each) => each.innerHTML).join(" ")`, quoted(text)))
	}
	is.Equal(notes("a [^1] and [^b]"), "[^1] [^b]")
	is.Equal(notes("a[^1]\n\n[^1]: b"), `<button type="button" aria-label="Footnote 1">1</button> <span class="label">1</span><p>b</p>`)
	is.Equal(notes("`a[^1]` \\[^1]"), "")
	long := "a[^1]\n\n" + strings.Repeat("word\n\n", 2000) + "[^1]: b"
	is.Equal(evaluate[[]int](tab, fmt.Sprintf(`counts(%s, ".note > button", ".footnote")`, quoted(long))), []int{1, 1})
	many := evaluate[[]int](tab, fmt.Sprintf(`counts(%s, ".note > button", ".note:not(:has(button))")`, quoted(strings.Repeat("a[^1] ", 20_000)+"\n\n[^1]: b")))
	is.True(many[0] >= 500 && many[0] < 2000) // each costs time
	is.Equal(many[0]+many[1], 20_000)

	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(echo)}, nil)
	tab = newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.say("One[^1] two.\n\n" + strings.Repeat("word\n\n", 50) + "[^1]: Because.")
	tab.waitForAnswer()
	address := evaluate[string](tab, "location.href")
	tab.click(".note > button")
	is.Equal(evaluate[string](tab, "document.activeElement.className"), "footnote")
	is.Equal(evaluate[string](tab, "location.href"), address)
	tab.click("#message")
	tab.say("One[^a-whole-word] two.\n\n[^a-whole-word]: Because.\n\n    So.")
	tab.waitForAnswer()
	is.Equal(evaluate[[]bool](tab, `(([label, ...texts]) => texts.map((text) => text.getBoundingClientRect().left > label.getBoundingClientRect().right))
		(document.querySelector(".message:last-child .footnote").children)`), []bool{true, true}) // the label is beside its text
}

func canonical(html string) string {
	return strings.NewReplacer("<", "⟨", ">", "⟩", ` class="language-go"`, " language-go").Replace(html)
}

// TestHostileMarkdown checks that hostile texts produce only text, known elements
// and links to the web. TestSteps checks that of long ones.
func TestHostileMarkdown(t *testing.T) {
	tests := map[string]string{
		"script":               "<script>document.title = 'harmed'</script>",
		"onerror":              `<img src=x onerror="document.title = 'harmed'">`,
		"svg":                  `<svg/onload=document.title='harmed'>`,
		"javascript":           "[a](javascript:document.title='harmed')",
		"JaVaScRiPt":           "[a](JaVaScRiPt:document.title='harmed')",
		"javascript in angles": "[a](<javascript:document.title='harmed'>) <javascript:alert(1)>",
		"escaped javascript":   "[a](javascript\\:alert(1)) [a](java\\script:alert(1))",
		"entities":             "[a](javascript&colon;alert(1)) [a](&#106;avascript:alert(1)) [a](java&#x0a;script:alert(1)) &lt;script&gt;",
		"control characters":   "[a](\x01javascript:alert(1)) [a](java\tscript:alert(1)) \x00",
		"data":                 "[a](data:text/html,<script>alert(1)</script>) ![a](data:image/svg+xml,x)",
		"blob and file":        "[a](blob:x) [a](file:///etc/passwd) [a](vbscript:x) [a](//elsewhere.example) [a](/v1/bots)",
		"title":                `[a](https://a.example "\" onmouseover=\"alert(1)")`,
		"language":             "```\"><script>alert(1)</script>\nx\n```",
		"picture":              "![a](https://elsewhere.example/tracker.png)",
		"address with a quote": `https://a.example/"onmouseover="alert(1)`,
	}
	tab := newMarkdownTab(t)
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(evaluate[[]string](tab, fmt.Sprintf("harm(%s)", quoted(text))), []string{})
			is.Equal(evaluate[string](tab, "document.title"), "Bots")
		})
	}
}

// longTexts returns long texts of 48 kinds, by name: what bots write, and what could
// overload a page.
func longTexts() map[string]string {
	many := func(text string) string { return strings.Repeat(text, 10_000) }
	return map[string]string{
		"paragraph":           many("one *it* and `code` "),
		"paragraphs":          many("some **bold** words.\n\n"),
		"quote":               many("> one *it* and `code`\n"),
		"list":                many("- one *it* and `code`\n"),
		"table":               "| a | b |\n|---|---|\n" + many("| one *it* | `code` |\n"),
		"code":                "```go\n" + many("func f(i int) string { return \"it\" } // code\n"),
		"right to left":       many("שלום *עולם* `code` "),
		"one line":            many("abcdefghij"),
		"one line of code":    "```\n" + many("abcdefghij"),
		"one line of a list":  "- " + many("שלום *עולם* "),
		"many blocks of code": strings.Repeat("```go\nx := 1 // one\n```\n\n", 5_000),
		"many tables":         strings.Repeat("| a | b |\n|---|---|\n| *c* | d |\n\n", 3_000),
		"many lists":          many("1. a\n   - b\n\nc\n\n"),
		"links":               many("[a *link*](https://a.example/b \"title\") "),
		"nested brackets":     many("[") + "a" + many("](https://a.example)"),
		"nested pictures":     many("![") + "a" + many("](https://a.example)"),
		"pictures and spaces": many("![ ") + "a" + many("](https://a.example) "),
		"nested quotes":       many(">") + "a",
		"nested lists":        many("- ") + "a",
		"numbered lists":      many("1. ") + "a",
		"deeper lines": func() string {
			var text strings.Builder
			for i := range 500 {
				text.WriteString(strings.Repeat(" ", 2*i) + "- a\n")
			}
			return text.String()
		}(),
		"stars":           many("*") + "a" + many("*"),
		"stars inside":    many("*a **a "),
		"underscores":     many("_a __a "),
		"ticks":           many("`a``a "),
		"targets":         many("[a]("),
		"angles":          many("[a](<"),
		"titles":          many(`[a](b "`),
		"addresses":       many("https://a.example/("),
		"less than":       many("<https://"),
		"ampersands":      many("&amp"),
		"backslashes":     many(`\`),
		"bars":            many("|") + "\n" + many("|-") + "\n" + many("|\n"),
		"wide table":      strings.Repeat("|a", 60) + "|\n" + strings.Repeat("|-", 60) + "|\n" + strings.Repeat("|\n", 1000),
		"blank lines":     many("\n") + "a",
		"spaces":          many("  ") + "a" + many("  ") + "\n" + many("\t"),
		"carriage":        many("a\r"),
		"hashes":          "# " + many("#") + "a",
		"rule":            many("- ") + "\n" + many("* ") + "\n" + many("="),
		"fences":          many("```\n"),
		"halves":          many("😀"),
		"both directions": "\u202e\u2066" + many("א"),
		"formulas":        many("$x^2$ "),
		"footnotes":       many("a[^1] ") + "\n\n[^1]: b\n" + many("    c\n\n"),
		"Chinese":         many("这是**“一”**个句子。"),
		"code in a list":  "1. a\n\n   ```go\n" + many("   x := 1\n"),
		"list in a quote": many("> - a *b*\n"),
		"list in a list":  "- a\n" + many("  - *b*\n"),
	}
}

// ---- The specification ----

type example struct {
	Example                 int
	Markdown, HTML, Section string
}

type sample struct {
	Name, Markdown, HTML string
}

// specification reads the examples of CommonMark's specification that come with
// goldmark's module. The page has no relative links, so they become absolute.
func specification(t *testing.T) []example {
	t.Helper()
	is := is.New(t)
	directory, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/yuin/goldmark").Output()
	is.NoErr(err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(directory)), "_test", "spec.json"))
	is.NoErr(err)
	var examples []example
	is.NoErr(json.Unmarshal(text, &examples))
	for i := range examples {
		examples[i].Markdown = sameServer.ReplaceAllString(examples[i].Markdown, "${1}https://a.example/${2}")
		examples[i].HTML = sameServer.ReplaceAllString(examples[i].HTML, "${1}https://a.example/${2}")
	}
	return examples
}

var sameServer = regexp.MustCompile(`(\]\(\s*<?|\]\(&lt;|href=")/?(ur[il])\b`)

// outside says why the page does not support an example, or returns "".
func (e example) outside() string {
	switch {
	case e.Section == "HTML blocks" || e.Section == "Raw HTML" || otherTag.MatchString(e.HTML):
		return "HTML stays text"
	case e.Section == "Images" || strings.Contains(e.HTML, "<img"):
		return "pictures become links"
	case e.Section == "Link reference definitions" || strings.Contains(e.Markdown, "]: "):
		return "links contain their addresses"
	case otherAddress.MatchString(e.HTML):
		return "links lead to the web"
	}
	return exceptions[e.Example]
}

var (
	otherTag     = regexp.MustCompile(`<(?:[^/!a-z]|!|/?(?:b|i|del|div|span|table|td|tr|bar|responsive|m|foo|b2|bab|c2c|xyz)\b|a(?: href="[^"]*")?(?: [^ht]|>)|a h[^=]*[^f]=)`)
	otherAddress = regexp.MustCompile(`href="(?:[^h]|h[^t]|"|http:[^/])`)
)

// exceptions are single examples that the page does not support.
var exceptions = map[int]string{
	25:  manyNames,
	34:  manyNames,
	41:  bareAddress,
	508: bareAddress,
	513: bareAddress,
	602: bareAddress,
	608: bareAddress,
	611: bareAddress,
}

const (
	manyNames   = "of the 2,125 names of characters in HTML, the page knows the common ones"
	bareAddress = "an address is a link without brackets, too"
)

// ---- In the page ----

// newMarkdownTab opens a page that can show Markdown.
func newMarkdownTab(t *testing.T) *tab {
	t.Helper()
	q := startQuickstart(t)
	tab := newTab(t)
	tab.open(q.address)
	evaluate[any](tab, showing)
	return tab
}

func (tab *tab) compare(samples []sample) {
	tab.t.Helper()
	text, err := json.Marshal(samples)
	is.New(tab.t).NoErr(err)
	for _, difference := range evaluate[[]string](tab, fmt.Sprintf("compare(%s)", text)) {
		tab.t.Error(difference)
	}
}

// foreign adds a function to the page that tells what no text may produce: elements and
// attributes that are not those of the page, links elsewhere than to the web, and very
// deep nesting.
const foreign = `
	window.foreign = (...elements) => {
		const known = "span.piece, .piece span, span.note, .note > button, span.formula, div.footnote, .footnote > .label, del, div.part, thead, tbody, p, h3, h4, h5, h6, hr, blockquote, ul, ol, li, a, em, strong, code, br, table, tr, th, td, pre, figure, figcaption, div.table, colgroup, col[width], figcaption > span, figcaption > button";
		const knownAttributes = new Set(["dir", "class", "href", "title", "target", "rel", "start", "tabindex", "role", "aria-label", "aria-pressed", "scope", "width", "type", "data-language", "data-note", "data-formula"]);
		const found = [];
		for (const each of elements.flatMap((element) => [...element.querySelectorAll(":not(.formula *)")])) { // KaTeX makes what is in a formula
			if (!each.matches(known)) found.push("element " + each.outerHTML.slice(0, 100));
			for (const { name } of each.attributes) if (!knownAttributes.has(name)) found.push("attribute " + name);
			if (each.localName === "a" && !/^https?:$/.test(each.protocol)) found.push("link " + each.href);
			if (each.localName === "a" && (each.target !== "_blank" || !each.relList.contains("noopener"))) found.push("link that keeps its opener");
			let depth = 0;
			for (let parent = each; parent; parent = parent.parentElement) depth++;
			if (depth > 80) { found.push("depth " + depth); break; }
		}
		return found;
	};
`

// showing adds functions to the page. They compare elements as text, with another
// kind of brackets, and without the elements and levels that the page adds: buttons,
// boxes that scroll, and deeper headings.
const showing = foreign + `(async () => {
	const { MarkdownText, ready } = await import("/page/rendering.js");
	await ready;
	const policy = trustedTypes.createPolicy("expected", { createHTML: (html) => html });

	const blocks = "p|h[1-6]|hr|blockquote|pre|ul|ol|li|table|tr|td|th";
	const written = (node) => text(node).replace(new RegExp("\\s*(⟨/?(?:" + blocks + ")(?: [^⟩]*)?⟩)\\s*", "g"), "$1").trim();
	function text(node, inCode = false) {
		if (node.nodeType === Node.TEXT_NODE) return inCode ? node.data : node.data.replace(/\s+/g, " ");
		const inside = (inCode) => Array.from(node.childNodes, (child) => text(child, inCode)).join("");
		if (node.nodeType !== Node.ELEMENT_NODE) return inside();
		if (node.matches("div, thead, tbody, span, .continued")) return inside(inCode);
		if (node.matches("figure")) return text(node.querySelector("pre"));
		if (node.matches("li > p") && isTight(node.parentElement.parentElement)) return inside();
		const name = node.className.match(/^h[1-6]$/)?.[0] ?? node.localName;
		const language = node.dataset.language ?? node.className.match(/^language-(.*)/)?.[1];
		const details = [
			node.localName === "a" && new URL(node.getAttribute("href")).href,
			node.title,
			node.localName === "li" && node.className,
			node.start > 1 || node.start === 0 ? "start=" + node.start : "",
			language && "language-" + language,
			node.getAttribute("align") ?? node.className.match(/^(left|right|center)$/)?.[0],
		].filter(Boolean).map((each) => " " + each).join("");
		if (name === "br") return "⟨br⟩";
		if (name === "hr") return "⟨hr⟩";
		return "⟨" + name + details + "⟩" + inside(inCode || name === "pre") + "⟨/" + name + "⟩";
	}
	const isTight = (list) => list.classList.contains("tight");

	// all shows all of a text, in as many steps as that takes.
	function all(place, markdown, how) {
		while (place.show(markdown, how) < markdown.length);
	}

	function shown(markdown) {
		const element = document.createElement("div");
		all(new MarkdownText(element), markdown);
		return element;
	}

	function arrived(markdown, step = 1) {
		const element = document.createElement("div");
		const place = new MarkdownText(element);
		for (let i = 1; i <= markdown.length; i += step) all(place, markdown.slice(0, i), { arriving: true });
		all(place, markdown);
		return element;
	}

	window.text = (element) => element.textContent.replace(/\s+/g, "");
	window.written = written;
	window.shown = shown;
	window.arrived = arrived;
	window.coloured = (element) => Array.from(element.querySelectorAll(".code .piece span[class]"), (each) => each.className[0] + ":" + each.textContent).join(" ");
	window.selected = (markdown, selector) => {
		const element = shown(markdown);
		element.className = "text";
		document.body.append(element);
		getSelection().selectAllChildren(element.querySelector(selector));
		const text = getSelection().toString();
		element.remove();
		return text;
	};
	window.counts = (markdown, ...selectors) => selectors.map((selector) => shown(markdown).querySelectorAll(selector).length);

	// What an element shows, wherever the text was cut.
	const contents = (element) => [
		element.textContent.replace(/\s+/g, ""),
		..."p,em,strong,del,code,a,br,ol,ul,li,tr,td,th,blockquote,figure,h3,h4,.note,.footnote,.formula".split(",")
			.map((name) => name + " " + element.querySelectorAll(name + ":not(.continued)").length),
	].join("\n");

	window.growing = (texts, step) => texts.filter((text) => {
		const growing = document.createElement("div");
		const place = new MarkdownText(growing);
		return Array.from({ length: Math.ceil(text.length / step) }, (_, i) => text.slice(0, (i + 1) * step)).some((beginning) => [true, false].some((arriving) => {
			const atOnce = document.createElement("div");
			all(new MarkdownText(atOnce), beginning, { arriving });
			all(place, beginning, { arriving });
			if (growing.isEqualNode(atOnce) || (growing.textContent + atOnce.textContent === "") || (text.length > 1000 && contents(growing) === contents(atOnce))) return false;
			(window.differences ??= []).push([arriving, beginning.slice(-200), growing.innerHTML.slice(-500), atOnce.innerHTML.slice(-500), contents(growing).slice(-600), contents(atOnce).slice(-600)].join("\n"));
			return true;
		}));
	});

	window.keepsTheFirst = (markdown) => {
		const element = document.createElement("div");
		const place = new MarkdownText(element);
		place.show(markdown, { arriving: true });
		const first = element.querySelector("li, blockquote > p, td, .part > p");
		place.show(markdown + "d", { arriving: true });
		return first === element.querySelector("li, blockquote > p, td, .part > p");
	};

	window.directions = (...texts) => {
		const element = document.createElement("div");
		document.body.append(element);
		const place = new MarkdownText(element);
		const now = () => Array.from(element.firstElementChild.children, ({ dir }) => dir).join(" ");
		const seen = texts.map((text) => { place.show(text, { arriving: true }); return now(); });
		place.show(texts.at(-1));
		element.remove();
		return [...seen, now()];
	};

	window.look = (markdown, selector, property) => {
		const element = document.createElement("div");
		element.className = "text";
		const conversation = document.createElement("ol"); // as on the page
		conversation.append(element);
		document.body.append(conversation);
		new MarkdownText(element).show(markdown);
		const value = getComputedStyle(element.querySelector(selector)).getPropertyValue(property);
		conversation.remove();
		return value;
	};

	window.unfinished = (markdown) => {
		const element = document.createElement("div");
		new MarkdownText(element).show(markdown, { arriving: true });
		return written(element);
	};

	window.compare = (samples) => samples.flatMap(({ Name, Markdown, HTML }) => {
		const template = document.createElement("template");
		template.innerHTML = policy.createHTML(HTML);
		const want = written(template.content).replaceAll("⟨br⟩ ", "⟨br⟩");
		const differences = [];
		for (const [way, show] of Object.entries({ shown, arrived })) {
			const got = written(show(Markdown));
			if (got !== want) differences.push(Name + " " + way + ": " + JSON.stringify(Markdown) + "\n got " + got + "\nwant " + want);
		}
		return differences;
	});

	window.harm = (markdown) => {
		const half = document.createElement("div");
		all(new MarkdownText(half), markdown, { arriving: true });
		const element = shown(markdown);
		document.body.append(half, element); // a script would run here
		const found = foreign(half, element);
		half.getBoundingClientRect();
		half.remove();
		element.remove();
		return found;
	};
})()`

// TestThoughtIsNotSent checks that a model is not told again what it has thought, and that a
// conversation that is saved as Markdown does not have it.
func TestThoughtIsNotSent(t *testing.T) {
	is := is.New(t)
	var sent []botapi.ChatMessage
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		sent = req.Messages
		return echo(ctx, req)
	})}, nil).URL + "/#key=" + key)
	for _, text := range []string{"<think>Two and two</think>Four.", "<think>Nothing to say</think>", "Well?"} {
		tab.say(text)
		tab.waitForAnswer()
	}
	is.Equal(sent[1], assistant("Four."))
	is.Equal(sent[3], assistant("<think>Nothing to say</think>")) // no message is empty
	is.True(strings.Contains(tab.saved("#save-markdown"), "## Ada\n\nFour.\n"))
}

// TestThought shows what a reasoning model thinks folded, in pieces of any size, and does
// not copy it. Without its end, nothing of it is lost.
func TestThought(t *testing.T) {
	is := is.New(t)
	gate := make(chan struct{})
	h := startService(t, botapi.Options{Engine: botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			text, pause, _ := strings.Cut(req.Messages[len(req.Messages)-1].Content, "WAIT")
			for piece := range strings.SplitSeq(text, "") {
				if !yield(piece, nil) {
					return
				}
			}
			if pause != "" {
				<-gate
				_ = yield(pause, nil) && yield("", errMood)
			}
		}
	})}, nil)
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key)
	tab.see("#message")
	const last = `document.querySelector(".message:last-child .text")`
	const shown = `[` + last + `.querySelector("details > div").innerHTML, [...` + last + `.querySelectorAll(":scope > .part")].map((part) => part.innerHTML).join("")]`
	const p = `<p dir="ltr">`
	tests := []struct{ text, thought, answer, copied string }{
		{"<think>\nTwo **and** two\n</think>\n\nFour.", p + "Two <strong>and</strong> two</p>", p + "Four.</p>", "Four."},
		{"<think>A <b>tag</b> <script>alert(1)</script></think>Four.</think>", p + "A &lt;b&gt;tag&lt;/b&gt; &lt;script&gt;alert(1)&lt;/script&gt;</p>", p + "Four.&lt;/think&gt;</p>", "Four.</think>"},
		{"<think></think>Four.", "", p + "Four.</p>", "Four."},
		{"<think>Two and </thi", p + "Two and &lt;/thi</p>", "", "<think>Two and </thi"},
	}
	for i, test := range tests {
		tab.do(chromedp.Focus(chromedp.ID("message")))
		tab.write(test.text)
		tab.enter()
		tab.wait(fmt.Sprintf(`document.querySelectorAll(".user").length === %d`, i+1))
		tab.waitForAnswer()
		got := evaluate[[]string](tab, shown)
		is.Equal(strings.ReplaceAll(strings.ReplaceAll(got[0], `<div class="part">`, ""), "</div>", ""), test.thought)
		is.Equal(got[1], test.answer)
		is.Equal(tab.copied(".message:last-child > .actions .copy"), test.copied)
		is.Equal(tab.text(".message:last-child summary"), "Thought")
		is.True(!evaluate[bool](tab, last+`.querySelector("details").open`))
	}
	is.Equal(evaluate[int](tab, `document.querySelectorAll(".assistant script, .assistant b").length`), 0)

	tab.do(chromedp.Focus(chromedp.ID("message")))
	tab.write("<think>Two and </WAITthi")
	tab.enter()
	tab.wait(`document.querySelector(".arriving details")?.textContent.trim() === "ThoughtTwo and"`) // what may become its end waits
	tab.click(".arriving summary")
	tab.see(".arriving details p")
	close(gate)
	tab.see(".failure")
	tab.waitForAnswer()
	is.Equal(tab.text(".message:last-child details p"), "Two and </thi") // still open
}
