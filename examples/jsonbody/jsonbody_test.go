package jsonbody_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/matryer/is"

	"example.com/botapi/examples/jsonbody"
)

// decode reads a body as encoding/json does with UseNumber: the last of a repeated field
// counts.
func decode(body string) (any, error) {
	r := jsonbody.New(body)
	v, err := decodeValue(r)
	if err == nil {
		err = r.End()
	}
	return v, err
}

func decodeValue(r *jsonbody.Reader) (v any, err error) {
	switch r.Peek() {
	case jsonbody.Object:
		object := map[string]any{}
		return object, r.Object(func(name string) (err error) {
			object[name], err = decodeValue(r)
			return err
		})
	case jsonbody.List:
		list := []any{}
		return list, r.Array(func(i int) error {
			if i != len(list) {
				return fmt.Errorf("element %d is called %d", len(list), i)
			}
			element, err := decodeValue(r)
			list = append(list, element)
			return err
		})
	}
	switch value := r.Value(); value.Kind {
	case jsonbody.Text:
		return value.Text, nil
	case jsonbody.Integer, jsonbody.Number:
		return json.Number(value.Text), nil
	case jsonbody.Boolean:
		return value.Text == "true", nil
	}
	return nil, nil
}

// FuzzBody compares the Reader with encoding/json, which keeps bytes that are not UTF-8,
// and does not skip a byte order mark.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{"a":1,"b":[true,false,null,-0.5e+7,"c\n\ud83d\udc4b\ud800"],"a":{"":{}}}`, " [1 , [ ] ,{ } ] ", `"a"`, "7", "", "\ufeff{}", `{"a":tru}`,
		`{"a"}`, `{,}`, `[1,]`, `{"a":1}x`, `{"a":01}`, "\"\x01\"", "\"\xff\"", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), strings.Repeat("[", 10_001),
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, err := decode(body)
		plain := strings.TrimPrefix(body, "\ufeff")
		if valid := utf8.ValidString(plain) && json.Valid([]byte(plain)); valid != (err == nil) {
			t.Fatalf("%q: %v", body, err)
		}
		if err != nil {
			syntax, isSyntax := errors.AsType[*jsonbody.SyntaxError](err)
			if !isSyntax || syntax.Offset < 0 || syntax.Offset > len(body) || syntax.Text == "" {
				t.Fatalf("%q: %#v", body, err)
			}
			return
		}
		decoder := json.NewDecoder(strings.NewReader(plain))
		decoder.UseNumber()
		var want any
		if err := decoder.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: %v, want %v (%v)", body, got, want, err)
		}
		if _, isObject := want.(map[string]any); isObject {
			compareFields(t, body, plain)
		}
	})
}

func compareFields(t *testing.T, body, plain string) {
	var want map[string]json.RawMessage
	if err := json.Unmarshal([]byte(plain), &want); err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(want, func(name string, value json.RawMessage) bool { return name == "a" || string(value) == "null" })
	got := jsonbody.Fields(body, func(name string) bool { return name != "a" })
	if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Fatalf("%q: %q, want %q", body, got, want)
	}
}

func TestKinds(t *testing.T) {
	for body, want := range map[string]struct {
		peeked, kind jsonbody.Kind
		text, raw    string
	}{
		`null `:          {jsonbody.Null, jsonbody.Null, "", "null"},
		`false`:          {jsonbody.Boolean, jsonbody.Boolean, "false", "false"},
		"\ufeff\n-12":    {jsonbody.Number, jsonbody.Integer, "-12", "-12"},
		`1.0`:            {jsonbody.Number, jsonbody.Number, "1.0", "1.0"},
		`"a\u0062"`:      {jsonbody.Text, jsonbody.Text, "ab", `"a\u0062"`},
		`[1, {"a":[]}]`:  {jsonbody.List, jsonbody.List, "", `[1, {"a":[]}]`},
		`{"a": "b\"}" }`: {jsonbody.Object, jsonbody.Object, "", `{"a": "b\"}" }`},
		`nil`:            {jsonbody.Null, 0, "", "n"},
		``:               {},
		`+1`:             {},
	} {
		is := is.New(t)
		r := jsonbody.New(body)
		is.Equal(r.Peek(), want.peeked)
		value := r.Value()
		is.Equal(value.Kind, want.kind)
		is.Equal(value.Text, want.text)
		is.True(want.kind == 0 || r.Rest() <= 1 && strings.HasSuffix(body, " ") == (r.Rest() == 1))
		is.Equal(r.End() == nil, want.kind != 0)
		is.Equal(jsonbody.New(body).Raw(), want.raw)
	}
}

var errOfField = errors.New("an error of the caller's")

// The caller's error ends the reading, and what follows is not looked at. But where the body
// stops being JSON in the value, that is the error: the caller has only seen no value.
func TestFirstError(t *testing.T) {
	for body, offset := range map[string]int{
		`{"a":1,"bad":2,"c":3,}`:     -1,
		`{"a":1,"bad":[1,{}],}`:      -1,
		`{"a":1,"bad":tru}`:          16,
		`{"a":1,"bad":[1,}`:          16,
		`{"a":1,"bad"}`:              12,
		`{"a":1,bad":2}`:             7,
		`[0,1]`:                      -1,
		`[0,-]`:                      4,
		`{"a":1} x`:                  8,
		`"neither"x`:                 9,
		`{"a":1,"b":"not UTF-8\xff"`: 21,
	} {
		is := is.New(t)
		body = strings.ReplaceAll(body, `\xff`, "\xff")
		r := jsonbody.New(body)
		var called []string
		call := func(name string) error {
			called = append(called, name)
			if name == "bad" || name == "1" {
				r.Value()
				return errOfField
			}
			return nil
		}
		err := r.Object(call)
		if strings.HasPrefix(body, "[") {
			r = jsonbody.New(body)
			err = r.Array(func(i int) error { return call(fmt.Sprint(i)) })
		}
		if err == nil {
			err = r.End()
		}
		if offset < 0 {
			is.Equal(err, errOfField)
			continue
		}
		syntax, isSyntax := errors.AsType[*jsonbody.SyntaxError](err)
		is.True(isSyntax)
		is.Equal(syntax.Offset, offset)
		for _, name := range called {
			is.True(name != "") // a name that is none is not passed on
		}
	}
}

// A value of another kind is read, and calls nothing.
func TestOtherKinds(t *testing.T) {
	is := is.New(t)
	never := func() error { t.Error("called"); return nil }
	r := jsonbody.New(`[{"a":1},7,"b"]`)
	is.NoErr(r.Array(func(i int) error {
		if i == 0 {
			return r.Array(func(int) error { return never() })
		}
		return r.Object(func(string) error { return never() })
	}))
	is.NoErr(r.End())
}

// The values of Fields may be changed, and share nothing with one another.
func TestFieldsAreCopies(t *testing.T) {
	is := is.New(t)
	body := `{"a":[1],"b":2,"a":{"c" : 3}}`
	fields := jsonbody.Fields(body, func(string) bool { return true })
	is.Equal(len(fields), 2)
	is.Equal(string(fields["a"]), `{"c" : 3}`)
	copy(fields["a"], "XXXX")
	is.Equal(string(append(fields["b"], '!')), "2!")
	is.Equal(body, `{"a":[1],"b":2,"a":{"c" : 3}}`)
	is.True(jsonbody.Fields(body, func(string) bool { return false }) == nil)
	for _, body := range []string{`{}`, `{"a":null}`, `{"a":1,"a": null}`} {
		is.True(jsonbody.Fields(body, func(string) bool { return true }) == nil)
	}
	is.Equal(string(jsonbody.Fields(`{"a":null,"a":1}`, func(string) bool { return true })["a"]), "1")
}

// A body of many small values takes no memory but its own.
func TestManySmallValues(t *testing.T) {
	is := is.New(t)
	body := `{"a":[` + strings.Repeat(`{"":[1]},`, 1<<17) + `0]}`
	got := testing.AllocsPerRun(1, func() {
		r := jsonbody.New(body)
		is.NoErr(r.Object(func(string) error { return r.Array(func(int) error { return nil }) }))
		is.NoErr(r.End())
	})
	is.True(got < 20)
}
