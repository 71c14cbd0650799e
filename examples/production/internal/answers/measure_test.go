package answers_test

import (
	"context"
	"fmt"
	"iter"
	"net"
	"runtime"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// TestMemoryOfStalledClients has clients not read their answers, and others not
// read those that they have joined. The texts are in Redis, and not in this process
// as well. (docs/runbook.md states what a replica needs for such a stream, which is
// more: garbage, HTTP, telemetry.)
func TestMemoryOfStalledClients(t *testing.T) {
	const clients, fragment, fragments = 60, 6, 30_000 // some 800 KB of events, which the buffers of the connection do not hold
	is := is.New(t)
	server := redistest.NewServer(t)
	said := make(chan struct{})
	engine := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range fragments {
				if !yield(strings.Repeat("x", fragment), nil) {
					t.Error("an answer ended early")
					break
				}
			}
			said <- struct{}{}
		}
	})
	r := serve(t, server.Client(t), engine, resume.Settings{}, limits.Limits{})
	open := func(key string) {
		c, err := net.Dial("tcp", strings.TrimPrefix(string(r), "http://"))
		is.NoErr(err)
		t.Cleanup(func() { c.Close() })
		is.NoErr(c.(*net.TCPConn).SetReadBuffer(4096))
		const body = `{"bot_slug":"bot","prompt":"Hi","stream":true}`
		_, err = fmt.Fprintf(c, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer acme\r\nIdempotency-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, len(body), body)
		is.NoErr(err)
		_, err = c.Read(make([]byte, 1)) // and never again
		is.NoErr(err)
	}
	open("before")
	<-said
	before := memory()
	measure := func(what string) {
		t.Helper()
		after := memory()
		each := (after - before) / clients
		t.Logf("%s: %.2f MiB", what, each)
		is.True(each < 0.2)
		before = after
	}
	for i := range clients {
		open(fmt.Sprint(i))
	}
	for range clients {
		<-said
	}
	measure("one that began an answer")
	for i := range clients {
		open(fmt.Sprint(i))
	}
	measure("one that joined")
}

// memory is what this process uses, in MiB, of heap and stacks.
func memory() float64 {
	runtime.GC()
	runtime.GC() // finds what the first has finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc+m.StackInuse) / (1 << 20)
}
