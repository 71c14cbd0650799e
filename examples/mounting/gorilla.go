package mounting

import (
	"net/http"

	"github.com/gorilla/handlers"
	"github.com/gorilla/mux"
)

// Gorilla mounts h in a gorilla/mux router.
//
// handlers.RecoveryHandler swallows http.ErrAbortHandler, so that a failed stream
// looks complete. So only the subrouter of the application's own routes uses it.
//
// SkipClean keeps the router from redirecting paths that are not clean, such
// as "//v1/chat", with a 301 that turns a POST into a GET.
func Gorilla(h http.Handler) http.Handler {
	r := mux.NewRouter().SkipClean(true)
	r.PathPrefix("/v1/").Handler(h)
	own := r.NewRoute().Subrouter()
	own.Use(handlers.RecoveryHandler())
	own.HandleFunc("/health-check", healthCheck).Methods(http.MethodGet)
	return r
}
