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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/matryer/is"
)

// A proxy is one of those that such services stand behind, with its own default
// settings but for its timeouts: those are a second here instead of a minute,
// so that the tests need not take one.
type proxy struct {
	program   string
	arguments []string // before the file
	config    string   // of the address to listen on and that of the server
}

const proxyTimeout = time.Second

var proxies = []proxy{
	{"nginx", []string{"-e", "stderr", "-c"}, `
daemon off;
pid nginx.pid;
events {}
http {
	access_log off;
	proxy_read_timeout 1s;
	proxy_send_timeout 1s;
	send_timeout 1s;
	server {
		listen %s;
		location / { proxy_pass http://%s; }
	}
}
`},
	{"haproxy", []string{"-db", "-f"}, `
defaults
	mode http
	timeout connect 1s
	timeout client 1s
	timeout server 1s
frontend clients
	bind %s
	default_backend servers
backend servers
	server one %s
`},
}

// start runs the proxy in front of a server until the test ends, and returns
// its base address.
func (p proxy) start(t *testing.T, server *httptest.Server) string {
	program, err := exec.LookPath(p.program)
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/" + p.program); err != nil {
			t.Skipf("%s is not installed; on Debian: apt-get install nginx-light haproxy", p.program)
		}
	}
	dir := t.TempDir()
	address := freeAddress(t)
	file := filepath.Join(dir, p.program+".conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, p.config, address, server.Listener.Addr()), 0o600); err != nil {
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
		_ = command.Wait() // the way it ends is its own
		if t.Failed() {
			t.Log(output.String())
		}
	})
	for deadline := time.Now().Add(10 * time.Second); ; {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
			return "http://" + address
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen: %v", p.program, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// freeAddress is one that nobody listens on, for a program that must be told.
func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// serveBehind serves the options behind the proxy, and returns its base address
// and a client.
func (p proxy) serveBehind(t *testing.T, o Options) (base string, client *http.Client) {
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	return p.start(t, server), server.Client()
}

func TestBehindProxies(t *testing.T) {
	tests := map[string]func(proxy, *testing.T){
		"fragments arrive one by one":     proxy.testOneByOne,
		"answers pass":                    proxy.testAnswers,
		"keep-alives outlast its timeout": proxy.testKeepAlive,
		"silence does not":                proxy.testSilence,
		"a disconnect reaches the engine": proxy.testDisconnect,
		"a broken stream has no end":      proxy.testBroken,
	}
	for _, p := range proxies {
		for name, test := range tests {
			t.Run(p.program+", "+name, func(t *testing.T) {
				t.Parallel() // they mostly wait
				test(p, t)
			})
		}
	}
}

// HAProxy holds a fragment back for up to 200 ms to see whether more comes,
// unless "option http-no-delay" is set.
func (p proxy) testOneByOne(t *testing.T) {
	is := is.New(t)
	steps := newLockstep()
	o := testOptions(t, io.Discard)
	o.Engine = steps.engine()
	base, client := p.serveBehind(t, o)
	res, err := client.Do(hangLimit(t, chatRequest(t, base, "hi", true)))
	is.NoErr(err)
	defer res.Body.Close()
	steps.follow(t, res.Body)
}

func (p proxy) testAnswers(t *testing.T) {
	is := is.New(t)
	base, client := p.serveBehind(t, testOptions(t, io.Discard))
	whole := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", false))
	is.Equal(whole.body, `{"content":"hi"}`)
	stream := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.NoErr(stream.err)
	is.Equal(stream.header.Get("Content-Type"), "text/event-stream")
	is.Equal(stream.body, data("hi")+terminator)
	refused := doAt(t, client, base, "POST", "/v1/chat", "{}", "Authorization", "-")
	is.Equal(refused.status, 401)
	is.Equal(refused.body, `{"detail":"Not authenticated"}`)
}

// silentFor is an engine that thinks before its first fragment, and behind it.
func silentFor(silence time.Duration) ChatEngine { return pacedEngine(silence, silence) }

func (p proxy) testKeepAlive(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.KeepAlive = proxyTimeout / 5
	o.Engine = silentFor(proxyTimeout * 3 / 2)
	base, client := p.serveBehind(t, o)
	got := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.NoErr(got.err)
	read := readStream(t, got.body)
	is.Equal(read.text(), "xx")
	is.True(read.done)
	is.True(read.keepAlives > 0)
}

// Without keep-alives, the proxy's timeout does what the test above is about.
func (p proxy) testSilence(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.KeepAlive = -1
	o.Engine = silentFor(proxyTimeout * 3 / 2)
	base, client := p.serveBehind(t, o)
	is.Equal(doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true)).status, 504)
}

// HAProxy tells the server of a client that left only when there is something
// to send to it, unless "option abortonclose" is set: the next keep-alive.
func (p proxy) testDisconnect(t *testing.T) {
	is := is.New(t)
	ended := make(chan struct{})
	reports := make(chan ChatReport, 1)
	o := testOptions(t, io.Discard)
	o.KeepAlive = proxyTimeout / 5
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		yield("x", nil)
		<-ctx.Done()
		close(ended)
	})
	o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
	base, client := p.serveBehind(t, o)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	res, err := client.Do(chatRequest(t, base, "hi", true).WithContext(ctx))
	is.NoErr(err)
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, len(data("x"))))
	is.NoErr(err)
	leave()
	received(t, ended, "the engine's context to end")
	is.True(errors.Is(received(t, reports, "OnChat").Err, context.Canceled))
}

// nginx speaks HTTP/1.0 to the server, where the end of a connection is the end
// of an answer: its clients may not see the cut, but the error event, and that
// there is no terminator.
func (p proxy) testBroken(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		yield("a", nil)
		yield("", StatusError{Status: 502, Detail: "Model died"})
	})
	base, client := p.serveBehind(t, o)
	got := doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true))
	is.Equal(got.body, data("a")+broken("Model died"))
	is.True(!strings.Contains(got.body, "[DONE]"))
	if p.program != "nginx" {
		is.True(got.err != nil)
	}
}
