package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/matryer/is"
)

// installNode installs the libraries at the versions in package-lock.json, once.
func installNode(t *testing.T) { install(t, installed) }

func install(t *testing.T, installed func() error) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	if err := installed(); err != nil {
		t.Fatal(err)
	}
}

var (
	installed        = npmCI("node")
	earlierInstalled = npmCI("node/earlier")
)

func npmCI(folder string) func() error {
	return sync.OnceValue(func() error {
		install := exec.Command("npm", "ci", "--no-audit", "--no-fund")
		install.Dir = folder
		if output, err := install.CombinedOutput(); err != nil {
			return fmt.Errorf("npm ci in %s: %w\n%s", folder, err, output)
		}
		return nil
	})
}

// A nodeError is an error of a library for Node.js.
type nodeError struct {
	Status  int
	Message string
}

func (e *nodeError) Error() string { return e.Message }

// A reply is a line that node/main.js prints.
type reply struct {
	Models  []string
	Text    *string
	Endings []string
	Error   *nodeError
	Done    bool
}

// The next turn of a conversation has the answer of the one before, as each library keeps
// it.
func TestNextTurn(t *testing.T) {
	n, s := startNode(t), newService(t)
	testNextTurn(t, n, s, "openai", "openai-responses", "ai-sdk-compatible", "ai-sdk-chat", "ai-sdk-stateless",
		"langchain", "langchain-responses", "agents-chat", "agents-responses", "xsai")
	t.Run("of a stored answer", func(t *testing.T) {
		is := is.New(t)
		err := n.do(t.Context(), []string{"ai-sdk-responses", s.url, key, "helper"}, "continue", []string{"say Hello", "before"}, func(reply) {})
		is.True(err != nil)
		is.True(strings.Contains(err.Error(), "store: false"))
	})
}

func TestNextTurnOfEarlierClients(t *testing.T) {
	testNextTurn(t, startEarlier(t), newService(t), "openai-4", "openai-4-responses", "openai-5", "openai-5-responses", "openai-6", "openai-6-responses",
		"ai-sdk-4-compatible", "ai-sdk-4-chat", "ai-sdk-4-responses", "ai-sdk-5-compatible", "ai-sdk-5-chat", "ai-sdk-5-responses",
		"ai-sdk-6-compatible", "ai-sdk-6-chat", "ai-sdk-6-responses")
}

func testNextTurn(t *testing.T, n *node, s *service, libraries ...string) {
	t.Helper()
	for _, library := range libraries {
		t.Run(library, func(t *testing.T) {
			is := is.New(t)
			text := ""
			is.NoErr(n.do(t.Context(), []string{library, s.url, key, "helper"}, "continue", []string{"say Hello", "before"}, func(line reply) { text += *line.Text }))
			is.Equal(text, "say Hello/Hello")
		})
	}
}

// The programs of the README answer when they are pasted.
func TestREADME(t *testing.T) {
	installNode(t)
	s := newService(t)
	readme, err := os.ReadFile("../README.md")
	is.New(t).NoErr(err)
	programs := strings.Split(string(readme), "\n```js\n")[1:]
	is.New(t).Equal(len(programs), 3)
	for i, program := range programs {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			is := is.New(t)
			program, _, _ := strings.Cut(program, "\n```")
			program = strings.NewReplacer("http://127.0.0.1:8080/v1", s.url, "my-key", key, "llama", "helper", "A story, please", "say Once upon a time").Replace(program)
			node := exec.CommandContext(t.Context(), "node", "--input-type=module")
			node.Dir, node.Stdin, node.Stderr = "node", strings.NewReader(program), t.Output()
			said, err := node.Output()
			is.NoErr(err)
			is.Equal(string(said), "Once upon a time")
		})
	}
}

// A node is a process of Node.js with the libraries. It runs one command at a time, and
// ends with its test.
type node struct {
	in    io.Writer
	lines *json.Decoder
}

// startNode starts a process, with the libraries at the versions in package-lock.json.
func startNode(t *testing.T) *node {
	t.Helper()
	return startClients(t, "./clients.js")
}

// startEarlier starts a process with earlier versions of the libraries.
func startEarlier(t *testing.T) *node {
	t.Helper()
	install(t, earlierInstalled)
	return startClients(t, "./earlier/clients.js")
}

func startClients(t *testing.T, module string) *node {
	t.Helper()
	installNode(t)
	command := exec.CommandContext(t.Context(), "node", "main.js", module)
	command.Dir, command.Stderr = "node", t.Output()
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = command.Wait()
	})
	return &node{in, json.NewDecoder(bufio.NewReader(out))}
}

// do runs a command of a client, and calls each for every line but the last.
func (n *node) do(ctx context.Context, client []string, what string, prompts []string, each func(reply)) error {
	command := map[string]any{"client": client, "do": what}
	for i, name := range []string{"prompt", "next"}[:len(prompts)] {
		command[name] = prompts[i]
	}
	if err := json.NewEncoder(n.in).Encode(command); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _, _ = io.WriteString(n.in, `{"do":"abort"}`+"\n") })()
	for {
		var line reply
		if err := n.lines.Decode(&line); err != nil {
			return fmt.Errorf("node ended: %w", err)
		}
		switch {
		case line.Error != nil:
			return line.Error
		case line.Done:
			return ctx.Err() // some libraries end an aborted stream without an error
		}
		each(line)
	}
}

// client returns a constructor of clients that use a library.
func (n *node) client(library string) func(url, key, model string) client {
	return func(url, key, model string) client {
		do := func(ctx context.Context, what, prompt string, each func(reply)) error {
			return n.do(ctx, []string{library, url, key, model}, what, []string{prompt}, each)
		}
		c := client{
			ask: func(ctx context.Context, prompt string) (text string, err error) {
				err = do(ctx, "ask", prompt, func(line reply) { text += *line.Text })
				return text, err
			},
			stream: func(ctx context.Context, prompt string, emit func(string)) error {
				return do(ctx, "stream", prompt, func(line reply) { emit(*line.Text) })
			},
			useTool: func(ctx context.Context, prompt string) error {
				return do(ctx, "useTool", prompt, func(reply) {})
			},
			details: func(err error) (int, string) {
				if e, ok := err.(*nodeError); ok {
					return e.Status, e.Message
				}
				return 0, err.Error()
			},
		}
		if strings.HasPrefix(library, "ai-sdk") || library == "xsai" { // the others do not say
			c.endings = func(ctx context.Context, prompt string) (endings []string, err error) {
				err = do(ctx, "endings", prompt, func(line reply) { endings = line.Endings })
				return endings, err
			}
		}
		if strings.HasPrefix(library, "openai") && !strings.HasSuffix(library, "helpers") || library == "xsai" { // the others cannot list models
			c.models = func(ctx context.Context) (ids []string, err error) {
				err = do(ctx, "models", "", func(line reply) { ids = line.Models })
				return ids, err
			}
		}
		return c
	}
}
