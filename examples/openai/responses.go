package openai

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// responses is the Responses API, for text, and without stored responses.
var responses = protocol{
	idPrefix: "resp_",
	messages: "input",
	items:    true,
	parts:    map[string]string{"input_text": "text", "output_text": "text", "refusal": "refusal"},
	names: map[string]string{
		"bot_slug": "model", "user_id": "user", "messages": "input",
		"max_completion_tokens": "max_output_tokens", "response_format": "text.format",
	},
	nothing: withFields(asksNothing, map[string][]any{
		"background":           {false},
		"conversation":         {},
		"include":              {[]any{}, []any{"reasoning.encrypted_content"}}, // no response has reasoning
		"previous_response_id": {},
		"prompt":               {},
		"store":                {false},
		"truncation":           {"disabled"},
	}),
	read:   readResponse,
	answer: responseAround,
	stream: func(c *completion) eventWriter { return &responseEvents{completion: c} },
}

func withFields(fields, more map[string][]any) map[string][]any {
	all := maps.Clone(fields)
	maps.Copy(all, more)
	return all
}

// A responseRequest is what a response repeats of its request; nil is null.
type responseRequest struct {
	instructions, maxOutputTokens, metadata, temperature, topP json.RawMessage
}

// readResponse renames the fields of a response that a completion has, too.
func readResponse(c *completion, fields map[string]json.RawMessage) *apiError {
	for _, name := range slices.Sorted(maps.Keys(c.protocol.names)) {
		if fields[name] != nil {
			return invalid(name, "unknown_parameter", fmt.Sprintf("unknown parameter; here it is %q", c.protocol.names[name]))
		}
	}
	if rejection := c.readRequest(fields); rejection != nil {
		return rejection
	}
	if rejection := readText(fields); rejection != nil {
		return rejection
	}
	if limit := fields["max_output_tokens"]; limit != nil {
		fields["max_completion_tokens"] = limit
	}
	if text, isText := textIn(fields["input"]); isText && text != "" {
		fields["input"] = slices.Concat([]byte("["), message(json.RawMessage(`"user"`), fields["input"]), []byte("]"))
	}
	for _, name := range []string{"instructions", "max_output_tokens", "stream_options"} {
		delete(fields, name) // the options of a stream are about obfuscation
	}
	return nil
}

// readRequest keeps what the response repeats, encoded anew: a line break in an event
// would end it.
func (c *completion) readRequest(fields map[string]json.RawMessage) *apiError {
	c.request = responseRequest{maxOutputTokens: fields["max_output_tokens"], temperature: fields["temperature"], topP: fields["top_p"]}
	if raw := fields["instructions"]; raw != nil {
		text, isText := textIn(raw)
		if !isText {
			return invalid("instructions", "invalid_type", "str type expected")
		}
		c.request.instructions, _ = json.Marshal(text)
		if text != "" {
			c.instructions = raw
		}
	}
	metadata := map[string]string{}
	if raw := fields["metadata"]; raw != nil && json.Unmarshal(raw, &metadata) != nil {
		return invalid("metadata", "invalid_type", "an object of strings is expected")
	}
	c.request.metadata, _ = json.Marshal(metadata)
	for _, name := range []string{"max_output_tokens", "temperature", "top_p"} {
		var number float64
		if raw := fields[name]; raw != nil && json.Unmarshal(raw, &number) != nil {
			return invalid(name, "invalid_type", "value is not a valid float")
		}
	}
	return nil
}

// readText replaces "text", which has the format and the verbosity, by the fields of a
// completion.
func readText(fields map[string]json.RawMessage) *apiError {
	raw := fields["text"]
	delete(fields, "text")
	if raw == nil {
		return nil
	}
	var text map[string]json.RawMessage
	if json.Unmarshal(raw, &text) != nil {
		return invalid("text", "invalid_type", "value is not a valid dict")
	}
	if verbosity := text["verbosity"]; verbosity != nil && string(verbosity) != "null" {
		fields["verbosity"] = verbosity
	}
	format := text["format"]
	if format == nil || string(format) == "null" {
		return nil
	}
	fields["response_format"] = format
	var schema map[string]json.RawMessage
	if json.Unmarshal(format, &schema) == nil && isOneOf(schema["type"], []any{"json_schema"}) {
		delete(schema, "type") // the other fields are one level deeper in a completion
		nested, err := json.Marshal(map[string]any{"type": "json_schema", "json_schema": schema})
		if err == nil {
			fields["response_format"] = nested
		}
	}
	return nil
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

func orNull(raw json.RawMessage) []byte {
	if raw == nil {
		return []byte("null")
	}
	return raw
}

// appendResponseStart begins a response up to its output.
func (c *completion) appendResponseStart(dst []byte, status, incomplete string) []byte {
	dst = fmt.Appendf(dst, `{"id":"resp_%s","object":"response","created_at":%d,"status":"%s","background":false,"error":null,"incomplete_details":%s`,
		c.id, c.created, status, incomplete)
	r := &c.request
	dst = append(append(dst, `,"instructions":`...), orNull(r.instructions)...)
	dst = append(append(dst, `,"max_output_tokens":`...), orNull(r.maxOutputTokens)...)
	dst = append(append(dst, `,"model":`...), quote(c.model)...)
	return append(dst, `,"output":[`...)
}

// appendResponseEnd ends a response after its output.
func (c *completion) appendResponseEnd(dst []byte, usage bool) []byte {
	dst = append(dst, `],"access_programs":null,"parallel_tool_calls":true,"previous_response_id":null,"store":false,"tool_choice":"auto","tools":[],"truncation":"disabled"`...)
	r := &c.request
	dst = append(append(dst, `,"temperature":`...), orNull(r.temperature)...)
	dst = append(append(dst, `,"top_p":`...), orNull(r.topP)...)
	dst = append(append(dst, `,"metadata":`...), orNull(r.metadata)...)
	dst = append(dst, `,"usage":`...)
	tokens, counted := c.usage.Tokens()
	if !usage || !counted {
		return append(dst, "null}"...)
	}
	return fmt.Appendf(dst, `{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}}`,
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

func responseAround(c *completion) (start, after []byte) {
	status, incomplete := c.status()
	start = c.appendItemStart(c.appendResponseStart(nil, status, incomplete), status)
	return append(start, partStart...), c.appendResponseEnd([]byte(partEnd+itemEnd), true)
}

// responseEvents are the events of a streamed response. It keeps the text, which the
// last events repeat.
type responseEvents struct {
	completion *completion
	count      int    // events so far
	text       []byte // as JSON, without quotes
}

// start begins an event up to its other fields.
func (s *responseEvents) start(dst []byte, kind string) []byte {
	dst = append(append(dst, "event: "...), kind...)
	dst = append(append(dst, "\ndata: {\"type\":\""...), kind...)
	dst = strconv.AppendInt(append(dst, `","sequence_number":`...), int64(s.count), 10)
	s.count++
	return dst
}

const responseEventEnd = "}\n\n"

// startOfPart begins an event about the text.
func (s *responseEvents) startOfPart(dst []byte, kind string) []byte {
	dst = append(append(s.start(dst, kind), `,"item_id":"msg_`...), s.completion.id...)
	return append(dst, `","output_index":0,"content_index":0`...)
}

func (s *responseEvents) startText(dst []byte) []byte {
	dst = s.begin(dst)
	return append(s.startOfPart(dst, "response.output_text.delta"), `,"logprobs":[],"delta":"`...)
}

func (s *responseEvents) appendText(dst, text []byte) []byte {
	s.text = append(s.text, text...)
	return append(dst, text...)
}

// maxRepeated bounds the memory of a streamed response.
const maxRepeated = 16 << 20

func (s *responseEvents) isTooLong() bool { return len(s.text) > maxRepeated }

func (s *responseEvents) endText(dst []byte) []byte {
	return append(dst, `"`+responseEventEnd...)
}

// begin writes the events before the first text, once.
func (s *responseEvents) begin(dst []byte) []byte {
	if s.count > 0 {
		return dst
	}
	for _, kind := range []string{"response.created", "response.in_progress"} {
		dst = append(s.start(dst, kind), `,"response":`...)
		dst = s.completion.appendResponseEnd(s.completion.appendResponseStart(dst, "in_progress", "null"), false)
		dst = append(dst, responseEventEnd...)
	}
	dst = append(s.start(dst, "response.output_item.added"), `,"output_index":0,"item":`...)
	dst = append(s.completion.appendItemStart(dst, "in_progress"), itemEnd+responseEventEnd...)
	dst = append(s.startOfPart(dst, "response.content_part.added"), `,"part":`+partStart+partEnd...)
	return append(dst, responseEventEnd...)
}

func (s *responseEvents) appendEnd(dst []byte) []byte {
	c := s.completion
	dst = slices.Grow(s.begin(dst), 4*len(s.text))
	dst = append(s.startOfPart(dst, "response.output_text.done"), `,"logprobs":[],"text":"`...)
	dst = append(append(dst, s.text...), `"`+responseEventEnd...)
	dst = append(s.startOfPart(dst, "response.content_part.done"), `,"part":`...)
	dst = append(s.appendPart(dst), responseEventEnd...)
	status, incomplete := c.status()
	dst = append(s.start(dst, "response.output_item.done"), `,"output_index":0,"item":`...)
	dst = append(s.appendItem(dst, status), responseEventEnd...)
	dst = append(s.start(dst, "response."+status), `,"response":`...)
	dst = s.appendItem(c.appendResponseStart(dst, status, incomplete), status)
	return append(c.appendResponseEnd(dst, true), responseEventEnd...)
}

func (s *responseEvents) appendPart(dst []byte) []byte {
	return append(append(append(dst, partStart...), s.text...), partEnd...)
}

func (s *responseEvents) appendItem(dst []byte, status string) []byte {
	return append(s.appendPart(s.completion.appendItemStart(dst, status)), itemEnd...)
}

// appendError writes the error as the documentation of OpenAI has it, and once more
// within "error", where its service has it: clients read one or the other.
func (s *responseEvents) appendError(dst []byte, e *apiError) []byte {
	data, _ := json.Marshal(struct { // it always has a JSON form
		Type     string    `json:"type"`
		Sequence int       `json:"sequence_number"`
		Code     *string   `json:"code"`
		Message  string    `json:"message"`
		Param    *string   `json:"param"`
		Error    *apiError `json:"error"`
	}{"error", s.count, e.Code, e.Message, e.Param, e})
	return appendEvent(append(dst, "event: error\n"...), data)
}
