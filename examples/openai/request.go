package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"
)

// A chatBody is the body that the API reads: the translation of the client's body.
// The client's body is read on the first Read, which is after the API has verified
// the key.
type chatBody struct {
	client     io.ReadCloser
	limit      int64
	completion *completion

	begun      bool
	translated io.Reader // what the API reads
}

// Read reads the translation. If the body is rejected, later reads return the rest of
// the client's body, so that the API can discard it.
func (b *chatBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		if err := b.translate(); err != nil {
			b.translated = b.client
			return 0, err
		}
	}
	return b.translated.Read(p)
}

func (b *chatBody) Close() error { return b.client.Close() }

func (b *chatBody) translate() error {
	body, err := io.ReadAll(io.LimitReader(b.client, b.limit+1))
	if err != nil {
		return err
	}
	if int64(len(body)) > b.limit {
		return &http.MaxBytesError{Limit: b.limit}
	}
	body, rejection := b.completion.read(body)
	if rejection != nil {
		b.completion.rejection = rejection
		return rejection
	}
	b.translated = bytes.NewReader(body)
	return nil
}

// read translates the body of a completion into that of a chat. A body that is not a
// JSON object is returned unchanged: the API says what is wrong with it, and where.
func (c *completion) read(body []byte) (chat []byte, rejection *apiError) {
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	var fields map[string]json.RawMessage
	if !utf8.Valid(body) || json.Unmarshal(body, &fields) != nil || fields == nil {
		return body, nil
	}
	for name, value := range fields {
		if string(value) == "null" {
			delete(fields, name)
		}
	}
	if rejection := rejectFields(fields); rejection != nil {
		return nil, rejection
	}
	if rejection := c.readStreamOptions(fields["stream_options"]); rejection != nil {
		return nil, rejection
	}
	messages, rejection := readMessages(fields["messages"])
	if rejection != nil {
		return nil, rejection
	}
	c.model = modelName(fields["model"])
	w := objectWriter{dst: make([]byte, 0, len(body)+64)}
	w.field("bot_slug", fields["model"])
	w.field("messages", messages)
	w.field("stream", fields["stream"])
	if fields["stream"] == nil {
		w.field("stream", json.RawMessage("false"))
	}
	w.field("user_id", fields["user"])
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !renamed[name] && supported[name] == nil {
			w.field(name, fields[name])
		}
	}
	return w.end(), nil
}

// renamed are the fields that have another name in the API, or none.
var renamed = map[string]bool{"model": true, "messages": true, "stream": true, "user": true, "stream_options": true}

// supported has the supported values of fields that bots do not implement. These
// values ask for nothing, so the field is dropped.
var supported = map[string][]string{
	"n":             {"1"},
	"tools":         {"[]"},
	"tool_choice":   {`"none"`, `"auto"`},
	"functions":     {"[]"},
	"function_call": {`"none"`, `"auto"`},
	"audio":         {},
	"modalities":    {`["text"]`},
	"logprobs":      {"false"},
	"top_logprobs":  {"0"},
}

// rejectFields rejects what bots do not support, missing fields, and fields that only
// botapi's own protocol has.
func rejectFields(fields map[string]json.RawMessage) *apiError {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		values, limited := supported[name]
		if limited && !slices.Contains(values, compact(fields[name])) {
			return invalid(name, "unsupported_value", fmt.Sprintf("bots cannot honour this value of %q", name))
		}
		switch name {
		case "bot_uid", "bot_slug", "prompt", "user_id":
			return invalid(name, "unknown_parameter", fmt.Sprintf("unknown parameter: %q", name))
		}
	}
	for _, name := range []string{"model", "messages"} {
		if fields[name] == nil || compact(fields[name]) == "[]" || string(fields[name]) == `""` {
			return invalid(name, "missing_required_parameter", fmt.Sprintf("missing required parameter: %q", name))
		}
	}
	return nil
}

func compact(value json.RawMessage) string {
	if len(value) > 100 {
		return "" // longer than any value that it is compared with
	}
	var b bytes.Buffer
	_ = json.Compact(&b, value) // value has been decoded, so it is valid
	return b.String()
}

// modelName is the model's name as responses repeat it.
func modelName(raw json.RawMessage) string {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return string(raw) // the API accepts a number, too
	}
	return name
}

func (c *completion) readStreamOptions(raw json.RawMessage) *apiError {
	if raw == nil {
		return nil
	}
	var options *struct {
		IncludeUsage bool `json:"include_usage"`
	}
	if json.Unmarshal(raw, &options) != nil {
		return invalid("stream_options", "invalid_type", "stream_options: an object with the boolean include_usage is expected")
	}
	c.includeUsage = options != nil && options.IncludeUsage
	return nil
}

// readMessages translates the messages. What is invalid in both protocols is kept in
// its position, so that the API reports it.
func readMessages(raw json.RawMessage) (json.RawMessage, *apiError) {
	var messages []json.RawMessage
	if json.Unmarshal(raw, &messages) != nil {
		return raw, nil
	}
	dst := append(make([]byte, 0, len(raw)), '[')
	for i, message := range messages {
		if i > 0 {
			dst = append(dst, ',')
		}
		message, rejection := readMessage(message, fmt.Sprintf("messages[%d]", i))
		if rejection != nil {
			return nil, rejection
		}
		dst = append(dst, message...)
	}
	return append(dst, ']'), nil
}

func readMessage(raw json.RawMessage, param string) (json.RawMessage, *apiError) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		return raw, nil
	}
	role, content := fields["role"], fields["content"]
	switch modelName(role) {
	case "developer":
		role = json.RawMessage(`"system"`)
	case "tool", "function":
		return nil, invalid(param+".role", "unsupported_value", param+".role: bots have no tools")
	}
	for _, name := range []string{"tool_calls", "function_call", "audio"} {
		if value := compact(fields[name]); fields[name] != nil && value != "null" && value != "[]" {
			return nil, invalid(param+"."+name, "unsupported_value", param+"."+name+": bots have neither tools nor audio")
		}
	}
	if refusal := fields["refusal"]; refusal != nil && (content == nil || string(content) == "null") {
		content = refusal // it was the text of the answer
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) == nil && parts != nil {
		text, rejection := readParts(parts, param+".content")
		if rejection != nil {
			return nil, rejection
		}
		content = quote(text)
	}
	w := objectWriter{}
	w.field("role", role)
	w.field("content", content)
	return w.end(), nil
}

// readParts joins the texts of content parts with line breaks, as runtimes do.
func readParts(parts []json.RawMessage, param string) (string, *apiError) {
	texts := make([]string, len(parts))
	for i, raw := range parts {
		var part struct{ Type, Text, Refusal *string }
		at := fmt.Sprintf("%s[%d]", param, i)
		if json.Unmarshal(raw, &part) != nil || part.Type == nil {
			return "", invalid(at, "invalid_type", at+": a part of a message is an object with a type")
		}
		text := part.Text
		switch *part.Type {
		case "text":
		case "refusal":
			text = part.Refusal
		default:
			return "", invalid(at+".type", "unsupported_value", at+".type: bots read text only")
		}
		if text == nil {
			return "", invalid(at, "missing_required_parameter", at+": the text is missing")
		}
		texts[i] = *text
	}
	return strings.Join(texts, "\n"), nil
}

// quote encodes text as JSON without optional escapes: those for HTML and JavaScript
// could make a body exceed the limit.
func quote(text string) []byte {
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // it always has a JSON form
	return []byte(unescapedLines.Replace(strings.TrimSuffix(quoted.String(), "\n")))
}

// unescapedLines undoes the two escapes that SetEscapeHTML(false) does not turn off.
// The first pair keeps an escaped backslash, so that what follows it is not taken for
// an escape.
var unescapedLines = strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029")

// An objectWriter writes a JSON object of encoded values. It omits nil values.
type objectWriter struct{ dst []byte }

func (w *objectWriter) field(name string, value json.RawMessage) {
	if value == nil {
		return
	}
	separator := byte(',')
	if len(w.dst) == 0 {
		separator = '{'
	}
	w.dst = append(w.dst, separator)
	w.dst = append(append(append(w.dst, quote(name)...), ':'), value...)
}

func (w *objectWriter) end() []byte {
	if len(w.dst) == 0 {
		return []byte("{}")
	}
	return append(w.dst, '}')
}
