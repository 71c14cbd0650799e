package botapi

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/connection"
)

// A pace is how a client reads from a connection in memory, which has no buffer: some bytes
// immediately, and the rest in pieces.
type pace struct {
	immediately int           // bytes
	first, each time.Duration // until the first piece, and between two pieces
	piece       int           // bytes
}

func (p pace) read(conn io.Reader) {
	_, err := io.ReadFull(conn, make([]byte, p.immediately))
	for time.Sleep(p.first); err == nil; time.Sleep(p.each) {
		_, err = io.ReadFull(conn, make([]byte, p.piece))
	}
}

// dialChat sends a chat on a connection from which the test reads.
func dialChat(t *testing.T, stream bool, engine ChatEngine, change func(*Options)) (net.Conn, <-chan ChatReport) {
	reports := make(chan ChatReport, 1)
	o := testOptions(t, io.Discard)
	o.Engine = engine
	o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
	change(&o)
	conn := serveInMemory(t, New(o)).dial()
	if err := chatRequest(t, "http://memory", "hi", stream).Write(conn); err != nil {
		t.Fatal(err)
	}
	return conn, reports
}

// An answer takes a slot and memory until it is sent. WriteTimeout bounds each write; the
// actual limit can be up to 12.5 % longer. ChatTimeout bounds the complete answer: a client
// that reads a little now and then must not keep a slot for hours. After an incomplete
// answer, all that is still to be written has one WriteTimeout together: the write in
// progress, the queue, and an error event.
func TestSlowReaders(t *testing.T) {
	const s, m = time.Second, time.Minute
	kibibytes := func(n int, yield func(string, error) bool) {
		for range n {
			yield(strings.Repeat("x", 1<<10), nil)
		}
	}
	endsLate := engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		time.Sleep(59 * s)
		kibibytes(4, yield)
		time.Sleep(s / 5) // the last one is being written
		kibibytes(12, yield)
	})
	failsAfter := func(d time.Duration) ChatEngine {
		return engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			kibibytes(4, yield)
			time.Sleep(d) // the last one is being written
			kibibytes(9, yield)
			yield("", errBroken)
		})
	}
	mebibyte := fragmentsOf(strings.Repeat("x", 1<<20))
	for _, c := range []struct {
		name        string
		stream      bool
		chat, write time.Duration // timeouts
		engine      ChatEngine
		reads       pace
		err         error
		took        time.Duration
	}{
		{"no WriteTimeout, but ChatTimeout", true, 4 * s, -1, fragmentsOf("hi"), pace{first: time.Hour, piece: 1}, ErrChatTimeout, 4500 * time.Millisecond},
		{"a short WriteTimeout", true, m, 4 * s, fragmentsOf("hi"), pace{first: time.Hour, piece: 1}, ErrClientStalled, 4500 * time.Millisecond},
		{"a long WriteTimeout", true, time.Hour, m, fragmentsOf("hi"), pace{first: time.Hour, piece: 1}, ErrClientStalled, 61 * s},
		{"the longest times there are", true, math.MaxInt64, math.MaxInt64, fragmentsOf("hi"), pace{first: 24 * time.Hour, piece: 4 << 10}, nil, 24 * time.Hour},
		{"a stream longer than ChatTimeout", true, 5 * m, 0, mebibyte, pace{each: 29 * s, piece: maxWrite}, ErrChatTimeout, 5*m + 30*s},
		{"a JSON response longer than ChatTimeout", false, 5 * m, 0, mebibyte, pace{each: 29 * s, piece: connection.MaxChunk}, ErrChatTimeout, 5*m + 19*s},
		{"a stream that is complete just in time", true, m, 10 * s, endsLate, pace{4 << 10, 4 * s, 4 * s, 2 << 10}, ErrClientStalled, 74 * s},
		{"an error, and a client that reads no more", true, 0, 0, failsAfter(s), pace{4 << 10, time.Hour, time.Hour, 1}, errBroken, s + DefaultWriteTimeout},
		{"an error, and a client that reads each 20s", true, 0, 0, failsAfter(s), pace{4 << 10, 20 * s, 20 * s, 6 << 10}, errBroken, s + DefaultWriteTimeout},
		{"an error, and a client that reads each 29s", true, 0, 0, failsAfter(s), pace{4 << 10, 29 * s, 29 * s, 6 << 10}, errBroken, s + DefaultWriteTimeout},
		{"an error while the last deadline is new", true, 0, 0, failsAfter(s / 2), pace{4 << 10, 700 * time.Millisecond, time.Hour, 6 << 10}, errBroken, s/2 + DefaultWriteTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				conn, reports := dialChat(t, c.stream, c.engine, func(o *Options) { o.KeepAlive, o.ChatTimeout, o.WriteTimeout = -1, c.chat, c.write })
				var reading sync.WaitGroup
				reading.Go(func() { c.reads.read(conn) })
				defer reading.Wait()
				defer conn.Close()
				report := <-reports
				is.Equal(reasonsIn(report.Err), reasonsIn(c.err))
				is.True(errors.Is(report.Err, c.err))
				is.Equal(report.Status, 200)
				is.Equal(report.Duration, c.took)
			})
		})
	}
}

// If yield waits for a slow client, it returns as soon as the chat has stopped.
func TestSlowReaderHoldsNoStoppedEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		began, stopped := time.Now(), make(chan time.Duration, 1)
		conn, reports := dialChat(t, true, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for yield(strings.Repeat("x", 1<<10), nil) {
				if time.Since(began) > 0 {
					return // yield should have returned false
				}
			}
			stopped <- time.Since(began)
		}), func(o *Options) { o.ChatTimeout = time.Second })
		defer conn.Close()
		_, err := io.ReadFull(conn, make([]byte, 8<<10)) // from then on, a burst writes
		is.NoErr(err)
		is.Equal((<-reports).Err, ErrChatTimeout)
		is.Equal(received(t, stopped, "yield to return false"), time.Second)
	})
}

// A client that stops reading blocks its engine, with bounded memory. After WriteTimeout, its
// stream is aborted. Other clients are not slowed down.
func TestStreamClientStalls(t *testing.T) {
	for _, w := range []way{{stream: true}, {stream: true, route: true}} {
		t.Run(w.path(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				const fragment, read = 1 << 10, 100 << 10
				var accepted atomic.Int64
				var log testLog
				reports, ended := make(chan ChatReport, 2), make(chan struct{})
				o := testOptions(t, &log)
				o.Routes = w.routes()
				o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
					if lastContent(req) == "read" {
						yield(strings.Repeat("x", 1000*fragment), nil)
						return
					}
					for yield(strings.Repeat("x", fragment), nil) {
						accepted.Add(1)
					}
					<-ctx.Done()
					close(ended)
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				server := serveInMemory(t, New(o))
				began := time.Now()
				conn := server.dial() // net.Pipe has no buffer
				defer conn.Close()
				r := chatRequest(t, "http://memory", "stall", true)
				r.URL.Path = w.path()
				is.NoErr(r.Write(conn))
				_, err := io.ReadFull(conn, make([]byte, read))
				is.NoErr(err)
				synctest.Wait()
				unread := func() int { return int(accepted.Load())*(fragment+len(data(""))) - read }
				held := unread()
				t.Logf("the handler and net/http hold %d bytes", held)
				is.True(held > 0)
				is.True(held <= 32<<10) // what is being written, and the queue

				is.NoErr(doAt(t, server.client(), "http://memory", "POST", w.path(), chatBodyJSON("read", true)).err)
				is.NoErr((<-reports).Err)
				is.Equal(time.Since(began), time.Duration(0))
				is.Equal(unread(), held)

				report := <-reports
				<-ended
				is.Equal(report.Status, 200)
				is.Equal(reasonsIn(report.Err), []error{ErrClientStalled})
				is.Equal(report.Duration, DefaultWriteTimeout+time.Second)
				_, err = io.Copy(io.Discard, conn)
				is.NoErr(err) // the connection was closed
				is.Equal(log.String(), "")
			})
		})
	}
}

// A slow client that keeps reading gets everything: WriteTimeout is for one write.
func TestSlowReaderGetsAll(t *testing.T) {
	const writeOfChunk = 70 * time.Second // such a client needs 64 seconds for a chunk of 64 KiB
	text := strings.Repeat("0123456789", 20<<10)
	list := []Bot{{Description: text}}
	store := &fakeStore{bots: func(context.Context) ([]Bot, error) { return list, nil }, bySlug: orderBots.bySlug}
	for name, c := range map[string]struct {
		method, path, body string
		engine             ChatEngine
		write              time.Duration // WriteTimeout
		want               string
	}{
		"a stream":          {"POST", "/v1/chat", chatBodyJSON("hi", true), fragmentsOf(text), 0, text},
		"a JSON response":   {"POST", "/v1/chat", chatBodyJSON("hi", false), fragmentsOf(text), writeOfChunk, jsonStart + text + jsonEnd},
		"an error response": {"POST", "/v1/chat", chatBodyJSON("hi", true), failing(StatusError{Status: 503, Detail: text}), writeOfChunk, `{"detail":"` + text + `"}`},
		"a list":            {"GET", "/v1/bots", "", fragmentsOf(), writeOfChunk, string(appendBots(nil, list))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, io.Discard)
				o.Bots, o.Engine, o.WriteTimeout = store, c.engine, c.write
				client := serveInMemory(t, New(o)).client()
				client.Transport = slowTransport{client.Transport}
				got := doAt(t, client, "http://memory", c.method, c.path, c.body)
				is.NoErr(got.err)
				if name == "a stream" {
					got.body = readStream(t, got.body).text()
				}
				is.Equal(got.body, c.want)
			})
		})
	}
}

// A slowTransport makes a client read 1 KiB of a body each second.
type slowTransport struct{ http.RoundTripper }

func (s slowTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := s.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Body = slowBody{res.Body}
	}
	return res, err
}

type slowBody struct{ io.ReadCloser }

func (b slowBody) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return b.ReadCloser.Read(p[:min(len(p), 1<<10)])
}
