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

// emit says that nothing more is wanted, and why. What a function makes of that
// is no failure of its own.
func TestCallbackEngineIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var emitted []error
		got := playChat(t, way{stream: true}, CallbackEngine(func(ctx context.Context, req *ChatRequest, emit func(string) error) error {
			emitted = append(emitted, emit("you said "+lastContent(req)))
			<-ctx.Done()
			emitted = append(emitted, emit("b"))
			return fmt.Errorf("streaming: %w", emit("c"))
		}), func(o *Options) { o.ChatTimeout = time.Second })
		is.Equal(got.body, data("you said hi")+broken(tooLong))
		is.Equal(len(emitted), 2)
		is.NoErr(emitted[0])
		is.True(errors.Is(emitted[1], ErrChatTimeout))
		is.True(errors.Is(got.report(t).Err, ErrChatTimeout))
	})
}

// An engine may be made of another one. Then a range statement takes the
// fragments, which panics if its body is called once too often. A function that
// has returned, or panicked, is over: what it still emits comes to nothing.
func TestCallbackEngineWithinAnother(t *testing.T) {
	for _, c := range []struct {
		name   string
		wanted int // fragments
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
					is.Equal(emit(text) == nil, c.wanted > 1)
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
					if yields = append(yields, text); len(yields) == c.wanted {
						break
					}
				}
			}()
			is.Equal(yields, c.yields)
			is.True(emitLater("too late") != nil)
		})
	}
}

// What still emits when the function of an engine returns is waited for: the
// engine is not over before.
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
