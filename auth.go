package botapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// KeyVerifier decides which account an API key belongs to. It must be safe for
// concurrent use.
type KeyVerifier interface {
	// VerifyKey returns the account of a valid key. [AccountFrom] returns it for
	// the rest of the request, and MaxChatsPerAccount counts by it.
	//
	// It is called once for each request that carries a key to a known path,
	// before the request body is read. The key is not empty and has no white
	// space in it.
	//
	// The context carries the request id ([RequestIDFrom]) and is cancelled when
	// the client disconnects. On HTTP/1, net/http notices that only after the
	// body has been read, and the handler sets no deadline: a verifier that may
	// block should set its own. [CacheKeys] sets one.
	//
	// If err is not nil, account is ignored and err decides the answer:
	//   - a [StatusError]: its own status and detail, for instance 429 for an
	//     account that has used up its quota;
	//   - [ErrInvalidKey]: 401 "Invalid API key";
	//   - any other error, and a panic: 500. It is logged with the request id
	//     and not shown to the client.
	//
	// The first two may be wrapped. The key is removed from what is logged; with
	// a key shorter than 8 bytes, the text of the error is not logged at all.
	VerifyKey(ctx context.Context, key string) (account string, err error)
}

// KeyVerifierFunc is a function that is a [KeyVerifier].
type KeyVerifierFunc func(ctx context.Context, key string) (account string, err error)

// VerifyKey calls f.
func (f KeyVerifierFunc) VerifyKey(ctx context.Context, key string) (string, error) {
	return f(ctx, key)
}

// ErrInvalidKey is returned by a [KeyVerifier], alone or wrapped, for a key that
// is not valid. The client gets a 401.
var ErrInvalidKey = errors.New("botapi: invalid API key")

// authenticate returns the account of the request's key.
func (x *exchange) authenticate() (account string, ended *ending) {
	key, ok := bearerKey(x.r.Header)
	if !ok {
		return "", rejected(errNotAuthenticated)
	}
	defer func() {
		if v := recover(); v != nil {
			ended = failureOf(recovered("verifying the key", v)).withoutKey(key)
		}
	}()
	account, err := x.handler.keys.VerifyKey(x.ctx, key)
	if err != nil {
		return "", failureOf(err).withoutKey(key)
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

// withoutKey strikes the key out of what is logged.
func (e *ending) withoutKey(key string) *ending {
	if len(key) < minStruckOut {
		e.text = "the verifier's error is not logged: the key is too short to be struck out of it"
		return e
	}
	e.text = strikeOut(e.text, spellings(key))
	return e
}

// minStruckOut is the shortest key that is struck out of a text. A shorter one
// would garble the text, and could be guessed from the gaps.
const minStruckOut = 8

// spellings are the key as it is, and as URLs, Go and JSON write it. The path of
// a URL leaves more as it is than a segment of it.
func spellings(key string) []string {
	quoted, ascii := strconv.Quote(key), strconv.QuoteToASCII(key)
	encoded, _ := json.Marshal(key) // a string always has a JSON form
	return []string{
		key, url.QueryEscape(key), url.PathEscape(key), (&url.URL{Path: key}).EscapedPath(),
		quoted[1 : len(quoted)-1], ascii[1 : len(ascii)-1], string(encoded[1 : len(encoded)-1]),
	}
}

// strikeOut replaces every occurrence of the secrets by [key], overlapping ones
// too. All are found in the original text, so that no replacement is replaced.
func strikeOut(text string, secrets []string) string {
	type span struct{ start, end int }
	var spans []span
	for _, secret := range secrets {
		for from := 0; ; {
			i := strings.Index(text[from:], secret)
			if i < 0 {
				break
			}
			from += i + 1
			spans = append(spans, span{from - 1, from - 1 + len(secret)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var struck strings.Builder
	end := 0 // of the last occurrence
	for _, found := range spans {
		if found.start >= end {
			struck.WriteString(text[end:found.start])
			struck.WriteString("[key]")
		}
		end = max(end, found.end)
	}
	struck.WriteString(text[end:])
	return struck.String()
}

// digest is all that is kept of a key.
type digest [sha256.Size]byte

// StaticKeys returns a [KeyVerifier] for a fixed set of keys, a map of keys to
// accounts. The map is not used after the call, and only SHA-256 digests of the
// keys are kept. Every key is compared with all of them in constant time, so
// that the response time reveals nothing about the keys: use it for up to a few
// hundred. The handler never asks for a key that is empty or contains white space.
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
	// cachedKeys bounds the memory of CacheKeys: about 1.5 MB.
	cachedKeys = 10_000
	// lookupTimeout bounds one call of the verifier behind CacheKeys.
	lookupTimeout = 30 * time.Second
)

// CacheKeys returns a [KeyVerifier] that calls v and caches valid keys, by their
// SHA-256 digests, for ttl. A revoked key is accepted until its entry expires. A
// ttl of zero or less disables the cache. It holds up to 10,000 keys; when it is
// full, an arbitrary key is evicted. Errors are not cached.
//
// Concurrent requests with the same key share one call of v. Its context carries
// the values of the first request, has a timeout of 30 seconds, and is cancelled
// when no request waits for the result any more: one client that disconnects
// does not affect the others. A request that comes while v has not returned from
// a cancelled call waits for that, so v should return then. If v panics or calls
// [runtime.Goexit], all of them get a 500.
//
// CacheKeys panics if v is nil, or a nil KeyVerifierFunc.
func CacheKeys(v KeyVerifier, ttl time.Duration) KeyVerifier {
	if isNil(v) {
		panic("botapi: CacheKeys: the KeyVerifier is nil")
	}
	return &keyCache{verifier: v, ttl: ttl, known: make(map[digest]knownKey), lookups: make(map[digest]*lookup)}
}

type keyCache struct {
	verifier KeyVerifier
	ttl      time.Duration

	mu      sync.Mutex
	known   map[digest]knownKey
	lookups map[digest]*lookup
}

type knownKey struct {
	account string
	expires time.Time
}

// A lookup is one call of the verifier, shared by the requests that wait for it.
type lookup struct {
	cancel  context.CancelFunc
	waiting int           // requests, guarded by keyCache.mu; at zero the lookup is abandoned for good
	done    chan struct{} // closed when account and err are set
	account string
	err     error
}

var errVerifierExited = errors.New("the key verifier ended its goroutine with runtime.Goexit")

func (c *keyCache) VerifyKey(ctx context.Context, key string) (string, error) {
	sum := digest(sha256.Sum256([]byte(key)))
	for {
		if account, ok := c.recall(sum); ok {
			return account, nil
		}
		l, joined := c.join(ctx, key, sum)
		select {
		case <-l.done:
			if joined {
				return l.account, l.err
			}
		case <-ctx.Done():
			if joined {
				c.leave(l)
			}
			return "", ctx.Err()
		}
	}
}

// join returns the lookup of this key, and starts one if there is none. An
// abandoned one is returned but not joined, since its context is cancelled: the
// caller waits for its end and tries again.
func (c *keyCache) join(ctx context.Context, key string, sum digest) (l *lookup, joined bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l, found := c.lookups[sum]; found {
		if l.waiting > 0 {
			l.waiting++
		}
		return l, l.waiting > 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	l = &lookup{cancel: cancel, waiting: 1, done: make(chan struct{})}
	c.lookups[sum] = l
	go c.lookUp(ctx, l, key, sum)
	return l, true
}

// leave cancels the lookup when no request waits for it any more.
func (c *keyCache) leave(l *lookup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		l.cancel()
	}
}

// lookUp calls the verifier and always finishes the lookup, also when the
// verifier panics or ends the goroutine.
func (c *keyCache) lookUp(ctx context.Context, l *lookup, key string, sum digest) {
	l.err = errVerifierExited
	defer func() {
		if v := recover(); v != nil {
			l.err = recovered("verifying the key", v)
		}
		c.finish(l, sum)
	}()
	l.account, l.err = c.verifier.VerifyKey(ctx, key)
}

func (c *keyCache) finish(l *lookup, sum digest) {
	l.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.err == nil {
		c.remember(sum, l.account)
	}
	delete(c.lookups, sum)
	close(l.done)
}

func (c *keyCache) recall(sum digest) (account string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[sum] // one that is not there expired long ago
	return known.account, time.Now().Before(known.expires)
}

// remember is called with the lock held.
func (c *keyCache) remember(sum digest, account string) {
	if c.ttl <= 0 {
		return
	}
	if len(c.known) >= cachedKeys {
		c.forgetOne()
	}
	c.known[sum] = knownKey{account, time.Now().Add(c.ttl)}
}

// forgetOne evicts whichever key the map yields first: a wrong choice costs one
// lookup, a better one would cost time and memory.
func (c *keyCache) forgetOne() {
	for sum := range c.known {
		delete(c.known, sum)
		return
	}
}
