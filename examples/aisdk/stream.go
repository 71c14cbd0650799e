package aisdk

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"example.com/botapi"
)

// streamHeader says that a response is a UI message stream.
const streamHeader = "X-Vercel-Ai-Ui-Message-Stream"

// streamed makes the answer of a chat a UI message stream.
func (d *door) streamed(c *botapi.Chat, messageID string) *botapi.Chat {
	botapi.RequestFrom(c.Context).SetHeader(streamHeader, "v1")
	c.Request.Stream, c.JoinsFragments = true, true
	c.Stream = &stream{options: &d.Options, messageID: messageID}
	return c
}

// The text in a UI message stream. An answer has one text, whose id is unique in its message.
const (
	textStart  = "data: {\"type\":\"text-start\",\"id\":\"text\"}\n\n"
	deltaStart = `data: {"type":"text-delta","id":"text","delta":"`
	deltaEnd   = "\"}\n\n"
	textEnd    = "data: {\"type\":\"text-end\",\"id\":\"text\"}\n\n"
	keepAlive  = ": keep-alive\n"
)

// A stream is the botapi.StreamFormat of one answer.
type stream struct {
	options   *Options
	messageID string // empty to continue the message that the page has
	hasText   bool
}

func (*stream) ContentType() string { return "text/event-stream" }

func (s *stream) AppendText(dst, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return dst, nil
	}
	if !s.hasText {
		s.hasText = true
		dst = append(s.appendStart(dst), textStart...)
	}
	return append(append(append(dst, deltaStart...), text...), deltaEnd...), nil
}

func (*stream) AppendKeepAlive(dst []byte) []byte { return append(dst, keepAlive...) }

func (s *stream) appendStart(dst []byte) []byte {
	return appendPart(dst, part{Type: "start", MessageID: s.messageID})
}

func (s *stream) End(ctx context.Context) iter.Seq[[]byte] {
	var end []byte
	if s.hasText {
		end = append(end, textEnd...)
	} else {
		end = s.appendStart(end)
	}
	end = appendPart(end, part{
		Type:            "finish",
		FinishReason:    cmp.Or(finishReasons[s.options.FinishReason(ctx)], "stop"),
		MessageMetadata: s.options.Metadata(ctx),
	})
	return slices.Chunk(append(end, "data: [DONE]\n\n"...), 64<<10)
}

// finishReasons are those that the AI SDK knows and a bot can have, other than "stop".
var finishReasons = map[string]string{"length": "length", "content_filter": "content-filter", "content-filter": "content-filter"}

func (*stream) AppendError(dst []byte, f botapi.Failure) []byte {
	return appendPart(dst, part{Type: "error", ErrorText: errorText(f)})
}

// A part is a part of the stream other than text.
type part struct {
	Type            string `json:"type"`
	MessageID       string `json:"messageId,omitempty"`
	FinishReason    string `json:"finishReason,omitempty"`
	MessageMetadata any    `json:"messageMetadata,omitempty"`
	ErrorText       string `json:"errorText,omitempty"`
}

// appendPart panics, for botapi to log, if the application's metadata has no JSON form.
func appendPart(dst []byte, p part) []byte {
	encoded, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Errorf("aisdk: encoding what Options.Metadata returned: %w", err))
	}
	return append(append(append(dst, "data: "...), encoded...), "\n\n"...)
}

// errorReply is botapi.Route.Errors: useChat shows the body of an error.
func errorReply(_ context.Context, f botapi.Failure) botapi.Reply {
	return botapi.Reply{Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: []byte(errorText(f))}
}

// errorOrNothing is that of a page that comes back: an answer that was stopped, has failed or
// is no longer kept is nothing to show.
func errorOrNothing(ctx context.Context, f botapi.Failure) botapi.Reply {
	if f.Status == http.StatusNotFound || f.Status == http.StatusGone {
		botapi.RequestFrom(ctx).SetHeader(streamHeader, "")
		return botapi.Reply{Status: http.StatusNoContent}
	}
	return errorReply(ctx, f)
}

// errorText is what a failure says: problems one a line, each with its position in the body.
func errorText(f botapi.Failure) string {
	if len(f.Problems) == 0 {
		return f.Detail
	}
	lines := make([]string, len(f.Problems))
	for i, problem := range f.Problems {
		var path []string
		for _, step := range problem.Loc {
			if step != "body" && step != "__root__" {
				path = append(path, fmt.Sprint(step))
			}
		}
		lines[i] = strings.TrimPrefix(strings.Join(path, ".")+": "+problem.Msg, ": ")
	}
	return strings.Join(lines, "\n")
}
