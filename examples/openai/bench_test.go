package openai_test

import (
	"bufio"
	"context"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// BenchmarkEngine measures a chat of the engine, including the runtime and the
// connection to it: a stream of 1,000 fragments, and one of a single fragment.
func BenchmarkEngine(b *testing.B) {
	const chunk = `data: {"id":"chatcmpl-0f6b5c1de2a94f0f8c0b2d8e2f7a6b31","object":"chat.completion.chunk","created":1760000000,"model":"m1","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null,"token_ids":null}]}` + "\n\n"
	for name, fragments := range map[string]int{"short": 1, "long": 1000} {
		b.Run(name, func(b *testing.B) {
			runtime := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "text/event-stream")
				for range fragments {
					io.WriteString(w, chunk)
				}
				io.WriteString(w, `data: {"choices":[{"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
			}))
			defer runtime.Close()
			engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL})
			if err != nil {
				b.Fatal(err)
			}
			request := &botapi.ChatRequest{Bot: helper, Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hi"}}}
			b.ReportAllocs()
			for b.Loop() {
				for _, err := range engine.Chat(context.Background(), request) {
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkTranslation compares botapi's protocol with OpenAI's two over HTTP: a single
// fragment (sent once the client has read the one before), a stream of 1,000 fragments
// without pauses, and a JSON response of 1,000 fragments.
func BenchmarkTranslation(b *testing.B) {
	words := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range 1000 {
				if !yield("word ", nil) {
					return
				}
			}
		}
	})
	protocols := []struct{ name, path, stream, json string }{
		{"plain", "/v1/chat", stream, noStream},
		{"openai", "/v1/chat/completions", askStream, ask},
		{"responses", "/v1/responses", respondStream, respond},
	}
	for _, p := range protocols {
		b.Run("paced/"+p.name, func(b *testing.B) { benchmarkPaced(b, p.path, p.stream) })
	}
	for _, p := range protocols {
		b.Run("fast/"+p.name, func(b *testing.B) { benchmarkChat(b, words, p.path, p.stream) })
	}
	for _, p := range protocols {
		b.Run("json/"+p.name, func(b *testing.B) { benchmarkChat(b, words, p.path, p.json) })
	}
}

// benchmarkPaced measures one fragment of a stream.
func benchmarkPaced(b *testing.B, path, body string) {
	next := make(chan bool)
	server := serveHandler(b, botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			for range next {
				if !yield("word ", nil) {
					return
				}
			}
		}
	}), quietly)
	defer close(next)
	go func() { next <- true }()
	answer := bufio.NewReader(send(b, server+path, body))
	b.ReportAllocs()
	for b.Loop() {
		for blank := false; !blank; { // to the end of the event
			line, err := answer.ReadSlice('\n')
			if err != nil {
				b.Fatal(err)
			}
			blank = len(line) == 1
		}
		next <- true
	}
}

// benchmarkChat measures one complete chat.
func benchmarkChat(b *testing.B, engine botapi.ChatEngine, path, body string) {
	server := serveHandler(b, engine, quietly)
	b.ReportAllocs()
	for b.Loop() {
		answer := send(b, server+path, body)
		_, _ = io.Copy(io.Discard, answer)
		answer.Close()
	}
}

func quietly(o *botapi.Options) { o.Logger = slog.New(slog.DiscardHandler) }

func send(b *testing.B, url, body string) io.ReadCloser {
	r, _ := http.NewRequest("POST", url, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer key")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	return response.Body
}
