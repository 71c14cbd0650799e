package runtimes

import (
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A chunk is what the engine needs of one chunk of a stream. Decoding all of it
// into the client's types would cost more than everything else that happens to
// a fragment on its way. Texts are parts of the event that they were read from.
type chunk struct {
	id, model []byte
	text      []byte // content and refusal of all choices, as they came
	finish    []byte // why the answer is over; empty while it goes on
	used      Tokens
	counted   bool // used was in the chunk
	failed    bool // an error came in place of a chunk
}

// Tokens is how long a chat was, as its runtime counts it.
type Tokens struct{ Prompt, Completion int64 }

var errNoChunk = errors.New("an event in the stream is not a JSON object")

// readChunk reads a chunk in one pass. It takes exactly what JSON is, in the
// way that encoding/json does, but for one thing: a runtime may cut a character
// between two chunks, and its bytes stay as they are. Members count under their
// exact name, the last of a repeated one alone; one of an unexpected type
// counts as absent.
func readChunk(event []byte) (chunk, error) {
	var c chunk
	s := scanner{data: event}
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "id":
			c.id = s.text()
		case "model":
			c.model = s.text()
		case "choices":
			c.readChoices(&s)
		case "usage":
			c.readUsage(&s)
		case "error":
			c.failed = s.peek() != 'n'
			s.skip()
		default:
			s.skip()
		}
	}
	if s.peek(); s.at < len(event) || s.failed {
		return chunk{}, errNoChunk
	}
	return c, nil
}

func (c *chunk) readChoices(s *scanner) {
	c.text, c.finish = nil, nil
	if s.peek() != '[' {
		s.skip()
		return
	}
	for s.open('['); s.more(']'); {
		c.readChoice(s)
	}
}

func (c *chunk) readChoice(s *scanner) {
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
	c.text = join(c.text, text)
	if len(finish) > 0 {
		c.finish = finish
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
	return join(content, refusal)
}

// join copies only where there are two texts, which is rare.
func join(a, b []byte) []byte {
	switch {
	case len(b) == 0:
		return a
	case len(a) == 0:
		return b
	}
	return append(a[:len(a):len(a)], b...)
}

func (c *chunk) readUsage(s *scanner) {
	c.used, c.counted = Tokens{}, false
	if s.peek() != '{' {
		s.skip()
		return
	}
	var prompt, completion bool
	for s.open('{'); s.more('}'); {
		switch string(s.name()) {
		case "prompt_tokens":
			c.used.Prompt, prompt = s.count()
		case "completion_tokens":
			c.used.Completion, completion = s.count()
		default:
			s.skip()
		}
	}
	c.counted = prompt && completion
}

// A scanner reads JSON from front to back. A mistake moves it to the end, where
// nothing more is found: whoever uses it asks once, at last, whether it failed.
type scanner struct {
	data   []byte
	at     int
	depth  int
	first  bool // nothing of the innermost object or array has been read
	failed bool
}

// maxDepth is that of encoding/json.
const maxDepth = 10_000

func (s *scanner) fail() { s.at, s.failed = len(s.data), true }

// peek returns the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) take(c byte) {
	if s.peek() != c || s.at == len(s.data) {
		s.fail()
		return
	}
	s.at++
}

// open begins an object or an array, whose elements are read while more.
func (s *scanner) open(bracket byte) {
	s.take(bracket)
	s.first = true
	if s.depth++; s.depth > maxDepth {
		s.fail()
	}
}

// more reports whether there is another element before the closing bracket.
func (s *scanner) more(bracket byte) bool {
	first := s.first
	s.first = false
	switch {
	case s.failed:
		return false
	case s.peek() == bracket:
		s.at++
		s.depth--
		return false
	case !first:
		s.take(',')
	}
	return !s.failed
}

// name reads the name of an object's member.
func (s *scanner) name() []byte {
	if s.peek() != '"' {
		s.fail()
		return nil
	}
	name := s.text()
	s.take(':')
	return name
}

// skip reads a value that is not needed.
func (s *scanner) skip() {
	switch s.peek() {
	case '{':
		for s.open('{'); s.more('}'); {
			s.name()
			s.skip()
		}
	case '[':
		for s.open('['); s.more(']'); {
			s.skip()
		}
	case '"':
		s.quoted()
	case 't':
		s.word("true")
	case 'f':
		s.word("false")
	case 'n':
		s.word("null")
	default:
		s.number()
	}
}

func (s *scanner) word(w string) {
	if end := s.at + len(w); end <= len(s.data) && string(s.data[s.at:end]) == w {
		s.at = end
		return
	}
	s.fail()
}

// count reads a whole number; other values count as none.
func (s *scanner) count() (n int64, ok bool) {
	s.peek()
	start := s.at
	s.skip()
	n, err := strconv.ParseInt(string(s.data[start:s.at]), 10, 64)
	return n, err == nil
}

func (s *scanner) number() {
	s.optional('-')
	if !s.optional('0') {
		s.digits()
	}
	if s.optional('.') {
		s.digits()
	}
	if s.optional('e') || s.optional('E') {
		_ = s.optional('+') || s.optional('-')
		s.digits()
	}
}

func (s *scanner) optional(c byte) bool {
	if s.at == len(s.data) || s.data[s.at] != c {
		return false
	}
	s.at++
	return true
}

func (s *scanner) digits() {
	start := s.at
	for s.at < len(s.data) && '0' <= s.data[s.at] && s.data[s.at] <= '9' {
		s.at++
	}
	if s.at == start {
		s.fail()
	}
}

// text reads a string; other values count as none.
func (s *scanner) text() []byte {
	if s.peek() != '"' {
		s.skip()
		return nil
	}
	raw, escaped := s.quoted()
	if !escaped {
		return raw
	}
	return unescape(raw)
}

// quoted reads a string and returns what is between its quotes.
func (s *scanner) quoted() (raw []byte, escaped bool) {
	s.at++
	start := s.at
	for ; s.at < len(s.data); s.at++ {
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			return s.data[start : s.at-1], escaped
		case c == '\\':
			escaped = true
			s.at += escapeLength(s.data[s.at:]) - 1
		case c < ' ':
			s.fail()
			return nil, false
		}
	}
	s.fail()
	return nil, false
}

// escapeLength is how long the escape is that text begins with. One that is
// none is as long as what is left and longer, so that its string has no end.
func escapeLength(text []byte) int {
	if len(text) < 2 {
		return len(text) + 1
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(text) >= 6 && hex(text[2:6]) >= 0 {
			return 6
		}
	}
	return len(text) + 1
}

// hex reads four hexadecimal digits; it is negative where they are none.
func hex(digits []byte) rune {
	var r rune
	for _, c := range digits {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unescape decodes a string that quoted has read. Half of a surrogate pair is
// U+FFFD; other bytes stay as they are.
func unescape(raw []byte) []byte {
	text := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		switch {
		case raw[i] != '\\':
			text = append(text, raw[i])
			i++
		case raw[i+1] != 'u':
			text = append(text, escapes[raw[i+1]])
			i += 2
		default:
			r := hex(raw[i+2 : i+6])
			i += 6
			if utf16.IsSurrogate(r) && i+6 <= len(raw) && raw[i] == '\\' && raw[i+1] == 'u' {
				if pair := utf16.DecodeRune(r, hex(raw[i+2:i+6])); pair != utf8.RuneError {
					r = pair
					i += 6
				}
			}
			text = utf8.AppendRune(text, r) // half a pair becomes U+FFFD here
		}
	}
	return text
}
