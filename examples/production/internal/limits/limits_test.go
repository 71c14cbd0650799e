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
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

const (
	patience = 20 * time.Second
	chat     = `{"bot_slug":"helper","prompt":"Hi","stream":false}`
)

// table stands in for the database: package postgres has tests of its own.
type table func(account string) (limits.Limits, error)

func (f table) Limits(_ context.Context, account string) (limits.Limits, error) { return f(account) }

func everybody(l limits.Limits) table {
	return func(string) (limits.Limits, error) { return l, nil }
}

// atOnce is an engine whose answers last until they are let go.
type atOnce struct {
	begun atomic.Int64
	done  chan struct{}
}

func (e *atOnce) Chat(ctx context.Context, _ *botapi.ChatRequest) iter.Seq2[string, error] {
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
	url string
}

func serve(t *testing.T, client *redisclient.Client, o limits.Options) replica {
	t.Helper()
	o.Redis, o.Logger = client, slog.New(slog.NewTextHandler(t.Output(), nil))
	if o.Engine == nil {
		o.Engine = botapi.ChatEngineFunc(hello)
	}
	engine := limits.New(o)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(botapi.New(botapi.Options{
		Bots:   bots,
		Keys:   botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil }),
		Engine: engine,
		Logger: o.Logger,
	}))
	t.Cleanup(engine.Close)
	t.Cleanup(server.Close)
	return replica{engine, server.URL}
}

// three are three replicas, each with its own connections to one Redis.
func three(t *testing.T, redis *redistest.Server, o limits.Options) (all [3]replica) {
	t.Helper()
	for i := range all {
		all[i] = serve(t, redis.Client(t), o)
	}
	return all
}

// An answer is what a client got.
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

var answered = answer{http.StatusOK, `{"content":"Hello"}`, 0}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so after %v: %s", patience, what)
		}
	}
}

// TestNeverMoreThanTheLimit has 1,000 clients ask three replicas at once.
func TestNeverMoreThanTheLimit(t *testing.T) {
	const clients, limit = 1000, 70
	for name, c := range map[string]struct {
		limits limits.Limits
		detail string
	}{
		"in a minute": {limits.Limits{ChatsPerMinute: limit}, "Too many chats in a minute for this account"},
		"at once":     {limits.Limits{ChatsAtOnce: limit}, "Too many chats in progress for this account"},
		"both":        {limits.Limits{ChatsPerMinute: clients, ChatsAtOnce: limit}, "Too many chats in progress for this account"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine := &atOnce{done: make(chan struct{})}
			replicas := three(t, redistest.NewServer(t), limits.Options{Engine: engine, Store: everybody(c.limits)})
			var refused atomic.Int64
			answers := make([]answer, clients)
			errs := make([]error, clients)
			var all sync.WaitGroup
			for i := range clients {
				all.Go(func() {
					answers[i], errs[i] = replicas[i%3].ask(t.Context(), "acme")
					if answers[i].status != http.StatusOK {
						refused.Add(1)
					}
				})
			}
			eventually(t, "the others are refused", func() bool { return refused.Load() >= clients-limit })
			is.Equal(engine.begun.Load(), int64(limit)) // and not one more
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

// TestRetryAfterIsTrue comes back when it was told to.
func TestRetryAfterIsTrue(t *testing.T) {
	is := is.New(t)
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Store: everybody(limits.Limits{ChatsPerMinute: 2})})
	r.SetMinute(2 * time.Second)
	for range 3 {
		is.Equal(r.chat(t, "acme"), answered)
		is.Equal(r.chat(t, "acme"), answered)
		refused := r.chat(t, "acme")
		is.Equal(refused.status, http.StatusTooManyRequests)
		is.Equal(r.chat(t, "acme").status, http.StatusTooManyRequests) // to ask costs nothing
		is.True(refused.retryAfter == 1 || refused.retryAfter == 2)
		time.Sleep(time.Duration(refused.retryAfter) * time.Second)
	}
}

func TestTokensOfTheDay(t *testing.T) {
	is := is.New(t)
	replicas := three(t, redistest.NewServer(t), limits.Options{Store: everybody(limits.Limits{TokensPerDay: 100, ChatsPerMinute: 3})})
	replicas[0].Spend(t.Context(), "acme", 60)
	is.Equal(replicas[1].chat(t, "acme"), answered)
	replicas[1].Spend(t.Context(), "acme", 39)
	is.Equal(replicas[0].chat(t, "acme"), answered) // there is one left
	replicas[2].Spend(t.Context(), "acme", 1)
	is.Equal(replicas[2].chat(t, "other"), answered)

	before := untilMidnight()
	refused := replicas[2].chat(t, "acme")
	is.Equal(refused.status, http.StatusTooManyRequests)
	is.Equal(refused.body, `{"detail":"The tokens of this account for today are used up"}`)
	if after := untilMidnight(); after <= before { // else the day has just ended
		is.True(after <= refused.retryAfter && refused.retryAfter <= before+1)
	}
}

func untilMidnight() int { return int(86400 - time.Now().Unix()%86400) }

// TestLimitsOfOneReplica has no Redis limits: these hold without it, too.
func TestLimitsOfOneReplica(t *testing.T) {
	for name, c := range map[string]struct {
		options limits.Options
		want    answer
		other   bool // whether another account still gets in
	}{
		"of all":         {limits.Options{MaxChats: 2}, answer{http.StatusServiceUnavailable, `{"detail":"Too many chats in progress"}`, 1}, false},
		"of one account": {limits.Options{MaxChatsPerAccount: 2}, answer{http.StatusTooManyRequests, `{"detail":"Too many chats in progress for this account"}`, 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			engine := &atOnce{done: make(chan struct{})}
			c.options.Engine, c.options.Store = engine, everybody(limits.Limits{})
			r := serve(t, redistest.NewServer(t).Client(t), c.options)
			var all sync.WaitGroup
			ask := func(account string) {
				all.Go(func() { _, _ = r.ask(t.Context(), account) })
			}
			ask("acme")
			ask("acme")
			eventually(t, "two chats are in progress", func() bool { return engine.begun.Load() == 2 })
			is.Equal(r.chat(t, "acme"), c.want)
			if c.other {
				ask("other")
				eventually(t, "another account gets in", func() bool { return engine.begun.Load() == 3 })
			}
			close(engine.done)
			all.Wait()
			is.Equal(r.chat(t, "acme"), answered) // the places are free again
		})
	}
}

// TestReplicaThatDies takes a replica that renews its leases, and then one that
// does not any more.
func TestReplicaThatDies(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	engine := &atOnce{done: make(chan struct{})}
	o := limits.Options{Engine: engine, Store: everybody(limits.Limits{ChatsAtOnce: 2}), Lease: 300 * time.Millisecond}
	dying := serve(t, server.Client(t), o)
	living := serve(t, server.Client(t), limits.Options{Store: o.Store, Lease: o.Lease})
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { _, _ = dying.ask(ctx, "acme") })
	}
	defer all.Wait()
	defer leave()
	eventually(t, "both chats are in progress", func() bool { return engine.begun.Load() == 2 })

	redis := server.Client(t)
	began := leaseEnd(t, redis)
	eventually(t, "leases are renewed", func() bool { return leaseEnd(t, redis) > began+2*float64(o.Lease.Milliseconds()) })
	is.Equal(living.chat(t, "acme").status, http.StatusTooManyRequests)

	dying.Close() // its chats go on, but nobody renews
	eventually(t, "the places are free again", func() bool { return living.chat(t, "acme") == answered })
}

// leaseEnd returns when the first lease runs out, in milliseconds.
func leaseEnd(t *testing.T, client *redisclient.Client) float64 {
	t.Helper()
	first, err := client.ZRangeWithScores(t.Context(), "botapi:limits:places:acme", 0, 0).Result()
	if err != nil || len(first) == 0 {
		t.Fatal("no lease", err)
	}
	return first[0].Score
}

// TestRedisGoesAndComesBack stops Redis and starts it again, empty.
func TestRedisGoesAndComesBack(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	engine := &atOnce{done: make(chan struct{})}
	store := everybody(limits.Limits{ChatsAtOnce: 1, TokensPerDay: 100})
	first := serve(t, server.Client(t), limits.Options{Engine: engine, Store: store, Lease: 300 * time.Millisecond})
	second := serve(t, server.Client(t), limits.Options{Store: store, Lease: 300 * time.Millisecond})
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
	is.Equal(first.chat(t, "meanwhile").status, http.StatusTooManyRequests) // by what this replica knows
	is.Equal(second.chat(t, "meanwhile"), answered)                         // which is not what others know
	second.Spend(t.Context(), "spender", 98)
	second.Spend(t.Context(), "spender", 1)

	server.Start(t)
	eventually(t, "tokens are counted again", func() bool {
		return server.Client(t).Exists(t.Context(), "botapi:limits:tokens:spender").Val() == 1
	})
	is.Equal(second.chat(t, "spender"), answered) // there is one left
	second.Spend(t.Context(), "spender", 1)
	for account := range map[string]bool{"before": true, "meanwhile": true, "spender": true} {
		eventually(t, account+" is counted again", func() bool { return second.chat(t, account).status == http.StatusTooManyRequests })
	}
	close(engine.done)
	for account := range map[string]bool{"before": true, "meanwhile": true} {
		eventually(t, account+" has its place again", func() bool { return second.chat(t, account) == answered })
	}
}

// TestLimitsAreRemembered asks the store once for many chats, and again later.
func TestLimitsAreRemembered(t *testing.T) {
	is := is.New(t)
	var lookups atomic.Int64
	var limit atomic.Int64
	limit.Store(1)
	asked := make(chan struct{})
	store := table(func(string) (limits.Limits, error) {
		if lookups.Add(1) == 1 {
			<-asked
		}
		return limits.Limits{ChatsAtOnce: limit.Load()}, nil
	})
	engine := &atOnce{done: make(chan struct{})}
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Engine: engine, Store: store, CacheTTL: 500 * time.Millisecond})
	var all sync.WaitGroup
	var refused atomic.Int64
	for range 20 {
		all.Go(func() {
			if got, _ := r.ask(t.Context(), "acme"); got.status == http.StatusTooManyRequests {
				refused.Add(1)
			}
		})
	}
	close(asked)
	eventually(t, "all but one are refused", func() bool { return refused.Load() == 19 })
	is.True(lookups.Load() <= 2) // the second if the 20 took longer than they are remembered

	limit.Store(2) // an exception is made
	all.Go(func() {
		for engine.begun.Load() < 2 {
			_, _ = r.ask(t.Context(), "acme")
		}
	})
	eventually(t, "it counts", func() bool { return engine.begun.Load() == 2 })
	close(engine.done)
	all.Wait()
}

func TestStoreThatFails(t *testing.T) {
	is := is.New(t)
	away := &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "Later", RetryAfter: 2 * time.Second, Err: errors.New("no connection")}
	var failing atomic.Bool
	failing.Store(true)
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Store: table(func(string) (limits.Limits, error) {
		if failing.Load() {
			return limits.Limits{}, away
		}
		return limits.Limits{}, nil
	})})
	is.Equal(r.chat(t, "acme"), answer{http.StatusServiceUnavailable, `{"detail":"Later"}`, 2})
	failing.Store(false)
	is.Equal(r.chat(t, "acme"), answered) // a failure is not remembered
}

func TestLimitsThatAreAsGoodAsNone(t *testing.T) {
	is := is.New(t)
	none := limits.Limits{ChatsPerMinute: math.MaxInt64, TokensPerDay: math.MaxInt64, ChatsAtOnce: math.MaxInt64}
	r := serve(t, redistest.NewServer(t).Client(t), limits.Options{Store: everybody(none)})
	is.Equal(r.chat(t, "acme"), answered)
	is.Equal(r.chat(t, "acme"), answered)
}
