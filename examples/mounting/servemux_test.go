package mounting

import (
	"net/http"
	"testing"

	"github.com/matryer/is"
)

func TestServeMuxRejectsOtherMethodsOfAPattern(t *testing.T) {
	is := is.New(t)
	mux := http.NewServeMux()
	mux.Handle("POST /v1/chat", newHandler(t, echoing))
	got := serve(t, mux).do(t, "GET", "/v1/chat", "")
	is.Equal(got.status, http.StatusMethodNotAllowed)
	is.Equal(got.body, "Method Not Allowed\n") // not JSON
}

func TestServeMuxRedirectsPathsThatAreNotClean(t *testing.T) {
	is := is.New(t)
	got := serve(t, ServeMux(newHandler(t, echoing))).do(t, "POST", "//v1/chat", oneAnswer)
	is.Equal(got.status, http.StatusTemporaryRedirect) // a POST stays a POST
	is.Equal(got.header.Get("Location"), "/v1/chat")
}

func TestStripPrefixMustKeepTheSlash(t *testing.T) {
	is := is.New(t)
	mux := http.NewServeMux()
	mux.Handle("/assistants/", http.StripPrefix("/assistants/", newHandler(t, echoing)))
	got := serve(t, mux).do(t, "GET", "/assistants/v1/bots", "")
	is.Equal(got.status, http.StatusNotFound)
}
