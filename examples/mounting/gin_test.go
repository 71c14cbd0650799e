package mounting

import (
	"flag"
	"io"
	"net/http"
	"os"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/matryer/is"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode) // no list of routes on standard output
	flag.Parse()
	_ = flag.Set("test.parallel", "10") // more than there are processors: the tests mostly wait
	os.Exit(m.Run())
}

func TestGinRecoveryMakesAFailedStreamLookComplete(t *testing.T) {
	is := is.New(t)
	got := serve(t, inGinDefault(newHandler(t, failing))).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.body, failedStream)
	is.NoErr(got.err) // not aborted
}

// inGinDefault is how gin.Default mounts a handler.
func inGinDefault(h http.Handler) http.Handler {
	engine := gin.New()
	engine.Use(gin.RecoveryWithWriter(io.Discard))
	engine.Any("/v1/*path", gin.WrapH(h))
	return engine
}

func TestGinNoRouteKeepsTheHandlersStatus(t *testing.T) {
	is := is.New(t)
	engine := gin.New()
	engine.NoRoute(gin.WrapH(newHandler(t, echoing)))
	server := serve(t, engine)
	is.Equal(server.do(t, "POST", "/v1/chat", oneAnswer).status, http.StatusOK)
	is.Equal(server.do(t, "POST", "/v1/chat", oneStream).status, http.StatusOK)
}
