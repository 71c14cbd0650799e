package botapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A reason is why a chat is over.
type reason struct {
	name    string
	is      func(reported error) bool
	status  int    // of the error response or the error event; 0: no client is there to get one
	detail  string // of the error response or the error event
	outside bool   // it does not come from the engine
	at      time.Duration
}

func earlier(a, b reason) int { return cmp.Compare(a.at, b.at) }

func isError(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// own reports whether an error matches none of the package's reasons.
func own(err error) bool {
	return err != nil && len(reasonsIn(err)) == 0
}

func isApplicationDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && own(err)
}

var (
	reasonFinished            = reason{name: "the engine finished", is: func(err error) bool { return err == nil }}
	reasonFailed              = reason{name: "the engine failed", is: isError(errOfEngine), status: 500, detail: "Internal Server Error"}
	reasonStatus              = reason{name: "the engine chose a status", is: isError(errTeapot), status: 418, detail: "I am a teapot"}
	reasonCrashed             = reason{name: "the engine panicked or exited", is: own, status: 500, detail: "Internal Server Error"}
	reasonDisconnected        = reason{name: "the client disconnected", is: isError(ErrClientLeft), outside: true}
	reasonClientStalled       = reason{name: "the client stopped reading", is: isError(ErrClientStalled), outside: true}
	reasonChatTimeout         = reason{name: "ChatTimeout passed", is: isError(ErrChatTimeout), status: 504, detail: "The answer took too long", outside: true}
	reasonEngineStalled       = reason{name: "StallTimeout passed", is: isError(ErrEngineStalled), status: 504, detail: "The answer took too long", outside: true}
	reasonCancelled           = reason{name: "the application cancelled the request", is: isError(errOfApplication), status: 503, detail: "Service Unavailable", outside: true}
	reasonDeadline            = reason{name: "the application's deadline passed", is: isApplicationDeadline, status: 504, detail: "The answer took too long", outside: true}
	reasonCancelledWithStatus = reason{name: "the application cancelled the request with a status", is: isError(errMoved), status: 451, detail: "Ask the other one", outside: true}
)

// reasonsIn returns the package's reasons that an error matches.
func reasonsIn(err error) (matched []error) {
	for _, reason := range []error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled} {
		if errors.Is(err, reason) {
			matched = append(matched, reason)
		}
	}
	return matched
}

// violations returns the rules of a chat that do not hold. The rules are the contract of
// the package, as seen from outside: only the sizes are taken from the code under test.
func (p *play) violations() (violated []string) {
	must := func(holds bool, rule string, seen ...any) {
		if !holds {
			violated = append(violated, rule+strings.TrimSuffix(": "+fmt.Sprint(seen...), ": "))
		}
	}
	engine, writer, got, report := p.engine, p.writer, p.got, p.report()
	running, reported, returned := len(p.stops) == 0, len(p.reports) > 0, p.returned.Load()
	yielding, contextEnded, cause := engine.yielding(), engine.contextEnded(), engine.cause()
	bound := p.options.WriteTimeout + writeSlack
	if p.happened["jammed"] {
		bound += p.options.WriteTimeout // a call returns only when net/http closes the connection, after nothing could be written for WriteByteTimeout
	}

	// The client gets what the engine yielded, and can tell a complete answer from an incomplete one.
	must(strings.HasPrefix(engine.fullText, got.text), "the text is what the engine yielded, from its start", difference{got.text, engine.fullText})
	must(got.wrong == "", "the response is well-formed", got.wrong)
	must(!p.looksComplete() || engine.finished && got.text == engine.fullText, "only a complete answer looks complete")
	must(!got.aborted || !got.done || !p.stream || p.disconnected(), "a complete answer is not aborted")
	must(!running || !p.prompt() || got.text == engine.certainText, "a fragment is sent immediately", difference{got.text, engine.certainText})
	must(!yielding || !p.catchesUp(), "yield does not wait for a client that reads")
	must(!yielding || p.stream, "yield does not wait in a JSON response")
	must(p.unsent() <= 2*maxWrite+8<<10, "a client that does not read slows its engine down", p.unsent())
	must(!running || !p.prompt() || p.options.KeepAlive < 0 || p.silence() < p.options.KeepAlive, "a stream is not silent for longer than KeepAlive", p.silence())
	must(writer.quiet >= p.options.KeepAlive, "a keep-alive comes only after silence", writer.quiet)

	// A failure is an error response before the commit; after it, an error event and an aborted stream.
	must(!p.tellable() || got.done || got.failure != "", "a client that reads gets the end immediately")
	must(got.failure == "" || p.anyStop(func(r reason) bool { return fmt.Sprint(r.status, " ", r.detail) == got.failure }), "the client gets the reason", got.failure)
	must(got.status == 0 || p.statusFits(got.status), "the status fits the reason and what was sent before", got.status)
	must(got.failure == "" || got.status != 200 || p.disconnected() || !returned || !got.aborted || p.returnedAt >= writer.wrote+readPause, "an error event can be read before the connection is aborted", p.returnedAt-writer.wrote)
	must(!returned || !p.incompleteForClient() || got.aborted, "an incomplete stream is aborted")
	must(!returned || !p.owedTheEnd() || writer.handed.done || writer.handed.failure != "", "the writer is given the end of the answer")
	must(!returned || !p.owedTheEnd() || report.Err != nil || got.done, "an answer reported as complete arrives")

	// OnChat is called once, when the answer has ended, with a correct report.
	must(len(p.reports) <= 1, "a chat is reported once", len(p.reports))
	must(!returned || reported, "a chat is reported before ServeHTTP returns")
	must(!reported || !running, "a chat is not reported before its end")
	if reported {
		must(p.anyStop(func(r reason) bool { return r.is(report.Err) }), "the report has the reason", report.Err, ", not ", p.stopNames())
		must(len(reasonsIn(report.Err)) <= 1, "a report has one reason", report.Err)
		must(report.Err != nil || engine.finished, "only a complete answer is reported without an error")
		must(report.Err == nil || !p.looksComplete(), "what looks complete is reported as complete", report.Err)
		must(p.owesNothing(report.Err), "everything for the client is sent before OnChat is called")
		must(got.status == 0 || report.Status == got.status, "the report has the status", report.Status)
		must(report.Status == 0 || p.statusFits(report.Status) || p.disconnected(), "the reported status fits", report.Status)
		must(p.figuresAgree(report), "the report's figures agree with what was sent", fmt.Sprintf("%d fragments, %d bytes", report.Fragments, report.Bytes))
		must(report.FirstFragment == p.firstText() || report.FirstFragment == 0 && p.firstText() >= p.stoppedAt, "the report has the time of the first text", report.FirstFragment)
		must(report.Duration == p.reportedAt, "the report has the duration", report.Duration, " of ", p.reportedAt)
		must(report.RequestID == orderRequestID && report.Account == testAccount && report.Bot == echoBot && report.Stream == p.stream, "the report identifies the chat")
	}

	// The engine's context ends with the chat, and for the same reason.
	must(!running || !contextEnded, "the engine's context does not end before the chat", cause)
	must(!p.onlyOutside() || contextEnded, "the engine's context ends immediately when something else ends the chat")
	must(!reported || contextEnded, "the engine's context ends with the answer")
	must(!reported || !contextEnded || len(reasonsIn(cause)) == 0 || slices.Equal(reasonsIn(cause), reasonsIn(report.Err)), "the context's cause is the report's", cause, ", not ", report.Err)
	must(!p.onlyOutside() || p.anyStop(func(r reason) bool { return r.is(cause) }), "the context's cause is why the chat ended", cause)

	// yield returns whether the chat goes on.
	for _, y := range engine.yields {
		must(!y.ended || y.more || y.err != nil || !running, "yield returns true while the chat goes on")
		must(!y.ended || !y.more || y.err == nil, "yield returns false for an error")
		must(!y.ended || !y.more || running || y.step <= p.stopStep, "yield returns false after the end")
	}
	must(!yielding || running || p.blocked() || !p.certainly(reasonDisconnected), "yield returns immediately when the client has disconnected")
	must(!yielding || running || p.blocked() || p.clock() < p.stoppedAt+bound, "yield returns soon after the end")

	// A slot is free exactly when the engine has returned and the answer has ended.
	must(p.slotFree == (engine.over && reported), "a slot is free when engine and answer are over, not before", p.slotFree)

	// ServeHTTP returns, whatever the engine does, and nothing is written after that.
	must(writer.offence == "", "the writer's calls do not overlap, and end before ServeHTTP returns", writer.offence)
	must(!p.writing() || p.blocked() || p.clock()-writer.since <= bound, "a write does not last longer than WriteTimeout", p.clock()-writer.since)
	must(returned || running || p.blocked() || p.reporting != nil || p.clock() < max(p.stoppedAt, p.letAt)+p.patience(), "ServeHTTP returns in bounded time")
	must(returned || p.reporting != nil || !reported || !engine.over || p.mayPause() || p.writing(), "ServeHTTP returns as soon as there is nothing to wait for")
	must(!returned || running || engine.over || p.clock() >= p.stoppedAt+engineGrace, "ServeHTTP waits a little for an engine that has not returned")
	return violated
}

// report returns the first report: there is only one if no rule is violated.
func (p *play) report() (first ChatReport) {
	if len(p.reports) > 0 {
		first = p.reports[0]
	}
	return first
}

func (p *play) disconnected() bool { return p.happened["disconnected"] }  // or closed its half of the connection
func (p *play) catchesUp() bool    { return !p.happened["stopped"] }      // the client reads now
func (p *play) alwaysRead() bool   { return !p.happened["ever stopped"] } // it has always read everything
func (p *play) writing() bool      { return p.writer.calls > 0 }

// silence returns how long the server has written nothing.
func (p *play) silence() time.Duration {
	return p.clock() - max(p.wire.wrote.Sub(p.began), p.engine.askedAt)
}

// looksComplete reports whether the least careful client would take the answer for complete.
func (p *play) looksComplete() bool {
	return p.got.done || p.got.complete && p.got.status == 200
}

// blocked reports whether a write is in progress that only the client can end.
func (p *play) blocked() bool { return p.writing() && !p.flushes }

// prompt reports whether only the handler can delay a fragment.
func (p *play) prompt() bool {
	return p.stream && p.flushes && p.catchesUp() && !p.disconnected()
}

// tellable reports whether the chat is over, and only the handler can delay the end of
// the answer.
func (p *play) tellable() bool {
	return p.flushes && p.owedTheEnd()
}

// owedTheEnd reports whether the chat is over, and its client is there to read the end.
func (p *play) owedTheEnd() bool {
	return len(p.stops) > 0 && p.alwaysRead() && !p.disconnected() && !p.stoppedBecause(reasonClientStalled)
}

// owesNothing reports whether the client has everything that will be sent. What it did not
// read in time does not count.
func (p *play) owesNothing(err error) bool {
	return !p.flushes || !p.catchesUp() || p.disconnected() || p.writer.stalled || errors.Is(err, ErrClientLeft) || errors.Is(err, ErrClientStalled) ||
		!p.stream && p.got.status == 200 && errors.Is(err, ErrChatTimeout) ||
		p.got.done || p.got.failure != ""
}

// incompleteForClient reports whether the client has a stream without an end.
func (p *play) incompleteForClient() bool {
	return p.catchesUp() && !p.disconnected() && p.stream && p.got.status == 200 && !p.got.done
}

func (p *play) anyStop(is func(reason) bool) bool { return slices.ContainsFunc(p.stops, is) }

func (p *play) stoppedBecause(r reason) bool {
	return p.anyStop(func(other reason) bool { return other.name == r.name })
}

func (p *play) certainly(r reason) bool { return len(p.stops) == 1 && p.stoppedBecause(r) }

func (p *play) stopNames() (names []string) {
	for _, r := range p.stops {
		names = append(names, r.name)
	}
	return names
}

// onlyOutside reports whether the reason is certainly not the engine's.
func (p *play) onlyOutside() bool {
	return len(p.stops) > 0 && !p.anyStop(func(r reason) bool { return !r.outside })
}

// statusFits reports whether the response may have this status.
func (p *play) statusFits(status int) bool {
	if status != 200 {
		return !p.committed() && p.anyStop(func(r reason) bool { return r.status == status })
	}
	if p.stream {
		return p.mayCommit()
	}
	return p.engine.finished
}

// committed reports whether a stream has certainly begun.
func (p *play) committed() bool {
	return p.stream && slices.ContainsFunc(p.engine.yields, func(y *yielded) bool { return y.ended && y.more })
}

func (p *play) mayCommit() bool {
	return p.engine.finished || p.keepAlivesDue() > 0 || slices.ContainsFunc(p.engine.yields, func(y *yielded) bool { return y.err == nil })
}

func (p *play) keepAlivesDue() int {
	if p.options.KeepAlive < 0 || !p.stream {
		return 0
	}
	return int(p.clock() / p.options.KeepAlive)
}

// unsent returns how many bytes of text the handler has accepted but not sent. What
// waits in the network counts as sent.
func (p *play) unsent() int {
	if !p.stream || len(p.stops) > 0 {
		return 0
	}
	accepted := 0
	for _, y := range p.engine.yields {
		if y.ended && y.more {
			accepted += len(y.text)
		}
	}
	return accepted - len(p.got.text)
}

func (p *play) figuresAgree(report ChatReport) bool {
	yielded := 0
	for _, y := range p.engine.yields {
		if y.err == nil {
			yielded++
		}
	}
	switch {
	case report.Err == nil:
		return report.Fragments == yielded && report.Bytes == int64(len(p.engine.fullText))
	case report.Fragments > yielded || report.Bytes > int64(len(p.engine.fullText)) || report.Bytes < int64(len(p.got.text)):
		return false
	case !p.stream && !p.engine.finished:
		return report.Fragments == 0 && report.Bytes == 0
	case p.stream:
		return report.Bytes == int64(len(p.writer.handed.text))
	}
	return true
}

// firstText returns when the engine yielded its first text.
func (p *play) firstText() time.Duration {
	for _, y := range p.engine.yields {
		if y.err == nil && y.text != "" {
			return y.at
		}
	}
	return 0
}

// patience returns how long ServeHTTP may take after the end of the chat: for a
// write in progress, the error event, the pause, and the engine.
func (p *play) patience() time.Duration {
	patience := readPause + engineGrace + time.Millisecond
	if !p.alwaysRead() && !p.happened["closed"] {
		patience += 2 * (p.options.WriteTimeout + writeSlack)
	}
	return patience
}

// mayPause reports whether the handler may still wait before it aborts a stream. If the
// application has cancelled the request, the handler cannot notice a disconnect.
func (p *play) mayPause() bool {
	return p.stream && p.report().Err != nil && (!p.disconnected() || p.happened["context ended"]) && p.clock() < p.wasReported()+readPause
}

// A difference shows where the client's text and the engine's begin to differ.
type difference struct{ got, want string }

func (d difference) String() string {
	n := 0
	for n < min(len(d.got), len(d.want)) && d.got[n] == d.want[n] {
		n++
	}
	return fmt.Sprintf("after %d bytes %.20q instead of %.20q", n, d.got[n:], d.want[n:])
}
