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
	// TokensPerDay counts prompt and completion tokens of a day in UTC. A chat is
	// admitted while there are some that are neither used nor reserved.
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

	// Reserve returns how many tokens a chat may use, prompt and completion
	// together: so many are reserved when it is admitted. Nil reserves none.
	Reserve func(context.Context, *botapi.ChatRequest) int64
	// Used returns how many tokens a chat has used so far, by its context. It is
	// called while the chat goes on, too, by another goroutine. Nil counts none.
	Used func(context.Context) int64

	// MaxChats and MaxChatsPerAccount are limits of this replica alone, 0 for
	// none. They count a chat for as long as its engine works, as
	// botapi.Options counts it for as long as its client is answered: the two
	// differ when an answer goes on without its client.
	MaxChats, MaxChatsPerAccount int64

	CacheTTL time.Duration // 0 means DefaultCacheTTL
	Lease    time.Duration // 0 means DefaultLease
	Logger   *slog.Logger  // nil means slog.Default()
}

func (o Options) completed() Options {
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.CacheTTL == 0 {
		o.CacheTTL = DefaultCacheTTL
	}
	if o.Reserve == nil {
		o.Reserve = func(context.Context, *botapi.ChatRequest) int64 { return 0 }
	}
	if o.Used == nil {
		o.Used = func(context.Context) int64 { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Engine is a botapi.ChatEngine. It counts in Redis, by the clock of Redis, and
// all that it asks for one chat is decided there in one step: however many
// replicas ask at once, no more chats are admitted than the limit.
//
// A chat in progress is a lease, which its replica renews until the chat has
// ended: the places of a replica that died are free again after Options.Lease.
// With each renewal, and at its end, the tokens that it has used are counted. That
// is done behind the chats' backs: no client waits for it.
//
// A chat that is not heard in time by a Redis that is there for others is refused
// with 503: limits do not lapse because somebody keeps a replica busy. While Redis
// is away, and for a chat whose keys it refuses, every replica goes by what it
// knows: MaxChats, MaxChatsPerAccount, the limits of the account
// counted by itself, and the tokens that the account had used when Redis was last
// asked. When Redis is back, chats in progress and tokens that were used meanwhile
// are counted, and nothing has to be restarted.
type Engine struct {
	next    botapi.ChatEngine
	options Options
	known   *cache
	shared  shared
	places  *places
	tallies *tallies
	book    *book

	leases atomic.Int64

	stop context.CancelFunc // ends the goroutine that settles
	done chan struct{}
}

var _ botapi.ChatEngine = (*Engine)(nil)

// New returns an engine, which works until it is closed.
func New(o Options) *Engine {
	o = o.completed()
	ctx, stop := context.WithCancel(context.Background())
	e := &Engine{
		next:    o.Engine,
		options: o,
		known:   newCache(o.Store, o.CacheTTL),
		shared:  shared{redis: o.Redis, replica: rand.Text(), lease: o.Lease, window: minute},
		places:  newPlaces(o.MaxChats, o.MaxChatsPerAccount),
		tallies: newTallies(),
		book:    newBook(),
		stop:    stop,
		done:    make(chan struct{}),
	}
	go e.keepAccounts(ctx)
	return e
}

// Close ends the engine, after the last chat. Tokens that Redis has not taken
// until then are in the log.
func (e *Engine) Close() {
	e.stop()
	<-e.done
	for account, tokens := range e.book.close() {
		e.options.Logger.Error("used tokens were not counted", slog.String("account", account), slog.Int64("tokens", tokens))
	}
}

// Chat answers with the next engine if the account's limits allow it. The
// answer to a chat that they do not allow is a StatusError.
func (e *Engine) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		c, err := e.admit(ctx, req)
		if err != nil {
			yield("", err)
			return
		}
		defer e.end(c)
		e.next.Chat(ctx, req)(yield)
	}
}

// ChatsAtOnce returns that limit of an account, for who counts what is no chat of
// its own.
func (e *Engine) ChatsAtOnce(ctx context.Context, account string) (int64, error) {
	limits, err := e.known.limits(ctx, account)
	if err != nil {
		return 0, fmt.Errorf("asking for the limits of an account: %w", err)
	}
	return limits.ChatsAtOnce, nil
}

// A chat is one in progress.
type chat struct {
	account, lease string
	reserved       int64
	used           func() int64

	counted int64 // of used, by the book
}

// admit takes a place for a chat, in this replica and in all.
func (e *Engine) admit(ctx context.Context, req *botapi.ChatRequest) (*chat, error) {
	account := botapi.AccountFrom(ctx)
	limits, err := e.known.limits(ctx, account)
	if err != nil {
		return nil, fmt.Errorf("asking for the limits of an account: %w", err)
	}
	if why := e.tallies.refused(account); why.reason != "" { // to ask again would only keep Redis from others
		return nil, why.err()
	}
	here, err := e.places.reserve(account)
	if err != nil {
		return nil, err
	}
	c := &chat{
		account:  account,
		lease:    e.shared.replica + "-" + strconv.FormatInt(e.leases.Add(1), 10),
		reserved: max(0, e.options.Reserve(ctx, req)),
		used:     func() int64 { return e.options.Used(ctx) },
	}
	if err := e.ask(ctx, c, limits, here); err != nil {
		e.places.giveBack(account)
		return nil, err
	}
	e.book.begin(c)
	return c, nil
}

// ask asks Redis for a place, or what this replica knows where that does not say.
func (e *Engine) ask(ctx context.Context, c *chat, limits Limits, here int64) error {
	ctx, done := e.shared.redis.Waiting(context.WithoutCancel(ctx))
	defer done()
	unsettled := e.book.hasEnded(c.account)
	why, err := e.askShared(ctx, c, limits)
	if err == nil && why.passes() && unsettled && e.book.waitFor(ctx, c.account) { // what has ended here is known there now
		why, err = e.askShared(ctx, c, limits)
	}
	switch {
	case err == nil:
	case !e.shared.redis.Away() && !redisclient.Refused(err): // Redis is there, and this replica has too much to do
		e.book.release(c)
		return unavailable(err)
	default:
		if !e.shared.redis.Away() { // that it is was said once
			e.options.Logger.WarnContext(ctx, "a chat was not limited over all replicas", slog.Any("error", err))
		}
		why = e.tallies.admit(c.account, limits, e.book.unsettled(c.account), here)
	}
	return why.err()
}

func (e *Engine) askShared(ctx context.Context, c *chat, limits Limits) (refusal, error) {
	day, known := e.tallies.seen(c.account)
	why, used, err := e.shared.admit(ctx, c, limits, day, known)
	if err == nil {
		e.tallies.saw(c.account, used, why)
	}
	return why, err
}

// end gives the place of a chat back. If Redis does not hear of it, the lease runs
// out.
func (e *Engine) end(c *chat) {
	e.places.giveBack(c.account)
	e.book.end(c)
}

// settlePeriod is how soon what Redis has not taken is tried again.
const settlePeriod = time.Second

// keepAccounts renews the leases of this replica, and brings to account what its
// chats have used, until ctx ends.
func (e *Engine) keepAccounts(ctx context.Context) {
	defer close(e.done)
	renew := time.NewTicker(e.shared.lease / 3)
	defer renew.Stop()
	again := time.NewTicker(min(settlePeriod, e.shared.lease/3))
	defer again.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-e.book.news:
		case <-again.C:
		case <-renew.C:
			e.book.renew()
		}
		e.settle()
	}
}

// settle brings to account what there is, until Redis does not take it.
func (e *Engine) settle() {
	for {
		number, batch := e.book.batch(e.tallies)
		if len(batch) == 0 {
			return
		}
		used, err := e.shared.settle(context.Background(), number, batch)
		if err != nil {
			return // the same batch comes again
		}
		e.tallies.settled(batch, used)
		e.book.settled()
	}
}

// A refusal is why a chat gets no place, and for how long; none has no reason.
type refusal struct {
	reason string
	wait   time.Duration
}

// passes reports whether the end of a chat may change it.
func (r refusal) passes() bool { return r.reason == "places" || r.reason == "reserved" }

var refusals = map[string]string{
	"minute":   "Too many chats in a minute for this account",
	"tokens":   "The tokens of this account for today are used up",
	"reserved": "The tokens of this account for today are reserved for its chats in progress",
	"places":   "Too many chats in progress for this account",
}

// err is what a client is told.
func (r refusal) err() error {
	if r.reason == "" {
		return nil
	}
	return &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: refusals[r.reason], RetryAfter: r.wait}
}

func unavailable(err error) error {
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The service is unavailable for the moment",
		RetryAfter: soon,
		Err:        err,
	}
}
