package stackcheck

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi/examples/internal/probe"
)

// A stack is the service as the checks see it, with one version of HTTP.
type stack struct {
	Target
	protocol string // what its name is in findings
	client   *http.Client
	bot      string // the slug of one that the service has
	sent     *counter
	failed   map[string]bool // names of checks that have found something

	faults  *faults
	control *stack // gets the orders; nil: the stack itself
	kit     *kit   // sees the handler from within; nil from outside
}

// A counter counts chats, and stops at its bound.
type counter struct {
	chats    atomic.Int64
	bound    int64        // 0: none
	rejected atomic.Int64 // requests that a limit of chats or requests has rejected: the checks cause none themselves
	delayed  atomic.Int64 // requests that came too soon, and were sent again
	rested   atomic.Int64 // of delayed, those after which there was a rest
	room     atomic.Int64 // for so many chats at the same time; 0: nothing is known of a limit

	mu        sync.Mutex
	reason    string          // of the last rejection, or page: its status, and what it says
	processes map[string]bool // that have answered orders
}

// note adds a rejection to one of the counters, and keeps what it says.
func (c *counter) note(count *atomic.Int64, status int, body string) {
	reason := quoted(body)
	if detail := detailOf(body); detail != "" {
		reason = fmt.Sprintf("%q", detail)
	} else if body == "" { // as for HEAD
		reason = "without a text"
	}
	c.mu.Lock()
	c.reason = fmt.Sprintf("%d, %s", status, reason)
	c.mu.Unlock()
	count.Add(1)
}

// notePage counts a request that was sent again because of a page.
func (c *counter) notePage(page *answer) {
	c.mu.Lock()
	c.reason = fmt.Sprintf("%d, a page", page.status)
	c.mu.Unlock()
	c.delayed.Add(1)
}

// rejection is what the last rejection or page has said.
func (c *counter) rejection() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

func (c *counter) saw(process string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.processes == nil {
		c.processes = make(map[string]bool)
	}
	c.processes[process] = true
}

// hasReplicas reports whether several processes have answered orders.
func (c *counter) hasReplicas() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.processes) > 1
}

func newStack(target Target) *stack {
	target.URL = strings.TrimRight(target.URL, "/")
	target.Patience = cmp.Or(target.Patience, patience)
	if target.Transport == nil {
		target.Transport = func() *http.Transport { return http.DefaultTransport.(*http.Transport).Clone() }
	}
	return &stack{Target: target, client: newClient(target), sent: new(counter), faults: new(faults)}
}

// newClient follows no redirects and decompresses nothing.
func newClient(target Target) *http.Client {
	transport := target.Transport()
	transport.DisableCompression = true
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (s *stack) close() { s.client.CloseIdleConnections() }

// alone is the stack with connections of its own.
func (s *stack) alone() *stack {
	other := *s
	other.client = newClient(s.Target)
	return &other
}

// single is the stack with a connection for each request.
func (s *stack) single() *stack {
	other := s.alone()
	other.client.Transport.(*http.Transport).DisableKeepAlives = true
	return other
}

// begin finds out whether the service can be checked, and with which bot.
func (s *stack) begin(ctx context.Context) error {
	got := s.do(ctx, request{path: "/v1/bots"})
	if got.status == 0 {
		return got.err
	}
	s.protocol = got.proto
	var bots []struct{ Slug string }
	if got.status == http.StatusUnauthorized && strings.Contains(got.body, "Invalid API key") {
		return errors.New("GET /v1/bots: the service rejects the key (401 Invalid API key)")
	}
	if got.status != http.StatusOK || json.Unmarshal([]byte(got.body), &bots) != nil {
		return nil // the checks say what this is
	}
	if len(bots) == 0 {
		return errors.New("GET /v1/bots: the service lists no bot, and a chat needs one")
	}
	s.bot = bots[0].Slug
	if s.Secret == "" {
		return nil
	}
	if _, err := s.order(ctx, probe.Order{Chat: "none", Do: probe.See}); err != nil {
		var page *pageError
		if own, _ := s.faults.take(); own != nil || errors.As(err, &page) {
			return nil // the checks say what this is
		}
		return fmt.Errorf("does the service have Engine: botapitest.Probed(engine, secret), with this secret? %w", err)
	}
	for range discovery {
		one := s.single()
		_, err := one.order(ctx, probe.Order{Chat: "none", Do: probe.See})
		one.close()
		if err != nil {
			return nil // the checks say what this is
		}
	}
	return nil
}

// A request is one that a check sends.
type request struct {
	method  string // GET, or POST with a body
	path    string
	body    string
	chunked bool              // without a Content-Length
	header  map[string]string // "" removes a header; each line is one
	slow    int               // read only so many bytes, until the answer's resume is called
	timeout time.Duration     // for all; 0 means 30 s
	fails   bool              // the probe is to fail
	played  bool              // the probe answers
}

// An answer arrives in its own time. Its fields may be read once it has ended, or in wait.
type answer struct {
	mu      sync.Mutex
	changed chan struct{}

	begun    time.Time // sent, for the last time
	status   int       // 0: no response yet
	headAt   time.Time // the status and the headers arrived
	proto    string
	header   http.Header
	reused   bool   // its connection was used before
	repeated bool   // a page was the response, too, before a pause
	body     string // decompressed: its first MiB
	bytes    int64  // of all of it
	arrivals []time.Time
	ended    bool
	endedAt  time.Time
	err      error // of the request, or of reading the body

	cancel context.CancelFunc
	resume func()
}

// start sends a request.
func (s *stack) start(ctx context.Context, r request) *answer {
	timeout := r.timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	gate := make(chan struct{})
	a := &answer{changed: make(chan struct{}), begun: time.Now(), cancel: cancel, resume: sync.OnceFunc(func() { close(gate) })}
	if !strings.HasPrefix(r.path, "/") {
		a.end(fmt.Errorf("stackcheck: a path without a slash: %q", r.path))
		return a
	}
	if r.isChat() && s.sent.bound > 0 && s.sent.chats.Add(1) > s.sent.bound {
		a.end(errors.New("stackcheck: more chats than were announced"))
		return a
	}
	go func() {
		defer cancel()
		a.end(a.follow(ctx, s, r, gate))
	}()
	return a
}

// A request that came too soon waits as long as the response says, if that is not long, and is sent
// again.
const (
	longestPause = 5 * time.Second
	mostPauses   = 5
)

// What the handler says of chats at the same time, of all and of one key: those of the check have the room.
const (
	limitOfAll = "Too many chats in progress"
	ownLimit   = "Too many chats in progress for this key"
)

func (r request) isChat() bool { return r.body != "" && strings.HasSuffix(r.path, "/chat") }

func (a *answer) follow(ctx context.Context, s *stack, r request, gate <-chan struct{}) error {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		a.change(func() { a.reused = info.Reused })
	}})
	res, err := s.send(ctx, r, a)
	if err == nil {
		res, err = s.passRate(ctx, r, a, res)
	}
	if err != nil {
		return err
	}
	defer res.Body.Close()
	a.change(func() { a.status, a.headAt, a.proto, a.header = res.StatusCode, time.Now(), res.Proto, res.Header })
	err = a.read(ctx, res, r.slow, gate)
	isRejected := res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable && a.detail() == limitOfAll
	if isRejected && ctx.Err() == nil { // otherwise the check has ended
		s.sent.note(&s.sent.rejected, res.StatusCode, a.body)
	}
	if ctx.Err() == nil {
		s.faults.note(s, r, a)
	}
	return err
}

// send sends a request, and again after each response that it came too soon.
func (s *stack) send(ctx context.Context, r request, a *answer) (*http.Response, error) {
	for pauses := 0; ; pauses++ {
		req, err := s.request(ctx, r)
		if err != nil {
			return nil, err
		}
		res, err := s.client.Do(req)
		if err != nil || pauses == mostPauses {
			return res, err
		}
		pause := pauseAfter(res)
		if pause == 0 {
			return res, nil
		}
		body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		if err != nil || detailOf(string(body)) == ownLimit {
			res.Body = &readBefore{io.MultiReader(bytes.NewReader(body), res.Body), res.Body}
			return res, nil
		}
		res.Body.Close()
		if s.sent.note(&s.sent.delayed, res.StatusCode, string(body)); s.Delayed != nil {
			s.faults.firstDelay.Do(func() { s.Delayed(s.sent.rejection()) })
		}
		if sleep(ctx, pause); ctx.Err() != nil {
			return nil, ctx.Err()
		}
		a.change(func() { a.begun = time.Now() })
	}
}

// pauseAfter is how long to wait after a response before its request is sent again, or 0.
func pauseAfter(res *http.Response) time.Duration {
	seconds, err := strconv.Atoi(res.Header.Get("Retry-After"))
	pause := time.Duration(seconds) * time.Second
	if res.StatusCode != http.StatusTooManyRequests || err != nil || pause <= 0 || pause > longestPause {
		return 0
	}
	return pause
}

// A readBefore is a body of which some was read already.
type readBefore struct {
	io.Reader
	io.Closer
}

func (s *stack) request(ctx context.Context, r request) (*http.Request, error) {
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
		if r.chunked {
			body = io.MultiReader(body)
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.verb(), s.URL+r.path, body)
	if err != nil {
		return nil, err
	}
	req.GetBody = nil // net/http must not send a chat again
	req.Header.Set("User-Agent", "botapi-doctor")
	req.Header.Set("Authorization", "Bearer "+s.Key)
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.header {
		req.Header.Del(name)
		for line := range strings.SplitSeq(value, "\n") {
			if line != "" {
				req.Header.Add(name, line)
			}
		}
	}
	return req, nil
}

// read reads the body as it arrives, and keeps up to 1 MiB of it.
func (a *answer) read(ctx context.Context, res *http.Response, slow int, gate <-chan struct{}) error {
	body := io.Reader(res.Body)
	if strings.EqualFold(res.Header.Get("Content-Encoding"), "gzip") {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return err
		}
		body = unzipped
	}
	buffer, read := make([]byte, 32<<10), 0
	if slow > 0 {
		buffer = buffer[:min(slow, len(buffer))]
	}
	for {
		if slow > 0 && read >= slow {
			select {
			case <-gate:
				slow, buffer = 0, buffer[:cap(buffer)]
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		n, err := body.Read(buffer)
		read += n
		if n > 0 {
			a.change(func() { a.add(buffer[:n]) })
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// add notes when each event has arrived.
func (a *answer) add(text []byte) {
	const most = 1 << 20
	a.bytes += int64(len(text))
	if len(a.body) < most {
		a.body += string(text)
	}
	now := time.Now()
	for range bytes.Count(text, []byte("data: ")) {
		if len(a.arrivals) < 4096 {
			a.arrivals = append(a.arrivals, now)
		}
	}
}

func (a *answer) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *answer) end(err error) {
	a.change(func() { a.ended, a.endedAt, a.err = true, time.Now(), err })
}

// wait waits until the condition is true or the answer has ended, and reports the condition.
// The condition is called with the answer locked.
func (a *answer) wait(ctx context.Context, timeout time.Duration, condition func() bool) bool {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		a.mu.Lock()
		isTrue, ended, changed := condition(), a.ended, a.changed
		a.mu.Unlock()
		if isTrue || ended {
			return isTrue
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// do sends a request and reads the response.
func (s *stack) do(ctx context.Context, r request) *answer {
	a := s.start(ctx, r)
	a.whole(ctx)
	return a
}

// whole waits for the end of an answer.
func (a *answer) whole(ctx context.Context) {
	a.wait(ctx, time.Hour, func() bool { return a.ended })
	a.mu.Lock() // for the race detector, if ctx has ended first
	defer a.mu.Unlock()
}

// sentAt returns when the request was sent, for an answer that may not have ended.
func (a *answer) sentAt() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begun
}

func (a *answer) hasEnded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// endedAfter returns how long an answer took, if it has ended.
func (a *answer) endedAfter() (hasEnded bool, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended, a.endedAt.Sub(a.begun)
}

// length is how long an answer took that has ended.
func (a *answer) length() time.Duration {
	_, after := a.endedAfter()
	return after
}

// headAfter returns how long the status and the headers took, or 0 if they have not arrived.
func (a *answer) headAfter() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.status == 0 {
		return 0
	}
	return a.headAt.Sub(a.begun)
}

// fate says whether an answer has ended, and after how long.
func (a *answer) fate() string {
	hasEnded, after := a.endedAfter()
	if !hasEnded {
		return fmt.Sprintf("was open for %.1f s", time.Since(a.sentAt()).Seconds())
	}
	return fmt.Sprintf("ended after %.1f s", after.Seconds())
}

// disconnect disconnects the client.
func (a *answer) disconnect() { a.cancel() }

// show describes a response.
func (a *answer) show(headers ...string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out strings.Builder
	switch {
	case a.status == 0 && a.err != nil:
		return fmt.Sprintf("no response (%v)", a.err)
	case a.status == 0:
		return "no response"
	}
	fmt.Fprintf(&out, "%d", a.status)
	for _, name := range headers {
		if values := a.header.Values(name); len(values) > 0 {
			fmt.Fprintf(&out, ", %s: %s", name, strings.Join(values, " | "))
		} else {
			fmt.Fprintf(&out, ", no %s", name)
		}
	}
	fmt.Fprintf(&out, ", %s", quoted(a.body))
	if a.err != nil {
		fmt.Fprintf(&out, ", then %v", a.err)
	}
	return out.String()
}

// isJSON reports whether the body is JSON, as that of each response of the API is that is no
// stream.
func (a *answer) isJSON() bool {
	return strings.HasPrefix(a.header.Get("Content-Type"), "application/json") && json.Valid([]byte(a.body))
}

// detail is the detail of an error in the API's own form.
func (a *answer) detail() string { return detailOf(a.body) }

func detailOf(body string) string {
	var e struct{ Detail any }
	_ = json.Unmarshal([]byte(body), &e)
	detail, _ := e.Detail.(string)
	return detail
}

// A play is a chat that the probed engine answers.
type play struct {
	*answer
	id  string
	gos int // waits that goOn has ended
}

// chat returns the body of a chat with a prompt.
func (s *stack) chat(prompt string, stream bool, more map[string]any) string {
	fields := map[string]any{"bot_slug": s.bot, "prompt": prompt, "stream": stream}
	maps.Copy(fields, more)
	body, _ := json.Marshal(fields) // only texts and numbers
	return string(body)
}

// probePrompt has what middleware likes to change.
const probePrompt = "Grüße, <b>3 &amp; 4</b> %20 \r\n\t\u2028 'x' \"y\" 😀 "

// play starts a chat that the probed engine answers with the steps.
func (s *stack) play(ctx context.Context, stream bool, r request, steps ...probe.Step) *play {
	id := rand.Text()
	order := probe.Order{Secret: s.Secret, Chat: id, Do: probe.Play, Steps: steps}
	r.path, r.body = "/v1/chat", s.chat(probePrompt, stream, map[string]any{probe.Field: order})
	r.played = true
	r.fails = slices.ContainsFunc(steps, func(step probe.Step) bool { return step.Fail != nil })
	return &play{answer: s.start(ctx, r), id: id}
}

// order sends an order to the probe, and returns what it has seen.
func (s *stack) order(ctx context.Context, o probe.Order) (probe.Seen, error) {
	to := s.forOrders()
	o.Secret = to.Secret
	var seen probe.Seen
	got := to.do(ctx, request{
		path: "/v1/chat",
		body: to.chat("This is a probe.", false, map[string]any{probe.Field: o}),
	})
	if ctx.Err() != nil { // the response may still be arriving
		return seen, ctx.Err()
	}
	if got.err != nil {
		return seen, fmt.Errorf("an order to the probe: %w", got.err)
	}
	var reply struct{ Content string }
	if got.status != http.StatusOK || json.Unmarshal([]byte(got.body), &reply) != nil || json.Unmarshal([]byte(reply.Content), &seen) != nil || seen.Process == "" {
		if got.status == http.StatusOK {
			return seen, errors.New("an order to the probe: the chat was not answered by a probe")
		}
		if got.isPage() {
			return seen, &pageError{got: got, sent: "a JSON chat, an order to the probe, while other requests may have been open"}
		}
		return seen, fmt.Errorf("an order to the probe: %s", got.show())
	}
	to.sent.saw(seen.Process)
	return seen, nil
}

// tries is how often an order is sent until it has reached the process that knows the chat: the
// chat itself may still be on its way, and the service may have several replicas.
const tries = 16

// ask is order for a chat that has been started. After the first, orders are sent at the same
// time, each on a connection of its own, and those that have reached another process stay there:
// a load balancer that sends a request to the replica with the fewest would otherwise never send
// one to that of the chat. One is asked at a time, so that a balancer that takes replicas in turn
// finds it, too.
func (s *stack) ask(ctx context.Context, o probe.Order) (probe.Run, error) {
	ctx, release := context.WithCancel(ctx)
	defer release() // those that stay
	type reply struct {
		seen probe.Seen
		err  error
	}
	replies := make(chan reply, tries)
	send := func(s *stack) {
		seen, err := s.order(ctx, o)
		replies <- reply{seen, err}
	}
	send(s)
	o.Stay = probe.In(patience) // at a process that does not know the chat, until the last one is sent
	var next <-chan time.Time
	for sent, missing := 1, 1; missing > 0 || sent < tries; {
		select {
		case got := <-replies:
			missing--
			if got.err != nil {
				return probe.Run{}, got.err
			}
			if last := len(got.seen.Runs) - 1; last >= 0 {
				return got.seen.Runs[last], nil
			}
		case <-next:
			go send(s.forOrders().single())
			sent, missing = sent+1, missing+1
		case <-ctx.Done():
			return probe.Run{}, ctx.Err()
		}
		if next = nil; sent < tries {
			next = time.After(10 * time.Millisecond << min(sent-1, 5))
		}
	}
	return probe.Run{}, errNotBegun
}

// forOrders is the stack that gets the orders.
func (s *stack) forOrders() *stack {
	if s.control != nil {
		return s.control
	}
	return s
}

// errNotBegun: no process that was asked has called its engine for the chat.
var errNotBegun = errors.New("the chat did not reach the engine")

// see waits for an event of a probe chat.
func (s *stack) see(ctx context.Context, p *play, event probe.Event, count int, most time.Duration) (probe.Run, error) {
	return s.ask(ctx, probe.Order{Chat: p.id, Do: probe.See, For: event, Count: count, Millis: probe.In(most)})
}

// goOn ends one wait of a probe chat.
func (s *stack) goOn(ctx context.Context, p *play) error {
	p.gos++
	_, err := s.ask(ctx, probe.Order{Chat: p.id, Do: probe.Go, Count: p.gos})
	return err
}

// replicas is how often allRuns asks, so that it has most probably asked each replica.
const replicas = 6

// allRuns returns what all replicas have seen of a chat, as far as they were reached.
func (s *stack) allRuns(ctx context.Context, p *play) ([]probe.Run, error) {
	seen := make(map[string][]probe.Run)
	asked := replicas
	if s.control != nil {
		asked = 1
	}
	for range asked {
		one, err := s.single().order(ctx, probe.Order{Chat: p.id, Do: probe.See, For: probe.Ended, Millis: probe.In(patience)})
		if err != nil {
			return nil, err
		}
		seen[one.Process] = one.Runs
	}
	return slices.Concat(slices.Collect(maps.Values(seen))...), nil
}
