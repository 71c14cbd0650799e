package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/botapi"
)

// Failure describes what went wrong at a runtime. It is the cause of every error of
// an [Engine], except for invalid fields of Extra. Its text is for logs: of what the
// runtime wrote, which may quote the chat, it contains only the type and the code of
// the error.
type Failure struct {
	Status     int           // HTTP status of the runtime's response, or the one in an error event; 0 if there was no response
	Streamed   bool          // the response was a stream, which failed later
	Begun      bool          // text was received before the failure
	TooLong    bool          // the conversation is too long for the model
	NoText     bool          // the answer is complete, but has only tool calls or other content that is not text
	NoModel    bool          // the runtime says that it does not have the model; a 404 alone may be a wrong address
	RetryAfter time.Duration // from the runtime; 0 if it sent none. Clients get 1 s to 1 h
	Err        error         // what happened

	// Mistake is what the runtime does not accept of the client's request, if the client
	// can change it: a field of Extra that the client has sent, or the order of the
	// messages.
	Mistake *botapi.ValidationError
}

func (f *Failure) Error() string { return "the model runtime failed: " + f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// retryAfter is what clients get if the runtime sent no Retry-After.
const retryAfter = 2 * time.Second

// failed makes the error that Chat yields.
func (a *answer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause // the chat is over
	}
	f, isRead := errors.AsType[*Failure](err)
	if !isRead {
		f = &Failure{Err: err}
		if a.response != nil {
			f.Status, f.RetryAfter = a.response.StatusCode, RetryAfter(a.response.Header)
		}
	}
	f.Begun = a.begun
	f.Streamed = a.response != nil && a.response.StatusCode == http.StatusOK
	return f.Answer()
}

// Answer returns the error to yield, with f as its cause: a 422, 502 or 503. Engines
// of other protocols use it, too.
func (f *Failure) Answer() error {
	switch {
	case f.TooLong:
		return fmt.Errorf("%w: %w", tooLong, f)
	case f.Mistake != nil:
		return fmt.Errorf("%w: %w", &botapi.HTTPValidationError{Detail: []botapi.ValidationError{*f.Mistake}}, f)
	case f.Begun:
		return f.badGateway("The model's answer is incomplete")
	case f.NoText:
		return f.badGateway("The model's answer has no text")
	}
	switch f.Status {
	case 0, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, statusOverloaded:
		return f.unavailable()
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return f.badGateway("The model did not accept the request")
	default: // 401, 403, 404, 500, a failed stream, and anything unexpected
		return f.badGateway("The model failed")
	}
}

// statusOverloaded is sent by some hosted runtimes.
const statusOverloaded = 529

var tooLong = &botapi.HTTPValidationError{Detail: []botapi.ValidationError{{
	Loc:  []any{"body", "messages"},
	Msg:  "the conversation is too long for the model",
	Type: "value_error.messages.too_long",
}}}

func (f *Failure) unavailable() error {
	after := retryAfter
	if f.RetryAfter != 0 {
		after = min(max(f.RetryAfter, time.Second), time.Hour)
	}
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The model is unavailable for the moment",
		RetryAfter: after,
		Err:        f,
	}
}

func (f *Failure) badGateway(detail string) error {
	return &botapi.StatusError{Status: http.StatusBadGateway, Detail: detail, Err: f}
}

// RetryAfter parses a Retry-After header in seconds. It returns 0 for a date, and for
// values outside of 1 s to 1 h.
func RetryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 1 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// CheckFinish returns a [Failure] if an answer that ends for this reason is not a complete
// one: the runtime has aborted it, or it has no text but other content, such as tool calls.
// It is for engines of every protocol; reason is in the words of the runtime.
func CheckFinish(reason string, hasText, hasOther bool) error {
	switch {
	case isAborted(reason):
		return &Failure{
			Status:   cmp.Or(statusOf[reason], http.StatusOK),
			Streamed: true,
			Begun:    hasText,
			Err:      fmt.Errorf("the runtime aborted the answer with the finish_reason %.80q", reason),
		}
	case !hasText && (hasOther || reason == "tool_calls" || reason == "tool_use"):
		return &Failure{Status: http.StatusOK, Streamed: true, NoText: true, Err: errNoText}
	}
	return nil
}

// isAborted reports whether the runtime has not completed the answer. After any other
// finish_reason, known or not, an answer is complete.
func isAborted(reason string) bool {
	reason = strings.ToLower(reason)
	switch reason {
	case "abort", // vLLM and SGLang
		"cancelled", "canceled", "timeout", // TensorRT-LLM and gRPC services
		"insufficient_system_resource": // DeepSeek
		return true
	}
	return strings.HasSuffix(reason, "error") // error: vLLM and hosted services; overloaded_error: gateways
}

var errNoText = errors.New("the answer has no text, only tool calls or other content that cannot be read")

const (
	maxErrorBody  = 64 << 10
	errorBodyTime = 5 * time.Second
)

// ResponseFailure describes a response that is an error in place of an answer to req, in
// the words of any runtime. It reads at most 64 KiB of the body, for at most 5 seconds, and
// closes it.
func ResponseFailure(req *botapi.ChatRequest, response *http.Response) *Failure {
	f, _ := readFailure(req, response)
	return f
}

// EventFailure describes an error in the stream of an answer to req: the data of an event,
// or a text.
func EventFailure(req *botapi.ChatRequest, data []byte) *Failure {
	f, _ := readError(req, "an error in the stream", http.StatusOK, data)
	f.Streamed = true
	return f
}

func readFailure(req *botapi.ChatRequest, response *http.Response) (f *Failure, ok bool) {
	defer response.Body.Close()
	defer time.AfterFunc(errorBodyTime, func() { response.Body.Close() }).Stop()
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBody)) // an error keeps what was read
	f, ok = readError(req, "status "+strconv.Itoa(response.StatusCode), response.StatusCode, body)
	f.RetryAfter = RetryAfter(response.Header)
	return f, ok
}

// readError classifies an error. ok is false if the body contains none in a form that is
// known. A status of 200 says nothing: the one in the body counts.
func readError(req *botapi.ChatRequest, where string, status int, body []byte) (f *Failure, ok bool) {
	said, ok := parseError(body)
	f = &Failure{Status: status, Err: errors.New(where)}
	if said.kind != "" || said.code != "" {
		f.Err = fmt.Errorf("%s, of type %.80q and code %.80q", where, said.kind, said.code)
	}
	inBody, _ := strconv.Atoi(said.code)
	switch named := cmp.Or(statusOf[said.code], statusOf[said.kind]); {
	case named != 0:
		f.Status = named
	case status == http.StatusOK && 400 <= inBody && inBody < 600:
		f.Status = inBody
	}
	f.NoModel = said.code == "model_not_found" || ok && isNoModel(said.message)
	f.TooLong = f.Status == http.StatusRequestEntityTooLarge || said.isTooLong()
	f.blame(req, said)
	return f, ok
}

// statusOf has the status of errors that name none when they are sent in a stream.
var statusOf = map[string]int{
	"rate_limit_exceeded": http.StatusTooManyRequests, // the code of OpenAI
	"rate_limit_error":    http.StatusTooManyRequests, // Anthropic
	"overloaded_error":    statusOverloaded,
	"timeout_error":       http.StatusGatewayTimeout,
}

// A runtimeError is what a runtime says of an error. Its message may quote the chat, and is
// not kept.
type runtimeError struct{ message, kind, code, param string }

// parseError parses an error: {"error":{"message","type","code","param"}},
// {"error":"message"}, {"message","type","code","param"}, or one of them in an array.
// Runtimes differ in the types of the fields. ok is false for anything else, which is taken
// for a message.
func parseError(body []byte) (said runtimeError, ok bool) {
	var outer struct {
		Error json.RawMessage
		errorFields
	}
	var list []json.RawMessage
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	if json.Unmarshal(body, &outer) != nil {
		return runtimeError{message: strings.ToLower(string(body))}, false
	}
	fields := outer.errorFields
	if len(outer.Error) > 0 && json.Unmarshal(outer.Error, &fields.Message) == nil {
		_ = json.Unmarshal(outer.Error, &fields)
	}
	message, _ := fields.Message.(string)
	said.message = strings.ToLower(message)
	said.kind, _ = fields.Type.(string)
	said.param, _ = fields.Param.(string)
	switch code := fields.Code.(type) {
	case string:
		said.code = code
	case float64:
		said.code = strconv.FormatFloat(code, 'f', -1, 64)
	}
	return said, message != "" || said.kind != "" || said.code != ""
}

type errorFields struct{ Message, Type, Code, Param any }

func (e runtimeError) isTooLong() bool {
	return e.code == "context_length_exceeded" || e.kind == "exceed_context_size_error" || e.param == "input_tokens" ||
		e.says(tooLongPhrases...)
}

func (e runtimeError) says(phrases ...string) bool {
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(e.message, phrase) })
}

// tooLongPhrases recognise a conversation that is too long for the model, for
// runtimes that send no code for it.
var tooLongPhrases = []string{
	"maximum context length",                 // OpenAI, vLLM, SGLang, Mistral, DeepSeek
	"exceeds the context window",             // OpenAI
	"longer than the maximum model length",   // vLLM
	"too long to fit into the model",         // vLLM
	"context length is only",                 // vLLM
	"longer than the model's context length", // SGLang, Together
	"exceeds the available context size",     // llama.cpp
	"context size has been exceeded",         // LM Studio
	"when context the overflows",             // LM Studio
	"greater than the context length",        // LM Studio
	"cannot truncate prompt with n_keep",     // LM Studio
	"exceeds the context length",             // Ollama
	"prompt too long",                        // Ollama's hosted models, oMLX
	"prompt is too long",                     // Anthropic, Fireworks
	"exceed context limit",                   // Anthropic
	"input is too long",                      // Bedrock
	"exceeds the maximum number of tokens",   // Gemini
	"maximum prompt length",                  // xAI
	"reduce the length of the messages",      // Groq
	"exceeded model token limit",             // Kimi
	"prompt exceeds max length",              // Z.ai
	"context window exceeds limit",           // MiniMax
	"range of input length should be",        // Qwen, hosted
	"`inputs` must have less than",           // TGI
	"`max_new_tokens` must be <=",            // TGI: the sum of both
	"exceeds maximum context",                // hosted services
}

// isNoModel knows the messages of Ollama (model "m" not found), vLLM and hosted services
// (The model `m` does not exist), but not those of a wrong path (File Not Found).
func isNoModel(message string) bool {
	return strings.Contains(message, "model") && (strings.Contains(message, "not found") || strings.Contains(message, "does not exist"))
}
