// Package jsonbody reads the JSON body of a chat in one pass, for routes that speak another
// protocol than botapi's own. It stops at the first error, and keeps nothing that it is not
// asked for: a body of many small values takes no more memory than its bytes.
//
//	var request botapi.ChatRequest
//	body := jsonbody.New(text)
//	err := body.Object(func(name string) error {
//		switch name {
//		case "messages":
//			return body.Array(func(i int) error { ... })
//		case "stream":
//			request.Stream = body.Value().Text == "true"
//		}
//		return nil // whatever was not read is skipped
//	})
//	if err == nil {
//		err = body.End()
//	}
package jsonbody

import (
	"cmp"
	"encoding/json"
	"strings"

	"example.com/botapi/internal/jsonscan"
)

// A Kind is the kind of a value.
type Kind = jsonscan.Kind

// Kinds of values. Integer is a number without a fraction or an exponent.
const (
	Null    = jsonscan.Null
	Boolean = jsonscan.Boolean
	Integer = jsonscan.Integer
	Number  = jsonscan.Number
	Text    = jsonscan.Text
	List    = jsonscan.List
	Object  = jsonscan.Object
)

// A Value is a value that was read: its kind and, for a scalar, its text: the characters of
// a string, or a number or boolean as it is in the body. It shares the memory of the body
// where it can.
type Value = jsonscan.Value

// A Parser steps through a text without callbacks, for what is read once per token of a
// model.
type Parser = jsonscan.Parser

// NewEvent returns a Parser of an event of a model runtime's stream, at its value. A runtime
// may split a character between two events: bytes that are not UTF-8 stay as they are.
func NewEvent(event string) Parser {
	p := jsonscan.New(event, 0)
	p.AnyBytes = true
	p.Begin()
	return p
}

// A SyntaxError says at which byte a body stops being JSON (RFC 8259, in UTF-8).
type SyntaxError struct {
	Offset int // of the byte, counted from 0
	Text   string
}

func (e *SyntaxError) Error() string { return e.Text }

// A Reader reads a body from its start to its end. It is for one goroutine.
type Reader struct {
	parser jsonscan.Parser
}

// New returns a Reader of a body, at its value. A byte order mark is skipped.
func New(body string) *Reader {
	r := &Reader{jsonscan.New(body, 0)}
	r.parser.Begin()
	return r
}

// Peek returns the kind of the value at hand without reading it: Number for every number; 0
// if there is none.
func (r *Reader) Peek() Kind {
	switch c := r.parser.Peek(); {
	case c == '{':
		return Object
	case c == '[':
		return List
	case c == '"':
		return Text
	case c == 't', c == 'f':
		return Boolean
	case c == 'n':
		return Null
	case c == '-', '0' <= c && c <= '9':
		return Number
	}
	return 0
}

// Value reads the value at hand. What is in an object or array is checked, and not kept.
func (r *Reader) Value() Value { return r.parser.Value() }

// Raw reads the value at hand and returns it as it is in the body, whose memory it shares.
func (r *Reader) Raw() string {
	start := r.parser.Offset()
	r.parser.Value()
	return r.parser.Since(start)
}

// Rest returns how many bytes are still to be read, for the room that a list needs at most.
func (r *Reader) Rest() int { return r.parser.Rest() }

// Object calls field for each field of the object at hand, with the Reader at its value. A
// value that field does not read is skipped. It returns a *SyntaxError, or the first error
// of field: where field fails because the body stops being JSON, that is the error.
// Repeated names are passed on as they come. For another kind of value, it reads that, and
// calls nothing: ask Peek before.
func (r *Reader) Object(field func(name string) error) error {
	return r.each('}', Object, func(int) error {
		name := r.parser.Name()
		if err := r.err(); err != nil {
			return err
		}
		return r.unlessRead(func() error { return field(name) })
	})
}

// Array calls element for each element of the array at hand, as Object does.
func (r *Reader) Array(element func(i int) error) error {
	return r.each(']', List, func(i int) error {
		return r.unlessRead(func() error { return element(i) })
	})
}

func (r *Reader) each(closing byte, kind Kind, call func(i int) error) error {
	p := &r.parser
	if r.Peek() != kind {
		p.Value()
		return r.err()
	}
	p.Enter()
	for i := 0; p.Next(closing, i == 0); i++ {
		if err := call(i); err != nil {
			return err
		}
	}
	return r.err()
}

// unlessRead skips the value at start if read leaves the Reader there.
func (r *Reader) unlessRead(read func() error) error {
	start := r.parser.Offset()
	failed := read()
	if failed == nil && r.parser.Offset() == start {
		r.parser.Value()
	}
	return cmp.Or(r.err(), failed)
}

// End fails unless nothing but white space is left.
func (r *Reader) End() error {
	r.parser.End()
	return r.err()
}

func (r *Reader) err() error {
	if err := r.parser.Err(); err != nil {
		return &SyntaxError{err.Offset, err.Text}
	}
	return nil
}

// Fields returns those fields of a body for which keep is true, by name, the last value of
// a repeated one; null counts as absent. body must be an object that has been read without
// an error. The values are copies: they may be changed, and keeping them does not retain the
// body. It is what botapi.Chat.Extra is for: nil if there are none.
func Fields(body string, keep func(name string) bool) map[string]json.RawMessage {
	fields := make(map[string]json.RawMessage)
	r := New(body)
	_ = r.Object(func(name string) error { // it has been read before
		if !keep(name) {
			return nil
		}
		if value := r.Raw(); value != "null" {
			fields[strings.Clone(name)] = json.RawMessage(value)
		} else {
			delete(fields, name)
		}
		return nil
	})
	if len(fields) == 0 {
		return nil
	}
	return fields
}
