package runtimes_test

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/runtimes"
	"github.com/matryer/is"
)

// TestDrill has a runtime die in the middle of an answer, recover, and hang: a
// real one if RUNTIME_URL and RUNTIME_MODEL name it.
func TestDrill(t *testing.T) {
	is := is.New(t)
	address, model := os.Getenv("RUNTIME_URL"), cmp.Or(os.Getenv("RUNTIME_MODEL"), "default")
	if address == "" {
		t.Log("RUNTIME_URL is not set: using a fake runtime")
		address = runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
			pace := time.NewTicker(time.Millisecond)
			defer pace.Stop()
			for range 50 {
				select {
				case <-r.Context().Done():
					return
				case <-pace.C:
					s.Text("word ")
				}
			}
			s.Stop()
		}).URL
	}
	target, err := url.Parse(address)
	is.NoErr(err)
	if target.Scheme != "http" {
		t.Skip("this drill breaks connections that are not encrypted")
	}
	link := faulttest.NewLink(t, target.Host)
	target.Host = link.Address
	only := drilled(t, target.String())

	_, err = ask(t.Context(), only, model)
	is.NoErr(err) // it works

	begun, err := askAnd(t.Context(), only, model, func() { link.Set(faulttest.Resetting) })
	is.True(begun)      // it died in the middle of its answer
	is.True(err != nil) // which counts as incomplete
	_, err = ask(t.Context(), only, model)
	is.True(err != nil) // it is dead

	link.Set(faulttest.Passing)
	_, err = ask(t.Context(), only, model)
	is.NoErr(err) // it is back, and nothing else was restarted

	link.Set(faulttest.Swallowing)
	both := drilled(t, target.String(), address)
	for range 4 {
		_, err = ask(t.Context(), both, model)
		is.NoErr(err) // one hangs, the other answers
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = ask(ctx, only, model)
	is.True(err != nil) // it hangs, and there is no other
}

func drilled(t *testing.T, urls ...string) *runtimes.Engine {
	t.Helper()
	o := options(t, urls...)
	for i := range o.Endpoints {
		o.Endpoints[i].Key = os.Getenv("RUNTIME_KEY")
	}
	o.Attempt = 5 * time.Second
	if os.Getenv("RUNTIME_URL") == "" {
		o.Attempt = 100 * time.Millisecond
	}
	engine, err := runtimes.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

// askAnd calls do at the first fragment of an answer.
func askAnd(ctx context.Context, engine *runtimes.Engine, model string, do func()) (begun bool, err error) {
	for _, err := range engine.Chat(ctx, requestFor(model)) {
		if err != nil {
			return begun, err
		}
		if !begun {
			begun = true
			do()
		}
	}
	return begun, nil
}
