package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkBeside measures the cost of a chat for a replica, for a reverse
// proxy, for a gateway written by hand, and for HAProxy in front of a replica,
// all with the same runtime:
//
//	go test -run '^$' -bench Beside -benchtime 7x ./cmd/botapi
//
// Each server is a separate process. A round measures all of them, one after
// another, and each round begins with a different one. The figures are medians
// of the costs, and of the rounds' ratios. Processor time is that of the server
// process, as its operating system counts it; the delay is from the runtime's
// write to the client's read.
//
// It prints the table in docs/scaling.md.
func BenchmarkBeside(b *testing.B) {
	runtime := httptest.NewServer(http.HandlerFunc(speakPlan))
	b.Cleanup(runtime.Close)
	servers := startServers(b, runtime.URL+"/v1")

	var table strings.Builder
	table.WriteString("\n| | proxy | gateway | replica | replica ÷ proxy | replica ÷ gateway | HAProxy |\n|---|---|---|---|---|---|---|\n")
	for _, load := range []load{
		{name: "paced", what: "a fragment of a stream, 30 per second in each of 200", clients: 200, stream: true, fragments: 180, rate: 30, warm: 30},
		{name: "fast", what: "a fragment of a stream without pauses", clients: 10, stream: true, fragments: 4000, warm: 400},
		{name: "json", what: "a JSON response of 200 tokens", clients: 8, chats: 40, fragments: 200, perChat: true},
		{name: "short", what: "a stream of one fragment", clients: 8, chats: 40, stream: true, fragments: 1, perChat: true},
	} {
		b.Run(load.name, func(b *testing.B) {
			measured := measure(b, servers, load)
			measured.report(b, load)
			measured.writeTo(&table, load)
		})
	}
	fmt.Print(table.String())
}

// BenchmarkMemory measures the memory of a replica for each stream whose model is
// at work, as its operating system counts it at the most: with short prompts, and
// with the longest that fit --max-body-bytes:
//
//	go test -run '^$' -bench Memory -benchtime 1x ./cmd/botapi
func BenchmarkMemory(b *testing.B) {
	const streams = 1000
	env, key := withOneBot(b)
	for name, prompt := range map[string]string{"short": "Hi", "long": strings.Repeat("x", 255<<10)} {
		b.Run(name, func(b *testing.B) {
			end := make(chan struct{})
			runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, chunkStart+chunkText+"word "+chunkEnd)
				w.(http.Flusher).Flush()
				<-end
				io.WriteString(w, chunkStart+chunkStop)
			}))
			defer runtime.Close()
			defer close(end)
			p := serve(b, env, "--runtime", "local="+runtime.URL+"/v1")
			idle := memory(b, p.cmd.Process, "VmRSS")
			for range streams {
				openStreamOf(b, key, p.url, prompt).next()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(idle, "idle-MiB")
			b.ReportMetric(memory(b, p.cmd.Process, "VmHWM"), "peak-MiB")
			b.ReportMetric((memory(b, p.cmd.Process, "VmHWM")-idle)/streams, "MiB/stream")
		})
	}
}

// A load is what clients request in one round.
type load struct {
	name, what string
	clients    int // concurrent
	chats      int // of each client, one after another; 0 means 1
	stream     bool
	fragments  int // of each answer
	rate       int // fragments a second; 0 means no pauses
	warm       int // fragments of the warm-up round; 0 means as many
	perChat    bool
}

// units is the number by which the cost of a round is divided.
func (l load) units() float64 {
	chats := l.clients * max(l.chats, 1)
	if l.perChat {
		return float64(chats)
	}
	return float64(chats * l.fragments)
}

// prompt tells the runtime what to answer: see speakPlan.
func (l load) prompt() string { return fmt.Sprintf("%d %d", l.fragments, l.rate) }

const (
	chunkStart = `data: {"id":"chatcmpl-0f6b5c1de2a94f0f8c0b2d8e2f7a6b31","object":"chat.completion.chunk","created":1760000000,"model":"m1","choices":[{"index":0,`
	chunkText  = `"delta":{"content":"`
	chunkEnd   = `"},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
	chunkStop  = `"delta":{},"logprobs":null,"finish_reason":"stop","token_ids":null}]}` + "\n\n" + "data: [DONE]\n\n"

	stampLength = 19 // digits of a time in nanoseconds
)

// speakPlan is a runtime that answers with as many fragments as the last message
// asks for, at the rate that it asks for. A fragment at a rate contains the time
// of its write; without a rate, fragments are written as fast as the connection
// accepts them.
func speakPlan(w http.ResponseWriter, r *http.Request) {
	var request struct{ Messages []struct{ Content string } }
	var count, rate int
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if _, err := fmt.Sscan(request.Messages[len(request.Messages)-1].Content, &count, &rate); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if rate == 0 {
		for range count {
			io.WriteString(w, chunkStart+chunkText+"word "+chunkEnd)
		}
	} else {
		speakPaced(w, count, time.Second/time.Duration(rate))
	}
	io.WriteString(w, chunkStart+chunkStop)
}

func speakPaced(w http.ResponseWriter, count int, interval time.Duration) {
	chunk := []byte(chunkStart + chunkText)
	due := time.Now().Add(rand.N(interval))
	for range count {
		time.Sleep(time.Until(due))
		stamped := strconv.AppendInt(chunk, time.Now().UnixNano(), 10)
		w.Write(append(stamped, chunkEnd...))
		w.(http.Flusher).Flush()
		due = due.Add(interval)
	}
}

// A server is one of the measured servers.
type server struct {
	name   string
	url    string // where to ask
	bodies func(prompt string, stream bool) string
	key    string
	pid    int // whose processor time counts
}

// startServers starts all measured servers.
func startServers(b *testing.B, runtime string) []server {
	env := migrated(b)
	importBots(b, env, oneBot)
	key := createKey(b, env, "acme")
	p := serve(b, env, "--runtime", "local="+runtime)
	servers := []server{
		startBeside(b, "proxy", runtime, "/chat/completions", completionBody),
		startBeside(b, "gateway", runtime, "/v1/chat", chatBody),
		{name: "replica", url: p.url + "/v1/chat", bodies: chatBody, key: key, pid: p.cmd.Process.Pid},
	}
	haproxy := startProxy(b, []*process{p, p, p})
	return append(servers, server{"HAProxy", haproxy.url + "/v1/chat", chatBody, key, haproxy.cmd.Process.Pid})
}

// completionBody is a request to the runtime itself, which always streams.
func completionBody(prompt string, stream bool) string {
	return fmt.Sprintf(`{"model":"m1","stream":%t,"messages":[{"role":"system","content":"SECRET"},{"role":"user","content":%q}]}`, stream, prompt)
}

func startBeside(b *testing.B, name, runtime, path string, bodies func(string, bool) string) server {
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{besideVariable + "=" + name, besideRuntimeVariable + "=" + runtime}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	var address string
	if _, err := fmt.Fscanln(stdout, &address); err != nil {
		b.Fatalf("%s has no address: %v", name, err)
	}
	return server{name, "http://" + address + path, bodies, "key", cmd.Process.Pid}
}

// measurements are those of all rounds, by server.
type measurements map[string]*figures

type figures struct {
	cost  []float64 // microseconds of processor time for a unit, in each round
	delay []float64 // milliseconds, at the 99th percentile of each round
}

func measure(b *testing.B, servers []server, l load) measurements {
	measured := make(measurements)
	for _, s := range servers {
		measured[s.name] = new(figures)
		warm := l
		if l.warm > 0 {
			warm.fragments = l.warm
		}
		s.ask(b, warm)
	}
	for round := 0; b.Loop(); round++ {
		for i := range servers {
			s := servers[(round+i)%len(servers)]
			cost, delays := s.ask(b, l)
			f := measured[s.name]
			f.cost = append(f.cost, cost)
			if l.rate > 0 {
				f.delay = append(f.delay, delays[len(delays)*99/100].Seconds()*1000)
			}
		}
	}
	return measured
}

func (m measurements) report(b *testing.B, l load) {
	b.ReportMetric(0, "ns/op") // the time of a round means nothing
	b.ReportMetric(median(m["replica"].cost), "replica-µs")
	b.ReportMetric(ratio(m["replica"].cost, m["proxy"].cost), "of-proxy")
	b.ReportMetric(ratio(m["replica"].cost, m["gateway"].cost), "of-gateway")
	if l.rate > 0 {
		b.ReportMetric(ratio(m["replica"].delay, m["proxy"].delay), "delay-of-proxy")
	}
}

func (m measurements) writeTo(table *strings.Builder, l load) {
	proxy, gateway, replica, haproxy := m["proxy"], m["gateway"], m["replica"], m["HAProxy"]
	fmt.Fprintf(table, "| %s | %.3g µs | %.3g µs | %.3g µs | %.2f | %.2f | %.3g µs |\n", l.what,
		median(proxy.cost), median(gateway.cost), median(replica.cost),
		ratio(replica.cost, proxy.cost), ratio(replica.cost, gateway.cost), median(haproxy.cost))
	if l.rate > 0 {
		fmt.Fprintf(table, "| its delay at the 99th percentile | %.2f ms | %.2f ms | %.2f ms | %.2f | %.2f | %.2f ms |\n",
			median(proxy.delay), median(gateway.delay), median(replica.delay),
			ratio(replica.delay, proxy.delay), ratio(replica.delay, gateway.delay), median(haproxy.delay))
	}
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// ratio is the median of the rounds' ratios.
func ratio(a, b []float64) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = a[i] / b[i]
	}
	return median(ratios)
}

// ask puts a load on a server. It returns the cost of a unit, in microseconds,
// and the delays of fragments, sorted. If there is a rate, both are measured
// while all streams run, so the simultaneous start of 200 streams is not
// included.
func (s server) ask(b *testing.B, l load) (cost float64, delays []time.Duration) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: l.clients}}
	defer client.CloseIdleConnections()
	c := newReaders(l.clients)
	var clients sync.WaitGroup
	before := processorTime(b, s.pid)
	for i := range l.clients {
		clients.Go(func() {
			for range max(l.chats, 1) {
				if err := s.chat(b.Context(), client, l, c, &c.delays[i]); err != nil {
					b.Errorf("%s: %v", s.name, err)
				}
			}
		})
	}
	if l.rate > 0 {
		c.begun.Wait()
		cost = s.costOfFragments(b, c, l)
	}
	clients.Wait()
	if b.Failed() {
		b.FailNow()
	}
	if l.rate == 0 {
		cost = microseconds(processorTime(b, s.pid)-before) / l.units()
	}
	delays = slices.Concat(c.delays...)
	slices.Sort(delays)
	return cost, delays
}

// readers are all clients of one load.
type readers struct {
	begun    sync.WaitGroup // until each client has its first fragment
	received atomic.Int64   // fragments
	steady   atomic.Bool    // all streams run: measure now
	delays   [][]time.Duration
}

func newReaders(clients int) *readers {
	r := &readers{delays: make([][]time.Duration, clients)}
	r.begun.Add(clients)
	return r
}

// costOfFragments measures for two thirds of the time that the streams take.
func (s server) costOfFragments(b *testing.B, c *readers, l load) float64 {
	c.steady.Store(true)
	defer c.steady.Store(false)
	count, before := c.received.Load(), processorTime(b, s.pid)
	time.Sleep(time.Duration(l.fragments) * time.Second / time.Duration(l.rate) * 2 / 3)
	return microseconds(processorTime(b, s.pid)-before) / float64(c.received.Load()-count)
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// chat reads one answer, and fails if it is incomplete.
func (s server) chat(ctx context.Context, client *http.Client, l load, c *readers, delays *[]time.Duration) error {
	count := 0
	defer func() {
		if count == 0 && l.rate > 0 {
			c.begun.Done() // nobody waits for this client
		}
	}()
	response, err := request(ctx, client, s.key, "POST", s.url, s.bodies(l.prompt(), l.stream))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", response.StatusCode)
	}
	lines := bufio.NewReader(response.Body)
	for {
		line, err := lines.ReadSlice('\n')
		if _, text, ok := bytes.Cut(line, []byte(`"content":"`)); ok {
			if count == 0 && l.rate > 0 {
				c.begun.Done()
			}
			count += max(1, bytes.Count(text, []byte("word ")))
			if l.rate > 0 {
				c.received.Add(1)
				if c.steady.Load() {
					*delays = append(*delays, delayOf(text))
				}
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if count != l.fragments {
		return fmt.Errorf("%d fragments, not %d", count, l.fragments)
	}
	return nil
}

// delayOf is the age of a text that begins with its time.
func delayOf(text []byte) time.Duration {
	stamp, err := strconv.ParseInt(string(text[:stampLength]), 10, 64)
	if err != nil {
		panic(err)
	}
	return time.Since(time.Unix(0, stamp))
}

// processorTime is the CPU time that a process has used so far.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	var t unix.Timespec
	// This is the clock id that clock_getcpuclockid(3) computes.
	if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
		b.Fatalf("the processor time of another process: %v", err)
	}
	return time.Duration(t.Nano())
}

// memory is one of Linux's figures of a process's memory, in MiB.
func memory(b testing.TB, p *os.Process, name string) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kilobytes float64
		if _, err := fmt.Sscanf(line, name+": %f kB", &kilobytes); err == nil {
			return kilobytes / 1024
		}
	}
	b.Fatalf("no %s", name)
	return 0
}
