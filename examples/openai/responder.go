package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"sync"
)

// A translator translates the API's response body into OpenAI's format.
type translator interface {
	// translate takes the next bytes that the API writes, and appends to dst what
	// can be sent already.
	translate(dst, src []byte) ([]byte, error)
	// end appends the rest when the API's body is complete.
	end(dst []byte) []byte
	// length returns the length of the translation of a body of n bytes; -1 if it
	// is unknown.
	length(n int) int
}

// A responder is the ResponseWriter between the API and the client. It translates a
// response and does not change how it is sent: each write is passed on as one write,
// Unwrap gives access to deadlines and the other methods of the client's writer, and
// panics pass through. It collects an error until it is complete, and keeps at most
// maxErrorBody of it.
type responder struct {
	http.ResponseWriter
	completion *completion       // nil for a request that is no chat
	translate  func() translator // for a response with status 200; nil if it is not translated
	unknown    bool              // this handler does not know the path: only a 404 is translated

	status   int        // set by the API; 0 until it is known
	body     translator // nil for a body that is not translated
	failed   bool       // the response is an error that is translated when it is complete
	stream   bool
	failure  []byte // the body of an error, at most maxErrorBody
	finished bool
}

// Unwrap lets http.ResponseController find what the client's writer can do.
func (w *responder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *responder) WriteHeader(status int) {
	if status < 200 || w.status != 0 {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.status = status
	header := w.Header()
	kind, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	switch {
	case status >= 400 && !w.unknown, status == http.StatusNotFound:
		w.failed = true
		return
	case status == http.StatusOK && kind == "text/event-stream" && w.completion != nil:
		w.stream, w.body = true, newEventStream(w.completion)
	case status == http.StatusOK && kind == "application/json" && w.translate != nil:
		w.body = w.translate()
		if _, ok := w.body.(*oneModel); ok {
			return // the header is sent when the model has been found, or not
		}
		w.setLength()
	}
	w.ResponseWriter.WriteHeader(status)
}

// setLength replaces Content-Length by the length of the translation.
func (w *responder) setLength() {
	n, err := strconv.Atoi(w.Header().Get("Content-Length"))
	w.Header().Del("Content-Length")
	if length := w.body.length(n); err == nil && length >= 0 {
		w.Header().Set("Content-Length", strconv.Itoa(length))
	}
}

func (w *responder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.failed:
		w.failure = append(w.failure, p[:min(len(p), maxErrorBody-len(w.failure))]...)
		return len(p), nil
	case w.body == nil:
		return w.ResponseWriter.Write(p)
	}
	err := w.send(func(dst []byte) ([]byte, error) { return w.body.translate(dst, p) })
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// send writes what build appends, in one write.
func (w *responder) send(build func(dst []byte) ([]byte, error)) error {
	buffer := buffers.Get().(*[]byte)
	built, err := build((*buffer)[:0])
	if err == nil && len(built) > 0 {
		_, err = w.ResponseWriter.Write(built)
	}
	if err == nil { // after a failed write on HTTP/2, net/http may still read it
		*buffer = built
		buffers.Put(buffer)
	}
	return err
}

// FlushError flushes the client's writer. botapi flushes a response that is not a
// stream once, when it is complete, so it is finished first.
func (w *responder) FlushError() error {
	if w.stream {
		return http.NewResponseController(w.ResponseWriter).Flush()
	}
	if err := w.finish(); err != nil {
		return err
	}
	// Not through Unwrap: a writer that buffers may have a reason not to flush.
	switch own := w.ResponseWriter.(type) {
	case interface{ FlushError() error }:
		return own.FlushError()
	case http.Flusher:
		own.Flush()
		return nil
	}
	return errors.ErrUnsupported
}

// end is called when the API has returned. A stream needs no more: it is complete, or
// stays incomplete.
func (w *responder) end() {
	if !w.stream {
		_ = w.finish() // the API has returned: there is nobody to report an error to
	}
}

// finish sends the rest of a response that is not a stream, once.
func (w *responder) finish() error {
	switch {
	case w.finished || w.status == 0:
		return nil
	case w.failed:
		w.finished = true
		return w.sendError(w.error())
	case w.body == nil:
		return nil
	}
	w.finished = true
	if model, ok := w.body.(*oneModel); ok {
		return w.sendModel(model)
	}
	return w.send(func(dst []byte) ([]byte, error) { return w.body.end(dst), nil })
}

func (w *responder) error() *apiError {
	switch {
	case w.unknown:
		return unknownURL()
	case w.completion != nil && w.completion.rejection != nil && w.status == http.StatusUnprocessableEntity:
		return w.completion.rejection
	}
	kind, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
	return w.completion.errorOf(w.status, kind, w.failure)
}

func (w *responder) sendError(e *apiError) error { return w.sendJSON(e.status, e.body()) }

func (w *responder) sendModel(m *oneModel) error {
	w.Header().Del("ETag") // the list's
	if m.found == nil {
		param, code := "model", "model_not_found"
		return w.sendError(&apiError{status: http.StatusNotFound, Message: "the model does not exist",
			Type: typeInvalidRequest, Param: &param, Code: &code})
	}
	return w.sendJSON(http.StatusOK, m.found)
}

func (w *responder) sendJSON(status int, body []byte) error {
	w.Header().Del("Content-Encoding") // of the 404 of an unknown path
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.ResponseWriter.WriteHeader(status)
	_, err := w.ResponseWriter.Write(body)
	return err
}

// The format of the API's responses, as docs/wire.md describes it.
const (
	jsonStart  = `{"content":"`
	jsonEnd    = `"}`
	eventStart = `data: {"content":"`
	errorStart = `data: {"detail":`
)

// A jsonAnswer translates a JSON response. It passes on the text between the quotes as
// it arrives.
type jsonAnswer struct {
	start, after []byte // what is written before and after the text
	at           int    // how many bytes of the API's body have arrived
	held         []byte // the last of them, which may be jsonEnd
}

func newJSONAnswer(c *completion) *jsonAnswer {
	start, after := c.protocol.answer(c)
	return &jsonAnswer{start: start, after: after}
}

func (w *jsonAnswer) length(n int) int {
	return n - len(jsonStart) - len(jsonEnd) + len(w.start) + len(w.after)
}

func (w *jsonAnswer) translate(dst, src []byte) ([]byte, error) {
	skip := min(len(src), max(0, len(jsonStart)-w.at))
	if w.at == 0 {
		dst = append(dst, w.start...)
	}
	w.at += len(src)
	dst = append(append(dst, w.held...), src[skip:]...)
	// dst has at least keep bytes: those of start, or those of held and src.
	keep := min(len(jsonEnd), max(0, w.at-len(jsonStart)))
	w.held = append(w.held[:0], dst[len(dst)-keep:]...)
	return dst[:len(dst)-keep], nil
}

func (w *jsonAnswer) end(dst []byte) []byte { return append(dst, w.after...) }

// An eventWriter writes the events of a stream in one of OpenAI's protocols. Each
// method appends to dst.
type eventWriter interface {
	// startText begins an event with text, appendText adds to it, endText ends it.
	startText(dst []byte) []byte
	appendText(dst, text []byte) []byte
	endText(dst []byte) []byte
	// isTooLong reports whether appendEnd cannot repeat all of the text.
	isTooLong() bool
	// appendEnd ends a complete answer.
	appendEnd(dst []byte) []byte
	// appendError ends an incomplete answer.
	appendError(dst []byte, e *apiError) []byte
}

// An eventStream translates a stream. Events that are written together become one
// event.
type eventStream struct {
	completion *completion
	events     eventWriter
	open       bool   // an event with text has been started
	rest       []byte // an incomplete line; the API itself writes complete lines
}

func newEventStream(c *completion) *eventStream {
	return &eventStream{completion: c, events: c.protocol.stream(c)}
}

// maxLine bounds a line of the API's stream.
const maxLine = 64 << 10

var (
	errStrangeStream = errors.New("openai: the stream is not in the format of botapi")
	errTooLong       = errors.New("openai: the answer is too long for a streamed response")
)

func (s *eventStream) length(int) int { return -1 }

func (s *eventStream) end(dst []byte) []byte { return dst }

func (s *eventStream) translate(dst, src []byte) ([]byte, error) {
	if len(s.rest) > 0 {
		s.rest = append(s.rest, src...)
		src, s.rest = s.rest, nil
	}
	for len(src) > 0 {
		line, after, complete := bytes.Cut(src, []byte{'\n'})
		if !complete {
			if len(src) > maxLine {
				return nil, errStrangeStream
			}
			s.rest = bytes.Clone(src)
			break
		}
		if dst, src = s.line(dst, line), after; s.events.isTooLong() {
			return nil, errTooLong
		}
	}
	return s.close(dst), nil
}

func (s *eventStream) line(dst, line []byte) []byte {
	if text, ok := bytes.CutPrefix(line, []byte(eventStart)); ok {
		if !s.open {
			dst, s.open = s.events.startText(dst), true
		}
		return s.events.appendText(dst, bytes.TrimSuffix(text, []byte(jsonEnd)))
	}
	switch {
	case len(line) == 0, string(line) == "event: error":
		return dst // the end of an event; or an error, which its data line shows as well
	case string(line) == "data: [DONE]":
		return s.events.appendEnd(s.close(dst))
	case bytes.HasPrefix(line, []byte(errorStart)):
		return s.events.appendError(s.close(dst), s.completion.errorOfEvent(line[len("data: "):]))
	default: // a comment, such as a keep-alive
		return append(append(s.close(dst), line...), '\n')
	}
}

// close ends the open event, if any.
func (s *eventStream) close(dst []byte) []byte {
	if !s.open {
		return dst
	}
	s.open = false
	return s.events.endText(dst)
}

func appendEvent(dst, data []byte) []byte {
	return append(append(append(dst, "data: "...), data...), "\n\n"...)
}

// A model is a bot in the list of models.
type model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int    `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

// A modelList translates the list of bots.
type modelList struct {
	rest  []byte // an incomplete bot
	begun bool
	any   bool
}

func (l *modelList) length(int) int { return -1 }

func (l *modelList) translate(dst, src []byte) ([]byte, error) {
	if !l.begun {
		dst, l.begun = append(dst, `{"object":"list","data":[`...), true
	}
	bots, err := l.bots(src)
	for _, bot := range bots {
		if l.any {
			dst = append(dst, ',')
		}
		l.any = true
		dst = append(dst, bot.encoded()...)
	}
	return dst, err
}

func (l *modelList) end(dst []byte) []byte { return append(dst, "]}"...) }

// bots returns the bots that are complete with src.
func (l *modelList) bots(src []byte) (bots []model, err error) {
	l.rest = append(l.rest, src...)
	s := scanner{data: l.rest}
	read := 0
	for {
		if c := s.peek(); c == '[' || c == ',' || c == ']' {
			s.at++
		}
		s.peek()
		start := s.at
		if s.skip(); s.failed || start == len(l.rest) {
			break
		}
		var bot struct{ Slug, Name, Description string }
		if err := json.Unmarshal(l.rest[start:s.at], &bot); err != nil {
			return nil, fmt.Errorf("openai: the list of bots is not in the format of botapi: %w", err)
		}
		bots = append(bots, model{ID: bot.Slug, Object: "model", OwnedBy: "botapi", Name: bot.Name, Description: bot.Description})
		read = s.at
	}
	l.rest = append(l.rest[:0], l.rest[read:]...)
	return bots, nil
}

func (m model) encoded() []byte {
	encoded, _ := json.Marshal(m) // it always has a JSON form
	return encoded
}

// A oneModel looks for one bot in the list.
type oneModel struct {
	modelList
	slug  string
	found []byte
}

func (m *oneModel) translate(dst, src []byte) ([]byte, error) {
	bots, err := m.bots(src)
	for _, bot := range bots {
		if bot.ID == m.slug {
			m.found = bot.encoded()
		}
	}
	return dst, err
}
