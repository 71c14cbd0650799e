package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxEvent bounds an event of a runtime's stream, and each line, in bytes.
const maxEvent = 1 << 20

// Events reads a runtime's event stream, one event at a time, in bounded memory: an event
// and a line have at most 1 MiB. It is for engines of every protocol that uses
// server-sent events, and for one goroutine at a time.
//
// It reads what runtimes send, which is more than the standard allows: the last event may
// lack its blank line or its line break, and events of JSON objects may be separated by a
// single line break.
type Events struct {
	ends   lineEnds
	lines  *bufio.Scanner
	begun  bool   // a line was read
	held   []byte // a line that begins the next event; valid until the next one is scanned
	packed bool   // events are separated by a single line break
	data   []byte // of the current event; valid until the next call of Next
	name   []byte // of the current event; valid until the next call of Next
	err    error
}

// NewEvents returns a reader of the events of r.
func NewEvents(r io.Reader) *Events {
	e := &Events{ends: lineEnds{r: r}}
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

// Next advances to the next event, and returns false at the end of the stream. It skips a
// byte order mark, ids and other fields. It also stops at a comment and at an event without
// data, with which a runtime says that it is alive: Data is empty then.
func (e *Events) Next() bool {
	e.data, e.name = e.data[:0], e.name[:0]
	for hasData, hasField := false, false; e.err == nil; {
		line, ok := e.line()
		if !ok {
			return hasData && e.isWhole() // only its blank line is missing
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		isBlank := len(line) == 0
		isComment := !isBlank && len(name) == 0
		switch {
		case isBlank && (hasData || hasField), isComment && !hasData && len(e.name) == 0:
			return true
		case hasData && e.isFollowedBy(string(name), value):
			e.held, e.packed = line, true
			return true
		}
		switch string(name) {
		case "error": // former versions of llama.cpp
			e.name = append(e.name[:0], "error"...)
			fallthrough
		case "data":
			e.add(value, hasData)
			hasData = true
			if e.packed && e.isWhole() {
				return true
			}
		case "event":
			e.name, hasField = append(e.name[:0], value...), true
		case "id", "retry":
			hasField = true
		}
	}
	return false
}

// line returns the next line.
func (e *Events) line() (line []byte, ok bool) {
	if e.held != nil {
		line, e.held = e.held, nil
		return line, true
	}
	if !e.lines.Scan() {
		return nil, false
	}
	line = e.lines.Bytes()
	if !e.begun {
		line, e.begun = bytes.TrimPrefix(line, byteOrderMark), true
	}
	return line, true
}

func (e *Events) add(value []byte, isMore bool) {
	if isMore {
		e.data = append(e.data, '\n')
	}
	e.data = append(e.data, value...)
	if len(e.data) > maxEvent {
		e.err = bufio.ErrTooLong
	}
}

// isFollowedBy reports whether a line begins another event, although there is no blank line
// before it. JSON never has a brace at the end of a line and a bracket at the start of the
// next one.
func (e *Events) isFollowedBy(name string, value []byte) bool {
	if !e.isDone() && !bytes.HasSuffix(bytes.TrimSpace(e.data), []byte("}")) {
		return false
	}
	switch name {
	case "event":
		return true
	case "data", "error":
		value = bytes.TrimSpace(value)
		return len(value) > 0 && (value[0] == '{' || value[0] == '[')
	}
	return false
}

// isWhole reports whether the data is a complete JSON value or [DONE].
func (e *Events) isWhole() bool { return e.isDone() || json.Valid(e.data) }

func (e *Events) isDone() bool { return bytes.HasPrefix(e.data, []byte("[DONE]")) }

// Data returns the data of the current event, valid until the next call of Next.
func (e *Events) Data() []byte { return e.data }

// Name returns the name of the current event, valid until the next call of Next. Most
// have none.
func (e *Events) Name() []byte { return e.name }

// errIncomplete means that the stream ended without a finish_reason.
var errIncomplete = errors.New("the stream ended before the answer did")

// End returns why Next has returned false. It is an error in any case: whoever has read the
// mark of a complete answer does not ask. Its text has nothing of the stream.
func (e *Events) End() error {
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
