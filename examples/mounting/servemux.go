package mounting

import "net/http"

// ServeMux mounts h beside the application's own routes.
//
// The pattern has no method: with "POST /v1/chat", ServeMux itself would reply to
// other methods with a plain-text 405. It ends with a slash: "/v1" is a single
// path, not a subtree. ServeMux redirects paths that are not clean, such as
// "//v1/chat", before h sees them.
func ServeMux(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/", h)
	mux.HandleFunc("GET /health-check", healthCheck)
	return mux
}

// StripPrefix mounts h under a prefix. Clients use https://host/assistants as their
// base URL.
//
// The prefix to strip has no slash at its end, since h expects paths that begin
// with one.
func StripPrefix(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/assistants/", http.StripPrefix("/assistants", h))
	mux.HandleFunc("GET /health-check", healthCheck)
	return mux
}
