package stackcheck

import (
	"regexp"
	"strings"
	"testing"

	"github.com/matryer/is"

	"example.com/botapi/internal/doctest"
)

// The document has a paragraph about each check, under its name, with the faces that have it,
// in the order of the table. So the links of findings lead somewhere.
func TestDocumentedChecks(t *testing.T) {
	is := is.New(t)
	var want, got []string
	for _, c := range checks {
		where := "Test and doctor."
		switch {
		case c.within:
			where = "Test."
		case c.plain:
			where = "Doctor without a secret."
		case c.probed:
			where = "Test, and doctor with a secret."
		}
		want = append(want, c.name+": "+where)
		is.Equal(c.doc(), "docs/operating.md#"+strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(c.name), ""), " ", "-"))
	}
	for _, paragraph := range regexp.MustCompile(`(?m)^#### (.*)\n\n\*([^*]+)\*`).FindAllStringSubmatch(doctest.Read(t, "../../../docs/operating.md"), -1) {
		got = append(got, paragraph[1]+": "+paragraph[2])
	}
	is.Equal(got, want)
}
