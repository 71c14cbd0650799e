package botapi

import (
	"bufio"
	"bytes"
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
	"unicode/utf8"
)

// The fault campaign is many chats whose clients, engines, stores and verifiers
// go wrong in many ways at once, and what must hold for each of them all the
// same. The same seed plans the same chats. A longer one than the suite's:
//
//	go test -race -run TestFaultCampaign -args -chats=50000 -seed=7
var (
	campaignChats = flag.Int("chats", 2000, "chats of the fault campaign")
	campaignSeed  = flag.Uint64("seed", 1, "seed of the fault campaign")
)

const (
	campaignClients = 48
	campaignPlaces  = 22 // fewer than clients, so that some are refused

	campaignWriteTimeout = 200 * time.Millisecond
)

func TestFaultCampaign(t *testing.T) {
	before := heapInUse()
	c := newCampaign(t, *campaignSeed, *campaignChats)
	c.run()
	c.checkReports()
	c.checkPlaces()
	c.http2.CloseIdleConnections()
	c.server.Close()
	c.handlers.Wait()
	c.server, c.http2, c.handler, c.plans = nil, nil, nil, nil
	if grown := heapInUse() - before; grown > 4<<20 {
		t.Errorf("seed %d: the heap has grown by %d bytes", *campaignSeed, grown)
	}
}

// heapInUse is what two collections leave: the first empties the pools. Whether
// goroutines are left is TestMain's to see.
func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return int64(memory.HeapAlloc)
}

// A campaignPlan is one chat: what each part of it is going to do, and what was
// seen of it.
type campaignPlan struct {
	number    int
	stream    bool
	verifier  string // works, refuses, fails, stalls, panics
	store     string // works, misses, fails, stalls, panics
	fragments []string
	pause     time.Duration // before each fragment
	ending    string        // of the engine: returns, or how it goes wrong
	http2     bool
	sending   string // of the client: whole, or how it goes wrong
	reading   string // to the end, or how far
	readBytes int    // before the client cuts the connection

	called  atomic.Bool // the engine was
	seen    campaignSeen
	mu      sync.Mutex
	reports []ChatReport
}

// What a client saw of its answer.
type campaignSeen struct {
	status int // 0: none
	bytes  int // of text
	whole  bool
	waited time.Duration // from its first byte to the end
}

func (p *campaignPlan) String() string {
	return fmt.Sprintf("HTTP/2 %t, stream %t, verifier %s, store %s, %d fragments with a pause of %v, engine %s, client sends %s, reads %s (%d): saw %+v, reports %+v",
		p.http2, p.stream, p.verifier, p.store, len(p.fragments), p.pause, p.ending, p.sending, p.reading, p.readBytes, p.seen, p.reports)
}

// planCampaignChat depends on nothing but its arguments.
func planCampaignChat(seed uint64, number int) *campaignPlan {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	p := &campaignPlan{
		number:    number,
		stream:    r.IntN(4) > 0,
		verifier:  usually(r, 20, "works", "refuses", "fails", "stalls", "panics"),
		store:     usually(r, 20, "works", "misses", "fails", "stalls", "panics"),
		ending:    usually(r, 2, "returns", "fails", "refuses", "finds the request invalid", "panics", "exits", "hangs", "hangs without listening", "goes on after its error", "panics when told to stop"),
		sending:   usually(r, 3, "whole", "byte by byte", "in chunks", "two requests", "too short a length", "too long a length", "half a head", "half a body"),
		reading:   usually(r, 2, "to the end", "slowly", "late", "to a cut", "to a reset", "after closing its half"),
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
		p.fragments = cutBySizes(text, sizes)
	}
	if p.http2 = r.IntN(3) == 0; p.http2 {
		p.sending = usually(r, 10, "whole", "half a body")
		p.reading = usually(r, 2, "to the end", "slowly", "late", "to a cut")
	}
	return p
}

// usually returns the first choice all but once in so many times.
func usually(r *rand.Rand, times int, first string, others ...string) string {
	if r.IntN(times) > 0 {
		return first
	}
	return others[r.IntN(len(others))]
}

// campaignText is mostly short, sometimes more than a connection takes at once,
// and not always UTF-8.
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
	seed    uint64
	plans   []*campaignPlan
	handler *handler
	server  *httptest.Server
	http2   *http.Client // whose chats share one connection

	handlers sync.WaitGroup // in progress
	engines  atomic.Int64   // in progress
	complain sync.Mutex
}

func newCampaign(t *testing.T, seed uint64, chats int) *campaign {
	c := &campaign{t: t, seed: seed}
	for number := range chats {
		c.plans = append(c.plans, planCampaignChat(seed, number))
	}
	c.handler = New(Options{
		Bots:               &fakeStore{bots: func(context.Context) ([]Bot, error) { return []Bot{echoBot}, nil }, bySlug: c.botBySlug},
		Keys:               KeyVerifierFunc(c.verifyKey),
		Engine:             engineOf(c.speak),
		MaxConcurrentChats: campaignPlaces,
		MaxChatsPerAccount: 1,
		ChatTimeout:        400 * time.Millisecond,
		KeepAlive:          20 * time.Millisecond,
		WriteTimeout:       campaignWriteTimeout,
		Logger:             testOptions(t, io.Discard).Logger,
		OnChat:             c.onChat,
	}).(*handler)
	c.server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.server.Config.ErrorLog = log.New(campaignErrors{c}, "", 0)
	c.server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		_ = conn.(*net.TCPConn).SetWriteBuffer(8 << 10) // so that a client that does not read is felt soon
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

// fail reports a fault in a way that lets it be repeated.
func (c *campaign) fail(p *campaignPlan, format string, arguments ...any) {
	c.complain.Lock()
	defer c.complain.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	c.t.Errorf("seed %d, chat %d: %s\n%v", c.seed, p.number, fmt.Sprintf(format, arguments...), p)
}

// campaignErrors is the server's error log: a panic that reached the server is
// a fault.
type campaignErrors struct{ c *campaign }

func (e campaignErrors) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic serving")) || bytes.Contains(line, []byte("superfluous")) {
		e.c.t.Errorf("seed %d: %s", e.c.seed, line)
	}
	return len(line), nil
}

// The parts of the host.

func (c *campaign) serve(w http.ResponseWriter, r *http.Request) {
	c.handlers.Add(1)
	defer c.handlers.Done()
	guarded := &guardedWriter{ResponseWriter: w, control: http.NewResponseController(w), fault: func(what string) {
		c.t.Errorf("seed %d, %s: %s", c.seed, r.Header.Get("Authorization"), what)
	}}
	defer guarded.returned.Store(true)
	c.handler.ServeHTTP(guarded, r)
}

// planOf finds the plan that a key belongs to.
func (c *campaign) planOf(key string) *campaignPlan {
	var number int
	if n, _ := fmt.Sscanf(key, "chat-%d", &number); n == 0 {
		return nil
	}
	return c.plans[number]
}

var errCampaign = errors.New("something of the host's has failed")

func (c *campaign) verifyKey(ctx context.Context, key string) (string, error) {
	p := c.planOf(key)
	if p == nil {
		return key, nil // a request behind a chat
	}
	return key, misbehave(ctx, p.verifier, ErrInvalidKey)
}

func (c *campaign) botBySlug(ctx context.Context, slug string) (Bot, error) {
	return echoBot, misbehave(ctx, c.planOf(AccountFrom(ctx)).store, ErrBotNotFound)
}

// misbehave is what a verifier or a store does.
func misbehave(ctx context.Context, what string, refusal error) error {
	switch what {
	case "refuses", "misses":
		return refusal
	case "fails":
		return errCampaign
	case "panics":
		panic(errCampaign)
	case "stalls":
		select {
		case <-time.After(30 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (c *campaign) speak(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
	p := c.planOf(AccountFrom(ctx))
	if p.called.Swap(true) {
		c.fail(p, "the engine was called twice")
	}
	if n := c.engines.Add(1); n > campaignPlaces {
		c.fail(p, "%d engines at once", n)
	}
	defer c.engines.Add(-1)
	for _, fragment := range p.fragments {
		time.Sleep(p.pause)
		if !yield(fragment, nil) {
			if p.ending == "panics when told to stop" {
				panic(errCampaign)
			}
			return
		}
	}
	p.end(ctx, yield)
}

// end is how an engine ends that has said all.
func (p *campaignPlan) end(ctx context.Context, yield func(string, error) bool) {
	switch p.ending {
	case "fails":
		yield("", errCampaign)
	case "refuses":
		yield("", StatusError{Status: 429, Detail: "Quota used up"})
	case "finds the request invalid":
		yield("", HTTPValidationError{})
	case "goes on after its error":
		for range 3 {
			yield("not to be sent", errCampaign)
			yield("not to be sent", nil)
		}
	case "panics":
		panic(errCampaign)
	case "exits":
		runtime.Goexit()
	case "hangs":
		<-ctx.Done()
	case "hangs without listening":
		<-ctx.Done()
		time.Sleep(20 * time.Millisecond)
	}
}

// status is that of an answer that ends before anything was sent.
func (p *campaignPlan) endStatus() int {
	switch p.ending {
	case "returns", "panics when told to stop":
		return 200
	case "refuses":
		return 429
	case "finds the request invalid":
		return 422
	case "hangs", "hangs without listening":
		return 504
	}
	return 500
}

func (c *campaign) onChat(_ context.Context, r ChatReport) {
	p := c.planOf(r.Account)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reports = append(p.reports, r)
}

// A guardedWriter notices what must not be done with a writer: anything after
// the handler has returned, and two things at once.
type guardedWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	returned atomic.Bool
	busy     atomic.Int32
	fault    func(what string)
}

func (w *guardedWriter) check(doing string) {
	if w.returned.Load() {
		w.fault(doing + " after the handler has returned")
	}
}

func (w *guardedWriter) alone(doing string) (done func()) {
	w.check(doing)
	if w.busy.Add(1) > 1 {
		w.fault(doing + " during another write")
	}
	return func() { w.busy.Add(-1) }
}

func (w *guardedWriter) Header() http.Header {
	w.check("Header")
	return w.ResponseWriter.Header()
}

func (w *guardedWriter) WriteHeader(status int) {
	defer w.alone("WriteHeader")()
	w.ResponseWriter.WriteHeader(status)
}

func (w *guardedWriter) Write(p []byte) (int, error) {
	defer w.alone("Write")()
	return w.ResponseWriter.Write(p)
}

func (w *guardedWriter) FlushError() error {
	defer w.alone("Flush")()
	return w.control.Flush()
}

func (w *guardedWriter) SetReadDeadline(t time.Time) error {
	w.check("SetReadDeadline")
	return w.control.SetReadDeadline(t)
}

func (w *guardedWriter) SetWriteDeadline(t time.Time) error {
	w.check("SetWriteDeadline")
	return w.control.SetWriteDeadline(t)
}

func (w *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.check("Hijack")
	return w.control.Hijack()
}

// The clients.

func (c *campaign) run() {
	var clients sync.WaitGroup
	next := make(chan *campaignPlan)
	for range campaignClients {
		clients.Go(func() {
			for p := range next {
				if p.http2 {
					c.chatOverHTTP2(p)
				} else {
					c.chat(p)
				}
			}
		})
	}
	for _, p := range c.plans {
		next <- p
	}
	close(next)
	clients.Wait()
	c.server.CloseClientConnections() // what a client left half done
	c.handlers.Wait()
}

// chat is one client from its first byte to its last.
func (c *campaign) chat(p *campaignPlan) {
	conn, err := net.Dial("tcp", c.server.Listener.Addr().String())
	if err != nil {
		c.fail(p, "dialling: %v", err)
		return
	}
	defer conn.Close()
	tcp := conn.(*net.TCPConn)
	_ = tcp.SetReadBuffer(8 << 10)
	began := time.Now()
	_ = tcp.SetDeadline(began.Add(time.Minute))
	if p.send(tcp) != nil {
		return // refused and cut while it was still sending
	}
	if p.reading == "after closing its half" {
		_ = tcp.CloseWrite()
	}
	received, err := p.read(tcp)
	p.seen.waited = time.Since(began)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		c.fail(p, "no end after a minute")
	}
	if p.reading == "to a reset" {
		_ = tcp.SetLinger(0)
	}
	if err := p.look(received); err != nil {
		c.fail(p, "%v", err)
	}
}

// chatOverHTTP2 is a client that shares its connection with others.
func (c *campaign) chatOverHTTP2(p *campaignPlan) {
	ctx, leave := context.WithTimeout(context.Background(), time.Minute)
	defer leave()
	body := chatBodyJSON("hi", p.stream)
	var send io.Reader = strings.NewReader(body)
	if p.sending == "half a body" {
		send = io.MultiReader(strings.NewReader(body[:p.readBytes%len(body)]), iotest.ErrReader(errCampaign))
	}
	r, err := http.NewRequestWithContext(ctx, "POST", c.server.URL+"/v1/chat", send)
	if err != nil {
		c.fail(p, "%v", err)
		return
	}
	r.Header.Set("Authorization", fmt.Sprintf("Bearer chat-%d", p.number))
	r.Header.Set("X-Request-Id", fmt.Sprintf("id-%d", p.number))
	began := time.Now()
	res, err := c.http2.Do(r)
	if err != nil {
		p.seen.waited = time.Since(began)
		if err := p.missing(err); err != nil {
			c.fail(p, "%v", err)
		}
		return
	}
	defer res.Body.Close()
	received, err := p.read(res.Body)
	p.seen.waited = time.Since(began)
	if ctx.Err() != nil {
		c.fail(p, "no end after a minute")
	}
	if err := p.lookAt(res, received, err == nil && p.readsAll()); err != nil {
		c.fail(p, "%v", err)
	}
}

// send sends the request, or what the client makes of it.
func (p *campaignPlan) send(conn *net.TCPConn) (err error) {
	body := chatBodyJSON("hi", p.stream)
	head := fmt.Sprintf("POST /v1/chat HTTP/1.1\r\nHost: campaign\r\nAuthorization: Bearer chat-%d\r\nX-Request-Id: id-%[1]d\r\n", p.number)
	closing := "Connection: close\r\n"
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n", n) }
	request := head + closing + length(len(body)) + body
	switch p.sending {
	case "byte by byte":
		for i := 0; i < len(request) && err == nil; i++ {
			_, err = io.WriteString(conn, request[i:i+1])
		}
		return err
	case "in chunks":
		request = head + closing + "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n"
		for chunk := range slices.Chunk([]byte(body), 7) {
			request += fmt.Sprintf("%x;extension=1\r\n%s\r\n", len(chunk), chunk)
		}
		request += "0\r\nX-Sum: 42\r\n\r\n"
	case "two requests":
		request = head + length(len(body)) + body + "GET /v1/bots HTTP/1.1\r\nHost: campaign\r\nAuthorization: Bearer lister\r\nConnection: close\r\n\r\n"
	case "too short a length":
		request = head + closing + length(p.readBytes%len(body)) + body
	case "too long a length":
		request = head + closing + length(len(body)+1) + body
	case "half a head":
		request = head[:p.readBytes%len(head)]
	case "half a body":
		request = head + closing + length(len(body)) + body[:p.readBytes%len(body)]
	}
	if _, err = io.WriteString(conn, request); err != nil || p.sendsAll() {
		return err
	}
	return conn.CloseWrite() // the rest will never come
}

// sendsAll is whether the client sends as much as it has announced.
func (p *campaignPlan) sendsAll() bool {
	return !slices.Contains([]string{"too long a length", "half a head", "half a body"}, p.sending)
}

// sendsWell is whether the client's request means what it was meant to.
func (p *campaignPlan) sendsWell() bool { return p.sendsAll() && p.sending != "too short a length" }

// readsAll is whether the client is there to the end, and says so.
func (p *campaignPlan) readsAll() bool {
	return slices.Contains([]string{"to the end", "slowly", "late"}, p.reading)
}

// read reads as much as the client wants.
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
		time.Sleep(time.Duration(p.readBytes/4) * time.Millisecond) // at most more than twice WriteTimeout
	case "to a cut", "to a reset":
		return io.ReadAll(io.LimitReader(from, int64(p.readBytes)))
	}
	rest, err := io.ReadAll(from)
	return append(received, rest...), err
}

// look takes apart what the client received, and checks it against the plan.
func (p *campaignPlan) look(received []byte) error {
	from := bufio.NewReader(bytes.NewReader(received))
	res, err := http.ReadResponse(from, &http.Request{Method: "POST"})
	if err != nil {
		return p.missing(err)
	}
	body, err := io.ReadAll(res.Body)
	complete := err == nil
	err = p.lookAt(res, body, complete)
	if err == nil && p.sending == "two requests" && p.isOwedAll() && complete && !res.Close && p.ending != "exits" { // which may end the connection's goroutine
		err = lookAtSecond(from)
	}
	return err
}

func (p *campaignPlan) lookAt(res *http.Response, body []byte, complete bool) error {
	p.seen.status = res.StatusCode
	if allowed := p.statuses(); !slices.Contains(allowed, res.StatusCode) {
		return fmt.Errorf("status %d, want one of %d: %.200q", res.StatusCode, allowed, body)
	}
	if res.StatusCode == 400 && res.Header.Get("Content-Type") != "application/json" {
		return nil // half a head never gets further than net/http
	}
	if id := res.Header.Get("X-Request-Id"); id != fmt.Sprintf("id-%d", p.number) {
		return fmt.Errorf("the request id is %q", id)
	}
	switch {
	case res.StatusCode != 200:
		return lookAtError(string(body), complete)
	case p.stream:
		return p.lookAtStream(string(body), complete)
	}
	return p.lookAtWhole(string(body), complete)
}

// isOwedAll is whether nothing excuses an answer that breaks off without a sign.
// A write that has had its WriteTimeout does: a busy machine may let that pass
// before the client has had a chance to read.
func (p *campaignPlan) isOwedAll() bool {
	return p.readsAll() && p.seen.waited < campaignWriteTimeout
}

// missing is an error if the client should have had an answer.
func (p *campaignPlan) missing(err error) error {
	if p.isOwedAll() && p.sendsWell() {
		return fmt.Errorf("no answer: %w", err)
	}
	return nil
}

// statuses are those that the plan allows.
func (p *campaignPlan) statuses() []int {
	switch {
	case !p.sendsWell():
		return []int{400, 401, 404, 422, 500}
	case p.verifier == "refuses":
		return []int{401}
	case p.verifier == "fails" || p.verifier == "panics":
		return []int{500}
	case p.store == "misses":
		return []int{404}
	case p.store == "fails" || p.store == "panics":
		return []int{500}
	}
	allowed := []int{503, 504, p.endStatus()} // no place, and no time
	if p.stream {
		allowed = append(allowed, 200) // committed by a fragment or a keep-alive
	}
	return allowed
}

func lookAtError(body string, complete bool) error {
	var read struct{ Detail json.RawMessage }
	if err := decodeStrictly(body, &read); complete && (err != nil || len(read.Detail) == 0) {
		return fmt.Errorf("not an error: %q", body)
	}
	return nil
}

func (p *campaignPlan) lookAtStream(body string, complete bool) error {
	read, err := parseStream(body)
	if err != nil {
		return err
	}
	text := p.text()
	p.seen.bytes = len(read.text())
	p.seen.whole = read.done
	switch {
	case !strings.HasPrefix(text, read.text()):
		return fmt.Errorf("the text is not a prefix of what the engine has yielded: %.300q", read.text())
	case read.done && (read.text() != text || p.endStatus() != 200):
		return errors.New("a terminator behind half an answer")
	case complete && !read.done && p.readsAll(), !complete && read.done && p.isOwedAll():
		return fmt.Errorf("terminated %t, but complete %t", read.done, complete)
	}
	return nil
}

func (p *campaignPlan) lookAtWhole(body string, complete bool) error {
	text := p.text()
	if !complete {
		begun, err := beginningOf(body)
		if p.seen.bytes = len(begun); err != nil || !strings.HasPrefix(text, begun) {
			return fmt.Errorf("not a prefix of the answer: %.300q", body)
		}
		return nil
	}
	var read struct{ Content *string }
	if err := decodeStrictly(body, &read); err != nil || read.Content == nil || *read.Content != text {
		return fmt.Errorf("not the answer: %.300q", body)
	}
	p.seen.whole, p.seen.bytes = true, len(text)
	return nil
}

// beginningOf decodes an answer that was cut off somewhere.
func beginningOf(body string) (text string, err error) {
	if len(body) <= len(`{"content":"`) {
		return "", nil
	}
	var read struct{ Content string }
	for cut := range min(len(body), 8) { // an escape and a character are shorter
		begun := body[:len(body)-cut]
		if err = decodeStrictly(begun+`"}`, &read); err == nil && utf8.ValidString(begun) {
			return read.Content, nil
		}
	}
	return "", fmt.Errorf("not the beginning of an answer: %w", err)
}

// lookAtSecond looks at the answer to the request that was sent behind a chat.
func lookAtSecond(from *bufio.Reader) error {
	res, err := http.ReadResponse(from, &http.Request{Method: "GET"})
	if err != nil {
		return fmt.Errorf("no answer to the second request: %w", err)
	}
	defer res.Body.Close()
	var bots []Bot
	if err := json.NewDecoder(res.Body).Decode(&bots); err != nil || len(bots) != 1 {
		return fmt.Errorf("the second answer is not a list of bots: %v", err)
	}
	return nil
}

// checkReports compares what OnChat was told with what the clients saw.
func (c *campaign) checkReports() {
	outcomes := map[string]int{}
	for _, p := range c.plans {
		if err := p.checkReport(); err != nil {
			c.fail(p, "%v", err)
		}
		outcomes[p.outcome()]++
	}
	c.t.Logf("seed %d: %v", c.seed, outcomes)
}

func (p *campaignPlan) outcome() string {
	switch {
	case p.seen.whole:
		return "whole"
	case p.seen.status == 200:
		return "broken or left"
	case p.seen.status == 0:
		return "no answer"
	}
	return fmt.Sprint(p.seen.status)
}

func (p *campaignPlan) checkReport() error {
	reached := 0
	if p.called.Load() {
		reached = 1
	}
	if len(p.reports) != reached {
		return fmt.Errorf("the engine was called %d times, OnChat %d times", reached, len(p.reports))
	}
	if reached == 0 {
		return nil
	}
	r, text := p.reports[0], p.text()
	isWhole := r.Err == nil
	switch {
	case r.Stream != p.stream || r.Bot != echoBot || r.RequestID != fmt.Sprintf("id-%d", p.number):
		return errors.New("a report of another chat")
	case p.seen.status != 0 && r.Status != p.seen.status:
		return errors.New("the status is not what the client saw")
	case p.seen.whole && !isWhole:
		return errors.New("the client has a whole answer, the report has not")
	case isWhole && !p.seen.whole && p.isOwedAll():
		return errors.New("the report has a whole answer, the client has not")
	case isWhole && (r.Fragments != len(p.fragments) || r.Bytes != int64(len(text)) || r.Status != 200):
		return fmt.Errorf("%d fragments and %d bytes of a whole answer of %d and %d", r.Fragments, r.Bytes, len(p.fragments), len(text))
	case r.Fragments > len(p.fragments) || r.Bytes > int64(len(text)) || r.Bytes < int64(p.seen.bytes):
		return fmt.Errorf("%d fragments and %d bytes of %d and %d", r.Fragments, r.Bytes, len(p.fragments), len(text))
	case r.Bytes > 0 && r.FirstFragment <= 0 || r.FirstFragment > r.Duration:
		return errors.New("times that cannot be")
	}
	return p.checkErr(r)
}

// checkErr checks why an answer is said to have ended early.
func (p *campaignPlan) checkErr(r ChatReport) error {
	err, planned := r.Err, p.endStatus() != 200
	// On a slow machine, time may be over for any answer. On HTTP/2, the end of
	// a write's time is a reset like that of a client's.
	late := errors.Is(err, context.DeadlineExceeded) || p.http2 && r.Duration >= campaignWriteTimeout
	lost := errors.Is(err, ErrClientStalled) || errors.Is(err, context.Canceled)
	switch {
	case err == nil && planned:
		return errors.New("an engine that failed counts as whole")
	case err == nil || late:
		return nil
	case lost && p.readsAll() && p.reading != "late" && !errors.Is(err, ErrClientStalled):
		return fmt.Errorf("the client did not leave: %w", err)
	case !lost && !planned:
		return fmt.Errorf("nothing has failed: %w", err)
	}
	return nil
}

// checkPlaces takes all places at once, when the last engine has returned: none
// was lost.
func (c *campaign) checkPlaces() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	places := c.handler.places
	if err := places.all.Acquire(ctx, campaignPlaces); err != nil {
		c.t.Errorf("seed %d: places were lost: %v", c.seed, err)
	}
	places.mu.Lock()
	defer places.mu.Unlock()
	if len(places.taken) > 0 {
		c.t.Errorf("seed %d: places are still taken: %v", c.seed, places.taken)
	}
}
