package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// newPath is written in two parts: in the clone, this file is renamed, too.
const newPath = "git.example" + ".org/you/chat-bots"

// clone returns a fresh clone of the last commit.
func clone(t *testing.T) string {
	t.Helper()
	if err := exec.Command("git", "rev-parse", "--git-dir").Run(); err != nil {
		t.Skip("not a git checkout")
	}
	folder := filepath.Join(t.TempDir(), "clone")
	run(t, ".", "git", "clone", "-q", "../..", folder)
	return folder
}

// run returns what a command prints.
func run(t *testing.T, folder, name string, arguments ...string) string {
	t.Helper()
	command := exec.Command(name, arguments...)
	command.Dir, command.Env = folder, append(os.Environ(), "GOWORK=off")
	var messages bytes.Buffer
	command.Stderr = &messages
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(arguments, " "), err, output, messages.String())
	}
	return string(output)
}

// TestRename gives a clone another path. In each of its modules, every package and every
// test finds what it imports; .ci/run also vets them.
func TestRename(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	folder := clone(t)
	old, err := modulePath(folder)
	is.NoErr(err)
	executable := run(t, folder, "git", "ls-files", "--stage", ".ci/run")
	is.NoErr(rename(folder, newPath))

	modules := 0
	for name := range strings.Lines(run(t, folder, "git", "ls-files")) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(filepath.Join(folder, name))
		is.NoErr(err)
		if bytes.Count(text, []byte(old)) != bytes.Count(text, []byte("registry."+old)) { // a host of images
			t.Errorf("%s still contains %s", name, old)
		}
		if filepath.Base(name) == "go.mod" && name != "examples/generated/go/go.mod" { // whose clients are not in git
			modules++
			run(t, filepath.Join(folder, filepath.Dir(name)), "go", "list", "-deps", "-test", "./...")
		}
	}
	is.True(modules > 5)
	is.Equal(run(t, folder, "gofmt", "-l", "."), "")
	is.Equal(run(t, folder, "git", "ls-files", "--stage", ".ci/run"), executable)
	is.Equal(strings.TrimSpace(run(t, folder, "go", "list", "-m")), newPath)
}

// TestRenameTwice checks that a clone can be renamed again, and back.
func TestRenameTwice(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	folder := clone(t)
	old, err := modulePath(folder)
	is.NoErr(err)
	for _, path := range []string{newPath, newPath + "-again", old} {
		is.NoErr(rename(folder, path))
	}
	is.Equal(run(t, folder, "git", "status", "--short"), "")
}

// TestRejected checks that a path that Go does not accept changes nothing.
func TestRejected(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	folder := clone(t)
	for _, path := range []string{"", "two words", "https://git.example.org/you/botapi", "/botapi", "-json"} {
		err := rename(folder, path)
		is.True(err != nil)
	}
	is.Equal(run(t, folder, "git", "status", "--short"), "")
}

// TestElsewhere checks that the command changes nothing outside of the repository's top.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	folder := t.TempDir()
	is.True(rename(folder, newPath) != nil)
	entries, err := os.ReadDir(folder)
	is.NoErr(err)
	is.Equal(len(entries), 0)
}
