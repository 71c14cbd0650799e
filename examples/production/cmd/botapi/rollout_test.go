package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

const (
	replicas = 3
	streams  = 200

	words     = 15 // of each answer, one per wordPause
	wordPause = 150 * time.Millisecond
)

// answerText is the answer of the runtime of these tests.
var answerText = func() string {
	var text strings.Builder
	for i := range words {
		fmt.Fprintf(&text, "word %d ", i)
	}
	return text.String()
}()

// speaking is a runtime that takes as long as models do.
func speaking(t *testing.T) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		pace := time.NewTicker(wordPause)
		defer pace.Stop()
		s.Role()
		for i := range words {
			select {
			case <-pace.C:
				s.Text(fmt.Sprintf("word %d ", i))
			case <-r.Context().Done():
				return
			}
		}
		s.Stop()
		s.Done()
	})
}

// A proxy is HAProxy with the configuration of this example.
type proxy struct {
	url, stats string
	balanced   bool // clients come with the PROXY protocol, from a proxy in front of it
	log        *logtest.Log
	cmd        *exec.Cmd
}

func startProxy(t testing.TB, replicas []*process) proxy {
	t.Helper()
	return startProxyAt(t, "", replicas)
}

// startProxyAt starts a proxy with bind options, such as those of TLS, and
// additional environment variables.
func startProxyAt(t testing.TB, options string, replicas []*process, env ...string) proxy {
	t.Helper()
	haproxy, err := exec.LookPath("haproxy")
	if err != nil {
		haproxy, err = exec.LookPath("/usr/sbin/haproxy") // where Debian installs it, which is not in every PATH
	}
	if err != nil {
		t.Skip("haproxy was not found: this test puts it in front of three replicas (Debian: apt-get install haproxy)")
	}
	bind := fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))
	stats := fmt.Sprintf("127.0.0.1:%d", postgrestest.FreePort(t))
	// It has few files, so that a test notices what uses them up.
	cmd := exec.Command("sh", "-c", `ulimit -n 1024; exec "$0" "$@"`, haproxy, "-db", "-f", "../../haproxy.cfg")
	cmd.Env = append(env, "BIND="+bind+options, "STATS="+stats)
	for i, replica := range replicas {
		cmd.Env = append(cmd.Env,
			fmt.Sprintf("REPLICA_%d=%s", i+1, strings.TrimPrefix(replica.url, "http://")),
			fmt.Sprintf("INTERNAL_%d=%s", i+1, strings.TrimPrefix(replica.internal, "http://")))
	}
	log := new(logtest.Log)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("haproxy:\n%s", log.String())
		}
	})
	p := proxy{url: "http://" + bind, stats: "http://" + stats, log: log, cmd: cmd}
	for i := range replicas {
		p.waitFor(t, "replicas", i, "UP")
	}
	return p
}

// waitFor waits until the proxy sees a replica of a backend in this state.
func (p proxy) waitFor(t testing.TB, backend string, replica int, state string) {
	t.Helper()
	eventually(t, fmt.Sprintf("replica %d of %s is %s", replica+1, backend, state), func() bool {
		response, err := http.Get(p.stats + "/;csv")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		table, _ := io.ReadAll(response.Body)
		for line := range strings.Lines(string(table)) {
			if cells := strings.Split(line, ","); cells[0] == backend && cells[1] == fmt.Sprintf("replica%d", replica+1) {
				return cells[17] == state
			}
		}
		return false
	})
}

// A crowd is clients that ask again as soon as they have their response, until
// they are told to stop.
type crowd struct {
	client  *http.Client
	url     string
	key     string
	stop    chan struct{}
	clients sync.WaitGroup

	// Complete responses.
	streams, jsonResponses, longChats, listings atomic.Int64

	mu       sync.Mutex
	failures []string
}

func newCrowd(url, key string) *crowd {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * streams
	return &crowd{client: &http.Client{Transport: transport}, url: url, key: key, stop: make(chan struct{})}
}

// gather starts a crowd that chats and lists.
func gather(url, key string) *crowd {
	c := newCrowd(url, key)
	for range streams {
		c.repeat(c.stream, &c.streams)
	}
	for range 5 {
		c.repeat(c.list, &c.listings)
		c.repeat(c.json, &c.jsonResponses)
	}
	return c
}

// repeat repeats a request in a goroutine.
func (c *crowd) repeat(request func() error, answered *atomic.Int64) {
	c.clients.Go(func() {
		for {
			if err := request(); err != nil {
				c.fails(err)
			} else {
				answered.Add(1)
			}
			select {
			case <-c.stop:
				return
			default:
			}
		}
	})
}

func (c *crowd) fails(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, err.Error())
}

// finish lets every client receive its last response.
func (c *crowd) finish() {
	close(c.stop)
	c.clients.Wait()
	c.client.CloseIdleConnections()
}

func (c *crowd) ask(method, path, body string) (string, error) {
	response, err := request(context.Background(), c.client, c.key, method, c.url+path, body)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("%s %s: aborted after %d bytes: %w", method, path, len(answer), err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, answer)
	}
	return string(answer), nil
}

func (c *crowd) stream() error {
	answer, err := c.ask("POST", "/v1/chat", chatBody("Hi", true))
	if err != nil {
		return err
	}
	var text strings.Builder
	for event := range strings.SplitSeq(strings.TrimSuffix(answer, "data: [DONE]\n\n"), "\n") {
		var fragment struct{ Content string }
		if data, ok := strings.CutPrefix(event, "data: "); ok && json.Unmarshal([]byte(data), &fragment) == nil {
			text.WriteString(fragment.Content)
		}
	}
	if text.String() != answerText || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
		return fmt.Errorf("a stream is incomplete: %q", answer)
	}
	return nil
}

func (c *crowd) json() error {
	answer, err := c.ask("POST", "/v1/chat", chatBody("Hi", false))
	if err == nil && answer != `{"content":"`+answerText+`"}` {
		err = fmt.Errorf("an answer is incomplete: %q", answer)
	}
	return err
}

func (c *crowd) list() error {
	time.Sleep(wordPause) // clients list now and then
	answer, err := c.ask("GET", "/v1/bots", "")
	if err == nil && !strings.Contains(answer, `"slug":"helper"`) {
		err = fmt.Errorf("a listing has no helper: %s", answer)
	}
	return err
}

// TestRollout restarts three replicas one after another under 200 streams.
// PostgreSQL, HAProxy and replicas are real; only the model is simulated.
func TestRollout(t *testing.T) {
	is := is.New(t)
	database := postgrestest.NewServer(t)
	env, key := withOneBotAt(t, database.URL)
	runtime := speaking(t)

	running := serveAll(t, env, "--runtime", "local="+runtime.URL, "--drain-delay", "3s", "--key-cache", "1s")
	proxy := startProxy(t, running)
	crowd := gather(proxy.url, key)
	eventually(t, "all streams run", func() bool { return len(runtime.Requests()) >= streams })

	for i, p := range running {
		p.terminate(t)
		proxy.waitFor(t, "replicas", i, "DOWN")
		changesAreSeen(t, env, fmt.Sprintf("bot%d", i), others(running, i))
		p.wait(t)
		p.start(t)
		p.ready(t)
		proxy.waitFor(t, "replicas", i, "UP")
		changesAreSeen(t, env, fmt.Sprintf("bot%d-again", i), running)
	}
	crowd.finish()

	is.Equal(crowd.failures, nil) // no stream was aborted, no request failed
	t.Logf("%d complete streams, %d other requests", crowd.streams.Load(), crowd.jsonResponses.Load()+crowd.listings.Load())
	is.True(crowd.streams.Load() >= 2*streams) // each client had several
	for _, p := range running {
		p.end(t)
	}
	is.Equal(int64(len(usageOf(t, env))), int64(len(runtime.Requests()))) // every chat has its record
}

func others(all []*process, but int) (rest []*process) {
	for i, p := range all {
		if i != but {
			rest = append(rest, p)
		}
	}
	return rest
}

// changesAreSeen changes bots and keys, and checks that each replica sees the
// change.
func changesAreSeen(t *testing.T, env []string, slug string, replicas []*process) {
	t.Helper()
	is := is.New(t)
	importBots(t, env, `[{"uid":"`+slug+`","slug":"`+slug+`","name":"New","model":"m1","published":true}]`)
	created := command(t, "", env, "keys", "create", "--account", slug)
	key := strings.TrimSpace(created.stdout)
	for _, p := range replicas {
		status, listing := ask(t, key, "GET", p.url+"/v1/bots", "")
		is.Equal(status, http.StatusOK)                         // the new key, immediately
		is.True(strings.Contains(listing, `"slug":"`+slug+`"`)) // the new bot, immediately
	}
	is.Equal(command(t, "", env, "bots", "unpublish", slug).code, 0)
	id := strings.Fields(created.stderr)[1] // "key 7 for ..."
	is.Equal(command(t, "", env, "keys", "revoke", id).code, 0)
	for _, p := range replicas {
		eventually(t, "the key is rejected", func() bool {
			status, listing := ask(t, key, "GET", p.url+"/v1/bots", "")
			is.True(!strings.Contains(listing, `"slug":"`+slug+`"`)) // hidden immediately
			return status == http.StatusUnauthorized
		})
	}
}

// TestProxyPassesDisconnectsOn has a client disconnect before the first fragment: the
// model stops.
func TestProxyPassesDisconnectsOn(t *testing.T) {
	asked, stopped := make(chan struct{}, 1), make(chan struct{}, 1)
	runtime := runtimetest.New(t, func(_ *runtimetest.Stream, r *runtimetest.Request) {
		asked <- struct{}{}
		<-r.Context().Done() // it never answers
		stopped <- struct{}{}
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)
	proxy := startProxy(t, []*process{p, p, p})
	ctx, disconnect := context.WithCancel(t.Context())
	var client sync.WaitGroup
	client.Go(func() {
		bodyOf(request(ctx, http.DefaultClient, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true)))
	})
	<-asked
	disconnect()
	<-stopped
	client.Wait()
}
