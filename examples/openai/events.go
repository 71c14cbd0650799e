package openai

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxEvent is how long one event of a runtime's stream may be, and one line of
// it.
const maxEvent = 1 << 20

// events reads an event stream, one event at a time, in bounded memory.
type events struct {
	lines *bufio.Scanner
	data  []byte // of the event that was read last; valid until the next
	error bool   // the event says by its name that it is an error
	err   error
}

func newEvents(r io.Reader) *events {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4<<10), maxEvent)
	return &events{lines: lines}
}

// next reads the next event that has data in it. Comments, ids and what else
// there may be are passed over. An event that has no blank line behind it is
// none: the stream was cut.
func (e *events) next() bool {
	e.data, e.error = e.data[:0], false
	for hasData := false; e.err == nil && e.lines.Scan(); {
		line := e.lines.Bytes()
		if len(line) == 0 {
			if hasData {
				return true
			}
			e.error = false
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "error": // llama.cpp's, in former versions
			e.error = true
			fallthrough
		case "data":
			if hasData {
				e.data = append(e.data, '\n')
			}
			e.data, hasData = append(e.data, value...), true
			if len(e.data) > maxEvent {
				e.err = bufio.ErrTooLong
			}
		case "event":
			e.error = string(value) == "error"
		}
	}
	return false
}

func (e *events) isDone() bool { return bytes.HasPrefix(e.data, []byte("[DONE]")) }

// errCutShort is a stream that ended without saying that the answer is whole.
var errCutShort = errors.New("the stream ended before the answer did")

// end is why there is no event any more.
func (e *events) end() error {
	err := e.err
	if err == nil {
		err = e.lines.Err()
	}
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("an event of the stream is longer than %d bytes", maxEvent)
	case err != nil:
		return fmt.Errorf("reading the stream: %w", err)
	}
	return errCutShort
}
