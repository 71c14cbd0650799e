package botapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// protocols are the ways in which a client may talk to a handler.
var protocols = []string{"HTTP/1.1", "HTTP/2 over TLS", "HTTP/2 in clear text"}

// An engine hears at once that its client is gone, whatever the client was
// doing, and over each protocol.
func TestClientLeavesIsToldToTheEngine(t *testing.T) {
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
				received(t, ended, "the engine's context to end")
				report := received(t, reports, "OnChat")
				is.True(errors.Is(report.Err, context.Canceled))
				is.Equal(report.Status, moment.status)
				is.Equal(len(reports), 0)  // once
				is.Equal(log.String(), "") // it is nobody's fault
			})
		}
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

// A client that has sent another request behind its chat is not watched by
// net/http any more. A stream notices at its next keep-alive that it left.
func TestClientPipelinesAndLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		conn, reports := dialChat(t, true, engineEnd(untilDone).engine(), func(*Options) {})
		_, err := conn.Write([]byte("G"))
		is.NoErr(err)
		synctest.Wait()
		is.NoErr(conn.Close())
		report := <-reports
		is.True(errors.Is(report.Err, ErrClientLeft))
		is.Equal(report.Duration, DefaultKeepAlive)
	})
}

// A chat outlives the server's own deadlines, and leaves a connection behind
// that can be used again.
func TestChatOutlivesServerDeadlines(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		if w.hides {
			return // nobody can move its deadlines
		}
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.KeepAlive = -1
		o.Engine = pacedEngine(0, time.Minute, time.Minute)
		server := w.serve(t, New(o), func(s *http.Server) {
			s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = time.Second, time.Second, time.Hour
		})
		client := server.client()
		client.Transport.(*http.Transport).DisableKeepAlives = false
		want := jsonStart + "xxx" + jsonEnd
		if w.stream {
			want = strings.Repeat(data("x"), 3) + terminator
		}
		for range 2 {
			got := doAt(t, client, "http://memory", "POST", "/v1/chat", chatBodyJSON("hi", w.stream))
			is.NoErr(got.err)
			is.Equal(got.body, want)
			time.Sleep(10 * time.Minute) // no deadline of the chat's is left on the connection
		}
	})
}

// A server that shuts down lets 200 streams finish whole, and takes no new
// connection.
func TestShutdownLetsStreamsFinish(t *testing.T) {
	const streams = 200
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			is := is.New(t)
			begun, finish, whole, shut := make(chan *http.Server), make(chan struct{}), make(chan answered, streams), make(chan error, 1)
			o := testOptions(t, io.Discard)
			o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
				yield("begun, ", nil)
				begun <- ctx.Value(http.ServerContextKey).(*http.Server)
				<-finish
				yield("ended", nil)
			})
			base, client := serveOver(t, protocol, New(o))
			is.Equal(doAt(t, client, base, "GET", "/v1/bots", "").status, 200) // so that HTTP/2 has its one connection
			for range streams {
				go func() { whole <- doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true)) }()
			}
			var server *http.Server
			for range streams {
				server = received(t, begun, "a stream to begin")
			}
			go func() { shut <- server.Shutdown(t.Context()) }()
			for address := base[strings.LastIndex(base, "/")+1:]; ; {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					break // refused
				}
				conn.Close()
			}
			close(finish)
			for range streams {
				got := received(t, whole, "a stream to end")
				is.NoErr(got.err)
				is.Equal(got.body, data("begun, ")+data("ended")+terminator)
			}
			is.NoErr(received(t, shut, "Shutdown"))
		})
	}
}

// An engine that fails because the host has ended the request has not failed by
// itself, whoever notices first: the client, the report and the log are told the
// host's reason.
func TestHostEndsTheRequestAndTheEngineFails(t *testing.T) {
	for _, failure := range []error{context.Canceled, context.DeadlineExceeded} {
		is := is.New(t)
		shutdown := errors.New("shutting down")
		ctx, end := context.WithCancelCause(t.Context())
		r := chatRequest(t, "", "hi", true).WithContext(ctx)
		got := playRequestOn(t, httptest.NewRecorder(), r, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			end(shutdown)
			yield("", fmt.Errorf("upstream: %w", failure))
		}))
		is.NoErr(got.err)
		is.Equal(got.status, 503)
		is.True(errors.Is(got.report(t).Err, shutdown))
		is.True(strings.Contains(got.log, "503 Service Unavailable: shutting down"))
	}
}
