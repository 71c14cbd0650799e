// Package stackcheck checks what is between a botapi handler and its clients: router,
// middleware, proxies. It has one table of checks. examples/botapitest runs them in a test,
// around a handler of its own; examples/doctor runs them against a service.
//
// A check says what is wrong by order and cause, not by time: a fragment must arrive while
// the engine waits for the check to go on. Times only bound how long a check waits for what
// does not come.
package stackcheck

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Target is a service to check.
type Target struct {
	URL    string // where /v1/bots is: https://host or https://host/prefix
	Key    string
	Secret string // of botapitest.Probed; empty if the service has none
	Origin string // of pages that must be able to use the service; empty if there are none

	// Silence is how long a stream is silent at least; it ends no earlier than with the first
	// keep-alive or after four times the Patience.
	Silence time.Duration

	// Patience is how long a check waits for what a broken stack holds back; 0 means five seconds.
	Patience time.Duration

	// Transport returns a new transport, with connections of its own; nil means one like
	// http.DefaultTransport.
	Transport func() *http.Transport

	// Delayed, if not nil, is called at most once: when a limit of requests per second first makes
	// the checks wait. It gets what the response says.
	Delayed func(says string)
}

// patience is how long a check waits for what should come, and comes late on a busy machine.
const patience = 5 * time.Second

// A Finding is one thing that is wrong.
type Finding struct {
	Check   string `json:"check"`
	Sent    string `json:"sent"`    // what the client, and the engine, did
	Arrived string `json:"arrived"` // what came of it
	Effect  string `json:"effect"`  // what a user notices
	Cause   string `json:"cause"`   // the likely one
	Doc     string `json:"doc"`     // the paragraph that says what to do; set by the table

	// NotRun counts the checks that are skipped because of this. Of several findings of one
	// check, the last has it.
	NotRun int `json:"not_run,omitempty"`

	aside   bool // other checks can be made in spite of this
	general bool // it has nothing to do with what the check looks at
	isOwn   bool // a failure of the service itself

	// causeAlone is the cause if another version of HTTP is right.
	causeAlone string
}

func (f Finding) String() string {
	text := fmt.Sprintf("sent:    %s\narrived: %s\neffect:  %s\ncause:   %s\nsee:     %s", f.Sent, f.Arrived, f.Effect, f.Cause, f.Doc)
	if f.NotRun > 0 {
		text += "\n" + notRun(f.NotRun)
	}
	return text
}

func notRun(n int) string {
	if n == 1 {
		return "1 check not run because of this"
	}
	return fmt.Sprintf("%d checks not run because of this", n)
}

// A Result is what one check has found.
type Result struct {
	Check    string    `json:"check"`
	Findings []Finding `json:"findings,omitempty"`
	Skipped  string    `json:"skipped,omitempty"` // why the check was not made, or not needed
	Problem  string    `json:"problem,omitempty"` // why it could not be made
	Clock    []Clock   `json:"clock,omitempty"`   // of the stream whose fragments were followed
	Notes    []string  `json:"notes,omitempty"`   // facts, such as the HTTP version
}

// A Clock says when one fragment was yielded, if that is known, and when it arrived, in
// milliseconds since the request was sent, by the clocks of the engine and of the client.
type Clock struct {
	Yielded float64 `json:"yielded_ms,omitempty"`
	Arrived float64 `json:"arrived_ms"`
}

// A check is one row of the table.
type check struct {
	name string

	// needs names checks; if one of them has found something, this one could say nothing new.
	needs []string

	together int // chats that it has open at the same time, orders included; 0: 1

	probed bool // it needs an engine that is probed
	plain  bool // it is only for an engine that is not probed
	within bool // it needs to see the handler from within
	once   bool // it does not depend on the version of HTTP

	chats  int // it sends at most, orders included, but without asks
	asks   int // orders that are sent until they reach the replica of a chat: up to tries times
	tokens int // of the chats, those that a model answers

	// rounds is how often it runs if the service has several replicas, of which one alone, or
	// one proxy in front of it, may be broken; 0 means once.
	rounds int

	run func(*stack, context.Context, *Result) error
}

// checks is the table, in the order of the output: what makes others fail comes first.
var checks = slices.Concat(requestChecks, streamChecks, handlerChecks)

// A Plan is what a diagnosis will do.
type Plan struct {
	Checks int
	Chats  int // at most, with many replicas
	One    int // about so many chats with one replica, if nothing is wrong
	Tokens int // of these, chats that cost a model's tokens
	Probed int // checks that are made with a secret
}

// discovery is how many orders, each on a connection of its own, find out whether there are
// several replicas.
const discovery = 4

// rounds is how often a check runs that a single replica may fail.
const rounds = 3

// PlanFor says how much Diagnose sends.
func PlanFor(target Target) Plan {
	p := Plan{}
	if target.Secret != "" {
		p.Chats, p.One = 1+discovery, 1+discovery // the first order asks whether there is a probe
	}
	for _, c := range checks {
		if c.isFor(true, false) {
			p.Probed++
		}
		if !c.isFor(target.Secret != "", false) {
			continue
		}
		times := 1
		if target.isSecure() && !c.once {
			times = 2 // versions of HTTP
		}
		asks := c.asks
		if target.Secret == "" {
			asks = 0
		}
		p.Checks++
		p.Chats += times * max(c.rounds, 1) * (c.chats + asks*tries)
		p.One += times * (c.chats + asks)
		p.Tokens += times * c.tokens
	}
	return p
}

// isSecure reports whether the service may speak HTTP/2.
func (t Target) isSecure() bool { return strings.HasPrefix(strings.ToLower(t.URL), "https:") }

func (c check) isFor(probed, within bool) bool {
	return (!c.probed || probed) && (!c.plain || !probed) && (!c.within || within)
}

// ErrUnreachable and the errors that wrap it say why nothing could be checked.
var ErrUnreachable = errors.New("the service cannot be checked")

// Diagnose runs the checks against a service: on HTTP/2 if it speaks that, and on HTTP/1.1. With
// an error, which wraps ErrUnreachable, there are no results.
func Diagnose(ctx context.Context, target Target) ([]Result, error) {
	s := newStack(target)
	s.sent.bound = int64(PlanFor(target).Chats)
	defer s.close()
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	stacks := []*stack{s}
	if s.protocol == "HTTP/2.0" {
		older := newStack(s.Target.speaking((*http.Protocols).SetHTTP1))
		older.protocol, older.bot, older.sent = "HTTP/1.1", s.bot, s.sent
		defer older.close()
		stacks = append(stacks, older)
	}
	return runChecks(ctx, stacks, nil), ctx.Err()
}

// speaking returns a target with transports for one version of HTTP.
func (t Target) speaking(set func(*http.Protocols, bool)) Target {
	transport := t.Transport
	t.Transport = func() *http.Transport {
		made := transport()
		if made.TLSClientConfig != nil {
			made.TLSClientConfig.NextProtos = nil // net/http may have named HTTP/2 there
		}
		made.TLSNextProto, made.Protocols = nil, new(http.Protocols)
		set(made.Protocols, true)
		return made
	}
	return t
}

// runChecks runs each check of the table on each stack, which differ in the version of HTTP.
// report, if not nil, gets each result.
func runChecks(ctx context.Context, stacks []*stack, report func(Result)) []Result {
	var results []Result
	failed, faults := make(map[string]bool), stacks[0].faults
	faults.take() // what there was before the first check
	for _, s := range stacks {
		s.failed, s.faults = failed, faults
	}
	isFor := func(c check) bool { return c.isFor(stacks[0].Secret != "", stacks[0].kit != nil) }
	for at, c := range checks {
		if !isFor(c) || ctx.Err() != nil {
			continue
		}
		r := Result{Check: c.name}
		if cause := c.skippedFor(failed, stacks[0].sent.room.Load()); cause != "" {
			r.Skipped = whySkipped(results, cause)
		} else {
			c.runOn(ctx, stacks, &r)
			c.addLimit(faults, &r)
		}
		if failed[c.name] = r.stopsOthers(); failed[c.name] {
			r.countNotRun(slices.DeleteFunc(slices.Clone(checks[at+1:]), func(c check) bool { return !isFor(c) }), failed, stacks[0].sent.room.Load())
		}
		results = append(results, r)
		if report != nil {
			report(r)
		}
	}
	return results
}

// addLimit puts the finding about a limit first, whatever else the check has found: its requests have
// arrived nevertheless.
func (c check) addLimit(f *faults, r *Result) {
	limit := f.takeLimit(c.name)
	if limit == nil {
		return
	}
	limit.Check, limit.Doc = c.name, c.doc()
	r.Findings = append([]Finding{*limit}, r.Findings...)
}

// whySkipped says why a check is skipped that needs an earlier one.
func whySkipped(earlier []Result, cause string) string {
	at := slices.IndexFunc(earlier, func(r Result) bool { return r.Check == cause })
	if earlier[at].Problem != "" {
		return fmt.Sprintf("it needs %q, which could not be checked", cause)
	}
	return fmt.Sprintf("first mend what %q has found", cause)
}

// stopsOthers reports whether checks that need this one could say nothing new.
func (r *Result) stopsOthers() bool {
	return r.Problem != "" || slices.ContainsFunc(r.Findings, func(f Finding) bool { return !f.aside })
}

// isGeneral reports whether a finding has nothing to do with what the check looks at.
func (r *Result) isGeneral() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.general })
}

// skippedFor is the first check of the table that has failed and that this one needs, or "". That
// chats wait for each other is no reason if there is room for as many as this check has.
func (c check) skippedFor(failed map[string]bool, room int64) string {
	for _, earlier := range checks {
		if failed[earlier.name] && slices.Contains(c.needs, earlier.name) && !(earlier.name == checkSameTime && room >= int64(max(c.together, 1))) {
			return earlier.name
		}
	}
	return ""
}

// countNotRun adds how many of the later checks are skipped because of this one.
func (r *Result) countNotRun(later []check, failed map[string]bool, room int64) {
	n := 0
	for _, c := range later {
		if c.skippedFor(failed, room) == r.Check {
			n++
		}
	}
	switch last := len(r.Findings) - 1; {
	case last >= 0:
		r.Findings[last].NotRun = n
	case n > 0:
		r.Problem += "; " + notRun(n)
	}
}

// runOn runs a check on each stack, up to the first that finds something.
func (c check) runOn(ctx context.Context, stacks []*stack, r *Result) {
	for i, s := range stacks {
		if c.once && i > 0 {
			return
		}
		c.runWith(ctx, s, r)
		if len(stacks) > 1 && !c.once {
			for j := range r.Findings {
				r.Findings[j].Sent = s.protocol + ": " + r.Findings[j].Sent
			}
			c.compare(ctx, stacks, i, r)
		}
		for j := range r.Findings {
			r.Findings[j].Check, r.Findings[j].Doc = c.name, c.doc()
		}
		if len(r.Findings) > 0 || r.Problem != "" {
			return
		}
	}
}

// isTimed reports whether a check sees something else if one of its requests is delayed.
func (c check) isTimed() bool { return c.together > 0 || c.name == checkSameTime }

// runWith runs a check on one stack, and once more if a limit of requests per second has delayed one
// whose times matter.
func (c check) runWith(ctx context.Context, s *stack, r *Result) {
	before := *r
	for range 2 {
		*r = before
		delayed := s.sent.delayed.Load()
		if c.isTimed() && s.sent.rested.Swap(delayed) < delayed {
			sleep(ctx, longestPause) // so that a burst is possible again
		}
		c.runOnce(ctx, s, r)
		if !c.isTimed() || s.sent.delayed.Load() == delayed || r.isGeneral() {
			return
		}
	}
	r.Findings, r.Problem = nil, fmt.Sprintf("a limit of requests per second has delayed it twice (%s): raise it, or use a key with a higher one", s.sent.rejection())
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (c check) runOnce(ctx context.Context, s *stack, r *Result) {
	rejected := s.sent.rejected.Load()
	err := c.runRounds(ctx, s, r)
	var page *pageError
	switch isPage := errors.As(err, &page); {
	case ctx.Err() != nil:
	case isPage:
		s.faults.tell(c.name, page.finding(), r)
	case err != nil:
		r.Problem = err.Error()
	}
	if page == nil && s.sent.rejected.Load() > rejected {
		r.Findings, r.Problem = nil, fmt.Sprintf("a limit has rejected a request (%s): the checks need %s", s.sent.rejection(), limitsNeeded)
	}
	if own, limit := s.faults.take(); ctx.Err() == nil && own != nil {
		s.faults.tell(c.name, *own, r)
	} else if ctx.Err() == nil && limit != nil && page == nil && c.isMisled(ctx, s, r, limit) {
		s.faults.tell(c.name, limit.finding(), r)
	}
}

// isMisled reports whether a page is the reason of what a check has found, and not the check's own
// request: then another request gets one, too. Two checks look at pages themselves.
func (c check) isMisled(ctx context.Context, s *stack, r *Result, page *pageError) bool {
	if len(r.Findings) == 0 && r.Problem == "" || c.name == checkReach || c.name == checkSilence {
		return false
	}
	defer s.faults.take() // the page of this request
	return page.isSure || s.do(ctx, request{path: "/v1/bots"}).isPage()
}

// compare says of findings of one version of HTTP whether the others are right. The kit runs no
// check for that: middleware seldom looks at the version.
func (c check) compare(ctx context.Context, stacks []*stack, at int, r *Result) {
	var right []string
	for _, earlier := range stacks[:at] {
		right = append(right, earlier.protocol)
	}
	var other Result
	if r.isGeneral() {
		return
	}
	if at == 0 && len(r.Findings) > 0 && stacks[0].kit == nil {
		c.runWith(ctx, stacks[1], &other)
		if other.isGeneral() {
			r.Findings = other.Findings
			return
		}
		if other.Problem != "" || ctx.Err() != nil {
			return
		}
		if len(other.Findings) == 0 {
			right = append(right, stacks[1].protocol)
		}
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		isSame := slices.ContainsFunc(other.Findings, func(o Finding) bool { return o.Effect == f.Effect })
		switch rightOnes := strings.Join(right, " and "); {
		case rightOnes != "":
			f.Arrived += "; on " + rightOnes + " it is right"
			if f.causeAlone != "" {
				f.Cause = f.causeAlone
			} else if stacks[at].kit == nil {
				f.Cause += fmt.Sprintf("; since it is right on %s, look at what speaks %s with clients", rightOnes, stacks[at].protocol)
			}
		case isSame:
			f.Arrived += "; on " + stacks[1].protocol + " it is the same"
		case len(other.Findings) > 0:
			f.Arrived += "; on " + stacks[1].protocol + " it is wrong in another way"
		}
	}
}

// limitsNeeded is what limits must let pass; docs/operating.md says the same.
const limitsNeeded = "eight concurrent chats, 24 with several replicas, and 100 requests per second"

// runRounds runs a check once, or in rounds if several replicas were seen. Then findings say how
// many of the rounds have failed.
func (c check) runRounds(ctx context.Context, s *stack, r *Result) error {
	n := 1
	if s.sent.hasReplicas() {
		n = max(c.rounds, 1)
	}
	failed := 0
	for i := range n {
		one := Result{Clock: r.Clock, Notes: r.Notes}
		stack := s
		if i > 0 {
			stack = s.alone() // whose connection may lead to another replica
		}
		err := c.run(stack, ctx, &one)
		if i > 0 {
			stack.close()
		}
		r.Clock, r.Notes = one.Clock, one.Notes
		if err != nil {
			return err
		}
		if len(one.Findings) > 0 {
			failed++
		}
		if len(r.Findings) == 0 {
			r.Findings = one.Findings
		}
	}
	for i := range r.Findings {
		if n > 1 {
			r.Findings[i].Arrived += fmt.Sprintf("; so it was in %d of %d tries", failed, n)
		}
		if failed < n {
			r.Findings[i].Cause += "; since not each try fails, check each replica, and each proxy, alone"
		}
	}
	return nil
}

// doc is the paragraph about a check: its heading is the check's name.
func (c check) doc() string {
	return "docs/operating.md#" + strings.NewReplacer("'", "", ",", "", " ", "-").Replace(strings.ToLower(c.name))
}

// found adds a finding.
func (r *Result) found(f Finding) { r.Findings = append(r.Findings, f) }

func (r *Result) note(format string, values ...any) {
	if note := fmt.Sprintf(format, values...); !slices.Contains(r.Notes, note) {
		r.Notes = append(r.Notes, note)
	}
}

// The names of the checks. docs/operating.md has a paragraph about each, under its name.
const (
	checkReach      = "requests reach the API"
	checkKey        = "the key arrives"
	checkBody       = "request bodies arrive unchanged"
	checkErrors     = "errors keep their form"
	checkHeaders    = "request headers arrive"
	checkList       = "the list is cached"
	checkCORS       = "pages of other origins are allowed everywhere, or nowhere"
	checkWriter     = "the handler can flush and set deadlines"
	checkTimeLimit  = "chats have no time limit but the handler's own"
	checkAnswer     = "an answer of a bot arrives"
	checkSameTime   = "chats do not wait for each other"
	checkOneByOne   = "fragments arrive one by one"
	checkStream     = "a stream keeps its headers and its text"
	checkCompressed = "fragments of a compressed stream arrive one by one"
	checkSilence    = "a silent stream stays open"
	checkLongJSON   = "a long JSON response arrives complete"
	checkFailure    = "an incomplete answer looks incomplete"
	checkEarly      = "an engine's error arrives"
	checkDisconnect = "a disconnect stops the model"
	checkSlowReader = "a client that does not read slows the model down"
	checkOnce       = "each chat runs once"
	checkReuse      = "connections are used again"
	checkNoKey      = "no log has a key"
)

// quoted shows bytes that have arrived, shortened.
func quoted(text string) string {
	const most = 300
	if len(text) > most {
		return fmt.Sprintf("%q and %d bytes more", strings.ToValidUTF8(text[:most], ""), len(text)-most)
	}
	return fmt.Sprintf("%q", text)
}
