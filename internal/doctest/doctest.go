// Package doctest reads Markdown documents and compiles the Go code in them, for the tests
// of the documents. Only tests import it.
package doctest

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A Block is one fenced block of a document.
type Block struct {
	Language string
	Text     string
	Prints   string // the block without a language right after this one: what the commands print
}

// Read returns the text of a file.
func Read(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Blocks returns the blocks of a document.
func Blocks(text string) (blocks []Block) {
	fences := strings.Split("\n"+text, "\n```")
	for i := 1; i+1 < len(fences); i += 2 {
		language, text, _ := strings.Cut(fences[i], "\n")
		between := strings.TrimSpace(fences[i-1])
		if last := len(blocks) - 1; language == "" && between == "" && last >= 0 {
			blocks[last].Prints = text + "\n"
			continue
		}
		blocks = append(blocks, Block{Language: language, Text: text + "\n"})
	}
	return blocks
}

// Source completes Go code of a document. A program stays as it is, declarations become a
// package, and statements the body of a function with these parameters.
func Source(text, parameters string) string {
	if strings.HasPrefix(text, "package ") {
		return text
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+text, parser.SkipObjectResolution); err != nil {
		text = "func statements(" + parameters + ") {\n" + text + "}\n"
	}
	return "package block\n\n" + Imports(text) + "\n" + text
}

// Imports returns import declarations for the packages that Go code uses, if they are among
// those of the documents.
func Imports(text string) string {
	var imports strings.Builder
	for _, imported := range []string{
		"bufio", "cmp", "context", "encoding/json", "errors", "fmt", "io", "iter", "log", "log/slog", "net", "net/http", "net/http/httptest", "os",
		"slices", "strings", "strconv", "sync/atomic", "testing", "time", "github.com/prometheus/client_golang/prometheus",
		"example.com/botapi", "example.com/botapi/examples/aisdk", "example.com/botapi/examples/botapitest", "example.com/botapi/examples/graceful",
		"example.com/botapi/examples/openai", "example.com/botapi/examples/resume",
	} {
		if regexp.MustCompile(`\b` + path.Base(imported) + `\.[A-Z]`).MatchString(text) {
			fmt.Fprintf(&imports, "import %q\n", imported)
		}
	}
	return imports.String()
}

// Write writes the source of a block as a package below a folder, and returns the name of
// the package's own folder.
func Write(t testing.TB, below string, i int, source string) string {
	t.Helper()
	name := "main.go"
	if strings.Contains(source, "*testing.T") {
		name = "main_test.go"
	}
	folder := filepath.Join(below, fmt.Sprint("block", i))
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	return folder
}

// written begins the names of the folders that Vet writes into, in the package's own folder. The
// go command ignores them otherwise.
const written = "testdata/document"

// IsWritten reports whether a folder of the repository is one that Vet writes into, and removes.
func IsWritten(folder string) bool { return strings.Contains("/"+folder, "/"+written) }

// Vet runs go vet on the Go code of a document, each block as a package in the module of
// the test, and returns how many there are. Blocks of statements are in a function with
// these parameters.
func Vet(t testing.TB, document, parameters string) (blocks int) {
	t.Helper()
	below, err := os.MkdirTemp(path.Dir(written), path.Base(written))
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(below)
	vet := []string{"vet"}
	for i, block := range Blocks(Read(t, document)) {
		if block.Language == "go" {
			vet = append(vet, "./"+Write(t, below, i, Source(block.Text, parameters)))
		}
	}
	said, err := exec.CommandContext(t.Context(), "go", vet...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", document, err, said)
	}
	return len(vet) - 1
}
