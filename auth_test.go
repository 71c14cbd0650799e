package botapi

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
		headers         [][]string
	}{
		{"200 " + listedBots, "", [][]string{
			{"Bearer key-of-acme"}, {"bearer key-of-acme"}, {"BEARER key-of-acme"}, {"bEaReR key-of-acme"}, {"Bearer    key-of-acme"},
			{"Bearer key-of-acme", "Bearer other"}, // the first of several counts
		}},
		{`401 {"detail":"Invalid API key"}`, `Bearer error="invalid_token"`, [][]string{
			{"Bearer key-of-acm"}, {"Bearer KEY-OF-ACME"}, {`Bearer "key-of-acme"`}, {"Bearer ~key-of-acme"},
			{"Bearer other", "Bearer key-of-acme"},
		}},
		{`401 {"detail":"Not authenticated"}`, "Bearer", [][]string{
			nil, {""}, {"Basic key-of-acme"}, {"Digest key-of-acme"}, {"Bearers key-of-acme"}, {"key-of-acme"}, {"Bearer"}, {"Bearer "},
			{"Bearerkey-of-acme"}, {"Bearer:key-of-acme"}, {"Bearer\tkey-of-acme"}, {"Bearer \tkey-of-acme"}, {" Bearer key-of-acme"},
			{"Bearer key-of-acme "}, {"Bearer key of acme"}, {"Bearer key\tof-acme"}, {"Bearer key\nof-acme"}, {"Bearer key\u00A0of-acme"},
			{"Bearer key-of-acme, Bearer other"}, {"Basic a2V5", "Bearer key-of-acme"}, {"", "Bearer key-of-acme"},
		}},
	} {
		for _, header := range c.headers {
			t.Run(fmt.Sprintf("%q", header), func(t *testing.T) {
				is := is.New(t)
				asked := 0
				o := testOptions(t, t.Output())
				keys := o.Keys
				o.Keys = KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
					asked++
					return keys.VerifyKey(ctx, key)
				})
				r := newRequest("GET", "/v1/bots", nil)
				r.Header["Authorization"] = header
				got := record(New(o), r)
				is.Equal(fmt.Sprint(got.Code, " ", got.Body), c.want)
				is.Equal(got.Header().Get("WWW-Authenticate"), c.challenge)
				is.Equal(asked == 1, c.challenge != "Bearer") // only for what may be a key
			})
		}
	}
}

// countingKeys is a verifier that counts what it is asked; its answer is the
// key with a mark, unless fail says otherwise.
type countingKeys struct {
	asked atomic.Int64
	fail  func(ctx context.Context) error
}

var _ KeyVerifier = (*countingKeys)(nil)

func (k *countingKeys) VerifyKey(ctx context.Context, key string) (string, error) {
	k.asked.Add(1)
	if k.fail != nil {
		if err := k.fail(ctx); err != nil {
			return "account beside an error", err
		}
	}
	return "account of " + key, nil
}

// verifies asks for a key that is good, as often as it says.
func verifies(t testing.TB, v KeyVerifier, times int, key string) {
	t.Helper()
	for range times {
		if account, err := v.VerifyKey(t.Context(), key); account != "account of "+key || err != nil {
			t.Errorf("%q, %v", account, err)
		}
	}
}

// Whatever it says: a verifier may count what it is asked. A path or a method that
// is not known needs no key.
func TestKeyVerifierIsCalledOnce(t *testing.T) {
	for err, status := range map[error]int{nil: 200, ErrInvalidKey: 401, errOverloaded: 529, errBroken: 500, context.DeadlineExceeded: 500} {
		is := is.New(t)
		keys := &countingKeys{fail: func(context.Context) error { return err }}
		o := testOptions(t, t.Output())
		o.Keys = keys
		is.Equal(postChat(New(o), chatBodyJSON("hi", false)).Code, status)
		is.Equal(keys.asked.Load(), int64(1))
		is.Equal(record(New(o), newRequest("GET", "/none", nil)).Code, 404)
		is.Equal(record(New(o), newRequest("PUT", "/v1/bots", nil)).Code, 405)
		is.Equal(keys.asked.Load(), int64(1))
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
	for _, key := range []string{"key-d", "key-", "key-aa", "KEY-A", "alice", "x"} {
		account, err := keys.VerifyKey(t.Context(), key)
		is.True(errors.Is(err, ErrInvalidKey))
		is.Equal(account, "")
	}
	_, err := StaticKeys(nil).VerifyKey(t.Context(), "any")
	is.True(errors.Is(err, ErrInvalidKey))
}

func TestKeysConcurrently(t *testing.T) {
	keys := map[string]string{}
	for i := range 5 {
		keys[fmt.Sprint("k", i)] = fmt.Sprint("account of k", i)
	}
	for name, verifier := range map[string]KeyVerifier{
		"StaticKeys": StaticKeys(keys),
		"CacheKeys":  CacheKeys(new(countingKeys), time.Nanosecond), // all of its ways are taken
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

// The time of a key begins when it is known to be good, however long that took.
// Being asked for does not make it last longer.
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
		is.Equal(keys.asked.Load(), int64(1))
		time.Sleep(time.Nanosecond)
		verifies(t, cache, 2, "k")
		is.Equal(keys.asked.Load(), int64(2))
		verifies(t, cache, 2, "other")
		is.Equal(keys.asked.Load(), int64(3))
	})
}

func TestCacheKeysWithoutTTL(t *testing.T) {
	for _, ttl := range []time.Duration{0, -time.Second} {
		keys := new(countingKeys)
		verifies(t, CacheKeys(keys, ttl), 3, "k")
		is.New(t).Equal(keys.asked.Load(), int64(3))
	}
}

func TestCacheKeysAccountWithoutAName(t *testing.T) {
	is := is.New(t)
	asked := 0
	cache := CacheKeys(KeyVerifierFunc(func(context.Context, string) (string, error) {
		asked++
		return "", nil
	}), time.Hour)
	for range 3 {
		account, err := cache.VerifyKey(t.Context(), "k")
		is.NoErr(err)
		is.Equal(account, "")
	}
	is.Equal(asked, 1)
}

func TestCacheKeysCachesNoErrors(t *testing.T) {
	is := is.New(t)
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Hour)
	for _, fail := range []error{ErrInvalidKey, errors.New("no database"), StatusError{Status: 429}} {
		keys.fail = func(context.Context) error { return fail }
		_, err := cache.VerifyKey(t.Context(), "k")
		is.Equal(err, fail)
	}
	keys.fail = func(context.Context) error { panic("no table") }
	_, err := cache.VerifyKey(t.Context(), "k")
	is.True(errors.As(err, new(*panicError)))
	keys.fail = func(context.Context) error { runtime.Goexit(); return nil } // as a fake that calls t.Fatal
	_, err = cache.VerifyKey(t.Context(), "k")
	is.Equal(err, errVerifierExited)
	keys.fail = nil
	verifies(t, cache, 1, "k")
	is.Equal(keys.asked.Load(), int64(6))
}

// It holds 10,000 keys. A new one takes the place of another; one that is refused
// takes none.
func TestCacheKeysIsBounded(t *testing.T) {
	is := is.New(t)
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Hour)
	for i := range 10_100 {
		verifies(t, cache, 1, fmt.Sprint(i))
	}
	is.Equal(keys.asked.Load(), int64(10_100))
	verifies(t, cache, 1, "10099") // the newest is there
	is.Equal(keys.asked.Load(), int64(10_100))

	keys.fail = func(context.Context) error { return ErrInvalidKey }
	found := 0
	for i := range 10_200 {
		if _, err := cache.VerifyKey(t.Context(), fmt.Sprint(10_199-i)); err == nil {
			found++
		}
	}
	is.Equal(found, 10_000)
}

// One key is looked up once at a time, whoever asks for it, and whoever leaves. A
// lookup that nobody waits for any more is cancelled: without an end of its own,
// requests that leave at once would pile up lookups. What it has found out is known
// all the same, but its failure is nobody's.
func TestCacheKeysSharesALookup(t *testing.T) {
	type asker struct {
		comes, leaves time.Duration // 0: it stays
		count         int
		want          error
	}
	const second, never = time.Second, time.Duration(0)
	late := context.DeadlineExceeded
	ended := func(ctx context.Context) error { return ctx.Err() }
	for name, c := range map[string]struct {
		took    time.Duration               // the lookup, unless its context ends it; 0: only that does
		says    func(context.Context) error // then
		askers  []asker
		lookups int64
		ends    time.Duration // of the last lookup
	}{
		"the first leaves":            {second, ended, []asker{{0, second / 4, 1, late}, {second / 8, never, 20, nil}, {second / 8, second / 2, 1, late}}, 1, second},
		"it fails":                    {second, func(context.Context) error { return errBroken }, []asker{{0, never, 20, errBroken}}, 1, second},
		"it panics":                   {second, func(context.Context) error { panic(errBroken) }, []asker{{0, never, 20, new(panicError)}}, 1, second},
		"all leave, and it succeeds":  {second, func(context.Context) error { return nil }, []asker{{0, second / 2, 1, late}, {2 * second, never, 1, nil}}, 1, second},
		"all leave, one comes before": {second, func(context.Context) error { return nil }, []asker{{0, second / 2, 1, late}, {3 * second / 5, never, 1, nil}}, 1, second},
		"all leave, and it fails":     {second, ended, []asker{{0, second / 2, 1, late}, {3 * second / 5, never, 3, nil}, {3 * second / 5, 3 * second / 4, 1, late}}, 2, 2 * second},
		"all leave, one by one":       {never, ended, []asker{{0, second, 1, late}, {0, 2 * second, 1, late}, {0, 3 * second, 1, late}}, 1, 3 * second},
		"nobody leaves":               {never, ended, []asker{{0, never, 2, late}}, 1, 30 * second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				start := time.Now()
				var running atomic.Int64
				var took time.Duration
				keys := &countingKeys{fail: func(ctx context.Context) error {
					if running.Add(1) > 1 {
						t.Error("two lookups at a time")
					}
					defer running.Add(-1)
					if c.took > 0 {
						time.Sleep(c.took) // it does not look at its context until then
					} else {
						<-ctx.Done()
					}
					took = time.Since(start)
					return c.says(ctx)
				}}
				cache := CacheKeys(keys, time.Hour)
				var group sync.WaitGroup
				for _, asker := range c.askers {
					for range asker.count {
						group.Go(func() {
							time.Sleep(asker.comes)
							ctx := t.Context()
							if asker.leaves > 0 {
								within, leave := context.WithTimeout(ctx, asker.leaves-asker.comes)
								defer leave()
								ctx = within
							}
							if _, err := cache.VerifyKey(ctx, "k"); !sameEnd(err, asker.want) {
								t.Errorf("%v, want %v", err, asker.want)
							}
						})
					}
				}
				group.Wait()
				synctest.Wait()
				is.Equal(keys.asked.Load(), c.lookups)
				is.Equal(took, c.ends)
			})
		})
	}
}

func TestCacheKeysLookupContext(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	var lookup context.Context
	o.Keys = CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
		lookup = ctx
		is.Equal(RequestIDFrom(ctx), "r-1")
		is.Equal(AccountFrom(ctx), "")
		is.Equal(ctx.Value(hostKey{}), "the host's")
		return testAccount, nil
	}), time.Hour)
	h := withHostsValue(New(o))
	is.Equal(do(t, h, "GET", "/v1/bots", "", "X-Request-Id", "r-1").status, 200)
	is.Equal(lookup.Err(), context.Canceled) // it holds nothing any more
	is.Equal(do(t, h, "GET", "/v1/bots", "", "X-Request-Id", "r-2").status, 200)
}

func TestKeyIsStruckOutOfTheLog(t *testing.T) {
	for _, c := range []struct{ name, key, text, want string }{
		{"nowhere", "key-of-acme", "no table", "no table"},
		{"as it is", "key-of-acme", "no row for key-of-acme: key-of-acme", "no row for [key]: [key]"},
		{"in a URL", `c2V+a/b"==`, "?key=c2V%2Ba%2Fb%22%3D%3D /c2V+a%2Fb%22==", "?key=[key] /[key]"},
		{"in the path of a URL", "tenant|abc/def+gh==", "/keys/tenant%7Cabc/def+gh==", "/keys/[key]"},
		{"quoted", `c2V+a/b"==`, `"c2V+a/b\"=="`, `"[key]"`},
		{"quoted in ASCII", "clé-d'acme", `"cl\u00e9-d'acme"`, `"[key]"`},
		{"in JSON", `k<e&y>"==`, `{"key":"k\u003ce\u0026y\u003e\"=="}`, `{"key":"[key]"}`},
		{"quoted, with what Go spells by itself", "clé\a-d'acme", `"clé\a-d'acme"`, `"[key]"`},
		{"in JSON before as it is", `c2V+a/b"==`, `c2V+a/b\"== for c2V+a/b"==`, "[key] for [key]"},
		{"one spelling begins another", "%2525252", "/%252525252", "/[key]"},
		{"one overlaps itself", "abcabcab", "abcabcabcab", "[key]"},
		{"one after the other", "12345678", "1234567812345678", "[key][key]"},
		{"one that looks like the mark", "[key][key", "not [key][key]", "not [key]]"},
		{"8 bytes", "selected", "cannot selected from x", "cannot [key] from x"},
		{"8 bytes, of fewer characters", "clé-dé", "no row for clé-dé", "no row for [key]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			is.Equal(failureOf(errors.New(c.text)).withoutKey(c.key).text, c.want)
		})
	}
}

// Struck out of a text, a short key would show by what is missing, and leave
// little that can be read.
func TestKeyTooShortToBeStruckOut(t *testing.T) {
	for name, verify := range map[string]func() (string, error){
		"an error": func() (string, error) { return "", errors.New("SELECT: no table") },
		"a cause":  func() (string, error) { return "", StatusError{Status: 429, Err: errors.New("SELECT: no table")} },
		"a panic":  func() (string, error) { panic("SELECT: no table") },
	} {
		for _, key := range []string{"e", "7-bytes"} {
			t.Run(name+" with "+key, func(t *testing.T) {
				is := is.New(t)
				var logged testLog
				o := testOptions(t, &logged)
				o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return verify() })
				got := do(t, New(o), "GET", "/v1/bots", "", "Authorization", "Bearer "+key, "X-Request-Id", "r-1")
				is.True(got.status == 500 || got.status == 429)
				is.True(strings.Contains(logged.String(), "request_id=r-1"))
				is.True(strings.Contains(logged.String(), "the key is too short"))
				is.True(!strings.Contains(logged.String(), "SELECT"))
				is.True(!strings.Contains(logged.String(), "[key]"))
			})
		}
	}
}

// brokenError is an error whose own methods fail, saying more than they should.
type brokenError struct{ key string }

func (e brokenError) Error() string { panic("no text for " + e.key) }

func TestKeyIsStruckOutOfAPanic(t *testing.T) {
	is := is.New(t)
	var logged testLog
	o := testOptions(t, &logged)
	o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "", brokenError{key} })
	is.Equal(record(New(o), newRequest("GET", "/v1/bots", nil)).Code, 500)
	is.True(strings.Contains(logged.String(), "no text for [key]"))
	is.True(!strings.Contains(logged.String(), testKey))
}
