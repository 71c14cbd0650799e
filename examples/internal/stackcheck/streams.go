package stackcheck

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"example.com/botapi/examples/internal/probe"
)

// streamChecks are of answers.
var streamChecks = []check{
	{name: checkWriter, needs: ready, within: true, run: (*stack).checkWriter, chats: 1},
	{name: checkTimeLimit, needs: ready, within: true, run: (*stack).checkTimeLimit, chats: 1},
	{name: checkAnswer, needs: ready, plain: true, run: (*stack).checkAnswer, chats: 2, tokens: 2},
	{name: checkSameTime, needs: ready, probed: true, run: (*stack).checkSameTime, chats: sameTime + 2, asks: 1 + sameTime + 2},
	{name: checkOneByOne, needs: append([]string{checkWriter, checkSameTime}, ready...), together: 3, probed: true, run: (*stack).checkOneByOne, chats: 5, asks: 14},
	{name: checkStream, needs: ready, probed: true, run: (*stack).checkStream, chats: 1, rounds: rounds},
	{name: checkCompressed, needs: append([]string{checkWriter, checkSameTime, checkOneByOne}, ready...), together: 3, probed: true, run: (*stack).checkCompressed, chats: 3, asks: 4},
	{name: checkSilence, once: true, needs: append([]string{checkWriter, checkSameTime, checkOneByOne}, ready...), together: 6, probed: true, run: (*stack).checkSilence, chats: 4, asks: 1},
	{name: checkLongJSON, needs: ready, probed: true, run: (*stack).checkLongJSON, chats: 2},
	{name: checkFailure, needs: ready, probed: true, run: (*stack).checkFailure, chats: 4, asks: 2, rounds: rounds},
	{name: checkEarly, needs: append([]string{checkErrors}, ready...), probed: true, run: (*stack).checkEarlyFailure, chats: 5, asks: 1, rounds: rounds},
	{name: checkDisconnect, needs: append([]string{checkSameTime}, ready...), together: 5, probed: true, run: (*stack).checkDisconnect, chats: 3, asks: 6, rounds: rounds},
	{name: checkSlowReader, once: true, needs: append([]string{checkWriter, checkSameTime, checkOneByOne}, ready...), together: 3, probed: true, run: (*stack).checkSlowReader, chats: 1, asks: 1},
	{name: checkOnce, once: true, needs: ready, probed: true, run: (*stack).checkOnce, chats: 3 * (1 + replicas)},
	{name: checkReuse, needs: ready, run: (*stack).checkReuse},
}

// ready are the checks without which no chat reaches the engine as it was sent.
var ready = []string{checkReach, checkKey, checkBody}

const (
	incomplete = "clients take half an answer for a complete one, and store it"
	late       = "users wait for the end of an answer and then see all of it"
)

// multibyte has characters of 2, 3 and 4 bytes: the end of a block of any usual size is within a
// character most of the time, since 9 bytes share no factor with it.
const multibyte = "é€😀"

// A longFragment is an event of nearly 4 KiB, the most that is sent as one.
var longFragment = strings.Repeat(multibyte, 440)

const longFragments = 8

// difference says where a text differs from what it should be.
func difference(got, want string) string {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	return fmt.Sprintf("; after %d of %d bytes that are right: %s", at, len(want), quoted(got[at:]))
}

// fewFragments are fewEvents, without a wait.
func fewFragments() []probe.Step {
	return []probe.Step{{Text: "Good "}, {Text: "morning, "}, {Text: "Grüße"}, {Text: "a  b\t\x00 [DONE]"}, {Text: longFragment, Times: longFragments}}
}

var fewEvents = "data: {\"content\":\"Good \"}\n\ndata: {\"content\":\"morning, \"}\n\ndata: {\"content\":\"Grüße\"}\n\n" +
	`data: {"content":"a  b\t\u0000 \u005bDONE]"}` + "\n\n" + // readers stop at the first [DONE]
	strings.Repeat("data: {\"content\":\""+longFragment+"\"}\n\n", longFragments) + "data: [DONE]\n\n"

const byBlocks = "a proxy or middleware decodes or rewrites the text block by block, and destroys the characters that are in two blocks: let it pass bytes on as they are, or keep the beginning of a character for the next block"

// destroyed describes the characters that have been replaced, or is "".
func destroyed(text string) string {
	valid := strings.ToValidUTF8(text, "\uFFFD")
	at := strings.Index(valid, "\uFFFD")
	if at < 0 {
		return ""
	}
	from := max(0, at-30)
	for !utf8.RuneStart(valid[from]) {
		from++
	}
	return fmt.Sprintf("%d characters U+FFFD or bytes that are no UTF-8, the first after %d bytes: %s", strings.Count(valid, "\uFFFD"), at, quoted(valid[from:min(at+3, len(valid))]))
}

func (s *stack) checkStream(ctx context.Context, r *Result) error {
	p := s.play(ctx, true, request{}, fewFragments()...)
	p.whole(ctx)
	r.note("the response is %s", p.proto)
	text := strings.ReplaceAll(p.body, keepAlive, "") // which a busy service may send between fragments
	f := Finding{Sent: "POST /v1/chat: a stream of some fragments, with double spaces, a NUL, [DONE], and long runs of characters of 2, 3 and 4 bytes"}
	switch {
	case p.status != http.StatusOK || p.err != nil && p.status == 0:
		f.Arrived, f.Effect = p.show("Content-Type"), "no stream arrives"
		f.Cause = p.replacedBy("something in front of the API answers in its place")
	case !strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream"):
		f.Arrived, f.Effect = p.show("Content-Type"), "clients that look at the Content-Type reject the stream"
		f.Cause = "a proxy or middleware sets Content-Type"
	case p.proto == "HTTP/1.0":
		f.Arrived, f.Effect = "an HTTP/1.0 response", incomplete
		f.Cause = "the last proxy speaks HTTP/1.0 to clients, in which an aborted stream looks complete"
	case p.header.Get("Content-Length") != "" && !s.isDelayed():
		f.Arrived, f.Effect = p.show("Content-Length"), late
		f.Cause = "middleware collects the response to count its bytes, or sets the length itself"
	case !strings.Contains(p.header.Get("Cache-Control"), "no-cache") && !s.failed[checkList]:
		f.Arrived, f.Effect = p.show("Cache-Control"), "a proxy or browser may keep, compress or change the stream"
		f.Cause = "a proxy or middleware sets Cache-Control on all responses"
	case s.kit != nil && !strings.Contains(p.header.Get("Cache-Control"), "no-transform") && !s.failed[checkList]:
		f.Arrived, f.Effect = p.show("Cache-Control"), "a proxy or CDN may compress the stream, and collects it for that: "+late
		f.Cause = "middleware sets Cache-Control on streams, without the no-transform of the handler"
	case s.kit != nil && p.header.Get("Connection") != "" && !strings.EqualFold(p.header.Get("Connection"), "close"):
		f.Arrived, f.Effect = p.show("Connection"), "proxies and clients may reject the response: the header belongs to net/http, and HTTP/2 forbids it"
		f.Cause = "middleware sets Connection on streams, as old examples of server-sent events do"
	case s.kit != nil && p.header.Get("X-Accel-Buffering") != "no":
		f.Arrived, f.Effect = p.show("X-Accel-Buffering"), "nginx buffers the stream: "+late
		f.Cause = "middleware removes response headers"
	case destroyed(text) != "":
		f.Arrived, f.Effect = destroyed(text), "users see � in the middle of words"
		f.Cause = byBlocks
	case strings.Count(text, "[DONE]") > 1:
		f.Arrived, f.Effect = p.show()+difference(text, fewEvents), incomplete+": readers stop at the first [DONE]"
		f.Cause = "a proxy or middleware decodes events and encodes them again: a [DONE] in a text was sent as \\u005bDONE], so pass the bytes on as they are"
	case text != fewEvents:
		f.Arrived, f.Effect = p.show()+difference(text, fewEvents), "clients cannot read the stream, or get another text"
		f.Cause = "a proxy or middleware changes bodies, or writes to the response beside the API"
	case p.err != nil:
		f.Arrived, f.Effect = p.show(), "clients report a complete answer as failed"
		f.Cause = "a proxy or middleware ends the connection, or sends another length than it has announced"
	default:
		return nil
	}
	r.found(f)
	return nil
}

// sameTime is how many chats are open at the same time in the check of that. With an order, these
// are as many as the checks need.
const sameTime = 7

// checkSameTime: one chat is answered while others wait.
func (s *stack) checkSameTime(ctx context.Context, r *Result) error {
	begin := func() (p *play, end func()) {
		alone := s.alone()
		p = alone.waiting(ctx)
		return p, func() { p.disconnect(); alone.close() }
	}
	first, end := begin()
	defer end()
	run, err := s.see(ctx, first, probe.Begun, 0, 0)
	if err != nil {
		return fmt.Errorf("%w; the response was %s", err, first.show())
	}
	if run.Ending != "" { // the order, which is a chat, too, has waited for it
		s.foundLimit(r, 1)
		return nil
	}
	if s.isDelayed() || !first.hasBegun(ctx, s.Patience) {
		return s.checkSecond(ctx, r, first) // clients do not see when a chat begins
	}
	open := []*play{first}
	for len(open) < sameTime {
		next, end := begin()
		defer end()
		if next.hasBegun(ctx, 2*s.Patience) {
			open = append(open, next)
			continue
		}
		if next.hasEnded() {
			return s.foundRejection(r, next, len(open))
		}
		// It waits for one of the others if it begins when one has ended.
		first.disconnect()
		if !next.hasBegun(ctx, 6*patience) {
			return fmt.Errorf("a chat did not begin while %d others were open: %s", len(open), next.show())
		}
		s.foundLimit(r, len(open))
		for _, p := range append(open, next) {
			p.disconnect()
		}
		for _, p := range append(open, next) { // so that other checks have room
			_, _ = s.see(ctx, p, probe.Ended, 0, 4*patience)
		}
		return nil
	}
	for _, p := range open {
		if err := s.goOn(ctx, p); err != nil {
			return err
		}
		p.whole(ctx) // so that there is room for two more
	}
	if first.proto != "HTTP/2.0" {
		return nil
	}
	return s.checkOneConnection(ctx, r)
}

// waiting starts a stream whose engine waits after its first fragment.
func (s *stack) waiting(ctx context.Context) *play {
	return s.play(ctx, true, request{timeout: 12 * patience},
		probe.Step{Text: "x"}, probe.Step{Await: probe.AwaitGo, Millis: probe.In(4 * s.Patience)}, probe.Step{Text: "x"})
}

func (p *play) hasBegun(ctx context.Context, most time.Duration) bool {
	return p.wait(ctx, most, func() bool { return len(p.arrivals) > 0 })
}

// checkOneConnection opens two chats on one connection, which HTTP/2 shares and HTTP/1.1 does not.
func (s *stack) checkOneConnection(ctx context.Context, r *Result) error {
	s = s.alone()
	defer s.close()
	first := s.waiting(ctx)
	defer first.disconnect()
	if !first.hasBegun(ctx, 2*s.Patience) {
		return fmt.Errorf("a chat did not begin after others: %s", first.show())
	}
	second := s.waiting(ctx)
	defer second.disconnect()
	if second.hasBegun(ctx, 2*s.Patience) {
		return errors.Join(s.goOn(ctx, first), s.goOn(ctx, second))
	}
	if second.hasEnded() {
		return s.foundRejection(r, second, 1)
	}
	if first.disconnect(); !second.hasBegun(ctx, 6*patience) {
		return fmt.Errorf("a chat did not begin while another was open on its connection: %s", second.show())
	}
	r.found(Finding{
		Sent:    "a chat, while the engine of another was waiting, on the same connection",
		Arrived: fmt.Sprintf("nothing, until the other had ended; on a connection of its own, each of %d chats begins immediately", sameTime),
		Effect:  "browsers and proxies send all requests on one connection of HTTP/2, where each chat waits for the one before",
		Cause:   "middleware or a proxy serves one request of a connection at a time: a lock or a limit of each r.RemoteAddr, or of each client address and port",
		aside:   s.kit != nil, // otherwise, orders share the connection of the chat that they are about
	})
	return nil
}

// checkSecond asks for a JSON response while a chat is open.
func (s *stack) checkSecond(ctx context.Context, r *Result, first *play) error {
	second := s.play(ctx, false, request{timeout: 6 * patience}, probe.Step{Text: "x"})
	defer second.disconnect()
	isAnswered := second.wait(ctx, 2*s.Patience, func() bool { return second.ended })
	if err := s.goOn(ctx, first); err != nil {
		return err
	}
	if second.whole(ctx); !isAnswered && second.status == http.StatusOK {
		s.foundLimit(r, 1)
	}
	return nil
}

// foundLimit notes that a chat has waited for one of so many others.
func (s *stack) foundLimit(r *Result, others int) {
	s.sent.room.Store(int64(others))
	if others == 1 {
		r.found(Finding{
			Sent:    "a chat, while the engine of another was waiting",
			Arrived: "nothing, until the other had ended",
			Effect:  "each user waits for the answers of others",
			Cause:   "middleware or a proxy serves one request at a time, of all, or of each key or user: a lock, a limit of connections or of workers",
		})
		return
	}
	r.found(Finding{
		Sent:    fmt.Sprintf("a chat, while the engines of %d others were waiting", others),
		Arrived: fmt.Sprintf("nothing, until one of the others had ended: %d chats run at the same time, and the next one waits", others),
		Effect:  fmt.Sprintf("while %d answers are running, other users wait for the end of one, and no error says when to try again", others),
		Cause: fmt.Sprintf("a proxy or middleware has room for %d requests, of all or of each key, and lets others wait (MaxConnsPerHost: %d in the http.Transport of a Go reverse proxy, chi's ThrottleBacklog, maxconn of a server in HAProxy, a pool of workers): leave limits of chats to MaxConcurrentChats and MaxChatsPerAccount, which reject with Retry-After",
			others, others),
	})
}

// foundRejection notes that a chat got no answer while others were open.
func (s *stack) foundRejection(r *Result, p *play, others int) error {
	sent := fmt.Sprintf("a chat, while %d others were open", others)
	if p.isPage() {
		return &pageError{got: p.answer, sent: sent}
	}
	return fmt.Errorf("%s: %s; the checks need %s", sent, p.show(), limitsNeeded)
}

// checkLongJSON: a JSON response is sent in several chunks, which must stay one response.
func (s *stack) checkLongJSON(ctx context.Context, r *Result) error {
	const times = 64
	fragment := strings.Repeat(multibyte, 455) // 4 KiB
	p := s.play(ctx, false, request{}, probe.Step{Text: fragment, Times: times})
	p.whole(ctx)
	want := `{"content":"` + strings.Repeat(fragment, times) + `"}`
	if p.status == http.StatusOK && p.err == nil && p.isJSON() && p.body == want {
		return s.checkCompressedJSON(ctx, r)
	}
	f := Finding{
		Sent:    fmt.Sprintf("POST /v1/chat: a JSON response of %d bytes, of characters of 2, 3 and 4 bytes", len(want)),
		Arrived: fmt.Sprintf("%s; in all %d bytes", p.show("Content-Type", "Content-Length"), len(p.body)),
		Effect:  "long answers are lost or cut off",
		Cause:   "a proxy or middleware bounds responses, or writes its buffer in another order than the handler",
	}
	if destroyed := destroyed(p.body); destroyed != "" && p.err == nil && p.isJSON() {
		f.Arrived, f.Effect, f.Cause = destroyed, "users see � in the middle of words", byBlocks
	}
	r.found(f)
	return nil
}

// checkCompressedJSON: what was compressed is as it was. The check of the list looks at that, too.
func (s *stack) checkCompressedJSON(ctx context.Context, r *Result) error {
	if s.failed[checkList] {
		return nil
	}
	text := strings.Repeat(multibyte, 455)
	p := s.play(ctx, false, request{header: map[string]string{"Accept-Encoding": "gzip"}}, probe.Step{Text: text})
	p.whole(ctx)
	if p.status == http.StatusOK && p.err == nil && p.isJSON() && p.body == `{"content":"`+text+`"}` {
		return nil
	}
	f := Finding{
		Sent:    "POST /v1/chat with Accept-Encoding: gzip: a JSON response, decompressed as Content-Encoding says",
		Arrived: p.show("Content-Type", "Content-Encoding"),
		Effect:  unreadable,
		Cause:   p.wrongCompression(),
	}
	if p.status != http.StatusOK {
		f.Effect, f.Cause = "clients that accept compression get no answer", p.replacedBy("something in front of the API answers in its place")
	}
	r.found(f)
	return nil
}

// isDelayed reports whether another check has found that a stream is delivered at its end.
func (s *stack) isDelayed() bool { return s.failed[checkWriter] || s.failed[checkOneByOne] }

// checkAnswer asks the service's own model, for lack of a probe.
func (s *stack) checkAnswer(ctx context.Context, r *Result) error {
	const prompt = "Count from one to twenty, in words."
	a := s.start(ctx, request{path: "/v1/chat", body: s.chat(prompt, true, nil), timeout: 2 * time.Minute})
	a.whole(ctx)
	f := Finding{Sent: "POST /v1/chat: a stream of the bot " + s.bot}
	for _, at := range a.arrivals {
		r.Clock = append(r.Clock, Clock{Arrived: milliseconds(at.Sub(a.begun))})
	}
	switch {
	case a.status != http.StatusOK && a.isJSON():
		return fmt.Errorf("the bot %s does not answer: %s", s.bot, a.show())
	case a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream"):
		f.Arrived, f.Effect = a.show("Content-Type"), "no stream arrives"
		f.Cause = a.replacedBy("a proxy or middleware answers in the API's place, or sets Content-Type")
	case a.err == nil && !strings.HasSuffix(a.body, "data: [DONE]\n\n"):
		f.Arrived, f.Effect = a.show(), incomplete
		f.Cause = "the answer was aborted, and a proxy or middleware hid that"
	case a.err != nil:
		f.Arrived, f.Effect = a.show(), "the answer is incomplete"
		f.Cause = "the model failed, which the service's log says, or a proxy's time limit has passed"
	case a.header.Get("Content-Length") != "":
		f.Arrived, f.Effect = a.show("Content-Length"), late
		f.Cause = "middleware or a proxy collects the stream before it sends it"
	case allTogether(a):
		f.Arrived = fmt.Sprintf("all %d events together, %.1f s after the request", len(a.arrivals), a.arrivals[0].Sub(a.begun).Seconds())
		f.Effect = late
		f.Cause = "a proxy or middleware collects the stream, unless this bot yields its answer in one piece; --secret can tell which"
	default:
		return s.checkJSONAnswer(ctx, r, prompt)
	}
	r.found(f)
	return nil
}

// allTogether reports whether many events have come in an instant after a long silence.
func allTogether(a *answer) bool {
	last := len(a.arrivals) - 1
	return last >= 5 && a.arrivals[0].Sub(a.begun) > time.Second && a.arrivals[last].Sub(a.arrivals[0]) < 20*time.Millisecond
}

func (s *stack) checkJSONAnswer(ctx context.Context, r *Result, prompt string) error {
	a := s.do(ctx, request{path: "/v1/chat", body: s.chat(prompt, false, nil), timeout: 2 * time.Minute})
	if a.status == http.StatusOK && a.isJSON() && a.err == nil {
		return nil
	}
	r.found(Finding{
		Sent:    "POST /v1/chat: a JSON response of the bot " + s.bot,
		Arrived: a.show("Content-Type"),
		Effect:  "clients that ask for JSON responses get no answer",
		Cause:   a.replacedBy("the model failed, which the service's log says, or a proxy's time limit has passed before the answer was complete"),
	})
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// lockstepFragments is how many fragments the engine yields, each when the client has the one
// before.
const lockstepFragments = 6

func (s *stack) checkOneByOne(ctx context.Context, r *Result) error {
	first, second := Result{Clock: r.Clock}, Result{}
	delayed, err := s.lockstep(ctx, &first, request{})
	r.Clock = first.Clock
	if err != nil {
		return err
	}
	if delayed == "" && first.Findings == nil {
		return s.checkAccept(ctx, r)
	}
	again, err := s.lockstep(ctx, &second, request{}) // a machine that is busy may have been the reason
	if err != nil || again == "" {
		if second.Findings != nil {
			r.Findings = first.Findings
		}
		return err
	}
	f := Finding{
		Sent:    "the engine yielded a fragment, and waited until the client has it",
		Arrived: delayed,
		Effect:  late,
		Cause:   "a proxy or middleware collects the response (http.TimeoutHandler, a wrapper without Flush and Unwrap, a proxy that ignores X-Accel-Buffering)",
	}
	if s.kit != nil && s.kit.isDirect() {
		w := s.kit.lastWriter()
		f.Cause = "middleware collects the response: its Flush does nothing, or it writes to a buffer" + w.chain()
		if w.hidden != "" {
			f.Cause = fmt.Sprintf("%s has no Flush of its own, and what wraps it (chi's Compress, for one) looks for that and not for Unwrap: give it a Flush%s", w.hidden, w.chain())
		}
	}
	buffer, err := s.bufferSize(ctx)
	if err != nil {
		return err
	}
	bufferAgain, err := s.bufferSize(ctx)
	switch {
	case err != nil:
		return err
	case buffer != bufferAgain: // it is no buffer of one size
	case buffer > 0:
		f.Cause += fmt.Sprintf("; its buffer holds about %s", bytesText(buffer))
	default:
		f.Cause += "; nothing arrived before the answer had ended"
	}
	r.found(f)
	return nil
}

// libraryAccept is what axios sends with each request. OpenAI's libraries send application/json
// alone.
const libraryAccept = "application/json, text/plain, */*"

// checkAccept follows a stream of a client that does not name text/event-stream in Accept, at
// which the handler does not look.
func (s *stack) checkAccept(ctx context.Context, r *Result) error {
	library := request{header: map[string]string{"Accept": libraryAccept}}
	delayed, err := s.lockstep(ctx, new(Result), library)
	if err != nil || delayed == "" {
		return err
	}
	if again, err := s.lockstep(ctx, new(Result), library); err != nil || again == "" {
		return err
	}
	r.found(Finding{
		Sent:    "the engine yielded a fragment to a client with Accept: " + libraryAccept + " (axios; OpenAI's libraries are alike), and waited until the client has it",
		Arrived: delayed,
		Effect:  late + "; clients without this Accept do not",
		Cause:   "a proxy or middleware decides by Accept what is a stream, and collects all else: it must look at the Content-Type of the response",
		aside:   true,
	})
	return nil
}

func bytesText(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d KiB", (n+512)/1024)
}

// lockstep returns what has arrived while the engine waited, if that was no fragment, or "".
func (s *stack) lockstep(ctx context.Context, r *Result, req request) (delayed string, err error) {
	var steps []probe.Step
	for i := range lockstepFragments {
		steps = append(steps, probe.Step{Text: fmt.Sprintf("fragment %d ", i)}, probe.Step{Await: probe.AwaitGo, Millis: probe.In(4 * patience)})
	}
	p := s.play(ctx, true, req, steps...)
	defer p.disconnect()
	var delays, trips []time.Duration
	last := p.sentAt()
	for i := range lockstepFragments {
		if !p.wait(ctx, s.Patience, func() bool { return len(p.arrivals) > i && !p.ended }) {
			if p.hasEnded() { // perhaps with all that was collected
				return p.show("Content-Type"), nil
			}
			// The fragment counts as delayed only if the engine has been rid of it for long.
			run, err := s.see(ctx, p, probe.Yielded, i+1, patience)
			if err != nil {
				return "", err
			}
			if p.wait(ctx, s.Patience/2, func() bool { return len(p.arrivals) > i && !p.ended }) {
				continue
			}
			if run.Yielded <= i {
				return "", fmt.Errorf("fragment %d was not yielded, or is still being written; the response is %s", i+1, p.show())
			}
			return p.show("Content-Type"), nil
		}
		now := time.Now()
		delays, last = append(delays, now.Sub(last)), now
		began := time.Now()
		if err := s.goOn(ctx, p); err != nil {
			return "", err
		}
		trips, last = append(trips, time.Since(began)), began
	}
	p.whole(ctx)
	s.clock(ctx, r, p)
	return "", s.checkDelay(r, delays[1:], trips)
}

// checkDelay compares how long fragments took with how long complete responses did. Noise makes
// both longer: a delay is one of nearly all fragments, and longer than most responses took.
func (s *stack) checkDelay(r *Result, delays, trips []time.Duration) error {
	slices.Sort(delays)
	slices.Sort(trips)
	delay, trip := delays[1], trips[len(trips)/2]
	if delay-trip < 100*time.Millisecond {
		return nil
	}
	r.found(Finding{
		Sent:    fmt.Sprintf("the engine yielded %d fragments, each when the client had the one before", lockstepFragments),
		Arrived: fmt.Sprintf("they took %d ms and more, where most complete responses took %d ms at most", delay.Milliseconds(), trip.Milliseconds()),
		Effect:  "answers come in bursts",
		Cause:   "a proxy or middleware waits whether more arrives, or flushes by a timer: HAProxy without option http-no-delay waits for 200 ms",
	})
	return nil
}

// clock notes when each fragment of a chat was yielded, and when it arrived.
func (s *stack) clock(ctx context.Context, r *Result, p *play) {
	run, err := s.see(ctx, p, probe.Ended, 0, patience)
	if err != nil || r.Clock != nil {
		return // only the clock is lost
	}
	for i, at := range p.arrivals[:min(len(p.arrivals), len(run.Fragments))] {
		r.Clock = append(r.Clock, Clock{Yielded: float64(run.Fragments[i].At) / 1000, Arrived: milliseconds(at.Sub(p.begun))})
	}
}

// bufferSize returns how much was yielded when the first bytes arrived, or 0 if they did not.
func (s *stack) bufferSize(ctx context.Context) (int64, error) {
	const most = 4 << 10 // so that the body of the request is not long
	sizes := []int{256, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10}
	var steps []probe.Step
	for _, size := range sizes {
		steps = append(steps, probe.Step{Text: strings.Repeat("x", min(size, most)), Times: max(1, size/most)}, probe.Step{Await: probe.AwaitGo, Millis: probe.In(4 * patience)})
	}
	p := s.play(ctx, true, request{}, steps...)
	defer p.disconnect()
	var total int64
	yielded := 0
	for _, size := range sizes {
		yielded += max(1, size/most)
		if _, err := s.see(ctx, p, probe.Yielded, yielded, patience); err != nil {
			return 0, err
		}
		total += int64(size)
		if p.wait(ctx, 300*time.Millisecond, func() bool { return len(p.body) > 0 }) {
			return total, nil
		}
		if err := s.goOn(ctx, p); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

func (s *stack) checkCompressed(ctx context.Context, r *Result) error {
	zipped := request{header: map[string]string{"Accept-Encoding": "gzip"}}
	delayed, err := s.lockstep(ctx, new(Result), zipped)
	if err != nil || delayed == "" {
		return err
	}
	whole := s.play(ctx, true, zipped, probe.Step{Text: "x"})
	whole.whole(ctx)
	if whole.isStillCompressed() && s.failed[checkList] { // which has found the two compressors
		return nil
	}
	if again, err := s.lockstep(ctx, new(Result), zipped); err != nil || again == "" {
		return err
	}
	f := Finding{
		Sent:    "the engine yielded a fragment to a client with Accept-Encoding: gzip, and waited until the client has it",
		Arrived: delayed,
		Effect:  late + "; without compression they do not",
		Cause:   "compression does not flush when the handler does, or is not told to leave out text/event-stream",
	}
	if whole.isStillCompressed() {
		f.Arrived, f.Effect, f.Cause = whole.show("Content-Encoding"), unreadable, whole.wrongCompression()
	}
	r.found(f)
	return nil
}

const (
	// stagger is how much later than a silent stream others begin, which tell what has ended it.
	stagger = 2 * time.Second

	// together is how long the ends of streams may be apart that one cause has ended.
	together = stagger / 2
)

// checkSilence: the engine is silent until a keep-alive has come. If that takes some seconds,
// three more streams begin: a silent one, one with a fragment, and one with fragments all the time.
func (s *stack) checkSilence(ctx context.Context, r *Result) error {
	most := max(s.Silence, 4*s.Patience)
	s = s.lively()
	other := s.alone()
	defer other.close()
	begin := func(s *stack, steps ...probe.Step) *play {
		return s.play(ctx, true, request{timeout: most + time.Minute},
			append(steps, probe.Step{Await: probe.AwaitGo, Millis: probe.In(most + 10*time.Second)}, probe.Step{Text: "x"})...)
	}
	p := begin(s)
	defer p.disconnect()
	isKept := func() bool { return strings.Contains(p.body, keepAlive) }
	var o *others
	if !p.wait(ctx, stagger, isKept) || s.Silence > stagger {
		p.wait(ctx, stagger-time.Since(p.sentAt()), func() bool { return false })
		o = &others{begin(other), begin(other, probe.Step{Text: "x"}), other.play(ctx, true, request{timeout: 2*most + time.Minute}, seldom(most)...)}
		defer o.disconnect()
	}
	kept := p.wait(ctx, most-time.Since(p.sentAt()), isKept)
	if kept {
		p.wait(ctx, s.Silence-time.Since(p.sentAt()), func() bool { return false })
	}
	ended, silence, head := p.hasEnded(), time.Since(p.sentAt()), p.headAfter()
	if !ended {
		if err := s.goOn(ctx, p); err != nil {
			return err
		}
		p.whole(ctx)
	}
	f := Finding{Sent: "the engine of a stream was silent"}
	switch {
	case ended:
		f.Arrived = fmt.Sprintf("after %.1f s: %s", p.length().Seconds(), p.show())
		f.Effect, f.Cause = aborted, timeLimit
		if o != nil {
			f.Effect, f.Cause = o.whatEnded(ctx, p)
			f.Arrived += o.fates(p)
		}
		f.Cause = p.ownCause(f.Cause)
	case !kept && s.kit != nil:
		f.Arrived = fmt.Sprintf("no keep-alive in %.0f s, with one due each %v", silence.Seconds(), livelyKeepAlive)
		f.Effect = "proxies abort silent streams, since they see nothing of the keep-alives"
		f.Cause = "middleware holds back or removes what is no event"
	case !kept && head > 0:
		f.Arrived = fmt.Sprintf("the head of the response after %.1f s, and no keep-alive in %.0f s", head.Seconds(), silence.Seconds())
		f.Effect, f.Cause = effectOfSilence(silence), keepAliveRemoved
	case !kept:
		f.Arrived = fmt.Sprintf("no byte of the response in %.0f s", silence.Seconds())
		f.Effect = effectOfSilence(silence)
		f.Cause = "Options.KeepAlive is off or longer than this, or something in front holds back the head of the response, too, until the first event"
	case !strings.Contains(p.body, "data: {\"content\":\"x\"}\n\ndata: [DONE]\n\n"):
		f.Arrived, f.Effect = p.show(), "the answer is incomplete"
		f.Cause = "a proxy or middleware ended the stream after its silence"
		if o == nil {
			break
		}
		// A time limit may have passed during the silence, of which only the next write shows.
		if effect, cause := o.whatEnded(ctx, p); cause == wholeLimit {
			f.Effect, f.Cause = effect, cause
			f.Arrived = fmt.Sprintf("after %.1f s: %s%s", p.length().Seconds(), f.Arrived, o.fates(p))
		}
	default:
		return nil
	}
	r.found(f)
	return nil
}

// ownCause is the cause of the end of an answer, if the handler itself says that it took too long.
func (a *answer) ownCause(cause string) string {
	switch {
	case !strings.Contains(a.body, "The answer took too long"):
		return cause
	case cause == wholeLimit:
		return "ChatTimeout of botapi.Options, or " + wholeLimit
	}
	return handlersLimit
}

const keepAlive = ": keep-alive\n"

// effectOfSilence is what comes of a stream without keep-alives that was open for so long.
func effectOfSilence(silence time.Duration) string {
	if silence < time.Minute {
		return "proxies abort silent streams, most of them after 60 s, and clients give up that wait for 60 s, as docs/wire.md says"
	}
	return fmt.Sprintf("nothing has aborted this stream in %.0f s, but clients give up that wait for 60 s, as docs/wire.md says, and so do most proxies", silence.Seconds())
}

const (
	aborted          = "answers of models that think for long are aborted"
	keepAliveRemoved = "a proxy or middleware removes or holds back the keep-alive, with which the handler sends the head of a silent stream: the head has arrived, the keep-alive has not (a gateway that reads events line by line drops comments): pass on what is no event, immediately"
	handlersLimit    = "StallTimeout or ChatTimeout of botapi.Options has passed, or a deadline that middleware gives the request, and nothing in front has ended the stream: it must be longer than models think"
	timeLimit        = "a proxy or middleware has a time limit, for silence or for each response, of about this length; it must be longer than KeepAlive, and than the longest answer"
	silenceLimit     = "a proxy or middleware has a limit for silence of about this length, since a stream with fragments stayed open: it must be longer than KeepAlive"
	wholeLimit       = "a limit for each response, whatever is sent: http.Server.WriteTimeout behind middleware that wraps the ResponseWriter without Unwrap, so that the handler cannot clear it (the Go server closes the connection, and a proxy makes a 502 of that if nothing was sent before); or timeout middleware, such as http.TimeoutHandler; or a proxy's limit for a whole response (Envoy's route timeout, which is 15 s by default). Give the wrapper an Unwrap; a limit must be longer than the longest answer"
	responseLimit    = "a proxy or middleware has a time limit for the beginning of a response, of about this length (a transport's ResponseHeaderTimeout): no headers came, and a stream with a fragment stayed open; the handler sends headers with the first fragment or keep-alive, so KeepAlive must be shorter than this limit, and JSON responses need one longer than the longest answer"
	allClosed        = "no time limit, since streams that began at different times ended at the same moment: something closes all connections, such as a reload or restart of a proxy (nginx's worker_shutdown_timeout), a deployment, or a crash of the service; it must wait for open streams, or happen rarely"
	onlyClosed       = "no time limit of all streams, since one like it was not ended after the same time: a reload or restart of a proxy, a deployment or a crash of the service has closed this one, or one of several proxies or replicas has a limit of its own"
)

// others are streams that begin later than a silent one. Their fates tell what has ended that.
type others struct{ silent, begun, busy *play }

// seldom has fragments until another stream has ended, after most. The gaps grow with the time that
// has passed, and are shorter: a limit for silence that ends a stream which is silent from its
// beginning does not end this one.
func seldom(most time.Duration) []probe.Step {
	var steps []probe.Step
	for passed := time.Duration(0); passed < untilFragment(most)+2*together; {
		gap := max(passed/4, time.Second/2)
		steps = append(steps, probe.Step{Text: "x"}, probe.Step{Await: probe.AwaitTime, Millis: probe.In(gap)})
		passed += gap
	}
	return steps
}

// untilFragment is when a stream of seldom has had a fragment after this time.
func untilFragment(after time.Duration) time.Duration { return after + after/4 + time.Second/2 }

func (o *others) disconnect() {
	for _, p := range []*play{o.silent, o.begun, o.busy} {
		p.disconnect()
	}
}

// fates says which of the streams have ended, and when.
func (o *others) fates(p *play) string {
	return fmt.Sprintf("; of others that began %.1f s later, a silent one %s, one with a fragment at its beginning %s, and one with fragments all the time %s",
		o.silent.begun.Sub(p.begun).Seconds(), o.silent.fate(), o.begun.fate(), o.busy.fate())
}

// whatEnded says what has ended a stream, and what users notice of that.
func (o *others) whatEnded(ctx context.Context, p *play) (effect, cause string) {
	length := p.length()
	for other, most := range map[*play]time.Duration{o.silent: length, o.begun: length, o.busy: untilFragment(length)} {
		other.wait(ctx, most+together-time.Since(other.sentAt()), func() bool { return other.ended })
	}
	wasSilentEnded, after := o.silent.endedAfter()
	isSameMoment := func(other *play) bool {
		return (other.begun.Add(other.length()).Sub(p.begun) - length).Abs() < together
	}
	wasAlike := wasSilentEnded && (after-length).Abs() < together && 2*after >= length
	wasBusyEnded, busyAfter := o.busy.endedAfter()
	wasBusyEnded = wasBusyEnded && len(o.busy.arrivals) > 0 // and not a page in its place
	isStream := strings.HasPrefix(p.header.Get("Content-Type"), "text/event-stream")
	switch {
	case wasSilentEnded && o.silent.begun.Before(p.begun.Add(length)) && isSameMoment(o.silent):
		return aborted, allClosed
	case wasBusyEnded && (wasAlike || !isSameMoment(o.busy)):
		return fmt.Sprintf("all answers that take longer than %.0f s are aborted, not only those of models that think for long", min(length, busyAfter).Seconds()), wholeLimit
	case !wasAlike:
		return aborted, onlyClosed
	case !o.begun.hasEnded() && !isStream:
		return aborted, responseLimit
	case isStream && !strings.Contains(p.body, keepAlive) && length-p.headAfter() > together:
		return aborted, keepAliveRemoved + "; a limit for silence then ends the stream"
	}
	return aborted, silenceLimit
}

// failureEvent is how the probe's failure arrives in a stream that has begun.
const failureEvent = "event: error\ndata: {\"detail\":\"The probe has failed\",\"status\":503,\"retry_after\":7}\n\n"

// checkFailure: the engine fails after its first fragment. Clients that can decompress must see it,
// too.
func (s *stack) checkFailure(ctx context.Context, r *Result) error {
	hasRetried := false
	encodings := []string{"", "gzip"}
	for i := 0; i < len(encodings); i++ {
		encoding := encodings[i]
		aborts := s.kit.aborts()
		p := s.play(ctx, true, request{header: map[string]string{"Accept-Encoding": encoding}},
			probe.Step{Text: "Once"},
			probe.Step{Await: probe.AwaitTime, Millis: 50}, // so that the fragment is on its way alone
			probe.Step{Fail: &probe.Failure{Status: http.StatusServiceUnavailable, Detail: "The probe has failed", RetryAfter: 7}})
		p.whole(ctx)
		if p.isPage() {
			if err := s.begun(ctx, p); err != nil {
				return err
			}
		}
		f := Finding{Sent: "the engine yielded a fragment, and then failed", Arrived: p.show("Content-Encoding")}
		switch {
		case strings.Contains(p.body, "[DONE]"): // readers stop there, and do not see whether the connection is aborted
			f.Effect, f.Cause = incomplete, "a proxy or middleware appends the end of a complete answer, data: [DONE], to an aborted one"
		case p.err == nil:
			f.Arrived += ", and the normal end of a response"
			f.Effect = incomplete + ", unless they know the error event"
			f.Cause = s.whoHidTheAbort(ctx, p, aborts)
			if p.proto == "HTTP/2.0" && s.kit == nil {
				f.causeAlone = "what speaks HTTP/2 with clients ends aborted responses like complete ones there (HAProxy 2.6: let it offer HTTP/1.1 alone, alpn http/1.1)"
			}
		case strings.Contains(p.body, failureEvent) || s.isDelayed() || encoding != "" && (s.failed[checkCompressed] || p.isStillCompressed()):
			continue
		case !hasRetried: // a machine that is busy may have been the reason
			hasRetried = true
			i--
			continue
		default:
			f.Effect = "clients see an aborted connection and not why, nor when to try again"
			f.Cause = "a proxy or middleware collects the end of the stream, and drops it when the connection is aborted"
		}
		if encoding != "" {
			f.Sent += ", for a client with Accept-Encoding: gzip"
		}
		r.found(f)
		return nil
	}
	return nil
}

// whoHidTheAbort says why an aborted answer has a normal end.
func (s *stack) whoHidTheAbort(ctx context.Context, p *play, before aborts) string {
	if s.kit != nil {
		after := s.kit.aborts()
		switch {
		case !s.kit.isDirect():
		case after.left > before.left:
			return "the panic with http.ErrAbortHandler has left the application's handler; what serves it does not abort"
		case after.begun > before.begun:
			return "middleware recovers the panic with http.ErrAbortHandler and does not panic again with it (gin.Recovery and gorilla's RecoveryHandler do not)"
		}
		return "a proxy or an adaptor between (fiber's adaptor) passes the end of an aborted response on as a normal one"
	}
	if run, err := s.see(ctx, p, probe.Begun, 0, 0); err == nil && strings.EqualFold(run.Header["Connection"], "close") {
		return "a proxy speaks HTTP/1.0 to the service, since its requests have Connection: close (nginx before 1.29.7 without proxy_http_version 1.1)"
	}
	return "middleware swallows http.ErrAbortHandler, as fiber's adaptor does, or a proxy speaks HTTP/1.0 to the service"
}

// begun returns an error if a chat whose engine was to fail has not reached it, so that the response is
// about something else.
func (s *stack) begun(ctx context.Context, p *play) error {
	_, err := s.see(ctx, p, probe.Begun, 0, 0)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNotBegun) && p.isPage():
		return &pageError{got: p.answer, sent: "a chat whose engine was to fail, and did not begin"}
	}
	return fmt.Errorf("%w; the response was %s", err, p.show())
}

// checkEarlyFailure: the engine fails before its first fragment. If the machine is busy, the
// first keep-alive of a stream may be due before that, and the error is an event: one more try,
// and no judgement if that is so again.
func (s *stack) checkEarlyFailure(ctx context.Context, r *Result) error {
	for _, c := range []struct {
		status int
		stream bool
	}{
		{http.StatusServiceUnavailable, true},
		{http.StatusServiceUnavailable, false},
		{http.StatusBadGateway, false},
		{http.StatusGatewayTimeout, false},
	} {
		fail := probe.Step{Fail: &probe.Failure{Status: c.status, Detail: "The probe has failed", RetryAfter: 7}}
		p := s.play(ctx, c.stream, request{}, fail)
		p.whole(ctx)
		if strings.Contains(p.body, failureEvent) {
			p = s.play(ctx, c.stream, request{}, fail)
			p.whole(ctx)
		}
		if strings.HasPrefix(p.body, keepAlive) && strings.Contains(p.body, failureEvent) {
			continue
		}
		hasText := p.detail() == "The probe has failed" && p.err == nil
		if hasText && p.status == c.status && p.header.Get("Retry-After") == "7" {
			continue
		}
		if err := s.begun(ctx, p); err != nil {
			return err
		}
		f := Finding{
			Sent:    fmt.Sprintf("the engine failed before its first fragment, with %d and a text (stream: %v)", c.status, c.stream),
			Arrived: p.show("Content-Type", "Retry-After"),
			Effect:  "clients do not learn what is wrong, nor when to try again",
			Cause:   "a proxy or middleware replaces 5xx responses with pages of its own, or tries again itself",
		}
		switch {
		case hasText && p.status != c.status:
			f.Effect = "clients retry by the status: a 503 about five times, a 500 once or twice, a 504 once"
			f.Cause = "a proxy or middleware changes the status of errors: leave it as it is"
		case hasText:
			f.Effect = "clients do not learn when to try again"
			f.Cause = "a proxy or middleware removes Retry-After from responses, or sets it itself"
		}
		r.found(f)
		return nil
	}
	return nil
}

// checkDisconnect disconnects at three points of an answer, at the same time.
func (s *stack) checkDisconnect(ctx context.Context, r *Result) error {
	const during = "during a stream"
	most := 2 * s.Patience // for a cancellation
	waits := probe.Step{Await: probe.AwaitCancel, Millis: probe.In(most)}
	cases := []struct {
		when   string
		stream bool
		steps  []probe.Step
	}{
		{during, true, []probe.Step{{Text: "x"}, waits}},
		{"before the first fragment of a stream", true, []probe.Step{waits}},
		{"before a JSON response", false, []probe.Step{waits}},
	}
	var plays []*play
	for _, c := range cases {
		alone := s.alone()
		defer alone.close()
		p := alone.play(ctx, c.stream, request{timeout: time.Minute}, c.steps...)
		defer p.disconnect()
		plays = append(plays, p)
	}
	for i, p := range plays {
		fragments := len(cases[i].steps) - 1
		if _, err := s.see(ctx, p, probe.Yielded, fragments, patience); err != nil {
			return err
		}
		if !s.isDelayed() {
			p.wait(ctx, patience, func() bool { return len(p.arrivals) >= fragments })
		}
	}
	for _, p := range plays {
		p.disconnect()
	}
	var missed []string
	for i, p := range plays {
		run, err := s.see(ctx, p, probe.Ended, 0, most+patience)
		if err != nil {
			return err
		}
		when := cases[i].when
		r.note("a disconnect %s: %s after %d ms", when, run.Ending, run.EndedAt/1000)
		if run.Ending != probe.Cancelled {
			missed = append(missed, when)
		}
	}
	if len(missed) == 0 {
		return nil
	}
	f := Finding{
		Sent:    "the client disconnected " + strings.Join(missed, ", and another "),
		Arrived: fmt.Sprintf("the engine's context was not cancelled for %v", most),
		Effect:  "models go on for users who have gone, and you pay for it; slots stay taken",
		Cause:   "a proxy does not pass disconnects on (HAProxy without option abortonclose in its defaults, nginx with proxy_ignore_client_abort), or fiber's adaptor serves the API",
	}
	if s.kit != nil && s.kit.isDirect() {
		f.Cause = "middleware replaces the request's context with one that does not end with it, or runs the API in another request or goroutine, as fiber's adaptor does"
	}
	r.found(f)
	return nil
}

// checkSlowReader: the engine yields until a write has to wait for the client.
func (s *stack) checkSlowReader(ctx context.Context, r *Result) error {
	const fragment, times = 4 << 10, 12 << 10 // 48 MiB
	s = s.alone()
	defer s.close()
	p := s.play(ctx, true, request{slow: 512, timeout: time.Minute}, probe.Step{Text: strings.Repeat("x", fragment), Times: times})
	defer p.disconnect()
	run, err := s.see(ctx, p, probe.Quiet, 0, 4*patience)
	if err != nil {
		return err
	}
	r.note("a client that does not read stops its model after %s", bytesText(run.Bytes))
	if run.Ending != probe.Complete {
		return nil
	}
	f := Finding{
		Sent:    "the engine yielded 48 MiB to a client that did not read",
		Arrived: "all of it was taken from the engine",
		Effect:  "answers of slow clients pile up in memory or on disk",
		Cause:   "a proxy or middleware buffers responses without a bound, or on disk (nginx with proxy_ignore_headers X-Accel-Buffering)",
	}
	if p.resume(); p.wait(ctx, 4*patience, func() bool { return p.ended }) && p.err == nil && p.bytes < fragment*times {
		f.Arrived += fmt.Sprintf("; once the client read, it got %s and the normal end of a response", bytesText(p.bytes))
		f.Effect = "long answers are cut off, and clients that do not look for [DONE] take them for complete ones"
		f.Cause = fmt.Sprintf("a proxy or middleware bounds responses to about %s, and drops the rest without an error: leave out text/event-stream", bytesText(p.bytes))
	}
	r.found(f)
	return nil
}

// checkOnce counts how often the engine was called for each of three chats.
func (s *stack) checkOnce(ctx context.Context, r *Result) error {
	for _, c := range []struct {
		what string
		step probe.Step
	}{
		{"a chat that is answered", probe.Step{Text: "x"}},
		{"a chat that gets a 503", probe.Step{Fail: &probe.Failure{Status: http.StatusServiceUnavailable, Detail: "The probe has failed", RetryAfter: 1}}},
		{"a chat whose connection is aborted before its response", probe.Step{Fail: &probe.Failure{}}},
	} {
		p := s.play(ctx, false, request{}, c.step)
		p.whole(ctx)
		runs, err := s.allRuns(ctx, p)
		if err != nil {
			return err
		}
		if len(runs) < 2 {
			continue
		}
		r.found(Finding{
			Sent:    c.what,
			Arrived: fmt.Sprintf("the engine was called %d times; the client got %s", len(runs), p.show()),
			Effect:  "each retry runs the model again, and costs as much as a complete answer",
			Cause:   "a proxy or middleware sends requests again that have failed, or copies of them, POST included",
		})
		return nil
	}
	return nil
}

// checkReuse sends requests one after the other. One that needs a new connection is no sign: on a
// busy machine, net/http may not have put the last one back yet.
func (s *stack) checkReuse(ctx context.Context, r *Result) error {
	s = s.alone()
	defer s.close()
	var last *answer
	for range 5 {
		last = s.do(ctx, request{path: "/v1/bots"})
		switch {
		case last.err != nil:
			return last.err
		case last.reused:
			return nil
		}
	}
	r.found(Finding{
		Sent:    "GET /v1/bots, five times",
		Arrived: fmt.Sprintf("%s, %s; each request needed a new connection", last.proto, last.show("Connection")),
		Effect:  "each chat begins with the time of a new connection, and of TLS",
		Cause:   "a proxy or middleware sends Connection: close, or keep-alive is turned off",
	})
	return nil
}
