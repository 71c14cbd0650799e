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

func TestGorillaRecoveryMakesAFailedStreamLookComplete(t *testing.T) {
	is := is.New(t)
	recovery := handlers.RecoveryHandler(handlers.RecoveryLogger(log.New(io.Discard, "", 0)))
	got := mountedBy(recovery)(t, failing).do(t, "POST", "/v1/chat", oneStream)
	is.Equal(got.body, failedStream)
	is.NoErr(got.err) // not aborted
}

func TestGorillaCompressDelaysNoStream(t *testing.T) {
	is := is.New(t)
	stream := streamInStep(t, mountedBy(handlers.CompressHandler))
	is.True(stream.compressed)
}

func TestGorillaRedirectsWithoutSkipClean(t *testing.T) {
	is := is.New(t)
	h := newHandler(t, echoing)
	cleaning := mux.NewRouter()
	cleaning.PathPrefix("/v1/").Handler(h)
	got := serve(t, cleaning).do(t, "POST", "//v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusMovedPermanently)

	got = serve(t, Gorilla(h)).do(t, "POST", "//v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusNotFound)
}
