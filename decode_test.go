package botapi

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/matryer/is"

	"example.com/botapi/internal/jsonscan"
)

// This file tests the body of POST /v1/chat: the responses that the API promises, the request
// that an engine gets, and the memory that a body takes. The tests of internal/chatbody
// compare the decoder with a slow one.

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
		{"10,000 levels", prompt + `","x":` + strings.Repeat("[", jsonscan.MaxDepth-1) + strings.Repeat("]", jsonscan.MaxDepth-1) + `}`, 200, 0},
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
