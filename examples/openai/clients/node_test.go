package clients

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"testing"
)

// installNode installs the libraries at the versions in package-lock.json.
func installNode(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed: the clients for Node.js are not tested")
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund")
	install.Dir = "node"
	if said, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, said)
	}
}

// A nodeError is an error as a client in Node.js has it.
type nodeError struct {
	Status  int
	Message string
}

func (e *nodeError) Error() string { return e.Message }

// told is a line that node/main.js says.
type told struct {
	Models []string
	Text   *string
	Error  *nodeError
	Done   bool
}

// inNode returns a maker of clients of a library in Node.js: each is a process of
// its own, which ends with the test.
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
		do := func(ctx context.Context, what, prompt string, each func(told)) error {
			if err := json.NewEncoder(in).Encode(map[string]string{"do": what, "prompt": prompt}); err != nil {
				return err
			}
			defer context.AfterFunc(ctx, func() { _, _ = io.WriteString(in, `{"do":"leave"}`+"\n") })()
			for {
				var line told
				if err := lines.Decode(&line); err != nil {
					return fmt.Errorf("node ended: %w", err)
				}
				switch {
				case line.Error != nil:
					return line.Error
				case line.Done:
					return ctx.Err() // some libraries end a stream that was aborted as if it were whole
				}
				each(line)
			}
		}
		c := client{
			ask: func(ctx context.Context, prompt string) (text string, err error) {
				err = do(ctx, "ask", prompt, func(line told) { text += *line.Text })
				return text, err
			},
			stream: func(ctx context.Context, prompt string, emit func(string)) error {
				return do(ctx, "stream", prompt, func(line told) { emit(*line.Text) })
			},
			refusal: func(err error) (int, string) {
				if refused, ok := err.(*nodeError); ok {
					return refused.Status, refused.Message
				}
				return 0, err.Error()
			},
		}
		if library == "openai" { // the others have no list
			c.models = func(ctx context.Context) (ids []string, err error) {
				err = do(ctx, "models", "", func(line told) { ids = line.Models })
				return ids, err
			}
		}
		return c
	}
}
