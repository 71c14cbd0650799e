// Package resume lets a client that lost its connection return for the rest of
// its answer, on any replica, without asking the model twice. Its engine wraps
// another.
package resume

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// LeastAnswerBytes is the minimum of AnswerBytes: every answer in progress
// counts as that much.
const LeastAnswerBytes = 16 << 10

// Settings limits answers. A zero value means the default.
type Settings struct {
	Alone time.Duration // how long an answer continues without a client; 1 minute
	Keep  time.Duration // how long it is kept once it is complete; 2 minutes

	// AnswerBytes, AccountBytes and AllBytes are the memory in Redis for one
	// answer, those of an account and all of them, over all replicas: 1 MiB, 32
	// MiB, 256 MiB. An answer in progress counts as at least 16 KiB.
	AnswerBytes, AccountBytes, AllBytes int64

	AlonePerAccount  int64 // answers of an account that continue without a client; 100
	ClientsPerAnswer int64 // clients that follow one answer, besides the one that started it; 8

	// Lease is how long after the death of a replica its answers end for clients
	// that follow them on others; 9 seconds.
	Lease time.Duration
}

// Completed returns the settings with defaults in place of zeros.
func (s Settings) Completed() Settings {
	return Settings{
		Alone:            cmp.Or(s.Alone, time.Minute),
		Keep:             cmp.Or(s.Keep, 2*time.Minute),
		AnswerBytes:      cmp.Or(s.AnswerBytes, 1<<20),
		AccountBytes:     cmp.Or(s.AccountBytes, 32<<20),
		AllBytes:         cmp.Or(s.AllBytes, 256<<20),
		AlonePerAccount:  cmp.Or(s.AlonePerAccount, 100),
		ClientsPerAnswer: cmp.Or(s.ClientsPerAnswer, 8),
		Lease:            cmp.Or(s.Lease, 9*time.Second),
	}
}

// Options is what an Engine is made of. Engine and Redis are required.
type Options struct {
	Engine botapi.ChatEngine
	Redis  *redisclient.Client // the caller closes it, after the Engine
	Settings

	// ChatTimeout and StallTimeout are as in botapi.Options, for answers with a
	// key: they apply with and without a client. 0 or less means no limit.
	ChatTimeout, StallTimeout time.Duration

	// ChatsAtOnce is how many answers an account may follow concurrently, over
	// all replicas, besides those that it has started; 0 means no limit. nil
	// means no limit for anybody. Its errors end a chat.
	ChatsAtOnce func(ctx context.Context, account string) (int64, error)

	// Asked reports whether a model may have been asked for a chat, by its
	// context. Ask marks a chat that gets the failure of such an answer, so that
	// it is not retried as if no model had been asked. nil means that all have
	// asked.
	Asked func(context.Context) bool
	Ask   func(context.Context)

	MeterProvider metric.MeterProvider // nil means none
	Logger        *slog.Logger         // nil means slog.Default()
}

// Engine is a botapi.ChatEngine. A chat without an Idempotency-Key goes to the
// next engine unchanged. The first chat under a key of an account starts an
// answer that the engine owns: the answer does not end when its client
// disconnects. Every chat under the same key follows that answer from its first
// fragment, on any replica, until it is forgotten:
//
//   - an answer in progress ends when no client has followed it for Alone, or
//     earlier if its account has more than AlonePerAccount of them: the ones
//     abandoned first;
//   - a complete answer is kept for Keep, and then forgotten;
//   - a failed answer, or one whose replica died, fails for the clients that
//     follow it, and the next chat under the key starts anew;
//   - a stopped answer stays stopped: 410, until it is forgotten.
//
// A different chat under a key that is not forgotten is rejected with 409. So
// are, with 429, clients beyond the limits of an answer or its account, and
// clients that join one answer more than once a second.
//
// A chat is answered as if it had no key while Redis is away, or if there is no
// room for its answer. An answer that outgrows its room, or whose replica loses
// Redis, continues for its present clients as without a key. A chat that Redis
// does not serve in time is rejected with 503.
//
// While an answer is kept, none of its clients blocks the engine, so a slow
// client does not slow down the others.
type Engine struct {
	next     botapi.ChatEngine
	options  Options
	store    store
	logger   *slog.Logger
	measured *measured

	mu      sync.Mutex
	answers map[string]*answer // those in progress in this replica, by id
	closed  bool

	running   sync.WaitGroup // answers and their keepers
	news      *news
	messages  *redis.PubSub
	chores    chan func() // work that nobody waits for
	ended     chan struct{}
	endOnce   sync.Once
	listening sync.WaitGroup // and doChores
}

var _ botapi.ChatEngine = (*Engine)(nil)

// mostChores bounds the chores that wait. A dropped chore only releases
// something later.
const mostChores = 1000

// New returns an engine, which works until it is closed.
func New(o Options) (*Engine, error) {
	o = completed(o)
	e := &Engine{
		next:    o.Engine,
		options: o,
		store:   store{o.Settings, o.Redis},
		logger:  o.Logger,
		answers: make(map[string]*answer),
		news:    newNews(),
		chores:  make(chan func(), mostChores),
		ended:   make(chan struct{}),
	}
	var err error
	if e.measured, err = measure(e, o.MeterProvider); err != nil {
		return nil, fmt.Errorf("preparing the metrics of answers: %w", err)
	}
	e.messages = o.Redis.Subscribe(context.Background(), e.store.key(stopsChannel), e.store.key(newsChannel))
	e.listening.Go(e.listen)
	e.listening.Go(e.doChores)
	return e, nil
}

func completed(o Options) Options {
	o.Settings = o.Settings.Completed()
	if o.ChatsAtOnce == nil {
		o.ChatsAtOnce = func(context.Context, string) (int64, error) { return 0, nil }
	}
	if o.Asked == nil {
		o.Asked = func(context.Context) bool { return true }
	}
	if o.Ask == nil {
		o.Ask = func(context.Context) {}
	}
	if o.MeterProvider == nil {
		o.MeterProvider = noop.NewMeterProvider()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// closeGrace is how long answers may take to end once they are cancelled.
const closeGrace = 5 * time.Second

// ErrHanging is what Close returns if a chat engine did not return in time.
var ErrHanging = errors.New("an engine goes on after its answer has ended")

// Close lets answers without clients continue until ctx ends, and then ends
// them. Call it when all clients have disconnected: answers of later chats are
// not kept.
func (e *Engine) Close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { e.endAll(errEnding) })
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.running.Wait()
		e.messages.Close()
		e.endOnce.Do(func() { close(e.ended) })
		e.listening.Wait()
		e.measured.end()
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

// Chat follows the answer under the key of the chat, or starts it.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	r, ok := requestFrom(ctx)
	if !ok || e.isClosed() {
		return e.next.Chat(ctx, req)
	}
	return func(yield func(string, error) bool) {
		if err := validate(r.keys); err != nil {
			yield("", err)
			return
		}
		e.chat(ctx, r, req)(yield)
	}
}

func (e *Engine) chat(ctx context.Context, r *request, req *botapi.ChatRequest) iter.Seq2[string, error] {
	account := botapi.AccountFrom(ctx)
	body, err := fingerprint(req)
	if err != nil {
		return failing(err)
	}
	most, err := e.options.ChatsAtOnce(ctx, account)
	if err != nil {
		return failing(err)
	}
	t, slot := titleOf(account, r.keys[0], rand.Text()), rand.Text()
	waiting, done := e.options.Redis.Waiting(context.WithoutCancel(ctx))
	claimed, err := e.store.claim(waiting, t, slot, body, most)
	done()
	if err != nil && !e.options.Redis.Away() && !redisclient.Rejected(err) { // Redis is up but slow: do not pay twice for the answer
		e.later(func() { _ = e.store.end(t, endingOf(errBroken(nil))) }) // the claim may have succeeded
		return failing(errUnavailable(err))
	}
	if err != nil {
		e.logger.WarnContext(ctx, "an answer cannot be kept", slog.Any("error", err))
		return e.unkept(ctx, r, req, "redis is away")
	}
	e.measured.sawBytes(claimed)
	switch claimed.found {
	case foundNothing:
		a, c, err := e.start(ctx, t, req)
		if err != nil {
			return e.unkept(ctx, r, req, "the replica ends")
		}
		r.started.Store(a)
		e.tell(ctx, r, Kept, "")
		return a.follow(ctx, c)
	case foundAnswer:
		t.id = claimed.id
		e.tell(ctx, r, Joined, "")
		f := &follower{title: t, engine: e, slot: slot}
		return f.follow(ctx)
	case foundFull:
		e.logger.WarnContext(ctx, "an answer cannot be kept: all memory for answers is used")
		return e.unkept(ctx, r, req, "all are full")
	case foundShare:
		return e.unkept(ctx, r, req, "the account is full")
	case foundLarge:
		return e.unkept(ctx, r, req, "the answer is too large")
	}
	return failing(rejections[claimed.found])
}

// unkept answers a chat as if it had no key.
func (e *Engine) unkept(ctx context.Context, r *request, req *botapi.ChatRequest, reason string) iter.Seq2[string, error] {
	e.tell(ctx, r, NotKept, reason)
	return e.next.Chat(ctx, req)
}

// tell reports to the client, and to the metrics, what happened to a key.
func (e *Engine) tell(ctx context.Context, r *request, o Outcome, reason string) {
	r.outcome.Store(&o)
	e.measured.chat(ctx, o, reason)
}

func failing(err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", err) }
}

// Responses to clients.
var (
	errOtherBody = &botapi.StatusError{Status: http.StatusConflict, Detail: "Another chat has this Idempotency-Key"}
	errStopped   = &botapi.StatusError{Status: http.StatusGone, Detail: "The answer was stopped"}
	errEnding    = &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable", RetryAfter: time.Second}
)

// rejections are the errors for the results of claim.
var rejections = map[string]error{
	foundStopped: errStopped,
	foundOther:   errOtherBody,
	foundOften:   &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many requests for this answer", RetryAfter: time.Second},
	foundCrowded: &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many clients follow this answer", RetryAfter: time.Second},
	foundPlaces:  &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many chats in progress for this account", RetryAfter: time.Second},
}

func errUnavailable(cause error) error {
	return &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The service is unavailable for the moment", RetryAfter: time.Second, Err: cause}
}

func errTooLate(cause error) error {
	return &botapi.StatusError{Status: http.StatusGatewayTimeout, Detail: "The answer took too long", Err: cause}
}

func errBroken(cause error) error {
	return &botapi.StatusError{Status: http.StatusBadGateway, Detail: "The answer broke off", RetryAfter: time.Second, Err: cause}
}

var errAbandoned = errBroken(errors.New("nobody came back for it"))

// answerTo is the error for the clients of an answer whose engine's context has
// ended.
func answerTo(cause error) error {
	switch {
	case errors.Is(cause, botapi.ErrClientLeft):
		return errAbandoned // a client that joins at the last moment must ask again
	case errors.Is(cause, botapi.ErrChatTimeout), errors.Is(cause, botapi.ErrEngineStalled):
		return errTooLate(cause)
	}
	return cause
}

// start starts an answer of this replica, with its first client.
func (e *Engine) start(ctx context.Context, t title, req *botapi.ChatRequest) (*answer, *cursor, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	c := new(cursor)
	a := &answer{
		title:   t,
		engine:  e,
		cancel:  cancel,
		asked:   func() bool { return e.options.Asked(ctx) },
		changed: make(chan struct{}),
		cursors: map[*cursor]struct{}{c: {}},
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		cancel(nil)
		e.later(func() { _ = e.store.end(t, endingOf(errEnding)) })
		return nil, nil, errEnding
	}
	e.answers[t.id] = a
	e.running.Go(func() { a.keep(ctx) })
	e.running.Go(func() { a.run(ctx, req) })
	return a, c, nil
}

func (e *Engine) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *Engine) find(id string) *answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.answers[id]
}

func (e *Engine) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.answers, id)
}

func (e *Engine) endAll(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.answers {
		a.cancel(err)
	}
}

// listen ends the answers that were stopped on another replica, and wakes
// followers of answers.
func (e *Engine) listen() {
	for message := range e.messages.Channel() {
		if message.Channel == e.store.key(newsChannel) {
			e.news.tell(message.Payload)
		} else if a := e.find(message.Payload); a != nil {
			a.cancel(errStopped)
		}
	}
}

// later does a chore soon, unless too many are waiting.
func (e *Engine) later(chore func()) {
	select {
	case e.chores <- chore:
	default:
	}
}

func (e *Engine) doChores() {
	for {
		select {
		case chore := <-e.chores:
			chore()
		case <-e.ended:
			return
		}
	}
}
