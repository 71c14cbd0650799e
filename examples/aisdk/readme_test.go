package aisdk_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestREADME runs go vet on the Go code of the README, declarations without their
// imports.
func TestREADME(t *testing.T) {
	is := is.New(t)
	readme, err := os.ReadFile("README.md")
	is.NoErr(err)
	dir, err := os.MkdirTemp("testdata", "readme")
	is.NoErr(err)
	defer os.RemoveAll(dir)
	code := "package readme\n\nimport (\n\"context\"\n\"net/http\"\n\n\"example.com/botapi\"\n\"example.com/botapi/examples/aisdk\"\n" +
		"\"example.com/botapi/examples/openai\"\n\"example.com/botapi/examples/resume\"\n)\n"
	blocks := strings.Split(string(readme), "\n```go\n")[1:]
	is.Equal(len(blocks), 3)
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "\n```")
		code += "\n" + block + "\n"
	}
	is.NoErr(os.WriteFile(filepath.Join(dir, "readme.go"), []byte(code), 0o644))
	said, err := exec.CommandContext(t.Context(), "go", "vet", "./"+dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%s", code, said)
	}
}
