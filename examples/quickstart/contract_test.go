package main

import (
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestContracts holds the parts of the quickstart with a model against the contracts of
// botapi's interfaces.
func TestContracts(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("I am ", "a 🦙.") })
	s := settings{key: "the-key", runtime: runtimeAt(t, runtime.URL)}
	store := new(botapi.MemoryStore)
	is.NoErr(s.loadBots(store))
	bots, err := store.Bots(t.Context())
	is.NoErr(err)
	is.Equal(len(bots), 4)

	botapitest.TestStore(t, botapitest.Store{Bots: store, Published: bots})
	botapitest.TestEngine(t, botapitest.Engine{
		Engine:  s.engines(),
		Request: botapi.ChatRequest{Bot: bots[0]},
		Answer:  "I am a 🦙.",
		Failing: settings{runtime: runtimeAt(t, "http://127.0.0.1:1/v1")}.engines(),
	})
}
