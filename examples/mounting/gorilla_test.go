package mounting

import (
	"io"
	"log"
	"net/http"
	"testing"

	"github.com/gorilla/handlers"
	"github.com/gorilla/mux"
	"github.com/matryer/is"
)

func TestGorillaRecoveryMakesABrokenStreamLookWhole(t *testing.T) {
	is := is.New(t)
	recovery := handlers.RecoveryHandler(handlers.RecoveryLogger(log.New(io.Discard, "", 0)))
	got := mountedBy(recovery)(t, breaking).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.body, brokenStream)
	is.NoErr(got.err) // nothing was cut
}

func TestGorillaCompressHoldsNoStreamBack(t *testing.T) {
	is := is.New(t)
	stream := streamAtAPace(t, mountedBy(handlers.CompressHandler))
	is.True(stream.compressed)
}

func TestGorillaRedirectsUnlessItSkipsCleaning(t *testing.T) {
	is := is.New(t)
	h := newHandler(t, echoing)
	cleaning := mux.NewRouter()
	cleaning.PathPrefix("/v1/").Handler(h)
	got := serve(t, cleaning).do(t, "POST", "//v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusMovedPermanently)

	got = serve(t, Gorilla(h)).do(t, "POST", "//v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusNotFound)
}
