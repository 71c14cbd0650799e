package openai

import (
	"errors"
	"strconv"
	"strings"

	"example.com/botapi/examples/jsonbody"
)

// Chunk is one event of a runtime's stream. It has only the fields that are needed:
// decoding the whole event into a client library's types would cost more than all
// other work on a fragment.
type Chunk struct {
	ID, Model string // the runtime's names for the answer and for its model
	Text      string // content and refusal of all choices, unchanged, without reasoning
	Finish    string // the finish_reason; empty until there is one
	Tokens    Tokens
	Counted   bool // the chunk has a token count
	Absurd    bool // the chunk has an impossible token count
	Alive     bool // nothing but a sign of life: a comment, or an event without data

	failed     bool // the event is an error and not a chunk
	isMessage  bool // Text is in messages, not in deltas
	unreadable bool // there is content other than text, such as tool calls
}

var errNoChunk = errors.New("an event of the stream is not a JSON object")

// readChunk parses a chunk in one pass. It accepts the same JSON as encoding/json, and a
// byte order mark before it. Invalid UTF-8 is kept as it is, since a runtime may split a
// character between two chunks. Field names match exactly; the last of a repeated field
// counts; a field of an unexpected type counts as absent.
//
// An error without content is none. Some runtimes send "message", or "text" as for OpenAI's older completions, in place of
// "delta". Others repeat the answer so far in "message" next to "delta", so a delta with
// text has precedence.
func readChunk(event string) (Chunk, error) {
	var c Chunk
	var failed, isError bool
	parser := jsonbody.NewEvent(event)
	p := &parser
	isObject := p.Peek() == '{'
	for i := 0; next(p, '{', i); i++ {
		switch p.Name() {
		case "id":
			c.ID = textValue(p)
		case "model":
			c.Model = textValue(p)
		case "choices":
			c.readChoices(p)
		case "usage":
			c.readUsage(p)
		case "error":
			failed = isContent(p)
		case "object": // errors of former versions of vLLM
			isError = textValue(p) == "error"
		default:
			p.Value()
		}
	}
	if p.End(); p.Err() != nil || !isObject {
		return Chunk{}, errNoChunk
	}
	c.failed = failed || isError
	return c, nil
}

// next steps to the element i of the object or array at hand, which begins with a bracket. It
// returns false at the end, or if another value is at hand, which it skips.
func next(p *jsonbody.Parser, bracket byte, i int) bool {
	if i > 0 {
		return p.Next(bracket+2, false) // in ASCII, the closing one
	}
	if p.Peek() != bracket {
		p.Value()
		return false
	}
	p.Enter()
	return p.Next(bracket+2, true)
}

// textValue reads a value, and returns the text of a string.
func textValue(p *jsonbody.Parser) string {
	if v := p.Value(); v.Kind == jsonbody.Text {
		return v.Text
	}
	return ""
}

func (c *Chunk) readChoices(p *jsonbody.Parser) {
	c.Finish, c.isMessage, c.unreadable = "", false, false
	var texts joined
	for i := 0; next(p, '[', i); i++ {
		c.readChoice(p, &texts)
	}
	c.Text = texts.String()
}

func (c *Chunk) readChoice(p *jsonbody.Parser, texts *joined) {
	var delta, message, text, finish string
	for i := 0; next(p, '{', i); i++ {
		switch p.Name() {
		case "delta":
			delta = c.readMessage(p)
		case "message":
			message = c.readMessage(p)
		case "text":
			text = answerText(p)
		case "finish_reason":
			finish = textValue(p)
		default:
			p.Value()
		}
	}
	if message == "" {
		message = text
	}
	switch {
	case delta != "":
		texts.add(delta)
	case message != "":
		texts.add(message)
		c.isMessage = true
	}
	if finish != "" && !isAborted(c.Finish) { // of several choices, none may be aborted
		c.Finish = finish
	}
}

// readMessage reads a delta or a message.
func (c *Chunk) readMessage(p *jsonbody.Parser) string {
	if p.Peek() != '{' {
		c.cannotRead(p)
		return ""
	}
	var content, refusal string
	for i := 0; next(p, '{', i); i++ {
		switch p.Name() {
		case "content":
			content = c.readContent(p)
		case "refusal":
			refusal = answerText(p)
		case "tool_calls", "function_call", "audio", "images":
			c.cannotRead(p)
		default:
			p.Value()
		}
	}
	return content + refusal
}

// readContent reads a text or a list of parts.
func (c *Chunk) readContent(p *jsonbody.Parser) string {
	switch p.Peek() {
	case '"':
		return answerText(p)
	case '[':
		var texts joined
		for i := 0; next(p, '[', i); i++ {
			texts.add(c.readPart(p))
		}
		return texts.String()
	}
	c.cannotRead(p)
	return ""
}

func (c *Chunk) readPart(p *jsonbody.Parser) string {
	if p.Peek() != '{' {
		return answerText(p)
	}
	var kind, text string
	for i := 0; next(p, '{', i); i++ {
		switch p.Name() {
		case "type":
			kind = textValue(p)
		case "text":
			text = answerText(p)
		default:
			p.Value()
		}
	}
	switch kind {
	case "", "text":
		return text
	case "thinking", "reasoning":
		return ""
	}
	c.unreadable = true
	return ""
}

// cannotRead skips a value, and notes it if there is something in it.
func (c *Chunk) cannotRead(p *jsonbody.Parser) {
	has := isContent(p)
	c.unreadable = c.unreadable || has
}

// isContent skips a value, and reports whether there is something in it: null, false and
// empty values are nothing.
func isContent(p *jsonbody.Parser) bool {
	start := p.Offset()
	p.Value()
	value := strings.Trim(p.Since(start), "[]{}\" \t\r\n")
	return value != "" && value != "null" && value != "false"
}

// joined concatenates texts. It copies only if there is more than one, which is rare.
type joined struct {
	first string
	all   strings.Builder
}

func (j *joined) add(text string) {
	switch {
	case text == "":
	case j.first == "":
		j.first = text
	default:
		if j.all.Len() == 0 {
			j.all.WriteString(j.first)
		}
		j.all.WriteString(text)
	}
}

func (j *joined) String() string {
	if j.all.Len() == 0 {
		return j.first
	}
	return j.all.String()
}

func (c *Chunk) readUsage(p *jsonbody.Parser) {
	c.Tokens = Tokens{}
	var prompt, completion bool
	for i := 0; next(p, '{', i); i++ {
		switch p.Name() {
		case "prompt_tokens":
			c.Tokens.Prompt, prompt = readCount(p)
		case "completion_tokens":
			c.Tokens.Completion, completion = readCount(p)
		default:
			p.Value()
		}
	}
	isCount, credible := prompt && completion, c.Tokens.credible()
	c.Counted, c.Absurd = isCount && credible, isCount && !credible
}

// readCount reads an integer; ok is false for other values.
func readCount(p *jsonbody.Parser) (n int64, ok bool) {
	v := p.Value()
	n, err := strconv.ParseInt(v.Text, 10, 64)
	return n, v.Kind == jsonbody.Integer && err == nil
}
