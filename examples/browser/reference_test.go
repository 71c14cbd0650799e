package browser

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/matryer/is"
)

// TestReference finds everything of the document on the page.
func TestReference(t *testing.T) {
	is := is.New(t)
	q := startQuickstart(t)
	response, err := http.Get(q.address + "/openapi.json")
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.Header.Get("Content-Type"), "application/json")
	text, err := io.ReadAll(response.Body)
	is.NoErr(err)
	var api struct {
		Paths      map[string]map[string]struct{ Summary string }
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any
			}
		}
	}
	is.NoErr(json.Unmarshal(text, &api))

	tab := newTab(t)
	tab.open(q.address + "/docs")
	tab.see("#chat")
	page := tab.text("main")
	for path, methods := range api.Paths {
		is.True(strings.Contains(page, path))
		for _, operation := range methods {
			is.True(strings.Contains(page, operation.Summary))
		}
	}
	for name, schema := range api.Components.Schemas {
		is.True(strings.Contains(tab.text("#schema-"+name), name))
		for member := range schema.Properties {
			is.True(strings.Contains(tab.text("#schema-"+name), member))
		}
	}
	for _, nonsense := range []string{"undefined", "[object"} {
		is.True(!strings.Contains(page, nonsense))
	}
	is.Equal(evaluate[int](tab, `Array.from(document.querySelectorAll("a[href^='#']")).filter((link) => !document.getElementById(link.getAttribute("href").slice(1))).length`), 0) // links to nowhere

	tab.click(`a[href="#schema-ChatRequest"]`)
	tab.click(`a[href="./"]`)
	tab.do(chromedp.WaitVisible(chromedp.ID("key")))
}
