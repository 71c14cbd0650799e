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
	// maxEvent bounds one event: the published asynchronous client parses each
	// network read by itself, and clients that read by line stop at 64 KiB.
	maxEvent = 4 << 10
	// maxWrite bounds what is queued for a stream, and so one write.
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
// Fragments that come slower than the connection takes them are written in
// place, by the engine's goroutine: waking another one for each costs more
// than the write. When several in a row came on the heels of a write, a
// goroutine is started that writes until it finds nothing more, and everything
// that is ready leaves together.
//
// The right to write is a token. Whoever has set writing, under the mutex, holds
// it: the engine's goroutine, the one started for a burst, or the keep-alive's
// timer. Nobody takes it of a stream that has stopped: then only the handler
// writes. The mutex itself is not held during a write, and no code of the host's
// is called with it.
//
// What every fragment needs comes first: of a thousand paced streams, none is in
// the processor's cache when its next fragment comes.
type stream struct {
	conn *connection

	mu        sync.Mutex
	queue     *batch // whole events that wait for the writer; nil if there are none
	text      textEncoder
	taken     int           // fragments, in the queue or behind it
	fragments int           // of them, how many were handed to the connection
	bytes     int64         // likewise
	wrote     time.Duration // when the last write ended
	rapid     int           // fragments in a row that came on the heels of a write
	writing   bool          // somebody holds the token
	stopped   bool          // no more fragments are taken

	committed bool // the head has been sent; used by who holds the token

	changes   sync.Cond        // there is room in the queue again, the token is free, or the stream has stopped
	lost      func(error) bool // told why nothing reaches the client any more
	keepAlive time.Duration
	silence   *time.Timer // for the next keep-alive
	burst     func()      // writeBurst, made once, so that starting it allocates nothing
}

const (
	// A fragment is rapid when it comes this soon after the write of the last.
	rapidGap = 50 * time.Microsecond
	// After so many in a row, a goroutine of their own writes them.
	rapidFragments = 3
)

// newStream returns a stream that may be writing already: a keep-alive. lost
// must not wait.
func newStream(conn *connection, keepAlive time.Duration, lost func(error) bool) *stream {
	s := &stream{conn: conn, lost: lost, keepAlive: keepAlive}
	s.changes.L = &s.mu
	s.burst = s.writeBurst
	s.mu.Lock() // the timer may run at once
	defer s.mu.Unlock()
	s.silence = time.AfterFunc(keepAlive, s.sendKeepAlive)
	return s
}

// fragment queues the events of one fragment and sees that they leave. It
// waits while the queue is full: a client that does not read holds its engine
// back.
func (s *stream) fragment(text string) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for first := true; first || text != ""; first = false {
		for s.queue.full() && !s.stopped {
			s.changes.Wait()
		}
		if s.stopped {
			return false
		}
		if first {
			s.taken++
		}
		if s.queue == nil {
			s.queue = newBatch("")
		}
		s.queue.data, text = s.text.appendEvent(s.queue.data, text)
		if text == "" || s.queue.full() {
			s.push()
		}
	}
	return !s.stopped
}

// push has the queue written, here or by a goroutine for rapid fragments.
// Whoever is writing already takes it along.
func (s *stream) push() {
	if s.writing {
		return
	}
	s.writing = true
	now := s.conn.elapsed()
	if now-s.wrote > rapidGap {
		s.rapid = 0
	}
	if s.rapid++; s.rapid > rapidFragments {
		go s.burst()
		return
	}
	s.writeQueue(now)
}

// writeBurst is given the token. The handler waits for it to come back.
func (s *stream) writeBurst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeQueue(s.conn.elapsed())
}

// writeQueue writes until nothing is queued, and gives the token back, even if
// the host's ResponseWriter ends this goroutine.
func (s *stream) writeQueue(now time.Duration) {
	defer func() {
		s.writing = false
		s.changes.Broadcast()
	}()
	for s.queue != nil {
		s.writeBatch(now)
		now = s.wrote
	}
}

// writeBatch writes what is queued now. A failed write is the end of the stream.
func (s *stream) writeBatch(now time.Duration) {
	b := s.queue
	s.queue = nil
	s.fragments, s.bytes = s.taken, s.text.bytes
	s.changes.Broadcast()
	s.mu.Unlock()
	defer func() {
		b.free(s.conn.failure)
		wrote := s.conn.elapsed()
		s.mu.Lock()
		s.wrote = wrote
		if s.conn.failure != nil {
			s.queue, s.stopped = nil, true
			s.lost(s.conn.failure)
		}
	}()
	_ = s.send(b.data, now) // conn.failure has it, also where send does not return
}

// send hands whole events to the client, behind the head if they are the first.
// It is called by who holds the token.
func (s *stream) send(events []byte, now time.Duration) error {
	return s.conn.within(now, func() error {
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

// sendKeepAlive sends a comment if the stream has been silent for long enough,
// and looks again when the next one may be due.
func (s *stream) sendKeepAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	now := s.conn.elapsed()
	next := s.wrote + s.keepAlive - now
	if next <= 0 && !s.writing {
		s.queue = newBatch(keepAliveLine)
		s.writing = true
		s.writeQueue(now)
	}
	if next <= 0 {
		next = s.keepAlive
	}
	if !s.stopped {
		s.silence.Reset(next)
	}
}

// settle waits for the token, which nobody takes any more: from now on, only the
// caller writes. Everything that was queued has been written then, or is lost.
func (s *stream) settle() (committed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.silence.Stop()
	s.changes.Broadcast()
	for s.writing {
		s.changes.Wait()
	}
	return s.committed
}

// finish sends the rest of the text, if the last character was cut off, and
// the terminator.
func (s *stream) finish() error {
	if s.conn.failure != nil {
		return s.conn.failure // and nothing more counts as sent
	}
	b := newBatch("")
	if s.text.holds() {
		b.data = s.text.appendLastEvent(b.data)
		s.bytes = s.text.bytes
	}
	b.data = append(b.data, doneEvent...)
	err := s.send(b.data, s.conn.elapsed())
	b.free(err)
	return err
}

// tellFailure sends an error event: most clients do not know it, but those
// that do learn why the connection is about to be cut.
func (s *stream) tellFailure(detail []byte) (told bool) {
	return s.send(slices.Concat([]byte(errorStart), detail, []byte("\n\n")), s.conn.elapsed()) == nil
}

func (s *stream) figures() (fragments int, bytes int64) { return s.fragments, s.bytes }

// A batch is what leaves together: whole events, or one body.
type batch struct{ data []byte }

// Batches are pooled, so that a silent stream holds none.
var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch(start string) *batch {
	b := batches.Get().(*batch)
	b.data = append(b.data[:0], start...)
	return b
}

// free keeps no buffer that only a rare, large answer needs, nor one whose write
// has failed: net/http may still read it then, on HTTP/2.
func (b *batch) free(failure error) {
	if failure == nil && cap(b.data) <= 2*maxWrite {
		batches.Put(b)
	}
}

// full is whether there is no room for another event of any size.
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

// appendLastEvent writes what is held back, which will never be a character.
func (e *textEncoder) appendLastEvent(dst []byte) []byte {
	dst = append(dst, eventStart...)
	dst = e.appendHeld(dst)
	return append(dst, eventEnd...)
}

func (e *textEncoder) holds() bool { return e.count > 0 }

// append writes as much of the text as leaves dst at most limit long, cut
// between characters. Room for one character more than is held back must be
// there.
func (e *textEncoder) append(dst []byte, text string, limit int) (_ []byte, rest string) {
	if e.count > 0 {
		dst, text = e.complete(dst, text)
	}
	for {
		run := plainPrefix(text[:min(len(text), limit-len(dst))])
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
		if len(longer) > limit {
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
		if !utf8.FullRune(start) {
			e.count = copy(e.held[:], start)
			return dst, ""
		}
		r, size := utf8.DecodeRune(start)
		dst = e.appendRune(dst, r)
		if size >= held {
			e.count = 0
			return dst, text[size-held:]
		}
		e.count = copy(e.held[:], joined[size:held])
	}
}

// appendHeld gives up on what is held back: no rest will come.
func (e *textEncoder) appendHeld(dst []byte) []byte {
	for ; e.count > 0; e.count-- {
		dst = e.appendRune(dst, utf8.RuneError)
	}
	return dst
}

// appendSpecial writes the first character of the text, which plainPrefix left.
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
// [DONE] in it, wherever it stands: in a text its bracket is escaped.
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
		return i + bits.TrailingZeros64(specials(word(s[i:])))/8
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
// What is added to a byte of ASCII brings it to 0x80 if it is large enough.
// Flipping bit 1 puts the quote right above the control characters, so that one
// term is enough for both; the bracket and the backslash are neighbours. What is
// not ASCII may carry into the bytes behind it, which do not count then.
func specials(v uint64) uint64 {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	aboveQuote := (v ^ ones*0x02) + ones*(0x80-0x21)
	fromBracket, aboveBackslash := v+ones*(0x80-'['), v+ones*(0x80-'\\'-1)
	return (v | ^aboveQuote | fromBracket&^aboveBackslash) & highs
}

func isPlain(c byte) bool {
	return c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' && c != '['
}
