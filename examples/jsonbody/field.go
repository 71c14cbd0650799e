package jsonbody

import (
	"regexp"
	"strconv"
)

// A Field is a value of a body and its place there: a field of an object, or an element of
// an array. Its methods read the value by a rule, whose violation is a *ValueError. null
// counts as absent.
type Field struct {
	*Reader        // at the value, until it has been read
	Name    string // in its object; of an element, that of the array

	parent *Field // nil if it is of the body itself
	index  int    // of an element; otherwise -1
}

// A ValueError says which value of a body is not what its reader expects.
type ValueError struct {
	Path    string // such as messages[2].content; a name that is no plain word is "…"; empty for the body
	Problem string // such as "must be a string"
}

func (e *ValueError) Error() string {
	if e.Path == "" {
		return "the body " + e.Problem
	}
	return e.Path + " " + e.Problem
}

// Read reads a body to its end, and calls field for each of its fields. It returns a
// *SyntaxError, a *ValueError if the body is not an object, or the first error of field.
func Read(body string, field func(Field) error) error {
	r := New(body)
	kind := r.Peek()
	err := r.Object(func(name string) error { return field(Field{r, name, nil, -1}) })
	if err == nil {
		err = r.End()
	}
	if err == nil && kind != Object {
		err = &ValueError{"", "must be an object"}
	}
	return err
}

// Path returns the place of the value in the body, such as messages[2].content.
func (f Field) Path() string {
	switch {
	case f.index >= 0:
		return f.parent.Path() + "[" + strconv.Itoa(f.index) + "]"
	case f.parent != nil:
		return f.parent.Path() + "." + named(f.Name)
	}
	return named(f.Name)
}

// named returns a name as errors and the log have it. A name may be anything that a client
// has sent, of any length: only those that APIs have are repeated.
func named(name string) string {
	if plainWord.MatchString(name) {
		return name
	}
	return "…"
}

var plainWord = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,39}$`)

// Reject returns a *ValueError for the value.
func (f Field) Reject(problem string) error { return &ValueError{f.Path(), problem} }

// Require fails unless the value is of a kind that [Reader.Peek] returns, or null. It does not
// read the value. For whole numbers, see Integer.
func (f Field) Require(kind Kind, problem string) error {
	switch f.Peek() {
	case kind, Null, 0: // 0: the body stops being JSON here, which is the Reader's error
		return nil
	}
	return f.Reject(problem)
}

// Text reads a string; null is "".
func (f Field) Text() (string, error) {
	if err := f.Require(Text, "must be a string"); err != nil {
		return "", err
	}
	return f.Value().Text, nil
}

// Integer reads a whole number. isThere is false for null.
func (f Field) Integer() (n int64, isThere bool, err error) {
	if err := f.Require(Number, "must be a whole number"); err != nil {
		return 0, false, err
	}
	value := f.Value()
	if value.Kind == Null {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(value.Text, 10, 64)
	if err != nil {
		return 0, false, f.Reject("must be a whole number")
	}
	return n, true, nil
}

// Boolean reads true or false; null is absent.
func (f Field) Boolean(absent bool) (bool, error) {
	if err := f.Require(Boolean, "must be true or false"); err != nil {
		return false, err
	}
	value := f.Value()
	return value.Text == "true" || absent && value.Kind == Null, nil
}

// Fields reads an object, and calls field for each of its fields; null has none.
func (f Field) Fields(field func(Field) error) error {
	if err := f.Require(Object, "must be an object"); err != nil {
		return err
	}
	return f.Object(func(name string) error { return field(Field{f.Reader, name, &f, -1}) })
}

// Elements reads an array, and calls element for each of its elements; null has none.
func (f Field) Elements(element func(Field) error) error {
	if err := f.Require(List, "must be a list"); err != nil {
		return err
	}
	return f.Array(func(i int) error { return element(Field{f.Reader, f.Name, &f, i}) })
}
