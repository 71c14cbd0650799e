// Package mounting shows how to mount a botapi handler in the routers that Go
// programs use. Each function is one router, small enough to copy; its comment
// says what to mind there. The tests run the same checks through all of them,
// on HTTP/1.1 and on HTTP/2.
//
// Four things hold for every router:
//
//   - Mount a subtree and leave the paths and methods in it to the handler: it
//     answers unknown ones itself, in the form that its clients know.
//   - Recovery middleware in front must pass [http.ErrAbortHandler] on. The
//     handler panics with it to cut a stream that broke; where it is swallowed,
//     the connection ends in good order and the stream looks whole. The handler
//     recovers every other panic itself, so it needs no such middleware.
//   - Middleware that wraps the ResponseWriter needs Unwrap, or a method Flush:
//     where the handler cannot flush, a stream is held back to its end.
//   - Time-out middleware in front bounds whole answers, streams too. The
//     handler has its own limit, Options.ChatTimeout.
package mounting

import (
	"io"
	"net/http"
)

// healthCheck stands for the routes that the host has already.
func healthCheck(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, "ok")
}
