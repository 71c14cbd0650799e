package botapi

import (
	"net/http"
	"sync"
	"time"

	"example.com/botapi/internal/jsontext"
)

const (
	// maxEvent bounds one event with text. (An error event is as long as the
	// application's Detail.) Clients that read by line stop at 64 KiB. The published
	// asynchronous Python client parses each network read separately, and fails at an
	// event that is split between two reads: a short one is split less often.
	maxEvent = 4 << 10
	// maxWrite bounds the queue of a stream, and so one write of it. A stream holds two at
	// most: one that is being written, and one that is queued.
	maxWrite = 16 << 10
	// endRoom is what the queue leaves for the end of a complete answer: the event of a
	// character that is still incomplete, and the terminator.
	endRoom = 64

	eventStart = `data: {"content":"`
	eventEnd   = "\"}\n\n"
	doneEvent  = "data: [DONE]\n\n"
	errorStart = "event: error\ndata: "
	// A keep-alive has no blank line of its own: widely used clients fail on an event
	// without data.
	keepAliveLine = ": keep-alive\n"
)

// A stream is one streamed answer on its way to the client.
//
// A fragment that comes when the connection is idle is written in place, by the goroutine
// that yields it: waking another goroutine for each fragment costs more than the write.
// After several writes in a row, each immediately after the previous one, a goroutine is
// started that writes until the queue is empty (a burst), so that fragments that are ready
// together are written together. A burst also makes a fragment's first write (writeFirst).
//
// The right to write is a token. While writing is true, one goroutine holds it, and may
// write without mu: the goroutine that yields, the keep-alive timer's, or a burst. The
// token is taken only while the stream is open. close waits until it is free: from then on,
// only the handler writes.
//
// While an open stream's token is free, its queue is empty: sendKeepAlive relies on that. A
// goroutine that adds to the queue takes the token if it is free, before it releases mu;
// otherwise the holder of the token writes until the queue is empty.
type stream struct {
	conn *connection // owned by the holder of the token and, after close, by the handler's goroutine

	mu sync.Mutex

	// Guarded by mu. After close, owned by the handler's goroutine: a late fragment or timer
	// finds closed set, and changes nothing.
	closed       bool   // no more fragments are accepted
	queue        *batch // complete events that wait to be written; nil if there are none
	text         jsontext.Encoder
	accepted     int           // fragments that were queued
	sent         int           // fragments of which a write has begun
	bytes        int64         // text of which a write has begun
	wrote        time.Duration // when the last write ended
	writesInARow int           // begun by fragments, all but the first within quickGap of the end of the one before
	writing      bool          // the token is taken

	committed bool // the sending of the head has begun; owned as conn is

	// Set by newStream.
	changed        sync.Cond     // the queue was taken, the token was returned, or the stream was closed
	onFailure      func(*ending) // called with mu held, at most once, when a write fails before close has returned
	keepAlive      time.Duration
	keepAliveTimer *time.Timer
	burst          func() // writeBurst, so that starting it allocates nothing
}

const (
	// quickGap is how soon a write begins after the previous one to be in a row with it.
	quickGap = 50 * time.Microsecond
	// The first burstAfter writes of a row are made in place (or by writeFirst), the others
	// by bursts.
	burstAfter = 3
)

// newStream starts the keep-alive timer, which may write to conn. onFailure must not block,
// and must not use the stream.
func newStream(conn *connection, keepAlive time.Duration, onFailure func(*ending)) *stream {
	s := &stream{conn: conn, onFailure: onFailure, keepAlive: keepAlive}
	s.changed.L = &s.mu
	s.burst = s.writeBurst
	s.mu.Lock() // sendKeepAlive uses the timer, and may run before it is assigned
	defer s.mu.Unlock()
	s.keepAliveTimer = time.AfterFunc(keepAlive, s.sendKeepAlive)
	return s
}

// fragment queues the events of one fragment, at least one, and has them written. It waits
// while the queue is full, so that a client that does not read slows its engine down.
func (s *stream) fragment(text string) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for begun := false; !begun || text != ""; begun = true {
		for !s.closed && s.queue.full() {
			s.changed.Wait()
		}
		if s.closed {
			return false
		}
		if !begun {
			s.accepted++
		}
		if s.queue == nil {
			s.queue = newBatch("")
		}
		text = s.queue.addEvent(&s.text, text)
		if text == "" || s.queue.full() {
			s.ensureWriter()
		}
	}
	return !s.closed
}

// ensureWriter, writeFirst, writeQueue and writeBatch are called with mu held and return
// with mu held, but release it during each write: what was read before may have changed.

func (s *stream) ensureWriter() {
	if s.writing {
		return
	}
	s.writing = true
	now := s.conn.elapsed()
	if now-s.wrote > quickGap {
		s.writesInARow = 0
	}
	s.writesInARow++
	switch {
	case s.writesInARow > burstAfter:
		go s.burst()
	case !s.committed:
		s.writeFirst()
	default:
		s.writeQueue(now)
	}
}

// writeFirst has a burst write the head and the queue, and waits until the token is free,
// as if the write were in place: so the first yield, too, returns false if the client has
// disconnected. For a head, net/http needs 3 KiB of stack: the stack of the engine's
// goroutine would grow to 8 KiB, and a silent stream would keep it.
func (s *stream) writeFirst() {
	go s.burst()
	for s.writing {
		s.changed.Wait()
	}
}

// writeQueue is called by the holder of the token. It gives the token back in any case.
func (s *stream) writeQueue(now time.Duration) {
	defer func() {
		s.writing = false
		s.changed.Broadcast()
	}()
	for s.queue != nil && !s.closed {
		s.writeBatch(now)
		now = s.wrote
	}
}

func (s *stream) writeBatch(now time.Duration) {
	b := s.take()
	s.changed.Broadcast()
	failed := s.writeUnlocked(b, now)
	s.wrote = s.conn.elapsed()
	if failed != nil {
		s.queue, s.closed = nil, true
		s.onFailure(failed)
	}
}

// writeUnlocked releases mu during the write, and holds it again when it returns.
func (s *stream) writeUnlocked(b *batch, now time.Duration) *ending {
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.write(b, now)
}

func (s *stream) write(b *batch, now time.Duration) *ending {
	failed := s.conn.write(now, 0, func() error { return s.send(b.data) })
	b.free(failed)
	return failed
}

// take counts what is queued as sent.
func (s *stream) take() *batch {
	b := s.queue
	s.queue = nil
	s.sent, s.bytes = s.accepted, s.text.Written()
	return b
}

// writeBurst is started with the token taken. close waits for it.
func (s *stream) writeBurst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeQueue(s.conn.elapsed())
}

func (s *stream) send(events []byte) error {
	if !s.committed {
		s.committed = true
		header := s.conn.w.Header()
		header.Set("Content-Type", "text/event-stream")
		header.Set("Cache-Control", "no-cache, no-transform")
		header.Set("X-Accel-Buffering", "no")
		s.conn.w.WriteHeader(http.StatusOK)
	}
	if _, err := s.conn.w.Write(events); err != nil {
		return err
	}
	return s.conn.flush()
}

// sendKeepAlive is called by the timer.
func (s *stream) sendKeepAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := s.conn.elapsed()
	next := s.wrote + s.keepAlive - now
	due := next <= 0
	if due && !s.writing {
		s.queue = newBatch(keepAliveLine) // there was none, since the token is free
		s.writing = true
		s.writeQueue(now)
	}
	if due {
		next = s.keepAlive
	}
	if !s.closed {
		s.keepAliveTimer.Reset(next)
	}
}

// close waits for the write in progress. What is queued is left to complete or sendError.
func (s *stream) close() (committed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.keepAliveTimer.Stop()
	s.changed.Broadcast()
	for s.writing {
		s.changed.Wait()
	}
	return s.committed
}

// complete makes one write of what is queued, of an incomplete character that is held
// back, and of the terminator.
func (s *stream) complete() *ending {
	if s.conn.failed != nil {
		return s.conn.failed
	}
	if s.queue == nil {
		s.queue = newBatch("")
	}
	if s.text.Holds() {
		s.queue.addLastEvent(&s.text)
	}
	b := s.take()
	b.data = append(b.data, doneEvent...)
	return s.write(b, s.conn.elapsed())
}

// sendError makes one write of what is queued and of the error event.
func (s *stream) sendError(errorData []byte, deadline time.Duration) (sent bool) {
	now := s.conn.elapsed()
	if s.conn.failed != nil || now >= deadline {
		return false
	}
	var events []byte
	if s.queue != nil {
		events = s.take().data
	}
	if errorData != nil {
		events = append(append(append(events, errorStart...), errorData...), "\n\n"...)
	}
	return s.conn.write(now, deadline, func() error { return s.send(events) }) == nil
}

func (s *stream) drop() { s.queue = nil }

func (s *stream) figures() (fragments int, bytes int64) { return s.sent, s.bytes }

// A batch is the events of one write of a stream, or one chunk of a JSON response. It is
// pooled: a silent stream holds none.
type batch struct{ data []byte }

var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch(start string) *batch {
	b := batches.Get().(*batch)
	b.data = append(b.data[:0], start...)
	return b
}

// free returns the batch to the pool. One whose write has failed is dropped: on HTTP/2,
// net/http may still read it. So is a large one, which few need.
func (b *batch) free(failed *ending) {
	if failed == nil && cap(b.data) <= maxWrite {
		batches.Put(b)
	}
}

// full reports whether there is no room for another event. A nil batch is not full.
func (b *batch) full() bool {
	return b != nil && len(b.data) > maxWrite-maxEvent-endRoom
}

// addEvent adds one event with as much of the text as it has room for, and returns the
// rest. Two fragments never share an event: see [jsontext.Encoder].
func (b *batch) addEvent(encoder *jsontext.Encoder, text string) (rest string) {
	if cap(b.data)-len(b.data) < maxEvent && cap(b.data) < maxWrite { // append could make it larger than maxWrite
		b.data = append(make([]byte, 0, min(2*cap(b.data)+maxEvent, maxWrite)), b.data...)
	}
	events := append(b.data, eventStart...) // a local variable saves a fifth of the time
	events, rest = encoder.Append(events, text, len(b.data)+maxEvent-len(eventEnd))
	b.data = append(events, eventEnd...)
	return rest
}

func (b *batch) addLastEvent(encoder *jsontext.Encoder) {
	b.data = append(b.data, eventStart...)
	b.data = append(encoder.AppendHeld(b.data), eventEnd...)
}
