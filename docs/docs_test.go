package docs_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/botapi/internal/doctest"
	"github.com/matryer/is"
)

// repository is the folder above.
var repository = os.DirFS("..")

// files calls f with each file of the repository that has one of the endings. It skips what
// tests at the same time write, and remove again: the blocks of documents.
func files(t *testing.T, f func(name string), endings ...string) {
	t.Helper()
	is.New(t).NoErr(fs.WalkDir(repository, ".", func(name string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.IsDir() && (strings.HasPrefix(entry.Name(), ".git") || entry.Name() == "node_modules" || doctest.IsWritten(name)) {
			return fs.SkipDir
		}
		if err == nil && !entry.IsDir() && slices.Contains(endings, path.Ext(name)) {
			f(name)
		}
		return err
	}))
}

// TestLinesOfDocuments checks that a change of a document can be read in a terminal and in
// a diff: no line is longer than 140 characters, but for tables and code.
func TestLinesOfDocuments(t *testing.T) {
	documents := 0
	files(t, func(name string) {
		documents++
		inCode := false
		for i, line := range strings.Split(doctest.Read(t, "../"+name), "\n") {
			start := strings.TrimSpace(line)
			if strings.HasPrefix(start, "```") {
				inCode = !inCode
			}
			if !inCode && !strings.HasPrefix(start, "|") && utf8.RuneCountInString(line) > 140 {
				t.Errorf("%s:%d is longer than 140 characters", name, i+1)
			}
		}
	}, ".md")
	is.New(t).True(documents > 20)
}

// TestHeadingsAreFree checks that the headings of the README and of the documents here can
// be renamed: no code and no test names one. Links to them are in documents, where
// TestDocumentedLinks checks them. Only the checks of a stack link to what to do, in one list,
// which has a test of its own.
func TestHeadingsAreFree(t *testing.T) {
	headings := map[string]bool{}
	files(t, func(name string) {
		if name != "README.md" && path.Dir(name) != "docs" {
			return
		}
		for _, heading := range regexp.MustCompile(`(?m)^##+ .*$`).FindAllString(doctest.Read(t, "../"+name), -1) {
			headings[heading] = true
		}
	}, ".md")
	is.New(t).True(len(headings) > 30)
	anchor := regexp.MustCompile(`\b(README|docs/[a-z-]+)\.md#[a-z]`)
	files(t, func(name string) {
		text := doctest.Read(t, "../"+name)
		if link := anchor.FindString(text); link != "" && name != "examples/internal/stackcheck/stackcheck.go" {
			t.Errorf("%s links to a heading: %s", name, link)
		}
		for heading := range headings {
			if strings.Contains(text, heading) {
				t.Errorf("%s names the heading %q", name, heading)
			}
		}
	}, ".go", ".js", ".mjs", ".html", ".css", ".sh", ".txt", ".json", ".yaml", ".yml", "")
}
