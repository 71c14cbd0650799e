package resume_test

import (
	"fmt"
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

// TestDocumentedResponses checks that docs/wire.md has each response of the package.
func TestDocumentedResponses(t *testing.T) {
	is := is.New(t)
	page, err := os.ReadFile("../../docs/wire.md")
	is.NoErr(err)
	source, err := os.ReadFile("engine.go")
	is.NoErr(err)
	details := regexp.MustCompile(`(?:Detail: |later\(http\.\w+, )"(.*?)"`).FindAllStringSubmatch(string(source), -1)
	is.True(len(details) >= 10)
	for _, detail := range details {
		is.True(strings.Contains(string(page), "`"+detail[1]+"`"))
	}
	for _, outcome := range []resume.Outcome{resume.Kept, resume.Joined, resume.NotKept} {
		is.True(strings.Contains(string(page), "\n| `"+string(outcome)+"` | "))
	}
	settings := resume.Settings{}.Completed()
	is.True(strings.Contains(string(page), fmt.Sprintf("You have %.0f minute to come back", settings.Abandon.Minutes())))
	is.True(strings.Contains(string(page), fmt.Sprintf("A complete answer is kept for %.0f minutes", settings.Keep.Minutes())))
	is.True(strings.Contains(string(page), fmt.Sprintf("after the first %d, one a second", resume.JoinBurst)))
}
