package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/runtimetest"
)

// BenchmarkStreams measures what streams cost one replica and the proxy, from
// their start to their end. The README's figures are from
//
//	go test -run '^$' -bench Streams -benchtime 1x ./cmd/botapi
func BenchmarkStreams(b *testing.B) {
	for _, c := range []struct {
		count, fragments int
		pause            time.Duration
	}{
		{count: 1000, fragments: 20, pause: 500 * time.Millisecond},
		{count: 200, fragments: 200, pause: 50 * time.Millisecond},
	} {
		b.Run(fmt.Sprintf("%dx%d", c.count, c.fragments), func(b *testing.B) {
			runtime := runtimetest.New(b, func(s *runtimetest.Stream, _ *runtimetest.Request) {
				pace := time.NewTicker(c.pause)
				defer pace.Stop()
				for range c.fragments {
					<-pace.C
					s.Text("about sixteen by")
				}
				s.Stop()
				s.Done()
			})
			env := migrated(b)
			importBots(b, env, oneBot)
			key := createKey(b, env)
			p := serve(b, env, "--runtime", "local="+runtime.URL, "--log-level", "warn")
			p.ready(b)
			proxy := startProxy(b, []*process{p, p, p})
			if whole := readStreams(b, proxy.url, key, b.N*c.count); whole != int64(b.N*c.count) {
				b.Fatalf("%d streams came whole", whole)
			}
			b.ReportMetric(memory(b, p.cmd.Process), "replica-MiB")
			b.ReportMetric(memory(b, proxy.cmd.Process), "proxy-MiB")
			p.terminate(b)
			p.wait(b)
			proxy.cmd.Process.Signal(syscall.SIGTERM)
			proxy.cmd.Wait()

			total := float64(b.N * c.count * c.fragments)
			b.ReportMetric(cpu(p.cmd.ProcessState)/total, "replica-µs/fragment")
			b.ReportMetric(cpu(proxy.cmd.ProcessState)/total, "proxy-µs/fragment")
		})
	}
}

// readStreams reads so many streams at once and returns how many came whole.
func readStreams(b *testing.B, url, key string, count int) int64 {
	var whole atomic.Int64
	var clients sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for range count {
		clients.Go(func() {
			response, err := request(b.Context(), client, key, "POST", url+"/v1/chat", `{"bot_slug":"helper","prompt":"Hi","stream":true}`)
			if err != nil {
				return
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); err == nil && response.StatusCode == http.StatusOK {
				whole.Add(1)
			}
		})
	}
	clients.Wait()
	return whole.Load()
}

// cpu is the time that a process has computed, in microseconds.
func cpu(p *os.ProcessState) float64 {
	return float64((p.UserTime() + p.SystemTime()).Microseconds())
}

// memory is the most that a process has had so far, in MiB.
func memory(b *testing.B, p *os.Process) float64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		b.Skipf("memory is read the way Linux tells it: %v", err)
	}
	for line := range strings.Lines(string(status)) {
		var kilobytes float64
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kilobytes); err == nil {
			return kilobytes / 1024
		}
	}
	b.Fatal("no VmHWM")
	return 0
}
