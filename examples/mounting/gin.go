package mounting

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// Gin mounts h in a gin engine.
//
// gin.Recovery swallows http.ErrAbortHandler, so that a failed stream looks
// complete. So only the group of the application's own routes uses it; gin.Default
// would use it for all routes. If you cannot change the engine like that, mount it and
// h in a ServeMux, as [Fiber] does.
//
// Any registers all methods, so that h rejects wrong ones itself. NoRoute(gin.WrapH(h))
// works, too: the 404 that gin presets there does not change the status of h's
// responses.
func Gin(h http.Handler) http.Handler {
	engine := gin.New()
	engine.Any("/v1/*path", gin.WrapH(h))
	own := engine.Group("/", gin.Recovery())
	own.GET("/health-check", func(c *gin.Context) { c.String(http.StatusOK, "ok") })
	return engine
}
