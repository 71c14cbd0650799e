package browser

import (
	"net/http"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// TestGuideLinksToDocuments checks that the page shows the links of the guide's answer, and
// that they lead to documents.
func TestGuideLinksToDocuments(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	tab := newTab(t)
	tab.open(q.address + "/#key=" + key + "&bot=guide")
	tab.say("What is botapi?")
	tab.waitForAnswer()
	links := evaluate[[]string](tab, `[...document.querySelectorAll(".message:last-child a[href]")].map((link) => link.href)`)
	documents := 0
	for _, link := range links {
		if strings.HasPrefix(link, q.address+"/docs/") {
			documents++
			response, err := http.Get(link)
			is.NoErr(err)
			is.NoErr(response.Body.Close())
			is.Equal(response.StatusCode, 200)
		}
	}
	is.True(documents > 1) // one in the text, one below it
}
