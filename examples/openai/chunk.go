package openai

import (
	"bytes"
	"errors"
	"slices"
)

// Chunk is one event of a runtime's stream. It has only the fields that are needed:
// decoding the whole event into a client library's types would cost more than all
// other work on a fragment. Its byte slices share the event's memory and are valid
// until the next event is read.
type Chunk struct {
	ID, Model []byte // the runtime's names for the answer and for its model
	Text      []byte // content and refusal of all choices, unchanged, without reasoning
	Finish    []byte // the finish_reason; empty until there is one
	Tokens    Tokens
	Counted   bool // the chunk has a token count
	Absurd    bool // the chunk has an impossible token count
	Alive     bool // nothing but a sign of life: a comment, or an event without data

	failed     bool // the event is an error and not a chunk
	isMessage  bool // Text is in messages, not in deltas
	unreadable bool // there is content other than text, such as tool calls
}

var errNoChunk = errors.New("an event of the stream is not a JSON object")

// readChunk parses a chunk in one pass. It accepts the same JSON as encoding/json.
// Invalid UTF-8 is kept as it is, since a runtime may split a character between two
// chunks. Field names match exactly; the last of a repeated field counts; a field of
// an unexpected type counts as absent.
//
// An error without content is none. Some runtimes send "message", or "text" as for OpenAI's older completions, in place of
// "delta". Others repeat the answer so far in "message" next to "delta", so a delta with
// text has precedence.
func readChunk(event []byte) (Chunk, error) {
	var c Chunk
	var failed, isError bool
	s := scanner{data: event}
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "id":
			c.ID = s.text()
		case "model":
			c.Model = s.text()
		case "choices":
			c.readChoices(&s)
		case "usage":
			c.readUsage(&s)
		case "error":
			failed = isContent(&s)
		case "object": // errors of former versions of vLLM
			isError = string(s.text()) == "error"
		default:
			s.skip()
		}
	}
	if s.peek(); s.at < len(event) || s.failed {
		return Chunk{}, errNoChunk
	}
	c.failed = failed || isError
	return c, nil
}

func (c *Chunk) readChoices(s *scanner) {
	c.Text, c.Finish, c.isMessage, c.unreadable = nil, nil, false, false
	if s.peek() != '[' {
		s.skip()
		return
	}
	var texts joined
	for s.open('['); s.more(']'); {
		c.readChoice(s, &texts)
	}
	c.Text = texts.all
}

func (c *Chunk) readChoice(s *scanner, texts *joined) {
	if s.peek() != '{' {
		s.skip()
		return
	}
	var delta, message, text, finish []byte
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "delta":
			delta = c.readMessage(s)
		case "message":
			message = c.readMessage(s)
		case "text":
			text = answerText(s)
		case "finish_reason":
			finish = s.text()
		default:
			s.skip()
		}
	}
	if len(message) == 0 {
		message = text
	}
	switch {
	case len(delta) > 0:
		texts.add(delta)
	case len(message) > 0:
		texts.add(message)
		c.isMessage = true
	}
	if len(finish) > 0 && !isAborted(string(c.Finish)) { // of several choices, none may be aborted
		c.Finish = finish
	}
}

// readMessage reads a delta or a message.
func (c *Chunk) readMessage(s *scanner) []byte {
	if s.peek() != '{' {
		c.cannotRead(s)
		return nil
	}
	var content, refusal []byte
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "content":
			content = c.readContent(s)
		case "refusal":
			refusal = answerText(s)
		case "tool_calls", "function_call", "audio", "images":
			c.cannotRead(s)
		default:
			s.skip()
		}
	}
	var texts joined
	texts.add(content)
	texts.add(refusal)
	return texts.all
}

// readContent reads a text or a list of parts.
func (c *Chunk) readContent(s *scanner) []byte {
	switch s.peek() {
	case '"':
		return answerText(s)
	case '[':
		var texts joined
		for s.open('['); s.more(']'); {
			texts.add(c.readPart(s))
		}
		return texts.all
	}
	c.cannotRead(s)
	return nil
}

func (c *Chunk) readPart(s *scanner) []byte {
	if s.peek() != '{' {
		return answerText(s)
	}
	var kind, text []byte
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "type":
			kind = s.text()
		case "text":
			text = answerText(s)
		default:
			s.skip()
		}
	}
	switch string(kind) {
	case "", "text":
		return text
	case "thinking", "reasoning":
		return nil
	}
	c.unreadable = true
	return nil
}

// cannotRead skips a value, and notes it if there is something in it.
func (c *Chunk) cannotRead(s *scanner) {
	has := isContent(s)
	c.unreadable = c.unreadable || has
}

// isContent skips a value, and reports whether there is something in it: null, false and
// empty values are nothing.
func isContent(s *scanner) bool {
	s.peek()
	start := s.at
	s.skip()
	value := string(bytes.Trim(s.data[start:s.at], "[]{}\" \t\r\n"))
	return value != "" && value != "null" && value != "false"
}

// joined concatenates texts. It copies only if there is more than one, which is rare.
type joined struct {
	all []byte
	own bool // all is a copy
}

func (j *joined) add(text []byte) {
	switch {
	case len(text) == 0:
	case len(j.all) == 0:
		j.all = text
	case j.own:
		j.all = append(j.all, text...)
	default:
		j.all, j.own = append(slices.Clip(j.all), text...), true
	}
}

func (c *Chunk) readUsage(s *scanner) {
	c.Tokens, c.Counted, c.Absurd = Tokens{}, false, false
	if s.peek() != '{' {
		s.skip()
		return
	}
	var prompt, completion bool
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "prompt_tokens":
			c.Tokens.Prompt, prompt = s.count()
		case "completion_tokens":
			c.Tokens.Completion, completion = s.count()
		default:
			s.skip()
		}
	}
	isCount, credible := prompt && completion, c.Tokens.credible()
	c.Counted, c.Absurd = isCount && credible, isCount && !credible
}
