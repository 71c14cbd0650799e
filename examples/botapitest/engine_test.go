package botapitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

const story = "Once upon a time, in Zürich, 三 frogs said: 👋🏽 and jumped into the well. "

// wordsOf yields a text word by word, as a good engine does.
func wordsOf(text string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for word := range strings.SplitAfterSeq(text, " ") {
			if !yield(word, nil) {
				return
			}
		}
	}
}

type seq = iter.Seq2[string, error]

// engineThat makes an engine of a function from the request's text to an answer.
func engineThat(f func(ctx context.Context, req *botapi.ChatRequest) seq) Engine {
	return Engine{Engine: botapi.ChatEngineFunc(f)}
}

func tellStory(context.Context, *botapi.ChatRequest) seq { return wordsOf(story) }

// ignoresFalse yields its whole text, whatever yield returns.
func ignoresFalse(context.Context, *botapi.ChatRequest) seq {
	return func(yield func(string, error) bool) {
		for word := range strings.SplitAfterSeq(story, " ") {
			yield(word, nil)
		}
	}
}

// pause waits for a model.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func hangingEngine(ctx context.Context, _ *botapi.ChatRequest) seq {
	return func(yield func(string, error) bool) {
		<-ctx.Done()
		yield("", ctx.Err())
	}
}

func endlessEngine(context.Context, *botapi.ChatRequest) seq {
	return func(yield func(string, error) bool) {
		for yield(story, nil) {
		}
	}
}

func failingEngine(errs ...error) botapi.ChatEngineFunc {
	return func(context.Context, *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			if yield("Once ", nil) {
				for _, err := range errs {
					yield("", err)
				}
			}
		}
	}
}

// oneAtATime makes an engine with a lock around each answer to some requests.
func oneAtATime(locks func(*botapi.ChatRequest) bool) Engine {
	var mu sync.Mutex
	return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			if locks(req) {
				mu.Lock()
				defer mu.Unlock()
			}
			wordsOf(story)(yield)
		}
	})
}

// A brokenEngine has the one subtest that must fail, and what it must say.
type brokenEngine struct {
	name            string
	broken          func() Engine
	subtest, phrase string
}

var brokenEngines = []brokenEngine{
	{"returns without its model", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Hanging: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(func(string, error) bool) {
				answer := make(chan string)
				go func() {
					time.Sleep(3 * brokenLimit) // the model
					close(answer)
				}()
				select {
				case <-answer:
				case <-ctx.Done():
				}
			}
		})}
	}, "Hanging", "10 chats have left "},
	{"leaves a goroutine when it is stopped", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				words := make(chan string)
				go func() {
					defer close(words)
					for word := range strings.SplitAfterSeq(story, " ") {
						words <- word
					}
				}()
				for word := range words {
					if !yield(word, nil) {
						return
					}
				}
			}
		})
	}, "YieldFalse", "left 10 goroutines"},
	{"leaves a goroutine when its model fails", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				end := make(chan error)
				go func() { end <- errBackend }()
				yield("", errBackend)
			}
		})}
	}, "Failing", "left 10 goroutines"},
	{"has no JSON response", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if !req.Stream {
				return nil
			}
			return wordsOf(story)
		})
	}, "Answer", "came back:  a nil iterator"},
	{"keeps a lock after an empty message", func() Engine {
		var isLocked atomic.Bool
		return engineThat(func(ctx context.Context, req *botapi.ChatRequest) seq {
			if isLocked.Load() {
				return hangingEngine(ctx, req)
			}
			isLocked.Store(req.Messages[len(req.Messages)-1].Content == "")
			return wordsOf(story)
		})
	}, "Requests", "has kept a lock or a connection"},
	{"panics for a JSON response", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if !req.Stream {
				panic("no stream")
			}
			return wordsOf(story)
		})
	}, "Answer", "count as errors.\"\ncalled:     Chat(ctx, req), with req.Stream false\ncame back:  0 fragments, and a panic: no stream"},
	{"fails for a JSON response", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if !req.Stream {
				return func(yield func(string, error) bool) { yield("", errBackend) }
			}
			return wordsOf(story)
		})
	}, "Answer", "the client: got the status 500"},
	{"returns some time after its error", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if !req.Stream {
				return func(yield func(string, error) bool) {
					yield("", errBackend)
					time.Sleep(50 * time.Millisecond)
				}
			}
			return wordsOf(story)
		})
	}, "Answer", "A non-nil error ends the answer"},
	{"loses its last fragment in a JSON response", func() Engine {
		e := engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if !req.Stream {
				return wordsOf(story[:len(story)-6])
			}
			return wordsOf(story)
		})
		e.Answer = story
		return e
	}, "Answer", "fragments are lost, repeated or in another order"},
	{"yields from a goroutine that it does not wait for", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				stopped := false
				for word := range wordsOf(story) {
					if stopped = !yield(word, nil); stopped {
						return
					}
				}
				go func() {
					time.Sleep(20 * time.Millisecond)
					yield("The end.", nil)
				}()
			}
		})
	}, "Yield", "calls of yield after the iterator had returned"},
	{"yields from two goroutines", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				var both sync.WaitGroup
				var stopped atomic.Bool
				for i := range 2 {
					both.Go(func() {
						time.Sleep(time.Duration(i) * 500 * time.Microsecond)
						for range 5 {
							if stopped.Load() || !yield("la ", nil) {
								stopped.Store(true)
								return
							}
							time.Sleep(time.Millisecond)
						}
					})
				}
				both.Wait()
			}
		})
	}, "Yield", "a call of yield during another one"},
	{"repairs each fragment by itself", func() Engine {
		return engineThat(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				for rest := story; rest != ""; {
					n := min(len(rest), 7)
					if !yield(strings.ToValidUTF8(rest[:n], "\ufffd"), nil) {
						return
					}
					rest = rest[n:]
				}
			}
		})
	}, "Characters", "if it is a part of the answer, set Engine.Answer"},
	{"cuts a character off", func() Engine {
		return engineThat(func(context.Context, *botapi.ChatRequest) seq {
			return wordsOf(story[:len("Once upon a time, in Z\xc3")])
		})
	}, "Characters", "bytes are cut off"},
	{"ignores what yield returns", func() Engine { return engineThat(ignoresFalse) }, "YieldFalse", "another call of yield"},
	{"yields an error after false", func() Engine {
		return engineThat(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				for word := range strings.SplitAfterSeq(story, " ") {
					if !yield(word, nil) {
						yield("", errors.New("the client has disconnected"))
						return
					}
				}
			}
		})
	}, "YieldFalse", "an error neither"},
	{"reads its model to the end after false", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				for word := range strings.SplitAfterSeq(story, " ") {
					if !yield(word, nil) {
						_ = pause(ctx, promptly+100*time.Millisecond)
						return
					}
				}
			}
		})
	}, "YieldFalse", "returned later than 500ms"},
	{"goes on after false until its context ends", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				for word := range strings.SplitAfterSeq(story, " ") {
					if !yield(word, nil) {
						<-ctx.Done()
						return
					}
				}
			}
		})
	}, "YieldFalse", "the iterator has not returned"},
	{"does not watch its context before the first fragment", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				if ctx.Err() == nil {
					time.Sleep(promptly + 100*time.Millisecond)
					wordsOf(story)(yield)
				}
			}
		})
	}, "Cancellation", "whose client disconnects before the first fragment"},
	{"does not watch its context between fragments", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				if ctx.Err() != nil || pause(ctx, 20*time.Millisecond) != nil || !yield("Once ", nil) {
					return
				}
				time.Sleep(promptly + 100*time.Millisecond)
				yield("upon a time", nil)
			}
		})
	}, "Cancellation", "whose client disconnects after the first fragment"},
	{"does not watch its context for a JSON response", func() Engine {
		return engineThat(func(ctx context.Context, req *botapi.ChatRequest) seq {
			if !req.Stream {
				ctx = context.WithoutCancel(ctx)
			}
			return func(yield func(string, error) bool) {
				if pause(ctx, promptly+100*time.Millisecond) == nil {
					wordsOf(story)(yield)
				}
			}
		})
	}, "Cancellation", "with req.Stream false, with a context cancelled before the call"},
	{"never returns when its context was cancelled", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			if ctx.Err() != nil {
				return func(func(string, error) bool) { time.Sleep(5 * brokenLimit) }
			}
			return wordsOf(story)
		})
	}, "Cancellation", "with a context cancelled before the call"},
	{"yields with a typed nil error", func() Engine {
		return engineThat(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				for word := range strings.SplitAfterSeq(story, " ") {
					if !yield(word, nilWrong()) {
						return
					}
				}
			}
		})
	}, "NilErrors", "*botapitest.wrong(nil), which is not nil"},
	{"drops fragments that its client does not read", func() Engine {
		return engineThat(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				words := make(chan string, 4)
				go func() {
					defer close(words)
					for word := range strings.SplitAfterSeq(story, " ") {
						if pause(ctx, 3*time.Millisecond) != nil {
							return
						}
						select {
						case words <- word:
						default:
						}
					}
				}()
				for word := range words {
					if !yield(word, nil) {
						return
					}
				}
			}
		})
	}, "SlowClient", "text is dropped"},
	{"times out while its client reads", func() Engine {
		return engineThat(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				began := time.Now()
				for word := range strings.SplitAfterSeq(story, " ") {
					if time.Since(began) > 250*time.Millisecond {
						yield("", context.DeadlineExceeded)
						return
					}
					if !yield(word, nil) {
						return
					}
				}
			}
		})
	}, "SlowClient", "a timeout counts the time in yield"},
	{"has one chat at a time", func() Engine { return oneAtATime(func(*botapi.ChatRequest) bool { return true }) },
		"SlowClient", "with req.Stream true, while a chat of another client is in yield"},
	{"has one JSON response at a time", func() Engine { return oneAtATime(func(req *botapi.ChatRequest) bool { return !req.Stream }) },
		"SlowClient", "with req.Stream false, while a chat of another client is in yield"},
	{"expects the user's message at the end", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if last := req.Messages[len(req.Messages)-1]; last.Role != botapi.RoleUser {
				return func(yield func(string, error) bool) { yield("", errors.New("the runtime says 400")) }
			}
			return wordsOf(story)
		})
	}, "Requests", "whose only message is the system's"},
	{"expects text", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			_ = req.Messages[len(req.Messages)-1].Content[0]
			return wordsOf(story)
		})
	}, "Requests", "whose last message is empty"},
	{"fails for fields that it does not know", func() Engine {
		return engineThat(func(_ context.Context, req *botapi.ChatRequest) seq {
			if req.Extra != nil {
				return func(yield func(string, error) bool) { yield("", errors.New("unknown field")) }
			}
			return wordsOf(story)
		})
	}, "Requests", "with a field of its own in the body"},
	{"shares a buffer between chats", func() Engine {
		var mu sync.Mutex
		var buffer strings.Builder
		running := 0
		return engineThat(func(ctx context.Context, req *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				mu.Lock()
				if running++; running == 1 {
					buffer.Reset()
				}
				mu.Unlock()
				for word := range strings.SplitAfterSeq(story, " ") {
					mu.Lock()
					buffer.WriteString(word)
					mu.Unlock()
					if pause(ctx, time.Millisecond) != nil {
						break
					}
				}
				mu.Lock()
				text := buffer.String()
				running--
				mu.Unlock()
				if ctx.Err() == nil {
					yield(text, nil)
				}
			}
		})
	}, "Concurrency", "chats share a buffer"},
	{"drops the error of its model", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine()}
	}, "Failing", "clients take an incomplete answer for a complete one"},
	{"goes on after an error", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine(errBackend, errBackend)}
	}, "Failing", "1 calls of yield after an error"},
	{"goes on some time after an error", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				yield("", errBackend)
				time.Sleep(50 * time.Millisecond)
				yield("The end.", nil)
			}
		})}
	}, "Failing", "1 calls of yield after an error"},
	{"does not return after an error", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				yield("", errBackend)
				time.Sleep(3 * brokenLimit)
			}
		})}
	}, "Failing", "and the error \"the backend is down\""},
	{"yields text beside an error", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) { yield("the last words", errBackend) }
		})}
	}, "Failing", "an error with 14 bytes of text beside it"},
	{"blames the key of its client for its own", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine(fmt.Errorf("model: %w", botapi.ErrInvalidKey))}
	}, "Failing", "the model's server has rejected the application's key"},
	{"responds with 401 for a key of its own", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine(botapi.StatusError{Status: 401})}
	}, "Failing", "the model's server has rejected the application's key"},
	{"takes an unknown model for an unknown bot", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine(botapi.ErrBotNotFound)}
	}, "Failing", "the model's server does not know the model"},
	{"finds an invalid request without a problem", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine(botapi.HTTPValidationError{})}
	}, "Failing", "is taken for a mistake of the client"},
	{"quotes its request in an error", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) { yield("", fmt.Errorf("POST %+v: %w", req.Messages, errBackend)) }
		})}
	}, "Failing", "an error with the text of a message"},
	{"fails without a status", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Failing: failingEngine(&botapi.StatusError{Detail: "The model is busy"})}
	}, "Failing", "a StatusError with the status 0"},
	{"does not watch its context while the model hangs", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Hanging: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) seq {
			return func(func(string, error) bool) { time.Sleep(4 * brokenLimit) }
		})}
	}, "Hanging", "nothing: the iterator has not returned"},
	{"collects what its client does not read", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Endless: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
			return func(yield func(string, error) bool) {
				var mu sync.Mutex
				var collected []string
				var model sync.WaitGroup
				defer model.Wait()
				model.Go(func() {
					for ctx.Err() == nil {
						mu.Lock()
						collected = append(collected, strings.Repeat("word ", 10_000))
						mu.Unlock()
						time.Sleep(100 * time.Microsecond)
					}
				})
				for ctx.Err() == nil {
					mu.Lock()
					text := strings.Join(collected[:min(len(collected), 1)], "")
					mu.Unlock()
					if !yield(text, nil) {
						return
					}
				}
			}
		})}
	}, "Endless", "a goroutine collects what the model generates"},
	{"yields when it has the whole answer", func() Engine {
		return Engine{Engine: botapi.ChatEngineFunc(tellStory), Endless: botapi.ChatEngineFunc(hangingEngine)}
	}, "Endless", "the engine collects the answer before it yields"},
	{"reports no tokens", func() Engine {
		return counting(func(*tokens) {})
	}, "Tokens", "no token counts"},
	{"adds the tokens of all chats", func() Engine {
		var all tokens
		return counting(func(own *tokens) {
			own.prompt.Store(all.prompt.Add(1))
			own.completion.Store(all.completion.Add(15))
		})
	}, "Tokens", "chats share a counter"},
}

// isMeasured reports whether the subtest measures the process. Hanging does only if engines return.
func (e brokenEngine) isMeasured() bool {
	return e.subtest == "Endless" || strings.Contains(e.phrase, " chats have left ")
}

func (e brokenEngine) mustFail(t *testing.T) {
	t.Helper()
	mustFail(t, engineChecks(t, e.broken(), brokenLimit), e.subtest, e.phrase)
}

// TestBrokenEnginesAlone is not parallel to others, and the first, since these leave goroutines for a
// while.
func TestBrokenEnginesAlone(t *testing.T) {
	for _, e := range brokenEngines {
		if e.isMeasured() {
			t.Run(e.name, e.mustFail)
		}
	}
}

// TestSmallFragmentsPileUp has engines that go on reading from their model while yield blocks. Its
// fragments are so small that they pile up slowly. It is not parallel to others, as it measures memory.
func TestSmallFragmentsPileUp(t *testing.T) {
	model := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		for s.Raw(`{"content":"word "}` + "\n") {
		}
	})
	check := func(endless botapi.ChatEngine) []problem {
		for _, c := range engineChecks(t, Engine{Engine: botapi.ChatEngineFunc(tellStory), Endless: endless}, patience) {
			if c.name == "Endless" {
				return c.run()
			}
		}
		panic("there is no such check")
	}
	t.Run("collected", func(t *testing.T) {
		is := is.New(t)
		var collected []string
		found := check(readingOn(model.URL, func(fragment string) { collected = append(collected, fragment) }))
		t.Log(len(collected), "fragments", found)
		is.Equal(len(found), 1)
		is.True(strings.Contains(found[0].String(), "a goroutine collects what the model generates"))
	})
	t.Run("counted", func(t *testing.T) { // so the process goes on allocating, and keeps nothing
		is := is.New(t)
		length := 0
		found := check(readingOn(model.URL, func(fragment string) { length += len(fragment) }))
		t.Log(length, "bytes")
		is.Equal(found, nil)
	})
}

// readingOn is an engine that calls take for each fragment, in a goroutine, while its first yield
// blocks.
func readingOn(url string, take func(fragment string)) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			request, err := http.NewRequestWithContext(ctx, "POST", url+"/chat/completions", strings.NewReader("{}"))
			if err != nil {
				yield("", err)
				return
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				yield("", err)
				return
			}
			var reading sync.WaitGroup
			reading.Go(func() {
				var fragment struct{ Content string }
				for d := json.NewDecoder(response.Body); d.Decode(&fragment) == nil; {
					take(fragment.Content)
				}
			})
			yield("word ", nil)
			response.Body.Close()
			reading.Wait()
		}
	})
}

func TestBrokenEngines(t *testing.T) {
	t.Parallel()
	for _, e := range brokenEngines {
		if !e.isMeasured() {
			t.Run(e.name, func(t *testing.T) {
				t.Parallel() // it mostly waits
				e.mustFail(t)
			})
		}
	}
}

// tokens are what an engine reports of a chat, in the context.
// OnChat may read them while the engine has not returned.
type tokens struct{ prompt, completion atomic.Int64 }

type tokensKey struct{}

func withTokens(ctx context.Context) context.Context {
	return context.WithValue(ctx, tokensKey{}, new(tokens))
}

func tokensOf(ctx context.Context) (prompt, completion int64, reported bool) {
	counted := ctx.Value(tokensKey{}).(*tokens)
	prompt, completion = counted.prompt.Load(), counted.completion.Load()
	return prompt, completion, prompt+completion > 0
}

// counting is an engine that reports tokens.
func counting(report func(*tokens)) Engine {
	return Engine{Context: withTokens, Tokens: tokensOf, Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			wordsOf(story)(yield)
			report(ctx.Value(tokensKey{}).(*tokens))
		}
	})}
}

func TestGoodEngines(t *testing.T) {
	called := botapi.CallbackEngine(func(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
		for word := range strings.SplitAfterSeq(story, " ") {
			if err := emit(word); err != nil {
				return fmt.Errorf("telling a story: %w", err)
			}
		}
		return nil
	})
	concurrent := botapi.CallbackEngine(func(_ context.Context, _ *botapi.ChatRequest, emit func(string) error) error {
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				for range 5 {
					if emit("la ") != nil {
						return
					}
				}
			})
		}
		both.Wait()
		return nil
	})
	bytewise := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			for i := range len(story) {
				if !yield("", nil) || !yield(story[i:i+1], nil) {
					return
				}
			}
		}
	})
	channelled := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) seq {
		return func(yield func(string, error) bool) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			words := make(chan string, 16)
			go func() {
				defer close(words)
				for {
					select {
					case words <- story:
					case <-ctx.Done():
						return
					}
				}
			}()
			for word := range words {
				if !yield(word, nil) {
					return
				}
			}
		}
	})
	var kept []*botapi.ChatRequest
	var keeping sync.Mutex
	keeper := botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) seq {
		keeping.Lock()
		defer keeping.Unlock()
		kept = append(kept, req)
		for _, earlier := range kept { // each is its own
			earlier.Messages[0].Content, earlier.Bot, earlier.Extra = "changed", botapi.Bot{}, nil
			earlier.Messages = append(earlier.Messages, botapi.ChatMessage{})
		}
		return wordsOf(story)
	})
	counts := counting(func(own *tokens) {
		own.prompt.Store(1)
		own.completion.Store(15)
	})
	counts.Answer = story
	for name, e := range map[string]Engine{
		"ChatEngineFunc": {Engine: botapi.ChatEngineFunc(tellStory), Answer: story, Failing: failingEngine(errBackend),
			Hanging: botapi.ChatEngineFunc(hangingEngine), Endless: botapi.ChatEngineFunc(endlessEngine)},
		"CallbackEngine":     {Engine: called, Answer: story},
		"one at a time":      {Engine: oneAtATime(func(*botapi.ChatRequest) bool { return true }).Engine, OneAtATime: true},
		"concurrent emit":    {Engine: concurrent, Answer: strings.Repeat("la ", 10), Endless: channelled},
		"byte by byte":       {Engine: bytewise, Answer: story, Request: botapi.ChatRequest{Bot: twoBots[1], UserID: "someone"}},
		"keeps requests":     {Engine: keeper, Answer: story},
		"tokens":             counts,
		"echo":               {Engine: botapi.ChatEngineFunc(echo), Request: botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: story}}}, Answer: story},
		"rejects some forms": {Engine: botapi.ChatEngineFunc(particular), Failing: failingEngine(&botapi.StatusError{Status: 503})},
	} {
		t.Run(name, func(t *testing.T) {
			if e.Hanging == nil && e.Endless == nil { // which measure the process
				t.Parallel()
			}
			TestEngine(t, e)
		})
	}
}

// particular answers only users.
func particular(_ context.Context, req *botapi.ChatRequest) seq {
	if req.Messages[len(req.Messages)-1].Role == botapi.RoleUser {
		return wordsOf(story)
	}
	return func(yield func(string, error) bool) {
		yield("", botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", "messages"}, Msg: "the last must be the user's", Type: "value_error"}}})
	}
}
