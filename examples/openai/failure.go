package openai

import (
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

// Failure is what went wrong at a runtime: the cause of every error of an
// [Engine] but a mistake of the client's own. Its text is for logs: it has
// nothing in it of what the runtime wrote, which may quote the chat, but the
// type and the code of its error.
type Failure struct {
	Status     int           // HTTP status of the runtime's response, or what an error in its stream gives as one; 0 if there was no response
	Streamed   bool          // the response was a stream, which then broke
	Begun      bool          // text of the answer had come before
	TooLong    bool          // the conversation is too long for the model
	RetryAfter time.Duration // as the runtime said; 0 if it did not. Clients are told 1 s to 1 h
	Err        error         // what happened
}

func (f *Failure) Error() string { return "the model runtime failed: " + f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// retryAfter is what clients are told when a runtime did not say.
const retryAfter = 2 * time.Second

// failed is the error of the answer as the chat's handler wants it.
func (a *answer) failed(err error) error {
	if cause := context.Cause(a.ctx); cause != nil {
		return cause // the chat is over
	}
	f := &Failure{Begun: a.begun, Err: err}
	if a.response != nil {
		f.Status, f.RetryAfter = a.response.StatusCode, RetryAfter(a.response.Header)
		f.Streamed = f.Status == http.StatusOK
	}
	if said, ok := errors.AsType[*saidError](err); ok {
		f.TooLong = said.tooLong
		if f.Streamed && said.status != 0 {
			f.Status = said.status
		}
	}
	return f.Answer()
}

// Answer is the error for the chat's handler, with f as its cause: a 422, 502 or
// 503. Engines of other protocols make theirs with it.
func (f *Failure) Answer() error {
	switch {
	case f.TooLong:
		return fmt.Errorf("%w: %w", tooLong, f)
	case f.Begun:
		return f.badGateway("The model's answer broke off")
	}
	switch f.Status {
	case 0, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, statusOverloaded:
		return f.unavailable()
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return f.badGateway("The model did not accept the request")
	default: // 401, 403, 404, 500, a stream that broke, and what nobody expects
		return f.badGateway("The model failed")
	}
}

// statusOverloaded is what some hosted runtimes answer.
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

// RetryAfter reads a Retry-After in seconds; one that is a date, or absurd, counts
// as none.
func RetryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 1 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// A saidError is an error in the runtime's own words, without most of them.
type saidError struct {
	where      string
	kind, code string
	status     int  // the code, if it is an HTTP status
	tooLong    bool // the conversation does not fit the model
}

func (e *saidError) Error() string {
	if e.kind == "" && e.code == "" {
		return e.where
	}
	return fmt.Sprintf("%s, of type %.80q and code %.80q", e.where, e.kind, e.code)
}

const (
	maxErrorBody  = 64 << 10
	errorBodyTime = 5 * time.Second
)

// refusal reads a response that is no stream. It is false when there is no error
// in it that makes sense.
func (a *answer) refusal() (said *saidError, ok bool) {
	defer time.AfterFunc(errorBodyTime, a.cancel).Stop()
	body, _ := io.ReadAll(io.LimitReader(a.response.Body, maxErrorBody)) // as far as it comes
	return readError("status "+strconv.Itoa(a.response.StatusCode), body)
}

// errorWords are the members of an error object. Their types are the runtime's
// choice.
type errorWords struct{ Message, Type, Code any }

// readError reads an error: {"error":{"message","type","code"}},
// {"error":"message"}, or its members without the one around them. It is false
// when there is none.
func readError(where string, body []byte) (said *saidError, ok bool) {
	var outer struct {
		Error json.RawMessage
		errorWords
	}
	said = &saidError{where: where}
	if json.Unmarshal(body, &outer) != nil {
		return said, false
	}
	words := outer.errorWords
	if len(outer.Error) > 0 && json.Unmarshal(outer.Error, &words.Message) == nil {
		_ = json.Unmarshal(outer.Error, &words)
	}
	message, _ := words.Message.(string)
	said.kind, _ = words.Type.(string)
	switch code := words.Code.(type) {
	case string:
		said.code = code
	case float64:
		said.code = strconv.FormatFloat(code, 'f', -1, 64)
	}
	if status, err := strconv.Atoi(said.code); err == nil && 400 <= status && status < 600 {
		said.status = status
	}
	said.tooLong = said.code == "context_length_exceeded" || said.kind == "exceed_context_size_error" || isTooLong(message)
	return said, message != "" || said.kind != "" || said.code != ""
}

// tooLongPhrases are how runtimes say that a conversation does not fit the
// model, where they have no code for it.
var tooLongPhrases = []string{
	"maximum context length",                 // OpenAI, vLLM, SGLang, Mistral
	"longer than the maximum model length",   // vLLM
	"longer than the model's context length", // SGLang
	"exceeds the available context size",     // llama.cpp
	"context size has been exceeded",         // LM Studio
	"when context the overflows",             // LM Studio
	"exceeds the context length",             // Ollama
	"exceeds maximum context",                // hosted ones
	"prompt is too long",                     // hosted ones
}

func isTooLong(message string) bool {
	message = strings.ToLower(message)
	return slices.ContainsFunc(tooLongPhrases, func(phrase string) bool { return strings.Contains(message, phrase) })
}
