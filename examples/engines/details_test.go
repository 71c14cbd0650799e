package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/engines/modelpb"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

// Tests of single engines.

func TestAnthropicHasOneSystemPrompt(t *testing.T) {
	is := is.New(t)
	r := startAnthropic(t, func(w Wire, _ Asked) { w.End() })
	serve(t, r.engine).chat(t, `{"bot_slug":"helper","stream":false,"messages":[
		{"role":"system","content":"One."},{"role":"user","content":"Hello"},{"role":"assistant","content":" \n"},
		{"role":"system","content":"Two."},{"role":"user","content":"Hi"}]}`)
	asked := r.requests()[0]
	is.Equal(asked.Messages, []botapi.ChatMessage{
		{Role: botapi.RoleSystem, Content: "One.\n\nTwo."},
		{Role: botapi.RoleUser, Content: "Hello"}, {Role: botapi.RoleUser, Content: "Hi"},
	})
	is.Equal(*asked.MaxTokens, int64(4096)) // the API requires it
}

func TestAnthropicValidation(t *testing.T) {
	is := is.New(t)
	r := startAnthropic(t, func(w Wire, _ Asked) { w.End() })
	s := serve(t, r.engine)
	got := s.chat(t, `{"bot_slug":"helper","stream":false,"prompt":"Hi","temperature":1.5}`)
	is.Equal(got.body, `{"detail":[{"loc":["body","temperature"],"msg":"ensure this value is less than or equal to 1","type":"value_error.number.not_le"}]}`)
	got = s.chat(t, `{"bot_slug":"helper","stream":false,"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":" "}]}`)
	is.Equal(got.body, `{"detail":[{"loc":["body","messages"],"msg":"there is no text to answer","type":"value_error"}]}`)
	is.Equal(len(r.requests()), 0)
}

// An error in the stream, before any text, has only a type.
func TestAnthropicErrorsBeforeText(t *testing.T) {
	for kind, status := range map[Failing]int{busy: 503, overloaded: 503, tooLong: 422, keyRejected: 502, internalError: 502} {
		t.Run(string(kind), func(t *testing.T) {
			is := is.New(t)
			r := startAnthropic(t, func(w Wire, _ Asked) { w.Think("Hm."); w.Fail(kind) })
			is.Equal(serve(t, r.engine).chat(t, stream).status, status)
		})
	}
}

func TestAnthropicImpossibleCounts(t *testing.T) {
	for _, counts := range []string{
		`"input_tokens":9223372036854775807,"cache_read_input_tokens":9223372036854775807,"cache_creation_input_tokens":9`,
		`"input_tokens":-1,"cache_read_input_tokens":9`,
	} {
		is := is.New(t)
		r := startAnthropic(t, func(w Wire, _ Asked) {
			w.(*anthropicWire).block = "none" // no message_start of its own
			w.(*anthropicWire).w.Header().Set("Content-Type", "text/event-stream")
			w.(*anthropicWire).event("message_start", `,"message":{"usage":{`+counts+`,"output_tokens":1}}`)
			w.(*anthropicWire).event("message_delta", `,"delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}`)
			w.(*anthropicWire).event("message_stop", "")
		})
		s := serve(t, r.engine)
		is.True(s.chat(t, stream).complete())
		is.Equal(<-s.reports, report{finish: "stop"})
	}
}

// Each count is that of the answer so far: a later one replaces it, and zeros and counts
// that are missing do not.
func TestAnthropicCounts(t *testing.T) {
	const stop = `event: message_stop
data: {"type":"message_stop"}

`
	start := func(usage string) string {
		return `event: message_start
data: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant","content":[],"model":"m","usage":` + usage + `}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

`
	}
	delta := func(rest string) string {
		return `event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"}` + rest + `}

`
	}
	for name, c := range map[string]struct {
		events string
		want   openai.Tokens // zero: not counted
	}{
		"the prompt at the end": {start(`{"input_tokens":0,"output_tokens":0}`) + // GLM, Vercel's gateway
			delta(`,"usage":{"input_tokens":700,"cache_read_input_tokens":50,"output_tokens":3}`) + stop, openai.Tokens{Prompt: 750, Completion: 3}},
		"the same at both ends": {start(`{"input_tokens":700,"cache_read_input_tokens":50,"output_tokens":1}`) +
			delta(`,"usage":{"input_tokens":700,"cache_read_input_tokens":50,"output_tokens":3}`) + stop, openai.Tokens{Prompt: 750, Completion: 3}},
		"a part of the prompt at the end": {start(`{"input_tokens":700,"cache_read_input_tokens":50,"output_tokens":1}`) +
			delta(`,"usage":{"input_tokens":710,"output_tokens":3}`) + stop, openai.Tokens{Prompt: 760, Completion: 3}},
		"a delta without usage": {start(`{"input_tokens":700,"output_tokens":1}`) +
			delta(`,"usage":{"output_tokens":3}`) + delta(``) + delta(`,"usage":null`) + stop, openai.Tokens{Prompt: 700, Completion: 3}},
		"zeros at the end": {start(`{"input_tokens":700,"output_tokens":1}`) +
			delta(`,"usage":{"output_tokens":3}`) + delta(`,"usage":{"input_tokens":0,"output_tokens":0}`) + stop, openai.Tokens{Prompt: 700, Completion: 3}},
		"deltas are not added up": {start(`{"input_tokens":700,"output_tokens":1}`) +
			delta(`,"usage":{"output_tokens":2}`) + delta(`,"usage":{"output_tokens":3}`) + stop, openai.Tokens{Prompt: 700, Completion: 3}},
		"after the end": {start(`{"input_tokens":0,"output_tokens":0}`) + delta(``) + stop +
			delta(`,"usage":{"input_tokens":700,"output_tokens":3}`), openai.Tokens{Prompt: 700, Completion: 3}},
		"no prompt": {start(`{"output_tokens":0}`) + delta(`,"usage":{"output_tokens":3}`) + stop, openai.Tokens{}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			s := serve(t, NewAnthropic(AnthropicConfig{BaseURL: sends(t, c.events), Key: "sk-1"}))
			is.Equal(s.chat(t, noStream).body, `{"content":"Hello"}`)
			is.Equal(<-s.reports, report{nil, c.want, c.want != openai.Tokens{}, "stop"})
		})
	}
}

// sends starts a server that sends an event stream.
func sends(t *testing.T, events string) (url string) {
	return serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, events)
	})
}

// The engine reads the dialects of compatible services.
func TestAnthropicDialects(t *testing.T) {
	const (
		start = "event: message_start\ndata: " + `{"type":"message_start","message":{"usage":{"input_tokens":7}}}`
		text  = "event: content_block_delta\ndata: " + `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":%s}}`
		delta = "event: message_delta\ndata: " + `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}`
		stop  = "event: message_stop\ndata: " + `{"type":"message_stop"}`
		blank = "\n\n"
	)
	said := func(text string) string { return strings.Replace(`{"content":"%"}`, "%", text, 1) }
	of := func(quoted string) string { return fmt.Sprintf(text, quoted) }
	for name, c := range map[string]struct{ events, want string }{
		"the last event lacks its blank line": {start + blank + of(`"Hi"`) + blank + delta + blank + stop + "\n", said("Hi")},
		"the last event lacks its line break": {start + blank + of(`"Hi"`) + blank + delta + blank + stop, said("Hi")},
		"one line break separates events":     {start + "\n" + of(`"Hi"`) + "\n" + delta + "\n" + stop + "\n", said("Hi")},
		"events without names":                {strings.NewReplacer("event: message_start\n", "", "event: message_stop\n", "").Replace(start + blank + of(`"Hi"`) + blank + stop + blank), said("Hi")},
		"CR":                                  {strings.ReplaceAll(start+blank+of(`"Hi"`)+blank+stop+blank, "\n", "\r"), said("Hi")},
		"comments and other events":           {": ping\n\n" + start + blank + "event: ping\ndata: {\"type\":\"ping\"}" + blank + of(`"Hi"`) + blank + "event: new\ndata: {\"type\":\"new\"}" + blank + stop + blank, said("Hi")},
		"a character split into escapes":      {start + blank + of(`"a \ud83d"`) + blank + of(`""`) + blank + of(`"\ude00 b"`) + blank + stop + blank, said("a 😀 b")},
		"half a character":                    {start + blank + of(`"a \ud83d"`) + blank + stop + blank, said("a \ufffd")},
		"[DONE] at the end":                   {start + blank + of(`"Hi"`) + blank + stop + blank + "data: [DONE]" + blank, said("Hi")},
		"the end is aborted":                  {start + blank + of(`"Hi"`) + blank + delta + blank + stop[:len(stop)-1], `{"detail":"The model's answer is incomplete"}`},
		"pings without a type":                {"event: ping\ndata: {}" + blank + start + blank + "event: ping\ndata: alive" + blank + of(`"Hi"`) + blank + stop + blank, said("Hi")},
		"an error of another type":            {start + blank + of(`"Hi"`) + blank + "event: error\ndata: {\"type\":\"invalid_request_error\",\"message\":\"prompt is too long\"}" + blank, `{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`},
		"an error without a type":             {start + blank + of(`"Hi"`) + blank + "event: error\ndata: {\"error\":{\"message\":\"prompt is too long\"}}" + blank, `{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			s := serve(t, NewAnthropic(AnthropicConfig{BaseURL: sends(t, c.events), Key: "sk-1"}))
			is.Equal(s.chat(t, noStream).body, c.want)
		})
	}
}

// What current models reject is the client's mistake.
func TestAnthropicRejectsTheRequest(t *testing.T) {
	for name, c := range map[string]struct{ request, says, field string }{
		"temperature and top_p": {`"prompt":"Hi","temperature":0.7,"top_p":0.9`, "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
			`"temperature"],"msg":"the model accepts only one of temperature and top_p"`},
		"a temperature":                {`"prompt":"Hi","temperature":0.7`, "temperature is deprecated for this model.", `"temperature"],"msg":"the model does not accept this value"`},
		"the same, quoted":             {`"prompt":"Hi","temperature":0.7`, "`temperature` is deprecated for this model.", `"temperature"],"msg":"the model does not accept this value"`},
		"a stop text of white space":   {`"prompt":"Hi","stop":["\n"]`, "stop_sequences: each stop sequence must contain non-whitespace", `"stop"],"msg":"the model does not accept this value"`},
		"a limit that is too large":    {`"prompt":"Hi","max_completion_tokens":128001`, "max_tokens: 128001 > 64000, which is the maximum allowed number of output tokens for m1", `"max_completion_tokens"],"msg":"the model does not accept a limit of this size"`},
		"the sum of prompt and limit":  {`"prompt":"Hi","max_tokens":200001`, "input length and `max_tokens` exceed context limit: 9 + 200001 > 200000, decrease input length or `max_tokens` and try again", `"max_tokens"],"msg":"the model does not accept a limit of this size"`},
		"it ends with the assistant":   {`"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]`, "This model does not support assistant message prefill. The conversation must end with a user message.", `"messages"],"msg":"the conversation must end with a message of the user"`},
		"the limit of the application": {`"prompt":"Hi"`, "max_tokens: 4096 > 1024, which is the maximum allowed number of output tokens for m1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(400)
				fmt.Fprintf(w, `{"type":"error","error":{"type":"invalid_request_error","message":%q}}`, c.says)
			})
			got := serve(t, NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"})).chat(t, `{"bot_slug":"helper","stream":true,`+c.request+`}`)
			if c.field == "" {
				is.Equal(got, answer{502, "", `{"detail":"The model did not accept the request"}`, false})
				return
			}
			is.Equal(got.status, 422)
			is.True(strings.HasPrefix(got.body, `{"detail":[{"loc":["body",`+c.field))
		})
	}
}

func TestAnthropicFinishReasons(t *testing.T) {
	for reason, want := range map[string]string{
		"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length",
		"model_context_window_exceeded": "length", "refusal": "content_filter", "pause_turn": "pause_turn",
	} {
		t.Run(reason, func(t *testing.T) {
			is := is.New(t)
			r := startAnthropic(t, func(w Wire, _ Asked) {
				w.Text("Well")
				w.(*anthropicWire).event("message_delta", fmt.Sprintf(`,"delta":{"stop_reason":%q},"usage":{"output_tokens":3}`, reason))
				w.(*anthropicWire).event("message_stop", "")
			})
			s := serve(t, r.engine)
			is.True(s.chat(t, stream).complete())
			is.Equal((<-s.reports).finish, want)
		})
	}
}

// A redirect would send the key to another server.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := serveHTTP(t, func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") })
	for _, status := range []int{301, 307, 308} {
		is := is.New(t)
		url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere+r.URL.Path, status)
		})
		is.Equal(serve(t, NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"})).chat(t, stream).status, 502)
		is.Equal(serve(t, newOllama(t, url)).chat(t, stream).status, 502)
	}
}

// A response that is not a runtime's is an error, and an error is read only up to a limit.
func TestForeignResponses(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		status int
	}{
		"an HTML page":  {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>Welcome!</html>") }, 502},
		"no content":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, 502},
		"an empty body": {func(http.ResponseWriter, *http.Request) {}, 502},
		"a proxy's error": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>Bad Gateway</html>", http.StatusBadGateway)
		}, 503},
		"an endless error": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); endless(w) }, 502},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			url := serveHTTP(t, c.answer)
			is.Equal(serve(t, NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"})).chat(t, stream).status, c.status)
			is.Equal(serve(t, newOllama(t, url)).chat(t, stream).status, c.status)
		})
	}
}

// roundTrip is a transport that is a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The engine waits at most 5 seconds for the body of an error. Then a Fallback can call the
// next engine.
func TestErrorWithoutAnEnd(t *testing.T) {
	for name, engine := range map[string]func(*testing.T, http.RoundTripper) botapi.ChatEngine{
		"anthropic": func(_ *testing.T, transport http.RoundTripper) botapi.ChatEngine {
			return NewAnthropic(AnthropicConfig{BaseURL: "http://runtime", Key: "sk-1", Transport: transport})
		},
		"ollama": func(t *testing.T, transport http.RoundTripper) botapi.ChatEngine {
			engine, err := NewOllama(OllamaConfig{BaseURL: "http://runtime", Transport: transport})
			is.New(t).NoErr(err)
			return engine
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				unending := engine(t, roundTrip(func(r *http.Request) (*http.Response, error) {
					read, write := io.Pipe()
					context.AfterFunc(r.Context(), func() { write.CloseWithError(r.Context().Err()) })
					return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"9"}}, Body: read, Request: r}, nil
				}))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				req := &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hi"}}}
				_, errs := all(unending.Chat(ctx, req))
				is.Equal(len(errs), 1)
				answer, ok := errors.AsType[*botapi.StatusError](errs[0])
				is.True(ok)
				is.Equal(answer.Status, 503)
				is.Equal(answer.RetryAfter, 9*time.Second)
				fragments, _ := all(Fallback{unending, says(nil, "second")}.Chat(ctx, req))
				is.Equal(fragments, []string{"second"})
			})
		})
	}
}

// One event can have many short lines.
func TestAnthropicEventWithoutEnd(t *testing.T) {
	for name, line := range map[string]string{
		"data":           "data: " + strings.Repeat("x", 64<<10) + "\n",
		"CR and LF":      "data: " + strings.Repeat("x", 64<<10) + "\r\n",
		"no line breaks": strings.Repeat("x", 64<<10),
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			const all = 64 << 20
			sent := make(chan int, 1)
			url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				n := 0
				for n < all {
					written, err := io.WriteString(w, line)
					if n += written; err != nil {
						break
					}
				}
				sent <- n
			})
			s := serve(t, NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"}))
			is.Equal(s.chat(t, stream).status, 502)
			is.True(<-sent < all)
			is.True(strings.Contains((<-s.reports).err.Error(), "an event of the stream is longer than"))
		})
	}
}

// Only a response with the status 200 and the type of an event stream is an answer.
func TestAnthropicStatusAndType(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		kind   string
		want   int
	}{
		"an answer":       {200, "text/event-stream; charset=utf-8", 200},
		"another type":    {200, "text/plain", 502},
		"no type":         {200, "", 502},
		"partial content": {206, "text/event-stream", 502},
		"found":           {302, "text/event-stream", 502},
		"redirect":        {307, "text/event-stream", 502},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{c.kind}
				w.WriteHeader(c.status)
				io.WriteString(w, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")
			})
			is.Equal(serve(t, NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"})).chat(t, stream).status, c.want)
		})
	}
}

func endless(w io.Writer) {
	for n := 0; n < 1<<30; n += 64 << 10 {
		if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
			return
		}
	}
}

// What follows the end mark is not part of the answer, and the engine does not wait for it.
func TestAfterTheEndMark(t *testing.T) {
	for _, start := range []func(*testing.T, func(Wire, Asked)) *Runtime{startAnthropic, startOllama} {
		for _, more := range []string{"", " and more"} {
			is := is.New(t)
			r := start(t, func(w Wire, a Asked) {
				w.Text("complete")
				w.End()
				if more != "" {
					w.Text(more)
				}
				<-a.Ctx.Done()
			})
			is.Equal(serve(t, r.engine).chat(t, noStream).body, `{"content":"complete"}`)
		}
	}
}

// An event that is not JSON ends the answer, and is not logged.
func TestAnthropicInvalidEvents(t *testing.T) {
	is := is.New(t)
	r := startAnthropic(t, func(w Wire, _ Asked) {
		w.Text("Once")
		io.WriteString(w.(*anthropicWire).w, "event: content_block_delta\ndata: SECRET\n\n")
		w.End()
	})
	s := serve(t, r.engine)
	is.Equal(s.chat(t, noStream), answer{502, "", `{"detail":"The model's answer is incomplete"}`, false})
	text := (<-s.reports).err.Error()
	is.True(strings.Contains(text, "the stream is invalid"))
	is.True(!strings.Contains(text, "SECRET"))
}

func TestConnectionIsReused(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"anthropic": func(w http.ResponseWriter) { (&anthropicWire{w: w}).End() },
		"ollama":    func(w http.ResponseWriter) { (&ollamaWire{w: w}).End() },
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			peers := make(chan string, 2)
			url := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				peers <- r.RemoteAddr
				answer(w)
				time.Sleep(20 * time.Millisecond) // the body ends a moment after the end mark
			})
			var engine botapi.ChatEngine = NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"})
			if name == "ollama" {
				engine = newOllama(t, url)
			}
			s := serve(t, engine)
			s.chat(t, noStream)
			s.chat(t, noStream)
			is.Equal(<-peers, <-peers)
		})
	}
}

func TestOllamaErrorsBeforeText(t *testing.T) {
	is := is.New(t)
	r := startOllama(t, func(w Wire, _ Asked) { w.Think("Hm."); w.Fail(tooLong) })
	is.Equal(serve(t, r.engine).chat(t, stream).status, 422)
}

// Newer servers and Ollama's hosted models say it in other words.
func TestOllamaHostedTooLong(t *testing.T) {
	is := is.New(t)
	for _, status := range []int{400, 200} {
		url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, `{"error":"prompt too long; exceeded max context length by 540451 tokens (ref: 00ad71bb)"}`)
		})
		is.Equal(serve(t, newOllama(t, url)).chat(t, noStream).status, 422)
	}
}

// The last line may lack its line break.
func TestOllamaLastLine(t *testing.T) {
	is := is.New(t)
	url := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"message":{"content":"Hi"},"done":false}`+"\n"+`{"message":{"content":""},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":3}`)
	})
	s := serve(t, newOllama(t, url))
	is.Equal(s.chat(t, noStream).body, `{"content":"Hi"}`)
	is.Equal(<-s.reports, report{nil, openai.Tokens{Prompt: 7, Completion: 3}, true, "stop"})
}

func TestOllamaInvalidBaseURL(t *testing.T) {
	is := is.New(t)
	for _, address := range []string{"", "localhost", "localhost:11434"} {
		_, err := NewOllama(OllamaConfig{BaseURL: address})
		is.True(err != nil)
	}
}

// A count of 0 says nothing.
func TestGRPCCounts(t *testing.T) {
	for name, c := range map[string]struct {
		counts [][2]int64
		want   openai.Tokens // zero: not counted
	}{
		"the prompt first":  {[][2]int64{{7, 0}, {0, 1}, {0, 3}}, openai.Tokens{Prompt: 7, Completion: 3}},
		"the prompt last":   {[][2]int64{{0, 1}, {0, 3}, {7, 0}}, openai.Tokens{Prompt: 7, Completion: 3}},
		"zeros at the end":  {[][2]int64{{7, 3}, {0, 0}}, openai.Tokens{Prompt: 7, Completion: 3}},
		"never the prompt":  {[][2]int64{{0, 1}, {0, 3}}, openai.Tokens{}},
		"a negative number": {[][2]int64{{-7, 3}}, openai.Tokens{}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := startGRPC(t, func(w Wire, _ Asked) {
				stream := w.(*grpcWire).stream
				for _, count := range c.counts {
					stream.Send(&modelpb.GenerateResponse{Text: []byte("a "), PromptTokens: count[0], CompletionTokens: count[1]})
				}
				stream.Send(&modelpb.GenerateResponse{FinishReason: "stop"})
			})
			s := serve(t, r.engine)
			s.chat(t, noStream)
			is.Equal(<-s.reports, report{nil, c.want, c.want != openai.Tokens{}, "stop"})
		})
	}
}

// If the service aborts an answer and also says why in its status, the status counts.
func TestGRPCStatusAfterAnAbort(t *testing.T) {
	is := is.New(t)
	r := startGRPC(t, func(w Wire, _ Asked) { w.Finish("abort"); w.Fail(busy) })
	is.Equal(serve(t, r.engine).chat(t, noStream), answer{503, "17", `{"detail":"The model is unavailable for the moment"}`, false})
}

// The call has the chat's deadline, or none if the chat has none.
func TestGRPCCarriesTheDeadline(t *testing.T) {
	is := is.New(t)
	deadlines := make(chan time.Time, 2)
	r := startGRPC(t, func(w Wire, a Asked) {
		deadline, _ := a.Ctx.Deadline()
		deadlines <- deadline
		w.End()
	})
	before := time.Now()
	serve(t, r.engine, func(o *botapi.Options) { o.ChatTimeout = time.Hour }).chat(t, noStream)
	deadline := <-deadlines
	is.True(deadline.After(before) && !deadline.After(time.Now().Add(time.Hour)))

	serve(t, r.engine, func(o *botapi.Options) { o.ChatTimeout = -1 }).chat(t, noStream)
	is.True((<-deadlines).IsZero())
}

func TestGRPCDeadlineEndsTheChat(t *testing.T) {
	is := is.New(t)
	r := startGRPC(t, func(w Wire, a Asked) { <-a.Ctx.Done() })
	s := serve(t, r.engine, func(o *botapi.Options) { o.ChatTimeout = 100 * time.Millisecond })
	is.Equal(s.chat(t, noStream), answer{504, "", `{"detail":"The answer took too long"}`, false})
	is.True(errors.Is((<-s.reports).err, botapi.ErrChatTimeout))
}

func TestLocalCountsToMaxTokens(t *testing.T) {
	is := is.New(t)
	r := startLocal(t, func(w Wire, _ Asked) {
		for range 10 {
			w.Text("la ")
		}
	})
	s := serve(t, r.engine)
	got := s.chat(t, `{"bot_slug":"helper","stream":false,"prompt":"Sing","max_tokens":2}`)
	is.Equal(got.body, `{"content":"la la "}`)
	is.Equal(<-s.reports, report{nil, openai.Tokens{Prompt: 7, Completion: 2}, true, "length"})
}

// A panicModel panics in every other chat.
type panicModel struct{ chats int }

func (p *panicModel) Begin(context.Context, []botapi.ChatMessage, openai.Settings) (int64, error) {
	if p.chats++; p.chats%2 == 1 {
		panic("no such layer")
	}
	return 1, nil
}

func (p *panicModel) Next() ([]byte, error) { return nil, io.EOF }

func TestLocalIsFreeAfterAPanic(t *testing.T) {
	is := is.New(t)
	s := serve(t, NewLocal(new(panicModel)))
	for _, status := range []int{500, 200, 500, 200} {
		is.Equal(s.chat(t, noStream).status, status)
	}
}

// A countingModel counts the calls of Begin.
type countingModel struct{ begun int }

func (c *countingModel) Begin(context.Context, []botapi.ChatMessage, openai.Settings) (int64, error) {
	c.begun++
	return 1, nil
}

func (c *countingModel) Next() ([]byte, error) { return nil, io.EOF }

// A chat that has been cancelled is not begun, even if the model is free.
func TestLocalChecksTheContextFirst(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(botapi.ErrClientLeft)
	model := new(countingModel)
	engine := NewLocal(model)
	for range 100 {
		_, errs := all(engine.Chat(ctx, new(botapi.ChatRequest)))
		is.Equal(errs, []error{botapi.ErrClientLeft})
	}
	is.Equal(model.begun, 0)
}

// A slowModel ignores cancellation and takes a minute for each token.
type slowModel struct{ begun int }

func (m *slowModel) Begin(context.Context, []botapi.ChatMessage, openai.Settings) (int64, error) {
	m.begun++
	time.Sleep(time.Minute)
	return 1, nil
}

func (m *slowModel) Next() ([]byte, error) { time.Sleep(time.Minute); return []byte("la"), nil }

// Cancelling a chat during Begin ends it before its first token. Cancelling a chat that
// waits ends it immediately, and Begin is not called for it.
func TestLocalWithoutCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		model := new(slowModel)
		engine := NewLocal(model)
		began := time.Now()
		ask := func() (cancel context.CancelFunc, ended chan error) {
			ctx, cancel := context.WithCancel(context.Background())
			ended = make(chan error, 1)
			go func() {
				_, errs := all(engine.Chat(ctx, &botapi.ChatRequest{Extra: map[string]json.RawMessage{}}))
				ended <- errs[0]
			}()
			synctest.Wait()
			return cancel, ended
		}
		cancel, ended := ask()
		cancelWaiting, endedWaiting := ask()
		cancelWaiting()
		is.Equal(<-endedWaiting, context.Canceled)
		is.Equal(time.Since(began), time.Duration(0))
		cancel()
		is.Equal(<-ended, context.Canceled)
		is.Equal(time.Since(began), time.Minute)
		is.Equal(model.begun, 1)
	})
}

// A connection that fails is no error that Ollama has sent, even within a line, which is then
// invalid and may quote the answer.
func TestOllamaIsAborted(t *testing.T) {
	for name, part := range map[string]string{
		"between two lines": "",
		"within a line":     `{"model":"m1","created_at":"2026-11-27T12:27:58.37654863Z","message":{"role":"assistant","content":" prompt is too long`,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			r := startOllama(t, func(w Wire, _ Asked) {
				w.Text(" la")
				io.WriteString(w.(*ollamaWire).w, part)
				http.NewResponseController(w.(*ollamaWire).w).Flush()
				w.Abort()
			})
			s := serve(t, r.engine)
			is.Equal(s.chat(t, noStream), answer{502, "", `{"detail":"The model's answer is incomplete"}`, false})
			is.True(strings.Contains((<-s.reports).err.Error(), "reading the stream: unexpected EOF"))
		})
	}
}
