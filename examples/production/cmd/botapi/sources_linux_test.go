package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestOneAddressWithoutAKey has one address open 1,000 connections to a proxy that
// has files for half of them, each with a request that never ends. The proxy
// keeps the documented number of them, in the documented memory, and serves
// others meanwhile.
func TestOneAddressWithoutAKey(t *testing.T) {
	p, key := serveOneBot(t, "--runtime", nowhere)
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
// key of it was accepted, also through another proxy, in front of this one.
func TestOneAddressWithAKey(t *testing.T) {
	p, key := serveOneBot(t, "--runtime", nowhere)
	for name, options := range map[string]string{"directly": "", "balanced": " accept-proxy"} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			proxy := startProxyAt(t, options, []*process{p, p, p}, "CONNECTIONS_BEFORE_A_KEY=20", "CONNECTIONS=60")
			proxy.balanced = options != ""
			is.Equal(openMany(t, proxy, "127.0.0.2", 50, listing("guessed")).answered(time.Now().Add(patience), http.StatusUnauthorized), 20)

			is.Equal(openMany(t, proxy, "127.0.0.3", 1, listing(key)).answered(time.Now().Add(patience), http.StatusOK), 1)
			is.Equal(openMany(t, proxy, "127.0.0.3", 100, listing("guessed")).answered(time.Now().Add(patience), http.StatusUnauthorized), 59)
			for i, unlocked := range []string{"GET /health-check", "GET /health%2dcheck", "GET http://bots/health-check", "OPTIONS *"} { // these need no key
				from := fmt.Sprint("127.0.0.", 10+i)
				is.Equal(openMany(t, proxy, from, 1, unlocked+" HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer guessed\r\n\r\n").answered(time.Now().Add(patience), http.StatusOK), 1)
				is.Equal(openMany(t, proxy, from, 50, listing("guessed")).answered(time.Now().Add(patience), http.StatusUnauthorized), 19)
			}
		})
	}
}

func listing(key string) string {
	return "GET /v1/bots HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer " + key + "\r\n\r\n"
}

// TestOneAddressWithAKeyIsForgotten opens connections without a valid key all the
// time. They do not prolong the time for which the address has the higher limit.
func TestOneAddressWithAKeyIsForgotten(t *testing.T) {
	p, key := serveOneBot(t, "--runtime", nowhere)
	proxy := startProxyAt(t, "", []*process{p, p, p}, "CONNECTIONS_BEFORE_A_KEY=5", "KNOWN_TIME=2s")
	proxy.know(t, key)
	eventually(t, "the address has the lower limit", func() bool {
		opened := openMany(t, proxy, "127.0.0.1", 10, listing("guessed"))
		defer opened.close()
		return opened.answered(time.Now().Add(patience), http.StatusUnauthorized) <= 5
	})
}

// TestFirstChatIsRetried sends the first chat of each of 20 addresses, with its body in a
// packet of its own, while one replica is full.
func TestFirstChatIsRetried(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		if strings.Contains(lastOf(r), "Wait") {
			asked <- struct{}{}
			<-answer
		}
		s.Whole("Hello")
	})
	defer close(answer)
	full := serve(t, env, "--runtime", "local="+runtime.URL, "--max-chats", "1")
	other := serve(t, env, "--runtime", "local="+runtime.URL)
	go request(t.Context(), http.DefaultClient, key, "POST", full.url+"/v1/chat", chatBody("Wait", true))
	<-asked
	proxy := startProxyAt(t, "", []*process{full, other, other})
	body := chatBody("Hi", false)
	for i := range 20 {
		begun := fmt.Sprintf("POST /v1/chat HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", key, len(body))
		opened := openMany(t, proxy, fmt.Sprint("127.0.1.", i), 1, begun)
		time.Sleep(5 * time.Millisecond)
		_, err := io.WriteString(opened[0], body)
		is.NoErr(err)
		is.Equal(opened.answered(time.Now().Add(patience), http.StatusOK), 1)
	}
}

// TestOneAddressWithoutHandshakes opens connections, and does not begin with TLS.
func TestOneAddressWithoutHandshakes(t *testing.T) {
	p := serve(t, migrated(t), "--runtime", nowhere)
	file := certificate(t)
	proxy := startProxyAt(t, " ssl crt "+file, []*process{p, p, p}, "CONNECTIONS_BEFORE_A_KEY=20")
	openMany(t, proxy, "127.0.0.2", 50, "")
	eventually(t, "the others are closed", func() bool {
		_, metrics := raw(t, proxy.stats, "GET /metrics HTTP/1.0\r\n\r\n")
		return strings.Contains(metrics, `haproxy_frontend_denied_connections_total{proxy="api"} 30`)
	})
}

// TestOneAddressOverHTTP2 sends more requests at the same time, in one connection,
// than an address may have before and after a key of it was accepted.
func TestOneAddressOverHTTP2(t *testing.T) {
	asked, answer := make(chan struct{}, 100), make(chan struct{})
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		asked <- struct{}{}
		select {
		case <-answer:
			s.Whole("Hello")
		case <-r.Context().Done():
		}
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)
	proxy := startProxyAt(t, "", []*process{p, p, p}, "CONNECTIONS_BEFORE_A_KEY=20", "CONNECTIONS=60")
	client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	defer client.CloseIdleConnections()
	response, err := request(t.Context(), client, "guessed", "GET", proxy.url+"/v1/bots", "") // from now on, it has a connection
	is.New(t).NoErr(err)
	response.Body.Close()

	before := 0
	for _, limit := range []int{20, 60} {
		is := is.New(t)
		rejected, served := make(chan *http.Response, 100), make(chan string, 100)
		for range limit + 10 {
			go func() {
				response, err := request(t.Context(), client, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", false))
				if err == nil && response.StatusCode == http.StatusTooManyRequests {
					rejected <- response
					return
				}
				served <- bodyOf(response, err)
			}()
		}
		count := 0
		for range limit + 10 {
			select {
			case <-asked:
				count++
			case response := <-rejected:
				is.Equal(response.Proto, "HTTP/2.0")
				is.Equal(response.Header.Get("Retry-After"), "1")
				is.Equal(response.Header.Get("Content-Type"), "application/json")
				is.True(response.Header.Get("X-Request-Id") != "")
				is.Equal(bodyOf(response, nil), `{"detail":"Too many requests from this address"}`)
			case failed := <-served:
				t.Fatal(failed)
			}
		}
		is.True(count > before && count <= limit) // the proxy may still count a request whose response has arrived
		before = count
		for range count {
			answer <- struct{}{}
			is.Equal(<-served, `{"content":"Hello"}`)
		}
	}
}

// connections are connections that stay open until the test ends.
type connections []net.Conn

// openMany opens connections from an address and begins to send something on
// each.
func openMany(t *testing.T, p proxy, from string, count int, begun string) (opened connections) {
	t.Helper()
	if p.balanced {
		from, begun = "127.0.0.1", "PROXY TCP4 "+from+" 127.0.0.1 1 1\r\n"+begun
	}
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

func (c connections) close() {
	for _, conn := range c {
		conn.Close()
	}
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
