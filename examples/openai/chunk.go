package openai

import (
	"errors"
	"slices"
)

// Chunk is one event of a runtime's stream. Decoding all of it into a client's
// types would cost more than everything else that happens to a fragment on its
// way. Its texts are parts of the event that they were read from: they are valid
// until the next one is read.
type Chunk struct {
	ID, Model []byte // the runtime's names for the answer and for its model
	Text      []byte // content and refusal of all choices, as they came
	Finish    []byte // why the answer is over; empty while it goes on
	Tokens    Tokens
	Counted   bool // Tokens was in the chunk
	Absurd    bool // what was in the chunk for Tokens is a count that no chat has

	failed bool // an error came in place of a chunk
}

var errNoChunk = errors.New("an event of the stream is not a JSON object")

// readEvent reads the event that was read last.
func readEvent(e *events) (Chunk, error) {
	c, err := readChunk(e.data)
	if e.error || err == nil && c.failed {
		said, _ := readError("an error in the stream", e.data)
		return Chunk{}, said
	}
	return c, err
}

// readChunk reads a chunk in one pass. It takes exactly what JSON is, in the
// way that encoding/json does, but for one thing: a runtime may cut a character
// between two chunks, and its bytes stay as they are. Members count under their
// exact name, the last of a repeated one alone; one of an unexpected type
// counts as absent.
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
		case "object": // of vLLM's errors, in former versions
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

// joined are texts, one after another. They are copied only where there are two, which
// is rare.
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
