package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

// speaks is an engine that is the body of its iterator.
type speaks func(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool)

func (s speaks) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { s(ctx, req, yield) }
}

// says returns an engine that yields fragments and then, unless it is nil, err.
func says(err error, fragments ...string) speaks {
	return func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		for _, fragment := range fragments {
			if !yield(fragment, nil) {
				return
			}
		}
		if err != nil {
			yield("", err)
		}
	}
}

// mustNotBeCalled returns an engine that fails the test when it is called.
func mustNotBeCalled(t *testing.T) speaks {
	return func(context.Context, *botapi.ChatRequest, func(string, error) bool) { t.Error("it was called") }
}

// stubborn returns an engine that goes on after yield has returned false, and after an
// error.
func stubborn(err error, fragments ...string) speaks {
	return func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		for _, fragment := range fragments {
			yield(fragment, nil)
		}
		yield("", err)
		yield("more", nil)
		yield("", errors.New("and more"))
	}
}

var (
	errBusy     = &botapi.StatusError{Status: 503, Detail: "Busy", RetryAfter: time.Second}
	errRejected = &botapi.StatusError{Status: 403, Detail: "Not that"}
)

func TestFallback(t *testing.T) {
	second := says(nil, "second")
	for name, c := range map[string]struct {
		engines Fallback
		body    string
		want    answer
	}{
		"the first answers":          {Fallback{says(nil, "first"), mustNotBeCalled(t)}, noStream, answer{200, "", `{"content":"first"}`, false}},
		"the first has no text":      {Fallback{says(nil), mustNotBeCalled(t)}, noStream, answer{200, "", `{"content":""}`, false}},
		"the first is busy":          {Fallback{says(errBusy), second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"the first fails":            {Fallback{says(errors.New("boom")), second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"two fail":                   {Fallback{says(errBusy), says(errBusy), second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"an empty fragment first":    {Fallback{says(errBusy, "", ""), second}, stream, answer{200, "", "data: {\"content\":\"second\"}\n\ndata: [DONE]", false}},
		"all fail":                   {Fallback{says(errors.New("boom")), says(errBusy)}, noStream, answer{503, "1", `{"detail":"Busy"}`, false}},
		"all fail, the last plainly": {Fallback{says(errBusy), says(errors.New("boom"))}, noStream, answer{500, "", `{"detail":"Internal Server Error"}`, false}},
		"no engines":                 {nil, noStream, answer{500, "", `{"detail":"Internal Server Error"}`, false}},
		"a 4xx":                      {Fallback{says(errRejected), mustNotBeCalled(t)}, noStream, answer{403, "", `{"detail":"Not that"}`, false}},
		"a validation error":         {Fallback{says(&botapi.HTTPValidationError{}), mustNotBeCalled(t)}, noStream, answer{422, "", `{"detail":[]}`, false}},
		"no such bot":                {Fallback{says(botapi.ErrBotNotFound), mustNotBeCalled(t)}, noStream, answer{404, "", `{"detail":"Bot not found"}`, false}},
		"a rejected key":             {Fallback{says(botapi.ErrInvalidKey), mustNotBeCalled(t)}, noStream, answer{401, "", `{"detail":"Invalid API key"}`, false}},
		"an invalid status":          {Fallback{says(&botapi.StatusError{Detail: "?"}), second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"no iterator":                {Fallback{noIterator, second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"after the first text":       {Fallback{says(errBusy, "Once"), mustNotBeCalled(t)}, stream, answer{200, "", "data: {\"content\":\"Once\"}\n\nevent: error\ndata: {\"detail\":\"Busy\",\"status\":503,\"retry_after\":1}", true}},
		"the first does not stop":    {Fallback{stubborn(errBusy), second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"a setting of one model":     {Fallback{says((&openai.Failure{Mistake: &botapi.ValidationError{}, Err: io.EOF}).Answer()), second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"a long conversation": {Fallback{says((&openai.Failure{TooLong: true, Err: io.EOF}).Answer()), mustNotBeCalled(t)}, noStream,
			answer{422, "", `{"detail":[{"loc":["body","messages"],"msg":"the conversation is too long for the model","type":"value_error.messages.too_long"}]}`, false}},
		"a guard's 4xx":         {Fallback{Guard{says(nil, "secret"), Words, noSecrets}, mustNotBeCalled(t)}, noStream, answer{403, "", `{"detail":"Not that"}`, false}},
		"a guard's plain error": {Fallback{Guard{says(nil, "secret"), Words, func(context.Context, string) error { return errors.New("no") }}, second}, noStream, answer{200, "", `{"content":"second"}`, false}},
		"one inside another":    {Fallback{Fallback{says(errBusy), says(errBusy)}, second}, noStream, answer{200, "", `{"content":"second"}`, false}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(serve(t, c.engines).chat(t, c.body), c.want)
		})
	}
}

func TestFallbackLogsEveryFailure(t *testing.T) {
	is := is.New(t)
	var log bytes.Buffer
	s := serve(t, Fallback{says(errors.New("boom")), says(errors.New("bang"))}, logTo(&log))
	s.chat(t, noStream)
	is.True(strings.Contains(log.String(), "bang (earlier: boom)"))
}

func TestFallbackKeepsTheRequest(t *testing.T) {
	is := is.New(t)
	greedy := speaks(func(_ context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
		req.Messages[0].Content = "changed"
		delete(req.Extra, "temperature")
		req.Bot.Model = "changed"
		yield("", errBusy)
	})
	echo := speaks(func(_ context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
		yield(fmt.Sprint(req.Messages[0].Content, req.Bot.Model, string(req.Extra["temperature"])), nil)
	})
	got := serve(t, Fallback{greedy, echo}).chat(t, `{"bot_slug":"helper","prompt":"Hi","stream":false,"temperature":1}`)
	is.Equal(got.body, `{"content":"Him11"}`)
}

func TestFallbackCancelsTheFirstBeforeTheNext(t *testing.T) {
	is := is.New(t)
	var first context.Context
	failing := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		first = ctx
		yield("", errBusy)
	})
	next := speaks(func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		yield(fmt.Sprint(first.Err()), nil)
	})
	is.Equal(serve(t, Fallback{failing, next}).chat(t, noStream).body, `{"content":"context canceled"}`)
}

// The tokens of an engine that failed are not the next engine's.
func TestFallbackForgetsTokens(t *testing.T) {
	is := is.New(t)
	counts := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 7, Completion: 9})
		openai.UsageFrom(ctx).Finish("length")
		yield("", errBusy)
	})
	s := serve(t, Fallback{counts, says(nil, "second")})
	s.chat(t, noStream)
	is.Equal(<-s.reports, report{})
	is.Equal(serve(t, Fallback{says(errBusy), counts}).chat(t, noStream).status, 503)
}

func TestFallbackPassesAnAbortOn(t *testing.T) {
	is := is.New(t)
	_, errs := all(Fallback{says(http.ErrAbortHandler), mustNotBeCalled(t)}.Chat(t.Context(), new(botapi.ChatRequest)))
	is.Equal(errs, []error{http.ErrAbortHandler})
}

// lingering returns an engine that returns only when its context is cancelled.
func lingering(err error, fragments ...string) speaks {
	return func(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
		says(err, fragments...)(ctx, req, yield)
		<-ctx.Done()
	}
}

// A combinator cancels its engine when it needs no more from it.
func TestCombinatorsCancelTheirEngine(t *testing.T) {
	for name, c := range map[string]struct {
		engine botapi.ChatEngine
		errs   int
	}{
		"fallback":                 {Fallback{lingering(errBusy), says(nil, "second")}, 0},
		"fallback, after its text": {Fallback{lingering(errBusy, "first"), says(nil, "second")}, 1},
		"guard":                    {Guard{lingering(errBusy), Words, noSecrets}, 1},
		"guard that rejects":       {Guard{lingering(nil, "secret "), Words, noSecrets}, 1},
		"line":                     {NewLine(lingering(errBusy), LineOptions{}), 1},
		"all":                      {Guard{Fallback{NewLine(lingering(errBusy), LineOptions{}), says(nil, "second")}, Words, noSecrets}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, errs := all(c.engine.Chat(ctx, new(botapi.ChatRequest)))
				is.Equal(len(errs), c.errs)
				is.NoErr(ctx.Err())
			})
		})
	}
}

var noIterator = botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] { return nil })

func TestNoIteratorIsAFailure(t *testing.T) {
	for name, engine := range map[string]botapi.ChatEngine{
		"fallback": Fallback{noIterator},
		"guard":    Guard{noIterator, Words, noSecrets},
		"line":     NewLine(noIterator, LineOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			s := serve(t, engine)
			is.Equal(s.chat(t, noStream).status, 500)
			is.True(strings.Contains((<-s.reports).err.Error(), "the engine returned no iterator"))
		})
	}
}

func TestFallbackEndsWithTheChat(t *testing.T) {
	is := is.New(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancelling := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		cancel(botapi.ErrClientLeft)
		yield("", context.Cause(ctx))
	})
	_, errs := all(Fallback{cancelling, mustNotBeCalled(t)}.Chat(ctx, new(botapi.ChatRequest)))
	is.Equal(len(errs), 1)
	is.True(errors.Is(errs[0], botapi.ErrClientLeft))
}

// all collects what an engine yields, up to the first error.
func all(answer iter.Seq2[string, error]) (fragments []string, errs []error) {
	for text, err := range answer {
		if err != nil {
			return fragments, append(errs, err)
		}
		fragments = append(fragments, text)
	}
	return fragments, nil
}

func TestByModel(t *testing.T) {
	is := is.New(t)
	other := says(nil, "other")
	is.Equal(serve(t, ByModel{"m1": says(nil, "m1"), "": other}).chat(t, noStream).body, `{"content":"m1"}`)
	is.Equal(serve(t, ByModel{"m2": says(nil, "m2"), "": other}).chat(t, noStream).body, `{"content":"other"}`)
	is.Equal(serve(t, ByModel{"m2": says(nil, "m2")}).chat(t, noStream).status, 500)
}

// noSecrets rejects one word.
func noSecrets(_ context.Context, part string) error {
	if strings.Contains(strings.ToLower(part), "secret") {
		return errRejected
	}
	return nil
}

// No part of a rejected word is yielded, wherever its fragments are split.
func TestGuardHoldsBack(t *testing.T) {
	const said = "It is fine. The größte Secret! 3.14, yes. And 世界。more"
	before := map[string]string{"words": "It is fine. The größte ", "sentences": "It is fine. "}
	for name, whole := range map[string]func(string) int{"words": Words, "sentences": Sentences} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			for i := range len(said) + 1 {
				for j := i; j <= len(said); j++ {
					g := Guard{Engine: says(nil, said[:i], said[i:j], said[j:]), Whole: whole, Check: noSecrets}
					fragments, errs := all(g.Chat(t.Context(), nil))
					is.Equal(len(errs), 1)
					is.Equal(errs[0], error(errRejected))
					is.True(strings.HasPrefix(before[name], strings.Join(fragments, "")))
				}
			}
		})
	}
}

func TestGuardChangesNothing(t *testing.T) {
	is := is.New(t)
	const said = "It is fine.\nThe so-called 3.14, yes.  \u2003And 世界。more 👋🏽"
	for _, whole := range []func(string) int{Words, Sentences} {
		for size := 1; size <= len(said); size++ {
			var fragments []string
			for rest := said; rest != ""; rest = rest[min(size, len(rest)):] {
				fragments = append(fragments, rest[:min(size, len(rest))])
			}
			yielded, errs := all(Guard{Engine: says(nil, fragments...), Whole: whole, Check: noSecrets}.Chat(t.Context(), nil))
			is.Equal(len(errs), 0)
			is.Equal(strings.Join(yielded, ""), said)
		}
	}
}

func TestGuardAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		engine speaks
		body   string
		want   answer
	}{
		"before the first text":   {says(nil, "sec", "ret", " things"), stream, answer{403, "", `{"detail":"Not that"}`, false}},
		"after the first text":    {says(nil, "A sec", "ret"), stream, answer{200, "", "data: {\"content\":\"A \"}\n\nevent: error\ndata: {\"detail\":\"Not that\",\"status\":403}", true}},
		"a JSON response":         {says(nil, "A sec", "ret"), noStream, answer{403, "", `{"detail":"Not that"}`, false}},
		"an engine that fails":    {says(errBusy, "A sec"), stream, answer{200, "", "data: {\"content\":\"A \"}\n\nevent: error\ndata: {\"detail\":\"Busy\",\"status\":503,\"retry_after\":1}", true}},
		"one that does not stop":  {stubborn(errBusy, "secret ", "secret "), noStream, answer{403, "", `{"detail":"Not that"}`, false}},
		"one without white space": {says(nil, strings.Repeat("x", 3<<10), strings.Repeat("x", 3<<10)), noStream, answer{502, "", `{"detail":"The model failed"}`, false}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(serve(t, Guard{Engine: c.engine, Whole: Words, Check: noSecrets}).chat(t, c.body), c.want)
		})
	}
}

func TestWordsAndSentences(t *testing.T) {
	is := is.New(t)
	for text, want := range map[string][2]string{ // the prefix for Words, and for Sentences
		"":                      {"", ""},
		"One":                   {"", ""},
		"One. ":                 {"One. ", "One. "},
		"It is 3.14":            {"It is ", ""},
		"One? Two! Three":       {"One? Two! ", "One? Two! "},
		"One. Two three":        {"One. Two ", "One. "},
		"- one\n- two":          {"- one\n- ", "- one\n"},
		"世界。和平":                 {"", "世界。"},
		"One\u2003two":          {"One\u2003", ""},
		"Well… so \xe4\xb8":     {"Well… so ", "Well… "},
		"One.\xe4\xb8 \xe4\xb8": {"One.\xe4\xb8 ", ""},
	} {
		is.Equal(text[:Words(text)], want[0])
		is.Equal(text[:Sentences(text)], want[1])
	}
}

// When an answer is rejected, yield returns false to the engine.
func TestGuardStopsTheEngine(t *testing.T) {
	is := is.New(t)
	stopped := false
	engine := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		stopped = !yield("secret ", nil)
	})
	all(Guard{Engine: engine, Whole: Words, Check: noSecrets}.Chat(t.Context(), nil))
	is.True(stopped)
}

// If Check panics and the engine recovers, the answer ends with an error.
func TestGuardWhoseCheckPanics(t *testing.T) {
	is := is.New(t)
	recovering := speaks(func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		for _, text := range []string{"one ", "secret ", "two "} {
			func() {
				defer func() { _ = recover() }()
				yield(text, nil)
			}()
		}
	})
	fragments, errs := all(Guard{recovering, Words, func(_ context.Context, part string) error {
		if part == "secret " {
			panic("a bug")
		}
		return nil
	}}.Chat(t.Context(), nil))
	is.Equal(fragments, []string{"one "})
	is.Equal(len(errs), 1)
}

// A fragment does not cause a copy of all text that is held back.
func TestGuardCopiesLittle(t *testing.T) {
	is := is.New(t)
	bytes := strings.Split(strings.Repeat("x", 4000), "")
	for _, whole := range []func(string) int{Words, Sentences} {
		guard := Guard{says(nil, bytes...), whole, noSecrets}
		is.True(testing.AllocsPerRun(1, func() { all(guard.Chat(context.Background(), nil)) }) < 100)
	}
}

// A played chat calls the handler without a server, so that synctest controls the time.
type played struct {
	*httptest.ResponseRecorder
	disconnect context.CancelFunc
	done       chan bool
}

func play(handler http.Handler) played { return playAs(handler, "key") }

func playAs(handler http.Handler, key string) played {
	ctx, disconnect := context.WithCancel(context.Background())
	p := played{httptest.NewRecorder(), disconnect, make(chan bool)}
	go func() {
		defer close(p.done)
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler { // which aborts the connection
				panic(v)
			}
		}()
		r := request(ctx, "", noStream)
		r.Header.Set("Authorization", "Bearer "+key)
		handler.ServeHTTP(p, r)
	}()
	return p
}

// takes returns an engine that yields the number of its call after a pause.
func takes(pause time.Duration, calls *atomic.Int32) speaks {
	return func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		call := calls.Add(1)
		select {
		case <-ctx.Done():
			yield("", context.Cause(ctx))
		case <-time.After(pause):
			yield(fmt.Sprint(call), nil)
		}
	}
}

func TestLineIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var calls atomic.Int32
		handler := handlerOf(t, NewLine(takes(time.Minute, &calls), LineOptions{Waiting: 3, PerAccount: 3}))
		var chats []played
		for range 4 {
			chats = append(chats, play(handler))
			synctest.Wait()
		}
		is.Equal(calls.Load(), int32(1)) // one at a time
		one := play(handler)
		<-one.done
		is.Equal(one.Code, 503)
		is.Equal(one.Header().Get("Retry-After"), "2")
		is.Equal(one.Body.String(), `{"detail":"Too many chats are waiting"}`)
		chats[2].disconnect() // in the middle of the queue
		<-chats[2].done
		another := play(handler) // there is room for one more
		for i, c := range []played{chats[0], chats[1], chats[3], another} {
			<-c.done
			is.Equal(c.Body.String(), fmt.Sprintf(`{"content":"%d"}`, i+1))
		}
		is.Equal(calls.Load(), int32(4)) // not called for the client that disconnected
	})
}

func TestLineRunsSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var calls atomic.Int32
		began := time.Now()
		handler := handlerOf(t, NewLine(takes(time.Minute, &calls), LineOptions{AtOnce: 2, Waiting: 4}))
		chats := []played{play(handler), play(handler), play(handler), play(handler)}
		for _, c := range chats {
			<-c.done
			is.Equal(c.Code, 200)
		}
		is.Equal(time.Since(began), 2*time.Minute)
	})
}

func TestDisconnectFreesTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var calls atomic.Int32
		began := time.Now()
		handler := handlerOf(t, NewLine(takes(time.Minute, &calls), LineOptions{Waiting: 1}))
		first := play(handler)
		synctest.Wait()
		second := play(handler)
		synctest.Wait()
		first.disconnect()
		<-second.done
		<-first.done
		is.Equal(second.Body.String(), `{"content":"2"}`)
		is.Equal(time.Since(began), time.Minute)
	})
}

// The Stall timer runs while the engine runs, and restarts with each fragment. It does not
// count the wait in the queue.
func TestLineStall(t *testing.T) {
	for name, c := range map[string]struct {
		stall time.Duration
		want  string
	}{
		"fast enough": {61 * time.Second, `{"content":"abc"}`},
		"too slow":    {59 * time.Second, `{"detail":"The answer took too long"}`},
		"no limit":    {0, `{"content":"abc"}`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				slow := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
					for _, text := range []string{"a", "b", "c"} {
						select {
						case <-ctx.Done():
							yield("", ctx.Err())
							return
						case <-time.After(time.Minute):
						}
						if !yield(text, nil) {
							return
						}
					}
				})
				handler := handlerOf(t, NewLine(slow, LineOptions{Waiting: 1, Stall: c.stall}))
				for _, one := range []played{play(handler), play(handler)} {
					<-one.done
					is.Equal(one.Body.String(), c.want)
				}
			})
		})
	}
}

// Stall does not count the time that yield takes.
func TestLineCountsTheEngineOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		pauses := []time.Duration{time.Second, 59 * time.Second, 61 * time.Second}
		slower := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
			for _, pause := range pauses {
				time.Sleep(pause)
				if !yield(fmt.Sprint(pause), ctx.Err()) {
					return
				}
			}
		})
		var taken []string
		for text, err := range NewLine(slower, LineOptions{Stall: time.Minute}).Chat(t.Context(), nil) {
			if err != nil {
				is.Equal(err.(*botapi.StatusError).Status, 504)
				break
			}
			taken = append(taken, text)
			time.Sleep(time.Hour) // a slow client
		}
		is.Equal(taken, []string{"1s", "59s"})
	})
}

// If the engine ignores cancellation, the client gets the error when the engine returns or
// yields.
func TestLineWithoutCancellation(t *testing.T) {
	for name, late := range map[string]speaks{
		"yields later":  says(nil, "late"),
		"returns later": says(nil),
		"does not stop": stubborn(errBusy, "late"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				slow := speaks(func(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
					time.Sleep(time.Minute)
					late(ctx, req, yield)
				})
				one := play(handlerOf(t, NewLine(slow, LineOptions{Stall: time.Second})))
				<-one.done
				is.Equal(one.Code, 504)
			})
		})
	}
}

// An engine that never returns keeps its slot; ChatTimeout ends the chat.
func TestChatTimeoutInALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		free := make(chan bool)
		hung := speaks(func(context.Context, *botapi.ChatRequest, func(string, error) bool) { <-free })
		began := time.Now()
		line := NewLine(hung, LineOptions{Stall: time.Second})
		one := play(handlerOf(t, line, func(o *botapi.Options) { o.ChatTimeout = time.Minute }))
		<-one.done
		is.Equal(one.Code, 504)
		is.True(time.Since(began) < 2*time.Minute)
		is.Equal(line.free, int64(0))
		close(free)
	})
}

func TestLineOptions(t *testing.T) {
	is := is.New(t)
	_, errs := all(NewLine(says(nil, "Hi"), LineOptions{AtOnce: 2, Waiting: math.MaxInt64}).Chat(t.Context(), nil))
	is.Equal(len(errs), 0)
	for name, c := range map[string]struct {
		engine botapi.ChatEngine
		o      LineOptions
		want   string
	}{
		"no engine":   {nil, LineOptions{}, "line: engine is nil"},
		"at once":     {says(nil), LineOptions{AtOnce: -1}, "line: an option is negative"},
		"per account": {says(nil), LineOptions{PerAccount: -1}, "line: an option is negative"},
		"waiting":     {says(nil), LineOptions{Waiting: -1}, "line: an option is negative"},
		"retry after": {says(nil), LineOptions{RetryAfter: -1}, "line: an option is negative"},
		"stall":       {says(nil), LineOptions{Stall: -1}, "line: an option is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			defer func() { is.Equal(recover(), c.want) }()
			NewLine(c.engine, c.o)
		})
	}
}

// A chat that a full queue rejects goes to the next engine of a Fallback.
func TestFullLineFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var calls atomic.Int32
		own := NewLine(takes(time.Minute, &calls), LineOptions{})
		handler := handlerOf(t, Fallback{own, says(nil, "hosted")})
		first := play(handler)
		synctest.Wait()
		second := play(handler)
		<-second.done
		is.Equal(second.Body.String(), `{"content":"hosted"}`)
		<-first.done
		is.Equal(first.Body.String(), `{"content":"1"}`)
	})
}
