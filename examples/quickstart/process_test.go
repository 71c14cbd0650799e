package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is the path of the program, built once for all tests.
var binary string

func TestMain(m *testing.M) {
	os.Exit(withBinary(m.Run))
}

func withBinary(run func() int) int {
	dir, err := os.MkdirTemp("", "quickstart")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "quickstart")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the quickstart: %v\n%s", err, out)
		return 1
	}
	return run()
}

// A process is a running quickstart that listens on a free port.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	base     string
	key      string
	commands []string          // that it has printed
	urls     map[string]string // base URLs, by the client for which it has printed them
	log      *bufio.Scanner
}

// start returns when the process accepts connections. It kills a process that
// hangs, so that the test fails instead of waiting forever.
func start(t *testing.T, environment []string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	p := &process{t: t, cmd: exec.CommandContext(ctx, binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...)}
	p.cmd.Env = append(os.Environ(), append([]string{"BOTAPI_KEY="}, environment...)...)
	stdout := p.pipe(p.cmd.StdoutPipe())
	p.log = bufio.NewScanner(p.pipe(p.cmd.StderrPipe()))
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = p.cmd.Wait() // it has exited, or is killed now
	})
	p.readAnnouncement(bufio.NewScanner(stdout))
	return p
}

func (p *process) pipe(r io.ReadCloser, err error) io.Reader {
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *process) readAnnouncement(output *bufio.Scanner) {
	p.t.Helper()
	p.urls = make(map[string]string)
	for p.urls["Ollama"] == "" && output.Scan() {
		if p.base == "" {
			var bots int
			if _, err := fmt.Sscanf(output.Text(), "Serving %d bots at %s with the key %s", &bots, &p.base, &p.key); err != nil {
				p.t.Fatalf("%q: %v", output.Text(), err)
			}
		}
		if strings.HasPrefix(output.Text(), "curl ") {
			p.commands = append(p.commands, output.Text())
		}
		if client, url, _ := strings.Cut(output.Text(), " "); len(p.commands) == 3 {
			p.urls[client] = strings.TrimSpace(url)
		}
	}
	if p.urls["Ollama"] == "" {
		p.t.Fatalf("the process exited before it printed all addresses: %s", p.restOfLog())
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// awaitLog returns the next log line that contains the text.
func (p *process) awaitLog(text string) string {
	p.t.Helper()
	for p.log.Scan() {
		if strings.Contains(p.log.Text(), text) {
			return p.log.Text()
		}
	}
	p.t.Fatalf("the log ended without %q", text)
	return ""
}

func (p *process) restOfLog() string {
	var rest strings.Builder
	for p.log.Scan() {
		rest.WriteString(p.log.Text() + "\n")
	}
	return rest.String()
}

// exitCode waits until the process exits.
func (p *process) exitCode() int {
	p.t.Helper()
	_ = p.restOfLog()
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}
