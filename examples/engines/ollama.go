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
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/ollama/ollama/api"
)

// OllamaConfig configures an [Ollama]. Environment variables are not read.
type OllamaConfig struct {
	BaseURL string // such as http://127.0.0.1:11434
	Model   string // empty means the Bot.Model of each bot
	// NumCtx is the context length in tokens; 0 means that of the model or the server,
	// which may be small. Ollama silently truncates longer conversations.
	NumCtx int64

	Transport http.RoundTripper // nil means one of openai.NewTransport
}

// Ollama is a botapi.ChatEngine for Ollama's own protocol, which it uses through Ollama's
// api package. What newer servers send as thinking is not part of the answer.
type Ollama struct {
	config OllamaConfig
	client *api.Client
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
	return &Ollama{config: c, client: api.NewClient(base, &http.Client{Transport: ollamaTransport{c.Transport}})}, nil
}

// An ollamaTransport turns every status but 200 into an error, since the api package
// drops most statuses. It also sends the request id.
type ollamaTransport struct{ next http.RoundTripper }

func (t ollamaTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", botapi.RequestIDFrom(r.Context()))
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	defer time.AfterFunc(5*time.Second, func() { response.Body.Close() }).Stop() // in case the body never ends
	text, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))                 // an error keeps what was read
	return nil, &openai.Failure{
		Status:     response.StatusCode,
		RetryAfter: openai.RetryAfter(response.Header),
		TooLong:    ollamaTooLong(string(text)),
		Err:        fmt.Errorf("status %d", response.StatusCode),
	}
}

func ollamaTooLong(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "exceeds the context length") || strings.Contains(text, "exceeds the available context size")
}

// Chat yields the model's answer, each fragment as it arrives.
func (e *Ollama) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		request, err := e.request(req)
		if err != nil {
			yield("", err)
			return
		}
		a := ollamaAnswer{ctx: ctx, usage: openai.UsageFrom(ctx)}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err = e.client.Chat(ctx, request, func(r api.ChatResponse) error {
			if a.complete {
				return errStop
			}
			a.note(r)
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

// An ollamaAnswer is the state of one response.
type ollamaAnswer struct {
	ctx      context.Context // the chat's
	usage    *openai.Usage   // may be nil
	begun    bool            // text was received
	complete bool            // "done": true was received
	stopped  bool            // yield has returned false
}

func (a *ollamaAnswer) note(r api.ChatResponse) {
	a.begun = a.begun || r.Message.Content != ""
	a.complete = a.complete || r.Done
	if r.Done {
		a.usage.Report(openai.Tokens{Prompt: int64(r.PromptEvalCount), Completion: int64(r.EvalCount)})
		a.usage.Finish(r.DoneReason)
	}
}

// failed makes the error that Chat yields. err is nil if the stream ended without one.
func (a *ollamaAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if f, ok := errors.AsType[*openai.Failure](err); ok {
		return f.Answer()
	}
	if _, ok := errors.AsType[*url.Error](err); ok { // there was no response
		return (&openai.Failure{Err: err}).Answer()
	}
	f := &openai.Failure{Status: http.StatusOK, Streamed: true, Begun: a.begun}
	if err == nil {
		f.Err = errors.New("the stream ended before the answer did")
	} else {
		f.TooLong = ollamaTooLong(err.Error())
		f.Err = errors.New("an error or an invalid line in the stream") // err may quote the chat
	}
	return f.Answer()
}
