package runtimes_test

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/runtimes"
	"github.com/matryer/is"
)

// A wire is a connection to a runtime that a test can break and freeze, so that
// a real runtime can seem to die or to hang.
type wire struct {
	listener net.Listener
	target   string
	pumps    sync.WaitGroup

	mu     sync.Mutex
	frozen bool
	ends   []net.Conn
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	w := &wire{target: target}
	w.listen(t, "127.0.0.1:0")
	t.Cleanup(w.breakAll)
	return w
}

func (w *wire) listen(t *testing.T, address string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	w.listener = listener
	w.pumps.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			w.connect(client)
		}
	})
}

// connect accepts a connection; while frozen, it does nothing more.
func (w *wire) connect(client net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ends = append(w.ends, client)
	if w.frozen {
		return
	}
	runtime, err := net.Dial("tcp", w.target)
	if err != nil {
		client.Close()
		return
	}
	w.ends = append(w.ends, runtime)
	for from, to := range map[net.Conn]net.Conn{client: runtime, runtime: client} {
		w.pumps.Go(func() {
			io.Copy(to, from)
			to.Close()
		})
	}
}

// breakAll simulates the runtime's death: open connections break, and new ones
// are refused.
func (w *wire) breakAll() {
	w.listener.Close()
	w.mu.Lock()
	for _, end := range w.ends {
		end.Close()
	}
	w.ends = nil
	w.mu.Unlock()
	w.pumps.Wait()
}

// restart brings the runtime back at its address: working, or frozen.
func (w *wire) restart(t *testing.T, frozen bool) {
	t.Helper()
	w.breakAll()
	w.frozen = frozen
	w.listen(t, w.listener.Addr().String())
}

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
	wire := newWire(t, target.Host)
	target.Host = wire.listener.Addr().String()
	only := drilled(t, target.String())

	_, err = ask(t.Context(), only, model)
	is.NoErr(err) // it works

	begun, err := askAnd(t.Context(), only, model, wire.breakAll)
	is.True(begun)      // it died in the middle of its answer
	is.True(err != nil) // which counts as incomplete
	_, err = ask(t.Context(), only, model)
	is.True(err != nil) // it is dead

	wire.restart(t, false)
	_, err = ask(t.Context(), only, model)
	is.NoErr(err) // it is back, and nothing else was restarted

	wire.restart(t, true)
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
