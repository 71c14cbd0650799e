// Package openai connects botapi with everything that speaks OpenAI's chat
// completions protocol, in both directions: [NewEngine] answers chats with a
// model runtime that speaks it, and [NewHandler] lets clients that speak it
// reach the bots.
//
// It needs the standard library only, and is made to be imported or copied.
package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Config is what an [Engine] is made of. Only BaseURL is required.
type Config struct {
	// BaseURL is the address of the API, as in http://127.0.0.1:11434/v1 for
	// Ollama. Requests go to chat/completions below it; a query is kept.
	BaseURL string
	// Key is sent as a bearer token; empty for a runtime that asks for none.
	Key string
	// Model is the name of the model at the runtime; empty means each bot's
	// own, Bot.Model.
	Model string

	// Count is when the runtime is asked to count tokens: see [CountTokens].
	Count Count
	// Extra names members of ChatRequest.Extra that are handed on to the
	// runtime as they are, besides those that [CheckExtra] knows. Whatever is
	// named here is in the hands of clients. "model", "messages", "stream",
	// "stream_options" and "n" are the engine's own, and are never handed on.
	Extra []string

	// HTTPClient makes the requests; nil means one with a transport of
	// [NewTransport]. It is copied: redirects are never followed, since they
	// would turn a POST into a GET. Its Timeout would bound whole answers; leave
	// that to botapi.Options.ChatTimeout and StallTimeout.
	HTTPClient *http.Client
}

// Count is when a runtime is asked to count tokens.
type Count int

const (
	// CountAtEnd asks for the count at the end of each answer. An answer that
	// ends early has none.
	CountAtEnd Count = iota
	// CountAlong asks for the count in each chunk, too, which vLLM and SGLang
	// know (continuous_usage_stats). So answers that end early are counted as far
	// as they came.
	CountAlong
	// CountNever asks for none. A few old runtimes refuse to be asked.
	CountNever
)

// Engine is a botapi.ChatEngine in front of one model runtime. It is safe for
// concurrent use.
//
// Its request to the runtime is always a stream, also for a client that wants one
// body: that is how a client that leaves stops the model at once. The request
// ends with the chat's context. It carries the request id as X-Request-Id. The
// user's id stays here.
//
// Text passes byte for byte. Reasoning is left out where the runtime sends it
// apart from the answer's content.
type Engine struct {
	config Config
	url    string
	extra  map[string]bool // handed on unchecked
	client *http.Client
}

var _ botapi.ChatEngine = (*Engine)(nil)

// NewEngine returns an engine, or says what is wrong with its configuration. It
// does not ask the runtime anything.
func NewEngine(c Config) (*Engine, error) {
	address, err := completionsURL(c.BaseURL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsFunc(c.Key, unicode.IsControl) {
		return nil, errors.New("openai: there is a control character in the key, perhaps the end of its line")
	}
	e := &Engine{config: c, url: address, extra: make(map[string]bool), client: newClient(c.HTTPClient)}
	for _, name := range c.Extra {
		if ownMembers[name] {
			return nil, fmt.Errorf("openai: %q is the engine's own and cannot be handed on", name)
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
	// idleTimeout is below the 5 seconds after which uvicorn, which vLLM and
	// SGLang run on, closes idle connections: a chat sent into a connection
	// that is being closed fails for nothing.
	idleTimeout = 4 * time.Second
)

// NewTransport returns a transport for model runtimes: it gives up on dead hosts
// soon, and does not limit how many streams one host has.
func NewTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTimeout}).DialContext
	transport.IdleConnTimeout = idleTimeout
	transport.MaxIdleConns = 0
	transport.MaxIdleConnsPerHost = 256
	transport.MaxResponseHeaderBytes = 64 << 10
	return transport
}

// Chat answers with the model, passing each piece of text on as it comes.
//
// The errors it yields are botapi's, and have a [Failure] as their cause. Members
// of Extra that make no sense are an HTTPValidationError, which lists them; so is
// a conversation that the model cannot hold, as a mistake in "messages". A
// runtime that cannot be reached or has too much to do (429, 502, 503, 504, 529)
// is a StatusError 503 with RetryAfter. All else that goes wrong upstream is a 502,
// also a key that the runtime refuses: the client's own is fine. An answer is
// whole only when the runtime says so, with a finish_reason; what comes behind that, as
// the count of tokens, is waited for 1 second.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for chunk, err := range e.Chunks(ctx, req) {
			if err != nil {
				yield("", err)
				return
			}
			if len(chunk.Text) > 0 && !yield(string(chunk.Text), nil) {
				return
			}
		}
	}
}

// Chunks is Chat for engines that are built on this one: it yields each chunk of
// the runtime's stream, with or without text. A chunk's texts are valid until the
// next one is asked for.
func (e *Engine) Chunks(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		body, err := e.body(req)
		if err != nil {
			yield(Chunk{}, err)
			return
		}
		a := answer{ctx: ctx, usage: UsageFrom(ctx)}
		unwanted := false
		err = a.run(e, body, func(c Chunk) bool {
			unwanted = !yield(c, nil)
			return !unwanted
		})
		if err != nil && !unwanted {
			yield(Chunk{}, a.failed(err))
		}
	}
}

// An answer is one request to the runtime, and what has come of it.
type answer struct {
	ctx      context.Context // the chat's
	usage    *Usage
	cancel   context.CancelFunc // ends the request alone
	response *http.Response     // nil while there is none
	begun    bool               // text was passed on
	whole    bool               // the runtime has said that the answer is over
}

// run passes the chunks of one answer on. It returns nil when the answer is
// whole or nobody wants more of it.
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
	return a.read(newEvents(response.Body), yield)
}

func (a *answer) read(events *events, yield func(Chunk) bool) error {
	var rest *time.Timer
	for events.next() {
		if events.isDone() {
			a.drain()
			break
		}
		chunk, err := readEvent(events)
		if err != nil {
			return a.unlessWhole(err)
		}
		a.note(chunk)
		if !yield(chunk) {
			return nil
		}
		if a.whole && rest == nil {
			rest = time.AfterFunc(restTime, a.cancel)
			defer rest.Stop()
		}
	}
	return a.unlessWhole(events.end())
}

func (a *answer) note(c Chunk) {
	a.begun = a.begun || len(c.Text) > 0
	a.whole = a.whole || len(c.Finish) > 0
	if a.usage != nil {
		a.usage.note(c)
	}
}

// unlessWhole is err, or nil after a finish_reason: what goes wrong then, goes
// wrong with the count of tokens at most.
func (a *answer) unlessWhole(err error) error {
	if a.whole {
		return nil
	}
	return err
}

const (
	restTime   = time.Second // for what follows the finish_reason: the count of tokens, and [DONE]
	drainTime  = 100 * time.Millisecond
	drainBytes = 4 << 10
)

// drain reads what comes behind [DONE], which is nothing but the end of the body
// as a rule: the transport keeps only a connection whose body was read whole.
func (a *answer) drain() {
	defer time.AfterFunc(drainTime, a.cancel).Stop()
	_, _ = io.CopyN(io.Discard, a.response.Body, drainBytes)
}

func (e *Engine) post(ctx context.Context, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Accept-Encoding", "identity") // compression would hold tokens back
	if e.config.Key != "" {
		request.Header.Set("Authorization", "Bearer "+e.config.Key)
	}
	if id := botapi.RequestIDFrom(ctx); id != "" {
		request.Header.Set("X-Request-Id", id)
	}
	return e.client.Do(request)
}

// ownMembers are those of the runtime's request that no client can choose.
var ownMembers = map[string]bool{
	"model": true, "messages": true, "stream": true, "stream_options": true, "n": true,
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
	Continuous   bool `json:"continuous_usage_stats,omitempty"`
}

// body makes the runtime's request.
func (e *Engine) body(req *botapi.ChatRequest) ([]byte, error) {
	if mistakes := CheckExtra(req.Extra); len(mistakes) > 0 {
		return nil, &botapi.HTTPValidationError{Detail: mistakes}
	}
	body := make(map[string]any)
	for name, value := range maps.All(req.Extra) {
		if (checkedMembers[name] != nil || e.extra[name]) && string(value) != "null" {
			body[name] = value
		}
	}
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

// checkResponse says why the response is not a stream that can be read.
func (a *answer) checkResponse() error {
	if a.response.StatusCode != http.StatusOK {
		said, _ := a.refusal()
		return said
	}
	if encoding := a.response.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return fmt.Errorf("the stream is encoded as %.40q, which was not asked for", encoding)
	}
	kind, _, _ := mime.ParseMediaType(a.response.Header.Get("Content-Type"))
	if kind == "text/event-stream" {
		return nil
	}
	if said, ok := a.refusal(); ok { // of llama.cpp and LM Studio, at times
		return said
	}
	return fmt.Errorf("the response is %.80q and not an event stream", kind)
}
