package service

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/http/httptest"
	"testing"

	"example.com/botapi"
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

// TestProbeIsNotHandedBack has the probe of the doctor fail with 503, as a model does that was
// asked: the proxy must not repeat it.
func TestProbeIsNotHandedBack(t *testing.T) {
	const secret = "the-secret-of-the-doctor"
	models := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("", errStarting) } // before it is asked
	})
	r := &replica{config: Config{DoctorSecret: secret}}
	engine := r.withProbe(models)
	for order, want := range map[string]int{
		`{"secret": "the-secret-of-the-doctor", "chat": "a", "do": "play", "steps": [{"fail": {"status": 503}}]}`: http.StatusServiceUnavailable,
		`{"secret": "another-secret", "chat": "a", "do": "play", "steps": [{"fail": {"status": 503}}]}`:           http.StatusTooEarly,
	} {
		is := is.New(t)
		serve := r.identified(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			chat := &botapi.ChatRequest{Extra: map[string]json.RawMessage{"botapi_probe": json.RawMessage(order)}}
			for _, err := range engine.Chat(req.Context(), chat) {
				is.True(err != nil)
			}
			w = &head{w, w, turnOf(req.Context()), true}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		w := httptest.NewRecorder()
		serve.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat", nil))
		is.Equal(w.Code, want)
	}
}
