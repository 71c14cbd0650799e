package engines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"mime"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
)

// AnthropicConfig configures an [Anthropic]. Environment variables are not read.
type AnthropicConfig struct {
	Key       string
	BaseURL   string // empty means that of Anthropic
	Model     string // empty means the Bot.Model of each bot
	MaxTokens int64  // used if the request has no max_tokens; 0 means 4096

	Transport http.RoundTripper // nil means one of openai.NewTransport
}

// Anthropic is a botapi.ChatEngine for Anthropic's Messages API, and for others with the
// same protocol. It makes the requests with anthropic-sdk-go, and reads the stream with
// openai.Events, since the SDK's reader loses a last event without a blank line and has no
// limit for one event.
//
// The API has a single system prompt: it gets all system messages, in their order, with
// a blank line between them.
// Messages without text, which the API rejects, are omitted. A temperature above 1 is
// a validation error, and so is what a model rejects of the client's request: a
// temperature, a conversation that ends with the assistant, a stop text of white space.
// The model's thinking is not part of the answer; one without text, of tool calls alone, is
// a 502.
type Anthropic struct {
	config AnthropicConfig
	client anthropic.Client
}

// NewAnthropic returns an engine. It does not contact the API.
func NewAnthropic(c AnthropicConfig) *Anthropic {
	if c.Transport == nil {
		transport := openai.NewTransport()
		transport.DisableCompression = true // compression would delay tokens
		c.Transport = transport
	}
	options := []option.RequestOption{
		option.WithoutEnvironmentDefaults(),
		option.WithHTTPClient(&http.Client{
			Transport: c.Transport,
			// A redirect would send the key to another server.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
		option.WithAPIKey(c.Key),
		option.WithMaxRetries(0), // retries are up to the client, which may have disconnected
	}
	if c.BaseURL != "" {
		options = append(options, option.WithBaseURL(c.BaseURL))
	}
	return &Anthropic{config: c, client: anthropic.NewClient(options...)}
}

// Chat yields the model's answer, each fragment as it arrives.
func (e *Anthropic) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		params, err := e.params(req)
		if err != nil {
			yield("", err)
			return
		}
		a := anthropicAnswer{ctx: ctx, req: req, usage: openai.UsageFrom(ctx)}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		var response *http.Response
		err = e.client.Post(ctx, "v1/messages", params, &response, option.WithJSONSet("stream", true),
			option.WithHeader("X-Request-Id", botapi.RequestIDFrom(ctx)), option.WithMiddleware(a.check))
		if err != nil {
			yield("", a.failed(err))
			return
		}
		defer response.Body.Close()
		events := openai.NewEvents(response.Body)
		for !a.complete {
			if !events.Next() {
				yield("", a.failed(events.End()))
				return
			}
			text, err := a.read(events)
			if err != nil {
				yield("", a.failed(err))
				return
			}
			if text != "" && !yield(text, nil) {
				return
			}
		}
		// The rest may have a token count, and the transport reuses a connection only if
		// the body was read to its end.
		defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
		for events.Next() {
			_, _ = a.read(events)
		}
	}
}

func (e *Anthropic) params(req *botapi.ChatRequest) (anthropic.MessageNewParams, error) {
	settings, err := openai.ReadExtra(req.Extra)
	if err != nil {
		return anthropic.MessageNewParams{}, err
	}
	params := anthropic.MessageNewParams{
		Model:         anthropic.Model(cmp.Or(e.config.Model, req.Bot.Model)),
		MaxTokens:     cmp.Or(e.config.MaxTokens, 4096),
		StopSequences: settings.Stop,
	}
	if settings.MaxTokens != nil {
		params.MaxTokens = *settings.MaxTokens
	}
	if settings.TopP != nil {
		params.TopP = anthropic.Float(*settings.TopP)
	}
	if settings.Temperature != nil {
		if *settings.Temperature > 1 {
			return params, invalidForAnthropic("temperature", "ensure this value is less than or equal to 1", "value_error.number.not_le")
		}
		params.Temperature = anthropic.Float(*settings.Temperature)
	}
	var system []string
	for _, m := range req.Messages {
		switch {
		case strings.TrimSpace(m.Content) == "":
		case m.Role == botapi.RoleSystem:
			system = append(system, m.Content)
		case m.Role == botapi.RoleAssistant:
			params.Messages = append(params.Messages, anthropic.NewAssistantMessage(anthropic.NewTextBlock(m.Content)))
		default:
			params.Messages = append(params.Messages, anthropic.NewUserMessage(anthropic.NewTextBlock(m.Content)))
		}
	}
	if len(system) > 0 { // in one block: Ollama joins blocks without a separator
		params.System = []anthropic.TextBlockParam{{Text: strings.Join(system, "\n\n")}}
	}
	if len(params.Messages) == 0 {
		return params, invalidForAnthropic("messages", "there is no text to answer", "value_error")
	}
	return params, nil
}

func invalidForAnthropic(field, msg, kind string) error {
	return &botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", field}, Msg: msg, Type: kind}}}
}

// An anthropicAnswer is the state of one response.
type anthropicAnswer struct {
	ctx      context.Context // the chat's
	req      *botapi.ChatRequest
	usage    *openai.Usage // may be nil
	counts   anthropic.MessageDeltaUsage
	text     openai.Joiner
	reason   anthropic.StopReason // empty until it is known
	streamed bool                 // the response is a stream
	begun    bool                 // text was received
	other    bool                 // content other than text and thinking was received
	complete bool                 // message_stop was received
}

// check fails unless the response is an event stream, which the SDK does not check.
func (a *anthropicAnswer) check(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	response, err := next(r)
	if err != nil {
		return response, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, openai.ResponseFailure(a.req, response)
	}
	if kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type")); kind != "text/event-stream" {
		response.Body.Close()
		return nil, &openai.Failure{Status: response.StatusCode, Err: fmt.Errorf("status 200 with a body of type %.80q", kind)}
	}
	a.streamed = true
	return response, nil
}

// read records an event and returns its text. An event without data is a sign of life, and
// so is a ping, whatever its data.
func (a *anthropicAnswer) read(events *openai.Events) (text string, err error) {
	data := events.Data()
	switch name := string(events.Name()); {
	case len(data) == 0, name == "ping":
		return "", nil
	case name == "error":
		return "", openai.EventFailure(a.req, data)
	}
	var event anthropic.MessageStreamEventUnion
	if json.Unmarshal(data, &event) != nil {
		return "", errors.New("the stream is invalid: an event is not JSON") // the SDK's error may quote the answer
	}
	switch event.Type {
	case "message_start":
		u := event.Message.Usage
		a.count(u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.OutputTokens)
	case "content_block_start":
		a.noteBlock(event.ContentBlock.Type)
		text = a.text.Unquote(event.ContentBlock.JSON.Text.Raw()) // usually empty; a thinking block has none
	case "content_block_delta":
		text = a.text.Unquote(event.Delta.JSON.Text.Raw()) // only a text_delta has one
	case "message_delta":
		u := event.Usage
		a.count(u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.OutputTokens)
		a.reason = cmp.Or(event.Delta.StopReason, a.reason)
	case "message_stop":
		text = a.text.Rest()
		err = a.end(text)
	case "error", "": // every other event has a type
		return "", openai.EventFailure(a.req, data)
	}
	a.begun = a.begun || text != ""
	return text, err
}

func (a *anthropicAnswer) noteBlock(kind string) {
	switch kind {
	case "", "text", "thinking", "redacted_thinking":
	default: // such as tool_use
		a.other = true
	}
}

func (a *anthropicAnswer) end(text string) error {
	if err := openai.CheckFinish(string(a.reason), a.begun || text != "", a.other); err != nil {
		return err
	}
	a.complete = true
	a.usage.Finish(anthropicFinish(a.reason))
	return nil
}

// count reports the tokens so far, so that an incomplete answer has a count, too. Each count
// is that of the whole answer so far; a count that is missing is 0, and changes nothing.
func (a *anthropicAnswer) count(input, cacheRead, cacheCreation, output int64) {
	c := &a.counts
	c.InputTokens = cmp.Or(input, c.InputTokens)
	c.CacheReadInputTokens = cmp.Or(cacheRead, c.CacheReadInputTokens)
	c.CacheCreationInputTokens = cmp.Or(cacheCreation, c.CacheCreationInputTokens)
	c.OutputTokens = cmp.Or(output, c.OutputTokens)
	a.usage.Update(openai.Tokens{
		Prompt:     anthropicPrompt(c.InputTokens, c.CacheReadInputTokens, c.CacheCreationInputTokens),
		Completion: c.OutputTokens,
	})
}

// anthropicPrompt returns the sum of the counts. If one of them is impossible, it
// returns -1, which openai.Usage ignores.
func anthropicPrompt(counts ...int64) (sum int64) {
	for _, n := range counts {
		if n < 0 || n > 1<<40 {
			return -1
		}
		sum += n
	}
	return sum
}

// anthropicFinish translates the reason for openai.Usage.
func anthropicFinish(reason anthropic.StopReason) string {
	switch reason {
	case anthropic.StopReasonEndTurn, anthropic.StopReasonStopSequence:
		return "stop"
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		return "length"
	case anthropic.StopReasonRefusal:
		return "content_filter"
	}
	return string(reason)
}

// failed makes the error that Chat yields.
func (a *anthropicAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	f, isRead := errors.AsType[*openai.Failure](err)
	if !isRead {
		f = &openai.Failure{Err: err}
		if a.streamed {
			f.Status = http.StatusOK
		}
	}
	f.Streamed, f.Begun = a.streamed, a.begun
	return f.Answer()
}
