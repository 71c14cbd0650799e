package botapi

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A wire is a connection in memory between a real server and a client that the
// test plays: the client reads as much as the test says, when the test says so, and has
// no goroutine of its own. The server's end is a net.Conn with deadlines.
type wire struct {
	mu      sync.Mutex
	changed sync.Cond

	toServer     []byte
	halfClosed   bool // the client will send no more
	disconnected bool // the client has closed its connection

	waiting []byte // written by the server, not yet read by the client
	reading bool   // the client reads everything immediately
	client  client
	wrote   time.Time // when the server last wrote

	closed                      bool // by the server
	closedAt                    time.Time
	readDeadline, writeDeadline time.Time
}

// wireRoom is how many bytes the network buffers for a client that does not read.
const wireRoom = 100

// A client parses what the server sends. It may reply immediately, as HTTP/2 requires.
type client interface {
	take(p []byte) (reply []byte)
	end() // the connection was closed
	answer() *clientRead
}

func newWire(c client, request []byte) *wire {
	w := &wire{client: c, toServer: request, reading: true, wrote: time.Now()}
	w.changed.L = &w.mu
	return w
}

// change makes a change under the mutex, and wakes the server.
func (w *wire) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	w.changed.Broadcast()
}

// deliver passes at most n of the waiting bytes to the client. The caller holds the mutex.
func (w *wire) deliver(n int) {
	n = min(n, len(w.waiting))
	w.toServer = append(w.toServer, w.client.take(w.waiting[:n])...)
	w.waiting = w.waiting[n:]
	if w.closed && len(w.waiting) == 0 {
		w.client.end()
	}
}

func (w *wire) Read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case w.closed:
			return 0, net.ErrClosed
		case passed(w.readDeadline):
			return 0, os.ErrDeadlineExceeded
		case len(w.toServer) > 0 && !w.disconnected:
			n := copy(p, w.toServer)
			w.toServer = w.toServer[n:]
			return n, nil
		case w.disconnected || w.halfClosed:
			return 0, io.EOF
		}
		w.await(w.readDeadline)
	}
}

func (w *wire) Write(p []byte) (written int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case w.closed:
			return written, net.ErrClosed
		case w.disconnected:
			return written, syscall.EPIPE
		case passed(w.writeDeadline):
			return written, os.ErrDeadlineExceeded
		}
		n := len(p) - written
		if !w.reading {
			n = min(n, max(0, wireRoom-len(w.waiting)))
		}
		if n > 0 {
			w.waiting = append(w.waiting, p[written:written+n]...)
			w.wrote = time.Now()
			if w.reading {
				w.deliver(len(w.waiting))
				w.changed.Broadcast() // the client may have replied
			}
		}
		if written += n; written == len(p) {
			return written, nil
		}
		w.await(w.writeDeadline)
	}
}

func (w *wire) Close() error {
	w.change(func() {
		w.closed, w.closedAt = true, time.Now()
		if len(w.waiting) == 0 {
			w.client.end()
		}
	})
	return nil
}

func (w *wire) LocalAddr() net.Addr  { return &net.UnixAddr{Name: "memory", Net: "memory"} }
func (w *wire) RemoteAddr() net.Addr { return w.LocalAddr() }

func (w *wire) SetReadDeadline(t time.Time) error {
	w.change(func() { w.readDeadline = t })
	return nil
}

func (w *wire) SetWriteDeadline(t time.Time) error {
	w.change(func() { w.writeDeadline = t })
	return nil
}

func (w *wire) SetDeadline(t time.Time) error {
	_ = w.SetReadDeadline(t)
	return w.SetWriteDeadline(t)
}

func passed(deadline time.Time) bool { return !deadline.IsZero() && !time.Now().Before(deadline) }

// await waits for a change, or for the deadline.
func (w *wire) await(deadline time.Time) {
	if !deadline.IsZero() {
		defer time.AfterFunc(time.Until(deadline), func() { w.change(func() {}) }).Stop()
	}
	w.changed.Wait()
}

// A clientRead is what a client has read of a response.
type clientRead struct {
	stream bool // a stream is expected

	status   int    // 0: none yet
	complete bool   // by the protocol
	aborted  bool   // by the protocol, or the connection was closed before the end
	body     []byte // not yet parsed

	text       string // of the bot
	keepAlives int
	done       bool   // the answer itself says that it is complete
	failure    string // the status and the detail of an error response or an error event
	wrong      string // what no response may contain
}

// read adds to the body, and parses it when an event or the JSON may be complete.
func (a *clientRead) read(p []byte) {
	a.body = append(a.body, p...)
	switch {
	case len(p) > 0 && (a.done || a.failure != ""):
		a.wrong = fmt.Sprintf("%q comes after the end", p)
	case a.status == 200 && a.stream && bytes.IndexByte(p, '\n') >= 0:
		a.readEvents()
	case !(a.status == 200 && a.stream) && bytes.HasSuffix(p, []byte("}")):
		a.readJSON()
	}
}

func (a *clientRead) readEvents() {
	read, err := parseStream(string(a.body))
	if err != nil {
		a.wrong = err.Error()
	}
	a.text += read.text()
	a.keepAlives += read.keepAlives
	a.done, a.failure = read.done, read.failure
	a.body = []byte(read.rest)
}

// readJSON parses the body if it is complete.
func (a *clientRead) readJSON() {
	if a.status != 200 {
		if detail := detailIn(a.body); detail != "" {
			a.failure = fmt.Sprint(a.status, " ", detail)
		}
		return
	}
	a.text, a.done = contentIn(a.body)
}

func detailIn(body []byte) string {
	var response struct{ Detail string }
	_ = json.Unmarshal(body, &response)
	return response.Detail
}

func contentIn(body []byte) (text string, ok bool) {
	plain, isStart := bytes.CutPrefix(body, []byte(jsonStart))
	plain, isEnd := bytes.CutSuffix(plain, []byte(jsonEnd))
	if isStart && isEnd && bytes.IndexByte(plain, '"') < 0 && bytes.IndexByte(plain, '\\') < 0 {
		return string(plain), true // nearly always: faster than encoding/json
	}
	var response struct{ Content *string }
	if json.Unmarshal(body, &response) != nil || response.Content == nil {
		return "", false
	}
	return *response.Content, true
}

// An http1Client has sent one request. It parses everything again after each read.
type http1Client struct {
	stream   bool
	received []byte
	ended    bool
	read     *clientRead // of received; nil: not parsed yet
}

func http1Request(path, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: memory\r\nAuthorization: Bearer %s\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s", path, testKey, orderRequestID, len(body), body)
}

func (c *http1Client) take(p []byte) (reply []byte) {
	c.received, c.read = append(c.received, p...), nil
	return nil
}

func (c *http1Client) end() { c.ended, c.read = true, nil }

func (c *http1Client) answer() *clientRead {
	if c.read != nil {
		return c.read
	}
	a, received := &clientRead{stream: c.stream}, bufio.NewReader(bytes.NewReader(c.received))
	if res, err := http.ReadResponse(received, nil); err == nil {
		body, err := io.ReadAll(res.Body)
		a.status, a.complete = res.StatusCode, err == nil
		a.read(body)
	}
	if rest, _ := io.ReadAll(received); a.complete && len(rest) > 0 {
		a.wrong = fmt.Sprintf("%q comes after the end", rest)
	}
	a.aborted = c.ended && !a.complete
	c.read = a
	return a
}

// An http2Client has sent one request, on the first stream of its connection.
type http2Client struct {
	clientRead
	unread  []byte
	granted bool // bytes that were read are granted again immediately
	owed    int  // bytes read, but not granted again
}

const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameRSTStream    = 0x3
	frameSettings     = 0x4
	frameWindowUpdate = 0x8

	flagEndStream  = 0x1
	flagEndHeaders = 0x4
	flagAck        = 0x1
)

func http2Frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	frame = append(frame, flags)
	frame = binary.BigEndian.AppendUint32(frame, stream)
	return append(frame, payload...)
}

func http2WindowUpdate(stream uint32, n int) []byte {
	return http2Frame(frameWindowUpdate, 0, stream, binary.BigEndian.AppendUint32(nil, uint32(n))...)
}

// http2Request returns the frames of a request. Only the stream has flow control: the
// connection's window is huge.
func http2Request(path, body string) []byte {
	var head []byte
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", "memory"}, {":path", path},
		{"authorization", "Bearer " + testKey}, {"x-request-id", orderRequestID},
	} {
		head = append(head, 0, byte(len(field[0]))) // neither indexed nor compressed
		head = append(head, field[0]...)
		head = append(head, byte(len(field[1])))
		head = append(head, field[1]...)
	}
	const initialWindowSize = 0x4
	return bytes.Join([][]byte{
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		http2Frame(frameSettings, 0, 0, 0, initialWindowSize, 0, 0, 0, wireRoom),
		http2WindowUpdate(0, 1<<30),
		http2Frame(frameHeaders, flagEndHeaders, 1, head...),
		http2Frame(frameData, flagEndStream, 1, []byte(body)...),
	}, nil)
}

func (c *http2Client) answer() *clientRead { return &c.clientRead }

func (c *http2Client) end() { c.aborted = !c.complete }

func (c *http2Client) take(p []byte) (reply []byte) {
	c.unread = append(c.unread, p...)
	for len(c.unread) >= 9 {
		size := int(binary.BigEndian.Uint32(c.unread) >> 8)
		if len(c.unread) < 9+size {
			break
		}
		reply = append(reply, c.takeFrame(c.unread[3], c.unread[4], c.unread[9:9+size])...)
		c.unread = c.unread[9+size:]
	}
	return reply
}

func (c *http2Client) takeFrame(kind, flags byte, payload []byte) (reply []byte) {
	switch kind {
	case frameSettings:
		if flags&flagAck == 0 {
			return http2Frame(frameSettings, flagAck, 0)
		}
		return nil
	case frameRSTStream:
		c.aborted = !c.complete
		return nil
	case frameHeaders:
		c.status = http2Status(payload)
	case frameData:
		c.read(payload)
		c.owed += len(payload)
		reply = c.grant(c.owed)
	default:
		return nil
	}
	if c.complete = flags&flagEndStream != 0; c.complete {
		return nil
	}
	return reply
}

// grant lets the server send n bytes more, if this client reads.
func (c *http2Client) grant(n int) []byte {
	if !c.granted || n == 0 {
		return nil
	}
	c.owed -= n
	return http2WindowUpdate(1, n)
}

// http2Status reads the first field of a header block: the status, indexed or literal.
func http2Status(block []byte) int {
	indexed := map[byte]int{0x88: 200, 0x8d: 404, 0x8e: 500}
	if status, ok := indexed[block[0]]; ok {
		return status
	}
	if len(block) < 5 || block[1] != 3 {
		return -1
	}
	status, _ := strconv.Atoi(string(block[2:5]))
	return status
}
