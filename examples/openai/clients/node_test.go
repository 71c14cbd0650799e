package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"testing"
)

// installNode installs the libraries at the versions in package-lock.json, once.
func installNode(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	if err := installed(); err != nil {
		t.Fatal(err)
	}
}

var installed = sync.OnceValue(func() error {
	install := exec.Command("npm", "ci", "--no-audit", "--no-fund")
	install.Dir = "node"
	if output, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci: %w\n%s", err, output)
	}
	return nil
})

// A nodeError is an error of a library for Node.js.
type nodeError struct {
	Status  int
	Message string
}

func (e *nodeError) Error() string { return e.Message }

// A reply is a line that node/main.js prints.
type reply struct {
	Models []string
	Text   *string
	Error  *nodeError
	Done   bool
}

// inNode returns a constructor of clients that use a library for Node.js. Each client is
// a process of its own, which ends with the test.
func inNode(t *testing.T, library string) func(url, key string) client {
	return func(url, key string) client {
		node := exec.CommandContext(t.Context(), "node", "main.js", library, url, key, "helper")
		node.Dir, node.Stderr = "node", t.Output()
		in, err := node.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := node.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			_ = node.Wait()
		})
		lines := json.NewDecoder(bufio.NewReader(out))
		do := func(ctx context.Context, what, prompt string, each func(reply)) error {
			if err := json.NewEncoder(in).Encode(map[string]string{"do": what, "prompt": prompt}); err != nil {
				return err
			}
			defer context.AfterFunc(ctx, func() { _, _ = io.WriteString(in, `{"do":"abort"}`+"\n") })()
			for {
				var line reply
				if err := lines.Decode(&line); err != nil {
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
		c := client{
			ask: func(ctx context.Context, prompt string) (text string, err error) {
				err = do(ctx, "ask", prompt, func(line reply) { text += *line.Text })
				return text, err
			},
			stream: func(ctx context.Context, prompt string, emit func(string)) error {
				return do(ctx, "stream", prompt, func(line reply) { emit(*line.Text) })
			},
			details: func(err error) (int, string) {
				if e, ok := err.(*nodeError); ok {
					return e.Status, e.Message
				}
				return 0, err.Error()
			},
		}
		if library == "openai" { // the others cannot list models
			c.models = func(ctx context.Context) (ids []string, err error) {
				err = do(ctx, "models", "", func(line reply) { ids = line.Models })
				return ids, err
			}
		}
		return c
	}
}
