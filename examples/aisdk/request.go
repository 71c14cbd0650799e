package aisdk

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"example.com/botapi"
)

// A chatBody is the body that the API reads: the translation of the page's body, which is
// read on the first Read, after the API has verified the key.
type chatBody struct {
	client io.ReadCloser
	chat   *chat
	bot    string // that the URL names

	begun      bool
	translated io.Reader // what the API reads
}

// Read reads the translation. If the body is rejected, later reads return the rest of the
// page's body, so that the API can discard it.
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
	limit := b.chat.options.MaxBodyBytes
	body, err := io.ReadAll(io.LimitReader(b.client, limit+1))
	if err != nil {
		return err
	}
	if int64(len(body)) > limit {
		return &http.MaxBytesError{Limit: limit}
	}
	body, err = b.chat.read(body, b.bot)
	b.chat.rejection, b.translated = err, bytes.NewReader(body)
	return err // the API logs it, and sends a 400
}

// A rejection is the text of a 400 that this package responds with.
type rejection string

func (r rejection) Error() string { return string(r) }

func reject(format string, values ...any) error { return rejection(fmt.Sprintf(format, values...)) }

// read translates the body of a chat. A body that is not a JSON object is returned
// unchanged: the API says what is wrong with it, and where.
func (c *chat) read(body []byte, bot string) ([]byte, error) {
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
	for _, name := range []string{"bot_slug", "bot_uid", "prompt", "stream"} {
		if fields[name] != nil {
			return nil, reject("%s: this field belongs to another API", name)
		}
	}
	bot, err := oneBot(bot, fields["bot"])
	if err != nil {
		return nil, err
	}
	c.id, _ = readText(fields["id"])
	if c.id == "" && c.options.Answers != nil {
		return nil, reject("id: the id of the chat is missing")
	}
	messages, err := readMessages(fields["messages"])
	if err != nil {
		return nil, err
	}
	if messages[len(messages)-1].Role == botapi.RoleAssistant {
		c.messageID = "" // the page continues this message
	}
	for _, name := range []string{"id", "bot", "trigger", "messageId"} {
		delete(fields, name)
	}
	fields["bot_slug"], fields["stream"] = encode(bot), json.RawMessage("true")
	fields["messages"] = encodeMessages(messages)
	return encode(fields), nil
}

// oneBot returns the bot that the URL or the body names.
func oneBot(inURL string, raw json.RawMessage) (string, error) {
	inBody, isText := readText(raw)
	switch {
	case raw != nil && !isText:
		return "", reject("bot: the slug of a bot is expected, as text")
	case inURL == "" && inBody == "":
		return "", reject("bot: the chat does not say with which bot")
	case inURL != "" && inBody != "" && inURL != inBody:
		return "", reject("bot: the URL and the body name two bots")
	}
	return cmp.Or(inURL, inBody), nil
}

var roles = map[string]botapi.Role{"system": botapi.RoleSystem, "user": botapi.RoleUser, "assistant": botapi.RoleAssistant}

// readMessages reads the messages, at least one. Like the AI SDK itself, it drops those
// of the assistant that have no text, such as one that was stopped before its first word.
func readMessages(raw json.RawMessage) (messages []botapi.ChatMessage, err error) {
	var all []map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil {
		return nil, reject("messages: a list of messages is expected")
	}
	for i, fields := range all {
		at := fmt.Sprintf("messages[%d]", i)
		name, _ := readText(fields["role"])
		role, isRole := roles[name]
		if !isRole {
			return nil, reject(`%s.role: "system", "user" or "assistant" is expected`, at)
		}
		text, err := readParts(fields["parts"], role, at+".parts")
		if err != nil {
			return nil, err
		}
		if text != "" || role != botapi.RoleAssistant {
			messages = append(messages, botapi.ChatMessage{Role: role, Content: text})
		}
	}
	if len(messages) == 0 {
		return nil, reject("messages: there are no messages")
	}
	return messages, nil
}

// readParts joins the texts of a message with line breaks. The other parts of an
// assistant's message (steps, reasoning, sources, data) came with an answer and are not
// what the assistant said: they are ignored. What a user attaches is rejected.
func readParts(raw json.RawMessage, role botapi.Role, at string) (string, error) {
	var parts []map[string]json.RawMessage
	if json.Unmarshal(raw, &parts) != nil || parts == nil {
		return "", reject("%s: a list of parts is expected", at)
	}
	var texts []string
	for i, part := range parts {
		kind, isText := readText(part["type"])
		text, hasText := readText(part["text"])
		switch {
		case !isText:
			return "", reject("%s[%d]: a part with a type is expected", at, i)
		case kind == "text" && !hasText:
			return "", reject("%s[%d].text: the text is missing", at, i)
		case kind == "file" && role != botapi.RoleAssistant:
			return "", reject("Bots read text only: please remove the file")
		case kind != "text" && role != botapi.RoleAssistant:
			return "", reject("%s[%d]: bots read text only", at, i)
		case kind == "text" && text != "":
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n"), nil
}

func readText(raw json.RawMessage) (text string, ok bool) {
	ok = len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &text) == nil
	return text, ok
}

func encodeMessages(messages []botapi.ChatMessage) json.RawMessage {
	type message struct {
		Role    botapi.Role `json:"role"`
		Content string      `json:"content"`
	}
	all := make([]message, len(messages))
	for i, m := range messages {
		all[i] = message(m)
	}
	return encode(all)
}

// encode encodes a value that has a JSON form, without the escapes for HTML, which could
// make a body exceed the limit of the API.
func encode(value any) json.RawMessage {
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
	return bytes.TrimSuffix(encoded.Bytes(), []byte("\n"))
}
