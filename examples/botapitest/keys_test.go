package botapitest

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/botapi"
	"github.com/matryer/is"
)

const longKey = "sk-live-Zx81KqWmmP4tEr7u"

var goodKeys = botapi.StaticKeys(map[string]string{"good-key": "acme", longKey: "acme"})

// keysThat returns a verifier that calls f, which may call the good one.
func keysThat(f func(ctx context.Context, key string) (string, error)) Keys {
	return Keys{Verifier: botapi.KeyVerifierFunc(f)}
}

func failingKeys(err error) botapi.KeyVerifier {
	return botapi.KeyVerifierFunc(func(context.Context, string) (string, error) { return "", err })
}

func TestBrokenKeys(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		broken          func() Keys
		subtest, phrase string
	}{
		{"accepts every key", func() Keys {
			return keysThat(func(context.Context, string) (string, error) { return "acme", nil })
		}, "Bad", "the client: 200 []"},
		{"accepts a key with more behind it", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if strings.HasPrefix(key, "good-key") {
					return "acme", nil
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Bad", "a key of 9 bytes"},
		{"ignores case", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				return goodKeys.VerifyKey(ctx, strings.ToLower(key))
			})
		}, "Bad", "Keys are compared exactly."},
		{"takes quotes off", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				return goodKeys.VerifyKey(ctx, strings.Trim(key, `"`))
			})
		}, "Bad", "Keys are compared exactly."},
		{"returns the database's own error for an unknown key", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				account, err := goodKeys.VerifyKey(ctx, key)
				if err != nil {
					err = errors.New("sql: no rows in result set")
				}
				return account, err
			})
		}, "Bad", `the contract says: "ErrInvalidKey is returned by a KeyVerifier`},
		{"fails for a key that is not UTF-8", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if !utf8.ValidString(key) {
					return "", errors.New(`invalid byte sequence for encoding "UTF8"`)
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Bad", "invalid byte sequence"},
		{"fails for a long key", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if len(key) > 72 {
					panic("bcrypt: password length exceeds 72 bytes")
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Bad", "a key of 8192 bytes"},
		{"returns another account", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				_, err := goodKeys.VerifyKey(ctx, key)
				return "ACME", err
			})
		}, "Good", `Keys.Account is "acme"`},
		{"rejects the good key from the second time on", func() Keys {
			var calls atomic.Int64
			return keysThat(func(ctx context.Context, key string) (string, error) {
				// calls of the subtest Good are one by one
				if key == "good-key" && ctx.Done() == nil && calls.Add(1) == 169 {
					return "", botapi.ErrInvalidKey
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Good", "the client: 401"},
		{"returns a typed nil error", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				account, err := goodKeys.VerifyKey(ctx, key)
				if err == nil {
					err = nilWrong()
				}
				return account, err
			})
		}, "NilErrors", "the client: 500"},
		{"does not return when its context is cancelled", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if ctx.Err() != nil && key == "good-key" {
					select {}
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Cancellation", "the call has not returned"},
		{"says that a key is not valid when it was cancelled", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if ctx.Err() != nil {
					return "", botapi.ErrInvalidKey
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Cancellation", "a failed lookup is taken for a key that is not known"},
		{"accepts a bad key when it was cancelled", func() Keys {
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if ctx.Err() != nil {
					return "", nil
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Cancellation", "a lookup that was cancelled counts as one that succeeded"},
		{"shares a lookup that has the context of the first", func() Keys {
			var shared sharedLookup[string]
			return keysThat(func(ctx context.Context, key string) (string, error) {
				return shared.do(ctx, key, func() (string, error) { return goodKeys.VerifyKey(ctx, key) })
			})
		}, "Cancellation", "calls share one lookup"},
		{"keeps the error of a cancelled call", func() Keys {
			var kept keptError
			return keysThat(func(ctx context.Context, key string) (string, error) {
				if err := kept.failure(ctx); err != nil {
					return "", err
				}
				return goodKeys.VerifyKey(ctx, key)
			})
		}, "Cancellation", "a kept error"},
		{"keeps a lock after a bad key", func() Keys {
			var mu sync.Mutex
			return keysThat(func(ctx context.Context, key string) (string, error) {
				mu.Lock()
				account, err := goodKeys.VerifyKey(ctx, key)
				if err == nil {
					mu.Unlock()
				}
				return account, err
			})
		}, "Cancellation", "has kept a lock or a connection"},
		{"verifies the key of another call", func() Keys {
			var presented atomic.Value
			return keysThat(func(ctx context.Context, key string) (string, error) {
				presented.Store(key)
				time.Sleep(100 * time.Microsecond)
				return goodKeys.VerifyKey(ctx, presented.Load().(string))
			})
		}, "Concurrency", "at the same time as calls with another key"},
		{"says that a key is not valid when its database is stopped", func() Keys {
			return Keys{Verifier: goodKeys, Failing: failingKeys(fmt.Errorf("verifying: %w", botapi.ErrInvalidKey))}
		}, "Failing", "clients would ask their users for another key"},
		{"says that a key is not valid once its database was stopped", func() Keys {
			var failed atomic.Bool
			return Keys{Verifier: goodKeys, Failing: botapi.KeyVerifierFunc(func(context.Context, string) (string, error) {
				if failed.Swap(true) {
					return "", botapi.ErrInvalidKey
				}
				return "", errBackend
			})}
		}, "Failing", "of Keys.Failing, the second time"},
		{"responds with 401 when its database is stopped", func() Keys { return Keys{Verifier: goodKeys, Failing: failingKeys(botapi.StatusError{Status: 401})} }, "Failing", "clients would ask their users for another key"},
		{"responds with 403 when its database is stopped", func() Keys { return Keys{Verifier: goodKeys, Failing: failingKeys(botapi.StatusError{Status: 403})} }, "Failing", "clients would ask their users for another key"},
		{"shortens a key in its error", func() Keys {
			return Keys{Verifier: goodKeys, Good: longKey, Failing: failingKeys(fmt.Errorf("looking up %s...: %w", longKey[:len(longKey)-4], errBackend))}
		}, "Failing", "an error with a part of Keys.Good"},
		{"encodes a key in its error", func() Keys {
			return Keys{Verifier: goodKeys, Failing: failingKeys(errors.New(base64.StdEncoding.EncodeToString([]byte("good-key"))))}
		}, "Failing", "an error with a part of Keys.Good"},
		{"accepts a key when its database is stopped", func() Keys { return Keys{Verifier: goodKeys, Failing: failingKeys(nil)} }, "Failing", "the client: 200"},
		{"has no status when its database is stopped", func() Keys { return Keys{Verifier: goodKeys, Failing: failingKeys(botapi.StatusError{Status: 200})} }, "Failing", "a StatusError with the status 200"},
		{"has one query at a time", func() Keys {
			var mu sync.Mutex
			return Keys{Verifier: goodKeys, Hanging: botapi.KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				<-ctx.Done()
				return "", ctx.Err()
			})}
		}, "Hanging", "a lock is held during a query"},
		{"ignores cancellation of a query", func() Keys {
			return Keys{Verifier: goodKeys, Hanging: botapi.KeyVerifierFunc(func(context.Context, string) (string, error) { select {} })}
		}, "Hanging", "neither the context nor a deadline of its own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			k := c.broken()
			k.Good, k.Account, k.Bad = cmp.Or(k.Good, "good-key"), "acme", "bad-key"
			mustFail(t, keyChecks(k, brokenLimit), c.subtest, c.phrase)
		})
	}
}

// TestMessagesShowNoKey has a verifier that quotes each key in its error.
func TestMessagesShowNoKey(t *testing.T) {
	is := is.New(t)
	quoting := keysThat(func(_ context.Context, key string) (string, error) {
		return "", fmt.Errorf("no row for the key %s", key)
	})
	quoting.Good, quoting.Account, quoting.Bad = "good-key", "acme", "bad-key"
	found := 0
	for _, check := range keyChecks(quoting, brokenLimit) {
		if check.skipped() != "" {
			continue
		}
		for _, p := range check.run() {
			found++
			is.True(!strings.Contains(p.String(), "good-k") && !strings.Contains(p.String(), "bad-k"))
		}
	}
	is.True(found > 10)
}

// sharedLookup gives concurrent calls the result of one lookup, which has the context of the
// first.
type sharedLookup[T any] struct {
	mu      sync.Mutex
	lookups map[string]*sharedResult[T]
}

type sharedResult[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func (s *sharedLookup[T]) do(ctx context.Context, key string, look func() (T, error)) (T, error) {
	s.mu.Lock()
	l, isRunning := s.lookups[key]
	if !isRunning {
		l = &sharedResult[T]{done: make(chan struct{})}
		if s.lookups == nil {
			s.lookups = map[string]*sharedResult[T]{}
		}
		s.lookups[key] = l
	}
	s.mu.Unlock()
	if !isRunning {
		select {
		case <-time.After(2 * time.Millisecond): // the database
			l.value, l.err = look()
		case <-ctx.Done():
			l.err = ctx.Err()
		}
		s.mu.Lock()
		delete(s.lookups, key)
		s.mu.Unlock()
		close(l.done)
	}
	<-l.done
	return l.value, l.err
}

func TestGoodKeys(t *testing.T) {
	hanging := botapi.KeyVerifierFunc(func(ctx context.Context, _ string) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	slow := botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		select {
		case <-time.After(time.Millisecond):
			return goodKeys.VerifyKey(ctx, key)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	throttled := botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		account, err := goodKeys.VerifyKey(ctx, key)
		if err != nil {
			err = &botapi.StatusError{Status: 429, Detail: "Too many requests with unknown API keys", RetryAfter: time.Second}
		}
		return account, err
	})
	for name, k := range map[string]Keys{
		"a key in an error that is not logged": {Verifier: goodKeys, Failing: failingKeys(errors.New("looking up good-key"))},
		"StaticKeys":                           {Verifier: goodKeys, Failing: failingKeys(errBackend), Hanging: hanging},
		"CacheKeys":                            {Verifier: botapi.CacheKeys(slow, time.Minute), Failing: botapi.CacheKeys(failingKeys(&botapi.StatusError{Status: 503}), time.Minute), Hanging: botapi.CacheKeys(hanging, time.Minute)},
		"without a cache":                      {Verifier: botapi.CacheKeys(slow, 0)},
		"429 for bad keys":                     {Verifier: throttled},
		"context cancelled":                    {Verifier: slow},
	} {
		t.Run(name, func(t *testing.T) {
			k.Good, k.Account, k.Bad = "good-key", "acme", "bad-key"
			TestKeys(t, k)
		})
	}
}
