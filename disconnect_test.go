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

// An engine's context is cancelled immediately when its client disconnects, over each
// protocol, whatever the client was doing.
func TestClientDisconnectsAndEngineIsCancelled(t *testing.T) {
	silent := func(ctx context.Context, yield func(string, error) bool) {}
	once := func(ctx context.Context, yield func(string, error) bool) { yield("x", nil) }
	always := func(ctx context.Context, yield func(string, error) bool) {
		for yield("some text ", nil) {
		}
	}
	moments := map[string]struct {
		stream  bool
		iterate func(ctx context.Context, yield func(string, error) bool)
		reads   int64 // before the client disconnects
		status  int
	}{
		"waiting for a JSON response":         {false, silent, 0, 0},
		"waiting for a response that comes":   {false, once, 0, 0},
		"waiting for the first fragment":      {true, silent, 0, 0},
		"idle, after the first fragment":      {true, once, int64(len(data("x"))), 200},
		"reading":                             {true, always, 100_000, 200},
		"no longer reading an endless stream": {true, always, 1, 200},
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
					moment.iterate(ctx, yield)
					<-ctx.Done()
					close(ended)
				})
				o.OnChat = func(_ context.Context, r ChatReport) { reports <- r }
				base, client := serveOver(t, protocol, New(o))
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()

				go func() { // Do may block until the client disconnects
					res, err := client.Do(chatRequest(t, base, "hi", moment.stream).WithContext(ctx))
					if err != nil {
						return
					}
					defer res.Body.Close()
					_, _ = io.CopyN(io.Discard, res.Body, moment.reads)
					disconnect()
				}()
				received(t, started, "the engine to be called")
				if moment.reads == 0 {
					disconnect()
				}
				received(t, ctx.Done(), "the client to disconnect")
				received(t, ended, "the engine's context to end")
				report := received(t, reports, "OnChat")
				is.True(errors.Is(report.Err, context.Canceled))
				is.Equal(report.Status, moment.status)
				is.Equal(len(reports), 0) // no second report
				is.Equal(log.String(), "")
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

// If a client has sent another request after its chat, net/http no longer notices the
// disconnect. A stream notices it at the next keep-alive.
func TestClientPipelinesAndDisconnects(t *testing.T) {
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

// A chat outlives the server's own deadlines, and its connection can be used again.
func TestChatOutlivesServerDeadlines(t *testing.T) {
	inEachWay(t, "", func(t *testing.T, w way) {
		if w.hides {
			return // the handler cannot set deadlines
		}
		is := is.New(t)
		o := testOptions(t, io.Discard)
		o.KeepAlive = -1
		o.Engine, o.Routes = pacedEngine(0, time.Minute, time.Minute), w.routes()
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
			got := doAt(t, client, "http://memory", "POST", w.path(), chatBodyJSON("hi", w.stream))
			is.NoErr(got.err)
			is.Equal(got.body, want)
			time.Sleep(10 * time.Minute) // no deadline of the chat remains on the connection
		}
	})
}

// A server that shuts down lets 200 streams finish, and accepts no new connection.
func TestShutdownLetsStreamsFinish(t *testing.T) {
	const streams = 200
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			is := is.New(t)
			begun, finish, finished, shut := make(chan *http.Server), make(chan struct{}), make(chan fullResponse, streams), make(chan error, 1)
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
				go func() { finished <- doAt(t, client, base, "POST", "/v1/chat", chatBodyJSON("hi", true)) }()
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
				got := received(t, finished, "a stream to end")
				is.NoErr(got.err)
				is.Equal(got.body, data("begun, ")+data("ended")+terminator)
			}
			is.NoErr(received(t, shut, "Shutdown"))
		})
	}
}

// If an engine fails because the application has cancelled the request, the client, the
// report and the log get the application's cause, even if the engine's error comes first.
func TestApplicationCancelsAndTheEngineFails(t *testing.T) {
	for _, failure := range []error{context.Canceled, context.DeadlineExceeded} {
		is := is.New(t)
		shutdown := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		r := chatRequest(t, "", "hi", true).WithContext(ctx)
		got := playRequestOn(t, httptest.NewRecorder(), r, engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			cancel(shutdown)
			yield("", fmt.Errorf("upstream: %w", failure))
		}))
		is.NoErr(got.err)
		is.Equal(got.status, 503)
		is.True(errors.Is(got.report(t).Err, shutdown))
		is.True(strings.Contains(got.log, "503 Service Unavailable: shutting down"))
	}
}
