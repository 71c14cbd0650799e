package botapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/matryer/is"
)

// The load benchmarks compare three servers over loopback, each in a process of
// its own, in one run:
//
//	go test -run '^$' -bench Load -benchtime 5x .
//
// plain is what one writes by hand (plainHandler). bound only writes and flushes bytes that
// were encoded before. botapi is the package. Each round measures all three, one after the
// other; the figures are medians of the rounds' ratios. CPU time is that of the server's
// process, as the operating system counts it.
//
// With BOTAPI_LOAD_PROFILE=FILE, each server writes a CPU profile to FILE.plain, FILE.bound
// or FILE.botapi.
const (
	loadServerVariable  = "BOTAPI_LOAD_SERVER"
	loadProfileVariable = "BOTAPI_LOAD_PROFILE"
)

var loadKinds = []string{"plain", "bound", "botapi"}

// A loadPlan says what a stream looks like. It is sent as the prompt of a
// chat and, for bound, which parses no JSON, as the header X-Load.
//
//	fast COUNT            fragments of 12 bytes, as fast as they are accepted
//	paced RATE COUNT      fragments with the time of their yield, RATE a second
//	late RATE COUNT       the same with the time when they were due
//	silent                one fragment, then nothing until the client disconnects
//
// A JSON response is one fragment of 1 KB. Its request has no plan; the header is "json".
// For the list, the header is "list".
type loadPlan []string

func (p loadPlan) number(i int) int {
	n, err := strconv.Atoi(p[i])
	must(err)
	return n
}

const stampLength = 19 // digits of a time in nanoseconds

func (p loadPlan) iterate(ctx context.Context, yield func(string) bool) {
	switch p[0] {
	case "fast":
		for range p.number(1) {
			if !yield("twelve bytes") {
				return
			}
		}
	case "paced", "late":
		p.iteratePaced(yield)
	case "silent":
		yield("twelve bytes")
		<-ctx.Done()
	}
}

func (p loadPlan) iteratePaced(yield func(string) bool) {
	interval := time.Second / time.Duration(p.number(1))
	due := time.Now().Add(rand.N(interval))
	for range p.number(2) {
		time.Sleep(time.Until(due))
		stamp := due
		if p[0] == "paced" {
			stamp = time.Now()
		}
		if !yield(strconv.FormatInt(stamp.UnixNano(), 10)) {
			return
		}
		due = due.Add(interval)
	}
}

// loadBots returns 1,000 bots; the chats are with the first.
func loadBots() []Bot { return append([]Bot{echoBot}, manyBots(999)...) }

// boundResponses are the bodies that are not streams, by X-Load.
var boundResponses = sync.OnceValue(func() map[string][]byte {
	return map[string][]byte{
		"json": []byte(jsonStart + answerOf1KB + jsonEnd),
		"list": appendBots(nil, loadBots()),
	}
})

// boundHandler does the minimum that a handler must do.
func boundHandler(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	load := r.Header.Get("X-Load")
	if body, ok := boundResponses()[load]; ok {
		w.Header().Set("Content-Type", "application/json")
		if load == "list" { // without it, net/http would send chunks
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	long := []byte(eventStart + strings.Repeat("0", stampLength) + eventEnd)
	short := []byte(eventStart + "twelve bytes" + eventEnd)
	flusher := w.(http.Flusher)
	loadPlan(strings.Fields(load)).iterate(r.Context(), func(text string) bool {
		event := short
		if len(text) == stampLength {
			event = long
		}
		copy(event[len(eventStart):], text)
		_, err := w.Write(event)
		flusher.Flush()
		return err == nil
	})
	_, _ = io.WriteString(w, doneEvent)
}

// serveLoad is the main function of a server process. It prints its address, and
// then its counts for each line that it reads.
func serveLoad(kind string) {
	engine := engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
		if !req.Stream {
			yield(answerOf1KB, nil)
			return
		}
		plan := loadPlan(strings.Fields(lastContent(req)))
		plan.iterate(ctx, func(text string) bool { return yield(text, nil) })
	})
	handlers := benchmarked(loadBots(), engine)
	handlers["bound"] = http.HandlerFunc(boundHandler)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	if name := os.Getenv(loadProfileVariable); name != "" {
		profile, err := os.Create(name + "." + kind)
		must(err)
		must(pprof.StartCPUProfile(profile))
		defer pprof.StopCPUProfile()
	}
	counting := &countingListener{Listener: listener}
	go func() { panic(http.Serve(counting, handlers[kind])) }()
	fmt.Println(listener.Addr())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_ = json.NewEncoder(os.Stdout).Encode(countLoad(&counting.writes, lines.Text() == "collect"))
	}
}

// must panics if there is an error.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// loadCounts are what a server process has used since it started.
type loadCounts struct {
	CPU         time.Duration
	Mallocs     uint64
	Allocated   uint64 // bytes
	Writes      int64
	Resident    int64 // bytes
	Goroutines  int
	Heap, Stack int64 // bytes in use
}

func countLoad(writes *atomic.Int64, collect bool) loadCounts {
	if collect {
		for range 3 { // each garbage collection halves a stack that is too large
			debug.FreeOSMemory()
		}
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	statm, _ := os.ReadFile("/proc/self/statm")
	var size, resident int64
	_, _ = fmt.Sscan(string(statm), &size, &resident)
	return loadCounts{
		CPU:        cpuTime(),
		Mallocs:    memory.Mallocs,
		Allocated:  memory.TotalAlloc,
		Writes:     writes.Load(),
		Resident:   resident * int64(os.Getpagesize()),
		Goroutines: runtime.NumGoroutine(),
		Heap:       int64(memory.HeapInuse),
		Stack:      int64(memory.StackInuse),
	}
}

// per returns what was used since before, divided by n.
func (c loadCounts) per(unit string, n int, before loadCounts) loadFigures {
	return loadFigures{
		"cpu/" + unit:    float64(c.CPU-before.CPU) / float64(n),
		"allocs/" + unit: float64(c.Mallocs-before.Mallocs) / float64(n),
		"B/" + unit:      float64(c.Allocated-before.Allocated) / float64(n),
		"writes/" + unit: float64(c.Writes-before.Writes) / float64(n),
	}
}

type countingListener struct {
	net.Listener
	writes atomic.Int64
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &countingConn{conn, &l.writes}, err
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// A loadServer is a server process, seen from the benchmark.
type loadServer struct {
	b      testing.TB
	addr   string
	stdin  io.WriteCloser
	stdout *bufio.Reader
}

func startLoadServer(b testing.TB, kind string) *loadServer {
	is := is.New(b)
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), loadServerVariable+"="+kind)
	command.Stderr = os.Stderr
	stdin, err := command.StdinPipe()
	is.NoErr(err)
	stdout, err := command.StdoutPipe()
	is.NoErr(err)
	is.NoErr(command.Start())
	s := &loadServer{b: b, stdin: stdin, stdout: bufio.NewReader(stdout)}
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = command.Wait()
	})
	s.addr = strings.TrimSpace(s.line())
	return s
}

func (s *loadServer) line() string {
	line, err := s.stdout.ReadString('\n')
	if err != nil {
		s.b.Fatal(err)
	}
	return line
}

func (s *loadServer) counts(order string) (c loadCounts) {
	fmt.Fprintln(s.stdin, order)
	if err := json.Unmarshal([]byte(s.line()), &c); err != nil {
		s.b.Fatal(err)
	}
	return c
}

// request returns the bytes of a chat; an empty body is made from the plan.
func (s *loadServer) request(plan, body string) []byte {
	if body == "" {
		body = chatBodyJSON(plan, true)
	}
	return fmt.Appendf(nil, "POST /v1/chat HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Load: %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", s.addr, testKey, plan, len(body), body)
}

func (s *loadServer) dial() net.Conn {
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.b.Error(err)
		runtime.Goexit()
	}
	return conn
}

// stream reads one stream, calls seen for each event with the time that is its text,
// and returns at the terminator, or when the connection is closed.
func (s *loadServer) stream(conn net.Conn, plan string, seen func(stamp int64)) {
	if _, err := conn.Write(s.request(plan, "")); err != nil {
		return
	}
	for lines := bufio.NewReaderSize(conn, 64<<10); ; {
		line, err := lines.ReadSlice('\n')
		if err != nil || string(line)+"\n" == doneEvent {
			return
		}
		if text, isEvent := bytes.CutPrefix(line, []byte(eventStart)); isEvent {
			stamp, _ := strconv.ParseInt(string(text[:stampLength]), 10, 64)
			seen(stamp)
		}
	}
}

// count reads one stream as stream does, and returns its number of events. It parses
// nothing: the client would take CPU time from the server that is measured.
func (s *loadServer) count(conn net.Conn, plan string) (events int) {
	if _, err := conn.Write(s.request(plan, "")); err != nil {
		return 0
	}
	buffer := make([]byte, 64<<10)
	for filled := 0; ; {
		n, err := conn.Read(buffer[filled:])
		events += bytes.Count(buffer[filled:filled+n], []byte("{"))
		read := buffer[max(0, filled+n-2*len(doneEvent)) : filled+n]
		if err != nil || bytes.Contains(read, []byte(doneEvent)) {
			return events
		}
		filled = copy(buffer, read)
	}
}

// connections uses many connections concurrently, and waits until all are closed.
func (s *loadServer) connections(count int, use func(i int, conn net.Conn)) {
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			conn := s.dial()
			defer conn.Close()
			use(i, conn)
		})
	}
	all.Wait()
}

// loadFigures are the measured numbers of one round, by their names.
type loadFigures map[string]float64

// compareLoad runs rounds of one measurement. For each figure it reports the medians of
// botapi's own value and of its ratios to plain and to bound.
func compareLoad(b *testing.B, kinds []string, measure func(s *loadServer) loadFigures) {
	servers := make(map[string]*loadServer)
	for _, kind := range kinds {
		servers[kind] = startLoadServer(b, kind)
	}
	found := make(map[string][]float64)
	for b.Loop() {
		round := make(map[string]loadFigures)
		for _, kind := range kinds {
			round[kind] = measure(servers[kind])
		}
		for name, own := range round["botapi"] {
			found[name] = append(found[name], own)
			for _, kind := range kinds {
				if kind != "botapi" {
					found[name+"/"+kind] = append(found[name+"/"+kind], own/round[kind][name])
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for name, values := range found {
		slices.Sort(values)
		b.ReportMetric(values[len(values)/2], name)
	}
}

// With more streams than the machine can keep up with, events are late, but none is lost or
// out of order, and memory stays bounded.
func TestTooManyStreamsLoseNothing(t *testing.T) {
	const streams, rate, fragments = 2000, 400, 50
	is := is.New(t)
	s := startLoadServer(t, "botapi")
	before := s.counts("collect")
	due := make([][]int64, streams)
	s.connections(streams, func(i int, conn net.Conn) {
		s.stream(conn, fmt.Sprintf("late %d %d", rate, fragments), func(stamp int64) { due[i] = append(due[i], stamp) })
	})
	after := s.counts("")
	for _, stamps := range due {
		is.Equal(len(stamps), fragments)
		for i := 1; i < len(stamps); i++ {
			is.Equal(stamps[i]-stamps[i-1], int64(time.Second/rate))
		}
	}
	perStream := (after.Resident - before.Resident) / streams
	t.Logf("%d KiB for each stream, of which net/http needs about 26", perStream>>10)
	is.True(raceDetector || perStream < 26<<10+2*maxWrite) // the race detector takes memory of its own
}

func BenchmarkLoadFast(b *testing.B) {
	const clients, fragments = 8, 20_000
	compareLoad(b, loadKinds, func(s *loadServer) loadFigures {
		before, began := s.counts(""), time.Now()
		var events atomic.Int64
		s.connections(clients, func(_ int, conn net.Conn) {
			events.Add(int64(s.count(conn, fmt.Sprint("fast ", fragments))))
		})
		elapsed, after := time.Since(began), s.counts("")
		if events.Load() != clients*fragments {
			b.Errorf("%d events", events.Load())
		}
		figures := after.per("event", clients*fragments, before)
		figures["events/s"] = clients * fragments / elapsed.Seconds()
		return figures
	})
}

func BenchmarkLoadPaced(b *testing.B) {
	const streams, rate, seconds = 500, 50, 2
	compareLoad(b, loadKinds, func(s *loadServer) loadFigures {
		before := s.counts("")
		delays := s.delays(streams, fmt.Sprintf("paced %d %d", rate, rate*seconds), 0)
		figures := s.counts("").per("event", len(delays), before)
		figures["delay-p50"], figures["delay-p99"] = percentile(delays, 0.50), percentile(delays, 0.99)
		figures["events"] = float64(len(delays))
		return figures
	})
}

func BenchmarkLoadOverload(b *testing.B) {
	for _, rate := range []int{100, 400} {
		b.Run(fmt.Sprint(rate), func(b *testing.B) {
			compareLoad(b, loadKinds, func(s *loadServer) loadFigures {
				const streams, window = 2000, 4 * time.Second
				before := s.counts("collect")
				counted := make(chan loadCounts, 1)
				time.AfterFunc(window-500*time.Millisecond, func() { counted <- s.counts("") })
				delays := s.delays(streams, fmt.Sprintf("late %d %d", rate, 1_000_000), window)
				after := <-counted // on a busy machine, later than the streams
				figures := after.per("event", len(delays), before)
				figures["events"], figures["late-p99"] = float64(len(delays)), percentile(delays, 0.99)
				figures["KiB/stream"] = float64(after.Resident-before.Resident) / streams / 1024
				return figures
			})
		})
	}
}

// delays runs streams whose fragments contain a time, for at most atMost if it is positive,
// and returns how much later each event was read.
func (s *loadServer) delays(streams int, plan string, atMost time.Duration) []time.Duration {
	each := make([][]time.Duration, streams)
	s.connections(streams, func(i int, conn net.Conn) {
		if atMost > 0 {
			_ = conn.SetReadDeadline(time.Now().Add(atMost))
		}
		s.stream(conn, plan, func(stamp int64) {
			each[i] = append(each[i], time.Duration(time.Now().UnixNano()-stamp))
		})
	})
	return slices.Concat(each...)
}

func percentile(values []time.Duration, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return float64(values[int(float64(len(values)-1)*p)])
}

func BenchmarkLoadJSONResponse(b *testing.B) {
	for _, clients := range []int{8, 64} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			compareLoad(b, loadKinds, func(s *loadServer) loadFigures {
				return s.requests(clients, 2000/clients, s.request("json", chatOf1KB))
			})
		})
	}
}

func BenchmarkLoadList(b *testing.B) {
	compareLoad(b, loadKinds, func(s *loadServer) loadFigures {
		return s.requests(8, 250, fmt.Appendf(nil, "GET /v1/bots HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nX-Load: list\r\n\r\n", s.addr, testKey))
	})
}

// requests returns the figures of a request that is not a stream. Each client sends it so
// many times.
func (s *loadServer) requests(clients, each int, request []byte) loadFigures {
	before := s.counts("")
	s.connections(clients, func(_ int, conn net.Conn) {
		reader := bufio.NewReader(conn)
		for range each {
			_, _ = conn.Write(request)
			res, err := http.ReadResponse(reader, nil)
			if err != nil || res.StatusCode != http.StatusOK {
				s.b.Errorf("%v, %v", res, err)
				return
			}
			_, _ = io.Copy(io.Discard, res.Body)
		}
	})
	return s.counts("").per("request", clients*each, before)
}

func BenchmarkLoadSilent(b *testing.B) {
	const streams = 10_000
	compareLoad(b, []string{"bound", "botapi"}, func(s *loadServer) loadFigures {
		before := s.counts("collect")
		conns := make([]net.Conn, 0, streams)
		for range streams {
			conn := s.dial()
			_, _ = conn.Write(s.request("silent", ""))
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			if _, err := conn.Read(make([]byte, 1024)); err != nil {
				b.Error(err)
			}
		}
		fresh := s.counts("")
		open := s.counts("collect")
		for _, conn := range conns {
			_ = conn.Close()
		}
		closed := s.counts("collect")
		for closed.Goroutines > before.Goroutines+10 {
			time.Sleep(50 * time.Millisecond)
			closed = s.counts("collect")
		}
		return loadFigures{
			"KiB-fresh/stream":  float64(fresh.Resident-before.Resident) / streams / 1024,
			"KiB/stream":        float64(open.Resident-before.Resident) / streams / 1024,
			"KiB-heap/stream":   float64(open.Heap-before.Heap) / streams / 1024,
			"KiB-stack/stream":  float64(open.Stack-before.Stack) / streams / 1024,
			"goroutines/stream": float64(open.Goroutines-before.Goroutines) / streams,
			"KiB-left":          float64(closed.Resident-before.Resident) / streams / 1024,
		}
	})
}
