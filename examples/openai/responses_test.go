package openai_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

const (
	respond       = `{"model":"helper","input":"Hi"}`
	respondStream = `{"model":"helper","input":"Hi","stream":true}`
)

var updateWire = flag.Bool("update", false, "rewrite the responses in testdata/wire")

// TestWire plays the conversations of testdata/wire. The first line of a file says what
// it shows; -update writes what follows "-- response --".
func TestWire(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/wire/*.txt")
	if err != nil || len(files) < 14 {
		t.Fatalf("only %d conversations: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			is := is.New(t)
			text, err := os.ReadFile(file)
			is.NoErr(err)
			before, want, _ := strings.Cut(string(text), "-- response --\n")
			_, before, _ = strings.Cut(before, "-- request --\n")
			request, steps, _ := strings.Cut(before, "-- engine --\n")
			got := playWire(t, request, strings.Split(strings.TrimSpace(steps), "\n"))
			if *updateWire {
				is.NoErr(os.WriteFile(file, []byte(strings.TrimSuffix(string(text), want)+got), 0o644))
				return
			}
			is.Equal(got, want)
		})
	}
}

// playWire sends the request, and returns the response without what differs each time.
func playWire(t *testing.T, request string, steps []string) string {
	is := is.New(t)
	url := serveHandler(t, botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { playSteps(ctx, steps, yield) }
	}))
	line, body, _ := strings.Cut(request, "\n")
	method, path, _ := strings.Cut(line, " ")
	response, answer, failed := call(t, method, url+path, strings.TrimSpace(body), "X-Request-Id", "1")
	response.Header.Del("Date")
	var head bytes.Buffer
	is.NoErr(response.Header.Write(&head))
	text := response.Proto + " " + response.Status + "\n" + strings.ReplaceAll(head.String(), "\r\n", "\n") + "\n" + answer
	if failed != nil {
		text += "-- aborted --\n"
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	created := regexp.MustCompile(`("created(?:_at)?":)(\d{10})`)
	for _, found := range created.FindAllStringSubmatch(text, -1) {
		seconds, err := strconv.ParseInt(found[2], 10, 64)
		is.NoErr(err)
		is.True(time.Since(time.Unix(seconds, 0)).Abs() < time.Minute)
	}
	text = regexp.MustCompile(`"(chatcmpl-|resp_|msg_)[A-Z2-7]{26}"`).ReplaceAllString(text, `"${1}ID"`)
	return created.ReplaceAllString(text, `${1}1760000000`)
}

// playSteps is an engine: each step yields a fragment, counts tokens, ends the answer
// with a reason, or fails.
func playSteps(ctx context.Context, steps []string, yield func(string, error) bool) {
	for _, step := range steps {
		what, how, _ := strings.Cut(step, " ")
		var n, m int64
		switch what {
		case "yield":
			if !yield(how, nil) {
				return
			}
		case "count":
			fmt.Sscan(how, &n, &m)
			openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: n, Completion: m})
		case "finish":
			openai.UsageFrom(ctx).Finish(how)
		case "status":
			var detail string
			fmt.Sscanf(how, "%d %q", &n, &detail)
			yield("", &botapi.StatusError{Status: int(n), Detail: detail})
		}
	}
}

// eventsOfResponse parses a stream event by event, and checks what all streams have in
// common.
func eventsOfResponse(t *testing.T, answer string) (text string, kinds []string, last map[string]any) {
	t.Helper()
	is := is.New(t)
	for i, event := range strings.Split(strings.TrimSuffix(answer, "\n\n"), "\n\n") {
		name, data, found := strings.Cut(event[strings.Index(event, "event: "):], "\n")
		is.True(found)
		last = nil
		is.NoErr(json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &last))
		is.Equal("event: "+last["type"].(string), name)
		is.Equal(last["sequence_number"], float64(i))
		kinds = append(kinds, strings.TrimPrefix(last["type"].(string), "response."))
		if delta, ok := last["delta"].(string); ok {
			text += delta
		}
	}
	return text, kinds, last
}

// textOfResponse returns the text of a response that has one message.
func textOfResponse(t *testing.T, encoded []byte) string {
	t.Helper()
	var response struct {
		Status string
		Output []struct {
			Status  string
			Content []struct{ Type, Text string }
		}
	}
	is := is.New(t)
	is.NoErr(json.Unmarshal(encoded, &response))
	is.Equal(len(response.Output), 1)
	is.Equal(response.Output[0].Status, response.Status)
	is.Equal(len(response.Output[0].Content), 1)
	is.Equal(response.Output[0].Content[0].Type, "output_text")
	return response.Output[0].Content[0].Text
}

func encode(t *testing.T, v any) []byte {
	t.Helper()
	encoded, err := json.Marshal(v)
	is.New(t).NoErr(err)
	return encoded
}

// What a response repeats of its request cannot end an event.
func TestRepeatedRequest(t *testing.T) {
	is := is.New(t)
	_, answer, err := call(t, "POST", serveHandler(t, speaks(nil, "Hi"))+"/v1/responses",
		"{\"model\":\"helper\",\"input\":\"Hi\",\"stream\":true,\"instructions\":\"a\\n\\nb\u2028\",\"metadata\":{\n\n\"k\":\n\"v\"\n}}")
	is.NoErr(err)
	_, _, last := eventsOfResponse(t, answer)
	response := last["response"].(map[string]any)
	is.Equal(response["instructions"], "a\n\nb\u2028")
	is.Equal(response["metadata"], map[string]any{"k": "v"})
	is.True(!strings.Contains(answer, "\u2028"))
}

func TestRequestsOfResponses(t *testing.T) {
	testTranslations(t, "/v1/responses", map[string]translation{
		"a text": {body: respond, messages: []botapi.ChatMessage{{Role: "user", Content: "Hi"}}},
		"instructions": {body: `{"model":"helper","input":"a\"é","instructions":"Be nice","store":false}`,
			messages: []botapi.ChatMessage{{Role: "system", Content: "Be nice"}, {Role: "user", Content: "a\"é"}}},
		"no instructions": {body: `{"model":"helper","input":"Hi","instructions":""}`, messages: []botapi.ChatMessage{{Role: "user", Content: "Hi"}}},
		"messages": {
			body: `{"model":"helper","input":[{"role":"developer","content":"d"},{"type":"message","role":"system","content":[{"type":"input_text","text":"s"}]},
				{"type":"message","id":"msg_1","status":"completed","role":"assistant","content":[{"type":"output_text","text":"a","annotations":[]},{"type":"refusal","refusal":"no"}]},
				{"type":null,"role":"user","content":[{"type":"input_text","text":"b"},{"type":"input_text","text":"c"}]}]}`,
			messages: []botapi.ChatMessage{{Role: "system", Content: "d"}, {Role: "system", Content: "s"}, {Role: "assistant", Content: "a\nno"}, {Role: "user", Content: "b\nc"}},
		},
		"other fields": {
			body: `{"model":"helper","input":"Hi","temperature":0.50,"top_p":1,"max_output_tokens":5,"user":"someone","metadata":{"a":"b"},"x":{"y":[1, 2]},
				"reasoning":{"effort":"low"},"text":{"format":{"type":"text"},"verbosity":"low"}}`,
			messages: []botapi.ChatMessage{{Role: "user", Content: "Hi"}},
			extra: map[string]string{"temperature": "0.50", "top_p": "1", "max_completion_tokens": "5", "metadata": `{"a":"b"}`, "x": `{"y":[1, 2]}`,
				"reasoning": `{"effort":"low"}`, "verbosity": `"low"`},
			userID: "someone",
		},
		"values that ask for nothing": {
			body: `{"model":"helper","input":"Hi","background":false,"conversation":null,"previous_response_id":null,"tools":[],"tool_choice":"auto","include":[],
				"truncation":"disabled","stream_options":{"include_obfuscation":false},"text":{"format":null},"prompt":null,"top_logprobs":0}`,
			messages: []botapi.ChatMessage{{Role: "user", Content: "Hi"}},
		},
		"tools that must not be called": {body: `{"model":"helper","input":"Hi","tools":[{"type":"function","name":"f"}],"tool_choice":"none","include":["reasoning.encrypted_content"]}`,
			messages: []botapi.ChatMessage{{Role: "user", Content: "Hi"}}},
	})
}

func TestInvalidRequestsOfResponses(t *testing.T) {
	url := serveHandler(t, botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			if mistakes := openai.CheckExtra(req.Extra); len(mistakes) > 0 {
				yield("", &botapi.HTTPValidationError{Detail: mistakes})
			}
		}
	}))
	with := func(fields string) string { return respond[:len(respond)-1] + "," + fields + "}" }
	saying := func(items string) string {
		return `{"model":"helper","instructions":"Be nice","input":[` + items + `]}`
	}
	testInvalidRequests(t, url+"/v1/responses", map[string]invalidRequest{
		"not JSON":                {`{"model":`, "", "invalid_json", ""},
		"not an object":           {`[]`, "", "invalid_type", ""},
		"no model":                {`{"input":"Hi"}`, "model", "missing_required_parameter", "model"},
		"no input":                {`{"model":"helper","instructions":"Be nice"}`, "input", "missing_required_parameter", "input"},
		"an empty input":          {`{"model":"helper","input":""}`, "input", "missing_required_parameter", "input"},
		"no items":                {`{"model":"helper","input":[]}`, "input", "missing_required_parameter", "input"},
		"an invalid input":        {`{"model":"helper","input":7}`, "input", "invalid_type", "list"},
		"invalid instructions":    {with(`"instructions":[]`), "instructions", "invalid_type", "str"},
		"a null item":             {saying(`{"role":"user","content":"Hi"},null`), "input[1]", "invalid_type", "none is not"},
		"an invalid role":         {saying(`{"role":"user","content":"Hi"},{"role":"God","content":"Hi"}`), "input[1].role", "invalid_type", "permitted"},
		"no content":              {saying(`{"type":"message","role":"user"}`), "input[0].content", "missing_required_parameter", "field required"},
		"an image":                {saying(`{"role":"user","content":[{"type":"input_image","image_url":"x"}]}`), "input[0].content[0].type", "unsupported_value", "text only"},
		"a part of a completion":  {saying(`{"role":"user","content":[{"type":"text","text":"x"}]}`), "input[0].content[0].type", "unsupported_value", "text only"},
		"a stored item":           {saying(`{"type":"item_reference","id":"msg_1"}`), "input[0].type", "unsupported_value", "store: false"},
		"a tool call":             {saying(`{"type":"function_call","name":"f","call_id":"x","arguments":"{}"}`), "input[0].type", "unsupported_value", "messages only"},
		"the output of a tool":    {saying(`{"type":"function_call_output","call_id":"x","output":"1"}`), "input[0].type", "unsupported_value", "messages only"},
		"a previous response":     {with(`"previous_response_id":"resp_1"`), "previous_response_id", "unsupported_value", "previous_response_id"},
		"a conversation":          {with(`"conversation":"conv_1"`), "conversation", "unsupported_value", "conversation"},
		"in the background":       {with(`"background":true`), "background", "unsupported_value", "background"},
		"to be stored":            {with(`"store":true`), "store", "unsupported_value", "store"},
		"tools":                   {with(`"tools":[{"type":"web_search"}]`), "tools", "unsupported_value", "tools"},
		"a forced tool":           {with(`"tool_choice":"required"`), "tool_choice", "unsupported_value", "tool_choice"},
		"a prompt":                {with(`"prompt":{"id":"pmpt_1"}`), "prompt", "unsupported_value", "prompt"},
		"truncation":              {with(`"truncation":"auto"`), "truncation", "unsupported_value", "truncation"},
		"logprobs":                {with(`"include":["message.output_text.logprobs"]`), "include", "unsupported_value", "include"},
		"a format":                {with(`"text":{"format":{"type":"json_schema","name":"a","schema":{}}}`), "text.format", "unsupported_value", "text.format"},
		"an invalid text":         {with(`"text":"plain"`), "text", "invalid_type", "text"},
		"invalid metadata":        {with(`"metadata":{"a":1}`), "metadata", "invalid_type", "metadata"},
		"an invalid stream":       {with(`"stream":1`), "stream", "invalid_type", "boolean"},
		"an invalid user":         {with(`"user":true`), "user", "invalid_type", "str"},
		"no tokens":               {with(`"max_output_tokens":0`), "max_output_tokens", "invalid_value", "max_output_tokens"},
		"no number":               {with(`"top_p":[ ]`), "top_p", "invalid_type", "float"},
		"too hot":                 {with(`"temperature":3`), "temperature", "invalid_value", "temperature"},
		"a completion":            {ask, "messages", "unknown_parameter", `here it is "input"`},
		"a completion's format":   {with(`"response_format":{"type":"text"}`), "response_format", "unknown_parameter", "text.format"},
		"a field of botapi's own": {with(`"bot_slug":"pirate"`), "bot_slug", "unknown_parameter", "bot_slug"},
	})
}

// An engine's error names what the client has sent, and not the message that the
// instructions became.
func TestEngineErrorsOfResponses(t *testing.T) {
	for want, loc := range map[string][]any{
		"input":             {"body", "messages"},
		"input[0].content":  {"body", "messages", 1, "content"},
		"instructions":      {"body", "messages", 0, "content"},
		"max_output_tokens": {"body", "max_completion_tokens"},
	} {
		is := is.New(t)
		url := serveHandler(t, speaks(&botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: loc, Msg: "it is bad", Type: "value_error"}}}))
		_, answer, err := call(t, "POST", url+"/v1/responses", `{"model":"helper","instructions":"Be nice","input":"Hi"}`)
		is.NoErr(err)
		is.Equal(answer, `{"error":{"message":"`+want+`: it is bad","type":"invalid_request_error","param":"`+want+`","code":"invalid_value"}}`)
	}
}

// A streamed response that is too long to be repeated is aborted, and its engine stopped.
// A streamed completion keeps nothing.
func TestEndlessResponse(t *testing.T) {
	t.Parallel()
	const fragments, most = 256, 300 * (64 << 10)
	for path, body := range map[string]string{"/v1/responses": respondStream, "/v1/chat/completions": askStream} {
		t.Run(path, func(t *testing.T) {
			is := is.New(t)
			var yielded atomic.Int32
			url := serveHandler(t, botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
				return func(yield func(string, error) bool) {
					for yielded.Load() < 400 && yield(strings.Repeat("a", 64<<10), nil) {
						yielded.Add(1)
					}
				}
			}))
			_, answer, err := call(t, "POST", url+path, body)
			if path == "/v1/chat/completions" {
				is.NoErr(err)
				is.True(strings.HasSuffix(answer, "data: [DONE]\n\n"))
				return
			}
			is.True(err != nil)
			is.True(!strings.Contains(answer, "response.completed"))
			is.True(yielded.Load() >= fragments && len(answer) < most)
		})
	}
}
