// Package mounting shows how to mount a botapi handler in the routers that Go
// programs use. Each function is one router, small enough to copy; its comment
// says what to mind there. The tests run the same checks through all of them,
// on HTTP/1.1 and on HTTP/2.
//
// For every router: mount a subtree and leave the paths and methods in it to the
// handler. It answers unknown ones itself, in the form that its clients know.
// What middleware in front must do, docs/operating.md says.
package mounting

import (
	"io"
	"net/http"
)

// healthCheck stands for the routes that the host has already.
func healthCheck(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok")
}
