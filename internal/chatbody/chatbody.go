// Package chatbody reads the body of POST /v1/chat: the JSON, and the rules for its fields.
// It reads as the reference service does, which is built with FastAPI 0.92 and pydantic
// 1.10, and lists the problems of a body in the form of that service.
package chatbody

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/invopop/validation"

	"example.com/botapi/internal/jsonscan"
)

// A Body is a request body that has passed every rule.
//
// Strings share the memory of the body where they can: the body stays in memory as long
// as any of them.
type Body[M any] struct {
	BotUID, BotSlug string // at least one of them
	Messages        []M    // the prompt is the last, as a message of the user; at least one
	Stream          bool
	UserID          string
	Unknown         UnknownFields
}

// A Problem is why a body is rejected.
type Problem struct {
	Loc  []any
	Msg  string
	Type string
}

// A Reader reads bodies. It is safe for concurrent use.
type Reader[M any] struct {
	message  func(role, content string) M
	decoders sync.Pool // the rules get pointers into decoders, so they cannot be on the stack
}

// New returns a reader, which makes the messages of a body with message.
func New[M any](message func(role, content string) M) *Reader[M] {
	return &Reader[M]{message: message, decoders: sync.Pool{New: func() any { return new(decoder[M]) }}}
}

// Read reads a body, or lists all of its problems, at most MaxProblems.
func (r *Reader[M]) Read(body string) (Body[M], []Problem) {
	if body == "" {
		return Body[M]{}, problems{}.add(errMissing, "body")
	}
	d := r.decoders.Get().(*decoder[M])
	defer func() {
		*d = decoder[M]{}
		r.decoders.Put(d)
	}()
	d.parser, d.newMessage = jsonscan.New(body, 0), r.message
	d.decode()
	if err := d.parser.Err(); err != nil {
		return Body[M]{}, []Problem{{[]any{"body", err.Offset}, err.Text, "value_error.jsondecode"}}
	}
	if found := d.check(); len(found) > 0 {
		return Body[M]{}, found
	}
	return d.result(body), nil
}

// The fields, in the order in which their problems are listed.
const (
	fieldBotUID = iota
	fieldBotSlug
	fieldPrompt
	fieldMessages
	fieldStream
	fieldUserID
	bodyFields
)

const (
	fieldRole = iota
	fieldContent
	messageFields
)

// A field is one that the API defines, with the rules for its value. The first rule that
// fails is the problem that is listed.
type field struct {
	name  string
	rules []validation.Rule
}

// The rules of a body: this table says when a JSON object is a 422. (So are an empty body, one
// that is no JSON, and another value.) Codes and messages are the API's types and texts.
var (
	bodyRules = [bodyFields]field{
		fieldBotUID:   {"bot_uid", []validation.Rule{isNameOrNull}},
		fieldBotSlug:  {"bot_slug", []validation.Rule{isNameOrNull}},
		fieldPrompt:   {"prompt", []validation.Rule{isTextOrNull}},
		fieldMessages: {"messages", []validation.Rule{isListOrNull}},
		fieldStream:   {"stream", []validation.Rule{isPresent, isNotNull, isBoolean}},
		fieldUserID:   {"user_id", []validation.Rule{isNameOrNull}},
	}
	messageRules = [messageFields]field{
		fieldRole:    {"role", []validation.Rule{isPresent, isNotNull, isRole}},
		fieldContent: {"content", []validation.Rule{isPresent, isNotNull, isText}},
	}
	elementRules = []validation.Rule{isNotNull, isObject}
	wholeRules   = []validation.Rule{namesABot, saysSomething}
)

// The rules for a *jsonscan.Value.
var (
	isPresent    = rule(errMissing, func(v *jsonscan.Value) bool { return v.Kind != jsonscan.Absent })
	isNotNull    = rule(errNull, func(v *jsonscan.Value) bool { return v.Kind != jsonscan.Null })
	isBoolean    = ruleOfKinds(errNotBoolean, jsonscan.Boolean)
	isText       = ruleOfKinds(errNotText, jsonscan.Text)
	isTextOrNull = ruleOfKinds(errNotText, jsonscan.Absent, jsonscan.Null, jsonscan.Text)
	isNameOrNull = ruleOfKinds(errNotText, jsonscan.Absent, jsonscan.Null, jsonscan.Text, jsonscan.Integer) // an integer counts as its digits
	isListOrNull = ruleOfKinds(errNotList, jsonscan.Absent, jsonscan.Null, jsonscan.List)
	isObject     = ruleOfKinds(errNotObject, jsonscan.Object)
	isRole       = rule(errNotRole, func(v *jsonscan.Value) bool {
		return v.Kind == jsonscan.Text && slices.Contains(roles[:], v.Text)
	})
)

func ruleOfKinds(problem validation.Error, kinds ...jsonscan.Kind) validation.Rule {
	return rule(problem, func(v *jsonscan.Value) bool { return slices.Contains(kinds, v.Kind) })
}

const userRole = "user"

var roles = [...]string{"system", userRole, "assistant"}

// The rules for a *checked body.
var (
	namesABot     = rule(errNoBot, func(c *checked) bool { return c.isSet(fieldBotUID) || c.isSet(fieldBotSlug) })
	saysSomething = rule(errNoInput, func(c *checked) bool { return c.isSet(fieldPrompt) || c.isSet(fieldMessages) })
)

var (
	errMissing    = validation.NewError("value_error.missing", "field required")
	errNull       = validation.NewError("type_error.none.not_allowed", "none is not an allowed value")
	errNotBoolean = validation.NewError("type_error.bool", "value could not be parsed to a boolean")
	errNotText    = validation.NewError("type_error.str", "str type expected")
	errNotList    = validation.NewError("type_error.list", "value is not a valid list")
	errNotObject  = validation.NewError("type_error.dict", "value is not a valid dict")
	errNotRole    = validation.NewError("type_error.enum", "value is not a valid enumeration member; permitted: 'system', 'user', 'assistant'")
	errNoBot      = validation.NewError("value_error", `Either "bot_uid" or "bot_slug" is required`)
	errNoInput    = validation.NewError("value_error", `Either "prompt" or "messages" is required`)
)

func rule[T any](problem validation.Error, holds func(*T) bool) validation.Rule {
	return validation.By(func(v any) error {
		if holds(v.(*T)) {
			return nil
		}
		return problem
	})
}

func firstProblem(rules []validation.Rule, v any) error {
	for _, rule := range rules {
		if err := rule.Validate(v); err != nil {
			return err
		}
	}
	return nil
}

type problems []Problem

// MaxProblems bounds the list: a small body must not cause a huge response.
const MaxProblems = 100

func (p problems) add(err error, loc ...any) problems {
	problem := err.(validation.Error)
	return append(p, Problem{Loc: loc, Msg: problem.Message(), Type: problem.Code()})
}

// A checked body has its fields, and what the rules say of them.
type checked struct {
	fields      [bodyFields]jsonscan.Value
	failed      [bodyFields]bool // did not pass its own rules
	hasMessages bool
}

// isSet reports whether a field has passed its rules, and is neither null nor empty.
func (c *checked) isSet(f int) bool {
	v := &c.fields[f]
	return !c.failed[f] && (v.Text != "" || v.Kind == jsonscan.List && c.hasMessages)
}

// A decoder reads all of a body, the last of a repeated field replacing the earlier ones.
// Then it applies the rules.
type decoder[M any] struct {
	parser     jsonscan.Parser
	newMessage func(role, content string) M
	document   jsonscan.Value
	messages   []M      // those without problems
	problems   problems // of messages
	unknown    UnknownFields
	checked

	// The message that is being read.
	element jsonscan.Value
	message [messageFields]jsonscan.Value
}

func (d *decoder[M]) decode() {
	p := &d.parser
	p.Begin()
	if p.Peek() == '{' {
		d.document.Kind = jsonscan.Object
		d.decodeBody()
	} else {
		d.document = p.Value()
	}
	p.End()
}

func (d *decoder[M]) decodeBody() {
	p := &d.parser
	p.Enter()
	for first := true; p.Next('}', first); first = false {
		beforeName := p.Offset()
		known := fieldNamed(bodyRules[:], p.Name())
		switch {
		case known == fieldMessages && p.Peek() == '[':
			d.fields[fieldMessages] = jsonscan.Value{Kind: jsonscan.List}
			d.decodeMessages()
		case known >= 0:
			d.fields[known] = p.Value()
		default:
			if d.unknown.end == 0 {
				d.unknown.start = beforeName
			}
			value := p.Offset()
			p.Value()
			d.unknown.end = p.Offset()
			d.unknown.size += p.Offset() - value
		}
	}
}

func (d *decoder[M]) decodeMessages() {
	p := &d.parser
	d.messages, d.problems = nil, nil
	p.Enter()
	for i := 0; p.Next(']', i == 0); i++ {
		d.decodeMessage(i)
	}
}

// decodeMessage leaves nothing of a bad message but its problems, so that a list of them
// costs no memory.
func (d *decoder[M]) decodeMessage(i int) {
	d.readMessage()
	if len(d.problems) >= MaxProblems {
		return
	}
	before := len(d.problems)
	if err := firstProblem(elementRules, &d.element); err != nil {
		d.problems = d.problems.add(err, "body", "messages", i)
		return
	}
	for f := range messageRules {
		if err := firstProblem(messageRules[f].rules, &d.message[f]); err != nil {
			d.problems = d.problems.add(err, "body", "messages", i, messageRules[f].name)
		}
	}
	if len(d.problems) > before {
		return
	}
	if len(d.messages) == cap(d.messages) { // append would make more room than the body can fill
		room := d.parser.Rest() / len(`{"role":"user","content":""},`)
		d.messages = slices.Grow(d.messages, 1+min(max(len(d.messages), 3), room))
	}
	d.messages = append(d.messages, d.newMessage(d.message[fieldRole].Text, d.message[fieldContent].Text))
}

func (d *decoder[M]) readMessage() {
	p := &d.parser
	if p.Peek() != '{' {
		d.element = p.Value()
		return
	}
	d.element = jsonscan.Value{Kind: jsonscan.Object}
	d.message = [messageFields]jsonscan.Value{}
	p.Enter()
	for first := true; p.Next('}', first); first = false {
		known := fieldNamed(messageRules[:], p.Name())
		v := p.Value()
		if known >= 0 {
			d.message[known] = v
		}
	}
}

// fieldNamed returns the index of the field with exactly this name, or -1.
func fieldNamed(fields []field, name string) int {
	return slices.IndexFunc(fields, func(f field) bool { return f.name == name })
}

func (d *decoder[M]) check() problems {
	var found problems
	switch d.document.Kind {
	case jsonscan.Object:
	case jsonscan.Null:
		return found.add(errMissing, "body")
	default:
		return found.add(errNotObject, "body")
	}
	for f := range bodyRules {
		if err := firstProblem(bodyRules[f].rules, &d.fields[f]); err != nil {
			found = found.add(err, "body", bodyRules[f].name)
			d.failed[f] = true
		}
		if f == fieldMessages && d.fields[f].Kind == jsonscan.List && len(d.problems) > 0 {
			found = append(found, d.problems...)
			d.failed[f] = true
		}
	}
	d.hasMessages = len(d.messages) > 0
	for _, rule := range wholeRules {
		if err := rule.Validate(&d.checked); err != nil {
			found = found.add(err, "body", "__root__")
		}
	}
	return found[:min(len(found), MaxProblems)]
}

func (d *decoder[M]) result(body string) Body[M] {
	b := Body[M]{
		BotUID:  d.fields[fieldBotUID].Text,
		BotSlug: d.fields[fieldBotSlug].Text,
		Stream:  d.fields[fieldStream].Text == "true",
		UserID:  d.fields[fieldUserID].Text,
		Unknown: d.unknown,
	}
	b.Unknown.body = body
	if d.isSet(fieldMessages) {
		b.Messages = d.messages
	}
	if d.isSet(fieldPrompt) {
		b.Messages = append(b.Messages, d.newMessage(userRole, d.fields[fieldPrompt].Text))
	}
	return b
}

// UnknownFields are the fields of a body that the API does not define. Only their place is
// kept: a small body may have very many.
type UnknownFields struct {
	body       string
	size       int // of all their values
	start, end int // of the first and of the last in the body, with other fields between them; end is 0 if there are none
}

// Extra reads the fields again, which are known to be JSON. Their values are copied, all
// together: an engine may change them, and keeping them must not retain the body.
func (u UnknownFields) Extra() map[string]json.RawMessage {
	if u.end == 0 {
		return nil
	}
	values := make([]byte, 0, u.size)
	extra := make(map[string]json.RawMessage)
	p := jsonscan.New(u.body[:u.end], u.start)
	for first := true; p.Rest() > 0 && p.Next('}', first); first = false {
		name := p.Name()
		start := p.Offset()
		p.Value()
		if fieldNamed(bodyRules[:], name) < 0 {
			kept := len(values)
			values = append(values, p.Since(start)...)
			extra[strings.Clone(name)] = values[kept:len(values):len(values)]
		}
	}
	return extra
}

// Any reports whether there are unknown fields.
func (u UnknownFields) Any() bool { return u.end != 0 }
