// Package jsonscan reads JSON (RFC 8259, in UTF-8) from a string. Unlike encoding/json, it
// tells the offset of the first byte that cannot be part of a JSON value, and each
// occurrence of a repeated field.
package jsonscan

import (
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"example.com/botapi/internal/jsontext"
)

// A Value is one JSON value: what it is, and the text of a scalar.
type Value struct {
	Kind Kind
	Text string // a string's characters; a number's or a boolean's own text
}

// Kind is the kind of a Value. Absent is that of no value.
type Kind uint8

const (
	Absent Kind = iota
	Null
	Boolean
	Integer
	Number // with a fraction or an exponent
	Text
	List
	Object
)

// MaxDepth bounds how deeply a value may be nested.
const MaxDepth = 10_000

// A SyntaxError says where a text stops being JSON, in the form of Python's json module.
type SyntaxError struct {
	Offset int // of the byte, counted from 0
	Text   string
}

// A Parser steps through one text. After the first error, Peek returns 0, Next returns
// false, and nothing more is read. Strings without escapes share the memory of the text.
type Parser struct {
	text  string
	at    int
	depth int
	err   *SyntaxError

	// AnyBytes keeps what is not UTF-8 in a string, as it is, where it is an error otherwise.
	AnyBytes bool
}

// New returns a parser for a text, which begins to read at an offset.
func New(text string, offset int) Parser { return Parser{text: text, at: offset} }

// Err returns the first error, or nil.
func (p *Parser) Err() *SyntaxError { return p.err }

// Offset is where in the text the parser is.
func (p *Parser) Offset() int { return p.at }

// Rest is how many bytes are still to be read.
func (p *Parser) Rest() int { return len(p.text) - p.at }

// Since returns the text that was read since an offset.
func (p *Parser) Since(offset int) string { return p.text[offset:p.at] }

func (p *Parser) fail(problem string) {
	if p.err != nil {
		return
	}
	read := p.text[:p.at]
	line, column := 1+strings.Count(read, "\n"), p.at-strings.LastIndexByte(read, '\n')
	p.err = &SyntaxError{p.at, fmt.Sprintf("%s: line %d column %d (char %d)", problem, line, column, p.at)}
	p.text = read
}

// Peek returns the next byte, or 0, which is never part of JSON.
func (p *Parser) Peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

// Begin skips one byte order mark and white space. It is called first.
func (p *Parser) Begin() {
	if strings.HasPrefix(p.text, "\uFEFF") {
		p.at = len("\uFEFF")
	}
	p.space()
}

// End fails unless nothing but white space is left.
func (p *Parser) End() {
	p.space()
	if p.at < len(p.text) {
		p.fail("Extra data")
	}
}

func (p *Parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\n', '\r', '\t':
			p.at++
		default:
			return
		}
	}
}

// Enter steps into the object or array whose bracket Peek has returned.
func (p *Parser) Enter() {
	if p.depth++; p.depth > MaxDepth {
		p.fail("Too many levels")
		return
	}
	p.at++
	p.space()
}

// Next steps to the next element of the object or array that closing ends, and returns true. If
// there is none, it steps past the end, or fails, and returns false. first is whether no element was read yet.
func (p *Parser) Next(closing byte, first bool) bool {
	if !first {
		p.space()
	}
	switch c := p.Peek(); {
	case p.err != nil:
		return false
	case c == closing:
		p.at++
		p.depth--
		return false
	case first:
		return true
	case c != ',':
		p.fail("Expecting ',' delimiter")
		return false
	}
	p.at++
	p.space()
	return true
}

// Name reads the name of a field, up to where its value begins.
func (p *Parser) Name() string {
	if p.Peek() != '"' {
		p.fail("Expecting property name enclosed in double quotes")
		return ""
	}
	name := p.string()
	p.space()
	if p.Peek() != ':' {
		p.fail("Expecting ':' delimiter")
		return ""
	}
	p.at++
	p.space()
	return name
}

// Value reads one value. The content of an object or array is checked but not kept.
func (p *Parser) Value() Value {
	switch p.Peek() {
	case '{':
		p.skip()
		return Value{Kind: Object}
	case '[':
		p.skip()
		return Value{Kind: List}
	default:
		return p.scalar()
	}
}

// skip reads an object or array without recursion: an attacker's is nested deeply.
func (p *Parser) skip() {
	var few [64]byte
	open := few[:0] // the closing brackets that are still to come
	for p.err == nil {
		c := p.Peek()
		entered := c == '{' || c == '['
		if entered {
			p.Enter()
			open = append(open, c+2) // in ASCII, the closing one
		} else {
			p.scalar()
		}
		for !p.Next(open[len(open)-1], entered) {
			if open = open[:len(open)-1]; len(open) == 0 {
				return
			}
			entered = false
		}
		if open[len(open)-1] == '}' {
			p.Name()
		}
	}
}

func (p *Parser) scalar() Value {
	switch c := p.Peek(); {
	case c == '"':
		return Value{Text, p.string()}
	case c == '-' || isDigit(c):
		return p.number()
	case c == 't':
		return p.literal("true", Boolean)
	case c == 'f':
		return p.literal("false", Boolean)
	case c == 'n':
		return p.literal("null", Null)
	}
	p.fail("Expecting value")
	return Value{}
}

func (p *Parser) literal(word string, kind Kind) Value {
	for i := range len(word) {
		if p.Peek() != word[i] {
			p.fail("Expecting value")
			return Value{}
		}
		p.at++
	}
	if kind == Null {
		word = ""
	}
	return Value{kind, word}
}

func (p *Parser) number() Value {
	start, kind := p.at, Integer
	p.accept("-")
	if !p.accept("0") {
		p.digits()
	}
	if p.accept(".") {
		kind = Number
		p.digits()
	}
	if p.accept("eE") {
		kind = Number
		p.accept("+-")
		p.digits()
	}
	return Value{kind, p.text[start:p.at]}
}

func (p *Parser) accept(bytes string) bool {
	if p.at == len(p.text) || strings.IndexByte(bytes, p.text[p.at]) < 0 {
		return false
	}
	p.at++
	return true
}

func (p *Parser) digits() {
	if !isDigit(p.Peek()) {
		p.fail("Expecting a digit")
	}
	for isDigit(p.Peek()) {
		p.at++
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (p *Parser) string() string {
	p.at++
	start := p.at
	p.characters()
	if p.Peek() == '"' {
		p.at++
		return p.text[start : p.at-1]
	}
	decoded := make([]byte, 0, min(2*(p.at-start)+32, p.at-start+p.Rest()))
	for p.err == nil {
		decoded = append(decoded, p.text[start:p.at]...)
		if p.Peek() == '"' {
			p.at++
			return string(decoded)
		}
		decoded = p.escape(decoded)
		start = p.at
		p.characters()
	}
	return ""
}

func (p *Parser) characters() {
	for p.at < len(p.text) {
		p.at += jsontext.PlainPrefix(p.text[p.at:])
		switch c := p.Peek(); {
		case p.at == len(p.text):
		case c == '"' || c == '\\':
			return
		case c == '[': // special to jsontext, but not to JSON
			p.at++
		case c < utf8.RuneSelf:
			p.fail("Invalid control character at")
			return
		default:
			_, size := utf8.DecodeRuneInString(p.text[p.at:])
			if size == 1 && !p.AnyBytes {
				p.fail("Not UTF-8")
				return
			}
			p.at += size
		}
	}
	p.fail("Unterminated string")
}

// escape decodes the escape that comes next. A lone surrogate is U+FFFD.
func (p *Parser) escape(dst []byte) []byte {
	p.at++
	c := p.Peek()
	if c == 'u' {
		return utf8.AppendRune(dst, p.unicodeEscape())
	}
	i := strings.IndexByte(`"\/bfnrt`, c)
	if i < 0 {
		p.fail("Invalid \\escape")
		return dst
	}
	p.at++
	return append(dst, "\"\\/\b\f\n\r\t"[i])
}

// unicodeEscape reads u and four digits, and a second such escape if both are a pair.
func (p *Parser) unicodeEscape() rune {
	r := p.hexDigits()
	if !strings.HasPrefix(p.text[p.at:], `\u`) {
		return r
	}
	second := *p
	second.at++
	if pair := utf16.DecodeRune(r, second.hexDigits()); pair != utf8.RuneError {
		p.at = second.at
		return pair
	}
	return r
}

func (p *Parser) hexDigits() (r rune) {
	p.at++
	for range 4 {
		digit := strings.IndexByte("0123456789abcdefABCDEF", p.Peek())
		switch {
		case digit < 0:
			p.fail("Invalid \\uXXXX escape")
			return 0
		case digit > 15:
			digit -= 6
		}
		r = r<<4 | rune(digit)
		p.at++
	}
	return r
}
