package ollama_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"example.com/botapi"
	"github.com/matryer/is"
)

// FuzzBody compares which bodies become chats, and of what, with encoding/json.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{"model":"helper","messages":[{"role":"user","content":"Hi"}]}`,
		`{"model":"helper:latest","messages":[{"role":"System","content":"\ud83d"},{"role":"assistant","content":"","images":[]}],"stream":false}`,
		`{"model":"helper","messages":[{"role":"user","content":"a","content":null}],"options":{"num_predict":1.0,"seed":-1}}`,
		`{"model":"helper","tools":[{}],"messages":[]}`, `[]`, `{"model":`, ``, "\ufeff{}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		is := is.New(t)
		var got *botapi.ChatRequest
		h := botapi.New(options(t, func(_ context.Context, req *botapi.ChatRequest, _ func(string, error) bool) { got = req }))
		w := call(h, "POST", "/api/chat", body)
		if w.Code != 200 {
			is.True(w.Code == 400 || w.Code == 404)
			is.True(errorOf(t, w) != "")
			return
		}
		var want map[string]any // has the last value of a repeated name, and names as they are
		is.True(utf8.ValidString(body))
		is.NoErr(json.Unmarshal([]byte(strings.TrimPrefix(body, "\ufeff")), &want))
		messages, _ := want["messages"].([]any)
		is.Equal(got == nil, len(messages) == 0)
		if got == nil {
			return
		}
		is.Equal(strings.TrimSuffix(want["model"].(string), ":latest"), got.Bot.Slug)
		is.Equal(want["stream"] != false, got.Stream)
		is.Equal(len(messages), len(got.Messages))
		for i, m := range got.Messages {
			said := messages[i].(map[string]any)
			is.Equal(strings.ToLower(said["role"].(string)), string(m.Role))
			is.Equal(said["content"], m.Content)
		}
		options, _ := want["options"].(map[string]any)
		for name := range got.Extra {
			_, isField := want[name]
			_, isOption := options[name]
			is.True(isField || isOption || name == "max_completion_tokens" && options["num_predict"] != nil)
		}
	})
}

// FuzzAnswer splits a text into fragments: each line of the stream is an object, their texts
// are what the engine said, a JSON response says the same, and only a complete answer has
// "done": true.
func FuzzAnswer(f *testing.F) {
	f.Add("Grüße, 世界 👋🏽\u2028\u2029\u0085\x00\"\\\n\n{\"done\":true}", uint8(1), false)
	f.Add("\xff\xc3", uint8(1), true)
	f.Add("", uint8(3), true)
	f.Fuzz(func(t *testing.T, text string, size uint8, fails bool) {
		synctest.Test(t, func(t *testing.T) { testAnswer(t, text, int(size)+1, fails) })
	})
}

func testAnswer(t *testing.T, text string, size int, fails bool) {
	is := is.New(t)
	h := botapi.New(options(t, func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		for fragment := range slices.Chunk([]byte(text), size) {
			if !yield(string(fragment), nil) {
				return
			}
		}
		if fails {
			yield("", errors.New("failed"))
		}
	}))
	want := strings.ToValidUTF8(string([]rune(text)), "\ufffd") // one for each invalid byte
	read := func(line string) (content, failure string, done bool) {
		var said struct {
			Model, Error string
			Message      struct{ Content string }
			Done         bool
		}
		is.NoErr(json.Unmarshal([]byte(line), &said))
		is.True(said.Model == "helper" || said.Error != "")
		return said.Message.Content, said.Error, said.Done
	}
	w, aborted := answerTo(h, `{"model":"helper","messages":[`+message+`]}`)
	said, done, failure := "", false, ""
	lines := bufio.NewScanner(w)
	for lines.Scan() {
		is.True(!done && failure == "") // it was the last line
		var content string
		content, failure, done = read(lines.Text())
		said += content
	}
	is.Equal(done, !fails)
	is.Equal(failure != "", fails)
	is.Equal(aborted, fails && text != "")
	is.True(said == want || fails && strings.HasPrefix(want, said)) // without the beginning of a character
	w, aborted = answerTo(h, `{"model":"helper","stream":false,"messages":[`+message+`]}`)
	is.True(!aborted)
	content, failure, done := read(w.String())
	is.Equal(failure != "", fails)
	is.Equal(done, !fails)
	if !fails {
		is.Equal(content, want)
	}
}

// answerTo returns the body of a response, and whether its connection was aborted.
func answerTo(h http.Handler, body string) (text *bytes.Buffer, aborted bool) {
	w := httptest.NewRecorder()
	defer func() { aborted = recover() != nil }()
	r := httptest.NewRequest("POST", "/api/chat", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+key)
	text = w.Body
	h.ServeHTTP(w, r)
	return text, false
}
