package guide

import (
	_ "embed"
	"path"
	"regexp"
	"slices"
	"strings"

	"example.com/botapi/docs"
)

// project.md and quickstart.md are copies of the READMEs of the project and of
// the quickstart, since a package can embed only files below its own folder.
// TestCopiesAreCurrent compares them with the originals.
//
//go:generate cp ../../../README.md project.md
//go:embed project.md
var project string

//go:generate cp ../README.md quickstart.md
//go:embed quickstart.md
var quickstart string

// A section is a heading of a document with the text up to the next heading.
type section struct {
	document string   // its path in the repository
	heading  string   // without Markdown marks
	blocks   []string // paragraphs, lists, tables and code, in Markdown
}

// sections are the sections of all documents, those of the README first.
var sections = readAll()

func readAll() []section {
	all := split("README.md", project)
	for _, name := range []string{"wire.md", "operating.md", "performance.md"} {
		text, _ := docs.Files.ReadFile(name) // embedded: cannot fail
		all = append(all, split("docs/"+name, string(text))...)
	}
	all = append(all, split("examples/quickstart/README.md", quickstart)...)
	return slices.DeleteFunc(all, func(s section) bool { return slices.Contains(tablesOfContents, s.heading) })
}

// tablesOfContents are sections that only link to others.
var tablesOfContents = []string{"Read on", "The wire", "Operating"}

// split splits a document into sections. Inside of a code block, a line is not
// a heading, and a blank line does not end a block.
func split(document, text string) (sections []section) {
	var block strings.Builder
	endBlock := func() {
		if text := unlinked(document, unwrapped(strings.TrimRight(block.String(), "\n"))); text != "" && !strings.HasPrefix(text, "<") {
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
			sections = append(sections, section{document: document, heading: unlinked(document, heading[1])})
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
	link        = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)
)

// unlinked replaces links to files with the files' names, since a browser cannot
// follow links into the repository. Links to the web stay.
func unlinked(document, text string) string {
	return link.ReplaceAllStringFunc(text, func(whole string) string {
		parts := link.FindStringSubmatch(whole)
		label, target := parts[1], parts[2]
		if strings.HasPrefix(target, "https://") {
			return whole
		}
		file, _, _ := strings.Cut(target, "#")
		if file == "" || strings.HasSuffix(file, "_test.go") {
			return label // the name of a test is enough to find it
		}
		file = path.Join(path.Dir(document), file)
		if strings.Trim(label, "`") == file || strings.Trim(label, "`") == path.Base(file) {
			return file
		}
		return label + " (" + file + ")"
	})
}
