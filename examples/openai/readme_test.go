package openai_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestREADME runs go vet on the Go code of the README: a program, and declarations
// without their imports.
func TestREADME(t *testing.T) {
	is := is.New(t)
	readme, err := os.ReadFile("README.md")
	is.NoErr(err)
	dir, err := os.MkdirTemp("testdata", "readme")
	is.NoErr(err)
	defer os.RemoveAll(dir)
	const imports = "package readme\n\nimport (\n\"context\"\n\"log\"\n\"net/http\"\n\"example.com/botapi\"\n\"example.com/botapi/examples/openai\"\n)\n"
	const statementImports = "package readme\n\nimport (\n\"slices\"\n\"example.com/botapi\"\n" +
		"\"example.com/botapi/examples/openai\"\n\"example.com/botapi/examples/resume\"\n)\n"
	found := 0
	for i, block := range strings.Split(string(readme), "\n```go\n")[1:] {
		code, _, _ := strings.Cut(block, "\n```")
		switch {
		case strings.HasPrefix(code, "options."): // statements
			code = statementImports + "func set(options *botapi.Options, answers *resume.Engine) {\n" + code + "\n}\nvar _ = slices.Max[[]int]\n"
		case !strings.HasPrefix(code, "package "):
			code = imports + code
		}
		folder := filepath.Join(dir, fmt.Sprint("block", i))
		is.NoErr(os.Mkdir(folder, 0o755))
		is.NoErr(os.WriteFile(filepath.Join(folder, "main.go"), []byte(code+"\n"), 0o644))
		said, err := exec.CommandContext(t.Context(), "go", "vet", "./"+folder).CombinedOutput()
		if err != nil {
			t.Fatalf("%s\n%s", code, said)
		}
		found++
	}
	is.Equal(found, 5)
}
