package aisdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// The format of the API's stream, as docs/wire.md describes it.
const (
	eventStart = `data: {"content":"`
	eventEnd   = `"}`
	errorStart = `data: {"detail":`
)

// The text in a UI message stream. An answer has one text, whose id is unique in its message.
const (
	textStart  = "data: {\"type\":\"text-start\",\"id\":\"text\"}\n\n"
	deltaStart = `data: {"type":"text-delta","id":"text","delta":"`
	textEnd    = "data: {\"type\":\"text-end\",\"id\":\"text\"}\n\n"
)

// maxLine bounds a line of the API's stream.
const maxLine = 64 << 10

var errStrangeStream = errors.New("aisdk: the stream is not in the format of botapi")

// A stream translates the API's stream. Events that are written together become one
// delta.
type stream struct {
	chat    *chat
	started bool   // the message has been started
	hasText bool   // its text has been started
	open    bool   // a delta has been started: text is appended to it
	rest    []byte // an incomplete line; the API itself writes complete lines
}

// translate takes the next bytes that the API writes, and appends their translation to
// dst.
func (s *stream) translate(dst, src []byte) ([]byte, error) {
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
		dst, src = s.line(dst, line), after
	}
	return s.close(dst), nil
}

func (s *stream) line(dst, line []byte) []byte {
	if text, ok := bytes.CutPrefix(line, []byte(eventStart)); ok {
		return s.appendText(dst, bytes.TrimSuffix(text, []byte(eventEnd)))
	}
	switch {
	case len(line) == 0, string(line) == "event: error":
		return dst // the end of an event; or an error, which its data line shows as well
	case string(line) == "data: [DONE]":
		return s.appendEnd(s.close(dst))
	case bytes.HasPrefix(line, []byte(errorStart)):
		text := errorText(http.StatusInternalServerError, "", line[len("data: "):])
		return appendPart(s.close(dst), part{Type: "error", ErrorText: text})
	default: // a comment, such as a keep-alive
		return append(append(s.close(dst), line...), '\n')
	}
}

func (s *stream) appendText(dst, text []byte) []byte {
	if len(text) == 0 {
		return dst
	}
	if !s.hasText {
		dst, s.hasText = append(s.appendStart(dst), textStart...), true
	}
	if !s.open {
		dst, s.open = append(dst, deltaStart...), true
	}
	return append(dst, text...)
}

// close ends the open delta, if any.
func (s *stream) close(dst []byte) []byte {
	if !s.open {
		return dst
	}
	s.open = false
	return append(dst, "\"}\n\n"...)
}

func (s *stream) appendStart(dst []byte) []byte {
	if s.started {
		return dst
	}
	s.started = true
	return appendPart(dst, part{Type: "start", MessageID: s.chat.messageID})
}

// appendEnd writes the end of a complete answer.
func (s *stream) appendEnd(dst []byte) []byte {
	dst = s.appendStart(dst)
	if s.hasText {
		dst = append(dst, textEnd...)
	}
	finish := part{Type: "finish", FinishReason: s.finishReason()}
	if o := s.chat.options; o.Metadata != nil {
		finish.MessageMetadata = o.Metadata(s.chat.ctx)
	}
	return append(appendPart(dst, finish), "data: [DONE]\n\n"...)
}

// finishReason returns one of the reasons that the AI SDK knows and a bot can have.
func (s *stream) finishReason() string {
	if o := s.chat.options; o.FinishReason != nil {
		switch o.FinishReason(s.chat.ctx) {
		case "length":
			return "length"
		case "content_filter", "content-filter":
			return "content-filter"
		}
	}
	return "stop"
}

// A part is a part of the stream other than text.
type part struct {
	Type            string `json:"type"`
	MessageID       string `json:"messageId,omitempty"`
	FinishReason    string `json:"finishReason,omitempty"`
	MessageMetadata any    `json:"messageMetadata,omitempty"`
	ErrorText       string `json:"errorText,omitempty"`
}

// appendPart appends a part. It panics, for botapi to log, if the
// application's metadata has no JSON form.
func appendPart(dst []byte, p part) []byte {
	encoded, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Errorf("aisdk: encoding what Options.Metadata returned: %w", err))
	}
	return append(append(append(dst, "data: "...), encoded...), "\n\n"...)
}
