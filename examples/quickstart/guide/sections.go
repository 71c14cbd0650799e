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
	links    int      // length of its links, and of rows that tell where one leads

	inHeading []string // terms
	above     []string // terms of the headings above it
	terms     map[string]float64
	defined   map[string]float64 // weights of terms that a row of a table begins with
	length    float64            // in terms
}

// split splits a document into sections. Inside of a code block, a line is not
// a heading, and a blank line does not end a block.
func (l *library) split(document, text string) (sections []section) {
	var block strings.Builder
	endBlock := func() {
		if text := l.relinked(document, unwrapped(strings.TrimRight(block.String(), "\n"))); text != "" && !strings.HasPrefix(text, "<") && len(sections) > 0 {
			last := &sections[len(sections)-1]
			last.blocks = append(last.blocks, text)
			last.links += lengthOfLinks(block.String())
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

func lengthOfLinks(block string) (length int) {
	for line := range strings.Lines(block) {
		if strings.HasPrefix(line, "| [") {
			length += len(link.ReplaceAllString(line, "$1"))
			continue
		}
		for _, match := range link.FindAllStringSubmatch(line, -1) {
			length += len(match[1])
		}
	}
	return length
}

// unwrapped joins the lines of a paragraph or list item, since a chat shows
// every line break.
func unwrapped(block string) string {
	if strings.HasPrefix(block, "```") || strings.HasPrefix(block, indentedCode) || strings.HasPrefix(block, "|") {
		return block
	}
	return wrap.ReplaceAllString(block, " $1")
}

// indentedCode begins the lines of code that has no fences.
const indentedCode = "    "

var (
	wrap        = regexp.MustCompile(`\n *([^-\s]|-\S)`) // not before a list item
	headingLine = regexp.MustCompile(`^(#+) (.*)`)
)
