package resume

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"regexp"
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

	// ChatTimeout and StallTimeout bound the model's work on an answer with a key, as in
	// botapi.Options; 0 means those of the botapi.Options, negative no limit. Those of
	// botapi.Options apply to each reader, too.
	ChatTimeout, StallTimeout time.Duration

	// Admit is called for a chat with a key before the Store, unless it shares a slot by OnLimit. If it returns an error, the chat
	// can only join an answer; the error is its response if there is none. It may be nil.
	Admit func(ctx context.Context, req *botapi.ChatRequest) error

	// Limits returns the limits of an owner; its error is the response to a chat. nil
	// means those of the Settings for everybody.
	Limits func(ctx context.Context, owner string) (Limits, error)

	// OnAnswer is called once for each call of Engine, after it has returned, which
	// may be after the request; Close waits for it. The client of an answer without a key, or
	// of one that is NotKept, gets the end only when OnAnswer has returned.
	// Its context has the values of the request that started the answer, and is not
	// cancelled. It may be nil, and is called concurrently.
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

	// ErrAbandoned is that of an answer that nobody came back for in time, or that nobody
	// follows and nobody can join, since it is no longer kept.
	ErrAbandoned = errors.New("resume: nobody came back for the answer")
)

// ErrHanging is what Close returns if an answer has not ended in time.
var ErrHanging = errors.New("resume: an answer has not ended: its engine has not returned, or its store does not answer")

// Responses to clients.
var (
	errBadKey         = &botapi.StatusError{Status: http.StatusBadRequest, Detail: "There must be one Idempotency-Key, of 16 to 255 letters, digits, - and _"}
	errOwnKey         = &botapi.StatusError{Status: http.StatusBadRequest, Detail: "There must be one valid Idempotency-Key"} // by a ValidKey of the application
	errOtherBody      = &botapi.StatusError{Status: http.StatusConflict, Detail: "Another chat has this Idempotency-Key"}
	errNotFound       = &botapi.StatusError{Status: http.StatusNotFound, Detail: "Answer not found"}
	errClosing        = later(http.StatusServiceUnavailable, "Service Unavailable", nil)
	errTooManyRunning = later(http.StatusTooManyRequests, "Too many answers in progress for this key", nil)
	errTooManyReaders = later(http.StatusTooManyRequests, "Too many clients follow this answer", nil)
	errTooManyJoins   = later(http.StatusTooManyRequests, "Too many requests for this answer", nil)
)

// rejections are the responses to a Claim that gives no answer.
var rejections = map[State]error{Stopped: ErrStopped, OtherBody: errOtherBody, TooManyRunning: errTooManyRunning, TooManyReaders: errTooManyReaders, TooManyJoins: errTooManyJoins}

// later is a response after which a client may try again.
func later(status int, detail string, cause error) error {
	return &botapi.StatusError{Status: status, Detail: detail, RetryAfter: time.Second, Err: cause}
}

func errUnavailable(cause error) error {
	return later(http.StatusServiceUnavailable, "The service is unavailable for the moment", cause)
}

func errBroken(cause error) error {
	return later(http.StatusBadGateway, "The answer is incomplete", cause)
}

// Engine is a botapi.ChatEngine whose answers outlive their connections. See the
// package's documentation for the contract.
type Engine struct {
	options Options
	store   Store
	rules   Settings
	badKey  error
	models  counter[string] // that run for chats with a key, by owner, also for those that are not kept
	loans   counter[name]   // of botapi's slots, by OnLimit

	mu      sync.Mutex
	answers map[string]*answer      // those in progress in this process, by id
	slots   map[name][]*botapi.Slot // botapi's, of chats and models with a key: one for each, perhaps the same
	closed  bool
	running sync.WaitGroup // all that Close waits for
}

var validKey = regexp.MustCompile(`^[A-Za-z0-9_-]{16,255}$`)

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
		o.ValidKey, badKey = validKey.MatchString, errBadKey
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	rules := o.Store.Settings()
	e := &Engine{
		options: o,
		store:   o.Store,
		rules:   rules,
		badKey:  badKey,
		models:  counter[string]{most: rules.Running, counts: make(map[string]int64)},
		loans:   counter[name]{most: math.MaxInt64, counts: make(map[name]int64)},
		answers: make(map[string]*answer),
		slots:   make(map[name][]*botapi.Slot),
	}
	e.store.Watch(e.stopped)
	return e
}

// stopped tells the keeper of an answer that it was stopped.
func (e *Engine) stopped(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.answers[id]; a != nil {
		wake(a.urgent)
	}
}

// log adds the request id, as botapi does.
func (e *Engine) log(ctx context.Context, level slog.Level, message string, attributes ...slog.Attr) {
	id := slog.String("request_id", botapi.RequestIDFrom(ctx))
	e.options.Logger.LogAttrs(ctx, level, message, append([]slog.Attr{id}, attributes...)...)
}

// Chat joins the answer under the key of the chat, or starts it.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	key, err := e.keyOf(ctx)
	isWithout := key == "" && err == nil
	if isWithout && e.options.OnAnswer == nil { // nothing to report, and nothing to pay for
		return e.options.Engine.Chat(ctx, req)
	}
	return func(yield func(string, error) bool) {
		switch {
		case isWithout:
			e.playUnkept(ctx, &Report{Request: req}, yield)
			return
		case err != nil:
			yield("", err)
			return
		}
		giveUp, ifNone := loanOf(ctx)
		defer giveUp()
		if ifNone == nil && e.options.Admit != nil {
			ifNone = e.options.Admit(ctx, req)
		}
		c := Claim{Ref: Ref{Owner: e.options.Owner(ctx), Key: key}, Body: fingerprint(req), Join: ifNone != nil}
		e.answer(ctx, c, req, ifNone, yield)
	}
}

// Join yields the answer under a key from its first fragment, and never asks a
// model. Its error is a botapi.StatusError, with status 404 if there is no such
// answer. A key alone leads to the answer: nothing but the Owner protects it. A route whose
// Chat.Answer it is has the key in its Chat.Context ([WithKey]), for OnLimit.
func (e *Engine) Join(ctx context.Context, key string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if !e.options.ValidKey(key) {
			yield("", errNotFound)
			return
		}
		giveUp, _ := loanOf(ctx)
		defer giveUp()
		c := Claim{Ref: Ref{Owner: e.options.Owner(ctx), Key: key}, Join: true}
		e.answer(ctx, c, nil, errNotFound, yield)
	}
}

// answer joins an answer or starts it. With ifNone, the claim may only join: ifNone is the
// response if there is nothing to join. That of Join has no req.
func (e *Engine) answer(ctx context.Context, c Claim, req *botapi.ChatRequest, ifNone error, yield func(string, error) bool) {
	if e.options.Limits != nil {
		var err error
		if c.Limits, err = e.options.Limits(ctx, c.Owner); err != nil {
			yield("", err)
			return
		}
	}
	c.ID, c.Limits.Running = rand.Text(), cmp.Or(c.Limits.Running, e.rules.RunningPerOwner)
	claiming, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.rules.Wait)
	found, err := e.store.Claim(claiming, c)
	cancel()
	switch {
	case err != nil && req == nil:
		yield("", errUnavailable(err))
	case err != nil && ifNone != nil:
		yield("", ifNone)
	case err != nil:
		e.log(ctx, slog.LevelWarn, "an answer cannot be kept", slog.Any("error", err))
		e.begin(nil, func() { e.takeBack(c.Ref) }) // the claim may have succeeded; after Close, its lease expires
		e.unkept(ctx, c, req, yield)
	case found.State == Started:
		e.start(ctx, c, req, yield)
	case found.State == Found:
		if died := e.join(ctx, c, found.ID, yield); died {
			noteOutcome(ctx, "")
			e.answer(ctx, c, req, ifNone, yield)
		}
	case found.State == NoRoom:
		e.unkept(ctx, c, req, yield)
	default:
		yield("", cmp.Or(rejections[found.State], ifNone, errUnavailable(fmt.Errorf("the store has answered a claim with %q", found.State))))
	}
}

// start starts an answer of this process, and follows it.
func (e *Engine) start(ctx context.Context, c Claim, req *botapi.ChatRequest, yield func(string, error) bool) {
	if !e.models.take(c.Owner, c.Limits.Running) {
		e.takeBack(c.Ref)
		yield("", errTooManyRunning)
		return
	}
	model, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a := newAnswer(c.Ref, e, cancel)
	free := e.hold(ctx, c.name()) // for the model
	a.release = func() {
		e.models.release(c.Owner)
		free()
	}
	first := &reader{Ref: c.Ref, engine: e}
	first.attend(a)
	if !e.begin(a, func() { a.keep(model) }, func() { a.run(model, req) }) {
		cancel(nil)
		a.release()
		e.takeBack(c.Ref)
		e.unkept(ctx, c, req, yield)
		return
	}
	noteOutcome(ctx, Kept)
	defer e.hold(ctx, c.name())() // for this chat
	first.follow(ctx, yield)
}

// begin starts goroutines that Close waits for, unless Close has been called. a is the answer
// that they are for, if they run one.
func (e *Engine) begin(a *answer, goroutines ...func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	if a != nil {
		e.answers[a.ID] = a
	}
	for _, f := range goroutines {
		e.running.Go(f)
	}
	return true
}

// takeBack undoes a claim that has started an answer; the slot of one that has joined expires. It
// takes Wait at most, since start calls it within a request.
func (e *Engine) takeBack(r Ref) {
	ctx, cancel := context.WithTimeout(context.Background(), e.rules.Wait)
	defer cancel()
	_, _ = e.store.End(ctx, r, forgotten, Ending{}) // otherwise its lease expires
	_ = e.store.Leave(ctx, r, r.ID)
}

// join follows an answer that another request has started. It returns true, and
// has yielded nothing, if the store has the answer no more for this reader.
func (e *Engine) join(ctx context.Context, c Claim, id string, yield func(string, error) bool) (died bool) {
	noteOutcome(ctx, Joined)
	defer e.hold(ctx, c.name())()
	r := &reader{Ref: Ref{c.Owner, c.Key, id}, engine: e, claim: c.ID}
	return r.follow(ctx, yield)
}

// unkept answers a chat with a key as one without. Its model counts among those
// of this process.
func (e *Engine) unkept(ctx context.Context, c Claim, req *botapi.ChatRequest, yield func(string, error) bool) {
	if !e.models.take(c.Owner, c.Limits.Running) {
		yield("", errTooManyRunning)
		return
	}
	noteOutcome(ctx, NotKept)
	defer e.models.release(c.Owner)
	e.playUnkept(ctx, &Report{Request: req, Outcome: NotKept}, yield)
}

// A counter counts what is in progress for each owner, or for each name.
type counter[K comparable] struct {
	most int64 // of all

	mu     sync.Mutex
	all    int64
	counts map[K]int64
}

// take counts one more of who, unless who has limit already, or all together have most.
func (c *counter[K]) take(who K, limit int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= c.most || c.counts[who] >= limit {
		return false
	}
	c.all++
	c.counts[who]++
	return true
}

func (c *counter[K]) release(who K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.counts[who]--; c.counts[who] == 0 {
		delete(c.counts, who)
	}
}

var (
	errExited  = errors.New("resume: the engine panicked, or ended its goroutine")
	errNotRead = errors.New("resume: the answer was not read to its end")
)

// play calls the engine once, yields its answer, and notes what has become of it. What the
// engine yields once its answer is over is ignored.
func (e *Engine) play(ctx context.Context, r *Report, yield func(string, error) bool) {
	began := time.Now()
	defer func() { r.Duration = time.Since(began) }()
	r.Err = errExited
	isOver := false
	e.options.Engine.Chat(ctx, r.Request)(func(text string, err error) bool {
		switch {
		case isOver:
		case err != nil:
			cause := context.Cause(ctx)
			yield("", err)
			isOver, r.Err = true, cmp.Or(cause, err)
		default:
			r.Fragments++
			r.Bytes += int64(len(text))
			if !yield(text, nil) {
				isOver, r.Err = true, cmp.Or(context.Cause(ctx), errNotRead)
			}
		}
		return !isOver
	})
	if !isOver {
		r.Err = context.Cause(ctx)
	}
}

// playUnkept plays an answer that ends with its chat, and reports it. botapi tells an engine by
// yield that its client has disconnected, and by its context, which says why, a little later:
// reportWhenDone waits for that.
func (e *Engine) playUnkept(ctx context.Context, r *Report, yield func(string, error) bool) {
	defer func() {
		isKnown := r.Err != errNotRead || ctx.Done() == nil
		if isKnown || !e.begin(nil, func() { e.reportWhenDone(ctx, r) }) {
			e.report(ctx, r)
		}
	}()
	e.play(ctx, r, yield)
}

func (e *Engine) reportWhenDone(ctx context.Context, r *Report) {
	<-ctx.Done()
	// Plain Canceled says only that the chat has ended without an error: errNotRead stays. A
	// client that has left is ErrClientLeft.
	if cause := context.Cause(ctx); cause != context.Canceled {
		r.Err = cause
	}
	e.report(ctx, r)
}

// report calls OnAnswer. A panic there is logged.
func (e *Engine) report(ctx context.Context, r *Report) {
	if e.options.OnAnswer == nil {
		return
	}
	defer func() {
		if v := recover(); v != nil {
			e.log(ctx, slog.LevelError, "OnAnswer panicked", slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
		}
	}()
	e.options.OnAnswer(context.WithoutCancel(ctx), *r)
}

// Stop stops the answer under a key of the Owner of a context, in any process.
// Its errors are botapi.StatusErrors.
func (e *Engine) Stop(ctx context.Context, key string) error {
	if !e.options.ValidKey(key) {
		return e.badKey
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*e.rules.Wait)
	defer cancel()
	found, err := e.store.Stop(stopping, e.options.Owner(ctx), key)
	switch {
	case err != nil:
		return errUnavailable(fmt.Errorf("stopping an answer: %w", err))
	case !found:
		return errNotFound
	}
	return nil
}

// closeGrace is how long answers may take to end once they are cancelled.
const closeGrace = 5 * time.Second

// Close waits for all running answers until ctx ends, then stops them, and
// returns when their engines have returned and the store knows it, or ErrHanging after 5 more
// seconds. Call it after http.Server.Shutdown: later chats are not kept. Nobody can come back
// to a store in memory then: give it a context that has ended.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
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
	e.mu.Lock()
	for _, a := range e.answers {
		a.cancel(errClosing)
	}
	e.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-time.After(closeGrace):
		return ErrHanging
	}
}

// InProgress counts the answers with a key that this process runs: until the model has
// returned and the store knows of the end. unattended are those of them that no request in
// this process follows.
func (e *Engine) InProgress() (all, unattended int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.answers {
		if !a.load().attended {
			unattended++
		}
	}
	return len(e.answers), unattended
}

// fingerprint distinguishes chats by what they ask for.
func fingerprint(req *botapi.ChatRequest) string {
	extra := make(map[string]string, len(req.Extra))
	for name, value := range req.Extra {
		extra[name] = canonical(value)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %t %q", req.Bot.UID, req.Messages, req.UserID, req.Stream, extra))
	return string(sum[:])
}

// maxCanonical bounds the memory of canonical, which may take 30 times that of a value.
const maxCanonical = 64 << 10

// canonical returns a JSON value without its spacing and the order of its members, which a
// client may choose anew for each request. A long value is compared byte by byte.
func canonical(value json.RawMessage) string {
	var decoded any
	values := json.NewDecoder(bytes.NewReader(value))
	values.UseNumber()
	if len(value) > maxCanonical || values.Decode(&decoded) != nil {
		return string(value)
	}
	text, _ := json.Marshal(decoded) // of what was JSON: it does not fail
	return string(text)
}
