package engines

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestEngines tests every guarantee with every engine.
func TestEngines(t *testing.T) {
	for _, row := range []struct {
		guarantee string
		test      func(*testing.T, column)
	}{
		{"the answer is the complete text without thinking", answersCompletely},
		{"an answer without text is empty", answersNothing},
		{"the system prompt, the roles, the model and the request id are passed on", passesRequestOn},
		{"temperature, max_tokens and stop are passed on, other fields are not", passesExtraOn},
		{"invalid Extra is a 422, and the runtime is not called", rejectsExtra},
		{"fragments pass immediately", passesFragments},
		{"a disconnect stops the model", stopsOnDisconnect},
		{"failures are mapped, not retried, and not quoted", mapsFailures},
		{"an unreachable runtime is a 503", isUnreachable},
		{"a failed answer is never complete", failsMidway},
		{"an answer that the runtime aborted is never complete", abortsAnswer},
		{"an answer of tool calls alone is a failure", callsTools},
		{"a conversation may be too long after the first text", isTooLongMidway},
		{"a setting that the model does not accept is a 422", rejectsSetting},
		{"characters that are split", splitCharacters},
		{"tokens are counted", counts},
		{"tokens of a chat whose client disconnects", countsDisconnected},
		{"concurrent chats do not mix", doesNotMix},
	} {
		for _, c := range columns {
			t.Run(row.guarantee+"/"+c.name, func(t *testing.T) { row.test(t, c) })
		}
	}
}

func answersCompletely(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) {
		w.Think("Hm. ")
		w.Text("Grüße, ")
		w.Think("Hm. ")
		w.Text("")
		w.Text("世界 \"\\\n")
		w.Text("👋🏽")
		w.End()
	})
	s := serve(t, r.engine)
	for _, body := range []string{stream, noStream} {
		got := s.chat(t, body)
		is.True(got.complete())
		is.Equal(runtimetest.Text(t, got.body), "Grüße, 世界 \"\\\n👋🏽")
		is.Equal(strings.HasSuffix(got.body, "data: [DONE]"), body == stream)
		is.NoErr((<-s.reports).err)
	}
}

func answersNothing(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.End() })
	got := serve(t, r.engine).chat(t, noStream)
	is.Equal(got.status, 200)
	is.Equal(got.body, `{"content":""}`)
}

func passesRequestOn(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.End() })
	got := serve(t, r.engine).chat(t, `{"bot_slug":"helper","stream":false,"user_id":"someone@example.com","prompt":"Hi","messages":[
		{"role":"system","content":"Be <kind>."},{"role":"user","content":"Hello"},{"role":"assistant","content":"Yes?"}]}`)
	is.Equal(got.status, 200)
	is.Equal(len(r.requests()), 1)
	asked := r.requests()[0]
	is.Equal(asked.Model, "m1")
	is.Equal(asked.Messages, []botapi.ChatMessage{
		{Role: botapi.RoleSystem, Content: "Be <kind>."}, {Role: botapi.RoleUser, Content: "Hello"},
		{Role: botapi.RoleAssistant, Content: "Yes?"}, {Role: botapi.RoleUser, Content: "Hi"},
	})
	is.Equal(asked.Temperature, nil)
	is.Equal(asked.RequestID == "request-1", c.sendsID)
	is.True(!strings.Contains(asked.Body, "someone@example.com"))
}

func passesExtraOn(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.End() })
	got := serve(t, r.engine).chat(t, `{"bot_slug":"helper","stream":false,"prompt":"Hi","temperature":0,"max_tokens":5,"stop":"END",
		"top_p":null,"model":"expensive","tools":["hammer"],"options":{"num_gpu":9}}`)
	is.Equal(got.status, 200)
	asked := r.requests()[0]
	is.Equal(*asked.Temperature, 0.0)
	is.Equal(*asked.MaxTokens, int64(5))
	is.Equal(asked.Stop, []string{"END"})
	is.Equal(asked.Model, "m1")
	for _, unwanted := range []string{"expensive", "hammer", "num_gpu", "top_p"} {
		is.True(!strings.Contains(asked.Body, unwanted))
	}
}

func rejectsExtra(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.End() })
	got := serve(t, r.engine).chat(t, `{"bot_slug":"helper","stream":true,"prompt":"Hi","temperature":3,"max_tokens":"x"}`)
	is.Equal(got.status, 422)
	is.Equal(got.body, `{"detail":[{"loc":["body","max_tokens"],"msg":"value is not a valid integer","type":"type_error.integer"},`+
		`{"loc":["body","temperature"],"msg":"ensure this value is less than or equal to 2","type":"value_error.number.not_le"}]}`)
	is.Equal(len(r.requests()), 0)
}

func passesFragments(t *testing.T, c column) {
	is := is.New(t)
	next := make(chan string, 1)
	r := c.start(t, func(w Wire, _ Asked) {
		for fragment := range next {
			w.Text(fragment)
		}
		w.End()
	})
	defer close(next)
	next <- "fragment "
	response, err := http.DefaultClient.Do(request(t.Context(), serve(t, r.engine).url, stream))
	is.NoErr(err)
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for range 3 {
		is.True(lines.Scan())
		is.Equal(lines.Text(), `data: {"content":"fragment "}`)
		is.True(lines.Scan())
		next <- "fragment " // the client has read the one before
	}
}

func stopsOnDisconnect(t *testing.T, c column) {
	for _, begun := range []bool{false, true} {
		for _, body := range []string{stream, noStream} {
			t.Run(fmt.Sprintf("begun=%v/stream=%v", begun, body == stream), func(t *testing.T) {
				is := is.New(t)
				asked, stopped := make(chan bool), make(chan bool)
				r := c.start(t, func(w Wire, a Asked) {
					if begun {
						w.Text("Once upon ")
					}
					close(asked)
					<-a.Ctx.Done()
					close(stopped)
				})
				s := serve(t, r.engine)
				ctx, disconnect := context.WithCancel(t.Context())
				disconnected := make(chan bool)
				go func() {
					defer close(disconnected)
					if response, err := http.DefaultClient.Do(request(ctx, s.url, body)); err == nil {
						io.Copy(io.Discard, response.Body)
						response.Body.Close()
					}
				}()
				<-asked
				disconnect()
				<-stopped
				<-disconnected
				is.True(errors.Is((<-s.reports).err, botapi.ErrClientLeft))
			})
		}
	}
}

func mapsFailures(t *testing.T, c column) {
	const (
		unavailable = `{"detail":"The model is unavailable for the moment"}`
		failed      = `{"detail":"The model failed"}`
		notAccepted = `{"detail":"The model did not accept the request"}`
		long        = `{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`
	)
	for kind, want := range map[Failing]answer{
		busy:           {503, "17", unavailable, false},
		overloaded:     {503, "2", unavailable, false},
		tooLong:        {422, "", long, false},
		keyRejected:    {502, "", failed, false},
		invalidRequest: {502, "", notAccepted, false},
		internalError:  {502, "", failed, false},
	} {
		if c.lacks[kind] {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			for _, body := range []string{stream, noStream} {
				is := is.New(t)
				var log bytes.Buffer
				r := c.start(t, func(w Wire, _ Asked) { w.Fail(kind) })
				s := serve(t, r.engine, logTo(&log))
				is.Equal(s.chat(t, body), want)
				_, ok := errors.AsType[*openai.Failure]((<-s.reports).err)
				is.True(ok)
				is.Equal(len(r.requests()), 1) // no retries
				is.True(!strings.Contains(log.String(), "SECRET"))
			}
		})
	}
}

func isUnreachable(t *testing.T, c column) {
	if c.unreachable == nil {
		t.Skip("the model is in this process")
	}
	is := is.New(t)
	got := serve(t, c.unreachable(t)).chat(t, stream)
	is.Equal(got, answer{503, "2", `{"detail":"The model is unavailable for the moment"}`, false})
}

func failsMidway(t *testing.T, c column) {
	for name, fail := range map[string]func(Wire){
		"an error in the stream":    func(w Wire) { w.Fail(internalError) },
		"an overload in the stream": func(w Wire) { w.Fail(overloaded) },
		"the connection is aborted": func(w Wire) { w.Abort() },
		"no end mark":               func(Wire) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a stream is aborted after a pause
			is := is.New(t)
			r := c.start(t, func(w Wire, _ Asked) { w.Text("Once upon "); fail(w) })
			var log bytes.Buffer
			s := serve(t, r.engine, logTo(&log))
			got := s.chat(t, stream)
			is.True(got.aborted)
			is.Equal(got.body, "data: {\"content\":\"Once upon \"}\n\n"+
				"event: error\ndata: {\"detail\":\"The model's answer is incomplete\",\"status\":502}")
			got = s.chat(t, noStream)
			is.Equal(got, answer{502, "", `{"detail":"The model's answer is incomplete"}`, false})
			is.True((<-s.reports).err != nil)
			is.True((<-s.reports).err != nil)
			is.True(!strings.Contains(log.String(), "SECRET"))

			r = c.start(t, func(w Wire, _ Asked) { w.Think("Hm. "); fail(w) })
			got = serve(t, r.engine).chat(t, noStream)
			is.True(got.status == 502 || got.status == 503) // which of them depends on the protocol
		})
	}
}

// The reason counts, whatever else the protocol says.
func abortsAnswer(t *testing.T, c column) {
	if c.lacksReasons {
		t.Skip("the model has no such reasons")
	}
	for _, why := range []string{"abort", "cancelled", "timeout", "error", "api_error"} {
		t.Run(why, func(t *testing.T) {
			t.Parallel() // a stream is aborted after a pause
			is := is.New(t)
			r := c.start(t, func(w Wire, _ Asked) { w.Text("Once upon "); w.Finish(why) })
			s := serve(t, r.engine)
			got := s.chat(t, stream)
			is.True(got.aborted && !got.complete())
			is.Equal((<-s.reports).finish, "")
			is.Equal(s.chat(t, noStream), answer{502, "", `{"detail":"The model's answer is incomplete"}`, false})
			failure, ok := errors.AsType[*openai.Failure]((<-s.reports).err)
			is.True(ok)
			is.True(failure.Begun)

			r = c.start(t, func(w Wire, _ Asked) { w.Finish(why) })
			is.Equal(serve(t, r.engine).chat(t, noStream).status, 502)
		})
	}
}

func callsTools(t *testing.T, c column) {
	if c.lacksReasons {
		t.Skip("the model has no tools")
	}
	for _, why := range []string{"tool_use", "tool_calls"} {
		is := is.New(t)
		var log bytes.Buffer
		r := c.start(t, func(w Wire, _ Asked) { w.Think("Hm. "); w.CallTools(); w.Finish(why) })
		s := serve(t, r.engine, logTo(&log))
		for _, body := range []string{stream, noStream} {
			is.Equal(s.chat(t, body), answer{502, "", `{"detail":"The model's answer has no text"}`, false})
			failure, ok := errors.AsType[*openai.Failure]((<-s.reports).err)
			is.True(ok)
			is.True(failure.NoText)
		}
		is.True(!strings.Contains(log.String(), "SECRET"))

		r = c.start(t, func(w Wire, _ Asked) { w.Text("I look it up"); w.CallTools(); w.Finish(why) })
		is.Equal(serve(t, r.engine).chat(t, noStream).body, `{"content":"I look it up"}`)
	}
}

// The error is of the same type as before the first text.
func isTooLongMidway(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.Text("Once upon "); w.Fail(tooLong) })
	s := serve(t, r.engine)
	for _, body := range []string{stream, noStream} {
		s.chat(t, body)
		invalid, ok := errors.AsType[*botapi.HTTPValidationError]((<-s.reports).err)
		is.True(ok)
		is.Equal(invalid.Detail[0].Type, "value_error.messages.too_long")
	}
}

func rejectsSetting(t *testing.T, c column) {
	if c.lacks[badSetting] {
		t.Skip("the model cannot say so")
	}
	is := is.New(t)
	var log bytes.Buffer
	r := c.start(t, func(w Wire, _ Asked) { w.Fail(badSetting) })
	s := serve(t, r.engine, logTo(&log))
	is.Equal(s.chat(t, `{"bot_slug":"helper","prompt":"Hi","stream":true,"temperature":0.5}`), answer{422, "",
		`{"detail":[{"loc":["body","temperature"],"msg":"the model does not accept this value","type":"value_error.not_accepted"}]}`, false})
	is.Equal(s.chat(t, stream).status, 502) // the client has not sent it
	is.True(!strings.Contains(log.String(), "SECRET"))
}

func splitCharacters(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) {
		w.Text("caf\xc3")
		w.Text("\xa9 au lait")
		w.End()
	})
	want := "caf\ufffd\ufffd au lait" // the library decodes JSON, which replaces invalid UTF-8
	if c.keepsBytes {
		want = "café au lait"
	}
	s := serve(t, r.engine)
	for _, body := range []string{stream, noStream} {
		got := s.chat(t, body)
		is.True(got.complete())
		is.Equal(runtimetest.Text(t, got.body), want)
	}
}

func counts(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.Text("a "); w.Text("b "); w.Text("c "); w.End() })
	s := serve(t, r.engine)
	s.chat(t, stream)
	is.Equal(<-s.reports, report{nil, openai.Tokens{Prompt: 7, Completion: 3}, true, "stop"})
}

func countsDisconnected(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, a Asked) { w.Text("a "); <-a.Ctx.Done() })
	s := serve(t, r.engine)
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	response, err := http.DefaultClient.Do(request(ctx, s.url, stream))
	is.NoErr(err)
	defer response.Body.Close()
	_, err = io.ReadFull(response.Body, make([]byte, 10))
	is.NoErr(err)
	disconnect()
	got := <-s.reports
	is.Equal(got.counted, c.countsDisconnected)
	if c.countsDisconnected {
		is.Equal(got.tokens, openai.Tokens{Prompt: 7, Completion: 1})
	}
}

func doesNotMix(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, a Asked) {
		for range 20 {
			w.Text(a.last() + " ")
		}
		w.End()
	})
	s := serve(t, r.engine)
	var all sync.WaitGroup
	answers := make([]string, 8)
	for i := range answers {
		all.Go(func() {
			answers[i] = s.chat(t, fmt.Sprintf(`{"bot_slug":"helper","stream":%v,"prompt":"%d"}`, i%2 == 0, i)).body
		})
	}
	all.Wait()
	for i, got := range answers {
		is.Equal(runtimetest.Text(t, got), strings.Repeat(fmt.Sprint(i, " "), 20))
	}
}
