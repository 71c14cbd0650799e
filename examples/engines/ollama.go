package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/ollama/ollama/api"
)

// OllamaConfig configures an [Ollama]. The api package signs requests to ollama.com, and to
// every server if the environment variable OLLAMA_AUTH is set, with the key of the user in
// ~/.ollama. Other environment variables are not read.
type OllamaConfig struct {
	BaseURL string // such as http://127.0.0.1:11434
	Model   string // empty means the Bot.Model of each bot
	// NumCtx is the context length in tokens; 0 means that of the model or the server,
	// which may be small. Ollama silently truncates longer conversations.
	NumCtx int64

	Transport http.RoundTripper // nil means one of openai.NewTransport
}

// Ollama is a botapi.ChatEngine for Ollama's own protocol, which it uses through Ollama's
// api package. What newer servers send as thinking is not part of the answer; one without
// text, of tool calls alone, is a 502.
type Ollama struct {
	config OllamaConfig
	base   *url.URL
}

// NewOllama returns an engine, or an error if BaseURL is invalid. It does not contact the
// server.
func NewOllama(c OllamaConfig) (*Ollama, error) {
	base, err := url.Parse(c.BaseURL)
	if err != nil || base.Host == "" {
		return nil, errors.New("ollama: invalid base URL, expected one such as http://127.0.0.1:11434")
	}
	if c.Transport == nil {
		transport := openai.NewTransport()
		transport.DisableCompression = true // compression would delay tokens
		c.Transport = transport
	}
	return &Ollama{config: c, base: base}, nil
}

// Chat yields the model's answer, each fragment as it arrives.
func (e *Ollama) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		request, err := e.request(req)
		if err != nil {
			yield("", err)
			return
		}
		a := ollamaAnswer{ctx: ctx, req: req, usage: openai.UsageFrom(ctx), transport: e.config.Transport}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		client := api.NewClient(e.base, &http.Client{Transport: &a})
		err = client.Chat(ctx, request, func(r api.ChatResponse) error {
			if a.complete {
				return errStop
			}
			if err := a.note(r); err != nil {
				return err
			}
			if r.Message.Content != "" && !yield(r.Message.Content, nil) {
				a.stopped = true
				return errStop
			}
			if r.Done { // the transport reuses a connection only if the body was read to its end
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			return nil
		})
		if !a.complete && !a.stopped {
			yield("", a.failed(err))
		}
	}
}

// errStop ends the call of the api package.
var errStop = errors.New("stop")

func (e *Ollama) request(req *botapi.ChatRequest) (*api.ChatRequest, error) {
	settings, err := openai.ReadExtra(req.Extra)
	if err != nil {
		return nil, err
	}
	options := make(map[string]any)
	setOption(options, "temperature", settings.Temperature)
	setOption(options, "top_p", settings.TopP)
	setOption(options, "presence_penalty", settings.PresencePenalty)
	setOption(options, "frequency_penalty", settings.FrequencyPenalty)
	setOption(options, "num_predict", settings.MaxTokens)
	setOption(options, "seed", settings.Seed)
	if len(settings.Stop) > 0 {
		options["stop"] = settings.Stop
	}
	if e.config.NumCtx > 0 {
		options["num_ctx"] = e.config.NumCtx
	}
	request := &api.ChatRequest{Model: cmp.Or(e.config.Model, req.Bot.Model), Options: options}
	for _, m := range req.Messages {
		request.Messages = append(request.Messages, api.Message{Role: string(m.Role), Content: m.Content})
	}
	return request, nil
}

func setOption[T any](options map[string]any, name string, value *T) {
	if value != nil {
		options[name] = *value
	}
}

// An ollamaAnswer is one request and the state of its response.
type ollamaAnswer struct {
	ctx       context.Context // the chat's
	req       *botapi.ChatRequest
	usage     *openai.Usage // may be nil
	transport http.RoundTripper
	streamed  bool  // there is a response with the status 200
	begun     bool  // text was received
	other     bool  // tool calls or images were received
	complete  bool  // "done": true was received
	stopped   bool  // yield has returned false
	readError error // of the connection
}

// RoundTrip turns every status but 200 into an error, since the api package drops most
// statuses. It also sends the request id.
func (a *ollamaAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", botapi.RequestIDFrom(r.Context()))
	response, err := a.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, openai.ResponseFailure(a.req, response)
	}
	a.streamed = true
	response.Body = &ollamaBody{response.Body, a}
	return response, nil
}

// An ollamaBody notes why reading fails. The api package returns that error like one that
// Ollama sends, and only if the last line is not an incomplete one, which it returns instead.
type ollamaBody struct {
	io.ReadCloser
	answer *ollamaAnswer
}

func (b *ollamaBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.answer.readError = err
	}
	return n, err
}

func (a *ollamaAnswer) note(r api.ChatResponse) error {
	a.begun = a.begun || r.Message.Content != ""
	a.other = a.other || len(r.Message.ToolCalls) > 0 || len(r.Message.Images) > 0
	if !r.Done {
		return nil
	}
	a.usage.Update(openai.Tokens{Prompt: int64(r.PromptEvalCount), Completion: int64(r.EvalCount)})
	if err := openai.CheckFinish(r.DoneReason, a.begun, a.other); err != nil {
		return err
	}
	a.complete = true
	a.usage.Finish(r.DoneReason)
	return nil
}

// failed makes the error that Chat yields. err is nil if the stream ended without one.
func (a *ollamaAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	f, isRead := errors.AsType[*openai.Failure](err)
	switch {
	case isRead:
	case !a.streamed: // there was no response
		f = &openai.Failure{Err: err}
	case err == nil:
		f = &openai.Failure{Status: http.StatusOK, Err: errors.New("the stream ended before the answer did")}
	case a.readError != nil:
		f = &openai.Failure{Status: http.StatusOK, Err: fmt.Errorf("reading the stream: %w", a.readError)}
	default: // the error of the server, an invalid line or one that is too long
		f = openai.EventFailure(a.req, []byte(err.Error()))
	}
	f.Streamed, f.Begun = a.streamed, a.begun
	return f.Answer()
}
