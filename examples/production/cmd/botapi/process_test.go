package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/jackc/pgx/v5"
)

// nowhere is a runtime that refuses connections, for replicas that need none.
const nowhere = "local=http://127.0.0.1:1/v1"

// patience is the longest that a test waits.
const patience = faulttest.Patience

var eventually = faulttest.Eventually

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

// serve starts a replica on free ports, waits until it is ready, and ends it with
// the test.
func serve(t testing.TB, env []string, args ...string) *process {
	t.Helper()
	p := serveTo(t, nil, env, args...)
	p.ready(t)
	return p
}

// serveTo starts a replica that logs to a writer, and does not wait for it.
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

// end ends the replica, which exits cleanly.
func (p *process) end(t testing.TB) {
	t.Helper()
	p.terminate(t)
	p.wait(t)
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

// measures reports whether each of these expressions matches the beginning of a line of
// the replica's metrics.
func (p *process) measures(t testing.TB, expressions ...string) bool {
	t.Helper()
	metrics := scrape(t, p)
	return !slices.ContainsFunc(expressions, func(e string) bool { return !regexp.MustCompile("(?m)^" + e).MatchString(metrics) })
}

// createKey creates a key of an account with the command.
func createKey(t testing.TB, env []string, account string) string {
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
	return env, createKey(t, env, "acme")
}

// serveOneBot starts a replica with a fresh database, which has a bot and a key.
func serveOneBot(t testing.TB, args ...string) (p *process, key string) {
	t.Helper()
	env, key := withOneBot(t)
	return serve(t, env, args...), key
}

// serveAll starts all replicas, with the same settings.
func serveAll(t testing.TB, env []string, args ...string) (running []*process) {
	t.Helper()
	for range replicas {
		running = append(running, serve(t, env, args...))
	}
	return running
}

// request sends a request with a key, and with headers: pairs of name and value. An
// empty value is no header.
func request(ctx context.Context, client *http.Client, key, method, url, body string, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	for pair := range slices.Chunk(headers, 2) {
		if pair[1] != "" {
			r.Header.Set(pair[0], pair[1])
		}
	}
	return client.Do(r)
}

// says starts a runtime that answers with these texts.
func says(t testing.TB, texts ...string) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole(texts...) })
}

// saysOne starts a runtime that says "one", and nothing more until its chat ends.
func saysOne(t testing.TB) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		<-r.Context().Done()
	})
}

// saysCounted starts a runtime that answers with a text, and reports 9 and 7 tokens.
func saysCounted(t testing.TB, text string) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text(text)
		s.Stop()
		s.Usage(9, 7)
		s.Done()
	})
}

// lastOf is the last message of a request to a runtime.
func lastOf(r *runtimetest.Request) string { return r.Messages[len(r.Messages)-1].Content }

// query runs a statement in the database of an environment, and scans the row that it
// returns.
func query(t testing.TB, env []string, sql string, found ...any) {
	t.Helper()
	conn := databaseOf(t, env)
	defer conn.Close(context.Background())
	var err error
	if len(found) == 0 {
		_, err = conn.Exec(t.Context(), sql)
	} else {
		err = conn.QueryRow(t.Context(), sql).Scan(found...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// databaseOf connects to the database of an environment.
func databaseOf(t testing.TB, env []string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), strings.TrimPrefix(env[0], "DATABASE_URL="))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// chatBody is the body of a chat with the bot of oneBot.
func chatBody(prompt string, stream bool) string {
	return fmt.Sprintf(`{"bot_slug":"helper","prompt":%q,"stream":%t}`, prompt, stream)
}

// ask sends a request and returns the complete response.
func ask(t testing.TB, key, method, url, body string, headers ...string) (status int, answer string) {
	t.Helper()
	response := send(t, key, method, url, body, headers...)
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// askStatus is ask for tests that only need the status.
func askStatus(t testing.TB, key, method, url, body string, headers ...string) int {
	t.Helper()
	status, _ := ask(t, key, method, url, body, headers...)
	return status
}

// send sends a request, and returns its response, which may not be complete yet.
func send(t testing.TB, key, method, url, body string, headers ...string) *http.Response {
	t.Helper()
	response, err := request(t.Context(), http.DefaultClient, key, method, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// stop stops the answer under an Idempotency-Key.
func stop(t testing.TB, key, url, idempotency string) (status int) {
	t.Helper()
	return askStatus(t, key, "DELETE", url+"/v1/answers?SECRET", "", "Idempotency-Key", idempotency)
}

// A stream is a chat whose events are read one by one.
type stream struct{ lines *bufio.Scanner }

func eventsOf(response *http.Response) stream { return stream{bufio.NewScanner(response.Body)} }

func openStream(t testing.TB, key, url string) stream {
	t.Helper()
	return openStreamOf(t, key, url, "Hi")
}

func openStreamOf(t testing.TB, key, url, prompt string) stream {
	t.Helper()
	response := send(t, key, "POST", url+"/v1/chat", `{"bot_slug":"helper","prompt":"`+prompt+`","stream":true,"user_id":"u-42"}`)
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", response.StatusCode)
	}
	return eventsOf(response)
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
