package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// speaks is an engine by the body of its iterator.
type speaks func(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool)

func (s speaks) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { s(ctx, req, yield) }
}

// says yields fragments, and then the error if it is not nil.
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

// mustNotBeAsked is an engine that nobody may ask.
func mustNotBeAsked(t *testing.T) speaks {
	return func(context.Context, *botapi.ChatRequest, func(string, error) bool) { t.Error("it was asked") }
}

// stubborn goes on whatever it is told, as an engine may.
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
	errBusy    = &botapi.StatusError{Status: 503, Detail: "Busy", RetryAfter: time.Second}
	errRefused = &botapi.StatusError{Status: 403, Detail: "Not that"}
)

func TestFallback(t *testing.T) {
	second := says(nil, "second")
	for name, c := range map[string]struct {
		engines Fallback
		body    string
		want    answer
	}{
		"the first can":              {Fallback{says(nil, "first"), mustNotBeAsked(t)}, oneBody, answer{200, "", `{"content":"first"}`, false}},
		"the first says nothing":     {Fallback{says(nil), mustNotBeAsked(t)}, oneBody, answer{200, "", `{"content":""}`, false}},
		"the first is busy":          {Fallback{says(errBusy), second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"the first fails, somehow":   {Fallback{says(errors.New("boom")), second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"two fail":                   {Fallback{says(errBusy), says(errBusy), second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"an empty fragment first":    {Fallback{says(errBusy, "", ""), second}, stream, answer{200, "", "data: {\"content\":\"second\"}\n\ndata: [DONE]", false}},
		"all fail":                   {Fallback{says(errors.New("boom")), says(errBusy)}, oneBody, answer{503, "1", `{"detail":"Busy"}`, false}},
		"all fail, the last somehow": {Fallback{says(errBusy), says(errors.New("boom"))}, oneBody, answer{500, "", `{"detail":"Internal Server Error"}`, false}},
		"none":                       {nil, oneBody, answer{500, "", `{"detail":"Internal Server Error"}`, false}},
		"a mistake of the client's":  {Fallback{says(errRefused), mustNotBeAsked(t)}, oneBody, answer{403, "", `{"detail":"Not that"}`, false}},
		"another one":                {Fallback{says(&botapi.HTTPValidationError{}), mustNotBeAsked(t)}, oneBody, answer{422, "", `{"detail":[]}`, false}},
		"no such bot":                {Fallback{says(botapi.ErrBotNotFound), mustNotBeAsked(t)}, oneBody, answer{404, "", `{"detail":"Bot not found"}`, false}},
		"a key that is refused":      {Fallback{says(botapi.ErrInvalidKey), mustNotBeAsked(t)}, oneBody, answer{401, "", `{"detail":"Invalid API key"}`, false}},
		"a forgotten status":         {Fallback{says(&botapi.StatusError{Detail: "?"}), second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"no iterator":                {Fallback{noIterator, second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"after the first text":       {Fallback{says(errBusy, "Once"), mustNotBeAsked(t)}, stream, answer{200, "", "data: {\"content\":\"Once\"}\n\nevent: error\ndata: {\"detail\":\"Busy\"}", true}},
		"the first goes on and on":   {Fallback{stubborn(errBusy), second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"a guard's refusal":          {Fallback{Guard{says(nil, "secret"), Words, noSecrets}, mustNotBeAsked(t)}, oneBody, answer{403, "", `{"detail":"Not that"}`, false}},
		"a guard's plain error":      {Fallback{Guard{says(nil, "secret"), Words, func(context.Context, string) error { return errors.New("no") }}, second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
		"one inside another":         {Fallback{Fallback{says(errBusy), says(errBusy)}, second}, oneBody, answer{200, "", `{"content":"second"}`, false}},
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
	s.chat(t, oneBody)
	is.True(strings.Contains(log.String(), "bang (and before it: boom)"))
}

func TestFallbackGivesEachEngineTheSameRequest(t *testing.T) {
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

func TestFallbackEndsTheFirstBeforeTheNext(t *testing.T) {
	is := is.New(t)
	var first context.Context
	failing := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		first = ctx
		yield("", errBusy)
	})
	next := speaks(func(_ context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		yield(fmt.Sprint(first.Err()), nil)
	})
	is.Equal(serve(t, Fallback{failing, next}).chat(t, oneBody).body, `{"content":"context canceled"}`)
}

// What the first has counted is not the second's.
func TestFallbackForgetsTokens(t *testing.T) {
	is := is.New(t)
	counts := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		openai.UsageFrom(ctx).Report(openai.Tokens{Prompt: 7, Completion: 9})
		openai.UsageFrom(ctx).Finish("length")
		yield("", errBusy)
	})
	s := serve(t, Fallback{counts, says(nil, "second")})
	s.chat(t, oneBody)
	is.Equal(<-s.reports, report{})
	is.Equal(serve(t, Fallback{says(errBusy), counts}).chat(t, oneBody).status, 503)
}

func TestFallbackHandsAnAbortOn(t *testing.T) {
	is := is.New(t)
	_, errs := all(Fallback{says(http.ErrAbortHandler), mustNotBeAsked(t)}.Chat(t.Context(), new(botapi.ChatRequest)))
	is.Equal(errs, []error{http.ErrAbortHandler})
}

// tidy is an engine that cleans up when its context ends, and returns then.
func tidy(err error, fragments ...string) speaks {
	return func(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
		says(err, fragments...)(ctx, req, yield)
		<-ctx.Done()
	}
}

// What is over for a combinator is over for the engine in it, whoever asks.
func TestWhatIsOverIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		engine botapi.ChatEngine
		errs   int
	}{
		"fallback":                 {Fallback{tidy(errBusy), says(nil, "second")}, 0},
		"fallback, after its text": {Fallback{tidy(errBusy, "first"), says(nil, "second")}, 1},
		"guard":                    {Guard{tidy(errBusy), Words, noSecrets}, 1},
		"guard that refuses":       {Guard{tidy(nil, "secret "), Words, noSecrets}, 1},
		"line":                     {NewLine(tidy(errBusy), LineOptions{}), 1},
		"all":                      {Guard{Fallback{NewLine(tidy(errBusy), LineOptions{}), says(nil, "second")}, Words, noSecrets}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				ctx, giveUp := context.WithTimeout(t.Context(), time.Minute)
				defer giveUp()
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
			is.Equal(s.chat(t, oneBody).status, 500)
			is.True(strings.Contains((<-s.reports).err.Error(), "the engine returned no iterator"))
		})
	}
}

func TestFallbackForgetsWhoLeft(t *testing.T) {
	is := is.New(t)
	ctx, leave := context.WithCancelCause(t.Context())
	leaving := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		leave(botapi.ErrClientLeft)
		yield("", context.Cause(ctx))
	})
	_, errs := all(Fallback{leaving, mustNotBeAsked(t)}.Chat(ctx, new(botapi.ChatRequest)))
	is.Equal(len(errs), 1)
	is.True(errors.Is(errs[0], botapi.ErrClientLeft))
}

// all collects what an engine yields.
func all(answer iter.Seq2[string, error]) (pieces []string, errs []error) {
	for text, err := range answer {
		if err != nil {
			return pieces, append(errs, err)
		}
		pieces = append(pieces, text)
	}
	return pieces, nil
}

func TestByModel(t *testing.T) {
	is := is.New(t)
	other := says(nil, "other")
	is.Equal(serve(t, ByModel{"m1": says(nil, "m1"), "": other}).chat(t, oneBody).body, `{"content":"m1"}`)
	is.Equal(serve(t, ByModel{"m2": says(nil, "m2"), "": other}).chat(t, oneBody).body, `{"content":"other"}`)
	is.Equal(serve(t, ByModel{"m2": says(nil, "m2")}).chat(t, oneBody).status, 500)
}

// noSecrets refuses one word.
func noSecrets(_ context.Context, part string) error {
	if strings.Contains(strings.ToLower(part), "secret") {
		return errRefused
	}
	return nil
}

// A refused word never leaves, nor any piece of it, wherever it is cut.
func TestGuardHoldsBack(t *testing.T) {
	const said = "It is fine. The größte Secret! 3.14, yes. And 世界。more"
	before := map[string]string{"words": "It is fine. The größte ", "sentences": "It is fine. "}
	for name, whole := range map[string]func(string) int{"words": Words, "sentences": Sentences} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			for i := range len(said) + 1 {
				for j := i; j <= len(said); j++ {
					g := Guard{Engine: says(nil, said[:i], said[i:j], said[j:]), Whole: whole, Check: noSecrets}
					pieces, errs := all(g.Chat(t.Context(), nil))
					is.Equal(len(errs), 1)
					is.Equal(errs[0], error(errRefused))
					is.True(strings.HasPrefix(before[name], strings.Join(pieces, "")))
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
			pieces, errs := all(Guard{Engine: says(nil, fragments...), Whole: whole, Check: noSecrets}.Chat(t.Context(), nil))
			is.Equal(len(errs), 0)
			is.Equal(strings.Join(pieces, ""), said)
		}
	}
}

func TestGuardAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		engine speaks
		body   string
		want   answer
	}{
		"before anything has left": {says(nil, "sec", "ret", " things"), stream, answer{403, "", `{"detail":"Not that"}`, false}},
		"after something has left": {says(nil, "A sec", "ret"), stream, answer{200, "", "data: {\"content\":\"A \"}\n\nevent: error\ndata: {\"detail\":\"Not that\"}", true}},
		"in one body":              {says(nil, "A sec", "ret"), oneBody, answer{403, "", `{"detail":"Not that"}`, false}},
		"an engine that fails":     {says(errBusy, "A sec"), stream, answer{200, "", "data: {\"content\":\"A \"}\n\nevent: error\ndata: {\"detail\":\"Busy\"}", true}},
		"one that goes on":         {stubborn(errBusy, "secret ", "secret "), oneBody, answer{403, "", `{"detail":"Not that"}`, false}},
		"one without white space":  {says(nil, strings.Repeat("x", 3<<10), strings.Repeat("x", 3<<10)), oneBody, answer{502, "", `{"detail":"The model failed"}`, false}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(serve(t, Guard{Engine: c.engine, Whole: Words, Check: noSecrets}).chat(t, c.body), c.want)
		})
	}
}

func TestWhatIsWhole(t *testing.T) {
	is := is.New(t)
	for text, want := range map[string][2]string{ // in words, in sentences
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

// A refused answer ends the engine at once: its context is over.
func TestGuardStopsTheEngine(t *testing.T) {
	is := is.New(t)
	stopped := false
	engine := speaks(func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		stopped = !yield("secret ", nil)
	})
	all(Guard{Engine: engine, Whole: Words, Check: noSecrets}.Chat(t.Context(), nil))
	is.True(stopped)
}

// A check that panics below an engine that recovers leaves no half of an answer for a whole.
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
	pieces, errs := all(Guard{recovering, Words, func(_ context.Context, part string) error {
		if part == "secret " {
			panic("a bug")
		}
		return nil
	}}.Chat(t.Context(), nil))
	is.Equal(pieces, []string{"one "})
	is.Equal(len(errs), 1)
}

// Fragments of one byte are not copied with all that is held, each time.
func TestGuardCopiesLittle(t *testing.T) {
	is := is.New(t)
	bytes := strings.Split(strings.Repeat("x", 4000), "")
	for _, whole := range []func(string) int{Words, Sentences} {
		guard := Guard{says(nil, bytes...), whole, noSecrets}
		is.True(testing.AllocsPerRun(1, func() { all(guard.Chat(context.Background(), nil)) }) < 100)
	}
}

// A played chat is one whose client is in the test's bubble.
type played struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
	done  chan bool
}

func play(handler http.Handler) played {
	ctx, leave := context.WithCancel(context.Background())
	p := played{httptest.NewRecorder(), leave, make(chan bool)}
	go func() {
		defer close(p.done)
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler { // with which a handler cuts the connection
				panic(v)
			}
		}()
		handler.ServeHTTP(p, request(ctx, "", oneBody))
	}()
	return p
}

// takes is an engine that takes its time, and counts.
func takes(pause time.Duration, turns *atomic.Int32) speaks {
	return func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		turn := turns.Add(1)
		select {
		case <-ctx.Done():
			yield("", context.Cause(ctx))
		case <-time.After(pause):
			yield(fmt.Sprint(turn), nil)
		}
	}
}

func TestLineIsFirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var turns atomic.Int32
		handler := handlerOf(t, NewLine(takes(time.Minute, &turns), LineOptions{Waiting: 3}))
		var chats []played
		for range 4 {
			chats = append(chats, play(handler))
			synctest.Wait()
		}
		is.Equal(turns.Load(), int32(1)) // one at once
		one := play(handler)
		<-one.done
		is.Equal(one.Code, 503)
		is.Equal(one.Header().Get("Retry-After"), "2")
		is.Equal(one.Body.String(), `{"detail":"Too many chats are waiting"}`)
		chats[2].leave() // from the middle of the line
		<-chats[2].done
		another := play(handler) // so there is room for one
		for i, c := range []played{chats[0], chats[1], chats[3], another} {
			<-c.done
			is.Equal(c.Body.String(), fmt.Sprintf(`{"content":"%d"}`, i+1))
		}
		is.Equal(turns.Load(), int32(4)) // who left was never served
	})
}

func TestLineServesSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var turns atomic.Int32
		began := time.Now()
		handler := handlerOf(t, NewLine(takes(time.Minute, &turns), LineOptions{AtOnce: 2, Waiting: 2}))
		chats := []played{play(handler), play(handler), play(handler), play(handler)}
		for _, c := range chats {
			<-c.done
			is.Equal(c.Code, 200)
		}
		is.Equal(time.Since(began), 2*time.Minute)
	})
}

func TestWhoeverLeavesGivesTheTurnBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var turns atomic.Int32
		began := time.Now()
		handler := handlerOf(t, NewLine(takes(time.Minute, &turns), LineOptions{Waiting: 1}))
		first := play(handler)
		synctest.Wait()
		second := play(handler)
		synctest.Wait()
		first.leave()
		<-second.done
		<-first.done
		is.Equal(second.Body.String(), `{"content":"2"}`)
		is.Equal(time.Since(began), time.Minute)
	})
}

// The line's clock runs while the engine has its turn, and starts again with each
// fragment that has been taken. The wait in line is not on it.
func TestLineHasItsOwnClock(t *testing.T) {
	for name, c := range map[string]struct {
		stall time.Duration
		want  string
	}{
		"fast enough": {61 * time.Second, `{"content":"abc"}`},
		"too slow":    {59 * time.Second, `{"detail":"The answer took too long"}`},
		"no clock":    {0, `{"content":"abc"}`},
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

// How long a fragment takes to be taken is not the engine's time; each next one is.
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

// An engine that ignores the end of its context is answered for when it comes back.
func TestLineBehindADeafEngine(t *testing.T) {
	for name, late := range map[string]speaks{
		"that speaks at last": says(nil, "late"),
		"that says nothing":   says(nil),
		"that goes on and on": stubborn(errBusy, "late"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				deaf := speaks(func(ctx context.Context, req *botapi.ChatRequest, yield func(string, error) bool) {
					time.Sleep(time.Minute)
					late(ctx, req, yield)
				})
				one := play(handlerOf(t, NewLine(deaf, LineOptions{Stall: time.Second})))
				<-one.done
				is.Equal(one.Code, 504)
			})
		})
	}
}

// An engine that never comes back is answered for by botapi's own clocks, and keeps its turn.
func TestChatTimeoutIsBehindTheLine(t *testing.T) {
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
		is.True(!line.turn.TryAcquire(1))
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
		"no engine":   {nil, LineOptions{}, "line: there is no engine behind it"},
		"at once":     {says(nil), LineOptions{AtOnce: -1}, "line: an option is below zero"},
		"waiting":     {says(nil), LineOptions{Waiting: -1}, "line: an option is below zero"},
		"retry after": {says(nil), LineOptions{RetryAfter: -1}, "line: an option is below zero"},
		"stall":       {says(nil), LineOptions{Stall: -1}, "line: an option is below zero"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			defer func() { is.Equal(recover(), c.want) }()
			NewLine(c.engine, c.o)
		})
	}
}

// Who fails in line may be served elsewhere.
func TestFullLineFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var turns atomic.Int32
		own := NewLine(takes(time.Minute, &turns), LineOptions{})
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
