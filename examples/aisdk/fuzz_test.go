package aisdk_test

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
)

// FuzzChat sends bodies to a bot that repeats the messages. The response is a stream in
// which the texts come back unchanged, or an error in plain text.
func FuzzChat(f *testing.F) {
	for _, body := range []string{
		ask, chatBody("c", "Hi"), "\ufeff" + ask, `{}`, `[]`, `null`, `{"messages":[null]}`, `{"messages":[{"role":"user","parts":[null]}]}`,
		`{"messages":[{"role":"user","parts":[{"type":"text","text":"\ud800[DONE]\u0000"},{"type":"text","text":"b"}]}],"x":{}}`,
		`{"messages":[{"role":"assistant","parts":[{"type":"step-start"},{"type":"text","text":"a"}]},{"role":"user","parts":[{"type":"file"}]}]}`,
		`{"bot":"mira","messages":[{"role":"system","parts":[{"type":"text","text":"a","text":"b"}]}],"messages":[]}`,
	} {
		f.Add([]byte(body))
	}
	h := newHandler(f, botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for _, message := range req.Messages {
				if !yield(message.Content, nil) {
					return
				}
			}
		}
	}), aisdk.Options{}, func(o *botapi.Options) { o.Logger = slog.New(slog.DiscardHandler) })
	f.Fuzz(func(t *testing.T, body []byte) {
		r := httptest.NewRequest("POST", "/api/chat?bot=mira", strings.NewReader(string(body)))
		r.Header.Set("Authorization", "Bearer key")
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, r)
		response := recorder.Body.String()
		if recorder.Code != http.StatusOK {
			if recorder.Code >= 500 || response == "" || !utf8.ValidString(response) || response[0] == '{' || recorder.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Fatalf("%d %q", recorder.Code, response)
			}
			return
		}
		a := readAnswer(t, response)
		if want, plain := textsOf(body); plain && a.text != want || !a.done {
			t.Fatalf("%q came back as %+v", want, a)
		}
	})
}

// textsOf decodes the texts of a body with encoding/json alone. ok is false if a part is
// not a text.
func textsOf(body []byte) (texts string, ok bool) {
	var fields, message, part map[string]json.RawMessage
	var messages, parts []json.RawMessage
	if json.Unmarshal(body, &fields) != nil || json.Unmarshal(fields["messages"], &messages) != nil {
		return "", false
	}
	for _, raw := range messages {
		message, parts = nil, nil
		if json.Unmarshal(raw, &message) != nil || json.Unmarshal(message["parts"], &parts) != nil {
			return "", false
		}
		separator := ""
		for _, raw := range parts {
			part = nil
			var kind, text string
			if json.Unmarshal(raw, &part) != nil || json.Unmarshal(part["type"], &kind) != nil || kind != "text" || json.Unmarshal(part["text"], &text) != nil {
				return "", false
			}
			if text != "" {
				texts += separator + text
				separator = "\n"
			}
		}
	}
	return texts, true
}

// FuzzStream splits a text into fragments. The page gets the same text however they are
// split, whatever is ready together.
func FuzzStream(f *testing.F) {
	f.Add("Good morning", []byte{3})
	f.Add(hostile, []byte{1})
	f.Add("👋🏽"+strings.Repeat("a", 5000), []byte{1, 2, 200})
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, text string, fragments []byte) {
		h := newHandler(t, says(nil, split(text, fragments)...), aisdk.Options{})
		r := httptest.NewRequest("POST", "/api/chat?bot=mira", strings.NewReader(ask))
		r.Header.Set("Authorization", "Bearer key")
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, r)
		a := readAnswer(t, recorder.Body.String())
		want := ""
		for _, r := range text { // one U+FFFD for each byte that is not UTF-8
			want += string(r)
		}
		if a.text != want || !a.done || a.finish != "stop" {
			t.Fatalf("%q came back as %+v", want, a)
		}
	})
}

// split cuts a text into pieces of these lengths, again and again.
func split(text string, lengths []byte) (pieces []string) {
	for i := 0; text != ""; i++ {
		n := len(text)
		if len(lengths) > 0 {
			n = min(n, 1+int(lengths[i%len(lengths)]))
		}
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	return pieces
}
