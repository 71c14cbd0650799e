package botapitest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
)

// This file has what TestStore, TestKeys and TestEngine share.

// A rule is a sentence of a contract, or a part of one, as a doc comment of package botapi
// has it.
type rule string

const (
	ruleConcurrent rule = "It must be safe for concurrent use."
	ruleStatus     rule = "4xx or 5xx; anything else becomes a 500, without the Detail"
	ruleCancelled  rule = "is cancelled when the client disconnects"
	ruleDeadline   rule = "handler sets no deadline"
)

// A problem is one call that broke a rule.
type problem struct {
	rule     rule
	called   string
	returned string // what came back
	client   string // what a client would get
	hint     string // the likely cause; may be empty
}

func (p problem) String() string {
	text := fmt.Sprintf("the contract says: %q\ncalled:     %s\ncame back:  %s\nthe client: %s", string(p.rule), p.called, p.returned, p.client)
	if p.hint != "" {
		text += "\nperhaps:    " + p.hint
	}
	return text
}

// isLost reports whether the problem is a call that has not come back.
func (p problem) isLost() bool { return strings.HasSuffix(p.returned, notReturned) }

const notReturned = "has not returned"

// A partCheck is one subtest of a part.
type partCheck struct {
	name string
	run  func() []problem // nil if there is nothing to check
	lack string           // why there is nothing to check
	lost *lostCall        // of all checks of the part
}

// skipped says why there is nothing to check; "" if there is.
func (c partCheck) skipped() string {
	if called, isLost := c.lost.get(); isLost {
		return "not run: " + called + " has not returned, and each further call might take as long"
	}
	return c.lack
}

// inOnePart makes checks share what they know of a lost call.
func inOnePart(lost *lostCall, checks []partCheck) []partCheck {
	for i, check := range checks {
		checks[i].lost = lost
		if run := check.run; run != nil {
			checks[i].run = func() []problem { return lost.without(run()) }
		}
	}
	return checks
}

// optional is a check that an application may leave out, and why it has nothing to check then.
func optional(name string, given bool, lack string, run func() []problem) partCheck {
	if !given {
		return partCheck{name: name, lack: lack}
	}
	return partCheck{name: name, run: run}
}

// maxProblems is how many problems of one subtest are worth reading.
const maxProblems = 5

func runChecks(t *testing.T, checks []partCheck) {
	t.Helper()
	for _, check := range checks {
		t.Run(check.name, func(t *testing.T) {
			if why := check.skipped(); why != "" {
				t.Skip(why)
			}
			problems := check.run()
			for i, p := range problems {
				if i == maxProblems {
					t.Errorf("and %d more", len(problems)-maxProblems)
					break
				}
				t.Errorf("%s", p)
			}
		})
	}
}

const (
	// promptly is how soon a part must return once its context is cancelled: the handler waits
	// no longer for an engine.
	promptly = 500 * time.Millisecond
	// attempts is how often something may take longer than promptly: the machine may be busy.
	attempts = 3
	// patience is how long a call may take that nobody has cancelled, and one that was cancelled
	// before it counts as one that never returns.
	patience  = 10 * time.Second
	unlimited = time.Hour
)

// A result is what a call came back with.
type result[T any] struct {
	value    T
	err      error
	panicked any
	exited   bool // with runtime.Goexit, as t.FailNow does
	late     bool // it has not come back
}

// call calls f in a goroutine of its own, which outlives a call that does not come back.
func call[T any](limit time.Duration, f func() (T, error)) result[T] {
	done := make(chan result[T], 1)
	go func() {
		r := result[T]{exited: true}
		defer func() {
			if v := recover(); v != nil {
				r.panicked, r.exited = v, false
			}
			done <- r
		}()
		r.value, r.err = f()
		r.exited = false
	}()
	select {
	case r := <-done:
		return r
	case <-time.After(limit):
		return result[T]{late: true}
	}
}

// A lostCall is the first call of a part that has not come back. No more are made then: each
// might take as long, and go test would end the test before it can say why.
type lostCall struct {
	rule   rule   // that it breaks
	client string // what its client gets
	called atomic.Pointer[string]
}

func (l *lostCall) get() (called string, isLost bool) {
	if p := l.called.Load(); p != nil {
		return *p, true
	}
	return "", false
}

func (l *lostCall) set(called string) { l.called.CompareAndSwap(nil, &called) }

// without returns what a check has found without the calls that were not made. It adds the
// lost one if the check says nothing of it.
func (l *lostCall) without(found []problem) []problem {
	called, isLost := l.get()
	if !isLost {
		return found
	}
	lost := problem{l.rule, called, "nothing: it " + notReturned, l.client, lostHint}
	made := []problem{}
	for _, p := range found {
		switch {
		case !p.isLost():
			made = append(made, p)
		case strings.HasPrefix(p.called, called):
			lost, lost.hint = p, lostHint
		}
	}
	return append([]problem{lost}, made...)
}

const (
	waitsForever = "no response: the handler sets no deadline"
	lostHint     = "the database or the model does not respond, or an earlier call, such as one that failed, found nothing or was cancelled, has kept a lock or a connection"
)

// callPart calls f, unless a call of the part is lost.
func callPart[T any](lost *lostCall, called string, limit time.Duration, f func() (T, error)) result[T] {
	if _, isLost := lost.get(); isLost {
		return result[T]{late: true}
	}
	r := call(limit, f)
	if r.late {
		lost.set(called)
	}
	return r
}

// beside makes a call that is cancelled, and several at the same time that nobody cancels: of
// these, it returns one that is not right, if any is. They mostly come after the first, and are
// several so that the race detector sees what a first call fills without a lock.
func beside[T any](cancelled, call func() result[T], isRight func(result[T]) bool) (first, other result[T]) {
	const others = 4
	done, begun := make(chan result[T], 1), make(chan struct{})
	go func() {
		close(begun)
		done <- cancelled()
	}()
	<-begun
	time.Sleep(50 * time.Microsecond)
	results := make([]result[T], others)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() { results[i] = call() })
	}
	all.Wait()
	wrong := slices.IndexFunc(results, func(r result[T]) bool { return !isRight(r) })
	return <-done, results[max(wrong, 0)]
}

// harm says how a cancelled call has harmed one beside it; "" if it has not, or if the call is
// wrong without that, too: other subtests say so.
func harm[T any](other result[T], call func() result[T], isRight func(result[T]) bool) (hint string) {
	if isRight(other) {
		return ""
	}
	again := call()
	switch {
	case isCancellation(again.err):
		return keptHint
	case other.late || isCancellation(other.err) || isRight(again):
		return "calls share one lookup, which has the context of the first"
	}
	return ""
}

// isCancellation reports whether an error is that of a context.
func isCancellation(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

const keptHint = "what a cancelled call has left is used again: a kept error, a sync.Once, a connection or a lock that was not released"

// returned reports whether the call has returned, with or without an error.
func (r result[T]) returned() bool { return !r.late && !r.exited && r.panicked == nil }

// withoutResult is the likely cause of a call that found nothing and did not say so: errorHint
// if it returned an error.
func (r result[T]) withoutResult(errorHint string) string {
	if r.panicked != nil {
		return "the code expects a result, or another form of name or key"
	}
	return errorHint
}

// ok reports whether the call has succeeded.
func (r result[T]) ok() bool { return r.returned() && r.err == nil }

func (r result[T]) String() string {
	switch {
	case r.late:
		return "nothing: the call " + notReturned
	case r.exited:
		return "nothing: the call ended its goroutine with runtime.Goexit, as t.FailNow does"
	case r.panicked != nil:
		return fmt.Sprintf("a panic: %v", r.panicked)
	case r.err == nil:
		return fmt.Sprintf("%s, and no error", short(r.value))
	}
	return "the error " + describeError(r.err)
}

// replay returns to the handler what the call has returned to the suite.
func (r result[T]) replay() (T, error) {
	switch {
	case r.exited:
		runtime.Goexit()
	case r.panicked != nil:
		panic(r.panicked)
	}
	return r.value, r.err
}

// withoutNilError takes a typed nil error for none: the subtest NilErrors reports it.
func (r result[T]) withoutNilError() result[T] {
	if isNilError(r.err) {
		r.err = nil
	}
	return r
}

// isNilError reports whether err is not nil, but holds a nil pointer.
func isNilError(err error) bool {
	if err == nil {
		return false
	}
	switch v := reflect.ValueOf(err); v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Func, reflect.Chan:
		return v.IsNil()
	}
	return false
}

func describeError(err error) string {
	if isNilError(err) {
		return fmt.Sprintf("%T(nil), which is not nil", err)
	}
	return fmt.Sprintf("%.300q (%T)", err.Error(), err)
}

const (
	nilErrorHint        = "a function that returns error declares a variable of a pointer type and returns it; return nil itself"
	failureAsNone       = "an error of the backend is taken for an empty result"
	failureAsBadKey     = "an error of the backend is taken for a key that is not known: clients would ask their users for another key"
	failureAsBadRequest = "an error of the backend is taken for a mistake of the client, which would not send its request again"
)

// twice makes a check of a part whose backend fails once more: a part may keep its first failure,
// and find nothing from then on.
func twice(check func(again string) []problem) []problem {
	if found := check(""); found != nil {
		return found
	}
	return check(", the second time")
}

// failure returns the problems of a call of a part whose backend fails. The client must not be told
// that the mistake is its own.
func failure[T any](rule rule, called string, r result[T], returned, client, hint string) []problem {
	if r.late || r.ok() {
		return []problem{{rule, called, returned, client, hint}}
	}
	switch status, _, _ := strings.Cut(client, " "); status {
	case "401", "403":
		return []problem{{rule, called, returned, client, failureAsBadKey}}
	case "404":
		return []problem{{rule, called, returned, client, failureAsNone}}
	case "422":
		return []problem{{rule, called, returned, client, failureAsBadRequest}}
	}
	return badStatus(r.err, called, client)
}

// badStatus returns the problem of an error that asks for a status that cannot be sent; nil
// if there is none.
func badStatus(err error, called, client string) []problem {
	chosen, isChosen := errors.AsType[*botapi.StatusError](err)
	if !isChosen || chosen.Status >= 400 && chosen.Status <= 599 {
		return nil
	}
	return []problem{{ruleStatus, called, fmt.Sprintf("a StatusError with the status %d", chosen.Status), client, "the field Status was not set"}}
}

func short(value any) string {
	switch value := value.(type) {
	case botapi.Bot:
		return describeBot(value)
	case []botapi.Bot:
		return describeBots(value)
	}
	return fmt.Sprintf("%.300q", fmt.Sprint(value))
}

func describeBot(bot botapi.Bot) string {
	if bot == (botapi.Bot{}) {
		return "an empty Bot"
	}
	return fmt.Sprintf("the bot %.200q", fmt.Sprintf("%+v", bot))
}

func describeBots(bots []botapi.Bot) string {
	slugs := make([]string, len(bots))
	for i, bot := range bots {
		slugs[i] = fmt.Sprintf("%.80q", bot.Slug)
	}
	return fmt.Sprintf("%d bots: %.400s", len(bots), strings.Join(slugs, ", "))
}

// A service is a handler whose parts are functions, and which serves in memory: what a
// client would get if a part returned this or that.
type service struct {
	bots   func(context.Context) ([]botapi.Bot, error)
	bot    func(context.Context, string) (botapi.Bot, error)
	verify botapi.KeyVerifierFunc
}

func (s service) Bots(ctx context.Context) ([]botapi.Bot, error) { return s.bots(ctx) }

func (s service) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	return s.bot(ctx, uid)
}

func (s service) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	return s.bot(ctx, slug)
}

// serveAs returns a service whose requests are those of an account.
func serveAs(account string) service {
	return service{
		bots: func(context.Context) ([]botapi.Bot, error) { return nil, nil },
		bot:  func(context.Context, string) (botapi.Bot, error) { return botapi.Bot{}, botapi.ErrBotNotFound },
		verify: func(context.Context, string) (string, error) {
			return account, nil
		},
	}
}

// responds returns status and body of the response to a request.
func (s service) responds(method, path, body string) string {
	naming := botapi.ChatEngineFunc(func(_ context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("an answer of the bot "+req.Bot.UID, nil) }
	})
	handler := botapi.New(botapi.Options{Bots: s, Keys: s.verify, Engine: naming, Logger: slog.New(slog.DiscardHandler)})
	r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer key")
	w := httptest.NewRecorder()
	served := call(unlimited, func() (bool, error) {
		handler.ServeHTTP(w, r)
		return true, nil
	})
	switch {
	case served.panicked == any(http.ErrAbortHandler):
		return "the connection is aborted"
	case !served.returned():
		return "no response: " + served.String()
	}
	return fmt.Sprintf("%d %.200s", w.Code, strings.TrimSpace(w.Body.String()))
}

// list and chat are the responses to the two requests of the API.
func (s service) list() string { return s.responds("GET", "/v1/bots", "") }

func (s service) chat() string {
	return s.responds("POST", "/v1/chat", `{"bot_uid":"bot","prompt":"Hi","stream":false}`)
}

// duringRequest calls f with the context of a request that the handler serves: what a store
// gets. It has the account and the request id, and is not cancelled.
func duringRequest(account string, f func(ctx context.Context)) {
	s := serveAs(account)
	s.bots = func(ctx context.Context) ([]botapi.Bot, error) {
		f(ctx)
		return nil, nil
	}
	s.list()
}

// duringVerification is duringRequest for a verifier.
func duringVerification(f func(ctx context.Context)) {
	s := serveAs("")
	s.verify = func(ctx context.Context, _ string) (string, error) {
		f(ctx)
		return "", nil
	}
	s.list()
}

// cancelledContext returns a context that is cancelled already.
func cancelledContext(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
