package openai

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxEvent bounds an event of a runtime's stream, and each line, in bytes.
const maxEvent = 1 << 20

// events reads an event stream, one event at a time, in bounded memory.
type events struct {
	ends  lineEnds
	lines *bufio.Scanner
	begun bool   // a line was read
	data  []byte // of the current event; valid until the next call of next
	error bool   // the current event is named "error"
	err   error
}

func newEvents(r io.Reader) *events {
	e := &events{ends: lineEnds{r: r}}
	e.lines = bufio.NewScanner(&e.ends)
	e.lines.Buffer(make([]byte, 4<<10), maxEvent)
	return e
}

// lineEnds reads a stream in which LF ends every line. In an event stream, CR and CR LF
// end a line, too. A CR becomes an LF immediately, since nothing may follow it for a
// while; the LF of a CR LF is dropped.
type lineEnds struct {
	r       io.Reader
	afterCR bool
}

func (l *lineEnds) Read(p []byte) (int, error) {
	for {
		n, err := l.r.Read(p)
		kept := n
		if l.afterCR || bytes.IndexByte(p[:n], '\r') >= 0 {
			kept = l.replace(p[:n])
		}
		if kept > 0 || n == 0 || err != nil {
			return kept, err
		}
	}
}

// replace works in place and returns the new length.
func (l *lineEnds) replace(p []byte) int {
	kept := p[:0]
	for _, c := range p {
		dropped := l.afterCR && c == '\n'
		if l.afterCR = c == '\r'; l.afterCR {
			c = '\n'
		}
		if !dropped {
			kept = append(kept, c)
		}
	}
	return len(kept)
}

var byteOrderMark = []byte("\ufeff")

// next advances to the next event that has data. It skips a byte order mark, comments,
// ids and other fields, and an event without a blank line at its end: the stream was
// aborted.
func (e *events) next() bool {
	e.data, e.error = e.data[:0], false
	for hasData := false; e.err == nil && e.lines.Scan(); {
		line := e.lines.Bytes()
		if !e.begun {
			line, e.begun = bytes.TrimPrefix(line, byteOrderMark), true
		}
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
		case "error": // former versions of llama.cpp
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

// errIncomplete means that the stream ended without a finish_reason.
var errIncomplete = errors.New("the stream ended before the answer did")

// end returns why next has returned false.
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
	return errIncomplete
}
