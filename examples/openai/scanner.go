package openai

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

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
