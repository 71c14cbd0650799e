package service

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"example.com/botapi/examples/production/internal/runtimes"
	"github.com/matryer/is"
)

// TestTurnIsAskedOrHandedBack has a replica hand a request back, and ask a model
// for it, in either order: never do both happen.
func TestTurnIsAskedOrHandedBack(t *testing.T) {
	is := is.New(t)
	var ask func() error
	r := &replica{config: Config{Endpoints: []runtimes.Endpoint{{}}}}
	serve := r.identified(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w = &head{w, w, turnOf(req.Context()), req.Header.Get(tryElsewhere) == "425"}
		ask = func() error {
			_, err := r.Settings(req.Context(), "u1")
			return err
		}
		if req.URL.Path == "/asked" {
			is.NoErr(ask())
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	status := func(path, header string) int {
		r := httptest.NewRequest("POST", path, nil)
		r.Header.Set(tryElsewhere, header)
		w := httptest.NewRecorder()
		serve.ServeHTTP(w, r)
		return w.Code
	}

	is.Equal(status("/not-asked", "425"), http.StatusTooEarly)
	is.Equal(ask(), errNotAsked)
	is.Equal(status("/asked", "425"), http.StatusServiceUnavailable)
	is.Equal(status("/not-asked", ""), http.StatusServiceUnavailable) // nobody asked for another status
	is.Equal(status("/not-asked", "200"), http.StatusServiceUnavailable)
}
