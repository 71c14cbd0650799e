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

// mountings are those that keep all that the handler promises its clients.
var mountings = []struct {
	name   string
	mount  func(http.Handler) http.Handler
	prefix string
}{
	{name: "ServeMux", mount: ServeMux},
	{name: "StripPrefix", mount: StripPrefix, prefix: "/assistants"},
	{name: "Middleware", mount: func(h http.Handler) http.Handler { return Middleware(h, slog.New(slog.DiscardHandler)) }},
	{name: "CORS", mount: func(h http.Handler) http.Handler { return CORS(h, pageOrigin) }},
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
	{"answers in one body", checkAnswer},
	{"streams fragment by fragment", checkStream},
	{"ends the engine when its client leaves a stream", checkLeavingAStream},
	{"ends the engine when its client leaves before the answer", checkLeavingEarly},
	{"cuts a stream that broke", checkBrokenStream},
	{"leaves the refusals to the handler", checkRefusals},
	{"keeps the host's own routes", checkOwnRoutes},
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

func checkAnswer(t *testing.T, serve serveFunc) {
	is := is.New(t)
	got := serve(t, echoing).do(t, "POST", "/v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.header.Get("Content-Type"), "application/json")
	is.Equal(got.body, `{"content":"Hello?"}`)
}

func checkStream(t *testing.T, serve serveFunc) {
	is := is.New(t)
	stream := streamAtAPace(t, serve)
	is.Equal(stream.status, http.StatusOK)
	is.Equal(stream.header.Get("Content-Type"), "text/event-stream")
}

// streamAtAPace reads a whole stream whose engine gets its next fragment when
// the one before has been read: where anything is held back, it gets no
// further.
func streamAtAPace(t *testing.T, serve serveFunc) *eventStream {
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

func checkLeavingAStream(t *testing.T, serve serveFunc) {
	is := is.New(t)
	engine := newPacedEngine()
	server := serve(t, engine)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	engine.say("Once")
	stream := server.stream(t, ctx)
	is.Equal(stream.event(), `data: {"content":"Once"}`)
	leave()
	is.True(errors.Is(receive(t, engine.ended), context.Canceled))
}

func checkLeavingEarly(t *testing.T, serve serveFunc) {
	is := is.New(t)
	engine := newPacedEngine()
	server := serve(t, engine)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	asked := make(chan error, 1)
	go func() {
		_, err := server.send(ctx, "POST", "/v1/chat", oneAnswer)
		asked <- err
	}()
	receive(t, engine.started)
	leave()
	is.True(errors.Is(receive(t, asked), context.Canceled))
	is.True(errors.Is(receive(t, engine.ended), context.Canceled))
}

// checkBrokenStream is for clients that know no error event: only an answer
// that ends in an error is not taken for a whole one.
func checkBrokenStream(t *testing.T, serve serveFunc) {
	is := is.New(t)
	got := serve(t, breaking).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.status, http.StatusOK)
	is.Equal(got.body, brokenStream)
	is.True(got.err != nil) // the connection was cut
}

func checkRefusals(t *testing.T, serve serveFunc) {
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
