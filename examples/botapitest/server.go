package botapitest

import (
	"context"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
)

// Server is a service for one test.
type Server struct {
	URL    string  // base address, without /v1
	Client *Client // a client with DefaultKey
}

// DefaultKey is the key of a [Server] without Keys of its own. Its account is "account".
const DefaultKey = "key"

// DefaultBot returns the bot of a [Server] without Bots of its own.
func DefaultBot() botapi.Bot {
	return botapi.Bot{UID: "bot-1", Slug: "bot", Name: "Bot", Model: "none"}
}

// NewServer starts a service with these options over HTTP, and closes it when the test ends.
// What is nil gets a default: Bots has [DefaultBot], Keys has [DefaultKey], Engine repeats the
// last message, word by word, and Logger writes to the test's output. With Keys of its own,
// set Client.Key.
//
// To test the handler behind the application's own mux, give that to httptest.NewServer, and
// its address to a [Client].
func NewServer(t testing.TB, o botapi.Options) *Server {
	t.Helper()
	if o.Bots == nil {
		o.Bots = storeOf(t, DefaultBot())
	}
	if o.Keys == nil {
		o.Keys = botapi.StaticKeys(map[string]string{DefaultKey: "account"})
	}
	if o.Engine == nil {
		o.Engine = botapi.ChatEngineFunc(echo)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	return start(t, botapi.New(o))
}

// start serves a handler until the test ends.
func start(t testing.TB, h http.Handler) *Server {
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return &Server{URL: s.URL, Client: &Client{URL: s.URL, Key: DefaultKey, HTTP: s.Client()}}
}

func storeOf(t testing.TB, bots ...botapi.Bot) *botapi.MemoryStore {
	t.Helper()
	store, err := botapi.NewMemoryStore(bots...)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func echo(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for word := range strings.SplitAfterSeq(req.Messages[len(req.Messages)-1].Content, " ") {
			if !yield(word, nil) {
				return
			}
		}
	}
}
