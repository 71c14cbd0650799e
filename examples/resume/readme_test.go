package resume_test

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// TestREADME compares the README with the package: the lines that add it, and the fields
// of Options and Settings, in their order.
func TestREADME(t *testing.T) {
	is := is.New(t)
	readme, err := os.ReadFile("README.md")
	is.NoErr(err)
	documentation, err := os.ReadFile("doc.go")
	is.NoErr(err)
	_, code, _ := strings.Cut(string(readme), "```go\n")
	code, _, _ = strings.Cut(code, "```")
	is.Equal(strings.Count(code, "\n"), 3)
	for line := range strings.Lines(code) {
		is.True(strings.Contains(string(documentation), "//\t"+line))
	}

	var shown, fields []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\| ").FindAllStringSubmatch(string(readme), -1) {
		for _, name := range strings.Split(row[1], ", ") {
			shown = append(shown, strings.Trim(name, "`"))
		}
	}
	for _, options := range []reflect.Type{reflect.TypeFor[resume.Options](), reflect.TypeFor[resume.Settings]()} {
		for i := range options.NumField() {
			fields = append(fields, options.Field(i).Name)
		}
	}
	is.Equal(shown, fields)
}
