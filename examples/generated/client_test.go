package generated

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

// TestDocumentLints runs Redocly CLI with its strict rules.
func TestDocumentLints(t *testing.T) {
	installTypeScript(t)
	t.Log(run(t, "typescript", "npm", "run", "lint"))
}

// TestGeneratedGoClients generates clients with oapi-codegen and ogen, and runs them
// against the quickstart and against an engine with all kinds of failures.
func TestGeneratedGoClients(t *testing.T) {
	run(t, "go", "go", "generate", "./...")
	run(t, "go", "go", "mod", "tidy", "-diff")
	run(t, "go", "go", "vet", "./...")
	for _, generator := range []string{"oapi-codegen", "ogen"} {
		program := filepath.Join(t.TempDir(), generator)
		run(t, "go", "go", "build", "-o", program, "./"+generator)
		t.Run(generator, func(t *testing.T) { testGeneratedClient(t, program) })
	}
}

// TestGeneratedTypeScriptClients does the same with openapi-typescript and
// hey-api.
func TestGeneratedTypeScriptClients(t *testing.T) {
	installTypeScript(t)
	run(t, "typescript", "npm", "run", "generate")
	run(t, "typescript", "npm", "run", "build")
	for _, program := range []string{"openapi-fetch", "hey-api"} {
		t.Run(program, func(t *testing.T) { testGeneratedClient(t, "npm", "run", "--silent", program, "--") })
	}
}

// testGeneratedClient runs a program with a generated client. The program prints the
// responses.
func testGeneratedClient(t *testing.T, program string, arguments ...string) {
	t.Run("the quickstart", func(t *testing.T) {
		is := is.New(t)
		output := run(t, "typescript", program, append(arguments, startQuickstart(t), key, "I am tired", "Goodbye")...)
		is.Equal(strings.Split(strings.TrimSpace(output), "\n"), []string{
			`bots: Mira without a picture, Juniper without a picture`,
			`answer: What has taken so much out of you?`,
			`stream: Goodbye. Be kind to yourself.`,
			`wrong key: 401 Invalid API key`,
			`no bot: 404 Bot not found`,
			`too large: 413 Request body too large`,
			`invalid: 422 ["body","__root__"] Either "prompt" or "messages" is required`,
		})
	})
	t.Run("failures", func(t *testing.T) {
		is := is.New(t)
		server := serve(t, botapi.Options{ChatTimeout: 3 * time.Second})
		output := run(t, "typescript", program, append(arguments, server.URL, key, "Hello", "fail halfway",
			"be busy", "be full", "be invalid", "fail", "wait", "be closed")...)
		is.Equal(strings.Split(strings.TrimSpace(output), "\n"), []string{
			`bots: Echo https://bots.example.org/echo.png, Other without a picture`,
			`answer: Hello`,
			`stream: "half", then 500 Internal Server Error`,
			`wrong key: 401 Invalid API key`,
			`no bot: 404 Bot not found`,
			`too large: 413 Request body too large`,
			`invalid: 422 ["body","__root__"] Either "prompt" or "messages" is required`,
			`be busy: 429 One at a time`,
			`be full: 503 The museum is full`,
			`be invalid: 422 ["body","colour"] no such colour`,
			`fail: 500 Internal Server Error`,
			`wait: 504 The answer took too long`,
			`be closed: 418 The museum is closed today`,
		})
	})
}

// startQuickstart starts a quickstart with the key and returns its URL.
func startQuickstart(t *testing.T) (url string) {
	t.Helper()
	is := is.New(t)
	program := filepath.Join(t.TempDir(), "quickstart")
	run(t, "../..", "go", "build", "-o", program, "./examples/quickstart")
	bots := filepath.Join(t.TempDir(), "bots.json")
	is.NoErr(os.WriteFile(bots, []byte(`[
		{"uid": "1", "slug": "mira", "name": "Mira", "model": "eliza-listener"},
		{"uid": "2", "slug": "juniper", "name": "Juniper", "model": "eliza-gardener"}]`), 0o600))
	quickstart := exec.CommandContext(t.Context(), program, "-addr", "127.0.0.1:0", "-pace", "0", "-bots", bots)
	quickstart.Env = append(os.Environ(), "BOTAPI_KEY="+key)
	output, err := quickstart.StdoutPipe()
	is.NoErr(err)
	is.NoErr(quickstart.Start())
	t.Cleanup(func() { _ = quickstart.Wait() }) // the process is killed when the test's context ends
	line, err := bufio.NewReader(output).ReadString('\n')
	is.NoErr(err)
	_, err = fmt.Sscanf(line, "Serving 2 bots at %s with the key "+key, &url)
	is.NoErr(err)
	return url
}

// installTypeScript installs the packages of package-lock.json, once for all tests.
func installTypeScript(t *testing.T) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	if run(t, "typescript", "node", "--print", newEnough) != "true\n" {
		t.Skip("Node.js is older than 20.19")
	}
	if !installed {
		run(t, "typescript", "npm", "ci")
		installed = true
	}
}

var installed bool

const newEnough = `const [major, minor] = process.versions.node.split(".").map(Number); major > 20 || major === 20 && minor >= 19`

// run runs a program in a directory and returns what it prints.
func run(t *testing.T, directory, program string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	command.Dir = directory
	var stderr strings.Builder
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, output, &stderr)
	}
	return string(output)
}
