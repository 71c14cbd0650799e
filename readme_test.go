package botapi

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// The tests in this file keep README.md true. What its blocks mean:
//
//	```go  with a package clause: a whole program. Without one: declarations,
//	       compiled as a package of their own, with imports added by name.
//	```sh  commands, run against a quickstart (or named in runElsewhere). A block
//	       without a language right after one is what they print.
//
// Blocks in other languages are not run.

// A readmeBlock is one fenced block.
type readmeBlock struct {
	language string
	text     string
	prints   string // what an sh block prints; empty if the README does not say
}

// runElsewhere are the commands that TestREADMECommands does not run, and why.
var runElsewhere = map[string]string{
	"go run ./examples/quickstart\n":                   "the test builds it and starts it, to know its process and its port",
	"BOTAPI_KEY=secret go run ./examples/quickstart\n": "likewise",
	"go test ./...\n":                                  "is what runs this test",
	"go test -run '^$' -bench Load -benchtime 5x .\n":  "takes minutes, and a machine that does nothing else",
	"go test -run '^$' -bench . -skip Load .\n":        ".ci/run runs these benchmarks, a few times each",
	dependCommand: "TestREADMEPrograms runs it",
	"git grep -lz 'example\\.com/botapi' | xargs -0 " + renameExpression + "\n": "rewrites the whole checkout",
}

const (
	dependCommand    = "go mod edit -require=example.com/botapi@v0.0.0 -replace=example.com/botapi=../botapi\ngo mod tidy\n"
	renameExpression = `perl -pi -e 's{example\.com/botapi}{git.example.org/you/botapi}g' && gofmt -w .`
)

func readREADME(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func readmeBlocks(t *testing.T, language string) []readmeBlock {
	t.Helper()
	fences := strings.Split("\n"+readREADME(t), "\n```")
	var blocks []readmeBlock
	for i := 1; i+1 < len(fences); i += 2 {
		name, text, _ := strings.Cut(fences[i], "\n")
		between := strings.TrimSpace(fences[i-1])
		if last := len(blocks) - 1; name == "" && between == "" && last >= 0 {
			blocks[last].prints = text + "\n"
			continue
		}
		blocks = append(blocks, readmeBlock{language: name, text: text + "\n"})
	}
	return slices.DeleteFunc(blocks, func(b readmeBlock) bool { return b.language != language })
}

// TestREADMEPrograms makes a program beside the package as the README says, and
// vets all its Go in there.
func TestREADMEPrograms(t *testing.T) {
	is := is.New(t)
	here, err := os.Getwd()
	is.NoErr(err)
	dir := t.TempDir()
	is.NoErr(os.Symlink(here, filepath.Join(dir, "botapi")))
	app := filepath.Join(dir, "app")
	for i, block := range readmeBlocks(t, "go") {
		writeREADMEPackage(t, app, i, block.text)
	}
	runIn(t, app, "export GOWORK=off GOFLAGS=; go mod init app && "+dependCommand+"go vet ./...")
}

// writeREADMEPackage writes a block as a package of the program.
func writeREADMEPackage(t *testing.T, app string, i int, text string) {
	is := is.New(t)
	folder, source := app, text
	if !strings.HasPrefix(text, "package ") {
		folder = filepath.Join(app, fmt.Sprint("fragment", i))
		source = fmt.Sprintf("package fragment%d\n\n%s\n%s", i, importsOf(text), text)
	}
	is.NoErr(os.MkdirAll(folder, 0o755))
	is.NoErr(os.WriteFile(filepath.Join(folder, "main.go"), []byte(source), 0o644))
}

// importsOf are the imports that a fragment leaves out.
func importsOf(text string) string {
	var imports strings.Builder
	for _, path := range []string{
		"bufio", "bytes", "cmp", "context", "crypto/sha256", "database/sql", "encoding/json", "errors", "fmt",
		"io", "iter", "log/slog", "net/http", "strings", "time", "example.com/botapi",
	} {
		if regexp.MustCompile(`\b` + filepath.Base(path) + `\.[A-Z]`).MatchString(text) {
			fmt.Fprintf(&imports, "import %q\n", path)
		}
	}
	return imports.String()
}

// runIn returns what a command printed on its standard output.
func runIn(t *testing.T, dir, command string) string {
	t.Helper()
	bash := exec.Command("bash", "-euc", command)
	bash.Dir = dir
	var complaints strings.Builder
	bash.Stderr = &complaints
	printed, err := bash.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, printed, complaints.String())
	}
	return string(printed)
}

// The README's first program is ExampleNew, with the server that a test cannot
// have at its end.
func TestREADMEMountingExample(t *testing.T) {
	is := is.New(t)
	examples, err := os.ReadFile("example_test.go")
	is.NoErr(err)
	_, tested, _ := strings.Cut(string(examples), "func ExampleNew() {\n")
	tested, _, _ = strings.Cut(tested, "\n\tcall(")
	program := readmeBlocks(t, "go")[0].text
	_, shown, _ := strings.Cut(program, "func main() {\n")
	is.Equal(shown, tested+"\tlog.Fatal(http.ListenAndServe(\"127.0.0.1:8080\", mux))\n}\n")
	is.True(strings.Count(program, "\n") < 40)
}

// TestREADMECommands pastes the commands of the README into a shell, beside a
// quickstart that was started as it says.
func TestREADMECommands(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not here to run the README's commands")
	}
	base := startQuickstart(t)
	elsewhere := 0
	for _, block := range readmeBlocks(t, "sh") {
		if runElsewhere[block.text] != "" {
			elsewhere++
			continue
		}
		t.Run(block.text, func(t *testing.T) {
			is := is.New(t)
			is.True(strings.HasPrefix(block.text, "curl ")) // else it belongs in runElsewhere: it may run this test again
			printed := runIn(t, ".", strings.ReplaceAll(block.text, "http://127.0.0.1:8080", base))
			is.True(block.prints != "")
			is.Equal(strings.TrimSpace(printed), strings.TrimSpace(block.prints))
		})
	}
	is := is.New(t)
	is.Equal(elsewhere, len(runElsewhere))
}

// startQuickstart returns the address of a quickstart whose key is "secret".
func startQuickstart(t *testing.T) (base string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "quickstart")
	runIn(t, ".", "go build -o '"+program+"' ./examples/quickstart")
	quickstart := exec.Command(program, "-addr", "127.0.0.1:0", "-pace", "0")
	quickstart.Env = append(os.Environ(), "BOTAPI_KEY=secret")
	output, err := quickstart.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := quickstart.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = quickstart.Process.Kill()
		_ = quickstart.Wait() // it was killed
	})
	line, _ := bufio.NewReader(output).ReadString('\n')
	if _, err := fmt.Sscanf(line, "Serving 2 bots at %s with the key secret", &base); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return base
}

// readmeRows are the cells of the README's table rows.
func readmeRows(t *testing.T) (rows [][]string) {
	t.Helper()
	for line := range strings.Lines(readREADME(t)) {
		if inner, isRow := strings.CutPrefix(strings.TrimSpace(line), "| "); isRow {
			rows = append(rows, strings.Split(strings.TrimSuffix(inner, " |"), " | "))
		}
	}
	return rows
}

func TestREADMEOptions(t *testing.T) {
	is := is.New(t)
	defaults := map[string]string{
		"Bots":               "required",
		"Keys":               "required",
		"Engine":             "required",
		"MaxBodyBytes":       fmt.Sprint(DefaultMaxBodyBytes>>20, " MiB"),
		"MaxConcurrentChats": "no limit",
		"MaxChatsPerAccount": "no limit",
		"ChatTimeout":        fmt.Sprint(DefaultChatTimeout.Minutes(), " minutes"),
		"KeepAlive":          fmt.Sprint(DefaultKeepAlive.Seconds(), " seconds"),
		"WriteTimeout":       fmt.Sprint(DefaultWriteTimeout.Seconds(), " seconds"),
		"Logger":             "`slog.Default()`",
		"OnChat":             "none",
	}
	rows := readmeRows(t)
	first := slices.IndexFunc(rows, func(row []string) bool { return row[0] == "`Bots`" })
	is.True(first >= 0)
	options := reflect.TypeFor[Options]()
	for i := range options.NumField() {
		field, row := options.Field(i), rows[first+i]
		is.Equal(row[0], "`"+field.Name+"`")
		is.Equal(row[1], "`"+strings.ReplaceAll(field.Type.String(), "botapi.", "")+"`")
		is.Equal(row[2], defaults[field.Name])
	}
	is.True(!strings.HasPrefix(rows[first+options.NumField()][0], "`Max")) // the table ends here
}

func TestREADMEAnswers(t *testing.T) {
	is := is.New(t)
	shown := make(map[string]bool)
	for _, row := range readmeRows(t) {
		shown[strings.Join(row[:min(2, len(row))], " | ")] = true // status and detail
		shown[strings.Join(row[1:], " | ")] = true                // msg and type
	}
	for _, answer := range []StatusError{
		errNotFound, errMethodNotAllowed, errNotAuthenticated, errKeyRefused, errNoSuchBot, errBodyTooLarge,
		errBodyTooSlow, errBodyBroken, errAllPlacesTaken, errAccountPlacesTaken, errTooLong, errInternal,
	} {
		status := fmt.Sprint(answer.Status)
		switch {
		case answer.Status == 401:
			status += ", with `WWW-Authenticate: " + challenge(answer) + "`"
		case answer.Status == 405:
			status += ", with `Allow`"
		case answer.RetryAfter > 0:
			status += fmt.Sprintf(", with `Retry-After: %.0f`", answer.RetryAfter.Seconds())
		}
		is.True(shown[status+" | `"+answer.Detail+"`"]) // the README has this answer
	}
	for _, problem := range []interface {
		Code() string
		Message() string
	}{
		errMissing, errNull, errNotBoolean, errNotText, errNotList, errNotObject, errNotRole, errNoBot, errNoInput,
	} {
		is.True(shown["`"+problem.Message()+"` | `"+problem.Code()+"`"]) // the README has this problem
	}
}

func TestREADMEBounds(t *testing.T) {
	is := is.New(t)
	text := readREADME(t)
	for _, bound := range []string{
		fmt.Sprintf("| %d KiB queued and %d KiB being written", maxWrite>>10, maxWrite>>10),
		fmt.Sprintf("| %d KiB; %d KiB |", maxEvent>>10, maxWrite>>10),
		fmt.Sprintf("| %d MiB; beyond that", maxWhole>>20),
		fmt.Sprintf("| %d problems |", maxProblems),
		fmt.Sprintf("| %d,000 levels |", maxDepth/1000),
		fmt.Sprintf("| %d,000, about", cachedKeys/1000),
		fmt.Sprintf("up to %d MiB or %.0f seconds", drainBytes>>20, drainTime.Seconds()),
	} {
		is.True(strings.Contains(text, bound)) // the README states this bound
	}
}

// TestREADMELinks looks for what the README points to within the repository.
func TestREADMELinks(t *testing.T) {
	is := is.New(t)
	text := readREADME(t)
	for _, link := range regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
		if path := link[1]; path != "" {
			_, err := os.Stat(path)
			is.NoErr(err)
		} else {
			is.True(slices.Contains(readmeAnchors(text), link[2])) // a heading of the README
		}
	}
}

func readmeAnchors(text string) (anchors []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		words := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors = append(anchors, "#"+strings.ReplaceAll(words, " ", "-"))
	}
	return anchors
}
