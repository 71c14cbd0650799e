package browser

import (
	"fmt"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/matryer/is"
)

// TestHighlight checks what is coloured in each language: comments (c), strings
// (s), numbers (n) and keywords (k).
func TestHighlight(t *testing.T) {
	tests := []struct{ language, code, want string }{ // what must be coloured; a library finds more
		{"go", "func f(x int) string { // it's\n\treturn \"a\\\"b\" + `raw\n\\` + 'c' + 0x1F\n}", "k:func c:// it's k:return s:\"a\\\"b\" s:`raw s:\\` s:'c' n:0x1F"},
		{"Go", "/* a\nb */ x1 := 1.5e3 // 2", "c:/* a c:b */ n:1.5e3 c:// 2"},
		{"py", "def f(): # no\n  \"\"\"doc\n  string\"\"\"\n  return 'it' if x else None", "k:def c:# no s:\"\"\"doc s:  string\"\"\" k:return s:'it' k:if k:else k:None"},
		{"javascript", "const a = `x ${b}\n\\`` + 'c' // d", "k:const s:`x  s:\\`` s:'c' c:// d"},
		{"ts", "interface A { b: number } /** c */", "k:interface k:number c:/** c */"},
		{"json", `{"a": [1, -2.5e10, true, null]}`, `n:1 n:-2.5e10 k:true k:null`},
		{"sh", "curl -d '{\n \"a\": 1}' \"$URL#x\" # why\nif [ $# -gt 1 ]; then exit 1; fi", "s:'{ s: \"a\": 1}' c:# why k:if k:then k:exit k:fi"},
		{"sql", "SELECT 'it''s' FROM t -- all\nwhere a = 1", "k:SELECT s:'it''s' k:FROM c:-- all k:where n:1"},
		{"c", "#include <a.h>\nint main(void) { return 'a'; }", "k:int k:void k:return s:'a'"},
		{"rust", "fn f<'a>(x: &'a str) -> u8 { b'x' }", "k:fn k:str k:u8 s:b'x'"},
		{"java", "public class A { String s = \"a\"; }", "k:public k:class s:\"a\""},
		{"cpp", "auto x = nullptr; // y", "k:auto k:nullptr c:// y"},
		{"yaml", "a: true # b\nc: \"e\"", "k:true c:# b s:\"e\""},
		{"html", "<p class=\"a\">b</p>\n<!-- c\nd -->", "k:p s:\"a\" c:<!-- c c:d -->"},
		{"brainfuck", "func \"a\" 1 // b", ""},
		{"", "func", ""},
		{"constructor", "func", ""},
		{"__proto__", "func", ""},
		{"go", "\"" + strings.Repeat("a", 3000) + "\"\nfunc", ""}, // data
		{"go", "<script>alert(\"a\")</script>", "s:\"a\""},
		{"go", "/*\n" + strings.Repeat("a\n", 60) + "*/ func", strings.Repeat("c:a ", 60) + "c:*/ k:func"}, // a comment across pieces
	}
	tab := newMarkdownTab(t)
	for _, test := range tests {
		t.Run(test.language+" "+test.code[:min(len(test.code), 20)], func(t *testing.T) {
			is := is.New(t)
			text := quoted("```" + test.language + "\n" + test.code + "\n```\n")
			got := evaluate[string](tab, fmt.Sprintf("coloured(shown(%s))", text))
			is.Equal(got == "", test.want == "")
			for each := range strings.SplitAfterSeq(test.want, " ") {
				is.True(strings.Contains(got+" ", each)) // in any order
			}
			is.Equal(evaluate[string](tab, fmt.Sprintf("shown(%s).querySelector('code').textContent", text)), test.code+"\n") // all text is there
			if len(test.code) < 1000 {
				is.True(evaluate[bool](tab, fmt.Sprintf("arrived(%s).innerHTML === shown(%s).innerHTML", text, text)))
			}
		})
	}
}

// TestSelectedCode checks that selected code is copied unchanged, although it is
// shown in pieces.
func TestSelectedCode(t *testing.T) {
	is := is.New(t)
	code := strings.Repeat("x := 1\n\n", 150)
	tab := newMarkdownTab(t)
	selected := evaluate[string](tab, fmt.Sprintf(`selected(%s, "code")`, quoted("```go\n"+code+"```")))
	is.Equal(strings.TrimRight(selected, "\n"), strings.TrimRight(code, "\n"))
}

// TestColours checks that the colours of code differ and have enough contrast, in
// light and dark.
func TestColours(t *testing.T) {
	is := is.New(t)
	const code = "```go\n// Sum adds.\nfunc Sum() string { return \"a\" + 1 }\n```"
	tab := newTab(t)
	tab.open(startService(t, botapi.Options{Engine: begins(code, botapi.ChatEngineFunc(echo))}, nil).URL + "/#key=" + key)
	tab.say("Hello")
	tab.waitForAnswer()
	seen := map[string]bool{}
	for _, scheme := range []string{"light", "dark"} {
		tab.prefer("prefers-color-scheme", scheme)
		for _, kind := range []string{"comment", "string", "number", "keyword"} {
			seen[evaluate[string](tab, fmt.Sprintf(`getComputedStyle(document.querySelector(".code .%s")).color`, kind))] = true
		}
		is.Equal(evaluate[[]string](tab, lowContrast), []string{})
	}
	is.Equal(len(seen), 8)
}
