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
	f := &Failure{Begun: a.begun, NoText: err == errNoText, Err: err}
	if a.response != nil {
		f.Status, f.RetryAfter = a.response.StatusCode, RetryAfter(a.response.Header)
		f.Streamed = f.Status == http.StatusOK
	}
	if said, ok := errors.AsType[*runtimeError](err); ok {
		f.TooLong, f.NoModel = said.tooLong, said.noModel
		if f.Streamed && said.status != 0 {
			f.Status = said.status
		}
	}
	return f.Answer()
}

// Answer returns the error to yield, with f as its cause: a 422, 502 or 503. Engines
// of other protocols use it, too.
func (f *Failure) Answer() error {
	switch {
	case f.TooLong:
		return fmt.Errorf("%w: %w", tooLong, f)
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

// A runtimeError is what may be logged of an error that the runtime sent.
type runtimeError struct {
	where      string
	kind, code string
	status     int  // the HTTP status that the code or the type stands for; 0 if there is none
	tooLong    bool // the conversation does not fit the model
	noModel    bool // the runtime does not have the model
}

func (e *runtimeError) Error() string {
	if e.kind == "" && e.code == "" {
		return e.where
	}
	return fmt.Sprintf("%s, of type %.80q and code %.80q", e.where, e.kind, e.code)
}

const (
	maxErrorBody  = 64 << 10
	errorBodyTime = 5 * time.Second
)

// readError reads the error from a response that is not a stream. ok is false if the
// body contains none.
func (a *answer) readError() (said *runtimeError, ok bool) {
	defer time.AfterFunc(errorBodyTime, a.cancel).Stop()
	body, _ := io.ReadAll(io.LimitReader(a.response.Body, maxErrorBody)) // an error keeps what was read
	return readError("status "+strconv.Itoa(a.response.StatusCode), body)
}

// errorFields are the fields of an error object. Runtimes differ in their types.
type errorFields struct{ Message, Type, Code any }

// readError parses an error: {"error":{"message","type","code"}},
// {"error":"message"}, or {"message","type","code"}. ok is false if there is none.
func readError(where string, body []byte) (said *runtimeError, ok bool) {
	var outer struct {
		Error json.RawMessage
		errorFields
	}
	said = &runtimeError{where: where}
	if json.Unmarshal(body, &outer) != nil {
		return said, false
	}
	fields := outer.errorFields
	if len(outer.Error) > 0 && json.Unmarshal(outer.Error, &fields.Message) == nil {
		_ = json.Unmarshal(outer.Error, &fields)
	}
	message, _ := fields.Message.(string)
	said.kind, _ = fields.Type.(string)
	switch code := fields.Code.(type) {
	case string:
		said.code = code
	case float64:
		said.code = strconv.FormatFloat(code, 'f', -1, 64)
	}
	said.status = cmp.Or(statusOf[said.code], statusOf[said.kind])
	if status, err := strconv.Atoi(said.code); err == nil && 400 <= status && status < 600 {
		said.status = status
	}
	said.tooLong = said.code == "context_length_exceeded" || said.kind == "exceed_context_size_error" || isTooLong(message)
	said.noModel = said.code == "model_not_found" || isNoModel(message)
	return said, message != "" || said.kind != "" || said.code != ""
}

// statusOf has the status of errors that name none when they are sent in a stream.
var statusOf = map[string]int{
	"rate_limit_exceeded": http.StatusTooManyRequests, // the code of OpenAI
	"rate_limit_error":    http.StatusTooManyRequests,
	"overloaded_error":    statusOverloaded,
}

// tooLongPhrases recognise a conversation that is too long for the model, for
// runtimes that send no code for it.
var tooLongPhrases = []string{
	"maximum context length",                 // OpenAI, vLLM, SGLang, Mistral
	"longer than the maximum model length",   // vLLM
	"longer than the model's context length", // SGLang
	"exceeds the available context size",     // llama.cpp
	"context size has been exceeded",         // LM Studio
	"when context the overflows",             // LM Studio
	"exceeds the context length",             // Ollama
	"exceeds maximum context",                // hosted services
	"prompt is too long",                     // hosted services
}

func isTooLong(message string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc(tooLongPhrases, func(phrase string) bool { return strings.Contains(message, phrase) })
}

// isNoModel knows the messages of Ollama (model "m" not found), vLLM and hosted services
// (The model `m` does not exist), but not those of a wrong path (File Not Found).
func isNoModel(message string) bool {
	message = strings.ToLower(message)
	return strings.Contains(message, "model") && (strings.Contains(message, "not found") || strings.Contains(message, "does not exist"))
}
