package botapi

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// The fault campaign plays many concurrent chats over real connections, whose clients,
// engines, stores and verifiers fail in many ways, and checks what must hold for each
// chat nevertheless. The same seed plans the same chats. A longer campaign:
//
//	go test -race -run TestFaultCampaign -args -chats=50000 -seed=7
var (
	campaignChats = flag.Int("chats", 800, "chats of the fault campaign")
	campaignSeed  = flag.Uint64("seed", 1, "seed of the fault campaign")
)

const (
	campaignClients = 96
	campaignSlots   = 50 // fewer than clients, so that some are rejected

	campaignWriteTimeout = 200 * time.Millisecond
)

func TestFaultCampaign(t *testing.T) {
	before := heapInUse()
	c := newCampaign(t)
	c.run()
	c.checkReports()
	c.checkSlots()
	for _, fault := range []string{"panic serving", "superfluous"} {
		if log := c.log.String(); strings.Contains(log, fault) {
			t.Errorf("seed %d: %s", *campaignSeed, log)
		}
	}
	c.http2.CloseIdleConnections()
	c.server.Close()
	c.handlers.Wait()
	c.server, c.http2, c.handler, c.plans = nil, nil, nil, nil
	if grown := heapInUse() - before; grown > 4<<20 {
		t.Errorf("seed %d: the heap has grown by %d bytes", *campaignSeed, grown)
	}
}

// heapInUse returns the size of the heap after two garbage collections: the first empties
// the pools. (TestMain checks for leaked goroutines.)
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}

// A campaignPlan is one chat: what each party is going to do, and what was seen.
type campaignPlan struct {
	number    int
	http2     bool
	stream    bool
	verifier  string // works, rejects, fails, stalls, panics
	store     string // the same
	fragments []string
	pause     time.Duration // before each fragment
	ending    string        // of the engine: one of campaignEndings
	sending   string        // by the client: all together, in chunks, half a body
	reading   string        // by the client: to the end, slowly, late, until it closes the connection or resets it
	readBytes int           // before the client disconnects
	route     bool          // the chat is one of chatRoute
	holds     time.Duration // how long the engine holds its slot; 0: it does not

	called  atomic.Bool // the engine was called
	seen    campaignSeen
	mu      sync.Mutex
	reports []ChatReport
	writers []*watchedWriter
}

// The ways in which an engine ends after its last fragment, with the status of the response
// if nothing has been sent.
var campaignEndings = map[string]struct {
	end    engineEnd
	status int
}{
	"returns":                   {sleepsFor(0), 200},
	"panics when stopped":       {sleepsFor(0), 200}, // if it is not stopped
	"fails":                     {failsWith(errCampaign), 500},
	"chooses a status":          {failsWith(StatusError{Status: 429, Detail: "Quota used up"}), 429},
	"finds the request invalid": {failsWith(HTTPValidationError{}), 422},
	"panics":                    {panicsWith(errCampaign), 500},
	"exits":                     {func(context.Context, func(string, error) bool) { runtime.Goexit() }, 500},
	"hangs":                     {untilDone, 504},
	"ignores cancellation": {func(ctx context.Context, _ func(string, error) bool) {
		<-ctx.Done()
		time.Sleep(20 * time.Millisecond)
	}, 504},
	"goes on after its error": {func(_ context.Context, yield func(string, error) bool) {
		for range 3 {
			yield("not to be sent", errCampaign)
			yield("not to be sent", nil)
		}
	}, 500},
}

// What a client saw of its response.
type campaignSeen struct {
	status   int // 0: none
	bytes    int // of text
	complete bool
	waited   time.Duration // from the start of the request to the end of the response
}

func (p *campaignPlan) String() string {
	return fmt.Sprintf("HTTP/2 %t, stream %t, route %t, holds %v, verifier %s, store %s, %d fragments with a pause of %v, engine %s, client sends %s, reads %s (%d): saw %+v, reports %+v",
		p.http2, p.stream, p.route, p.holds, p.verifier, p.store, len(p.fragments), p.pause, p.ending, p.sending, p.reading, p.readBytes, p.seen, p.reports)
}

// planCampaignChat depends on nothing but its arguments.
func planCampaignChat(seed uint64, number int) *campaignPlan {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	p := &campaignPlan{
		number:    number,
		http2:     r.IntN(3) == 0,
		stream:    r.IntN(4) > 0,
		verifier:  usually(r, 20, "works", "rejects", "fails", "stalls", "panics"),
		store:     usually(r, 20, "works", "rejects", "fails", "stalls", "panics"),
		ending:    usually(r, 2, "returns", "fails", "chooses a status", "finds the request invalid", "panics", "exits", "hangs", "ignores cancellation", "goes on after its error", "panics when stopped"),
		sending:   usually(r, 10, "all together", "in chunks", "half a body"),
		reading:   usually(r, 2, "to the end", "slowly", "late", "until it closes", "until it resets"),
		readBytes: r.IntN(2000),
	}
	if r.IntN(4) == 0 {
		p.pause = time.Duration(r.IntN(3000)) * time.Microsecond
	}
	sizes := make([]byte, r.IntN(20))
	for i := range sizes {
		sizes[i] = byte(r.IntN(60))
	}
	if text := campaignText(r); text != "" || len(sizes) > 0 {
		p.fragments = splitBySizes(text, sizes)
	}
	p.route = r.IntN(2) == 0
	if r.IntN(4) == 0 {
		p.holds = time.Duration(r.IntN(20)) * time.Millisecond
	}
	return p
}

// usually returns another choice than the first once in so many times.
func usually(r *rand.Rand, times int, first string, others ...string) string {
	if r.IntN(times) > 0 {
		return first
	}
	return others[r.IntN(len(others))]
}

// campaignText returns a text that is usually short, sometimes larger than the buffers of a
// connection, and not always UTF-8.
func campaignText(r *rand.Rand) string {
	pieces := []string{"word ", "é", "€", "😀", "[DONE]", "\n", "\u2028", "\"", "\x00", "\xff", "\xe2\x82", "\xf0\x9f"}
	count := r.IntN(100)
	if r.IntN(50) == 0 {
		count = 200_000
	}
	var b strings.Builder
	for range count {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

func (p *campaignPlan) text() string { return textOf(strings.Join(p.fragments, "")) }

// A campaign runs the plans against one server.
type campaign struct {
	t       *testing.T
	plans   []*campaignPlan
	handler *handler
	server  *httptest.Server
	http2   *http.Client // all of its chats share one connection
	log     testLog      // of the server

	handlers sync.WaitGroup // in progress
	engines  atomic.Int64   // in progress
}

func newCampaign(t *testing.T) *campaign {
	c := &campaign{t: t}
	for number := range *campaignChats {
		c.plans = append(c.plans, planCampaignChat(*campaignSeed, number))
	}
	c.handler = New(Options{
		Bots:               &fakeStore{bySlug: c.botBySlug},
		Keys:               KeyVerifierFunc(c.verifyKey),
		Engine:             engineOf(c.iterate),
		MaxConcurrentChats: campaignSlots,
		MaxChatsPerAccount: 1,
		MaxWaiting:         campaignClients / 4,
		MaxWait:            20 * time.Millisecond,
		Routes:             []Route{chatRoute(nil)},
		ChatTimeout:        400 * time.Millisecond,
		KeepAlive:          20 * time.Millisecond,
		WriteTimeout:       campaignWriteTimeout,
		Logger:             testOptions(t, io.Discard).Logger,
		OnChat:             c.onChat,
	}).(*handler)
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.server.Config.ErrorLog = log.New(&c.log, "", 0)
	c.server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetWriteBuffer(8 << 10) // so that a client that does not read soon blocks a write
		return ctx
	}
	c.server.Config.Protocols = clearTextHTTP2()
	c.server.Config.Protocols.SetHTTP1(true)
	c.server.Start()
	c.http2 = &http.Client{Transport: &http.Transport{
		Protocols: clearTextHTTP2(),
		HTTP2:     &http.HTTP2Config{MaxReceiveBufferPerStream: 16 << 10},
	}}
	return c
}

// clientOf returns a client with its own connection, or the shared one for HTTP/2.
func (c *campaign) clientOf(p *campaignPlan) *http.Client {
	if p.http2 {
		return c.http2
	}
	dial := func(_ context.Context, network, address string) (net.Conn, error) {
		conn, err := net.Dial(network, address)
		if tcp, ok := conn.(*net.TCPConn); ok && p.reading == "until it resets" {
			err = tcp.SetLinger(0)
		}
		return conn, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
}

// fail reports a failure with what is needed to repeat it.
func (c *campaign) fail(p *campaignPlan, format string, arguments ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.t.Errorf("seed %d, chat %d: %s\n%v", *campaignSeed, p.number, fmt.Sprintf(format, arguments...), p)
}

// The application.

func (c *campaign) serve(w http.ResponseWriter, r *http.Request) {
	c.handlers.Add(1)
	defer c.handlers.Done()
	p, began := c.planOf(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")), time.Now()
	var returned atomic.Bool
	defer returned.Store(true)
	watched := watch(w, p.stream, campaignWriteTimeout, func() time.Duration { return time.Since(began) }, &returned)
	p.mu.Lock()
	p.writers = append(p.writers, watched)
	p.mu.Unlock()
	c.handler.ServeHTTP(watched, r)
}

// planOf returns the plan that a key belongs to.
func (c *campaign) planOf(key string) *campaignPlan {
	var number int
	_, _ = fmt.Sscanf(key, "chat-%d", &number)
	return c.plans[number]
}

var errCampaign = errors.New("the application has failed")

func (c *campaign) verifyKey(_ context.Context, key string) (string, error) {
	return key, misbehave(c.planOf(key).verifier, ErrInvalidKey)
}

func (c *campaign) botBySlug(ctx context.Context, _ string) (Bot, error) {
	return echoBot, misbehave(c.planOf(AccountFrom(ctx)).store, ErrBotNotFound)
}

// misbehave is what a verifier or a store does.
func misbehave(what string, rejection error) error {
	switch what {
	case "rejects":
		return rejection
	case "fails":
		return errCampaign
	case "panics":
		panic(errCampaign)
	case "stalls":
		time.Sleep(30 * time.Millisecond)
	}
	return nil
}

func (c *campaign) iterate(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
	p := c.planOf(AccountFrom(ctx))
	if p.called.Swap(true) {
		c.fail(p, "the engine was called twice")
	}
	if n := c.engines.Add(1); n > campaignSlots {
		c.fail(p, "%d engines at the same time", n)
	}
	defer c.engines.Add(-1)
	if p.holds > 0 {
		if release, held := RequestFrom(ctx).Slot().Hold(); held {
			time.AfterFunc(p.holds, release)
		}
	}
	for _, fragment := range p.fragments {
		time.Sleep(p.pause)
		if !yield(fragment, nil) {
			if p.ending == "panics when stopped" {
				panic(errCampaign)
			}
			return
		}
	}
	campaignEndings[p.ending].end(ctx, yield)
}

func (c *campaign) onChat(_ context.Context, r ChatReport) {
	p := c.planOf(r.Account)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports = append(p.reports, r)
}

// The clients.

func (c *campaign) run() {
	var clients sync.WaitGroup
	next := make(chan *campaignPlan)
	for range campaignClients {
		clients.Go(func() {
			for p := range next {
				if err := c.chat(p); err != nil {
					c.fail(p, "%v", err)
				}
			}
		})
	}
	for _, p := range c.plans {
		next <- p
	}
	close(next)
	clients.Wait()
	c.server.CloseClientConnections() // those of clients that did not read to the end
	c.handlers.Wait()
}

// chat plays one client. It returns what is wrong with the response.
func (c *campaign) chat(p *campaignPlan) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	body := chatBodyJSON("hi", p.stream)
	var send io.Reader = strings.NewReader(body)
	switch p.sending {
	case "in chunks":
		send = iotest.OneByteReader(send)
	case "half a body":
		send = io.MultiReader(strings.NewReader(body[:p.readBytes%len(body)]), iotest.ErrReader(errCampaign))
	}
	r, err := http.NewRequestWithContext(ctx, "POST", c.server.URL+way{route: p.route}.path(), send)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", fmt.Sprintf("Bearer chat-%d", p.number))
	r.Header.Set("X-Request-Id", fmt.Sprintf("id-%d", p.number))
	began := time.Now()
	res, err := c.clientOf(p).Do(r)
	if err != nil {
		p.seen.waited = time.Since(began)
		if p.isOwedAll() && p.sending != "half a body" {
			return fmt.Errorf("no response: %w", err)
		}
		return nil
	}
	defer res.Body.Close()
	received, err := p.read(res.Body)
	p.seen.waited = time.Since(began)
	if ctx.Err() != nil {
		return errors.New("no end after a minute")
	}
	return p.check(res, string(received), err == nil && p.readsAll())
}

// readsAll reports whether the client reads to the end.
func (p *campaignPlan) readsAll() bool {
	return slices.Contains([]string{"to the end", "slowly", "late"}, p.reading)
}

// read reads the body as the plan says.
func (p *campaignPlan) read(from io.Reader) (received []byte, err error) {
	switch p.reading {
	case "slowly":
		for buffer := make([]byte, 64); err == nil && len(received) < 2000; {
			time.Sleep(time.Millisecond)
			var n int
			n, err = from.Read(buffer)
			received = append(received, buffer[:n]...)
		}
		if err == io.EOF {
			return received, nil
		}
	case "late":
		time.Sleep(time.Duration(p.readBytes/4) * time.Millisecond) // at most 500 ms: more than twice WriteTimeout
	case "until it closes", "until it resets":
		return io.ReadAll(io.LimitReader(from, int64(p.readBytes)))
	}
	rest, err := io.ReadAll(from)
	return append(received, rest...), err
}

func (p *campaignPlan) check(res *http.Response, body string, complete bool) error {
	p.seen.status = res.StatusCode
	if allowed := p.statuses(); !slices.Contains(allowed, res.StatusCode) {
		return fmt.Errorf("status %d, want one of %d: %.200q", res.StatusCode, allowed, body)
	}
	if id := res.Header.Get("X-Request-Id"); id != fmt.Sprintf("id-%d", p.number) {
		return fmt.Errorf("the request id is %q", id)
	}
	switch {
	case res.StatusCode != 200:
		return checkError(body, complete)
	case p.stream:
		return p.checkStream(body, complete)
	case !complete:
		return nil
	}
	var read struct{ Content *string }
	if err := decodeStrictly(body, &read); err != nil || read.Content == nil || *read.Content != p.text() {
		return fmt.Errorf("not the answer: %.300q", body)
	}
	p.seen.complete, p.seen.bytes = true, len(*read.Content)
	return nil
}

// checkError checks the body of an error response; one that is not complete may be cut short.
func checkError(body string, complete bool) error {
	var read struct{ Detail json.RawMessage }
	if err := decodeStrictly(body, &read); complete && (err != nil || len(read.Detail) == 0) {
		return fmt.Errorf("not an error: %q", body)
	}
	return nil
}

// isOwedAll reports whether the client must get a complete response, or one that shows that
// it is incomplete. A client that waited for WriteTimeout need not: on a busy machine, the
// write may time out before the client could read.
func (p *campaignPlan) isOwedAll() bool {
	return p.readsAll() && p.seen.waited < campaignWriteTimeout
}

// statuses returns the statuses that the plan allows.
func (p *campaignPlan) statuses() []int {
	switch {
	case p.verifier == "rejects":
		return []int{401}
	case p.verifier == "fails" || p.verifier == "panics":
		return []int{500}
	case p.sending == "half a body":
		return []int{400}
	case p.store == "rejects":
		return []int{404}
	case p.store == "fails" || p.store == "panics":
		return []int{500}
	case p.stream:
		return []int{503, 504, p.endStatus(), 200} // committed by a fragment or a keep-alive
	}
	return []int{503, 504, p.endStatus()} // no slot; ChatTimeout
}

// endStatus returns the status of a response if nothing was sent before the engine's end.
func (p *campaignPlan) endStatus() int { return campaignEndings[p.ending].status }

func (p *campaignPlan) checkStream(body string, complete bool) error {
	read, err := parseStream(body)
	if err != nil {
		return err
	}
	text := p.text()
	p.seen.bytes = len(read.text())
	p.seen.complete = read.done
	switch {
	case !strings.HasPrefix(text, read.text()):
		return fmt.Errorf("the text is not a prefix of what the engine has yielded: %.300q", read.text())
	case read.done && (read.text() != text || p.endStatus() != 200):
		return errors.New("a terminator after an incomplete answer")
	case complete && !read.done && p.readsAll(), !complete && read.done && p.isOwedAll():
		return fmt.Errorf("terminated %t, but complete %t", read.done, complete)
	}
	return nil
}

// checkReports compares the reports with what the clients saw.
func (c *campaign) checkReports() {
	outcomes := map[string]int{}
	for _, p := range c.plans {
		if err := p.checkReport(); err != nil {
			c.fail(p, "%v", err)
		}
		outcomes[p.outcome()]++
	}
	c.t.Logf("seed %d: %v", *campaignSeed, outcomes)
}

func (p *campaignPlan) outcome() string {
	if p.seen.status == 200 && !p.seen.complete {
		return "200, incomplete"
	}
	return fmt.Sprint(p.seen.status)
}

func (p *campaignPlan) checkReport() error {
	for _, w := range p.writers {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.offence != "" || w.handed.wrong != "" {
			return errors.New(w.offence + w.handed.wrong)
		}
	}
	if called := p.called.Load(); called != (len(p.reports) == 1) || len(p.reports) > 1 {
		return fmt.Errorf("the engine was called: %t, OnChat %d times", called, len(p.reports))
	} else if !called {
		return nil
	}
	r, text := p.reports[0], p.text()
	complete := r.Err == nil
	switch {
	case r.Stream != p.stream || r.Bot != echoBot || r.RequestID != fmt.Sprintf("id-%d", p.number):
		return errors.New("a report of another chat")
	case p.seen.status != 0 && r.Status != p.seen.status:
		return errors.New("the status is not what the client saw")
	case p.seen.complete && !complete:
		return errors.New("the client has a complete answer, but it is reported as incomplete")
	case complete && !p.seen.complete && p.isOwedAll():
		return errors.New("the client has no complete answer, but it is reported as complete")
	case complete && (r.Fragments != len(p.fragments) || r.Bytes != int64(len(text)) || r.Status != 200), r.Fragments > len(p.fragments) || r.Bytes > int64(len(text)) || r.Bytes < int64(p.seen.bytes):
		return fmt.Errorf("%d fragments and %d bytes of %d and %d", r.Fragments, r.Bytes, len(p.fragments), len(text))
	case r.Bytes > 0 && r.FirstFragment <= 0 || r.FirstFragment > r.Duration:
		return errors.New("impossible times")
	}
	return p.checkErr(r)
}

// checkErr checks the report's Err.
func (p *campaignPlan) checkErr(r ChatReport) error {
	err, planned := r.Err, p.endStatus() != 200
	// On a slow machine, any chat may time out. On HTTP/2, a write that times out resets the
	// stream, which looks like a disconnect.
	late := errors.Is(err, context.DeadlineExceeded) || p.http2 && r.Duration >= campaignWriteTimeout
	lost := errors.Is(err, ErrClientStalled) || errors.Is(err, context.Canceled)
	switch {
	case err == nil && planned:
		return errors.New("the engine failed, but the answer is reported as complete")
	case err == nil || late:
		return nil
	case lost && p.readsAll() && p.reading != "late" && !errors.Is(err, ErrClientStalled):
		return fmt.Errorf("the client did not disconnect: %w", err)
	case !lost && !planned:
		return fmt.Errorf("nothing failed: %w", err)
	}
	return nil
}

// checkSlots takes all slots, which are free when the last engine has returned: none was
// lost.
func (c *campaign) checkSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	slots := c.handler.slots
	if err := slots.total.Acquire(ctx, campaignSlots); err != nil {
		c.t.Errorf("seed %d: slots were lost: %v", *campaignSeed, err)
	}
	slots.mu.Lock()
	defer slots.mu.Unlock()
	if len(slots.inUse) > 0 {
		c.t.Errorf("seed %d: slots are still taken: %v", *campaignSeed, slots.inUse)
	}
}
