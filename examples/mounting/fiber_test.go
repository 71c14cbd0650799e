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

// What goes well when fasthttp serves the handler through fiber's adaptor.
func TestFiberAdaptorServes(t *testing.T) {
	t.Run("lists the bots", func(t *testing.T) { checkListing(t, serveByFasthttp) })
	t.Run("answers in one body", func(t *testing.T) { checkAnswer(t, serveByFasthttp) })
	t.Run("streams fragment by fragment", func(t *testing.T) { checkStream(t, serveByFasthttp) })
	t.Run("leaves the refusals to the handler", func(t *testing.T) { checkRefusals(t, serveByFasthttp) })
}

func TestFiberAdaptorMakesABrokenStreamLookWhole(t *testing.T) {
	is := is.New(t)
	got := serveByFasthttp(t, breaking).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.body, brokenStream)
	is.NoErr(got.err) // nothing was cut
}

// The client here closes its sending side only: a server sees of it what it
// sees of one that has left, but the test can still read what comes. Under
// net/http the engine's context ends. fasthttp does not look at a connection
// while it answers, so the engine goes on to the end.
func TestFiberAdaptorDoesNotNoticeThatTheClientLeft(t *testing.T) {
	for _, body := range []string{oneAnswer, oneStream} {
		t.Run("net/http: "+body, func(t *testing.T) {
			is := is.New(t)
			engine := newPacedEngine()
			conn := mountedBy(Fiber)(t, engine).dial(t)
			conn.ask(body)
			receive(t, engine.started)
			conn.leave()
			is.True(errors.Is(receive(t, engine.ended), context.Canceled))
		})
		t.Run("fasthttp: "+body, func(t *testing.T) {
			is := is.New(t)
			engine := newPacedEngine()
			conn := serveByFasthttp(t, engine).dial(t)
			conn.ask(body)
			receive(t, engine.started)
			conn.leave()
			engine.say("for nobody")
			engine.finish()
			is.True(strings.Contains(conn.answer(), "for nobody"))
			is.NoErr(receive(t, engine.ended))
		})
	}
}

// serveByFasthttp mounts the handler in a fiber app that fasthttp serves.
//
// Its end closes the listener. The app's Shutdown would end the contexts of
// requests, and in doing so race with whoever waits for them.
func serveByFasthttp(t *testing.T, engine botapi.ChatEngine) client {
	t.Helper()
	app := fiber.New()
	app.All("/v1/*", adaptor.HTTPHandler(newHandler(t, engine)))

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	transport := new(http.Transport)
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = listener.Close()
		if err := <-served; err != nil {
			t.Errorf("serving by fasthttp: %v", err)
		}
	})
	return client{http: &http.Client{Transport: transport}, server: "http://" + listener.Addr().String()}
}

// A connection of a client that writes its request by itself.
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

func (c connection) leave() {
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
