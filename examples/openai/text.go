package openai

import (
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"example.com/botapi/examples/jsonbody"
)

// A Joiner joins the characters that a runtime has split between two texts of an answer.
// One that JSON escapes as two halves (a surrogate pair) may have one in each of them,
// where neither means anything alone. Its zero value is ready to use, for one answer and
// one goroutine.
type Joiner struct {
	high rune // a first half at the end of the texts so far; 0 if there is none
}

// Unquote decodes the next text, a JSON string with its quotes. A first half at its end is
// withheld until the second has come. It returns the empty text for any other JSON value.
func (j *Joiner) Unquote(value string) string {
	p := jsonbody.NewEvent(value)
	return j.join(answerText(&p))
}

// Rest returns what is still withheld when the answer is complete: the replacement
// character of a half without another, or nothing.
func (j *Joiner) Rest() string { return string(j.flush(nil)) }

// join joins the next text, which answerText has read, to those before it. It copies the
// text only if there is a half in it or before it.
func (j *Joiner) join(text string) string {
	if text == "" || j.high == 0 && !hasHalf(text) {
		return text
	}
	joined := make([]byte, 0, len(text)+utf8.UTFMax)
	for len(text) > 0 {
		half := halfAt(text)
		switch {
		case half == 0:
			joined = append(j.flush(joined), text[0])
			text = text[1:]
			continue
		case half < 0xDC00:
			joined = j.flush(joined)
			j.high = half
		default:
			joined = utf8.AppendRune(joined, utf16.DecodeRune(j.high, half)) // U+FFFD if it is alone
			j.high = 0
		}
		text = text[halfBytes:]
	}
	return string(joined)
}

func (j *Joiner) flush(text []byte) []byte {
	if j.high != 0 {
		text = utf8.AppendRune(text, utf8.RuneError)
	}
	j.high = 0
	return text
}

// halfBytes is the length of a half in a text: three bytes, as in the encoding WTF-8. UTF-8
// has none of them.
const halfBytes = 3

// halfAt returns the half with which a text begins; 0 if there is none.
func halfAt(text string) rune {
	if len(text) < halfBytes || text[0] != 0xED || text[1] < 0xA0 || text[1] > 0xBF || text[2]&0xC0 != 0x80 {
		return 0
	}
	return 0xD000 | rune(text[1]&0x3F)<<6 | rune(text[2]&0x3F)
}

func hasHalf(text string) bool {
	for {
		i := strings.IndexByte(text, 0xED)
		if i < 0 {
			return false
		}
		if text = text[i:]; halfAt(text) != 0 {
			return true
		}
		text = text[1:]
	}
}

// answerText reads a string of an answer; "" for other values. It keeps a second half at its
// start, and a first half at its end, for a Joiner; any other half without the one that
// belongs to it becomes U+FFFD.
func answerText(p *jsonbody.Parser) string {
	start := p.Offset()
	text := textValue(p)
	raw := p.Since(start)
	if len(text) < halfBytes || len(raw) < len(`"\ud800"`) {
		return text
	}
	raw = raw[1 : len(raw)-1]
	if half := escapedHalf(raw[:6]); half >= 0xDC00 {
		text = encodeHalf(half) + text[halfBytes:]
	}
	// If the text does not end with U+FFFD, the last bytes are no escape (a backslash that
	// is itself escaped), or the second half of a pair.
	if half := escapedHalf(raw[len(raw)-6:]); half != 0 && half < 0xDC00 && strings.HasSuffix(text, "\ufffd") {
		text = text[:len(text)-halfBytes] + encodeHalf(half)
	}
	return text
}

// escapedHalf returns the half that an escape of six bytes stands for; 0 if it is another
// character or no escape.
func escapedHalf(escape string) rune {
	if escape[0] != '\\' || escape[1] != 'u' {
		return 0
	}
	r, err := strconv.ParseUint(escape[2:], 16, 32)
	if err != nil || !utf16.IsSurrogate(rune(r)) {
		return 0
	}
	return rune(r)
}

func encodeHalf(half rune) string {
	return string([]byte{0xED, 0x80 | byte(half>>6)&0x3F, 0x80 | byte(half)&0x3F})
}
