package browser

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestLibrariesAreBuilt checks that the pages' libraries are what npm and esbuild make
// of build/package-lock.json.
func TestLibrariesAreBuilt(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	is := is.New(t)
	build, lib, built := filepath.Join("..", "page", "build"), filepath.Join("..", "page", "lib"), t.TempDir()
	for _, command := range []*exec.Cmd{
		exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"),
		exec.Command("node", "build.mjs", built),
	} {
		command.Dir = build
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, output)
		}
	}
	is.Equal(filesIn(t, built), filesIn(t, lib)) // run go generate in ../page
}

// filesIn returns the contents of all files in a folder.
func filesIn(t *testing.T, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	is.New(t).NoErr(filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, folder)] = string(text)
		return err
	}))
	return files
}
