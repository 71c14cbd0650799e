package mounting

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
)

// Echo mounts h in an echo instance.
//
// Recover passes http.ErrAbortHandler on, so it may wrap h. Gzip also compresses
// streams, unless its Skipper excludes them.
func Echo(h http.Handler) http.Handler {
	e := echo.New()
	e.Use(middleware.Recover())
	e.Any("/v1/*", echo.WrapHandler(h))
	e.GET("/health-check", func(c *echo.Context) error { return c.String(http.StatusOK, "ok") })
	return e
}
