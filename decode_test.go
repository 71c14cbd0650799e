package botapi

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/matryer/is"

	"example.com/botapi/internal/chatbody"
	"example.com/botapi/internal/jsonscan"
)

// This file tests the body of POST /v1/chat: the responses that the API promises, the
// decoder against a slow one that is easy to read, the request that an engine gets, and the
// memory that a body takes.

// A conformanceCase is a request body with the response of the reference stack.
type conformanceCase struct {
	Name     string
	Body     string
	Base64   []byte `json:"body_base64"` // of a body that is not UTF-8
	Status   int
	Response json.RawMessage
}

func conformanceCases(t testing.TB) (cases []conformanceCase) {
	file, err := os.Open("testdata/conformance/chat_422.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c conformanceCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("case %d: %v", len(cases), err)
		}
		c.Body += string(c.Base64)
		cases = append(cases, c)
	}
	if len(cases) < 90 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

// An invalid body is not logged.
func TestBodyConformance(t *testing.T) {
	var log testLog
	server := httptest.NewServer(New(testOptions(t, &log)))
	defer server.Close()
	for _, c := range conformanceCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			is := is.New(t)
			got := doAt(t, server.Client(), server.URL, "POST", "/v1/chat", c.Body)
			is.NoErr(got.err)
			is.Equal(got.status, c.Status)
			is.Equal(got.header.Get("Content-Type"), "application/json")
			is.Equal(log.String(), "")
			if strings.Contains(string(c.Response), "value_error.jsondecode") {
				problems := problemsIn(t, got.body)
				is.Equal(len(problems), 1)
				is.Equal(problems[0].Type, "value_error.jsondecode")
				is.Equal(problems[0].Loc[0], "body")
				return
			}
			is.Equal(decodedJSON(t, got.body), decodedJSON(t, string(c.Response)))
		})
	}
}

func decodedJSON(t testing.TB, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// problemsIn reads the body of a 422, whose problems have loc, msg and type, and
// nothing else.
func problemsIn(t testing.TB, body string) []ValidationError {
	t.Helper()
	var response HTTPValidationError
	if err := decodeStrictly(body, &response); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return response.Detail
}

// The messages and positions of syntax errors. FuzzChatBody compares the positions with
// encoding/json's, for many more bodies.
func TestBodySyntaxErrors(t *testing.T) {
	deep := strings.Repeat("[", jsonscan.MaxDepth+1)
	for body, want := range map[string]struct {
		msg                string
		line, column, char int
	}{
		" \r\n\t":                       {"Expecting value", 2, 2, 4},
		`nul`:                           {"Expecting value", 1, 4, 3},
		"{\n  1:2}":                     {"Expecting property name enclosed in double quotes", 2, 3, 4},
		`{}{}`:                          {"Extra data", 1, 3, 2},
		`{"a"`:                          {"Expecting ':' delimiter", 1, 5, 4},
		`{"a":1 "b":2}`:                 {"Expecting ',' delimiter", 1, 8, 7},
		`{"a":"b`:                       {"Unterminated string", 1, 8, 7},
		`"\`:                            {`Invalid \escape`, 1, 3, 2},
		`"\u12`:                         {`Invalid \uXXXX escape`, 1, 6, 5},
		`1.`:                            {"Expecting a digit", 1, 3, 2},
		"\"a\tb\"":                      {"Invalid control character at", 1, 3, 2},
		"\"a\x80\"":                     {"Not UTF-8", 1, 3, 2},
		deep:                            {"Too many levels", 1, 10001, 10000},
		`{"messages":[{"x":` + deep[3:]: {"Too many levels", 1, 10016, 10015},
	} {
		t.Run(fmt.Sprintf("%.20q", body), func(t *testing.T) {
			is := is.New(t)
			got := postChat(New(testOptions(t, t.Output())), body)
			is.Equal(got.Code, 422)
			msg := fmt.Sprintf("%s: line %d column %d (char %d)", want.msg, want.line, want.column, want.char)
			is.Equal(problemsIn(t, got.Body.String()), []ValidationError{{[]any{"body", float64(want.char)}, msg, "value_error.jsondecode"}})
		})
	}
}

// FuzzChatBody compares the decoder with readSlowly, which uses encoding/json's maps and
// shares no code with it.
func FuzzChatBody(f *testing.F) {
	for _, c := range conformanceCases(f) {
		f.Add([]byte(c.Body))
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
	got, err := decodeBody(body)
	want, extra, problems := readSlowly(body)
	if len(problems) == 0 {
		if err != nil {
			t.Fatalf("rejected: %v\n%q", err, body)
		}
		if read := got.Unknown.Extra(); !reflect.DeepEqual(read, extra) {
			t.Fatalf("%q\nhas the unknown fields %q\nand, read slowly,      %q", body, read, extra)
		}
		if got.Unknown = (chatbody.UnknownFields{}); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q\nreads as      %#v\nand slowly as %#v", body, got, want)
		}
		return
	}
	var rejection HTTPValidationError
	if !errors.As(err, &rejection) {
		t.Fatalf("%v for %q\nwhich must be rejected: %v", err, body, problems)
	}
	if problems[0].Type == "value_error.jsondecode" {
		problems[0].Msg = rejection.Detail[0].Msg // the parser's own
	}
	if !reflect.DeepEqual(rejection.Detail, problems) {
		t.Fatalf("%q\nis rejected with      %v\nand when read slowly: %v", body, rejection.Detail, problems)
	}
}

func decodeBody(body string) (chatbody.Body[ChatMessage], error) {
	read, problems := bodies.Read(body)
	if len(problems) > 0 {
		return read, rejectedBody(problems)
	}
	return read, nil
}

// readSlowly reads a body step by step, as the API is described.
func readSlowly(body string) (read chatbody.Body[ChatMessage], extra map[string]json.RawMessage, problems []ValidationError) {
	problem := func(msg, code string, loc ...any) {
		problems = append(problems, ValidationError{append([]any{"body"}, loc...), msg, code})
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
		read.Messages = append(read.Messages, ChatMessage{RoleUser, prompt})
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
func messagesSlowly(raw string, problem func(msg, code string, loc ...any)) (messages []ChatMessage) {
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
			messages = append(messages, ChatMessage{Role(unquoted(string(fields["role"]))), unquoted(string(fields["content"]))})
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

// requestFor returns the request that the engine gets for this body.
func requestFor(t testing.TB, body string) (got *ChatRequest) {
	t.Helper()
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, _ func(string, error) bool) { got = req })
	if response := postChat(New(o), body); response.Code != 200 {
		t.Fatalf("%d %s", response.Code, response.Body)
	}
	return got
}

// The prompt comes after the messages. Unknown fields reach the engine unchanged.
func TestChatRequest(t *testing.T) {
	is.New(t).Equal(*requestFor(t, "\uFEFF"+`{"bot_slug":"echo","prompt":"p","temperature": 0.70 ,"user_id":-12345678901234567890,"stream":true,"Stream":false,
		"messages":[{"role":"system","content":"s\n"},{"role":"user","content":""},{"role":"assistant","content":"a"}]}`), ChatRequest{
		Bot: echoBot, UserID: "-12345678901234567890", Stream: true,
		Messages: []ChatMessage{{RoleSystem, "s\n"}, {RoleUser, ""}, {RoleAssistant, "a"}, {RoleUser, "p"}},
		Extra:    map[string]json.RawMessage{"temperature": json.RawMessage("0.70"), "Stream": json.RawMessage("false")},
	})
}

// An engine may change a value of Extra, or append to it: no other value changes.
func TestChatRequestExtraMayBeChanged(t *testing.T) {
	is := is.New(t)
	extra := requestFor(t, `{"bot_slug":"echo","prompt":"p","stream":false,"a":[1],"b":[2],"c":[3]}`).Extra
	for name := range extra {
		extra[name][0] = '{'
		extra[name] = append(extra[name], "beyond"...)
	}
	is.Equal(extra, map[string]json.RawMessage{"a": json.RawMessage("{1]beyond"), "b": json.RawMessage("{2]beyond"), "c": json.RawMessage("{3]beyond")})
}

// An engine may keep its request: later chats do not change it.
func TestChatRequestMayBeKept(t *testing.T) {
	is := is.New(t)
	var kept []*ChatRequest
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, _ func(string, error) bool) { kept = append(kept, req) })
	h := New(o)
	for i := range 20 { // a pool does not always return what was put into it last
		postChat(h, fmt.Sprintf(`{"bot_slug":"echo","messages":[{"role":"user","content":"message %d"}],"user_id":"u-%[1]d","stream":false,"n":%[1]d}`, i))
	}
	is.Equal(len(kept), 20)
	for i, req := range kept {
		is.Equal(req.Messages, []ChatMessage{{RoleUser, fmt.Sprint("message ", i)}})
		is.Equal(req.UserID, fmt.Sprint("u-", i))
		is.Equal(string(req.Extra["n"]), fmt.Sprint(i))
	}
}

// A body within its limit must cause neither a huge response nor much memory, above all
// before its chat has a slot.
func TestBodyHostileCostsLittle(t *testing.T) {
	const limit = DefaultMaxBodyBytes
	const prompt, messages = `{"bot_slug":"echo","stream":false,"prompt":"p`, `{"bot_slug":"echo","stream":false,"messages":[{"role":"user","content":"p"}`
	filled := func(start, repeated, end string) string {
		return start + strings.Repeat(repeated, (limit-len(start+end))/len(repeated)) + end
	}
	fields := new(strings.Builder)
	for i := 0; fields.Len() < limit-100; i++ {
		fmt.Fprintf(fields, `,"%x":0`, i)
	}
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("ok")
	free := New(o)
	called := make(chan struct{})
	o.MaxConcurrentChats = 1
	o.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) {
		close(called)
		<-t.Context().Done() // until the test ends
	})
	busy := New(o)
	go postChat(busy, chatBodyJSON("hi", false))
	<-called
	for _, c := range []struct {
		name, body string
		status     int
		times      float64 // the bound of the memory, as a multiple of the body's size, even with the race detector; 0: 8
	}{
		{"a text", filled(prompt, "x", `"}`), 200, 0},
		{"a text that is escaped", filled(prompt, `\n`, `"}`), 200, 0},
		{"a text, escaped at its end", filled(prompt, `x`, `\n"}`), 200, 0},
		{"tiny messages", filled(messages, `,{"role":"user","content":""}`, `]}`), 200, 0},
		{"messages that are escaped", filled(messages, `,{"role":"\u0075ser","content":"\n"}`, `]}`), 200, 0},
		{"tiny messages and a bad one", filled(messages, `,{"role":"user","content":""}`, `,7]}`), 422, 0},
		{"bad elements", filled(messages, `,0`, `]}`), 422, 0},
		{"empty elements", filled(messages, `,{}`, `]}`), 422, 0},
		{"unknown fields of a message", filled(messages+`,{"role":"user","content":""`, `,"":0`, `}]}`), 200, 0},
		{"fields with the same name", filled(prompt+`"`, `,"":0`, `}`), 200, 26},
		{"fields", prompt + `"` + fields.String() + `}`, 200, 32},
		{"10,000 levels", prompt + `","x":` + nested(jsonscan.MaxDepth-1) + `}`, 200, 0},
		{"500,000 levels", filled("", "[", ""), 422, 0},
		{"levels of objects", filled("", `{"a":`, ""), 422, 0},
		{"a string of escapes", filled(`{"messages":"`, `\n`, `"}`), 422, 0},
		{"an endless number", filled(`{"messages":`, `9`, `}`), 422, 0},
		{"line breaks before an error", filled("", "\n", "x"), 422, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			is.True(len(c.body) <= limit)
			for _, try := range []struct {
				h      http.Handler
				status int
				atMost float64
			}{
				{free, c.status, cmp.Or(c.times, 8)},
				{busy, map[int]int{200: 503, 422: 422}[c.status], 8},
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				got := postChat(try.h, c.body)
				runtime.ReadMemStats(&after)
				is.Equal(got.Code, try.status)
				is.True(got.Body.Len() < 32<<10)
				times := float64(after.TotalAlloc-before.TotalAlloc) / limit // allocated, including what is garbage by now
				t.Logf("%d: %.1f times its size, a response of %d bytes", got.Code, times, got.Body.Len())
				is.True(times < try.atMost)
			}
		})
	}
}

// heldByEach returns how much memory each element of kept retains, after next has filled
// all of them.
func heldByEach(kept []any, next func(i int) any) (bytes int64) {
	before := heapInUse()
	for i := range kept {
		kept[i] = next(i)
	}
	after := heapInUse()
	runtime.KeepAlive(kept)
	return (after - before) / int64(len(kept))
}

// A body that is still arriving takes memory for the bytes that have arrived, not for its
// Content-Length.
func TestBodyMemoryWhileItArrives(t *testing.T) {
	const sent, announced = 8 << 10, 1 << 20
	for framing, size := range map[string]string{
		fmt.Sprint("Content-Length: ", announced): "",
		"Transfer-Encoding: chunked":              fmt.Sprintf("%x\r\n", announced),
	} {
		t.Run(framing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				server := serveInMemory(t, New(testOptions(t, io.Discard)))
				conns := make([]any, 200)
				held := heldByEach(conns, func(int) any {
					conn := server.dial()
					_, err := io.WriteString(conn, lines(chatLine, host, key, framing)+size+strings.Repeat(" ", sent))
					is.NoErr(err)
					synctest.Wait() // the handler waits for more
					return conn
				})
				for _, conn := range conns {
					_ = conn.(net.Conn).Close()
				}
				t.Log(held, "bytes for each client")
				is.True(held < 3*sent+24<<10) // including net/http's memory for a connection
			})
		})
	}
}

// Extra and a ChatReport do not retain the body. A field with a repeated name takes memory
// for one value only.
func TestBodyIsNotRetained(t *testing.T) {
	long := func(i int) string {
		return fmt.Sprintf(`{"bot_slug":"echo","prompt":%q,"stream":false,"user_id":"user-%d","temperature":0.%[2]d}`, strings.Repeat("x", 1<<20-200), i)
	}
	repeated := `{"bot_slug":"echo","prompt":"p","stream":false` + strings.Repeat(`,"temperature":0.5`, 50_000) + `}`
	var reported ChatReport
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("ok")
	o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
	h := New(o)
	for what, c := range map[string]struct {
		next func(i int) any
		has  string
	}{
		"Extra":                    {func(i int) any { return requestFor(t, long(i)).Extra }, "temperature:0."},
		"Extra of a repeated name": {func(int) any { return requestFor(t, repeated).Extra }, "map[temperature:0.5]"},
		"the report":               {func(i int) any { postChat(h, long(i)); return reported }, "user-"},
	} {
		t.Run(what, func(t *testing.T) {
			is := is.New(t)
			kept := make([]any, 20)
			held := heldByEach(kept, c.next)
			t.Log(held, "bytes of each body")
			is.True(held < 1<<20/4)
			for _, kept := range kept {
				is.True(strings.Contains(fmt.Sprintf("%s", kept), c.has))
			}
		})
	}
}
