package botapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

func TestAuthorization(t *testing.T) {
	for _, c := range []struct {
		want, challenge string
		calls           int // of the verifier: only for what may be a key
		headers         [][]string
	}{
		{"200 " + listedBots, "", 1, [][]string{
			{"Bearer key-of-acme"}, {"bearer key-of-acme"}, {"BEARER key-of-acme"}, {"bEaReR key-of-acme"}, {"Bearer    key-of-acme"},
			{"Bearer key-of-acme", "Bearer other"}, // the first of several counts
		}},
		{`401 {"detail":"Invalid API key"}`, `Bearer error="invalid_token"`, 1, [][]string{
			{"Bearer key-of-acm"}, {"Bearer KEY-OF-ACME"}, {`Bearer "key-of-acme"`}, {"Bearer ~key-of-acme"},
			{"Bearer other", "Bearer key-of-acme"}, {"Bearer " + strings.Repeat("k", 8<<10)},
		}},
		{`401 {"detail":"Invalid API key"}`, `Bearer error="invalid_token"`, 0, [][]string{
			{"Bearer k" + strings.Repeat("k", 8<<10)}, {"Bearer " + strings.Repeat(" k", 8<<10)},
		}},
		{`401 {"detail":"Not authenticated"}`, "Bearer", 0, [][]string{
			nil, {""}, {"Basic key-of-acme"}, {"Digest key-of-acme"}, {"Bearers key-of-acme"}, {"key-of-acme"}, {"Bearer"}, {"Bearer "},
			{"Bearerkey-of-acme"}, {"Bearer:key-of-acme"}, {"Bearer\tkey-of-acme"}, {"Bearer \tkey-of-acme"}, {" Bearer key-of-acme"},
			{"Bearer key-of-acme "}, {"Bearer key of acme"}, {"Bearer key\tof-acme"}, {"Bearer key\nof-acme"}, {"Bearer key\u00A0of-acme"},
			{"Bearer key-of-acme, Bearer other"}, {"Bearer " + strings.Repeat("k k ", 2<<10)}, {"Basic a2V5", "Bearer key-of-acme"}, {"", "Bearer key-of-acme"},
		}},
	} {
		for _, header := range c.headers {
			t.Run(fmt.Sprintf("%.50q", header), func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				calls := countKeys(&o)
				r := newRequest("GET", "/v1/bots", nil)
				r.Header["Authorization"] = header
				got := record(New(o), r)
				is.Equal(fmt.Sprint(got.Code, " ", got.Body), c.want)
				is.Equal(got.Header().Get("WWW-Authenticate"), c.challenge)
				is.Equal(*calls, c.calls)
			})
		}
	}
}

// countKeys counts the calls of the verifier of these options.
func countKeys(o *Options) (calls *int) {
	calls, keys := new(int), o.Keys
	o.Keys = KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		*calls++
		return keys.VerifyKey(ctx, key)
	})
	return calls
}

// countingKeys is a verifier that counts its calls. The account of a key is
// the key without its first letter (for "k", the empty name), unless fail fails.
type countingKeys struct {
	calls atomic.Int64
	fail  func(ctx context.Context) error
}

func (k *countingKeys) VerifyKey(ctx context.Context, key string) (string, error) {
	k.calls.Add(1)
	if k.fail != nil {
		if err := k.fail(ctx); err != nil {
			return "account beside an error", err
		}
	}
	return key[1:], nil
}

// verifies verifies a valid key, several times.
func verifies(t testing.TB, v KeyVerifier, times int, key string) {
	t.Helper()
	for range times {
		if account, err := v.VerifyKey(t.Context(), key); account != key[1:] || err != nil {
			t.Errorf("%q, %v", account, err)
		}
	}
}

func TestStaticKeys(t *testing.T) {
	is := is.New(t)
	given := map[string]string{"key-a": "alice", "key-b": "bob", "key-c": ""}
	keys := StaticKeys(given)
	given["key-d"] = "dora"
	delete(given, "key-a")
	for key, want := range map[string]string{"key-a": "alice", "key-b": "bob", "key-c": ""} {
		account, err := keys.VerifyKey(t.Context(), key)
		is.NoErr(err)
		is.Equal(account, want)
	}
	for _, key := range []string{"key-d", "key-", "key-aa", "KEY-A", "alice"} {
		account, err := keys.VerifyKey(t.Context(), key)
		is.True(errors.Is(err, ErrInvalidKey))
		is.Equal(account, "")
	}
}

func TestKeysConcurrently(t *testing.T) {
	keys := map[string]string{}
	for i := range 5 {
		keys[fmt.Sprint("k", i)] = fmt.Sprint(i)
	}
	for name, verifier := range map[string]KeyVerifier{
		"StaticKeys": StaticKeys(keys),
		"CacheKeys":  CacheKeys(new(countingKeys), time.Nanosecond), // so short that lookups and the cache are both used
	} {
		t.Run(name, func(t *testing.T) {
			var group sync.WaitGroup
			for worker := range 8 {
				group.Go(func() {
					for i := range 200 {
						verifies(t, verifier, 1, fmt.Sprint("k", (worker+i)%5))
					}
				})
			}
			group.Wait()
		})
	}
}

// The ttl of a key begins when its lookup has succeeded. Using the key does not extend it.
func TestCacheKeysForItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		keys := &countingKeys{fail: func(context.Context) error {
			time.Sleep(time.Second)
			return nil
		}}
		cache := CacheKeys(keys, time.Minute)
		verifies(t, cache, 2, "k")
		time.Sleep(time.Minute - 1)
		verifies(t, cache, 2, "k")
		is.Equal(keys.calls.Load(), int64(1))
		time.Sleep(time.Nanosecond)
		verifies(t, cache, 2, "k")
		is.Equal(keys.calls.Load(), int64(2))
		verifies(t, cache, 2, "other")
		is.Equal(keys.calls.Load(), int64(3))
		for _, none := range []time.Duration{0, -time.Second} {
			verifies(t, CacheKeys(keys, none), 3, "k")
		}
		is.Equal(keys.calls.Load(), int64(9))
	})
}

func TestCacheKeysCachesNoErrors(t *testing.T) {
	is := is.New(t)
	var log testLog
	keys := new(countingKeys)
	o := testOptions(t, &log)
	o.Keys = CacheKeys(keys, time.Hour)
	h := New(o)
	for _, c := range []struct {
		result func() error
		status int
		calls  int64
	}{
		{func() error { return ErrInvalidKey }, 401, 1},
		{func() error { return errBroken }, 500, 2},
		{func() error { return StatusError{Status: 429} }, 429, 3},
		{func() error { panic("no table") }, 500, 4},
		{func() error { runtime.Goexit(); return nil }, 500, 5}, // as a test double that calls t.Fatal does
		{func() error { return nil }, 200, 6},
		{func() error { return ErrInvalidKey }, 200, 6},
	} {
		keys.fail = func(context.Context) error { return c.result() }
		is.Equal(listOf(h).Code, c.status)
		is.Equal(keys.calls.Load(), c.calls)
	}
	is.True(strings.Contains(log.String(), "runtime.Goexit"))
}

// The cache holds 10,000 keys. A new key evicts another; a rejected key evicts none.
func TestCacheKeysIsBounded(t *testing.T) {
	is := is.New(t)
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Hour)
	for i := range 10_100 {
		verifies(t, cache, 1, fmt.Sprint("k", i))
	}
	is.Equal(keys.calls.Load(), int64(10_100))
	verifies(t, cache, 1, "k10099") // the newest key is cached
	is.Equal(keys.calls.Load(), int64(10_100))

	keys.fail = func(context.Context) error { return ErrInvalidKey }
	found := 0
	for i := range 10_200 {
		if _, err := cache.VerifyKey(t.Context(), fmt.Sprint("k", 10_199-i)); err == nil {
			found++
		}
	}
	is.Equal(found, 10_000)
}

// Requests with the same key share a lookup, and go on when one of them is cancelled. A
// lookup that no request waits for is cancelled: otherwise, clients that disconnect
// immediately would pile up lookups. A verifier that ignores that delays no request that comes
// later. If the lookup succeeds nevertheless, the key is not cached: it may have been revoked
// meanwhile.
func TestCacheKeysSharesALookup(t *testing.T) {
	type request struct {
		comes, ends time.Duration // ends 0: it is not cancelled
		count       int
		want        error
	}
	const second, never = time.Second, time.Duration(0)
	late := context.DeadlineExceeded
	ended := func(ctx context.Context) error { return ctx.Err() }
	succeeds := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		took     time.Duration               // by the lookup; 0: until its context is done
		result   func(context.Context) error // the lookup's error
		requests []request
		lookups  int64
		ends     time.Duration // of the last lookup
	}{
		"the first is cancelled":       {second, ended, []request{{0, second / 4, 1, late}, {second / 8, never, 20, nil}, {second / 8, second / 2, 1, late}}, 1, second},
		"it fails":                     {second, func(context.Context) error { return errBroken }, []request{{0, never, 20, errBroken}}, 1, second},
		"it panics":                    {second, func(context.Context) error { panic(http.ErrAbortHandler) }, []request{{0, never, 20, http.ErrAbortHandler}}, 1, second},
		"all are, and it succeeds":     {second, succeeds, []request{{0, second / 2, 1, late}, {2 * second, never, 1, nil}}, 2, 3 * second},
		"all are, one comes meanwhile": {second, succeeds, []request{{0, second / 2, 1, late}, {3 * second / 4, never, 1, nil}}, 2, 7 * second / 4},
		"all are, one comes later":     {never, ended, []request{{0, second / 2, 1, late}, {3 * second / 5, 2 * second, 1, late}}, 2, 2 * second},
		"all are, one by one":          {never, ended, []request{{0, second, 1, late}, {0, 2 * second, 1, late}, {0, 3 * second, 1, late}}, 1, 3 * second},
		"none is":                      {never, ended, []request{{0, never, 2, late}}, 1, 30 * second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				start := time.Now()
				var took atomic.Int64
				keys := &countingKeys{fail: func(ctx context.Context) error {
					if c.took > 0 {
						time.Sleep(c.took) // it ignores its context until then
					} else {
						<-ctx.Done()
					}
					took.Store(int64(time.Since(start)))
					return c.result(ctx)
				}}
				cache := CacheKeys(keys, time.Hour)
				ask := func(r request) {
					time.Sleep(r.comes)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if r.ends > 0 {
						ctx, cancel = context.WithTimeout(ctx, r.ends-r.comes)
						defer cancel()
					}
					if _, err := cache.VerifyKey(ctx, "k"); !errors.Is(err, r.want) {
						t.Errorf("%v, want %v", err, r.want)
					}
				}
				for _, r := range c.requests {
					for range r.count {
						go ask(r)
					}
				}
				time.Sleep(time.Minute)
				is.Equal(keys.calls.Load(), c.lookups)
				is.Equal(time.Duration(took.Load()), c.ends)
			})
		})
	}
}

func TestCacheKeysLookupContext(t *testing.T) {
	is := is.New(t)
	var lookup context.Context
	o := testOptions(t, t.Output())
	o.Keys = CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
		lookup = ctx
		return testAccount, ctx.Err()
	}), time.Hour)
	is.Equal(listOf(withApplicationValue(New(o)), "X-Request-Id", "r-1").Code, 200)
	is.Equal(RequestIDFrom(lookup), "r-1")
	is.Equal(AccountFrom(lookup), "")
	is.Equal(lookup.Value(applicationKey{}), "the application's")
	is.Equal(lookup.Err(), context.Canceled) // its timer is released
}

// brokenError is an error whose Error method panics.
type brokenError struct{ text string }

func (e brokenError) Error() string { panic(e.text) }

// An error that quotes the key is withheld from the log, and nothing else is.
func TestErrorThatQuotesTheKey(t *testing.T) {
	fails := func(text string) func() error { return func() error { return errors.New(text) } }
	const withheld = "not logged: the text of the error contains the key"
	for _, c := range []struct {
		name, key string
		fail      func() error
		want      string // in the log
	}{
		{"nowhere", "key-of-acme", fails("no table"), "no table"},
		{"as it is", "key-of-acme", fails("no row for key-of-acme: key-of-acme"), withheld},
		{"in a cause", "key-of-acme", func() error { return StatusError{429, "Used up", 0, errors.New("quota of key-of-acme")} }, withheld},
		{"in a panic", "key-of-acme", func() error { panic("no row for key-of-acme") }, withheld},
		{"in a panic of the error", "key-of-acme", func() error { return brokenError{"no text for key-of-acme"} }, withheld},
		{"in a query", `c2V+a/b"==`, fails("?key=c2V%2Ba%2Fb%22%3D%3D"), withheld},
		{"in a segment of a path", "c2V+a/b^c", fails(`Get "https://keys.example/c2V+a%2Fb%5Ec": EOF`), withheld},
		{"in a path", "c2V+a/b^c", func() error { _, err := http.Get("none://keys.example/c2V+a/b^c"); return err }, withheld},
		{"quoted, of a long key whose 64th byte is inside a character", `ab"c` + strings.Repeat("d", 59) + "éxyz", func() error { return fmt.Errorf("no row for %q", `ab"c`+strings.Repeat("d", 59)+"éxyz") }, withheld},
		{"1 byte", "e", fails("SELECT: no table"), withheld},
		{"1 byte, nowhere", "x", fails("no table"), "no table"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			var log bytes.Buffer
			o := testOptions(t, io.Discard)
			o.Logger = slog.New(slog.NewJSONHandler(&log, nil))
			o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return "", c.fail() })
			listOf(New(o), "Authorization", "Bearer "+c.key, "X-Request-Id", "r-1")
			var line struct {
				Error     string
				RequestID string `json:"request_id"`
			}
			is.NoErr(json.Unmarshal(log.Bytes(), &line)) // one line
			is.Equal(line.Error, c.want)
			is.Equal(line.RequestID, "r-1")
		})
	}
}

// Once the key is verified, errors are logged as they are, whatever the key.
func TestErrorAfterTheKeyIsLogged(t *testing.T) {
	var log testLog
	o := testOptions(t, &log)
	o.Keys = StaticKeys(map[string]string{"e": testAccount})
	o.Engine = failing(errBroken)
	record(New(o), newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)), "Authorization", "Bearer e"))
	is.New(t).True(strings.Contains(log.String(), errBroken.Error()))
}

// A rejected key allocates little, however long it is and whatever bytes it has.
func TestRejectedKeyCostsLittle(t *testing.T) {
	for name, key := range map[string]string{
		"too long":             strings.Repeat("k", 900<<10),
		"too long, escaped":    strings.Repeat("\x80", 900<<10),
		"long, in the error":   strings.Repeat("k", 8<<10),
		"escaped in the error": strings.Repeat("\x80", maxKey),
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, io.Discard)
			failure := errors.New("no row for " + url.QueryEscape(key[:min(len(key), maxKey)]))
			o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return "", failure })
			h, r := New(o), newRequest("GET", "/v1/bots", nil, "Authorization", "Bearer "+key)
			const rounds = 20
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				h.ServeHTTP(httptest.NewRecorder(), r)
			}
			runtime.ReadMemStats(&after)
			is.New(t).True(after.TotalAlloc-before.TotalAlloc < rounds*3*maxKey)
		})
	}
}

// A marked key is sent on every path of the code, and then looked for in everything that
// was written.
func TestKeyIsWrittenNowhere(t *testing.T) {
	const key = `sk-MARKED+7d1f"0c9a` // quoting and escaping change it
	is := is.New(t)
	var written testLog
	write := func(values ...any) {
		for _, v := range values {
			fmt.Fprintf(&written, "%v\n%+v\n%#v\n", v, v, v)
		}
	}
	failing := func(result func(key string) error) KeyVerifier {
		return KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "", result(key) })
	}
	statuses := map[int]bool{}
	for _, verifier := range []KeyVerifier{
		StaticKeys(map[string]string{key: testAccount}),
		CacheKeys(StaticKeys(map[string]string{key: testAccount}), time.Hour),
		StaticKeys(nil),
		failing(func(key string) error { return fmt.Errorf("%s: %w", key, ErrInvalidKey) }),
		failing(func(key string) error { return fmt.Errorf("SELECT %q: no table", key) }),
		failing(func(key string) error { return StatusError{429, "Used up", 0, errors.New("quota of " + key)} }),
		failing(func(key string) error { panic("no row for " + key) }),
		CacheKeys(failing(func(key string) error { return errors.New(key) }), time.Hour),
		CacheKeys(failing(func(key string) error { panic(key) }), time.Hour),
	} {
		for _, change := range []func(*Options){
			func(*Options) {},
			func(o *Options) { o.Engine = nilIterator },
			func(o *Options) {
				o.Bots = &fakeStore{
					bots:   func(context.Context) ([]Bot, error) { return nil, errors.New("no table") },
					bySlug: func(context.Context, string) (Bot, error) { panic("no table") },
				}
			},
		} {
			synctest.Test(t, func(t *testing.T) {
				o := testOptions(t, &written)
				o.Keys, o.MaxBodyBytes = verifier, 1000
				o.OnChat = func(_ context.Context, r ChatReport) { write(r, r.Err) }
				change(&o)
				server := serveInMemory(t, New(o), func(s *http.Server) { s.ErrorLog = slog.NewLogLogger(o.Logger.Handler(), slog.LevelError) })
				for _, request := range [][]string{
					{"GET", "/v1/bots", ""}, {"HEAD", "/bots", ""}, {"GET", "/none", ""}, {"DELETE", "/v1/bots", ""},
					{"POST", "/v1/chat", chatBodyJSON("hi", false)}, {"POST", "/v1/chat", chatBodyJSON("hi", true)},
					{"POST", "/v1/chat", "{"}, {"POST", "/v1/chat", "[]"}, {"POST", "/v1/chat", strings.Repeat(" ", 2000)},
				} {
					for _, authorization := range []string{"Bearer " + key, "bearer   " + key, key, "Basic " + key, "Bearer a " + key} {
						got := doAt(t, server.client(), "http://memory", request[0], request[1], request[2], "Authorization", authorization)
						write(got.header, got.body)
						statuses[got.status] = true
					}
				}
				synctest.Wait() // until nothing uses the verifier any longer
				write(o, verifier, New(o))
			})
		}
	}
	is.Equal(slices.Sorted(maps.Keys(statuses)), []int{200, 401, 404, 405, 413, 422, 429, 500}) // all paths were taken
	is.True(strings.Contains(written.String(), "the text of the error contains the key"))       // in place of the key
	is.True(!strings.Contains(written.String(), "MARKED"))
}
