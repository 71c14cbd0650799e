package botapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
	"weak"
)

// A surface is a way to reach the handler, and what its host has chosen.
type surface struct {
	name    string
	http2   bool
	stream  bool
	flushes bool // the host's writer can flush, and has deadlines
	hasty   bool // ChatTimeout passes before anything else
}

var surfaces = func() (all []surface) {
	for _, writer := range []surface{{name: "h2", flushes: true, http2: true}, {name: "h1", flushes: true}, {name: "unflushable"}} {
		for _, stream := range []bool{true, false} {
			for _, hasty := range []bool{false, true} {
				s := writer
				s.stream, s.hasty = stream, hasty
				s.name += map[bool]string{true: " stream", false: " whole"}[stream]
				if hasty {
					s.name += " hasty"
				}
				all = append(all, s)
			}
		}
	}
	return all
}()

// The times are such that no two sums of them are the same moment.
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
	}
	return o
}

// What a chat may take longer than its options say.
const (
	writeSlack  = time.Second            // a deadline is not moved for every write
	breakPause  = 250 * time.Millisecond // before a broken stream is cut
	engineGrace = 500 * time.Millisecond // for an engine to return
)

const (
	orderRequestID = "order-1"
	probePrompt    = "is there a place?"
)

var (
	errOfEngine = fmt.Errorf("the engine's own upstream: %w", context.Canceled) // that nobody must take for the client's leaving
	errTeapot   = &StatusError{Status: http.StatusTeapot, Detail: "I am a teapot"}
	errOfHost   = errors.New("the host is going down")
	errMoved    = &StatusError{Status: http.StatusUnavailableForLegalReasons, Detail: "Ask the other one"}
)

// A play is one chat with everybody around it: a real server, a client on a
// wire, an engine that says what it is told, and the host. It lives in a
// synctest bubble.
type play struct {
	surface
	options Options
	began   time.Time
	handler http.Handler
	server  *memoryServer
	wire    *wire
	engine  *scriptedEngine
	writer  *watchedWriter
	cancel  context.CancelCauseFunc // of the request's context
	probe   weak.Pointer[[64]byte]  // something that the request refers to

	stops     []reason // what may have ended the chat; nil: nothing yet
	stopping  []reason // the same, of the step that is being made
	stopStep  int
	stoppedAt time.Duration
	steps     int
	happened  map[string]bool
	shutdown  chan error // what Shutdown returned
	second    chan int   // the status of a second chat
	placeFree bool
	reported  bool            // before the step that is being made
	checked   map[string]bool // violated rules that are noted already
	violated  []string

	mu         sync.Mutex
	reports    []ChatReport
	reportedAt time.Duration
	reporting  chan struct{} // closed by the test when OnChat may return
	letAt      time.Duration // when it was
	returned   bool          // ServeHTTP has
	returnedAt time.Duration
	unheld     bool // OnChat returns at once
}

// largeText is more than the queue and what is being written hold together. It
// is nowhere like another part of it.
var largeText = func() string {
	var b strings.Builder
	for i := 0; b.Len() < 2*maxWrite+10<<10; i++ {
		fmt.Fprint(&b, i, " ")
	}
	return b.String()
}()

func newPlay(t *testing.T, s surface) *play {
	p := &play{surface: s, options: s.options(), began: time.Now(), happened: make(map[string]bool), checked: make(map[string]bool), shutdown: make(chan error, 1)}
	p.engine = &scriptedEngine{play: p, steps: make(chan engineStep, 1), released: make(chan struct{})}
	store, err := NewMemoryStore(echoBot)
	if err != nil {
		t.Fatal(err)
	}
	p.options.Bots = store
	p.options.Keys = KeyVerifierFunc(verifySlowly)
	p.options.Engine = engineOf(p.engine.speak)
	p.options.Logger = slog.New(slog.DiscardHandler)
	p.options.OnChat = p.onChat
	p.handler = New(p.options)
	return p
}

// verifySlowly has some time pass before a chat begins: none that matters is 0.
func verifySlowly(ctx context.Context, _ string) (string, error) {
	if RequestIDFrom(ctx) == orderRequestID {
		time.Sleep(time.Millisecond)
	}
	return testAccount, nil
}

// start sends the request, and waits a moment longer than until the engine is
// asked: the timers that are set then are not those of the first event.
func (p *play) start(t *testing.T) {
	body := chatBodyJSON("hi", p.stream)
	client, request := client(&http1Client{answerRead: answerRead{stream: p.stream}}), http1Request
	if p.http2 {
		client, request = &http2Client{answerRead: answerRead{stream: p.stream}, granted: true}, http2Request
	}
	p.wire = newWire(client, request(body))
	p.server = serveInMemory(t, http.HandlerFunc(p.serve), func(s *http.Server) {
		s.Protocols = new(http.Protocols)
		s.Protocols.SetHTTP1(!p.http2)
		s.Protocols.SetUnencryptedHTTP2(p.http2)
		s.HTTP2 = &http.HTTP2Config{WriteByteTimeout: p.options.WriteTimeout} // else a connection that is stuck has no deadline
	})
	p.server.conns <- p.wire
	time.Sleep(100 * time.Millisecond)
}

// serve is the host's middleware.
func (p *play) serve(w http.ResponseWriter, r *http.Request) {
	p.writer = &watchedWriter{ResponseWriter: w, play: p, quiet: never}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.returned, p.returnedAt = true, p.clock()
	}()
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

func (p *play) clock() time.Duration { return time.Since(p.began) }

func (p *play) onChat(ctx context.Context, report ChatReport) {
	if report.RequestID != orderRequestID {
		return
	}
	p.mu.Lock()
	p.reports = append(p.reports, report)
	p.reportedAt = p.clock()
	if p.unheld {
		p.mu.Unlock()
		return
	}
	held := make(chan struct{})
	p.reporting = held
	p.mu.Unlock()
	<-held
}

// A scriptedEngine does one thing after the other, as the test says. When it
// does not ignore its context and what yield returns, it ends by both.
type scriptedEngine struct {
	play  *play
	steps chan engineStep

	released chan struct{} // closed at the end of the test

	mu                     sync.Mutex
	ctx                    context.Context
	yields                 []*yielded
	said                   string // the fragments, joined
	wholeText, certainText string // the same, as a client is to see it; certain but for a cut character
	deaf                   bool
	idle                   bool // waits for a step
	over                   bool // the iterator has returned
	askedAt                time.Duration
	spokeAt                time.Duration
	finished               bool // of its own accord, and properly
}

// yielded is one fragment, and what became of it.
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
	other func() // what else it does; may not return
	ends  bool   // it returns
}

func (e *scriptedEngine) speak(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
	if lastContent(req) == probePrompt {
		return
	}
	e.set(func() { e.ctx, e.askedAt, e.spokeAt = ctx, e.play.clock(), e.play.clock() })
	defer e.set(func() { e.over = true })
	for {
		e.set(func() { e.idle = true })
		select {
		case step := <-e.steps:
			e.set(func() { e.idle = false })
			switch {
			case step.ends:
				e.set(func() { e.finished = true })
				return
			case step.other != nil:
				step.other()
			case !e.yield(step.say, yield) && !e.isDeaf():
				return
			}
		case <-e.hears(ctx):
			e.set(func() { e.idle = false })
			yield("", ctx.Err())
			return
		case <-e.released:
			return
		}
	}
}

func (e *scriptedEngine) yield(y *yielded, yield func(string, error) bool) bool {
	y.at, y.step = e.play.clock(), e.play.steps
	e.set(func() {
		e.yields = append(e.yields, y)
		if y.err == nil {
			e.hear(y.text)
		}
	})
	more := yield(y.text, y.err)
	e.set(func() { y.ended, y.more, e.spokeAt = true, more, e.play.clock() })
	return more
}

func (e *scriptedEngine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func (e *scriptedEngine) isDeaf() (deaf bool) {
	e.set(func() { deaf = e.deaf })
	return deaf
}

func (e *scriptedEngine) hears(ctx context.Context) <-chan struct{} {
	if e.isDeaf() {
		return nil
	}
	return ctx.Done()
}

func (e *scriptedEngine) stopListening() { e.set(func() { e.deaf = true }) }

// hear keeps what the engine has said, as its client is to see it: all of it,
// and without a character whose end may still come.
func (e *scriptedEngine) hear(text string) {
	e.said += text
	e.wholeText = validText(e.said)
	e.certainText = e.wholeText
	for tail := 1; tail < min(utf8.UTFMax, len(e.said)+1); tail++ {
		if last := e.said[len(e.said)-tail:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRuneInString(last) {
				e.certainText = validText(e.said[:len(e.said)-tail])
			}
			return
		}
	}
}

func validText(said string) string {
	if utf8.ValidString(said) {
		return said
	}
	return textOf(said)
}

// A watchedWriter sees who calls it, and when.
type watchedWriter struct {
	http.ResponseWriter
	play *play

	mu      sync.Mutex
	calls   int           // in progress
	since   time.Duration // the last began
	until   time.Duration // and ended
	stalled bool          // one failed that had lasted as long as WriteTimeout
	offence string
	handed  answerRead    // what Write was given, as a client that lost none of it would read it
	wrote   time.Duration // the last Write began
	quiet   time.Duration // between a keep-alive and the Write before it, at the least
}

func (w *watchedWriter) enter(method string) {
	w.play.mu.Lock()
	returned := w.play.returned
	w.play.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls++; w.calls > 1 {
		w.offence = method + " beside another call"
	}
	if returned {
		w.offence = method + " after ServeHTTP has returned"
	}
	w.since = w.play.clock()
}

func (w *watchedWriter) leave(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls--
	w.until = w.play.clock()
	w.stalled = w.stalled || err != nil && w.until-w.since >= w.play.options.WriteTimeout
}

func (w *watchedWriter) Header() http.Header {
	w.enter("Header")
	defer w.leave(nil)
	return w.ResponseWriter.Header()
}

func (w *watchedWriter) WriteHeader(status int) {
	w.enter("WriteHeader")
	w.mu.Lock()
	w.handed.stream, w.handed.status = w.play.stream, status
	w.mu.Unlock()
	defer w.leave(nil)
	w.ResponseWriter.WriteHeader(status)
}

func (w *watchedWriter) Write(p []byte) (n int, err error) {
	w.enter("Write")
	w.hear(p)
	defer func() { w.leave(err) }()
	return w.ResponseWriter.Write(p)
}

func (w *watchedWriter) hear(p []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	heard := w.handed.keepAlives
	w.handed.read(p)
	if w.handed.keepAlives > heard {
		w.quiet = min(w.quiet, w.since-w.wrote)
	}
	w.wrote = w.since
}

func (w *watchedWriter) FlushError() (err error) {
	w.enter("Flush")
	defer func() { w.leave(err) }()
	return w.control().Flush()
}

// Deadlines may be set beside other calls: that is how a write is made to fail.
func (w *watchedWriter) SetReadDeadline(t time.Time) error {
	w.notAfterReturn("SetReadDeadline")
	return w.control().SetReadDeadline(t)
}

func (w *watchedWriter) SetWriteDeadline(t time.Time) error {
	w.notAfterReturn("SetWriteDeadline")
	return w.control().SetWriteDeadline(t)
}

func (w *watchedWriter) control() *http.ResponseController {
	return http.NewResponseController(w.ResponseWriter)
}

func (w *watchedWriter) notAfterReturn(method string) {
	w.play.mu.Lock()
	returned := w.play.returned
	w.play.mu.Unlock()
	if returned {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.offence = method + " after ServeHTTP has returned"
	}
}

// askForPlace is a whole second chat, which returns the status it got.
func (p *play) askForPlace() int {
	r := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON(probePrompt, false)))
	r.Header.Set("Authorization", "Bearer "+testKey)
	recorder := httptest.NewRecorder()
	p.handler.ServeHTTP(recorder, r)
	return recorder.Code
}

// An orderEvent is something that one of those around a chat can do next.
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
	{"cut", "engine", (*play).engineIdle, func(p *play) { p.say("c\xe2\x82", nil) }},
	{"error", "engine", (*play).engineIdle, func(p *play) { p.stop(failed, p.clock()); p.say("", errOfEngine) }},
	{"error-text", "engine", (*play).engineIdle, func(p *play) { p.stop(refused, p.clock()); p.say("no text", errTeapot) }},
	{"return", "engine", (*play).engineIdle, func(p *play) { p.stop(finished, p.clock()); p.tell(engineStep{ends: true}) }},
	{"panic", "engine", (*play).engineIdle, func(p *play) { p.stop(crashed, p.clock()); p.tell(engineStep{other: panics}) }},
	{"exit", "engine", (*play).engineIdle, func(p *play) { p.stop(crashed, p.clock()); p.tell(engineStep{other: runtime.Goexit}) }},
	{"deaf", "engine", (*play).engineListens, func(p *play) { p.tell(engineStep{other: p.engine.stopListening}) }},

	{"read-little", "client", (*play).clientStopped, (*play).readLittle},
	{"read-on", "client", (*play).clientStopped, (*play).readOn},
	{"stop", "client", (*play).clientReads, (*play).stopReading},
	{"jam", "client", func(p *play) bool { return p.http2 && p.clientReads() }, (*play).jam},
	{"half-close", "client", (*play).clientThere, (*play).halfClose},
	{"leave", "client", (*play).clientThere, (*play).leave},
	{"reset", "client", func(p *play) bool { return p.http2 && p.clientThere() }, (*play).resetStream},

	{"shutdown", "server", (*play).canShutDown, (*play).shutDown},
	{"host", "host", (*play).contextGoesOn, func(p *play) { p.endContext(hostEnds, errOfHost) }},
	{"host-status", "host", (*play).contextGoesOn, func(p *play) { p.endContext(hostChooses, errMoved) }},
	{"host-deadline", "host", (*play).contextGoesOn, func(p *play) { p.endContext(hostTooLate, context.DeadlineExceeded) }},

	// Alone it is no event: a second chat asks for the place after each one.
	{"second", "second", func(p *play) bool { return !p.isOver() }, (*play).askAtOnce},
}

func (p *play) engineIdle() (idle bool) {
	p.engine.set(func() { idle = p.engine.idle && !p.engine.over })
	return idle
}

func (p *play) engineListens() bool { return p.engineIdle() && !p.engine.isDeaf() }

func (p *play) tell(step engineStep) { p.engine.steps <- step }

func (p *play) say(text string, err error) {
	p.tell(engineStep{say: &yielded{text: text, err: err, step: p.steps}})
}

// smallText ends a character that was cut.
func (p *play) smallText() string {
	text := fmt.Sprintf("s%d ", len(p.engine.yields))
	if n := len(p.engine.yields); n > 0 && strings.HasSuffix(p.engine.yields[n-1].text, "\x82") {
		text = "\xac" + text
	}
	return text
}

// stop notes what may be the end of the chat, and since when.
func (p *play) stop(r reason, at time.Duration) {
	r.at = at
	p.stopping = append(p.stopping, r)
}

func panics() { panic("a bug in the engine") }

func (p *play) isOver() (over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.returned
}

func (p *play) clientThere() bool   { return !p.isOver() && !p.happened["gone"] }
func (p *play) clientReads() bool   { return p.clientThere() && !p.happened["stopped"] }
func (p *play) clientStopped() bool { return p.clientThere() && p.happened["stopped"] }
func (p *play) canShutDown() bool   { return !p.isOver() && !p.happened["shutdown"] }
func (p *play) contextGoesOn() bool { return !p.isOver() && !p.happened["context ended"] }

func (p *play) stopReading() {
	p.happened["stopped"], p.happened["ever stopped"] = true, true
	p.wire.change(func() {
		if c, ok := p.wire.client.(*http2Client); ok {
			c.granted = false // and the frames are still read
			return
		}
		p.wire.reading = false
	})
}

// jam leaves frames unread, on a connection of HTTP/2.
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

// part notes that the client goes. One that has not read for so long has stalled
// before, though nothing may have told yet.
func (p *play) part() {
	p.stop(clientLeft, p.clock())
	if s := p.look(); s.calling && s.at-s.calledAt >= p.options.WriteTimeout {
		p.stop(clientStalls, s.at)
	}
}

func (p *play) halfClose() {
	p.part()
	p.happened["gone"], p.happened["closed"] = true, p.http2
	p.wire.change(func() { p.wire.halfClosed = true })
}

func (p *play) leave() {
	p.part()
	p.happened["gone"], p.happened["closed"] = true, true
	p.wire.change(func() { p.wire.left = true })
}

func (p *play) resetStream() {
	const cancel = 0x8
	p.part()
	p.happened["gone"], p.happened["closed"] = true, true
	p.wire.change(func() {
		p.wire.toServer = append(p.wire.toServer, http2Frame(frameRSTStream, 0, 1, 0, 0, 0, cancel)...)
	})
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

// askAtOnce asks for the place in the middle of what else happens.
func (p *play) askAtOnce() {
	p.second = make(chan int, 1)
	go func() { p.second <- p.askForPlace() }()
}

// An alarm is a moment for which the options, and what has happened, say that
// something is due.
type alarm struct {
	at  time.Duration
	end *reason // what it may end the chat for
}

func (p *play) alarms(s sight) (due []alarm) {
	if s.returned {
		return nil
	}
	o := p.options
	add := func(set bool, at time.Duration, end *reason) {
		if set && at > s.at {
			due = append(due, alarm{at, end})
		}
	}
	running, reported := len(s.stops) == 0, len(s.reports) > 0
	add(!reported, s.asked+o.ChatTimeout, &tooLate)
	add(running && s.stream && o.KeepAlive > 0 && !s.calling, s.called+o.KeepAlive, nil)
	add(running && o.StallTimeout > 0 && !s.yielding && !s.engineOver, s.answered+o.StallTimeout, &engineStalls)
	add(s.calling, s.calledAt+o.WriteTimeout+writeSlack, nil)
	add(!running, s.stoppedAt+breakPause, nil)
	add(!running, s.stoppedAt+engineGrace, nil)
	add(reported, s.wasReported()+breakPause, nil)
	add(reported, s.wasReported()+engineGrace, nil)
	add(reported, s.wasReported()+breakPause+engineGrace, nil)
	return due
}

func (p *play) alarmIsSet() bool { return len(p.alarms(p.look())) > 0 }

// nextAlarm lets the time pass until then.
func (p *play) nextAlarm() {
	s := p.look()
	next := slices.MinFunc(p.alarms(s), func(a, b alarm) int { return cmp.Compare(a.at, b.at) })
	p.sleepUntil(s, next.at)
}

func (p *play) sleepUntil(s sight, until time.Duration) {
	for _, due := range p.alarms(s) {
		if due.at <= until && due.end != nil {
			p.stop(*due.end, due.at)
		}
	}
	time.Sleep(until - s.at)
}

// look is what can be seen now.
func (p *play) look() sight {
	s := sight{surface: p.surface, options: p.options, at: p.clock()}
	p.engine.look(&s)
	p.wire.change(func() {
		s.got = *p.wire.client.answer()
		s.silence = s.at - max(p.wire.wrote.Sub(p.began), s.asked)
	})
	s.gone, s.closed = p.happened["gone"], p.happened["closed"]
	s.hostEnded = p.happened["context ended"]
	s.catchesUp = !p.happened["stopped"]
	s.reads, s.jammed = !p.happened["ever stopped"], p.happened["jammed"]
	s.stops, s.stoppedAt, s.stopStep = p.stops, p.stoppedAt, p.stopStep
	s.placeFree = p.placeFree
	p.writer.look(&s)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.reports, s.reported, s.reporting = p.reports, p.reportedAt, p.reporting != nil
	s.returned, s.letAt = p.returned, p.letAt
	return s
}

func (e *scriptedEngine) look(s *sight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, y := range e.yields {
		s.yields = append(s.yields, *y)
		s.spokeAt = y.at
		s.yielding = s.yielding || !y.ended && !e.over
	}
	s.wholeText, s.certainText = e.wholeText, e.certainText
	s.engineOver, s.finished = e.over, e.finished
	s.asked, s.answered = e.askedAt, e.spokeAt
	if e.ctx != nil {
		s.contextEnded, s.contextCause = e.ctx.Err() != nil, context.Cause(e.ctx)
	}
}

func (w *watchedWriter) look(s *sight) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.offence, s.stalled, s.handed, s.quiet = w.offence, w.stalled, w.handed, w.quiet
	s.calling, s.calledAt, s.called = w.calls > 0, w.since, max(w.until, s.asked)
}

// settle waits until nothing more happens by itself, and checks the rules.
func (p *play) settle() sight {
	synctest.Wait()
	p.noteStops()
	wasFree := p.placeFree
	if p.reportIsHeld() {
		p.placeFree = p.askForPlace() == http.StatusOK
		p.check(p.look(), "while OnChat is called")
		p.letReport()
		synctest.Wait()
	}
	free := p.askForPlace() == http.StatusOK
	if p.second != nil {
		if status := <-p.second; (status == http.StatusOK) != free && free == wasFree {
			p.violate(fmt.Sprintf("a place is free or taken: a second chat got %d", status))
		}
		p.second = nil
	}
	p.placeFree = free
	s := p.look()
	p.reported = len(s.reports) > 0
	p.check(s, fmt.Sprintf("after %d events", p.steps))
	return s
}

// noteStops decides what may have been the first reason, now that a step is
// made. An engine that has finished may still have a client that does not take
// the end of its answer.
func (p *play) noteStops() {
	s := p.look()
	if s.stalled {
		p.stop(clientStalls, s.called)
	}
	if at, ok := p.givenUp(); ok {
		p.stop(clientLeft, at)
		p.stop(clientStalls, at)
	}
	if !s.contextEnded { // then an engine that spoke at the last moment was in time
		p.stopping = slices.DeleteFunc(p.stopping, func(r reason) bool { return r.name == engineStalls.name && s.spokeAt >= r.at })
	}
	switch {
	case len(p.stopping) == 0:
	case len(p.stops) == 0:
		p.stoppedAt, p.stopStep = slices.MinFunc(p.stopping, earlier).at, p.steps
		p.stops = slices.DeleteFunc(p.stopping, func(r reason) bool { return r.at > p.stoppedAt })
	case !p.reported && slices.ContainsFunc(p.stops, func(r reason) bool { return r.name == finished.name }):
		p.stops = append(slices.Clone(p.stops), p.stopping...)
	}
	p.stopping = nil
}

// givenUp is when net/http has closed a connection of HTTP/2 that was stuck. For
// the handler, this may be either end.
func (p *play) givenUp() (at time.Duration, ok bool) {
	p.wire.change(func() {
		at, ok = p.wire.closedAt.Sub(p.began), p.http2 && p.wire.closed && p.happened["ever stopped"]
	})
	return at, ok
}

func (p *play) check(s sight, when string) {
	for _, rule := range s.violations() {
		p.violate(rule + " (" + when + ")")
	}
}

// violate notes a rule once.
func (p *play) violate(rule string) {
	name, _, _ := strings.Cut(rule, ":")
	if !p.checked[name] {
		p.checked[name] = true
		p.violated = append(p.violated, rule)
	}
}

func (p *play) reportIsHeld() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reporting != nil
}

// letReport has OnChat return.
func (p *play) letReport() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.reporting)
	p.reporting, p.letAt = nil, p.clock()
}

// end is what comes after the last event of an order: time passes until all
// must be over but a hanging engine; then that ends, too, and everybody goes.
// Where what is left behind is searched for, no more time passes than must: a
// timer that has fired is not found.
func (p *play) end(searched bool) {
	p.mu.Lock()
	p.unheld = true
	p.mu.Unlock()
	s := p.look()
	until := s.stoppedAt
	if len(s.stops) == 0 {
		until = s.asked + p.options.ChatTimeout
	}
	if until += s.patience(); until > s.at && !(s.returned && searched) {
		p.steps++
		p.sleepUntil(s, until)
		p.settle()
	}
	close(p.engine.released)
	p.settle()
	p.wire.change(func() { p.wire.left = true })
	p.happened["gone"], p.happened["closed"] = true, true
	p.settle()
	if p.happened["shutdown"] {
		if err := <-p.shutdown; err != nil {
			p.violate(fmt.Sprintf("Shutdown waits for the chat: %v", err))
		}
	}
	_ = p.server.Server.Close()
	<-p.server.served
}

// leftBehind is whether something still refers to the request, when all that
// the test knew of it is gone.
func (p *play) leftBehind() bool {
	p.writer, p.cancel, p.engine.ctx, p.wire = nil, nil, nil, nil
	time.Sleep(time.Nanosecond) // a bubble keeps timers that were stopped until its clock moves
	synctest.Wait()
	runtime.GC()
	runtime.GC() // and of what net/http keeps in pools
	return p.probe.Value() != nil
}
