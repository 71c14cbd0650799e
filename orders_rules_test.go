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

// A sight is all that can be seen of one chat, from outside, at a moment when
// nothing more happens by itself.
type sight struct {
	surface
	options Options
	at      time.Duration // since the request

	// The engine
	yields       []yielded
	wholeText    string // of all its fragments
	certainText  string // without a character whose end may still come
	engineOver   bool
	finished     bool          // as it should
	yielding     bool          // it waits for yield to return
	spokeAt      time.Duration // it called yield last
	asked        time.Duration // Chat was called
	answered     time.Duration // since then something new is wanted of the engine
	contextEnded bool
	contextCause error

	// The client
	got       answerRead
	reads     bool          // everything that comes, and always did
	catchesUp bool          // it reads now
	jammed    bool          // it has left frames unread, on a connection of HTTP/2
	gone      bool          // it has left, or closed its half
	closed    bool          // it has left
	silence   time.Duration // since the server's last write

	// The chat
	hostEnded bool     // the host has ended the request's context
	stops     []reason // what may have ended it first; nil: it goes on
	stoppedAt time.Duration
	stopStep  int
	reports   []ChatReport
	reporting bool          // OnChat has not returned
	letAt     time.Duration // when it has
	reported  time.Duration // OnChat was called
	returned  bool          // ServeHTTP has
	placeFree bool

	// The host's writer
	handed   answerRead    // what it was given
	quiet    time.Duration // between a keep-alive and what was written before it, at the least
	calling  bool          // a call is in progress
	calledAt time.Duration // the last call began
	called   time.Duration // and ended
	stalled  bool          // a call failed after WriteTimeout
	offence  string        // against the writer
}

// violations are the rules of a chat that do not hold in what is seen. It is the
// contract of the package, written from outside: nothing of it is taken from
// the code that it judges but the sizes.
func (s sight) violations() (violated []string) {
	must := func(holds bool, rule string, seen ...any) {
		if !holds {
			violated = append(violated, rule+strings.TrimSuffix(": "+fmt.Sprint(seen...), ": "))
		}
	}
	report, reported := s.report()
	running, over := len(s.stops) == 0, s.engineOver && reported
	bound := s.options.WriteTimeout + writeSlack
	if s.jammed {
		bound += s.options.WriteTimeout // net/http ends no call before it gives the connection up, when nothing has left for WriteByteTimeout
	}

	// The client gets what the engine said, and can tell whole from broken.
	must(strings.HasPrefix(s.wholeText, s.got.text), "the text is what the engine yielded, from its start", difference{s.got.text, s.wholeText})
	must(s.got.wrong == "", "the answer has its form", s.got.wrong)
	must(!s.looksWhole() || s.finished && s.got.text == s.wholeText, "only what is whole looks whole")
	must(!s.got.cut || !s.got.done || !s.stream || s.gone, "what is whole is not cut")
	must(!running || !s.prompt() || s.got.text == s.certainText, "a fragment leaves at once", difference{s.got.text, s.certainText})
	must(!s.yielding || !s.catchesUp, "yield does not wait for a client that reads")
	must(!s.yielding || s.stream, "yield does not wait where nothing is sent")
	must(s.unsent() <= 2*maxWrite+8<<10, "a client that does not read holds the engine back", s.unsent())
	must(!running || !s.prompt() || s.options.KeepAlive < 0 || s.silence < s.options.KeepAlive, "a stream is not silent for longer than KeepAlive", s.silence)
	must(s.quiet >= s.options.KeepAlive, "a keep-alive comes after silence only", s.quiet)

	// A failure has its status before the commit, an error event and the cut after it.
	must(!s.tellable() || s.got.done || s.got.failure != "", "a client that reads hears of the end at once")
	must(s.got.failure == "" || s.anyStop(func(r reason) bool { return r.detail == s.got.failure }), "the client is told the reason", s.got.failure)
	must(s.got.status == 0 || s.statusFits(s.got.status), "the status fits the reason, and what was sent before it", s.got.status)
	must(s.got.failure == "" || s.got.status != 200 || s.gone || s.at > s.stoppedAt || !s.got.cut, "an error event can be read before the cut")
	must(!s.returned || !s.brokenForClient() || s.got.cut, "a broken answer is cut")
	must(!s.returned || !s.owedTheEnd() || s.handed.done || s.handed.failure != "", "the writer is given the end of the answer")
	must(!s.returned || !s.owedTheEnd() || report.Err != nil || s.got.done, "what is reported as whole arrives")

	// OnChat is called once, when the answer has ended, and says how it went.
	must(len(s.reports) <= 1, "a chat is reported once", len(s.reports))
	must(!s.returned || reported, "a chat is reported before ServeHTTP returns")
	must(!reported || !running, "a chat is not reported before its end")
	if reported {
		must(s.anyStop(func(r reason) bool { return r.is(report.Err) }), "the report has the reason", report.Err, ", not ", s.stopNames())
		must(len(endsOf(report.Err)) <= 1, "a report has one reason", report.Err)
		must(report.Err != nil || s.finished, "a report without a reason is one of a whole answer")
		must(report.Err == nil || !s.looksWhole(), "what looks whole is reported as whole", report.Err)
		must(s.owesNothing(report.Err), "what the client is owed is on its way before OnChat is called")
		must(s.got.status == 0 || report.Status == s.got.status, "the report has the status", report.Status)
		must(report.Status == 0 || s.statusFits(report.Status) || s.gone, "the reported status is one that fits", report.Status)
		must(s.figuresAgree(report), "the report's figures agree with what was sent", fmt.Sprintf("%d fragments, %d bytes", report.Fragments, report.Bytes))
		must(report.FirstFragment == s.firstText() || report.FirstFragment == 0 && s.firstText() >= s.stoppedAt, "the report has the moment of the first text", report.FirstFragment)
		must(report.Duration == s.reported, "the report has the duration", report.Duration, " of ", s.reported)
		must(report.RequestID == orderRequestID && report.Account == testAccount && report.Bot == echoBot && report.Stream == s.stream, "the report says whose chat it was")
	}

	// The engine's context ends with the chat, and for the same reason.
	must(!running || !s.contextEnded, "the engine's context does not end before the chat", s.contextCause)
	must(!s.onlyOutside() || s.contextEnded, "the engine's context ends at once when something else ends the chat")
	must(!reported || s.contextEnded, "the engine's context ends with the answer")
	must(!reported || !s.contextEnded || len(endsOf(s.contextCause)) == 0 || slices.Equal(endsOf(s.contextCause), endsOf(report.Err)), "the context's cause is the report's", s.contextCause, ", not ", report.Err)
	must(!s.onlyOutside() || s.anyStop(func(r reason) bool { return r.is(s.contextCause) }), "the context's cause is why the chat ended", s.contextCause)

	// yield tells the engine.
	for _, y := range s.yields {
		must(!y.ended || y.more || y.err != nil || !running, "yield returns true while the chat goes on")
		must(!y.ended || !y.more || y.err == nil, "yield returns false for an error")
		must(!y.ended || !y.more || running || y.step <= s.stopStep, "yield returns false after the end")
	}
	must(!s.yielding || running || s.blocked() || !s.certainly(clientLeft), "yield returns at once when the client has left")
	must(!s.yielding || running || s.blocked() || s.at < s.stoppedAt+bound, "yield returns soon after the end")

	// A place is free exactly when engine and answer are both over.
	must(s.placeFree == over, "a place is free when engine and answer are over, and not before", s.placeFree)

	// ServeHTTP returns, whatever the engine does, and nobody writes behind its back.
	must(s.offence == "", "one at a time uses the writer, and nobody after the end", s.offence)
	must(!s.calling || s.blocked() || s.at-s.calledAt <= bound, "a write does not last longer than WriteTimeout", s.at-s.calledAt)
	must(s.returned || running || s.blocked() || s.reporting || s.at < max(s.stoppedAt, s.letAt)+s.patience(), "ServeHTTP returns in bounded time")
	must(s.returned || s.reporting || !reported || !s.engineOver || s.mayPause() || s.calling, "ServeHTTP returns when there is nothing to wait for")
	must(!s.returned || running || s.engineOver || s.at >= s.stoppedAt+engineGrace, "ServeHTTP waits for an engine that may return soon")
	return violated
}

func (s sight) report() (ChatReport, bool) {
	if len(s.reports) == 0 {
		return ChatReport{}, false
	}
	return s.reports[0], true
}

// looksWhole is what the least careful client goes by.
func (s sight) looksWhole() bool {
	return s.got.done || s.got.whole && s.got.status == 200
}

// blocked is whether a write lasts that nothing but the client can end.
func (s sight) blocked() bool { return s.calling && !s.flushes }

// prompt is whether nothing but the handler can hold a fragment back.
func (s sight) prompt() bool {
	return s.stream && s.flushes && s.catchesUp && !s.gone
}

// tellable is whether the chat is over, and nothing but the handler can keep
// the client from hearing of it.
func (s sight) tellable() bool {
	return s.flushes && s.owedTheEnd()
}

// owedTheEnd is whether the chat is over, and its client is there to hear of it.
func (s sight) owedTheEnd() bool {
	return len(s.stops) > 0 && s.reads && !s.gone && !s.stoppedBecause(clientStalls)
}

// owesNothing is whether the client has all that it will get, but for the cut.
// What it did not take in time, it is not owed any more.
func (s sight) owesNothing(err error) bool {
	return !s.flushes || !s.catchesUp || s.gone || s.stalled || errors.Is(err, ErrClientLeft) || errors.Is(err, ErrClientStalled) ||
		!s.stream && s.got.status == 200 && errors.Is(err, ErrChatTimeout) ||
		s.got.done || s.got.failure != ""
}

func (s sight) brokenForClient() bool {
	return s.catchesUp && !s.gone && s.stream && s.got.status == 200 && !s.got.done
}

func (s sight) anyStop(is func(reason) bool) bool { return slices.ContainsFunc(s.stops, is) }

func (s sight) stoppedBecause(r reason) bool {
	return s.anyStop(func(other reason) bool { return other.name == r.name })
}

func (s sight) certainly(r reason) bool { return len(s.stops) == 1 && s.stoppedBecause(r) }

func (s sight) stopNames() (names []string) {
	for _, r := range s.stops {
		names = append(names, r.name)
	}
	return names
}

// onlyOutside is whether the reason is certainly not the engine's.
func (s sight) onlyOutside() bool {
	return len(s.stops) > 0 && !s.anyStop(func(r reason) bool { return !r.outside })
}

// statusFits is whether the answer may begin with this status.
func (s sight) statusFits(status int) bool {
	if status != 200 {
		return !s.committed() && s.anyStop(func(r reason) bool { return r.status == status })
	}
	if s.stream {
		return s.mayCommit()
	}
	return s.finished
}

// committed is whether the answer has certainly begun as a stream.
func (s sight) committed() bool {
	return s.stream && slices.ContainsFunc(s.yields, func(y yielded) bool { return y.ended && y.more })
}

func (s sight) mayCommit() bool {
	return s.finished || s.keepAlivesDue() > 0 || slices.ContainsFunc(s.yields, func(y yielded) bool { return y.err == nil })
}

func (s sight) keepAlivesDue() int {
	if s.options.KeepAlive < 0 || !s.stream {
		return 0
	}
	return int(s.at / s.options.KeepAlive)
}

// unsent is how many bytes of text the handler has taken, but not sent. What
// waits in the network counts as sent.
func (s sight) unsent() int {
	if !s.stream || len(s.stops) > 0 {
		return 0
	}
	taken := 0
	for _, y := range s.yields {
		if y.ended && y.more {
			taken += len(y.text)
		}
	}
	return taken - len(s.got.text)
}

func (s sight) figuresAgree(report ChatReport) bool {
	said := 0
	for _, y := range s.yields {
		if y.err == nil {
			said++
		}
	}
	switch {
	case report.Err == nil:
		return report.Fragments == said && report.Bytes == int64(len(s.wholeText))
	case report.Fragments > said || report.Bytes > int64(len(s.wholeText)) || report.Bytes < int64(len(s.got.text)):
		return false
	case !s.stream && !s.finished:
		return report.Fragments == 0 && report.Bytes == 0
	case s.stream:
		return report.Bytes == int64(len(s.handed.text))
	}
	return true
}

// firstText is when the engine first said something.
func (s sight) firstText() time.Duration {
	for _, y := range s.yields {
		if y.err == nil && y.text != "" {
			return y.at
		}
	}
	return 0
}

// patience is how long ServeHTTP may take after the end of the chat: for a
// write that is under way, the error event, the pause, and the engine.
func (s sight) patience() time.Duration {
	patience := breakPause + engineGrace + time.Millisecond
	if !s.reads && !s.closed {
		patience += 2 * (s.options.WriteTimeout + writeSlack)
	}
	return patience
}

// wasReported is when OnChat was over.
func (s sight) wasReported() time.Duration { return max(s.reported, s.letAt) }

// mayPause is whether a broken stream may still be uncut. Where the host has
// ended the request, nothing tells that the client has left.
func (s sight) mayPause() bool {
	report, _ := s.report()
	return s.stream && report.Err != nil && (!s.gone || s.hostEnded) && s.at < s.wasReported()+breakPause
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
