//go:build !race

package mounting

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/internal/stackcheck"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	recovery "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/matryer/is"
)

// Fiber's adaptor breaks several promises, whether net/http serves the app or fasthttp does. With
// disconnects, the race detector would report fasthttp, which reuses the memory of requests.
func TestFiberAdaptorIsFound(t *testing.T) {
	inFiber := func(api http.Handler) *fiber.App {
		app := fiber.New()
		app.Use(recovery.New()) // without it, a chat that is aborted before its response ends the process
		app.All("/v1/*", adaptor.HTTPHandler(api))
		return app
	}
	t.Run("in net/http", func(t *testing.T) {
		t.Parallel()
		is := is.New(t)
		results, err := stackcheck.Inspect(t.Context(), stackcheck.Mounting{Mount: func(api http.Handler) http.Handler {
			return adaptor.FiberApp(inFiber(api))
		}}, nil)
		is.NoErr(err)
		failed, said := found(t, results)
		is.Equal(failed, []string{"the key arrives", "the handler can flush and set deadlines", "an incomplete answer looks incomplete", "a disconnect stops the model"})
		is.Equal(strings.Count(said, "fiber's adaptor"), 4)
	})
	t.Run("in fasthttp", func(t *testing.T) {
		t.Parallel()
		is := is.New(t)
		const secret = "the-secret-of-the-stacks"
		o := options(t, botapitest.Probed(echoing, secret), t.Output())
		o.ChatTimeout, o.KeepAlive = 0, 50*time.Millisecond
		server := listenByFasthttp(t, inFiber(botapi.New(o)))
		results, err := stackcheck.Diagnose(t.Context(), stackcheck.Target{URL: server, Key: apiKey, Secret: secret})
		is.NoErr(err)
		for i := range results {
			results[i].Problem = "" // after a disconnect, later requests may get a 404 of the app
		}
		failed, said := found(t, results)
		is.Equal(failed, []string{"an incomplete answer looks incomplete", "a disconnect stops the model"})
		is.Equal(strings.Count(said, "fiber's adaptor"), 2)
	})
}
