// Package jsontext writes text as JSON strings that all known clients of a stream read alike.
// Python's str.splitlines finds no end of a line in them. Nor do they contain "[DONE]", at
// which the published Python client stops.
package jsontext

import (
	"math"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// An Encoder writes a text that comes in pieces. If a piece ends within a UTF-8 character,
// the start of the character is held back until the next piece. Each byte that cannot be
// part of valid UTF-8 becomes one U+FFFD, as in Go's range statement: the result does not
// depend on where the pieces were split. The zero value is ready.
//
// A "[DONE]" that is split between two pieces is not noticed: where clients search for it,
// two pieces must not end up in one line.
type Encoder struct {
	held    [utf8.UTFMax - 1]byte // the start of a character
	count   int                   // bytes of held
	written int64
}

// Written returns how many bytes of text were written, as a client decodes them.
func (e *Encoder) Written() int64 { return e.written }

// Holds reports whether the start of a character is held back.
func (e *Encoder) Holds() bool { return e.count > 0 }

// Append writes as much of the text as leaves dst at most limit bytes long, split between
// characters, and returns the rest. A character whose start was held back is completed
// even if that exceeds the limit, by 9 bytes at most.
func (e *Encoder) Append(dst []byte, text string, limit int) (_ []byte, rest string) {
	if e.count > 0 {
		dst, text = e.complete(dst, text)
	}
	for {
		run := PlainPrefix(text[:min(len(text), max(0, limit-len(dst)))])
		dst = append(dst, text[:run]...)
		e.written += int64(run)
		if text = text[run:]; text == "" {
			return dst, ""
		}
		if !utf8.FullRuneInString(text) {
			e.count = copy(e.held[:], text)
			return dst, ""
		}
		if len(dst) >= limit { // which has ended the run, perhaps before a plain character
			return dst, text
		}
		written := e.written
		longer, next := e.appendSpecial(dst, text)
		if len(longer) > limit {
			e.written = written
			return dst, text
		}
		dst, text = longer, next
	}
}

// AppendHeld writes U+FFFD for each byte that is held back: the text has ended within a
// character.
func (e *Encoder) AppendHeld(dst []byte) []byte {
	for ; e.count > 0; e.count-- {
		dst = e.appendRune(dst, utf8.RuneError)
	}
	return dst
}

func (e *Encoder) complete(dst []byte, text string) (_ []byte, rest string) {
	for {
		var joined [2 * utf8.UTFMax]byte
		held := copy(joined[:], e.held[:e.count])
		taken := copy(joined[held:], text[:min(len(text), utf8.UTFMax)])
		start := joined[:held+taken]
		if !utf8.FullRune(start) { // at most three bytes: all of the text is among them
			e.count = copy(e.held[:], start)
			return dst, ""
		}
		r, size := utf8.DecodeRune(start)
		dst = e.appendRune(dst, r)
		if size >= held {
			e.count = 0
			return dst, text[size-held:]
		}
		e.count = copy(e.held[:], joined[size:held]) // only the first byte was invalid: the others are tried again
	}
}

func (e *Encoder) appendSpecial(dst []byte, text string) (_ []byte, rest string) {
	if text[0] >= utf8.RuneSelf {
		r, size := utf8.DecodeRuneInString(text)
		return e.appendRune(dst, r), text[size:]
	}
	e.written++
	return appendEscaped(dst, text), text[1:]
}

func (e *Encoder) appendRune(dst []byte, r rune) []byte {
	e.written += int64(utf8.RuneLen(r))
	switch r { // at these, str.splitlines ends a line
	case '\u0085':
		return append(dst, `\u0085`...)
	case '\u2028':
		return append(dst, `\u2028`...)
	case '\u2029':
		return append(dst, `\u2029`...)
	}
	return utf8.AppendRune(dst, r)
}

func appendEscaped(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	c := text[0]
	if i := strings.IndexByte("\n\r\t\"\\", c); i >= 0 {
		return append(dst, '\\', `nrt"\`[i])
	}
	if c != '[' || strings.HasPrefix(text, "[DONE]") {
		return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
	}
	return append(dst, c)
}

// AppendString writes s as a JSON string, with its quotes.
func AppendString(dst []byte, s string) []byte {
	var e Encoder
	dst = append(dst, '"')
	dst, _ = e.Append(dst, s, math.MaxInt)
	return append(e.AppendHeld(dst), '"')
}

// PlainPrefix returns how many bytes at the start of s are the same within a JSON string:
// ASCII from 0x20 on, except the quote, the backslash, and the bracket that could begin a
// "[DONE]".
func PlainPrefix(s string) int {
	i := 0
	for i <= len(s)-8 {
		if found := specials(word(s[i:])); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
		i += 8
		for ; i <= len(s)-32; i += 32 {
			t := s[i : i+32]
			if specials(word(t))|specials(word(t[8:]))|specials(word(t[16:]))|specials(word(t[24:])) != 0 {
				break
			}
		}
	}
	if len(s) >= 8 { // the last eight, some of them again
		i = len(s) - 8
		return i + bits.TrailingZeros64(specials(word(s[i:])))/8 // len(s) if all of them are plain
	}
	for i < len(s) && isPlain(s[i]) {
		i++
	}
	return i
}

// word is the first eight bytes of s, the first the lowest.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// specials looks at eight bytes at the same time: the lowest bit that is set in its result
// is the high bit of the first byte that is not plain.
//
// Adding 0x80-k to a byte of ASCII sets its high bit if the byte is at least k.
// Flipping bit 1 makes the quote 0x20, right above the control characters, which stay
// below it: one term is enough for both. The bracket and the backslash are neighbours. A
// byte that is not ASCII may carry into the bytes after it: those do not count then.
func specials(v uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	aboveQuote := (v ^ ones*0x02) + ones*(0x80-0x21)
	fromBracket, aboveBackslash := v+ones*(0x80-'['), v+ones*(0x80-'\\'-1)
	return (v | ^aboveQuote | fromBracket&^aboveBackslash) & highs
}

func isPlain(c byte) bool {
	return c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' && c != '['
}
