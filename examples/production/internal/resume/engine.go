// Package resume lets a client that lost its connection come back for the rest
// of its answer, on any replica, without the model being asked twice. It is a
// chat engine in front of another.
package resume

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// Defaults of Options.
const (
	DefaultWithin      = 2 * time.Minute
	DefaultLease       = 9 * time.Second
	DefaultAnswerBytes = 256 << 10
	DefaultAllBytes    = 256 << 20
)

// Options is what an Engine is made of. Engine and Redis are required.
type Options struct {
	Engine botapi.ChatEngine
	Redis  *redisclient.Client // stays the caller's, to close after the Engine

	// Within is how long an answer goes on without a client, and how long it
	// is kept once it is whole. 0 means DefaultWithin.
	Within time.Duration
	// ChatTimeout and StallTimeout are as in botapi.Options, for answers with a
	// key: they hold with and without a client. 0 or less means no limit.
	ChatTimeout, StallTimeout time.Duration
	// Lease is how long after the death of a replica its answers end for those
	// who follow them elsewhere. 0 means DefaultLease.
	Lease time.Duration
	// AnswerBytes is how long an answer with a key may be: a longer one breaks.
	// Each piece that the model sends counts as 64 bytes more than its text. 0
	// means DefaultAnswerBytes.
	AnswerBytes int64
	// AllBytes bounds what is kept of all answers of all replicas, each that is
	// under way counted in full. 0 means DefaultAllBytes.
	AllBytes int64

	Logger *slog.Logger // nil means slog.Default()
}

// Engine is a botapi.ChatEngine. A chat without an Idempotency-Key is passed on
// as it is. The first chat under a key of an account starts an answer of its
// own, which the engine owns: it belongs to no client, and does not end when its
// client leaves. Every chat under the same key follows that answer from its
// first fragment on, on whichever replica, until it is forgotten:
//
//   - an answer that is under way ends when nobody has followed it for Within;
//   - one that is whole is kept for Within, and then forgotten;
//   - one that failed, or whose replica died, breaks for those who follow it,
//     and the next chat under the key starts anew;
//   - one that was stopped stays stopped: 410, until it is forgotten.
//
// Another chat under a key that is not forgotten is refused with 409.
//
// What cannot be kept is answered as if it had no key: that is so while Redis is
// away and while AllBytes are used up. A chat that Redis has no time for is
// refused with 503. An answer whose replica loses Redis goes
// on for the clients it has.
//
// Nobody who follows an answer holds it back, so that no reader is too slow for
// another; AnswerBytes bounds what waits for them.
type Engine struct {
	next    botapi.ChatEngine
	options Options
	store   store
	logger  *slog.Logger

	mu      sync.Mutex
	answers map[string]*answer // those under way in this replica, by id
	closed  bool

	running   sync.WaitGroup // answers, and what keeps them
	stops     *redis.PubSub
	listening sync.WaitGroup
}

var _ botapi.ChatEngine = (*Engine)(nil)

// New returns an engine, which works until it is closed.
func New(o Options) *Engine {
	o = completed(o)
	e := &Engine{
		next:    o.Engine,
		options: o,
		store: store{
			redis:    o.Redis,
			blocking: o.Redis.Blocking(followersElsewhere),
			lease:    o.Lease,
			within:   o.Within,
			reserved: o.AnswerBytes,
			all:      o.AllBytes,
		},
		logger:  o.Logger,
		answers: make(map[string]*answer),
	}
	e.stops = o.Redis.Subscribe(context.Background(), stopsChannel)
	e.listening.Go(e.listen)
	return e
}

func completed(o Options) Options {
	if o.Within == 0 {
		o.Within = DefaultWithin
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.AnswerBytes == 0 {
		o.AnswerBytes = DefaultAnswerBytes
	}
	if o.AllBytes == 0 {
		o.AllBytes = DefaultAllBytes
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
		e.stops.Close()
		e.listening.Wait()
		e.store.blocking.Close()
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
	name := name(botapi.AccountFrom(ctx), r.keys[0])
	body, err := fingerprint(req)
	if err != nil {
		return failing(err)
	}
	id := rand.Text()
	found, joined, err := e.store.claim(context.WithoutCancel(ctx), name, id, body)
	if err != nil && !e.options.Redis.Away() { // it only has too much to do: nothing is to be paid twice for that
		return failing(errUnavailable(err))
	}
	if err != nil {
		e.logger.WarnContext(ctx, "an answer cannot be kept", slog.Any("error", err))
		return e.next.Chat(ctx, req)
	}
	switch found {
	case foundNothing:
		a, err := e.start(ctx, name, id, req)
		if err != nil {
			return e.next.Chat(ctx, req)
		}
		r.started.Store(a)
		return a.follow(ctx)
	case foundAnswer:
		if a := e.find(joined); a != nil {
			a.join()
			return a.follow(ctx)
		}
		return e.store.follow(ctx, name, joined)
	case foundStopped:
		return failing(errStopped)
	case foundOther:
		return failing(errOtherBody)
	default:
		e.logger.WarnContext(ctx, "an answer cannot be kept: too many are")
		return e.next.Chat(ctx, req)
	}
}

func failing(err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", err) }
}

// What clients are told.
var (
	errOtherBody = &botapi.StatusError{Status: http.StatusConflict, Detail: "Another chat has this Idempotency-Key"}
	errStopped   = &botapi.StatusError{Status: http.StatusGone, Detail: "The answer was stopped"}
	errTooLong   = &botapi.StatusError{Status: http.StatusInternalServerError, Detail: "The answer is too long to be kept under an Idempotency-Key"}
	errEnding    = &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Service Unavailable", RetryAfter: time.Second}
)

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

// start starts an answer of this replica, with its first follower.
func (e *Engine) start(ctx context.Context, name, id string, req *botapi.ChatRequest) (*answer, error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a := &answer{
		name:      name,
		id:        id,
		engine:    e,
		cancel:    cancel,
		changed:   make(chan struct{}),
		followers: 1,
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		cancel(nil)
		return nil, errEnding
	}
	e.answers[id] = a
	e.running.Go(func() { a.keep(ctx) })
	e.running.Go(func() { a.run(ctx, req) })
	return a, nil
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

// listen ends the answers that were stopped on another replica.
func (e *Engine) listen() {
	for message := range e.stops.Channel() {
		if a := e.find(message.Payload); a != nil {
			a.cancel(errStopped)
		}
	}
}
