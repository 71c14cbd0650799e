package resume_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
)

// A client that loses its connection sends the same request again, and gets the
// answer from its beginning. The model is asked once.
func Example() {
	engine := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			fmt.Println("The model is asked.")
			for _, word := range []string{"Once ", "upon ", "a ", "time"} {
				if !yield(word, nil) {
					return
				}
			}
		}
	})
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "teller", Name: "Teller", Model: "m"})
	if err != nil {
		log.Fatal(err)
	}
	keys := botapi.StaticKeys(map[string]string{"my-key": "me"})

	answers := resume.New(resume.Options{Engine: engine})
	api := botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: answers, Routes: answers.Routes(), OnLimit: answers.OnLimit})
	server := httptest.NewServer(api)
	defer func() {
		server.Close() // or Shutdown, of an http.Server
		if err := answers.Close(context.Background()); err != nil {
			log.Print(err)
		}
	}()

	// A client chooses a key for each answer, at random.
	request := func(ctx context.Context) (*http.Response, error) {
		body := strings.NewReader(`{"bot_slug": "teller", "prompt": "A story, please", "stream": true}`)
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/v1/chat", body)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer my-key")
		r.Header.Set(resume.Header, "fe2b7c40-7ea7-4b8e-9f0b-6f1c5a8d3e21")
		return http.DefaultClient.Do(r)
	}
	ctx, loseConnection := context.WithCancel(context.Background())
	response, err := request(ctx)
	if err != nil {
		log.Fatal(err)
	}
	event, err := bufio.NewReader(response.Body).ReadString('\n')
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s", response.Header.Get(resume.OutcomeHeader), event)
	loseConnection()
	_ = response.Body.Close()

	response, err = request(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Printf("%s: ", response.Header.Get(resume.OutcomeHeader))
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		log.Fatal(err)
	}
	// Output:
	// The model is asked.
	// kept: data: {"content":"Once "}
	// joined: data: {"content":"Once "}
	//
	// data: {"content":"upon "}
	//
	// data: {"content":"a "}
	//
	// data: {"content":"time"}
	//
	// data: [DONE]
}

// A web backend serves all the people who are logged in with one API key of its own.
// The owner of an answer is the person, whom the backend knows from its own login:
// never the user_id of a request, which the client chooses.
func ExampleOptions_owner() {
	type personKey struct{}
	personFrom := func(ctx context.Context) string {
		person, _ := ctx.Value(personKey{}).(string)
		return person
	}
	sessions := map[string]string{"session-1": "Ann", "session-2": "Ben"} // the backend's logins
	login := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			cookie, err := r.Cookie("session")
			if err != nil || sessions[cookie.Value] == "" {
				http.Error(w, "Log in first", http.StatusUnauthorized)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), personKey{}, sessions[cookie.Value]))
			r.Header.Set("Authorization", "Bearer the-backends-key")
			next.ServeHTTP(w, r)
		})
	}

	engine := botapi.ChatEngineFunc(func(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("Hello, "+personFrom(ctx), nil) }
	})
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "greeter", Name: "Greeter", Model: "m"})
	if err != nil {
		log.Fatal(err)
	}
	keys := botapi.StaticKeys(map[string]string{"the-backends-key": "backend"})
	answers := resume.New(resume.Options{Engine: engine, Owner: personFrom})
	api := botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: answers, Routes: answers.Routes(), OnLimit: answers.OnLimit})
	handler := login(api)

	call := func(session, method, path string) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, strings.NewReader(`{"bot_slug": "greeter", "prompt": "Hi", "stream": false}`))
		r.AddCookie(&http.Cookie{Name: "session", Value: session})
		r.Header.Set(resume.Header, "the-key-of-anns-answer")
		handler.ServeHTTP(w, r)
		fmt.Println(sessions[session], method, w.Code, w.Header().Get(resume.OutcomeHeader), strings.TrimSpace(w.Body.String()))
	}
	call("session-1", "POST", "/v1/chat")
	call("session-2", "DELETE", "/v1/answers") // Ben knows Ann's key: it is of no use to him
	call("session-2", "POST", "/v1/chat")
	call("session-1", "POST", "/v1/chat")
	if err := answers.Close(context.Background()); err != nil {
		log.Print(err)
	}
	// Output:
	// Ann POST 200 kept {"content":"Hello, Ann"}
	// Ben DELETE 404  {"detail":"Answer not found"}
	// Ben POST 200 kept {"content":"Hello, Ben"}
	// Ann POST 200 joined {"content":"Hello, Ann"}
}
