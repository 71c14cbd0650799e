package jsonbody_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/jsonbody"
	"github.com/matryer/is"
)

// TestReadRequest reads bodies in a route.
func TestReadRequest(t *testing.T) {
	for body, want := range map[string]struct {
		status int
		reply  string
	}{
		`{"role":"User"}`:  {200, `"user"`},
		`{"exact":"user"}`: {200, `"user"`},
		`{"exact":"User"}`: {400, "exact must be system, user or assistant"},
		`{"role":null}`:    {400, "role must be system, user or assistant"},
		`{"role":"tool"}`:  {400, "role must be system, user or assistant"},
		`{"other":"user"}`: {400, "role is required"},
		`[]`:               {400, "the body must be an object"},
		`{`:                {400, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"},
	} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			var problem error
			serve := func(r *http.Request) (botapi.Response, error) {
				role := botapi.Role("")
				read, err := jsonbody.ReadRequest(r, func(f jsonbody.Field) (err error) {
					if f.Name == "role" {
						role, err = f.Role(true)
					}
					if f.Name == "exact" {
						role, err = f.Role(false)
					}
					return err
				})
				if err == nil && role == "" {
					err = jsonbody.Invalid("role", "is required")
				}
				if problem = err; err != nil {
					return nil, err
				}
				is.Equal(read, body)
				return jsonbody.Reply(role)
			}
			h := botapi.New(botapi.Options{
				Bots: new(botapi.MemoryStore), Keys: botapi.StaticKeys(map[string]string{"k": "a"}),
				Engine: botapi.CallbackEngine(func(context.Context, *botapi.ChatRequest, func(string) error) error { return nil }),
				Routes: []botapi.Route{{Patterns: []string{"POST /role"}, Serve: serve, Errors: errorText}},
			})
			r := httptest.NewRequest("POST", "/role", strings.NewReader(body))
			r.Header.Set("Authorization", "Bearer k")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			is.Equal(w.Code, want.status)
			is.Equal(w.Body.String(), want.reply)
			if want.status == 400 {
				_, isValue := errors.AsType[*jsonbody.ValueError](problem)
				_, isSyntax := errors.AsType[*jsonbody.SyntaxError](problem)
				is.True(isValue != isSyntax)
			}
		})
	}
}

func errorText(_ context.Context, f botapi.Failure) botapi.Reply {
	return botapi.Reply{Status: f.Status, Body: []byte(f.Detail)}
}
