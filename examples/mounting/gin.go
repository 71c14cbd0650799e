package mounting

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin mounts h in a gin engine.
//
// gin.Recovery swallows http.ErrAbortHandler: behind it, a stream that broke
// looks whole. So it recovers the host's own routes only, as middleware of
// their group; gin.Default would put it in front of all. An engine that cannot
// be changed so goes behind a ServeMux that has h, as in [Fiber].
//
// Any registers all methods, so that h answers the wrong ones. NoRoute may have
// h too: the 404 that gin presets there is not the status of h's answers.
func Gin(h http.Handler) http.Handler {
	engine := gin.New()
	engine.Any("/v1/*path", gin.WrapH(h))
	own := engine.Group("/", gin.Recovery())
	own.GET("/health-check", func(c *gin.Context) { c.String(http.StatusOK, "ok") })
	return engine
}
