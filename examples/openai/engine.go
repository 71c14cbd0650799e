// Package openai connects botapi with OpenAI's chat completions protocol, in both
// directions: [NewEngine] answers chats with any server that has an
// OpenAI-compatible API, and [Routes] serves the bots to OpenAI clients.
//
// Besides botapi, it needs only the standard library. Import it or copy it.
package openai

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"example.com/botapi"
)

// Config configures an [Engine]. Only BaseURL is required.
type Config struct {
	// BaseURL is the address of the runtime's API, such as
	// http://127.0.0.1:11434/v1 for Ollama. Requests go to chat/completions below
	// it; its query is kept.
	BaseURL string
	// Key is sent as a bearer token, unless it is empty.
	Key string
	// Model is the runtime's name for the model; empty means the Bot.Model of
	// each bot.
	Model string

	// MaxCompletionTokens sends the limit of an answer as max_completion_tokens, which
	// OpenAI's reasoning models require. Otherwise it is sent as max_tokens, whichever of
	// the two fields the client has used: all other runtimes know that name, and Ollama
	// ignores the newer one.
	MaxCompletionTokens bool
	// Count says when to ask the runtime for token counts: see [CountTokens].
	Count Count
	// Extra names fields of ChatRequest.Extra that are passed to the runtime
	// unchecked, besides those that [CheckExtra] checks. Clients control their
	// values. "model", "messages", "stream", "stream_options" and "n" are reserved
	// for the engine and never passed on.
	Extra []string

	// HTTPClient makes the requests; nil means one with a transport of
	// [NewTransport]. It is copied, and the copy never follows redirects, since
	// they would turn a POST into a GET. Leave its Timeout at 0: it would limit
	// complete answers, which botapi.Options.ChatTimeout and StallTimeout do.
	HTTPClient *http.Client
}

// Count says when to ask a runtime for token counts.
type Count int

const (
	// CountAtEnd asks for the count at the end of each answer. One that ends
	// without a finish_reason has none.
	CountAtEnd Count = iota
	// CountAlong also asks for the count in each chunk (continuous_usage_stats),
	// which vLLM and SGLang support. So an incomplete answer is counted up to where
	// it ended.
	CountAlong
	// CountNever does not ask. A few old runtimes reject requests that ask.
	CountNever
)

// Engine is a botapi.ChatEngine for one model runtime. It is safe for concurrent
// use.
//
// It always asks the runtime for a stream, even when the client wants a JSON
// response, so that the model stops immediately when the client disconnects. The
// request is cancelled with the chat's context and carries the request id as
// X-Request-Id. The user's id is not sent.
//
// Text is passed on byte for byte, except that the halves of a character that a runtime
// has split into two JSON escapes are joined. Reasoning is omitted if the runtime sends it
// apart from the content.
type Engine struct {
	config Config
	url    string
	extra  map[string]bool // passed on unchecked
	client *http.Client
}

var _ botapi.ChatEngine = (*Engine)(nil)

// NewEngine returns an engine, or an error if the configuration is invalid. It does
// not contact the runtime.
func NewEngine(c Config) (*Engine, error) {
	address, err := completionsURL(c.BaseURL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(c.Key, unicode.IsControl) {
		return nil, errors.New("openai: the key contains a control character, perhaps a line break at its end")
	}
	e := &Engine{config: c, url: address, extra: make(map[string]bool), client: newClient(c.HTTPClient)}
	for _, name := range c.Extra {
		if reservedFields[name] {
			return nil, fmt.Errorf("openai: Extra names %q, which is reserved for the engine", name)
		}
		e.extra[name] = true
	}
	return e, nil
}

func completionsURL(base string) (string, error) {
	u, err := url.Parse(base)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("openai: the base URL is not an http or https URL, as in http://127.0.0.1:11434/v1")
	case u.User != nil:
		return "", errors.New("openai: the base URL has a user in it, which would be logged")
	}
	return u.JoinPath("chat/completions").String(), nil
}

func newClient(given *http.Client) *http.Client {
	client := http.Client{Transport: NewTransport()}
	if given != nil {
		client = *given
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

const (
	dialTimeout = 3 * time.Second
	// idleTimeout is less than the 5 seconds after which uvicorn, the server of
	// vLLM and SGLang, closes idle connections: a chat sent on a connection that
	// is being closed would fail.
	idleTimeout = 4 * time.Second
	// A connection of HTTP/2 that the network has forgotten takes every new chat, as
	// long as one in progress keeps it in use. After pingAfter without a sign of life
	// it gets a ping, and it is closed pingTimeout later if there is no response. A
	// runtime that reads a long prompt responds: its server does, and not its model.
	pingAfter   = 5 * time.Second
	pingTimeout = 10 * time.Second
)

// NewTransport returns a transport for model runtimes. It stops dialling an
// unreachable host after 3 seconds, and does not limit the streams of one host. The
// chats of an HTTP/2 connection whose other side has been silent for 15 seconds, a ping
// included, fail.
func NewTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.IdleConnTimeout = idleTimeout
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = 256
	transport.MaxResponseHeaderBytes = 64 << 10
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	return transport
}

// Chat yields the model's answer, each fragment as it arrives.
//
// It yields errors of botapi's types. Invalid fields of Extra are an
// HTTPValidationError that lists them. Errors of the runtime have a [Failure] as
// their cause: a conversation that is too long for the model is an
// HTTPValidationError for "messages", before the first text and after it; a field of
// Extra that the runtime does not accept is one for that field; a runtime that is
// unreachable or overloaded (429, 502, 503, 504, 529) is a StatusError 503 with
// RetryAfter; all other failures are a 502. So is a key that the runtime rejects, since
// it is not the client's key.
//
// An answer is complete only if the runtime sends a finish_reason, and none of those
// that mean the opposite, such as abort and error. After that, Chat waits at most 1
// second for the rest of the stream, such as the token count. A complete answer may be
// the empty text; one of tool calls alone, or of other content that is not text, is a 502.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for chunk, err := range e.Chunks(ctx, req) {
			if err != nil {
				yield("", err)
				return
			}
			if chunk.Text != "" && !yield(chunk.Text, nil) {
				return
			}
		}
	}
}

// Chunks is Chat for engines that build on this one. It yields each chunk of the
// runtime's stream, with or without text, and one that is [Chunk.Alive] for each comment and
// each event without data, with which some runtimes say that they are still reading a long
// prompt.
func (e *Engine) Chunks(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		body, err := e.body(req)
		if err != nil {
			yield(Chunk{}, err)
			return
		}
		a := answer{ctx: ctx, req: req, usage: cmp.Or(UsageFrom(ctx), new(Usage))}
		stopped := false
		err = a.run(e, body, func(c Chunk) bool {
			stopped = !yield(c, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(Chunk{}, a.failed(err))
		}
	}
}

// An answer is one request to the runtime and the state of its response.
type answer struct {
	ctx      context.Context // the chat's
	req      *botapi.ChatRequest
	usage    *Usage
	text     Joiner
	cancel   context.CancelFunc // cancels the request, not the chat
	response *http.Response     // nil until it arrives
	begun    bool               // text was received
	deltas   bool               // text was received in a delta
	noText   bool               // content other than text was received
	complete bool               // a finish_reason was received, and the answer can be read
}

// run yields the chunks of one answer. It returns nil if the answer is complete or
// yield has returned false.
func (a *answer) run(e *Engine, body []byte, yield func(Chunk) bool) error {
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	response, err := e.post(ctx, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	a.response, a.cancel = response, cancel
	if err := a.checkResponse(); err != nil {
		return err
	}
	return a.read(NewEvents(response.Body), yield)
}

func (a *answer) read(events *Events, yield func(Chunk) bool) error {
	var rest *time.Timer
	for events.Next() {
		if events.isDone() {
			a.readRest(events, yield)
			return a.unlessComplete(errIncomplete)
		}
		chunk, err := a.readEvent(events)
		if err != nil {
			return a.unlessComplete(err)
		}
		if err := a.note(&chunk); err != nil {
			a.readRest(events, yield) // its tokens are used, too
			return err
		}
		if !yield(chunk) {
			return nil
		}
		if a.complete && rest == nil {
			rest = time.AfterFunc(restTime, a.cancel)
			defer rest.Stop()
		}
	}
	return a.unlessComplete(events.End())
}

// readEvent reads the current event as a chunk.
func (a *answer) readEvent(events *Events) (Chunk, error) {
	if len(events.data) == 0 {
		return Chunk{Alive: true}, nil
	}
	chunk, err := readChunk(string(events.data))
	if string(events.Name()) == "error" || err == nil && chunk.failed {
		return Chunk{}, EventFailure(a.req, events.data)
	}
	return chunk, err
}

// note drops a message that repeats the deltas before it. It returns an error if the
// chunk ends the answer, and the answer is not complete or has only content that is not
// text.
func (a *answer) note(c *Chunk) error {
	a.usage.note(c)
	if c.isMessage && a.deltas {
		c.Text = ""
	}
	a.deltas = a.deltas || c.Text != "" && !c.isMessage
	c.Text = a.text.join(c.Text)
	finish := c.Finish
	if finish != "" && !a.complete {
		c.Text += a.text.Rest()
	}
	a.begun = a.begun || c.Text != ""
	a.noText = a.noText || c.unreadable
	if finish == "" || a.complete {
		return nil
	}
	if err := CheckFinish(finish, a.begun, a.noText); err != nil {
		return err
	}
	a.complete = true
	a.usage.Finish(finish)
	return nil
}

// unlessComplete drops an error after the finish_reason: at most the token count is
// missing then.
func (a *answer) unlessComplete(err error) error {
	if a.complete {
		return nil
	}
	return err
}

const (
	restTime   = time.Second // for what follows the finish_reason: the token count and [DONE]
	drainTime  = 100 * time.Millisecond
	drainBytes = 4 << 10
)

// readRest reads what follows the end of the answer: the token count, which a few runtimes
// send after [DONE], and the end of the body. The transport reuses a connection only if the body was read to its end.
func (a *answer) readRest(events *Events, yield func(Chunk) bool) {
	defer time.AfterFunc(drainTime, a.cancel).Stop()
	for n := 0; n < drainBytes && events.Next(); n += len(events.data) + 1 {
		chunk, err := a.readEvent(events)
		if err != nil {
			continue
		}
		a.usage.note(&chunk)
		if chunk.Counted && !yield(Chunk{Tokens: chunk.Tokens, Counted: true}) {
			return
		}
	}
}

func (e *Engine) post(ctx context.Context, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Accept-Encoding", "identity") // compression would delay tokens
	if e.config.Key != "" {
		request.Header.Set("Authorization", "Bearer "+e.config.Key)
	}
	if id := botapi.RequestIDFrom(ctx); id != "" {
		request.Header.Set("X-Request-Id", id)
	}
	return e.client.Do(request)
}

// reservedFields are fields of the runtime's request that clients cannot set.
var reservedFields = map[string]bool{
	"model": true, "messages": true, "stream": true, "stream_options": true, "n": true,
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats,omitempty"`
}

// body encodes the runtime's request.
func (e *Engine) body(req *botapi.ChatRequest) ([]byte, error) {
	if mistakes := CheckExtra(req.Extra); len(mistakes) > 0 {
		return nil, &botapi.HTTPValidationError{Detail: mistakes}
	}
	body := make(map[string]any)
	for name, value := range maps.All(req.Extra) {
		if (checkedFields[name] != nil || e.extra[name]) && string(value) != "null" {
			body[name] = value
		}
	}
	e.nameLimit(body)
	body["model"] = req.Bot.Model
	if e.config.Model != "" {
		body["model"] = e.config.Model
	}
	body["messages"] = req.Messages
	body["stream"] = true
	if e.config.Count != CountNever {
		body["stream_options"] = streamOptions{IncludeUsage: true, Continuous: e.config.Count == CountAlong}
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(body); err != nil {
		return nil, fmt.Errorf("encoding the request to the runtime: %w", err)
	}
	return encoded.Bytes(), nil
}

// nameLimit moves the limit of the answer to the name that the runtime knows. Like
// [ReadExtra], it prefers the newer name if the client has used both.
func (e *Engine) nameLimit(body map[string]any) {
	const older, newer = "max_tokens", "max_completion_tokens"
	limit, isNewer := body[newer]
	if !isNewer {
		limit = body[older]
	}
	delete(body, older)
	delete(body, newer)
	switch {
	case limit == nil:
	case e.config.MaxCompletionTokens:
		body[newer] = limit
	default:
		body[older] = limit
	}
}

// checkResponse returns an error unless the response is a readable stream.
func (a *answer) checkResponse() error {
	if a.response.StatusCode != http.StatusOK {
		return ResponseFailure(a.req, a.response)
	}
	if encoding := a.response.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return fmt.Errorf("the stream is encoded as %.40q, which was not requested", encoding)
	}
	kind, _, _ := mime.ParseMediaType(a.response.Header.Get("Content-Type"))
	if kind == "text/event-stream" {
		return nil
	}
	if said, ok := readFailure(a.req, a.response); ok { // llama.cpp and LM Studio sometimes send errors with a 200
		return said
	}
	return fmt.Errorf("the response is %.80q and not an event stream", kind)
}
