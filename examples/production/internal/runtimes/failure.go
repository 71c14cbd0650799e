package runtimes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/botapi"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/tidwall/gjson"
)

// retryAfter is what clients are told when a runtime did not say.
const retryAfter = 2 * time.Second

// A failure is what an answer's error means: for the client, and for the next
// try.
type failure struct {
	endpoint  *endpoint
	cause     error
	err       error // what the client gets
	elsewhere bool  // another endpoint may do better
	brokeOff  bool  // the same endpoint may do better: only a connection was lost
}

// failed judges the error of this answer.
func (a *answer) failed(err error) *failure {
	if errors.Is(context.Cause(a.ctx), errSilent) {
		err = errSilent // what was said is only that something was canceled
	}
	f := a.judge(err)
	f.endpoint, f.cause = a.endpoint, loggable(err)
	if answer, ok := errors.AsType[*botapi.StatusError](f.err); ok {
		answer.Err = fmt.Errorf("runtime %s: %w", a.endpoint.URL, f.cause)
	}
	if a.begun {
		f.elsewhere = false
	}
	return f
}

// loggable is err without what the runtime wrote into a stream, which may quote
// the chat. The errors of whole responses have no such text.
func loggable(err error) error {
	broken, ok := errors.AsType[*ssestream.StreamError](err)
	if !ok {
		return err
	}
	said := gjson.GetBytes(broken.Event.Data, "error")
	return fmt.Errorf("an error in the stream, of type %q and code %q", said.Get("type").String(), said.Get("code").String())
}

func (a *answer) judge(err error) *failure {
	switch cause := context.Cause(a.ctx); {
	case errors.Is(err, errSilent):
		return &failure{err: gatewayTimeout("The model did not begin to answer in time"), elsewhere: true}
	case errors.Is(cause, botapi.ErrEngineStalled):
		a.endpoint.fails(a)
		return &failure{err: cause}
	case a.response == nil:
		a.endpoint.fails(a)
		return &failure{err: unavailable(0), elsewhere: true, brokeOff: !isDialError(err)}
	case a.response.StatusCode != http.StatusOK:
		return a.judgeStatus(err)
	case isTooLong(err):
		return &failure{err: tooLong()}
	case a.begun:
		return &failure{err: badGateway("The model's answer broke off")}
	default:
		a.endpoint.fails(a)
		return &failure{err: badGateway("The model failed"), elsewhere: true, brokeOff: true}
	}
}

// judgeStatus judges an HTTP status other than 200. What concerns our own
// account at the runtime is no business of the client's: its key is fine.
func (a *answer) judgeStatus(err error) *failure {
	switch status := a.response.StatusCode; status {
	case http.StatusTooManyRequests:
		return &failure{err: unavailable(retryAfterOf(a.response)), elsewhere: true}
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		a.endpoint.fails(a)
		return &failure{err: unavailable(retryAfterOf(a.response)), elsewhere: true}
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		if isTooLong(err) {
			return &failure{err: tooLong()}
		}
		return &failure{err: badGateway("The model did not accept the request")}
	case http.StatusNotFound: // the model, most likely: others may be there
		return &failure{err: badGateway("The model failed"), elsewhere: true}
	default: // 401, 403, 500 and what nobody expects
		a.endpoint.fails(a)
		return &failure{err: badGateway("The model failed"), elsewhere: true}
	}
}

func unavailable(after time.Duration) error {
	if after == 0 {
		after = retryAfter
	}
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The model is unavailable for the moment",
		RetryAfter: after,
	}
}

func badGateway(detail string) error {
	return &botapi.StatusError{Status: http.StatusBadGateway, Detail: detail}
}

func gatewayTimeout(detail string) error {
	return &botapi.StatusError{Status: http.StatusGatewayTimeout, Detail: detail}
}

func tooLong() error {
	return invalid("messages", "the conversation is too long for the model", "value_error.messages.too_long")
}

func isDialError(err error) bool {
	operation, ok := errors.AsType[*net.OpError](err)
	return ok && operation.Op == "dial"
}

// isTooLong reports whether a runtime says that the conversation does not fit
// its model. Each has its own way: OpenAI a code, llama.cpp a type, vLLM and
// SGLang a sentence.
func isTooLong(err error) bool {
	var code, kind, message string
	if refused, ok := errors.AsType[*openai.Error](err); ok {
		code, kind, message = refused.Code, refused.Type, refused.Message
	}
	if broken, ok := errors.AsType[*ssestream.StreamError](err); ok {
		said := gjson.GetBytes(broken.Event.Data, "error")
		code, kind, message = said.Get("code").String(), said.Get("type").String(), said.Get("message").String()
	}
	return code == "context_length_exceeded" ||
		kind == "exceed_context_size_error" ||
		strings.Contains(message, "maximum context length") ||
		strings.Contains(message, "longer than the model's context length")
}

// retryAfterOf reads a Retry-After in seconds; one that is a date, or absurd,
// counts as none.
func retryAfterOf(response *http.Response) time.Duration {
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil || seconds < 1 || seconds > 3600 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}
