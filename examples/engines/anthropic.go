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

// AnthropicConfig is what an [Anthropic] is made of. Nothing is taken from the
// environment.
type AnthropicConfig struct {
	Key       string
	BaseURL   string // empty means Anthropic's own
	Model     string // empty means each bot's own, Bot.Model
	MaxTokens int64  // of an answer whose client does not say; 0 means 4096

	Transport http.RoundTripper // nil means one of openai.NewTransport
}

// Anthropic is a botapi.ChatEngine in front of Anthropic's Messages API, through
// anthropic-sdk-go.
//
// The API has one system prompt: all system messages become that, in their order.
// Messages without text, which the API refuses, are left out. A temperature above
// 1 is refused. What the model thinks is no part of the answer.
type Anthropic struct {
	config   AnthropicConfig
	messages anthropic.MessageService
}

// NewAnthropic returns an engine. It does not ask the API anything.
func NewAnthropic(c AnthropicConfig) *Anthropic {
	if c.Transport == nil {
		transport := openai.NewTransport()
		transport.DisableCompression = true // it would hold tokens back
		c.Transport = transport
	}
	client := &http.Client{
		Transport: c.Transport,
		// A redirect would take the key along.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := []option.RequestOption{
		option.WithEnvironmentProduction(), // the address, unless BaseURL says another
		option.WithHTTPClient(client),
		option.WithAPIKey(c.Key),
		option.WithMaxRetries(0), // whether to ask again is for the client to say, who may have left
		option.WithMiddleware(checkResponse),
	}
	if c.BaseURL != "" {
		options = append(options, option.WithBaseURL(c.BaseURL))
	}
	return &Anthropic{config: c, messages: anthropic.NewMessageService(options...)}
}

// checkResponse keeps the SDK from taking what is no event stream for an answer, and
// from waiting for the end of an error, or keeping what has none.
func checkResponse(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	response, err := next(r)
	if err != nil {
		return response, err
	}
	body := response.Body
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case response.StatusCode >= 400: // the SDK makes an error of it
		defer body.Close()
		defer time.AfterFunc(5*time.Second, func() { body.Close() }).Stop()
		words, _ := io.ReadAll(io.LimitReader(body, 64<<10)) // as far as it comes
		response.Body = io.NopCloser(bytes.NewReader(words))
	case response.StatusCode != http.StatusOK || kind != "text/event-stream":
		body.Close()
		return nil, &openai.Failure{Status: response.StatusCode, Err: fmt.Errorf("status %d, and a body of type %.80q", response.StatusCode, kind)}
	default:
		response.Body = &anthropicEvents{ReadCloser: body}
	}
	return response, nil
}

// maxAnthropicEvent is how long one event may be. The SDK joins all lines of one, and
// knows no end.
const maxAnthropicEvent = 1 << 20

var errAnthropicEvent = fmt.Errorf("an event of the stream is longer than %d bytes", maxAnthropicEvent)

// anthropicEvents are the events of a body, which fails at one that is too long.
type anthropicEvents struct {
	io.ReadCloser
	event, line int  // how long both are so far
	last        byte // of the line
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

// Chat answers with the model, passing each piece of text on as it comes.
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
		for !a.whole && stream.Next() {
			if text := a.read(stream.Current()); text != "" && !yield(text, nil) {
				return
			}
		}
		if !a.whole {
			yield("", a.failed(stream.Err()))
			return
		}
		// A connection whose body was read to its end is kept.
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
			return params, anthropicRefusal("temperature", "ensure this value is less than or equal to 1", "value_error.number.not_le")
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
		return params, anthropicRefusal("messages", "there is no text to answer", "value_error")
	}
	return params, nil
}

func anthropicRefusal(field, msg, kind string) error {
	return &botapi.HTTPValidationError{Detail: []botapi.ValidationError{{Loc: []any{"body", field}, Msg: msg, Type: kind}}}
}

// An anthropicAnswer is what has come of one request.
type anthropicAnswer struct {
	ctx      context.Context // the chat's
	usage    *openai.Usage   // nil if nobody counts
	tokens   openai.Tokens
	streamed bool // there is a stream
	begun    bool // text has come
	whole    bool // the API has said that the answer is over
}

// read returns the text in an event.
func (a *anthropicAnswer) read(event anthropic.MessageStreamEventUnion) (text string) {
	switch event.Type {
	case "message_start":
		u := event.Message.Usage
		a.count(anthropicPrompt(u.InputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens), u.OutputTokens)
	case "content_block_start":
		text = event.ContentBlock.Text // empty as a rule; of a thinking block, too
	case "content_block_delta":
		text = event.Delta.Text // of a text_delta; others have none
	case "message_delta":
		a.count(a.tokens.Prompt, event.Usage.OutputTokens)
		if a.usage != nil {
			a.usage.Finish(anthropicFinish(event.Delta.StopReason))
		}
	case "message_stop":
		a.whole = true
	}
	a.begun = a.begun || text != ""
	return text
}

// anthropicPrompt is the sum of the counts, or one that openai.Usage drops if one of
// them is.
func anthropicPrompt(counts ...int64) (sum int64) {
	for _, n := range counts {
		if n < 0 || n > 1<<40 {
			return -1
		}
		sum += n
	}
	return sum
}

// count notes the tokens so far, so that whoever leaves is counted, too.
func (a *anthropicAnswer) count(prompt, completion int64) {
	a.tokens = openai.Tokens{Prompt: prompt, Completion: completion}
	if a.usage != nil {
		a.usage.Report(a.tokens)
	}
}

// anthropicFinish is the reason in the words of openai.Usage.
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

// failed is the error for the chat's handler. err is nil if the stream just ended.
func (a *anthropicAnswer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause
	}
	if refused, ok := errors.AsType[*openai.Failure](err); ok {
		return refused.Answer()
	}
	f := &openai.Failure{Streamed: a.streamed, Begun: a.begun, Err: err}
	if a.streamed {
		f.Status = http.StatusOK
	}
	said, isSaid := errors.AsType[*anthropic.Error](err)
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case err == nil:
		f.Err = errors.New("the stream ended before the answer did")
	case isSaid:
		f.Status = anthropicStatus(said)
		f.RetryAfter = openai.RetryAfter(said.Response.Header)
		f.TooLong = anthropicTooLong(said)
		f.Err = fmt.Errorf("status %d, an error of type %.80q", said.StatusCode, said.Type())
	case a.streamed && !isNet && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errAnthropicEvent):
		f.Err = fmt.Errorf("the stream makes no sense: %T", err) // its text may quote the answer
	}
	return f.Answer()
}

// anthropicStatus is the status of an error. One inside the stream has only a type.
func anthropicStatus(said *anthropic.Error) int {
	switch said.Type() {
	case "overloaded_error":
		return 529
	case "rate_limit_error":
		return http.StatusTooManyRequests
	case "timeout_error":
		return http.StatusGatewayTimeout
	}
	return said.StatusCode
}

func anthropicTooLong(said *anthropic.Error) bool {
	words := said.RawJSON()
	return said.StatusCode == http.StatusRequestEntityTooLarge ||
		strings.Contains(words, "prompt is too long") || strings.Contains(words, "exceed context limit")
}
