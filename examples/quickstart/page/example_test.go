package page_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/page"
)

// An application mounts the pages beside the API.
func ExampleHandler() {
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"})
	if err != nil {
		panic(err)
	}
	api := botapi.New(botapi.Options{
		Bots: bots,
		Keys: botapi.StaticKeys(map[string]string{"my-key": "me"}),
		Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
			return func(yield func(string, error) bool) { yield("Pretty Polly", nil) }
		}),
	})
	mux := http.NewServeMux()
	mux.Handle("/v1/", api)
	mux.Handle("/talk/", page.Handler(page.Options{
		Title:     "Our birds",
		BasePath:  "/talk/",
		Bots:      bots,
		Questions: map[string][]string{"parrot": {"Who is a pretty bird?"}},
	}))

	for _, path := range []string{"/talk/", "/talk/docs", "/v1/bots"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Println(path, w.Code, w.Header().Get("Content-Type"))
	}
	// Output:
	// /talk/ 200 text/html; charset=utf-8
	// /talk/docs 200 text/html; charset=utf-8
	// /v1/bots 401 application/json
}
