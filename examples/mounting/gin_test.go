package mounting

import (
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/matryer/is"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode) // no list of routes on standard output
	os.Exit(m.Run())
}

func TestGinRecoveryMakesABrokenStreamLookWhole(t *testing.T) {
	is := is.New(t)
	got := serve(t, behindGinRecovery(newHandler(t, breaking))).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.body, brokenStream)
	is.NoErr(got.err) // nothing was cut
}

// behindGinRecovery is how gin.Default mounts a handler.
func behindGinRecovery(h http.Handler) http.Handler {
	engine := gin.New()
	engine.Use(gin.RecoveryWithWriter(io.Discard))
	engine.Any("/v1/*path", gin.WrapH(h))
	return engine
}

func TestGinNoRouteLeavesTheStatusToTheHandler(t *testing.T) {
	is := is.New(t)
	engine := gin.New()
	engine.NoRoute(gin.WrapH(newHandler(t, echoing)))
	server := serve(t, engine)
	is.Equal(server.do(t, "POST", "/v1/chat", oneAnswer).status, http.StatusOK)
	is.Equal(server.do(t, "POST", "/v1/chat", oneStream).status, http.StatusOK)
}
