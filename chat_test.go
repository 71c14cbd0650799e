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

func TestBodyConformance(t *testing.T) {
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

// heard returns what the engine is asked when a client sends this body.
func heard(t testing.TB, body string) *ChatRequest {
	t.Helper()
	var heard *ChatRequest
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, _ func(string, error) bool) { heard = req })
	if got := postChat(New(o), body); got.Code != 200 {
		t.Fatalf("%d %s", got.Code, got.Body)
	}
	return heard
}

// Where a mistake is found is compared with encoding/json, in FuzzChatBody.
func TestBodySyntaxErrors(t *testing.T) {
	deep := strings.Repeat("[", maxDepth+1)
	for _, c := range []struct{ name, body, msg string }{
		{"white space only", " \r\n\t", "Expecting value: line 2 column 2 (char 4)"},
		{"a byte order mark in the middle", "{\uFEFF}", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
		{"a number as a name", "{\n  1:2}", "Expecting property name enclosed in double quotes: line 2 column 3 (char 4)"},
		{"two values", "{}{}", "Extra data: line 1 column 3 (char 2)"},
		{"ends behind a name", `{"a"`, "Expecting ':' delimiter: line 1 column 5 (char 4)"},
		{"no comma", `{"a":1 "b":2}`, "Expecting ',' delimiter: line 1 column 8 (char 7)"},
		{"ends in a string", `{"a":"b`, "Unterminated string: line 1 column 8 (char 7)"},
		{"ends in an escape", `"\`, `Invalid \escape: line 1 column 3 (char 2)`},
		{"ends in a unicode escape", `"\u12`, `Invalid \uXXXX escape: line 1 column 6 (char 5)`},
		{"a word cut short", `nul`, "Expecting value: line 1 column 4 (char 3)"},
		{"a trailing point", `1.`, "Expecting a digit: line 1 column 3 (char 2)"},
		{"a raw tab in a string", "\"a\tb\"", "Invalid control character at: line 1 column 3 (char 2)"},
		{"a stray continuation byte", "\"a\x80\"", "Not UTF-8: line 1 column 3 (char 2)"},
		{"a level too many", deep, "Too many levels: line 1 column 10001 (char 10000)"},
		{"a level too many in messages", `{"messages":[{"x":` + deep[3:], "Too many levels: line 1 column 10016 (char 10015)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			got := postChat(New(testOptions(t, t.Output())), c.body)
			is.Equal(got.Code, 422)
			problems := problemsIn(t, got.Body.String())
			is.Equal(len(problems), 1)
			is.Equal(problems[0].Msg, c.msg)
			is.Equal(problems[0].Type, "value_error.jsondecode")
			is.True(strings.HasSuffix(c.msg, fmt.Sprintf("(char %v)", problems[0].Loc[1])))
		})
	}
}

// The rules one by one are in testdata/conformance. What is wrong with a request is
// its client's affair, and no line in the log.
func TestBodyProblemsInOrder(t *testing.T) {
	const (
		noBot   = "__root__: Either \"bot_uid\" or \"bot_slug\" is required (value_error)\n"
		noInput = "__root__: Either \"prompt\" or \"messages\" is required (value_error)\n"
		enum    = "value is not a valid enumeration member; permitted: 'system', 'user', 'assistant' (type_error.enum)\n"
	)
	for _, c := range []struct{ name, body, want string }{
		{"null, with space and a byte order mark", "\uFEFF null\n", ": field required (value_error.missing)\n"},
		{"a wrong uid beside an empty slug gives two", `{"bot_uid":1.0,"bot_slug":"","prompt":"a","stream":true}`, "bot_uid: str type expected (type_error.str)\n" + noBot},
		{"minus nothing point nothing", `{"bot_slug":"echo","prompt":"a","stream":true,"user_id":-0.0}`, "user_id: str type expected (type_error.str)\n"},
		{"names match in their case only, in messages too", `{"bot_slug":"echo","messages":[{"Role":"user","content":"a"}],"stream":true}`, "messages 0 role: field required (value_error.missing)\n" + noInput},
		{"a name is not matched by its folded form", `{"bot_\u017flug":"echo","prompt":"a","\u017ftream":true}`, "stream: field required (value_error.missing)\n" + noBot},
		{"role stands before content", `{"bot_slug":"echo","messages":[{"content":null,"role":["user"]}],"stream":true}`,
			"messages 0 role: " + enum + "messages 0 content: none is not an allowed value (type_error.none.not_allowed)\n" + noInput},
		{"fields in the interface's order", `{"user_id":{},"stream":[],"messages":[null],"prompt":{},"bot_slug":false,"bot_uid":true}`,
			"bot_uid: str type expected (type_error.str)\nbot_slug: str type expected (type_error.str)\n" +
				"prompt: str type expected (type_error.str)\nmessages 0: none is not an allowed value (type_error.none.not_allowed)\n" +
				"stream: value could not be parsed to a boolean (type_error.bool)\nuser_id: str type expected (type_error.str)\n" + noBot + noInput},
		{"repeated inside a message: the last counts", `{"bot_slug":"echo","messages":[{"role":"user","role":null,"content":"a","content":1}],"stream":true}`,
			"messages 0 role: none is not an allowed value (type_error.none.not_allowed)\nmessages 0 content: str type expected (type_error.str)\n" + noInput},
		{"nothing passes from one message to the next", `{"bot_slug":"echo","messages":[{"role":"user","content":"a"},{}],"stream":true}`,
			"messages 1 role: field required (value_error.missing)\nmessages 1 content: field required (value_error.missing)\n" + noInput},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var log testLog
			got := postChat(New(testOptions(t, &log)), c.body)
			is.Equal(got.Code, 422)
			is.Equal(listed(problemsIn(t, got.Body.String())), c.want)
			is.Equal(log.String(), "")
		})
	}
}

// A text is what its JSON says.
func TestChatRequestText(t *testing.T) {
	is := is.New(t)
	for written, want := range map[string]string{
		` \n`:                          " \n",
		`\"\\\/\b\f\n\r\t\u00e9\u0000`: "\"\\/\b\f\n\r\té\x00",
		`a\nb[c\u0041é`:                "a\nb[cAé",
		`\ud83d\ude00\uD83D\uDE00`:     "😀😀",
		`\ud83d-\ude00-\ud83d\u0041-\ude00\ud83d`: "\uFFFD-\uFFFD-\uFFFDA-\uFFFD\uFFFD",
		`\ud83d\ud83d\ude00`:                      "\uFFFD😀",
		`\ud83d\n`:                                "\uFFFD\n",
		"aé€😀\x7f\u0085\u2028":                    "aé€😀\x7f\u0085\u2028",
		`[DONE]`:                                  "[DONE]",
	} {
		is.Equal(lastContent(heard(t, `{"bot_slug":"echo","stream":false,"prompt":"`+written+`"}`)), want)
	}
}

func TestChatRequest(t *testing.T) {
	user := func(text string) []ChatMessage { return []ChatMessage{{RoleUser, text}} }
	extra := func(members ...string) map[string]json.RawMessage {
		extra := make(map[string]json.RawMessage)
		for i := 0; i < len(members); i += 2 {
			extra[members[i]] = json.RawMessage(members[i+1])
		}
		return extra
	}
	for _, c := range []struct {
		name, body string
		want       ChatRequest // besides the bot
	}{
		{"a byte order mark is skipped", "\uFEFF" + `{"bot_slug":"echo","prompt":"p","stream":false}`, ChatRequest{Messages: user("p")}},
		{"a stream", `{"bot_slug":"echo","prompt":"p","stream":true}`, ChatRequest{Messages: user("p"), Stream: true}},
		{"all three roles", `{"bot_slug":"echo","messages":[{"role":"system","content":"s"},{"role":"user","content":""},{"role":"assistant","content":"a"}],"stream":false}`,
			ChatRequest{Messages: []ChatMessage{{RoleSystem, "s"}, {RoleUser, ""}, {RoleAssistant, "a"}}}},
		{"the prompt comes after the messages", `{"bot_slug":"echo","prompt":"p","messages":[{"role":"assistant","content":"a"}],"stream":false}`,
			ChatRequest{Messages: []ChatMessage{{RoleAssistant, "a"}, {RoleUser, "p"}}}},
		{"null and what is empty are absent", `{"bot_slug":"echo","bot_uid":null,"prompt":"p","messages":[],"stream":false,"user_id":null}`, ChatRequest{Messages: user("p")}},
		{"a number larger than any machine's", `{"bot_slug":"echo","prompt":"p","stream":false,"user_id":-123456789012345678901234567890}`,
			ChatRequest{Messages: user("p"), UserID: "-123456789012345678901234567890"}},
		{"the last of repeated names, however they are written", `{"bot_slug":"echo","prompt":"a","\u0070rompt":"b","stream":false}`, ChatRequest{Messages: user("b")}},
		{"unknown members of a message are dropped", `{"bot_slug":"echo","messages":[{"name":"x","role":"user","content":"b","Content":"c","parts":[{"role":"system"}]}],"stream":false}`, ChatRequest{Messages: user("b")}},
		{"unknown members of the body are kept as they stand", `{"temperature": 0.70 ,"bot_slug":"echo","":null,"prompt":"p","Stream":true,"stream":false,"stop":[ "a" , {"b":"\ud800"} ]}`,
			ChatRequest{Messages: user("p"), Extra: extra("temperature", `0.70`, "", `null`, "Stream", `true`, "stop", `[ "a" , {"b":"\ud800"} ]`)}},
		{"the last of a repeated unknown member", `{"x":{"a":1},"bot_slug":"echo","prompt":"p","\u0078":[2],"stream":false}`, ChatRequest{Messages: user("p"), Extra: extra("x", `[2]`)}},
		{"as many levels as there may be", `{"bot_slug":"echo","prompt":"p","stream":false,"x":` + nested(maxDepth-1) + `}`, ChatRequest{Messages: user("p"), Extra: extra("x", nested(maxDepth-1))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Bot = echoBot
			is.New(t).Equal(*heard(t, c.body), c.want)
		})
	}
}

// Nothing of a request is bounded but its body.
func TestChatRequestOfALongBody(t *testing.T) {
	is := is.New(t)
	const many = 5_000
	number, name := strings.Repeat("9", many), strings.Repeat("n", many)
	var body strings.Builder
	fmt.Fprintf(&body, `{"bot_slug":"echo","stream":false,"user_id":%s,%q:[%[1]s]`, number, name)
	for i := range many {
		fmt.Fprintf(&body, `,"x%d":%[1]d`, i)
	}
	body.WriteString(`,"messages":[{"role":"assistant","content":"first"}`)
	for i := range many {
		fmt.Fprintf(&body, `,{"role":"user","content":"%d"}`, i)
	}
	req := heard(t, body.String()+"]}")
	is.Equal(req.UserID, number)
	is.Equal(len(req.Messages), 1+many)
	is.Equal(len(req.Extra), 1+many)
	is.Equal(string(req.Extra[name]), "["+number+"]")
	for i := range many {
		is.Equal(req.Messages[1+i], ChatMessage{RoleUser, fmt.Sprint(i)})
		is.Equal(string(req.Extra[fmt.Sprint("x", i)]), fmt.Sprint(i))
	}
}

// nested is an array of this many levels.
func nested(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

// An engine may change a value of Extra, or make it longer: the next has no part in
// that.
func TestChatRequestExtraHasNoFieldOfTheInterface(t *testing.T) {
	is := is.New(t)
	body := `{"a":1,"bot_uid":null,"bot_slug":"echo","prompt":"p","messages":null,"stream":false,"user_id":null,"z":2}`
	is.Equal(heard(t, body).Extra, map[string]json.RawMessage{"a": json.RawMessage("1"), "z": json.RawMessage("2")})
}

func TestChatRequestExtraMayBeChanged(t *testing.T) {
	is := is.New(t)
	extra := heard(t, `{"bot_slug":"echo","prompt":"p","stream":false,"a":[1],"b":[2],"c":[3]}`).Extra
	for name := range extra {
		extra[name][0] = '{'
		extra[name] = append(extra[name], "beyond"...)
	}
	is.Equal(extra, map[string]json.RawMessage{"a": json.RawMessage("{1]beyond"), "b": json.RawMessage("{2]beyond"), "c": json.RawMessage("{3]beyond")})
}

// A body within its limit must buy neither a huge answer nor much memory, and least
// before its chat has a place.
func TestBodyHostileCostsLittle(t *testing.T) {
	const limit = DefaultMaxBodyBytes
	const prompt, messages = `{"bot_slug":"echo","stream":false,"prompt":"p`, `{"bot_slug":"echo","stream":false,"messages":[{"role":"user","content":"p"}`
	filled := func(start, repeated, end string) string {
		return start + strings.Repeat(repeated, (limit-len(start+end))/len(repeated)) + end
	}
	members := new(strings.Builder)
	for i := 0; members.Len() < limit-100; i++ {
		fmt.Fprintf(members, `,"%x":0`, i)
	}
	busy := testOptions(t, io.Discard)
	busy.MaxConcurrentChats = 1
	asked, answer, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	busy.Engine = engineOf(func(context.Context, *ChatRequest, func(string, error) bool) { close(asked); <-answer })
	busyHandler := New(busy)
	go func() { defer close(answered); postChat(busyHandler, chatBodyJSON("hi", false)) }()
	<-asked
	defer func() { close(answer); <-answered }()
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("ok")
	free := New(o)
	for _, c := range []struct {
		name, body string
		status     int
		times      float64 // as much memory as the body, at the most, also where races are looked for; 0: 8
	}{
		{"a text", filled(prompt, "x", `"}`), 200, 0},
		{"a text that is escaped", filled(prompt, `\n`, `"}`), 200, 0},
		{"a text, escaped at its end", filled(prompt, `x`, `\n"}`), 200, 0},
		{"tiny messages", filled(messages, `,{"role":"user","content":""}`, `]}`), 200, 0},
		{"messages that are escaped", filled(messages, `,{"role":"\u0075ser","content":"\n"}`, `]}`), 200, 0},
		{"tiny messages and a bad one", filled(messages, `,{"role":"user","content":""}`, `,7]}`), 422, 0},
		{"bad elements", filled(messages, `,0`, `]}`), 422, 0},
		{"empty elements", filled(messages, `,{}`, `]}`), 422, 0},
		{"unknown members of a message", filled(messages+`,{"role":"user","content":""`, `,"":0`, `}]}`), 200, 0},
		{"members of one name", filled(prompt+`"`, `,"":0`, `}`), 200, 26},
		{"members", prompt + `"` + members.String() + `}`, 200, 32},
		{"10,000 levels", prompt + `","x":` + nested(maxDepth-1) + `}`, 200, 0},
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
				{busyHandler, map[int]int{200: 503, 422: 422}[c.status], 8},
			} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				got := postChat(try.h, c.body)
				runtime.ReadMemStats(&after)
				is.Equal(got.Code, try.status)
				is.True(got.Body.Len() < 32<<10)
				times := float64(after.TotalAlloc-before.TotalAlloc) / limit // as if none of it were given back
				t.Logf("%d: %.1f times its size, an answer of %d bytes", got.Code, times, got.Body.Len())
				is.True(times < try.atMost)
			}
		})
	}
}

func TestBotIsFoundByEitherName(t *testing.T) {
	is := is.New(t)
	for names, found := range map[string]Bot{ // none: 404
		`"bot_uid":"11111111-1111-4111-8111-111111111111"`: echoBot,
		`"bot_slug":"Other"`: otherBot,
		`"bot_slug":"other"`: {}, // compared exactly
		`"bot_slug":" echo"`: {},
		`"bot_uid":"echo"`:   {}, // a slug is no uid
		`"bot_slug":"11111111-1111-4111-8111-111111111111"`:                   {},
		`"bot_uid":"2B22C2D2-2222-4222-8222-22222222ABCD"`:                    {},
		`"bot_uid":"11111111-1111-4111-8111-111111111111","bot_slug":"echo"`:  echoBot,
		`"bot_uid":"11111111-1111-4111-8111-111111111111","bot_slug":"Other"`: {}, // two bots
		`"bot_uid":"11111111-1111-4111-8111-111111111111","bot_slug":"x"`:     {},
		`"bot_uid":"x","bot_slug":"echo"`:                                     {},
		`"bot_uid":"","bot_slug":"echo"`:                                      echoBot,
	} {
		var reported Bot
		o := testOptions(t, io.Discard)
		o.OnChat = func(_ context.Context, r ChatReport) { reported = r.Bot }
		got := postChat(New(o), `{`+names+`,"prompt":"p","stream":false}`)
		is.Equal(reported, found) // for these names
		is.Equal(got.Body.String(), map[bool]string{false: `{"content":"p"}`, true: `{"detail":"Bot not found"}`}[found == Bot{}])
	}
}

// A bot that a store makes anew for each look-up is the same by its uid. A store
// that cannot say whose uid it is has not said that it is nobody's. A number is a
// name as it is written. A store knows who asks.
func TestBotStoreAndItsNames(t *testing.T) {
	var asked []string
	finds := func(bot Bot, err error) func(context.Context, string) (Bot, error) {
		return func(ctx context.Context, name string) (Bot, error) {
			asked = append(asked, AccountFrom(ctx)+", "+RequestIDFrom(ctx)+", "+name)
			return bot, err
		}
	}
	echo, overloaded := finds(echoBot, nil), finds(Bot{}, errOverloaded)
	renamed := finds(botWith(func(b *Bot) { b.Name = "Echo, renamed" }), nil)
	const uid, slug = "acme, r-1, u", "acme, r-1, s"
	for name, c := range map[string]struct {
		store  BotStore
		names  string
		status int
		asked  []string
	}{
		"a uid":              {&fakeStore{byUID: echo}, `"bot_uid":"u"`, 200, []string{uid}},
		"a slug":             {&fakeStore{bySlug: echo}, `"bot_slug":"s"`, 200, []string{slug}},
		"two that differ":    {&fakeStore{byUID: echo, bySlug: renamed}, `"bot_uid":"u","bot_slug":"s"`, 200, []string{uid, slug}},
		"no answer for one":  {&fakeStore{byUID: overloaded, bySlug: echo}, `"bot_uid":"u","bot_slug":"s"`, 529, []string{uid}},
		"none for the other": {&fakeStore{byUID: echo, bySlug: overloaded}, `"bot_uid":"u","bot_slug":"s"`, 529, []string{uid, slug}},
		"a number":           {&fakeStore{byUID: echo}, `"bot_uid":18446744073709551616`, 200, []string{"acme, r-1, 18446744073709551616"}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			asked = nil
			o := testOptions(t, t.Output())
			o.Bots = c.store
			r := newRequest("POST", "/v1/chat", strings.NewReader(`{`+c.names+`,"prompt":"p","stream":false}`), "X-Request-Id", "r-1")
			is.Equal(record(New(o), r).Code, c.status)
			is.Equal(asked, c.asked)
		})
	}
}

// An answer in one body is held in memory, so it must end somewhere: what is
// escaped counts, and where its characters are cut does not. An engine that recovers
// from panics loses no text.
func TestJSONResponseTooLarge(t *testing.T) {
	t.Parallel()
	whole := strings.Repeat("x", maxJSONResponse-len(jsonStart))
	for name, c := range map[string]struct {
		first string
		rest  []string
		fits  bool
	}{
		"all at once":                  {whole + "x", nil, false},
		"escaped":                      {strings.Repeat("\x00", maxJSONResponse/6), nil, false},
		"escaped, and fits":            {strings.Repeat("\x00", maxJSONResponse/6-3), nil, true},
		"a character":                  {whole[1:], []string{"é"}, false},
		"a character that fits":        {whole[2:], []string{"é"}, true},
		"a character and a byte":       {whole[2:], []string{"é", "x"}, false},
		"a cut character":              {whole[1:], []string{"\xc3", "\xa9"}, false},
		"a cut character that fits":    {whole[2:], []string{"\xc3", "\xa9"}, true},
		"a cut character and a byte":   {whole[2:], []string{"\xc3", "\xa9x"}, false},
		"a cut character and its room": {whole[3:], []string{"\xc3", "\xa9x"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var wanted bool
			var recovered any
			o := testOptions(t, t.Output())
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				defer func() { recovered = recover() }()
				for _, fragment := range append([]string{c.first}, c.rest...) {
					wanted = yield(fragment, nil)
				}
			})
			got := postChat(New(o), chatBodyJSON("hi", false))
			is.Equal(recovered, nil)
			is.Equal(wanted, c.fits)
			is.Equal(got.Code, map[bool]int{true: 200, false: 500}[c.fits])
			is.True(!c.fits || strings.HasSuffix(got.Body.String(), strings.Join(c.rest, "")+jsonEnd))
		})
	}
}

func TestBodyHeadersAreIgnored(t *testing.T) {
	is := is.New(t)
	got := do(t, New(testOptions(t, t.Output())), "POST", "/v1/chat", chatBodyJSON("hi", false),
		"Content-Type", "text/plain; charset=utf-16", "Content-Encoding", "gzip", "Accept", "image/png")
	is.Equal(got.status, 200)
	is.Equal(got.body, `{"content":"hi"}`)
}

// FuzzChatBody compares the decoder with a slow reading of the same body, which
// is made of encoding/json's maps and shares no code with it.
func FuzzChatBody(f *testing.F) {
	for _, c := range conformanceCases(f) {
		f.Add([]byte(c.body()))
	}
	for _, body := range []string{
		"\uFEFF{}", "\uFEFF", "\uFEFF\uFEFF{}", "\f{}", "{}\u00A0", "\x00", "{}\x00", `{`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a`, `{"messages":[{"role":"user"`, `{a:1}`,
		`{"a" 1}`, `{"a":}`, `[,1]`, `{"messages":[{},]}`, `{"a":[1}`, `[{]`, `{"a":NaN}`, `{"a":-Infinity}`, `{"stream":True}`, `{"stream":truth}`, `{"stream":tru`,
		`1e+`, `-`, `0x1F`, `"\x41"`, `"\'"`, `"\u12`, `"\u00G0"`, `"\ud83d\u12x4"`, "\"a\x00b\"", "{\"a\nb\":1}", "\"a\xe2\x82\"", "\"\xc0\xaf\"", "\"\xf4\x90\x80\x80\"",
		"{\"\xff\":1}", "{\xff}", "{\"x\":{\"y\":[\"\xff\"]}}", "\xff\xfe{\x00}\x00", "{} // none", nested(12),
		`{"a":[{"b":[[],{}]}]}`, `{"prompt":"\ud83d\ude00\ud83d\u0041\ud83d"}`, "{\"prompt\":\"\xe2\x82\"}",
		`{"bot_slug":-0,"messages":[{"role":"user","role":"system","content":"a"}],"messages":[{"role":"user","content":""}],"stream":true,"x":1,"x":2e9}`,
		`{"bot_uid":1,"prompt":"a","stream":false,"X":[ 1 , "\u2028" ]}`, `-0`, `1e5`, `{"messages":[0,0,0,{"role":"user"},{"content":"a"}]}`,
		`{"messages":[` + strings.Repeat("0,", 120) + `0],"stream":1}`,
		`{"bot_slug":"echo","messages":[7],"messages":null,"prompt":"p","stream":false}`, `{"bot_slug":"echo","messages":[7],"messages":"x","prompt":"p","stream":false}`,
		`{"bot_slug":"echo","messages":[7,{"role":"user","content":"a"}],"messages":[{"role":"user","content":"b"}],"stream":false}`,
		`{"bot_slug":"echo","messages":[{"role":"x","content":1,"content":"b","role":"user"}],"stream":false}`,
	} {
		f.Add([]byte(body))
	}
	for _, number := range []string{"0", "-0", "10", "0.05", "-1.50", "1e5", "1E+5", "1e-5", "-0.1E-10", "01", ".5", "+1"} {
		f.Add([]byte(`{"bot_slug":"echo","stream":false,"prompt":"p","n":` + number + `}`))
	}
	for c := range byte(0x80) { // the digits of an escape are those that everybody reads as hexadecimal
		f.Add([]byte(`{"bot_slug":"echo","stream":false,"prompt":"\u00` + string([]byte{c, c}) + `"}`))
	}
	f.Fuzz(func(t *testing.T, body []byte) { compareWithSlowReading(t, string(body)) })
}

// The same comparison for bodies that a fuzzer needs long to come upon: parts
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

func compareWithSlowReading(t *testing.T, body string) {
	t.Helper()
	got, err := decodeChat(body)
	want, extra, problems := readSlowly(body)
	if len(problems) == 0 {
		if err != nil {
			t.Fatalf("refused: %v\n%q", err, body)
		}
		if read := got.unknown.extra(); !reflect.DeepEqual(read, extra) {
			t.Fatalf("%q\nhas besides       %q\nand, read slowly, %q", body, read, extra)
		}
		if got.unknown = (unknownFields{}); !reflect.DeepEqual(got, want) {
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
}

// readSlowly reads a body by the interface's description, step by step.
func readSlowly(body string) (read chatBody, extra map[string]json.RawMessage, problems []ValidationError) {
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
	document = trimJSON(document)
	if document == "null" {
		problem("field required", "value_error.missing")
		return read, extra, problems
	}
	var members map[string]json.RawMessage // exact names; the last of a repeated one
	if json.Unmarshal([]byte(document), &members) != nil {
		problem("value is not a valid dict", "type_error.dict")
		return read, extra, problems
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
		extra = members
	}
	return read, extra, problems[:min(len(problems), 100)]
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

// heldByEach is how much memory is in use when next has filled all of kept.
func heldByEach(kept []any, next func(i int) any) (bytes int64) {
	before := memoryInUse()
	for i := range kept {
		kept[i] = next(i)
	}
	runtime.GC() // what is pooled survives one
	after := memoryInUse()
	runtime.KeepAlive(kept)
	return after - before
}

func memoryInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// A watchedBody tells when all that was sent of it has been taken, and more is
// waited for.
type watchedBody struct {
	io.ReadCloser
	left  int
	taken chan<- struct{}
}

func (b *watchedBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		b.taken <- struct{}{}
		b.left-- // once
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= n
	return n, err
}

// A body that is still coming takes memory for what has come of it, not for what
// it announces.
func TestBodyMemoryWhileItComes(t *testing.T) {
	const clients, sent, announced = 200, 8 << 10, 1 << 20
	for framing, size := range map[string]string{
		fmt.Sprint("Content-Length: ", announced): "",
		"Transfer-Encoding: chunked":              fmt.Sprintf("%x\r\n", announced),
	} {
		t.Run(framing, func(t *testing.T) {
			is := is.New(t)
			h, taken := New(testOptions(t, io.Discard)), make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = &watchedBody{r.Body, sent, taken}
				h.ServeHTTP(w, r)
			}))
			defer server.Close()
			conns := make([]any, clients)
			held := heldByEach(conns, func(int) any {
				conn, err := net.Dial("tcp", server.Listener.Addr().String())
				is.NoErr(err)
				_, err = io.WriteString(conn, lines(chatLine, host, key, framing)+size+strings.Repeat(" ", sent))
				is.NoErr(err)
				<-taken
				return conn
			})
			for _, conn := range conns {
				_ = conn.(net.Conn).Close()
			}
			t.Log(held/clients, "bytes for each client")
			is.True(held < clients*(3*sent+24<<10)) // with what net/http takes for a connection
		})
	}
}

// Who keeps a part of a request, or its report, does not keep the body. A member
// that is named many times is one, and takes no room for the others.
func TestBodyIsNotKept(t *testing.T) {
	long := func(i int) string {
		return fmt.Sprintf(`{"bot_slug":"echo","prompt":%q,"stream":false,"user_id":"user-%d","temperature":0.%[2]d}`, strings.Repeat("x", 1<<20-200), i)
	}
	repeated := `{"bot_slug":"echo","prompt":"p","stream":false` + strings.Repeat(`,"temperature":0.5`, 50_000) + `}`
	var reported ChatReport
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf("ok")
	o.OnChat = func(_ context.Context, r ChatReport) { reported = r }
	h := New(o)
	for what, next := range map[string]func(i int) any{
		"Extra":                    func(i int) any { return heard(t, long(i)).Extra },
		"Extra of a repeated name": func(int) any { return heard(t, repeated).Extra },
		"the report":               func(i int) any { postChat(h, long(i)); return reported },
	} {
		t.Run(what, func(t *testing.T) {
			is := is.New(t)
			kept := make([]any, 20)
			is.True(heldByEach(kept, next) < int64(len(kept))<<20/4)
			for _, kept := range kept {
				is.True(strings.Contains(fmt.Sprintf("%s", kept), "user-") || len(kept.(map[string]json.RawMessage)) == 1)
			}
		})
	}
}

// A pool keeps no buffer of a large answer: it would stay for long.
func TestJSONResponseIsNotKept(t *testing.T) {
	o := testOptions(t, io.Discard)
	o.Engine = fragmentsOf(strings.Repeat("x", 32<<20))
	h := New(o)
	before := memoryInUse()
	serveOn(&discarded{header: http.Header{}}, h, chatBodyJSON("hi", false))
	is.New(t).True(memoryInUse()-before < 1<<20) // what is pooled survives one collection
	runtime.KeepAlive(h)                         // else the engine's own text is collected, and makes up for what is kept
}

// An answer of any length leaves whole, however it is cut into writes.
func TestJSONResponseOfAnyLength(t *testing.T) {
	is := is.New(t)
	for _, size := range []int{maxPart - 1, maxPart, maxPart + 1, maxPart + 2, 2*maxPart + 1} {
		text := strings.Repeat("x", size-len(jsonStart+jsonEnd))
		got := playOn(t, faulty("", 0, nil), false, fragmentsOf(text))
		is.Equal(got.body, jsonStart+text+jsonEnd)
		is.Equal(got.header.Get("Content-Length"), fmt.Sprint(size))
	}
}

// An engine that talks on and on is stopped when its time is up.
func TestJSONResponseTakesTooLong(t *testing.T) {
	is := is.New(t)
	var reported error
	o := testOptions(t, t.Output())
	o.ChatTimeout = time.Millisecond
	o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for yield("", nil) {
		}
	})
	o.OnChat = func(_ context.Context, r ChatReport) { reported = r.Err }
	h := New(o)
	for range 100 {
		is.Equal(postChat(h, chatBodyJSON("hi", false)).Code, 504)
		is.True(errors.Is(reported, ErrChatTimeout))
	}
}

// Of half a body there is nothing to read before the cut: it comes at once.
func TestJSONResponseCutAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		text := strings.Repeat("x", 2*maxPart)
		start := time.Now()
		got := playOn(t, faulty("Write", 0, takes(2*time.Second)), false, fragmentsOf(text), func(o *Options) { o.ChatTimeout = time.Second })
		is.Equal(got.err, http.ErrAbortHandler)
		is.Equal(len(got.body), maxPart)
		is.Equal(time.Since(start), 2*time.Second)
	})
}

// A request belongs to its engine: what is said in later chats changes nothing
// of it.
func TestChatRequestMayBeKept(t *testing.T) {
	is := is.New(t)
	var kept []*ChatRequest
	o := testOptions(t, t.Output())
	o.Engine = engineOf(func(_ context.Context, req *ChatRequest, _ func(string, error) bool) { kept = append(kept, req) })
	h := New(o)
	for i := range 20 { // a pool does not return each buffer to the next who asks
		postChat(h, fmt.Sprintf(`{"bot_slug":"echo","messages":[{"role":"user","content":"message %d"}],"user_id":"u-%[1]d","stream":false,"n":%[1]d}`, i))
	}
	for i, req := range kept {
		is.Equal(req.Messages, []ChatMessage{{RoleUser, fmt.Sprint("message ", i)}})
		is.Equal(req.UserID, fmt.Sprint("u-", i))
		is.Equal(string(req.Extra["n"]), fmt.Sprint(i))
	}
	is.Equal(len(kept), 20)
}
