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
	status  int    // of an answer that tells the client; 0: nobody is there to be told
	detail  string // of that answer
	outside bool   // it did not come from the engine
	at      time.Duration
}

func earlier(a, b reason) int { return cmp.Compare(a.at, b.at) }

func isError(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// own is an error that is none of the package's.
func own(err error) bool {
	return err != nil && len(endsOf(err)) == 0
}

func isHostDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && own(err)
}

var (
	finished     = reason{name: "the engine finished", is: func(err error) bool { return err == nil }}
	failed       = reason{name: "the engine failed", is: isError(errOfEngine), status: 500, detail: "Internal Server Error"}
	refused      = reason{name: "the engine chose a status", is: isError(errTeapot), status: 418, detail: "I am a teapot"}
	crashed      = reason{name: "the engine panicked or exited", is: own, status: 500, detail: "Internal Server Error"}
	clientLeft   = reason{name: "the client left", is: isError(ErrClientLeft), outside: true}
	clientStalls = reason{name: "the client stalled", is: isError(ErrClientStalled), outside: true}
	tooLate      = reason{name: "ChatTimeout passed", is: isError(ErrChatTimeout), status: 504, detail: "The answer took too long", outside: true}
	engineStalls = reason{name: "StallTimeout passed", is: isError(ErrEngineStalled), status: 504, detail: "The answer took too long", outside: true}
	hostEnds     = reason{name: "the host ended it", is: isError(errOfHost), status: 503, detail: "Service Unavailable", outside: true}
	hostTooLate  = reason{name: "the host's deadline passed", is: isHostDeadline, status: 504, detail: "The answer took too long", outside: true}
	hostChooses  = reason{name: "the host chose a status", is: isError(errMoved), status: 451, detail: "Ask the other one", outside: true}
)

// endsOf are the package's own reasons that an error claims.
func endsOf(err error) (claimed []error) {
	for _, end := range []error{ErrClientLeft, ErrClientStalled, ErrChatTimeout, ErrEngineStalled} {
		if errors.Is(err, end) {
			claimed = append(claimed, end)
		}
	}
	return claimed
}

// violations are the rules of a chat that do not hold in what is seen. It is the
// contract of the package, written from outside: nothing of it is taken from
// the code that it judges but the sizes.
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
		bound += p.options.WriteTimeout // net/http ends no call before it gives the connection up, when nothing has left for WriteByteTimeout
	}

	// The client gets what the engine said, and can tell whole from broken.
	must(strings.HasPrefix(engine.wholeText, got.text), "the text is what the engine yielded, from its start", difference{got.text, engine.wholeText})
	must(got.wrong == "", "the answer has its form", got.wrong)
	must(!p.looksWhole() || engine.finished && got.text == engine.wholeText, "only what is whole looks whole")
	must(!got.cut || !got.done || !p.stream || p.gone(), "what is whole is not cut")
	must(!running || !p.prompt() || got.text == engine.certainText, "a fragment leaves at once", difference{got.text, engine.certainText})
	must(!yielding || !p.catchesUp(), "yield does not wait for a client that reads")
	must(!yielding || p.stream, "yield does not wait where nothing is sent")
	must(p.unsent() <= 2*maxWrite+8<<10, "a client that does not read holds the engine back", p.unsent())
	must(!running || !p.prompt() || p.options.KeepAlive < 0 || p.silence() < p.options.KeepAlive, "a stream is not silent for longer than KeepAlive", p.silence())
	must(writer.quiet >= p.options.KeepAlive, "a keep-alive comes after silence only", writer.quiet)

	// A failure has its status before the commit, an error event and the cut after it.
	must(!p.tellable() || got.done || got.failure != "", "a client that reads hears of the end at once")
	must(got.failure == "" || p.anyStop(func(r reason) bool { return r.detail == got.failure }), "the client is told the reason", got.failure)
	must(got.status == 0 || p.statusFits(got.status), "the status fits the reason, and what was sent before it", got.status)
	must(got.failure == "" || got.status != 200 || p.gone() || !returned || !got.cut || p.returnedAt >= writer.wrote+breakPause, "an error event can be read before the cut", p.returnedAt-writer.wrote)
	must(!returned || !p.brokenForClient() || got.cut, "a broken answer is cut")
	must(!returned || !p.owedTheEnd() || writer.handed.done || writer.handed.failure != "", "the writer is given the end of the answer")
	must(!returned || !p.owedTheEnd() || report.Err != nil || got.done, "what is reported as whole arrives")

	// OnChat is called once, when the answer has ended, and says how it went.
	must(len(p.reports) <= 1, "a chat is reported once", len(p.reports))
	must(!returned || reported, "a chat is reported before ServeHTTP returns")
	must(!reported || !running, "a chat is not reported before its end")
	if reported {
		must(p.anyStop(func(r reason) bool { return r.is(report.Err) }), "the report has the reason", report.Err, ", not ", p.stopNames())
		must(len(endsOf(report.Err)) <= 1, "a report has one reason", report.Err)
		must(report.Err != nil || engine.finished, "a report without a reason is one of a whole answer")
		must(report.Err == nil || !p.looksWhole(), "what looks whole is reported as whole", report.Err)
		must(p.owesNothing(report.Err), "what the client is owed is on its way before OnChat is called")
		must(got.status == 0 || report.Status == got.status, "the report has the status", report.Status)
		must(report.Status == 0 || p.statusFits(report.Status) || p.gone(), "the reported status is one that fits", report.Status)
		must(p.figuresAgree(report), "the report's figures agree with what was sent", fmt.Sprintf("%d fragments, %d bytes", report.Fragments, report.Bytes))
		must(report.FirstFragment == p.firstText() || report.FirstFragment == 0 && p.firstText() >= p.stoppedAt, "the report has the moment of the first text", report.FirstFragment)
		must(report.Duration == p.reportedAt, "the report has the duration", report.Duration, " of ", p.reportedAt)
		must(report.RequestID == orderRequestID && report.Account == testAccount && report.Bot == echoBot && report.Stream == p.stream, "the report says whose chat it was")
	}

	// The engine's context ends with the chat, and for the same reason.
	must(!running || !contextEnded, "the engine's context does not end before the chat", cause)
	must(!p.onlyOutside() || contextEnded, "the engine's context ends at once when something else ends the chat")
	must(!reported || contextEnded, "the engine's context ends with the answer")
	must(!reported || !contextEnded || len(endsOf(cause)) == 0 || slices.Equal(endsOf(cause), endsOf(report.Err)), "the context's cause is the report's", cause, ", not ", report.Err)
	must(!p.onlyOutside() || p.anyStop(func(r reason) bool { return r.is(cause) }), "the context's cause is why the chat ended", cause)

	// yield tells the engine.
	for _, y := range engine.yields {
		must(!y.ended || y.more || y.err != nil || !running, "yield returns true while the chat goes on")
		must(!y.ended || !y.more || y.err == nil, "yield returns false for an error")
		must(!y.ended || !y.more || running || y.step <= p.stopStep, "yield returns false after the end")
	}
	must(!yielding || running || p.blocked() || !p.certainly(clientLeft), "yield returns at once when the client has left")
	must(!yielding || running || p.blocked() || p.clock() < p.stoppedAt+bound, "yield returns soon after the end")

	// A slot is free exactly when engine and answer are both over.
	must(p.slotFree == (engine.over && reported), "a slot is free when engine and answer are over, and not before", p.slotFree)

	// ServeHTTP returns, whatever the engine does, and nobody writes behind its back.
	must(writer.offence == "", "one at a time uses the writer, and nobody after the end", writer.offence)
	must(!p.writing() || p.blocked() || p.clock()-writer.since <= bound, "a write does not last longer than WriteTimeout", p.clock()-writer.since)
	must(returned || running || p.blocked() || p.reporting != nil || p.clock() < max(p.stoppedAt, p.letAt)+p.patience(), "ServeHTTP returns in bounded time")
	must(returned || p.reporting != nil || !reported || !engine.over || p.mayPause() || p.writing(), "ServeHTTP returns when there is nothing to wait for")
	must(!returned || running || engine.over || p.clock() >= p.stoppedAt+engineGrace, "ServeHTTP waits for an engine that may return soon")
	return violated
}

// report is the first, which is the only one where no rule is violated.
func (p *play) report() (first ChatReport) {
	if len(p.reports) > 0 {
		first = p.reports[0]
	}
	return first
}

func (p *play) gone() bool       { return p.happened["gone"] }          // the client has left, or closed its half
func (p *play) catchesUp() bool  { return !p.happened["stopped"] }      // it reads now
func (p *play) alwaysRead() bool { return !p.happened["ever stopped"] } // everything that came
func (p *play) writing() bool    { return p.writer.calls > 0 }

// silence is how long the server has written nothing.
func (p *play) silence() time.Duration {
	return p.clock() - max(p.wire.wrote.Sub(p.began), p.engine.askedAt)
}

// looksWhole is what the least careful client goes by.
func (p *play) looksWhole() bool {
	return p.got.done || p.got.whole && p.got.status == 200
}

// blocked is whether a write lasts that nothing but the client can end.
func (p *play) blocked() bool { return p.writing() && !p.flushes }

// prompt is whether nothing but the handler can hold a fragment back.
func (p *play) prompt() bool {
	return p.stream && p.flushes && p.catchesUp() && !p.gone()
}

// tellable is whether the chat is over, and nothing but the handler can keep
// the client from hearing of it.
func (p *play) tellable() bool {
	return p.flushes && p.owedTheEnd()
}

// owedTheEnd is whether the chat is over, and its client is there to hear of it.
func (p *play) owedTheEnd() bool {
	return len(p.stops) > 0 && p.alwaysRead() && !p.gone() && !p.stoppedBecause(clientStalls)
}

// owesNothing is whether the client has all that it will get, but for the cut.
// What it did not take in time, it is not owed any more.
func (p *play) owesNothing(err error) bool {
	return !p.flushes || !p.catchesUp() || p.gone() || p.writer.stalled || errors.Is(err, ErrClientLeft) || errors.Is(err, ErrClientStalled) ||
		!p.stream && p.got.status == 200 && errors.Is(err, ErrChatTimeout) ||
		p.got.done || p.got.failure != ""
}

func (p *play) brokenForClient() bool {
	return p.catchesUp() && !p.gone() && p.stream && p.got.status == 200 && !p.got.done
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

// onlyOutside is whether the reason is certainly not the engine's.
func (p *play) onlyOutside() bool {
	return len(p.stops) > 0 && !p.anyStop(func(r reason) bool { return !r.outside })
}

// statusFits is whether the answer may begin with this status.
func (p *play) statusFits(status int) bool {
	if status != 200 {
		return !p.committed() && p.anyStop(func(r reason) bool { return r.status == status })
	}
	if p.stream {
		return p.mayCommit()
	}
	return p.engine.finished
}

// committed is whether the answer has certainly begun as a stream.
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

// unsent is how many bytes of text the handler has taken, but not sent. What
// waits in the network counts as sent.
func (p *play) unsent() int {
	if !p.stream || len(p.stops) > 0 {
		return 0
	}
	taken := 0
	for _, y := range p.engine.yields {
		if y.ended && y.more {
			taken += len(y.text)
		}
	}
	return taken - len(p.got.text)
}

func (p *play) figuresAgree(report ChatReport) bool {
	said := 0
	for _, y := range p.engine.yields {
		if y.err == nil {
			said++
		}
	}
	switch {
	case report.Err == nil:
		return report.Fragments == said && report.Bytes == int64(len(p.engine.wholeText))
	case report.Fragments > said || report.Bytes > int64(len(p.engine.wholeText)) || report.Bytes < int64(len(p.got.text)):
		return false
	case !p.stream && !p.engine.finished:
		return report.Fragments == 0 && report.Bytes == 0
	case p.stream:
		return report.Bytes == int64(len(p.writer.handed.text))
	}
	return true
}

// firstText is when the engine first said something.
func (p *play) firstText() time.Duration {
	for _, y := range p.engine.yields {
		if y.err == nil && y.text != "" {
			return y.at
		}
	}
	return 0
}

// patience is how long ServeHTTP may take after the end of the chat: for a
// write that is under way, the error event, the pause, and the engine.
func (p *play) patience() time.Duration {
	patience := breakPause + engineGrace + time.Millisecond
	if !p.alwaysRead() && !p.happened["closed"] {
		patience += 2 * (p.options.WriteTimeout + writeSlack)
	}
	return patience
}

// mayPause is whether a broken stream may still be uncut. Where the host has
// ended the request, nothing tells that the client has left.
func (p *play) mayPause() bool {
	return p.stream && p.report().Err != nil && (!p.gone() || p.happened["context ended"]) && p.clock() < p.wasReported()+breakPause
}

// A difference shows where the client's text and the engine's part.
type difference struct{ got, want string }

func (d difference) String() string {
	n := 0
	for n < min(len(d.got), len(d.want)) && d.got[n] == d.want[n] {
		n++
	}
	return fmt.Sprintf("after %d bytes %.20q instead of %.20q", n, d.got[n:], d.want[n:])
}
