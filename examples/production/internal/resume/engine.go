// Package resume lets a client that lost its connection come back for the rest
// of its answer, on any replica, without the model being asked twice. It is a
// chat engine in front of another.
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

// LeastAnswerBytes is the least that AnswerBytes may be: what an answer that is
// under way counts in any case.
const LeastAnswerBytes = 16 << 10

// Settings bound what answers take. A zero value means the default.
type Settings struct {
	Alone time.Duration // how long an answer goes on without a client; 1 minute
	Keep  time.Duration // how long it is kept once it is whole; 2 minutes

	// AnswerBytes, AccountBytes and AllBytes are what one answer, those of an
	// account and all of them may take in Redis, over all replicas: 1 MiB,
	// 32 MiB, 256 MiB. One that is under way counts as 16 KiB at least.
	AnswerBytes, AccountBytes, AllBytes int64

	AlonePerAccount  int64 // answers of an account that go on without a client; 100
	ClientsPerAnswer int64 // those who follow one answer, besides who started it; 8

	// Lease is how long after the death of a replica its answers end for those
	// who follow them elsewhere; 9 seconds.
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
	Redis  *redisclient.Client // stays the caller's, to close after the Engine
	Settings

	// ChatTimeout and StallTimeout are as in botapi.Options, for answers with a
	// key: they hold with and without a client. 0 or less means no limit.
	ChatTimeout, StallTimeout time.Duration

	// ChatsAtOnce is how many answers an account may follow at once, over all
	// replicas, besides those that it has started; 0 for no limit. nil means no
	// limit for anybody. Its errors end a chat.
	ChatsAtOnce func(ctx context.Context, account string) (int64, error)

	// Asked reports whether a model may have been asked for a chat, by its
	// context. Ask says so of a chat that gets the failure of such an answer: it
	// must not be tried again as one that has asked no model. nil means that all
	// have asked.
	Asked func(context.Context) bool
	Ask   func(context.Context)

	MeterProvider metric.MeterProvider // nil means none
	Logger        *slog.Logger         // nil means slog.Default()
}

// Engine is a botapi.ChatEngine. A chat without an Idempotency-Key is passed on
// as it is. The first chat under a key of an account starts an answer of its
// own, which the engine owns: it belongs to no client, and does not end when its
// client leaves. Every chat under the same key follows that answer from its
// first fragment on, on whichever replica, until it is forgotten:
//
//   - an answer that is under way ends when nobody has followed it for Alone, or
//     earlier when its account has more than AlonePerAccount of them: those that
//     were left first;
//   - one that is whole is kept for Keep, and then forgotten;
//   - one that failed, or whose replica died, breaks for those who follow it,
//     and the next chat under the key starts anew;
//   - one that was stopped stays stopped: 410, until it is forgotten.
//
// Another chat under a key that is not forgotten is refused with 409, and one more
// than may follow an answer, or its account, with 429. So is who joins one answer
// more often than once a second.
//
// What cannot be kept is answered as if it had no key: that is so while Redis is
// away and where there is no room. An answer that finds no more room, or whose
// replica loses Redis, goes on for the clients it has, as one without a key. A
// chat that Redis has no time for is refused with 503.
//
// Nobody who follows an answer that is kept holds it back, so that no reader is
// too slow for another.
type Engine struct {
	next     botapi.ChatEngine
	options  Options
	store    store
	logger   *slog.Logger
	measured *measured

	mu      sync.Mutex
	answers map[string]*answer // those under way in this replica, by id
	closed  bool

	running   sync.WaitGroup // answers, and what keeps them
	news      *news
	told      *redis.PubSub
	chores    chan func() // what nobody waits for
	ended     chan struct{}
	endOnce   sync.Once
	listening sync.WaitGroup // and what does the chores
}

var _ botapi.ChatEngine = (*Engine)(nil)

// mostChores bounds those that wait. Without them, places are free later.
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
	e.told = o.Redis.Subscribe(context.Background(), e.store.key(stopsChannel), e.store.key(newsChannel))
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

// closeGrace is how long answers may take to end once they are told to.
const closeGrace = 5 * time.Second

// ErrHanging is what Close returns when a chat engine did not end in time.
var ErrHanging = errors.New("an engine goes on after its answer has ended")

// Close lets answers without clients end as long as ctx lasts, and then ends
// them. Call it when no client is left: chats that come later are not kept.
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
		e.told.Close()
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
	t, place := titleOf(account, r.keys[0], rand.Text()), rand.Text()
	waiting, done := e.options.Redis.Waiting(context.WithoutCancel(ctx))
	claimed, err := e.store.claim(waiting, t, place, body, most)
	done()
	if err != nil && !e.options.Redis.Away() && !redisclient.Refused(err) { // it only has too much to do: nothing is to be paid twice for that
		e.later(func() { _ = e.store.end(t, endingOf(errBroken(nil))) }) // it may have been done
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
		f := &follower{title: t, engine: e, place: place}
		return f.follow(ctx)
	case foundFull:
		e.logger.WarnContext(ctx, "an answer cannot be kept: too many are")
		return e.unkept(ctx, r, req, "all are full")
	case foundShare:
		return e.unkept(ctx, r, req, "the account is full")
	case foundLarge:
		return e.unkept(ctx, r, req, "the answer is too large")
	}
	return failing(refusals[claimed.found])
}

// unkept answers a chat as if it had no key.
func (e *Engine) unkept(ctx context.Context, r *request, req *botapi.ChatRequest, reason string) iter.Seq2[string, error] {
	e.tell(ctx, r, NotKept, reason)
	return e.next.Chat(ctx, req)
}

// tell tells the client, and the metrics, what became of a key.
func (e *Engine) tell(ctx context.Context, r *request, o Outcome, reason string) {
	r.outcome.Store(&o)
	e.measured.chat(ctx, o, reason)
}

func failing(err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", err) }
}

// What clients are told.
var (
	errOtherBody = &botapi.StatusError{Status: http.StatusConflict, Detail: "Another chat has this Idempotency-Key"}
	errStopped   = &botapi.StatusError{Status: http.StatusGone, Detail: "The answer was stopped"}
	errEnding    = &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable", RetryAfter: time.Second}
)

// refusals are for what claim finds.
var refusals = map[string]error{
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

// answerTo is what those who follow an answer are told when the context of its
// engine has ended.
func answerTo(cause error) error {
	switch {
	case errors.Is(cause, botapi.ErrClientLeft):
		return errAbandoned // and whoever joins at the last moment must ask again
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

// listen ends the answers that were stopped on another replica, and wakes those
// who follow some.
func (e *Engine) listen() {
	for message := range e.told.Channel() {
		if message.Channel == e.store.key(newsChannel) {
			e.news.tell(message.Payload)
		} else if a := e.find(message.Payload); a != nil {
			a.cancel(errStopped)
		}
	}
}

// later does something soon that nobody waits for; not if there is too much of it.
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
