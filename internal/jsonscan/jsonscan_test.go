package jsonscan_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/matryer/is"

	"example.com/botapi/internal/jsonscan"
)

// read reads a text that is one JSON value, without a look into objects and arrays.
func read(text string) (jsonscan.Value, *jsonscan.SyntaxError) {
	p := jsonscan.New(text, 0)
	p.Begin()
	v := p.Value()
	p.End()
	return v, p.Err()
}

// walk reads a text that is one JSON value, and steps into all objects and arrays. It
// returns all scalars and names as they come, and a value without a text where an object
// or an array begins and, of the kind Absent, where it ends.
func walk(text string) (walked []jsonscan.Value, err *jsonscan.SyntaxError) {
	p := jsonscan.New(text, 0)
	var step func()
	step = func() {
		opening := p.Peek()
		switch opening {
		case '{':
			walked = append(walked, jsonscan.Value{Kind: jsonscan.Object})
		case '[':
			walked = append(walked, jsonscan.Value{Kind: jsonscan.List})
		default:
			walked = append(walked, p.Value())
			return
		}
		p.Enter()
		for first := true; p.Next(opening+2, first); first = false {
			if opening == '{' {
				walked = append(walked, jsonscan.Value{Kind: jsonscan.Text, Text: p.Name()})
			}
			step()
		}
		walked = append(walked, jsonscan.Value{})
	}
	p.Begin()
	step()
	p.End()
	return walked, p.Err()
}

// walkSlowly is walk with encoding/json, for a text that is JSON.
func walkSlowly(t *testing.T, text string) (walked []jsonscan.Value) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		switch token := token.(type) {
		case nil:
			if err == io.EOF {
				return walked
			}
			if err != nil {
				t.Fatalf("%v: %q", err, text)
			}
			walked = append(walked, jsonscan.Value{Kind: jsonscan.Null})
		case bool:
			walked = append(walked, jsonscan.Value{Kind: jsonscan.Boolean, Text: strconv.FormatBool(token)})
		case string:
			walked = append(walked, jsonscan.Value{Kind: jsonscan.Text, Text: token})
		case json.Number:
			kind := jsonscan.Integer
			if strings.ContainsAny(token.String(), ".eE") {
				kind = jsonscan.Number
			}
			walked = append(walked, jsonscan.Value{Kind: kind, Text: token.String()})
		case json.Delim:
			kinds := map[json.Delim]jsonscan.Kind{'{': jsonscan.Object, '[': jsonscan.List}
			walked = append(walked, jsonscan.Value{Kind: kinds[token]})
		}
	}
}

// syntaxErrorIn finds the first byte that cannot be part of JSON. encoding/json lets bytes
// pass within strings that are not UTF-8. The NUL fits nowhere: at its place is the error
// of a text that ends too early.
func syntaxErrorIn(text string) (at int, found bool) {
	at = len(text)
	if !json.Valid([]byte(text)) {
		found = true
		var v any
		var syntax *json.SyntaxError
		errors.As(json.Unmarshal([]byte(text+"\x00"), &v), &syntax)
		at = int(syntax.Offset) - 1
	}
	for i, r := range text[:at] {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD") {
			return i, true
		}
	}
	return at, found
}

// compare compares the parser with encoding/json.
func compare(t *testing.T, text string) {
	t.Helper()
	is := is.New(t)
	got, err := read(text)
	walked, walkErr := walk(text)
	is.Equal(err, walkErr)

	const mark = "\uFEFF"
	document := strings.TrimPrefix(text, mark)
	if at, found := syntaxErrorIn(document); found {
		is.True(err != nil)
		is.Equal(err.Offset, at+len(text)-len(document))
		if _, before := read(text[:err.Offset]); before != nil {
			is.Equal(before.Offset, err.Offset) // unfinished, and otherwise good
		}
		return
	}
	is.Equal(err, nil)
	want := walkSlowly(t, document)
	is.Equal(walked, want)
	is.Equal(got, want[0])
}

func FuzzParser(f *testing.F) {
	for _, text := range []string{
		// Where JSON begins and ends.
		"", " ", "\n\t\r ", "\uFEFF null\n", "\uFEFF{}", "\uFEFF", "\uFEFF\uFEFF{}", "{\uFEFF}", "\f{}", "{}\u00A0", "\x00", "{}\x00", "\xff\xfe{\x00}\x00", "{} // none",
		"\xEF", "\xEF\xBB{}", `{}{}`, `[] 1`, `1 2`, `""""`, `]`, `}`, `,`, `:`,
		// Objects and arrays.
		`{}`, `[]`, ` { } `, ` [ ] `, `{`, `[`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a`, `[1`, `[1,`, `{"messages":[{"role":"user"`, `[{]`, `{"a":[1}`, `[}`, `{]`, `[[}]`,
		`{"a":[{"b":[[],{}]}]}`, "{\n\"a\" : [ 1 , { } , [ ] ] , \"\" :\tnull }", `{"a":{"a":1,"a":{}},"a":2,"\u0061":3}`, nested(12), nested(70), `[[],[],[{},{}]]`,
		`{a:1}`, `{"a" 1}`, `{"a":}`, `{"a"}`, `[,1]`, `[1,,2]`, `[1,]`, `[{},]`, `{"a":1,}`, `{,}`, `[1 2]`, `{"a":1 "b":2}`, `{"a":1:2}`, `{1:2}`, `[1:2]`, `{"a",1}`,
		// Words.
		`true`, `false`, `null`, `nul`, `nulL`, `nullx`, `tru`, `truth`, `True`, `fals`, `falsy`, `NaN`, `-Infinity`, `{"a":tru`, `[true,false,null]`,
		// Strings.
		`""`, `"a"`, `"`, `"a`, `'a'`, `"\`, `"\x41"`, `"\'"`, `"\u`, `"\u12`, `"\u00G0"`, `"\u00g0"`, `"\ud83d\u12x4"`, `"\ud83d\`, `"\ud83d\u`, `"\ud83d\x"`, "\"a\x00b\"", "\"a\x1fb\"", "{\"a\nb\":1}",
		"\"a\xe2\x82\"", "\"a\xe2\x82", "\"\xc0\xaf\"", "\"\xf4\x90\x80\x80\"", "\"\xed\xa0\x80\"", "{\"\xff\":1}", "{\xff}", "{\"x\":{\"y\":[\"\xff\"]}}", "\"\uFFFD\"", "\"\x7f\"",
		`" \n"`, `"\"\\\/\b\f\n\r\t\u00e9\u0000"`, `"a\nb[c\u0041é"`, `"\ud83d\ude00\uD83D\uDE00"`, `"\ud83d-\ude00-\ud83d\u0041-\ude00\ud83d"`, `"\ud83d\ud83d\ude00"`, `"\ude00\ud83d"`,
		`"\ud83d\n"`, `"\u0041\u0042"`, `"\uFFFD\uFFFD"`, "\"aé€😀\x7f\u0085\u2028\"", `"[DONE]"`, `"["`, `"[\n["`, `{"\ud83d":"\ud83d\ude00"}`, `"\u`, `"\\u0041"`,
	} {
		f.Add(text)
	}
	for _, number := range []string{"0", "-0", "10", "0.05", "-1.50", "1e5", "1E+5", "1e-5", "-0.1E-10", "01", "-01", ".5", "+1", "1e", "1e+", "1.", "1.e5", "1.5.5", "1e5.5", "-", "--1", "0x1F", "1_0",
		"-123456789012345678901234567890", "1234567890", "1e400"} {
		f.Add(number)
		f.Add("[" + number + "]")
		f.Add(`{"n":` + number + ` , "m":0}`)
	}
	for c := range 256 {
		f.Add(`"\u00` + string([]byte{byte(c), byte(c)}) + `"`)
		f.Add(`"\` + string([]byte{byte(c)}) + `"`)
		f.Add(`"` + string([]byte{byte(c)}) + `"`)
		for _, number := range []string{"", "-", "1", "1.", "1e", "1e+"} {
			f.Add(number + string([]byte{byte(c)}) + "1")
		}
	}
	f.Fuzz(compare)
}

// The same comparison for texts that a fuzzer needs long to find: tokens in random order.
func TestRandomTokens(t *testing.T) {
	tokens := strings.Split(`{ { } } [ [ ] ] , , , : : : null true false 0 -0 42 1.5 1e3 "" "x" "x":1, "x":{ "y":[ {"a":1} [2] "\u0073" "\ud83d\ude00" "\ud83d" "\n" \ " `+"\n \t é", " ")
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var text, closing string
		for range random.IntN(12) {
			token := tokens[random.IntN(len(tokens))]
			text += token
			switch { // so that many of the texts are JSON
			case strings.HasSuffix(token, "{"):
				closing = "}" + closing
			case strings.HasSuffix(token, "["):
				closing = "]" + closing
			}
		}
		compare(t, text)
		compare(t, strings.TrimSuffix(text, ",")+closing)
	}
}

func TestSyntaxErrors(t *testing.T) {
	deep := strings.Repeat("[", jsonscan.MaxDepth+1)
	for text, want := range map[string]struct {
		problem            string
		line, column, char int
	}{
		"":                       {"Expecting value", 1, 1, 0},
		" \r\n\t":                {"Expecting value", 2, 2, 4},
		"\uFEFF":                 {"Expecting value", 1, 4, 3},
		"\uFEFF\uFEFF1":          {"Expecting value", 1, 4, 3},
		" \uFEFF1":               {"Expecting value", 1, 2, 1},
		"\f1":                    {"Expecting value", 1, 1, 0},
		`nul`:                    {"Expecting value", 1, 4, 3},
		`[1,]`:                   {"Expecting value", 1, 4, 3},
		"{\n  1:2}":              {"Expecting property name enclosed in double quotes", 2, 3, 4},
		"{\n\"a\":1,\n\n }":      {"Expecting property name enclosed in double quotes", 4, 2, 11},
		`{}{}`:                   {"Extra data", 1, 3, 2},
		"1\n\x00":                {"Extra data", 2, 1, 2},
		`01`:                     {"Extra data", 1, 2, 1},
		`{"a"`:                   {"Expecting ':' delimiter", 1, 5, 4},
		`{"a" , 1}`:              {"Expecting ':' delimiter", 1, 6, 5},
		`{"a":1 "b":2}`:          {"Expecting ',' delimiter", 1, 8, 7},
		`[[1}]`:                  {"Expecting ',' delimiter", 1, 4, 3},
		`[1`:                     {"Expecting ',' delimiter", 1, 3, 2},
		`{"a":"b`:                {"Unterminated string", 1, 8, 7},
		`"\n`:                    {"Unterminated string", 1, 4, 3},
		`"\`:                     {`Invalid \escape`, 1, 3, 2},
		`"\x41"`:                 {`Invalid \escape`, 1, 3, 2},
		`"\u12`:                  {`Invalid \uXXXX escape`, 1, 6, 5},
		`"\ud83d\u12"`:           {`Invalid \uXXXX escape`, 1, 12, 11},
		`1.`:                     {"Expecting a digit", 1, 3, 2},
		`[-]`:                    {"Expecting a digit", 1, 3, 2},
		`1e+e`:                   {"Expecting a digit", 1, 4, 3},
		"\"a\tb\"":               {"Invalid control character at", 1, 3, 2},
		"\"a\\n\nb\"":            {"Invalid control character at", 1, 5, 4},
		"\"a\x80\"":              {"Not UTF-8", 1, 3, 2},
		"{\"é\xe2\x82\":1}":      {"Not UTF-8", 1, 5, 4},
		deep:                     {"Too many levels", 1, 10001, 10000},
		`{"x":[{"x":` + deep[3:]: {"Too many levels", 1, 10009, 10008},
	} {
		t.Run(fmt.Sprintf("%.20q", text), func(t *testing.T) {
			is := is.New(t)
			_, err := read(text)
			is.Equal(err, &jsonscan.SyntaxError{
				Offset: want.char,
				Text:   fmt.Sprintf("%s: line %d column %d (char %d)", want.problem, want.line, want.column, want.char),
			})
			compare(t, text)
		})
	}
}

// nested is an array of this many levels.
func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

// The levels that are open count, and not those that were closed before.
func TestMaxDepth(t *testing.T) {
	is := is.New(t)
	const most = jsonscan.MaxDepth
	is.Equal(most, 10_000)
	fields := strings.Repeat(`{"a":[`, most/2) + strings.Repeat("]}", most/2)
	for _, text := range []string{nested(most), nested(most + 1), fields, "[" + fields + "]", "[" + nested(most-1) + "," + nested(most-1) + "]", "[" + strings.Repeat("[],{},", most) + "0]"} {
		compare(t, text)
	}
	_, err := read(nested(most))
	is.Equal(err, nil)
	_, err = read(nested(most + 1))
	is.True(err != nil)
}

func TestOffsets(t *testing.T) {
	is := is.New(t)
	const text = "\uFEFF { \"a\" : [ 1 ] , \"\\u0062\":\"c\" } "
	p := jsonscan.New(text, 0)
	at := func(rest string, next byte) { // what is still to be read
		t.Helper()
		is.Helper()
		is.Equal(p.Offset(), len(text)-len(rest))
		is.Equal(p.Rest(), len(rest))
		is.Equal(p.Since(0), strings.TrimSuffix(text, rest))
		is.Equal(p.Peek(), next)
	}
	at(text, '\xEF')
	p.Begin()
	at("{ \"a\" : [ 1 ] , \"\\u0062\":\"c\" } ", '{')
	p.Enter()
	at("\"a\" : [ 1 ] , \"\\u0062\":\"c\" } ", '"')
	is.True(p.Next('}', true))
	at("\"a\" : [ 1 ] , \"\\u0062\":\"c\" } ", '"')
	is.Equal(p.Name(), "a")
	at("[ 1 ] , \"\\u0062\":\"c\" } ", '[')
	start := p.Offset()
	is.Equal(p.Value(), jsonscan.Value{Kind: jsonscan.List})
	at(" , \"\\u0062\":\"c\" } ", ' ')
	is.Equal(p.Since(start), "[ 1 ]")
	is.Equal(p.Since(p.Offset()), "")
	is.True(p.Next('}', false))
	at("\"\\u0062\":\"c\" } ", '"')
	is.Equal(p.Name(), "b")
	at("\"c\" } ", '"')
	is.Equal(p.Value(), jsonscan.Value{Kind: jsonscan.Text, Text: "c"})
	at(" } ", ' ')
	is.True(!p.Next('}', false))
	at(" ", ' ')
	p.End()
	at("", 0)
	is.Equal(p.Err(), nil)
}

// A parser may begin in the middle of a text, as long as it is between two values.
func TestNew(t *testing.T) {
	is := is.New(t)
	const text = `{"a":1,"b":2}`
	p := jsonscan.New(text, strings.Index(text, `"b"`))
	is.True(p.Next('}', true))
	is.Equal(p.Name(), "b")
	is.Equal(p.Value(), jsonscan.Value{Kind: jsonscan.Integer, Text: "2"})
	is.True(!p.Next('}', false))
	is.Equal(p.Rest(), 0)
	is.Equal(p.Err(), nil)
}

// After an error, nothing is read, nothing is left, and the error stays.
func TestNothingAfterAnError(t *testing.T) {
	for _, text := range []string{`nul, "a"`, `"\x", "b":1`, "\"\xff\":1}", `[1 2]`, `{"a" 1}`, `{1:2}`, `[-]`, `{"a":[}]}`, strings.Repeat("[", jsonscan.MaxDepth+1)} {
		t.Run(fmt.Sprintf("%.20q", text), func(t *testing.T) {
			is := is.New(t)
			p := jsonscan.New(text, 0)
			p.Value()
			offset, err := p.Offset(), p.Err()
			is.True(err != nil)
			first := *err
			for range 3 {
				is.True(!p.Next('}', true))
				is.True(!p.Next(']', false))
				is.True(!p.Next(0, false)) // not the 0 of Peek
				is.Equal(p.Name(), "")
				is.Equal(p.Value(), jsonscan.Value{})
				p.End()
			}
			is.Equal(p.Offset(), offset)
			is.Equal(p.Rest(), 0)
			is.Equal(p.Peek(), byte(0))
			is.Equal(p.Since(0), text[:offset])
			is.True(p.Err() == err)
			is.Equal(*err, first)
		})
	}
}

// What cannot be read has no name and no text, and nothing follows it.
func TestErrorsReturnNothing(t *testing.T) {
	for _, text := range []string{``, `1`, `name`, `"name`, `"na\me"`, "\"na\nme\"", `"name"`, `"name" 1`} {
		t.Run(text, func(t *testing.T) {
			is := is.New(t)
			p := jsonscan.New(text, 0)
			is.Equal(p.Name(), "")
			is.True(p.Err() != nil)

			p = jsonscan.New(text+"x", 0)
			is.True(!p.Next('}', false))
			is.True(p.Err() != nil)
		})
	}
	for _, text := range []string{``, `x`, `nul`, `"text`, `"te\xt"`, "\"te\nxt\"", `{"a"}`} {
		t.Run(text, func(t *testing.T) {
			is := is.New(t)
			p := jsonscan.New(text, 0)
			is.Equal(p.Value().Text, "")
			is.True(p.Err() != nil)
		})
	}
}

// Reading allocates nothing, unless a string has escapes.
func TestStringsShareTheText(t *testing.T) {
	is := is.New(t)
	text := `{"name":"value","list":["a","[b]",1.5,null,{"é":"€"}]}`
	for _, escapes := range []bool{false, true} {
		if escapes {
			text = strings.Replace(text, "value", `a long\nvalue`, 1)
		}
		allocations := testing.AllocsPerRun(100, func() { _, _ = read(text) })
		is.Equal(allocations > 0, escapes)
	}
}

func TestAnyBytes(t *testing.T) {
	is := is.New(t)
	for _, anyBytes := range []bool{false, true} {
		p := jsonscan.New("\"caf\xc3\\n\xa9é\"", 0)
		p.AnyBytes = anyBytes
		value := p.Value()
		is.Equal(p.Err() == nil, anyBytes)
		is.True(!anyBytes || value.Text == "caf\xc3\n\xa9é")
	}
}
