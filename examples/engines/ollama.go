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

// OllamaConfig is what an [Ollama] is made of. Nothing is taken from the
// environment.
type OllamaConfig struct {
	BaseURL string // http://127.0.0.1:11434
	Model   string // empty means each bot's own, Bot.Model
	// NumCtx is how many tokens a conversation may have; 0 means what the model or
	// the server says, which may be few: what is longer, Ollama cuts without a word.
	NumCtx int64

	Transport http.RoundTripper // nil means one of openai.NewTransport
}

// Ollama is a botapi.ChatEngine in front of Ollama's own protocol, through its api
// package. What newer servers send as thinking is no part of the answer.
type Ollama struct {
	config OllamaConfig
	client *api.Client
}

// NewOllama returns an engine, or says what is wrong with the address. It does not
// ask the server anything.
func NewOllama(c OllamaConfig) (*Ollama, error) {
	base, err := url.Parse(c.BaseURL)
	if err != nil || base.Host == "" {
		return nil, errors.New("ollama: the base URL is not one, as in http://127.0.0.1:11434")
	}
	if c.Transport == nil {
		transport := openai.NewTransport()
		transport.DisableCompression = true // it would hold tokens back
		c.Transport = transport
	}
	return &Ollama{config: c, client: api.NewClient(base, &http.Client{Transport: ollamaTransport{c.Transport}})}, nil
}

// An ollamaTransport makes an error of every status but 200: the client loses the
// status of most. It also sends the request id.
type ollamaTransport struct{ next http.RoundTripper }

func (t ollamaTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Request-Id", botapi.RequestIDFrom(r.Context()))
	response, err := t.next.RoundTrip(r)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	defer time.AfterFunc(5*time.Second, func() { response.Body.Close() }).Stop() // one that never ends
	words, _ := io.ReadAll(io.LimitReader(response.Body, 64<<10))                // as far as it comes
	return nil, &openai.Failure{
		Status:     response.StatusCode,
		RetryAfter: openai.RetryAfter(response.Header),
		TooLong:    ollamaTooLong(string(words)),
		Err:        fmt.Errorf("status %d", response.StatusCode),
	}
}

func ollamaTooLong(words string) bool {
	words = strings.ToLower(words)
	return strings.Contains(words, "exceeds the context length") || strings.Contains(words, "exceeds the available context size")
}

// Chat answers with the model, passing each piece of text on as it comes.
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
			if a.whole {
				return errUnwanted
			}
			a.note(r)
			if r.Message.Content != "" && !yield(r.Message.Content, nil) {
				a.unwanted = true
				return errUnwanted
			}
			if r.Done { // a connection whose body was read to its end is kept
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			return nil
		})
		if !a.whole && !a.unwanted {
			yield("", a.failed(err))
		}
	}
}

var errUnwanted = errors.New("no more is wanted")

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

// An ollamaAnswer is what has come of one request.
type ollamaAnswer struct {
	ctx      context.Context // the chat's
	usage    *openai.Usage   // nil if nobody counts
	begun    bool            // text has come
	whole    bool            // the server has said that the answer is over
	unwanted bool
}

func (a *ollamaAnswer) note(r api.ChatResponse) {
	a.begun = a.begun || r.Message.Content != ""
	a.whole = a.whole || r.Done
	if r.Done && a.usage != nil {
		a.usage.Report(openai.Tokens{Prompt: int64(r.PromptEvalCount), Completion: int64(r.EvalCount)})
		a.usage.Finish(r.DoneReason)
	}
}

// failed is the error for the chat's handler. The client returns nil for a stream
// that was cut off, too.
func (a *ollamaAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if refused, ok := errors.AsType[*openai.Failure](err); ok {
		return refused.Answer()
	}
	if _, ok := errors.AsType[*url.Error](err); ok { // there was no response
		return (&openai.Failure{Err: err}).Answer()
	}
	f := &openai.Failure{Status: http.StatusOK, Streamed: true, Begun: a.begun}
	if err == nil {
		f.Err = errors.New("the stream ended before the answer did")
	} else {
		f.TooLong = ollamaTooLong(err.Error())
		f.Err = errors.New("an error in the stream, or a line that makes no sense") // whose words may quote the chat
	}
	return f.Answer()
}
