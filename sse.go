package botapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/botapi/internal/connection"
	"example.com/botapi/internal/jsontext"
	"example.com/botapi/internal/panics"
)

// A StreamFormat writes one answer as a stream, in the events of one protocol. It belongs
// to one answer: what a protocol counts or repeats is a field of it. No call says that the
// stream begins: what a protocol sends before the first text comes with the first call,
// whichever that is.
//
// The handler calls one method at a time, each from the goroutine that may write then, and
// sends what the method has appended. It holds no lock meanwhile. A method must not wait for
// anything: no timeout ends it, and the chat keeps its slot. A method that panics, or
// returns an error, is a failure of the answer as an engine's is: before anything has been
// sent, the client gets an error response; after it, the connection is aborted, without a
// call of AppendError.
type StreamFormat interface {
	// ContentType is that of the response. It is called first, and once.
	ContentType() string

	// AppendText appends one event with text. text is the inside of a JSON string, without
	// its quotes: whole characters, escaped where JSON needs it, at most 4 KiB, and valid
	// until AppendText returns. It is empty for an empty fragment, and while only the beginning
	// of a character has come.
	AppendText(dst, text []byte) ([]byte, error)

	// AppendKeepAlive appends what shows a silent stream to be alive. It may append
	// nothing.
	AppendKeepAlive(dst []byte) []byte

	// End returns the end of a complete answer, in chunks of any size, which the handler
	// does not change. Its context has the request's values. What the engine has noted there, such as
	// its token counts, is final.
	End(ctx context.Context) iter.Seq[[]byte]

	// AppendError appends what the client gets in place of the end, before the connection
	// is aborted.
	AppendError(dst []byte, f Failure) []byte
}

const (
	// maxEvent bounds one event with text. (An error event is as long as the
	// application's Detail.) Clients that read by line stop at 64 KiB. The published
	// asynchronous Python client parses each network read separately, and fails at an
	// event that is split between two reads: a short one is split less often.
	maxEvent = 4 << 10
	// maxText is how much text AppendText gets at most: as much as an event of the API's own.
	maxText = maxEvent - len(eventStart) - len(eventEnd)
	// maxWrite bounds one write of a stream, in the API's own format; another may add what it has
	// around a text, and an error event is as long as it is. A stream holds two at most: one that
	// is being written, and one that is queued.
	maxWrite = 16 << 10
	// endRoom is what a write leaves for the end of a complete answer: the event of a
	// character that is still incomplete, and the terminator.
	endRoom = 64
	// fullBatch is how long the events of a write are when there is no room for another
	// event and the end of an answer.
	fullBatch = maxWrite - maxEvent - endRoom
	// maxQueued bounds what is queued before another fragment is taken: about one write, if
	// nothing needs escaping.
	maxQueued = fullBatch
	// maxAccepted bounds what is queued when fragment returns: one more event. With a longer
	// text, fragment waits until the beginning has been formatted.
	maxAccepted = maxQueued + maxEvent

	eventStart = `data: {"content":"`
	eventEnd   = "\"}\n\n"
	doneEvent  = "data: [DONE]\n\n"
	errorStart = "event: error\ndata: "
	// A keep-alive has no blank line of its own: widely used clients fail on an event
	// without data.
	keepAliveLine = ": keep-alive\n"
)

// The API's own format, which has no state.
type ownFormat struct{}

func (ownFormat) ContentType() string { return "text/event-stream" }

func (ownFormat) AppendText(dst, text []byte) ([]byte, error) {
	return append(append(append(dst, eventStart...), text...), eventEnd...), nil
}

func (ownFormat) AppendKeepAlive(dst []byte) []byte { return append(dst, keepAliveLine...) }

func (ownFormat) End(context.Context) iter.Seq[[]byte] { return ownEnd }

func ownEnd(yield func([]byte) bool) { yield(doneLine) }

var doneLine = []byte(doneEvent)

func (ownFormat) AppendError(dst []byte, f Failure) []byte {
	return append(append(append(dst, errorStart...), f.eventData()...), "\n\n"...)
}

// eventData is the JSON of an error event, with what the head of a response would say.
func (f *Failure) eventData() []byte {
	data := fmt.Appendf(jsontext.AppendString([]byte(`{"detail":`), f.Detail), `,"status":%d`, f.Status)
	if seconds := wholeSeconds(f.RetryAfter); seconds > 0 {
		data = fmt.Appendf(data, `,"retry_after":%d`, seconds)
	}
	return append(data, '}')
}

// A stream is one streamed answer on its way to the client.
//
// A fragment that comes when the connection is idle is written in place, by the goroutine
// that yields it: waking another goroutine for each fragment costs more than the write.
// After several writes in a row, each immediately after the previous one, a goroutine is
// started that writes until the queue is empty (a burst), so that fragments that are ready
// together are written together. The write that sends the head, if a fragment causes it, is
// made by a burst, too (writeFirst).
//
// The right to write is a token. While writing is true, one goroutine holds it: the one
// that yields, the keep-alive timer's, or a burst. The holder formats and writes without
// mu. The token is taken only while the stream is open. close waits until it is free: from
// then on, only the handler writes.
//
// While an open stream's token is free, nothing is queued: so a keep-alive never waits, nor
// comes between the events of one fragment. A goroutine that adds to the queue takes the token
// if it is free, before it releases mu; otherwise the holder of the token writes until the
// queue is empty.
type stream struct {
	// Set by newStream.
	chat      *chat
	conn      *connection.Connection
	format    StreamFormat
	joins     bool // fragments that are ready together are one text
	keepAlive time.Duration
	burst     func()    // writeBurst, so that starting it allocates nothing
	changed   sync.Cond // with mu: queued has shrunk, the token was returned, or the stream was closed

	mu sync.Mutex

	// Guarded by mu. Once close has returned, owned by the handler's goroutine: a late fragment
	// or timer finds closed set, and changes nothing.
	closed         bool          // no more fragments are accepted, nor does the token's holder write more of the queue
	queue          *textQueue    // fragments that nobody has begun to format; nil if there are none
	queued         int           // the weight of the text, in queue and formatting, that is not formatted yet
	wrote          time.Duration // when the last write ended; at first, the request's start
	takesInARow    int           // how often a fragment has taken the token, each but the first within quickGap of the last write's end
	writing        bool          // the token is taken
	keepAliveTimer *time.Timer

	// Owned by the holder of the token. Once close has returned, owned by the handler's goroutine.
	formatting  *textQueue // fragments that are being formatted; nil if there are none
	hasType     bool       // contentType is that of the format
	contentType string
	encoder     jsontext.Encoder
	begun       int     // fragments whose formatting has begun
	sent        int     // fragments of which a write has begun
	sentBytes   int64   // text of which a write has begun
	headBegun   bool    // the sending of the head has begun
	failed      *ending // the first failure of the format or of a write, or nil. Check it before calling either again
}

const (
	// quickGap is how soon after the last write a fragment takes the token in a row with it.
	quickGap = 50 * time.Microsecond
	// The first burstAfter takes of a row are written in place (or by writeFirst), the others
	// by bursts.
	burstAfter = 3
)

// newStream starts the keep-alive timer, which may write to the connection.
func newStream(c *chat, format StreamFormat, joins bool) *stream {
	x := c.exchange
	s := &stream{chat: c, conn: &x.conn, format: format, joins: joins, keepAlive: x.handler.options.KeepAlive}
	s.changed.L = &s.mu
	s.burst = s.writeBurst
	s.mu.Lock() // sendKeepAlive uses the timer, and may run before it is assigned
	defer s.mu.Unlock()
	s.keepAliveTimer = time.AfterFunc(s.keepAlive, s.sendKeepAlive)
	return s
}

// fragment queues one fragment, and has it written. It waits while the queue is full, so
// that a client that does not read slows its engine down.
func (s *stream) fragment(text string) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && s.queued > maxQueued {
		s.changed.Wait()
	}
	if s.closed {
		return false
	}
	if s.queue == nil {
		s.queue = newTextQueue()
	}
	s.queue.texts = append(s.queue.texts, text)
	s.queued += weight(text)
	if !s.writing {
		s.startWriting()
	}
	for !s.closed && s.queued > maxAccepted { // the fragment is larger than the queue
		s.changed.Wait()
	}
	return !s.closed
}

// weight is what a fragment counts as: its text, and what an event has around it.
func weight(text string) int { return len(text) + len(eventStart) + len(eventEnd) }

// writeBurst is started with the token taken. close waits for it.
func (s *stream) writeBurst() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeQueue()
}

// From here to unlockAndWrite, functions are called with mu held and return with mu held, but
// most release it while they format, write or wait: what was read before may have changed.
// (complete and sendError call takeQueue without mu, since they come after close.)

// startWriting takes the token, and writes or hands it to a burst.
func (s *stream) startWriting() {
	s.writing = true
	now := s.conn.Elapsed()
	if now-s.wrote > quickGap {
		s.takesInARow = 0
	}
	s.takesInARow++
	switch {
	case s.takesInARow > burstAfter:
		go s.burst()
	case !s.headBegun:
		s.writeFirst()
	default:
		s.writeQueue()
	}
}

// writeFirst has a burst write the head and the queue, and waits until the token is free,
// as if the write were in place: so the first yield, too, returns false if the client has
// disconnected. For a head, net/http needs 3 KiB of stack: the stack of the engine's
// goroutine would grow to 8 KiB, and a silent stream would keep it.
func (s *stream) writeFirst() {
	go s.burst() // which holds the token from here on
	for s.writing {
		s.changed.Wait()
	}
}

// writeQueue is called by the holder of the token. It gives the token back in any case.
func (s *stream) writeQueue() {
	defer s.returnToken()
	for !s.closed && s.takeQueue() {
		s.writeBatch((*stream).addTexts)
	}
}

func (s *stream) writeKeepAlive() {
	s.writing = true
	defer s.writeQueue() // what has come meanwhile; it returns the token
	s.writeBatch(func(s *stream, b *batch) error {
		b.data = s.format.AppendKeepAlive(b.data)
		return nil
	})
}

func (s *stream) returnToken() {
	s.writing = false
	s.changed.Broadcast()
}

// takeQueue reports whether there is text to format: what is left of the last queue, or the
// next one.
func (s *stream) takeQueue() bool {
	if s.formatting == nil {
		s.formatting, s.queue = s.queue, nil
	}
	return s.formatting != nil
}

// writeBatch formats and writes what add adds to a batch, if anything. An engine that waits
// for room goes on when the write begins.
func (s *stream) writeBatch(add func(*stream, *batch) error) {
	b, failed := newBatch(), goroutineEnded // unless formatAndWrite returns
	defer func() {
		if failed != nil {
			s.closed, s.failed = true, failed // s.failed is set already, unless the ResponseWriter has ended the goroutine
			s.chat.stop(failed)
		} else {
			b.free()
		}
	}()
	failed = s.formatAndWrite(b, add)
}

func (s *stream) formatAndWrite(b *batch, add func(*stream, *batch) error) *ending {
	if failed := s.unlockAndFormat(b, add); failed != nil {
		return failed
	}
	s.queued -= b.took
	s.changed.Broadcast()
	return s.unlockAndWrite(b)
}

// goroutineEnded is the ending if a format, or the ResponseWriter, calls runtime.Goexit.
var goroutineEnded = failureOf(errors.New("a stream's format, or its ResponseWriter, ended the goroutine with runtime.Goexit"))

// unlockAndFormat releases mu while it formats, unlockAndWrite while it writes.
func (s *stream) unlockAndFormat(b *batch, add func(*stream, *batch) error) *ending {
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.callFormat(func() error { return add(s, b) })
}

func (s *stream) unlockAndWrite(b *batch) *ending {
	if len(b.data) == 0 { // the format writes nothing
		return nil
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.wrote = s.conn.Elapsed()
	}()
	return s.write(b.data, 0)
}

// callFormat calls methods of the format, by way of call, which may also write. It returns the
// first failure of either.
func (s *stream) callFormat(call func() error) (failed *ending) {
	failed = goroutineEnded // unless call returns
	defer func() {
		failed = cmp.Or(s.failed, failed)
		s.failed = failed
	}()
	err := panics.Catch("formatting a stream", func() error {
		if !s.hasType {
			s.contentType, s.hasType = s.format.ContentType(), true
		}
		return call()
	})
	if err != nil {
		return failureOf(err)
	}
	return nil
}

// addTexts adds events until the batch is full or all texts are formatted.
func (s *stream) addTexts(b *batch) (err error) {
	for s.formatting != nil && !b.isFull() && err == nil {
		err = s.addEvent(b)
	}
	return err
}

// addEvent adds one event with as much text as it has room for. The API's own is written
// without a copy of the text: that is a tenth of a fragment's time.
func (s *stream) addEvent(b *batch) (err error) {
	b.grow()
	if _, isOwn := s.format.(ownFormat); isOwn {
		limit := len(b.data) + maxEvent - len(eventEnd)
		b.data = append(s.appendText(append(b.data, eventStart...), limit, b), eventEnd...)
		return nil
	}
	b.inside = s.appendText(b.inside[:0], maxText, b)
	for s.joins && s.formatting != nil && !s.formatting.isCut && len(b.inside) < maxText-maxRune {
		b.inside = s.appendText(b.inside, maxText, b)
	}
	b.data, err = s.format.AppendText(b.data, b.inside)
	return err
}

// appendText takes the next text, or as much of it as leaves dst at most limit bytes long.
func (s *stream) appendText(dst []byte, limit int, b *batch) []byte {
	q := s.formatting
	text := q.texts[q.next]
	dst, rest := s.encoder.Append(dst, text, limit)
	b.took += len(text) - len(rest)
	if !q.isCut {
		s.begun++
		b.took += weight("")
	}
	if rest != "" {
		q.texts[q.next], q.isCut = rest, true
		return dst
	}
	q.isCut = false
	if q.next++; q.next == len(q.texts) {
		q.free()
		s.formatting = nil
	}
	return dst
}

// maxRune is enough for one character inside a JSON string, and what came before it of an
// incomplete one.
const maxRune = 12

// write sends events within the time of a write or, if deadline is not 0, before that. After
// a failure, the events must not be changed: on HTTP/2, net/http may still read them; and
// write must not be called again.
func (s *stream) write(events []byte, deadline time.Duration) *ending {
	s.sent, s.sentBytes = s.begun, s.encoder.Written()
	s.failed = writeFailed(s.conn.Write(deadline, func(w http.ResponseWriter) error { return s.writeEvents(w, events) }))
	return s.failed
}

func (s *stream) writeEvents(w http.ResponseWriter, events []byte) error {
	if !s.headBegun {
		s.headBegun = true
		header := w.Header()
		s.chat.setStreamHead(header)
		header.Set("Content-Type", s.contentType)
		header.Set("Cache-Control", "no-cache, no-transform")
		header.Set("X-Accel-Buffering", "no")
		w.WriteHeader(http.StatusOK)
	}
	if _, err := w.Write(events); err != nil {
		return err
	}
	return s.conn.Flush()
}

// sendKeepAlive is called by the timer.
func (s *stream) sendKeepAlive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	next := s.wrote + s.keepAlive - s.conn.Elapsed()
	due := next <= 0
	if due && !s.writing {
		s.writeKeepAlive()
	}
	if due { // if the token is taken, somebody is writing
		next = s.keepAlive
	}
	if !s.closed {
		s.keepAliveTimer.Reset(next)
	}
}

// close waits for the write in progress. What is queued is left to complete or sendError.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.keepAliveTimer.Stop()
	s.changed.Broadcast()
	for s.writing {
		s.changed.Wait()
	}
}

// complete writes what is queued, an incomplete character that is held back, and the end:
// all together, if it is short.
func (s *stream) complete(ctx context.Context) *ending {
	if s.failed != nil { // a burst or a keep-alive has failed after stop(answerComplete): its own stop did not count
		return s.failed
	}
	b, failed := s.writeTexts(math.MaxInt, 0)
	if failed != nil {
		return failed
	}
	failed = s.callFormat(func() (err error) {
		if s.encoder.Holds() {
			b.inside = s.encoder.AppendHeld(b.inside[:0])
			if b.data, err = s.format.AppendText(b.data, b.inside); err != nil {
				return err
			}
		}
		s.format.End(ctx)(func(chunk []byte) bool { // not with range, which panics if yield is called after it has returned false
			return s.failed == nil && s.addChunk(&b, chunk)
		})
		return nil
	})
	if failed != nil {
		return failed
	}
	return s.flush(b, 0)
}

// writeTexts writes what is queued, except for the last batch, which it returns. It ends
// when it has taken about atMost from the queue.
func (s *stream) writeTexts(atMost int, deadline time.Duration) (*batch, *ending) {
	b := newBatch()
	for s.takeQueue() && atMost > 0 {
		if b.isFull() {
			atMost -= b.took
			if failed := s.flush(b, deadline); failed != nil {
				return nil, failed
			}
			b = newBatch()
			continue
		}
		if failed := s.callFormat(func() error { return s.addEvent(b) }); failed != nil {
			return nil, failed
		}
	}
	return b, nil
}

// flush writes a batch, if only the head of the response.
func (s *stream) flush(b *batch, deadline time.Duration) (failed *ending) {
	if len(b.data) > 0 || !s.headBegun {
		failed = s.write(b.data, deadline)
	}
	if failed == nil {
		b.free()
	}
	return failed
}

// addChunk adds a chunk of the end to a batch, and writes what does not fit.
func (s *stream) addChunk(b **batch, chunk []byte) (ok bool) {
	for part := range slices.Chunk(chunk, maxWrite) {
		if len((*b).data)+len(part) > maxWrite {
			if s.flush(*b, 0) != nil {
				return false
			}
			*b = newBatch()
		}
		(*b).data = append((*b).data, part...)
	}
	return true
}

// sendError writes what is queued and, unless f is nil, the error.
func (s *stream) sendError(f *Failure, deadline time.Duration) (sent bool, failed *ending) {
	if s.failed != nil || s.conn.Elapsed() >= deadline {
		return false, nil
	}
	// Of a long last text, whose yield was still waiting, only the beginning is sent: about
	// maxAccepted, which is the most that is queued when yields return.
	b, failed := s.writeTexts(maxAccepted, deadline)
	if failed == nil && f != nil {
		failed = s.callFormat(func() error { b.data = s.format.AppendError(b.data, *f); return nil })
	}
	if failed == nil {
		failed = s.flush(b, deadline)
	}
	return failed == nil, failed
}

func (s *stream) drop() { s.queue, s.formatting = nil, nil }

func (s *stream) figures() (fragments int, bytes int64) { return s.sent, s.sentBytes }

// A textQueue has fragments in order. It is pooled: a silent stream holds none.
type textQueue struct {
	texts []string
	next  int  // the first that is not formatted
	isCut bool // the beginning of that one is in an earlier event: only its rest is left
}

var textQueues = sync.Pool{New: func() any { return new(textQueue) }}

func newTextQueue() *textQueue { return textQueues.Get().(*textQueue) }

func (q *textQueue) free() {
	clear(q.texts)
	*q = textQueue{texts: q.texts[:0]}
	textQueues.Put(q)
}

// A batch is the events of one write of a stream. It is pooled: a silent stream holds none.
type batch struct {
	data   []byte
	inside []byte // of the event that is being formatted
	took   int    // how much less is queued
}

var batches = sync.Pool{New: func() any { return new(batch) }}

func newBatch() *batch {
	b := batches.Get().(*batch)
	b.data, b.took = b.data[:0], 0
	return b
}

// free returns the batch to the pool. A large one, which few need, is dropped.
func (b *batch) free() {
	if cap(b.data) <= maxWrite {
		batches.Put(b)
	}
}

func (b *batch) isFull() bool { return len(b.data) > fullBatch }

// grow makes room for one event; append could make the batch larger than maxWrite.
func (b *batch) grow() {
	if cap(b.data)-len(b.data) < maxEvent && cap(b.data) < maxWrite {
		b.data = append(make([]byte, 0, min(2*cap(b.data)+maxEvent, maxWrite)), b.data...)
	}
}
