package aisdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"example.com/botapi"
)

// A responder is the ResponseWriter between the API and the page. It translates a
// response and does not change how it is sent: each write is passed on as one write,
// Unwrap gives access to deadlines and the other methods of the page's writer, and panics
// pass through. It collects an error until it is complete.
type responder struct {
	http.ResponseWriter
	none func(status int) bool // which responses become a 204; nil for none of them

	status   int // set by the API; 0 until it is known
	isStream bool
	isHeld   bool // the response is sent when it is complete
	stream   stream
	buffer   []byte // what was written last
	failure  []byte // the body of an error, at most maxErrorBody
}

// maxErrorBody is how much of an error is read.
const maxErrorBody = 64 << 10

// Unwrap lets http.ResponseController find what the page's writer can do.
func (w *responder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *responder) WriteHeader(status int) {
	if status < 200 || w.status != 0 {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	w.status = status
	kind, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
	switch {
	case status >= 400 || w.isNone():
		w.isHeld = true
		return
	case kind == "text/event-stream":
		w.isStream = true
		w.Header().Set("X-Vercel-Ai-Ui-Message-Stream", "v1")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *responder) isNone() bool { return w.none != nil && w.none(w.status) }

func (w *responder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.isHeld:
		w.failure = append(w.failure, p[:min(len(p), maxErrorBody-len(w.failure))]...)
		return len(p), nil
	case !w.isStream:
		return w.ResponseWriter.Write(p)
	}
	events, err := w.stream.translate(w.buffer[:0], p)
	w.buffer = nil // after a failed write on HTTP/2, net/http may still read it
	if err == nil && len(events) > 0 {
		_, err = w.ResponseWriter.Write(events)
	}
	if err != nil {
		return 0, err
	}
	w.buffer = events
	return len(p), nil
}

// FlushError flushes the page's writer. botapi flushes a response that is not a stream
// once, when it is complete, so it is finished first.
func (w *responder) FlushError() error {
	if w.isStream {
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

// finish sends a response that was held, once.
func (w *responder) finish() error {
	if !w.isHeld {
		return nil
	}
	w.isHeld = false
	if w.isNone() {
		for _, name := range []string{"Content-Type", "Content-Length", "Etag"} {
			w.Header().Del(name)
		}
		w.ResponseWriter.WriteHeader(http.StatusNoContent)
		return nil
	}
	if rejection := w.stream.chat.rejection; rejection != nil && w.status == http.StatusBadRequest {
		return sendText(w.ResponseWriter, w.status, rejection.Error())
	}
	kind, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
	return sendText(w.ResponseWriter, w.status, errorText(w.status, kind, w.failure))
}

func sendText(w http.ResponseWriter, status int, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, err := w.Write([]byte(text))
	return err
}

// errorText returns what an error response of the API, or of the application's
// middleware, says.
func errorText(status int, kind string, body []byte) string {
	var text struct{ Detail string }
	var list botapi.HTTPValidationError
	switch {
	case json.Unmarshal(body, &text) == nil && text.Detail != "":
		return text.Detail
	case json.Unmarshal(body, &list) == nil && len(list.Detail) > 0:
		return problemText(list.Detail)
	case kind == "text/plain" && len(body) > 0:
		return strings.TrimSpace(string(body))
	}
	return http.StatusText(status)
}

// problemText lists problems, one a line, each with its position in the body.
func problemText(problems []botapi.ValidationError) string {
	lines := make([]string, len(problems))
	for i, problem := range problems {
		var path []string
		for _, step := range problem.Loc {
			isOffset := problem.Type == "value_error.jsondecode" // which the message has, too
			if step != "body" && step != "__root__" && !isOffset {
				path = append(path, fmt.Sprint(step))
			}
		}
		lines[i] = strings.TrimPrefix(strings.Join(path, ".")+": "+problem.Msg, ": ")
	}
	return strings.Join(lines, "\n")
}
