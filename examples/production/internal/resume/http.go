package resume

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"example.com/botapi"
	"github.com/redis/go-redis/v9"
)

// Header is the request header that names an answer.
const Header = "Idempotency-Key"

// maxKeyBytes bounds a key.
const maxKeyBytes = 255

// Path is the prefix of answers, each by its key: DELETE /answers/KEY stops one.
const Path = "/answers/"

// OutcomeHeader is the response header that says what happened to the key.
const OutcomeHeader = "X-Botapi-Answer"

// An Outcome is the value of OutcomeHeader.
type Outcome string

// Outcomes.
const (
	Kept    Outcome = "kept"     // this request began the answer, and others can join it
	Joined  Outcome = "joined"   // another request has begun it
	NotKept Outcome = "not-kept" // answered as without a key
)

// A request carries what the HTTP handler and the Engine tell each other about a
// request with an Idempotency-Key.
type request struct {
	keys    []string               // as received
	started atomic.Pointer[answer] // by this request
	outcome atomic.Pointer[Outcome]
}

type requestKey struct{}

// Keyed passes the Idempotency-Key of each request to the Engine, and the
// outcome to the client.
func Keyed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if keys := r.Header[Header]; len(keys) > 0 {
			request := &request{keys: keys}
			w = &outcomeWriter{w, request}
			r = r.WithContext(context.WithValue(r.Context(), requestKey{}, request))
		}
		next.ServeHTTP(w, r)
	})
}

type outcomeWriter struct {
	http.ResponseWriter
	request *request
}

func (w *outcomeWriter) WriteHeader(status int) {
	if outcome := w.request.outcome.Load(); outcome != nil && status < http.StatusBadRequest { // a rejected request is neither kept nor joined
		w.Header().Set(OutcomeHeader, string(*outcome))
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *outcomeWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func requestFrom(ctx context.Context) (r *request, ok bool) {
	r, ok = ctx.Value(requestKey{}).(*request)
	return r, ok
}

// WhenOver calls f when the answer that a request has started is over and its
// chat engine has returned, which may be after the request. If that is already
// so, or if the request has started none, it calls f immediately. It is for
// reports: the cost of a chat is not known earlier. Engine.Close waits for f.
func WhenOver(ctx context.Context, f func()) {
	if r, ok := requestFrom(ctx); ok {
		if a := r.started.Load(); a != nil && a.callWhenOver(f) {
			return
		}
	}
	f()
}

var errBadKey = &botapi.StatusError{
	Status: http.StatusBadRequest,
	Detail: fmt.Sprintf("An Idempotency-Key has 1 to %d visible ASCII characters, and there is one at most", maxKeyBytes),
}

func validate(keys []string) error {
	if len(keys) != 1 || keys[0] == "" || len(keys[0]) > maxKeyBytes {
		return errBadKey
	}
	for _, c := range []byte(keys[0]) {
		if c < '!' || c > '~' {
			return errBadKey
		}
	}
	return nil
}

// fingerprint distinguishes bodies by what they ask for.
func fingerprint(req *botapi.ChatRequest) ([]byte, error) {
	text, err := json.Marshal(struct {
		Bot      string
		Messages []botapi.ChatMessage
		UserID   string
		Stream   bool
		Extra    map[string]json.RawMessage
	}{req.Bot.UID, req.Messages, req.UserID, req.Stream, req.Extra})
	if err != nil {
		return nil, fmt.Errorf("taking the fingerprint of a chat: %w", err)
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}

// Answers serves DELETE /answers/KEY, for clients with an API key of the account
// that used KEY. It immediately stops an answer in progress, on any replica, and
// does not change one that is over. It responds with 204, or with 404 for a key
// that is unknown or forgotten.
func (e *Engine) Answers(keys botapi.KeyVerifier) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", requestID(r))
		if r.Method != http.MethodDelete {
			w.Header().Set("Allow", http.MethodDelete)
			reject(w, http.StatusMethodNotAllowed, "Method Not Allowed")
			return
		}
		account, err := authenticate(r, keys)
		if err == nil {
			err = e.Stop(r.Context(), account, strings.TrimPrefix(r.URL.Path, Path))
		}
		if err != nil {
			e.fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// Stop stops the answer that an account has under a key. Its errors are
// botapi.StatusErrors.
func (e *Engine) Stop(ctx context.Context, account, key string) error {
	if err := validate([]string{key}); err != nil {
		return err
	}
	id, err := e.store.stop(context.WithoutCancel(ctx), titleOf(account, key, ""))
	if errors.Is(err, redis.Nil) {
		return &botapi.StatusError{Status: http.StatusNotFound, Detail: "Answer not found"}
	}
	if err != nil {
		return errUnavailable(fmt.Errorf("stopping an answer: %w", err))
	}
	if a := e.find(id); a != nil {
		a.cancel(errStopped)
	}
	return nil
}

// requestID is the id that a request has, or a generated one, by the same rules
// as botapi's.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if len(id) > 128 || id == "" || strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' }) {
		return rand.Text()
	}
	return id
}

var errNotAuthenticated = errors.New("no usable Authorization header")

func authenticate(r *http.Request, keys botapi.KeyVerifier) (account string, err error) {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	key = strings.TrimLeft(key, " ")
	if !strings.EqualFold(scheme, "Bearer") || key == "" || strings.ContainsAny(key, " \t") {
		return "", errNotAuthenticated
	}
	return keys.VerifyKey(r.Context(), key)
}

// fail sends the same error responses as botapi.
func (e *Engine) fail(w http.ResponseWriter, r *http.Request, err error) {
	answer, ok := errors.AsType[*botapi.StatusError](err)
	switch {
	case errors.Is(err, errNotAuthenticated):
		w.Header().Set("WWW-Authenticate", "Bearer")
		reject(w, http.StatusUnauthorized, "Not authenticated")
		return
	case errors.Is(err, botapi.ErrInvalidKey):
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		reject(w, http.StatusUnauthorized, "Invalid API key")
		return
	case !ok:
		answer = &botapi.StatusError{Status: http.StatusInternalServerError, Detail: "Internal Server Error", Err: err}
	}
	if answer.Err != nil {
		e.logger.ErrorContext(r.Context(), "stopping an answer failed",
			slog.String("request_id", w.Header().Get("X-Request-Id")), slog.Any("error", answer.Err))
	}
	if answer.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((answer.RetryAfter+time.Second-1)/time.Second)))
	}
	reject(w, answer.Status, answer.Detail)
}

func reject(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"detail": detail}) // a disconnected client needs no response
}
