package botapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
	"weak"
)

// A surface is a way to reach the handler: a protocol, a writer, a kind of response, and
// options.
type surface struct {
	name    string
	http2   bool
	stream  bool
	flushes bool // the writer can flush, and has deadlines
	hasty   bool // ChatTimeout passes before any other timeout; the chat is one of chatRoute
}

// path is that of the chat.
func (s surface) path() string { return way{route: s.hasty}.path() }

var surfaces = func() (all []surface) {
	for _, writer := range []surface{{name: "h2", flushes: true, http2: true}, {name: "h1", flushes: true}, {name: "unflushable"}} {
		for _, kind := range []surface{{name: " stream", stream: true}, {name: " stream hasty", stream: true, hasty: true}, {name: " JSON"}, {name: " JSON hasty", hasty: true}} {
			kind.name, kind.http2, kind.flushes = writer.name+kind.name, writer.http2, writer.flushes
			all = append(all, kind)
		}
	}
	return all
}()

// options returns times of which no two sums are equal.
func (s surface) options() Options {
	o := Options{
		KeepAlive:          3001 * time.Millisecond,
		StallTimeout:       5003 * time.Millisecond,
		WriteTimeout:       8 * time.Second,
		ChatTimeout:        31007 * time.Millisecond,
		MaxChatsPerAccount: 1,
	}
	if s.hasty {
		o.KeepAlive, o.StallTimeout, o.ChatTimeout = 401*time.Millisecond, 0, 301*time.Millisecond
		o.MaxChatsPerAccount, o.MaxConcurrentChats = 0, 1
		o.Routes = []Route{chatRoute(nil)}
	}
	return o
}

// How much longer than its options a chat may take.
const (
	writeSlack  = time.Second            // a deadline is not moved for every write
	readPause   = 250 * time.Millisecond // before an incomplete stream is aborted
	engineGrace = 500 * time.Millisecond // for an engine to return
)

const (
	orderRequestID = "order-1"
	probePrompt    = "is there a slot?"
)

var orderBots = &fakeStore{bySlug: func(context.Context, string) (Bot, error) { return echoBot, nil }}

var (
	errOfEngine      = fmt.Errorf("the engine's own upstream: %w", context.Canceled) // which must not be taken for a disconnect
	errTeapot        = &StatusError{Status: http.StatusTeapot, Detail: "I am a teapot"}
	errOfApplication = errors.New("the application is shutting down")
	errMoved         = &StatusError{Status: http.StatusUnavailableForLegalReasons, Detail: "Ask the other one"}
)

// A play is one chat with all its parties: a real server, a client on a wire, a scripted
// engine, and the application. It runs in a synctest bubble. The test reads its state, and
// makes events happen, only while all other goroutines are blocked: what only one goroutine
// writes needs no mutex.
type play struct {
	surface
	options        Options
	began          time.Time
	handler        http.Handler
	server         *memoryServer
	wire           *wire
	got            clientRead // by the client, so far
	engine         *scriptedEngine
	writer         *watchedWriter
	cancel         context.CancelCauseFunc // of the request's context
	requestEndedAt time.Duration           // when net/http cancelled the request's context; 0: not before the handler returned
	probe          weak.Pointer[[64]byte]  // to an object that only the request refers to

	stops     []reason // what may have ended the chat first; nil: the chat goes on
	stoppedAt time.Duration
	stopStep  int
	stopping  []reason // the same, for the step in progress
	steps     int
	happened  map[string]bool
	shutdown  chan error // what Shutdown returned
	second    chan int   // the status of a second chat
	slotFree  bool
	release   func()          // of the slot that the engine holds; nil: it holds none
	reported  bool            // before the step in progress
	violated  []string        // rules
	noted     map[string]bool // the names of the rules in violated

	reports     []ChatReport
	reportedAt  time.Duration
	reporting   chan struct{} // closed by the test when OnChat may return; nil: it has returned
	letAt       time.Duration // when reporting was closed
	holdsNoMore atomic.Bool   // OnChat returns immediately
	returned    atomic.Bool   // ServeHTTP has
	returnedAt  time.Duration
	looked      atomic.Bool // for the race detector: see letGo
}

// largeText is larger than the queue and a write together. No two parts of it are equal.
var largeText = func() string {
	var b strings.Builder
	for i := 0; b.Len() < 2*maxWrite+10<<10; i++ {
		fmt.Fprint(&b, i, " ")
	}
	return b.String()
}()

func newPlay(s surface) *play {
	p := &play{surface: s, options: s.options(), began: time.Now(), happened: make(map[string]bool), noted: make(map[string]bool), shutdown: make(chan error, 1)}
	p.engine = &scriptedEngine{play: p, steps: make(chan engineStep, 1), released: make(chan struct{})}
	p.options.Bots = orderBots
	p.options.Keys = KeyVerifierFunc(verifySlowly)
	p.options.Engine = engineOf(p.engine.iterate)
	p.options.Logger = slog.New(slog.DiscardHandler)
	p.options.OnChat = p.onChat
	p.handler = New(p.options)
	return p
}

// verifySlowly makes some time pass before a chat begins, so that no recorded time is 0.
func verifySlowly(ctx context.Context, _ string) (string, error) {
	if RequestIDFrom(ctx) == orderRequestID {
		time.Sleep(time.Millisecond)
	}
	return testAccount, nil
}

// start sends the request, and waits until some time after the engine has been called, so
// that the first event does not happen at the same time as the call.
func (p *play) start(t *testing.T) {
	body := chatBodyJSON("hi", p.stream)
	client, request := client(&http1Client{stream: p.stream}), http1Request
	if p.http2 {
		client, request = &http2Client{clientRead: clientRead{stream: p.stream}, granted: true}, http2Request
	}
	p.wire = newWire(client, request(p.path(), body))
	p.server = serveInMemory(t, http.HandlerFunc(p.serve), func(s *http.Server) {
		s.Protocols = new(http.Protocols)
		s.Protocols.SetHTTP1(!p.http2)
		s.Protocols.SetUnencryptedHTTP2(p.http2)
		s.HTTP2 = &http.HTTP2Config{WriteByteTimeout: p.options.WriteTimeout} // without it, a connection to which nothing can be written has no deadline
	})
	p.server.conns <- p.wire
	time.Sleep(100 * time.Millisecond)
}

// serve is the application's middleware.
func (p *play) serve(w http.ResponseWriter, r *http.Request) {
	defer func() {
		p.returnedAt = p.clock()
		p.returned.Store(true)
	}()
	p.writer = watch(w, p.stream, p.options.WriteTimeout, p.clock, &p.returned)
	defer context.AfterFunc(r.Context(), func() { p.requestEndedAt = p.clock() })()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	p.cancel = cancel
	probe := new([64]byte)
	p.probe = weak.Make(probe)
	r = r.WithContext(context.WithValue(ctx, probeKey{}, probe))
	if p.flushes {
		p.handler.ServeHTTP(p.writer, r)
	} else {
		p.handler.ServeHTTP(struct{ http.ResponseWriter }{p.writer}, r)
	}
}

type probeKey struct{}

func (p *play) clock() time.Duration {
	p.goOn()
	return time.Since(p.began)
}

// letGo and goOn are for the race detector, to which a bubble's time does not order
// events: what the test has read before it calls letGo may be changed by other goroutines
// after they have called goOn.
func (p *play) letGo() {
	p.looked.Store(true)
	p.wire.change(func() {})
}

func (p *play) goOn() { p.looked.Load() }

func (p *play) onChat(_ context.Context, report ChatReport) {
	if report.RequestID != orderRequestID {
		return
	}
	p.reportedAt = p.clock()
	p.reports = append(p.reports, report)
	if !p.holdsNoMore.Load() {
		held := make(chan struct{})
		p.reporting = held
		<-held
	}
}

// A scriptedEngine does one thing after the other, as the test says. It returns when its
// context is done or yield returns false, unless it ignores both.
type scriptedEngine struct {
	play     *play
	steps    chan engineStep
	released chan struct{} // closed at the end of the test

	ctx                   context.Context
	askedAt               time.Duration
	yields                []*yielded
	joined                string        // the fragments
	fullText, certainText string        // the same, as a client must see it; certainText without an incomplete character at the end
	answeredAt            time.Duration // since when the handler has been waiting for the engine
	idle                  bool          // waiting for a step
	ignores               bool
	over                  bool // the iterator has returned
	finished              bool // by returning, without an error
}

// yielded is one fragment, and what yield returned for it.
type yielded struct {
	text  string
	err   error
	at    time.Duration
	ended bool // yield has returned
	more  bool // what it returned
	step  int  // of the order
}

type engineStep struct {
	say   *yielded
	other func() // anything else; it need not return
	ends  bool   // the engine returns
}

func (e *scriptedEngine) iterate(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
	if lastContent(req) == probePrompt {
		return
	}
	e.ctx, e.askedAt, e.answeredAt = ctx, e.play.clock(), e.play.clock()
	defer func() {
		e.play.goOn()
		e.over, e.idle = true, false
	}()
	for {
		done := ctx.Done()
		if e.ignores {
			done = nil
		}
		e.idle = true
		select {
		case step := <-e.steps:
			e.idle = false
			switch {
			case step.ends:
				e.finished = true
				return
			case step.other != nil:
				step.other()
			case !e.yield(step.say, yield) && !e.ignores:
				return
			}
		case <-done:
			e.play.goOn()
			e.idle = false
			yield("", ctx.Err())
			return
		case <-e.released:
			return
		}
	}
}

func (e *scriptedEngine) yield(y *yielded, yield func(string, error) bool) bool {
	y.at, y.step = e.play.clock(), e.play.steps
	e.yields = append(e.yields, y)
	if y.err == nil {
		e.add(y.text)
	}
	more := yield(y.text, y.err)
	e.answeredAt = e.play.clock()
	y.ended, y.more = true, more
	return more
}

// yielding reports whether the engine waits for yield to return.
func (e *scriptedEngine) yielding() bool {
	return !e.over && slices.ContainsFunc(e.yields, func(y *yielded) bool { return !y.ended })
}

func (e *scriptedEngine) contextEnded() bool { return e.ctx != nil && e.ctx.Err() != nil }

// cause returns why the context is done; nil if it is not.
func (e *scriptedEngine) cause() error {
	if !e.contextEnded() {
		return nil
	}
	return context.Cause(e.ctx)
}

// add adds a fragment to the text that the client must see: to all of it, and to that
// without an incomplete character at the end.
func (e *scriptedEngine) add(text string) {
	e.joined += text
	e.fullText = validText(e.joined)
	e.certainText = e.fullText
	last := max(0, len(e.joined)-1)
	for last > max(0, len(e.joined)-utf8.UTFMax) && !utf8.RuneStart(e.joined[last]) {
		last--
	}
	if !utf8.FullRuneInString(e.joined[last:]) {
		e.certainText = validText(e.joined[:last])
	}
}

func validText(joined string) string {
	if utf8.ValidString(joined) {
		return joined // much faster
	}
	return textOf(joined)
}

// A watchedWriter records its calls. Two calls at the same time, or one after ServeHTTP has
// returned, are an offence.
type watchedWriter struct {
	http.ResponseWriter
	control      *http.ResponseController
	clock        func() time.Duration
	returned     *atomic.Bool // ServeHTTP has
	writeTimeout time.Duration

	mu          sync.Mutex
	calls       int           // in progress
	since       time.Duration // when the last call began
	until       time.Duration // when the last call ended
	tookTooLong time.Duration // when the last call ended that took at least WriteTimeout
	stalled     bool          // such a call has failed
	offence     string
	handed      clientRead    // everything passed to Write, as a client would read it
	wrote       time.Duration // when the last Write began
	quiet       time.Duration // the shortest time between a keep-alive and the Write before it
}

func watch(w http.ResponseWriter, stream bool, writeTimeout time.Duration, clock func() time.Duration, returned *atomic.Bool) *watchedWriter {
	return &watchedWriter{ResponseWriter: w, control: http.NewResponseController(w), clock: clock, returned: returned, writeTimeout: writeTimeout, handed: clientRead{stream: stream}, quiet: noLimit}
}

// call makes a call of the writer.
func (w *watchedWriter) call(method string, do func() error) error {
	w.note(method, func() {
		w.since = w.clock()
		if w.calls++; w.calls > 1 {
			w.offence = method + " during another call"
		}
	})
	err := do()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = w.clock()
	w.calls--
	if w.until-w.since >= w.writeTimeout {
		w.tookTooLong = w.until
		w.stalled = w.stalled || err != nil
	}
	return err
}

// note records a call, and whether it came after ServeHTTP had returned.
func (w *watchedWriter) note(method string, began func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	began()
	if w.returned.Load() {
		w.offence = method + " after ServeHTTP has returned"
	}
}

func (w *watchedWriter) Header() (header http.Header) {
	_ = w.call("Header", func() error { header = w.ResponseWriter.Header(); return nil })
	return header
}

func (w *watchedWriter) WriteHeader(status int) {
	_ = w.call("WriteHeader", func() error {
		w.handed.status = status
		w.ResponseWriter.WriteHeader(status)
		return nil
	})
}

func (w *watchedWriter) Write(p []byte) (n int, err error) {
	err = w.call("Write", func() error {
		before := w.handed.keepAlives
		w.handed.read(p)
		if w.handed.keepAlives > before {
			w.quiet = min(w.quiet, w.since-w.wrote)
		}
		w.wrote = w.since
		n, err = w.ResponseWriter.Write(p)
		return err
	})
	return n, err
}

func (w *watchedWriter) FlushError() error { return w.call("Flush", w.control.Flush) }

// A deadline may be set during another call: this is how a write is made to fail.
func (w *watchedWriter) SetReadDeadline(t time.Time) error {
	w.note("SetReadDeadline", func() {})
	return w.control.SetReadDeadline(t)
}

func (w *watchedWriter) SetWriteDeadline(t time.Time) error {
	w.note("SetWriteDeadline", func() {})
	return w.control.SetWriteDeadline(t)
}

// askForSlot plays a second chat, and returns its status.
func (p *play) askForSlot() int {
	return postChat(p.handler, chatBodyJSON(probePrompt, false)).Code
}

// An orderEvent is something that a party of a chat can do next.
type orderEvent struct {
	name     string
	by       string
	possible func(*play) bool
	happen   func(*play)
}

var orderEvents = []orderEvent{
	{"timer", "clock", (*play).alarmIsSet, (*play).nextAlarm},

	{"small", "engine", (*play).engineIdle, func(p *play) { p.say(p.smallText(), nil) }},
	{"large", "engine", (*play).engineIdle, func(p *play) { p.say(largeText, nil) }},
	{"split", "engine", (*play).engineIdle, func(p *play) { p.say("c\xe2\x82", nil) }},
	{"error", "engine", (*play).engineIdle, func(p *play) { p.stop(reasonFailed, p.clock()); p.say("", errOfEngine) }},
	{"error-text", "engine", (*play).engineIdle, func(p *play) { p.stop(reasonStatus, p.clock()); p.say("no text", errTeapot) }},
	{"return", "engine", (*play).engineIdle, func(p *play) { p.stop(reasonFinished, p.clock()); p.tell(engineStep{ends: true}) }},
	{"panic", "engine", (*play).engineIdle, func(p *play) { p.stop(reasonCrashed, p.clock()); p.tell(engineStep{other: hasABug}) }},
	{"exit", "engine", (*play).engineIdle, func(p *play) { p.stop(reasonCrashed, p.clock()); p.tell(engineStep{other: runtime.Goexit}) }},
	{"hold", "engine", func(p *play) bool { return p.hasty && !p.stream && p.engineIdle() && p.release == nil }, (*play).holdSlot},
	{"ignore", "engine", (*play).engineListens, func(p *play) { p.tell(engineStep{other: func() { p.engine.ignores = true }}) }},

	{"read-little", "client", (*play).clientStopped, (*play).readLittle},
	{"read-on", "client", (*play).clientStopped, (*play).readOn},
	{"stop", "client", (*play).clientReads, (*play).stopReading},
	{"jam", "client", func(p *play) bool { return p.http2 && p.clientReads() }, (*play).jam},
	{"half-close", "client", (*play).clientThere, func(p *play) { p.disconnect(p.http2, func() { p.wire.halfClosed = true }) }},
	{"disconnect", "client", (*play).clientThere, func(p *play) { p.disconnect(true, func() { p.wire.disconnected = true }) }},
	{"reset", "client", func(p *play) bool { return p.http2 && p.clientThere() }, func(p *play) { p.disconnect(true, p.resetStream) }},

	{"release", "application", func(p *play) bool { return p.release != nil }, (*play).releaseSlot},

	{"shutdown", "server", (*play).canShutDown, (*play).shutDown},
	{"cancel", "application", (*play).contextGoesOn, func(p *play) { p.endContext(reasonCancelled, errOfApplication) }},
	{"cancel-status", "application", (*play).contextGoesOn, func(p *play) { p.endContext(reasonCancelledWithStatus, errMoved) }},
	{"cancel-deadline", "application", (*play).contextGoesOn, func(p *play) { p.endContext(reasonDeadline, context.DeadlineExceeded) }},

	// Only together with another event: after each step, a second chat asks for the slot anyway.
	{"second", "second", func(p *play) bool { return !p.returned.Load() }, (*play).askMeanwhile},
}

func (p *play) engineIdle() bool    { return p.engine.idle }
func (p *play) engineListens() bool { return p.engine.idle && !p.engine.ignores }

func (p *play) tell(step engineStep) { p.engine.steps <- step }

func (p *play) say(text string, err error) {
	p.tell(engineStep{say: &yielded{text: text, err: err, step: p.steps}})
}

// smallText returns a short text. It completes a character that was split.
func (p *play) smallText() string {
	text := fmt.Sprintf("s%d ", len(p.engine.yields))
	if n := len(p.engine.yields); n > 0 && strings.HasSuffix(p.engine.yields[n-1].text, "\x82") {
		text = "\xac" + text
	}
	return text
}

// holdSlot makes the engine hold its slot, until the application releases it.
func (p *play) holdSlot() {
	p.tell(engineStep{other: func() {
		if release, held := RequestFrom(p.engine.ctx).Slot().Hold(); held {
			p.release = release
		}
	}})
}

func (p *play) releaseSlot() {
	p.release()
	p.release = nil
}

// stop records what may end the chat, and when.
func (p *play) stop(r reason, at time.Duration) {
	r.at = at
	p.stopping = append(p.stopping, r)
}

func hasABug() { panic("a bug in the engine") }

func (p *play) clientThere() bool   { return !p.returned.Load() && !p.happened["disconnected"] }
func (p *play) clientReads() bool   { return p.clientThere() && !p.happened["stopped"] }
func (p *play) clientStopped() bool { return p.clientThere() && p.happened["stopped"] }
func (p *play) canShutDown() bool   { return !p.returned.Load() && !p.happened["shutdown"] }
func (p *play) contextGoesOn() bool { return !p.returned.Load() && !p.happened["context ended"] }

func (p *play) stopReading() {
	p.happened["stopped"], p.happened["ever stopped"] = true, true
	p.wire.change(func() {
		if c, ok := p.wire.client.(*http2Client); ok {
			c.granted = false // the frames are still read
			return
		}
		p.wire.reading = false
	})
}

// jam makes the client stop reading frames, on HTTP/2.
func (p *play) jam() {
	p.happened["stopped"], p.happened["ever stopped"], p.happened["jammed"] = true, true, true
	p.wire.change(func() { p.wire.reading = false })
}

func (p *play) readLittle() {
	const little = 64
	p.wire.change(func() {
		if c, ok := p.wire.client.(*http2Client); ok && p.wire.reading {
			n := min(little, c.owed)
			c.granted = true
			p.wire.toServer = append(p.wire.toServer, c.grant(n)...)
			c.granted = false
			return
		}
		p.wire.deliver(little)
	})
}

func (p *play) readOn() {
	p.happened["stopped"] = false
	p.wire.change(func() {
		p.wire.reading = true
		p.wire.deliver(len(p.wire.waiting))
		if c, ok := p.wire.client.(*http2Client); ok {
			c.granted = true
			p.wire.toServer = append(p.wire.toServer, c.grant(c.owed)...)
		}
	})
}

// disconnect makes the client disconnect, in this way. If a write has already taken
// WriteTimeout, the reason may also be that the client stopped reading.
func (p *play) disconnect(closed bool, how func()) {
	p.stop(reasonDisconnected, p.clock())
	p.writer.mu.Lock()
	if p.writer.calls > 0 && p.clock()-p.writer.since >= p.options.WriteTimeout {
		p.stop(reasonClientStalled, p.clock())
	}
	p.writer.mu.Unlock()
	p.happened["disconnected"], p.happened["closed"] = true, closed
	p.wire.change(how)
}

func (p *play) resetStream() {
	const cancel = 0x8
	p.wire.toServer = append(p.wire.toServer, http2Frame(frameRSTStream, 0, 1, 0, 0, 0, cancel)...)
}

func (p *play) shutDown() {
	p.happened["shutdown"] = true
	go func() { p.shutdown <- p.server.Shutdown(context.Background()) }()
}

func (p *play) endContext(r reason, cause error) {
	p.stop(r, p.clock())
	p.happened["context ended"] = true
	p.cancel(cause)
}

// askMeanwhile asks for the slot while the other event of the step happens.
func (p *play) askMeanwhile() {
	p.second = make(chan int, 1)
	go func() { p.second <- p.askForSlot() }()
}

// An alarm is a time at which something is due, according to the options and to what has
// happened.
type alarm struct {
	at  time.Duration
	end *reason // for which the chat may end then; nil: none
}

func (p *play) alarms() (due []alarm) {
	if p.returned.Load() {
		return nil
	}
	o, e, now := p.options, p.engine, p.clock()
	add := func(set bool, at time.Duration, end *reason) {
		if set && at > now {
			due = append(due, alarm{at, end})
		}
	}
	running, reported := len(p.stops) == 0, len(p.reports) > 0
	add(!reported, e.askedAt+o.ChatTimeout, &reasonChatTimeout)
	add(running && p.stream && o.KeepAlive > 0 && !p.writing(), p.calledLast()+o.KeepAlive, nil)
	add(running && o.StallTimeout > 0 && !e.yielding() && !e.over, e.answeredAt+o.StallTimeout, &reasonEngineStalled)
	add(p.writing(), p.writer.since+o.WriteTimeout+writeSlack, nil)
	add(!running, p.stoppedAt+readPause, nil)
	add(!running, p.stoppedAt+engineGrace, nil)
	add(reported, p.wasReported()+readPause, nil)
	add(reported, p.wasReported()+engineGrace, nil)
	add(reported, p.wasReported()+readPause+engineGrace, nil)
	return due
}

// calledLast returns when the writer's last call ended.
func (p *play) calledLast() time.Duration { return max(p.writer.until, p.engine.askedAt) }

// wasReported returns when OnChat returned.
func (p *play) wasReported() time.Duration { return max(p.reportedAt, p.letAt) }

func (p *play) alarmIsSet() bool { return len(p.alarms()) > 0 }

// nextAlarm sleeps until the next alarm.
func (p *play) nextAlarm() {
	next := slices.MinFunc(p.alarms(), func(a, b alarm) int { return cmp.Compare(a.at, b.at) })
	p.sleepUntil(next.at)
}

func (p *play) sleepUntil(until time.Duration) {
	for _, due := range p.alarms() {
		if due.at <= until && due.end != nil {
			p.stop(*due.end, due.at)
		}
	}
	p.letGo()
	time.Sleep(until - p.clock())
}

// settle waits until all other goroutines are blocked, and checks the rules.
func (p *play) settle() {
	p.wait()
	p.noteStops()
	wasFree := p.slotFree
	if p.reporting != nil {
		p.slotFree = p.askForSlot() == http.StatusOK
		p.check("while OnChat is called")
		close(p.reporting)
		p.reporting, p.letAt = nil, p.clock()
		p.wait()
	}
	p.slotFree = p.askForSlot() == http.StatusOK
	if p.second != nil {
		if status := <-p.second; (status == http.StatusOK) != p.slotFree && p.slotFree == wasFree {
			p.violate(fmt.Sprintf("a slot is free or taken: a second chat got %d", status))
		}
		p.second = nil
	}
	p.reported = len(p.reports) > 0
	p.check(fmt.Sprintf("after %d events", p.steps))
}

func (p *play) wait() {
	synctest.Wait()
	p.got = *p.wire.client.answer()
}

// noteStops decides, after a step, what may have been the first reason. After the engine has
// finished, the client may still fail to read the end of the answer.
func (p *play) noteStops() {
	if p.writer.stalled {
		p.stop(reasonClientStalled, p.calledLast())
	}
	if p.writtenTooLate() {
		p.stop(reasonDisconnected, p.requestEndedAt)
		p.stop(reasonClientStalled, p.requestEndedAt)
	}
	if at, ok := p.givenUp(); ok {
		p.stop(reasonDisconnected, at)
		p.stop(reasonClientStalled, at)
	}
	if yields := p.engine.yields; !p.engine.contextEnded() && len(yields) > 0 { // an engine that yielded at the last moment was in time
		spoke := yields[len(yields)-1].at
		p.stopping = slices.DeleteFunc(p.stopping, func(r reason) bool { return r.name == reasonEngineStalled.name && spoke >= r.at })
	}
	switch {
	case len(p.stopping) == 0:
	case len(p.stops) == 0:
		p.stoppedAt, p.stopStep = slices.MinFunc(p.stopping, earlier).at, p.steps
		p.stops = slices.DeleteFunc(p.stopping, func(r reason) bool { return r.at > p.stoppedAt })
	case !p.reported && p.stoppedBecause(reasonFinished):
		p.stops = append(slices.Clone(p.stops), p.stopping...)
	}
	p.stopping = nil
}

// givenUp returns when net/http closed an HTTP/2 connection to which nothing could be
// written. To the handler, this looks like a disconnect or like a client that stopped
// reading.
func (p *play) givenUp() (at time.Duration, ok bool) {
	return p.wire.closedAt.Sub(p.began), p.http2 && p.wire.closed && p.happened["ever stopped"]
}

// writtenTooLate reports whether a write has succeeded just when its deadline passed: on
// HTTP/2, net/http resets the stream nevertheless.
func (p *play) writtenTooLate() bool {
	return p.http2 && p.requestEndedAt > 0 && p.requestEndedAt == p.writer.tookTooLong
}

func (p *play) check(when string) {
	for _, rule := range p.violations() {
		p.violate(rule + " (" + when + ")")
	}
}

// violate records a violated rule, once.
func (p *play) violate(rule string) {
	name, _, _ := strings.Cut(rule, ":")
	if !p.noted[name] {
		p.noted[name] = true
		p.violated = append(p.violated, rule)
	}
}

// end ends a chat after the last event of an order: time passes until only a hanging
// engine can still run; then the engine returns, the client disconnects, and the server is
// closed. In an order that is searched for leaks, no more time passes than necessary: a
// timer that has fired would not be found.
func (p *play) end(searched bool) {
	p.holdsNoMore.Store(true)
	until := p.stoppedAt
	if len(p.stops) == 0 {
		until = p.engine.askedAt + p.options.ChatTimeout
	}
	if until += p.patience(); until > p.clock() && !(p.returned.Load() && searched) {
		p.steps++
		p.sleepUntil(until)
		p.settle()
	}
	close(p.engine.released)
	p.settle()
	if p.release != nil {
		p.releaseSlot()
		p.settle()
	}
	p.wire.change(func() { p.wire.disconnected = true })
	p.happened["disconnected"], p.happened["closed"] = true, true
	p.settle()
	p.letGo()
	if p.happened["shutdown"] {
		if err := <-p.shutdown; err != nil {
			p.violate(fmt.Sprintf("Shutdown waits for the chat: %v", err))
		}
	}
	_ = p.server.Server.Close()
	<-p.server.served
}

// retained reports whether anything still refers to the request, after the test has dropped
// its own references. A collection may take a word that is left on the stack of another
// test's goroutine for a reference, until that goroutine goes on.
func (p *play) retained() bool {
	p.writer, p.cancel, p.engine.ctx, p.wire = nil, nil, nil, nil
	time.Sleep(time.Nanosecond) // a bubble keeps timers that were stopped until its clock moves
	synctest.Wait()
	for range 20 { // most take one, or two: the first empties net/http's pools
		runtime.GC()
		if p.probe.Value() == nil {
			return false
		}
		runtime.Gosched()
	}
	return true
}
