package openai

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"example.com/botapi"
)

// completions is the Chat Completions API.
var completions = (&protocol{
	idPrefix: "chatcmpl-",
	messages: "messages",
	parts:    map[string]string{"text": "text", "refusal": "refusal"},
	names:    map[string]string{"bot_slug": "model", "bot_uid": "", "prompt": "", "user_id": "user"},
	limits:   limits,
	check:    checkStreamOptions,
	addExtra: func(*request, map[string]json.RawMessage) {},
	around:   completionAround,
	stream:   func(c *completion) botapi.StreamFormat { return newChunks(c) },
}).init()

func checkStreamOptions(q *request) error {
	raw := q.fields["stream_options"]
	if raw == "" {
		return nil
	}
	usage := valueIn(raw, "include_usage")
	q.includeUsage = usage == "true"
	if raw[0] != '{' || usage != "" && usage != "true" && usage != "false" {
		return invalid("stream_options", "invalid_type", "an object with the boolean include_usage is expected")
	}
	return nil
}

// appendStart begins an object.
func (c *completion) appendStart(dst []byte, object string) []byte {
	return fmt.Appendf(dst, `{"id":"%s%s","object":"%s","created":%d,"model":%s`, c.protocol.idPrefix, c.id, object, c.created, quote(c.model))
}

func quote(text string) []byte {
	quoted, _ := json.Marshal(text) // it always has a JSON form
	return quoted
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

func completionAround(c *completion) (before, after []byte) {
	before = c.appendStart(nil, "chat.completion")
	before = append(before, `,"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
	after = append(after, `","refusal":null},"logprobs":null,"finish_reason":"`...)
	after = append(append(after, c.finishReason()...), `"}]`...)
	after, _ = c.appendUsage(after)
	return before, append(after, '}')
}

// chunks are the events of a streamed completion: its botapi.StreamFormat.
type chunks struct {
	completion *completion
	start, end []byte // of a chunk with text
	noUsage    string // of all chunks but the last
	begun      bool   // there was a chunk, which has the role
}

func newChunks(c *completion) *chunks {
	s := &chunks{completion: c, start: append(c.appendStart([]byte("data: "), "chat.completion.chunk"), `,"choices":[{"index":0,"delta":{`...)}
	if c.includeUsage {
		s.noUsage = `,"usage":null`
	}
	s.end = append([]byte(`"},"logprobs":null,"finish_reason":null}]`), s.noUsage+eventEnd...)
	return s
}

const (
	eventStream = "text/event-stream"
	keepAlive   = ": keep-alive\n" // without a blank line: clients fail on an event without data
	eventEnd    = "}\n\n"
)

func (s *chunks) ContentType() string { return eventStream }

func (s *chunks) AppendText(dst, text []byte) ([]byte, error) {
	dst = append(dst, s.start...)
	if !s.begun {
		dst, s.begun = append(dst, `"role":"assistant",`...), true
	}
	dst = append(append(dst, `"content":"`...), text...)
	return append(dst, s.end...), nil
}

func (s *chunks) AppendKeepAlive(dst []byte) []byte { return append(dst, keepAlive...) }

// End returns the finish_reason, the token counts if requested, and [DONE]. If there was no
// text, the role and the empty text are here.
func (s *chunks) End(context.Context) iter.Seq[[]byte] {
	c, delta := s.completion, ""
	if !s.begun {
		delta = `"role":"assistant","content":""`
	}
	end := append(append([]byte(nil), s.start...), delta+`},"logprobs":null,"finish_reason":"`+c.finishReason()+`"}]`+s.noUsage+eventEnd...)
	if c.includeUsage {
		counted, ok := c.appendUsage(append(c.appendStart([]byte("data: "), "chat.completion.chunk"), `,"choices":[]`...))
		if ok {
			end = append(append(end, counted...), eventEnd...)
		}
	}
	end = append(end, "data: [DONE]\n\n"...)
	return func(yield func([]byte) bool) { yield(end) }
}

func (s *chunks) AppendError(dst []byte, f botapi.Failure) []byte {
	return append(append(append(dst, "data: "...), s.completion.errorInStream(f).body()...), "\n\n"...)
}
