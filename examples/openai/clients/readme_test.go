package clients

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestProjectREADME runs the program with a model of the project's README, in a module of
// its own as the README says, and its program of a client.
func TestProjectREADME(t *testing.T) {
	installNode(t)
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Role()
		s.Text("I am ")
		s.Text("a llama.")
		s.Stop()
		s.Usage(11, 4)
		s.Done()
	})
	readme, err := os.ReadFile("../../../README.md")
	is.NoErr(err)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	address := free.Addr().String()
	is.NoErr(free.Close())
	block := func(language, contains string) string {
		for _, found := range regexp.MustCompile("(?s)```"+language+"\n(.*?)\n```").FindAllStringSubmatch(string(readme), -1) {
			if strings.Contains(found[1], contains) {
				return strings.NewReplacer("http://127.0.0.1:11434/v1", runtime.URL, "127.0.0.1:8080", address).Replace(found[1])
			}
		}
		t.Fatal("the README has no such program: ", contains)
		return ""
	}

	app := t.TempDir()
	is.NoErr(os.WriteFile(filepath.Join(app, "main.go"), []byte(block("go", "openai.NewEngine(")), 0o600))
	here, err := filepath.Abs("../../..")
	is.NoErr(err)
	for _, arguments := range []string{
		"mod init app", "mod edit -require=example.com/botapi@v0.0.0 -replace=example.com/botapi=" + here, "mod tidy", "build -o program .",
	} {
		command := exec.Command("go", strings.Fields(arguments)...)
		command.Dir, command.Env = app, append(os.Environ(), "GOWORK=off")
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", arguments, err, output)
		}
	}
	program := exec.Command(filepath.Join(app, "program"))
	log, err := program.StderrPipe()
	is.NoErr(err)
	is.NoErr(program.Start())
	t.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait() // an error, since it was killed
	})
	ready := exec.Command("curl", "-s", "--retry", "100", "--retry-delay", "1", "--retry-connrefused", "-o", "page.html", "http://"+address+"/")
	ready.Dir = app
	is.NoErr(ready.Run())

	client := filepath.Join("node", "node_modules", "readme.mjs") // beside the libraries, and not in git
	is.NoErr(os.WriteFile(client, []byte(block("js", "openai")), 0o600))
	t.Cleanup(func() { _ = os.Remove(client) })
	node := exec.Command("node", client)
	node.Stderr = t.Output()
	printed, err := node.Output()
	is.NoErr(err)
	is.Equal(string(printed), "I am a llama.")
	line, err := bufio.NewReader(log).ReadString('\n')
	is.NoErr(err)
	is.True(strings.HasSuffix(line, " me used 11 and 4 tokens\n"))

	page, err := http.Get("http://" + address + "/")
	is.NoErr(err)
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	is.NoErr(err)
	is.True(strings.Contains(string(text), "<title>Bots</title>"))
}
