package service

import (
	"context"
	"iter"
	"net/http"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/resume"
	"example.com/botapi/examples/production/internal/usage"
)

// Shared is what a replica shares with the others in Redis.
type Shared struct {
	Redis  *redisclient.Client // stays the caller's, to close
	Resume time.Duration       // see resume.Options.Within
}

// shared are the engines in front of the engine of a replica that shares. A chat
// goes through resume, which may have its answer already, then through limits,
// which hold an answer for as long as its model works.
type shared struct {
	limits *limits.Engine
	resume *resume.Engine
}

// share puts limits and resumed answers in front of an engine, if this replica
// shares anything with others.
func (r *replica) share(engine botapi.ChatEngine) botapi.ChatEngine {
	if r.config.Shared == nil {
		return engine
	}
	r.shared = new(shared)
	r.shared.limits = limits.New(limits.Options{
		Engine:             r.spending(engine),
		Store:              accountLimits{r.database},
		Redis:              r.config.Shared.Redis,
		MaxChats:           r.config.MaxChats,
		MaxChatsPerAccount: r.config.MaxChatsPerAccount,
		Logger:             r.logger,
	})
	r.shared.resume = resume.New(resume.Options{
		Engine:       r.shared.limits,
		Redis:        r.config.Shared.Redis,
		Within:       r.config.Shared.Resume,
		ChatTimeout:  r.config.ChatTimeout,
		StallTimeout: r.config.StallTimeout,
		Logger:       r.notedLogger(),
	})
	return r.shared.resume
}

// accountLimits are the limits of accounts in the database.
type accountLimits struct{ database *postgres.Database }

func (a accountLimits) Limits(ctx context.Context, account string) (limits.Limits, error) {
	found, err := a.database.Limits(ctx, account)
	return limits.Limits(found), err
}

// spending tells the limits of the tokens that chats of an engine have used.
func (r *replica) spending(engine botapi.ChatEngine) botapi.ChatEngine {
	return botapi.ChatEngineFunc(func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			defer func() {
				if tokens := usage.TokensOf(ctx); tokens != nil {
					r.shared.limits.Spend(ctx, botapi.AccountFrom(ctx), tokens.Prompt+tokens.Completion)
				}
			}()
			engine.Chat(ctx, req)(yield)
		}
	})
}

// resumable has chats resumed by their Idempotency-Key and stopped by it, if this
// replica shares anything with others.
func (r *replica) resumable(api http.Handler, keys botapi.KeyVerifier) http.Handler {
	if r.shared == nil {
		return api
	}
	chats, answers := resume.Keyed(api), r.shared.resume.Answers(keys)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasPrefix(req.URL.Path, resume.Path) {
			answers.ServeHTTP(w, req)
			return
		}
		chats.ServeHTTP(w, req)
	})
}

// endAnswersNow ends answers that go on without a client.
func (r *replica) endAnswersNow() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r.endAnswers(ctx)
}

// endAnswers lets answers that go on without a client end as long as ctx lasts,
// and then ends them.
func (r *replica) endAnswers(ctx context.Context) {
	if r.shared == nil {
		return
	}
	if err := r.shared.resume.Close(ctx); err != nil {
		r.logger.Warn("draining: not all answers have ended")
		return // their limits go on, too
	}
	r.shared.limits.Close()
}
