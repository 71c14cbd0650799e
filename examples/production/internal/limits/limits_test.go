package limits_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
	goredis "github.com/redis/go-redis/v9"
)

const (
	patience = 20 * time.Second
	chat     = `{"bot_slug":"bot","prompt":"Hi","stream":false}`
)

// everybody replaces the database: package postgres has tests of its own.
func everybody(l limits.Limits) func(context.Context, string) (limits.Limits, error) {
	return func(context.Context, string) (limits.Limits, error) { return l, nil }
}

// holding is an engine whose answers last until done is closed.
type holding struct {
	begun atomic.Int64
	done  chan struct{}
}

func (e *holding) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		e.begun.Add(1)
		select {
		case <-e.done:
			yield("Hello", nil)
		case <-ctx.Done():
		}
	}
}

func hello(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("Hello", nil) }
}

// replica is a service with limits. Its keys are the accounts' names.
type replica struct {
	*limits.Engine
	url   string
	costs *sync.Map // tokens that each chat of an account uses
}

func serve(t *testing.T, client *redisclient.Client, o limits.Options) replica {
	t.Helper()
	o.Redis, o.Logger = client, slog.New(slog.NewTextHandler(t.Output(), nil))
	if o.Engine == nil {
		o.Engine = botapi.ChatEngineFunc(hello)
	}
	costs := new(sync.Map)
	if o.Used == nil {
		o.Used = func(ctx context.Context) int64 {
			tokens, _ := costs.Load(botapi.AccountFrom(ctx))
			used, _ := tokens.(int64)
			return used
		}
	}
	engine := limits.New(o)
	t.Cleanup(engine.Close)
	accounts := botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	return replica{engine, botapitest.NewServer(t, botapi.Options{Keys: accounts, Engine: engine}).URL, costs}
}

// three are three replicas, each with its own connections to one Redis.
func three(t *testing.T, redis *redistest.Server, o limits.Options) (all [3]replica) {
	t.Helper()
	for i := range all {
		all[i] = serve(t, redis.ClientWith(t, redisclient.Options{Timeout: patience}), o)
	}
	return all
}

// An answer is what a client received.
type answer struct {
	status     int
	body       string
	retryAfter int
}

func (r replica) ask(ctx context.Context, account string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/chat", strings.NewReader(chat))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+account)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	after, _ := strconv.Atoi(cmp.Or(response.Header.Get("Retry-After"), "0"))
	return answer{response.StatusCode, string(body), after}, err
}

func (r replica) chat(t *testing.T, account string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := r.ask(ctx, account)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// A crowd is clients of one account that ask all replicas at the same time.
type crowd struct {
	sync.WaitGroup
	rejected atomic.Int64
}

func gather(t *testing.T, replicas [3]replica, account string, clients int) *crowd {
	c := new(crowd)
	for i := range clients {
		c.Go(func() {
			if got, _ := replicas[i%3].ask(t.Context(), account); got.status == http.StatusTooManyRequests {
				c.rejected.Add(1)
			}
		})
	}
	return c
}

// spend runs a chat that uses this many tokens.
func (r replica) spend(t *testing.T, account string, tokens int64) {
	t.Helper()
	r.costs.Store(account, tokens)
	defer r.costs.Delete(account)
	if got := r.chat(t, account); got != answered {
		t.Fatal(got)
	}
}

var eventually = faulttest.Eventually

var answered = answer{http.StatusOK, `{"content":"Hello"}`, 0}

// TestNeverMoreThanTheLimit has 1,000 clients ask three replicas concurrently.
func TestNeverMoreThanTheLimit(t *testing.T) {
	const clients, limit = 1000, 70
	for name, c := range map[string]struct {
		limits limits.Limits
		detail string
	}{
		"in a minute":  {limits.Limits{ChatsPerMinute: limit}, "Too many chats in a minute for this account"},
		"concurrently": {limits.Limits{ConcurrentChats: limit}, "Too many chats in progress for this account"},
		"both":         {limits.Limits{ChatsPerMinute: clients, ConcurrentChats: limit}, "Too many chats in progress for this account"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine := &holding{done: make(chan struct{})}
			replicas := three(t, redistest.NewServer(t), limits.Options{Engine: engine, Limits: everybody(c.limits)})
			var rejected atomic.Int64
			answers := make([]answer, clients)
			errs := make([]error, clients)
			var all sync.WaitGroup
			for i := range clients {
				all.Go(func() {
					answers[i], errs[i] = replicas[i%3].ask(t.Context(), "acme")
					if answers[i].status != http.StatusOK {
						rejected.Add(1)
					}
				})
			}
			eventually(t, "the others are rejected", func() bool { return rejected.Load() >= clients-limit })
			is.Equal(engine.begun.Load(), int64(limit)) // and no more
			other := make(chan answer, 1)
			go func() {
				got, _ := replicas[0].ask(t.Context(), "other")
				other <- got
			}()
			eventually(t, "another account has limits of its own", func() bool { return engine.begun.Load() == limit+1 })
			close(engine.done)
			all.Wait()
			is.Equal(<-other, answered)
			whole := 0
			for i, got := range answers {
				is.NoErr(errs[i])
				if got == answered {
					whole++
					continue
				}
				is.Equal(got.status, http.StatusTooManyRequests)
				is.Equal(got.body, `{"detail":"`+c.detail+`"}`)
				is.True(got.retryAfter >= 1 && got.retryAfter <= 60)
			}
			is.Equal(whole, limit)
		})
	}
}

// TestRetryAfterIsTrue retries after the time that it was told.
func TestRetryAfterIsTrue(t *testing.T) {
	is := is.New(t)
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Limits: everybody(limits.Limits{ChatsPerMinute: 2})})
	r.SetMinute(2 * time.Second)
	for range 3 {
		is.Equal(r.chat(t, "acme"), answered)
		is.Equal(r.chat(t, "acme"), answered)
		rejected := r.chat(t, "acme")
		is.Equal(rejected.status, http.StatusTooManyRequests)
		is.Equal(r.chat(t, "acme").status, http.StatusTooManyRequests) // a rejected request costs nothing
		is.True(rejected.retryAfter == 1 || rejected.retryAfter == 2)
		time.Sleep(time.Duration(rejected.retryAfter) * time.Second)
	}
}

func TestTokensOfTheDay(t *testing.T) {
	is := is.New(t)
	replicas := three(t, redistest.NewServer(t), limits.Options{Limits: everybody(limits.Limits{TokensPerDay: 100, ChatsPerMinute: 4})})
	replicas[0].spend(t, "acme", 60)
	replicas[1].spend(t, "acme", 39)
	is.Equal(replicas[0].chat(t, "acme"), answered) // one token is left
	replicas[2].spend(t, "acme", 1)
	is.Equal(replicas[2].chat(t, "other"), answered)

	const usedUp = `{"detail":"The tokens of this account for today are used up"}`
	eventually(t, "they are used up", func() bool { return replicas[2].chat(t, "acme").body == usedUp })
	before := untilMidnight()
	rejected := replicas[2].chat(t, "acme")
	is.Equal(rejected.status, http.StatusTooManyRequests)
	is.Equal(rejected.body, usedUp)
	if after := untilMidnight(); after <= before { // otherwise the day has just ended
		is.True(after <= rejected.retryAfter && rejected.retryAfter <= before+1)
	}
}

func untilMidnight() int { return int(86400 - time.Now().Unix()%86400) }

// TestReplicaThatDies has a chat at a replica that renews its lease, and one at a
// replica that stops doing so. The slot of that one is free again, and what it has
// reserved is not used any longer.
func TestReplicaThatDies(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	engine := &holding{done: make(chan struct{})}
	o := limits.Options{Engine: engine, Limits: everybody(limits.Limits{ConcurrentChats: 2, TokensPerDay: 1000}), Lease: 3 * time.Second}
	o.Reserve = func(context.Context, *botapi.ChatRequest) int64 { return 100 }
	dying, living := serve(t, server.Client(t), o), serve(t, server.Client(t), o)
	other := serve(t, server.Client(t), limits.Options{Limits: o.Limits, Lease: o.Lease})
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, r := range []replica{dying, living} {
		all.Go(func() { _, _ = r.ask(ctx, "acme") })
	}
	defer all.Wait()
	defer leave()
	eventually(t, "both chats are in progress", func() bool { return engine.begun.Load() == 2 })
	redis := server.Client(t)
	used := func() limits.Use {
		used, err := limits.Uses(t.Context(), redis)
		is.NoErr(err)
		is.Equal(len(used), 1)
		is.Equal(used[0].Reserved, 100*used[0].InProgress)
		return used[0]
	}
	is.Equal(used(), limits.Use{Account: "acme", InProgress: 2, Reserved: 200})
	is.Equal(other.chat(t, "acme").status, http.StatusTooManyRequests)
	dying.Close() // its chat goes on, but its lease is not renewed
	eventually(t, "one chat is in progress", func() bool { return used().InProgress == 1 })
	is.Equal(other.chat(t, "acme"), answered)
}

// TestRedisStopsAndRestarts stops Redis and starts it again, empty.
func TestRedisStopsAndRestarts(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	engine := &holding{done: make(chan struct{})}
	store := everybody(limits.Limits{ConcurrentChats: 1, TokensPerDay: 100})
	first := serve(t, server.Client(t), limits.Options{Engine: engine, Limits: store, Lease: 300 * time.Millisecond})
	second := serve(t, server.Client(t), limits.Options{Limits: store, Lease: 300 * time.Millisecond})
	var all sync.WaitGroup
	defer all.Wait()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ask := func(account string) {
		all.Go(func() { _, _ = first.ask(ctx, account) })
	}
	ask("before")
	eventually(t, "a chat is in progress", func() bool { return engine.begun.Load() == 1 })
	is.Equal(second.chat(t, "before").status, http.StatusTooManyRequests)

	server.Stop(t)
	ask("meanwhile")
	eventually(t, "a chat is admitted without Redis", func() bool { return engine.begun.Load() == 2 })
	is.Equal(first.chat(t, "meanwhile").status, http.StatusTooManyRequests) // as this replica knows
	is.Equal(second.chat(t, "meanwhile"), answered)                         // which other replicas do not know
	second.spend(t, "spender", 98)
	second.spend(t, "spender", 1)
	second.spend(t, "glutton", 100)
	is.Equal(second.chat(t, "glutton").status, http.StatusTooManyRequests) // as this replica knows, too

	server.Start(t)
	eventually(t, "tokens are counted again", func() bool {
		return server.Client(t).Exists(t.Context(), "botapi:limits:tokens:spender").Val() == 1
	})
	is.Equal(second.chat(t, "spender"), answered) // one token is left
	second.spend(t, "spender", 1)
	for _, account := range []string{"before", "meanwhile", "spender", "glutton"} {
		eventually(t, account+" is counted again", func() bool { return second.chat(t, account).status == http.StatusTooManyRequests })
	}
	close(engine.done)
	for account := range map[string]bool{"before": true, "meanwhile": true} {
		eventually(t, account+" has its slot again", func() bool { return second.chat(t, account) == answered })
	}
}

// TestLimitsAreCached has many chats share one lookup, and another one later.
func TestLimitsAreCached(t *testing.T) {
	is := is.New(t)
	var lookups atomic.Int64
	var limit atomic.Int64
	limit.Store(1)
	asked := make(chan struct{})
	store := func(context.Context, string) (limits.Limits, error) {
		if lookups.Add(1) == 1 {
			<-asked
		}
		return limits.Limits{ConcurrentChats: limit.Load()}, nil
	}
	engine := &holding{done: make(chan struct{})}
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Engine: engine, Limits: store, CacheTTL: 500 * time.Millisecond})
	all := gather(t, [3]replica{r, r, r}, "acme", 20)
	close(asked)
	eventually(t, "all but one are rejected", func() bool { return all.rejected.Load() == 19 })
	is.True(lookups.Load() <= 2) // the second if the 20 took longer than the cache keeps it

	limit.Store(2) // the limit is raised
	all.Go(func() {
		for engine.begun.Load() < 2 {
			_, _ = r.ask(t.Context(), "acme")
		}
	})
	eventually(t, "the new limit applies", func() bool { return engine.begun.Load() == 2 })
	close(engine.done)
	all.Wait()
}

func TestStoreThatFails(t *testing.T) {
	is := is.New(t)
	away := &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Later", RetryAfter: 2 * time.Second, Err: errors.New("no connection")}
	var failing atomic.Bool
	failing.Store(true)
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Limits: func(context.Context, string) (limits.Limits, error) {
		if failing.Load() {
			return limits.Limits{}, away
		}
		return limits.Limits{}, nil
	}})
	is.Equal(r.chat(t, "acme"), answer{http.StatusServiceUnavailable, `{"detail":"Later"}`, 2})
	failing.Store(false)
	is.Equal(r.chat(t, "acme"), answered) // a failure is not cached
}

func TestHugeLimits(t *testing.T) {
	is := is.New(t)
	none := limits.Limits{ChatsPerMinute: math.MaxInt64, TokensPerDay: math.MaxInt64, ConcurrentChats: math.MaxInt64}
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Limits: everybody(none)})
	is.Equal(r.chat(t, "acme"), answered)
	is.Equal(r.chat(t, "acme"), answered)
}

// budget is a service whose chats reserve and use the same number of tokens
// each, and last until they are released.
func budget(t *testing.T, reserve, use int64, l limits.Limits) (*holding, *redistest.Server, [3]replica) {
	t.Helper()
	engine, server := &holding{done: make(chan struct{})}, redistest.NewServer(t)
	return engine, server, three(t, server, limits.Options{
		Engine:  engine,
		Limits:  everybody(l),
		Reserve: func(context.Context, *botapi.ChatRequest) int64 { return reserve },
		Used:    func(context.Context) int64 { return use },
	})
}

// TestFiftyConcurrentChats asks for fifty answers concurrently, and once more when they
// have ended. The documentation says how far the budget may be exceeded.
func TestFiftyConcurrentChats(t *testing.T) {
	const clients, tokens = 50, 1000
	for name, c := range map[string]struct{ reserve, use, admitted, most int64 }{
		"with a maximum":         {reserve: 90, use: 90, admitted: 12, most: tokens - 1 + 90},
		"without":                {reserve: 90, use: 200, admitted: 12, most: tokens - 1 + 90 + 12*(200-90)},
		"less than was reserved": {reserve: 90, use: 10, admitted: 12, most: tokens - 1 + 90},
		"larger than the budget": {reserve: 5000, use: 5000, admitted: 1, most: tokens - 1 + 5000},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine, server, replicas := budget(t, c.reserve, c.use, limits.Limits{TokensPerDay: tokens})
			all := gather(t, replicas, "acme", clients)
			eventually(t, "the others are rejected", func() bool { return all.rejected.Load() == clients-c.admitted })
			is.Equal(engine.begun.Load(), c.admitted)
			is.Equal(replicas[0].chat(t, "acme"), answer{http.StatusTooManyRequests,
				`{"detail":"The tokens of this account for today are reserved for its chats in progress"}`, 1})
			close(engine.done)
			all.Wait()
			redis := server.Client(t)
			used := func() int64 {
				n, _ := redis.Get(t.Context(), "botapi:limits:tokens:acme").Int64()
				return n
			}
			eventually(t, "all is counted", func() bool { return used() == c.admitted*c.use })
			is.Equal(redis.HGet(t.Context(), "botapi:limits:reserved:acme", "all").Val(), "0")
			for replicas[0].chat(t, "acme") == answered { // until the budget is used up
			}
			eventually(t, "the budget is used up", func() bool { return used() >= tokens })
			is.True(used() <= c.most)
		})
	}
}

// TestCountedWhileItGoesOn has one long chat without a maximum.
func TestCountedWhileItGoesOn(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	engine := &holding{done: make(chan struct{})}
	var used atomic.Int64
	o := limits.Options{
		Engine: engine, Limits: everybody(limits.Limits{TokensPerDay: 100}), Lease: 300 * time.Millisecond,
		Reserve: func(context.Context, *botapi.ChatRequest) int64 { return 10 },
		Used:    func(context.Context) int64 { return used.Load() },
	}
	dying := serve(t, server.Client(t), o)
	o.Engine, o.Used = nil, nil
	other := serve(t, server.Client(t), o)
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = dying.ask(ctx, "acme") })
	eventually(t, "it is in progress", func() bool { return engine.begun.Load() == 1 })
	is.Equal(other.chat(t, "acme"), answered)
	used.Store(100)
	usedUp := func() bool { return strings.Contains(other.chat(t, "acme").body, "used up") }
	eventually(t, "what it has used by now is counted", usedUp)
	dying.Close() // like a killed replica: it settles nothing
	leave()
	all.Wait()
	time.Sleep(2 * o.Lease)
	is.True(usedUp()) // what was counted stays counted
}

// TestRepeatedBatch sends a batch again, as if the response to it had been lost.
func TestRepeatedBatch(t *testing.T) {
	is := is.New(t)
	redis := redistest.NewServer(t).Client(t)
	r := serve(t, redis, limits.Options{Limits: everybody(limits.Limits{})})
	r.spend(t, "acme", 7)
	eventually(t, "it is counted", func() bool { return redis.Get(t.Context(), "botapi:limits:tokens:acme").Val() == "7" })
	is.NoErr(r.SettleAgain(1, "acme", 7))
	is.Equal(redis.Get(t.Context(), "botapi:limits:tokens:acme").Val(), "7")
	r.spend(t, "acme", 3)
	eventually(t, "the next is counted", func() bool { return redis.Get(t.Context(), "botapi:limits:tokens:acme").Val() == "10" })
	is.NoErr(r.SettleAgain(1, "acme", 7)) // as if it arrived late
	is.Equal(redis.Get(t.Context(), "botapi:limits:tokens:acme").Val(), "10")
}

// TestClockOfRedisIsSetBack has state from what is now the future.
func TestClockOfRedisIsSetBack(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	redis := server.Client(t)
	r := serve(t, redis, limits.Options{Limits: everybody(limits.Limits{ChatsPerMinute: 3, ConcurrentChats: 1}), Lease: 300 * time.Millisecond})
	r.SetMinute(2 * time.Second)
	later := float64(time.Now().Add(time.Hour).UnixMilli())
	is.NoErr(redis.RPush(t.Context(), "botapi:limits:minute:acme", later-2, later-1, later).Err())
	is.NoErr(redis.ZAdd(t.Context(), "botapi:limits:slots:acme", goredis.Z{Score: later, Member: "of a replica that died"}).Err())
	began := time.Now()
	is.Equal(r.chat(t, "acme").status, http.StatusTooManyRequests)
	eventually(t, "it is admitted", func() bool { return r.chat(t, "acme") == answered })
	is.True(time.Since(began) > 1500*time.Millisecond) // the limit still applied
}

// TestRedisIsFull checks that limits still work although nothing else has room.
func TestRedisIsFull(t *testing.T) {
	is := is.New(t)
	engine, server, replicas := budget(t, 10, 10, limits.Limits{TokensPerDay: 50, ConcurrentChats: 4})
	redis := server.Client(t)
	is.NoErr(redis.ConfigSet(t.Context(), "maxmemory", "1").Err())
	is.True(goredis.IsOOMError(redis.Set(t.Context(), "key", "", 0).Err()))
	all := gather(t, replicas, "acme", 50)
	eventually(t, "four are admitted", func() bool { return all.rejected.Load() == 46 && engine.begun.Load() == 4 })
	close(engine.done)
	all.Wait()
	eventually(t, "what they used is counted", func() bool { return redis.Get(t.Context(), "botapi:limits:tokens:acme").Val() == "40" })
	is.Equal(replicas[1].chat(t, "acme"), answered)
	eventually(t, "and the day's limit holds", func() bool { return strings.Contains(replicas[2].chat(t, "acme").body, "used up") })
}

// TestKeyOfAnotherType has one account's tokens in a list. Replicas limit that
// account by what they know, and no other account is affected. The end of a chat
// repairs the key.
func TestKeyOfAnotherType(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	redis := server.Client(t)
	engine := &holding{done: make(chan struct{})}
	replicas := three(t, server, limits.Options{Engine: engine, Limits: everybody(limits.Limits{ConcurrentChats: 1, TokensPerDay: 10})})
	is.NoErr(redis.RPush(t.Context(), "botapi:limits:tokens:acme", "").Err())
	var all sync.WaitGroup
	ask := func(replica int, account string) {
		all.Go(func() { _, _ = replicas[replica].ask(t.Context(), account) })
	}
	ask(0, "acme")
	ask(1, "acme")
	ask(2, "other")
	eventually(t, "all are in progress", func() bool { return engine.begun.Load() == 3 })
	for _, r := range replicas {
		r.costs.Store("acme", int64(5))
	}
	is.Equal(replicas[0].chat(t, "acme").status, http.StatusTooManyRequests)
	is.Equal(replicas[0].chat(t, "other").status, http.StatusTooManyRequests)
	close(engine.done)
	all.Wait()
	eventually(t, "the other's slot is free", func() bool { return replicas[1].chat(t, "other") == answered })
	eventually(t, "tokens are counted", func() bool { return redis.Get(t.Context(), "botapi:limits:tokens:acme").Val() == "10" })
	is.Equal(replicas[2].chat(t, "acme").body, `{"detail":"The tokens of this account for today are used up"}`)
}

// TestRejectedAccountDoesNotLoadRedis asks again and again with a used-up limit.
func TestRejectedAccountDoesNotLoadRedis(t *testing.T) {
	is := is.New(t)
	redis := redistest.NewServer(t).Client(t)
	r := serve(t, redis, limits.Options{Limits: everybody(limits.Limits{ChatsPerMinute: 1})})
	is.Equal(r.chat(t, "acme"), answered)
	before, began := scripts(t, redis), time.Now()
	for range 300 {
		is.Equal(r.chat(t, "acme").status, http.StatusTooManyRequests)
	}
	is.True(scripts(t, redis)-before <= 5+2*int(time.Since(began).Seconds()))
	is.Equal(r.chat(t, "other"), answered)
}

// TestRejectedAsFarAsIsKnown asks a replica what it knows without Redis: what that
// has just said, until a chat of the account ends.
func TestRejectedAsFarAsIsKnown(t *testing.T) {
	is := is.New(t)
	engine := &holding{done: make(chan struct{})}
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Engine: engine, Limits: func(_ context.Context, account string) (limits.Limits, error) {
		return map[string]limits.Limits{"one": {ConcurrentChats: 1}}[account], nil
	}})
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { _, _ = r.ask(t.Context(), "one") })
	eventually(t, "it has begun", func() bool { return engine.begun.Load() == 1 })
	is.NoErr(r.Rejected("one")) // nobody has asked yet
	is.Equal(r.chat(t, "one").status, http.StatusTooManyRequests)
	response, ok := errors.AsType[*botapi.StatusError](r.Rejected("one"))
	is.True(ok)
	is.Equal(response.Status, http.StatusTooManyRequests)
	is.NoErr(r.Rejected("other"))
	close(engine.done)
	all.Wait()
	is.NoErr(r.Rejected("one"))
}

// TestCostOfAChatForRedis counts commands: one to begin a chat, and one to end
// it.
func TestCostOfAChatForRedis(t *testing.T) {
	is := is.New(t)
	redis := redistest.NewServer(t).Client(t)
	r := serve(t, redis, limits.Options{Limits: everybody(limits.Limits{ChatsPerMinute: 1000, ConcurrentChats: 10, TokensPerDay: 1000})})
	r.spend(t, "acme", 1)
	eventually(t, "it is settled", func() bool { return redis.Get(t.Context(), "botapi:limits:tokens:acme").Val() == "1" })
	before := scripts(t, redis)
	for range 20 {
		r.spend(t, "acme", 1)
	}
	eventually(t, "all are settled", func() bool { return redis.Get(t.Context(), "botapi:limits:tokens:acme").Val() == "21" })
	is.True(scripts(t, redis)-before <= 2*20)
}

// scripts returns how many scripts a Redis has run.
func scripts(t *testing.T, redis *redisclient.Client) int {
	t.Helper()
	calls := redistest.Calls(t, redis)
	return calls["eval"] + calls["evalsha"]
}

// TestRedisIsTooLate has Redis grant a slot to a chat whose client was meanwhile
// told to retry: the slot is free long before its lease expires.
func TestRedisIsTooLate(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	redis := server.Client(t)
	r := serve(t, server.ClientWith(t, redisclient.Options{Timeout: 200 * time.Millisecond}), limits.Options{
		Limits:  everybody(limits.Limits{ConcurrentChats: 1, TokensPerDay: 100}),
		Lease:   10 * patience,
		Reserve: func(context.Context, *botapi.ChatRequest) int64 { return 100 },
	})
	is.Equal(r.chat(t, "other"), answered) // so Redis responds
	eventually(t, "it has ended", func() bool { return redis.Exists(t.Context(), "botapi:limits:slots:other").Val() == 0 })
	time.Sleep(20 * time.Millisecond) // its connection is free: a new one would take too long to send the command
	server.Hang(t)
	is.Equal(r.chat(t, "acme").status, http.StatusServiceUnavailable)
	server.GoOn(t)
	eventually(t, "the slot and the reservation are released", func() bool { return r.chat(t, "acme") == answered })
}

// TestRedisComesBackEmpty has Redis forget again and again what an account used
// today: a replica that knows it restores it, whether the end of a running chat or a
// new chat asks first.
func TestRedisComesBackEmpty(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	redis := server.Client(t)
	engine := &holding{done: make(chan struct{})}
	r := serve(t, server.Client(t), limits.Options{Engine: engine, Limits: everybody(limits.Limits{TokensPerDay: 1000})})
	r.costs.Store("acme", int64(40))
	for i := range int64(6) {
		var all sync.WaitGroup
		all.Go(func() { _, _ = r.ask(t.Context(), "acme") })
		eventually(t, "a chat is in progress", func() bool { return engine.begun.Load() == i+1 })
		restored, _ := redis.Get(t.Context(), "botapi:limits:tokens:acme").Int64()
		is.Equal(restored, 40*i) // by the new chat
		is.NoErr(redis.FlushAll(t.Context()).Err())
		engine.done <- struct{}{}
		all.Wait()
		eventually(t, "its tokens are counted", func() bool { return redis.Exists(t.Context(), "botapi:limits:tokens:acme").Val() == 1 })
		is.Equal(redis.Get(t.Context(), "botapi:limits:tokens:acme").Val(), strconv.FormatInt(40*(i+1), 10))
		eventually(t, "the replica has heard of it", func() bool { return r.Seen("acme") == 40*(i+1) })
		is.NoErr(redis.FlushAll(t.Context()).Err())
	}
}

// TestOneAfterAnother takes and releases the only slot of an account: a client
// that asks again after its answer is never rejected.
func TestOneAfterAnother(t *testing.T) {
	is := is.New(t)
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Limits: everybody(limits.Limits{ConcurrentChats: 1})})
	for range 200 {
		is.Equal(r.chat(t, "acme"), answered)
	}
}
