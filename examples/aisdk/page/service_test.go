package main

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/aisdk"
	"github.com/matryer/is"
)

const key = "a-key"

// install installs the packages at the versions in package-lock.json, once.
func install(t *testing.T) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(program + " is not installed")
		}
	}
	is.New(t).NoErr(installed())
}

var installed = sync.OnceValue(func() error { return run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund") })

func run(name string, args ...string) error {
	if output, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, output)
	}
	return nil
}

// hostile is text that stream parsers get wrong. It is yielded byte by byte, which splits
// its characters.
const hostile = "data: [DONE]\n\n\r\n: c\r{\"type\":\"error\"},\"__proto__\":{} Grüße, 世界 👋🏽\u2028\u2029\u0085\x00\"\\</script>[DONE]"

// An obedient engine does what the last message says: "say" and a text, "count" to a
// number, "name" the bot, "fail" with a status, "break" after the first words, or "tell" a
// story, which goes on when the test says so.
type obedient struct {
	goOn  chan struct{} // receives for each "tell" that goes on
	ended chan error    // the cause, if the context of a "tell" ends first
}

func newObedient() *obedient {
	return &obedient{goOn: make(chan struct{}, 10), ended: make(chan error, 10)}
}

func (e *obedient) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return botapi.CallbackEngine(e.obey).Chat(ctx, req)
}

func (e *obedient) obey(ctx context.Context, req *botapi.ChatRequest, emit func(string) error) error {
	order, rest, _ := strings.Cut(req.Messages[len(req.Messages)-1].Content, " ")
	n, _ := strconv.Atoi(rest)
	switch order {
	case "say":
		return emit(rest)
	case "hostile":
		for i := range len(hostile) {
			if err := emit(hostile[i : i+1]); err != nil {
				return err
			}
		}
	case "count":
		for i := range n {
			if err := emit(strconv.Itoa(i) + " "); err != nil {
				return err
			}
		}
	case "name":
		return emit(req.Bot.Name)
	case "fail":
		return &botapi.StatusError{Status: n, Detail: "This is a " + rest, RetryAfter: 3 * time.Second}
	case "break":
		_ = emit("Once ")
		return &botapi.StatusError{Status: 502, Detail: "The answer is incomplete"}
	case "panic":
		_ = emit("Once ")
		panic("a panic of the test")
	case "tell":
		if err := emit("Once "); err != nil {
			return err
		}
		select {
		case <-e.goOn:
			return emit(fmt.Sprintf("upon a time, %d", len(req.Messages)))
		case <-ctx.Done():
			e.ended <- context.Cause(ctx)
		}
	}
	return nil
}

// serve starts a server, and closes the answers after it.
func serve(t *testing.T, h http.Handler, answers *aisdk.Answers) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		if answers == nil {
			return
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		is.New(t).NoErr(answers.Close(ended))
	})
	return server
}

// remove sends a DELETE, and returns the status of its response.
func remove(t *testing.T, url string) int {
	t.Helper()
	is := is.New(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil)
	is.NoErr(err)
	r.Header.Set("Authorization", "Bearer "+key)
	response, err := http.DefaultClient.Do(r)
	is.NoErr(err)
	defer response.Body.Close()
	return response.StatusCode
}
