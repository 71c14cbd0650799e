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
		{Role: botapi.RoleSystem, Content: "One."}, {Role: botapi.RoleSystem, Content: "Two."},
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
		"CR and LF":      "data: " + strings.Repeat("x", 64<<10) + "\n\r\r\n",
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

func TestOllamaInvalidBaseURL(t *testing.T) {
	is := is.New(t)
	for _, address := range []string{"", "localhost", "localhost:11434"} {
		_, err := NewOllama(OllamaConfig{BaseURL: address})
		is.True(err != nil)
	}
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
