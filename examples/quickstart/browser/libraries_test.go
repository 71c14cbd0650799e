package browser

import (
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
	"github.com/matryer/is"
)

// TestPageDoesNotWaitForLibraries checks that everything but the Markdown of answers
// is shown before the libraries have arrived.
func TestPageDoesNotWaitForLibraries(t *testing.T) {
	is := is.New(t)
	gate := make(chan struct{})
	answer := make(chan struct{})
	pages := page.Handler(page.Options{Resume: true})
	h := serve(t, botapi.Options{Engine: repeats("so **bold**", 1, answer)}, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/page/lib/") {
			select {
			case <-gate:
			case <-r.Context().Done():
			}
		}
		pages.ServeHTTP(w, r)
	}))
	tab := newTab(t)
	tab.open(h.URL + "/#key=" + key + "&bot=ada")
	tab.see(".bot")
	tab.see(".beginning")
	is.True(strings.HasPrefix(tab.text(".assistant .text"), "Hello."))
	tab.say("so **bold**")
	tab.see("#stop") // before the answer is complete
	close(answer)
	tab.see(".actions .regenerate")
	close(gate)
	tab.wait(`document.querySelector(".message:last-child .text strong")?.textContent === "bold"`)
	is.Equal(evaluate[int](tab, `document.querySelectorAll(".assistant .text p").length`), 3)
}

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
