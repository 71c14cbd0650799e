package mounting

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"example.com/botapi"
	"github.com/matryer/is"
)

// mountings keep all guarantees of the handler.
var mountings = []struct {
	name   string
	mount  func(http.Handler) http.Handler
	prefix string
}{
	{name: "ServeMux", mount: ServeMux},
	{name: "StripPrefix", mount: StripPrefix, prefix: "/assistants"},
	{name: "Middleware", mount: func(h http.Handler) http.Handler { return Middleware(h, slog.New(slog.DiscardHandler)) }},
	{name: "CORS", mount: func(h http.Handler) http.Handler { return CORS(ServeMux(h), pageOrigin) }},
	{name: "Chi", mount: Chi},
	{name: "Gin", mount: Gin},
	{name: "Echo", mount: Echo},
	{name: "Gorilla", mount: Gorilla},
	{name: "Fiber", mount: Fiber},
}

var checks = []struct {
	name  string
	check func(*testing.T, serveFunc)
}{
	{"lists the bots", checkListing},
	{"sends a JSON response", checkJSON},
	{"streams fragment by fragment", checkStream},
	{"cancels the engine when the client of a stream disconnects", checkDisconnect},
	{"cancels the engine when the client disconnects early", checkEarlyDisconnect},
	{"aborts a failed stream", checkFailedStream},
	{"keeps the handler's errors", checkErrors},
	{"keeps the application's own routes", checkOwnRoutes},
}

func TestMountings(t *testing.T) {
	for _, m := range mountings {
		for _, c := range checks {
			t.Run(m.name+"/"+c.name, func(t *testing.T) {
				c.check(t, func(t *testing.T, engine botapi.ChatEngine) client {
					return serve(t, m.mount(newHandler(t, engine))).below(m.prefix)
				})
			})
			t.Run(m.name+" on HTTP 2/"+c.name, func(t *testing.T) {
				c.check(t, func(t *testing.T, engine botapi.ChatEngine) client {
					return serveHTTP2(t, m.mount(newHandler(t, engine))).below(m.prefix)
				})
			})
		}
	}
}

func checkListing(t *testing.T, serve serveFunc) {
	is := is.New(t)
	server := serve(t, echoing)
	got := server.do(t, "GET", "/v1/bots", "")
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.header.Get("Content-Type"), "application/json")
	is.True(strings.HasPrefix(got.body, `[{"uid":"11111111-1111-4111-8111-111111111111","slug":"echo",`))
	got = server.do(t, "HEAD", "/v1/bots", "")
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.body, "")
}

func checkJSON(t *testing.T, serve serveFunc) {
	is := is.New(t)
	got := serve(t, echoing).do(t, "POST", "/v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.header.Get("Content-Type"), "application/json")
	is.Equal(got.body, `{"content":"Hello?"}`)
}

func checkStream(t *testing.T, serve serveFunc) {
	is := is.New(t)
	stream := streamInStep(t, serve)
	is.Equal(stream.status, http.StatusOK)
	is.Equal(stream.header.Get("Content-Type"), "text/event-stream")
}

// streamInStep reads a stream whose engine gets each fragment when the one before has
// been read. It fails if anything delays a fragment.
func streamInStep(t *testing.T, serve serveFunc) *eventStream {
	t.Helper()
	is := is.New(t)
	engine := newPacedEngine()
	server := serve(t, engine)
	engine.say("Once")
	stream := server.stream(t, t.Context())
	is.Equal(stream.event(), `data: {"content":"Once"}`)
	for _, fragment := range []string{" upon", " a", " time"} {
		engine.say(fragment)
		is.Equal(stream.event(), `data: {"content":"`+fragment+`"}`)
	}
	engine.finish()
	is.Equal(stream.event(), "data: [DONE]")
	is.NoErr(stream.end())
	is.NoErr(receive(t, engine.ended))
	return stream
}

func checkDisconnect(t *testing.T, serve serveFunc) {
	is := is.New(t)
	engine := newPacedEngine()
	server := serve(t, engine)
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	engine.say("Once")
	stream := server.stream(t, ctx)
	is.Equal(stream.event(), `data: {"content":"Once"}`)
	disconnect()
	is.True(errors.Is(receive(t, engine.ended), context.Canceled))
}

func checkEarlyDisconnect(t *testing.T, serve serveFunc) {
	is := is.New(t)
	engine := newPacedEngine()
	server := serve(t, engine)
	ctx, disconnect := context.WithCancel(t.Context())
	defer disconnect()
	sent := make(chan error, 1)
	go func() {
		_, err := server.send(ctx, "POST", "/v1/chat", oneAnswer)
		sent <- err
	}()
	receive(t, engine.started)
	disconnect()
	is.True(errors.Is(receive(t, sent), context.Canceled))
	is.True(errors.Is(receive(t, engine.ended), context.Canceled))
}

// checkFailedStream checks the abort: clients that do not know the error event
// recognise an incomplete answer only by a read error.
func checkFailedStream(t *testing.T, serve serveFunc) {
	is := is.New(t)
	got := serve(t, failing).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.body, failedStream)
	is.True(got.err != nil) // the connection was aborted
}

func checkErrors(t *testing.T, serve serveFunc) {
	is := is.New(t)
	server := serve(t, echoing)

	got := server.do(t, "GET", "/v1/bots", "", "Authorization", "")
	is.Equal(got.status, http.StatusUnauthorized)
	is.Equal(got.body, `{"detail":"Not authenticated"}`)

	got = server.do(t, "DELETE", "/v1/chat", "")
	is.Equal(got.status, http.StatusMethodNotAllowed)
	is.Equal(got.header.Get("Allow"), "POST")
	is.Equal(got.body, `{"detail":"Method Not Allowed"}`)

	got = server.do(t, "POST", "/v1/chat/completions", oneAnswer)
	is.Equal(got.status, http.StatusNotFound)
	is.Equal(got.body, `{"detail":"Not Found"}`)
}

func checkOwnRoutes(t *testing.T, serve serveFunc) {
	is := is.New(t)
	got := serve(t, echoing).below("").do(t, "GET", "/health-check", "")
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.body, "ok")
}
