package mounting

import "net/http"

// ServeMux mounts h beside the host's own routes.
//
// The pattern has no method: with "POST /v1/chat", the mux would answer every
// other method itself, in plain text. It ends with a slash: "/v1" alone is one
// path, not a subtree. The mux redirects paths that are not clean, such as
// "//v1/chat", before h sees them.
func ServeMux(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/", h)
	mux.HandleFunc("GET /health-check", healthCheck)
	return mux
}

// StripPrefix mounts h under a prefix of the host's choice: clients get
// https://host/assistants as their base address.
//
// The prefix to strip has no slash at its end: h expects paths that begin with
// one.
func StripPrefix(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/assistants/", http.StripPrefix("/assistants", h))
	mux.HandleFunc("GET /health-check", healthCheck)
	return mux
}
