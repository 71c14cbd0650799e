package mounting

import (
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// Chi mounts h in a chi router.
//
// Recoverer passes http.ErrAbortHandler on, so it may wrap h. Compress does not
// compress text/event-stream unless its list of types contains it or text/*.
// Timeout cancels the request's context: if it wrapped h, long answers would end
// with a 504 or be aborted. So only the application's own routes use it.
//
// Mount("/v1", h) does the same as Handle("/v1/*", h): chi does not strip the
// matched prefix from the URL. Under another prefix, wrap h in http.StripPrefix.
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
