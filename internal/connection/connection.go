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
// Other packages only read its fields.
type Connection struct {
	// Set by Init.
	Start   time.Time // of the request
	w       http.ResponseWriter
	control http.ResponseController
	timeout time.Duration // of one write
	http2   bool          // or later: a deadline that passes between two writes ends the stream, so it is cleared after each write

	// Owned by the goroutine that may write.
	Failed        *WriteError   // why a write has failed: after it, nothing more is written
	CannotFlush   bool          // the writer has no Flush for a stream, which is sent when the handler returns
	writeDeadline time.Duration // the last one set; 0 if there is none
	flushed       bool          // the last flush worked: nothing is left in the writer's buffer

	// Safe for concurrent use.
	writeBegan instant.Instant // when the write in progress began, or the one that has used up its time

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
	c.Start, c.timeout = time.Now(), timeout
	if isHTTP2 {
		c.setWriteDeadline(0) // the server's would reset the stream while application code runs
	}
}

// Elapsed is the time since the request's start.
func (c *Connection) Elapsed() time.Duration { return time.Since(c.Start) }

// Header is that of the ResponseWriter.
func (c *Connection) Header() http.Header { return c.w.Header() }

// Write calls the ResponseWriter, which has until deadline or, if that is 0, all of the time of a
// write. If the call fails or panics, nothing more is written.
func (c *Connection) Write(deadline time.Duration, call func(http.ResponseWriter) error) *WriteError {
	if c.Failed != nil {
		return c.Failed
	}
	now := c.Elapsed()
	if deadline == 0 {
		c.extendDeadline(now)
	} else {
		c.setWriteDeadline(deadline)
	}
	c.writeBegan.Set(now)
	err := panics.Catch("calling the ResponseWriter", func() error { return call(c.w) })
	stalled := err != nil && c.Stalled()
	if err != nil {
		c.Failed = &WriteError{err, stalled}
	}
	if !stalled {
		c.writeBegan.Clear()
	}
	if c.http2 {
		c.setWriteDeadline(0)
	}
	return c.Failed
}

// ErrLate is WriteBody's when a chunk was not begun any longer.
var ErrLate = errors.New("connection: the rest of the body is too late")

// WriteBody writes the body of a response that is no stream, of this length, in chunks of
// MaxChunk at most. No chunk but the first is begun after lastBegin. It flushes the last one
// where the writer itself can. handed is how much of the body may have left the writer. A later
// chunk counts even if it fails. The first counts only if it was written or, on HTTP/2, if only
// its flush failed: otherwise, not even the head is known to have left. The error is Failed or ErrLate.
func (c *Connection) WriteBody(body [][]byte, length int, lastBegin time.Duration) (handed int, err error) {
	for _, piece := range body {
		for chunk := range slices.Chunk(piece, MaxChunk) {
			if handed > 0 && c.Elapsed() > lastBegin {
				return handed, ErrLate
			}
			isFirst, isLast := handed == 0, handed+len(chunk) == length
			if hasGot := c.writeChunk(chunk, isLast); hasGot || !isFirst {
				handed += len(chunk)
			}
			if c.Failed != nil {
				return handed, c.Failed
			}
		}
	}
	return handed, nil
}

// writeChunk reports whether the writer got the chunk, and with it the head. If only the flush
// has failed, it did on HTTP/2; on HTTP/1, both may still be in its buffer.
func (c *Connection) writeChunk(chunk []byte, last bool) (hasGot bool) {
	flushing := false
	failed := c.Write(0, func(w http.ResponseWriter) error {
		_, err := w.Write(chunk)
		if err != nil || !last {
			return err
		}
		flushing = true
		if c.flushed, err = responsewriter.FlushOutermost(w); errors.Is(err, errors.ErrUnsupported) {
			err = nil
		}
		return err
	})
	return failed == nil || flushing && c.http2
}

// Flush sends what the writer has buffered of a stream. It is called within a Write.
func (c *Connection) Flush() error {
	err := c.control.Flush()
	c.flushed = err == nil
	if errors.Is(err, errors.ErrUnsupported) {
		c.CannotFlush, err = true, nil
	}
	return err
}

// Stalled reports whether the write in progress, or the one that has failed, has used up the
// time of a write.
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
		c.changeDeadline(c.Start.Add(at), false)
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
