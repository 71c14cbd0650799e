package guide

import (
	_ "embed"
	"path"
	"regexp"
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

// An original is a document as it is in the repository.
type original struct {
	path string // in the repository
	text string
}

func originals() []original {
	all := []original{{"README.md", project}}
	for _, name := range []string{"wire.md", "operating.md", "rough-edges.md", "performance.md"} {
		text, _ := docs.Files.ReadFile(name) // embedded: cannot fail
		all = append(all, original{"docs/" + name, string(text)})
	}
	return append(all, original{"examples/quickstart/README.md", quickstart})
}

// served has the name under which a document is served, by its path in the repository.
var served = map[string]string{
	"README.md":                     "README.md",
	"docs/wire.md":                  "wire.md",
	"docs/operating.md":             "operating.md",
	"docs/rough-edges.md":           "rough-edges.md",
	"docs/performance.md":           "performance.md",
	"examples/quickstart/README.md": "quickstart.md",
}

// Documents returns the project's documents in Markdown, each by the name under which
// a program serves it, in one folder: "wire.md", for example. They link to each other. A
// link to another file of the repository is replaced with its name.
func Documents() map[string]string {
	all := map[string]string{}
	for _, document := range originals() {
		text := relinked(document.path, picture.ReplaceAllString(document.text, ""))
		all[served[document.path]] = strings.ReplaceAll(text, "]("+linkMark, "](")
	}
	return all
}

var (
	picture = regexp.MustCompile(`(?m)^<img .*>\n\n?`)
	link    = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)
	marked  = regexp.MustCompile(`\[([^\]]*)\]\(` + linkMark + `([^)]*)\)`)
)

// linkMark begins the target of a link to a served document, whose address is not yet
// known.
const linkMark = "documents:"

// relinked replaces links that only work in the repository: those to a served document
// with its name behind linkMark, others with the file's name. Links to the web stay, and
// so does what looks like a link in code.
func relinked(document, text string) string {
	var all, prose strings.Builder
	endProse := func() {
		all.WriteString(link.ReplaceAllStringFunc(prose.String(), func(whole string) string { return relink(document, whole) }))
		prose.Reset()
	}
	inCode := false
	for line := range strings.Lines(text) {
		fence := strings.HasPrefix(line, "```")
		if !inCode && !fence {
			prose.WriteString(line) // a link may be longer than its line
			continue
		}
		endProse()
		inCode = inCode != fence
		all.WriteString(line)
	}
	endProse()
	return all.String()
}

func relink(document, whole string) string {
	parts := link.FindStringSubmatch(whole)
	label, target := parts[1], parts[2]
	if strings.HasPrefix(target, "https://") {
		return whole
	}
	file, heading, _ := strings.Cut(target, "#")
	inDocument := file == ""
	if file = path.Join(path.Dir(document), file); inDocument {
		file = document
	}
	name, isServed := served[file]
	switch {
	case isServed && heading != "":
		return "[" + label + "](" + linkMark + name + "#" + heading + ")"
	case isServed:
		return "[" + label + "](" + linkMark + name + ")"
	case inDocument, strings.HasSuffix(file, "_test.go"):
		return label // the name of a test is enough to find it
	case strings.Trim(label, "`") == file, strings.Trim(label, "`") == path.Base(file):
		return file
	}
	return label + " (" + file + ")"
}

// linked completes the links to documents, which are served at an address that ends
// with a slash.
func linked(text, address string) string {
	if address == "" {
		return unlinked(text)
	}
	return strings.ReplaceAll(text, "]("+linkMark, "]("+address)
}

// unlinked replaces the links to documents with their labels.
func unlinked(text string) string {
	return marked.ReplaceAllString(text, "$1")
}

// anchor returns the part of an address that leads to a heading, as in GitHub.
func anchor(heading string) string {
	return "#" + strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

var noAnchor = regexp.MustCompile(`[^a-z0-9 -]`)
