package usage

import (
	"context"
	"errors"
	"iter"
	"math"
	"net/http"
	"sync"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
)

// Tokens is how many tokens a chat has used.
type Tokens struct {
	Prompt, Completion int64
	// Estimated means that the runtime did not report all of them, so they are
	// estimated from the texts.
	Estimated bool
}

// Total returns prompt and completion together.
func (t Tokens) Total() int64 { return t.Prompt + t.Completion }

// How the tokens of a chat are known.
const (
	Reported   = "reported"   // by the runtime
	Unreported = "unreported" // the runtime ended the answer without a count
	Incomplete = "incomplete" // the answer ended before the runtime reported a count
	Absurd     = "absurd"     // the runtime reported an impossible count
)

const (
	// bytesPerToken is the least number of bytes per token in most texts.
	bytesPerToken = 4
	// longestToken is the size of the longest tokens that models have: of spaces.
	longestToken = 128
	// messageTokens is what a runtime adds to each message.
	messageTokens = 4
	// mostTemplate is the most that a runtime adds to a whole conversation.
	mostTemplate = 8192
	// mostHidden is the most that an answer may have besides its text:
	// reasoning.
	mostHidden = 1 << 18
)

// An Asking is what is known of a chat when its model is asked.
type Asking struct {
	Runtime      string
	Instructions string
}

// A Meter counts the tokens of one chat. What a service knows of a request embeds it.
type Meter struct {
	reported *openai.Usage

	mu         sync.Mutex
	asking     *Asking // nil before the model is asked
	prompt     int64   // bytes
	messages   int64
	texts      int64 // messages that are not empty
	completion int64 // bytes
	fragments  int64
	failed     bool // the model failed before its first word
	over       bool
	total      *Tokens // once it is over; nil if it costs nothing
}

func (m *Meter) meter() *Meter { return m }

// A Request is what is known of a request: a type that embeds a Meter.
type Request interface{ meter() *Meter }

type requestKey struct{}

// With returns the context of a request, with what is known of it and the meter for the
// tokens of its chat, which TokensOf reads.
func With(ctx context.Context, r Request) context.Context {
	ctx, r.meter().reported = openai.CountTokens(ctx)
	return context.WithValue(ctx, requestKey{}, r)
}

// RequestOf returns what is known of the request that a context belongs to, or nil.
func RequestOf(ctx context.Context) Request {
	r, _ := ctx.Value(requestKey{}).(Request)
	return r
}

func meterOf(ctx context.Context) *Meter {
	if r := RequestOf(ctx); r != nil {
		return r.meter()
	}
	return nil
}

// Asks notes that a model is asked. Before that a chat uses no tokens.
func Asks(ctx context.Context, a Asking) {
	if m := meterOf(ctx); m != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asking = &a
		m.hears(a.Instructions)
	}
}

// hears counts a message of the prompt. It is called with the lock held.
func (m *Meter) hears(text string) {
	m.prompt += int64(len(text))
	m.messages++
	if text != "" {
		m.texts++
	}
}

// Metered counts the tokens of chats that go through an engine. It calls over
// for each chat that has used some, when its engine has returned: from then on
// TokensOf and UsedOf say the same. In a context that is not from With it
// does nothing.
func Metered(engine botapi.ChatEngine, over func(ctx context.Context, runtime string, t Tokens, why string)) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		m := meterOf(ctx)
		if m == nil {
			return engine.Chat(ctx, req)
		}
		return func(yield func(string, error) bool) {
			m.begin(req)
			defer func() {
				if t, why := m.end(); t != nil {
					over(ctx, m.asking.Runtime, *t, why)
				}
			}()
			engine.Chat(ctx, req)(func(text string, err error) bool {
				m.passes(ctx, text, err)
				return yield(text, err)
			})
		}
	})
}

func (m *Meter) begin(req *botapi.ChatRequest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, message := range req.Messages {
		m.hears(message.Content)
	}
}

func (m *Meter) passes(ctx context.Context, text string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && text != "" {
		m.fragments++
		m.completion += int64(len(text))
	}
	m.failed = err != nil && m.fragments == 0 && context.Cause(ctx) == nil && !tookTooLong(err)
}

// tookTooLong reports whether a model may have been at work until somebody lost
// patience. Its prompt then counts, as it does if the chat was ended, by a timeout
// or by its client.
func tookTooLong(err error) bool {
	answer, _ := errors.AsType[*botapi.StatusError](err)
	upstream, _ := errors.AsType[*openai.Failure](err)
	return answer != nil && answer.Status == http.StatusGatewayTimeout || upstream != nil && upstream.Status == http.StatusGatewayTimeout
}

// end settles what the chat has used.
func (m *Meter) end() (t *Tokens, why string) {
	reported, isReported := m.reported.Tokens()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
	if m.asking != nil && (!m.failed || isReported) {
		m.total, why = m.settle(reported, isReported)
	}
	return m.total, why
}

// settle returns the reported tokens or, if there are none or they cannot be, an
// estimate.
func (m *Meter) settle(reported openai.Tokens, isReported bool) (t *Tokens, why string) {
	complete := m.reported.FinishReason() != ""
	estimate := &Tokens{
		Prompt:     tokensIn(m.prompt, bytesPerToken) + messageTokens*m.messages,
		Completion: max(m.fragments, tokensIn(m.completion, bytesPerToken)), // a fragment is one token or several
		Estimated:  true,
	}
	switch {
	case m.reported.Absurd():
		return estimate, Absurd
	case !isReported && complete:
		return estimate, Unreported
	case !isReported:
		return estimate, Incomplete
	case !m.possible(reported, complete):
		return estimate, Absurd
	case !complete && reported.Completion+1 < m.fragments: // the report does not cover all fragments
		estimate.Prompt = reported.Prompt
		return estimate, Incomplete
	}
	return &Tokens{Prompt: reported.Prompt, Completion: reported.Completion}, Reported
}

// TokensOf returns the tokens that the chat of a context has used, once its engine
// has returned. It is nil if the chat has asked no model, or if the model failed
// before its first word.
func TokensOf(ctx context.Context) *Tokens {
	m := meterOf(ctx)
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total
}

// UsedOf returns how many tokens the chat of a context has certainly used so far
// or, once its engine has returned, the total of TokensOf. It does not shrink.
func UsedOf(ctx context.Context) int64 {
	m := meterOf(ctx)
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.asking == nil:
		return 0
	case !m.over:
		return m.fragments
	case m.total == nil:
		return 0
	}
	return m.total.Total()
}

// possible reports whether texts of this size can have these tokens. A token has
// at least a byte, except for what a runtime adds to messages and for reasoning,
// and at most longestToken bytes. Messages share no token. A report of an
// incomplete answer may lag behind it.
func (m *Meter) possible(t openai.Tokens, complete bool) bool {
	if complete && (t.Completion < tokensIn(m.completion, longestToken) || t.Prompt+t.Completion < m.fragments) {
		return false
	}
	return t.Prompt >= max(m.texts, tokensIn(m.prompt, longestToken)) && t.Prompt <= m.prompt+mostTemplate &&
		t.Completion >= 0 && t.Completion <= m.completion+mostHidden
}

// tokensIn returns how many tokens of a size a text has.
func tokensIn(bytes, size int64) int64 { return (bytes + size - 1) / size }

// AtMost returns how many tokens a chat uses at most: one for each byte of its
// prompt, and answer tokens for its answer.
func AtMost(req *botapi.ChatRequest, instructions string, answer int64) int64 {
	prompt := int64(len(instructions)) + messageTokens*int64(len(req.Messages)+1)
	for _, message := range req.Messages {
		prompt += int64(len(message.Content))
	}
	return prompt + min(answer, math.MaxInt32)
}
