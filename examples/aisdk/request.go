package aisdk

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
)

// A body is what the page sends. It is read in one pass, up to what cannot be right, and
// shares the memory of its text. Of a repeated field, the last counts.
type body struct {
	text, id, bot string
	request       botapi.ChatRequest
}

// read reads the body of a chat with the bot that its URL names. Its errors are logged: they
// have nothing of what the client sent.
func (d *door) read(r *http.Request) (b *body, err error) {
	b = new(body)
	b.text, err = jsonbody.ReadRequest(r, b.readField)
	switch bot := d.Bot(r); {
	case err != nil:
	case b.bot == "" && bot == "":
		err = jsonbody.Invalid("bot", "is required, in the URL or in the body")
	case b.bot != "" && bot != "" && b.bot != bot:
		err = jsonbody.Invalid("bot", "is not the bot that the URL names")
	case b.id == "" && d.Answers != nil:
		err = jsonbody.Invalid("id", "is required: it leads to the answer")
	case len(b.request.Messages) == 0:
		err = jsonbody.Invalid("messages", "must have a message")
	default:
		b.bot = cmp.Or(b.bot, bot)
	}
	return b, err
}

func (b *body) readField(f jsonbody.Field) (err error) {
	switch f.Name {
	case "id":
		b.id, err = f.Text()
	case "bot":
		b.bot, err = f.Text()
	case "user_id":
		v := f.Value()
		if b.request.UserID = v.Text; v.Kind != jsonbody.Text && v.Kind != jsonbody.Integer && v.Kind != jsonbody.Null {
			err = f.Reject("must be a string") // or an integer, as in botapi
		}
	case "messages":
		b.request.Messages = nil
		err = f.Elements(b.readMessage)
	case "bot_slug", "bot_uid", "prompt", "stream":
		err = f.Require(jsonbody.Null, "is a field of another API")
	}
	return err
}

// own has the fields that do not reach the engine in ChatRequest.Extra.
var own = map[string]bool{"id": true, "bot": true, "user_id": true, "messages": true, "trigger": true, "messageId": true}

// extra is botapi.Chat.Extra.
func (b *body) extra() map[string]json.RawMessage {
	return jsonbody.Fields(b.text, func(name string) bool { return !own[name] })
}

type message struct {
	role     botapi.Role
	hasParts bool
	texts    []string
	foreign  error // the first part that only a message of the assistant may have
}

// readMessage drops messages of the assistant that have no text, as the AI SDK itself does:
// for instance one that was stopped before its first word.
func (b *body) readMessage(f jsonbody.Field) error {
	var m message
	err := f.Fields(m.readField)
	switch isAssistant := m.role == botapi.RoleAssistant; {
	case err != nil:
		return err
	case m.role == "", !m.hasParts:
		return f.Reject("must have a role and parts")
	case !isAssistant && m.foreign != nil:
		return m.foreign
	case !isAssistant || len(m.texts) > 0:
		b.request.Messages = append(b.request.Messages, botapi.ChatMessage{Role: m.role, Content: strings.Join(m.texts, "\n")})
	}
	return nil
}

func (m *message) readField(f jsonbody.Field) (err error) {
	switch f.Name {
	case "role":
		m.role, err = f.Role(false)
	case "parts":
		m.hasParts, m.texts, m.foreign = f.Peek() != jsonbody.Null, nil, nil
		err = f.Elements(m.readPart)
	}
	return err
}

//lint:ignore ST1005 a person reads it
var errFile = errors.New("Bots read text only: please remove the file")

// readPart keeps the text of a part. Other parts of an assistant's message, such as reasoning,
// are not what the assistant said: they are ignored. What a user attaches is rejected.
func (m *message) readPart(f jsonbody.Field) error {
	var kind, text jsonbody.Value
	err := f.Fields(func(f jsonbody.Field) error {
		switch f.Name {
		case "type":
			kind = f.Value()
		case "text":
			text = f.Value()
		}
		return nil
	})
	switch isText := kind.Text == "text"; {
	case err != nil:
		return err
	case kind.Kind != jsonbody.Text:
		return f.Reject("must have a type")
	case isText && text.Kind != jsonbody.Text:
		return f.Reject("must have a text")
	case isText && text.Text != "":
		m.texts = append(m.texts, text.Text)
	case kind.Text == "file":
		m.foreign = cmp.Or(m.foreign, errFile)
	case !isText && m.foreign == nil:
		m.foreign = f.Reject("is not text, and bots read text only")
	}
	if m.role == botapi.RoleSystem || m.role == botapi.RoleUser {
		return m.foreign
	}
	return nil
}
