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

// TestEngines holds every engine to every promise.
func TestEngines(t *testing.T) {
	for _, row := range []struct {
		promise string
		test    func(*testing.T, column)
	}{
		{"the answer is the text, whole, without what the model thought", answersWhole},
		{"nothing but an end is the empty answer", answersNothing},
		{"the system prompt, the roles, the model and the request id are handed on", handsOn},
		{"temperature, max_tokens and stop are handed on, what is not offered is not", handsExtraOn},
		{"Extra that makes no sense is a 422, and nobody is bothered", refusesExtra},
		{"text passes as it comes", passesAsItComes},
		{"whoever leaves stops the model", stopsWhenLeft},
		{"failures are mapped, are asked for once, and quote nothing", mapsFailures},
		{"a runtime that is not there is a 503", isNotThere},
		{"an answer that breaks is never whole", breaks},
		{"characters that are cut in two", cutCharacters},
		{"tokens are counted", counts},
		{"tokens of those who leave", countsLeavers},
		{"chats at once do not mix", doesNotMix},
	} {
		for _, c := range columns {
			t.Run(row.promise+"/"+c.name, func(t *testing.T) { row.test(t, c) })
		}
	}
}

func answersWhole(t *testing.T, c column) {
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
	for _, body := range []string{stream, oneBody} {
		got := s.chat(t, body)
		is.True(got.whole())
		is.Equal(runtimetest.Text(t, got.body), "Grüße, 世界 \"\\\n👋🏽")
		is.Equal(strings.HasSuffix(got.body, "data: [DONE]"), body == stream)
		is.NoErr((<-s.reports).err)
	}
}

func answersNothing(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.End() })
	got := serve(t, r.engine).chat(t, oneBody)
	is.Equal(got.status, 200)
	is.Equal(got.body, `{"content":""}`)
}

func handsOn(t *testing.T, c column) {
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

func handsExtraOn(t *testing.T, c column) {
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

func refusesExtra(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) { w.End() })
	got := serve(t, r.engine).chat(t, `{"bot_slug":"helper","stream":true,"prompt":"Hi","temperature":3,"max_tokens":"x"}`)
	is.Equal(got.status, 422)
	is.Equal(got.body, `{"detail":[{"loc":["body","max_tokens"],"msg":"value is not a valid integer","type":"type_error.integer"},`+
		`{"loc":["body","temperature"],"msg":"ensure this value is less than or equal to 2","type":"value_error.number.not_le"}]}`)
	is.Equal(len(r.requests()), 0)
}

func passesAsItComes(t *testing.T, c column) {
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
		next <- "fragment " // only now that the client has read the one before
	}
}

func stopsWhenLeft(t *testing.T, c column) {
	for _, begun := range []bool{false, true} {
		for _, body := range []string{stream, oneBody} {
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
				ctx, leave := context.WithCancel(t.Context())
				gone := make(chan bool)
				go func() {
					defer close(gone)
					if response, err := http.DefaultClient.Do(request(ctx, s.url, body)); err == nil {
						io.Copy(io.Discard, response.Body)
						response.Body.Close()
					}
				}()
				<-asked
				leave()
				<-stopped
				<-gone
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
		busy:       {503, "17", unavailable, false},
		overloaded: {503, "2", unavailable, false},
		tooLong:    {422, "", long, false},
		keyRefused: {502, "", failed, false},
		nonsense:   {502, "", notAccepted, false},
		broken:     {502, "", failed, false},
	} {
		if c.lacks[kind] {
			continue
		}
		t.Run(string(kind), func(t *testing.T) {
			for _, body := range []string{stream, oneBody} {
				is := is.New(t)
				var log bytes.Buffer
				r := c.start(t, func(w Wire, _ Asked) { w.Fail(kind) })
				s := serve(t, r.engine, logTo(&log))
				is.Equal(s.chat(t, body), want)
				_, told := errors.AsType[*openai.Failure]((<-s.reports).err)
				is.True(told)
				is.Equal(len(r.requests()), 1) // nobody asks again behind the client's back
				is.True(!strings.Contains(log.String(), "SECRET"))
			}
		})
	}
}

func isNotThere(t *testing.T, c column) {
	if c.gone == nil {
		t.Skip("it is in this process")
	}
	is := is.New(t)
	got := serve(t, c.gone(t)).chat(t, stream)
	is.Equal(got, answer{503, "2", `{"detail":"The model is unavailable for the moment"}`, false})
}

func breaks(t *testing.T, c column) {
	for name, breaks := range map[string]func(Wire){
		"an error inside":             func(w Wire) { w.Fail(broken) },
		"an error of being busy":      func(w Wire) { w.Fail(overloaded) },
		"the connection breaks":       func(w Wire) { w.Cut() },
		"it ends without being whole": func(Wire) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // a stream that breaks is cut after a pause
			is := is.New(t)
			r := c.start(t, func(w Wire, _ Asked) { w.Text("Once upon "); breaks(w) })
			var log bytes.Buffer
			s := serve(t, r.engine, logTo(&log))
			got := s.chat(t, stream)
			is.True(got.cut)
			is.Equal(got.body, "data: {\"content\":\"Once upon \"}\n\n"+
				"event: error\ndata: {\"detail\":\"The model's answer broke off\"}")
			got = s.chat(t, oneBody)
			is.Equal(got, answer{502, "", `{"detail":"The model's answer broke off"}`, false})
			is.True((<-s.reports).err != nil)
			is.True((<-s.reports).err != nil)
			is.True(!strings.Contains(log.String(), "SECRET"))

			r = c.start(t, func(w Wire, _ Asked) { w.Think("Hm. "); breaks(w) })
			got = serve(t, r.engine).chat(t, oneBody)
			is.True(got.status == 502 || got.status == 503) // before any text, it depends on what the protocol says
		})
	}
}

func cutCharacters(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, _ Asked) {
		w.Text("caf\xc3")
		w.Text("\xa9 au lait")
		w.End()
	})
	want := "caf\ufffd\ufffd au lait" // the client's JSON decoder has no bytes to hand on
	if c.keepsBytes {
		want = "café au lait"
	}
	s := serve(t, r.engine)
	for _, body := range []string{stream, oneBody} {
		got := s.chat(t, body)
		is.True(got.whole())
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

func countsLeavers(t *testing.T, c column) {
	is := is.New(t)
	r := c.start(t, func(w Wire, a Asked) { w.Text("a "); <-a.Ctx.Done() })
	s := serve(t, r.engine)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	response, err := http.DefaultClient.Do(request(ctx, s.url, stream))
	is.NoErr(err)
	defer response.Body.Close()
	_, err = io.ReadFull(response.Body, make([]byte, 10))
	is.NoErr(err)
	leave()
	got := <-s.reports
	is.Equal(got.counted, c.countsLeavers)
	if c.countsLeavers {
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
