// Package runtimetest is a small model runtime for tests: an HTTP server that
// implements OpenAI's chat completions protocol the way real runtimes do.
package runtimetest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Request is a chat completion request.
type Request struct {
	Model         string
	Messages      []Message
	Stream        bool
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Temperature *float64
	MaxTokens   *int64 `json:"max_tokens"`

	Body          string `json:"-"` // unparsed
	*http.Request `json:"-"`
}

// Message is one message of a request.
type Message struct{ Role, Content string }

// Server is a runtime. URL is its base URL.
type Server struct {
	URL string

	http     *httptest.Server
	mu       sync.Mutex
	requests []*Request
}

// New starts a server that calls answer for every chat. It is closed when the test
// ends.
func New(t testing.TB, answer func(*Stream, *Request)) *Server {
	t.Helper()
	s := new(Server)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		request := &Request{Request: r, Body: string(body)}
		if err := json.Unmarshal(body, request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.requests = append(s.requests, request)
		s.mu.Unlock()
		answer(&Stream{w: w}, request)
	})
	s.http = httptest.NewServer(mux)
	s.URL = s.http.URL + "/v1"
	t.Cleanup(s.Close)
	return s
}

// Close stops the server: after that, connections are refused.
func (s *Server) Close() {
	s.http.CloseClientConnections()
	s.http.Close()
}

// Requests returns the requests received so far.
func (s *Server) Requests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Request(nil), s.requests...)
}

// Stream writes one answer. Every method flushes what it writes.
type Stream struct{ w http.ResponseWriter }

// Role sends the first chunk of most runtimes: a role and no text.
func (s *Stream) Role() { s.delta(`{"role":"assistant","content":""}`, "null") }

// Text sends a chunk with text.
func (s *Stream) Text(text string) { s.delta(`{"content":`+quote(text)+`}`, "null") }

// Stop sends the chunk with the finish_reason, which makes the answer complete.
func (s *Stream) Stop() { s.delta(`{}`, `"stop"`) }

// Usage sends the chunk with the token counts, which has no choices.
func (s *Stream) Usage(prompt, completion int64) {
	s.Raw(fmt.Sprintf(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m1-2026","choices":[],`+
		`"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`+"\n\n", prompt, completion, prompt+completion))
}

// Done sends the end of the stream.
func (s *Stream) Done() { s.Raw("data: [DONE]\n\n") }

// Whole sends a complete answer, one chunk for each text.
func (s *Stream) Whole(texts ...string) {
	s.Role()
	for _, text := range texts {
		s.Text(text)
	}
	s.Stop()
	s.Done()
}

// Raw sends bytes of an event stream unchanged. It returns false if the client has
// disconnected.
func (s *Stream) Raw(text string) (ok bool) {
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	fmt.Fprint(s.w, text)
	return http.NewResponseController(s.w).Flush() == nil
}

// Break aborts the connection.
func (s *Stream) Break() { panic(http.ErrAbortHandler) }

// Refuse sends a status and an error body instead of a stream. headers are pairs of
// name and value.
func (s *Stream) Refuse(status int, body string, headers ...string) {
	for i := 0; i+1 < len(headers); i += 2 {
		s.w.Header().Set(headers[i], headers[i+1])
	}
	if strings.HasPrefix(body, "{") {
		s.w.Header().Set("Content-Type", "application/json")
	}
	s.w.WriteHeader(status)
	fmt.Fprint(s.w, body)
}

func (s *Stream) delta(delta, finish string) {
	s.Raw(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m1-2026",` +
		`"choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + `}]}` + "\n\n")
}

func quote(text string) string {
	quoted, _ := json.Marshal(text)
	return string(quoted)
}
