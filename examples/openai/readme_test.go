package openai_test

import (
	"testing"

	"example.com/botapi/internal/doctest"
	"github.com/matryer/is"
)

// TestREADME vets the Go code of the README.
func TestREADME(t *testing.T) {
	t.Parallel()
	is.New(t).Equal(doctest.Vet(t, "README.md", "options *botapi.Options, answers *resume.Engine"), 5)
}
