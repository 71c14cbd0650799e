package mounting

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
)

// Fiber serves h and a fiber app with net/http. The app serves all other routes,
// through fiber's adaptor.
//
// Do not serve h with fasthttp, as app.All("/v1/*", adaptor.HTTPHandler(h)) does.
// Fragments are still sent one by one, but h loses guarantees of net/http:
//
//   - fasthttp does not watch a connection while it responds. If the client
//     disconnects, a JSON response is computed to its end, and a stream goes on
//     until a write fails.
//   - A failed stream ends without an aborted connection, so it looks complete.
//   - The app's Shutdown cancels the contexts of chats in progress, which aborts
//     them.
//   - After a failed write, fasthttp reuses the memory of the request, while h and
//     the engine still use the request and its context.
func Fiber(h http.Handler) http.Handler {
	app := fiber.New()
	app.Get("/health-check", func(c fiber.Ctx) error { return c.SendString("ok") })

	mux := http.NewServeMux()
	mux.Handle("/v1/", h)
	mux.Handle("/", adaptor.FiberApp(app))
	return mux
}
