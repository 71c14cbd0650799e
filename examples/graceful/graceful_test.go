package graceful_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/graceful"
	"github.com/matryer/is"
)

const (
	beginning  = `data: {"content":"begun, "}` + "\n\n"
	complete   = beginning + `data: {"content":"ended"}` + "\n\ndata: [DONE]\n\n"
	restarting = beginning + `event: error` + "\n" + `data: {"detail":"The service is restarting","status":503,"retry_after":5}` + "\n\n"
)

// chats returns a handler whose answers say that they have begun, and end when finish is
// closed.
func chats(t *testing.T, finish <-chan struct{}) http.Handler {
	t.Helper()
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "parrot", Name: "Parrot", Model: "none"})
	is.New(t).NoErr(err)
	return botapi.New(botapi.Options{
		Bots:      bots,
		Keys:      botapi.StaticKeys(map[string]string{"key": "me"}),
		KeepAlive: -1,
		Logger:    slog.New(slog.DiscardHandler),
		Engine: botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) {
				if !yield("begun, ", nil) {
					return
				}
				select {
				case <-finish:
					yield("ended", nil)
				case <-ctx.Done():
				}
			}
		}),
	})
}

// A service is a server that Serve or ServeOn serves.
type service struct {
	address string
	stop    context.CancelFunc
	served  <-chan error
	dial    func(context.Context, string, string) (net.Conn, error) // nil: the network
}

func serveOn(t *testing.T, handler http.Handler, l net.Listener, patience time.Duration) *service {
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	server := &http.Server{Handler: handler, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { served <- graceful.ServeOn(ctx, server, l, patience) }()
	return &service{address: l.Addr().String(), stop: stop, served: served}
}

func serveLoopback(t *testing.T, handler http.Handler, patience time.Duration) *service {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	is.New(t).NoErr(err)
	return serveOn(t, handler, l, patience)
}

// begin sends a chat, and returns its stream when its first event has arrived.
func (s *service) begin(t *testing.T) io.Reader {
	t.Helper()
	is := is.New(t)
	r, err := http.NewRequest("POST", "http://"+s.address+"/v1/chat", strings.NewReader(`{"bot_slug":"parrot","prompt":"Hi","stream":true}`))
	is.NoErr(err)
	r.Header.Set("Authorization", "Bearer key")
	resp, err := (&http.Transport{DisableKeepAlives: true, DialContext: s.dial}).RoundTrip(r)
	is.NoErr(err)
	t.Cleanup(func() { resp.Body.Close() })
	is.Equal(resp.StatusCode, 200)
	stream := bufio.NewReader(resp.Body)
	_, err = stream.Peek(len(beginning))
	is.NoErr(err)
	return stream
}

func TestStreamsFinish(t *testing.T) {
	is := is.New(t)
	finish := make(chan struct{})
	s := serveLoopback(t, chats(t, finish), time.Minute)
	stream := s.begin(t)
	s.stop()
	for { // until connections are refused
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			break
		}
		conn.Close()
	}
	close(finish)
	text, err := io.ReadAll(stream)
	is.NoErr(err)
	is.Equal(string(text), complete)
	is.NoErr(<-s.served)
}

func TestStreamsEndWithoutPatience(t *testing.T) {
	is := is.New(t)
	s := serveLoopback(t, chats(t, nil), 0)
	stream := s.begin(t)
	s.stop()
	text, err := io.ReadAll(stream)
	is.True(err != nil) // aborted
	is.Equal(string(text), restarting)
	is.NoErr(<-s.served)
}

// TestPatience has an answer that ends in time and one that does not.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		finish := make(chan struct{})
		mux := http.NewServeMux()
		mux.Handle("/", chats(t, finish))
		s := servePipes(t, mux, 20*time.Second)
		quick := s.begin(t)
		start := time.Now()
		s.stop()
		time.Sleep(19 * time.Second)
		finish <- struct{}{} // one of the answers
		text, err := io.ReadAll(quick)
		is.NoErr(err)
		is.Equal(string(text), complete)
		is.NoErr(<-s.served)
		is.True(time.Since(start) < 20*time.Second) // it waits for no one

		s = servePipes(t, mux, 20*time.Second)
		slow := s.begin(t)
		start = time.Now()
		s.stop()
		text, err = io.ReadAll(slow)
		is.True(err != nil) // aborted
		is.Equal(string(text), restarting)
		is.NoErr(<-s.served)
		is.True(time.Since(start) >= 20*time.Second && time.Since(start) < 22*time.Second)
	})
}

// TestHandlerIgnoresItsContext: it loses its connection.
func TestHandlerIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		begun, release := make(chan struct{}), make(chan struct{})
		s := servePipes(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(begun)
			<-release
		}), 20*time.Second)
		lost := make(chan error, 1)
		go func() {
			r, _ := http.NewRequest("GET", "http://"+s.address, nil)
			_, err := (&http.Transport{DialContext: s.dial}).RoundTrip(r)
			lost <- err
		}()
		<-begun
		start := time.Now()
		s.stop()
		err := <-s.served
		is.True(errors.Is(err, context.DeadlineExceeded))
		is.Equal(time.Since(start), 30*time.Second)
		is.True(<-lost != nil)
		close(release)
	})
}

// A failed listener ends the service; its answers may finish.
func TestListenerFails(t *testing.T) {
	is := is.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	finish := make(chan struct{})
	s := serveOn(t, chats(t, finish), l, time.Minute)
	stream := s.begin(t)
	is.NoErr(l.Close())
	close(finish)
	text, err := io.ReadAll(stream)
	is.NoErr(err)
	is.Equal(string(text), complete)
	is.True(errors.Is(<-s.served, net.ErrClosed))
}

func TestAddressIsTaken(t *testing.T) {
	is := is.New(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	is.NoErr(err)
	defer taken.Close()
	_, isNetwork := errors.AsType[*net.OpError](graceful.Serve(t.Context(), &http.Server{Addr: taken.Addr().String()}, 0))
	is.True(isNetwork)
}

type baseKey struct{}

// The application's BaseContext gives its values and its cancellation.
func TestBaseContext(t *testing.T) {
	is := is.New(t)
	base, cancel := context.WithCancelCause(context.WithValue(t.Context(), baseKey{}, "the application's"))
	ctx, stop := context.WithCancel(t.Context())
	address := make(chan string, 1)
	requests := make(chan context.Context, 1)
	server := &http.Server{
		Addr: "127.0.0.1:0",
		BaseContext: func(l net.Listener) context.Context {
			address <- l.Addr().String()
			return base
		},
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			requests <- r.Context()
			<-r.Context().Done()
		}),
	}
	served := make(chan error, 1)
	go func() { served <- graceful.Serve(ctx, server, time.Minute) }()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+<-address, nil)
	is.NoErr(err)
	go func() { _, _ = (&http.Transport{DisableKeepAlives: true}).RoundTrip(r) }()
	request := <-requests
	is.Equal(request.Value(baseKey{}), "the application's")
	failed := errors.New("the application has failed")
	cancel(failed)
	<-request.Done()
	is.Equal(context.Cause(request), failed)
	stop()
	is.NoErr(<-served)
}

func TestUntilSignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot send itself a signal")
	}
	is := is.New(t)
	ctx := graceful.UntilSignal()
	is.NoErr(ctx.Err())
	self, err := os.FindProcess(os.Getpid())
	is.NoErr(err)
	is.NoErr(self.Signal(os.Interrupt))
	<-ctx.Done()
}

// A pipeListener accepts connections of net.Pipe, which a bubble of synctest can wait for.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func servePipes(t *testing.T, handler http.Handler, patience time.Duration) *service {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := serveOn(t, handler, l, patience)
	s.dial = func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		l.conns <- server
		return client, nil
	}
	return s
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.closed)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
