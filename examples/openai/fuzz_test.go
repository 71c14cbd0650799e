package openai_test

import (
	"context"
	"encoding/json"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/botapi"
)

// FuzzCompletionRequest sends bodies to a bot that repeats the messages. The response
// always has OpenAI's format, and the messages arrive unchanged.
func FuzzCompletionRequest(f *testing.F) {
	fuzzRequests(f, "/v1/chat/completions", plainMessages,
		ask, askStream, "\ufeff"+ask, `{}`, `[]`, `null`, `{"model":"helper","messages":[null]}`,
		`{"model":"helper","messages":[{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"\u0000\ud83d"}]}],"x":{}}`,
		`{"model":"helper","messages":[{"role":"user","content":"a","content":"b"}],"n":1,"n":2,"tools":[],"user":7}`,
		`{"model":"helper","messages":[{"role":"assistant","refusal":"no"},{"role":"user","content":[{"type":"image_url"}]}]}`,
		`{"model":"helper","messages":[{"role":"user","content":"\ud800"}],"stream_options":{"include_usage":true},"stream":true}`)
}

// FuzzResponseRequest does the same for responses.
func FuzzResponseRequest(f *testing.F) {
	fuzzRequests(f, "/v1/responses", plainInput,
		respond, respondStream, "\ufeff"+respond, `{}`, `[]`, `{"model":"helper","input":[null]}`, ask,
		`{"model":"helper","input":[{"type":"message","role":"developer","content":[{"type":"input_text","text":"a"},{"type":"output_text","text":"\u0000\ud83d"}]}],"x":{}}`,
		`{"model":"helper","input":"a","input":"b","instructions":"c","store":false,"n":1,"n":2,"tools":[],"user":7}`,
		`{"model":"helper","input":[{"type":"item_reference","id":"x"}],"store":true,"previous_response_id":null}`,
		"{\"model\":\"helper\",\"input\":\"\\ud800\",\"metadata\":{\n\"a\":\"b\"},\"text\":{\"format\":{\"type\":\"text\"}},\"stream\":true}")
}

// fuzzRequests sends bodies to a bot that repeats the messages. plain decodes those of a
// body, unless it is too complicated for it.
func fuzzRequests(f *testing.F, path string, plain func(body []byte) (messages []botapi.ChatMessage, ok bool), bodies ...string) {
	for _, body := range bodies {
		f.Add([]byte(body))
	}
	var received *botapi.ChatRequest
	quiet := slog.New(slog.DiscardHandler)
	h := handlerFor(f, botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		received = req
		return func(yield func(string, error) bool) {
			for _, message := range req.Messages {
				if !yield(message.Content, nil) {
					return
				}
			}
		}
	}), func(o *botapi.Options) { o.Logger = quiet })
	f.Fuzz(func(t *testing.T, body []byte) {
		received = nil
		r := httptest.NewRequest("POST", path, strings.NewReader(string(body)))
		r.Header.Set("Authorization", "Bearer key")
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, r)
		answer := recorder.Body.String()
		if recorder.Code != http.StatusOK {
			var rejection struct{ Error *struct{ Message string } }
			if json.Unmarshal([]byte(answer), &rejection) != nil || rejection.Error == nil || rejection.Error.Message == "" || recorder.Code >= 500 {
				t.Fatalf("%d %s", recorder.Code, answer)
			}
			return
		}
		sent, isPlain := plain(body)
		if isPlain && !slices.Equal(sent, received.Messages) {
			t.Fatalf("%q was received as %q", sent, received.Messages)
		}
		want := ""
		for _, message := range received.Messages {
			want += message.Content
		}
		textOf := textOfAnswer
		if path == "/v1/responses" {
			textOf = textOfResponseAnswer
		}
		if text := textOf(t, answer, received.Stream); text != want {
			t.Fatalf("%q came back as %q", want, text)
		}
	})
}

// plainMessages decodes the messages of a body with encoding/json. ok is false if one
// of them lacks a role or a content of type string.
func plainMessages(body []byte) (messages []botapi.ChatMessage, ok bool) {
	var completion map[string]json.RawMessage
	if json.Unmarshal(body, &completion) != nil {
		return nil, false
	}
	return plainList(completion["messages"])
}

// plainInput is plainMessages for the instructions and the input of a response.
func plainInput(body []byte) (messages []botapi.ChatMessage, ok bool) {
	var response map[string]json.RawMessage
	if json.Unmarshal(body, &response) != nil {
		return nil, false
	}
	var instructions, input string
	if json.Unmarshal(response["instructions"], &instructions) == nil && instructions != "" {
		messages = append(messages, botapi.ChatMessage{Role: botapi.RoleSystem, Content: instructions})
	}
	if json.Unmarshal(response["input"], &input) == nil {
		return append(messages, botapi.ChatMessage{Role: botapi.RoleUser, Content: input}), true
	}
	list, ok := plainList(response["input"])
	return append(messages, list...), ok
}

func plainList(raw json.RawMessage) (messages []botapi.ChatMessage, ok bool) {
	var all []map[string]any
	if json.Unmarshal(raw, &all) != nil {
		return nil, false
	}
	for _, message := range all {
		role, isRole := message["role"].(string)
		content, isText := message["content"].(string)
		if !isRole || !isText {
			return nil, false
		}
		if role == "developer" {
			role = "system"
		}
		messages = append(messages, botapi.ChatMessage{Role: botapi.Role(role), Content: content})
	}
	return messages, true
}

func textOfResponseAnswer(t *testing.T, answer string, stream bool) string {
	if !stream {
		return textOfResponse(t, []byte(answer))
	}
	text, _, last := eventsOfResponse(t, answer)
	if whole := textOfResponse(t, encode(t, last["response"])); whole != text {
		t.Fatalf("the events have %q, the response has %q", text, whole)
	}
	return text
}

func textOfAnswer(t *testing.T, answer string, stream bool) string {
	if stream {
		text, _ := textOfChunks(t, answer)
		return text
	}
	var completion struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(answer), &completion); err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	return completion.Choices[0].Message.Content
}

// FuzzStream lets a runtime send any bytes. The answer ends, complete or with an error,
// and the engine does not panic. It has the text that the reference reads.
func FuzzStream(f *testing.F) {
	for _, stream := range []string{
		"data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
		": comment\r\ndata: {\"choices\":\r\ndata: [{\"delta\":{\"content\":\"caf\xc3\"}}]}\r\n\r\n",
		"\ufeffdata: {\"choices\":[{\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"Hi\"}]}}]}\r\rdata: {\"choices\":[{\"finish_reason\":\"abort\"}]}\r\n\r",
		"data: {\"choices\":[{\"text\":\"Hi\"}]}\n\ndata: {\"choices\":[{\"delta\":{\"tool_calls\":[{}]},\"finish_reason\":\"eos\"}]}\n\n",
		"event: error\ndata: {\"error\":{\"message\":\"m\",\"code\":429}}\n\n",
		"error: {\"message\":\"maximum context length\"}\n\n", "data: {}\n\ndata: null\n\n", "data", "\n\n\n",
	} {
		f.Add([]byte(stream), uint64(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, splits uint64) {
		got := readWithEngine(t, &randomReader{string(stream), rand.New(rand.NewPCG(splits, 1))})
		want := readSlowly(string(stream))
		switch {
		case !utf8.Valid(stream): // encoding/json replaces what is invalid
		case got.text != want.text:
			t.Fatalf("%q, not %q", got.text, want.text)
		case want.text != "" && got.complete != want.complete: // without text, it depends on repeated fields
			t.Fatalf("complete: %v", got.complete)
		}
		if got.complete && !strings.Contains(string(stream), "finish_reason") && !strings.Contains(string(stream), `\u`) {
			t.Fatal("an answer without a finish_reason counts as complete")
		}
	})
}
