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

// A chatBody is the body of a chat as the API behind the handler reads it. The
// client's own is read, and translated, when the API asks for it, which is once it
// knows the key.
type chatBody struct {
	client     io.ReadCloser
	limit      int64
	completion *completion

	asked      bool
	translated io.Reader // what the API reads
}

// Read reads the translation. Behind a body that is refused comes the rest of what
// its client sends, which the API discards.
func (b *chatBody) Read(p []byte) (int, error) {
	if !b.asked {
		b.asked = true
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
	body, refused := b.completion.read(body)
	if refused != nil {
		b.completion.refused = refused
		return refused
	}
	b.translated = bytes.NewReader(body)
	return nil
}

// read makes the body of a chat from that of a completion. What is not a JSON
// object stays as it is: the API says what is wrong with it, and where.
func (c *completion) read(body []byte) (chat []byte, refused *apiError) {
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	var members map[string]json.RawMessage
	if !utf8.Valid(body) || json.Unmarshal(body, &members) != nil || members == nil {
		return body, nil
	}
	for name, value := range members {
		if string(value) == "null" {
			delete(members, name)
		}
	}
	if refused := refusedMember(members); refused != nil {
		return nil, refused
	}
	if refused := c.readStreamOptions(members["stream_options"]); refused != nil {
		return nil, refused
	}
	messages, refused := readMessages(members["messages"])
	if refused != nil {
		return nil, refused
	}
	c.model = modelName(members["model"])
	w := objectWriter{dst: make([]byte, 0, len(body)+64)}
	w.member("bot_slug", members["model"])
	w.member("messages", messages)
	w.member("stream", members["stream"])
	if members["stream"] == nil {
		w.member("stream", json.RawMessage("false"))
	}
	w.member("user_id", members["user"])
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !renamed[name] && honoured[name] == nil {
			w.member(name, members[name])
		}
	}
	return w.end(), nil
}

// renamed are the members that have another name behind the handler, or none.
var renamed = map[string]bool{"model": true, "messages": true, "stream": true, "user": true, "stream_options": true}

// honoured are the values of members that no bot can honour otherwise: they ask
// for nothing, and do not go on.
var honoured = map[string][]string{
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

// refusedMember looks for what no bot can do, for what is missing, and for
// members that have a meaning in the other protocol alone.
func refusedMember(members map[string]json.RawMessage) *apiError {
	for _, name := range slices.Sorted(maps.Keys(members)) {
		values, limited := honoured[name]
		if limited && !slices.Contains(values, compact(members[name])) {
			return invalid(name, "unsupported_value", fmt.Sprintf("bots cannot honour this value of %q", name))
		}
		switch name {
		case "bot_uid", "bot_slug", "prompt", "user_id":
			return invalid(name, "unknown_parameter", fmt.Sprintf("unknown parameter: %q", name))
		}
	}
	for _, name := range []string{"model", "messages"} {
		if members[name] == nil || compact(members[name]) == "[]" || string(members[name]) == `""` {
			return invalid(name, "missing_required_parameter", fmt.Sprintf("missing required parameter: %q", name))
		}
	}
	return nil
}

func compact(value json.RawMessage) string {
	if len(value) > 100 {
		return "" // none of the values that it is compared with
	}
	var b bytes.Buffer
	_ = json.Compact(&b, value) // it has been decoded before
	return b.String()
}

// modelName is the model's name as answers repeat it.
func modelName(raw json.RawMessage) string {
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return string(raw) // a number is as good
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

// readMessages makes the messages of a chat. What is wrong in both protocols stays
// as it is, in its place: the API finds out.
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
		message, refused := readMessage(message, fmt.Sprintf("messages[%d]", i))
		if refused != nil {
			return nil, refused
		}
		dst = append(dst, message...)
	}
	return append(dst, ']'), nil
}

func readMessage(raw json.RawMessage, param string) (json.RawMessage, *apiError) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return raw, nil
	}
	role, content := members["role"], members["content"]
	switch modelName(role) {
	case "developer":
		role = json.RawMessage(`"system"`)
	case "tool", "function":
		return nil, invalid(param+".role", "unsupported_value", param+".role: bots have no tools")
	}
	for _, name := range []string{"tool_calls", "function_call", "audio"} {
		if value := compact(members[name]); members[name] != nil && value != "null" && value != "[]" {
			return nil, invalid(param+"."+name, "unsupported_value", param+"."+name+": bots have neither tools nor audio")
		}
	}
	if refusal := members["refusal"]; refusal != nil && (content == nil || string(content) == "null") {
		content = refusal // the text of an answer all the same
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) == nil && parts != nil {
		text, refused := readParts(parts, param+".content")
		if refused != nil {
			return nil, refused
		}
		content = quote(text)
	}
	w := objectWriter{}
	w.member("role", role)
	w.member("content", content)
	return w.end(), nil
}

// readParts joins the texts of a message's parts, each on a line of its own, as
// runtimes do.
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

// quote writes text as JSON that is no longer than it must be: escapes for HTML and
// JavaScript would put a body that is within the limit beyond it.
func quote(text string) []byte {
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // it always has a JSON form
	return []byte(unescapedLines.Replace(strings.TrimSuffix(quoted.String(), "\n")))
}

// unescapedLines undoes the two escapes that an encoder makes all the same. A backslash
// that is quoted begins no other escape.
var unescapedLines = strings.NewReplacer(`\\`, `\\`, `\u2028`, "\u2028", `\u2029`, "\u2029")

// An objectWriter writes a JSON object of values that are JSON already. Absent
// ones are left out.
type objectWriter struct{ dst []byte }

func (w *objectWriter) member(name string, value json.RawMessage) {
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
