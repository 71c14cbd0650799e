package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/postgrestest"
)

// patience is the longest that a test waits. It only matters when a test fails.
const patience = 30 * time.Second

// A process is a running replica.
type process struct {
	url      string
	internal string // for probes and Prometheus
	env      []string
	args     []string
	log      logtest.Log
	stderr   io.Writer // instead of log, if it is not nil
	cmd      *exec.Cmd
	exit     chan error
}

// serve starts a replica on free ports, and ends it with the test.
func serve(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	return serveTo(t, nil, env, args...)
}

// serveTo starts a replica that logs to a writer.
func serveTo(t testing.TB, stderr io.Writer, env []string, args ...string) *process {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))
	internal := fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))
	p := &process{
		url:      "http://" + address,
		internal: "http://" + internal,
		env:      env,
		stderr:   stderr,
		args:     append([]string{"serve", "--listen", address, "--internal-listen", internal, "--drain-delay", "0s"}, args...),
	}
	p.start(t)
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.exit
	})
	return p
}

// start starts the replica, also after it has ended, at the same address.
func (p *process) start(t testing.TB) {
	t.Helper()
	p.cmd = exec.Command(binary, p.args...)
	p.cmd.Env, p.cmd.Stderr = only(p.env), &p.log
	if p.stderr != nil {
		p.cmd.Stderr = p.stderr
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exit := make(chan error, 1)
	p.exit = exit
	go func() {
		exit <- p.cmd.Wait()
		close(exit)
	}()
}

func (p *process) terminate(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// wait waits for the replica to exit cleanly.
func (p *process) wait(t testing.TB) {
	t.Helper()
	select {
	case err := <-p.exit:
		if err != nil {
			t.Fatalf("the replica ended with %v\n%s", err, p.log.String())
		}
	case <-time.After(patience):
		t.Fatalf("the replica did not end\n%s", p.log.String())
	}
}

// ready waits until the replica is ready.
func (p *process) ready(t testing.TB) {
	t.Helper()
	eventually(t, p.url+" is ready", func() bool { return p.readiness() == http.StatusOK })
}

// readiness is the status of /readyz.
func (p *process) readiness() int { return statusOf(p.internal + "/readyz") }

// statusOf is the status of a response, 0 if there was none.
func statusOf(url string) int {
	response, err := http.Get(url)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// logged returns the log lines with this message.
func (p *process) logged(t testing.TB, message string) (lines []map[string]any) {
	t.Helper()
	for text := range strings.Lines(p.log.String()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("a log line is not JSON: %q", text)
		}
		if line["msg"] == message {
			lines = append(lines, line)
		}
	}
	return lines
}

// eventually waits until so returns true, as long as patience lasts.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !so() {
		select {
		case <-ctx.Done():
			t.Fatalf("not true after %v: %s", patience, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// createKey creates a key with the command.
func createKey(t testing.TB, env []string) string {
	t.Helper()
	return createKeyOf(t, env, "acme")
}

func createKeyOf(t testing.TB, env []string, account string) string {
	t.Helper()
	r := command(t, "", env, "keys", "create", "--account", account)
	if r.code != 0 {
		t.Fatal(r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// importBots imports bots with the command.
func importBots(t testing.TB, env []string, bots string) {
	t.Helper()
	if r := command(t, bots, env, "bots", "import", "-"); r.code != 0 {
		t.Fatal(r.stderr)
	}
}

// withOneBot returns the environment of a fresh database with a bot and a key.
func withOneBot(t testing.TB) (env []string, key string) {
	t.Helper()
	return withOneBotAt(t, postgrestest.Database(t))
}

func withOneBotAt(t testing.TB, url string) (env []string, key string) {
	t.Helper()
	env = migratedAt(t, url)
	importBots(t, env, oneBot)
	return env, createKey(t, env)
}

// serveAll starts all replicas, with the same settings.
func serveAll(t testing.TB, env []string, args ...string) (running []*process) {
	t.Helper()
	for range replicas {
		p := serve(t, env, args...)
		p.ready(t)
		running = append(running, p)
	}
	return running
}

// request sends a request with a key.
func request(ctx context.Context, client *http.Client, key, method, url, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	return client.Do(r)
}

// chatBody is the body of a chat with the bot of oneBot.
func chatBody(prompt string, stream bool) string {
	return fmt.Sprintf(`{"bot_slug":"helper","prompt":%q,"stream":%t}`, prompt, stream)
}

// ask sends a request and returns the complete response.
func ask(t testing.TB, key, method, url, body string) (status int, answer string) {
	t.Helper()
	response, err := request(t.Context(), http.DefaultClient, key, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// stop stops the answer under an Idempotency-Key.
func stop(t testing.TB, key, url, idempotency string) (status int) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), "DELETE", url+"/v1/answers?SECRET", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Idempotency-Key", idempotency)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return response.StatusCode
}

// A stream is a chat whose events are read one by one.
type stream struct {
	lines *bufio.Scanner
	body  io.Closer
}

func openStream(t testing.TB, key, url string) stream {
	t.Helper()
	return openStreamOf(t, key, url, "Hi")
}

func openStreamOf(t testing.TB, key, url, prompt string) stream {
	t.Helper()
	response, err := request(t.Context(), http.DefaultClient, key, "POST", url+"/v1/chat", `{"bot_slug":"helper","prompt":"`+prompt+`","stream":true,"user_id":"u-42"}`)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", response.StatusCode)
	}
	return stream{bufio.NewScanner(response.Body), response.Body}
}

// next returns the data of the next event, empty at the end.
func (s stream) next() string {
	for s.lines.Scan() {
		if data, ok := strings.CutPrefix(s.lines.Text(), "data: "); ok {
			return data
		}
	}
	return ""
}
