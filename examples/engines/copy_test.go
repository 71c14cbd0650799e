package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestEachFileAlone vets every file without the others, since each may be copied alone.
func TestEachFileAlone(t *testing.T) {
	is := is.New(t)
	files, err := filepath.Glob("*.go")
	is.NoErr(err)
	is.NoErr(os.MkdirAll("testdata", 0o755))
	dir, err := os.MkdirTemp("testdata", "copies")
	is.NoErr(err)
	defer os.Remove("testdata") // only if it is empty
	defer os.RemoveAll(dir)
	copied := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		code, err := os.ReadFile(file)
		is.NoErr(err)
		folder := filepath.Join(dir, strings.TrimSuffix(file, ".go"))
		is.NoErr(os.Mkdir(folder, 0o755))
		is.NoErr(os.WriteFile(filepath.Join(folder, file), code, 0o644))
		copied++
	}
	is.Equal(copied, 9)
	folders, err := filepath.Glob(dir + "/*")
	is.NoErr(err)
	for i := range folders {
		folders[i] = "./" + folders[i]
	}
	output, err := exec.CommandContext(t.Context(), "go", append([]string{"vet"}, folders...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s", output)
	}
}
