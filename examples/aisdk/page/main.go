// Command page serves a chat page that is built with useChat of the AI SDK, and two bots
// without a model for it. It is started in its folder:
//
//	npm ci && npm run build
//	go run .
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"iter"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"example.com/botapi/examples/quickstart/eliza"
	"example.com/botapi/examples/resume"
)

func main() {
	address := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	flag.Parse()
	if _, err := os.Stat("dist/page.js"); err != nil {
		log.Fatal("The page is not built: run npm ci && npm run build in this folder first")
	}
	key := cmp.Or(os.Getenv("BOTAPI_KEY"), rand.Text())
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("Open http://%s/#key=%s\n", listener.Addr(), key)
	handler, _ := newService(newEngine(), key)
	log.Fatal(http.Serve(listener, handler))
}

// newEngine returns the engine of both bots. Regenerate gets another line.
func newEngine() botapi.ChatEngine {
	var asked eliza.Repeats
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return eliza.Engine{Pace: 300 * time.Millisecond, Again: asked.Count(req)}.Chat(ctx, req)
	})
}

// newService returns the page, the bots that it lists, and their chats. The answers are
// to be closed after the server.
func newService(engine botapi.ChatEngine, key string) (http.Handler, *aisdk.Answers) {
	bots, err := botapi.NewMemoryStore(
		botapi.Bot{UID: "1", Slug: "mira", Name: "Mira", Model: "eliza-listener"},
		botapi.Bot{UID: "2", Slug: "juniper", Name: "Juniper", Model: "eliza-gardener"},
	)
	if err != nil {
		panic(err)
	}
	answers := aisdk.NewAnswers(resume.Options{Engine: engine})
	api := botapi.New(botapi.Options{
		Bots:    bots,
		Keys:    botapi.StaticKeys(map[string]string{key: "me"}),
		Engine:  answers,
		Routes:  aisdk.Routes(aisdk.Options{Answers: answers}),
		OnLimit: answers.OnLimit,
	})
	mux := http.NewServeMux()
	mux.Handle("/v1/", api)
	mux.Handle("/api/", api)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "index.html") })
	mux.HandleFunc("GET /page.js", func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, "dist/page.js") })
	return mux, answers
}
