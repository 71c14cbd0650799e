package openapi

import (
	"os/exec"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/matryer/is"
)

// TestDocumentLints runs Redocly CLI with its strict rules.
func TestDocumentLints(t *testing.T) {
	installClient(t)
	t.Log(run(t, "npm", "run", "lint"))
}

// TestGeneratedClient generates a client, compiles it, and has it talk to the
// real handler.
func TestGeneratedClient(t *testing.T) {
	is := is.New(t)
	installClient(t)
	run(t, "npm", "run", "generate")
	run(t, "npm", "run", "build")
	server := serve(t, botapi.Options{})

	said := run(t, "node", "dist/main.js", server.URL, key)
	is.Equal(strings.Split(strings.TrimSpace(said), "\n"), []string{
		`bots: Echo, Other`,
		`answer: { content: 'Hello' }`,
		`refused: 422 {"detail":[{"loc":["body","__root__"],"msg":"Either \"prompt\" or \"messages\" is required","type":"value_error"}]}`,
		`stream: Hello again`,
	})
}

// installClient installs what package-lock.json names, once for the tests.
func installClient(t *testing.T) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed: neither the linter nor the generated client is tried", program)
		}
	}
	if run(t, "node", "--print", newEnough) != "true\n" {
		t.Skip("Node.js is older than 20.19: neither the linter nor the generated client is tried")
	}
	if !installed {
		run(t, "npm", "ci")
		installed = true
	}
}

var installed bool

const newEnough = `const [major, minor] = process.versions.node.split(".").map(Number); major > 20 || major === 20 && minor >= 19`

// run runs a program in the client's directory and returns what it prints.
func run(t *testing.T, program string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	command.Dir = "client"
	var failures strings.Builder
	command.Stderr = &failures
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", command, err, output, &failures)
	}
	return string(output)
}
