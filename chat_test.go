package botapi

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/matryer/is"
)

// A conformanceCase is a request body with the answer of the reference stack.
type conformanceCase struct {
	Name     string          `json:"name"`
	Body     string          `json:"body"`
	Base64   []byte          `json:"body_base64"`
	Status   int             `json:"status"`
	Response json.RawMessage `json:"response"`
}

func (c *conformanceCase) body() string {
	if c.Base64 != nil {
		return string(c.Base64)
	}
	return c.Body
}

func conformanceCases(t testing.TB) []conformanceCase {
	file, err := os.Open("testdata/conformance/chat_422.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var cases []conformanceCase
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var c conformanceCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("case %d: %v", len(cases), err)
		}
		cases = append(cases, c)
	}
	if len(cases) < 90 {
		t.Fatalf("only %d cases", len(cases))
	}
	return cases
}

func TestConformanceWithTheReferenceStack(t *testing.T) {
	server := httptest.NewServer(New(testOptions(t, t.Output())))
	defer server.Close()
	for _, c := range conformanceCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			is := is.New(t)
			got := doAt(t, server.Client(), server.URL, "POST", "/v1/chat", c.body())
			is.NoErr(got.err)
			is.Equal(got.status, c.Status)
			is.Equal(got.header.Get("Content-Type"), "application/json")
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

// problemsIn reads a 422 answer, whose problems have loc, msg and type and
// nothing else.
func problemsIn(t testing.TB, body string) []ValidationError {
	t.Helper()
	var answer HTTPValidationError
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&answer); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	return answer.Detail
}

// listed writes problems as lines of "loc: msg (type)", without the leading
// "body" of each loc.
func listed(problems []ValidationError) string {
	var lines strings.Builder
	for _, p := range problems {
		loc := strings.Trim(fmt.Sprint(p.Loc[1:]), "[]")
		fmt.Fprintf(&lines, "%s: %s (%s)\n", loc, p.Msg, p.Type)
	}
	return lines.String()
}

// postChat sends a chat with the test key to a handler without a network.
func postChat(h http.Handler, body string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("POST", "/v1/chat", strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+testKey)
	h.ServeHTTP(recorder, request)
	return recorder
}

// heard returns what the engine is asked when a client sends this body.
func heard(t testing.TB, body string) *ChatRequest {
	t.Helper()
	var heard *ChatRequest
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, yield func(string, error) bool) {
		heard = req
		yield("ok", nil)
	})
	if got := postChat(New(o), body); got.Code != http.StatusOK {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	return heard
}

func TestSyntaxErrorsSayWhere(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1)
	for _, c := range []struct {
		name, body string
		offset     int
		msg        string
	}{
		{"white space only", " \r\n\t", 4, "Expecting value: line 2 column 2 (char 4)"},
		{"a byte order mark only", "\uFEFF", 3, "Expecting value: line 1 column 4 (char 3)"},
		{"two byte order marks", "\uFEFF\uFEFF{}", 3, "Expecting value: line 1 column 4 (char 3)"},
		{"a byte order mark in the middle", "{\uFEFF}", 1, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
		{"a form feed is no white space", "\f{}", 0, "Expecting value: line 1 column 1 (char 0)"},
		{"a no-break space is no white space", "{}\u00A0", 2, "Extra data: line 1 column 3 (char 2)"},
		{"a NUL", "\x00", 0, "Expecting value: line 1 column 1 (char 0)"},
		{"a NUL behind", "{}\x00", 2, "Extra data: line 1 column 3 (char 2)"},
		{"two values", "{}{}", 2, "Extra data: line 1 column 3 (char 2)"},
		{"ends in an object", `{`, 1, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
		{"ends behind a name", `{"a"`, 4, "Expecting ':' delimiter: line 1 column 5 (char 4)"},
		{"ends behind a colon", `{"a":`, 5, "Expecting value: line 1 column 6 (char 5)"},
		{"ends behind a value", `{"a":1`, 6, "Expecting ',' delimiter: line 1 column 7 (char 6)"},
		{"ends behind a comma", `{"a":1,`, 7, "Expecting property name enclosed in double quotes: line 1 column 8 (char 7)"},
		{"ends in a string", `{"a":"b`, 7, "Unterminated string: line 1 column 8 (char 7)"},
		{"ends in a name", `{"a`, 3, "Unterminated string: line 1 column 4 (char 3)"},
		{"ends in an escape", `"\`, 2, `Invalid \escape: line 1 column 3 (char 2)`},
		{"ends in a unicode escape", `"\u12`, 5, `Invalid \uXXXX escape: line 1 column 6 (char 5)`},
		{"ends in messages", `{"messages":[{"role":"user"`, 27, "Expecting ',' delimiter: line 1 column 28 (char 27)"},
		{"a name without quotes", `{a:1}`, 1, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
		{"a number as a name", "{\n  1:2}", 4, "Expecting property name enclosed in double quotes: line 2 column 3 (char 4)"},
		{"no colon", `{"a" 1}`, 5, "Expecting ':' delimiter: line 1 column 6 (char 5)"},
		{"no comma", `{"a":1 "b":2}`, 7, "Expecting ',' delimiter: line 1 column 8 (char 7)"},
		{"no value", `{"a":}`, 5, "Expecting value: line 1 column 6 (char 5)"},
		{"a comma first", `[,1]`, 1, "Expecting value: line 1 column 2 (char 1)"},
		{"a comma last", `{"messages":[{},]}`, 16, "Expecting value: line 1 column 17 (char 16)"},
		{"the wrong bracket", `{"a":[1}`, 7, "Expecting ',' delimiter: line 1 column 8 (char 7)"},
		{"the other wrong bracket", `[{]`, 2, "Expecting property name enclosed in double quotes: line 1 column 3 (char 2)"},
		{"NaN", `{"a":NaN}`, 5, "Expecting value: line 1 column 6 (char 5)"},
		{"Infinity", `{"a":Infinity}`, 5, "Expecting value: line 1 column 6 (char 5)"},
		{"-Infinity", `{"a":-Infinity}`, 6, "Expecting a digit: line 1 column 7 (char 6)"},
		{"True", `{"stream":True}`, 10, "Expecting value: line 1 column 11 (char 10)"},
		{"truth", `{"stream":truth}`, 13, "Expecting value: line 1 column 14 (char 13)"},
		{"a word cut short", `nul`, 3, "Expecting value: line 1 column 4 (char 3)"},
		{"a leading zero", `{"user_id":042}`, 12, "Expecting ',' delimiter: line 1 column 13 (char 12)"},
		{"a leading plus", `+1`, 0, "Expecting value: line 1 column 1 (char 0)"},
		{"a leading point", `.5`, 0, "Expecting value: line 1 column 1 (char 0)"},
		{"a trailing point", `1.`, 2, "Expecting a digit: line 1 column 3 (char 2)"},
		{"no exponent", `1e+`, 3, "Expecting a digit: line 1 column 4 (char 3)"},
		{"a minus alone", `-`, 1, "Expecting a digit: line 1 column 2 (char 1)"},
		{"a hexadecimal number", `0x1F`, 1, "Extra data: line 1 column 2 (char 1)"},
		{"an unknown escape", `"\x41"`, 2, `Invalid \escape: line 1 column 3 (char 2)`},
		{"an escaped quote of the other kind", `"\'"`, 2, `Invalid \escape: line 1 column 3 (char 2)`},
		{"a unicode escape with a bad digit", `"\u00G0"`, 5, `Invalid \uXXXX escape: line 1 column 6 (char 5)`},
		{"a bad second half of a pair", `"\ud83d\u12x4"`, 11, `Invalid \uXXXX escape: line 1 column 12 (char 11)`},
		{"a raw tab in a string", "\"a\tb\"", 2, "Invalid control character at: line 1 column 3 (char 2)"},
		{"a raw NUL in a string", "\"a\x00b\"", 2, "Invalid control character at: line 1 column 3 (char 2)"},
		{"a raw line break in a name", "{\"a\nb\":1}", 3, "Invalid control character at: line 1 column 4 (char 3)"},
		{"a stray continuation byte", "\"a\x80\"", 2, "Not UTF-8: line 1 column 3 (char 2)"},
		{"a character cut by the quote", "\"a\xe2\x82\"", 2, "Not UTF-8: line 1 column 3 (char 2)"},
		{"an overlong character", "\"\xc0\xaf\"", 1, "Not UTF-8: line 1 column 2 (char 1)"},
		{"above the last character", "\"\xf4\x90\x80\x80\"", 1, "Not UTF-8: line 1 column 2 (char 1)"},
		{"a bad byte in a name", "{\"\xff\":1}", 2, "Not UTF-8: line 1 column 3 (char 2)"},
		{"a bad byte outside strings", "{\xff}", 1, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
		{"a bad byte in a member that nobody reads", "{\"x\":{\"y\":[\"\xff\"]}}", 12, "Not UTF-8: line 1 column 13 (char 12)"},
		{"UTF-16", "\xff\xfe{\x00}\x00", 0, "Expecting value: line 1 column 1 (char 0)"},
		{"a comment", "{} // none", 3, "Extra data: line 1 column 4 (char 3)"},
		{"a level too many", deep, maxDepth, "Too many levels: line 1 column 10001 (char 10000)"},
		{"a level too many in messages", `{"messages":[{"x":` + deep[3:], 18 + maxDepth - 3, "Too many levels: line 1 column 10016 (char 10015)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			got := postChat(New(testOptions(t, t.Output())), c.body)
			is.Equal(got.Code, http.StatusUnprocessableEntity)
			is.Equal(problemsIn(t, got.Body.String()), []ValidationError{
				{Loc: []any{"body", float64(c.offset)}, Msg: c.msg, Type: "value_error.jsondecode"},
			})
		})
	}
}

// What is wrong with a request is its client's affair, and no line in the log.
func TestAnInvalidRequestIsNotLogged(t *testing.T) {
	is := is.New(t)
	var log testLog
	for _, body := range []string{"", "{", "{}", `{"bot_slug":"echo","prompt":7,"stream":true}`} {
		is.Equal(postChat(New(testOptions(t, &log)), body).Code, 422)
	}
	is.Equal(log.String(), "")
}

func TestEveryProblemOfABodyIsListedInOrder(t *testing.T) {
	const (
		noBot   = "__root__: Either \"bot_uid\" or \"bot_slug\" is required (value_error)\n"
		noInput = "__root__: Either \"prompt\" or \"messages\" is required (value_error)\n"
		noBody  = "field required (value_error.missing)\n"
		enum    = "value is not a valid enumeration member; permitted: 'system', 'user', 'assistant' (type_error.enum)\n"
	)
	for _, c := range []struct{ name, body, want string }{
		{"a wrong prompt alone gives two", `{"bot_slug":"echo","prompt":1,"stream":true}`, "prompt: str type expected (type_error.str)\n" + noInput},
		{"a wrong prompt beside messages gives one", `{"bot_slug":"echo","prompt":1,"messages":[{"role":"user","content":"a"}],"stream":true}`, "prompt: str type expected (type_error.str)\n"},
		{"one bad element makes all messages absent", `{"bot_slug":"echo","messages":[{"role":"user","content":"a"},7],"stream":true}`, "messages 1: value is not a valid dict (type_error.dict)\n" + noInput},
		{"bad messages beside a prompt", `{"bot_slug":"echo","prompt":"a","messages":[7],"stream":true}`, "messages 0: value is not a valid dict (type_error.dict)\n"},
		{"empty messages, empty prompt", `{"bot_slug":"echo","prompt":"","messages":[],"stream":true}`, noInput},
		{"a wrong uid beside a good slug gives one", `{"bot_uid":1.0,"bot_slug":"echo","prompt":"a","stream":true}`, "bot_uid: str type expected (type_error.str)\n"},
		{"a wrong uid beside an empty slug gives two", `{"bot_uid":1.0,"bot_slug":"","prompt":"a","stream":true}`, "bot_uid: str type expected (type_error.str)\n" + noBot},
		{"an exponent is no identifier", `{"bot_slug":1E2,"prompt":"a","stream":true}`, "bot_slug: str type expected (type_error.str)\n" + noBot},
		{"minus nothing point nothing", `{"bot_slug":"echo","prompt":"a","stream":true,"user_id":-0.0}`, "user_id: str type expected (type_error.str)\n"},
		{"text is no number", `{"bot_slug":"echo","prompt":12,"stream":true}`, "prompt: str type expected (type_error.str)\n" + noInput},
		{"stream is no word", `{"bot_slug":"echo","prompt":"a","stream":"false"}`, "stream: value could not be parsed to a boolean (type_error.bool)\n"},
		{"stream is no number", `{"bot_slug":"echo","prompt":"a","stream":1}`, "stream: value could not be parsed to a boolean (type_error.bool)\n"},
		{"names match in their case only", `{"Bot_Slug":"echo","PROMPT":"a","stream":true}`, noBot + noInput},
		{"names match in their case only, in messages too", `{"bot_slug":"echo","messages":[{"Role":"user","content":"a"}],"stream":true}`, "messages 0 role: field required (value_error.missing)\n" + noInput},
		{"a name is not matched by its folded form", `{"bot_\u017flug":"echo","prompt":"a","\u017ftream":true}`, "stream: field required (value_error.missing)\n" + noBot},
		{"roles match in their case only", `{"bot_slug":"echo","messages":[{"role":"USER","content":"a"}],"stream":true}`, "messages 0 role: " + enum + noInput},
		{"an empty role", `{"bot_slug":"echo","messages":[{"role":"","content":"a"}],"stream":true}`, "messages 0 role: " + enum + noInput},
		{"role stands before content", `{"bot_slug":"echo","messages":[{"content":null,"role":["user"]}],"stream":true}`,
			"messages 0 role: " + enum + "messages 0 content: none is not an allowed value (type_error.none.not_allowed)\n" + noInput},
		{"fields in the interface's order", `{"user_id":{},"stream":[],"messages":[null],"prompt":{},"bot_slug":false,"bot_uid":true}`,
			"bot_uid: str type expected (type_error.str)\nbot_slug: str type expected (type_error.str)\n" +
				"prompt: str type expected (type_error.str)\nmessages 0: none is not an allowed value (type_error.none.not_allowed)\n" +
				"stream: value could not be parsed to a boolean (type_error.bool)\nuser_id: str type expected (type_error.str)\n" + noBot + noInput},
		{"a repeated name: the last counts, worse", `{"bot_slug":"echo","prompt":"a","prompt":[],"stream":true}`, "prompt: str type expected (type_error.str)\n" + noInput},
		{"a repeated name: null takes it away", `{"bot_slug":"echo","bot_slug":null,"prompt":"a","stream":true}`, noBot},
		{"repeated messages: the last replaces all", `{"bot_slug":"echo","messages":[{"role":"user","content":"a"}],"messages":[7],"stream":true}`, "messages 0: value is not a valid dict (type_error.dict)\n" + noInput},
		{"repeated messages: null takes them away", `{"bot_slug":"echo","messages":[{"role":"user","content":"a"}],"messages":null,"stream":true}`, noInput},
		{"repeated messages: a word takes them away", `{"bot_slug":"echo","messages":[{"role":"user","content":"a"}],"messages":"x","stream":true}`, "messages: value is not a valid list (type_error.list)\n" + noInput},
		{"repeated inside a message: the last counts", `{"bot_slug":"echo","messages":[{"role":"user","role":null,"content":"a","content":1}],"stream":true}`,
			"messages 0 role: none is not an allowed value (type_error.none.not_allowed)\nmessages 0 content: str type expected (type_error.str)\n" + noInput},
		{"nothing passes from one message to the next", `{"bot_slug":"echo","messages":[{"role":"user","content":"a"},{}],"stream":true}`,
			"messages 1 role: field required (value_error.missing)\nmessages 1 content: field required (value_error.missing)\n" + noInput},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			got := postChat(New(testOptions(t, t.Output())), c.body)
			is.Equal(got.Code, http.StatusUnprocessableEntity)
			is.Equal(listed(problemsIn(t, got.Body.String())), c.want)
		})
	}
	t.Run("no body and null", func(t *testing.T) {
		is := is.New(t)
		for _, body := range []string{"", "null", " null\n", "\uFEFFnull"} {
			got := postChat(New(testOptions(t, t.Output())), body)
			is.Equal(got.Code, http.StatusUnprocessableEntity)
			is.Equal(got.Body.String(), `{"detail":[{"loc":["body"],"msg":"field required","type":"value_error.missing"}]}`)
		}
	})
}

func TestAnEngineHearsWhatTheClientSaid(t *testing.T) {
	user := func(texts ...string) (messages []ChatMessage) {
		for _, text := range texts {
			messages = append(messages, ChatMessage{RoleUser, text})
		}
		return messages
	}
	for _, c := range []struct {
		name, body string
		want       ChatRequest
	}{
		{"a prompt", `{"bot_slug":"echo","prompt":"hi","stream":false}`, ChatRequest{Messages: user("hi")}},
		{"a byte order mark is skipped", "\uFEFF" + `{"bot_slug":"echo","prompt":"hi","stream":false}`, ChatRequest{Messages: user("hi")}},
		{"all three roles", `{"bot_slug":"echo","messages":[{"role":"system","content":"s"},{"role":"user","content":""},{"role":"assistant","content":"a"}],"stream":false}`,
			ChatRequest{Messages: []ChatMessage{{RoleSystem, "s"}, {RoleUser, ""}, {RoleAssistant, "a"}}}},
		{"the prompt comes after the messages", `{"bot_slug":"echo","prompt":"p","messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}],"stream":false}`,
			ChatRequest{Messages: []ChatMessage{{RoleUser, "u"}, {RoleAssistant, "a"}, {RoleUser, "p"}}}},
		{"an empty prompt is none", `{"bot_slug":"echo","prompt":"","messages":[{"role":"user","content":"u"}],"stream":false}`, ChatRequest{Messages: user("u")}},
		{"empty messages are none", `{"bot_slug":"echo","prompt":"p","messages":[],"stream":false}`, ChatRequest{Messages: user("p")}},
		{"null is absent", `{"bot_slug":"echo","bot_uid":null,"prompt":"p","messages":null,"stream":false,"user_id":null}`, ChatRequest{Messages: user("p")}},
		{"white space is text", `{"bot_slug":"echo","prompt":" \n","stream":false}`, ChatRequest{Messages: user(" \n")}},
		{"escapes", `{"bot_slug":"echo","prompt":"\"\\\/\b\f\n\r\t\u00e9\u0000","stream":false}`, ChatRequest{Messages: user("\"\\/\b\f\n\r\té\x00")}},
		{"text before, between and behind escapes", `{"bot_slug":"echo","prompt":"a\nb[c\u0041é","stream":false}`, ChatRequest{Messages: user("a\nb[cAé")}},
		{"a pair of surrogates", `{"bot_slug":"echo","prompt":"\ud83d\ude00\uD83D\uDE00","stream":false}`, ChatRequest{Messages: user("😀😀")}},
		{"lone surrogates", `{"bot_slug":"echo","prompt":"\ud83d-\ude00-\ud83d\u0041-\ude00\ud83d","stream":false}`, ChatRequest{Messages: user("\uFFFD-\uFFFD-\uFFFDA-\uFFFD\uFFFD")}},
		{"a high surrogate before a pair", `{"bot_slug":"echo","prompt":"\ud83d\ud83d\ude00","stream":false}`, ChatRequest{Messages: user("\uFFFD😀")}},
		{"a high surrogate before another escape", `{"bot_slug":"echo","prompt":"\ud83d\n","stream":false}`, ChatRequest{Messages: user("\uFFFD\n")}},
		{"characters of every length", `{"bot_slug":"echo","prompt":"aé€😀` + "\x7f\u0085\u2028" + `","stream":false}`, ChatRequest{Messages: user("aé€😀\x7f\u0085\u2028")}},
		{"the end of a stream as text", `{"bot_slug":"echo","prompt":"[DONE]","stream":false}`, ChatRequest{Messages: user("[DONE]")}},
		{"a user's number", `{"bot_slug":"echo","prompt":"p","stream":false,"user_id":42}`, ChatRequest{Messages: user("p"), UserID: "42"}},
		{"minus zero", `{"bot_slug":"echo","prompt":"p","stream":false,"user_id":-0}`, ChatRequest{Messages: user("p"), UserID: "-0"}},
		{"a number larger than any machine's", `{"bot_slug":"echo","prompt":"p","stream":false,"user_id":-123456789012345678901234567890}`,
			ChatRequest{Messages: user("p"), UserID: "-123456789012345678901234567890"}},
		{"an empty user id", `{"bot_slug":"echo","prompt":"p","stream":false,"user_id":""}`, ChatRequest{Messages: user("p")}},
		{"the last of a repeated name", `{"bot_slug":"x","prompt":1,"stream":null,"bot_slug":"echo","prompt":"p","stream":false}`, ChatRequest{Messages: user("p")}},
		{"the last of repeated names, however they are written", `{"bot_slug":"echo","prompt":"a","\u0070rompt":"b","stream":false}`, ChatRequest{Messages: user("b")}},
		{"the last of repeated messages", `{"bot_slug":"echo","messages":[7,{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}],"stream":false}`, ChatRequest{Messages: user("b")}},
		{"the last of repeated messages, after a word", `{"bot_slug":"echo","messages":"x","messages":[{"role":"user","content":"b"}],"stream":false}`, ChatRequest{Messages: user("b")}},
		{"the last of repeated messages, that takes bad ones away", `{"bot_slug":"echo","messages":[7],"messages":null,"prompt":"p","stream":false}`, ChatRequest{Messages: user("p")}},
		{"the last of a repeated name in a message", `{"bot_slug":"echo","messages":[{"role":"x","content":1,"content":"b","role":"user"}],"stream":false}`, ChatRequest{Messages: user("b")}},
		{"unknown members of a message are dropped", `{"bot_slug":"echo","messages":[{"name":"x","role":"user","content":"b","Content":"c","parts":[{"role":"system"}]}],"stream":false}`, ChatRequest{Messages: user("b")}},
		{"unknown members of the body are kept as they stand", `{"temperature": 0.70 ,"bot_slug":"echo","":null,"prompt":"p","Stream":true,"stream":false,"stop":[ "a" , {"b":"\ud800"} ]}`,
			ChatRequest{Messages: user("p"), Extra: map[string]json.RawMessage{
				"temperature": json.RawMessage(`0.70`), "": json.RawMessage(`null`), "Stream": json.RawMessage(`true`), "stop": json.RawMessage(`[ "a" , {"b":"\ud800"} ]`),
			}}},
		{"the last of a repeated unknown member", `{"x":{"a":1},"bot_slug":"echo","prompt":"p","\u0078":[2],"stream":false}`,
			ChatRequest{Messages: user("p"), Extra: map[string]json.RawMessage{"x": json.RawMessage(`[2]`)}}},
		{"as many levels as there may be", `{"bot_slug":"echo","prompt":"p","stream":false,"x":` + nested(maxDepth-1) + `}`,
			ChatRequest{Messages: user("p"), Extra: map[string]json.RawMessage{"x": json.RawMessage(nested(maxDepth - 1))}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			got := *heard(t, c.body)
			is.Equal(got.Bot, echoBot)
			got.Bot = Bot{}
			is.Equal(got, c.want)
		})
	}
}

// Nothing of a request is bounded but its body.
func TestAnEngineHearsAllOfALongBody(t *testing.T) {
	is := is.New(t)
	const many = 5_000
	number, name := strings.Repeat("9", many), strings.Repeat("n", many)
	var body strings.Builder
	fmt.Fprintf(&body, `{"bot_slug":"echo","stream":false,"user_id":%s,%q:[%[1]s],"messages":[`, number, name)
	for i := range many {
		fmt.Fprintf(&body, `{"role":"user","content":"%d"},`, i)
	}
	body.WriteString(`{"role":"assistant","content":"last"}]`)
	for i := range many {
		fmt.Fprintf(&body, `,"x%d":%[1]d`, i)
	}
	req := heard(t, body.String()+"}")
	is.Equal(req.UserID, number)
	is.Equal(len(req.Messages), many+1)
	is.Equal(len(req.Extra), many+1)
	is.Equal(string(req.Extra[name]), "["+number+"]")
	for i := range many {
		is.Equal(req.Messages[i], ChatMessage{RoleUser, fmt.Sprint(i)})
		is.Equal(string(req.Extra[fmt.Sprint("x", i)]), fmt.Sprint(i))
	}
}

// nested is an array of this many levels.
func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

func TestAnEngineHearsWhetherItIsStreamed(t *testing.T) {
	is := is.New(t)
	is.Equal(heard(t, chatBodyJSON("hi", true)).Stream, true)
	is.Equal(heard(t, chatBodyJSON("hi", false)).Stream, false)
}

func TestAnEngineMayChangeExtra(t *testing.T) {
	is := is.New(t)
	extra := heard(t, `{"a":1,"b":2,"bot_slug":"echo","prompt":"p","stream":false}`).Extra
	_ = append(extra["a"], `,"b":3`...)
	extra["a"][0] = '9'
	is.Equal(string(extra["b"]), "2")
}

func TestTheListOfProblemsIsBounded(t *testing.T) {
	wrong := strings.Repeat(`{"role":0},`, 200)
	body := `{"bot_slug":[],"messages":[` + wrong[:len(wrong)-1] + `],"user_id":true}`
	is := is.New(t)
	got := postChat(New(testOptions(t, t.Output())), body)
	problems := problemsIn(t, got.Body.String())
	is.Equal(got.Code, http.StatusUnprocessableEntity)
	is.Equal(len(problems), 100)
	is.Equal(problems[0].Loc, []any{"body", "bot_slug"})
	is.Equal(problems[1].Loc, []any{"body", "messages", 0.0, "role"})
	is.Equal(problems[98].Loc, []any{"body", "messages", 48.0, "content"})
	is.Equal(problems[99].Loc, []any{"body", "messages", 49.0, "role"})
}

// A body within its limit must buy neither a huge answer nor much memory.
func TestHostileBodiesCostLittle(t *testing.T) {
	const limit = DefaultMaxBodyBytes
	fill := func(element string) string {
		const start, end = `{"bot_slug":"echo","stream":false,"messages":[`, `]}`
		n := (limit - len(start) - len(end)) / len(element)
		return start + strings.TrimSuffix(strings.Repeat(element, n), ",") + end
	}
	members := func(member func(i int) string) string {
		body := new(strings.Builder)
		body.WriteString(`{"bot_slug":"echo","stream":false,"prompt":"p"`)
		for i := 0; body.Len() < limit-100; i++ {
			body.WriteString(member(i))
		}
		return body.String() + "}"
	}
	for _, c := range []struct {
		name, body string
		status     int
		times      uint64 // as much memory as the body, at the most, also where races are looked for; 0: 6
	}{
		{"35,000 tiny messages", fill(`{"role":"user","content":"a"},`), http.StatusOK, 0},
		{"35,000 tiny messages and a bad one", fill(`{"role":"user","content":"a"},`)[:limit-100] + `"},7],"stream":false}`, http.StatusUnprocessableEntity, 0},
		{"500,000 bad elements", fill(`0,`), http.StatusUnprocessableEntity, 0},
		{"350,000 empty elements", fill(`{},`), http.StatusUnprocessableEntity, 0},
		{"200,000 members of one name", members(func(int) string { return `,"":0` }), http.StatusOK, 26},
		{"100,000 members", members(func(i int) string { return fmt.Sprintf(`,"%x":0`, i) }), http.StatusOK, 32},
		{"10,000 levels", `{"bot_slug":"echo","stream":false,"prompt":"p","x":` + nested(maxDepth-1) + `}`, http.StatusOK, 0},
		{"500,000 levels", strings.Repeat("[", limit), http.StatusUnprocessableEntity, 0},
		{"500,000 levels of objects", strings.Repeat(`{"a":`, limit/5), http.StatusUnprocessableEntity, 0},
		{"a string of escapes", `{"bot_slug":"echo","stream":false,"messages":"` + strings.Repeat(`\n`, limit/2-50) + `"}`, http.StatusUnprocessableEntity, 0},
		{"an endless number", `{"bot_slug":"echo","stream":false,"messages":` + strings.Repeat(`9`, limit-100) + `}`, http.StatusUnprocessableEntity, 0},
		{"line breaks before an error", strings.Repeat("\n", limit-1) + "x", http.StatusUnprocessableEntity, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			is.True(len(c.body) <= limit)
			h := New(testOptions(t, io.Discard))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := postChat(h, c.body)
			runtime.ReadMemStats(&after)
			is.Equal(got.Code, c.status)
			is.True(got.Body.Len() < 32<<10)
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 10
			t.Logf("%d KiB allocated, answer of %d bytes", allocated, got.Body.Len())
			is.True(allocated < cmp.Or(c.times, 6)*limit>>10)
		})
	}
}

func TestBotsAreFoundByEitherName(t *testing.T) {
	is := is.New(t)
	for body, status := range map[string]int{
		`{"bot_uid":"11111111-1111-4111-8111-111111111111","prompt":"p","stream":false}`:                    200,
		`{"bot_slug":"Other","prompt":"p","stream":false}`:                                                  200,
		`{"bot_slug":"other","prompt":"p","stream":false}`:                                                  404, // compared exactly
		`{"bot_slug":" echo","prompt":"p","stream":false}`:                                                  404,
		`{"bot_uid":"echo","prompt":"p","stream":false}`:                                                    404, // a slug is no uid
		`{"bot_slug":"11111111-1111-4111-8111-111111111111","prompt":"p","stream":false}`:                   404,
		`{"bot_uid":"2B22C2D2-2222-4222-8222-22222222ABCD","prompt":"p","stream":false}`:                    404,
		`{"bot_uid":"11111111-1111-4111-8111-111111111111","bot_slug":"echo","prompt":"p","stream":false}`:  200,
		`{"bot_uid":"11111111-1111-4111-8111-111111111111","bot_slug":"Other","prompt":"p","stream":false}`: 404, // two bots
		`{"bot_uid":"11111111-1111-4111-8111-111111111111","bot_slug":"x","prompt":"p","stream":false}`:     404,
		`{"bot_uid":"x","bot_slug":"echo","prompt":"p","stream":false}`:                                     404,
		`{"bot_uid":"","bot_slug":"echo","prompt":"p","stream":false}`:                                      200,
	} {
		var heard Bot
		o := testOptions(t, io.Discard)
		o.OnChat = func(_ context.Context, r ChatReport) { heard = r.Bot }
		got := postChat(New(o), body)
		is.Equal(got.Code, status) // for this body
		switch {
		case status != http.StatusOK:
			is.Equal(heard, Bot{})
		case strings.Contains(body, otherBot.Slug):
			is.Equal(heard, otherBot)
		default:
			is.Equal(heard, echoBot)
		}
		if status == http.StatusNotFound {
			is.Equal(got.Body.String(), `{"detail":"Bot not found"}`)
		}
	}
}

// A store that cannot say whose uid it is has not said that it is nobody's.
func TestAStoreThatFailsForOneOfTwoNames(t *testing.T) {
	is := is.New(t)
	works := func(context.Context, string) (Bot, error) { return echoBot, nil }
	fails := func(context.Context, string) (Bot, error) { return Bot{}, errOverloaded }
	for _, store := range []*fakeStore{{byUID: fails, bySlug: works}, {byUID: works, bySlug: fails}} {
		o := testOptions(t, io.Discard)
		o.Bots = store
		is.Equal(postChat(New(o), `{"bot_uid":"u","bot_slug":"echo","prompt":"p","stream":false}`).Code, 529)
	}
}

// A bot that a store makes anew for each look-up is the same by its uid.
func TestOneBotOfTwoNamesMayDiffer(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Bots = &fakeStore{
		byUID: func(context.Context, string) (Bot, error) { return echoBot, nil },
		bySlug: func(context.Context, string) (Bot, error) {
			return botWith(func(b *Bot) { b.Name = "Echo, renamed" }), nil
		},
	}
	is.Equal(postChat(New(o), `{"bot_uid":"u","bot_slug":"former-slug","prompt":"p","stream":false}`).Code, 200)
}

func TestAnIntegerFindsTheBotOfThatName(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	store, err := NewMemoryStore(Bot{UID: "18446744073709551616", Slug: "007", Name: "n", Model: "m"})
	is.NoErr(err)
	o.Bots = store
	is.Equal(postChat(New(o), `{"bot_uid":18446744073709551616,"prompt":"p","stream":false}`).Code, 200)
	is.Equal(postChat(New(o), `{"bot_slug":7,"prompt":"p","stream":false}`).Code, 404)
}

func TestOneAnswerIsTheFragmentsJoined(t *testing.T) {
	long := strings.Repeat("0123456789 äöü €\n", 10_000)
	for _, c := range []struct {
		name      string
		fragments []string
		content   string
	}{
		{"nothing", nil, ""},
		{"an empty fragment", []string{""}, ""},
		{"several", []string{"Hel", "", "lo", "\n"}, "Hello\n"},
		{"what JSON escapes", []string{"\"\\\b\f\r\t\x00\x1f</script>"}, "\"\\\b\f\r\t\x00\x1f</script>"},
		{"what ends lines elsewhere", []string{"\u0085\u2028\u2029[DONE]\x7f"}, "\u0085\u2028\u2029[DONE]\x7f"},
		{"characters cut in two", []string{"\xf0\x9f", "\x98", "\x80\xe2", "\x82\xac"}, "😀€"},
		{"bytes that are no text", []string{"a\xff\xfe", "b\xc3", "c"}, "a\uFFFD\uFFFDb\uFFFDc"},
		{"a character that never ends", []string{"a\xf0\x9f\x98"}, "a\uFFFD\uFFFD\uFFFD"},
		{"more than one write", []string{long, long}, long + long},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, t.Output())
			o.Engine = fragmentsOf(c.fragments...)
			got := do(t, New(o), "POST", "/v1/chat", chatBodyJSON("hi", false))
			is.NoErr(got.err)
			is.Equal(got.status, 200)
			is.Equal(got.header.Get("Content-Type"), "application/json")
			is.Equal(got.header.Get("Content-Length"), fmt.Sprint(len(got.body)))
			is.Equal(decodedJSON(t, got.body), map[string]any{"content": c.content})
		})
	}
}

func TestOneAnswerToTheByte(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Engine = fragmentsOf("Grüß ", "\"dich\" <b>[DONE]\u2028")
	is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Body.String(), `{"content":"Grüß \"dich\" <b>\u005bDONE]\u2028"}`)
}

// An answer in one body is held in memory, so it must end somewhere.
func TestAnAnswerTooLargeForOneBodyIsAFailure(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	wanted := true
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		wanted = yield(strings.Repeat("x", maxWhole+1), nil)
	})
	got := postChat(New(o), chatBodyJSON("hi", false))
	is.Equal(got.Code, http.StatusInternalServerError)
	is.Equal(wanted, false)
}

func TestAClientThatDoesNotTakeItsAnswer(t *testing.T) {
	const size = 1 << 20
	for _, c := range []struct {
		name           string
		timeout        time.Duration
		leaves, stalls bool
		waits          time.Duration // before it reads or leaves
	}{
		{"reads in time", 0, false, false, DefaultWriteTimeout - time.Second},
		{"does not read", 0, false, true, time.Hour},
		{"leaves", 0, true, false, time.Second},
		{"reads at last, where nothing bounds a write", -1, false, false, time.Hour},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				reports := make(chan ChatReport, 1)
				o := testOptions(t, t.Output())
				o.WriteTimeout, o.ChatTimeout = c.timeout, -1
				o.Engine = fragmentsOf(strings.Repeat("x", size))
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				server := serveInMemory(t, New(o))
				conn := server.dial()
				defer conn.Close()
				body := chatBodyJSON("hi", false)
				_, err := fmt.Fprintf(conn, "POST /v1/chat HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", testKey, len(body), body)
				is.NoErr(err)
				time.Sleep(c.waits)
				if c.leaves {
					is.NoErr(conn.Close())
				} else {
					read, err := io.ReadAll(io.LimitReader(conn, size))
					is.Equal(err == nil && len(read) == size, !c.stalls)
					go io.Copy(io.Discard, conn)
				}
				report := <-reports
				is.Equal(report.Status, 200)
				is.Equal(report.Bytes, int64(size)) // handed over, though not all received
				switch {
				case c.leaves:
					is.True(errors.Is(report.Err, context.Canceled))
				case c.stalls:
					is.True(errors.Is(report.Err, ErrClientStalled))
					is.True(report.Duration >= DefaultWriteTimeout && report.Duration <= DefaultWriteTimeout+time.Second)
				default:
					is.NoErr(report.Err)
				}
			})
		})
	}
}

func TestTheBodysHeadersAreNotLookedAt(t *testing.T) {
	is := is.New(t)
	got := do(t, New(testOptions(t, t.Output())), "POST", "/v1/chat", chatBodyJSON("hi", false),
		"Content-Type", "text/plain; charset=utf-16", "Content-Encoding", "gzip", "Accept", "image/png")
	is.Equal(got.status, 200)
	is.Equal(got.body, `{"content":"hi"}`)
}

// What a fuzzed body may be refused for.
var problemTypes = []string{
	"value_error.missing", "value_error.jsondecode", "value_error", "type_error.dict", "type_error.list", "type_error.str",
	"type_error.bool", "type_error.enum", "type_error.none.not_allowed",
}

// FuzzChatBody compares the decoder with a slow reading of the same body, which
// is made of encoding/json's maps and shares no code with it.
func FuzzChatBody(f *testing.F) {
	for _, c := range conformanceCases(f) {
		f.Add([]byte(c.body()))
	}
	for _, body := range []string{
		"\uFEFF{}", `{"a":[{"b":[[],{}]}]}`, `{"prompt":"\ud83d\ude00\ud83d\u0041\ud83d"}`, "{\"prompt\":\"\xe2\x82\"}",
		`{"bot_slug":-0,"messages":[{"role":"user","role":"system","content":"a"}],"messages":[{"role":"user","content":""}],"stream":true,"x":1,"x":2e9}`,
		`{"bot_uid":1,"prompt":"a","stream":false,"X":[ 1 , "\u2028" ]}`, `-0`, `1e5`, `"\u12`, `{"messages":[0,0,0,{"role":"user"},{"content":"a"}]}`,
		`{"messages":[` + strings.Repeat("0,", 120) + `0],"stream":1}`, nested(12), `{"stream":tru`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) { compareWithSlowReading(t, string(body)) })
}

// The same comparison for bodies that a fuzzer needs long to come upon: parts
// of real ones, put together at random.
func TestRandomBodiesAreReadAsSlowly(t *testing.T) {
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

func compareWithSlowReading(t *testing.T, body string) {
	t.Helper()
	got, err := decodeChat(body)
	want, problems := readSlowly(body)
	if len(problems) == 0 {
		if err != nil {
			t.Fatalf("refused: %v\n%q", err, body)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q\nreads as      %#v\nand slowly as %#v", body, got, want)
		}
		return
	}
	var refusal HTTPValidationError
	if !errors.As(err, &refusal) {
		t.Fatalf("%v for %q\nwhich must be refused: %v", err, body, problems)
	}
	if problems[0].Type == "value_error.jsondecode" {
		problems[0].Msg = refusal.Detail[0].Msg // the parser's own
	}
	if !reflect.DeepEqual(refusal.Detail, problems) {
		t.Fatalf("%q\nis refused with       %v\nand when read slowly: %v", body, refusal.Detail, problems)
	}
	for _, problem := range refusal.Detail {
		if !slices.Contains(problemTypes, problem.Type) || problem.Msg == "" || !utf8.ValidString(problem.Msg) {
			t.Fatalf("%q: %v", body, problem)
		}
	}
}

// readSlowly reads a body by the interface's description, step by step.
func readSlowly(body string) (read chatBody, problems []ValidationError) {
	problem := func(msg, code string, loc ...any) {
		problems = append(problems, ValidationError{append([]any{"body"}, loc...), msg, code})
	}
	if body == "" {
		problem("field required", "value_error.missing")
		return read, problems
	}
	document := strings.TrimPrefix(body, "\uFEFF")
	if at, ok := syntaxErrorIn(document); ok {
		problem("", "value_error.jsondecode", at+len(body)-len(document))
		return read, problems
	}
	document = trimJSON(document)
	if document == "null" {
		problem("field required", "value_error.missing")
		return read, problems
	}
	var members map[string]json.RawMessage // exact names; the last of a repeated one
	if json.Unmarshal([]byte(document), &members) != nil {
		problem("value is not a valid dict", "type_error.dict")
		return read, problems
	}

	identifier := func(name string) string {
		raw := string(members[name])
		switch {
		case raw == "" || raw == "null":
			return ""
		case raw[0] == '"':
			return unquoted(raw)
		case integerJSON.MatchString(raw):
			return raw
		}
		problem("str type expected", "type_error.str", name)
		return ""
	}
	read.botUID = identifier("bot_uid")
	read.botSlug = identifier("bot_slug")
	prompt := ""
	switch raw := string(members["prompt"]); {
	case raw == "" || raw == "null":
	case raw[0] == '"':
		prompt = unquoted(raw)
	default:
		problem("str type expected", "type_error.str", "prompt")
	}
	switch raw := string(members["messages"]); {
	case raw == "" || raw == "null":
	case raw[0] == '[':
		read.messages = messagesSlowly(raw, problem)
	default:
		problem("value is not a valid list", "type_error.list", "messages")
	}
	switch raw := string(members["stream"]); raw {
	case "true", "false":
		read.stream = raw == "true"
	case "":
		problem("field required", "value_error.missing", "stream")
	case "null":
		problem("none is not an allowed value", "type_error.none.not_allowed", "stream")
	default:
		problem("value could not be parsed to a boolean", "type_error.bool", "stream")
	}
	read.userID = identifier("user_id")
	if read.botUID == "" && read.botSlug == "" {
		problem(`Either "bot_uid" or "bot_slug" is required`, "value_error", "__root__")
	}
	if prompt == "" && len(read.messages) == 0 {
		problem(`Either "prompt" or "messages" is required`, "value_error", "__root__")
	}

	if prompt != "" {
		read.messages = append(read.messages, ChatMessage{RoleUser, prompt})
	}
	for _, known := range []string{"bot_uid", "bot_slug", "prompt", "messages", "stream", "user_id"} {
		delete(members, known)
	}
	if len(members) > 0 {
		read.extra = members
	}
	return read, problems[:min(len(problems), 100)]
}

// messagesSlowly returns no messages at all where one of them is bad.
func messagesSlowly(raw string, problem func(msg, code string, loc ...any)) (messages []ChatMessage) {
	var elements []json.RawMessage
	if err := json.Unmarshal([]byte(raw), &elements); err != nil {
		panic(err)
	}
	bad := false
	refuse := func(msg, code string, loc ...any) {
		bad = true
		problem(msg, code, append([]any{"messages"}, loc...)...)
	}
	for i, element := range elements {
		if string(element) == "null" {
			refuse("none is not an allowed value", "type_error.none.not_allowed", i)
			continue
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(element, &members) != nil {
			refuse("value is not a valid dict", "type_error.dict", i)
			continue
		}
		for _, name := range []string{"role", "content"} {
			switch member := string(members[name]); {
			case member == "":
				refuse("field required", "value_error.missing", i, name)
			case member == "null":
				refuse("none is not an allowed value", "type_error.none.not_allowed", i, name)
			case name == "content" && member[0] != '"':
				refuse("str type expected", "type_error.str", i, name)
			case name == "role" && (member[0] != '"' || !slices.Contains([]string{"system", "user", "assistant"}, unquoted(member))):
				refuse("value is not a valid enumeration member; permitted: 'system', 'user', 'assistant'", "type_error.enum", i, name)
			}
		}
		if !bad {
			messages = append(messages, ChatMessage{Role(unquoted(string(members["role"]))), unquoted(string(members["content"]))})
		}
	}
	if bad {
		return nil
	}
	return messages
}

var integerJSON = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// syntaxErrorIn asks encoding/json, which lets bytes pass within strings that
// are not UTF-8. The NUL tells a document that ends too early from one whose
// last byte is wrong: it fits nowhere.
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

func trimJSON(document string) string { return string(bytes.Trim([]byte(document), " \t\r\n")) }

func unquoted(raw string) (text string) {
	if err := json.Unmarshal([]byte(raw), &text); err != nil {
		panic(err)
	}
	return text
}

// heldBy is how much memory is in use when keep has been called for a hundred
// bodies of a megabyte and all that it returned is still kept.
func heldBy(keep func(body string) any) (bytes int64) {
	return heldByEach(make([]any, 100), func(i int) any {
		return keep(fmt.Sprintf(`{"bot_slug":"echo","prompt":%q,"stream":false,"user_id":"user-%d","temperature":0.%d}`, strings.Repeat("x", 1<<20-200), i, i))
	})
}

// heldByEach is how much memory is in use when next has filled all of kept.
func heldByEach(kept []any, next func(i int) any) (bytes int64) {
	in := func() int64 {
		runtime.GC()
		runtime.GC() // what is pooled survives one
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	before := in()
	for i := range kept {
		kept[i] = next(i)
	}
	after := in()
	runtime.KeepAlive(kept)
	return after - before
}

func TestExtraDoesNotKeepTheBody(t *testing.T) {
	is := is.New(t)
	is.True(heldBy(func(body string) any {
		asked, err := decodeChat(body)
		is.NoErr(err)
		is.Equal(len(asked.extra["temperature"]) >= 3, true)
		return asked.extra
	}) < 10<<20)
}

// A member that is named many times is one: who keeps it keeps no room for the
// others.
func TestExtraHoldsNoRoomForRepeatedNames(t *testing.T) {
	is := is.New(t)
	body := `{"bot_slug":"echo","prompt":"p","stream":false` + strings.Repeat(`,"x":0`, 50_000) + `}`
	is.True(heldByEach(make([]any, 5), func(int) any {
		asked, err := decodeChat(body)
		is.NoErr(err)
		is.Equal(len(asked.extra), 1)
		return asked.extra
	}) < 5<<20)
}

func TestAReportDoesNotKeepTheBody(t *testing.T) {
	is := is.New(t)
	var reported ChatReport
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("ok")
	o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
	h := New(o)
	is.True(heldBy(func(body string) any {
		is.Equal(postChat(h, body).Code, 200)
		is.True(strings.HasPrefix(reported.UserID, "user-"))
		return reported
	}) < 10<<20)
}

// The bound of a one-body answer is one of memory: what is escaped counts.
func TestABoundOnWhatIsEscaped(t *testing.T) {
	for _, text := range []string{strings.Repeat("\x00", maxWhole/6), strings.Repeat("x", maxWhole)} {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf(text)
		is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Code, 500)
		o.Engine = fragmentsOf(text[:len(text)-20])
		is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Code, 200)
	}
}

// The digits of an escape are those that everybody reads as hexadecimal.
func TestHexadecimalDigits(t *testing.T) {
	is := is.New(t)
	for c := range byte(0x80) {
		digits := string([]byte{c, c})
		asked, err := decodeChat(`{"bot_slug":"echo","stream":false,"prompt":"x\u00` + digits + `"}`)
		want, bad := strconv.ParseUint(digits, 16, 8)
		is.Equal(err != nil, bad != nil) // for this digit
		if err == nil {
			is.Equal(asked.messages[0].Content, "x"+string(rune(want)))
		}
	}
}

// A number is any of RFC 8259.
func TestNumbers(t *testing.T) {
	is := is.New(t)
	for _, number := range []string{"0", "-0", "10", "0.05", "-1.50", "1e5", "1E+5", "1e-5", "-0.1E-10"} {
		asked, err := decodeChat(`{"bot_slug":"echo","stream":false,"prompt":"p","n":` + number + `}`)
		is.NoErr(err)
		is.Equal(string(asked.extra["n"]), number)
	}
}

// An answer of any length leaves whole, however it is cut into writes.
func TestOneAnswerOfAnyLength(t *testing.T) {
	is := is.New(t)
	for _, size := range []int{maxWrite - 1, maxWrite, maxWrite + 1, maxWrite + 2, 2*maxWrite + 1} {
		text := strings.Repeat("x", size-len(wholeStart+wholeEnd))
		o := testOptions(t, io.Discard)
		o.Engine = fragmentsOf(text)
		got := postChat(New(o), chatBodyJSON("hi", false))
		is.Equal(got.Body.String(), wholeStart+text+wholeEnd)
		is.Equal(got.Header().Get("Content-Length"), fmt.Sprint(size))
	}
}

// Little more room is made than the rest of the body can fill, though much where
// much may come.
func TestRoomForWhatABodyHolds(t *testing.T) {
	const message, member = `{"role":"user","content":""},`, `"":0,`
	for n := 1000; n < 5000; n += 50 {
		is := is.New(t)
		messages, members := new(decoder), new(decoder)
		messages.parser.body = `{"messages":[` + strings.Repeat(message, n-1) + message[:len(message)-1] + `]}`
		messages.decode()
		is.Equal(len(messages.messages.good), n)
		is.True(cap(messages.messages.good) < n+n/2+300)
		members.parser.body = `{` + strings.Repeat(member, n-1) + member[:len(member)-1] + `}`
		members.decode()
		is.Equal(len(members.unknown), n)
		is.True(cap(members.unknown) < n+n/2+300)
	}
}

// Of half a body there is nothing to read before the cut: it comes at once.
func TestHalfABodyIsCutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.ChatTimeout = time.Second
		o.Engine = fragmentsOf(strings.Repeat("x", 2*maxWrite))
		w := &faultyWriter{ResponseRecorder: httptest.NewRecorder(), method: "Write", fault: func() error { time.Sleep(2 * time.Second); return nil }}
		start := time.Now()
		is.True(serveOn(w, New(o), chatBodyJSON("hi", false)))
		is.Equal(w.Body.Len(), maxWrite)
		is.Equal(time.Since(start), 2*time.Second)
	})
}

// Once a whole answer is settled, it takes nothing more.
func TestASettledAnswerTakesNothing(t *testing.T) {
	is := is.New(t)
	w := &wholeAnswer{body: newBatch(wholeStart)}
	is.True(w.fragment("a"))
	is.True(!w.settle())
	is.True(!w.fragment("b"))
	fragments, bytes := w.figures()
	is.Equal(fragments, 1)
	is.Equal(bytes, int64(1))
}

// An engine may make a value of Extra longer: it has no part in the next one.
func TestAnEngineMayAppendToExtra(t *testing.T) {
	is := is.New(t)
	extra := heard(t, `{"bot_slug":"echo","prompt":"p","stream":false,"a":[1],"b":[2],"c":[3]}`).Extra
	for name := range extra {
		extra[name] = append(extra[name], "beyond"...)
	}
	is.Equal(extra, map[string]json.RawMessage{"a": json.RawMessage("[1]beyond"), "b": json.RawMessage("[2]beyond"), "c": json.RawMessage("[3]beyond")})
}

// A request belongs to its engine: what is said in later chats changes nothing
// of it.
func TestAnEngineMayKeepItsRequest(t *testing.T) {
	is := is.New(t)
	var kept []*ChatRequest
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, _ func(string, error) bool) {
		kept = append(kept, req)
	})
	h := New(o)
	const chats = 20 // a pool does not return each buffer to the next who asks
	for i := range chats {
		body := fmt.Sprintf(`{"bot_slug":"echo","messages":[{"role":"user","content":"message %d"}],"user_id":"u-%[1]d","stream":false,"n":%[1]d}`, i)
		is.Equal(postChat(h, body).Code, 200)
	}
	for i, req := range kept {
		is.Equal(req.Messages, []ChatMessage{{RoleUser, fmt.Sprint("message ", i)}})
		is.Equal(req.UserID, fmt.Sprint("u-", i))
		is.Equal(string(req.Extra["n"]), fmt.Sprint(i))
	}
}

func TestAStoreHearsWhoseRequestItIs(t *testing.T) {
	for name, body := range map[string]string{
		"the list":   "",
		"a uid":      `{"bot_uid":"u","prompt":"p","stream":false}`,
		"a slug":     `{"bot_slug":"s","prompt":"p","stream":false}`,
		"both names": `{"bot_uid":"u","bot_slug":"s","prompt":"p","stream":false}`,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			asked := 0
			find := func(ctx context.Context, _ string) (Bot, error) {
				asked++
				is.Equal(AccountFrom(ctx), testAccount)
				is.Equal(RequestIDFrom(ctx), "r-1")
				return echoBot, nil
			}
			o := testOptions(t, t.Output())
			o.Bots = &fakeStore{byUID: find, bySlug: find, bots: func(ctx context.Context) ([]Bot, error) {
				bot, err := find(ctx, "")
				return []Bot{bot}, err
			}}
			method, path := "POST", "/v1/chat"
			if body == "" {
				method, path = "GET", "/v1/bots"
			}
			is.Equal(do(t, New(o), method, path, body, "X-Request-Id", "r-1").status, 200)
			is.True(asked > 0)
		})
	}
}
