package botapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"
)

// A proxy is one that typically runs in front of such services. It has its default settings,
// except for its timeouts: three seconds instead of a minute, so that the tests are faster.
type proxy struct {
	program   string
	arguments []string // before the file
	config    string   // a format, for the socket to listen on and the address of the server
}

const proxyTimeout = 3 * time.Second

var proxies = []proxy{
	{"nginx", []string{"-e", "stderr", "-c"}, `
daemon off;
pid nginx.pid;
events {}
http {
	access_log off;
	proxy_read_timeout 3s;
	proxy_send_timeout 3s;
	send_timeout 3s;
	server {
		listen unix:%s;
		location / { proxy_pass http://%s; }
	}
}
`},
	{"haproxy", []string{"-db", "-f"}, `
defaults
	mode http
	timeout connect 1s
	timeout client 3s
	timeout server 3s
frontend clients
	bind unix@%s
	default_backend servers
backend servers
	server one %s
`},
}

// start runs the proxy in front of a server until the test ends, and returns a
// client that reaches it under any address. The proxy listens on a Unix socket: a port
// that was free a moment ago may be in use by another test.
func (p proxy) start(t *testing.T, server *httptest.Server) *http.Client {
	program, err := exec.LookPath(p.program)
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/" + p.program); err != nil {
			t.Skipf("%s is not installed; on Debian: apt-get install nginx-light haproxy", p.program)
		}
	}
	dir, err := os.MkdirTemp("", "proxy") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "socket")
	file := filepath.Join(dir, p.program+".conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, p.config, socket, server.Listener.Addr()), 0o600); err != nil {
		t.Fatal(err)
	}
	var output testLog
	command := exec.Command(program, append(p.arguments, file)...)
	if p.program == "nginx" {
		command.Args = append(command.Args, "-p", dir)
	}
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait() // its exit status does not matter
		if t.Failed() {
			t.Log(output.String())
		}
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := dial(t.Context(), "", "")
		if err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v", p.program, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	transport := &http.Transport{DialContext: dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serveBehind serves an engine behind the proxy, with keep-alives that are more frequent
// than its timeouts, and returns a client.
func (p proxy) serveBehind(t *testing.T, engine ChatEngine, change ...func(*Options)) *http.Client {
	o := testOptions(t, io.Discard)
	o.KeepAlive, o.Engine = proxyTimeout/5, engine
	for _, change := range change {
		change(&o)
	}
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	return p.start(t, server)
}

const proxyURL = "http://proxy"

// playBehind streams one chat from behind the proxy.
func (p proxy) playBehind(t *testing.T, engine ChatEngine, change ...func(*Options)) fullResponse {
	return doAt(t, p.serveBehind(t, engine, change...), proxyURL, "POST", "/v1/chat", chatBodyJSON("hi", true))
}

func TestProxiesPassStreamsOn(t *testing.T) {
	if !raceDetector { // with it, tests that compute delay a keep-alive for longer than a proxy waits
		t.Parallel()
	}
	for _, test := range []struct {
		name string
		run  func(proxy, *testing.T)
	}{
		{"keep-alives outlast its timeout", proxy.testSilence}, // the first, since it takes the longest
		{"without them, silence is cut", proxy.testNoKeepAlives},
		{"fragments arrive one by one", proxy.testOneByOne},
		{"responses pass", proxy.testResponses},
		{"a disconnect reaches the engine", proxy.testDisconnect},
		{"an incomplete stream has no end", proxy.testIncomplete},
	} {
		for _, p := range proxies {
			t.Run(p.program+", "+test.name, func(t *testing.T) {
				t.Parallel() // they mostly wait
				test.run(p, t)
			})
		}
	}
}

// HAProxy delays a fragment for up to 200 ms, in case more arrives, unless
// "option http-no-delay" is set.
func (p proxy) testOneByOne(t *testing.T) {
	steps := newLockstep()
	steps.follow(t, p.serveBehind(t, steps), proxyURL)
}

func (p proxy) testResponses(t *testing.T) {
	is := is.New(t)
	client := p.serveBehind(t, fragmentsOf("hi"))
	for _, c := range []struct {
		key, body  string
		status     int
		kind, want string
	}{
		{"Bearer " + testKey, chatBodyJSON("hi", false), 200, "application/json", `{"content":"hi"}`},
		{"Bearer " + testKey, chatBodyJSON("hi", true), 200, "text/event-stream", data("hi") + terminator},
		{"-", "{}", 401, "application/json", `{"detail":"Not authenticated"}`},
	} {
		got := doAt(t, client, proxyURL, "POST", "/v1/chat", c.body, "Authorization", c.key)
		is.NoErr(got.err)
		is.Equal(got.status, c.status)
		is.Equal(got.header.Get("Content-Type"), c.kind)
		is.Equal(got.body, c.want)
	}
}

// Without keep-alives, the proxy's timeout ends a silent stream.
func (p proxy) testSilence(t *testing.T) {
	is := is.New(t)
	got := p.playBehind(t, pacedEngine(proxyTimeout*5/4, proxyTimeout*5/4))
	is.NoErr(got.err)
	read := readStream(t, got.body)
	is.Equal(read.text(), "xx")
	is.True(read.done)
	is.True(read.keepAlives > 0)
}

func (p proxy) testNoKeepAlives(t *testing.T) {
	got := p.playBehind(t, pacedEngine(proxyTimeout*2, 0), func(o *Options) { o.KeepAlive = -1 })
	is.New(t).Equal(got.status, 504)
}

// HAProxy does not close the connection to the server when a client disconnects, but only
// when the next data arrives, here a keep-alive, unless "option abortonclose" is set.
func (p proxy) testDisconnect(t *testing.T) {
	is := is.New(t)
	ended, reports := make(chan struct{}), make(chan ChatReport, 1)
	client := p.serveBehind(t, engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		yield("x", nil)
		<-ctx.Done()
		close(ended)
	}), func(o *Options) {
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
	})
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	res, err := client.Do(chatRequest(t, proxyURL, "hi", true).WithContext(ctx))
	is.NoErr(err)
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, len(data("x"))))
	is.NoErr(err)
	disconnect()
	received(t, ended, "the engine's context to end")
	is.True(errors.Is(received(t, reports, "OnChat").Err, context.Canceled))
}

// nginx speaks HTTP/1.0 to the server, where the end of the connection is the end of the
// response: its clients may not notice the aborted connection, but they get the error event
// and no terminator.
func (p proxy) testIncomplete(t *testing.T) {
	is := is.New(t)
	got := p.playBehind(t, failing(StatusError{Status: 502, Detail: "Model died"}, "a"))
	is.Equal(got.body, data("a")+errorEvent(502, "Model died"))
	if p.program != "nginx" {
		is.True(got.err != nil)
	}
}
