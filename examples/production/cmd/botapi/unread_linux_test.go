package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestStreamsThatNobodyReads has clients with a small receive buffer ask for long
// answers through the proxy, and read none of them. What the kernel keeps for them
// on both connections is bounded.
func TestStreamsThatNobodyReads(t *testing.T) {
	if _, err := exec.LookPath("ss"); err != nil {
		t.Skip("ss was not found: this test reads the memory of connections (Debian: apt-get install iproute2)")
	}
	is := is.New(t)
	const clients, most = 8, 200 << 10 // bytes; Linux doubles what haproxy.cfg says, and adds up to one segment
	p, key := serveOneBot(t, "--runtime", "local="+longAnswers(t, 1000).URL)
	proxy := startProxy(t, []*process{p, p, p})
	for range clients {
		is.Equal(askSilently(t, proxy.url, key, ""), http.StatusOK)
	}
	memory := func() int64 {
		return socketMemory(t, "sport", proxy.url) + socketMemory(t, "dport", p.url) + socketMemory(t, "sport", p.url)
	}
	held := int64(-1)
	eventually(t, "the kernel takes no more", func() bool {
		before := held
		held = memory()
		return held == before && held > 0
	})
	t.Logf("%d KiB for each", held>>10/clients)
	is.True(held < clients*3*most)
}

// BenchmarkUnread measures the kernel's memory for kept answers of 1 MB that clients
// with a small receive buffer join through the proxy, and do not read:
//
//	go test -run '^$' -bench Unread -benchtime 1x ./cmd/botapi
func BenchmarkUnread(b *testing.B) {
	const answers, joins = 20, 20
	env, key := withOneBot(b)
	redis := redistest.NewServer(b)
	proxy := startProxy(b, serveAll(b, env, "--runtime", "local="+longAnswers(b, 60).URL, "--redis", redis.URL, "--answers"))
	for i := range answers {
		keep(b, proxy.url, key, fmt.Sprint("k", i))
	}
	idle := kernelMemory(b)
	for b.Loop() {
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				for joined := 0; joined < joins; time.Sleep(100 * time.Millisecond) { // one answer may have so many readers at the same time
					if askSilently(b, proxy.url, key, fmt.Sprint("k", i)) == http.StatusOK {
						joined++
					}
				}
			})
		}
		all.Wait()
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(kernelMemory(b)-idle, "MiB")
}

// longAnswers answers with so many fragments of 16 KiB.
func longAnswers(t testing.TB, fragments int) *runtimetest.Server {
	return runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Role()
		for range fragments {
			s.Text(strings.Repeat("x", 16<<10))
		}
		s.Stop()
		s.Done()
	})
}

// keep reads an answer under an Idempotency-Key to its end.
func keep(t testing.TB, url, key, idempotency string) {
	t.Helper()
	response := send(t, key, "POST", url+"/v1/chat", chatBody("Hi", true), "Idempotency-Key", idempotency)
	if text := bodyOf(response, nil); !strings.HasSuffix(text, "data: [DONE]\n\n") {
		t.Fatal("the answer is incomplete")
	}
}

// askSilently sends a chat on a connection of which only the head of the response is
// read, and returns its status.
func askSilently(t testing.TB, url, key, idempotency string) (status int) {
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(file uintptr) { _ = syscall.SetsockoptInt(int(file), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	conn, err := small.DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Error(err)
		return 0
	}
	t.Cleanup(func() { conn.Close() })
	body := chatBody("Hi", true)
	fmt.Fprintf(conn, "POST /v1/chat HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer %s\r\n", key)
	if idempotency != "" {
		fmt.Fprintf(conn, "Idempotency-Key: %s\r\n", idempotency)
	}
	fmt.Fprintf(conn, "Content-Length: %d\r\n\r\n%s", len(body), body)
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 512), nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	return response.StatusCode
}

var skmem = regexp.MustCompile(`skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f\d+,w(\d+)`)

// socketMemory is the kernel's memory, in bytes, for what is received and not read,
// and sent and not acknowledged, on the connections from or to a server's port.
func socketMemory(t testing.TB, port, url string) (sum int64) {
	t.Helper()
	_, number, _ := net.SplitHostPort(strings.TrimPrefix(url, "http://"))
	said, err := exec.Command("ss", "-tamnH", port+" = :"+number).CombinedOutput()
	if err != nil {
		t.Fatalf("ss: %v: %s", err, said)
	}
	for _, found := range skmem.FindAllStringSubmatch(string(said), -1) {
		for _, bytes := range found[1:] {
			n, _ := strconv.ParseInt(bytes, 10, 64)
			sum += n
		}
	}
	return sum
}

// kernelMemory is the memory of all TCP connections of the machine, in MiB.
func kernelMemory(t testing.TB) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/net/sockstat")
	if err != nil {
		t.Fatal(err)
	}
	_, pages, _ := strings.Cut(string(text), "\nTCP: ")
	_, pages, _ = strings.Cut(pages, " mem ")
	pages, _, _ = strings.Cut(pages, "\n")
	n, err := strconv.ParseFloat(pages, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n * float64(os.Getpagesize()) / (1 << 20)
}
