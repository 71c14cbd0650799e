package botapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// plainHandler is what a Go engineer writes in an afternoon: encoding/json, a
// map of keys, a flush for each fragment. It checks the request, but has no limits,
// late commit, keep-alives or list of problems. The benchmarks compare botapi with it.
type plainHandler struct {
	bots   []Bot
	keys   map[string]string
	engine ChatEngine
}

func (h *plainHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if _, known := h.keys[key]; !ok || !known {
		h.write(w, http.StatusUnauthorized, map[string]string{"detail": "Invalid API key"})
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/bots":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(h.bots)
	case "POST /v1/chat":
		h.chat(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (h *plainHandler) chat(w http.ResponseWriter, r *http.Request) {
	var body struct {
		BotUID   string        `json:"bot_uid"`
		BotSlug  string        `json:"bot_slug"`
		Prompt   string        `json:"prompt"`
		Messages []ChatMessage `json:"messages"`
		Stream   *bool         `json:"stream"`
		UserID   string        `json:"user_id"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&body); err != nil {
		h.write(w, http.StatusUnprocessableEntity, map[string]string{"detail": err.Error()})
		return
	}
	bot := slices.IndexFunc(h.bots, func(b Bot) bool { return b.UID == body.BotUID || b.Slug == body.BotSlug })
	if body.Prompt != "" {
		body.Messages = append(body.Messages, ChatMessage{RoleUser, body.Prompt})
	}
	if bot < 0 || body.Stream == nil || len(body.Messages) == 0 {
		h.write(w, http.StatusUnprocessableEntity, map[string]string{"detail": "invalid request"})
		return
	}
	req := &ChatRequest{Bot: h.bots[bot], Messages: body.Messages, UserID: body.UserID, Stream: *body.Stream}
	if req.Stream {
		h.stream(w, r, req)
		return
	}
	var answer strings.Builder
	for fragment, err := range h.engine.Chat(r.Context(), req) {
		if err != nil {
			h.write(w, http.StatusInternalServerError, map[string]string{"detail": "Internal Server Error"})
			return
		}
		answer.WriteString(fragment)
	}
	h.write(w, http.StatusOK, map[string]string{"content": answer.String()})
}

func (h *plainHandler) stream(w http.ResponseWriter, r *http.Request, req *ChatRequest) {
	flusher := w.(http.Flusher)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	for fragment, err := range h.engine.Chat(r.Context(), req) {
		if err != nil {
			return
		}
		event, _ := json.Marshal(map[string]string{"content": fragment})
		fmt.Fprintf(w, "data: %s\n\n", event)
		flusher.Flush()
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (h *plainHandler) write(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

// benchmarked returns both handlers, with the same bots, keys and engine.
func benchmarked(bots []Bot, engine ChatEngine) map[string]http.Handler {
	store, err := NewMemoryStore(bots...)
	must(err)
	keys := map[string]string{testKey: testAccount}
	return map[string]http.Handler{
		"botapi": New(Options{Bots: store, Keys: StaticKeys(keys), Engine: engine, Logger: slog.New(slog.DiscardHandler)}),
		"plain":  &plainHandler{bots: bots, keys: keys, engine: engine},
	}
}

// discarded is a ResponseWriter with the methods of net/http's, which does nothing.
type discarded struct{ header http.Header }

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarded) WriteHeader(int)             {}
func (d *discarded) Flush()                      {}
func (d *discarded) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}
func (d *discarded) SetReadDeadline(time.Time) error  { return nil }
func (d *discarded) SetWriteDeadline(time.Time) error { return nil }

// benchmarkRequest serves one request over and over, in process.
func benchmarkRequest(b *testing.B, h http.Handler, method, path, body string) {
	b.ReportAllocs()
	reader := strings.NewReader(body)
	req := newRequest(method, path, reader)
	w := &discarded{header: make(http.Header)}
	before := cpuTime()
	for b.Loop() {
		reader.Reset(body)
		req.Body = io.NopCloser(reader)
		clear(w.header)
		h.ServeHTTP(w, req)
	}
	b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
}

// chatOf1KB is a request of three messages, about 1 KB.
var chatOf1KB = func() string {
	text := strings.Repeat("what a plain request holds, ", 11)
	body, err := json.Marshal(map[string]any{
		"bot_slug": echoBot.Slug,
		"messages": []ChatMessage{{RoleUser, text}, {RoleAssistant, text}, {RoleUser, text}},
		"stream":   false,
		"user_id":  "user-42",
	})
	must(err)
	return string(body)
}()

var answerOf1KB = strings.Repeat("what a plain answer holds, ", 38)

func BenchmarkJSONResponse(b *testing.B) {
	for name, h := range benchmarked([]Bot{otherBot, echoBot}, fragmentsOf(answerOf1KB)) {
		b.Run(name, func(b *testing.B) { benchmarkRequest(b, h, "POST", "/v1/chat", chatOf1KB) })
	}
}

// BenchmarkRejectedBody rejects a body of the size of a valid one. It must cost at most
// what the plain handler needs for the valid one.
func BenchmarkRejectedBody(b *testing.B) {
	handlers := benchmarked([]Bot{otherBot, echoBot}, fragmentsOf(answerOf1KB))
	rejected := strings.Replace(chatOf1KB, `"stream":false`, `"stream":null`, 1)
	b.Run("botapi", func(b *testing.B) { benchmarkRequest(b, handlers["botapi"], "POST", "/v1/chat", rejected) })
	b.Run("plain-valid", func(b *testing.B) { benchmarkRequest(b, handlers["plain"], "POST", "/v1/chat", chatOf1KB) })
}

// BenchmarkFragment measures one fragment of a long stream.
func BenchmarkFragment(b *testing.B) {
	const fragments = 10_000
	engine := engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for range fragments {
			if !yield("twelve bytes", nil) {
				return
			}
		}
	})
	for name, h := range benchmarked([]Bot{echoBot}, engine) {
		b.Run(name, func(b *testing.B) {
			benchmarkRequest(b, h, "POST", "/v1/chat", chatBodyJSON("hi", true))
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/fragments, "ns/fragment")
		})
	}
}

func manyBots(n int) []Bot {
	bots := make([]Bot, n)
	for i := range bots {
		bots[i] = echoBot
		bots[i].UID = fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
		bots[i].Slug = fmt.Sprintf("bot%d", i)
	}
	return bots
}

func BenchmarkList1000(b *testing.B) {
	bots := manyBots(1000)
	for name, h := range benchmarked(bots, fragmentsOf()) {
		b.Run(name, func(b *testing.B) { benchmarkRequest(b, h, "GET", "/v1/bots", "") })
	}
	b.Run("json.Encoder", func(b *testing.B) {
		b.ReportAllocs()
		type fields Bot // without MarshalJSON
		plain := make([]fields, len(bots))
		for i := range bots {
			plain[i] = fields(bots[i])
		}
		var buffer bytes.Buffer
		for b.Loop() {
			buffer.Reset()
			_ = json.NewEncoder(&buffer).Encode(plain)
		}
	})
}
