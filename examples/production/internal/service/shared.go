package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"sync"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/answers"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/usage"
	"example.com/botapi/examples/resume"
)

// Shared is what a replica shares with the others in Redis.
type Shared struct {
	// Redis is where. An empty Owner is the database, an empty Prefix is derived
	// from that.
	Redis redisclient.Options
	// Answers are the rules of answers that outlive their connections; nil for none.
	Answers *resume.Settings
	// AnswerTokens are reserved for an answer that has no maximum.
	AnswerTokens int64
}

// shared are the engines that wrap the model if replicas share a Redis. A chat
// goes through resume, which may have its answer already, and then through
// limits, which counts an answer for as long as its model works.
type shared struct {
	redis   *redisclient.Client
	limits  *limits.Engine
	resume  *resume.Engine // nil without answers, as their store is
	answers *answers.Store

	stop     context.CancelFunc // ends watching
	watching sync.WaitGroup
}

// unlimited is a limit of answers that this service does not use: package limits
// counts the models that run, and an account without a limit of concurrent chats
// has none of concurrent readers either.
const unlimited = math.MaxInt32

var errStarting = &botapi.StatusError{
	Status:     http.StatusServiceUnavailable,
	Detail:     "The service is starting",
	RetryAfter: time.Second,
}

// Chat answers with the outermost engine.
func (s *shared) Chat(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
	if s.resume == nil {
		return s.limits.Chat(ctx, req)
	}
	return func(yield func(string, error) bool) {
		s.resume.Chat(ctx, req)(func(text string, err error) bool {
			if err != nil && !mayBeHandedBack(resume.OutcomeFrom(ctx)) {
				turnOf(ctx).becomes(final)
			}
			return yield(text, err)
		})
	}
}

// mayBeHandedBack reports whether a chat may be tried on another replica. A model
// may have been asked for one that has joined an answer. One that is not kept has
// waited for Redis, and would do so again.
func mayBeHandedBack(o resume.Outcome) bool { return o != resume.Joined && o != resume.NotKept }

// share wraps the model with limits and resumable answers, once, if this replica
// shares a Redis. A Redis that rejects the replica ends it; one that is down is
// tried again later.
func (r *replica) share(ctx context.Context) error {
	if r.config.Shared == nil || r.shared.Load() != nil {
		return nil
	}
	identity, err := r.database.Identity(ctx)
	if err != nil {
		return err
	}
	client, err := r.openRedis(ctx, identity)
	var s *shared
	if err == nil {
		s, err = r.newShared(client)
	}
	if err != nil {
		select {
		case r.fatal <- err:
		default: // the replica is ending already
		}
		return err
	}
	r.shared.Store(s)
	r.serveAPI(s)
	return nil
}

// RedisOf returns the options with which the replicas of a database use their
// Redis.
func RedisOf(database string, o redisclient.Options) redisclient.Options {
	o.Owner = database
	if o.Prefix == "" {
		digest := sha256.Sum256([]byte(database))
		o.Prefix = fmt.Sprintf("%s%x:", redisclient.DefaultPrefix, digest[:4])
	}
	return o
}

func (r *replica) openRedis(ctx context.Context, owner string) (*redisclient.Client, error) {
	options := RedisOf(owner, r.config.Shared.Redis)
	options.Meter, options.Logger = r.telemetry.Metrics.Meter(scope), r.logger
	client, err := redisclient.Open(options)
	if err != nil {
		return nil, err
	}
	if err := client.Admitted(ctx); err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return client, nil
}

func (r *replica) newShared(client *redisclient.Client) (s *shared, err error) {
	s = &shared{redis: client}
	s.limits = limits.New(limits.Options{
		Engine:  r.model,
		Limits:  r.database.Limits,
		Redis:   client,
		Reserve: r.reserve,
		Used:    usage.UsedOf,
		Logger:  r.logger,
	})
	var ctx context.Context
	ctx, s.stop = context.WithCancel(context.Background())
	s.watching.Go(func() { client.Watch(ctx) })
	if r.config.Shared.Answers != nil {
		err = r.keepAnswers(s, *r.config.Shared.Answers)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// keepAnswers lets answers outlive their connections.
func (r *replica) keepAnswers(s *shared, settings resume.Settings) (err error) {
	settings.Running, settings.RunningPerOwner, settings.ReadersPerOwner = unlimited, unlimited, unlimited
	if s.answers, err = answers.New(s.redis, settings, r.telemetry.Metrics.Meter(scope)); err != nil {
		return err
	}
	s.resume = resume.New(resume.Options{
		Engine:   s.limits,
		Store:    s.answers,
		ValidKey: answers.ValidKey,
		// As far as this replica knows without Redis: a chat that it would reject can
		// only join an answer.
		Admit: func(ctx context.Context, _ *botapi.ChatRequest) error {
			return s.limits.Rejected(botapi.AccountFrom(ctx))
		},
		Limits: func(ctx context.Context, account string) (resume.Limits, error) {
			readers, err := s.limits.ConcurrentChats(ctx, account)
			return resume.Limits{Readers: readers}, err
		},
		Logger: r.notedLogger(),
	})
	return r.measureAnswers(s.resume)
}

// close ends the engines, after the last chat.
func (s *shared) close() error {
	s.stop()
	s.watching.Wait()
	s.limits.Close()
	if s.answers != nil {
		s.answers.Close()
	}
	return s.redis.Close()
}

// reserve returns how many tokens a chat may use at most, as far as that is
// known.
func (r *replica) reserve(ctx context.Context, req *botapi.ChatRequest) int64 {
	settings := turnOf(ctx).settings
	answer := cmp.Or(runtimes.MaxTokens(req, settings), r.config.Shared.AnswerTokens)
	return usage.AtMost(req, settings.Instructions, answer)
}

// endAnswers lets answers that continue without a client end until ctx ends, and
// then ends them.
func (r *replica) endAnswers(ctx context.Context) {
	s := r.shared.Load()
	if s != nil && s.resume != nil && s.resume.Close(ctx) != nil {
		r.logger.Warn("draining: some answers have not ended")
	}
}
