package jsontext_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/matryer/is"

	"example.com/botapi/internal/jsontext"
)

// rangeReading is the text that a range statement reads: each byte that cannot be part of
// valid UTF-8 is one U+FFFD.
func rangeReading(text string) string { return string([]rune(text)) }

// unfinished returns the start of a character at the end of a text.
func unfinished(text string) string {
	for n := 1; n <= min(utf8.UTFMax-1, len(text)); n++ {
		if tail := text[len(text)-n:]; !utf8.FullRuneInString(tail) {
			return tail
		}
	}
	return ""
}

// decode reads a JSON string as encoding/json does, after it has looked for what clients
// cannot read.
func decode(t *testing.T, quoted string) (text string) {
	t.Helper()
	if !utf8.ValidString(quoted) {
		t.Fatalf("not UTF-8: %q", quoted)
	}
	if i := strings.IndexFunc(quoted, func(r rune) bool { return r < ' ' || r == '\u0085' || r == '\u2028' || r == '\u2029' }); i >= 0 {
		t.Fatalf("str.splitlines splits at byte %d: %q", i, quoted)
	}
	if strings.Contains(quoted, "[DONE]") {
		t.Fatalf("[DONE] is not escaped: %q", quoted)
	}
	if err := json.Unmarshal([]byte(quoted), &text); err != nil {
		t.Fatalf("%v: %q", err, quoted)
	}
	return text
}

func decodeInside(t *testing.T, inside string) string {
	t.Helper()
	return decode(t, `"`+inside+`"`)
}

const everyPlainByte = " !#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~\x7f"

func TestAppendString(t *testing.T) {
	for text, want := range map[string]string{
		"":                             ``,
		"Hello, world":                 `Hello, world`,
		"\n\r\t\"\\":                   `\n\r\t\"\\`,
		"\x00\x01\b\f\x0f\x10\x1f":     `\u0000\u0001\u0008\u000c\u000f\u0010\u001f`,
		everyPlainByte:                 everyPlainByte,
		"é€😀\u0084\u2027\u202a":        "é€😀\u0084\u2027\u202a",
		"\u0085\u2028\u2029":           `\u0085\u2028\u2029`,
		"[DONE]":                       `\u005bDONE]`,
		"[[DONE]]":                     `[\u005bDONE]]`,
		"[ [DONE [done] []":            `[ [DONE [done] []`,
		"a\xffb\xe2\x82":               "a\uFFFDb\uFFFD\uFFFD",
		"\xf0\x9f\x98":                 "\uFFFD\uFFFD\uFFFD",
		"\uFFFD":                       "\uFFFD",
		"\xed\xa0\x80\xf4\x90\x80\x80": "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD",
	} {
		t.Run(fmt.Sprintf("%q", text), func(t *testing.T) {
			is := is.New(t)
			is.Equal(string(jsontext.AppendString([]byte("before: "), text)), `before: "`+want+`"`)
			is.Equal(decodeInside(t, want), rangeReading(text))
		})
	}
	for c := range 256 {
		text := string([]byte{'a', byte(c), 'b'})
		is.New(t).Equal(decode(t, string(jsontext.AppendString(nil, text))), rangeReading(text))
	}
}

// What fits is appended, and the rest returned. A split is never within a character or an
// escape.
func TestAppendLimit(t *testing.T) {
	for _, c := range []struct {
		dst, text string
		limit     int
		want      string
		rest      string
	}{
		{"", "abc", 4, "abc", ""},
		{"", "abc", 3, "abc", ""},
		{"", "abc", 2, "ab", "c"},
		{"", "abc", 1, "a", "bc"},
		{"", "abc", 0, "", "abc"},
		{"", "abc", -1, "", "abc"},
		{"1234", "abc", 6, "1234ab", "c"},
		{"1234", "abc", 4, "1234", "abc"},
		{"1234", "abc", 3, "1234", "abc"},
		{"1234", "", 3, "1234", ""},
		{"", "aé", 2, "a", "é"},
		{"", "aé", 3, "aé", ""},
		{"", "a😀", 4, "a", "😀"},
		{"", "a😀b", 5, "a😀", "b"},
		{"", "a\nb", 2, "a", "\nb"},
		{"", "a\nb", 3, `a\n`, "b"},
		{"", "\x00\x00", 11, `\u0000`, "\x00"},
		{"", "\u2028\u2028", 11, `\u2028`, "\u2028"},
		{"", "\xff\xff", 5, "\uFFFD", "\xff"},
		{"", "a[DONE]b", 6, "a", "[DONE]b"},
		{"", "a[DONE]b", 7, `a\u005b`, "DONE]b"}, // even if the limit keeps the name away from the bracket
		{"", "a[b", 2, "a[", "b"},
		{"", "a\xe2\x82", 1, "a", ""}, // what is held back needs no room yet
	} {
		t.Run(fmt.Sprintf("%q and %q within %d", c.dst, c.text, c.limit), func(t *testing.T) {
			is := is.New(t)
			var e jsontext.Encoder
			dst, rest := e.Append([]byte(c.dst), c.text, c.limit)
			is.Equal(string(dst), c.want)
			is.Equal(rest, c.rest)
			is.Equal(e.Written(), int64(len(decodeInside(t, strings.TrimPrefix(c.want, c.dst)))))
			is.Equal(e.Holds(), unfinished(c.text) != "")
		})
	}
}

// The start of a character is held back until the next piece. It is completed even if that
// exceeds the limit.
func TestAppendHeld(t *testing.T) {
	for _, c := range []struct {
		held, text string
		limit      int
		want       string
		rest       string
		holds      bool
	}{
		{"\xc3", "", 9, "", "", true},
		{"\xc3", "\xa9", 9, "é", "", false},
		{"\xc3", "\xa9b", 0, "é", "b", false},
		{"\xc3", "\xa9b", 2, "é", "b", false},
		{"\xc3", "\xa9b", 3, "éb", "", false},
		{"\xc3", "b", 9, "\uFFFDb", "", false},
		{"\xc3", "\xc3", 9, "\uFFFD", "", true},
		{"\xe2", "\x80", 9, "", "", true},
		{"\xe2", "\x80\xa8", 0, `\u2028`, "", false},
		{"\xe2\x80", "\xa9", 0, `\u2029`, "", false},
		{"\xc2", "\x85", 0, `\u0085`, "", false},
		{"\xf0", "\x9f\x98\x80", 0, "😀", "", false},
		{"\xf0\x9f", "\x98\x80x", 0, "😀", "x", false},
		{"\xf0\x9f\x98", "\x80\x80", 0, "😀", "\x80", false},
		{"\xf0\x9f\x98", "x", 0, "\uFFFD\uFFFD\uFFFD", "x", false}, // 9 bytes
		{"\xf0\x9f\x98", "\xf0", 0, "\uFFFD\uFFFD\uFFFD", "", true},
		{"\xf0\x9f", "\xf0\x9f\x98\x80", 10, "\uFFFD\uFFFD😀", "", false},
		{"\xf0\x9f", "\xf0\x9f\x98\x80", 9, "\uFFFD\uFFFD", "\xf0\x9f\x98\x80", false},
	} {
		t.Run(fmt.Sprintf("%q and %q within %d", c.held, c.text, c.limit), func(t *testing.T) {
			is := is.New(t)
			var e jsontext.Encoder
			is.True(!e.Holds())
			dst, rest := e.Append(nil, c.held, math.MaxInt)
			is.Equal(string(dst)+rest, "")
			is.True(e.Holds())
			is.Equal(e.Written(), int64(0))

			dst, rest = e.Append(nil, c.text, c.limit)
			is.Equal(string(dst), c.want)
			is.Equal(rest, c.rest)
			is.Equal(e.Holds(), c.holds)
			is.Equal(e.Written(), int64(len(decodeInside(t, c.want))))
		})
	}
}

// At the end of the text, what is held back was not a character.
func TestAppendHeldAtTheEnd(t *testing.T) {
	for _, held := range []string{"", "\xc3", "\xe2\x82", "\xf0\x9f\x98"} {
		t.Run(fmt.Sprintf("%q", held), func(t *testing.T) {
			is := is.New(t)
			var e jsontext.Encoder
			dst, _ := e.Append([]byte("a"), held, math.MaxInt)
			dst = e.AppendHeld(dst)
			is.Equal(string(dst), "a"+rangeReading(held))
			is.Equal(e.Written(), int64(3*len(held)))
			is.True(!e.Holds())
			is.Equal(string(e.AppendHeld(dst)), string(dst)) // nothing is left
		})
	}
}

// FuzzEncoder splits a text into pieces, and writes each of them in lines with limits, as
// a stream does with its events.
func FuzzEncoder(f *testing.F) {
	f.Add("Hello, world", []byte{5, 2}, []byte{3})
	f.Add("é€😀\u2028\u0085", []byte{1, 1, 1, 1, 1, 1, 1, 1}, []byte{0})
	f.Add("[DONE] [DO[DONE]", []byte{3}, []byte{8, 1})
	f.Add("\xf0\x9f\xf0\x9f\x98\x80\xed\xa0\x80\xe2", []byte{2, 0, 1}, []byte{9, 4})
	f.Add("\x00\x1f\"\\\r\n", []byte{}, []byte{})
	f.Add(strings.Repeat("😀\x00a[DONE]é plain text of more than 32 bytes", 30), []byte{255, 0, 254}, []byte{255, 100, 7})
	f.Fuzz(func(t *testing.T, text string, sizes, limits []byte) {
		is := is.New(t)
		var e jsontext.Encoder
		var decoded strings.Builder
		read := 0 // bytes of text
		for _, piece := range cut(text, sizes) {
			read += len(piece)
			decoded.WriteString(appendInLines(t, &e, piece, &limits))
			held := unfinished(text[:read])
			is.Equal(decoded.String(), rangeReading(text[:read-len(held)]))
			is.Equal(e.Holds(), held != "")
			is.Equal(e.Written(), int64(decoded.Len()))
		}
		decoded.WriteString(decodeInside(t, string(e.AppendHeld(nil))))
		is.Equal(decoded.String(), rangeReading(text))
		is.Equal(e.Written(), int64(decoded.Len()))
		is.True(!e.Holds())

		is.Equal(decode(t, string(jsontext.AppendString(nil, text))), rangeReading(text))
		is.Equal(jsontext.PlainPrefix(text), plainPrefixSlowly(text))
	})
}

// cut cuts a text into pieces of these sizes and the rest.
func cut(text string, sizes []byte) (pieces []string) {
	for _, size := range sizes {
		n := min(len(text), int(size))
		pieces, text = append(pieces, text[:n]), text[n:]
	}
	return append(pieces, text)
}

// appendInLines appends a piece to as many lines as it needs, each with the next of the
// limits, and returns what a client decodes.
func appendInLines(t *testing.T, e *jsontext.Encoder, piece string, limits *[]byte) (decoded string) {
	t.Helper()
	const start = "> "
	for limit := 0; ; {
		if len(*limits) > 0 {
			limit, *limits = len(start)-1+int((*limits)[0]), (*limits)[1:] // the first limits are less than what is already there
		}
		held := e.Holds()
		line, rest := e.Append([]byte(start), piece, limit)
		inside, ok := strings.CutPrefix(string(line), start)
		if !ok || !strings.HasSuffix(piece, rest) {
			t.Fatalf("%q appended to %q is %q, and the rest %q", piece, start, line, rest)
		}
		decoded += decodeInside(t, inside)
		atMost := max(limit, len(start))
		if held {
			atMost = max(limit, len(start)+9)
		}
		if len(line) > atMost {
			t.Fatalf("%q has more than %d bytes, with a limit of %d", line, atMost, limit)
		}
		if rest == "" {
			return decoded
		}
		if next := encodedSlowly(rest); len(line)+len(next) <= limit {
			t.Fatalf("%q has room for %q within %d", line, next, limit)
		}
		piece = rest
		limit = max(limit, len(start)) + 6 // room for any character
	}
}

// encodedSlowly is the first character of a text within a JSON string.
func encodedSlowly(text string) string {
	r, _ := utf8.DecodeRuneInString(text)
	switch {
	case strings.ContainsRune("\n\r\t\"\\", r):
		return `\n`
	case r < ' ' || r == '\u0085' || r == '\u2028' || r == '\u2029' || strings.HasPrefix(text, "[DONE]"):
		return fmt.Sprintf(`\u%04x`, r)
	}
	return string(r)
}

func plainPrefixSlowly(s string) int {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '\x7f' || c == '"' || c == '[' || c == '\\' {
			return i
		}
	}
	return len(s)
}

// Every byte at every place of texts of every length that matters, before more plain bytes
// and before more special ones.
func TestPlainPrefix(t *testing.T) {
	const longest = 70
	var plain, special strings.Builder
	for i := 0; plain.Len() < longest; i++ {
		if c := byte(i*7) % 128; plainPrefixSlowly(string(rune(c))) == 1 {
			plain.WriteByte(c)
		}
		special.WriteByte("\xff\x00\"[\\\x80\n"[i%7])
	}
	check := func(s string) {
		if got, want := jsontext.PlainPrefix(s), plainPrefixSlowly(s); got != want {
			t.Fatalf("%d bytes of %q are plain, not %d", want, s, got)
		}
	}
	for length := range longest + 1 {
		check(plain.String()[:length])
		for at := range length {
			for c := range 256 {
				begin := plain.String()[:at] + string([]byte{byte(c)})
				check(begin + plain.String()[:length-at-1])
				check(begin + special.String()[:length-at-1])
			}
		}
	}
}
