package stackcheck

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"example.com/botapi/examples/internal/probe"
)

// requestChecks are of requests, and of responses that are no streams.
var requestChecks = []check{
	{name: checkReach, run: (*stack).checkReach, chats: 1},
	{name: checkKey, needs: []string{checkReach}, run: (*stack).checkKey, chats: 1},
	{name: checkBody, needs: []string{checkReach, checkKey}, run: (*stack).checkBody, chats: 9 + 1, asks: 1},
	{name: checkErrors, needs: []string{checkReach, checkKey}, run: (*stack).checkErrors, chats: 6},
	{name: checkHeaders, needs: []string{checkReach, checkKey, checkBody}, probed: true, run: (*stack).checkHeaders, chats: 1, asks: 1},
	{name: checkList, needs: []string{checkReach, checkKey}, run: (*stack).checkList},
	{name: checkCORS, needs: []string{checkReach}, run: (*stack).checkCORS},
}

// isRedirect reports a redirect, which the API never sends.
func (a *answer) isRedirect() bool {
	return a.status >= 300 && a.status < 400 && a.header.Get("Location") != ""
}

// replacedBy adds to the cause of a response in the API's place what a gateway's own status says.
func (a *answer) replacedBy(cause string) string {
	switch a.status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return cause + ", or the proxy cannot reach the service, or limits how many requests run at the same time, or their rate"
	}
	return cause
}

func (s *stack) checkReach(ctx context.Context, r *Result) error {
	noKey := request{path: "/v1/chat", body: "{}", header: map[string]string{"Authorization": ""}}
	for _, req := range []request{{path: "/v1/bots"}, noKey} {
		mark := s.kit.mark()
		got := s.do(ctx, req)
		if got.status == 0 && s.kit == nil {
			return got.err
		}
		visits := s.kit.since(mark)
		f := Finding{
			Sent:    fmt.Sprintf("%s %s", req.verb(), s.URL+req.path),
			Arrived: got.show("Location", "Content-Type"),
			Effect:  "clients cannot use the service",
		}
		switch {
		case got.isRedirect():
			f.Effect = "clients that follow it turn a POST into a GET, and may drop the key"
			f.Cause = "a router or proxy redirects, to a path that it finds tidier or to https; mount a whole subtree, without a method, and give clients the address that needs no redirect"
		case got.isJSON() && (got.status == http.StatusOK || got.status == http.StatusUnauthorized):
			continue
		case req.path == noKey.path && got.status >= 400 && (strings.Contains(got.body, "Not authenticated") || len(visits) > 0 && visits[0].isAt(req.path)):
			continue // the API has replied; the check of errors says what came of that
		case got.status == http.StatusUnauthorized || got.status == http.StatusForbidden:
			f.Cause = "something in front of the API wants credentials of its own, or rejects these clients"
		case len(visits) > 0 && visits[0].path != req.path:
			f.Cause = fmt.Sprintf("the API was asked for %q: http.StripPrefix is missing, or its prefix is not the one at which it is mounted", visits[0].path)
		case got.status == 0:
			f.Cause = "the handler of the application ended the connection"
			if len(visits) > 0 && visits[0].writer.isTimeoutHandler() {
				f.Cause = "http.TimeoutHandler serves the API, and what wraps its ResponseWriter panics when the API flushes (echo's Timeout): use it for other routes, and ChatTimeout for chats" + visits[0].writer.chain()
			}
		case got.status == http.StatusNotFound, got.status == http.StatusMethodNotAllowed:
			f.Cause = "the router has no route for this path and method; mount a whole subtree, without a method: /v1/ in net/http's mux, /v1/* in chi and echo, /v1/*path in gin, PathPrefix(\"/v1/\") in gorilla (in chi, /v1/ is one path)"
		default:
			f.Cause = got.replacedBy("something in front of the API answers in its place")
		}
		r.found(f)
		return nil
	}
	return s.checkAgents(ctx, r)
}

// agents are what programs send as their User-Agent, which rules against bots know.
var agents = []string{
	"python-requests/2.32.5", "Python-urllib/3.13", "Python/3.13 aiohttp/3.13.2", "curl/8.14.1", "okhttp/5.3.0",
	"Java-http-client/21.0.9", "axios/1.13.2", "Go-http-client/1.1",
}

// checkAgents asks for the list as programs do, if it is there for the checks' own User-Agent.
func (s *stack) checkAgents(ctx context.Context, r *Result) error {
	ask := func(agent string) *answer {
		return s.do(ctx, request{path: "/v1/bots", timeout: 2 * patience, header: map[string]string{"User-Agent": agent}})
	}
	own := s.do(ctx, request{path: "/v1/bots"})
	if own.status != http.StatusOK {
		return nil // another check says what this is
	}
	var rejected []string
	var got *answer
	for _, agent := range agents {
		a := ask(agent)
		if a.status == http.StatusOK && a.isJSON() || a.status == http.StatusTooManyRequests {
			continue
		}
		rejected = append(rejected, agent)
		if got = a; a.status == 0 {
			break // each more would take as long
		}
	}
	// A service that fails now and then fails for each User-Agent.
	if len(rejected) == 0 || s.do(ctx, request{path: "/v1/bots"}).status != http.StatusOK || ask(rejected[len(rejected)-1]).status == http.StatusOK {
		return nil
	}
	r.found(Finding{
		Sent:    "GET /v1/bots with User-Agent: " + strings.Join(rejected, ", or "),
		Arrived: got.show("Content-Type"),
		Effect:  "programs with these libraries cannot use the service, although browsers and other programs can",
		Cause:   "a firewall or bot filter in front has a rule on User-Agent: leave these paths out of it, since their clients are programs with a key",
		aside:   true,
	})
	return nil
}

func (r request) verb() string {
	if r.method == "" && r.body != "" {
		return http.MethodPost
	}
	if r.method == "" {
		return http.MethodGet
	}
	return r.method
}

func (s *stack) checkKey(ctx context.Context, r *Result) error {
	for _, req := range []request{{path: "/v1/bots"}, {path: "/v1/chat", body: "{}"}} {
		got := s.do(ctx, req)
		if got.status != http.StatusUnauthorized {
			continue
		}
		f := Finding{
			Sent:    fmt.Sprintf("%s %s with Authorization: Bearer and a valid key", req.verb(), req.path),
			Arrived: got.show("WWW-Authenticate"),
			Effect:  "clients with a valid key are rejected",
			Cause:   "a proxy or middleware removes or uses up the Authorization header (a login of its own, or a rule for caches)",
		}
		if got.detail() == "Invalid API key" {
			f.Cause = "a proxy or middleware replaces the Authorization header with one of its own"
		}
		r.found(f)
		return nil
	}
	s.checkAuthorization(ctx, r)
	return nil
}

// checkAuthorization sends keys as few clients do, and as docs/wire.md says that they may. Some
// proxies reject two headers, or long ones, so that only the kit sends these.
func (s *stack) checkAuthorization(ctx context.Context, r *Result) {
	for _, c := range []struct {
		what, value string
		status      int
		within      bool
		cause       string
	}{
		{"bearer in lower case, two spaces and a valid key", "bearer  " + s.Key, http.StatusOK, false,
			"middleware looks for the prefix \"Bearer \" as it is written: the scheme may have any case, and more than one space may follow"},
		{"Bearer and a valid key, and a second Authorization with another", "Bearer " + s.Key + "\nBearer another-key", http.StatusOK, true,
			"middleware takes the last Authorization (as fiber's adaptor does), or joins both: the first counts"},
		{"Bearer and an unknown key of 5 KiB", "Bearer " + strings.Repeat("k", 5<<10), http.StatusUnauthorized, true,
			"middleware bounds the length of headers or keys; keys that are signed tokens may have up to 8 KiB"},
	} {
		if c.within && s.kit == nil {
			continue
		}
		got := s.do(ctx, request{path: "/v1/bots", header: map[string]string{"Authorization": c.value}})
		isRejected := got.status >= 400 && got.status < 500 && got.status != http.StatusTooManyRequests
		isRight := got.status == c.status || got.status == http.StatusForbidden && c.status == http.StatusUnauthorized // of which the check of errors says more
		if isRight || !isRejected {
			continue
		}
		r.found(Finding{
			Sent:    "GET /v1/bots with Authorization: " + c.what,
			Arrived: fmt.Sprintf("%s; it should be a %d", got.show("Content-Type"), c.status),
			Effect:  "clients that write the header in this way are rejected, or do not learn that their key is wrong",
			Cause:   c.cause,
			aside:   true,
		})
		return
	}
}

// attacks are what web application firewalls look for, and what people ask models about.
const attacks = "Explain these lines: <script>alert(1)</script> ' UNION SELECT name FROM users; DROP TABLE users; -- ../../etc/passwd ${jndi:ldap://example.com/a}"

// A bodyCase is a body without the field stream, so that no model is asked.
type bodyCase struct {
	what, kind    string // kind is the Content-Type
	body          string
	chunked       bool
	accept        string // "": no Accept
	aside         bool   // no other check sends such a body
	effect, cause string // of each response but that of the API; "": they depend on the response
}

// fieldMissing is what the API replies to all of them.
const fieldMissing = `{"detail":[{"loc":["body","stream"],"msg":"field required","type":"value_error.missing"}]}`

// bodies has up to 32 KiB where other checks send such bodies, too: those have up to 24 KiB, so that a
// bound above this is no reason to skip them.
func (s *stack) bodies() []bodyCase {
	const long, longest = 32 << 10, 900 << 10 // below DefaultMaxBodyBytes, and below what proxies take
	const digits = "0123456789abcdef"
	prompt := func(text string) string { return unescaped(map[string]any{"bot_slug": s.bot, "prompt": text}) }
	integer := json.RawMessage(strings.Repeat("1234567890", 3)) // for the decoders of most languages, a number with a fraction
	return []bodyCase{
		{what: "a body of some bytes", kind: "application/json", body: prompt("Grüße")},
		{what: "a body of some bytes, with the Content-Type that curl sends", kind: "application/x-www-form-urlencoded", body: prompt("Grüße"), aside: true},
		{what: "a body without Content-Length", kind: "application/json", body: prompt("Grüße"), chunked: true, aside: true},
		{what: "a body of some bytes, with Accept: text/event-stream", kind: "application/json", body: prompt("Grüße"), accept: "text/event-stream", aside: true,
			effect: "clients of streams are rejected, or cannot read errors",
			cause:  "middleware decides by Accept what may be sent (406): the API ignores it, and replies to these clients with JSON, too"},
		{what: "a body with lines of attacks", kind: "application/json", body: prompt(attacks), aside: true,
			effect: "chats about code, web pages or databases fail",
			cause:  "a web application firewall takes the text of a prompt for an attack: leave the bodies of these paths out of its rules"},
		{what: "a body with an integer of 30 digits as user_id", kind: "application/json", aside: true,
			body:   unescaped(map[string]any{"bot_slug": s.bot, "prompt": "Grüße", "user_id": integer}),
			effect: "ids that are large integers become others, or are rejected",
			cause:  "middleware decodes bodies and encodes them again, with numbers that have room for 16 digits (any in Go, JSON.parse in JavaScript): pass the bytes on as they are, or decode with json.Decoder.UseNumber"},
		{what: "a body of 32 KiB", kind: "application/json", body: prompt(strings.Repeat(digits, long/len(digits)))},
		{what: "a body of 900 KiB", kind: "application/json", body: prompt(strings.Repeat(digits, longest/len(digits))), aside: true},
	}
}

// checkBody sends chats without the field stream: the response says what the API has read.
func (s *stack) checkBody(ctx context.Context, r *Result) error {
	for _, c := range s.bodies() {
		got := s.do(ctx, request{path: "/v1/chat", body: c.body, chunked: c.chunked, header: map[string]string{"Content-Type": c.kind, "Accept": c.accept}})
		if got.isFieldMissing() {
			continue
		}
		if got.status == http.StatusRequestEntityTooLarge && s.kit == nil && got.detail() == "Request body too large" {
			r.note("MaxBodyBytes is below 900 KiB")
			continue
		}
		if r.found(c.finding(got)); !c.aside {
			return nil
		}
	}
	if len(r.Findings) == 0 { // what decodes a body does both
		s.checkUTF8(ctx, r)
	}
	if s.Secret == "" {
		return nil
	}
	return s.checkPrompt(ctx, r)
}

// checkUTF8 sends a byte that no UTF-8 has, which the API rejects. Something in front may reject it,
// too, but not make another text of it.
func (s *stack) checkUTF8(ctx context.Context, r *Result) {
	body := strings.Replace(unescaped(map[string]any{"bot_slug": s.bot, "prompt": "caf+"}), "caf+", "caf\xE9", 1) // é in Latin-1
	got := s.do(ctx, request{path: "/v1/chat", body: body})
	if got.status != http.StatusUnprocessableEntity || !sameJSON(got.body, fieldMissing) {
		return
	}
	r.found(Finding{
		Sent:    "POST /v1/chat, a prompt in Latin-1, which is not UTF-8, and no field stream",
		Arrived: got.show("Content-Type") + "; so the API got a prompt in UTF-8",
		Effect:  "the model gets � in place of letters, and no error says so to the client",
		Cause:   "a proxy or middleware decodes bodies, or replaces bytes that are not valid UTF-8 (bytes.ToValidUTF8, or a decoder of text): pass the bytes on as they are",
		aside:   true,
	})
}

// isFieldMissing reports whether the API has read the body of a bodyCase as it was sent. The check of
// errors says what is wrong with the form of the response, if anything is.
func (a *answer) isFieldMissing() bool {
	if a.status == http.StatusUnprocessableEntity && (sameJSON(a.body, fieldMissing) || !a.isJSON()) {
		return true // the API itself replies JSON
	}
	return a.status >= 400 && strings.Contains(a.body, "field required") && strings.Contains(a.body, `"stream"`) && strings.Count(a.body, `"msg"`) == 1
}

// finding says why the response is not that of the API.
func (c bodyCase) finding(got *answer) Finding {
	f := Finding{
		Sent:    fmt.Sprintf("POST /v1/chat, %s (%s); that it has no field stream is on purpose: a 422 must say so, and no model is asked", c.what, c.kind),
		Arrived: got.show("Content-Type"),
		Effect:  c.effect,
		Cause:   c.cause,
		aside:   c.aside,
	}
	end := got.endOfBody()
	switch {
	case c.cause != "":
	case end > 0 && end < len(c.body):
		f.Arrived += fmt.Sprintf("; so the body ends after %d bytes of %d", end, len(c.body))
		f.Effect = "long conversations fail, although they are below MaxBodyBytes and valid"
		f.Cause = fmt.Sprintf("middleware or a proxy reads up to %s of a body (an audit or log of bodies, with io.LimitReader), puts back only what it has read, and loses the rest: put back io.MultiReader of both", bytesText(int64(end)))
	case got.status == http.StatusRequestEntityTooLarge || len(c.body) > 1000:
		f.Effect = "long conversations fail, although they are below MaxBodyBytes"
		f.Cause = "a proxy or middleware bounds the body below MaxBodyBytes (client_max_body_size, http.MaxBytesReader), or cannot write it to its disk"
	case got.status == http.StatusUnsupportedMediaType:
		f.Effect = "clients that send another Content-Type, such as curl, are rejected"
		f.Cause = "middleware checks the Content-Type, which the API ignores"
	case c.chunked:
		f.Effect = "clients that stream their body fail"
		f.Cause = "a proxy or middleware needs a Content-Length, or drops a body without one"
	default:
		f.Effect = "chats are rejected, or are not those that the client has sent"
		f.Cause = "middleware has read the body before the API did (a logger, r.ParseForm or r.FormValue, a check of signatures), or changes it"
	}
	return f
}

// endOfBody returns how many bytes of a request's body the API has read before it ended within a
// text, or 0 if the response does not say so.
func (a *answer) endOfBody() int {
	var e struct {
		Detail []struct {
			Loc []any
			Msg string
		}
	}
	if json.Unmarshal([]byte(a.body), &e) != nil || len(e.Detail) != 1 || len(e.Detail[0].Loc) != 2 || !strings.HasPrefix(e.Detail[0].Msg, "Unterminated string") {
		return 0
	}
	at, _ := e.Detail[0].Loc[1].(float64)
	return int(at)
}

// checkPrompt: the text of a chat reaches the engine as it is.
func (s *stack) checkPrompt(ctx context.Context, r *Result) error {
	p := s.play(ctx, false, request{}, probe.Step{Text: "x"})
	p.whole(ctx)
	run, err := s.see(ctx, p, probe.Begun, 0, 0)
	if err != nil {
		return fmt.Errorf("%w; the response was %s", err, p.show())
	}
	if sum := sha256.Sum256([]byte(probePrompt)); run.PromptSum == hex.EncodeToString(sum[:]) {
		return nil
	}
	r.found(Finding{
		Sent:    fmt.Sprintf("POST /v1/chat with a prompt of %d bytes, with markup and line ends", len(probePrompt)),
		Arrived: fmt.Sprintf("the engine got another prompt, of %d bytes", run.Prompt),
		Effect:  "the model does not answer what the user has written",
		Cause:   "a proxy or middleware changes bodies: it removes markup, escapes, or encodes again",
	})
	return nil
}

// unescaped is JSON with < and > as they are, as most clients write it.
func unescaped(v any) string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(v) // only texts
	return out.String()
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

const unknownPath = "an unknown path"

// hasDetail reports whether a response is an error in the API's own form.
func (a *answer) hasDetail() bool {
	var e struct{ Detail any }
	if json.Unmarshal([]byte(a.body), &e) != nil {
		return false
	}
	problems, _ := e.Detail.([]any)
	return a.detail() != "" || len(problems) > 0
}

func (s *stack) checkErrors(ctx context.Context, r *Result) error {
	list := s.do(ctx, request{path: "/v1/bots"})
	noBot := s.chat("This is a probe.", true, map[string]any{"bot_slug": "no-such-bot"})
	for _, c := range []struct {
		req    request
		status int
		header string // that must be there
		what   string
	}{
		{request{path: "/v1/no-such-path"}, http.StatusNotFound, "X-Request-Id", unknownPath},
		{request{path: "/v1/chat/", body: "{}"}, http.StatusNotFound, "X-Request-Id", unknownPath},
		{request{path: "/v1/chat"}, http.StatusMethodNotAllowed, "Allow", "a wrong method"},
		{request{path: "/v1/bots", body: "{}"}, http.StatusMethodNotAllowed, "Allow", "a wrong method"},
		{request{path: "/v1/bots", header: map[string]string{"Authorization": ""}}, http.StatusUnauthorized, "WWW-Authenticate", "no key"},
		{request{path: "/v1/chat", body: "{}", header: map[string]string{"Authorization": "Bearer no-such-key"}}, http.StatusUnauthorized, "WWW-Authenticate", "an unknown key"},
		{request{path: "/v1/chat", body: "{}"}, http.StatusUnprocessableEntity, "X-Request-Id", "a body without its fields"},
		{request{path: "/v1/chat", body: noBot}, http.StatusNotFound, "X-Request-Id", "an unknown bot"},
	} {
		mark := s.kit.mark()
		got := s.do(ctx, c.req)
		visits := s.kit.since(mark)
		isFormed := got.isJSON() && got.hasDetail() || got.isJSON() && c.what == unknownPath // which may have the form of another protocol
		if got.status == c.status && isFormed && got.header.Get(c.header) != "" || s.failed[checkBody] && c.req.body == noBot {
			continue
		}
		f := Finding{
			Sent:    fmt.Sprintf("%s %s: %s", c.req.verb(), c.req.path, c.what),
			Arrived: got.show("Content-Type", "Location", c.header),
			Effect:  fmt.Sprintf("a client cannot read what is wrong: it expects %d, JSON and %s", c.status, c.header),
			Cause:   "a router, proxy or middleware replaces the API's errors with its own (error pages, proxy_intercept_errors), or their headers",
		}
		switch {
		case got.isRedirect():
			f.Effect = "clients that follow the redirect turn a POST into a GET"
			f.Cause = "the router redirects paths that it finds untidy (RedirectTrailingSlash, StrictSlash); mount a whole subtree, without a method"
		case s.kit != nil && got.header.Get("X-Request-Id") == "" && len(visits) == 0 && (got.status == http.StatusNotFound || got.status == http.StatusMethodNotAllowed):
			f.Cause = "the router replies itself: its route has a method, or is a single path; mount a whole subtree, without a method"
		case s.kit == nil && got.header.Get("X-Request-Id") == "" && got.status == c.status:
			f.Cause += "; or the router replies itself, since its route has a method, or is a single path: mount a whole subtree, without a method"
		case c.status == http.StatusUnauthorized && got.status == http.StatusOK && list.status == http.StatusOK && got.body == list.body:
			f.Effect = "people without a key get answers"
			f.Cause = "something in front leaves out the verification of keys, or answers in the API's place"
			chat := s.do(ctx, request{path: "/v1/chat", body: "{}", header: map[string]string{"Authorization": ""}})
			if f.aside = chat.status == http.StatusUnauthorized; f.aside {
				f.Cause = "a cache that takes all clients for one answers (nginx's proxy_cache with proxy_ignore_headers, a rule of a CDN, a cache of the application's own): leave the list out of it"
			}
		case len(visits) > 0 && !visits[0].isAt(c.req.path):
			f.Arrived += fmt.Sprintf("; the API was asked for %q", visits[0].path)
			f.Effect = "clients with a wrong address get an answer, or an error about something else"
			f.Cause = "middleware rewrites paths (chi's StripSlashes or CleanPath, path.Clean): leave these paths out of it"
		case s.kit == nil && c.req.path == "/v1/chat/" && got.status == http.StatusUnprocessableEntity && got.hasDetail():
			f.Effect = "clients with a wrong address get an error about something else"
			f.Cause = "a proxy or middleware rewrites paths, since this is what the API replies at /v1/chat: it removes slashes or cleans paths; leave these paths out of it"
		case got.status != c.status && got.isJSON():
			f.Cause = "middleware changes the status of errors, or answers before the API does"
		case got.isJSON() && !isFormed:
			f.Effect = `a client cannot read what is wrong: it expects JSON with a "detail"`
			f.Cause = "middleware writes errors in a form of its own, such as an envelope: leave these paths out of it"
		}
		r.found(f)
		return nil
	}
	return nil
}

func (s *stack) checkHeaders(ctx context.Context, r *Result) error {
	key, id := "botapi-doctor-"+rand.Text(), "botapi-doctor-"+rand.Text() // a service that keeps answers knows each key for a while
	p := s.play(ctx, false, request{header: map[string]string{"Idempotency-Key": key, "X-Request-Id": id}}, probe.Step{Text: "x"})
	p.whole(ctx)
	run, err := s.see(ctx, p, probe.Begun, 0, 0)
	if err != nil {
		return fmt.Errorf("%w; the response was %s", err, p.show())
	}
	if got := run.Header["Idempotency-Key"]; got != key {
		r.found(Finding{
			Sent:    "POST /v1/chat with an Idempotency-Key",
			Arrived: fmt.Sprintf("the engine got Idempotency-Key %q", got),
			Effect:  "a client that loses its connection cannot come back for its answer, and pays for a second one",
			Cause:   "a proxy or middleware passes only the request headers on that it knows",
		})
	}
	got := p.header.Get("X-Request-Id")
	if got == run.RequestID && got != "" {
		return nil
	}
	f := Finding{
		Sent:    "POST /v1/chat with X-Request-Id: " + id,
		Arrived: fmt.Sprintf("a response with X-Request-Id %q; the API, and so the service's log, has %q", got, run.RequestID),
		Effect:  "the id that a client sees in the response, and reports, is in no log",
		Cause:   "a proxy or middleware sets one X-Request-Id in the request and another in the response",
	}
	switch {
	case got == "":
		f.Effect, f.Cause = "clients see no id that they could report", "a proxy or middleware removes X-Request-Id from responses"
	case run.RequestID == id:
		f.Arrived += ": the id of the request has arrived, and that of the response was replaced"
		f.Cause = "a proxy or middleware replaces X-Request-Id in responses (nginx's proxy_hide_header and add_header X-Request-Id $request_id): leave it as it is there, and if the ids are to be the proxy's own, set them in the request (proxy_set_header X-Request-Id $request_id)"
	}
	r.found(f)
	return nil
}

func (s *stack) checkList(ctx context.Context, r *Result) error {
	first := s.do(ctx, request{path: "/v1/bots"})
	tag := first.header.Get("ETag")
	again := s.do(ctx, request{path: "/v1/bots", header: map[string]string{"If-None-Match": tag}})
	head := s.do(ctx, request{method: http.MethodHead, path: "/v1/bots"})
	f := Finding{
		Sent:   "GET /v1/bots, and again with If-None-Match",
		Effect: "pages fetch the complete list each time, or show an old one",
		Cause:  "a proxy or middleware removes ETag or If-None-Match, or sets its own rules for caches",
	}
	switch {
	case tag == "":
		f.Arrived = first.show("ETag")
	case again.status != http.StatusNotModified || again.body != "":
		f.Arrived = again.show("ETag")
	case !strings.Contains(first.header.Get("Cache-Control"), "no-cache") && !strings.Contains(first.header.Get("Cache-Control"), "no-store"):
		f.Arrived = first.show("Cache-Control")
		f.Effect = "a cache between may show one account the bots of another, or an old list"
	case head.status != http.StatusOK:
		f.Sent, f.Arrived, f.Effect = "HEAD /v1/bots", head.show(), "clients that ask by HEAD whether the list is there fail"
		f.Cause = "the route allows GET only; mount a whole subtree, without a method"
	default:
		s.checkTags(ctx, r, tag)
		return s.checkCaches(ctx, r, first)
	}
	r.found(f)
	return nil
}

// checkTags sends If-None-Match in its other forms, which caches use. Proxies may answer them
// themselves, so that only the kit does.
func (s *stack) checkTags(ctx context.Context, r *Result, tag string) {
	if s.kit == nil {
		return
	}
	strong := strings.TrimPrefix(tag, "W/")
	for _, value := range []string{`"another", ` + strong, "W/" + strong, "*"} {
		got := s.do(ctx, request{path: "/v1/bots", header: map[string]string{"If-None-Match": value}})
		if got.status == http.StatusNotModified {
			continue
		}
		r.found(Finding{
			Sent:    fmt.Sprintf("GET /v1/bots with If-None-Match: %s, where %s is the current one", value, tag),
			Arrived: got.show("ETag"),
			Effect:  "caches fetch the complete list each time: they send several tags, and weak ones of compressed responses",
			Cause:   "middleware sets an ETag of its own, or compares If-None-Match as one text: leave both to the API",
			aside:   true,
		})
		return
	}
}

// checkCaches looks for a cache that keeps the list although it may not. The handler gives each
// request an id of its own.
func (s *stack) checkCaches(ctx context.Context, r *Result, first *answer) error {
	fresh := "/v1/bots?fresh=" + rand.Text() // no cache has it
	zipped := s.do(ctx, request{path: fresh, header: map[string]string{"Accept-Encoding": "gzip"}})
	plain := s.do(ctx, request{path: fresh})
	if encoding := plain.header.Get("Content-Encoding"); zipped.header.Get("Content-Encoding") != "" && encoding != "" {
		r.found(Finding{
			Sent:    "GET /v1/bots with Accept-Encoding: gzip, and again without it",
			Arrived: "the second time, too: " + plain.show("Content-Encoding", "Vary"),
			Effect:  "clients that cannot decompress get bytes that they cannot read",
			Cause:   "a cache in front of compression ignores Vary: Accept-Encoding, or the compression does not send that: leave the list out of the cache, which its Cache-Control (private, no-cache) says; or something compresses for clients that have not asked for it",
		})
		return nil
	}
	if plain.isJSON() && zipped.status == http.StatusOK && !zipped.isJSON() {
		r.found(Finding{
			Sent:    "GET /v1/bots with Accept-Encoding: gzip, decompressed as Content-Encoding says",
			Arrived: zipped.show("Content-Type", "Content-Encoding"),
			Effect:  unreadable,
			Cause:   zipped.wrongCompression(),
		})
		return nil
	}
	again := s.do(ctx, request{path: "/v1/bots"})
	id := again.header.Get("X-Request-Id")
	if id == "" || id != first.header.Get("X-Request-Id") {
		return nil
	}
	if open := s.do(ctx, request{path: "/v1/bots", header: map[string]string{"Authorization": ""}}); open.status == http.StatusOK {
		return nil // the cache takes all clients for one, which the check of errors has found
	}
	r.found(Finding{
		Sent:    "GET /v1/bots, twice, without an X-Request-Id",
		Arrived: fmt.Sprintf("the same response twice, with X-Request-Id %q", id),
		Effect:  "clients see an old list after a change, and the log has none of their requests",
		Cause:   "a cache in front answers, although Cache-Control says private, no-cache (nginx's proxy_cache with proxy_ignore_headers, a rule of a CDN, a cache of the application's own): leave the list out of it",
	})
	return nil
}

const unreadable = "clients that accept compression, which all browsers do and most libraries, get bytes that they cannot read"

// isStillCompressed reports whether a body is gzip after it was decompressed.
func (a *answer) isStillCompressed() bool { return strings.HasPrefix(a.body, "\x1f\x8b") }

// wrongCompression is the likely cause of a body that is not what it was before it was compressed.
func (a *answer) wrongCompression() string {
	if a.isStillCompressed() {
		return "there are two compressors, the second of which does not look whether there is a Content-Encoding: mount the middleware once, around the whole mux or around a route, and turn off that of the proxy or of the service"
	}
	return "compression damages the body, or does not set Content-Encoding to what it has done"
}

// doors are the requests of pages, of all protocols that may be mounted.
var doors = []struct{ method, path string }{
	{"GET", "/v1/bots"},
	{"POST", "/v1/chat"},
	{"DELETE", "/v1/answers"},
	{"POST", "/v1/chat/completions"},
	{"POST", "/v1/responses"},
	{"POST", "/api/chat"},
	{"GET", "/bots"},
	{"POST", "/chat"},
}

// checkCORS tries an origin that it makes up if none was named. If that is not allowed, pages do not
// use the service, or only those of origins that it cannot know.
func (s *stack) checkCORS(ctx context.Context, r *Result) error {
	origin, isUsed := s.Origin, s.Origin != ""
	if !isUsed {
		origin = "https://botapi-doctor.example"
	}
	for _, door := range doors {
		mark := s.kit.mark()
		rejected := s.do(ctx, request{method: door.method, path: door.path, header: map[string]string{"Origin": origin, "Authorization": ""}})
		if s.kit != nil && len(s.kit.since(mark)) == 0 || s.kit == nil && (rejected.status != http.StatusUnauthorized || !rejected.isJSON()) {
			continue // it is not mounted
		}
		preflight := s.do(ctx, request{method: http.MethodOptions, path: door.path, header: map[string]string{
			"Authorization":                  "",
			"Origin":                         origin,
			"Access-Control-Request-Method":  door.method,
			"Access-Control-Request-Headers": strings.Join(pageHeaders, ","),
		}})
		if !isUsed && rejected.header.Get("Access-Control-Allow-Origin") == "" && preflight.header.Get("Access-Control-Allow-Origin") == "" {
			r.note("the origin %s, which the doctor made up, is not allowed (CORS): check one of yours with --origin", origin)
			return nil
		}
		isUsed = true // so each other door must allow the origin
		f := Finding{Effect: "pages of other origins cannot use the service: their browsers hide the response"}
		if f.Cause = corsPreflight(preflight, origin, door.method); f.Cause != "" {
			f.Sent = fmt.Sprintf("OPTIONS %s with Origin, as a browser does before a %s", door.path, door.method)
			f.Arrived = preflight.show("Access-Control-Allow-Origin", "Access-Control-Allow-Methods", "Access-Control-Allow-Headers")
			r.found(f)
			return nil
		}
		if f.Cause = corsResponse(rejected, origin); f.Cause != "" {
			if corsAllows(rejected, origin) && !corsTwice(rejected) {
				f.Effect = "pages of other origins do not learn when to try again, nor the id of a request that failed"
			}
			f.Sent = fmt.Sprintf("%s %s with Origin, without a key", door.method, door.path)
			f.Arrived = rejected.show("Access-Control-Allow-Origin", "Access-Control-Expose-Headers")
			r.found(f)
			return nil
		}
	}
	return nil
}

// pageHeaders are what pages send: those of the API, and one of OpenAI's library.
var pageHeaders = []string{"authorization", "content-type", "idempotency-key", "x-request-id", "x-stainless-lang"}

// corsPreflight says what is wrong with the response to a preflight, or "".
func corsPreflight(a *answer, origin, method string) string {
	switch {
	case a.status < 200 || a.status > 299:
		return "the preflight is not answered by CORS middleware: wrap the mux with it, not one route, and let it reply to OPTIONS itself, without a key"
	case corsTwice(a):
		return twoOrigins
	case !corsAllows(a, origin):
		return "this path allows no such origin: wrap the mux with the CORS middleware, and name the origin there"
	case method != "GET" && method != "POST" && !listed(a, "Access-Control-Allow-Methods", method):
		return "the CORS middleware does not allow the method " + method
	}
	for _, name := range pageHeaders {
		wildcard := name != "authorization" && listed(a, "Access-Control-Allow-Headers", "*")
		if !wildcard && !listed(a, "Access-Control-Allow-Headers", name) {
			return "the CORS middleware does not allow the request header " + name + " (* does not include Authorization)"
		}
	}
	return ""
}

// corsResponse says what is wrong with a response that a page gets, or "".
func corsResponse(a *answer, origin string) string {
	switch {
	case corsTwice(a):
		return twoOrigins
	case !corsAllows(a, origin):
		return "errors have no CORS headers: wrap the mux with the CORS middleware"
	}
	for _, name := range []string{"Retry-After", "X-Request-Id"} {
		if !listed(a, "Access-Control-Expose-Headers", name) && !listed(a, "Access-Control-Expose-Headers", "*") {
			return "the CORS middleware does not expose " + name + " to pages (Access-Control-Expose-Headers)"
		}
	}
	return ""
}

const twoOrigins = "Access-Control-Allow-Origin is there twice, which browsers take for none: two of them set it, such as the service and a proxy in front of it (nginx's add_header), or two middlewares; only one may"

// corsTwice reports whether two have set the origin, in two lines or, joined by a proxy, in one.
func corsTwice(a *answer) bool {
	return strings.Contains(strings.Join(a.header.Values("Access-Control-Allow-Origin"), ","), ",")
}

// corsAllows: a browser takes exactly one value.
func corsAllows(a *answer, origin string) bool {
	allowed := a.header.Values("Access-Control-Allow-Origin")
	return len(allowed) == 1 && (allowed[0] == "*" || allowed[0] == origin)
}

func listed(a *answer, header, value string) bool {
	return slices.ContainsFunc(a.header.Values(header), func(line string) bool {
		return slices.ContainsFunc(strings.Split(line, ","), func(v string) bool { return strings.EqualFold(strings.TrimSpace(v), value) })
	})
}
