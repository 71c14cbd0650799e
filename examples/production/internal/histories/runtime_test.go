package histories

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

const endLine = "."

// A prompt says how it is answered: with how many words, at which pace, and
// whether the model fails after them.
type prompt struct {
	name  string
	words int
	pace  time.Duration
	fails bool
}

func (p prompt) String() string {
	return fmt.Sprintf("%s %d %d %t", p.name, p.words, p.pace, p.fails)
}

func promptOf(text string) (p prompt) {
	if _, err := fmt.Sscanf(text, "%s %d %d %t", &p.name, &p.words, &p.pace, &p.fails); err != nil {
		panic(err)
	}
	return p
}

// runtime answers prompts, and records each call.
type runtime struct {
	*httptest.Server

	mu    sync.Mutex
	calls []*call
}

// A call is one that a replica has made. Its number is in its first word, so
// that each client knows which call it hears.
type call struct {
	number int
	prompt string
	said   time.Time // when it had sent all words; only after that is the answer over
	over   chan struct{}
}

func newRuntime(t testing.TB) *runtime {
	r := new(runtime)
	r.Server = httptest.NewServer(http.HandlerFunc(r.answer))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

func (r *runtime) answer(w http.ResponseWriter, req *http.Request) {
	text, _ := io.ReadAll(req.Body)
	p := promptOf(string(text))
	c := r.begin(p.name)
	defer close(c.over)
	for i := range p.words {
		fmt.Fprintln(w, word(c.number, i))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-req.Context().Done():
			return
		case <-time.After(p.pace):
		}
	}
	r.mu.Lock()
	c.said = time.Now()
	r.mu.Unlock()
	if !p.fails {
		fmt.Fprintln(w, endLine)
	}
}

func (r *runtime) begin(name string) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &call{number: len(r.calls) + 1, prompt: name, over: make(chan struct{})}
	r.calls = append(r.calls, c)
	return c
}

func (r *runtime) callsFor(name string) (calls []*call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		if c.prompt == name {
			calls = append(calls, c)
		}
	}
	return calls
}

func word(call, i int) string { return fmt.Sprintf("%d/%d", call, i) }

// saidAll is when a call had sent all its words.
func (r *runtime) saidAll(call int) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[call-1].said
}

// textOf is the text of a call after this many words.
func textOf(call, words int) string {
	var text strings.Builder
	for i := range words {
		text.WriteString(word(call, i) + " ")
	}
	return text.String()
}
