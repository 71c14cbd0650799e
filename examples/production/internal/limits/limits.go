// Package limits holds accounts to their limits over all replicas. It is a chat
// engine in front of another: a chat that would be too much is refused before
// its first fragment.
package limits

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/redisclient"
)

const (
	// DefaultCacheTTL is how long an account's limits are remembered.
	DefaultCacheTTL = 10 * time.Second
	// DefaultLease is how long the places of a replica that died stay taken.
	DefaultLease = 30 * time.Second

	minute = time.Minute
	// soon is what a client is told when nobody knows when a place is free.
	soon = time.Second
)

// Limits is what one account may use, over all replicas. Zero means no limit.
type Limits struct {
	// ChatsPerMinute counts the chats that were admitted in any 60 seconds.
	ChatsPerMinute int64
	// TokensPerDay counts prompt and completion tokens of a day in UTC. They
	// are known at a chat's end: when they are used up, no chat begins any
	// more, and those in progress end as they would have.
	TokensPerDay int64
	// ChatsAtOnce counts chats in progress.
	ChatsAtOnce int64
}

// Store knows the limits of an account. It may be asked for any account, and
// for each once in a CacheTTL by every replica.
type Store interface {
	Limits(ctx context.Context, account string) (Limits, error)
}

// Options is what an Engine is made of. Engine, Store and Redis are required.
type Options struct {
	Engine botapi.ChatEngine   // answers the chats that are admitted
	Store  Store               // its errors end a chat; a botapi.StatusError chooses the answer
	Redis  *redisclient.Client // stays the caller's, to close after the Engine

	// MaxChats and MaxChatsPerAccount are limits of this replica alone, 0 for
	// none. They count a chat for as long as its engine works, as
	// botapi.Options counts it for as long as its client is answered: the two
	// differ when an answer goes on without its client.
	MaxChats, MaxChatsPerAccount int64

	CacheTTL time.Duration // 0 means DefaultCacheTTL
	Lease    time.Duration // 0 means DefaultLease
	Logger   *slog.Logger  // nil means slog.Default()
}

// Engine is a botapi.ChatEngine. It counts in Redis, by the clock of Redis, and
// all that it asks for one chat is decided there in one step: however many
// replicas ask at once, no more chats are admitted than the limit.
//
// A chat in progress is a lease, which its replica renews until the chat has
// ended: the places of a replica that died are free again after Options.Lease.
//
// A chat that Redis has no time for is refused with 503. While Redis is away,
// chats are admitted: every replica then goes by its own
// limits, MaxChats, MaxChatsPerAccount, and ChatsAtOnce counted by itself. When
// Redis is back, chats in progress and tokens that were used meanwhile are
// counted, and nothing has to be restarted.
type Engine struct {
	next   botapi.ChatEngine
	known  *cache
	shared shared
	places *places
	tokens *unsent
	logger *slog.Logger

	replica string // begins the names of this replica's leases
	leases  atomic.Int64

	stop context.CancelFunc // ends the goroutine that renews
	done chan struct{}
}

var _ botapi.ChatEngine = (*Engine)(nil)

// New returns an engine, which works until it is closed.
func New(o Options) *Engine {
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.CacheTTL == 0 {
		o.CacheTTL = DefaultCacheTTL
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Engine{
		next:    o.Engine,
		known:   newCache(o.Store, o.CacheTTL),
		shared:  shared{redis: o.Redis, lease: o.Lease, window: minute},
		places:  newPlaces(o.MaxChats, o.MaxChatsPerAccount),
		tokens:  newUnsent(),
		logger:  o.Logger,
		replica: rand.Text(),
		stop:    stop,
		done:    make(chan struct{}),
	}
	go e.renew(ctx)
	return e
}

// Close ends the engine, after the last chat. Tokens that Redis has not taken
// until then are in the log.
func (e *Engine) Close() {
	e.stop()
	<-e.done
	e.settle()
	for account, tokens := range e.tokens.take() {
		e.logger.Error("used tokens were not counted", slog.String("account", account), slog.Int64("tokens", tokens))
	}
}

// Chat answers with the next engine if the account's limits allow it. The
// answer to a chat that they do not allow is a StatusError.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		account := botapi.AccountFrom(ctx)
		lease, err := e.admit(ctx, account)
		if err != nil {
			yield("", err)
			return
		}
		defer e.release(ctx, account, lease)
		e.next.Chat(ctx, req)(yield)
	}
}

// Spend counts tokens that a chat of an account has used, prompt and completion
// together. Called before the chat's engine returns, it counts for the next
// chat that asks.
func (e *Engine) Spend(ctx context.Context, account string, tokens int64) {
	if err := e.shared.spend(context.WithoutCancel(ctx), account, tokens); err != nil {
		e.tokens.add(account, tokens)
	}
}

// admit takes a place for a chat, in this replica and in all.
func (e *Engine) admit(ctx context.Context, account string) (lease string, err error) {
	limits, err := e.known.limits(ctx, account)
	if err != nil {
		return "", fmt.Errorf("asking for the limits of an account: %w", err)
	}
	here, err := e.places.reserve(account)
	if err != nil {
		return "", err
	}
	lease = e.replica + "-" + strconv.FormatInt(e.leases.Add(1), 10)
	refused, err := e.shared.admit(context.WithoutCancel(ctx), account, lease, limits)
	switch {
	case err == nil:
	case !e.shared.redis.Away(): // it only has too much to do, or this replica has
		refused = unavailable(err)
	case limits.ChatsAtOnce > 0 && here > limits.ChatsAtOnce: // by what this replica knows
		refused = tooManyAtOnce(soon)
	}
	if refused != nil {
		e.places.giveBack(account)
		return "", refused
	}
	e.places.hold(account, lease)
	return lease, nil
}

// release gives a place back. If Redis does not hear of it, the lease runs out.
func (e *Engine) release(ctx context.Context, account, lease string) {
	e.places.drop(account, lease)
	_ = e.shared.release(context.WithoutCancel(ctx), []place{{account, lease}})
}

// renew renews the leases of this replica, until ctx ends.
func (e *Engine) renew(ctx context.Context) {
	defer close(e.done)
	tick := time.NewTicker(e.shared.lease / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		held := e.places.held()
		if e.shared.renew(ctx, held) == nil {
			_ = e.shared.release(ctx, e.places.ended(held)) // renewed although they ended meanwhile
			e.settle()
		}
	}
}

// settle counts the tokens that could not be counted when they were used.
func (e *Engine) settle() {
	for account, tokens := range e.tokens.take() {
		e.Spend(context.Background(), account, tokens)
	}
}

func tooManyAtOnce(wait time.Duration) error {
	return refusal("Too many chats in progress for this account", wait)
}

func unavailable(err error) error {
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The service is unavailable for the moment",
		RetryAfter: soon,
		Err:        err,
	}
}

func refusal(detail string, wait time.Duration) error {
	return &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: detail, RetryAfter: wait}
}
