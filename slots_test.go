package botapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/matryer/is"
)

// Whatever the application does after its chat has a slot and before its engine runs, the
// slot is released.
func TestSlotIsReleasedIfExtraFails(t *testing.T) {
	for name, fault := range formatFaults {
		for _, stream := range []bool{false, true} {
			if name == "fails" {
				continue // it returns no error
			}
			t.Run(fmt.Sprint(name, ", stream ", stream), func(t *testing.T) {
				is := is.New(t)
				r := newRequest("POST", routePath, strings.NewReader(chatBodyJSON("hi", stream)))
				got := playRequestOn(t, httptest.NewRecorder(), r, fragmentsOf("a"), func(o *Options) {
					o.Routes = []Route{chatRoute(func(c *Chat) {
						c.Extra = func() map[string]json.RawMessage { _ = fault(); return nil }
					})}
				})
				is.Equal(got.err, map[string]error{"aborts": http.ErrAbortHandler, "exits": errExited}[name])
				is.Equal(len(got.reports), 0)
				if name == "panics" {
					is.Equal(got.status, 500)
					is.True(strings.Contains(got.log, "reading the extra fields"))
				}
			})
		}
	}
}
