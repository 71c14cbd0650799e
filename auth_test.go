package botapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
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

func TestALookupHasItsFirstRequestsValues(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, t.Output())
	o.Keys = CacheKeys(KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
		is.Equal(RequestIDFrom(ctx), "r-1")
		is.Equal(AccountFrom(ctx), "")
		return testAccount, nil
	}), time.Hour)
	h := New(o)
	is.Equal(do(t, h, "GET", "/v1/bots", "", "X-Request-Id", "r-1").status, 200)
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
			var logged lockedBuffer
			var verifier KeyVerifier = KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
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
			is.Equal(logged.String(), "")
		})
	}
}

func TestAKeyIsStruckOutHoweverItIsWritten(t *testing.T) {
	is := is.New(t)
	const key = `c2V+a/b"==`
	err := withoutKey(fmt.Errorf("GET /verify?key=%s or %s: %q, %s", url.QueryEscape(key), url.PathEscape(key), key, key), key)
	is.Equal(err.Error(), `GET /verify?key=[key] or [key]: "[key]", [key]`)
}
