// Package mounting shows how to mount a botapi handler in common Go routers. Each
// function is for one router and small enough to copy; its comment says what to watch
// out for. The tests run the same checks for all routers, on HTTP/1.1 and on HTTP/2.
//
// With every router, mount a subtree and let the handler decide on its paths and
// methods: its errors for unknown ones have the format that clients expect.
// docs/operating.md says what middleware must do.
package mounting

import (
	"io"
	"net/http"
)

// healthCheck stands for the application's own routes.
func healthCheck(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok")
}
