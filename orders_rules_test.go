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

// The rules are the contract of a chat, as seen from outside: only the sizes are taken from
// the code under test. They are in groups, by what they speak of:
//
//   - rulesOfText: what the client gets of the answer, and when
//   - rulesOfYield: when yield returns, and what
//   - rulesOfEnd: how the client sees the end, or a failure
//   - rulesOfOnChat: that OnChat is called, and when
//   - rulesOfReport: what OnChat is told
//   - rulesOfContext: when the engine's context ends, and why
//   - rulesOfSlot: when a slot is free
//   - rulesOfServeHTTP: what happens to the writer, and when ServeHTTP returns
//
// A rule is a sentence: when this is the case, that must hold. Below the groups are the
// conditions that need more than a line, and at the end the reasons why a chat is over.

// violations returns the rules of a chat that do not hold now.
func (p *play) violations() (violated []string) {
	rules := ruleset{apply: true, violated: &violated}
	p.rulesOfText(rules)
	p.rulesOfYield(rules)
	p.rulesOfEnd(rules)
	p.rulesOfOnChat(rules)
	if len(p.reports) > 0 {
		p.rulesOfReport(rules, p.reports[0])
	}
	p.rulesOfContext(rules)
	p.rulesOfSlot(rules)
	p.rulesOfServeHTTP(rules)
	return violated
}

// A ruleset adds the rules that apply and do not hold to those violated.
type ruleset struct {
	apply    bool
	violated *[]string
}

// when returns a ruleset whose rules apply only under a condition.
func (r ruleset) when(condition bool) ruleset {
	return ruleset{apply: r.apply && condition, violated: r.violated}
}

// must adds a rule if it applies and does not hold, with what was seen instead.
func (r ruleset) must(hold bool, rule string, seen ...any) {
	if r.apply && !hold {
		*r.violated = append(*r.violated, rule+strings.TrimSuffix(": "+fmt.Sprint(seen...), ": "))
	}
}

// The client gets what the engine yielded, immediately, and never a long silence.
func (p *play) rulesOfText(rules ruleset) {
	running, engine, got := p.running(), p.engine, p.got
	rules.must(strings.HasPrefix(engine.fullText, got.text), "the text is what the engine yielded, from its start", difference{got.text, engine.fullText})
	rules.must(got.wrong == "", "the response is well-formed", got.wrong)
	rules.when(running && p.prompt()).
		must(got.text == engine.certainText, "a fragment is sent immediately", difference{got.text, engine.certainText})
	rules.when(running && p.prompt() && p.options.KeepAlive >= 0).
		must(p.silence() < p.options.KeepAlive, "a stream is not silent for longer than KeepAlive", p.silence())
	rules.must(p.writer.quiet >= p.options.KeepAlive, "a keep-alive comes only after silence", p.writer.quiet)
}

// yield returns whether the chat goes on. It waits only for a client that does not read.
func (p *play) rulesOfYield(rules ruleset) {
	running, yielding := p.running(), p.engine.yielding()
	for _, y := range p.engine.yields {
		rules.when(y.ended && y.err == nil && running).
			must(y.more, "yield returns true while the chat goes on")
		rules.when(y.ended && y.err != nil).
			must(!y.more, "yield returns false for an error")
		rules.when(y.ended && !running && y.step > p.stopStep).
			must(!y.more, "yield returns false after the end")
	}
	rules.when(p.catchesUp()).
		must(!yielding, "yield does not wait for a client that reads")
	rules.when(!p.stream).
		must(!yielding, "yield does not wait in a JSON response")
	rules.must(p.unsent() <= 2*maxWrite+8<<10, "a client that does not read slows its engine down", p.unsent())
	rules.when(p.certainly(reasonDisconnected) && !p.blocked()).
		must(!yielding, "yield returns immediately when the client has disconnected")
	rules.when(!running && !p.blocked() && p.clock() >= p.stoppedAt+p.longestWrite()).
		must(!yielding, "yield returns soon after the end")
}

// A client can tell a complete answer from an incomplete one. A failure is an error response
// before the commit; after it, an error event and an aborted stream.
func (p *play) rulesOfEnd(rules ruleset) {
	returned, engine, writer, got := p.returned.Load(), p.engine, p.writer, p.got
	rules.when(p.looksComplete()).
		must(engine.finished && got.text == engine.fullText, "only a complete answer looks complete")
	rules.when(got.done && p.stream && !p.disconnected()).
		must(!got.aborted, "a complete answer is not aborted")
	rules.when(p.tellable()).
		must(got.done || got.failure != "", "a client that reads gets the end immediately")
	rules.when(got.failure != "").
		must(p.anyStop(func(r reason) bool { return fmt.Sprint(r.status, " ", r.detail) == got.failure }), "the client gets the reason", got.failure)
	rules.when(got.status != 0).
		must(p.statusFits(got.status), "the status fits the reason and what was sent before", got.status)
	rules.when(returned && got.status == 200 && got.failure != "" && got.aborted && !p.disconnected()).
		must(p.returnedAt >= writer.wrote+readPause, "an error event can be read before the connection is aborted", p.returnedAt-writer.wrote)
	rules.when(returned && p.incompleteForClient()).
		must(got.aborted, "an incomplete stream is aborted")
	rules.when(returned && p.owedTheEnd()).
		must(writer.handed.done || writer.handed.failure != "", "the writer is given the end of the answer")
	rules.when(returned && p.owedTheEnd() && p.report().Err == nil).
		must(got.done, "an answer reported as complete arrives")
}

// OnChat is called once, when the answer has ended.
func (p *play) rulesOfOnChat(rules ruleset) {
	reported := len(p.reports) > 0
	rules.must(len(p.reports) <= 1, "a chat is reported once", len(p.reports))
	rules.when(p.returned.Load()).
		must(reported, "a chat is reported before ServeHTTP returns")
	rules.when(p.running()).
		must(!reported, "a chat is not reported before its end")
	rules.when(reported && p.awaitsTheEnd()).
		must(p.got.done || p.got.failure != "", "everything for the client is sent before OnChat is called")
}

// The report is correct.
func (p *play) rulesOfReport(rules ruleset, report ChatReport) {
	engine, got := p.engine, p.got
	rules.must(report.RequestID == orderRequestID && report.Account == testAccount && report.Bot == echoBot && report.Stream == p.stream, "the report identifies the chat")

	rules.must(p.anyStop(func(r reason) bool { return r.is(report.Err) }), "the report has the reason", report.Err, ", not ", p.stopNames())
	rules.must(len(reasonsIn(report.Err)) <= 1, "a report has one reason", report.Err)
	rules.when(report.Err == nil).
		must(engine.finished, "only a complete answer is reported without an error")
	rules.when(p.looksComplete()).
		must(report.Err == nil, "what looks complete is reported as complete", report.Err)

	rules.when(got.status != 0).
		must(report.Status == got.status, "the report has the status", report.Status)
	rules.when(report.Status != 0 && !p.disconnected()).
		must(p.statusFits(report.Status), "the reported status fits", report.Status)

	figures := fmt.Sprintf("%d fragments, %d bytes", report.Fragments, report.Bytes)
	fragments, bytes := p.fragments(), int64(len(engine.fullText))
	rules.when(report.Err == nil).
		must(report.Fragments == fragments && report.Bytes == bytes, "the report of a complete answer counts what was yielded", figures)
	rules.when(report.Err != nil).
		must(report.Fragments <= fragments && report.Bytes <= bytes, "the report of a failed chat counts no more than was yielded", figures)
	rules.when(report.Err != nil).
		must(report.Bytes >= int64(len(got.text)), "the report of a failed chat counts what the client got", figures)
	rules.when(report.Err != nil && p.stream).
		must(report.Bytes == int64(len(p.writer.handed.text)), "the report of an incomplete stream counts what was sent", figures)
	rules.when(report.Err != nil && !p.stream && !engine.finished).
		must(report.Fragments == 0 && report.Bytes == 0, "the report counts nothing of a JSON response that was not sent", figures)

	rules.when(p.firstText() < p.stoppedAt || report.FirstFragment != 0).
		must(report.FirstFragment == p.firstText(), "the report has the time of the first text", report.FirstFragment)
	rules.must(report.Duration == p.reportedAt, "the report has the duration", report.Duration, " of ", p.reportedAt)
}

// The engine's context ends with the chat, and for the same reason.
func (p *play) rulesOfContext(rules ruleset) {
	reported, report, ended, cause := len(p.reports) > 0, p.report(), p.engine.contextEnded(), p.engine.cause()
	rules.when(p.running()).
		must(!ended, "the engine's context does not end before the chat", cause)
	rules.when(p.onlyOutside()).
		must(ended, "the engine's context ends immediately when something else ends the chat")
	rules.when(reported).
		must(ended, "the engine's context ends with the answer")
	rules.when(reported && len(reasonsIn(cause)) > 0).
		must(slices.Equal(reasonsIn(cause), reasonsIn(report.Err)), "the context's cause is the report's", cause, ", not ", report.Err)
	rules.when(p.onlyOutside()).
		must(p.anyStop(func(r reason) bool { return r.is(cause) }), "the context's cause is why the chat ended", cause)
}

// A slot is free exactly when the engine has returned, the answer has ended, and nobody
// holds it.
func (p *play) rulesOfSlot(rules ruleset) {
	reported := len(p.reports) > 0
	rules.must(p.slotFree == (p.engine.over && reported && p.release == nil), "a slot is free when engine and answer are over, and nobody holds it, not before", p.slotFree)
}

// ServeHTTP returns, whatever the engine does, and nothing is written after that.
func (p *play) rulesOfServeHTTP(rules ruleset) {
	returned, running, reported, engine := p.returned.Load(), p.running(), len(p.reports) > 0, p.engine
	onChatRuns, writingFor := p.reporting != nil, p.clock()-p.writer.since
	rules.must(p.writer.offence == "", "the writer's calls do not overlap, and end before ServeHTTP returns", p.writer.offence)
	rules.when(p.writing() && !p.blocked()).
		must(writingFor <= p.longestWrite(), "a write does not last longer than WriteTimeout", writingFor)
	rules.when(!running && !p.blocked() && !onChatRuns && p.clock() >= max(p.stoppedAt, p.letAt)+p.patience()).
		must(returned, "ServeHTTP returns in bounded time")
	rules.when(reported && engine.over && !onChatRuns && !p.mayPause() && !p.writing()).
		must(returned, "ServeHTTP returns as soon as there is nothing to wait for")
	rules.when(!running && !engine.over && p.clock() < p.stoppedAt+engineGrace).
		must(!returned, "ServeHTTP waits a little for an engine that has not returned")
}

// report returns the first report: there is only one if no rule is violated.
func (p *play) report() (first ChatReport) {
	if len(p.reports) > 0 {
		first = p.reports[0]
	}
	return first
}

func (p *play) running() bool      { return len(p.stops) == 0 }
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

// awaitsTheEnd reports whether the client of a chat that was reported must have the end of
// the answer. What it did not read in time does not count.
func (p *play) awaitsTheEnd() bool {
	err := p.report().Err
	gone := p.disconnected() || errors.Is(err, ErrClientLeft)
	late := p.writer.stalled || errors.Is(err, ErrClientStalled) || !p.stream && p.got.status == 200 && errors.Is(err, ErrChatTimeout)
	return p.flushes && p.catchesUp() && !gone && !late
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

// fragments returns how many fragments the engine yielded.
func (p *play) fragments() (n int) {
	for _, y := range p.engine.yields {
		if y.err == nil {
			n++
		}
	}
	return n
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

// longestWrite returns how long a write may take that has a deadline.
func (p *play) longestWrite() time.Duration {
	longest := p.options.WriteTimeout + writeSlack
	if p.happened["jammed"] {
		longest += p.options.WriteTimeout // a call returns only when net/http closes the connection, after nothing could be written for WriteByteTimeout
	}
	return longest
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
