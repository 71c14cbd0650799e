package mounting

import (
	"net/http"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/matryer/is"
)

func TestChiCompressesJSONButNotStreams(t *testing.T) {
	is := is.New(t)
	got := serve(t, Chi(newHandler(t, echoing))).do(t, "POST", "/v1/chat", oneAnswer, "Accept-Encoding", "gzip")
	is.Equal(got.header.Get("Content-Encoding"), "gzip")

	got = serve(t, Chi(newHandler(t, echoing))).do(t, "POST", "/v1/chat", oneStream, "Accept-Encoding", "gzip")
	is.Equal(got.header.Get("Content-Encoding"), "")
}

func TestChiCompressDelaysNoStream(t *testing.T) {
	is := is.New(t)
	stream := streamInStep(t, mountedBy(middleware.Compress(5, "text/*")))
	is.True(stream.compressed)
}

func TestChiTimeoutEndsAnswers(t *testing.T) {
	is := is.New(t)
	silent := newPacedEngine()
	got := serve(t, middleware.Timeout(time.Millisecond)(newHandler(t, silent))).do(t, "POST", "/v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusGatewayTimeout)
	is.Equal(got.body, `{"detail":"The answer took too long"}`)
}

func TestChiMountStripsNothing(t *testing.T) {
	is := is.New(t)
	h := newHandler(t, echoing)
	r := chi.NewRouter()
	r.Mount("/v1", h)
	r.Mount("/assistants", http.StripPrefix("/assistants", h))
	r.Mount("/helpers", h)
	server := serve(t, r)
	is.Equal(server.do(t, "GET", "/v1/bots", "").status, http.StatusOK)
	is.Equal(server.do(t, "GET", "/assistants/v1/bots", "").status, http.StatusOK)
	is.Equal(server.do(t, "GET", "/helpers/v1/bots", "").status, http.StatusNotFound)
}
