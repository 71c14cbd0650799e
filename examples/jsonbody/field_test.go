package jsonbody_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/botapi/examples/jsonbody"
	"github.com/matryer/is"
)

// read reads a body with a text, a boolean and a list of objects, and returns what it found.
func read(body string) (found string, err error) {
	err = jsonbody.Read(body, func(f jsonbody.Field) error {
		switch f.Name {
		case "text":
			text, err := f.Text()
			found += fmt.Sprintf("%q ", text)
			return err
		case "absent", "present":
			value, err := f.Boolean(f.Name == "present")
			found += fmt.Sprint(value, " ")
			return err
		case "count":
			n, isThere, err := f.Integer()
			found += fmt.Sprint(n, isThere, " ")
			return err
		case "object":
			return f.Require(jsonbody.Object, "must be an object")
		case "list":
			return f.Elements(func(f jsonbody.Field) error {
				return f.Fields(func(f jsonbody.Field) error {
					text, err := f.Text()
					found += fmt.Sprintf("%s %q ", f.Path(), text)
					return err
				})
			})
		case "no":
			return f.Reject("is not supported")
		}
		return nil
	})
	return found, err
}

func TestRead(t *testing.T) {
	for body, want := range map[string]string{
		"\ufeff{\"text\": \"a\\u0062\", \"other\": [1, {}]} ": `"ab" `,
		`{"text":null,"absent":null,"present":null}`:          `"" false true `,
		`{"absent":true,"present":false}`:                     `true false `,
		`{"count":-12}`:                                       "-12 true ",
		`{"count":null}`:                                      "0 false ",
		`{"list":null,"object":null}`:                         ``,
		`{"object":{"a":{}}}`:                                 ``,
		`{"list":[{"a":"b"},null,{},{"c":"d","e":null}]}`:     `list[0].a "b" list[3].c "d" list[3].e "" `,
	} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			found, err := read(body)
			is.NoErr(err)
			is.Equal(found, want)
		})
	}
}

func TestReadRejects(t *testing.T) {
	for body, want := range map[string]string{
		`{"text":1}`:                    "text must be a string",
		`{"text":["a"]}`:                "text must be a string",
		`{"present":"true"}`:            "present must be true or false",
		`{"count":"1"}`:                 "count must be a whole number",
		`{"count":1.5}`:                 "count must be a whole number",
		`{"count":1e2}`:                 "count must be a whole number",
		`{"count":9223372036854775808}`: "count must be a whole number",
		`{"list":[{"a-key":1}]}`:        "list[0].… must be a string",
		`{"list":[{"` + strings.Repeat("e", 41) + `":1}]}`: "list[0].… must be a string",
		`{"object":[]}`:                "object must be an object",
		`{"list":{}}`:                  "list must be a list",
		`{"list":[{},[]]}`:             "list[1] must be an object",
		`{"list":[{},{"a":"","b":1}]}`: "list[1].b must be a string",
		`{"no":null}`:                  "no is not supported",
		`{"no":1`:                      "no is not supported", // the first error
		`[]`:                           "the body must be an object",
		`null`:                         "the body must be an object",
	} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			_, err := read(body)
			var wrong *jsonbody.ValueError
			is.True(errors.As(err, &wrong))
			is.Equal(err.Error(), want)
		})
	}
	for _, body := range []string{``, `{`, `{"text":`, `{"text":"`, `{"present":tru`, `{"list":[{"a":`, `{"list":[{"a":}]}`, `{} {}`, `{"other":[1,]}`, `[1`} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			_, err := read(body)
			var syntax *jsonbody.SyntaxError
			is.True(errors.As(err, &syntax))
		})
	}
}
