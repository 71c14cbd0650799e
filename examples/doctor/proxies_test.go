package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/internal/stackcheck"
	"github.com/matryer/is"
)

// A proxy is started in front of a service. It returns how clients connect to it.
type proxy func(t *testing.T, service *httptest.Server) dial

type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// proxies has for each proxy the checks that must fail, and what the first of them must say.
// Those without checks must pass all.
var proxies = []struct {
	name   string
	start  proxy
	checks []string
	says   string

	keepAlive time.Duration // of the service; 0: one second
}{
	{"nginx as shipped", nginx("location / { proxy_pass http://service; }"), []string{"an incomplete answer looks incomplete"}, "nginx before 1.29.7 without proxy_http_version 1.1", 0},
	{"nginx with the documented lines", nginx(nginxLines), nil, "", 0},
	{"nginx that ignores X-Accel-Buffering", nginx(nginxLines, "proxy_ignore_headers X-Accel-Buffering;"), []string{"a client that does not read slows the model down"}, "nginx with proxy_ignore_headers X-Accel-Buffering", 0},
	{"nginx that compresses what it buffers", nginx(nginxLines, "proxy_ignore_headers X-Accel-Buffering; gzip on; gzip_types text/event-stream;"), []string{"fragments of a compressed stream arrive one by one", "a client that does not read slows the model down"}, "compression does not flush", 0},
	{"nginx that ignores disconnects", nginx(nginxLines, "proxy_ignore_client_abort on;"), []string{"a disconnect stops the model"}, "nginx with proxy_ignore_client_abort", 0},
	{"nginx with error pages", nginx(nginxLines, "proxy_intercept_errors on; error_page 404 /page.html;"), []string{"errors keep their form"}, "proxy_intercept_errors", 0},
	{"nginx that retries POST", nginx(nginxLines, "proxy_next_upstream error http_503 non_idempotent;"), []string{"each chat runs once"}, "the engine was called 2 times", 0},
	{"nginx with bodies of 64 KB", nginx(nginxLines, "client_max_body_size 64k;"), []string{"request bodies arrive unchanged"}, "client_max_body_size", 0},
	{"nginx that caches the list", nginx(nginxLines, "proxy_cache lists; proxy_cache_key $request_uri$http_authorization; proxy_ignore_headers Cache-Control; proxy_cache_valid 200 20s;"), []string{"the list is cached"}, "nginx's proxy_cache with proxy_ignore_headers", 0},
	{"HAProxy as documented", haproxy(haproxyLines, "60s"), nil, "", 0},
	{"HAProxy without abortonclose", haproxy(without("abortonclose"), "60s"), []string{"a disconnect stops the model"}, "HAProxy without option abortonclose", 0},
	{"HAProxy without http-no-delay", haproxy(without("http-no-delay"), "60s"), []string{"fragments arrive one by one"}, "HAProxy without option http-no-delay", 0},
	{"HAProxy with an idle timeout of 5 s", haproxy(haproxyLines, "5s"), []string{"a silent stream stays open"}, "it must be longer than KeepAlive", botapi.DefaultKeepAlive},
	{"HAProxy that retries POST", haproxy(haproxyLines+"retry-on 503\nretries 1\n", "60s"), []string{"each chat runs once"}, "the engine was called 2 times", 0},
	{"a proxy that speaks HTTP/1.0", serveHTTP10, []string{"a stream keeps its headers and its text", "an incomplete answer looks incomplete", "connections are used again"}, "speaks HTTP/1.0 to clients", 0},
	{"a CDN that buffers 8 KB", buffering(8 << 10), []string{"fragments arrive one by one"}, "its buffer holds about 8 KiB", 0},
	{"httputil.ReverseProxy", reverse(func(h http.Handler) http.Handler { return h }), nil, "", 0},
}

func TestProxies(t *testing.T) {
	t.Parallel()
	for _, p := range proxies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			is := is.New(t)
			var calls atomic.Int64
			service := httptest.NewServer(newAPI(t, &calls, func(o *botapi.Options) { o.KeepAlive = cmp.Or(p.keepAlive, time.Second) }))
			t.Cleanup(service.Close)
			connect := p.start(t, service)
			results, err := stackcheck.Diagnose(t.Context(), stackcheck.Target{
				URL: "http://proxy", Key: apiKey, Secret: secret, Patience: impatience,
				Transport: func() *http.Transport { return &http.Transport{DialContext: connect} },
			})
			is.NoErr(err)
			var table strings.Builder
			is.NoErr(writeTable(&table, stackcheck.Target{URL: "http://proxy"}, results))
			t.Log(table.String())
			var failed []string
			for _, r := range results {
				is.Equal(r.Problem, "")
				if len(r.Findings) > 0 {
					failed = append(failed, r.Check)
				}
			}
			is.Equal(failed, p.checks)
			is.True(strings.Contains(table.String(), p.says))
			is.Equal(codeOf(results) == healthy, len(p.checks) == 0)
		})
	}
}

// The lines of docs/operating.md.
var (
	nginxLines   = documented("nginx")
	haproxyLines = documented("haproxy")
)

func documented(language string) string {
	text, err := os.ReadFile("../../docs/operating.md")
	if err != nil {
		panic(err)
	}
	return string(regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(text)[1])
}

func without(option string) string {
	return regexp.MustCompile(`(?m)^ *option `+option+`.*\n`).ReplaceAllString(haproxyLines, "")
}

// nginx has a location of its own. A chat could be sent twice, since its upstream is there twice.
func nginx(location string, more ...string) proxy {
	location = strings.NewReplacer("127.0.0.1:8080", "service", "}", strings.Join(more, "\n")+"\n}").Replace(location)
	config := `
daemon off;
pid nginx.pid;
events {}
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	proxy_cache_path cache keys_zone=lists:1m;
	upstream service {
		server SERVICE max_fails=0;
		server SERVICE max_fails=0;
	}
	server {
		listen unix:SOCKET;
		location = /page.html { return 404 "<h1>Nothing here</h1>"; }
		` + location + `
	}
}
`
	return program("nginx", config, func(dir, file string) []string { return []string{"-e", "stderr", "-p", dir, "-c", file} })
}

func haproxy(defaults, idle string) proxy {
	return program("haproxy", strings.ReplaceAll(defaults, "60s", idle)+`
frontend clients
    bind fd@3
    default_backend service
backend service
    server one SERVICE
`, func(_, file string) []string { return []string{"-db", "-f", file} })
}

// program starts a proxy in front of a service until the test ends. It listens on a Unix socket, or
// on a TCP socket that it inherits: a port that was free a moment ago may be in use by another test.
func program(name, config string, arguments func(dir, file string) []string) proxy {
	return func(t *testing.T, service *httptest.Server) dial {
		t.Helper()
		is := is.New(t)
		path, err := exec.LookPath(name)
		if err != nil {
			if path, err = exec.LookPath("/usr/sbin/" + name); err != nil {
				t.Skipf("%s is not installed; on Debian: apt-get install nginx-light haproxy", name)
			}
		}
		dir, err := os.MkdirTemp("", "proxy") // t.TempDir is too long for a socket
		is.NoErr(err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		is.NoErr(os.Chmod(dir, 0o755)) // nginx's workers may be another user, and write bodies there
		socket, file := filepath.Join(dir, "socket"), filepath.Join(dir, "config")
		config := strings.NewReplacer("SOCKET", socket, "SERVICE", service.Listener.Addr().String()).Replace(config)
		is.NoErr(os.WriteFile(file, []byte(config), 0o600))
		command := exec.Command(path, arguments(dir, file)...)
		var output bytes.Buffer
		command.Stdout, command.Stderr = &output, &output
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		is.NoErr(err)
		defer listener.Close()
		inherited, err := listener.(*net.TCPListener).File()
		is.NoErr(err)
		defer inherited.Close()
		command.ExtraFiles = []*os.File{inherited}
		is.NoErr(command.Start())
		t.Cleanup(func() {
			_ = command.Process.Signal(syscall.SIGTERM)
			_ = command.Wait() // its exit status does not matter
			if t.Failed() {
				t.Log(output.String())
			}
		})
		if strings.Contains(config, "fd@3") {
			return dialing(listener.Addr())
		}
		connect := dialing(&net.UnixAddr{Net: "unix", Name: socket})
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			conn, err := connect(t.Context(), "", "")
			if err == nil {
				conn.Close()
				return connect
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s does not listen: %v", name, err)
			}
		}
	}
}

// reverse serves httputil.ReverseProxy with middleware.
func reverse(wrap func(http.Handler) http.Handler) proxy {
	return func(t *testing.T, service *httptest.Server) dial {
		t.Helper()
		address, err := url.Parse(service.URL)
		if err != nil {
			t.Fatal(err)
		}
		proxy := &httputil.ReverseProxy{
			Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(address) },
			ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0),
		}
		wrapped := wrap(proxy)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex() // as docs/operating.md says
			defer r.Body.Close()
			wrapped.ServeHTTP(w, r)
		}))
		t.Cleanup(server.Close)
		return dialing(server.Listener.Addr())
	}
}

func dialing(address net.Addr) dial {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, address.Network(), address.String())
	}
}

// buffering passes a response on in pieces of this size.
func buffering(size int) proxy {
	return reverse(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			pieces := &piecesWriter{ResponseWriter: w}
			pieces.buffer = bufio.NewWriterSize(flushing{w}, size)
			next.ServeHTTP(pieces, r)
			_ = pieces.buffer.Flush()
		})
	})
}

// A piecesWriter does nothing when it is told to flush.
type piecesWriter struct {
	http.ResponseWriter
	buffer *bufio.Writer
}

func (w *piecesWriter) Write(p []byte) (int, error) { return w.buffer.Write(p) }
func (w *piecesWriter) Flush()                      {}

// flushing flushes after each write.
type flushing struct{ http.ResponseWriter }

func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	return n, errors.Join(err, http.NewResponseController(f.ResponseWriter).Flush())
}

// serveHTTP10 is a proxy that replies to clients with HTTP/1.0.
func serveHTTP10(t *testing.T, service *httptest.Server) dial {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go replyHTTP10(conn, service.Listener.Addr().String())
		}
	}()
	return dialing(listener.Addr())
}

func replyHTTP10(conn net.Conn, service string) {
	defer conn.Close()
	received := bufio.NewReader(conn)
	request, err := http.ReadRequest(received)
	if err != nil {
		return
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	ctx, disconnect := context.WithCancel(context.Background())
	go func() {
		_, _ = received.ReadByte() // until the client disconnects
		disconnect()
	}()
	request = request.WithContext(ctx)
	request.Body, request.RequestURI = io.NopCloser(bytes.NewReader(body)), ""
	request.ContentLength, request.TransferEncoding = int64(len(body)), nil
	request.URL.Scheme, request.URL.Host = "http", service
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	fmt.Fprintf(conn, "HTTP/1.0 %s\r\n", response.Status)
	_ = response.Header.Write(conn)
	_, _ = io.WriteString(conn, "\r\n")
	_, _ = io.Copy(conn, response.Body)
}
