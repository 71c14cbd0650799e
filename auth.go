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
	"unicode/utf8"

	"example.com/botapi/internal/panics"
)

// KeyVerifier decides which account an API key belongs to. It must be safe for
// concurrent use. The package examples/botapitest tests an implementation.
type KeyVerifier interface {
	// VerifyKey returns the account of a valid key. [AccountFrom] returns it for
	// the rest of the request, and MaxChatsPerAccount counts by it.
	//
	// It is called once for each request for a known path and method that carries a
	// key, before the request body is read. The key is not empty, has no white space
	// in it, and is at most 8 KiB long: a longer one is a 401 without a call. Keys are
	// compared exactly.
	//
	// The context carries the request id ([RequestIDFrom]) and is cancelled when
	// the client disconnects. On HTTP/1, net/http notices that only after the
	// body has been read, and the handler sets no deadline: a verifier that may
	// block should set its own. [CacheKeys] sets one.
	//
	// If err is not nil, account only appears in the [RequestReport], and err decides the
	// response, as that of a store or an engine does:
	//   - a [StatusError]: its own status and detail, for instance 429 for an
	//     account that has used up its quota;
	//   - [ErrInvalidKey]: 401 "Invalid API key";
	//   - any other, and a panic: as under Errors in the package's documentation.
	//
	// The first two may be wrapped. If the text of the error contains the key, as it
	// is, quoted as by %q, query-escaped or path-escaped, the text is not logged.
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

func (x *exchange) authenticate() *ending {
	key := x.operation.key(x.r.Header)
	switch {
	case len(key) > maxKey:
		return rejected(errKeyRejected)
	case key == "" || strings.ContainsFunc(key, unicode.IsSpace):
		return rejected(errNotAuthenticated)
	}
	x.presentedKey = key
	account, err := x.handler.options.Keys.VerifyKey(x.ctx, key)
	x.account = account
	if err != nil {
		return failureOf(err)
	}
	x.presentedKey = ""
	x.identified = x.anonymous
	x.identified.account = account
	x.ctx = &x.identified
	return nil
}

// maxKey bounds a key, in bytes: nothing looks at a longer one.
const maxKey = 8 << 10

// BearerKey returns the key of the first Authorization header, behind the scheme Bearer in
// any case and one or more spaces; "" if there is none. It is for a [Route] whose keys may
// also be elsewhere.
func BearerKey(header http.Header) string {
	values := header["Authorization"]
	if len(values) == 0 {
		return ""
	}
	scheme, key, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimLeft(key, " ")
}

// quotesKey reports whether a text contains the key, as it is, quoted, query-escaped or
// path-escaped. The beginning of a long key is enough, up to the end of a character: escaping
// all of it would multiply what a client has sent.
func quotesKey(text, key string) bool {
	end := 0
	for end < min(len(key), 64) {
		_, size := utf8.DecodeRuneInString(key[end:])
		end += size
	}
	start := key[:end]
	path := url.URL{Path: start} // as errors of net/http have it, with its slashes
	quoted := strconv.Quote(start)
	for _, spelling := range [...]string{start, quoted[1 : len(quoted)-1], url.QueryEscape(start), url.PathEscape(start), path.EscapedPath()} {
		if strings.Contains(text, spelling) {
			return true
		}
	}
	return false
}

// requestContext is the request's context with what the handler knows of the request.
type requestContext struct {
	context.Context
	requestID, account string
	request            *Request
}

type requestContextKey struct{}

func (c *requestContext) Value(key any) any {
	if key == (requestContextKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// routeContext is a request's context with the values of another, which comes from
// context.WithoutCancel: context.Cause asks Value, and must not find the other's cause.
type routeContext struct {
	context.Context
	values context.Context
}

func (c *routeContext) Value(key any) any {
	if value := c.values.Value(key); value != nil {
		return value
	}
	return c.Context.Value(key)
}

// AccountFrom returns what the [KeyVerifier] returned for the request that ctx
// belongs to. It is empty in other contexts, and while the verifier runs.
func AccountFrom(ctx context.Context) string { return requestOf(ctx).account }

// RequestIDFrom returns the id of the request that ctx belongs to: the one in
// the X-Request-Id header of its response, which the client may have chosen. It is empty in
// other contexts.
func RequestIDFrom(ctx context.Context) string { return requestOf(ctx).requestID }

// RequestFrom returns the request that ctx belongs to. In other contexts, it is one without
// headers whose SetHeader returns false.
func RequestFrom(ctx context.Context) *Request { return requestOf(ctx).request }

func requestOf(ctx context.Context) *requestContext {
	if c, ok := ctx.Value(requestContextKey{}).(*requestContext); ok {
		return c
	}
	return &requestContext{request: &Request{exchange: &nowhere, committed: true}}
}

// nowhere is the exchange of a context without a request.
var nowhere = exchange{handler: new(handler), r: &http.Request{Header: http.Header{}, URL: new(url.URL)}}

// A Request is what a verifier, a store, a route, an engine, a format or a callback may use of
// the request that its context belongs to. It is safe for concurrent use, also after the
// request has ended.
type Request struct {
	exchange *exchange // only what newExchange has set is used; by ReadBody, on the handler's goroutine, also the body

	mu        sync.Mutex
	committed bool              // the sending of a head has begun, that of an error response, too
	headers   map[string]string // of the response; "" to delete one
	values    map[any]any
	slot      *Slot
}

// Header returns the headers of the request. They must not be changed.
func (r *Request) Header() http.Header { return r.exchange.r.Header }

// Method returns the method of the request.
func (r *Request) Method() string { return r.exchange.r.Method }

// Path returns the decoded path of the request: by it, Options.NotFound may choose the form
// of one of several protocols.
func (r *Request) Path() string { return r.exchange.r.URL.Path }

// SetHeader sets a header of the response, if its status is a 2xx; an empty value deletes
// one, also of middleware's. It returns false, and does nothing, once the sending of any response
// has begun, for a name or a value that is not valid, and for headers that are the handler's:
// Content-*, Cache-Control, X-Accel-Buffering, X-Request-Id, Date, and those of the connection.
func (r *Request) SetHeader(name, value string) bool {
	name = http.CanonicalHeaderKey(name)
	isValid := name != "" && !strings.ContainsFunc(name, isNoToken) && !strings.ContainsFunc(value, unicode.IsControl)
	if !isValid || isOfHandler(name) || isHopByHop(name) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.committed {
		return false
	}
	if r.headers == nil {
		r.headers = make(map[string]string)
	}
	r.headers[name] = value
	return true
}

func isNoToken(c rune) bool {
	return c <= ' ' || c >= 0x7F || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
}

func isOfHandler(name string) bool {
	switch name {
	case "Cache-Control", "X-Accel-Buffering", "X-Request-Id", "Date":
		return true
	}
	return strings.HasPrefix(name, "Content-")
}

// commit sets the headers of the application, if the response is a success. Later ones are
// too late.
func (r *Request) commit(header http.Header, status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.committed = true
	if status >= 300 {
		return
	}
	for name, value := range r.headers {
		if value == "" {
			header.Del(name)
		} else {
			header.Set(name, value)
		}
	}
}

func (r *Request) isCommitted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.committed
}

// SetValue notes a value under a key, as a context has keys, for whatever comes later in the
// same request: an engine notes what a format, OnChat and OnRequest read.
func (r *Request) SetValue(key, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil {
		r.values = make(map[any]any)
	}
	r.values[key] = value
}

// Value returns what SetValue has noted last under a key, or nil.
func (r *Request) Value(key any) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.values[key]
}

// Slot returns the slot of a chat, or nil before it has one.
func (r *Request) Slot() *Slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slot
}

// Timeouts returns ChatTimeout and StallTimeout of [Options]; 0 means no limit. Work that goes
// on without its chat should have the same.
func (r *Request) Timeouts() (chat, stall time.Duration) {
	o := &r.exchange.handler.options
	return zeroIfNoLimit(o.ChatTimeout), zeroIfNoLimit(o.StallTimeout)
}

func (r *Request) setSlot(s *Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slot = s
}

// A digest is all that is kept of a key.
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
// when no request waits for the result any longer: one client that disconnects
// does not affect the others. The next request with that key starts a new call. If v
// panics or calls [runtime.Goexit], all that wait get a 500; with [http.ErrAbortHandler], all are
// aborted.
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

// A lookup is one call of the verifier, which several requests may wait for.
type lookup struct {
	cancel  context.CancelFunc
	waiting int           // requests, guarded by keyCache.mu
	done    chan struct{} // closed when account and err are set
	account string
	err     error
}

var errVerifierExited = errors.New("the key verifier ended its goroutine with runtime.Goexit")

func (c *keyCache) VerifyKey(ctx context.Context, key string) (string, error) {
	sum := digest(sha256.Sum256([]byte(key)))
	if account, ok := c.recall(sum); ok {
		return account, nil
	}
	l := c.join(ctx, key, sum)
	select {
	case <-l.done:
		return l.account, l.err
	case <-ctx.Done():
		c.leave(l, sum)
		return "", ctx.Err()
	}
}

func (c *keyCache) join(ctx context.Context, key string, sum digest) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l, found := c.lookups[sum]; found {
		l.waiting++
		return l
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	l := &lookup{cancel: cancel, waiting: 1, done: make(chan struct{})}
	c.lookups[sum] = l
	go c.lookUp(ctx, l, key, sum)
	return l
}

// leave cancels the lookup when no request waits for it any longer. The next request
// starts a new one: this one may fail because it was cancelled.
func (c *keyCache) leave(l *lookup, sum digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.waiting--; l.waiting == 0 {
		l.cancel()
		c.forget(l, sum)
	}
}

func (c *keyCache) lookUp(ctx context.Context, l *lookup, key string, sum digest) {
	l.err = errVerifierExited
	defer c.finish(l, sum)
	defer func() {
		if v := recover(); v != nil {
			l.err = panics.Recovered("verifying the key", v)
		}
	}()
	l.account, l.err = c.verifier.VerifyKey(ctx, key)
}

func (c *keyCache) finish(l *lookup, sum digest) {
	l.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forget(l, sum) && l.err == nil { // what a cancelled lookup has found may be outdated
		c.remember(sum, l.account)
	}
	close(l.done)
}

// forget is called with the lock held. It returns false if it was called before.
func (c *keyCache) forget(l *lookup, sum digest) bool {
	if c.lookups[sum] != l {
		return false
	}
	delete(c.lookups, sum)
	return true
}

func (c *keyCache) recall(sum digest) (account string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[sum] // without an entry, expires is zero: it has passed
	return known.account, time.Now().Before(known.expires)
}

// remember is called with the lock held.
func (c *keyCache) remember(sum digest, account string) {
	if c.ttl <= 0 {
		return
	}
	if _, isKnown := c.known[sum]; !isKnown && len(c.known) >= cachedKeys {
		for other := range c.known { // a wrong choice costs one lookup, a better one would cost time and memory
			delete(c.known, other)
			break
		}
	}
	c.known[sum] = knownKey{account, time.Now().Add(c.ttl)}
}
