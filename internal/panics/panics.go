// Package panics turns panics of application code into errors.
package panics

import (
	"fmt"
	"net/http"
	"runtime/debug"
)

// An Error is a recovered panic. It does not unwrap to the value: a panic with an error that
// would choose a response is a panic all the same. Only http.ErrAbortHandler is matched.
type Error struct {
	Stack []byte

	value any
	text  string
}

// Recovered makes an *Error of what recover returned. Call it in the deferred function: the
// stack still shows where the panic began.
func Recovered(doing string, value any) (err error) {
	p := &Error{Stack: debug.Stack(), value: value, text: "panic while " + doing}
	err = p
	defer func() { _ = recover() }() // from a method of the value
	p.text += fmt.Sprintf(": %v", value)
	return err
}

// Catch returns the error of call, or its panic.
func Catch(doing string, call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = Recovered(doing, v)
		}
	}()
	return call()
}

func (e *Error) Error() string { return e.text }

// Is matches http.ErrAbortHandler, if that was the value.
func (e *Error) Is(target error) bool {
	return target == http.ErrAbortHandler && e.value == any(target)
}
