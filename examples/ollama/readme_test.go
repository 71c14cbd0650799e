package ollama_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestREADME runs go vet on the program of the README.
func TestREADME(t *testing.T) {
	is := is.New(t)
	readme, err := os.ReadFile("README.md")
	is.NoErr(err)
	_, program, found := strings.Cut(string(readme), "\n```go\n")
	is.True(found)
	program, _, _ = strings.Cut(program, "\n```")
	folder, err := os.MkdirTemp("testdata", "readme")
	is.NoErr(err)
	defer os.RemoveAll(folder)
	is.NoErr(os.WriteFile(filepath.Join(folder, "main.go"), []byte(program+"\n"), 0o644))
	said, err := exec.CommandContext(t.Context(), "go", "vet", "./"+folder).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%s", program, said)
	}
}
