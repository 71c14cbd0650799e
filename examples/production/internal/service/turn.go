package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/production/internal/usage"
)

// A turn is one request at this replica: what the handlers and engines that it
// passes through tell each other about it.
type turn struct {
	outcome  atomic.Int32       // open, or what follows; it changes once
	account  string             // empty until the key has been verified
	settings postgres.Settings  // of the bot that was looked up
	report   *botapi.ChatReport // of its chat, when its client's answer has ended
	ended    atomic.Int32       // see end

	mu     sync.Mutex
	notes  []slog.Record // see notedLines
	logged bool
}

const (
	open       = iota
	asked      // a model may have been asked: the request must not be retried
	final      // no model was asked here, but the request must not be retried
	handedBack // the proxy retries it on another replica: no model may be asked any more
)

type turnKey struct{}

// turnOf returns the turn of the request that a context belongs to, or nil.
func turnOf(ctx context.Context) *turn {
	t, _ := ctx.Value(turnKey{}).(*turn)
	return t
}

// identified begins the turn of a request and the meter of its chat, and passes the
// client's address to the log and the span.
func (r *replica) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		client := clientAddress(req, r.config.TrustedProxies)
		ctx := usage.WithTokens(telemetry.WithClient(req.Context(), client))
		req = req.WithContext(context.WithValue(ctx, turnKey{}, new(turn)))
		req.Header["X-Forwarded-For"] = []string{client} // otelhttp reads it
		next.ServeHTTP(w, req)
	})
}

// notedKeys verifies keys, and notes the account of a valid one in the turn. It
// throttles an account whose requests fail, before their bodies are read.
func notedKeys(keys botapi.KeyVerifier, failures *throttle) botapi.KeyVerifier {
	return botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		account, err := keys.VerifyKey(ctx, key)
		if err != nil {
			return "", err
		}
		turnOf(ctx).account = account
		return account, failures.admit(ctx, account)
	})
}

// notedBots are the bots in the database. It keeps a bot's settings in the turn,
// so that a chat queries the database once, bounds how often an account can list
// bots, and rejects chats of a bot whose runtime this replica lacks, which another
// may have.
type notedBots struct {
	*postgres.Database
	lists      *throttle
	hasRuntime func(name string) bool
}

func (b notedBots) Bots(ctx context.Context) ([]botapi.Bot, error) {
	if err := b.lists.wait(ctx, botapi.AccountFrom(ctx)); err != nil {
		return nil, err
	}
	return b.Database.Bots(ctx)
}

func (b notedBots) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	found, err := b.Database.BotByUID(ctx, uid)
	return b.noted(ctx, found, err)
}

func (b notedBots) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	found, err := b.Database.BotBySlug(ctx, slug)
	return b.noted(ctx, found, err)
}

func (b notedBots) noted(ctx context.Context, found postgres.Bot, err error) (botapi.Bot, error) {
	turnOf(ctx).settings = found.Settings
	if err == nil && found.Runtime != "" && !b.hasRuntime(found.Runtime) { // its row was changed directly: import and publish reject it
		err = &botapi.StatusError{
			Status:     http.StatusServiceUnavailable,
			Detail:     "The model is unavailable for the moment",
			RetryAfter: 10 * time.Second,
			Err:        fmt.Errorf("bot %q: no runtime is configured as %q", found.UID, found.Runtime),
		}
	}
	return found.Bot, err
}

var errHandedBack = errors.New("the request has been handed back to the proxy")

// Settings returns the settings of the bot of a turn, just before its model is asked.
// It fails if the turn has been handed back; otherwise it notes that the turn can no
// longer be handed back.
func (r *replica) Settings(ctx context.Context, _ string) (postgres.Settings, error) {
	t := turnOf(ctx)
	if cause := context.Cause(ctx); cause != nil { // nobody would hear the model
		return postgres.Settings{}, cause
	}
	if !t.outcome.CompareAndSwap(open, asked) {
		return postgres.Settings{}, errHandedBack
	}
	usage.Asks(ctx, usage.Asking{
		Runtime:      cmp.Or(t.settings.Runtime, r.config.Endpoints[0].Runtime),
		Instructions: t.settings.Instructions,
	})
	return t.settings, nil
}
