package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"
)

// TestOneAddressWithoutAKey has one address open 1,000 connections to a proxy that
// has files for half of them, each with a request that never ends. The proxy
// keeps the documented number of them, in the documented memory, and serves
// others meanwhile.
func TestOneAddressWithoutAKey(t *testing.T) {
	env, key := withOneBot(t)
	p := serve(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
	p.ready(t)
	large := strings.Repeat("x", 250<<10)
	for name, begun := range map[string]string{
		"headers": "POST /v1/chat HTTP/1.1\r\nHost: bots\r\nX-Large: " + large,
		"body":    "POST /v1/chat HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer guessed\r\nContent-Length: 262144\r\n\r\n" + large,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			proxy := startProxy(t, []*process{p, p, p})
			idle := memory(t, proxy.cmd.Process, "VmRSS")
			attack := openMany(t, proxy, "127.0.0.2", 1000, begun)
			proxy.know(t, key)
			is.Equal(attack.answered(time.Now(), http.StatusRequestTimeout), 0) // nobody had to wait until the proxy gave up on them
			used := memory(t, proxy.cmd.Process, "VmHWM") - idle
			t.Logf("%.0f MiB for them", used)
			is.True(used < 100) // MiB
		})
	}
}

// TestOneAddressWithAKey opens more connections than an address may have before a
// key of it was accepted.
func TestOneAddressWithAKey(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	p := serve(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
	p.ready(t)
	proxy := startProxyAt(t, "", []*process{p, p, p}, "CONNECTIONS_BEFORE_A_KEY=20", "CONNECTIONS=60")
	listing := "GET /v1/bots HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer "
	is.Equal(openMany(t, proxy, "127.0.0.2", 50, listing+"guessed\r\n\r\n").answered(time.Now().Add(patience), http.StatusUnauthorized), 20)

	is.Equal(openMany(t, proxy, "127.0.0.3", 1, listing+key+"\r\n\r\n").answered(time.Now().Add(patience), http.StatusOK), 1)
	is.Equal(openMany(t, proxy, "127.0.0.3", 100, listing+"guessed\r\n\r\n").answered(time.Now().Add(patience), http.StatusUnauthorized), 59)
	is.Equal(openMany(t, proxy, "127.0.0.4", 1, "GET /health-check HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer x\r\n\r\n").answered(time.Now().Add(patience), http.StatusOK), 1)
	is.Equal(openMany(t, proxy, "127.0.0.4", 50, listing+"guessed\r\n\r\n").answered(time.Now().Add(patience), http.StatusUnauthorized), 19) // that was no key
}

// connections are connections that stay open until the test ends.
type connections []net.Conn

// openMany opens connections from an address and begins to send something on
// each.
func openMany(t *testing.T, p proxy, from string, count int, begun string) (opened connections) {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range count {
		conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			continue // the proxy has closed it already
		}
		t.Cleanup(func() { conn.Close() })
		opened = append(opened, conn)
		conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // it may be accepted by nobody
		_, _ = io.WriteString(conn, begun)
	}
	return opened
}

// answered counts the connections that have a response with this status, as far
// as it arrives by this time.
func (c connections) answered(by time.Time, status int) (count int) {
	for _, conn := range c {
		conn.SetReadDeadline(by)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == status {
			count++
		}
	}
	return count
}
