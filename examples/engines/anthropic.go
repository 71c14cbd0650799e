package engines

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net"
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

// Anthropic is a botapi.ChatEngine for Anthropic's Messages API, which it calls with
// anthropic-sdk-go.
//
// The API has a single system prompt: it gets all system messages, in their order.
// Messages without text, which the API rejects, are omitted. A temperature above 1 is
// a validation error. The model's thinking is not part of the answer.
type Anthropic struct {
	config   AnthropicConfig
	messages anthropic.MessageService
}

// NewAnthropic returns an engine. It does not contact the API.
func NewAnthropic(c AnthropicConfig) *Anthropic {
	if c.Transport == nil {
		transport := openai.NewTransport()
		transport.DisableCompression = true // compression would delay tokens
		c.Transport = transport
	}
	client := &http.Client{
		Transport: c.Transport,
		// A redirect would send the key to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := []option.RequestOption{
		option.WithEnvironmentProduction(), // the default for BaseURL
		option.WithHTTPClient(client),
		option.WithAPIKey(c.Key),
		option.WithMaxRetries(0), // retries are up to the client, which may have disconnected
		option.WithMiddleware(checkResponse),
	}
	if c.BaseURL != "" {
		options = append(options, option.WithBaseURL(c.BaseURL))
	}
	return &Anthropic{config: c, messages: anthropic.NewMessageService(options...)}
}

// checkResponse fails unless the response is an event stream, which the SDK does not
// check, and bounds the time and the memory for reading an error.
func checkResponse(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	response, err := next(r)
	if err != nil {
		return response, err
	}
	body := response.Body
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case response.StatusCode >= 400: // the SDK turns it into an error
		defer body.Close()
		defer time.AfterFunc(5*time.Second, func() { body.Close() }).Stop()
		text, _ := io.ReadAll(io.LimitReader(body, 64<<10)) // an error keeps what was read
		response.Body = io.NopCloser(bytes.NewReader(text))
	case response.StatusCode != http.StatusOK || kind != "text/event-stream":
		body.Close()
		return nil, &openai.Failure{Status: response.StatusCode, Err: fmt.Errorf("status %d with a body of type %.80q", response.StatusCode, kind)}
	default:
		response.Body = &anthropicEvents{ReadCloser: body}
	}
	return response, nil
}

// maxAnthropicEvent bounds an event, in bytes. The SDK joins the lines of an event
// without a limit.
const maxAnthropicEvent = 1 << 20

var errAnthropicEvent = fmt.Errorf("an event of the stream is longer than %d bytes", maxAnthropicEvent)

// anthropicEvents is a response body whose Read fails if an event is too long.
type anthropicEvents struct {
	io.ReadCloser
	event, line int  // lengths so far
	last        byte // the last byte read
}

func (e *anthropicEvents) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	for _, c := range p[:n] {
		if e.event++; e.event > maxAnthropicEvent {
			return 0, errAnthropicEvent
		}
		switch {
		case c != '\n':
			e.line++
		case e.line == 0 || e.line == 1 && e.last == '\r': // a blank line ends an event
			e.event, e.line = 0, 0
		default:
			e.line = 0
		}
		e.last = c
	}
	return n, err
}

// Chat yields the model's answer, each fragment as it arrives.
func (e *Anthropic) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		params, err := e.params(req)
		if err != nil {
			yield("", err)
			return
		}
		a := anthropicAnswer{ctx: ctx, usage: openai.UsageFrom(ctx)}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream := e.messages.NewStreaming(ctx, params, option.WithHeader("X-Request-Id", botapi.RequestIDFrom(ctx)))
		defer stream.Close()
		a.streamed = stream.Err() == nil
		for !a.complete && stream.Next() {
			if text := a.read(stream.Current()); text != "" && !yield(text, nil) {
				return
			}
		}
		if !a.complete {
			yield("", a.failed(stream.Err()))
			return
		}
		// The transport reuses a connection only if the body was read to its end.
		defer time.AfterFunc(100*time.Millisecond, cancel).Stop()
		for stream.Next() {
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
	for _, m := range req.Messages {
		switch {
		case strings.TrimSpace(m.Content) == "":
		case m.Role == botapi.RoleSystem:
			params.System = append(params.System, anthropic.TextBlockParam{Text: m.Content})
		case m.Role == botapi.RoleAssistant:
			params.Messages = append(params.Messages, anthropic.NewAssistantMessage(anthropic.NewTextBlock(m.Content)))
		default:
			params.Messages = append(params.Messages, anthropic.NewUserMessage(anthropic.NewTextBlock(m.Content)))
		}
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
	usage    *openai.Usage   // may be nil
	tokens   openai.Tokens
	streamed bool // the response is a stream
	begun    bool // text was received
	complete bool // message_stop was received
}

// read records an event and returns its text.
func (a *anthropicAnswer) read(event anthropic.MessageStreamEventUnion) (text string) {
	switch event.Type {
	case "message_start":
		u := event.Message.Usage
		a.count(anthropicPrompt(u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens), u.OutputTokens)
	case "content_block_start":
		text = event.ContentBlock.Text // usually empty; a thinking block has none
	case "content_block_delta":
		text = event.Delta.Text // only a text_delta has one
	case "message_delta":
		a.count(a.tokens.Prompt, event.Usage.OutputTokens)
		a.usage.Finish(anthropicFinish(event.Delta.StopReason))
	case "message_stop":
		a.complete = true
	}
	a.begun = a.begun || text != ""
	return text
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

// count reports the tokens so far, so that an incomplete answer has a count, too.
func (a *anthropicAnswer) count(prompt, completion int64) {
	a.tokens = openai.Tokens{Prompt: prompt, Completion: completion}
	a.usage.Report(a.tokens)
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

// failed makes the error that Chat yields. err is nil if the stream ended without one.
func (a *anthropicAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if f, ok := errors.AsType[*openai.Failure](err); ok {
		return f.Answer()
	}
	f := &openai.Failure{Streamed: a.streamed, Begun: a.begun, Err: err}
	if a.streamed {
		f.Status = http.StatusOK
	}
	reported, isReported := errors.AsType[*anthropic.Error](err)
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		f.Err = errors.New("the stream ended before the answer did")
	case isReported:
		f.Status = anthropicStatus(reported)
		f.RetryAfter = openai.RetryAfter(reported.Response.Header)
		f.TooLong = anthropicTooLong(reported)
		f.Err = fmt.Errorf("status %d, an error of type %.80q", reported.StatusCode, reported.Type())
	case a.streamed && !isNet && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errAnthropicEvent):
		f.Err = fmt.Errorf("the stream is invalid: %T", err) // the error's text may quote the answer
	}
	return f.Answer()
}

// anthropicStatus returns the status of an error. An error inside the stream has only a
// type.
func anthropicStatus(e *anthropic.Error) int {
	switch e.Type() {
	case "overloaded_error":
		return 529
	case "rate_limit_error":
		return http.StatusTooManyRequests
	case "timeout_error":
		return http.StatusGatewayTimeout
	}
	return e.StatusCode
}

func anthropicTooLong(e *anthropic.Error) bool {
	text := e.RawJSON()
	return e.StatusCode == http.StatusRequestEntityTooLarge ||
		strings.Contains(text, "prompt is too long") || strings.Contains(text, "exceed context limit")
}
