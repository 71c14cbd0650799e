package guide

import (
	"regexp"
	"strings"
)

// A section is a heading of a document with the text up to the next heading.
type section struct {
	document string   // its name
	level    int      // of the heading
	heading  string   // without Markdown marks
	blocks   []string // paragraphs, lists, tables and code, in Markdown

	inHeading []string // terms
	terms     map[string]int
	length    int // in terms
}

// split splits a document into sections. Inside of a code block, a line is not
// a heading, and a blank line does not end a block.
func (l *library) split(document, text string) (sections []section) {
	var block strings.Builder
	endBlock := func() {
		if text := l.relinked(document, unwrapped(strings.TrimRight(block.String(), "\n"))); text != "" && !strings.HasPrefix(text, "<") && len(sections) > 0 {
			last := &sections[len(sections)-1]
			last.blocks = append(last.blocks, text)
		}
		block.Reset()
	}
	inCode := false
	for line := range strings.Lines(text) {
		heading := headingLine.FindStringSubmatch(line)
		switch {
		case heading != nil && !inCode:
			endBlock()
			sections = append(sections, section{document: document, level: len(heading[1]), heading: unlinked(l.relinked(document, heading[2]))})
			continue
		case strings.TrimSpace(line) == "" && !inCode:
			endBlock()
			continue
		case strings.HasPrefix(line, "```"):
			inCode = !inCode
		}
		block.WriteString(line)
	}
	endBlock()
	return sections
}

// unwrapped joins the lines of a paragraph or list item, since a chat shows
// every line break.
func unwrapped(block string) string {
	if strings.HasPrefix(block, "```") || strings.HasPrefix(block, "|") {
		return block
	}
	return wrap.ReplaceAllString(block, " $1")
}

var (
	wrap        = regexp.MustCompile(`\n *([^-\s]|-\S)`) // not before a list item
	headingLine = regexp.MustCompile(`^(#+) (.*)`)
)
