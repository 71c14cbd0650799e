package resume

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"example.com/botapi"
)

// Options is what an Engine is made of. Only Engine is required.
type Options struct {
	Engine botapi.ChatEngine

	// Store keeps the answers, with its Settings; nil means NewMemory(Settings{}).
	Store Store

	// Owner says whose answers a request may start, join and stop; nil means
	// botapi.AccountFrom. An application that serves many people with one API key
	// needs one of its own, from its own login: never from the user_id of a
	// request, which the client chooses.
	Owner func(context.Context) string

	// ValidKey reports whether an Idempotency-Key is acceptable; nil means 16 to 255
	// of A-Z, a-z, 0-9, - and _. Keys must be hard to guess where one owner has
	// clients that do not trust each other.
	ValidKey func(key string) bool

	// ChatTimeout and StallTimeout are as in botapi.Options, for the model's work on
	// an answer with a key: those of botapi.Options then apply to each reader. 0 or
	// less means no limit.
	ChatTimeout, StallTimeout time.Duration

	// Admit is called for a chat with a key before the Store. If it returns an error,
	// the chat can only join an answer; the error is its response if there is none.
	// It may be nil.
	Admit func(ctx context.Context, req *botapi.ChatRequest) error

	// Limits returns the limits of an owner; its error is the response to a chat. nil
	// means those of the Settings for everybody.
	Limits func(ctx context.Context, owner string) (Limits, error)

	// OnAnswer is called once for each call of Engine, after it has returned, which
	// may be after the request; Close waits for it. Its context has the values of
	// the request that started the answer. It may be nil, and is called
	// concurrently.
	OnAnswer func(ctx context.Context, r Report)

	Logger *slog.Logger // nil means slog.Default()
}

// A Report is about one call of a model.
type Report struct {
	Request   *botapi.ChatRequest
	Outcome   Outcome // Kept, NotKept, or empty for a chat without a key
	Fragments int
	Bytes     int64 // of text
	Duration  time.Duration
	Err       error // why the answer is incomplete, such as ErrAbandoned or ErrStopped; nil if it is complete
}

// Why an answer ended early.
var (
	ErrStopped = &botapi.StatusError{Status: http.StatusGone, Detail: "The answer was stopped"}

	// ErrAbandoned is that of an answer that nobody came back for in time.
	ErrAbandoned = errors.New("resume: nobody came back for the answer")
)

// ErrHanging is what Close returns if an engine has not returned in time.
var ErrHanging = errors.New("resume: an engine goes on after its answer has ended")

// Responses to clients.
var (
	errBadKey   = &botapi.StatusError{Status: http.StatusBadRequest, Detail: "There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _"}
	errOwnKey   = &botapi.StatusError{Status: http.StatusBadRequest, Detail: "There must be one valid Idempotency-Key"} // by a ValidKey of the application
	errOther    = &botapi.StatusError{Status: http.StatusConflict, Detail: "Another chat has this Idempotency-Key"}
	errNotFound = &botapi.StatusError{Status: http.StatusNotFound, Detail: "Answer not found"}
	errEnding   = &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable", RetryAfter: time.Second}
	errBusy     = tooMany("Too many answers in progress for this key")
	errCrowded  = tooMany("Too many clients follow this answer")
	errHurried  = tooMany("Too many requests for this answer")
	errStops    = tooMany("Too many answers are being stopped")
)

func tooMany(detail string) *botapi.StatusError {
	return &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: detail, RetryAfter: time.Second}
}

func errBroken(cause error) error {
	return &botapi.StatusError{Status: http.StatusBadGateway, Detail: "The answer broke off", RetryAfter: time.Second, Err: cause}
}

// Engine is a botapi.ChatEngine whose answers outlive their connections. See the
// package's documentation for the contract.
type Engine struct {
	options Options
	store   Store
	rules   Settings
	badKey  error
	logger  *slog.Logger

	mu      sync.Mutex
	answers map[string]*answer    // those in progress in this process, by id
	models  map[string]int64      // how many run for chats with a key, by owner
	all     int64                 // the sum of models
	stops   map[string]int        // how many requests to stop an answer are being served, by owner
	chats   map[string][]*request // those with a key that are being served, by credentials, oldest first
	closed  bool
	running sync.WaitGroup // answers and their keepers
}

var _ botapi.ChatEngine = (*Engine)(nil)

// New returns an engine. It panics if o.Engine is nil.
func New(o Options) *Engine {
	if o.Engine == nil {
		panic("resume: Options.Engine is nil")
	}
	if o.Store == nil {
		o.Store = NewMemory(Settings{})
	}
	if o.Owner == nil {
		o.Owner = botapi.AccountFrom
	}
	badKey := errOwnKey
	if o.ValidKey == nil {
		o.ValidKey, badKey = validKey, errBadKey
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Engine{
		options: o,
		store:   o.Store,
		rules:   o.Store.Settings(),
		badKey:  badKey,
		logger:  o.Logger,
		answers: make(map[string]*answer),
		models:  make(map[string]int64),
		stops:   make(map[string]int),
		chats:   make(map[string][]*request),
	}
}

func validKey(key string) bool {
	for _, c := range []byte(key) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return len(key) >= 16 && len(key) <= 255
}

// Chat joins the answer under the key of the chat, or starts it.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	r, hasKey := requestFrom(ctx)
	if !hasKey && e.options.OnAnswer == nil { // nothing to report, and nothing to pay for
		return e.options.Engine.Chat(ctx, req)
	}
	return func(yield func(string, error) bool) {
		switch {
		case !hasKey:
			e.pass(ctx, req, "", yield)
		case len(r.keys) != 1 || !e.options.ValidKey(r.keys[0]):
			yield("", e.badKey)
		default:
			r.reach(e.options.Owner(ctx))
			e.chat(ctx, r, req, yield)
		}
	}
}

// Join yields the answer under a key from its first fragment, and never asks a
// model. Its error is a botapi.StatusError, with status 404 if there is no such
// answer. A key alone leads to the answer: nothing but the Owner protects it.
func (e *Engine) Join(ctx context.Context, key string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if !e.options.ValidKey(key) {
			yield("", errNotFound)
			return
		}
		c := Claim{Ref: Ref{Owner: e.options.Owner(ctx), Key: key}, Reader: rand.Text(), Join: true}
		if err := e.limit(ctx, &c); err != nil {
			yield("", err)
			return
		}
		found, err := e.claim(ctx, c)
		switch {
		case err != nil:
			yield("", errUnavailable(err))
		case found.State != Found:
			yield("", rejection(found.State, errNotFound))
		default:
			tell(ctx, Joined)
			c.ID = found.ID
			if died := e.join(ctx, c, yield); died {
				yield("", errNotFound)
			}
		}
	}
}

// rejection is the response to a Claim that gives no answer.
func rejection(found State, nothing error) error {
	switch found {
	case Stopped:
		return ErrStopped
	case Other:
		return errOther
	case Busy:
		return errBusy
	case Crowded:
		return errCrowded
	case Hurried:
		return errHurried
	}
	return nothing
}

func errUnavailable(cause error) error {
	return &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The service is unavailable for the moment", RetryAfter: time.Second, Err: cause}
}

func (e *Engine) claim(ctx context.Context, c Claim) (Claimed, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.rules.Wait)
	defer cancel()
	return e.store.Claim(ctx, c)
}

func (e *Engine) limit(ctx context.Context, c *Claim) (err error) {
	if e.options.Limits != nil {
		c.Limits, err = e.options.Limits(ctx, c.Owner)
	}
	return err
}

// chat answers a chat with a key.
func (e *Engine) chat(ctx context.Context, r *request, req *botapi.ChatRequest, yield func(string, error) bool) {
	c := Claim{Ref: Ref{r.owner, r.keys[0], rand.Text()}, Reader: rand.Text(), Body: fingerprint(req)}
	if err := e.limit(ctx, &c); err != nil {
		yield("", err)
		return
	}
	var rejected error
	if e.options.Admit != nil {
		rejected = e.options.Admit(ctx, req)
		c.Join = rejected != nil
	}
	found, err := e.claim(ctx, c)
	switch {
	case err != nil && rejected != nil:
		yield("", rejected)
	case err != nil:
		e.logger.WarnContext(ctx, "an answer cannot be kept", slog.Any("error", err))
		undo := func() { e.takeBack(c) } // the claim may have succeeded
		if !e.begin(undo) {
			undo()
		}
		e.unkept(ctx, c, req, yield)
	case found.State == Started:
		e.start(ctx, c, req, yield)
	case found.State == Found:
		tell(ctx, Joined)
		c.ID = found.ID
		if died := e.join(ctx, c, yield); died {
			e.unkept(ctx, c, req, yield)
		}
	case found.State == NoRoom:
		e.unkept(ctx, c, req, yield)
	default:
		yield("", rejection(found.State, rejected))
	}
}

// takeBack ends an answer that was not started: the store drops a complete answer
// of which it has another number of fragments.
func (e *Engine) takeBack(c Claim) {
	ctx, cancel := context.WithTimeout(context.Background(), e.rules.Lease)
	defer cancel()
	_ = e.store.End(ctx, c.Ref, -1, Ending{}) // otherwise its lease expires
	_ = e.store.Leave(ctx, c.Ref, c.ID)
}

// begin starts goroutines that Close waits for, unless Close has been called.
func (e *Engine) begin(goroutines ...func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	for _, f := range goroutines {
		e.running.Go(f)
	}
	return true
}

// unkept answers a chat with a key as one without. Its model counts among those
// of this process.
func (e *Engine) unkept(ctx context.Context, c Claim, req *botapi.ChatRequest, yield func(string, error) bool) {
	if !e.hold(c) {
		yield("", errBusy)
		return
	}
	defer e.release(c.Owner)
	tell(ctx, NotKept)
	e.pass(ctx, req, NotKept, yield)
}

// pass calls the engine on the goroutine of the chat.
func (e *Engine) pass(ctx context.Context, req *botapi.ChatRequest, o Outcome, yield func(string, error) bool) {
	call := e.call(req, o)
	defer call.report(ctx)
	for text, err := range e.options.Engine.Chat(ctx, req) {
		call.add(text, err)
		if !yield(text, err) || err != nil {
			call.Err = cmp.Or(err, context.Cause(ctx), errNotRead)
			return
		}
	}
	call.Err = context.Cause(ctx)
}

// A call is one call of the engine.
type call struct {
	Report
	engine *Engine
	began  time.Time
}

var (
	errExited  = errors.New("resume: the engine panicked, or ended its goroutine")
	errNotRead = errors.New("resume: the answer was not read to its end")
)

func (e *Engine) call(req *botapi.ChatRequest, o Outcome) *call {
	return &call{Report{Request: req, Outcome: o, Err: errExited}, e, time.Now()}
}

func (c *call) add(text string, err error) {
	if err == nil {
		c.Fragments++
		c.Bytes += int64(len(text))
	}
}

// report calls OnAnswer. A panic there is logged.
func (c *call) report(ctx context.Context) {
	if c.engine.options.OnAnswer == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			c.engine.logger.ErrorContext(ctx, "OnAnswer panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	c.Duration = time.Since(c.began)
	c.engine.options.OnAnswer(ctx, c.Report)
}

// hold counts a model that is about to be asked, unless as many are running as
// may.
func (e *Engine) hold(c Claim) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all >= e.rules.Running || e.models[c.Owner] >= cmp.Or(c.Limits.Running, e.rules.RunningPerOwner) {
		return false
	}
	e.all++
	e.models[c.Owner]++
	return true
}

func (e *Engine) release(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all--
	if e.models[owner]--; e.models[owner] == 0 {
		delete(e.models, owner)
	}
}

// start starts an answer of this process, and follows it.
func (e *Engine) start(ctx context.Context, c Claim, req *botapi.ChatRequest, yield func(string, error) bool) {
	if !e.hold(c) {
		e.takeBack(c)
		yield("", errBusy)
		return
	}
	model, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a, first := newAnswer(e, c.Ref, cancel)
	e.mu.Lock()
	e.answers[c.ID] = a
	e.mu.Unlock()
	if !e.begin(func() { a.keep(model) }, func() { a.run(model, req) }) {
		cancel(nil)
		e.forget(a)
		e.release(c.Owner)
		e.takeBack(c)
		e.unkept(ctx, c, req, yield)
		return
	}
	tell(ctx, Kept)
	first.follow(ctx, yield)
}

// join follows an answer that another request has started. It returns true, and
// has yielded nothing, if the answer died before it said anything.
func (e *Engine) join(ctx context.Context, c Claim, yield func(string, error) bool) (died bool) {
	e.mu.Lock()
	local := e.answers[c.ID]
	e.mu.Unlock()
	r := &reader{Ref: c.Ref, engine: e, name: c.Reader}
	if local != nil {
		r.attend(local)
	}
	return r.follow(ctx, yield)
}

// Stop stops the answer under a key of the Owner of a context, in any process.
// Its errors are botapi.StatusErrors.
func (e *Engine) Stop(ctx context.Context, key string) error {
	if !e.options.ValidKey(key) {
		return e.badKey
	}
	owner := e.options.Owner(ctx)
	if !e.holdStop(owner) {
		return errStops
	}
	defer e.releaseStop(owner)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*e.rules.Wait)
	defer cancel()
	found, err := e.store.Stop(ctx, owner, key)
	switch {
	case err != nil:
		return errUnavailable(fmt.Errorf("stopping an answer: %w", err))
	case !found:
		return errNotFound
	}
	return nil
}

// maxStops bounds the requests of one owner to stop an answer that one process
// serves concurrently.
const maxStops = 8

func (e *Engine) holdStop(owner string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stops[owner] >= maxStops {
		return false
	}
	e.stops[owner]++
	return true
}

func (e *Engine) releaseStop(owner string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stops[owner]--; e.stops[owner] == 0 {
		delete(e.stops, owner)
	}
}

// closeGrace is how long answers may take to end once they are cancelled.
const closeGrace = 5 * time.Second

// Close waits for answers that continue without a reader until ctx ends, then
// stops them, and returns when their engines have returned, or ErrHanging after
// 5 more seconds. Call it after http.Server.Shutdown: later chats are not kept.
// Nobody can come back to a store in memory then: give it a context that has ended.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, e.endAll)
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.running.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}
	select {
	case <-ended:
		return nil
	case <-time.After(closeGrace):
		return ErrHanging
	}
}

func (e *Engine) endAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.answers {
		a.cancel(errEnding)
	}
}

// InProgress counts the answers with a key whose model runs in this process, and
// those of them that no request in this process follows.
func (e *Engine) InProgress() (all, alone int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.answers {
		if !a.isAttended() {
			alone++
		}
	}
	return len(e.answers), alone
}

// fingerprint distinguishes chats by what they ask for.
func fingerprint(req *botapi.ChatRequest) string {
	text, err := json.Marshal(struct {
		Bot      string
		Messages []botapi.ChatMessage
		UserID   string
		Stream   bool
		Extra    map[string]json.RawMessage
	}{req.Bot.UID, req.Messages, req.UserID, req.Stream, req.Extra})
	if err != nil { // only values of Extra that botapi has not read can have one
		text = fmt.Append(nil, req.Bot.UID, req.Messages, req.UserID, req.Stream, req.Extra)
	}
	sum := sha256.Sum256(text)
	return string(sum[:])
}
