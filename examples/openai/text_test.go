package openai

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/matryer/is"
)

// Wherever the escapes of a text are split, the joined text is the same.
func TestSplitEscapes(t *testing.T) {
	for text, want := range map[string]string{
		`\ud83d\ude00`:               "😀",
		`a\ud83d\ude00b\uD83D\uDE01`: "a😀b😁",
		`\ud83d`:                     "\ufffd",
		`\ude00`:                     "\ufffd",
		`\ude00\ud83d`:               "\ufffd\ufffd",
		`\ud83d\ud83d\ude00`:         "\ufffd😀",
		`\ud83d\ude00\ude00`:         "😀\ufffd",
		`\ud83d\u0041`:               "\ufffdA",
		`\\ud83d\ude00\\`:            "\\ud83d\ufffd\\",
		`\\\ud83d\ude00`:             "\\😀",
		`\ufffd\ud83d\ude00\ufffd`:   "\ufffd😀\ufffd",
		"\ufffd\\ud83d\ufffd":        "\ufffd\ufffd\ufffd",
		`한국어\ud55c\ud83d\ude00`:      "한국어한😀",
		"caf\xc3\\ud83d\\ude00\xc3":  "caf\xc3😀\xc3",
	} {
		is := is.New(t)
		units := splitEscapes(text)
		for splits := range 1 << (len(units) - 1) {
			var got strings.Builder
			var joiner Joiner
			part := ""
			for i, unit := range units {
				part += unit
				if splits>>i&1 == 1 || i == len(units)-1 {
					got.WriteString(joiner.Unquote(`"` + part + `"`))
					part = ""
				}
			}
			got.WriteString(joiner.Rest())
			is.Equal(got.String(), want)
		}
	}
}

// splitEscapes splits a JSON string into characters and escapes.
func splitEscapes(text string) (units []string) {
	for text != "" {
		n := 1
		switch {
		case strings.HasPrefix(text, `\u`):
			n = 6
		case text[0] == '\\':
			n = 2
		}
		units = append(units, text[:n])
		text = text[n:]
	}
	return units
}

// The joined text of random halves and characters is what encoding/json makes of them
// together.
func TestRandomSplitEscapes(t *testing.T) {
	is := is.New(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		var joiner Joiner
		var got strings.Builder
		all := ""
		for range random.IntN(5) {
			part := ""
			for range random.IntN(4) {
				part += []string{`\ud83d`, `\ude00`, `\uDBFF`, `\udfff`, `a`, `한`, `\ud55c`, `\\`, `\ufffd`, "\ufffd"}[random.IntN(10)]
			}
			got.WriteString(joiner.Unquote(`"` + part + `"`))
			all += part
		}
		got.WriteString(joiner.Rest())
		var want string
		is.NoErr(json.Unmarshal([]byte(`"`+all+`"`), &want))
		is.Equal(got.String(), want)
	}
}

func TestEveryHalf(t *testing.T) {
	is := is.New(t)
	for r := rune(0x10000); r <= 0x10FFFF; r += 0x3FD {
		high, low := utf16.EncodeRune(r)
		var joiner Joiner
		is.Equal(joiner.Unquote(fmt.Sprintf(`"\u%04x"`, high)), "")
		is.Equal(joiner.Unquote(fmt.Sprintf(`"\u%04X"`, low)), string(r))
		is.Equal(joiner.Rest(), "")
	}
}

func TestUnquoteOtherValues(t *testing.T) {
	is := is.New(t)
	for _, value := range []string{``, `7`, `null`, `{"a":"b"}`, `"`, `"\`, `"\ud83d`} {
		is.Equal(new(Joiner).Unquote(value), "")
	}
}
