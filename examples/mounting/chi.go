package mounting

import (
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// Chi mounts h in a chi router.
//
// Recoverer passes http.ErrAbortHandler on, so it may stand in front. Compress
// leaves text/event-stream alone unless its list of types names it or text/*.
// Timeout ends the request's context: in front of h, it would end long answers
// with a 504 or cut them, so it is for the host's own routes.
//
// Mount("/v1", h) does the same as Handle("/v1/*", h): chi does not strip what
// it has matched from the URL. Under another prefix, wrap h in
// http.StripPrefix.
func Chi(h http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(middleware.Recoverer, middleware.Compress(5))
	r.Handle("/v1/*", h)
	r.Group(func(own chi.Router) {
		own.Use(middleware.Timeout(30 * time.Second))
		own.Get("/health-check", healthCheck)
	})
	return r
}
