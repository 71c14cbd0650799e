package guide

import (
	"regexp"
	"slices"
	"strings"
)

// A section is a heading of a document with the text up to the next heading.
type section struct {
	document string   // its path in the repository
	heading  string   // without Markdown marks
	blocks   []string // paragraphs, lists, tables and code, in Markdown
}

// sections are the sections of all documents, those of the README first.
var sections = readAll()

func readAll() []section {
	var all []section
	for _, document := range originals() {
		all = append(all, split(document.path, document.text)...)
	}
	return slices.DeleteFunc(all, func(s section) bool { return slices.Contains(tablesOfContents, s.heading) })
}

// tablesOfContents are sections that only link to others.
var tablesOfContents = []string{"Read on", "The wire", "Operating", "Rough edges"}

// split splits a document into sections. Inside of a code block, a line is not
// a heading, and a blank line does not end a block.
func split(document, text string) (sections []section) {
	var block strings.Builder
	endBlock := func() {
		if text := relinked(document, unwrapped(strings.TrimRight(block.String(), "\n"))); text != "" && !strings.HasPrefix(text, "<") {
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
			if len(sections) > 0 {
				endBlock()
			}
			sections = append(sections, section{document: document, heading: unlinked(relinked(document, heading[1]))})
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
	headingLine = regexp.MustCompile(`^#+ (.*)`)
)
