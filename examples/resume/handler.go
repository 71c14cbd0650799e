package resume

import (
	"net/http"

	"example.com/botapi"
)

// Handler returns a handler around api that also serves the Routes.
//
// Deprecated: give Routes and OnLimit to botapi.Options.
func (e *Engine) Handler(api http.Handler, keys botapi.KeyVerifier) http.Handler {
	answers := botapi.New(botapi.Options{Bots: new(botapi.MemoryStore), Keys: keys, Engine: e, Routes: e.Routes(), Logger: e.options.Logger})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/answers" || r.URL.Path == "/answers" {
			answers.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}
