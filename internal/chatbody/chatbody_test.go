package chatbody

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/botapi/internal/jsonscan"
)

// This file compares the reader with a slow one that is easy to read.

// conformanceBodies are those of the requests that the reference service has answered.
func conformanceBodies(t testing.TB) (bodies [][]byte) {
	file, err := os.Open("../../testdata/conformance/chat_422.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c struct {
			Body   string
			Base64 []byte `json:"body_base64"` // of a body that is not UTF-8
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, append([]byte(c.Body), c.Base64...))
	}
	return bodies
}

// FuzzBody compares the decoder with readSlowly, which uses encoding/json's maps and
// shares no code with it.
func FuzzBody(f *testing.F) {
	for _, body := range conformanceBodies(f) {
		f.Add(body)
	}
	for _, body := range []string{
		// Where JSON begins and ends.
		"\uFEFF null\n", "\uFEFF{}", "\uFEFF", "\uFEFF\uFEFF{}", "{\uFEFF}", "\f{}", "{}\u00A0", "\x00", "{}\x00", "\xff\xfe{\x00}\x00", "{} // none",
		`{`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a`, `{"messages":[{"role":"user"`, `[{]`, `{"a":[1}`, nested(12), `{"a":[{"b":[[],{}]}]}`,
		// Words, names and commas.
		`{a:1}`, `{"a" 1}`, `{"a":}`, `[,1]`, `{"messages":[{},]}`, `nul`, `{"a":NaN}`, `{"a":-Infinity}`, `{"stream":True}`, `{"stream":truth}`, `{"stream":tru`,
		// Strings.
		`"\x41"`, `"\'"`, `"\u12`, `"\u00G0"`, `"\ud83d\u12x4"`, "\"a\x00b\"", "{\"a\nb\":1}", "\"a\xe2\x82\"", "\"\xc0\xaf\"", "\"\xf4\x90\x80\x80\"",
		"{\"\xff\":1}", "{\xff}", "{\"x\":{\"y\":[\"\xff\"]}}", "{\"prompt\":\"\xe2\x82\"}",
		// Fields whose values are wrong, in their order.
		`{"bot_uid":1.0,"bot_slug":"","prompt":"a","stream":true}`, `{"bot_slug":"echo","prompt":"a","stream":true,"user_id":-0.0}`,
		`{"user_id":{},"stream":[],"messages":[null],"prompt":{},"bot_slug":false,"bot_uid":true}`, `{"bot_\u017flug":"echo","prompt":"a","\u017ftream":true}`,
		`{"bot_slug":"echo","messages":[{"Role":"user","content":"a"}],"stream":true}`, `{"bot_slug":"echo","messages":[{"content":null,"role":["user"]}],"stream":true}`,
		`{"messages":[0,0,0,{"role":"user"},{"content":"a"}]}`, `{"messages":[` + strings.Repeat("0,", 120) + `0],"stream":1}`,
		`{"bot_slug":"echo","messages":[{"role":"user","content":"a"},{}],"stream":true}`, // nothing of a message remains for the next
		// Repeated names: the last value counts.
		`{"bot_slug":"echo","prompt":"a","\u0070rompt":"b","stream":false}`,
		`{"bot_slug":"echo","messages":[{"role":"user","role":null,"content":"a","content":1}],"stream":true}`,
		`{"bot_slug":-0,"messages":[{"role":"user","role":"system","content":"a"}],"messages":[{"role":"user","content":""}],"stream":true,"x":1,"x":2e9}`,
		`{"bot_slug":"echo","messages":[7],"messages":null,"prompt":"p","stream":false}`, `{"bot_slug":"echo","messages":[7],"messages":"x","prompt":"p","stream":false}`,
		`{"bot_slug":"echo","messages":[7,{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}],"stream":false}`,
		`{"bot_slug":"echo","messages":[{"role":"x","content":1,"content":"b","role":"user"}],"stream":false}`,
		`{"x":{"a":1},"bot_slug":"echo","prompt":"p","\u0078":[2],"stream":false}`,
		// Fields that the API does not define.
		`{"bot_uid":1,"prompt":"a","stream":false,"X":[ 1 , "\u2028" ]}`, `{"a":1,"bot_uid":null,"bot_slug":"echo","prompt":"p","messages":[],"stream":false,"user_id":null,"z":2}`,
		`{"bot_slug":"echo","messages":[{"name":"x","role":"user","content":"b","Content":"c","parts":[{"role":"system"}]}],"stream":false}`,
		`{"temperature": 0.70 ,"bot_slug":"echo","":null,"prompt":"p","Stream":true,"stream":false,"stop":[ "a" , {"b":"\ud800"} ]}`,
	} {
		f.Add([]byte(body))
	}
	valid := func(field string) []byte {
		return []byte(`{"bot_slug":"echo","stream":false,"prompt":"p",` + field + `}`)
	}
	for _, number := range []string{"0", "-0", "10", "0.05", "-1.50", "1e5", "1E+5", "1e-5", "-0.1E-10", "01", ".5", "+1", "1e+", "-", "0x1F", "-123456789012345678901234567890"} {
		f.Add([]byte(number))
		f.Add(valid(`"user_id":` + number))
		f.Add(valid(`"n":` + number))
	}
	for _, text := range []string{
		` \n`, `\"\\\/\b\f\n\r\t\u00e9\u0000`, `a\nb[c\u0041é`, `\ud83d\ude00\uD83D\uDE00`, `\ud83d-\ude00-\ud83d\u0041-\ude00\ud83d`, `\ud83d\ud83d\ude00`,
		`\ud83d\n`, "aé€😀\x7f\u0085\u2028", `[DONE]`,
	} {
		f.Add(valid(`"prompt":"` + text + `"`))
	}
	for c := range byte(0x80) { // only hexadecimal digits make an escape
		f.Add(valid(`"prompt":"\u00` + string([]byte{c, c}) + `"`))
	}
	f.Fuzz(func(t *testing.T, body []byte) { compareWithSlowReading(t, string(body)) })
}

// The same comparison for bodies that a fuzzer would take long to find: pieces
// of real ones, put together at random.
func TestBodyRandom(t *testing.T) {
	parts := strings.Split(`{ { } } [ ] , , : : null true false 0 -0 42 1.5 1e3 "" "x" "user" "system" "assistant" "role" "content" "messages" "stream" `+
		`"prompt" "bot_uid" "bot_slug" "user_id" "bot_slug":"echo", "stream":true, "stream":false, "prompt":"p", "messages":[ "messages":[{ "role":"user", `+
		`{"role":"user","content":"a"}, "content":"b" "content":"b"}]} "\u0073tream" "\ud83d\ude00" "\ud83d" "\n" \ "`, " ")
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		body := "{"
		for range random.IntN(12) {
			body += parts[random.IntN(len(parts))]
		}
		compareWithSlowReading(t, body)
		compareWithSlowReading(t, strings.TrimSuffix(body, ",")+"}")
	}
}

// Only the size and the nesting of a body are limited.
func TestBodyLong(t *testing.T) {
	const many = 5_000
	number := strings.Repeat("9", many)
	var body strings.Builder
	fmt.Fprintf(&body, `{"bot_slug":"echo","stream":false,"user_id":%s,"%s":[%[1]s],"x":%s`, number, strings.Repeat("n", many), nested(jsonscan.MaxDepth-1))
	for i := range many {
		fmt.Fprintf(&body, `,"x%d":%[1]d`, i)
	}
	body.WriteString(`,"messages":[{"role":"assistant","content":"first"}`)
	for i := range many {
		fmt.Fprintf(&body, `,{"role":"user","content":"%d"}`, i)
	}
	compareWithSlowReading(t, body.String()+"]}")
}

// nested returns arrays nested to this many levels.
func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

func compareWithSlowReading(t *testing.T, body string) {
	t.Helper()
	got, rejected := bodies.Read(body)
	want, extra, problems := readSlowly(body)
	if len(problems) == 0 {
		if len(rejected) > 0 {
			t.Fatalf("rejected: %v\n%q", rejected, body)
		}
		if read := got.Unknown.Extra(); !reflect.DeepEqual(read, extra) {
			t.Fatalf("%q\nhas the unknown fields %q\nand, read slowly,      %q", body, read, extra)
		}
		if got.Unknown.Any() != (len(extra) > 0) {
			t.Fatalf("%q\nhas %d unknown fields, but Any is %t", body, len(extra), got.Unknown.Any())
		}
		if got.Unknown = (UnknownFields{}); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q\nreads as      %#v\nand slowly as %#v", body, got, want)
		}
		return
	}
	if len(rejected) == 0 {
		t.Fatalf("%q\nmust be rejected: %v", body, problems)
	}
	if problems[0].Type == "value_error.jsondecode" {
		problems[0].Msg = rejected[0].Msg // the parser's own
	}
	if !reflect.DeepEqual(rejected, problems) {
		t.Fatalf("%q\nis rejected with      %v\nand when read slowly: %v", body, rejected, problems)
	}
}

type message struct{ role, content string }

var bodies = New(func(role, content string) message { return message{role, content} })

// readSlowly reads a body step by step, as the API is described.
func readSlowly(body string) (read Body[message], extra map[string]json.RawMessage, problems []Problem) {
	problem := func(msg, code string, loc ...any) {
		problems = append(problems, Problem{append([]any{"body"}, loc...), msg, code})
	}
	if body == "" {
		problem("field required", "value_error.missing")
		return read, extra, problems
	}
	document := strings.TrimPrefix(body, "\uFEFF")
	if at, ok := syntaxErrorIn(document); ok {
		problem("", "value_error.jsondecode", at+len(body)-len(document))
		return read, extra, problems
	}
	document = strings.Trim(document, " \t\r\n")
	if document == "null" {
		problem("field required", "value_error.missing")
		return read, extra, problems
	}
	var fields map[string]json.RawMessage // exact names; the last value of a repeated one
	if json.Unmarshal([]byte(document), &fields) != nil {
		problem("value is not a valid dict", "type_error.dict")
		return read, extra, problems
	}

	text := func(name string, orInteger bool) string {
		raw := string(fields[name])
		switch {
		case raw == "" || raw == "null":
			return ""
		case raw[0] == '"':
			return unquoted(raw)
		case orInteger && integerJSON.MatchString(raw):
			return raw
		}
		problem("str type expected", "type_error.str", name)
		return ""
	}
	read.BotUID = text("bot_uid", true)
	read.BotSlug = text("bot_slug", true)
	prompt := text("prompt", false)
	switch raw := string(fields["messages"]); {
	case raw == "" || raw == "null":
	case raw[0] == '[':
		read.Messages = messagesSlowly(raw, problem)
	default:
		problem("value is not a valid list", "type_error.list", "messages")
	}
	switch raw := string(fields["stream"]); raw {
	case "true", "false":
		read.Stream = raw == "true"
	case "":
		problem("field required", "value_error.missing", "stream")
	case "null":
		problem("none is not an allowed value", "type_error.none.not_allowed", "stream")
	default:
		problem("value could not be parsed to a boolean", "type_error.bool", "stream")
	}
	read.UserID = text("user_id", true)
	if read.BotUID == "" && read.BotSlug == "" {
		problem(`Either "bot_uid" or "bot_slug" is required`, "value_error", "__root__")
	}
	if prompt == "" && len(read.Messages) == 0 {
		problem(`Either "prompt" or "messages" is required`, "value_error", "__root__")
	}

	if prompt != "" {
		read.Messages = append(read.Messages, message{userRole, prompt})
	}
	for _, known := range []string{"bot_uid", "bot_slug", "prompt", "messages", "stream", "user_id"} {
		delete(fields, known)
	}
	if len(fields) > 0 {
		extra = fields
	}
	return read, extra, problems[:min(len(problems), 100)]
}

// messagesSlowly returns no messages at all if one of them is bad.
func messagesSlowly(raw string, problem func(msg, code string, loc ...any)) (messages []message) {
	var elements []json.RawMessage
	if err := json.Unmarshal([]byte(raw), &elements); err != nil {
		panic(err)
	}
	bad := false
	reject := func(msg, code string, loc ...any) {
		bad = true
		problem(msg, code, append([]any{"messages"}, loc...)...)
	}
	for i, element := range elements {
		if string(element) == "null" {
			reject("none is not an allowed value", "type_error.none.not_allowed", i)
			continue
		}
		var fields map[string]json.RawMessage
		if json.Unmarshal(element, &fields) != nil {
			reject("value is not a valid dict", "type_error.dict", i)
			continue
		}
		for _, name := range []string{"role", "content"} {
			switch field := string(fields[name]); {
			case field == "":
				reject("field required", "value_error.missing", i, name)
			case field == "null":
				reject("none is not an allowed value", "type_error.none.not_allowed", i, name)
			case name == "content" && field[0] != '"':
				reject("str type expected", "type_error.str", i, name)
			case name == "role" && (field[0] != '"' || !slices.Contains([]string{"system", "user", "assistant"}, unquoted(field))):
				reject("value is not a valid enumeration member; permitted: 'system', 'user', 'assistant'", "type_error.enum", i, name)
			}
		}
		if !bad {
			messages = append(messages, message{unquoted(string(fields["role"])), unquoted(string(fields["content"]))})
		}
	}
	if bad {
		return nil
	}
	return messages
}

var integerJSON = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// syntaxErrorIn uses encoding/json, which accepts bytes within strings that are not UTF-8.
// The NUL, which is valid nowhere, distinguishes a document that ends too early from one
// whose last byte is wrong.
func syntaxErrorIn(document string) (at int, found bool) {
	at = len(document)
	if !json.Valid([]byte(document)) {
		found = true
		var v any
		var syntax *json.SyntaxError
		errors.As(json.Unmarshal([]byte(document+"\x00"), &v), &syntax)
		at = int(syntax.Offset) - 1
	}
	for i, r := range document[:at] {
		if r == utf8.RuneError && !strings.HasPrefix(document[i:], "\uFFFD") {
			return i, true
		}
	}
	return at, found
}

func unquoted(raw string) (text string) {
	if err := json.Unmarshal([]byte(raw), &text); err != nil {
		panic(err)
	}
	return text
}
