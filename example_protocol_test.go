package botapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"

	"example.com/botapi"
)

// A protocol of the application's own: POST /talk/{bot} takes {"say": "..."}, and the answer
// is a JSON object in each line. The last line says how many there were; without it, the
// answer is incomplete.
func ExampleStreamFormat() {
	o := newOptions()
	o.Routes = []botapi.Route{{Patterns: []string{"POST /talk/{bot}"}, Serve: talk, Errors: failedTalk}}
	h := botapi.New(o)

	call(h, "POST", "/talk/parrot", "my-key", `{"say": "\"Hello\""}`)
	call(h, "POST", "/talk/nobody", "my-key", `{"say": "Hello"}`)
	call(h, "POST", "/talk/parrot", "my-key", `{"say": 7}`)
	// Output:
	// 200
	// {"text":"\"Hello\""}
	// {"done":true,"lines":1}
	// 404
	// {"failed":"Bot not found"}
	// 400
	// {"failed":"say must be a text"}
}

// talk makes a chat of a request. The handler does the rest.
func talk(r *http.Request) (botapi.Response, error) {
	text, err := botapi.ReadBody(r)
	if err != nil {
		return nil, err // a 413, 408 or 400
	}
	var body struct{ Say *string }
	if json.Unmarshal([]byte(text), &body) != nil || body.Say == nil {
		return nil, botapi.StatusError{Status: http.StatusBadRequest, Detail: "say must be a text"}
	}
	return &botapi.Chat{
		BotSlug: r.PathValue("bot"),
		Request: botapi.ChatRequest{Stream: true, Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: *body.Say}}},
		Stream:  new(talkFormat),
	}, nil
}

// failedTalk is every error of the route: a missing key, a limit, a bug.
func failedTalk(_ context.Context, f botapi.Failure) botapi.Reply {
	body, _ := json.Marshal(map[string]string{"failed": f.Detail})
	return botapi.Reply{Body: body}
}

// A talkFormat writes one answer.
type talkFormat struct{ lines int }

func (f *talkFormat) ContentType() string { return "application/x-ndjson" }

func (f *talkFormat) AppendText(dst, text []byte) ([]byte, error) {
	f.lines++
	return fmt.Appendf(dst, "{\"text\":\"%s\"}\n", text), nil // text is escaped for JSON
}

func (f *talkFormat) AppendKeepAlive(dst []byte) []byte { return append(dst, ' ') } // before the next line

func (f *talkFormat) End(context.Context) iter.Seq[[]byte] {
	return slices.Values([][]byte{fmt.Appendf(nil, "{\"done\":true,\"lines\":%d}\n", f.lines)})
}

func (f *talkFormat) AppendError(dst []byte, failure botapi.Failure) []byte {
	detail, _ := json.Marshal(failure.Detail)
	return fmt.Appendf(dst, "{\"failed\":%s}\n", detail)
}
