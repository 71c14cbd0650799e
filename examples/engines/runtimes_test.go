package engines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/engines/modelpb"
	"example.com/botapi/examples/openai"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The runtimes here are mocks, whose answers the tests define. They use the real client
// libraries and real connections, and implement the protocols as their documentation and
// the servers' sources describe them. ollama_test.go has a test with a real Ollama.

// Asked is a request that a runtime received.
type Asked struct {
	Ctx         context.Context // cancelled when the engine disconnects
	Model       string
	Messages    []botapi.ChatMessage // the system prompt first
	Temperature *float64
	MaxTokens   *int64
	Stop        []string
	RequestID   string
	Body        string // unparsed
}

// last is the last message.
func (a Asked) last() string { return a.Messages[len(a.Messages)-1].Content }

// Wire writes one answer of a runtime. Every method flushes what it writes.
type Wire interface {
	Text(text string)
	Think(text string)
	End()              // the protocol's end mark, with a count of 7 and 3 tokens
	Finish(why string) // the same, with the protocol's reason
	CallTools()        // tool calls, but no end
	Fail(kind Failing) // instead of an answer, or inside it
	Abort()            // aborts the connection
}

// Failing is a kind of failure of a runtime. Every error that it sends contains SECRET.
type Failing string

const (
	busy           Failing = "busy for 17 seconds"
	overloaded     Failing = "overloaded"
	tooLong        Failing = "conversation too long"
	keyRejected    Failing = "key rejected"
	invalidRequest Failing = "invalid request"
	badSetting     Failing = "temperature rejected"
	internalError  Failing = "internal error"
)

// A Runtime is a mock runtime and the engine that calls it.
type Runtime struct {
	engine botapi.ChatEngine

	mu    sync.Mutex
	asked []Asked
}

func (r *Runtime) note(a Asked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, a)
}

func (r *Runtime) requests() []Asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Asked(nil), r.asked...)
}

// A column is one kind of engine, with what its protocol or its client library cannot do.
// The README's table shows the same.
type column struct {
	name        string
	start       func(t *testing.T, answer func(Wire, Asked)) *Runtime
	unreachable func(t *testing.T) botapi.ChatEngine // an engine without a runtime; nil if there is no such thing

	lacks              map[Failing]bool // failures that the protocol cannot express
	lacksReasons       bool             // the model has no reasons for an end, nor tool calls
	sendsID            bool             // the request id reaches the runtime
	keepsBytes         bool             // the client library passes on split characters
	countsDisconnected bool             // if the client disconnects, the tokens so far are counted
}

var columns = []column{
	{name: "anthropic", start: startAnthropic, unreachable: unreachableAnthropic, sendsID: true, keepsBytes: true, countsDisconnected: true},
	{name: "ollama", start: startOllama, unreachable: unreachableOllama, sendsID: true},
	{name: "grpc", start: startGRPC, unreachable: unreachableGRPC, sendsID: true, keepsBytes: true, countsDisconnected: true},
	{name: "local", start: startLocal, keepsBytes: true, countsDisconnected: true,
		lacks: map[Failing]bool{busy: true, overloaded: true, keyRejected: true, invalidRequest: true, badSetting: true}, lacksReasons: true},
	{name: "grpc in all combinators", start: startCombined, unreachable: unreachableGRPC, sendsID: true, keepsBytes: true, countsDisconnected: true},
}

// startCombined wraps the gRPC engine in every combinator. Its guarantees must still hold.
func startCombined(t *testing.T, answer func(Wire, Asked)) *Runtime {
	r := startGRPC(t, answer)
	lines := NewLine(r.engine, LineOptions{AtOnce: 8, Waiting: 8})
	guarded := Guard{Engine: Fallback{lines}, Whole: Words, Check: func(context.Context, string) error { return nil }}
	r.engine = ByModel{"m1": guarded}
	return r
}

// serveHTTP starts an HTTP server.
func serveHTTP(t *testing.T, handler http.HandlerFunc) (url string) {
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func unreachableAddress() string {
	server := httptest.NewServer(nil)
	defer server.Close()
	return server.URL
}

// quote encodes a JSON string and keeps invalid UTF-8.
func quote(text string) string {
	return `"` + strings.NewReplacer(`"`, `\"`, `\`, `\\`, "\n", `\n`).Replace(text) + `"`
}

// Anthropic's protocol: named server-sent events.

func startAnthropic(t *testing.T, answer func(Wire, Asked)) *Runtime {
	r := new(Runtime)
	url := serveHTTP(t, func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/v1/messages" || request.Header.Get("X-Api-Key") != "sk-1" || request.Header.Get("Anthropic-Version") == "" {
			http.NotFound(w, request)
			return
		}
		var body struct {
			Model  string
			System []struct{ Text string }
			Stream bool

			Messages []struct {
				Role    botapi.Role
				Content []struct{ Type, Text string }
			}
			Temperature   *float64
			MaxTokens     *int64   `json:"max_tokens"`
			StopSequences []string `json:"stop_sequences"`
		}
		raw, _ := io.ReadAll(request.Body)
		if json.Unmarshal(raw, &body) != nil || !body.Stream || body.MaxTokens == nil {
			http.Error(w, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: Field required"}}`, 400)
			return
		}
		asked := Asked{Ctx: request.Context(), Model: body.Model, Temperature: body.Temperature, MaxTokens: body.MaxTokens,
			Stop: body.StopSequences, RequestID: request.Header.Get("X-Request-Id"), Body: string(raw)}
		for _, s := range body.System {
			asked.Messages = append(asked.Messages, botapi.ChatMessage{Role: botapi.RoleSystem, Content: s.Text})
		}
		for _, m := range body.Messages {
			asked.Messages = append(asked.Messages, botapi.ChatMessage{Role: m.Role, Content: m.Content[0].Text})
		}
		r.note(asked)
		answer(&anthropicWire{w: w}, asked)
	})
	r.engine = NewAnthropic(AnthropicConfig{BaseURL: url, Key: "sk-1"})
	return r
}

func unreachableAnthropic(*testing.T) botapi.ChatEngine {
	return NewAnthropic(AnthropicConfig{BaseURL: unreachableAddress(), Key: "sk-1"})
}

type anthropicWire struct {
	w     http.ResponseWriter
	block string // the type of the open content block
	index int
}

func (a *anthropicWire) event(kind, fields string) {
	if a.block == "" && kind != "error" {
		a.block = "none"
		a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		a.event("message_start", `,"message":{"id":"msg_1","type":"message","role":"assistant","content":[],"model":"m1",`+
			`"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":2,"cache_read_input_tokens":4,"cache_creation_input_tokens":1,"output_tokens":1}}`)
		a.event("ping", "")
	}
	fmt.Fprintf(a.w, "event: %s\ndata: {\"type\":%q%s}\n\n", kind, kind, fields)
	http.NewResponseController(a.w).Flush()
}

func (a *anthropicWire) delta(block, kind, field, text string) {
	a.event("ping", "")
	if a.block != block {
		a.index++
		a.block = block
		a.event("content_block_start", fmt.Sprintf(`,"index":%d,"content_block":{"type":%q,%q:""}`, a.index, block, block))
	}
	a.event("content_block_delta", fmt.Sprintf(`,"index":%d,"delta":{"type":%q,%q:%s}`, a.index, kind, field, quote(text)))
}

func (a *anthropicWire) Text(text string)  { a.delta("text", "text_delta", "text", text) }
func (a *anthropicWire) Think(text string) { a.delta("thinking", "thinking_delta", "thinking", text) }

func (a *anthropicWire) CallTools() {
	a.event("ping", "")
	a.index++
	a.block = "tool_use"
	a.event("content_block_start", fmt.Sprintf(`,"index":%d,"content_block":{"type":"tool_use","id":"t1","name":"SECRET","input":{}}`, a.index))
	a.event("content_block_delta", fmt.Sprintf(`,"index":%d,"delta":{"type":"input_json_delta","partial_json":"{}"}`, a.index))
}

func (a *anthropicWire) End() { a.Finish("end_turn") }

func (a *anthropicWire) Finish(why string) {
	a.event("content_block_stop", fmt.Sprintf(`,"index":%d`, a.index))
	a.event("message_delta", fmt.Sprintf(`,"delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":3}`, why))
	a.event("message_stop", "")
}

func (a *anthropicWire) Fail(kind Failing) {
	fault := map[Failing]struct {
		status     int
		kind, text string
	}{
		busy:           {429, "rate_limit_error", "SECRET"},
		overloaded:     {529, "overloaded_error", "SECRET"},
		tooLong:        {400, "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum SECRET"},
		keyRejected:    {401, "authentication_error", "invalid x-api-key SECRET"},
		invalidRequest: {400, "invalid_request_error", "SECRET"},
		badSetting:     {400, "invalid_request_error", "temperature is deprecated for this model. SECRET"},
		internalError:  {500, "api_error", "SECRET"},
	}[kind]
	fields := fmt.Sprintf(`,"error":{"type":%q,"message":%q},"request_id":"req_1"`, fault.kind, fault.text)
	if a.block != "" {
		a.event("error", fields)
		return
	}
	if kind == busy {
		a.w.Header().Set("Retry-After", "17")
	}
	a.w.Header().Set("Content-Type", "application/json")
	a.w.WriteHeader(fault.status)
	fmt.Fprintf(a.w, `{"type":"error"%s}`, fields)
}

func (a *anthropicWire) Abort() { panic(http.ErrAbortHandler) }

// Ollama's protocol: one JSON object per line.

func startOllama(t *testing.T, answer func(Wire, Asked)) *Runtime {
	r := new(Runtime)
	url := serveHTTP(t, func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path != "/api/chat" {
			http.NotFound(w, request)
			return
		}
		var body struct {
			Model    string
			Messages []botapi.ChatMessage
			Options  struct {
				Temperature *float64
				NumPredict  *int64 `json:"num_predict"`
				NumCtx      *int64 `json:"num_ctx"`
				Stop        []string
			}
		}
		raw, _ := io.ReadAll(request.Body)
		if json.Unmarshal(raw, &body) != nil || body.Options.NumCtx == nil || *body.Options.NumCtx != 4096 {
			http.Error(w, `{"error":"invalid request"}`, 400)
			return
		}
		asked := Asked{Ctx: request.Context(), Model: body.Model, Messages: body.Messages, Temperature: body.Options.Temperature,
			MaxTokens: body.Options.NumPredict, Stop: body.Options.Stop, RequestID: request.Header.Get("X-Request-Id"), Body: string(raw)}
		r.note(asked)
		answer(&ollamaWire{w: w}, asked)
	})
	r.engine = newOllama(t, url)
	return r
}

func newOllama(t *testing.T, url string) *Ollama {
	engine, err := NewOllama(OllamaConfig{BaseURL: url, NumCtx: 4096})
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func unreachableOllama(t *testing.T) botapi.ChatEngine { return newOllama(t, unreachableAddress()) }

type ollamaWire struct {
	w     http.ResponseWriter
	begun bool
}

func (o *ollamaWire) line(line string) {
	o.begun = true
	o.w.Header().Set("Content-Type", "application/x-ndjson")
	fmt.Fprintln(o.w, line)
	http.NewResponseController(o.w).Flush()
}

func (o *ollamaWire) message(fields, more string) {
	o.line(`{"model":"m1","created_at":"2026-01-02T03:04:05.678Z","message":{"role":"assistant",` + fields + `},"done":` + more + `}`)
}

func (o *ollamaWire) Text(text string)  { o.message(`"content":`+quote(text), "false") }
func (o *ollamaWire) Think(text string) { o.message(`"content":"","thinking":`+quote(text), "false") }
func (o *ollamaWire) CallTools() {
	o.message(`"content":"","tool_calls":[{"function":{"name":"SECRET","arguments":{}}}]`, "false")
}
func (o *ollamaWire) End() { o.Finish("stop") }
func (o *ollamaWire) Finish(why string) {
	o.message(`"content":""`, `true,"done_reason":"`+why+`","total_duration":5,"prompt_eval_count":7,"eval_count":3`)
}

func (o *ollamaWire) Fail(kind Failing) {
	fault := map[Failing]struct {
		status int
		text   string
	}{
		busy:           {429, "SECRET"},
		overloaded:     {503, "server busy, please try again.  maximum pending requests exceeded SECRET"},
		tooLong:        {400, "the input length exceeds the context length SECRET"},
		keyRejected:    {401, "unauthorized SECRET"},
		invalidRequest: {400, "SECRET"},
		badSetting:     {400, "temperature: SECRET"},
		internalError:  {500, "llama runner process has terminated SECRET"},
	}[kind]
	line := fmt.Sprintf(`{"error":%q}`, fault.text)
	if o.begun {
		o.line(line)
		return
	}
	if kind == busy {
		o.w.Header().Set("Retry-After", "17")
	}
	o.w.WriteHeader(fault.status)
	fmt.Fprintln(o.w, line)
}

func (o *ollamaWire) Abort() { panic(http.ErrAbortHandler) }

// gRPC: a server for modelpb's service.

func startGRPC(t *testing.T, answer func(Wire, Asked)) *Runtime {
	r := new(Runtime)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections := &connections{Listener: listener}
	server := grpc.NewServer()
	modelpb.RegisterModelServer(server, &modelServer{runtime: r, answer: answer, abort: connections.abort})
	go server.Serve(connections)
	t.Cleanup(server.Stop)
	r.engine = newGRPC(t, listener.Addr().String())
	return r
}

func newGRPC(t *testing.T, address string) *GRPC {
	// A service config may ask clients to retry. This one does.
	const retry = `{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":5,"initialBackoff":"0.01s","maxBackoff":"0.01s",` +
		`"backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE","RESOURCE_EXHAUSTED","INTERNAL"]}}]}`
	engine, err := NewGRPC(address, "", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retry))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	return engine
}

func unreachableGRPC(t *testing.T) botapi.ChatEngine {
	return newGRPC(t, strings.TrimPrefix(unreachableAddress(), "http://"))
}

// connections is a listener that can abort its connections.
type connections struct {
	net.Listener
	mu  sync.Mutex
	all []*connection
}

func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	own := &connection{Conn: conn, wrote: make(chan string, 100)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, own)
	return own, nil
}

// abort closes the sending side of the last connection once the server has sent the text.
func (c *connections) abort(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.all[len(c.all)-1]
	for !strings.Contains(<-last.wrote, text) {
	}
	last.Conn.(*net.TCPConn).CloseWrite()
}

type connection struct {
	net.Conn
	wrote chan string
}

func (c *connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	select {
	case c.wrote <- string(b[:n]):
	default: // this connection is not aborted
	}
	return n, err
}

type modelServer struct {
	modelpb.UnimplementedModelServer
	runtime *Runtime
	answer  func(Wire, Asked)
	abort   func(after string)
}

func (s *modelServer) Generate(r *modelpb.GenerateRequest, stream grpc.ServerStreamingServer[modelpb.GenerateResponse]) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	raw, _ := proto.Marshal(r)
	asked := Asked{Ctx: stream.Context(), Model: r.GetModel(), Temperature: r.Temperature, MaxTokens: r.MaxTokens,
		Stop: r.GetStop(), RequestID: strings.Join(md.Get("x-request-id"), ","), Body: string(raw)}
	for _, m := range r.GetMessages() {
		asked.Messages = append(asked.Messages, botapi.ChatMessage{Role: botapi.Role(m.GetRole()), Content: m.GetContent()})
	}
	s.runtime.note(asked)
	w := &grpcWire{stream: stream, abort: s.abort}
	s.answer(w, asked)
	return w.err
}

type grpcWire struct {
	stream grpc.ServerStreamingServer[modelpb.GenerateResponse]
	abort  func(after string)
	last   string // the last text that was sent
	err    error
}

func (g *grpcWire) Text(text string) {
	g.last = text
	g.stream.Send(&modelpb.GenerateResponse{Text: []byte(text), PromptTokens: 7, CompletionTokens: 1})
}

func (g *grpcWire) Think(text string) {
	g.last = text
	g.stream.Send(&modelpb.GenerateResponse{Reasoning: text})
}

func (g *grpcWire) CallTools() {}
func (g *grpcWire) End()       { g.Finish("stop") }
func (g *grpcWire) Finish(why string) {
	g.stream.Send(&modelpb.GenerateResponse{FinishReason: why, PromptTokens: 7, CompletionTokens: 3})
}

func (g *grpcWire) Fail(kind Failing) {
	code := map[Failing]codes.Code{
		busy:           codes.ResourceExhausted,
		overloaded:     codes.Unavailable,
		tooLong:        codes.OutOfRange,
		keyRejected:    codes.Unauthenticated,
		invalidRequest: codes.InvalidArgument,
		badSetting:     codes.InvalidArgument,
		internalError:  codes.Internal,
	}[kind]
	text := "SECRET"
	if kind == badSetting {
		text = "temperature: SECRET"
	}
	s := status.New(code, text)
	if kind == busy {
		s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: 17}})
	}
	g.err = s.Err()
}

func (g *grpcWire) Abort() {
	g.abort(g.last)
	<-g.stream.Context().Done() // keeps the server from sending its status
}

// The model in this process.

func startLocal(t *testing.T, answer func(Wire, Asked)) *Runtime {
	r := new(Runtime)
	model := &mockModel{runtime: r, answer: answer, stop: func() {}}
	t.Cleanup(func() { model.stop() })
	r.engine = NewLocal(model)
	return r
}

// A mockModel panics if it is used concurrently.
type mockModel struct {
	runtime *Runtime
	answer  func(Wire, Asked)

	busy  sync.Mutex
	next  func() ([]byte, error, bool)
	stop  func()
	first []byte
	err   error
	ahead bool
}

func (m *mockModel) Begin(ctx context.Context, messages []botapi.ChatMessage, s openai.Settings) (int64, error) {
	if !m.busy.TryLock() {
		panic("concurrent calls")
	}
	defer m.busy.Unlock()
	asked := Asked{Ctx: ctx, Model: "m1", Messages: messages, Temperature: s.Temperature, MaxTokens: s.MaxTokens, Stop: s.Stop}
	m.runtime.note(asked)
	m.stop()
	m.next, m.stop = iter.Pull2(func(yield func([]byte, error) bool) {
		w := &localWire{yield: yield}
		m.answer(w, asked)
		yield(nil, cmp.Or(w.end, errors.New("no end mark")))
	})
	m.first, m.err, m.ahead = m.next() // a real model reads the prompt here
	if m.err != nil && m.err != io.EOF {
		return 0, m.err
	}
	return 7, nil
}

func (m *mockModel) Next() ([]byte, error) {
	if !m.busy.TryLock() {
		panic("concurrent calls")
	}
	defer m.busy.Unlock()
	if m.ahead {
		m.ahead = false
		return m.first, m.err
	}
	text, err, _ := m.next()
	return text, err
}

type localWire struct {
	yield func([]byte, error) bool
	end   error
}

func (l *localWire) Text(text string) { l.yield([]byte(text), nil) }
func (l *localWire) Think(string)     {} // such a model returns only text
func (l *localWire) CallTools()       {}
func (l *localWire) Finish(string)    {}
func (l *localWire) End()             { l.end = io.EOF }
func (l *localWire) Abort()           { l.yield(nil, io.ErrUnexpectedEOF) }
func (l *localWire) Fail(kind Failing) {
	if kind == tooLong {
		l.yield(nil, fmt.Errorf("8000 tokens: %w", ErrTooLong))
		return
	}
	l.yield(nil, errors.New("out of memory"))
}
