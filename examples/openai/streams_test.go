package openai_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

// What a runtime's stream says, read slowly and simply.
type said struct {
	text     string
	complete bool
	finish   string
	tokens   openai.Tokens
	counted  bool
}

// readSlowly is the reference for the engine's reading of a stream of valid UTF-8: it
// follows the SSE standard and what runtimes make of it, and decodes each event with
// encoding/json.
func readSlowly(stream string) (s said) {
	var deltas, noText, done bool
	for _, event := range eventsOf(stream) {
		done = done || strings.HasPrefix(event.data, "[DONE]")
		var chunk map[string]any
		isChunk := json.Unmarshal([]byte(event.data), &chunk) == nil && chunk != nil && !event.isError && !isError(chunk)
		if isChunk {
			s.count(chunk)
		}
		if done {
			continue
		}
		if !isChunk {
			break
		}
		choices, _ := chunk["choices"].([]any)
		finish, chunkText := "", ""
		for _, c := range choices {
			choice, _ := c.(map[string]any)
			text, other := contentOf(choice["delta"])
			message, otherInMessage := contentOf(choice["message"])
			old, _ := choice["text"].(string)
			switch {
			case text != "":
				deltas = true
			case deltas: // repeated
			case message != "":
				text = message
			default:
				text = old
			}
			chunkText += text
			noText = noText || other || otherInMessage
			if reason, _ := choice["finish_reason"].(string); reason != "" {
				finish = reason
			}
		}
		if finish != "" && !s.complete {
			if slices.Contains([]string{"abort", "cancelled", "timeout", "insufficient_system_resource"}, finish) || strings.HasSuffix(finish, "error") ||
				s.text+chunkText == "" && (noText || finish == "tool_calls") {
				done = true // only a count may follow
				continue
			}
			s.complete, s.finish = true, finish
		}
		s.text += chunkText
	}
	return s
}

// count adds what a chunk says of the tokens so far. Zeros say nothing.
func (s *said) count(chunk map[string]any) {
	usage, _ := chunk["usage"].(map[string]any)
	prompt, isPrompt := usage["prompt_tokens"].(float64)
	completion, isCompletion := usage["completion_tokens"].(float64)
	switch {
	case !isPrompt || !isCompletion || prompt == 0 && s.tokens.Prompt == 0:
		return
	case prompt != 0:
		s.tokens.Prompt = int64(prompt)
	}
	if completion != 0 {
		s.tokens.Completion = int64(completion)
	}
	s.counted = true
}

func isError(chunk map[string]any) bool {
	return !slices.Contains([]string{"null", `""`, "{}", "false"}, asJSON(chunk["error"])) || chunk["object"] == "error"
}

type event struct {
	data    string
	isError bool
}

// eventsOf returns the events that have data.
func eventsOf(stream string) (all []event) {
	stream = strings.TrimPrefix(stream, "\ufeff")
	stream = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(stream)
	var data []string
	isError, packed := false, false
	end := func() {
		if joined := strings.Join(data, "\n"); joined != "" {
			all = append(all, event{joined, isError})
		}
		data, isError = nil, false
	}
	isWhole := func() bool {
		joined := strings.Join(data, "\n")
		return strings.HasPrefix(joined, "[DONE]") || json.Valid([]byte(joined))
	}
	for line := range strings.SplitSeq(stream, "\n") {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		isData := name == "data" || name == "error"
		before, begins := strings.TrimSpace(strings.Join(data, "\n")), strings.TrimSpace(value)
		isOver := strings.HasSuffix(before, "}") || strings.HasPrefix(before, "[DONE]")
		if isOver && (name == "event" || isData && (strings.HasPrefix(begins, "{") || strings.HasPrefix(begins, "["))) {
			end() // only a line break separates it from the next event
			packed = true
		}
		switch {
		case line == "":
			end()
		case name == "event":
			isError = value == "error"
		case isData:
			data = append(data, value)
			isError = isError || name == "error"
			if packed && isWhole() {
				end()
			}
		}
	}
	if isWhole() {
		end() // the last event lacks its blank line
	}
	return all
}

// contentOf returns the text of a delta or a message, and whether it has other content.
func contentOf(v any) (text string, other bool) {
	message, isMessage := v.(map[string]any)
	other = !isMessage && !slices.Contains([]string{"null", "[]", "{}", `""`}, asJSON(v))
	for _, name := range []string{"tool_calls", "function_call", "audio", "images"} {
		other = other || !slices.Contains([]string{"null", "[]", "{}", "[{}]", `""`}, asJSON(message[name]))
	}
	switch content := message["content"].(type) {
	case string:
		text = content
	case []any:
		for _, p := range content {
			part, isPart := p.(map[string]any)
			switch kind, _ := part["type"].(string); {
			case !isPart:
				old, _ := p.(string)
				text += old
			case kind == "" || kind == "text":
				said, _ := part["text"].(string)
				text += said
			case kind != "thinking" && kind != "reasoning":
				other = true
			}
		}
	default:
		other = other || content != nil && asJSON(content) != "{}"
	}
	refusal, _ := message["refusal"].(string)
	return text + refusal, other
}

func asJSON(v any) string {
	encoded, _ := json.Marshal(v)
	return string(encoded)
}

// TestRandomStreams compares the engine with the reference.
func TestRandomStreams(t *testing.T) {
	var complete, failed int
	for seed := range uint64(5000) {
		random := rand.New(rand.NewPCG(seed, 27))
		stream := randomStream(random)
		if random.IntN(5) == 0 {
			stream = strings.ToValidUTF8(stream[:random.IntN(len(stream)+1)], "") // aborted
		}
		want := readSlowly(stream)
		got := readWithEngine(t, &randomReader{stream, random})
		if got != want {
			t.Fatalf("seed %d: %q\n got %+v\nwant %+v", seed, stream, got, want)
		}
		if want.complete {
			complete++
		} else {
			failed++
		}
	}
	is.New(t).True(complete > 1000 && failed > 1000)
}

func readWithEngine(t *testing.T, body io.Reader) (got said) {
	t.Helper()
	engine, err := openai.NewEngine(openai.Config{BaseURL: "http://runtime/v1", HTTPClient: &http.Client{
		Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(body)}, nil
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, usage := openai.CountTokens(t.Context())
	got.complete = true
	for text, err := range engine.Chat(ctx, &botapi.ChatRequest{Bot: helper}) {
		switch {
		case !got.complete:
			t.Fatalf("%q and %v after an error", text, err)
		case err == nil && text == "":
			t.Fatal("an empty fragment")
		case err != nil:
			if _, ok := errors.AsType[*openai.Failure](err); !ok {
				t.Fatal(err)
			}
			got.complete = false
		default:
			got.text += text
		}
	}
	got.tokens, got.counted = usage.Tokens()
	got.finish = usage.FinishReason()
	return got
}

// A randomReader returns a few bytes at a time.
type randomReader struct {
	rest   string
	random *rand.Rand
}

func (r *randomReader) Read(p []byte) (int, error) {
	if r.rest == "" {
		return 0, []error{io.EOF, io.ErrUnexpectedEOF}[r.random.IntN(2)]
	}
	n := copy(p, r.rest[:min(len(r.rest), 1+r.random.IntN(1<<r.random.IntN(9)))])
	r.rest = r.rest[n:]
	return n, nil
}

// randomStream makes a stream of events that runtimes send, and of some that none does.
func randomStream(random *rand.Rand) string {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	var b strings.Builder
	b.WriteString(pick("", "", "", "\ufeff"))
	end := pick("\n", "\r\n", "\r")
	line := func(text string) {
		b.WriteString(text)
		if random.IntN(20) == 0 {
			end = pick("\n", "\r\n", "\r")
		}
		b.WriteString(end)
	}
	packed := random.IntN(8) == 0
	for range random.IntN(8) {
		for random.IntN(4) == 0 {
			line(pick(": ping", ":", "id: 7", "retry: 10", "event: message", "data", "unknown: x", "\ufeffdata: 1"))
			if random.IntN(2) == 0 {
				line("")
			}
		}
		data := randomChunk(random)
		if random.IntN(12) == 0 {
			data = pick("[DONE]", "oops", "null", "[]", `{"error":{"message":"m","code":429}}`, `{"error":null}`, `{"error":{}}`, `{"object":"error"}`, "")
		}
		if at := strings.IndexAny(data, ",:["); at > 0 && random.IntN(6) == 0 { // of several lines
			line("data: " + data[:at+1])
			data = data[at+1:]
		}
		if random.IntN(40) == 0 {
			line("event: error")
		}
		line(pick("data: ", "data:", "data: ", "data:  ") + data)
		if !packed {
			line("")
		}
	}
	if random.IntN(4) > 0 {
		line(`data: {"choices":[{"delta":{},"finish_reason":"stop"}]}`)
		line("")
	}
	if random.IntN(3) > 0 {
		line(`data: {"choices":[],"usage":{"prompt_tokens":` + fmt.Sprint(random.IntN(100)) + `,"completion_tokens":7}}`)
		line("")
	}
	if random.IntN(2) > 0 {
		line("data: [DONE]")
		switch random.IntN(4) {
		case 0:
			line("")
		case 1:
			line("data: after")
		case 2:
			line(": end")
		case 3:
			line(`data: {"choices":[],"usage":{"prompt_tokens":` + fmt.Sprint(random.IntN(2)) + `,"completion_tokens":9}}`)
			line("")
		}
	}
	return b.String()
}

func randomChunk(random *rand.Rand) string {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	text := func() string {
		return pick(`""`, `"a"`, `"Grüße, 世界 👋🏽"`, `"\ud83d\udc4b"`, `"\n\r\u0000"`, `"data: [DONE]\n\n"`, `"\ufeff"`, `"\\"`, `null`, `7`)
	}
	part := func() string {
		return pick(`{"type":"text","text":`+text()+`}`, `{"text":`+text()+`,"type":"text"}`, `{"type":"thinking","thinking":[{"type":"text","text":"hm"}]}`,
			`{"text":`+text()+`}`, text(), `{"type":"reasoning","text":"hm"}`, `{"type":"image_url"}`, `[]`)
	}
	content := func() string {
		return pick(text(), text(), text(), "["+part()+"]", "["+part()+", "+part()+"]", "[]", "{}", `{"x":1}`, "true")
	}
	message := func() string {
		fields := []string{`"content":` + content()}
		for random.IntN(4) == 0 {
			fields = append(fields, pick(`"role":"assistant"`, `"refusal":"no"`, `"reasoning_content":"hm"`, `"tool_calls":null`, `"tool_calls":[]`,
				`"tool_calls":[{"index":0}]`, `"function_call":{}`, `"function_call":{"name":"f"}`, `"audio":{"data":"x"}`))
		}
		return pick("{"+strings.Join(withoutRepetition(fields), ", ")+"}", "{"+fields[0]+"}", "{"+fields[0]+"}", "{}", "null", text(), "[]")
	}
	choice := []string{`"index": 0`}
	switch random.IntN(10) {
	case 0:
		choice = append(choice, `"message":`+message())
	case 1:
		choice = append(choice, `"text":`+text())
	case 2:
		choice = append(choice, `"message":`+message(), `"delta":`+message(), `"text":`+text())
	case 3:
	default:
		choice = append(choice, `"delta":`+message())
	}
	choice = append(choice, `"finish_reason":`+pick("null", "null", "null", "null", "null", "null", `"stop"`, `"length"`, `"eos"`, `"abort"`, `"error"`, `"api_error"`, `"cancelled"`, `"timeout"`, `"tool_calls"`, `""`, "{}"))
	random.Shuffle(len(choice), func(i, j int) { choice[i], choice[j] = choice[j], choice[i] })
	chunk := []string{`"id":"c1"`, `"choices":[{` + strings.Join(choice, ",") + `}]`, `"usage":` + pick("null", "null", "null", `{"prompt_tokens":3,"completion_tokens":1}`, `{"prompt_tokens":0,"completion_tokens":0}`)}
	random.Shuffle(len(chunk), func(i, j int) { chunk[i], chunk[j] = chunk[j], chunk[i] })
	return "{" + strings.Join(chunk, ",") + "}"
}

// withoutRepetition keeps the first field of each name.
func withoutRepetition(fields []string) (kept []string) {
	names := make(map[string]bool)
	for _, field := range fields {
		name, _, _ := strings.Cut(field, ":")
		if !names[name] {
			kept = append(kept, field)
		}
		names[name] = true
	}
	return kept
}
