package mounting

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
)

// Fiber puts h in front of a fiber app, which keeps all its other routes:
// net/http serves h, and the app through its adaptor.
//
// The other way round, app.All("/v1/*", adaptor.HTTPHandler(h)) on a server of
// fasthttp, fragments still leave one by one, but h loses what it needs of
// net/http:
//
//   - fasthttp does not look at a connection while it answers: a one-body answer
//     is worked out for a client that left, and a stream goes on until a write
//     fails.
//   - A stream that broke ends in good order, so that it looks whole.
//   - The app's Shutdown ends the contexts of chats in progress: they are cut
//     instead of finished.
//   - When a write has failed, fasthttp uses the memory of the request again,
//     while h and the engine still hold the request and its context.
func Fiber(h http.Handler) http.Handler {
	app := fiber.New()
	app.Get("/health-check", func(c fiber.Ctx) error { return c.SendString("ok") })

	mux := http.NewServeMux()
	mux.Handle("/v1/", h)
	mux.Handle("/", adaptor.FiberApp(app))
	return mux
}
