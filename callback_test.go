package botapi

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestCallbackEngineNil(t *testing.T) {
	is := is.New(t)
	defer func() { is.Equal(recover(), "botapi: CallbackEngine: the function is nil") }()
	CallbackEngine(nil)
	t.Error("CallbackEngine has returned")
}

// When the chat has ended, emit returns the reason. The error that the function makes of it
// is ignored.
func TestCallbackEngineEmitReturnsTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var emitted []error
		got := playChat(t, way{stream: true}, CallbackEngine(func(ctx context.Context, req *ChatRequest, emit func(string) error) error {
			emitted = append(emitted, emit("you said "+lastContent(req)))
			<-ctx.Done()
			emitted = append(emitted, emit("b"))
			return fmt.Errorf("streaming: %w", emit("c"))
		}), func(o *Options) { o.ChatTimeout = time.Second })
		is.Equal(got.body, data("you said hi")+errorEvent(504, tooLong))
		is.Equal(len(emitted), 2)
		is.NoErr(emitted[0])
		is.True(errors.Is(emitted[1], ErrChatTimeout))
		is.True(errors.Is(got.report(t).Err, ErrChatTimeout))
	})
}

// An engine may wrap another one, and take its fragments with a range statement, which
// panics if yield is called again after it has returned false. When the function has
// returned or panicked, emit does nothing but return an error.
func TestCallbackEngineWithinAnother(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  int // fragments, before the range statement breaks
		end    func() error
		yields []string
	}{
		{"to its end", 9, func() error { return nil }, []string{"a", "b"}},
		{"to its error", 9, func() error { return errBroken }, []string{"a", "b", "the model is broken"}},
		{"to a cancellation of its own", 9, func() error { return context.Canceled }, []string{"a", "b", "context canceled"}},
		{"to its panic", 9, func() error { panic(errBroken) }, []string{"a", "b", "panic: the model is broken"}},
		{"not to its end", 1, func() error { return nil }, []string{"a"}},
		{"not to its error", 1, func() error { return errBroken }, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var emitLater func(string) error
			engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
				emitLater = emit
				for _, text := range []string{"a", "b"} {
					is.Equal(emit(text) == nil, c.limit > 1)
				}
				return c.end()
			})
			var yields []string
			func() {
				defer func() {
					if v := recover(); v != nil {
						yields = append(yields, fmt.Sprint("panic: ", v))
					}
				}()
				for text, err := range engine.Chat(t.Context(), &ChatRequest{}) {
					if err != nil {
						text += err.Error()
					}
					if yields = append(yields, text); len(yields) == c.limit {
						break
					}
				}
			}()
			is.Equal(yields, c.yields)
			is.True(emitLater("too late") != nil)
		})
	}
}

// The engine waits for a call of emit that is in progress when the function returns.
func TestCallbackEngineEndsWithItsLastYield(t *testing.T) {
	is := is.New(t)
	yielding, yielded := make(chan struct{}), false
	engine := CallbackEngine(func(_ context.Context, _ *ChatRequest, emit func(string) error) error {
		go emit("a")
		<-yielding
		return nil
	})
	engine.Chat(t.Context(), &ChatRequest{})(func(string, error) bool {
		close(yielding)
		for range 1000 {
			runtime.Gosched()
		}
		yielded = true
		return true
	})
	is.True(yielded)
}
