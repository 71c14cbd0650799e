package botapi

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/chatbody"
	"example.com/botapi/internal/connection"
	"example.com/botapi/internal/doctest"
	"example.com/botapi/internal/jsonscan"
	"example.com/botapi/internal/readtext"
)

// The tests in this file check README.md and the pages in docs/. What
// their blocks mean:
//
//	```go  with a package clause: a complete program, of 48 lines at most. Without
//	       one: declarations, compiled as a package of their own, with the imports
//	       added.
//	```sh  commands, run in the order of the documents, or named in runElsewhere.
//	       A block without a language right after one is what they print.
//
// Blocks in other languages are not run.

var documents = []string{"README.md", "docs/wire.md", "docs/operating.md", "docs/rough-edges.md", "docs/performance.md"}

// runElsewhere has the commands that the tests here do not run, and why.
var runElsewhere = map[string]string{
	"go run ./examples/doctor https://chat.example.com --key KEY --secret SECRET\n": "needs a service; its own tests run it",
	"go test -run '^$' -bench Load -benchtime 5x .\n":                               "takes minutes, and an otherwise idle machine",
	"go test -run '^$' -bench . -skip Load .\n":                                     ".ci/run runs these benchmarks, a few times each",
	"go test ./...\n": "is what .ci/run runs, and runs this test",
}

func readDocument(t *testing.T, document string) string {
	t.Helper()
	return doctest.Read(t, document)
}

// blocks returns the blocks in one language, of all documents.
func blocks(t *testing.T, language string) []doctest.Block {
	t.Helper()
	var all []doctest.Block
	for _, document := range documents {
		all = append(all, doctest.Blocks(readDocument(t, document))...)
	}
	return slices.DeleteFunc(all, func(b doctest.Block) bool { return b.Language != language })
}

// TestDocumentedGo creates a module next to the package, as the README says, and vets all
// Go code of the documents in it. Tests also run.
func TestDocumentedGo(t *testing.T) {
	t.Parallel() // it waits for other programs
	is := is.New(t)
	here, err := os.Getwd()
	is.NoErr(err)
	dir := t.TempDir()
	is.NoErr(os.Symlink(here, filepath.Join(dir, "botapi")))
	clone := filepath.Join(dir, "the clone")
	is.NoErr(os.Mkdir(clone, 0o755))
	for _, block := range blocks(t, "sh") {
		if strings.Contains(block.Text, "go mod init app\n") {
			runIn(t, clone, block.Text)
		}
	}
	app := filepath.Join(dir, "app")
	shown := 0
	for i, block := range blocks(t, "go") {
		text := block.Text
		for _, name := range interfaceName.FindAllStringSubmatch(text, -1) { // each has exactly the methods of the package's interface
			shown++
			text += strings.ReplaceAll("\nvar _ NAME = botapi.NAME(nil)\nvar _ botapi.NAME = NAME(nil)\n", "NAME", name[1])
		}
		folder := doctest.Write(t, app, i, doctest.Source(text, ""))
		copyRecipes(t, text, folder)
		is.True(!strings.HasPrefix(text, "package ") || strings.Count(text, "\n") <= 48)
	}
	is.Equal(shown, 3) // interfaces
	runIn(t, app, "go mod tidy && go vet ./... && go test ./...")
}

// copyRecipes copies the files of examples/mounting beside a program that calls their
// functions, as its document says.
func copyRecipes(t *testing.T, program, folder string) {
	t.Helper()
	for function, file := range map[string]string{"LimitRate(": "rate.go", "CountRejections(": "rejections.go"} {
		if strings.Contains(program, function) {
			text := strings.Replace(readDocument(t, "examples/mounting/"+file), "package mounting", "package main", 1)
			is.New(t).NoErr(os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644))
		}
	}
}

var interfaceName = regexp.MustCompile(`(?m)^type (BotStore|KeyVerifier|ChatEngine) interface`)

// goEnvironment has flags for Go that make builds in different folders share the build cache,
// and ignore a go.work.
func goEnvironment() []string {
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-trimpath -ldflags=-w")
}

// runIn runs commands in a folder.
func runIn(t *testing.T, dir, commands string) {
	t.Helper()
	bash := exec.Command("bash", "-euc", commands)
	bash.Dir, bash.Env = dir, goEnvironment()
	if printed, err := bash.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, printed)
	}
}

// The README's first program is ExampleNew, and then starts a server, which an example
// cannot do.
func TestREADMEMountingExample(t *testing.T) {
	_, tested, _ := strings.Cut(readDocument(t, "example_test.go"), "func ExampleNew() {\n")
	tested, _, _ = strings.Cut(tested, "\n\tcall(")
	_, shown, _ := strings.Cut(blocks(t, "go")[0].Text, "func main() {\n")
	shown, _, _ = strings.Cut(shown, "\tserver := ")
	is.New(t).Equal(shown, tested)
}

// TestREADMEShowsItsPicture keeps the README's picture on the first screen.
func TestREADMEShowsItsPicture(t *testing.T) {
	is := is.New(t)
	before, _, found := strings.Cut(readDocument(t, "README.md"), `<img src="docs/chat.png" `)
	is.True(found && strings.Count(before, "\n") < 12)
}

// TestDocumentedCommands pastes the commands of the documents into one shell, in order, as a
// newcomer would who begins with an empty folder and a clone of the last commit. Each block
// is therefore in the folder where the blocks before it have ended.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel() // it waits for other programs
	for _, program := range []string{"git", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed, which the commands of the documents need", program)
		}
	}
	if err := exec.Command("git", "rev-parse", "--git-dir").Run(); err != nil {
		t.Skip("not a git checkout")
	}
	reader := newNewcomer(t)
	elsewhere := 0
	for _, block := range blocks(t, "sh") {
		if runElsewhere[block.Text] != "" {
			elsewhere++
			continue
		}
		name, _, _ := strings.Cut(block.Text, "\n")
		if !t.Run(name, func(t *testing.T) { reader.follow(t, block) }) {
			return // the shell has ended, or is not where the next block expects it
		}
	}
	is.New(t).Equal(elsewhere, len(runElsewhere))
}

// A newcomer has one shell, and later two running services. In the documents, both are at
// documentedAddress; here each has its own address, found by its key.
type newcomer struct {
	dir      string // where the shell began
	in       io.Writer
	out      *bufio.Reader
	services map[string]string // address by key
}

const documentedAddress = "127.0.0.1:8080"

// newNewcomer starts a shell that ends when a command fails. With it end the services, which
// are its background jobs.
func newNewcomer(t *testing.T) *newcomer {
	is := is.New(t)
	n := &newcomer{dir: t.TempDir(), services: map[string]string{}}
	shell := exec.Command("bash", "-eu")
	shell.Dir, shell.Stderr, shell.Env = n.dir, t.Output(), goEnvironment()
	in, err := shell.StdinPipe()
	is.NoErr(err)
	out, err := shell.StdoutPipe()
	is.NoErr(err)
	is.NoErr(shell.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = shell.Wait() // the shell has reported its errors
	})
	n.in, n.out = in, bufio.NewReader(out)
	n.paste(t, `trap 'kill $(jobs -p)' EXIT`)
	return n
}

// paste gives commands to the shell.
func (n *newcomer) paste(t *testing.T, commands string) {
	t.Helper()
	_, err := io.WriteString(n.in, commands+"\n")
	is.New(t).NoErr(err)
}

// run also returns what the commands print.
func (n *newcomer) run(t *testing.T, commands string) string {
	t.Helper()
	const end = "the commands have ended"
	n.paste(t, commands+"\necho; echo "+end)
	var printed strings.Builder
	for {
		line := n.line(t)
		if line == end+"\n" {
			return strings.TrimSpace(printed.String())
		}
		printed.WriteString(line)
	}
}

// line returns the next line that a command prints.
func (n *newcomer) line(t *testing.T) string {
	t.Helper()
	line, err := n.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the shell has ended: %v", err)
	}
	return line
}

// follow runs the commands of one block.
func (n *newcomer) follow(t *testing.T, b doctest.Block) {
	switch {
	case strings.HasPrefix(b.Text, "git clone "):
		n.startQuickstart(t, b)
	case strings.HasPrefix(b.Text, "curl "):
		n.ask(t, b)
	case strings.Contains(b.Text, "go mod init app\n"):
		n.run(t, b.Text)
	case b.Text == "go mod tidy\ngo run .\n":
		n.startParrot(t, b)
	case strings.Contains(b.Text, "third_party"):
		n.run(t, "mkdir third_party && cp -r ../botapi third_party\n"+b.Text+"go build . && go mod vendor && go build .")
	case strings.HasPrefix(b.Text, "go run ./examples/rename "):
		n.run(t, "cd .. && git clone -q botapi renamed && cd renamed\n"+b.Text+"go build ./... && grep -q git.example.org/you/botapi README.md")
	default:
		t.Fatal("add these commands to runElsewhere, or a case here that runs them")
	}
}

// ask runs a curl command against the service that has its key.
func (n *newcomer) ask(t *testing.T, b doctest.Block) {
	is := is.New(t)
	_, after, _ := strings.Cut(b.Text, "Bearer ")
	key, _, _ := strings.Cut(after, "'")
	is.True(n.services[key] != "") // a service has this key
	is.True(b.Prints != "")
	printed := n.run(t, strings.ReplaceAll(b.Text, documentedAddress, n.services[key]))
	is.Equal(printed, strings.TrimSpace(b.Prints))
}

// startQuickstart clones this repository instead of the address in the document, and
// compares the first lines that the quickstart prints.
func (n *newcomer) startQuickstart(t *testing.T, b doctest.Block) {
	is := is.New(t)
	here, err := os.Getwd()
	is.NoErr(err)
	commands := regexp.MustCompile(`git clone \S+ botapi`).ReplaceAllLiteralString(b.Text, "git clone -q '"+here+"' botapi")
	lines := strings.Count(b.Prints, "\n")
	n.paste(t, inBackground(commands, fmt.Sprintf("-addr 127.0.0.1:0 -pace 0 > >(head -n %d)", lines)))
	var printed strings.Builder
	for range lines {
		printed.WriteString(n.line(t))
	}
	var address string
	_, err = fmt.Sscanf(printed.String(), "Serving 3 bots at http://%s with the key secret", &address)
	is.NoErr(err)
	is.Equal(strings.ReplaceAll(printed.String(), address, documentedAddress), b.Prints)
	n.services["secret"] = address
}

// startParrot runs the README's first program.
func (n *newcomer) startParrot(t *testing.T, b doctest.Block) {
	is := is.New(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	address := free.Addr().String()
	is.NoErr(free.Close())
	program := strings.ReplaceAll(blocks(t, "go")[0].Text, documentedAddress, address)
	is.NoErr(os.WriteFile(filepath.Join(n.dir, "app", "main.go"), []byte(program), 0o644))
	n.run(t, inBackground(b.Text, "")+"curl -s --retry 100 --retry-delay 1 --retry-connrefused http://"+address+"/health-check")
	n.services["my-key"] = address
}

// inBackground makes a background job of the command that begins with go run, so that the
// shell takes more commands, as a second terminal would. The job is the program alone: go
// run would be a second process to kill.
func inBackground(commands, arguments string) string {
	return regexp.MustCompile(`(?m)^(\S+=\S+ )?go run (\S+)$`).ReplaceAllString(commands, "go build -o program $2\n${1}./program "+arguments+" &")
}

// rows returns the cells of all table rows of a document.
func rows(t *testing.T, document string) (rows [][]string) {
	t.Helper()
	for line := range strings.Lines(readDocument(t, document)) {
		if inner, isRow := strings.CutPrefix(strings.TrimSpace(line), "| "); isRow {
			rows = append(rows, strings.Split(strings.TrimSuffix(inner, " |"), " | "))
		}
	}
	return rows
}

func TestDocumentedOptions(t *testing.T) {
	is := is.New(t)
	defaults := map[string]string{
		"Bots":               "required",
		"Keys":               "required",
		"Engine":             "required",
		"MaxBodyBytes":       fmt.Sprint(DefaultMaxBodyBytes>>20, " MiB"),
		"MaxConcurrentChats": "no limit",
		"MaxChatsPerAccount": "no limit",
		"ChatTimeout":        fmt.Sprint(DefaultChatTimeout.Minutes(), " minutes"),
		"StallTimeout":       "no limit",
		"KeepAlive":          fmt.Sprint(DefaultKeepAlive.Seconds(), " seconds"),
		"WriteTimeout":       fmt.Sprint(DefaultWriteTimeout.Seconds(), " seconds"),
		"Routes":             "none",
		"NotFound":           "the API's own form",
		"OnLimit":            "none",
		"MaxWaiting":         "none waits",
		"MaxWait":            fmt.Sprint(DefaultMaxWait.Seconds(), " seconds"),
		"Logger":             "`slog.Default()`",
		"OnRequest":          "none",
		"OnChat":             "none",
	}
	rows := rows(t, "docs/operating.md")
	first := slices.IndexFunc(rows, func(row []string) bool { return row[0] == "`Bots`" })
	is.True(first >= 0)
	options := reflect.TypeFor[Options]()
	for i := range options.NumField() {
		field, row := options.Field(i), rows[first+i]
		is.Equal(row[0], "`"+field.Name+"`")
		is.Equal(row[1], "`"+strings.ReplaceAll(field.Type.String(), "botapi.", "")+"`")
		is.Equal(row[2], defaults[field.Name]) // the default in the document, and above
	}
	is.True(!strings.HasPrefix(rows[first+options.NumField()][0], "`Max")) // the table ends here
}

func TestDocumentedResponses(t *testing.T) {
	is := is.New(t)
	shown := make(map[string]bool)
	for _, row := range rows(t, "docs/wire.md") {
		shown[strings.Join(row[:min(2, len(row))], " | ")] = true // status and detail
		shown[strings.Join(row[1:], " | ")] = true                // msg and type
	}
	responses := []StatusError{
		errNotFound, errMethodNotAllowed, errNotAuthenticated, errKeyRejected, errNoSuchBot, errBodyTooLarge,
		errBodyTooSlow, errBodyUnreadable, ErrTooManyChats.(StatusError), ErrTooManyAccountChats.(StatusError), errTooLong, errUnavailable, errInternal,
	}
	is.Equal(len(responses), len(regexp.MustCompile(`(?m)^\t[eE]rr\w+ +(?:error )?= StatusError`).FindAllString(packageSource(t), -1))) // all of the package's are here
	for _, response := range responses {
		status := fmt.Sprint(response.Status)
		switch {
		case response.Status == 401:
			status += ", with `WWW-Authenticate: " + challengeOf(response) + "`"
		case response.Status == 405:
			status += ", with `Allow`"
		case response.RetryAfter > 0:
			status += fmt.Sprintf(", with `Retry-After: %.0f`", response.RetryAfter.Seconds())
		}
		is.True(shown[status+" | `"+response.Detail+"`"]) // the page has this response
	}
	problems := regexp.MustCompile("= validation\\.NewError\\(\"([^\"]+)\", [\"`](.+)[\"`]\\)\n").FindAllStringSubmatch(packageSource(t), -1)
	is.True(len(problems) >= 9)
	for _, problem := range problems {
		is.True(shown["`"+problem[2]+"` | `"+problem[1]+"`"]) // the page has this problem
	}
}

// challengeOf returns the WWW-Authenticate header of an error response.
func challengeOf(response StatusError) string {
	w := httptest.NewRecorder()
	x := newExchange(New(Options{Bots: new(MemoryStore), Keys: StaticKeys(nil), Engine: fragmentsOf()}).(*handler), w, newRequest("GET", "/", nil))
	x.writeError(failureOf(response))
	return w.Header().Get("WWW-Authenticate")
}

func TestDocumentedBounds(t *testing.T) {
	is := is.New(t)
	for document, bounds := range map[string][]string{
		"docs/operating.md": {
			fmt.Sprintf("| %d KiB queued and %d KiB being written", maxWrite>>10, maxWrite>>10),
			fmt.Sprintf("| %d KiB; %d KiB |", maxEvent>>10, maxWrite>>10),
			fmt.Sprintf("| one write of any other response | %d KiB:", connection.MaxChunk>>10),
			fmt.Sprintf("| %d MiB; beyond that", maxJSONResponse>>20),
			fmt.Sprintf("| %d problems |", chatbody.MaxProblems),
			fmt.Sprintf("of the bytes that have arrived, and %d KiB", readtext.ChunkBytes>>10),
			fmt.Sprintf("| %d MiB or %.0f seconds, read and discarded", discardBytes>>20, discardTime.Seconds()),
			fmt.Sprintf("| %d,000 levels |", jsonscan.MaxDepth/1000),
			fmt.Sprintf("| %d,000, about", cachedKeys/1000),
		},
		"docs/wire.md": {
			fmt.Sprintf("up to %d MiB or %.0f seconds", discardBytes>>20, discardTime.Seconds()),
			fmt.Sprintf("longer than %d MiB is a 500", maxJSONResponse>>20),
			fmt.Sprintf("at most %d KiB a write", maxWrite>>10),
			fmt.Sprintf("at most %d KiB long", maxEvent>>10),
			fmt.Sprintf("up to %d, in the form", chatbody.MaxProblems),
			fmt.Sprintf("more than %d,000 levels", jsonscan.MaxDepth/1000),
		},
		"README.md": {fmt.Sprintf("buffers %d KiB at most", 2*maxWrite>>10)},
	} {
		text := strings.Join(strings.Fields(readDocument(t, document)), " ")
		for _, bound := range bounds {
			is.True(strings.Contains(text, bound)) // the document states this bound
		}
	}
}

// packageSource returns the code of the package and of those below internal/, without
// tests.
func packageSource(t *testing.T) (source string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	is.New(t).NoErr(err)
	below, err := filepath.Glob("internal/*/*.go")
	is.New(t).NoErr(err)
	for _, file := range append(files, below...) {
		if !strings.HasSuffix(file, "_test.go") {
			source += readDocument(t, file)
		}
	}
	return source
}

// TestDocumentedLinks checks the links of the documents within the repository: files,
// headings, pictures, and tests in the file of their link.
func TestDocumentedLinks(t *testing.T) {
	is := is.New(t)
	others, err := filepath.Glob("examples/*/README.md")
	is.NoErr(err)
	others = append(others, "examples/quickstart/browser/README.md", "testdata/wire/README.md", "examples/README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
	proofs := 0
	for _, document := range append(others, documents...) {
		for _, link := range linkTarget.FindAllStringSubmatch(readDocument(t, document), -1) {
			test, target := link[1], link[2]+link[3]
			file, heading, _ := strings.Cut(target, "#")
			if strings.HasPrefix(file, "https://") {
				continue
			}
			if file = filepath.Join(filepath.Dir(document), file); strings.HasPrefix(target, "#") {
				file = document
			}
			_, err := os.Stat(file)
			is.NoErr(err)
			if heading != "" {
				is.True(slices.Contains(anchors(readDocument(t, file)), "#"+heading)) // the file has this heading
			}
			if test != "" {
				proofs++
				is.True(strings.Contains(readDocument(t, file), "\nfunc "+test+"(")) // the file has this test
			}
		}
	}
	is.True(proofs > 5)
	is.Equal(proofs, len(regexp.MustCompile("`(Test|Fuzz|Benchmark)[A-Z]").FindAllString(readDocument(t, "README.md"), -1))) // each test in the README is a link
}

var linkTarget = regexp.MustCompile("(?:\\[`((?:Test|Fuzz|Benchmark)[A-Za-z]+)`)?\\]\\(([^)]*)\\)|(?:src|href)=\"([^\"]*)\"")

func anchors(text string) (anchors []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		words := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		anchors = append(anchors, "#"+strings.ReplaceAll(words, " ", "-"))
	}
	return anchors
}

// A levelLog records the level of each message.
type levelLog struct {
	slog.Handler
	t *testing.T

	mu     sync.Mutex
	levels map[string]string
}

func (l *levelLog) Handle(ctx context.Context, r slog.Record) error {
	if ctx.Value(applicationKey{}) != "the application's" || AccountFrom(ctx) != testAccount || RequestIDFrom(ctx) == "" {
		l.t.Error("logged without the request's context: ", r.Message)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.levels[r.Message] = strings.ToLower(r.Level.String())
	return nil
}

// TestDocumentedLog compares the messages in the documents with those in the package's code,
// makes the handler log each of them, and checks its level and its context.
func TestDocumentedLog(t *testing.T) {
	quoted := regexp.MustCompile("`([^`]+)`")
	want := make(map[string]string) // levels, as log/slog names them
	for _, row := range rows(t, "docs/operating.md") {
		if level := map[string]string{"error": "error", "warning": "warn", "info": "info"}[row[0]]; level != "" {
			for _, message := range quoted.FindAllStringSubmatch(row[1], -1) {
				want[message[1]] = level
			}
		}
	}
	inCode := make(map[string]bool)
	for _, call := range regexp.MustCompile(`\.(?:log|callBack)\([^"\n]*"([^"]+)"`).FindAllStringSubmatch(packageSource(t), -1) {
		inCode[call[1]] = true
	}
	is.New(t).Equal(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(inCode)))
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		log := &levelLog{Handler: o.Logger.Handler(), t: t, levels: make(map[string]string)}
		o.Logger, o.ChatTimeout = slog.New(log), time.Second
		serve := func(w http.ResponseWriter, stream bool) {
			serveOn(w, withApplicationValue(New(o)), chatBodyJSON("hi", stream))
		}
		says := func(text string, err error) ChatEngine {
			return engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				_ = yield(text, nil) && yield("", err)
			})
		}
		o.Engine = says("", errBroken)
		serve(httptest.NewRecorder(), false)
		serve(httptest.NewRecorder(), true)
		o.Engine = says("", StatusError{Status: 429, Detail: "Slow down", Err: errBroken})
		serve(httptest.NewRecorder(), false)
		o.Engine = fragmentsOf("ok")
		serve(struct{ http.ResponseWriter }{httptest.NewRecorder()}, true)
		serve(&faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", fault: func() error { panic("a bug") }}, true)
		o.Bots = &fakeStore{bots: func(context.Context) ([]Bot, error) { return []Bot{{UID: "1", Slug: "two words"}}, nil }}
		serveRequest(httptest.NewRecorder(), withApplicationValue(New(o)), newRequest("GET", "/v1/bots", nil))
		o.Bots = testOptions(t, io.Discard).Bots
		o.OnChat = func(context.Context, ChatReport) { panic("a bug") }
		serve(httptest.NewRecorder(), false)
		o.OnChat = nil
		o.OnRequest = func(context.Context, RequestReport) { panic("a bug") }
		o.Routes = []Route{{
			Patterns: []string{"GET /broken"},
			Serve:    func(*http.Request) (Response, error) { return nil, errBroken },
			Errors:   func(context.Context, Failure) Reply { panic("a bug") },
		}}
		serveRequest(httptest.NewRecorder(), withApplicationValue(New(o)), newRequest("GET", "/broken", nil))
		o.OnRequest, o.Routes = nil, nil
		(&lineFormat{before: func(method string) error {
			if method == "AppendError" {
				panic("a bug")
			}
			return nil
		}}).in(&o)
		o.Engine = says("ok", errBroken)
		serveRequest(httptest.NewRecorder(), withApplicationValue(New(o)), newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", true))))
		o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
			time.Sleep(time.Minute)
			panic("after the answer")
		})
		serve(httptest.NewRecorder(), false)
		time.Sleep(time.Hour)
		log.mu.Lock()
		defer log.mu.Unlock()
		is.Equal(log.levels, want)
	})
}

// TestDocumentedEndings compares the table of the endings with the one that decides.
func TestDocumentedEndings(t *testing.T) {
	names := map[error]string{ErrClientLeft: "`ErrClientLeft`", ErrClientStalled: "`ErrClientStalled`", ErrChatTimeout: "`ErrChatTimeout`", ErrEngineStalled: "`ErrEngineStalled`"}
	want := [][]string{}
	for kind := kindFailed; int(kind) < len(outcomes); kind++ {
		o := outcomes[kind]
		row := []string{o.name, "its own status", "error event, aborted", "by its status", cmp.Or(names[o.err], "the application's error")}
		if o.response.Status != 0 {
			row[1] = fmt.Sprint(o.response.Status)
		}
		if o.response.Status >= 500 {
			row[3] = "error"
		}
		if !o.tells {
			row[1], row[2], row[3] = "aborted", "aborted", "no"
		}
		want = append(want, row)
	}
	all := rows(t, "docs/operating.md")
	first := slices.IndexFunc(all, func(row []string) bool { return row[0] == "failed" })
	is.New(t).Equal(all[first:first+len(want)], want)
}
