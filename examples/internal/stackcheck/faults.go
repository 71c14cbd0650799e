package stackcheck

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// faults are responses whose reason is not what a check looks at, but would be found by it as
// something else. All stacks of a diagnosis share them.
type faults struct {
	mu    sync.Mutex
	own   *Finding // the first failure of the service itself since take
	check string   // that has told of one already
}

// note looks at a response that was not due.
func (f *faults) note(s *stack, r request, a *answer) {
	if s.kit == nil && r.needsParts() && !r.fails && a.isOwnFailure() { // the kit's own parts do not fail
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.own == nil {
			f.own = a.ownFailure(r)
		}
	}
}

// take returns what was noted since the last call.
func (f *faults) take() (own *Finding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own, f.own = f.own, nil
	return own
}

// tell replaces what a check has found by the reason. It is a finding once.
func (f *faults) tell(check string, own *Finding, r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Findings, r.Problem = nil, ""
	if f.check != "" {
		r.Problem = fmt.Sprintf("the service itself has failed again, as %q has found", f.check)
		return
	}
	f.check = check
	r.found(*own)
}

// needsParts reports whether the API asks a store, a verifier or an engine for its response.
func (r request) needsParts() bool {
	if key, isSet := r.header["Authorization"]; isSet && key == "" {
		return false
	}
	path, _, _ := strings.Cut(r.path, "?")
	return path == "/v1/chat" && r.verb() == http.MethodPost || path == "/v1/bots" && r.body == ""
}

// rejections are details of the API that say of no part that it fails. With a 5xx, something has changed
// the status of most, two are limits of chats, and the last may have its reason in front: a deadline that
// middleware gives the request.
var rejections = []string{
	"Not Found", "Method Not Allowed", "Not authenticated", "Invalid API key", "Bot not found", "Request body too large",
	"Too many chats in progress", ownLimit, "The answer took too long",
}

// isOwnFailure reports whether the service itself says that it has failed.
func (a *answer) isOwnFailure() bool {
	return a.status >= http.StatusInternalServerError && a.header.Get("X-Request-Id") != "" && a.isJSON() &&
		a.detail() != "" && !slices.Contains(rejections, a.detail())
}

func (a *answer) ownFailure(r request) *Finding {
	return &Finding{
		Sent:    fmt.Sprintf("%s %s", r.verb(), r.path),
		Arrived: a.show("Content-Type", "Retry-After", "X-Request-Id"),
		Effect:  "clients get an error of the service itself",
		Cause: fmt.Sprintf("the service itself says %d, and nothing in front of it: its store of bots, its verifier of keys or its engine fails, as with a database that is down; look in its log for the request id %s",
			a.status, a.header.Get("X-Request-Id")),
		general: true,
	}
}
