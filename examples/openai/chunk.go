package openai

import (
	"errors"
	"slices"
)

// Chunk is one event of a runtime's stream. It has only the fields that are needed:
// decoding the whole event into a client library's types would cost more than all
// other work on a fragment. Its byte slices share the event's memory and are valid
// until the next event is read.
type Chunk struct {
	ID, Model []byte // the runtime's names for the answer and for its model
	Text      []byte // content and refusal of all choices, unchanged
	Finish    []byte // the finish_reason; empty until there is one
	Tokens    Tokens
	Counted   bool // the chunk has a token count
	Absurd    bool // the chunk has an impossible token count

	failed bool // the event is an error and not a chunk
}

var errNoChunk = errors.New("an event of the stream is not a JSON object")

// readEvent parses the current event.
func readEvent(e *events) (Chunk, error) {
	c, err := readChunk(e.data)
	if e.error || err == nil && c.failed {
		said, _ := readError("an error in the stream", e.data)
		return Chunk{}, said
	}
	return c, err
}

// readChunk parses a chunk in one pass. It accepts the same JSON as encoding/json.
// Invalid UTF-8 is kept as it is, since a runtime may split a character between two
// chunks. Field names match exactly; the last of a repeated field counts; a field of
// an unexpected type counts as absent.
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
			failed = s.peek() != 'n'
			s.skip()
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
	c.Text, c.Finish = nil, nil
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
	var text, finish []byte
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "delta":
			text = readDelta(s)
		case "finish_reason":
			finish = s.text()
		default:
			s.skip()
		}
	}
	texts.add(text)
	if len(finish) > 0 {
		c.Finish = finish
	}
}

func readDelta(s *scanner) []byte {
	if s.peek() != '{' {
		s.skip()
		return nil
	}
	var content, refusal []byte
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "content":
			content = s.text()
		case "refusal":
			refusal = s.text()
		default:
			s.skip()
		}
	}
	var texts joined
	texts.add(content)
	texts.add(refusal)
	return texts.all
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
