package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
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
}

// Error is for the log. It begins with what does not depend on the request.
func (e *apiError) Error() string {
	text := strconv.Itoa(e.status)
	if e.Code != nil {
		text += " " + *e.Code
	}
	return text + ": " + e.Message
}

// body is the response body.
func (e *apiError) body() []byte {
	body, _ := json.Marshal(map[string]*apiError{"error": e}) // it always has a JSON form
	return body
}

const (
	typeInvalidRequest = "invalid_request_error"
	typeRateLimit      = "rate_limit_error"
	typeServer         = "server_error"
)

// invalid is the error for a parameter that this handler rejects.
func invalid(param, code, problem string) *apiError {
	return &apiError{status: http.StatusBadRequest, Message: param + ": " + problem, Type: typeInvalidRequest, Param: &param, Code: &code}
}

// unknownURL is the error for a path that neither this handler nor the API serves.
func unknownURL() *apiError {
	code := "unknown_url"
	return &apiError{status: http.StatusNotFound, Type: typeInvalidRequest, Code: &code,
		Message: "this path is not served: there are GET /v1/models, GET /v1/models/{model}, POST /v1/chat/completions and POST /v1/responses, " +
			"so the base URL of a client ends in /v1, once; responses are not stored"}
}

// errorOf translates an error response of the API, or of the application's
// middleware. c is nil if the request was not a chat.
func (c *completion) errorOf(status int, kind string, body []byte) *apiError {
	detail, problem := readDetail(body)
	if problem != nil {
		return c.errorOfProblem(status, *problem)
	}
	if kind == "text/plain" && len(body) <= 200 {
		detail = strings.TrimSpace(string(body))
	}
	if detail == "" {
		detail = http.StatusText(status)
	}
	e := &apiError{status: status, Message: detail, Type: typeInvalidRequest}
	switch code, param := codes[status], "model"; {
	case status == http.StatusNotFound && detail == "Bot not found":
		code = "model_not_found"
		e.Message, e.Code, e.Param = "the model does not exist", &code, &param
	case code != "":
		e.Code = &code
	}
	switch {
	case status == http.StatusTooManyRequests:
		e.Type = typeRateLimit
	case status >= 500:
		e.Type = typeServer
	}
	return e
}

// errorOfEvent translates the JSON of an error event, which has the status that an error
// response would have had.
func (c *completion) errorOfEvent(data []byte) *apiError {
	event := struct{ Status int }{http.StatusInternalServerError}
	_ = json.Unmarshal(data, &event) // an event that is not botapi's is a 500
	return c.errorOf(event.Status, "", data)
}

var codes = map[int]string{
	http.StatusUnauthorized:          "invalid_api_key",
	http.StatusMethodNotAllowed:      "method_not_allowed",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_exceeded",
}

// errorOfProblem translates a validation error. Where the API sends a 422 with all
// problems, OpenAI sends a 400 with one.
func (c *completion) errorOfProblem(status int, problem botapi.ValidationError) *apiError {
	if status == http.StatusUnprocessableEntity {
		status = http.StatusBadRequest
	}
	e := &apiError{status: status, Message: problem.Msg, Type: typeInvalidRequest}
	if param := c.paramOf(problem.Loc); param != "" {
		e.Param, e.Message = &param, param+": "+problem.Msg
	}
	if code := codeOf(problem.Type); code != "" {
		e.Code = &code
	}
	return e
}

// paramOf formats a location in the body as OpenAI does, messages[0].content, with the
// name of the field that the client has sent.
func (c *completion) paramOf(loc []any) string {
	var b strings.Builder
	for i, step := range loc {
		switch step := step.(type) {
		case string:
			if i == 0 && step == "body" || step == "__root__" {
				continue
			}
			if b.Len() > 0 {
				b.WriteByte('.')
			} else if c != nil {
				step = c.protocol.nameOf(step)
			}
			b.WriteString(step)
		case float64:
			if i == 1 {
				continue // the byte offset of a syntax error, which the message describes
			}
			n := int(step)
			if i == 2 && c != nil {
				n -= c.preceding()
			}
			if n < 0 {
				return "instructions"
			}
			b.WriteString("[" + strconv.Itoa(n) + "]")
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
	case kind == "value_error.jsondecode":
		return "invalid_json"
	case strings.HasPrefix(kind, "type_error"):
		return "invalid_type"
	case strings.HasPrefix(kind, "value_error"):
		return "invalid_value"
	}
	return ""
}

// readDetail reads {"detail": "text"}, or the first problem of {"detail": [...]}.
// The list may be truncated after its first problem.
func readDetail(body []byte) (detail string, first *botapi.ValidationError) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	for _, want := range []string{"{", "detail"} {
		token, err := decoder.Token()
		if err != nil || fmt.Sprint(token) != want {
			return "", nil
		}
	}
	switch token, err := decoder.Token(); token := token.(type) {
	case string:
		return token, nil
	case json.Delim:
		var problem botapi.ValidationError
		if err == nil && token == '[' && decoder.Decode(&problem) == nil && problem.Msg != "" {
			return "", &problem
		}
	}
	return "", nil
}
