package panics

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// A trap panics when it is asked for its text.
type trap struct{}

func (trap) Error() string { panic(trap{}) }

func TestCatch(t *testing.T) {
	failure := errors.New("failed")
	for name, c := range map[string]struct {
		call  func() error
		want  string // the text; "": there is no error
		abort bool
	}{
		"nothing":             {func() error { return nil }, "", false},
		"an error":            {func() error { return failure }, "failed", false},
		"a text":              {func() error { panic("a bug") }, "panic while testing: a bug", false},
		"an error as a value": {func() error { panic(failure) }, "panic while testing: failed", false},
		"nil":                 {func() error { panic(nil) }, "panic while testing: panic called with nil argument", false},
		"what has no text":    {func() error { panic(trap{}) }, "panic while testing", false},
		"the runtime's":       {func() error { _ = []int(nil)[len(failure.Error())]; return nil }, "panic while testing: runtime error: index out of range [6] with length 0", false},
		"an abort":            {func() error { panic(http.ErrAbortHandler) }, "panic while testing: net/http: abort Handler", true},
		"a wrapped abort":     {func() error { panic(fmt.Errorf("proxy: %w", http.ErrAbortHandler)) }, "panic while testing: proxy: net/http: abort Handler", false},
		"no comparable value": {func() error { panic([]string{"a"}) }, "panic while testing: [a]", false},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			err := Catch("testing", c.call)
			if c.want == "" {
				is.NoErr(err)
				return
			}
			is.True(strings.HasPrefix(err.Error(), c.want))
			is.Equal(errors.Is(err, http.ErrAbortHandler), c.abort)
			p, panicked := errors.AsType[*Error](fmt.Errorf("wrapped: %w", err))
			is.Equal(panicked, name != "an error")
			if panicked {
				is.True(strings.Contains(string(p.Stack), "TestCatch.func")) // where the panic began
				is.True(!errors.Is(err, failure))                            // a panic's value is nobody's answer
			}
		})
	}
}
