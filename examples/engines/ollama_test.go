package engines

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
	"github.com/ollama/ollama/api"
)

// TestRealOllama tests the engine with a real server and a tiny model. The environment
// variable OLLAMA is the server's program, or "build" to build it from ollamaModule.
func TestRealOllama(t *testing.T) {
	program := os.Getenv("OLLAMA")
	switch {
	case program == "":
		t.Skip("set OLLAMA to the program, or to build, which takes some minutes the first time")
	case program == "build":
		program = buildOllama(t)
	}
	base := startRealOllama(t, program)
	createTinyModel(t, base)
	engine, err := NewOllama(OllamaConfig{BaseURL: base, NumCtx: 128})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, engine)

	t.Run("complete answers", func(t *testing.T) {
		is := is.New(t)
		for _, kind := range []string{"true", "false"} {
			got := s.chat(t, `{"bot_slug":"helper","prompt":"Well?","temperature":0,"stream":`+kind+`}`)
			is.True(got.complete())
			is.Equal(runtimetest.Text(t, got.body), tinyText) // many of its tokens are single bytes
			// The prompt is a start token, a space and five bytes; the answer includes its end token.
			is.Equal(<-s.reports, report{nil, openai.Tokens{Prompt: 7, Completion: int64(len(tinyAnswer) + 1)}, true, "stop"})
		}
	})
	t.Run("system prompt and max_tokens", func(t *testing.T) {
		is := is.New(t)
		got := s.chat(t, `{"bot_slug":"helper","stream":false,"temperature":0,"max_tokens":2,"prompt":"Well?","messages":[{"role":"system","content":"Sing!"}]}`)
		is.Equal(got.body, `{"content":" Once upon"}`)
		is.Equal(<-s.reports, report{nil, openai.Tokens{Prompt: 12, Completion: 2}, true, "length"})
	})
	t.Run("a stop text", func(t *testing.T) {
		is := is.New(t)
		got := s.chat(t, `{"bot_slug":"helper","stream":false,"temperature":0,"stop":["世"],"prompt":"Well?"}`)
		is.Equal(got.body, `{"content":" Once upon ü"}`)
		is.Equal((<-s.reports).finish, "stop")
	})
	t.Run("a conversation that is too long", func(t *testing.T) {
		is := is.New(t)
		got := s.chat(t, `{"bot_slug":"helper","stream":false,"temperature":0,"prompt":"`+strings.Repeat("Well. ", 100)+`Well?"}`)
		is.Equal(got.body, `{"content":"`+tinyText+`"}`) // Ollama truncates it silently
		is.True((<-s.reports).tokens.Prompt <= 128)
	})
	t.Run("an unknown model", func(t *testing.T) {
		is := is.New(t)
		other, err := NewOllama(OllamaConfig{BaseURL: base, Model: "nobody"})
		is.NoErr(err)
		is.Equal(serve(t, other).chat(t, noStream), answer{502, "", `{"detail":"The model failed"}`, false})
	})
	t.Run("a disconnect stops the model", func(t *testing.T) {
		is := is.New(t)
		written := make(chan bool, 3)
		engine, err := NewOllama(OllamaConfig{
			BaseURL:   base,
			NumCtx:    1 << 14, // the model's; a song has ten times as many tokens
			Transport: tracing{openai.NewTransport(), func() { written <- true }},
		})
		is.NoErr(err)
		s := serve(t, engine)
		const song = `{"bot_slug":"helper","stream":true,"prompt":"Sing!"}`

		ctx, disconnect := context.WithCancel(t.Context())
		response, err := http.DefaultClient.Do(request(ctx, s.url, song))
		is.NoErr(err)
		defer response.Body.Close()
		line, err := bufio.NewReader(response.Body).ReadString('\n')
		is.NoErr(err)
		is.Equal(line, "data: {\"content\":\" la\"}\n")
		<-written

		// A second chat waits in Ollama's queue. Its client disconnects before its first token.
		waiting, disconnectWaiting := context.WithCancel(t.Context())
		disconnected := make(chan bool)
		go func() {
			defer close(disconnected)
			if response, err := http.DefaultClient.Do(request(waiting, s.url, song)); err == nil {
				response.Body.Close()
			}
		}()
		<-written
		disconnectWaiting()
		<-disconnected
		disconnect()
		is.True(errors.Is((<-s.reports).err, botapi.ErrClientLeft))
		is.True(errors.Is((<-s.reports).err, botapi.ErrClientLeft))

		// The server runs one chat at a time: this one would wait if a song were still running.
		is.Equal(runtimetest.Text(t, s.chat(t, `{"bot_slug":"helper","prompt":"Well?","temperature":0,"stream":false}`).body), tinyText)
	})
}

// tracing is a transport that calls written when a request has been written.
type tracing struct {
	http.RoundTripper
	written func()
}

func (t tracing) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { t.written() }}
	return t.RoundTripper.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

const ollamaModule = "github.com/ollama/ollama@v0.6.5"

func buildOllama(t *testing.T) (program string) {
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "install", ollamaModule)
	build.Dir = dir // outside of any module
	build.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=1")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return filepath.Join(dir, "ollama")
}

// startRealOllama starts a server that runs one chat at a time, and returns its URL.
func startRealOllama(t *testing.T, program string) (base string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	home := t.TempDir()
	server := exec.Command(program, "serve")
	server.Env = append(os.Environ(), "HOME="+home, "OLLAMA_MODELS="+filepath.Join(home, "models"), "OLLAMA_HOST="+address, "OLLAMA_NUM_PARALLEL=1")
	server.Stdout, server.Stderr = t.Output(), t.Output()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Process.Signal(os.Interrupt)
		server.Wait()
	})
	base = "http://" + address
	for range 100 {
		if response, err := http.Get(base); err == nil {
			response.Body.Close()
			return base
		}
		time.Sleep(100 * time.Millisecond) // there is no other sign that it is ready
	}
	t.Fatal("Ollama does not answer")
	return ""
}

// createTinyModel creates the bot's model in the server.
func createTinyModel(t *testing.T, base string) {
	is := is.New(t)
	address, err := url.Parse(base)
	is.NoErr(err)
	client := api.NewClient(address, http.DefaultClient)
	weights := tinyModel()
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(weights))
	is.NoErr(client.CreateBlob(t.Context(), digest, bytes.NewReader(weights)))
	is.NoErr(client.Create(t.Context(), &api.CreateRequest{
		Model:    helper.Model,
		Files:    map[string]string{"tiny.gguf": digest},
		Template: "{{ .System }}{{ .Prompt }}",
	}, func(api.ProgressResponse) error { return nil }))
}
