package openai

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
)

// A protocol is one of OpenAI's two APIs for chats: what differs between them.
type protocol struct {
	idPrefix string
	messages string            // the field with the messages
	items    bool              // messages are items, which have a type
	parts    map[string]string // by the type of a content part: the field with its text
	names    map[string]string // by the name of a field in botapi or in chat completions: its name here; "" if there is none
	limits   map[string]limit
	own      []string // fields that do not reach the engine under this name
	repeats  []string // fields that a response repeats

	// check checks the fields that only this protocol has.
	check func(*request) error
	// addExtra adds those that reach the engine under another name.
	addExtra func(*request, map[string]json.RawMessage)
	// around returns what is written before and after the text of a JSON response.
	around func(*completion) (before, after []byte)
	stream func(*completion) botapi.StreamFormat

	// Made by init.
	isPlain map[string]bool // the fields of which nothing reaches the engine in Extra
	isOwn   map[string]bool // the fields that do not reach it under their names
	isRead  map[string]bool // the fields of which the values are kept until all are known
	limited []string        // the names in limits, sorted
	foreign []string        // the names in names, sorted: not those of fields here
}

func (p *protocol) init() *protocol {
	p.limited, p.foreign = slices.Sorted(maps.Keys(p.limits)), slices.Sorted(maps.Keys(p.names))
	plain := []string{p.messages, "model", "stream", "stream_options", "user"}
	own := slices.Concat(plain, p.own, p.foreign)
	p.isPlain, p.isOwn = setOf(plain), setOf(own)
	p.isRead = setOf(slices.Concat(own, p.repeats, []string{"safety_identifier"}))
	for _, name := range p.limited {
		outer, _, _ := strings.Cut(p.nameOf(name), ".")
		p.isRead[outer] = true
	}
	return p
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool)
	for _, name := range names {
		set[name] = true
	}
	return set
}

// nameOf returns this protocol's name of a field.
func (p *protocol) nameOf(field string) string {
	if name := p.names[field]; name != "" {
		return name
	}
	return field
}

// A request is a body that is read in one pass, up to what cannot be right. It shares the
// body's memory.
type request struct {
	protocol *protocol
	honours  map[string]bool
	body     string
	in       *jsonbody.Reader

	fields   map[string]string // values of the fields in isRead, as they are in the body; none is null
	list     jsonbody.Value    // of the field with the messages
	hasExtra bool              // there may be fields for the engine

	model, user  string
	messages     []botapi.ChatMessage
	stream       bool
	includeUsage bool
	instructions string // a message before those of the client's list
}

func (q *request) read() error {
	q.in = jsonbody.New(q.body)
	kind := q.in.Peek()
	err := q.in.Object(q.readField)
	if err == nil {
		err = q.in.End()
	}
	syntax, isSyntax := errors.AsType[*jsonbody.SyntaxError](err)
	switch {
	case q.body == "", err == nil && kind == jsonbody.Null:
		return invalid("", "missing_required_parameter", "field required")
	case isSyntax:
		return invalid("", "invalid_json", syntax.Text)
	case err != nil:
		return err
	case kind != jsonbody.Object:
		return invalid("", "invalid_type", "value is not a valid dict")
	}
	return q.check()
}

func (q *request) readField(name string) error {
	switch {
	case name == q.protocol.messages:
		q.messages, q.list = nil, jsonbody.Value{Kind: jsonbody.List}
		if q.in.Peek() == jsonbody.List {
			return q.readMessages()
		}
		q.list = q.in.Value()
	case q.protocol.isRead[name]:
		q.fields[name] = q.in.Raw()
		if q.fields[name] == "null" {
			delete(q.fields, name)
		}
	}
	q.hasExtra = q.hasExtra || !q.protocol.isPlain[name]
	return nil
}

// check checks what can be judged only when all fields are known, since the last of a
// repeated one counts.
func (q *request) check() error {
	p := q.protocol
	for _, name := range p.foreign {
		problem := "unknown parameter"
		if here := p.names[name]; here != "" {
			problem += fmt.Sprintf("; here it is %q", here)
		}
		if q.fields[name] != "" {
			return invalid(name, "unknown_parameter", problem)
		}
	}
	if err := p.check(q); err != nil {
		return err
	}
	if err := q.checkLimits(); err != nil {
		return err
	}
	return cmp.Or(q.checkModel(), q.checkMessages(), q.checkStream(), q.checkUser())
}

func (q *request) checkLimits() error {
	for _, field := range [][2]string{{"tools", "tool_choice"}, {"functions", "function_call"}} {
		if q.value(field[1]).Text == "none" {
			delete(q.fields, field[0])
		}
	}
	for _, name := range q.protocol.limited {
		here, limit := q.protocol.nameOf(name), q.protocol.limits[name]
		value := q.fields[here]
		if outer, inner, isNested := strings.Cut(here, "."); isNested {
			value = valueIn(q.fields[outer], inner)
		}
		if value != "" && !q.honours[name] && !isOneOf(value, limit.nothing) {
			return invalid(here, "unsupported_value", "bots cannot honour this value: "+limit.instead)
		}
	}
	return nil
}

// valueIn returns the value of a field of an object; "" if there is none, or null.
func valueIn(object, name string) (value string) {
	in := jsonbody.New(object)
	_ = in.Object(func(n string) error { // it is part of a body that has been read
		if n == name {
			value = in.Raw()
		}
		return nil
	})
	if value == "null" {
		return ""
	}
	return value
}

// isOneOf compares a JSON value with decoded ones: 1.0 is 1.
func isOneOf(raw string, values []any) bool {
	if len(raw) > 1000 { // longer than any value that it is compared with
		return false
	}
	var value any
	return json.Unmarshal([]byte(raw), &value) == nil &&
		slices.ContainsFunc(values, func(v any) bool { return reflect.DeepEqual(v, value) })
}

func isText(v jsonbody.Value) bool { return v.Kind == jsonbody.Text }

func (q *request) value(name string) jsonbody.Value {
	if q.fields[name] == "" {
		return jsonbody.Value{}
	}
	return jsonbody.New(q.fields[name]).Value()
}

// identifier reads a text or, as botapi does, an integer; "" if there is none.
func (q *request) identifier(name string) (string, error) {
	v := q.value(name)
	if v.Kind != 0 && v.Kind != jsonbody.Integer && !isText(v) {
		return "", invalid(name, "invalid_type", "str type expected")
	}
	return v.Text, nil
}

func (q *request) checkModel() (err error) {
	q.model, err = q.identifier("model")
	if err == nil && q.model == "" {
		err = invalid("model", "missing_required_parameter", "missing required parameter")
	}
	return err
}

func (q *request) checkMessages() error {
	name, v := q.protocol.messages, q.list
	switch {
	case v.Kind == jsonbody.List && len(q.messages) > 0:
	case isText(v) && q.protocol.items && v.Text != "":
		q.messages = []botapi.ChatMessage{{Role: botapi.RoleUser, Content: v.Text}}
	case v.Kind == 0, v.Kind == jsonbody.Null, v.Kind == jsonbody.List, isText(v) && v.Text == "":
		return invalid(name, "missing_required_parameter", "missing required parameter")
	default:
		return invalid(name, "invalid_type", "value is not a valid list")
	}
	if q.instructions != "" {
		q.messages = slices.Insert(q.messages, 0, botapi.ChatMessage{Role: botapi.RoleSystem, Content: q.instructions})
	}
	return nil
}

func (q *request) checkStream() error {
	v := q.value("stream")
	q.stream = v.Text == "true"
	if v.Kind != 0 && v.Kind != jsonbody.Boolean {
		return invalid("stream", "invalid_type", "value could not be parsed to a boolean")
	}
	return nil
}

func (q *request) checkUser() error {
	for _, name := range []string{"user", "safety_identifier"} {
		user, err := q.identifier(name)
		if err != nil {
			return err
		}
		q.user = cmp.Or(q.user, user)
	}
	return nil
}

// extra is botapi.Chat.Extra.
func (q *request) extra() map[string]json.RawMessage {
	extra := jsonbody.Fields(q.body, func(name string) bool {
		_, isLimited := q.protocol.limits[name]
		return !q.protocol.isOwn[name] && (!isLimited || q.honours[name])
	})
	if extra == nil {
		extra = make(map[string]json.RawMessage)
	}
	q.protocol.addExtra(q, extra)
	if len(extra) == 0 {
		return nil
	}
	return extra
}
