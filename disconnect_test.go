package botapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// protocols are the ways in which a client may talk to a handler.
var protocols = []string{"HTTP/1.1", "HTTP/2 over TLS", "HTTP/2 in clear text"}

// serveOver serves h on a loopback port, and returns a client that speaks the
// protocol with it.
func serveOver(t testing.TB, protocol string, h http.Handler) (base string, client *http.Client) {
	server := httptest.NewUnstartedServer(h)
	t.Cleanup(server.Close)
	switch protocol {
	case "HTTP/1.1":
		server.Start()
		return server.URL, server.Client()
	case "HTTP/2 over TLS":
		server.EnableHTTP2 = true
		server.StartTLS()
		return server.URL, server.Client()
	}
	server.Config.Protocols = clearTextHTTP2()
	server.Start()
	transport := &http.Transport{Protocols: clearTextHTTP2()}
	t.Cleanup(transport.CloseIdleConnections)
	return server.URL, &http.Client{Transport: transport}
}

func clearTextHTTP2() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// received waits for a value, for as long as a test may hang.
func received[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(10 * time.Second):
		t.Fatal("waited in vain for ", what)
	}
	return v
}

// An engine hears at once that its client is gone, whatever the client was
// doing, and over each protocol.
func TestTheEngineHearsThatItsClientLeft(t *testing.T) {
	silent := func(ctx context.Context, yield func(string, error) bool) {}
	once := func(ctx context.Context, yield func(string, error) bool) { yield("x", nil) }
	always := func(ctx context.Context, yield func(string, error) bool) {
		for yield("some text ", nil) {
		}
	}
	moments := map[string]struct {
		stream bool
		speak  func(ctx context.Context, yield func(string, error) bool)
		reads  int64 // before the client leaves
		status int
	}{
		"waiting for one answer":              {false, silent, 0, 0},
		"waiting for one answer that comes":   {false, once, 0, 0},
		"waiting for the first fragment":      {true, silent, 0, 0},
		"idle, after the first fragment":      {true, once, int64(len(data("x"))), 200},
		"reading":                             {true, always, 100_000, 200},
		"no longer reading what always comes": {true, always, 1, 200},
	}
	for _, protocol := range protocols {
		for name, moment := range moments {
			t.Run(protocol+", "+name, func(t *testing.T) {
				is := is.New(t)
				started, ended := make(chan struct{}), make(chan struct{})
				reports := make(chan ChatReport, 2)
				var log testLog
				o := testOptions(t, &log)
				o.WriteTimeout = time.Hour // nothing but the disconnect ends the chat
				o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
					close(started)
					moment.speak(ctx, yield)
					<-ctx.Done()
					close(ended)
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				base, client := serveOver(t, protocol, New(o))
				ctx, leave := context.WithCancel(t.Context())
				defer leave()

				go func() { // it answers only when the client leaves, or reads
					res, err := client.Do(chatRequest(t, base, "hi", moment.stream).WithContext(ctx))
					if err != nil {
						return
					}
					defer res.Body.Close()
					_, _ = io.CopyN(io.Discard, res.Body, moment.reads)
					leave()
				}()
				received(t, started, "the engine to be called")
				if moment.reads == 0 {
					leave()
				}
				received(t, ctx.Done(), "the client to leave")
				left := time.Now()
				received(t, ended, "the engine's context to end")
				t.Logf("the engine's context ended %v after the client left", time.Since(left).Round(time.Microsecond))
				report := received(t, reports, "OnChat")
				is.True(errors.Is(report.Err, context.Canceled))
				is.Equal(report.Status, moment.status)
				is.Equal(len(reports), 0)  // once
				is.Equal(log.String(), "") // it is nobody's fault
			})
		}
	}
}

// A client that has closed its sending half may still be reading, but net/http
// cannot tell it from one that is gone: it counts as gone.
func TestAHalfClosedConnectionCountsAsLeft(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			is := is.New(t)
			reports := make(chan ChatReport, 1)
			o := testOptions(t, io.Discard)
			o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				<-ctx.Done()
				yield("too late", nil)
			})
			o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
			server := httptest.NewServer(New(o))
			defer server.Close()
			conn := dialTCP(t, server)
			is.NoErr(chatRequest(t, server.URL, "hi", stream).Write(conn))
			is.NoErr(conn.CloseWrite())
			report := received(t, reports, "OnChat")
			is.True(errors.Is(report.Err, context.Canceled))
			is.Equal(report.Status, 0)
			answer, err := io.ReadAll(conn)
			is.NoErr(err)
			is.Equal(string(answer), "") // cut, not answered
		})
	}
}

func dialTCP(t testing.TB, server *httptest.Server) *net.TCPConn {
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// A halfClosing connection is the server's end of one in memory whose client may
// say that nothing more will come, as TCP has it, and go on reading.
type halfClosing struct {
	net.Conn
	closed atomic.Bool
}

func (c *halfClosing) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.closed.Load() {
		err = io.EOF
	}
	return n, err
}

func (c *halfClosing) clientCloses() {
	c.closed.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0))
}

// A write that waits for a reader is broken off when the client leaves: it
// does not last until WriteTimeout.
func TestALeavingClientBreaksOffAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		reports := make(chan ChatReport, 1)
		o := testOptions(t, io.Discard)
		o.WriteTimeout = time.Hour
		o.Engine = fragmentsOf("a", "b")
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		server := serveInMemory(t, New(o))
		client, end := net.Pipe()
		defer client.Close()
		conn := &halfClosing{Conn: end}
		server.conns <- conn
		is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(client))
		synctest.Wait() // the first fragment is being written, and nobody reads
		conn.clientCloses()
		report := <-reports
		is.True(errors.Is(report.Err, ErrClientLeft))
		is.Equal(report.Status, 200)
		is.Equal(report.Duration, time.Duration(0))
	})
}

// The same on HTTP/2, where one stream of a connection waits for its window.
func TestALeavingClientBreaksOffAWriteOnHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var report ChatReport
		o := testOptions(t, io.Discard)
		o.WriteTimeout = time.Hour
		o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			for yield("some text", nil) {
			}
		})
		o.OnChat = func(_ context.Context, r ChatReport) { report = r }
		client := clientInMemory(t, "HTTP/2", New(o), nil)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		res, err := client.Do(chatRequest(t, "http://memory", "hi", true).WithContext(ctx))
		is.NoErr(err)
		defer res.Body.Close()
		synctest.Wait() // the window is full
		is.Equal(report.Err, nil)
		began := time.Now()
		leave()
		synctest.Wait()
		is.True(errors.Is(report.Err, context.Canceled))
		is.Equal(time.Since(began), time.Duration(0))
	})
}

// clientInMemory serves h in memory, for use inside a bubble, and returns a
// client that keeps its connection.
func clientInMemory(t testing.TB, protocol string, h http.Handler, configure func(*http.Server)) *http.Client {
	server := serveInMemory(t, h, func(s *http.Server) {
		s.Protocols = new(http.Protocols)
		s.Protocols.SetHTTP1(protocol == "HTTP/1.1")
		s.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2")
		if configure != nil {
			configure(s)
		}
	})
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return server.dial(), nil },
		Protocols:   server.Protocols,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// A client that has sent another request behind its chat is not watched by
// net/http any more. A stream notices at its next keep-alive that it left.
func TestAPipeliningClientIsMissedAtTheNextKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var report ChatReport
		o := testOptions(t, io.Discard)
		o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) { <-ctx.Done() })
		o.OnChat = func(_ context.Context, r ChatReport) { report = r }
		conn := serveInMemory(t, New(o)).dial()
		is.NoErr(chatRequest(t, "http://memory", "hi", true).Write(conn))
		_, err := conn.Write([]byte("G"))
		is.NoErr(err)
		synctest.Wait()
		is.NoErr(conn.Close())
		began := time.Now()
		time.Sleep(time.Hour)
		synctest.Wait()
		is.True(errors.Is(report.Err, context.Canceled))
		is.Equal(report.Duration, DefaultKeepAlive)
		is.True(time.Since(began) > report.Duration)
	})
}

// A chat outlives the server's own deadlines, and leaves a connection behind
// that can be used again.
func TestAChatOutlivesTheServersDeadlines(t *testing.T) {
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2"} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(protocol, ", stream ", stream), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					is := is.New(t)
					o := testOptions(t, io.Discard)
					o.KeepAlive = -1
					o.Engine = pacedEngine(0, time.Minute, time.Minute)
					client := clientInMemory(t, protocol, New(o), func(s *http.Server) {
						s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = time.Second, time.Second, time.Hour
					})
					for range 2 {
						got := doAt(t, client, "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", stream))
						is.Equal(got.status, 200)
						is.NoErr(got.err)
						if stream {
							is.Equal(got.body, data("x")+data("x")+data("x")+terminator)
						} else {
							is.Equal(got.body, `{"content":"xxx"}`)
						}
						time.Sleep(10 * time.Minute) // no deadline of the chat's is left on the connection
					}
				})
			})
		}
	}
}

// On HTTP/2 a deadline that has passed cannot be set again, so none is left
// standing while an engine thinks; a client that does not read is still cut,
// and the other streams of its connection go on.
func TestWriteTimeoutOnHTTP2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var report ChatReport
		var engineEnded atomic.Bool
		o := testOptions(t, io.Discard)
		o.KeepAlive = -1
		o.Engine = engineOf(func(ctx context.Context, req *ChatRequest, yield func(string, error) bool) {
			if lastContent(req) == "think" {
				yield("a", nil)
				time.Sleep(5 * time.Minute) // many times WriteTimeout
				yield("b", nil)
				return
			}
			for yield("some text", nil) {
			}
			<-ctx.Done()
			engineEnded.Store(true)
		})
		o.OnChat = func(_ context.Context, r ChatReport) {
			if r.Err != nil {
				report = r
			}
		}
		client := clientInMemory(t, "HTTP/2", New(o), nil)
		stalled, err := client.Do(chatRequest(t, "http://memory", "talk", true))
		is.NoErr(err)
		defer stalled.Body.Close()
		got := doAt(t, client, "http://memory", "POST", "/v1/chat", chatBodyJSON("think", true))
		is.NoErr(got.err)
		is.Equal(got.body, data("a")+data("b")+terminator)

		is.True(engineEnded.Load())
		is.True(errors.Is(report.Err, ErrClientStalled))
		is.True(report.Duration >= DefaultWriteTimeout && report.Duration <= DefaultWriteTimeout+time.Second)
		_, err = io.ReadAll(stalled.Body)
		is.True(err != nil) // cut
	})
}

// A server that shuts down lets 200 streams finish whole, and takes no new
// connection.
func TestShutdownLetsStreamsFinish(t *testing.T) {
	const streams = 200
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			is := is.New(t)
			finish := make(chan struct{})
			o := testOptions(t, io.Discard)
			o.Engine = engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
				yield("begun, ", nil)
				<-finish
				yield("ended", nil)
			})
			var server *http.Server
			base, client := serveOver(t, protocol, handlerThatKnowsItsServer(New(o), &server))
			is.Equal(doAt(t, client, base, "GET", "/v1/bots", "").status, 200) // so that HTTP/2 has its one connection
			bodies := make(chan *http.Response, streams)
			for range streams {
				go func() {
					res, err := client.Do(chatRequest(t, base, "hi", true))
					if err != nil {
						t.Error(err)
					}
					bodies <- res
				}()
			}
			whole := make(chan error, streams)
			for range streams {
				res := received(t, bodies, "a stream to begin")
				if res == nil {
					t.FailNow()
				}
				go func() {
					defer res.Body.Close()
					body, err := io.ReadAll(res.Body)
					if want := data("begun, ") + data("ended") + terminator; err == nil && string(body) != want {
						err = fmt.Errorf("read %q", body)
					}
					whole <- err
				}()
			}
			shut := make(chan error, 1)
			go func() { shut <- server.Shutdown(t.Context()) }()
			for address := strings.TrimPrefix(strings.TrimPrefix(base, "http://"), "https://"); ; {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					break // refused
				}
				conn.Close()
			}
			close(finish)
			for range streams {
				is.NoErr(received(t, whole, "a stream to end"))
			}
			is.NoErr(received(t, shut, "Shutdown"))
		})
	}
}

// handlerThatKnowsItsServer tells which server it is called by.
func handlerThatKnowsItsServer(h http.Handler, server **http.Server) http.Handler {
	var once sync.Once
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { *server = r.Context().Value(http.ServerContextKey).(*http.Server) })
		h.ServeHTTP(w, r)
	})
}

// What an engine does after its client has left does not become the reason for
// the end: the chat was left, whatever comes of it. The log has the panic.
func TestAnEngineThatPanicsWhenItsClientHasLeft(t *testing.T) {
	for range 100 {
		is := is.New(t)
		reports := make(chan ChatReport, 1)
		var log testLog
		o := testOptions(t, &log)
		o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
			<-ctx.Done()
			yield("too late", nil)
			panic("a bug in the engine")
		})
		o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		r := httptest.NewRequestWithContext(ctx, "POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", true)))
		r.Header.Set("Authorization", "Bearer "+testKey)
		w := hijackable{httptest.NewRecorder()}
		is.True(serveRequest(w, New(o), r)) // cut
		is.True(errors.Is(received(t, reports, "OnChat").Err, context.Canceled))
		is.Equal(w.Body.String(), "")
		is.True(strings.Contains(log.String(), "a bug in the engine"))
	}
}

// hijackable is a recorder behind which an engine runs in the handler's
// goroutine, as with a writer of net/http on HTTP/1.
type hijackable struct{ *httptest.ResponseRecorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}
