package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
)

// responses is the Responses API, for text, and without stored responses.
var responses = (&protocol{
	idPrefix: "resp_",
	messages: "input",
	items:    true,
	parts:    map[string]string{"input_text": "text", "output_text": "text", "refusal": "refusal"},
	names: map[string]string{
		"bot_slug": "model", "bot_uid": "", "user_id": "user", "messages": "input",
		"max_completion_tokens": "max_output_tokens", "response_format": "text.format",
	},
	limits:   responseLimits,
	own:      []string{"instructions", "max_output_tokens", "text"},
	repeats:  []string{"instructions", "max_output_tokens", "metadata", "temperature", "top_p"},
	check:    checkResponse,
	addExtra: addExtraOfResponse,
	around:   responseAround,
	stream:   func(c *completion) botapi.StreamFormat { return &responseEvents{completion: c} },
}).init()

// checkResponse checks what a response repeats, and where the format of the text is.
func checkResponse(q *request) error {
	instructions := q.value("instructions")
	if instructions.Kind != 0 && !isText(instructions) {
		return invalid("instructions", "invalid_type", "str type expected")
	}
	q.instructions = instructions.Text
	if raw := q.fields["metadata"]; raw != "" && !isObjectOfTexts(raw) {
		return invalid("metadata", "invalid_type", "an object of strings is expected")
	}
	for _, name := range []string{"max_output_tokens", "temperature", "top_p"} {
		v := q.value(name)
		if _, err := strconv.ParseFloat(v.Text, 64); v.Kind != 0 && (isText(v) || err != nil) {
			return invalid(name, "invalid_type", "value is not a valid float")
		}
	}
	if v := q.value("text"); v.Kind != 0 && v.Kind != jsonbody.Object {
		return invalid("text", "invalid_type", "value is not a valid dict")
	}
	return nil
}

func isObjectOfTexts(raw string) bool {
	in := jsonbody.New(raw)
	return in.Peek() == jsonbody.Object && in.Object(func(string) error {
		if v := in.Value(); !isText(v) && v.Kind != jsonbody.Null {
			return errors.ErrUnsupported
		}
		return nil
	}) == nil
}

// addExtraOfResponse adds the fields that a completion has under another name.
func addExtraOfResponse(q *request, extra map[string]json.RawMessage) {
	for name, value := range map[string]string{
		"max_completion_tokens": q.fields["max_output_tokens"],
		"verbosity":             valueIn(q.fields["text"], "verbosity"),
	} {
		if value != "" {
			extra[name] = json.RawMessage(value)
		}
	}
	format := valueIn(q.fields["text"], "format")
	if format == "" || !q.honours["response_format"] {
		return
	}
	extra["response_format"] = json.RawMessage(format)
	var schema map[string]json.RawMessage
	if isOneOf(valueIn(format, "type"), []any{"json_schema"}) && json.Unmarshal([]byte(format), &schema) == nil {
		delete(schema, "type") // the other fields are one level deeper in a completion
		nested, _ := json.Marshal(map[string]any{"type": "json_schema", "json_schema": schema})
		extra["response_format"] = nested
	}
}

// appendRepeated repeats a field of the request, without what would end an event: line breaks,
// and what some clients take for one.
func (c *completion) appendRepeated(dst []byte, name, otherwise string) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	raw := c.repeated[name]
	if raw == "" {
		return append(dst, otherwise...)
	}
	escaped, _ := json.Marshal(json.RawMessage(raw)) // it is JSON
	return append(dst, escaped...)
}

// status returns how a complete answer has ended.
func (c *completion) status() (status, incomplete string) {
	switch c.finishReason() {
	case "length":
		return "incomplete", `{"reason":"max_output_tokens"}`
	case "content_filter":
		return "incomplete", `{"reason":"content_filter"}`
	}
	return "completed", "null"
}

// appendResponseStart begins a response up to its output.
func (c *completion) appendResponseStart(dst []byte, status, incomplete string) []byte {
	dst = fmt.Appendf(dst, `{"id":"resp_%s","object":"response","created_at":%d,"status":"%s","background":false,"error":null,"incomplete_details":%s`,
		c.id, c.created, status, incomplete)
	dst = c.appendRepeated(dst, "instructions", "null")
	dst = c.appendRepeated(dst, "max_output_tokens", "null")
	dst = append(append(dst, `,"model":`...), quote(c.model)...)
	return append(dst, `,"output":[`...)
}

// appendResponseEnd ends a response after its output.
func (c *completion) appendResponseEnd(dst []byte, usage string) []byte {
	dst = append(dst, `],"access_programs":null,"parallel_tool_calls":true,"previous_response_id":null,"store":false,"tool_choice":"auto","tools":[],"truncation":"disabled"`...)
	dst = c.appendRepeated(dst, "temperature", "null")
	dst = c.appendRepeated(dst, "top_p", "null")
	dst = c.appendRepeated(dst, "metadata", "{}")
	return append(append(append(dst, `,"usage":`...), usage...), '}')
}

// finalUsage has zeros if the engine has reported nothing: clients fail without the object.
func (c *completion) finalUsage() string {
	tokens, _ := c.usage.Tokens()
	return fmt.Sprintf(`{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}`,
		tokens.Prompt, tokens.Completion, tokens.Prompt+tokens.Completion)
}

// The text of an answer is the only part of the only item of a response.
const (
	partStart = `{"type":"output_text","annotations":[],"logprobs":[],"text":"`
	partEnd   = `"}`
	itemEnd   = `]}`
)

func (c *completion) appendItemStart(dst []byte, status string) []byte {
	return fmt.Appendf(dst, `{"id":"msg_%s","type":"message","status":"%s","role":"assistant","content":[`, c.id, status)
}

func responseAround(c *completion) (before, after []byte) {
	status, incomplete := c.status()
	before = c.appendItemStart(c.appendResponseStart(nil, status, incomplete), status)
	return append(before, partStart...), c.appendResponseEnd([]byte(partEnd+itemEnd), c.finalUsage())
}

// responseEvents are the events of a streamed response: its botapi.StreamFormat. It keeps
// the text, which the last events repeat.
type responseEvents struct {
	completion *completion
	count      int    // events so far
	text       []byte // as JSON, without quotes
}

// maxRepeated bounds the memory of a streamed response.
const maxRepeated = 16 << 20

var errTooLong = errors.New("openai: the answer is too long for a streamed response")

func (s *responseEvents) ContentType() string { return eventStream }

func (s *responseEvents) AppendKeepAlive(dst []byte) []byte { return append(dst, keepAlive...) }

func (s *responseEvents) AppendText(dst, text []byte) ([]byte, error) {
	if s.text = append(s.text, text...); len(s.text) > maxRepeated {
		return dst, errTooLong
	}
	dst = append(s.startOfPart(s.begin(dst), "response.output_text.delta"), `,"logprobs":[],"delta":"`...)
	return append(append(dst, text...), `"`+eventEnd...), nil
}

// start begins an event up to its other fields.
func (s *responseEvents) start(dst []byte, kind string) []byte {
	dst = append(append(dst, "event: "...), kind...)
	dst = append(append(dst, "\ndata: {\"type\":\""...), kind...)
	dst = strconv.AppendInt(append(dst, `","sequence_number":`...), int64(s.count), 10)
	s.count++
	return dst
}

// startOfPart begins an event about the text.
func (s *responseEvents) startOfPart(dst []byte, kind string) []byte {
	dst = append(append(s.start(dst, kind), `,"item_id":"msg_`...), s.completion.id...)
	return append(dst, `","output_index":0,"content_index":0`...)
}

// begin writes the events before the first text, once.
func (s *responseEvents) begin(dst []byte) []byte {
	if s.count > 0 {
		return dst
	}
	c := s.completion
	for _, kind := range []string{"response.created", "response.in_progress"} {
		dst = append(s.start(dst, kind), `,"response":`...)
		dst = c.appendResponseEnd(c.appendResponseStart(dst, "in_progress", "null"), "null")
		dst = append(dst, eventEnd...)
	}
	dst = append(s.start(dst, "response.output_item.added"), `,"output_index":0,"item":`...)
	dst = append(c.appendItemStart(dst, "in_progress"), itemEnd+eventEnd...)
	dst = append(s.startOfPart(dst, "response.content_part.added"), `,"part":`+partStart+partEnd...)
	return append(dst, eventEnd...)
}

// End repeats the text four times, without copies of it.
func (s *responseEvents) End(context.Context) iter.Seq[[]byte] {
	c := s.completion
	status, incomplete := c.status()
	pieces := [][]byte{
		append(s.startOfPart(s.begin(nil), "response.output_text.done"), `,"logprobs":[],"text":"`...),
		append(s.startOfPart([]byte(`"`+eventEnd), "response.content_part.done"), `,"part":`+partStart...),
		append(c.appendItemStart(append(s.start([]byte(partEnd+eventEnd), "response.output_item.done"), `,"output_index":0,"item":`...), status), partStart...),
		append(c.appendItemStart(c.appendResponseStart(append(s.start([]byte(partEnd+itemEnd+eventEnd), "response."+status), `,"response":`...), status, incomplete), status), partStart...),
		append(c.appendResponseEnd([]byte(partEnd+itemEnd), c.finalUsage()), eventEnd...),
	}
	return func(yield func([]byte) bool) {
		for i, piece := range pieces {
			if i > 0 && !yield(s.text) || !yield(piece) {
				return
			}
		}
	}
}

// AppendError writes the error as the documentation of OpenAI has it, and once more
// within "error", where its service has it: clients read one or the other.
func (s *responseEvents) AppendError(dst []byte, f botapi.Failure) []byte {
	e := s.completion.errorInStream(f)
	data, _ := json.Marshal(struct { // it always has a JSON form
		Type     string    `json:"type"`
		Sequence int       `json:"sequence_number"`
		Code     *string   `json:"code"`
		Message  string    `json:"message"`
		Param    *string   `json:"param"`
		Error    *apiError `json:"error"`
	}{"error", s.count, e.Code, e.Message, e.Param, e})
	return append(append(append(dst, "event: error\ndata: "...), data...), "\n\n"...)
}
