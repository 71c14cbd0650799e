package stackcheck

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"example.com/botapi/examples/internal/probe"
)

// handlerChecks need a log that only the kit reads. They are the last, since all requests of
// the others count.
var handlerChecks = []check{
	{name: checkNoKey, within: true, once: true, run: (*stack).checkLog},
}

// A writerChain is the ResponseWriter that the API gets, with what it wraps.
type writerChain struct {
	types     []string // the outermost first, without net/http's own
	hidden    string   // the first without a Flush of its own below one with a Flush, or ""
	flushes   bool
	deadlines bool
	deadliner string // the one whose SetWriteDeadline is called, unless that is net/http's own
}

// chainOf looks at a writer as http.ResponseController does.
func chainOf(w http.ResponseWriter) writerChain {
	var c writerChain
	control := http.NewResponseController(w)
	c.deadlines = !errors.Is(control.SetReadDeadline(time.Time{}), errors.ErrUnsupported) && !errors.Is(control.SetWriteDeadline(time.Time{}), errors.ErrUnsupported)
	for w != nil {
		name := fmt.Sprintf("%T", w)
		isOwn := name == "*http.response" || name == "*http.http2responseWriter"
		if !isOwn {
			c.types = append(c.types, name)
		}
		switch w.(type) {
		case interface{ FlushError() error }, http.Flusher:
			c.flushes = true
		default:
			if c.flushes && c.hidden == "" {
				c.hidden = name
			}
		}
		if _, sets := w.(interface{ SetWriteDeadline(time.Time) error }); sets && c.deadliner == "" && !isOwn {
			c.deadliner = name
		}
		unwrapper, wraps := w.(interface{ Unwrap() http.ResponseWriter })
		if !wraps {
			break
		}
		w = unwrapper.Unwrap()
	}
	return c
}

func (c writerChain) isTimeoutHandler() bool {
	return len(c.types) > 0 && c.types[len(c.types)-1] == "*http.timeoutWriter"
}

// isFasthttp reports whether fasthttp's adaptor serves the API, which is fiber's, too.
func (c writerChain) isFasthttp() bool {
	return len(c.types) > 0 && strings.HasPrefix(c.last(), "*fasthttpadaptor.")
}

// chain names the writers, for a cause.
func (c writerChain) chain() string {
	if len(c.types) == 0 {
		return ""
	}
	return " (the API's ResponseWriter is " + strings.Join(c.types, ", which wraps ") + ")"
}

// last is the writer that unwraps no further.
func (c writerChain) last() string { return c.types[len(c.types)-1] }

func (s *stack) checkWriter(ctx context.Context, r *Result) error {
	mark := s.kit.mark()
	p := s.play(ctx, true, request{}, probe.Step{Text: "x"})
	p.whole(ctx)
	visits := s.kit.since(mark)
	if len(visits) == 0 {
		return fmt.Errorf("a chat did not reach the API: %s", p.show())
	}
	w := visits[0].writer
	f := Finding{Sent: "POST /v1/chat: a stream"}
	switch {
	case w.flushes && w.deadlines && w.deadliner == "":
		return nil
	case w.flushes && w.deadlines:
		return s.checkDeadline(ctx, r, w)
	case len(w.types) == 0:
		f.Arrived = "the server's own ResponseWriter cannot flush or set deadlines"
		f.Cause = "an adaptor to another server serves the API"
		f.Effect = "a client that does not read, or sends half a body, keeps its connection and its slot"
	case w.isTimeoutHandler():
		f.Arrived = "the API's ResponseWriter is http.TimeoutHandler's" + w.chain()
		f.Cause = "http.TimeoutHandler serves the API: it collects a stream, and replies 503 when its time is up; use it for other routes, and ChatTimeout for chats"
		f.Effect = late + "; long answers fail"
	case w.isFasthttp():
		f.Arrived = "the API's ResponseWriter is that of an adaptor, which cannot set deadlines" + w.chain()
		f.Cause = "fiber's adaptor serves the API: mount it in net/http, beside the app, as examples/mounting does"
		f.Effect = "a client that does not read, or sends half a body, keeps its connection and its slot"
	case w.flushes:
		f.Arrived = fmt.Sprintf("%s has no Unwrap() http.ResponseWriter%s", w.last(), w.chain())
		f.Cause = "middleware wraps the ResponseWriter, and lacks Unwrap, so that the API can set no deadlines"
		f.Effect = "a client that does not read, or sends half a body, keeps its connection and its slot"
	default:
		f.Arrived = fmt.Sprintf("%s has neither Flush nor Unwrap() http.ResponseWriter%s", w.last(), w.chain())
		f.Cause = "middleware wraps the ResponseWriter, and lacks Unwrap"
		f.Effect = late + "; and a client that does not read keeps its connection and its slot"
	}
	r.found(f)
	return nil
}

// lateText is written after a deadline. It is more than writers buffer.
var lateText = strings.Repeat("data: too late\n\n", 8<<10)

// writeLate replies in the API's place, after the deadline of its write. So nothing may arrive.
func writeLate(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(-time.Second))
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = w.Write([]byte(lateText))
}

// checkDeadline: that a deadline was set without an error does not say that there is one. The client
// sees whether there is, whatever a wrapper makes of errors. A POST is not sent again.
func (s *stack) checkDeadline(ctx context.Context, r *Result, w writerChain) error {
	got := s.do(ctx, request{path: "/v1/chat", body: "{}", header: map[string]string{"Authorization": "Bearer " + s.kit.lateKey}})
	if got.status != http.StatusOK || got.err != nil || got.body != lateText {
		return nil
	}
	r.found(Finding{
		Sent:    "POST /v1/chat: a response that was written after its deadline, of SetWriteDeadline",
		Arrived: fmt.Sprintf("all of it, %d bytes%s", len(got.body), w.chain()),
		Effect:  "a client that does not read keeps its connection and its slot, and http.Server.WriteTimeout ends answers that take longer",
		Cause:   fmt.Sprintf("the SetWriteDeadline of %s returns nil, and does nothing: give it an Unwrap() http.ResponseWriter in place of methods for deadlines", w.deadliner),
		aside:   true,
	})
	return nil
}

// checkTimeLimit also looks at the paths of other protocols, whose chats need not be answered for
// that.
func (s *stack) checkTimeLimit(ctx context.Context, r *Result) error {
	mark := s.kit.mark()
	s.play(ctx, true, request{}, probe.Step{Text: "x"}).whole(ctx)
	if s.findLimit(r, "POST /v1/chat: a stream", mark) {
		return nil
	}
	for _, door := range doors {
		mark := s.kit.mark()
		s.do(ctx, request{method: door.method, path: door.path, header: map[string]string{"Authorization": ""}})
		if s.findLimit(r, door.method+" "+door.path, mark) {
			return nil
		}
	}
	return nil
}

// findLimit reports whether a request after a mark has a deadline.
func (s *stack) findLimit(r *Result, sent string, mark int) bool {
	for _, v := range s.kit.since(mark) {
		if v.limit == 0 || v.writer.isTimeoutHandler() { // another check has named it
			continue
		}
		r.found(Finding{
			Sent:    sent,
			Arrived: fmt.Sprintf("a request whose context has a deadline, in %v", v.limit.Round(time.Second)),
			Effect:  "longer answers are aborted, or are a 504",
			Cause:   "timeout middleware (chi's Timeout, echo's ContextTimeout): use it for other routes, and ChatTimeout for chats",
		})
		return true
	}
	return false
}

func (s *stack) checkLog(_ context.Context, r *Result) error {
	line := s.kit.log.first()
	if line == "" {
		return nil
	}
	r.found(Finding{
		Sent:    "requests with Authorization: Bearer KEY",
		Arrived: "a line of the log: " + quoted(line),
		Effect:  "everyone who may read the log can use the service in the name of others",
		Cause:   "middleware logs request headers, or the complete request; leave out Authorization",
	})
	return nil
}
