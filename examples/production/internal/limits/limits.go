// Package limits enforces the limits of accounts over all replicas. Its engine
// wraps another, and rejects a chat that would exceed a limit before its first
// fragment.
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
	"github.com/maypok86/otter/v2"
)

const (
	// DefaultCacheTTL is how long the limits of an account are cached.
	DefaultCacheTTL = 10 * time.Second
	// DefaultLease is how long the slots of a replica that died stay taken.
	DefaultLease = 30 * time.Second

	minute = time.Minute
	// soon is the Retry-After when it is unknown when a slot is released.
	soon = time.Second
)

// Limits is what one account may use over all replicas. Zero means no limit.
type Limits struct {
	// ChatsPerMinute counts the chats that were admitted in any 60 seconds.
	ChatsPerMinute int64
	// TokensPerDay counts prompt and completion tokens of a day in UTC. A chat
	// is admitted while some are neither used nor reserved.
	TokensPerDay int64
	// ConcurrentChats counts chats in progress.
	ConcurrentChats int64
}

// Options is what an Engine is made of. Engine, Limits and Redis are required.
type Options struct {
	Engine botapi.ChatEngine   // answers the chats that are admitted
	Redis  *redisclient.Client // the caller closes it, after the Engine

	// Limits returns the limits of an account. It must accept any account; every
	// replica asks for each one at most once per CacheTTL. An error ends a chat; a
	// botapi.StatusError is the response.
	Limits func(ctx context.Context, account string) (Limits, error)

	// Reserve returns how many tokens a chat may use, prompt and completion
	// together. That many are reserved when it is admitted. Nil reserves none.
	Reserve func(context.Context, *botapi.ChatRequest) int64
	// Used returns how many tokens a chat has used so far, by its context. It is
	// also called during the chat, on another goroutine. Nil counts none.
	Used func(context.Context) int64

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
// one script decides about a chat. So the limits are exact even if several
// replicas ask concurrently.
//
// A chat in progress holds a lease, which its replica renews until the chat has
// ended: the slots of a replica that died are free again after Options.Lease.
// With each renewal, and at the end of a chat, its used tokens are counted. This
// happens in the background: no client waits for it.
//
// If Redis responds to others but not in time for a chat, the chat is rejected
// with 503, so that nobody can lift limits by keeping a replica busy. While
// Redis is away, and for a chat whose keys it rejects, every replica uses what
// it knows: the limits of the account, counted in this replica, and the tokens that the account had used when Redis was last
// asked. When Redis is back, chats in progress and tokens that were used
// meanwhile are counted, and nothing needs a restart.
type Engine struct {
	next    botapi.ChatEngine
	options Options
	known   *otter.Cache[string, Limits]
	shared  shared
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
		known: otter.Must(&otter.Options[string, Limits]{
			MaximumSize:      cachedAccounts,
			ExpiryCalculator: otter.ExpiryWriting[string, Limits](o.CacheTTL),
		}),
		shared:  shared{redis: o.Redis, replica: rand.Text(), lease: o.Lease, window: minute},
		tallies: newTallies(),
		book:    newBook(),
		stop:    stop,
		done:    make(chan struct{}),
	}
	go e.keepAccounts(ctx)
	return e
}

// Close ends the engine, after the last chat. It logs the tokens that Redis has
// not counted by then.
func (e *Engine) Close() {
	e.stop()
	<-e.done
	e.known.StopAllGoroutines()
	for account, tokens := range e.book.close() {
		e.options.Logger.Error("used tokens were not counted", slog.String("account", account), slog.Int64("tokens", tokens))
	}
}

// Chat answers with the next engine if the account's limits allow it. Otherwise
// it yields a StatusError.
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

// Rejected returns why a chat of an account would be rejected, as far as this
// replica knows without asking Redis, and nil if it does not. What Redis has said
// counts for a second at most.
func (e *Engine) Rejected(account string) error { return e.tallies.rejected(account) }

// ConcurrentChats returns that limit of an account, for callers that count other
// things by it.
func (e *Engine) ConcurrentChats(ctx context.Context, account string) (int64, error) {
	limits, err := e.limitsOf(ctx, account)
	return limits.ConcurrentChats, err
}

// cachedAccounts bounds the cache of limits.
const cachedAccounts = 10_000

// limitsOf returns the limits of an account. Concurrent chats of one share a lookup, which
// no client that disconnects fails.
func (e *Engine) limitsOf(ctx context.Context, account string) (Limits, error) {
	limits, err := e.known.Get(ctx, account, otter.LoaderFunc[string, Limits](func(ctx context.Context, account string) (Limits, error) {
		return e.options.Limits(context.WithoutCancel(ctx), account)
	}))
	if err != nil {
		return Limits{}, fmt.Errorf("asking for the limits of an account: %w", err)
	}
	return limits, nil
}

// A chat is a chat in progress.
type chat struct {
	account, lease string
	reserved       int64
	used           func() int64

	counted int64 // of used, in the book
}

// admit takes a slot for a chat, in this replica and in all together.
func (e *Engine) admit(ctx context.Context, req *botapi.ChatRequest) (*chat, error) {
	account := botapi.AccountFrom(ctx)
	limits, err := e.limitsOf(ctx, account)
	if err != nil {
		return nil, err
	}
	here, err := e.tallies.reserve(account)
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
		e.tallies.release(account)
		return nil, err
	}
	e.book.begin(c)
	return c, nil
}

// ask takes a slot in Redis. If Redis does not decide, this replica does.
func (e *Engine) ask(ctx context.Context, c *chat, limits Limits, here int64) error {
	ctx, done := e.shared.redis.Waiting(context.WithoutCancel(ctx))
	defer done()
	unsettled := e.book.hasEnded(c.account)
	why, err := e.askShared(ctx, c, limits)
	if err == nil && why.passes() && unsettled && e.book.waitFor(ctx, c.account) { // now Redis knows which chats have ended here
		why, err = e.askShared(ctx, c, limits)
	}
	switch {
	case err == nil:
	case !e.shared.redis.Away() && !redisclient.Rejected(err): // Redis responds to others: this replica is overloaded
		e.book.release(c)
		return unavailable(err)
	default:
		if !e.shared.redis.Away() { // that Redis is away has been logged
			e.options.Logger.WarnContext(ctx, "a chat was not limited over all replicas", slog.Any("error", err))
		}
		why = e.tallies.admit(c.account, limits, e.book.unsettled(c.account), here)
	}
	return why.err()
}

func (e *Engine) askShared(ctx context.Context, c *chat, limits Limits) (rejection, error) {
	day, known := e.tallies.seen(c.account)
	why, used, err := e.shared.admit(ctx, c, limits, day, known)
	if err == nil {
		e.tallies.saw(c.account, used, why)
	}
	return why, err
}

// end releases the slot of a chat. If Redis does not learn of it, the lease
// expires.
func (e *Engine) end(c *chat) {
	e.tallies.release(c.account)
	e.tallies.ended(c.account)
	e.book.end(c)
}

// settlePeriod is how soon a failed batch is retried.
const settlePeriod = time.Second

// keepAccounts renews the leases of this replica and counts the tokens of its
// chats, until ctx ends.
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

// settle sends all batches to Redis, until one fails.
func (e *Engine) settle() {
	for {
		number, batch := e.book.batch(e.tallies)
		if len(batch) == 0 {
			return
		}
		used, err := e.shared.settle(context.Background(), number, batch)
		if err != nil {
			return // the same batch is sent again
		}
		e.tallies.settled(batch, used)
		e.book.settled()
	}
}

// A rejection is why a chat gets no slot, and for how long. Without a reason the
// chat is admitted.
type rejection struct {
	reason string
	wait   time.Duration
}

// passes reports whether the end of a chat may change the rejection.
func (r rejection) passes() bool { return r.reason == "slots" || r.reason == "reserved" }

var rejections = map[string]string{
	"minute":   "Too many chats in a minute for this account",
	"tokens":   "The tokens of this account for today are used up",
	"reserved": "The tokens of this account for today are reserved for its chats in progress",
	"slots":    "Too many chats in progress for this account",
}

// err is the error that the client gets.
func (r rejection) err() error {
	if r.reason == "" {
		return nil
	}
	return &botapi.StatusError{Status: http.StatusTooManyRequests, Detail: rejections[r.reason], RetryAfter: r.wait}
}

func unavailable(err error) error {
	return &botapi.StatusError{
		Status:     http.StatusServiceUnavailable,
		Detail:     "The service is unavailable for the moment",
		RetryAfter: soon,
		Err:        err,
	}
}
