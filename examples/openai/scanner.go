package openai

import (
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A scanner reads JSON in one pass. A syntax error sets failed and moves it to the
// end, where it finds nothing more. So its user checks failed once, at the end.
type scanner struct {
	data   []byte
	at     int
	depth  int
	first  bool // no element of the innermost object or array has been read
	failed bool
}

// maxDepth is the limit of encoding/json.
const maxDepth = 10_000

func (s *scanner) fail() { s.at, s.failed = len(s.data), true }

// peek returns the next byte that is not white space, or 0 at the end.
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

// open begins an object or an array. Read its elements while more returns true.
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

// name reads the name of a field and the colon.
func (s *scanner) name() []byte {
	if s.peek() != '"' {
		s.fail()
		return nil
	}
	name := s.text()
	s.take(':')
	return name
}

// skip skips a value.
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

// count reads an integer; ok is false for other values.
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

// text reads a string; it returns nil for other values.
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

// quoted reads a string and returns the raw bytes between its quotes.
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

// escapeLength is the length of the escape at the start of text. For an invalid escape
// it exceeds len(text), so that the string never ends.
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

// hex parses hexadecimal digits; it returns -1 if they are invalid.
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

// unescape decodes a string that quoted has read. A lone surrogate becomes U+FFFD;
// other bytes are kept.
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
			text = utf8.AppendRune(text, r) // AppendRune turns a lone surrogate into U+FFFD
		}
	}
	return text
}
