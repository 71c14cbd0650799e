package botapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	const (
		none    = "Bearer"
		refused = `Bearer error="invalid_token"`
	)
	for _, c := range []struct {
		name      string
		header    []string
		challenge string // "" where the request is let in
	}{
		{"the scheme", []string{"Bearer key-of-acme"}, ""},
		{"in lower case", []string{"bearer key-of-acme"}, ""},
		{"in upper case", []string{"BEARER key-of-acme"}, ""},
		{"in mixed case", []string{"bEaReR key-of-acme"}, ""},
		{"several spaces", []string{"Bearer    key-of-acme"}, ""},
		{"the first of several", []string{"Bearer key-of-acme", "Bearer other"}, ""},
		{"the first of several, refused", []string{"Bearer other", "Bearer key-of-acme"}, refused},
		{"the first of several, unusable", []string{"Basic a2V5", "Bearer key-of-acme"}, none},
		{"the first of several, empty", []string{"", "Bearer key-of-acme"}, none},
		{"no header", nil, none},
		{"empty", []string{""}, none},
		{"another scheme", []string{"Basic key-of-acme"}, none},
		{"another scheme, as long as the right one", []string{"Digest key-of-acme"}, none},
		{"a longer scheme", []string{"Bearers key-of-acme"}, none},
		{"no scheme", []string{"key-of-acme"}, none},
		{"no key", []string{"Bearer"}, none},
		{"no key, but a space", []string{"Bearer "}, none},
		{"no space", []string{"Bearerkey-of-acme"}, none},
		{"a colon", []string{"Bearer:key-of-acme"}, none},
		{"a tab", []string{"Bearer\tkey-of-acme"}, none},
		{"a space and a tab", []string{"Bearer \tkey-of-acme"}, none},
		{"a leading space", []string{" Bearer key-of-acme"}, none},
		{"a trailing space", []string{"Bearer key-of-acme "}, none},
		{"a space inside", []string{"Bearer key of acme"}, none},
		{"a tab inside", []string{"Bearer key\tof-acme"}, none},
		{"a line break inside", []string{"Bearer key\nof-acme"}, none},
		{"a no-break space inside", []string{"Bearer key\u00A0of-acme"}, none},
		{"two credentials in one", []string{"Bearer key-of-acme, Bearer other"}, none},
		{"a wrong key", []string{"Bearer key-of-acm"}, refused},
		{"a key in another case", []string{"Bearer KEY-OF-ACME"}, refused},
		{"a key in quotes", []string{`Bearer "key-of-acme"`}, refused},
		{"a sign before the key", []string{"Bearer ~key-of-acme"}, refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			recorder := httptest.NewRecorder()
			request := httptest.NewRequest("GET", "/v1/bots", nil)
			request.Header["Authorization"] = c.header
			New(testOptions(t, t.Output())).ServeHTTP(recorder, request)
			is.Equal(recorder.Header().Get("WWW-Authenticate"), c.challenge)
			switch c.challenge {
			case "":
				is.Equal(recorder.Code, 200)
			case none:
				is.Equal(recorder.Code, 401)
				is.Equal(recorder.Body.String(), `{"detail":"Not authenticated"}`)
			case refused:
				is.Equal(recorder.Code, 401)
				is.Equal(recorder.Body.String(), `{"detail":"Invalid API key"}`)
			}
		})
	}
}

func TestAnUnusableHeaderAsksNoVerifier(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
		t.Error("asked")
		return "", nil
	})
	is.Equal(do(t, New(o), "GET", "/v1/bots", "", "Authorization", "Bearer a b").status, 401)
	is.Equal(do(t, New(o), "GET", "/none", "").status, 404) // nor does an unknown path
	is.Equal(do(t, New(o), "PUT", "/v1/bots", "").status, 405)
}

// Whatever it says: a verifier may count what it is asked.
func TestAVerifierIsAskedOnce(t *testing.T) {
	for _, err := range []error{nil, ErrInvalidKey, errOverloaded, errBroken, context.DeadlineExceeded} {
		is := is.New(t)
		keys := &countingKeys{fail: func(context.Context, string) error { return err }}
		o := testOptions(t, t.Output())
		o.Keys = keys
		postChat(New(o), chatBodyJSON("hi", false))
		is.Equal(keys.asked.Load(), int64(1))
	}
}

func TestAnAccountBesideAnErrorDoesNotCount(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) { return testAccount, ErrInvalidKey })
	is.Equal(do(t, New(o), "GET", "/v1/bots", "").status, 401)
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

func TestStaticKeysAreSafeForConcurrentUse(t *testing.T) {
	keys := StaticKeys(map[string]string{"key-a": "alice", "key-b": "bob"})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				if account, err := keys.VerifyKey(t.Context(), "key-b"); account != "bob" || err != nil {
					t.Error(account, err)
				}
			}
		})
	}
	group.Wait()
}

// countingKeys is a verifier that counts what it is asked; its answer is the
// key with a mark, unless fail says otherwise.
type countingKeys struct {
	asked atomic.Int64
	fail  func(ctx context.Context, key string) error
}

var _ KeyVerifier = (*countingKeys)(nil)

func (k *countingKeys) VerifyKey(ctx context.Context, key string) (string, error) {
	k.asked.Add(1)
	if k.fail != nil {
		if err := k.fail(ctx, key); err != nil {
			return "account beside an error", err
		}
	}
	return "account of " + key, nil
}

func TestCacheKeysRemembersForItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		keys := new(countingKeys)
		cache := CacheKeys(keys, time.Minute)
		ask := func() {
			account, err := cache.VerifyKey(t.Context(), "k")
			is.NoErr(err)
			is.Equal(account, "account of k")
		}
		ask()
		time.Sleep(time.Minute - 1)
		ask()
		is.Equal(keys.asked.Load(), int64(1))
		time.Sleep(time.Nanosecond) // being asked for does not make it last longer
		ask()
		is.Equal(keys.asked.Load(), int64(2))
		_, err := cache.VerifyKey(t.Context(), "other")
		is.NoErr(err)
		is.Equal(keys.asked.Load(), int64(3))
	})
}

// The time of a key begins when it is known to be good, however long that took.
func TestTheTimeOfACachedKeyBeginsBehindItsLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		keys := &countingKeys{fail: func(context.Context, string) error {
			time.Sleep(10 * time.Second)
			return nil
		}}
		cache := CacheKeys(keys, 5*time.Second)
		for range 2 {
			_, err := cache.VerifyKey(t.Context(), "k")
			is.NoErr(err)
			time.Sleep(5*time.Second - 1)
		}
		is.Equal(keys.asked.Load(), int64(1))
	})
}

func TestCacheKeysWithoutATimeRemembersNothing(t *testing.T) {
	for _, ttl := range []time.Duration{0, -time.Second} {
		is := is.New(t)
		keys := new(countingKeys)
		cache := CacheKeys(keys, ttl)
		for range 3 {
			_, err := cache.VerifyKey(t.Context(), "k")
			is.NoErr(err)
		}
		is.Equal(keys.asked.Load(), int64(3))
		is.Equal(len(cache.(*keyCache).known), 0)
	}
}

func TestCacheKeysRemembersNoErrors(t *testing.T) {
	is := is.New(t)
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Hour)
	for _, fail := range []error{ErrInvalidKey, errors.New("no database"), StatusError{Status: 429}} {
		keys.fail = func(context.Context, string) error { return fail }
		_, err := cache.VerifyKey(t.Context(), "k")
		is.Equal(err, fail)
	}
	keys.fail = func(context.Context, string) error { panic("no table") }
	_, err := cache.VerifyKey(t.Context(), "k")
	is.True(errors.As(err, new(*panicError)))
	keys.fail = nil
	account, err := cache.VerifyKey(t.Context(), "k")
	is.NoErr(err)
	is.Equal(account, "account of k")
	is.Equal(keys.asked.Load(), int64(5))
}

func TestCacheKeysIsBounded(t *testing.T) {
	is := is.New(t)
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Hour).(*keyCache)
	for i := range 10_100 {
		account, err := cache.VerifyKey(t.Context(), fmt.Sprint(i))
		is.NoErr(err)
		is.Equal(account, fmt.Sprint("account of ", i))
	}
	is.Equal(len(cache.known), 10_000)
	_, err := cache.VerifyKey(t.Context(), "10099")
	is.NoErr(err)
	is.Equal(keys.asked.Load(), int64(10_100)) // the newest is there

	keys.fail = func(context.Context, string) error { return ErrInvalidKey }
	for i := range 100 {
		_, err := cache.VerifyKey(t.Context(), fmt.Sprint("wrong ", i))
		is.Equal(err, ErrInvalidKey)
	}
	is.Equal(len(cache.known), 10_000) // no good key has made room for them
}

func TestCacheKeysAsksOnceForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		keys := &countingKeys{fail: func(ctx context.Context, _ string) error {
			time.Sleep(time.Second)
			return ctx.Err()
		}}
		cache := CacheKeys(keys, time.Minute)
		first, leave := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			_, err := cache.VerifyKey(first, "k")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("the first got %v", err)
			}
		})
		synctest.Wait()
		for range 20 {
			group.Go(func() {
				if account, err := cache.VerifyKey(t.Context(), "k"); account != "account of k" || err != nil {
					t.Errorf("%q, %v", account, err)
				}
			})
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		group.Go(func() {
			if _, err := cache.VerifyKey(impatient, "k"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the impatient one got %v", err)
			}
		})
		synctest.Wait()
		leave() // which fails nobody else
		group.Wait()
		is.Equal(keys.asked.Load(), int64(1))
	})
}

// A verifier that is down is not asked by each of those who wait, either.
func TestAllWhoWaitShareAFailure(t *testing.T) {
	for name, fail := range map[string]func() error{
		"an error": func() error { return errBroken },
		"a panic":  func() error { panic(errBroken) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				keys := &countingKeys{fail: func(context.Context, string) error {
					time.Sleep(time.Second)
					return fail()
				}}
				cache := CacheKeys(keys, time.Minute)
				var group sync.WaitGroup
				for range 20 {
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					group.Go(func() {
						if _, err := cache.VerifyKey(ctx, "k"); err == nil {
							t.Error("no error")
						}
					})
				}
				group.Wait()
				is.Equal(keys.asked.Load(), int64(1))
			})
		})
	}
}

// What a lookup has found out is known, though nobody has waited for it.
func TestAnAbandonedLookupIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		keys := &countingKeys{fail: func(context.Context, string) error {
			time.Sleep(time.Second) // whatever happens to the context
			return nil
		}}
		cache := CacheKeys(keys, time.Minute)
		ctx, leave := context.WithTimeout(t.Context(), time.Second/2)
		defer leave()
		_, err := cache.VerifyKey(ctx, "k")
		is.True(errors.Is(err, context.DeadlineExceeded))
		account, err := cache.VerifyKey(t.Context(), "k")
		is.NoErr(err)
		is.Equal(account, "account of k")
		is.Equal(keys.asked.Load(), int64(1))
	})
}

// A lookup that nobody waits for is worth nothing: without an end of its own,
// requests that leave at once would pile up lookups.
func TestALookupEndsWhenNobodyWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		start := time.Now()
		ended := make(chan error, 1)
		var took time.Duration
		cache := CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			took = time.Since(start)
			ended <- ctx.Err()
			return "", ctx.Err()
		}), time.Hour)
		var group sync.WaitGroup
		for i := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
			defer cancel()
			group.Go(func() {
				if _, err := cache.VerifyKey(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		group.Wait()
		is.Equal(<-ended, context.Canceled)
		is.Equal(took, 3*time.Second) // with the last of them, not before
	})
}

// One lookup at a time also holds for a lookup that was abandoned. Who comes
// before it is over shares neither its context nor its error.
func TestAnAbandonedLookupFailsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		var running atomic.Int64
		keys := &countingKeys{fail: func(ctx context.Context, _ string) error {
			if running.Add(1) > 1 {
				t.Error("two lookups at a time")
			}
			defer running.Add(-1)
			time.Sleep(time.Second) // it does not look at its context until then
			return ctx.Err()
		}}
		cache := CacheKeys(keys, time.Hour)
		first, leave := context.WithTimeout(t.Context(), time.Second/2)
		defer leave()
		_, err := cache.VerifyKey(first, "k")
		is.True(errors.Is(err, context.DeadlineExceeded))

		var group sync.WaitGroup
		for range 3 {
			group.Go(func() {
				if account, err := cache.VerifyKey(t.Context(), "k"); account != "account of k" || err != nil {
					t.Errorf("%q, %v", account, err)
				}
			})
		}
		synctest.Wait()
		second, leave := context.WithTimeout(t.Context(), time.Second/4)
		defer leave()
		_, err = cache.VerifyKey(second, "k")
		is.True(errors.Is(err, context.DeadlineExceeded)) // it waits no longer than it wants to
		group.Wait()
		is.Equal(keys.asked.Load(), int64(2))
	})
}

// A fake that calls t.Fatal ends the goroutine it runs in.
func TestAVerifierThatEndsItsGoroutine(t *testing.T) {
	is := is.New(t)
	var logged testLog
	o := testOptions(t, &logged)
	keys := &countingKeys{fail: func(context.Context, string) error {
		runtime.Goexit()
		return nil
	}}
	o.Keys = CacheKeys(keys, time.Hour)
	h := New(o)
	for range 2 {
		got := do(t, h, "GET", "/v1/bots", "")
		is.Equal(got.status, 500)
		is.Equal(got.body, `{"detail":"Internal Server Error"}`)
	}
	is.True(strings.Contains(logged.String(), "runtime.Goexit"))
	keys.fail = nil
	is.Equal(do(t, h, "GET", "/v1/bots", "").status, 200)
}

func TestALookupHasItsFirstRequestsValues(t *testing.T) {
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

func TestALookupIsBoundedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		cache := CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		}), time.Hour)
		start := time.Now()
		_, err := cache.VerifyKey(t.Context(), "k")
		is.True(errors.Is(err, context.DeadlineExceeded))
		is.Equal(time.Since(start), 30*time.Second)
	})
}

func TestCacheKeysIsSafeForConcurrentUse(t *testing.T) {
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Nanosecond) // all of its ways are taken
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 200 {
				key := fmt.Sprint("k", (worker+i)%5)
				if account, err := cache.VerifyKey(t.Context(), key); account != "account of "+key || err != nil {
					t.Error(account, err)
				}
			}
		})
	}
	group.Wait()
}

func TestCacheKeysNeedsAVerifier(t *testing.T) {
	is := is.New(t)
	defer func() { is.Equal(recover(), "botapi: CacheKeys: the KeyVerifier is nil") }()
	CacheKeys(nil, time.Minute)
	t.Error("CacheKeys has returned")
}

// The verifier's context ends with its client, without a word in the log.
func TestAClientLeavesWhileItsKeyIsVerified(t *testing.T) {
	for _, cached := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			var logged testLog
			began, told := time.Now(), make(chan time.Duration, 1)
			var verifier KeyVerifier = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
				told <- time.Since(began)
				return "", ctx.Err()
			})
			if cached {
				verifier = CacheKeys(verifier, time.Hour)
			}
			o := testOptions(t, &logged)
			o.Keys = verifier
			server := serveInMemory(t, New(o))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, "GET", "http://memory/v1/bots", nil)
			is.NoErr(err)
			request.Header.Set("Authorization", "Bearer k")
			_, err = server.client().Do(request)
			is.True(errors.Is(err, context.DeadlineExceeded))
			time.Sleep(time.Hour)
			is.Equal(<-told, time.Second)
			is.Equal(logged.String(), "")
		})
	}
}

func TestAKeyIsStruckOutHoweverItIsWritten(t *testing.T) {
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
			is.Equal(withoutKey(errors.New(c.text), c.key).Error(), c.want)
		})
	}
}

// Struck out of a text, a short key would show by what is missing, and leave
// little that can be read.
func TestNothingIsLoggedOfAVerifierWithAShortKey(t *testing.T) {
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

func TestAKeyIsStruckOutOfAPanicOfItsError(t *testing.T) {
	is := is.New(t)
	var logged testLog
	o := testOptions(t, &logged)
	o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "", brokenError{key} })
	is.Equal(do(t, New(o), "GET", "/v1/bots", "").status, 500)
	is.True(strings.Contains(logged.String(), "no text for [key]"))
	is.True(!strings.Contains(logged.String(), testKey))
}

func TestCacheKeysRemembersAnAccountWithoutAName(t *testing.T) {
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

// What a host ends a request with is its answer, also while a cached key is
// looked up.
func TestAHostEndsARequestThatWaitsForItsKey(t *testing.T) {
	for cause, status := range map[error]int{
		errBroken: 503,
		StatusError{Status: 402, Detail: "Pay first"}: 402,
		context.DeadlineExceeded:                      504,
	} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, t.Output())
			o.Keys = CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			}), time.Hour)
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, cause)
			defer cancel()
			r := httptest.NewRequest("GET", "/v1/bots", nil).WithContext(ctx)
			r.Header.Set("Authorization", "Bearer "+testKey)
			w := httptest.NewRecorder()
			New(o).ServeHTTP(w, r)
			is.Equal(w.Code, status)
		})
	}
}
