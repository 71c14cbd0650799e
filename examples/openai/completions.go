package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// completions is the Chat Completions API.
var completions = protocol{
	idPrefix: "chatcmpl-",
	messages: "messages",
	parts:    map[string]string{"text": "text", "refusal": "refusal"},
	names:    map[string]string{"bot_slug": "model", "user_id": "user"},
	nothing:  asksNothing,
	read:     readStreamOptions,
	answer:   completionAround,
	stream:   func(c *completion) eventWriter { return &chunks{completion: c} },
}

func readStreamOptions(c *completion, fields map[string]json.RawMessage) *apiError {
	raw := fields["stream_options"]
	delete(fields, "stream_options")
	if raw == nil {
		return nil
	}
	var options map[string]json.RawMessage
	if json.Unmarshal(raw, &options) != nil || options["include_usage"] != nil && json.Unmarshal(options["include_usage"], &c.includeUsage) != nil {
		return invalid("stream_options", "invalid_type", "an object with the boolean include_usage is expected")
	}
	return nil
}

// appendStart begins an object.
func (c *completion) appendStart(dst []byte, object string) []byte {
	dst = append(dst, `{"id":"`...)
	dst = append(append(dst, c.protocol.idPrefix...), c.id...)
	dst = append(dst, `","object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, c.created, 10)
	dst = append(dst, `,"model":`...)
	return append(dst, quote(c.model)...)
}

// appendUsage writes the token counts of the chat; ok is false if there are none.
func (c *completion) appendUsage(dst []byte) (_ []byte, ok bool) {
	tokens, ok := c.usage.Tokens()
	if !ok {
		return dst, false
	}
	return fmt.Appendf(dst, `,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		tokens.Prompt, tokens.Completion, tokens.Prompt+tokens.Completion), true
}

func completionAround(c *completion) (start, after []byte) {
	start = c.appendStart(nil, "chat.completion")
	start = append(start, `,"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
	after = append(after, `","refusal":null},"logprobs":null,"finish_reason":"`...)
	after = append(after, c.finishReason()...)
	after = append(after, `"}]`...)
	after, _ = c.appendUsage(after)
	return start, append(after, '}')
}

// chunks are the events of a streamed completion.
type chunks struct {
	completion *completion
	start      []byte // of a chunk with text
	begun      bool   // the first chunk has been started
}

const chunkEnd = `"},"logprobs":null,"finish_reason":null}]`

// startText starts a chunk with text. The first chunk has the role.
func (s *chunks) startText(dst []byte) []byte {
	if s.start == nil {
		s.start = append(s.completion.appendStart([]byte("data: "), "chat.completion.chunk"), `,"choices":[{"index":0,"delta":{"content":"`...)
	}
	if s.begun {
		return append(dst, s.start...)
	}
	s.begun = true
	return append(dst, bytes.Replace(s.start, []byte(`"delta":{`), []byte(`"delta":{"role":"assistant",`), 1)...)
}

func (s *chunks) appendText(dst, text []byte) []byte { return append(dst, text...) }

func (s *chunks) isTooLong() bool { return false }

func (s *chunks) endText(dst []byte) []byte {
	return append(s.appendNoUsage(append(dst, chunkEnd...)), "}\n\n"...)
}

func (s *chunks) appendNoUsage(dst []byte) []byte {
	if s.completion.includeUsage {
		return append(dst, `,"usage":null`...)
	}
	return dst
}

// appendEnd writes the finish_reason, the token counts if requested, and [DONE]. If
// there was no text, the role and the empty text are here.
func (s *chunks) appendEnd(dst []byte) []byte {
	c, delta := s.completion, `{}`
	if !s.begun {
		delta = `{"role":"assistant","content":""}`
	}
	last := append(c.appendStart(nil, "chat.completion.chunk"), `,"choices":[{"index":0,"delta":`...)
	last = append(append(last, delta...), `,"logprobs":null,"finish_reason":"`...)
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

func (s *chunks) appendError(dst []byte, e *apiError) []byte { return appendEvent(dst, e.body()) }
