package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/service"
	"example.com/botapi/examples/production/internal/telemetry"
	"example.com/botapi/examples/resume"
	"github.com/alecthomas/kong"
)

type serveCommand struct {
	Listen         string         `env:"BOTAPI_LISTEN" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Where to listen for clients (${default})."`
	InternalListen string         `env:"BOTAPI_INTERNAL_LISTEN" default:"127.0.0.1:9080" placeholder:"ADDRESS" help:"Where to listen for probes and Prometheus: /readyz and /metrics (${default}). Clients must not reach it."`
	TrustedProxy   []netip.Prefix `env:"BOTAPI_TRUSTED_PROXIES" placeholder:"CIDR" help:"The addresses of proxies whose X-Forwarded-For is trusted, for instance 10.0.0.0/24. Repeat it, or separate by commas. Without it, no proxy is trusted."`

	Runtime    []runtimes.Endpoint `required:"" env:"BOTAPI_RUNTIMES" placeholder:"NAME=URL" help:"A model runtime with an OpenAI-compatible API, for instance local=http://127.0.0.1:8000/v1. Repeat it, or separate by commas; runtimes of one name replace each other. Bots that name no runtime use the first."`
	RuntimeKey []runtimeKey        `env:"BOTAPI_RUNTIME_KEYS" placeholder:"NAME=KEY" help:"The API key of the runtimes of that name. Better set in the environment, where other users of the machine cannot see it."`

	CountAlong []string `env:"BOTAPI_COUNT_ALONG" placeholder:"NAME" help:"Ask runtimes of this name to report tokens while they answer (vLLM and SGLang can, others may reject the request). So the tokens of incomplete answers are counted and not estimated. Repeat it, or separate by commas."`

	OpenAI bool `name:"openai" env:"BOTAPI_OPENAI" help:"Also serve OpenAI-compatible clients, at /v1/models, /v1/chat/completions and /v1/responses, with the same keys, limits and usage."`

	DoctorSecret string `env:"BOTAPI_DOCTOR_SECRET" placeholder:"SECRET" help:"Let chats that carry this secret, of at least 16 bytes, be answered by the probe of botapi's doctor, which checks the service from outside. Better set in the environment, where other users of the machine cannot see it. Without it, there is no probe."`

	AttemptTimeout     time.Duration `env:"BOTAPI_ATTEMPT_TIMEOUT" default:"${attempt_timeout}" help:"How long a chat waits for a runtime that sends nothing to any chat, if there is another of its name (${default})."`
	StallTimeout       time.Duration `env:"BOTAPI_STALL_TIMEOUT" default:"1m" help:"How long a model may be silent, before and during its answer (${default}). Thinking counts as silence."`
	ChatTimeout        time.Duration `env:"BOTAPI_CHAT_TIMEOUT" default:"${chat_timeout}" help:"How long one answer may take (${default})."`
	ReadTimeout        time.Duration `env:"BOTAPI_READ_TIMEOUT" default:"30s" help:"How long a client may take to send a request (${default})."`
	MaxBodyBytes       int64         `env:"BOTAPI_MAX_BODY_BYTES" default:"262144" placeholder:"N" help:"The maximum size of a request body; larger ones are rejected with 413 (${default}). The proxy's buffer must hold as much."`
	MaxChats           int64         `env:"BOTAPI_MAX_CHATS" default:"2000" placeholder:"N" help:"The maximum of chats in progress in this replica; more are rejected with 503. 0 means no limit (${default})."`
	MaxChatsPerAccount int64         `env:"BOTAPI_MAX_CHATS_PER_ACCOUNT" default:"0" placeholder:"N" help:"The same for one account, with 429 (${default})."`

	sharedRedis
	RedisTimeout time.Duration `env:"BOTAPI_REDIS_TIMEOUT" default:"${redis_timeout}" help:"With --redis: how long a chat waits for it in all. After that, its replica decides by what it knows (${default})."`

	AnswerTokens int64 `env:"BOTAPI_ANSWER_TOKENS" default:"4096" placeholder:"N" help:"With --redis: the tokens reserved for an answer that has no maximum, if its account has --tokens-per-day (${default})."`

	Answers            bool          `env:"BOTAPI_ANSWERS" help:"With --redis: let clients return for the answers to requests with an Idempotency-Key, on any replica."`
	Resume             time.Duration `env:"BOTAPI_RESUME" default:"${resume}" help:"With --answers: how long an answer to a request with an Idempotency-Key continues without its client (${default})."`
	ClientsPerAnswer   int64         `env:"BOTAPI_CLIENTS_PER_ANSWER" default:"${clients_per_answer}" placeholder:"N" help:"Requests that follow one answer under its key, besides the one that began it. More are rejected with 429 (${default})."`
	Keep               time.Duration `env:"BOTAPI_KEEP" default:"${keep}" help:"How long an answer is kept once it is complete (${default})."`
	KeepAnswerBytes    int64         `env:"BOTAPI_KEEP_ANSWER_BYTES" default:"${keep_answer_bytes}" placeholder:"N" help:"Memory for one answer in Redis. A longer one is not kept, and continues for its client (${default})."`
	KeepBytesOfAccount int64         `name:"keep-bytes-per-account" env:"BOTAPI_KEEP_BYTES_PER_ACCOUNT" default:"${keep_bytes_per_account}" placeholder:"N" help:"Memory for the answers of one account in Redis (${default})."`
	KeepBytes          int64         `env:"BOTAPI_KEEP_BYTES" default:"${keep_bytes}" placeholder:"N" help:"Memory for all answers in Redis, which needs some more for limits (${default})."`

	KeyCache            time.Duration `env:"BOTAPI_KEY_CACHE" default:"10s" help:"How long a valid key is cached, and so how long a revoked one still works (${default})."`
	DatabaseConnections int32         `env:"BOTAPI_DATABASE_CONNECTIONS" default:"8" placeholder:"N" help:"The maximum of database connections (${default})."`
	DatabaseTimeout     time.Duration `env:"BOTAPI_DATABASE_TIMEOUT" default:"${database_timeout}" help:"How long one query may take (${default})."`

	DrainDelay time.Duration `env:"BOTAPI_DRAIN_DELAY" default:"5s" help:"On SIGTERM: how long to accept requests after /readyz has become unready. Must be longer than the proxy takes to notice (${default})."`
	Grace      time.Duration `env:"BOTAPI_GRACE" default:"10m" help:"On SIGTERM, after that: how long chats in progress may take to end (${default})."`
}

// defaults are the defaults that other packages define.
func defaults() kong.Vars {
	answers := resume.Settings{}.Completed()
	return kong.Vars{
		"attempt_timeout":        short(runtimes.DefaultAttempt),
		"chat_timeout":           short(botapi.DefaultChatTimeout),
		"database_timeout":       short(postgres.DefaultQueryTimeout),
		"redis_timeout":          short(redisclient.DefaultTimeout),
		"resume":                 short(answers.Abandon),
		"clients_per_answer":     strconv.FormatInt(answers.Readers, 10),
		"keep":                   short(answers.Keep),
		"keep_answer_bytes":      strconv.FormatInt(answers.AnswerBytes, 10),
		"keep_bytes_per_account": strconv.FormatInt(answers.OwnerBytes, 10),
		"keep_bytes":             strconv.FormatInt(answers.AllBytes, 10),
	}
}

// short formats a duration as people write it: 10m, not 10m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

func (c *serveCommand) Help() string {
	return `Traces go to OTEL_EXPORTER_OTLP_ENDPOINT, metrics are at /metrics of the internal
address.

Replicas keep no state that another one needs: run as many as you like behind a
proxy. A replica becomes ready once it has reached the database and its schema.`
}

// Validate finds values that parse but are invalid.
func (c *serveCommand) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if _, _, err := net.SplitHostPort(c.InternalListen); err != nil {
		return fmt.Errorf("--internal-listen: %w", err)
	}
	for flag, value := range map[string]int64{
		"--attempt-timeout":       int64(c.AttemptTimeout) - 1,
		"--stall-timeout":         int64(c.StallTimeout) - 1,
		"--chat-timeout":          int64(c.ChatTimeout) - 1,
		"--read-timeout":          int64(c.ReadTimeout) - 1,
		"--max-body-bytes":        c.MaxBodyBytes - 1,
		"--database-timeout":      int64(c.DatabaseTimeout) - 1,
		"--database-connections":  int64(c.DatabaseConnections) - 1,
		"--max-chats":             c.MaxChats,
		"--max-chats-per-account": c.MaxChatsPerAccount,
		"--key-cache":             int64(c.KeyCache),
		"--drain-delay":           int64(c.DrainDelay),
		"--grace":                 int64(c.Grace),
		"--resume":                int64(c.Resume) - 1,
		"--redis-timeout":         int64(c.RedisTimeout) - 1,
		"--answer-tokens":         c.AnswerTokens,
		"--clients-per-answer":    c.ClientsPerAnswer - 1,
		"--keep":                  int64(c.Keep) - 1,
		"--keep-answer-bytes":     c.KeepAnswerBytes - resume.LeastRunning,
	} {
		if value < 0 {
			return fmt.Errorf("%s is too small", flag)
		}
	}
	if c.DoctorSecret != "" && len(c.DoctorSecret) < botapitest.MinSecret {
		return fmt.Errorf("--doctor-secret is shorter than %d bytes", botapitest.MinSecret)
	}
	if c.KeepAnswerBytes > c.KeepBytesOfAccount || c.KeepBytesOfAccount > c.KeepBytes {
		return fmt.Errorf("--keep-answer-bytes, --keep-bytes-per-account and --keep-bytes: each must have room for the one before")
	}
	if c.Answers && c.Redis == "" {
		return fmt.Errorf("--answers needs --redis")
	}
	return nil
}

func (c *serveCommand) Run(ctx context.Context, p *program) error {
	endpoints, err := withKeys(c.Runtime, c.RuntimeKey)
	if err == nil {
		err = countAlong(endpoints, c.CountAlong)
	}
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGPIPE) // a log whose reader has ended is no reason to abort chats
	log := telemetry.NewLogWriter(os.Stderr)
	defer log.Close()
	logger := telemetry.NewLogger(log, p.LogLevel, service.ClientFrom)
	slog.SetDefault(logger) // also for libraries that log
	defer ignoreHangups(logger)()
	connection := postgres.Options{MaxConnections: c.DatabaseConnections, QueryTimeout: c.DatabaseTimeout, KeyCache: c.KeyCache, Logger: logger}
	shared, err := c.shared(ctx)
	if err != nil {
		return mistake{err}
	}
	database, err := p.open(connection)
	if err != nil {
		return err
	}
	defer p.close() // before the log
	config := c.config(database, endpoints, logger)
	config.Shared, config.LogLinesLost = shared, log.Lost
	err = service.Run(ctx, config)
	if errors.Is(err, redisclient.ErrNotAdmitted) {
		return mistake{err}
	}
	return err
}

// ignoreHangups logs each SIGHUP, and does nothing else: settings are those of
// the start. The function that it returns ends that.
func ignoreHangups(logger *slog.Logger) (end func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	var logging sync.WaitGroup
	logging.Go(func() {
		for range hangups {
			logger.Warn("SIGHUP is ignored: settings are read at the start only, so restart the replica")
		}
	})
	return func() {
		signal.Ignore(syscall.SIGHUP) // until the process has ended
		signal.Stop(hangups)
		close(hangups)
		logging.Wait()
	}
}

// sharedRedis is the Redis that the replicas of a database share.
type sharedRedis struct {
	Redis       string `env:"BOTAPI_REDIS" placeholder:"URL" help:"The Redis that the replicas share, for instance redis://127.0.0.1:6379/0. With it, the limits of accounts apply over all replicas."`
	RedisPrefix string `env:"BOTAPI_REDIS_PREFIX" placeholder:"PREFIX" help:"With --redis: the beginning of all names of keys and channels. By default it is derived from the database's own identity, so that replicas of one database share it."`
}

func (r *sharedRedis) options() redisclient.Options {
	o := redisclient.Options{URL: r.Redis, Prefix: r.RedisPrefix}
	if o.Prefix != "" && !strings.HasSuffix(o.Prefix, ":") {
		o.Prefix += ":" // otherwise the keys of shop2 would begin with the prefix of shop
	}
	return o
}

// shared is what this replica shares with others: nothing without --redis. It
// returns an error for a Redis that rejects this service, but not for one that
// is away.
func (c *serveCommand) shared(ctx context.Context) (*service.Shared, error) {
	if c.Redis == "" {
		return nil, nil
	}
	options := c.sharedRedis.options()
	options.Timeout = c.RedisTimeout
	if err := redisclient.CheckLogin(ctx, options); err != nil {
		return nil, err
	}
	shared := &service.Shared{Redis: options, AnswerTokens: c.AnswerTokens}
	if c.Answers {
		shared.Answers = &resume.Settings{
			Abandon:     c.Resume,
			Readers:     c.ClientsPerAnswer,
			Keep:        c.Keep,
			AnswerBytes: c.KeepAnswerBytes,
			OwnerBytes:  c.KeepBytesOfAccount,
			AllBytes:    c.KeepBytes,
		}
	}
	return shared, nil
}

func (c *serveCommand) config(d *postgres.Database, endpoints []runtimes.Endpoint, logger *slog.Logger) service.Config {
	return service.Config{
		Address:            c.Listen,
		InternalAddress:    c.InternalListen,
		Database:           d,
		Endpoints:          endpoints,
		TrustedProxies:     c.TrustedProxy,
		OpenAI:             c.OpenAI,
		DoctorSecret:       c.DoctorSecret,
		Attempt:            c.AttemptTimeout,
		StallTimeout:       c.StallTimeout,
		DatabaseTimeout:    c.DatabaseTimeout,
		ReadTimeout:        c.ReadTimeout,
		ChatTimeout:        c.ChatTimeout,
		MaxBodyBytes:       c.MaxBodyBytes,
		MaxChats:           c.MaxChats,
		MaxChatsPerAccount: c.MaxChatsPerAccount,
		DrainDelay:         c.DrainDelay,
		Grace:              c.Grace,
		Logger:             logger,
	}
}

// A runtimeKey is NAME=KEY.
type runtimeKey struct{ runtime, key string }

func (k *runtimeKey) UnmarshalText(text []byte) error {
	name, key, ok := strings.Cut(string(text), "=")
	if !ok || name == "" || key == "" {
		return fmt.Errorf("it is not NAME=KEY") // the text may contain a key
	}
	k.runtime, k.key = name, key
	return nil
}

// withKeys sets the keys of the endpoints. A key for an unknown runtime is a
// mistake, most likely in the name.
func withKeys(endpoints []runtimes.Endpoint, keys []runtimeKey) ([]runtimes.Endpoint, error) {
	for _, key := range keys {
		used := false
		for i := range endpoints {
			if endpoints[i].Runtime == key.runtime {
				endpoints[i].Key, used = key.key, true
			}
		}
		if !used {
			return nil, mistakef("a runtime key is for %q, but no runtime has that name", key.runtime)
		}
	}
	return endpoints, nil
}

// countAlong marks the endpoints that report tokens while they answer.
func countAlong(endpoints []runtimes.Endpoint, names []string) error {
	for _, name := range names {
		used := false
		for i := range endpoints {
			if endpoints[i].Runtime == name {
				endpoints[i].CountAlong, used = true, true
			}
		}
		if !used {
			return mistakef("--count-along is for %q, but no runtime has that name", name)
		}
	}
	return nil
}
