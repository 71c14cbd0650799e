package botapi

import (
	"math"
	"math/bits"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// maxEvent bounds one event with text (an error event is as long as the host's
	// Detail). Clients that read by line stop at 64 KiB. The published asynchronous
	// client parses each network read by itself, and fails at an event that two reads
	// share: a short one is shared less often.
	maxEvent = 4 << 10
	// maxWrite bounds the queue of a stream, and so one write of it. A stream holds
	// two at most: one that is being written, and one that is queued.
	maxWrite = 16 << 10

	eventStart = `data: {"content":"`
	eventEnd   = "\"}\n\n"
	doneEvent  = "data: [DONE]\n\n"
	errorStart = "event: error\ndata: "
	// A keep-alive has no blank line of its own: widely used clients choke on
	// an event without data.
	keepAliveLine = ": keep-alive\n"
)

// A stream is one streamed answer on its way to the client.
//
// A fragment that comes when the connection is idle is written in place, by the
// goroutine that yields it: waking another goroutine for each costs more than the
// write. After several writes in a row, each right after the previous one, a
// goroutine is started that writes until the queue is empty (a burst), so that
// fragments that are ready together leave together. A burst also makes the first write
// of the stream, if it is a fragment's (writeFirst).
//
// The right to write is a token: whoever sets writing holds it, and may write
// without mu until it clears writing. The goroutine that yields and the keep-alive
// timer take it, only while the stream is open; a burst is handed it. settle closes
// the stream and waits until the token is free. Nobody can take it then: only the
// handler writes, without it. No code of the host's is called with mu held.
//
// Whoever adds to the queue takes the token before releasing mu, or leaves the queue
// to the holder of the token, who writes until the queue is empty. So whoever locks mu
// and finds that nobody holds the token finds the queue empty: settle and
// sendKeepAlive rely on that.
//
// What every fragment needs comes first in the struct: of a thousand paced
// streams, none is in the processor's cache when its next fragment comes.
type stream struct {
	conn *connection // written to by whoever holds the token; after settle, by the handler

	mu sync.Mutex

	// Guarded by mu. When settle has returned, only finish changes them, and the
	// handler needs no mutex; a late fragment or timer sees only that the stream
	// is closed.
	queue        *batch // whole events that wait to be written; nil if there are none
	text         textEncoder
	accepted     int           // fragments that were queued
	sent         int           // fragments of which a write has begun
	bytes        int64         // text of which a write has begun
	wrote        time.Duration // when the last write ended
	writesInARow int           // how many writes fragments have begun in a row: all but the first within quickGap of the end of the one before
	writing      bool          // the token is taken
	closed       bool          // no more fragments are accepted

	committed bool // the sending of the head has begun; belongs to whoever holds the token

	changed        sync.Cond     // the queue was taken, the token was given back, or the stream was closed
	onFailure      func(*ending) // called with mu held, at most once, when a write fails before settle has returned
	keepAlive      time.Duration
	keepAliveTimer *time.Timer
	burst          func() // writeBurst, made once, so that starting it allocates nothing
}

const (
	// quickGap is how soon a write begins after the previous one to be in a row
	// with it.
	quickGap = 50 * time.Microsecond
	// burstAfter is how many writes of a row are made in place, but for the first of the
	// stream (writeFirst): all later ones are bursts.
	burstAfter = 3
)

// newStream returns a stream whose keep-alive timer is running: from now on, the timer
// may write to conn. onFailure must not block, and must not use the stream.
func newStream(conn *connection, keepAlive time.Duration, onFailure func(*ending)) *stream {
	s := &stream{conn: conn, onFailure: onFailure, keepAlive: keepAlive}
	s.changed.L = &s.mu
	s.burst = s.writeBurst
	s.mu.Lock() // sendKeepAlive uses the timer, and may run before it is assigned
	defer s.mu.Unlock()
	s.keepAliveTimer = time.AfterFunc(keepAlive, s.sendKeepAlive)
	return s
}

// fragment queues the events of one fragment, at least one, and has them written.
// It waits while the queue is full: a client that does not read holds its engine
// back.
func (s *stream) fragment(text string) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for begun := false; !begun || text != ""; begun = true {
		for s.queue.full() && !s.closed {
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
		s.queue.data, text = s.text.appendEvent(s.queue.data, text)
		if text == "" || s.queue.full() {
			s.ensureWriter()
		}
	}
	return !s.closed
}

// ensureWriter, writeFirst, writeQueue and writeBatch are called with mu held and
// return with mu held, but release it during each write: what was read before may
// have changed.

// ensureWriter has the queue written: by the holder of the token, if there is one,
// else here, or by a burst.
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

// writeFirst has a burst write the head and the queue, and waits until the token is
// free, as if the write were in place: so the first yield, too, returns false if its
// client has left. For a head, net/http needs 3 KiB of stack: that of the engine's
// goroutine would grow to 8 KiB, and a silent stream would keep them.
func (s *stream) writeFirst() {
	go s.burst()
	for s.writing {
		s.changed.Wait()
	}
}

// writeQueue writes until the queue is empty and gives the token back, even if the
// host's ResponseWriter panics or ends this goroutine. Only the holder of the token
// calls it.
func (s *stream) writeQueue(now time.Duration) {
	defer func() {
		s.writing = false
		s.changed.Broadcast()
	}()
	for s.queue != nil {
		s.writeBatch(now)
		now = s.wrote
	}
}

// writeBatch takes the queue and writes it. If that fails, the stream is closed.
// Only the holder of the token calls it.
func (s *stream) writeBatch(now time.Duration) {
	b := s.queue
	s.queue = nil
	if s.conn.blocked(now) == nil { // else send fails at once, and nothing more counts as sent
		s.sent, s.bytes = s.accepted, s.text.bytes
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	defer func() {
		b.free(s.conn.failure)
		wrote := s.conn.elapsed()
		s.mu.Lock()
		s.wrote = wrote
		if s.conn.failure != nil {
			s.queue, s.closed = nil, true
			s.onFailure(s.conn.failure)
		}
	}()
	_ = s.send(b.data, now) // what is deferred reads conn.failure, which is set even if send ends this goroutine
}

// writeBurst is a burst. It is started with the token taken, and settle waits for
// it.
func (s *stream) writeBurst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeQueue(s.conn.elapsed())
}

// send writes whole events, after the head if they are the first, and flushes
// them. It is called by whoever holds the token, or after settle, without mu.
func (s *stream) send(events []byte, now time.Duration) *ending {
	return s.conn.writeWithDeadline(now, func() error {
		if !s.committed {
			s.committed = true
			s.sendHead()
		}
		if _, err := s.conn.w.Write(events); err != nil {
			return err
		}
		return s.conn.flush()
	})
}

func (s *stream) sendHead() {
	header := s.conn.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-transform")
	header.Set("X-Accel-Buffering", "no")
	s.conn.w.WriteHeader(http.StatusOK)
}

// sendKeepAlive is called by the timer. It sends a comment if nothing was written
// for as long as keepAlive and no write is under way, and sets the timer again.
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
		s.queue = newBatch(keepAliveLine) // there was none, since nobody holds the token
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

// settle closes the stream and waits for the token. What was queued before has
// been written when it returns, or could not be: while nobody writes, the queue
// is empty. It may be called again.
func (s *stream) settle() (committed bool) {
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

// finish sends the incomplete character that is held back, if there is one, and
// the terminator.
func (s *stream) finish() *ending {
	now := s.conn.elapsed()
	if failure := s.conn.blocked(now); failure != nil {
		return failure // before more is counted as sent
	}
	b := newBatch("")
	if s.text.holds() {
		b.data = s.text.appendLastEvent(b.data)
		s.bytes = s.text.bytes
	}
	b.data = append(b.data, doneEvent...)
	failure := s.send(b.data, now)
	b.free(failure)
	return failure
}

// sendErrorEvent sends an error event: most clients do not know it, but those that do
// learn why the connection is about to be cut.
func (s *stream) sendErrorEvent(detail []byte) (sent bool) {
	return s.send(slices.Concat([]byte(errorStart), detail, []byte("\n\n")), s.conn.elapsed()) == nil
}

func (s *stream) figures() (fragments int, bytes int64) { return s.sent, s.bytes }

// A batch is the events of one write of a stream, or a whole JSON response.
type batch struct{ data []byte }

// Batches are pooled: a silent stream holds none.
var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch(start string) *batch {
	b := batches.Get().(*batch)
	b.data = append(b.data[:0], start...)
	return b
}

// free gives the batch back to the pool. One whose write has failed is dropped:
// on HTTP/2, net/http may still read it. So is a large one, which few need.
func (b *batch) free(failure *ending) {
	if failure == nil && cap(b.data) <= 2*maxWrite {
		batches.Put(b)
	}
}

// full reports whether there is no room for another event of maxEvent bytes. A nil
// batch is not full.
func (b *batch) full() bool {
	return b != nil && len(b.data) > maxWrite-maxEvent
}

// A textEncoder writes an engine's text as the inside of JSON strings, in as
// many pieces as it comes in. A character that is cut at the end of a piece is
// held back until its rest has come. The zero value is ready.
type textEncoder struct {
	held  [utf8.UTFMax - 1]byte // the start of a character
	count int                   // bytes of it
	bytes int64                 // of text written, as a client decodes it
}

// appendEvent writes one event with as much of the text as it has room for.
func (e *textEncoder) appendEvent(dst []byte, text string) (_ []byte, rest string) {
	limit := len(dst) + maxEvent - len(eventEnd)
	dst = append(dst, eventStart...)
	dst, rest = e.append(dst, text, limit)
	return append(dst, eventEnd...), rest
}

// appendLastEvent writes one event with U+FFFD for each byte that is held back.
func (e *textEncoder) appendLastEvent(dst []byte) []byte {
	dst = append(dst, eventStart...)
	dst = e.appendHeld(dst)
	return append(dst, eventEnd...)
}

func (e *textEncoder) holds() bool { return e.count > 0 }

// append writes as much of the text as leaves dst at most limit bytes long, cut
// between characters, and returns the rest. A character whose start is held back
// is completed even if that exceeds the limit (of a JSON response: in an event it comes
// first, and there is room).
func (e *textEncoder) append(dst []byte, text string, limit int) (_ []byte, rest string) {
	if e.count > 0 {
		dst, text = e.complete(dst, text)
	}
	for {
		run := plainPrefix(text[:min(len(text), max(0, limit-len(dst)))])
		dst = append(dst, text[:run]...)
		e.bytes += int64(run)
		if text = text[run:]; text == "" {
			return dst, ""
		}
		if !utf8.FullRuneInString(text) {
			e.count = copy(e.held[:], text)
			return dst, ""
		}
		written := e.bytes
		longer, next := e.appendSpecial(dst, text)
		if len(longer) > limit { // always so where the limit has ended the run, and not a special character
			e.bytes = written
			return dst, text
		}
		dst, text = longer, next
	}
}

// complete joins the held bytes with what the text begins with.
func (e *textEncoder) complete(dst []byte, text string) (_ []byte, rest string) {
	for {
		var joined [2 * utf8.UTFMax]byte
		held := copy(joined[:], e.held[:e.count])
		taken := copy(joined[held:], text[:min(len(text), utf8.UTFMax)])
		start := joined[:held+taken]
		if !utf8.FullRune(start) { // at most three bytes: all of the text is among them
			e.count = copy(e.held[:], start)
			return dst, ""
		}
		r, size := utf8.DecodeRune(start)
		dst = e.appendRune(dst, r)
		if size >= held {
			e.count = 0
			return dst, text[size-held:]
		}
		e.count = copy(e.held[:], joined[size:held]) // only the first byte was invalid: the others are tried again
	}
}

// appendHeld writes U+FFFD for each byte that is held back: the text has ended within
// a character.
func (e *textEncoder) appendHeld(dst []byte) []byte {
	for ; e.count > 0; e.count-- {
		dst = e.appendRune(dst, utf8.RuneError)
	}
	return dst
}

// appendSpecial writes the first character of the text, at which plainPrefix has
// stopped.
func (e *textEncoder) appendSpecial(dst []byte, text string) (_ []byte, rest string) {
	if text[0] >= utf8.RuneSelf {
		r, size := utf8.DecodeRuneInString(text)
		return e.appendRune(dst, r), text[size:]
	}
	e.bytes++
	return appendEscaped(dst, text), text[1:]
}

// appendRune writes a character that is not ASCII. Python's str.splitlines,
// by which published clients read, ends a line at three of them.
func (e *textEncoder) appendRune(dst []byte, r rune) []byte {
	e.bytes += int64(utf8.RuneLen(r))
	switch r {
	case '\u0085':
		return append(dst, `\u0085`...)
	case '\u2028':
		return append(dst, `\u2028`...)
	case '\u2029':
		return append(dst, `\u2029`...)
	}
	return utf8.AppendRune(dst, r)
}

// appendEscaped writes the first character of the text, which is ASCII, as
// JSON wants it within a string. Published clients stop at the first line with
// [DONE] in it, wherever it stands: in a text its bracket is escaped. In one that is
// cut between two fragments it is not: each has an event, and so a line, of its own.
// Two must not be joined in one event.
func appendEscaped(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	switch c := text[0]; c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	case '[':
		if strings.HasPrefix(text, "[DONE]") {
			return append(dst, `\u005b`...)
		}
		return append(dst, c)
	default:
		return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&0xF])
	}
}

// appendString writes s as a JSON string.
func appendString(dst []byte, s string) []byte {
	var e textEncoder
	dst = append(dst, '"')
	dst, _ = e.append(dst, s, math.MaxInt)
	return append(e.appendHeld(dst), '"')
}

// plainPrefix returns how many bytes at the start of s stand in a JSON string
// as they are: ASCII from 0x20 on, but for the quote, the backslash, and the
// bracket that could begin a [DONE].
func plainPrefix(s string) int {
	i := 0
	for i <= len(s)-8 {
		if found := specials(word(s[i:])); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
		i += 8
		for ; i <= len(s)-32; i += 32 {
			t := s[i : i+32]
			if specials(word(t))|specials(word(t[8:]))|specials(word(t[16:]))|specials(word(t[24:])) != 0 {
				break
			}
		}
	}
	if len(s) >= 8 { // the last eight, some of them again
		i = len(s) - 8
		return i + bits.TrailingZeros64(specials(word(s[i:])))/8 // len(s) if all of them are plain
	}
	for i < len(s) && isPlain(s[i]) {
		i++
	}
	return i
}

// word is the first eight bytes of s, the first the lowest.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// specials looks at eight bytes at once: the lowest bit that is set in what it
// returns is the high bit of the first byte that is not plain.
//
// Adding 0x80-k to a byte of ASCII sets its high bit if the byte is at least k.
// Flipping bit 1 makes the quote 0x20, right above the control characters, which stay
// below it: one term is enough for both. The bracket and the backslash are neighbours. A byte
// that is not ASCII may carry into the bytes behind it: those do not count then.
func specials(v uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	aboveQuote := (v ^ ones*0x02) + ones*(0x80-0x21)
	fromBracket, aboveBackslash := v+ones*(0x80-'['), v+ones*(0x80-'\\'-1)
	return (v | ^aboveQuote | fromBracket&^aboveBackslash) & highs
}

func isPlain(c byte) bool {
	return c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' && c != '['
}
