// Command rename gives this repository a module path of its own, in the Go files, the nested
// modules and the documents. Run it at the top of a clone:
//
//	go run ./examples/rename git.example.org/you/botapi
//
// It changes files and nothing else: look at the result with git diff, and commit it.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./examples/rename MODULE-PATH")
		os.Exit(2)
	}
	if err := rename(".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "rename:", err)
		os.Exit(1)
	}
}

// rename renames the module in a folder.
func rename(folder, path string) error {
	old, err := modulePath(folder)
	if err != nil {
		return err
	}
	// The go command knows which paths are valid. It comes first: nothing has changed if it
	// rejects the path.
	edit := exec.Command("go", "mod", "edit", "-module", path)
	edit.Dir = folder
	if output, err := edit.CombinedOutput(); err != nil {
		return fmt.Errorf("change the path of the module: %w: %s", err, bytes.TrimSpace(output))
	}
	// With more letters at either end, it is another path.
	occurrence := regexp.MustCompile(`[\w.-]*` + regexp.QuoteMeta(old) + `[\w-]*`)
	replace := func(found []byte) []byte {
		if string(found) == old {
			return []byte(path)
		}
		return found
	}
	own := filepath.Join(folder, "go.mod")
	return filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case !entry.Type().IsRegular(), name == own:
			return nil
		}
		return renameIn(name, func(text []byte) []byte { return occurrence.ReplaceAllFunc(text, replace) })
	})
}

// modulePath returns the path in the go.mod of a folder.
func modulePath(folder string) (string, error) {
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("run this at the top of the repository: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	path, found := strings.CutPrefix(line, "module ")
	if !found {
		return "", fmt.Errorf("go.mod begins with %q, and not with its module", line)
	}
	return strings.TrimSpace(path), nil
}

// renameIn replaces the path in a text file. Go files are formatted again, since the order
// of their imports depends on the path.
func renameIn(name string, replaced func([]byte) []byte) error {
	before, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if !utf8.Valid(before) {
		return nil
	}
	after := replaced(before)
	if bytes.Equal(before, after) {
		return nil
	}
	if filepath.Ext(name) == ".go" {
		if after, err = format.Source(after); err != nil {
			return fmt.Errorf("format %s: %w", name, err)
		}
	}
	return os.WriteFile(name, after, 0o644) // the mode of a file that exists stays
}
