package openai

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A translator makes the body of an answer in OpenAI's form of the API's. It is
// given the body as the API writes it, and appends what can be sent already.
type translator interface {
	translate(dst, part []byte) ([]byte, error)
	// end appends what is left when the body is at its end.
	end(dst []byte) []byte
	// length is how long the body will be that is made of one of so many bytes;
	// -1 if that is not known.
	length(n int) int
}

// A responder is the ResponseWriter between the API and the client. It changes the
// form of an answer, and nothing of how it is sent: each write is passed on as one
// write, deadlines and whatever else the client's writer can do are found by Unwrap,
// and panics go through. It holds back an error until it is whole, at most
// maxErrorBody of it.
type responder struct {
	http.ResponseWriter
	completion *completion       // nil for lists of models
	translate  func() translator // for an answer with status 200

	status  int        // as the API has it; 0 before it is known
	body    translator // nil for a body that stays as it is
	late    bool       // the head is sent with the body's end
	stream  bool
	failure []byte // the body of an error, as far as it is needed
	over    bool
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
	case status >= 400:
		w.late = true
		return
	case status == http.StatusOK && kind == "text/event-stream" && w.completion != nil:
		w.stream, w.body = true, &chunks{completion: w.completion}
	case status == http.StatusOK && kind == "application/json":
		w.body = w.translate()
		if _, w.late = w.body.(*oneModel); w.late {
			return
		}
		w.setLength()
	}
	w.ResponseWriter.WriteHeader(status)
}

// setLength replaces the length of the body by that of what is made of it.
func (w *responder) setLength() {
	n, err := strconv.Atoi(w.Header().Get("Content-Length"))
	w.Header().Del("Content-Length")
	if length := w.body.length(n); err == nil && length >= 0 {
		w.Header().Set("Content-Length", strconv.Itoa(length))
	}
}

func (w *responder) Write(part []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.status >= 400:
		w.failure = append(w.failure, part[:min(len(part), maxErrorBody-len(w.failure))]...)
		return len(part), nil
	case w.body == nil:
		return w.ResponseWriter.Write(part)
	}
	err := w.send(func(dst []byte) ([]byte, error) { return w.body.translate(dst, part) })
	if err != nil {
		return 0, err
	}
	return len(part), nil
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// send passes on what is made, in one write.
func (w *responder) send(makes func(dst []byte) ([]byte, error)) error {
	buffer := buffers.Get().(*[]byte)
	made, err := makes((*buffer)[:0])
	if err == nil && len(made) > 0 {
		_, err = w.ResponseWriter.Write(made)
	}
	if err == nil { // else net/http may still read it, on HTTP/2
		*buffer = made
		buffers.Put(buffer)
	}
	return err
}

// FlushError sends what the writers behind this one hold back. Of an answer that
// is whole, it is the end.
func (w *responder) FlushError() error {
	if w.stream {
		return http.NewResponseController(w.ResponseWriter).Flush()
	}
	if err := w.finish(); err != nil {
		return err
	}
	// Not through Unwrap: a writer that buffers and does not flush knows why.
	switch own := w.ResponseWriter.(type) {
	case interface{ FlushError() error }:
		return own.FlushError()
	case http.Flusher:
		own.Flush()
		return nil
	}
	return errors.ErrUnsupported
}

// end is called when the API has returned. A stream has had its end, or has none.
func (w *responder) end() {
	if !w.stream {
		_ = w.finish() // nobody is left to tell
	}
}

// finish sends what is left of an answer that is whole, once.
func (w *responder) finish() error {
	switch {
	case w.over || w.status == 0:
		return nil
	case w.status >= 400:
		w.over = true
		return w.sendError(w.error())
	case w.body == nil:
		return nil
	}
	w.over = true
	if model, ok := w.body.(*oneModel); ok {
		return w.sendModel(model)
	}
	return w.send(func(dst []byte) ([]byte, error) { return w.body.end(dst), nil })
}

func (w *responder) error() *apiError {
	if w.completion != nil && w.completion.refused != nil && w.status == http.StatusBadRequest {
		return w.completion.refused
	}
	kind, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
	return errorOf(w.status, kind, w.failure)
}

func (w *responder) sendError(e *apiError) error { return w.sendWhole(e.status, e.body()) }

func (w *responder) sendModel(m *oneModel) error {
	w.Header().Del("ETag") // the list's
	if m.found == nil {
		param, code := "model", "model_not_found"
		return w.sendError(&apiError{status: http.StatusNotFound, Message: "the model does not exist",
			Type: typeInvalidRequest, Param: &param, Code: &code})
	}
	return w.sendWhole(http.StatusOK, m.found)
}

func (w *responder) sendWhole(status int, body []byte) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.ResponseWriter.WriteHeader(status)
	_, err := w.ResponseWriter.Write(body)
	return err
}

// A completion is one chat that is answered in OpenAI's form.
type completion struct {
	id      string
	created int64
	usage   *Usage

	model        string
	includeUsage bool
	refused      *apiError // why the handler itself refuses the request
}

func newCompletion(usage *Usage) *completion {
	return &completion{id: "chatcmpl-" + rand.Text(), created: time.Now().Unix(), usage: usage}
}

// appendStart begins an object of a kind.
func (c *completion) appendStart(dst []byte, object string) []byte {
	dst = append(dst, `{"id":"`...)
	dst = append(dst, c.id...)
	dst = append(dst, `","object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, c.created, 10)
	dst = append(dst, `,"model":`...)
	return append(dst, quote(c.model)...)
}

// appendUsage writes how many tokens the chat took; ok is false where nobody
// counted them.
func (c *completion) appendUsage(dst []byte) (_ []byte, ok bool) {
	tokens, ok := c.usage.Tokens()
	if !ok {
		return dst, false
	}
	return fmt.Appendf(dst, `,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		tokens.Prompt, tokens.Completion, tokens.Prompt+tokens.Completion), true
}

// finishReason is why the answer is over. Those of OpenAI that a bot can have are
// taken from the engine.
func (c *completion) finishReason() string {
	switch reason := c.usage.FinishReason(); reason {
	case "length", "content_filter":
		return reason
	}
	return "stop"
}

// What an answer of the API looks like: see botapi's documentation of the wire.
const (
	wholeStart = `{"content":"`
	wholeEnd   = `"}`
	eventStart = `data: {"content":"`
	errorStart = `data: {"detail":`
)

// A wholeAnswer is made of an answer in one body: the text between its quotes is
// passed on as it comes.
type wholeAnswer struct {
	start, after []byte // what stands around the text
	at           int    // how much of the API's body has come
	held         []byte // its last bytes, which may be its end
}

func newWholeAnswer(c *completion) *wholeAnswer {
	w := &wholeAnswer{start: c.appendStart(nil, "chat.completion")}
	w.start = append(w.start, `,"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
	w.after = append(w.after, `","refusal":null},"logprobs":null,"finish_reason":"`...)
	w.after = append(w.after, c.finishReason()...)
	w.after = append(w.after, `"}]`...)
	w.after, _ = c.appendUsage(w.after)
	w.after = append(w.after, '}')
	return w
}

func (w *wholeAnswer) length(n int) int {
	return n - len(wholeStart) - len(wholeEnd) + len(w.start) + len(w.after)
}

func (w *wholeAnswer) translate(dst, part []byte) ([]byte, error) {
	skip := min(len(part), max(0, len(wholeStart)-w.at))
	if w.at == 0 {
		dst = append(dst, w.start...)
	}
	w.at += len(part)
	dst = append(append(dst, w.held...), part[skip:]...)
	// start and held together are never shorter than what is held back next.
	keep := min(len(wholeEnd), max(0, w.at-len(wholeStart)))
	w.held = append(w.held[:0], dst[len(dst)-keep:]...)
	return dst[:len(dst)-keep], nil
}

func (w *wholeAnswer) end(dst []byte) []byte { return append(dst, w.after...) }

// chunks are made of a stream. Events that are written together become one.
type chunks struct {
	completion *completion
	start      []byte // of a chunk with text
	begun      bool   // the first chunk has been made
	open       bool   // a chunk is being made: text is appended to it
	rest       []byte // a line that is not whole; the API writes whole ones
}

const (
	chunkEnd = `"},"logprobs":null,"finish_reason":null}]`

	// maxLine bounds a line of the API's stream.
	maxLine = 64 << 10
)

var errStrangeStream = errors.New("openai: the stream behind the handler is not one of botapi")

func (s *chunks) length(int) int { return -1 }

func (s *chunks) end(dst []byte) []byte { return dst }

func (s *chunks) translate(dst, part []byte) ([]byte, error) {
	if len(s.rest) > 0 {
		s.rest = append(s.rest, part...)
		part, s.rest = s.rest, nil
	}
	for len(part) > 0 {
		line, after, whole := bytes.Cut(part, []byte{'\n'})
		if !whole {
			if len(part) > maxLine {
				return nil, errStrangeStream
			}
			s.rest = bytes.Clone(part)
			break
		}
		dst, part = s.line(dst, line), after
	}
	return s.close(dst), nil
}

func (s *chunks) line(dst, line []byte) []byte {
	if text, ok := bytes.CutPrefix(line, []byte(eventStart)); ok {
		return s.appendText(dst, bytes.TrimSuffix(text, []byte(wholeEnd)))
	}
	switch {
	case len(line) == 0, string(line) == "event: error":
		return dst // the end of an event; the chunk itself says that it is an error
	case string(line) == "data: [DONE]":
		return s.appendEnd(s.close(dst))
	case bytes.HasPrefix(line, []byte(errorStart)):
		return appendEvent(s.close(dst), errorOf(http.StatusInternalServerError, "", line[len("data: "):]).body())
	default: // a comment, as for a keep-alive
		return append(append(s.close(dst), line...), '\n')
	}
}

func (s *chunks) appendText(dst, text []byte) []byte {
	if !s.open {
		dst, s.open = append(dst, s.textStart()...), true
	}
	return append(dst, text...)
}

// textStart begins a chunk with text. The first has the role.
func (s *chunks) textStart() []byte {
	if s.start == nil {
		s.start = append(s.completion.appendStart([]byte("data: "), "chat.completion.chunk"), `,"choices":[{"index":0,"delta":{"content":"`...)
	}
	if s.begun {
		return s.start
	}
	s.begun = true
	return bytes.Replace(s.start, []byte(`"delta":{`), []byte(`"delta":{"role":"assistant",`), 1)
}

// close ends the chunk that is being made.
func (s *chunks) close(dst []byte) []byte {
	if !s.open {
		return dst
	}
	s.open = false
	dst = append(dst, chunkEnd...)
	return append(s.appendNoUsage(dst), "}\n\n"...)
}

func (s *chunks) appendNoUsage(dst []byte) []byte {
	if s.completion.includeUsage {
		return append(dst, `,"usage":null`...)
	}
	return dst
}

// appendEnd writes why the answer is over, what it took, and that this is all.
func (s *chunks) appendEnd(dst []byte) []byte {
	c := s.completion
	last := append(c.appendStart(nil, "chat.completion.chunk"), `,"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"`...)
	last = append(append(last, c.finishReason()...), `"}]`...)
	dst = appendEvent(dst, append(s.appendNoUsage(last), '}'))
	if c.includeUsage {
		counted, ok := c.appendUsage(append(c.appendStart(nil, "chat.completion.chunk"), `,"choices":[]`...))
		if ok {
			dst = appendEvent(dst, append(counted, '}'))
		}
	}
	return append(dst, "data: [DONE]\n\n"...)
}

func appendEvent(dst, data []byte) []byte {
	return append(append(append(dst, "data: "...), data...), "\n\n"...)
}

// model is a bot as the list of models has it.
type model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int    `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Name        string `json:"name"`
	Description string `json:"description"`
}

// A modelList is made of the list of bots.
type modelList struct {
	rest  []byte // a bot that has not come whole
	begun bool
	any   bool
}

func (l *modelList) length(int) int { return -1 }

func (l *modelList) translate(dst, part []byte) ([]byte, error) {
	if !l.begun {
		dst, l.begun = append(dst, `{"object":"list","data":[`...), true
	}
	bots, err := l.bots(part)
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

// bots returns those that have come whole with this part.
func (l *modelList) bots(part []byte) (bots []model, err error) {
	l.rest = append(l.rest, part...)
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
			return nil, fmt.Errorf("openai: the list behind the handler is not one of botapi: %w", err)
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

func (m *oneModel) translate(dst, part []byte) ([]byte, error) {
	bots, err := m.bots(part)
	for _, bot := range bots {
		if bot.ID == m.slug {
			m.found = bot.encoded()
		}
	}
	return dst, err
}
