package mounting

import (
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"github.com/matryer/is"
)

func TestEchoGzipCompressesStreamsWithoutDelay(t *testing.T) {
	is := is.New(t)
	stream := streamInStep(t, mountedBy(inEcho(middleware.Gzip())))
	is.True(stream.compressed)
}

func TestEchoContextTimeoutEndsAnswers(t *testing.T) {
	is := is.New(t)
	timeout := inEcho(middleware.ContextTimeout(time.Millisecond))
	got := mountedBy(timeout)(t, newPacedEngine()).do(t, "POST", "/v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusGatewayTimeout)
	is.Equal(got.body, `{"detail":"The answer took too long"}`)
}

func inEcho(m echo.MiddlewareFunc) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		e := echo.New()
		e.Any("/v1/*", echo.WrapHandler(h), m)
		return e
	}
}
