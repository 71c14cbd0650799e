package openai

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A protocol is one of OpenAI's two APIs for chats: what differs between them.
type protocol struct {
	idPrefix string
	messages string            // the field with the messages
	items    bool              // messages are items, which have a type
	parts    map[string]string // by the type of a content part: the field with its text
	names    map[string]string // by the name of a field in botapi or in chat completions: its name
	nothing  map[string][]any  // by the name of a field that bots do not implement: the values that ask for nothing

	// read reads, and may change, the fields that only this protocol has.
	read func(c *completion, fields map[string]json.RawMessage) *apiError
	// answer returns what is written before and after the text of a JSON response.
	answer func(c *completion) (start, after []byte)
	stream func(c *completion) eventWriter
}

// nameOf returns this protocol's name of a field.
func (p *protocol) nameOf(field string) string {
	if name := p.names[field]; name != "" {
		return name
	}
	return field
}

// A completion is one chat in one of OpenAI's protocols.
type completion struct {
	protocol *protocol
	id       string // without the protocol's prefix
	created  int64
	usage    *Usage
	formats  bool // the engine honours response_format

	model        string
	includeUsage bool
	instructions json.RawMessage // of a response: a text; nil if there is none
	request      responseRequest // of a response
	rejection    *apiError       // set if this handler, not the API, rejects the request
}

func newCompletion(p *protocol, usage *Usage, formats bool) *completion {
	return &completion{protocol: p, id: rand.Text(), created: time.Now().Unix(), usage: usage, formats: formats}
}

// finishReason returns the engine's reason if it is one of OpenAI's that a bot can
// have, otherwise "stop".
func (c *completion) finishReason() string {
	switch reason := c.usage.FinishReason(); reason {
	case "length", "content_filter":
		return reason
	}
	return "stop"
}

// asksNothing has the values of fields of both protocols with which they ask for
// nothing that bots do not implement. Such a field is dropped.
var asksNothing = map[string][]any{
	"n":               {1.0},
	"tools":           {[]any{}},
	"tool_choice":     {"none", "auto"},
	"functions":       {[]any{}},
	"function_call":   {"none", "auto"},
	"audio":           {},
	"modalities":      {[]any{}, []any{"text"}},
	"logprobs":        {false},
	"top_logprobs":    {0.0},
	"response_format": {map[string]any{"type": "text"}},
}

// A chatBody is the body that the API reads: the translation of the client's body.
// The client's body is read on the first Read, which is after the API has verified
// the key.
type chatBody struct {
	client     io.ReadCloser
	limit      int64
	completion *completion
	rejected   func(*apiError)

	begun      bool
	translated io.Reader // what the API reads
}

// Read reads the translation. It is empty if the request is rejected: the API then
// rejects it, too, and the responder replaces its reason. After an error, later reads
// return the rest of the client's body, so that the API can discard it.
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
		b.rejected(rejection)
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
	maps.DeleteFunc(fields, func(_ string, value json.RawMessage) bool { return string(value) == "null" })
	if rejection := c.protocol.read(c, fields); rejection != nil {
		return nil, rejection
	}
	if rejection := c.checkFields(fields); rejection != nil {
		return nil, rejection
	}
	messages, rejection := c.readMessages(fields[c.protocol.messages])
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
	for _, name := range []string{"model", c.protocol.messages, "stream", "user"} {
		delete(fields, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		w.field(name, fields[name])
	}
	return w.end(), nil
}

// checkFields rejects what bots do not support, missing fields, and fields that only
// botapi's own protocol has. It drops fields that ask for nothing.
func (c *completion) checkFields(fields map[string]json.RawMessage) *apiError {
	for list, choice := range map[string]string{"tools": "tool_choice", "functions": "function_call"} {
		if isOneOf(fields[choice], []any{"none"}) {
			delete(fields, list)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		values, limited := c.protocol.nothing[name]
		switch {
		case name == "response_format" && c.formats:
		case limited && isOneOf(fields[name], values):
			delete(fields, name)
		case limited:
			return invalid(c.protocol.nameOf(name), "unsupported_value", "bots cannot honour this value")
		}
		switch name {
		case "bot_uid", "bot_slug", "prompt", "user_id":
			return invalid(name, "unknown_parameter", "unknown parameter")
		}
	}
	for _, name := range []string{"model", c.protocol.messages} {
		if fields[name] == nil || isOneOf(fields[name], []any{"", []any{}}) {
			return invalid(name, "missing_required_parameter", "missing required parameter")
		}
	}
	return nil
}

// isOneOf compares a JSON value with decoded ones: 1.0 is 1.
func isOneOf(raw json.RawMessage, values []any) bool {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil || compact.Len() > 100 { // longer than any value that it is compared with
		return false
	}
	var value any
	return json.Unmarshal(compact.Bytes(), &value) == nil &&
		slices.ContainsFunc(values, func(v any) bool { return reflect.DeepEqual(v, value) })
}

// modelName is the model's name as responses repeat it.
func modelName(raw json.RawMessage) string {
	if name, isText := textIn(raw); isText {
		return name
	}
	return string(raw) // the API accepts a number, too
}

func textIn(raw json.RawMessage) (text string, isText bool) {
	var decoded *string
	if json.Unmarshal(raw, &decoded) != nil || decoded == nil {
		return "", false
	}
	return *decoded, true
}

// readMessages translates the messages. What is invalid in both protocols is kept in
// its position, so that the API reports it.
func (c *completion) readMessages(raw json.RawMessage) (json.RawMessage, *apiError) {
	var messages []json.RawMessage
	if json.Unmarshal(raw, &messages) != nil {
		return raw, nil
	}
	dst := append(make([]byte, 0, len(raw)), '[')
	if c.instructions != nil {
		dst = append(dst, message(json.RawMessage(`"system"`), c.instructions)...)
	}
	for i, raw := range messages {
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		message, rejection := c.readMessage(raw, fmt.Sprintf("%s[%d]", c.protocol.messages, i))
		if rejection != nil {
			return nil, rejection
		}
		dst = append(dst, message...)
	}
	return append(dst, ']'), nil
}

// preceding returns how many messages the API gets before those of the client.
func (c *completion) preceding() int {
	if c.instructions != nil {
		return 1
	}
	return 0
}

func (c *completion) readMessage(raw json.RawMessage, param string) (json.RawMessage, *apiError) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		return raw, nil
	}
	if rejection := c.checkItem(fields["type"], param+".type"); rejection != nil {
		return nil, rejection
	}
	role, content := fields["role"], fields["content"]
	switch modelName(role) {
	case "developer":
		role = json.RawMessage(`"system"`)
	case "tool", "function":
		return nil, invalid(param+".role", "unsupported_value", "bots have no tools")
	}
	for _, name := range []string{"tool_calls", "function_call", "audio"} {
		if value := fields[name]; value != nil && !isOneOf(value, []any{nil, []any{}}) {
			return nil, invalid(param+"."+name, "unsupported_value", "bots have neither tools nor audio")
		}
	}
	if refusal := fields["refusal"]; refusal != nil && (content == nil || string(content) == "null") {
		content = refusal // it was the text of the answer
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) == nil && parts != nil {
		text, rejection := c.readParts(parts, param+".content")
		if rejection != nil {
			return nil, rejection
		}
		content = quote(text)
	}
	return message(role, content), nil
}

func message(role, content json.RawMessage) json.RawMessage {
	w := objectWriter{}
	w.field("role", role)
	w.field("content", content)
	return w.end()
}

// checkItem rejects items of the Responses API that are no messages.
func (c *completion) checkItem(kind json.RawMessage, param string) *apiError {
	switch {
	case !c.protocol.items, kind == nil, isOneOf(kind, []any{nil, "message"}):
		return nil
	case isOneOf(kind, []any{"item_reference"}):
		return invalid(param, "unsupported_value", "bots store no responses, so send the message itself; some clients do so with store: false")
	}
	return invalid(param, "unsupported_value", "bots read messages only")
}

// readParts joins the texts of content parts with line breaks, as runtimes do.
func (c *completion) readParts(parts []json.RawMessage, param string) (string, *apiError) {
	texts := make([]string, len(parts))
	for i, raw := range parts {
		at := fmt.Sprintf("%s[%d]", param, i)
		var part map[string]json.RawMessage // a struct would match names without regard to case
		decodeErr := json.Unmarshal(raw, &part)
		kind, isText := textIn(part["type"])
		if decodeErr != nil || !isText {
			return "", invalid(at, "invalid_type", "a part of a message is an object with a type")
		}
		field := c.protocol.parts[kind]
		if field == "" {
			return "", invalid(at+".type", "unsupported_value", "bots read text only")
		}
		if part[field] == nil || string(part[field]) == "null" {
			return "", invalid(at, "missing_required_parameter", "the text is missing")
		}
		if texts[i], isText = textIn(part[field]); !isText {
			return "", invalid(at+"."+field, "invalid_type", "str type expected")
		}
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
