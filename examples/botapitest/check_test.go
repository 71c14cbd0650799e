package botapitest_test

import (
	"net/http"
	"testing"

	"example.com/botapi/examples/botapitest"
)

func TestCheckOfServeMux(t *testing.T) {
	botapitest.Check(t, func(api http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle("/v1/", api)
		return mux
	})
}
