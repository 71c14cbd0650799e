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

const streamHeader = "X-Vercel-Ai-Ui-Message-Stream"

// streamed makes the answer of a chat a UI message stream.
func (d *door) streamed(c *botapi.Chat, messageID string) *botapi.Chat {
	botapi.RequestFrom(c.Context).SetHeader(streamHeader, "v1")
	c.Request.Stream, c.JoinsFragments = true, true
	c.Stream = &stream{options: d.Options, messageID: messageID}
	return c
}

// A stream is the botapi.StreamFormat of one answer, which has one text.
type stream struct {
	options   Options
	messageID string // empty to continue the message that the page has
	hasText   bool
}

func (s *stream) start() part { return part{Type: "start", MessageID: s.messageID} }

func (*stream) ContentType() string { return "text/event-stream" }

func (s *stream) AppendText(dst, text []byte) ([]byte, error) {
	if len(text) == 0 {
		return dst, nil
	}
	if !s.hasText {
		s.hasText = true
		dst = append(appendPart(dst, s.start()), "data: {\"type\":\"text-start\",\"id\":\"text\"}\n\n"...)
	}
	dst = append(append(dst, `data: {"type":"text-delta","id":"text","delta":"`...), text...)
	return append(dst, "\"}\n\n"...), nil
}

func (*stream) AppendKeepAlive(dst []byte) []byte { return append(dst, ": keep-alive\n"...) }

func (s *stream) End(ctx context.Context) iter.Seq[[]byte] {
	end := []byte("data: {\"type\":\"text-end\",\"id\":\"text\"}\n\n")
	if !s.hasText {
		end = appendPart(nil, s.start())
	}
	finish := part{Type: "finish", FinishReason: "stop"}
	if s.options.FinishReason != nil {
		finish.FinishReason = cmp.Or(reasons[s.options.FinishReason(ctx)], finish.FinishReason)
	}
	if s.options.Metadata != nil {
		finish.MessageMetadata = s.options.Metadata(ctx)
	}
	return slices.Values([][]byte{append(appendPart(end, finish), "data: [DONE]\n\n"...)})
}

// reasons are those that the AI SDK knows and a bot can have, other than "stop".
var reasons = map[string]string{"length": "length", "content_filter": "content-filter", "content-filter": "content-filter"}

func (*stream) AppendError(dst []byte, f botapi.Failure) []byte {
	return appendPart(dst, part{Type: "error", ErrorText: errorText(f)})
}

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
	return fmt.Appendf(dst, "data: %s\n\n", encoded)
}

// errorReply is botapi.Route.Errors: useChat shows the body of an error.
func errorReply(_ context.Context, f botapi.Failure) botapi.Reply {
	return botapi.Reply{Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: []byte(errorText(f))}
}

// errorOrNothing is that of a page that comes back for an answer that may not be there.
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
		lines[i] = problem.Msg
		separator := ": "
		for _, step := range slices.Backward(problem.Loc) {
			if step != "body" && step != "__root__" {
				lines[i], separator = fmt.Sprint(step, separator, lines[i]), "."
			}
		}
	}
	return strings.Join(lines, "\n")
}
