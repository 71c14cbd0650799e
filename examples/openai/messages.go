package openai

import (
	"fmt"
	"slices"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
)

// A message is one that is being read. Of a repeated field, the last counts; what bots cannot
// have is rejected as soon as it is read.
type message struct {
	protocol *protocol
	in       *jsonbody.Reader
	at       int // its index

	role, content, refusal jsonbody.Value
}

func (q *request) readMessages() error {
	m := message{protocol: q.protocol, in: q.in}
	readField := m.readField
	return q.in.Array(func(i int) error {
		m.at, m.role, m.content, m.refusal = i, jsonbody.Value{}, jsonbody.Value{}, jsonbody.Value{}
		if kind := q.in.Peek(); kind != jsonbody.Object {
			return m.problem("", q.in.Value(), "value is not a valid dict")
		}
		if err := q.in.Object(readField); err != nil {
			return err
		}
		read, err := m.message()
		if len(q.messages) == cap(q.messages) { // append would make more room than the body can fill
			room := q.in.Rest() / len(`{"role":"user","content":""},`)
			q.messages = slices.Grow(q.messages, 1+min(max(len(q.messages), 3), room))
		}
		q.messages = append(q.messages, read)
		return err
	})
}

func (m *message) readField(name string) error {
	switch name {
	case "type":
		return m.checkType(m.in.Value())
	case "role":
		m.role = m.in.Value()
		if isText(m.role) && (m.role.Text == "tool" || m.role.Text == "function") {
			return m.invalid(".role", "unsupported_value", noTools)
		}
	case "content":
		if m.in.Peek() == jsonbody.List {
			return m.readParts()
		}
		m.content = m.in.Value()
	case "refusal":
		m.refusal = m.in.Value()
	case "tool_calls", "function_call", "audio":
		if !isOneOf(m.in.Raw(), []any{nil, []any{}}) {
			return m.invalid("."+name, "unsupported_value", "bots have neither tools nor audio")
		}
	}
	return nil
}

// checkType rejects items of the Responses API that are no messages.
func (m *message) checkType(v jsonbody.Value) error {
	switch {
	case !m.protocol.items, v.Kind == jsonbody.Null, isText(v) && v.Text == "message":
		return nil
	case isText(v) && v.Text == "item_reference":
		return m.invalid(".type", "unsupported_value", "bots store no responses, so send the message itself; some clients do so with store: false")
	}
	return m.invalid(".type", "unsupported_value", "bots read messages only")
}

func (m *message) message() (botapi.ChatMessage, error) {
	role, content := botapi.Role(m.role.Text), m.content
	if role == "developer" {
		role = botapi.RoleSystem
	}
	if m.refusal.Kind != 0 && (content.Kind == 0 || content.Kind == jsonbody.Null) {
		content = m.refusal // it was the text of the answer
	}
	switch {
	case !isText(m.role), role != botapi.RoleSystem && role != botapi.RoleUser && role != botapi.RoleAssistant:
		return botapi.ChatMessage{}, m.problem(".role", m.role, "value is not a valid enumeration member; permitted: 'system', 'user', 'assistant'")
	case !isText(content):
		return botapi.ChatMessage{}, m.problem(".content", content, "str type expected")
	}
	return botapi.ChatMessage{Role: role, Content: content.Text}, nil
}

// readParts joins the texts of content parts with line breaks, as runtimes do.
func (m *message) readParts() error {
	var texts []string
	err := m.in.Array(func(i int) error {
		text, err := m.readPart(fmt.Sprintf(".content[%d]", i))
		texts = append(texts, text)
		return err
	})
	m.content = jsonbody.Value{Kind: jsonbody.Text, Text: strings.Join(texts, "\n")}
	return err
}

func (m *message) readPart(at string) (string, error) {
	var kind, text, refusal jsonbody.Value
	err := m.in.Object(func(name string) error {
		switch name {
		case "type":
			kind = m.in.Value()
			if isText(kind) && m.protocol.parts[kind.Text] == "" {
				return m.invalid(at+".type", "unsupported_value", "bots read text only")
			}
		case "text":
			text = m.in.Value()
		case "refusal":
			refusal = m.in.Value()
		}
		return nil
	})
	field := m.protocol.parts[kind.Text]
	if field == "refusal" {
		text = refusal
	}
	switch {
	case err != nil:
		return "", err
	case !isText(kind):
		return "", m.invalid(at, "invalid_type", "a part of a message is an object with a type")
	case text.Kind == 0, text.Kind == jsonbody.Null:
		return "", m.invalid(at, "missing_required_parameter", "the text is missing")
	case !isText(text):
		return "", m.invalid(at+"."+field, "invalid_type", "str type expected")
	}
	return text.Text, nil
}

// invalid rejects the request because of a field of the message.
func (m *message) invalid(field, code, problem string) error {
	return invalid(fmt.Sprintf("%s[%d]%s", m.protocol.messages, m.at, field), code, problem)
}

// problem rejects the request because of a value, in the words of botapi.
func (m *message) problem(field string, v jsonbody.Value, problem string) error {
	switch v.Kind {
	case 0:
		return m.invalid(field, "missing_required_parameter", "field required")
	case jsonbody.Null:
		return m.invalid(field, "invalid_type", "none is not an allowed value")
	}
	return m.invalid(field, "invalid_type", problem)
}
