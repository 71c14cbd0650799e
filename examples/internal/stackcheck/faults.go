package stackcheck

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// faults are responses whose reason is not what a check looks at, but would be found by it as
// something else. All stacks of a diagnosis share them.
type faults struct {
	mu      sync.Mutex
	own     *Finding   // the first failure of the service itself since take
	page    *pageError // the first page since take
	limit   *Finding   // the first page ever that was none after a pause
	inVain  int        // pauses after which there was a page again
	ownBy   string     // the check that has told of own
	limitBy string     // that has told of a page

	firstDelay sync.Once // calls Target.Delayed
}

// note looks at a response that was not due.
func (f *faults) note(s *stack, r request, a *answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case r.fails: // the check looks at the failure
	case a.isPage() && f.page == nil:
		f.page = &pageError{got: a, sent: r.verb() + " " + r.path, isSure: r.played && !a.repeated}
	case s.kit == nil && r.needsParts() && a.isOwnFailure() && f.own == nil: // the kit's own parts do not fail
		f.own = a.ownFailure(r)
	}
}

// take returns what was noted since the last call.
func (f *faults) take() (own *Finding, page *pageError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own, page, f.own, f.page = f.own, f.page, nil, nil
	if f.limitBy == "" {
		f.inVain = 0
	}
	return own, page
}

// takeLimit returns a finding about a limit, once.
func (f *faults) takeLimit(check string) *Finding {
	f.mu.Lock()
	defer f.mu.Unlock()
	limit := f.limit
	if f.limit = nil; f.limitBy != "" || limit == nil {
		return nil
	}
	f.limitBy = check
	return limit
}

const limitedAgain = "something in front has replied in the API's place again"

// tell replaces what a check has found by the reason. It is a finding once.
func (f *faults) tell(check string, reason Finding, r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	by, again := &f.limitBy, limitedAgain
	if reason.isOwn {
		by, again = &f.ownBy, "the service itself has failed again"
	}
	r.Findings, r.Problem = nil, ""
	if *by != "" {
		r.Problem = fmt.Sprintf("%s, as %q has found", again, *by)
		return
	}
	*by = check
	r.found(reason)
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
	limitOfAll, ownLimit, "The answer took too long",
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
		isOwn:   true,
	}
}

// isPage reports whether something in front has no room or no server for a request, and says so in
// the API's place.
func (a *answer) isPage() bool {
	isHead := a.body == "" && a.header.Get("X-Request-Id") != ""
	return isOfPages(a.status) && !isHead && !(a.isJSON() && a.hasDetail())
}

// isOfPages reports whether a status is one of such pages.
func isOfPages(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// A pageError is a request that got a page in the API's place.
type pageError struct {
	got    *answer
	sent   string
	isSure bool // the check's own request was not the reason
}

func (e *pageError) Error() string { return e.sent + ": " + e.got.show() }

func (e *pageError) finding() Finding {
	hasEnded, after := e.got.endedAfter()
	if !hasEnded { // it is about to
		after = time.Since(e.got.sentAt())
	}
	return Finding{
		Sent:    e.sent,
		Arrived: fmt.Sprintf("after %.1f s: %s", after.Seconds(), e.got.show("Content-Type", "Retry-After", "X-Request-Id")),
		Effect:  "clients get a page that they cannot read, in place of an error that says when to try again",
		Cause:   "something in front, or middleware, limits how many requests run at the same time, or their rate (HAProxy's maxconn, nginx's limit_conn and limit_req), has no server for this one, or has a short time limit: leave limits of chats to MaxConcurrentChats and MaxChatsPerAccount; those in front must be higher (the checks need " + limitsNeeded + ")",
		general: true,
	}
}

const (
	// ratePause is how long a request waits that got a page: a limit of a rate has room again.
	ratePause = 2 * time.Second

	// quick is how long a page takes at most that is due to a rate: one that comes later says that
	// there was no room, or no answer, for that time.
	quick = time.Second

	// mostInVain is after how many pauses in vain a check has no more of them, or all checks have none
	// once there is a finding about pages.
	mostInVain = 3
)

// passRate sends a request again, after a pause, that got a page. If it gets none then, a limit was the
// reason, and the check goes on with the API's response.
func (s *stack) passRate(ctx context.Context, r request, a *answer, res *http.Response) (*http.Response, error) {
	page := s.pageOf(r, a, res)
	if page == nil {
		return res, nil
	}
	res.Body.Close()
	if sleep(ctx, ratePause); ctx.Err() != nil {
		return nil, ctx.Err()
	}
	a.change(func() { a.begun = time.Now() })
	again, err := s.send(ctx, r, a)
	if err != nil {
		return again, err
	}
	a.change(func() { a.repeated = true })
	s.faults.paused(s, r, page, again.StatusCode)
	return again, nil
}

// pageOf returns a response to a request that may be sent again, if it is a page, or nil. The engine is
// not asked twice: the service has not got what was rejected with 429 or 503 immediately.
func (s *stack) pageOf(r request, a *answer, res *http.Response) *answer {
	page := &answer{begun: a.sentAt(), endedAt: time.Now(), ended: true, status: res.StatusCode, header: res.Header}
	isGateways := page.status == http.StatusBadGateway || page.status == http.StatusGatewayTimeout
	if r.fails || isGateways && r.isChat() || page.length() > quick || !isOfPages(page.status) || !s.faults.mayPause() {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	res.Body = &readBefore{io.MultiReader(bytes.NewReader(body), res.Body), res.Body}
	if page.body = string(body); err != nil || !page.isPage() {
		return nil
	}
	return page
}

func (f *faults) mayPause() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inVain < mostInVain
}

// paused notes what came after a pause.
func (f *faults) paused(s *stack, r request, page *answer, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isOfPages(status) {
		f.inVain++
		return
	}
	f.inVain = 0
	s.sent.notePage(page)
	if f.limit == nil {
		limit := (&pageError{got: page, sent: r.verb() + " " + r.path}).finding()
		limit.Arrived += fmt.Sprintf("; %.0f s later, the response was another, so that this request was not the reason", ratePause.Seconds())
		limit.aside = true
		f.limit = &limit
	}
}
