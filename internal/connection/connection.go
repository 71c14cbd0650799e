// Package connection writes to one client, each write within a time of its own.
package connection

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/botapi/internal/instant"
	"example.com/botapi/internal/panics"
	"example.com/botapi/internal/responsewriter"
)

// MaxChunk is what the slowest client must read within the time of one write.
const MaxChunk = 64 << 10

// A Connection writes to one client. Its times are durations since the request's start. One
// goroutine at a time may write; Elapsed, Stalled and Interrupt are safe for concurrent use.
type Connection struct {
	// Set by Init.
	w       http.ResponseWriter
	control http.ResponseController
	start   time.Time     // of the request
	timeout time.Duration // of one write
	http2   bool          // or later: a deadline that passes between two writes ends the stream, so it is cleared after each write

	// Owned by the goroutine that may write.
	writeDeadline time.Duration // the last one set; 0 if there is none
	failed        *WriteError   // after it, nothing more is written
	bodyReached   bool          // net/http has sent a chunk, and with it the status
	flushed       bool          // the last flush worked: nothing is left in the writer's buffer
	cannotFlush   bool          // the writer has no Flush for a stream, which is sent when the handler returns

	// Safe for concurrent use.
	writeBegan instant.Instant // when the write in progress began, or the one that has failed

	mu             sync.Mutex // held during SetWriteDeadline
	deadlineFrozen bool       // the write deadline is not changed any longer: after Interrupt, or since it could not be set
}

// A WriteError is why a write has failed: an error of the ResponseWriter, or its panic.
type WriteError struct {
	Err     error
	Stalled bool // the write has used up its time
}

func (e *WriteError) Error() string { return e.Err.Error() }

// Init prepares a connection whose request begins now.
func (c *Connection) Init(w http.ResponseWriter, isHTTP2 bool, timeout time.Duration) {
	c.w, c.control, c.http2 = w, *http.NewResponseController(w), isHTTP2
	c.start, c.timeout = time.Now(), timeout
	if isHTTP2 {
		c.setWriteDeadline(0) // the server's would reset the stream while application code runs
	}
}

// Start is when the request began.
func (c *Connection) Start() time.Time { return c.start }

// Elapsed is the time since the request's start.
func (c *Connection) Elapsed() time.Duration { return time.Since(c.start) }

// Header is that of the ResponseWriter.
func (c *Connection) Header() http.Header { return c.w.Header() }

// Failed returns why a write has failed, or nil.
func (c *Connection) Failed() *WriteError { return c.failed }

// BodyReached reports whether a chunk was sent, and so the status of the response.
func (c *Connection) BodyReached() bool { return c.bodyReached }

// CannotFlush reports whether a stream could not be flushed.
func (c *Connection) CannotFlush() bool { return c.cannotFlush }

// Write calls the ResponseWriter, which has all of the time of a write.
func (c *Connection) Write(call func(http.ResponseWriter) error) *WriteError {
	return c.write(0, call)
}

// WriteBefore calls the ResponseWriter, which has until deadline.
func (c *Connection) WriteBefore(deadline time.Duration, call func(http.ResponseWriter) error) *WriteError {
	return c.write(deadline, call)
}

// write gives the call until deadline or, if that is 0, the time of a write. If it fails or
// panics, nothing more is written.
func (c *Connection) write(deadline time.Duration, call func(http.ResponseWriter) error) *WriteError {
	if c.failed != nil {
		return c.failed
	}
	now := c.Elapsed()
	if deadline == 0 {
		c.extendDeadline(now)
	} else {
		c.setWriteDeadline(deadline)
	}
	c.writeBegan.Set(now)
	if err := panics.Catch("calling the ResponseWriter", func() error { return call(c.w) }); err != nil {
		c.failed = &WriteError{err, c.Stalled()}
	} else {
		c.writeBegan.Clear()
	}
	if c.http2 {
		c.setWriteDeadline(0)
	}
	return c.failed
}

// ErrLate is WriteBody's when a chunk was not begun any longer.
var ErrLate = errors.New("connection: the rest of the body is too late")

// WriteBody writes the body of a response that is no stream, in chunks of MaxChunk at most. No
// chunk but the first is begun after lastBegin. It flushes the last one where the writer
// itself can. Its error is a *WriteError or ErrLate.
func (c *Connection) WriteBody(body [][]byte, lastBegin time.Duration) (written int64, err error) {
	left := 0
	for _, piece := range body {
		left += len(piece)
	}
	for _, piece := range body {
		for chunk := range slices.Chunk(piece, MaxChunk) {
			if written > 0 && c.Elapsed() > lastBegin {
				return written, ErrLate
			}
			left -= len(chunk)
			written += int64(len(chunk))
			if failed := c.writeChunk(chunk, left == 0); failed != nil {
				return written, failed
			}
		}
	}
	return written, nil
}

func (c *Connection) writeChunk(chunk []byte, last bool) *WriteError {
	var reached bool
	failed := c.Write(func(w http.ResponseWriter) error {
		_, err := w.Write(chunk)
		reached = err == nil
		if err != nil || !last {
			return err
		}
		if c.flushed, err = responsewriter.FlushOutermost(w); errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
		return err
	})
	// If only the flush has failed, HTTP/1 has kept the head in its buffer; HTTP/2 has sent it.
	c.bodyReached = c.bodyReached || failed == nil || reached && c.http2
	return failed
}

// Flush sends what the writer has buffered of a stream. It is called within a Write. It may
// return the error of an earlier one.
func (c *Connection) Flush() error {
	err := c.control.Flush()
	c.flushed = err == nil
	if errors.Is(err, errors.ErrUnsupported) {
		c.cannotFlush, err = true, nil
	}
	return err
}

// Stalled reports whether the write in progress, or the one that has failed, began at least
// the time of a write ago.
func (c *Connection) Stalled() bool {
	began, isSet := c.writeBegan.Get()
	return isSet && c.Elapsed()-began >= c.timeout
}

// extendDeadline gives a write that begins now all of its time. It moves the deadline a
// little further than needed, since moving it costs.
func (c *Connection) extendDeadline(now time.Duration) {
	if c.writeDeadline < now+c.timeout {
		c.setWriteDeadline(now + c.timeout + min(c.timeout/8, time.Second))
	}
}

// ExtendDeadlineForReturn sets a deadline for what net/http writes when the handler has
// returned: on HTTP/2 only if there may be something left to write.
func (c *Connection) ExtendDeadlineForReturn() {
	if !c.http2 || !c.flushed {
		c.extendDeadline(c.Elapsed())
	}
}

func (c *Connection) setWriteDeadline(at time.Duration) {
	c.writeDeadline = at
	if at == 0 {
		c.changeDeadline(time.Time{}, false)
	} else {
		c.changeDeadline(c.start.Add(at), false)
	}
}

// Interrupt makes the write in progress fail, and every later one.
func (c *Connection) Interrupt() { c.changeDeadline(longAgo, true) }

var longAgo = time.Unix(1, 0) // a deadline that has passed

func (c *Connection) changeDeadline(at time.Time, freeze bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.deadlineFrozen {
		failed := panics.Catch("setting a deadline", func() error { return c.control.SetWriteDeadline(at) }) != nil
		c.deadlineFrozen = failed || freeze
	}
}

// SetReadDeadline sets the deadline for reading the body of the request; zero means none.
func (c *Connection) SetReadDeadline(at time.Time) {
	_ = panics.Catch("setting a deadline", func() error { return c.control.SetReadDeadline(at) })
}

// EndReading keeps net/http from reading more of the body, for which it would wait, and has
// it close the connection after the response.
func (c *Connection) EndReading() {
	c.SetReadDeadline(longAgo)
	_ = panics.Catch("ending the request body", func() error { responsewriter.CloseAfterResponse(c.w); return nil })
}
