package clients

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// A lossyService keeps answers, and loses the response to the first chat.
type lossyService struct {
	*httptest.Server
	requests atomic.Int32  // chats
	asked    atomic.Int32  // calls of the model
	begun    chan struct{} // closed when the model has been called
	retried  chan struct{} // closed when the second chat has arrived
}

// newLossyService starts a service. lose serves the first chat.
func newLossyService(t *testing.T, lose func(s *lossyService, api http.Handler, w http.ResponseWriter, r *http.Request)) *lossyService {
	t.Helper()
	s := &lossyService{begun: make(chan struct{}), retried: make(chan struct{})}
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	answers := resume.New(resume.Options{Engine: botapi.ChatEngineFunc(s.tell)})
	api := botapi.New(botapi.Options{
		Bots:    bots,
		Keys:    botapi.StaticKeys(map[string]string{key: "acme"}),
		Engine:  answers,
		Routes:  slices.Concat(openai.Routes(openai.Options{Bots: bots}), answers.Routes()),
		OnLimit: answers.OnLimit,
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch s.requests.Add(1) {
		case 1:
			lose(s, api, w, r)
			return
		case 2:
			close(s.retried)
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := answers.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tell says "Once ", and the rest when the client has come back.
func (s *lossyService) tell(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if s.asked.Add(1) == 1 {
			close(s.begun)
		}
		if !yield("Once ", nil) {
			return
		}
		select {
		case <-s.retried:
			yield("upon a time", nil)
		case <-ctx.Done():
		}
	}
}

// loseConnection closes the connection before the response.
func loseConnection(s *lossyService, api http.Handler, w http.ResponseWriter, r *http.Request) {
	go func() {
		<-s.begun
		s.CloseClientConnections()
	}()
	api.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// badGateway is a proxy that gives up while the model works.
func badGateway(s *lossyService, api http.Handler, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		<-s.begun
		cancel()
	}()
	func() {
		defer func() { _ = recover() }() // http.ErrAbortHandler
		api.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
	}()
	http.Error(w, "Bad Gateway", http.StatusBadGateway)
}

// loseNothing leaves it to the test when the connection is lost.
func loseNothing(s *lossyService, api http.Handler, w http.ResponseWriter, r *http.Request) {
	api.ServeHTTP(w, r)
}

// Libraries retry by themselves before a response has begun. With a key, that joins the
// answer, and the model is asked once.
func TestRetriesJoin(t *testing.T) {
	for library, inTest := range idempotentClients {
		for name, lose := range map[string]func(*lossyService, http.Handler, http.ResponseWriter, *http.Request){
			"connection": loseConnection, "bad gateway": badGateway,
		} {
			t.Run(library+" "+name, func(t *testing.T) {
				is, make := is.New(t), inTest(t)
				s := newLossyService(t, lose)
				text, err := make(s.URL+"/v1", key, "helper").ask(t.Context(), "A story, please")
				is.NoErr(err)
				is.Equal(text, "Once upon a time")
				is.Equal(s.requests.Load(), int32(2))
				is.Equal(s.asked.Load(), int32(1))

				s = newLossyService(t, lose)
				text, err = streamed(t.Context(), make(s.URL+"/v1", key, "helper"), "A story, please")
				is.NoErr(err)
				is.Equal(text, "Once upon a time")
				is.Equal(s.requests.Load(), int32(2))
				is.Equal(s.asked.Load(), int32(1))
			})
		}
	}
}

// No library retries a stream that has begun. The application sends it again with the
// same key, and gets it from its beginning.
func TestLostStreamIsJoined(t *testing.T) {
	for library, inTest := range idempotentClients {
		t.Run(library, func(t *testing.T) {
			is := is.New(t)
			s := newLossyService(t, loseNothing)
			c := inTest(t)(s.URL+"/v1", key, "helper")
			text := ""
			err := c.stream(t.Context(), "A story, please", func(fragment string) {
				if text += fragment; text != "" {
					s.CloseClientConnections()
				}
			})
			is.True(err != nil)
			is.Equal(text, "Once ")
			text, err = streamed(t.Context(), c, "A story, please")
			is.NoErr(err)
			is.Equal(text, "Once upon a time")
			is.Equal(s.requests.Load(), int32(2))
			is.Equal(s.asked.Load(), int32(1))
		})
	}
}

// Without a key, a retry asks the model again.
func TestRetryWithoutKey(t *testing.T) {
	is := is.New(t)
	s := newLossyService(t, badGateway)
	text, err := openaiGoRetrying(s.URL+"/v1", key, "helper").ask(t.Context(), "A story, please")
	is.NoErr(err)
	is.Equal(text, "Once upon a time")
	is.Equal(s.asked.Load(), int32(2))
}

// idempotentClients have constructors of clients that send an Idempotency-Key.
var idempotentClients = map[string]func(*testing.T) func(url, key, model string) client{
	"openai-go":           func(*testing.T) func(url, key, model string) client { return openaiGoIdempotent },
	"openai-go-responses": func(*testing.T) func(url, key, model string) client { return openaiGoResponsesIdempotent },
	"openai": func(t *testing.T) func(url, key, model string) client {
		return startNode(t).client("openai-idempotent")
	},
	"openai-responses": func(t *testing.T) func(url, key, model string) client {
		return startNode(t).client("openai-responses-idempotent")
	},
}
