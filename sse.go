package botapi

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"net/http"
	"os"
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
// The right to write is a token, writing, that is passed under the mutex; the
// mutex itself is not held during a write.
//
// What every fragment needs comes first: of a thousand paced streams, none is in
// the processor's cache when its next fragment comes.
type stream struct {
	chat *chat

	mu        sync.Mutex
	queue     *batch // whole events that wait for the writer; nil if there are none
	text      textEncoder
	fragments int // handed to the connection, as bytes
	bytes     int64
	began     time.Duration // when the last write did
	wrote     time.Duration // when it ended
	rapid     int           // fragments in a row that came on the heels of a write
	writing   bool          // somebody has the right to write
	over      bool          // no more fragments are taken
	awaited   bool          // somebody waits for a change

	committed bool // this and warned are used by who has the right to write
	warned    bool

	err         error     // why it is over; nil if the answer is whole
	changes     sync.Cond // there is room in the queue again, nobody writes any more, or the answer is over
	rapidWriter func()
	silence     *time.Timer // for the next keep-alive
}

var _ answer = (*stream)(nil)

const (
	// A fragment is rapid when it comes this soon after the write of the last.
	rapidGap = 50 * time.Microsecond
	// After so many in a row, a goroutine of their own writes them.
	rapidFragments = 3
)

func newStream(c *chat) *stream {
	s := &stream{chat: c, wrote: c.elapsed()}
	s.changes.L = &s.mu
	s.mu.Lock() // the timer may run at once
	defer s.mu.Unlock()
	s.silence = time.AfterFunc(c.keepAlive, s.breakSilence)
	return s
}

// fragment queues the events of one fragment and sees that they leave. It
// waits while the queue is full: a client that does not read holds its engine
// back.
func (s *stream) fragment(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.fragments == 0 && s.chat.engineContext.cause() != nil {
		return false // not to commit an answer that is about to end without
	}
	s.chat.hear(text)
	for piece := 0; piece == 0 || text != ""; piece++ {
		for s.queue.full() && !s.over {
			s.await()
		}
		if s.over {
			return false
		}
		text = s.enqueue(text)
		if piece == 0 {
			s.queue.fragments++
		}
		if text == "" || s.queue.full() {
			s.push()
		}
	}
	return !s.over
}

// enqueue appends one event with as much of the text as fits, and returns the
// rest.
func (s *stream) enqueue(text string) (rest string) {
	if s.queue == nil {
		s.queue = newBatch()
	}
	before := s.text.bytes
	s.queue.data, rest = s.text.appendEvent(s.queue.data, text)
	s.queue.bytes += s.text.bytes - before
	return rest
}

// push has the queue written, here or by a goroutine for rapid fragments.
// Whoever is writing already takes it along.
func (s *stream) push() {
	if s.writing {
		return
	}
	s.writing = true
	now := s.chat.elapsed()
	if now-s.wrote > rapidGap {
		s.rapid = 0
	}
	if s.rapid++; s.rapid <= rapidFragments {
		s.drain(now)
		return
	}
	if s.rapidWriter == nil {
		s.rapidWriter = s.writeRapid // once, so that starting it allocates nothing
	}
	go s.rapidWriter()
}

// writeRapid has the right to write. The answer does not conclude before it
// has given it back.
func (s *stream) writeRapid() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(s.chat.elapsed())
}

// drain writes until nothing is queued, and gives the right to write back.
func (s *stream) drain(now time.Duration) {
	for s.queue != nil {
		b := s.queue
		s.queue = nil
		s.fragments += b.fragments
		s.bytes += b.bytes
		s.began = now
		s.changed()

		s.mu.Unlock()
		err := s.write(b.data, now)
		b.free()
		now = s.chat.elapsed()
		s.mu.Lock()

		if err != nil {
			s.dropQueue()
			s.lose(err)
		}
	}
	s.writing = false
	s.wrote = now
	s.changed()
}

// await waits for a change.
func (s *stream) await() {
	s.awaited = true
	s.changes.Wait()
}

func (s *stream) changed() {
	if s.awaited {
		s.awaited = false
		s.changes.Broadcast()
	}
}

// lose ends an answer that nobody takes any more. Middleware that ends the
// context may also be what makes a write fail.
func (s *stream) lose(err error) {
	if cause := s.chat.engineContext.cause(); cause != nil && !errors.Is(cause, errClientLeft) {
		err = cause
	}
	if s.stopLocked(err) {
		s.chat.engineContext.end()
		s.chat.concludeSoon()
	} else if s.err == nil {
		s.err = err // the engine had finished, but the last of it was not taken
	}
}

func (s *stream) dropQueue() {
	if s.queue != nil {
		s.queue.free()
		s.queue = nil
	}
}

// write hands whole events to the client, after the headers if they are the
// first. It is called by who has the right to write.
func (s *stream) write(events []byte, now time.Duration) error {
	if !s.committed {
		s.committed = true
		if err := s.chat.conn.attempt(s.commit, now); err != nil {
			return err
		}
	}
	err := s.chat.conn.write(events, true, now)
	if s.chat.conn.unflushing && !s.warned {
		s.warned = true
		s.chat.log(s.chat.ctx, slog.LevelWarn, "the ResponseWriter cannot flush: the stream is delivered whole at its end")
	}
	return err
}

func (s *stream) commit() error {
	header := s.chat.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-transform")
	header.Set("X-Accel-Buffering", "no")
	s.chat.w.WriteHeader(http.StatusOK)
	return nil
}

func (s *stream) stop(err error) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(err, errClientLeft) && !s.over {
		if s.writing && s.chat.conn.stalledSince(s.began) { // net/http ends the context too
			err = errClientStalled
		}
		s.chat.conn.breakOff()
	}
	return s.stopLocked(err)
}

func (s *stream) stopLocked(err error) (first bool) {
	if s.over {
		return false
	}
	s.over, s.err = true, err
	s.changed()
	s.chat.stopped()
	return true
}

// breakSilence sends a comment if the stream has been silent for long enough,
// and looks again when the next one may be due.
func (s *stream) breakSilence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	next := s.chat.keepAlive
	now := s.chat.elapsed()
	if silent := now - s.wrote; !s.writing && silent >= next {
		s.queue = newBatch()
		s.queue.data = append(s.queue.data, keepAliveLine...)
		s.writing = true
		s.drain(now)
	} else if !s.writing {
		next -= silent
	}
	if !s.over {
		s.silence.Reset(next)
	}
}

// conclude sends what belongs at the end of the answer, when nobody writes any
// more; nothing more is queued then.
func (s *stream) conclude() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silence.Stop()
	for s.writing {
		s.await()
	}
	if s.err == nil {
		s.err = s.finish()
	} else if s.committed {
		s.breakVisibly()
	}
	status := http.StatusOK
	if !s.committed {
		status = s.chat.fail(s.err)
	}
	return outcome{status, s.fragments, s.bytes, s.err}
}

// finish sends the rest of the text, if the last character was cut off, and
// the terminator.
func (s *stream) finish() error {
	b := newBatch()
	defer b.free()
	if s.text.holds() {
		b.data = s.text.appendLastEvent(b.data)
		s.bytes = s.text.bytes
	}
	b.data = append(b.data, doneEvent...)
	return s.write(b.data, s.chat.elapsed())
}

// breakVisibly sends an error event, if there is still somebody to read it, and
// has the connection cut behind it: most clients know neither sign, and none
// must take the answer for a whole one.
func (s *stream) breakVisibly() {
	s.chat.cut = true
	if isLost(s.err) {
		return
	}
	s.chat.logError(s.chat.ctx, "stream broken off", s.err)
	event := append([]byte(errorStart), statusOf(s.err).body()...)
	s.chat.broken = s.write(append(event, "\n\n"...), s.chat.elapsed()) == nil
}

// A batch is whole events that leave together.
type batch struct {
	data      []byte
	fragments int
	bytes     int64 // of text
}

// Batches are pooled, so that a silent stream holds none.
var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch() *batch {
	b := batches.Get().(*batch)
	b.data, b.fragments, b.bytes = b.data[:0], 0, 0
	return b
}

// free keeps no buffer that only a rare, large answer needs.
func (b *batch) free() {
	if cap(b.data) <= 2*maxWrite {
		batches.Put(b)
	}
}

// full is whether there is no room for another event of any size.
func (b *batch) full() bool {
	return b != nil && len(b.data) > maxWrite-maxEvent
}

// A connection writes to one client, each write within WriteTimeout. One
// goroutine at a time uses it, but for breakOff.
type connection struct {
	x     *exchange
	until time.Duration // the deadline that is set, zero if none is
	// brief is set where a deadline that passes between two writes would end
	// the answer, as on HTTP/2: there it is lifted after each write.
	brief      bool
	unflushing bool // the writer cannot flush: everything leaves at the end

	mu    sync.Mutex // held while a deadline is set
	fixed bool       // no deadline is set any more: by breakOff, or since the writer cannot
}

// newConnection lifts the server's ReadTimeout and WriteTimeout, which are
// meant for requests, not for answers that a model is still writing. Where each
// write sets a deadline of its own, that is enough for the second.
func newConnection(x *exchange) connection {
	brief := x.r.ProtoMajor != 1
	_ = x.attempt(func() error { return x.control.SetReadDeadline(time.Time{}) }) // unsupported: then the host's writer has none to lift
	if brief || x.writeTimeout <= 0 {
		_ = x.attempt(func() error { return x.control.SetWriteDeadline(time.Time{}) })
	}
	return connection{x: x, brief: brief}
}

// write hands p to the writer; with flush, it is on its way to the client when
// write returns. A write that fails, or whose writer panics, is the end of the
// connection: the error says whether the client left or stopped reading.
func (c *connection) write(p []byte, flush bool, now time.Duration) error {
	c.arm(now)
	if err := c.hand(p, flush); err != nil {
		return c.lost(err, now)
	}
	if c.brief {
		c.setDeadline(0)
	}
	return nil
}

func (c *connection) hand(p []byte, flush bool) (err error) {
	defer c.x.survive(&err)
	if _, err = c.x.w.Write(p); err != nil || !flush {
		return err
	}
	return c.flush() // a write may fail only now, though Write has returned nil
}

// attempt is exchange.attempt within WriteTimeout. One that fails is the end of
// the connection.
func (c *connection) attempt(call func() error, now time.Duration) error {
	c.arm(now)
	if err := c.x.attempt(call); err != nil {
		return c.lost(err, now)
	}
	return nil
}

// arm sees that a write that begins now has its whole timeout, and little
// more. On HTTP/1 the deadline is moved only once in a while, since moving it
// costs.
func (c *connection) arm(now time.Duration) {
	timeout := c.x.writeTimeout
	if timeout <= 0 {
		return
	}
	if c.brief || c.until < now+timeout {
		c.setDeadline(now + timeout + min(timeout/8, time.Second))
	}
}

// setDeadline has no effect on a connection that was broken off, nor on a
// writer of the host's that has no deadlines: it has bounds of its own.
func (c *connection) setDeadline(until time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fixed {
		return
	}
	var deadline time.Time
	if until > 0 {
		deadline = c.x.began.Add(until)
	}
	c.until = until
	c.fixed = c.x.attempt(func() error { return c.x.control.SetWriteDeadline(deadline) }) != nil
}

// sendWhole sends a JSON body in writes of bounded size, each with its own
// timeout. It is on its way when OnChat is called, which may take long.
func (c *connection) sendWhole(body []byte) error {
	now := c.x.elapsed()
	err := c.attempt(func() error {
		c.x.setJSONHeaders(http.StatusOK, len(body))
		return nil
	}, now)
	for err == nil && len(body) > maxWrite {
		err = c.write(body[:maxWrite], false, now)
		body, now = body[maxWrite:], c.x.elapsed()
	}
	if err != nil {
		return err
	}
	return c.write(body, c.x.onChat != nil, now)
}

func (c *connection) flush() error {
	if c.unflushing {
		return nil
	}
	err := c.x.control.Flush()
	if errors.Is(err, http.ErrNotSupported) {
		c.unflushing = true
		return nil
	}
	return err
}

// lost explains the failure of a write that began then: nothing more reaches
// the client.
func (c *connection) lost(err error, began time.Duration) error {
	c.x.cut = true
	if c.stalledSince(began) {
		return fmt.Errorf("%w: %w", errClientStalled, err)
	}
	return fmt.Errorf("%w: %w", errClientLeft, err)
}

func (c *connection) stalledSince(began time.Duration) bool {
	return c.x.writeTimeout > 0 && c.x.elapsed()-began >= c.x.writeTimeout
}

// breakOff makes a write in progress fail, and every later one. Any goroutine
// may call it, as long as the handler has not returned.
func (c *connection) breakOff() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fixed = true
	_ = c.x.attempt(func() error { return c.x.control.SetWriteDeadline(time.Unix(1, 0)) })
}

// errClientStalled is why a chat ended whose client did not read.
var errClientStalled = fmt.Errorf("the client did not read: %w", os.ErrDeadlineExceeded)

// isLost tells the ends after which there is nobody to write to.
func isLost(err error) bool {
	return errors.Is(err, errClientLeft) || errors.Is(err, errClientStalled)
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
	for text != "" {
		run := plainPrefix(text[:min(len(text), limit-len(dst))])
		dst = append(dst, text[:run]...)
		e.bytes += int64(run)
		if text = text[run:]; text == "" {
			break
		}
		if text[0] >= utf8.RuneSelf && !utf8.FullRuneInString(text) {
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
	return dst, ""
}

// complete joins the held bytes with what the text begins with.
func (e *textEncoder) complete(dst []byte, text string) (_ []byte, rest string) {
	for e.count > 0 {
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
	return dst, text
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
