package mounting

import (
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/gorilla/handlers"
	"github.com/klauspost/compress/gzhttp"
	echomiddleware "github.com/labstack/echo/v5/middleware"
	"github.com/matryer/is"
)

func TestMiddlewareLogsAFailedStream(t *testing.T) {
	is := is.New(t)
	log := make(logLines, 8)
	got := serve(t, Middleware(newHandler(t, failing), log.logger())).do(t, "POST", "/v1/chat", oneStream)
	is.True(got.err != nil)
	line := receive(t, log) // the first line: http.ErrAbortHandler is not logged as a panic
	is.True(strings.Contains(line, "msg=request method=POST path=/v1/chat status=200 "))
	is.True(strings.HasSuffix(line, " request_id="+got.header.Get("X-Request-Id")+"\n"))
}

func TestMiddlewareRecoversPanics(t *testing.T) {
	is := is.New(t)
	log := make(logLines, 8)
	panicking := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("no such shelf") })
	mounted := logRequests(log.logger(), recoverPanics(log.logger(), panicking))
	got := serve(t, mounted).do(t, "GET", "/shelf", "")
	is.Equal(got.status, http.StatusInternalServerError)
	is.True(strings.Contains(receive(t, log), `msg="handler panicked" panic="no such shelf"`))
	is.True(strings.Contains(receive(t, log), "msg=request method=GET path=/shelf status=500 "))
}

// Content-Length shows that the stream was complete when its first byte was sent.
func TestWriterThatCannotFlushDelaysTheStream(t *testing.T) {
	tests := []struct {
		name  string
		mount func(http.Handler) http.Handler
	}{
		{"http.TimeoutHandler", func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "") }},
		{"a wrapper without Unwrap", func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
			})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			is := is.New(t)
			log := make(logLines, 8)
			h := botapi.New(options(t, echoing, log))
			got := serve(t, tt.mount(h)).do(t, "POST", "/v1/chat", oneStream)
			is.Equal(got.body, "data: {\"content\":\"Hello?\"}\n\ndata: [DONE]\n\n")
			is.Equal(got.header.Get("Content-Length"), strconv.Itoa(len(got.body)))
			is.True(strings.Contains(receive(t, log), "level=WARN msg=\"the ResponseWriter cannot flush"))
		})
	}
}

// logLines receives the log, line by line.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

func (l logLines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// compressing has common compression middleware.
var compressing = map[string]func(http.Handler) http.Handler{
	"chi":     chimiddleware.Compress(5),
	"gorilla": handlers.CompressHandler,
	"echo":    inEcho(echomiddleware.Gzip()),
	"gzhttp":  func(h http.Handler) http.Handler { return gzhttp.GzipHandler(h) },
}

// Compression adds no body to a response without one, and an error keeps its status,
// although its header is delayed until its size is known.
func TestJSONResponsesWithCompression(t *testing.T) {
	for name, compress := range compressing {
		for protocol, serve := range map[string]func(*testing.T, http.Handler) client{"HTTP 1": serve, "HTTP 2": serveHTTP2} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				is := is.New(t)
				server := serve(t, compress(newHandler(t, echoing)))
				list := server.do(t, "GET", "/v1/bots", "")
				is.True(strings.HasPrefix(list.body, "["))
				for _, c := range []struct {
					method, path, body, name, value string
					status                          int
					want                            string
				}{
					{"GET", "/v1/bots", "", "If-None-Match", "*", http.StatusNotModified, ""},
					{"HEAD", "/v1/bots", "", "Accept", "*/*", http.StatusOK, ""},
					{"GET", "/v1/bots", "", "Authorization", "Bearer wrong", http.StatusUnauthorized, `{"detail":"Invalid API key"}`},
					{"POST", "/v1/chat", oneAnswer, "Accept", "*/*", http.StatusOK, `{"content":"Hello?"}`},
				} {
					got := server.do(t, c.method, c.path, c.body, c.name, c.value)
					is.NoErr(got.err)
					is.Equal(got.status, c.status)
					is.Equal(got.body, c.want)
				}
			})
		}
	}
}

// Compression middleware writes the end of a response after the handler has
// returned, even if ChatTimeout has passed.
func TestTimeoutResponseWithCompression(t *testing.T) {
	for name, compress := range compressing {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			o := options(t, newPacedEngine(), t.Output())
			o.ChatTimeout = time.Millisecond
			got := serve(t, compress(botapi.New(o))).do(t, "POST", "/v1/chat", oneAnswer)
			is.NoErr(got.err)
			is.Equal(got.status, http.StatusGatewayTimeout)
			is.Equal(got.body, `{"detail":"The answer took too long"}`)
		})
	}
}
