package mounting

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/matryer/is"
)

// What works when fasthttp serves the handler through fiber's adaptor.
func TestFiberAdaptorServes(t *testing.T) {
	t.Run("lists the bots", func(t *testing.T) { checkListing(t, serveByFasthttp) })
	t.Run("sends a JSON response", func(t *testing.T) { checkJSON(t, serveByFasthttp) })
	t.Run("streams fragment by fragment", func(t *testing.T) { checkStream(t, serveByFasthttp) })
	t.Run("keeps the handler's errors", func(t *testing.T) { checkErrors(t, serveByFasthttp) })
}

func TestFiberAdaptorMakesAFailedStreamLookComplete(t *testing.T) {
	is := is.New(t)
	got := serveByFasthttp(t, failing).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.body, failedStream)
	is.NoErr(got.err) // not aborted
}

// The client closes only its sending side. To the server that looks like a
// disconnect, but the test can still read the response. net/http cancels the
// engine's context. fasthttp does not watch a connection while it responds, so
// the engine runs to its end.
func TestFiberAdaptorDoesNotNoticeADisconnect(t *testing.T) {
	for _, body := range []string{oneAnswer, oneStream} {
		t.Run("net/http: "+body, func(t *testing.T) {
			is := is.New(t)
			engine := newPacedEngine()
			conn := mountedBy(Fiber)(t, engine).dial(t)
			conn.ask(body)
			receive(t, engine.started)
			conn.closeWrite()
			is.True(errors.Is(receive(t, engine.ended), context.Canceled))
		})
		t.Run("fasthttp: "+body, func(t *testing.T) {
			is := is.New(t)
			engine := newPacedEngine()
			conn := serveByFasthttp(t, engine).dial(t)
			conn.ask(body)
			receive(t, engine.started)
			conn.closeWrite()
			engine.say("too late")
			engine.finish()
			is.True(strings.Contains(conn.answer(), "too late"))
			is.NoErr(receive(t, engine.ended))
		})
	}
}

// serveByFasthttp mounts the handler in a fiber app that fasthttp serves.
func serveByFasthttp(t *testing.T, engine botapi.ChatEngine) client {
	t.Helper()
	app := fiber.New()
	app.All("/v1/*", adaptor.HTTPHandler(newHandler(t, engine)))
	transport := new(http.Transport)
	server := listenByFasthttp(t, app)
	t.Cleanup(transport.CloseIdleConnections)
	return client{http: &http.Client{Transport: transport}, server: server}
}

// listenByFasthttp serves an app on a loopback port until the test ends, and returns its address.
//
// The cleanup closes the listener instead of calling the app's Shutdown, whose
// cancellation of the requests' contexts is a data race with code that waits for them.
func listenByFasthttp(t *testing.T, app *fiber.App) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		_ = listener.Close()
		if err := <-served; err != nil {
			t.Errorf("serving by fasthttp: %v", err)
		}
	})
	return "http://" + listener.Addr().String()
}

// A connection is a TCP connection on which the test writes its request.
type connection struct {
	t *testing.T
	*net.TCPConn
}

func (c client) dial(t *testing.T) connection {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.server, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return connection{t, conn.(*net.TCPConn)}
}

func (c connection) ask(body string) {
	c.t.Helper()
	_, err := fmt.Fprintf(c, "POST /v1/chat HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
		apiKey, len(body), body)
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c connection) closeWrite() {
	c.t.Helper()
	if err := c.CloseWrite(); err != nil {
		c.t.Fatal(err)
	}
}

func (c connection) answer() string {
	c.t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(body)
}
