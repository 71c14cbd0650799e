package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"

	"example.com/botapi"
)

// An apiError is an error response in OpenAI's format.
type apiError struct {
	status int

	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`

	RetryAfter int `json:"retry_after,omitempty"` // in a stream: seconds; a response has the header
}

// Error is the code, for the log, which has the message beside it.
func (e *apiError) Error() string { return *e.Code }

// body is the response body.
func (e *apiError) body() []byte {
	body, _ := json.Marshal(map[string]*apiError{"error": e}) // it always has a JSON form
	return body
}

func (e *apiError) reply() botapi.Reply { return botapi.Reply{Status: e.status, Body: e.body()} }

// errorInStream says what a response would have said, and has a code in any case: some
// clients of streams fail without one.
func (c *completion) errorInStream(f botapi.Failure) *apiError {
	e := *c.protocol.errorOf(c, f)
	if e.Code == nil {
		e.Code = &e.Type
	}
	if f.RetryAfter > 0 {
		e.RetryAfter = int(math.Ceil(f.RetryAfter.Seconds()))
	}
	return &e
}

const typeInvalidRequest = "invalid_request_error"

// invalid rejects a request because of a parameter; "" stands for the whole body. Nothing
// that the client has sent is in the texts: they are logged.
func invalid(param, code, problem string) error {
	e := &apiError{status: http.StatusBadRequest, Message: problem, Type: typeInvalidRequest, Code: &code}
	if param != "" {
		e.Message, e.Param = param+": "+problem, &param
	}
	return botapi.StatusError{Status: e.status, Detail: e.Message, Err: e}
}

// reply is botapi.Route.Errors.
func (p *protocol) reply(ctx context.Context, f botapi.Failure) botapi.Reply {
	c, _ := ctx.Value(completionKey{}).(*completion) // nil until the body has been read
	return p.errorOf(c, f).reply()
}

func (p *protocol) errorOf(c *completion, f botapi.Failure) *apiError {
	if own, isOwn := errors.AsType[*apiError](f.Err); isOwn {
		return own
	}
	if len(f.Problems) > 0 {
		return p.errorOfProblem(c, f.Status, f.Problems[0])
	}
	e := &apiError{status: f.Status, Message: f.Detail, Type: typeInvalidRequest}
	switch code, param := codes[f.Status], "model"; {
	case f.Status == http.StatusNotFound && errors.Is(f.Err, botapi.ErrBotNotFound):
		code = "model_not_found"
		e.Message, e.Code, e.Param = "the model does not exist", &code, &param
	case code != "":
		e.Code = &code
	}
	switch {
	case f.Status == http.StatusTooManyRequests:
		e.Type = "rate_limit_error"
	case f.Status >= 500:
		e.Type = "server_error"
	}
	return e
}

var codes = map[int]string{
	http.StatusUnauthorized:          "invalid_api_key",
	http.StatusMethodNotAllowed:      "method_not_allowed",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_exceeded",
}

// errorOfProblem translates a validation error. Where botapi sends a 422 with all
// problems, OpenAI sends a 400 with one.
func (p *protocol) errorOfProblem(c *completion, status int, problem botapi.ValidationError) *apiError {
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	e := &apiError{status: status, Message: problem.Msg, Type: typeInvalidRequest}
	if param := p.paramOf(c, problem.Loc); param != "" {
		e.Param, e.Message = &param, param+": "+problem.Msg
	}
	if code := codeOf(problem.Type); code != "" {
		e.Code = &code
	}
	return e
}

// paramOf formats a location in the body as OpenAI does, messages[0].content, with the
// name of the field that the client has sent.
func (p *protocol) paramOf(c *completion, loc []any) string {
	if len(loc) > 0 && loc[0] == "body" {
		loc = loc[1:]
	}
	var b strings.Builder
	for i, step := range loc {
		switch step := step.(type) {
		case string:
			if step == "__root__" {
				continue
			}
			if b.Len() > 0 {
				b.WriteByte('.')
			} else {
				step = p.nameOf(step)
			}
			b.WriteString(step)
		case int:
			if i == 1 && c != nil {
				step -= c.preceding
			}
			if step < 0 {
				return "instructions"
			}
			fmt.Fprintf(&b, "[%d]", step)
		}
	}
	return b.String()
}

func codeOf(kind string) string {
	switch {
	case kind == "value_error.messages.too_long":
		return "context_length_exceeded"
	case kind == "value_error.missing":
		return "missing_required_parameter"
	case strings.HasPrefix(kind, "type_error"):
		return "invalid_type"
	case strings.HasPrefix(kind, "value_error"):
		return "invalid_value"
	}
	return ""
}
