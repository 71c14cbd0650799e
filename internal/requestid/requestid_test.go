package requestid_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"example.com/botapi/internal/requestid"
)

var (
	accepted  = regexp.MustCompile(`^[!-~]{1,128}$`)
	generated = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

func TestOf(t *testing.T) {
	for name, c := range map[string]struct {
		values []string // of X-Request-Id
		want   string   // empty if an id is generated
	}{
		"no header":                {nil, ""},
		"no value":                 {[]string{}, ""},
		"an empty value":           {[]string{""}, ""},
		"one byte":                 {[]string{"1"}, "1"},
		"a common form":            {[]string{"7f9c24e8-3b12-4fef-91e0-5d5b1a3c7d10"}, "7f9c24e8-3b12-4fef-91e0-5d5b1a3c7d10"},
		"128 bytes":                {[]string{strings.Repeat("x", 128)}, strings.Repeat("x", 128)},
		"129 bytes":                {[]string{strings.Repeat("x", 129)}, ""},
		"the first and last bytes": {[]string{"!~"}, "!~"},
		"a space":                  {[]string{"a b"}, ""},
		"a space at the start":     {[]string{" a"}, ""},
		"a space at the end":       {[]string{"a "}, ""},
		"0x7F":                     {[]string{"a\x7f"}, ""},
		"not ASCII":                {[]string{"é"}, ""},
		"a line break":             {[]string{"a\nb"}, ""},
		"several values":           {[]string{"first", "second"}, "first"},
		"only the second is valid": {[]string{"", "second"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			header := http.Header{"X-Request-Id": c.values}
			if c.values == nil {
				header = nil
			}
			id := requestid.Of(header)
			if c.want == "" {
				is.True(generated.MatchString(id))
				return
			}
			is.Equal(id, c.want)
		})
	}
}

// All digits of a generated id are random: each place has more than one digit in 100 ids.
func TestGeneratedIDsDiffer(t *testing.T) {
	is := is.New(t)
	var digits [32]map[byte]bool
	for i := range digits {
		digits[i] = map[byte]bool{}
	}
	ids := map[string]bool{}
	for range 100 {
		id := requestid.Of(nil)
		ids[id] = true
		for i := range digits {
			digits[i][id[i]] = true
		}
	}
	is.Equal(len(ids), 100)
	for i := range digits {
		is.True(len(digits[i]) > 1)
	}
}

func FuzzOf(f *testing.F) {
	f.Add("7f9c24e8-3b12-4fef-91e0-5d5b1a3c7d10")
	f.Add("a b")
	f.Add("\x7f")
	f.Add(strings.Repeat("~", 129))
	f.Fuzz(func(t *testing.T, value string) {
		is := is.New(t)
		id := requestid.Of(http.Header{"X-Request-Id": {value}})
		if accepted.MatchString(value) {
			is.Equal(id, value)
			return
		}
		is.True(generated.MatchString(id))
	})
}
