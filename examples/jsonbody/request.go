package jsonbody

import (
	"encoding/json"
	"net/http"
	"strings"

	"example.com/botapi"
)

// ReadRequest reads the body of a request as Read does, and returns it. What is wrong with it
// is a 400 that says so.
func ReadRequest(r *http.Request, field func(Field) error) (body string, err error) {
	body, err = botapi.ReadBody(r)
	if err != nil {
		return "", err
	}
	if err := Read(body, field); err != nil {
		return "", badRequest(err)
	}
	return body, nil
}

// Invalid is the 400 for a value of a body, or for one that is missing.
func Invalid(path, problem string) error { return badRequest(&ValueError{path, problem}) }

func badRequest(err error) error {
	return botapi.StatusError{Status: http.StatusBadRequest, Detail: err.Error(), Err: err}
}

// Role reads the role of a message; with anyCase, in letters of any case.
func (f Field) Role(anyCase bool) (botapi.Role, error) {
	text := f.Value().Text
	if anyCase {
		text = strings.ToLower(text)
	}
	switch role := botapi.Role(text); role {
	case botapi.RoleSystem, botapi.RoleUser, botapi.RoleAssistant:
		return role, nil
	}
	return "", f.Reject("must be system, user or assistant")
}

// Reply is a response of a value that has a JSON form.
func Reply(value any) (botapi.Response, error) {
	body, err := json.Marshal(value)
	return botapi.Reply{Body: body}, err
}
