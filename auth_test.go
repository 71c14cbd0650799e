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
		asked           int // the verifier: only for what may be a key
		headers         [][]string
	}{
		{"200 " + listedBots, "", 1, [][]string{
			{"Bearer key-of-acme"}, {"bearer key-of-acme"}, {"BEARER key-of-acme"}, {"bEaReR key-of-acme"}, {"Bearer    key-of-acme"},
			{"Bearer key-of-acme", "Bearer other"}, // the first of several counts
		}},
		{`401 {"detail":"Invalid API key"}`, `Bearer error="invalid_token"`, 1, [][]string{
			{"Bearer key-of-acm"}, {"Bearer KEY-OF-ACME"}, {`Bearer "key-of-acme"`}, {"Bearer ~key-of-acme"},
			{"Bearer other", "Bearer key-of-acme"},
		}},
		{`401 {"detail":"Not authenticated"}`, "Bearer", 0, [][]string{
			nil, {""}, {"Basic key-of-acme"}, {"Digest key-of-acme"}, {"Bearers key-of-acme"}, {"key-of-acme"}, {"Bearer"}, {"Bearer "},
			{"Bearerkey-of-acme"}, {"Bearer:key-of-acme"}, {"Bearer\tkey-of-acme"}, {"Bearer \tkey-of-acme"}, {" Bearer key-of-acme"},
			{"Bearer key-of-acme "}, {"Bearer key of acme"}, {"Bearer key\tof-acme"}, {"Bearer key\nof-acme"}, {"Bearer key\u00A0of-acme"},
			{"Bearer key-of-acme, Bearer other"}, {"Basic a2V5", "Bearer key-of-acme"}, {"", "Bearer key-of-acme"},
		}},
	} {
		for _, header := range c.headers {
			t.Run(fmt.Sprintf("%q", header), func(t *testing.T) {
				is := is.New(t)
				o := testOptions(t, t.Output())
				asked := countKeys(&o)
				r := newRequest("GET", "/v1/bots", nil)
				r.Header["Authorization"] = header
				got := record(New(o), r)
				is.Equal(fmt.Sprint(got.Code, " ", got.Body), c.want)
				is.Equal(got.Header().Get("WWW-Authenticate"), c.challenge)
				is.Equal(*asked, c.asked)
			})
		}
	}
}

// countKeys counts what the verifier of these options is asked.
func countKeys(o *Options) (asked *int) {
	asked, keys := new(int), o.Keys
	o.Keys = KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		*asked++
		return keys.VerifyKey(ctx, key)
	})
	return asked
}

// countingKeys is a verifier that counts what it is asked. The account of a key is
// the key without its first letter (that of "k" has no name), unless fail fails.
type countingKeys struct {
	asked atomic.Int64
	fail  func(ctx context.Context) error
}

func (k *countingKeys) VerifyKey(ctx context.Context, key string) (string, error) {
	k.asked.Add(1)
	if k.fail != nil {
		if err := k.fail(ctx); err != nil {
			return "account beside an error", err
		}
	}
	return key[1:], nil
}

// verifies asks for a key that is good, as often as it says.
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
		for _, none := range []time.Duration{0, -time.Second} {
			verifies(t, CacheKeys(keys, none), 3, "k")
		}
		is.Equal(keys.asked.Load(), int64(9))
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
		says   func() error
		status int
		asked  int64
	}{
		{func() error { return ErrInvalidKey }, 401, 1},
		{func() error { return errBroken }, 500, 2},
		{func() error { return StatusError{Status: 429} }, 429, 3},
		{func() error { panic("no table") }, 500, 4},
		{func() error { runtime.Goexit(); return nil }, 500, 5}, // as a fake that calls t.Fatal
		{func() error { return nil }, 200, 6},
		{func() error { return ErrInvalidKey }, 200, 6},
	} {
		keys.fail = func(context.Context) error { return c.says() }
		is.Equal(listOf(h).Code, c.status)
		is.Equal(keys.asked.Load(), c.asked)
	}
	is.True(strings.Contains(log.String(), "runtime.Goexit"))
}

// It holds 10,000 keys. A new one takes the place of another; one that is refused
// takes none.
func TestCacheKeysIsBounded(t *testing.T) {
	is := is.New(t)
	keys := new(countingKeys)
	cache := CacheKeys(keys, time.Hour)
	for i := range 10_100 {
		verifies(t, cache, 1, fmt.Sprint("k", i))
	}
	is.Equal(keys.asked.Load(), int64(10_100))
	verifies(t, cache, 1, "k10099") // the newest is there
	is.Equal(keys.asked.Load(), int64(10_100))

	keys.fail = func(context.Context) error { return ErrInvalidKey }
	found := 0
	for i := range 10_200 {
		if _, err := cache.VerifyKey(t.Context(), fmt.Sprint("k", 10_199-i)); err == nil {
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
	succeeds := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		took    time.Duration               // the lookup, unless its context ends it; 0: only that does
		says    func(context.Context) error // then
		askers  []asker
		lookups int64
		ends    time.Duration // of the last lookup
	}{
		"the first leaves":            {second, ended, []asker{{0, second / 4, 1, late}, {second / 8, never, 20, nil}, {second / 8, second / 2, 1, late}}, 1, second},
		"it fails":                    {second, func(context.Context) error { return errBroken }, []asker{{0, never, 20, errBroken}}, 1, second},
		"it panics":                   {second, func(context.Context) error { panic(http.ErrAbortHandler) }, []asker{{0, never, 20, http.ErrAbortHandler}}, 1, second},
		"all leave, and it succeeds":  {second, succeeds, []asker{{0, second / 2, 1, late}, {2 * second, never, 1, nil}}, 1, second},
		"all leave, one comes before": {second, succeeds, []asker{{0, second / 2, 1, late}, {3 * second / 5, never, 1, nil}}, 1, second},
		"all leave, and it fails":     {second, ended, []asker{{0, second / 2, 1, late}, {3 * second / 5, never, 3, nil}, {3 * second / 5, 3 * second / 4, 1, late}}, 2, 2 * second},
		"all leave, one by one":       {never, ended, []asker{{0, second, 1, late}, {0, 2 * second, 1, late}, {0, 3 * second, 1, late}}, 1, 3 * second},
		"nobody leaves":               {never, ended, []asker{{0, never, 2, late}}, 1, 30 * second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				start := time.Now()
				var running, took atomic.Int64
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
					took.Store(int64(time.Since(start)))
					return c.says(ctx)
				}}
				cache := CacheKeys(keys, time.Hour)
				ask := func(a asker) {
					time.Sleep(a.comes)
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					if a.leaves > 0 {
						ctx, leave = context.WithTimeout(ctx, a.leaves-a.comes)
						defer leave()
					}
					if _, err := cache.VerifyKey(ctx, "k"); !errors.Is(err, a.want) {
						t.Errorf("%v, want %v", err, a.want)
					}
				}
				for _, asker := range c.askers {
					for range asker.count {
						go ask(asker)
					}
				}
				time.Sleep(time.Minute)
				is.Equal(keys.asked.Load(), c.lookups)
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
	is.Equal(listOf(withHostsValue(New(o)), "X-Request-Id", "r-1").Code, 200)
	is.Equal(RequestIDFrom(lookup), "r-1")
	is.Equal(AccountFrom(lookup), "")
	is.Equal(lookup.Value(hostKey{}), "the host's")
	is.Equal(lookup.Err(), context.Canceled) // it holds nothing any more
}

// brokenError is an error whose own methods fail, saying more than they should.
type brokenError struct{ text string }

func (e brokenError) Error() string { panic(e.text) }

// A short key would show by what is missing of a text, and leave little that can be
// read: then the text is not logged.
func TestKeyIsStruckOutOfTheLog(t *testing.T) {
	says := func(text string) func() error { return func() error { return errors.New(text) } }
	const tooShort = "the verifier's error is not logged: the key is too short to be struck out of it"
	for _, c := range []struct {
		name, key string
		fail      func() error
		want      string // in the log
	}{
		{"nowhere", "key-of-acme", says("no table"), "no table"},
		{"as it is", "key-of-acme", says("no row for key-of-acme: key-of-acme"), "no row for [key]: [key]"},
		{"in a cause", "key-of-acme", func() error { return StatusError{429, "Used up", 0, errors.New("quota of key-of-acme")} }, "429 Used up: quota of [key]"},
		{"in a panic", "key-of-acme", func() error { panic("no row for key-of-acme") }, "panic while verifying the key: no row for [key]"},
		{"in a panic of the error", "key-of-acme", func() error { return brokenError{"no text for key-of-acme"} }, "panic while reading an error: no text for [key]"},
		{"in a URL", `c2V+a/b"==`, says("?key=c2V%2Ba%2Fb%22%3D%3D /c2V+a%2Fb%22=="), "?key=[key] /[key]"},
		{"in the path of a URL", "tenant|abc/def+gh==", says("/keys/tenant%7Cabc/def+gh=="), "/keys/[key]"},
		{"quoted", `c2V+a/b"==`, says(`"c2V+a/b\"=="`), `"[key]"`},
		{"quoted in ASCII", "clé-d'acme", says(`"cl\u00e9-d'acme"`), `"[key]"`},
		{"in JSON", `k<e&y>"==`, says(`{"key":"k\u003ce\u0026y\u003e\"=="}`), `{"key":"[key]"}`},
		{"quoted, with what Go spells by itself", "clé\a-d'acme", says(`"clé\a-d'acme"`), `"[key]"`},
		{"in JSON before as it is", `c2V+a/b"==`, says(`c2V+a/b\"== for c2V+a/b"==`), "[key] for [key]"},
		{"one spelling begins another", "%2525252", says("/%252525252"), "/[key]"},
		{"one overlaps itself", "abcabcab", says("abcabcabcab"), "[key]"},
		{"one after the other", "12345678", says("1234567812345678"), "[key][key]"},
		{"one that looks like the mark", "[key][key", says("not [key][key]"), "not [key]]"},
		{"8 bytes", "selected", says("cannot selected from x"), "cannot [key] from x"},
		{"8 bytes, of fewer characters", "clé-dé", says("no row for clé-dé"), "no row for [key]"},
		{"7 bytes", "7-bytes", says("SELECT: no table"), tooShort},
		{"1 byte", "e", says("SELECT: no table"), tooShort},
		{"1 byte, in a cause", "e", func() error { return StatusError{Status: 429, Err: errors.New("SELECT: no table")} }, tooShort},
		{"1 byte, in a panic", "e", func() error { panic("SELECT: no table") }, tooShort},
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
			is.True(!strings.Contains(log.String(), "SELECT")) // nor in the stack
		})
	}
}

// A marked key is sent down every path, and then looked for in everything that
// was written.
func TestKeyIsWrittenNowhere(t *testing.T) {
	const key = "sk-MARKED-7d1f0c9a"
	is := is.New(t)
	var written testLog
	write := func(values ...any) {
		for _, v := range values {
			fmt.Fprintf(&written, "%v\n%+v\n%#v\n", v, v, v)
		}
	}
	says := func(answer func(key string) error) KeyVerifier {
		return KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return "", answer(key) })
	}
	statuses := map[int]bool{}
	for _, verifier := range []KeyVerifier{
		StaticKeys(map[string]string{key: testAccount}),
		CacheKeys(StaticKeys(map[string]string{key: testAccount}), time.Hour),
		StaticKeys(nil),
		says(func(key string) error { return fmt.Errorf("%s: %w", key, ErrInvalidKey) }),
		says(func(key string) error { return fmt.Errorf("SELECT %q: no table", key) }),
		says(func(key string) error { return StatusError{429, "Used up", 0, errors.New("quota of " + key)} }),
		says(func(key string) error { panic("no row for " + key) }),
		CacheKeys(says(func(key string) error { return errors.New(key) }), time.Hour),
		CacheKeys(says(func(key string) error { panic(key) }), time.Hour),
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
				synctest.Wait() // nothing uses the verifier any more
				write(o, verifier, New(o))
			})
		}
	}
	is.Equal(slices.Sorted(maps.Keys(statuses)), []int{200, 401, 404, 405, 413, 422, 429, 500}) // all paths were taken
	is.True(strings.Contains(written.String(), "quota of [key]"))                               // what was struck out is marked
	is.True(!strings.Contains(written.String(), "MARKED"))
}
