package botapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/singleflight"
)

// KeyVerifier decides whose an API key is. The host provides it; the handler
// calls it once for each request to a known path, before it reads the body,
// from many goroutines at once.
//
// The context ends when the client goes away and answers [RequestIDFrom]. The
// key has at least one byte and no white space; nothing else is known of it.
//
// Exactly one of account and err counts: with a nil error, account is what
// [AccountFrom] returns for the rest of the request, and what the limit for
// each account goes by. Errors become answers:
//   - an error that is [ErrInvalidKey]: 401 "Invalid API key";
//   - a [StatusError]: its own status and text, for instance a 429 for an
//     account that has used up its month;
//   - any other error, and a panic: 500, logged with the request id and not
//     shown to the client. Should the error's text hold the key, it is struck
//     out of the log.
type KeyVerifier interface {
	VerifyKey(ctx context.Context, key string) (account string, err error)
}

// KeyVerifierFunc makes a [KeyVerifier] of a function.
type KeyVerifierFunc func(ctx context.Context, key string) (account string, err error)

// VerifyKey calls f.
func (f KeyVerifierFunc) VerifyKey(ctx context.Context, key string) (string, error) {
	return f(ctx, key)
}

// ErrInvalidKey is what a [KeyVerifier] returns, alone or wrapped, for a key
// that it does not accept. The client gets a 401.
var ErrInvalidKey = errors.New("botapi: invalid API key")

// authenticate returns the account that the request's key belongs to.
func (x *exchange) authenticate() (account string, err error) {
	key, ok := bearerKey(x.r.Header)
	if !ok {
		return "", errNotAuthenticated
	}
	defer func() {
		if v := recover(); v != nil {
			err = withoutKey(recovered("verifying the key", v), key)
		}
	}()
	account, err = x.keys.VerifyKey(x.ctx, key)
	if err != nil {
		return "", withoutKey(err, key)
	}
	return account, nil
}

// bearerKey returns the key of the first Authorization header: the scheme
// Bearer in any case, one or more spaces, and a key without white space.
func bearerKey(header http.Header) (key string, ok bool) {
	const scheme = "bearer"
	value := firstOf(header["Authorization"])
	if len(value) <= len(scheme) || !strings.EqualFold(value[:len(scheme)], scheme) {
		return "", false
	}
	key = strings.TrimLeft(value[len(scheme):], " ")
	if key == "" || len(key) == len(value)-len(scheme) || strings.ContainsFunc(key, unicode.IsSpace) {
		return "", false
	}
	return key, true
}

// withoutKey returns err with a text that does not hold the key: what a
// verifier says of a key it could not look up is logged, and logs are read by
// people who must not have keys.
func withoutKey(err error, key string) error {
	return &keylessError{err: err, key: key}
}

type keylessError struct {
	err error
	key string
}

// Error strikes the key out as it is, and as URLs and quoted strings write it.
func (e *keylessError) Error() string {
	text := e.err.Error()
	quoted := strconv.Quote(e.key)
	for _, key := range []string{e.key, url.QueryEscape(e.key), url.PathEscape(e.key), quoted[1 : len(quoted)-1]} {
		text = strings.ReplaceAll(text, key, "[key]")
	}
	return text
}

func (e *keylessError) Unwrap() error { return e.err }

// digest is all that is kept of a key.
type digest [sha256.Size]byte

// StaticKeys returns a [KeyVerifier] for a fixed set of keys, each with its
// account. It keeps only SHA-256 digests, and compares a key with all of them
// in constant time, so that how long it takes says nothing of the keys: meant
// for up to some hundreds. The map is not used after the call. A key that is
// empty or has white space in it can never match.
func StaticKeys(keys map[string]string) KeyVerifier {
	static := make(staticKeys, 0, len(keys))
	for key, account := range keys {
		static = append(static, staticKey{sha256.Sum256([]byte(key)), account})
	}
	return static
}

type staticKeys []staticKey

type staticKey struct {
	digest  digest
	account string
}

func (keys staticKeys) VerifyKey(_ context.Context, key string) (string, error) {
	sum := digest(sha256.Sum256([]byte(key)))
	found := -1
	for i := range keys {
		same := subtle.ConstantTimeCompare(keys[i].digest[:], sum[:])
		found = subtle.ConstantTimeSelect(same, i, found)
	}
	if found < 0 {
		return "", ErrInvalidKey
	}
	return keys[found].account, nil
}

const (
	// cachedKeys bounds what CacheKeys remembers: about 1.5 MB.
	cachedKeys = 10_000
	// lookupTimeout bounds one lookup behind CacheKeys, which goes on when the
	// request that began it has ended, since others may wait for it too.
	lookupTimeout = 30 * time.Second
)

// CacheKeys returns a [KeyVerifier] that asks v and remembers each good key,
// by its digest, for ttl: a revoked key goes on working for at most that long.
// A ttl of zero or less remembers nothing. Up to 10,000 keys are remembered;
// beyond that, one makes room for another. Refused keys and errors are not
// remembered.
//
// Requests with the same key that come while v is looking it up wait for that
// one lookup and share its result. The lookup has the values of the first
// request's context but not its end: it may take 30 seconds, each request
// waits for it as long as its own context lasts, and a client that leaves
// fails nobody else.
//
// CacheKeys panics when v is nil.
func CacheKeys(v KeyVerifier, ttl time.Duration) KeyVerifier {
	if v == nil {
		panic("botapi: CacheKeys: the KeyVerifier is nil")
	}
	return &keyCache{verifier: v, ttl: ttl, known: make(map[digest]knownKey)}
}

type keyCache struct {
	verifier KeyVerifier
	ttl      time.Duration
	lookups  singleflight.Group

	mu    sync.Mutex
	known map[digest]knownKey
}

type knownKey struct {
	account string
	expires time.Time
}

func (c *keyCache) VerifyKey(ctx context.Context, key string) (string, error) {
	sum := digest(sha256.Sum256([]byte(key)))
	if account, ok := c.recall(sum); ok {
		return account, nil
	}
	result := c.lookups.DoChan(string(sum[:]), func() (any, error) {
		return c.lookUp(context.WithoutCancel(ctx), key, sum)
	})
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case r := <-result:
		account, _ := r.Val.(string)
		return account, r.Err
	}
}

// lookUp asks the verifier. A panic becomes an error here: nobody could
// recover it outside the goroutine that singleflight calls this in.
func (c *keyCache) lookUp(ctx context.Context, key string, sum digest) (account string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			account, err = "", recovered("verifying the key", v)
		}
	}()
	account, err = c.verifier.VerifyKey(ctx, key)
	if err == nil {
		c.remember(sum, account)
	}
	return account, err
}

func (c *keyCache) recall(sum digest) (account string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.known[sum]
	if !ok {
		return "", false
	}
	if !time.Now().Before(known.expires) {
		delete(c.known, sum)
		return "", false
	}
	return known.account, true
}

func (c *keyCache) remember(sum digest, account string) {
	if c.ttl <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) >= cachedKeys {
		c.forgetOne()
	}
	c.known[sum] = knownKey{account, time.Now().Add(c.ttl)}
}

// forgetOne makes room: whichever key the map yields first. Any choice is
// right, since a forgotten key costs one lookup, and this one costs nothing.
func (c *keyCache) forgetOne() {
	for sum := range c.known {
		delete(c.known, sum)
		return
	}
}
