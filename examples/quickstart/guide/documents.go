package guide

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// A library has documents, by sections.
type library struct {
	texts    map[string]string // by the name of the document
	names    []string          // the README first, the others sorted
	sections []section
	rarity   map[string]float64 // of a term
}

// readmeName is the name of the document at the top of the repository. The others are in
// docs/.
const readmeName = "README.md"

// newLibrary reads a README, and the Markdown documents of a folder, which is docs/ in the
// repository. The first section of the README introduces all of them.
func newLibrary(readme string, folder fs.FS) *library {
	l := &library{texts: map[string]string{readmeName: readme}}
	l.names, _ = fs.Glob(folder, "*.md") // fails only for a bad pattern
	for _, name := range l.names {
		text, _ := fs.ReadFile(folder, name) // embedded: cannot fail
		l.texts[name] = string(text)
	}
	l.names = slices.Insert(l.names, 0, readmeName)
	for _, name := range l.names {
		var path []section
		for _, s := range l.split(name, l.texts[name]) {
			path = slices.DeleteFunc(path, func(above section) bool { return above.level >= s.level })
			for _, above := range path {
				s.above = append(s.above, above.inHeading...)
			}
			s.count()
			path = append(path, s)
			l.sections = append(l.sections, s)
		}
	}
	l.countSections()
	return l
}

func (l *library) documents() map[string]string {
	all := map[string]string{}
	for name, text := range l.texts {
		text = l.relinked(name, picture.ReplaceAllString(text, ""))
		all[name] = strings.ReplaceAll(text, "]("+linkMark, "](")
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
func (l *library) relinked(document, text string) string {
	var all, prose strings.Builder
	endProse := func() {
		all.WriteString(link.ReplaceAllStringFunc(prose.String(), func(whole string) string { return l.relink(document, whole) }))
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

func (l *library) relink(document, whole string) string {
	parts := link.FindStringSubmatch(whole)
	label, target := parts[1], parts[2]
	if strings.HasPrefix(target, "https://") {
		return whole
	}
	file, heading, _ := strings.Cut(target, "#")
	inDocument := file == ""
	from := path.Join("docs", document)
	if document == readmeName {
		from = readmeName
	}
	if file = path.Join(path.Dir(from), file); inDocument {
		file = from
	}
	name := strings.TrimPrefix(file, "docs/")
	_, isServed := l.texts[name]
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
