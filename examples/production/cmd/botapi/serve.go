package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/resume"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/service"
	"github.com/alecthomas/kong"
)

type serveCommand struct {
	Listen         string         `env:"BOTAPI_LISTEN" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Where to listen for clients (${default})."`
	InternalListen string         `env:"BOTAPI_INTERNAL_LISTEN" default:"127.0.0.1:9080" placeholder:"ADDRESS" help:"Where to listen for probes and Prometheus: /readyz and /metrics (${default}). Clients must not reach it."`
	TrustedProxy   []netip.Prefix `env:"BOTAPI_TRUSTED_PROXIES" placeholder:"CIDR" help:"Where proxies are whose X-Forwarded-For is believed, for instance 10.0.0.0/24. Repeat it, or separate by commas. Without one, it is believed from nobody."`

	Runtime    []runtimes.Endpoint `required:"" env:"BOTAPI_RUNTIMES" placeholder:"NAME=URL" help:"A model runtime that speaks the OpenAI chat completions protocol, for instance local=http://127.0.0.1:8000/v1. Repeat it, or separate by commas; runtimes of one name stand in for each other. Bots that name no runtime use the first."`
	RuntimeKey []runtimeKey        `env:"BOTAPI_RUNTIME_KEYS" placeholder:"NAME=KEY" help:"The API key of the runtimes of that name. Better given in the environment, where other users of the machine do not see it."`

	CountAlong []string `env:"BOTAPI_COUNT_ALONG" placeholder:"NAME" help:"Runtimes of this name report tokens while they answer (vLLM and SGLang do, others may refuse to be asked). So answers that break off are counted and not estimated. Repeat it, or separate by commas."`

	OpenAI bool `name:"openai" env:"BOTAPI_OPENAI" help:"Serve clients that speak OpenAI's protocol, too, at /v1/models and /v1/chat/completions, with the same keys, limits and usage."`

	AttemptTimeout     time.Duration `env:"BOTAPI_ATTEMPT_TIMEOUT" default:"${attempt_timeout}" help:"How long a runtime may let a chat wait while nobody hears of it, when there is another of its name (${default})."`
	StallTimeout       time.Duration `env:"BOTAPI_STALL_TIMEOUT" default:"1m" help:"How long a model may be silent, before its answer and within it (${default}). Thinking counts."`
	ChatTimeout        time.Duration `env:"BOTAPI_CHAT_TIMEOUT" default:"${chat_timeout}" help:"How long one answer may take (${default})."`
	ReadTimeout        time.Duration `env:"BOTAPI_READ_TIMEOUT" default:"30s" help:"How long a client may take to send a request (${default})."`
	MaxBodyBytes       int64         `env:"BOTAPI_MAX_BODY_BYTES" default:"262144" placeholder:"N" help:"Bytes of a request body; more are refused with 413 (${default}). The proxy must have room for as much."`
	MaxChats           int64         `env:"BOTAPI_MAX_CHATS" default:"2000" placeholder:"N" help:"Chats in progress in this replica; more are refused with 503. 0 means no limit (${default})."`
	MaxChatsPerAccount int64         `env:"BOTAPI_MAX_CHATS_PER_ACCOUNT" default:"0" placeholder:"N" help:"The same for one account, with 429 (${default})."`

	Redis        string        `env:"BOTAPI_REDIS" placeholder:"URL" help:"The Redis that the replicas share, for instance redis://127.0.0.1:6379/0. With it, the limits of accounts hold over all replicas, and clients may come back for their answers."`
	RedisPrefix  string        `env:"BOTAPI_REDIS_PREFIX" placeholder:"PREFIX" help:"With --redis: what the names of all keys and channels there begin with. Unless given, it is made from the database's own identity, and replicas of one database share it."`
	RedisTimeout time.Duration `env:"BOTAPI_REDIS_TIMEOUT" default:"${redis_timeout}" help:"With --redis: how long a chat waits for it in all. Then it goes on by what its replica knows (${default})."`

	AnswerTokens int64 `env:"BOTAPI_ANSWER_TOKENS" default:"4096" placeholder:"N" help:"With --redis: the tokens that are reserved for an answer without a maximum of its own, of an account with --tokens-per-day (${default})."`

	Resume             time.Duration `env:"BOTAPI_RESUME" default:"${resume}" help:"With --redis: how long an answer to a request with an Idempotency-Key goes on without its client (${default})."`
	ResumePerAccount   int64         `env:"BOTAPI_RESUME_PER_ACCOUNT" default:"${resume_per_account}" placeholder:"N" help:"Answers of one account that go on without a client, over all replicas. Of more, those that were left first are ended (${default})."`
	ClientsPerAnswer   int64         `env:"BOTAPI_CLIENTS_PER_ANSWER" default:"${clients_per_answer}" placeholder:"N" help:"Requests that follow one answer under its key, besides the one that began it. More are refused with 429 (${default})."`
	Keep               time.Duration `env:"BOTAPI_KEEP" default:"${keep}" help:"How long an answer is kept once it is whole (${default})."`
	KeepAnswerBytes    int64         `env:"BOTAPI_KEEP_ANSWER_BYTES" default:"${keep_answer_bytes}" placeholder:"N" help:"What one answer may take in Redis. A longer one is not kept, and goes on to its client (${default})."`
	KeepBytesOfAccount int64         `name:"keep-bytes-per-account" env:"BOTAPI_KEEP_BYTES_PER_ACCOUNT" default:"${keep_bytes_per_account}" placeholder:"N" help:"What the answers of one account may take in Redis (${default})."`
	KeepBytes          int64         `env:"BOTAPI_KEEP_BYTES" default:"${keep_bytes}" placeholder:"N" help:"What all answers may take in Redis, which needs that much memory and some for limits (${default})."`

	KeyCache            time.Duration `env:"BOTAPI_KEY_CACHE" default:"10s" help:"How long a good key is remembered, and so how long a revoked one goes on working (${default})."`
	DatabaseConnections int32         `env:"BOTAPI_DATABASE_CONNECTIONS" default:"8" placeholder:"N" help:"Connections to the database at most (${default})."`
	DatabaseTimeout     time.Duration `env:"BOTAPI_DATABASE_TIMEOUT" default:"${database_timeout}" help:"How long one query may take (${default})."`

	DrainDelay time.Duration `env:"BOTAPI_DRAIN_DELAY" default:"5s" help:"On SIGTERM: how long to take requests after /readyz has turned unready. Longer than the proxy takes to notice (${default})."`
	Grace      time.Duration `env:"BOTAPI_GRACE" default:"10m" help:"On SIGTERM, after that: how long chats in progress may take to end (${default})."`
}

// defaults are those of flags that the packages have.
func defaults() kong.Vars {
	answers := resume.Settings{}.Completed()
	return kong.Vars{
		"attempt_timeout":        short(runtimes.DefaultAttempt),
		"chat_timeout":           short(botapi.DefaultChatTimeout),
		"database_timeout":       short(postgres.DefaultQueryTimeout),
		"redis_timeout":          short(redisclient.DefaultTimeout),
		"resume":                 short(answers.Alone),
		"resume_per_account":     strconv.FormatInt(answers.AlonePerAccount, 10),
		"clients_per_answer":     strconv.FormatInt(answers.ClientsPerAnswer, 10),
		"keep":                   short(answers.Keep),
		"keep_answer_bytes":      strconv.FormatInt(answers.AnswerBytes, 10),
		"keep_bytes_per_account": strconv.FormatInt(answers.AccountBytes, 10),
		"keep_bytes":             strconv.FormatInt(answers.AllBytes, 10),
	}
}

// short is how people write a duration: 10m, not 10m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	return text
}

func (c *serveCommand) Help() string {
	return `Traces go where OTEL_EXPORTER_OTLP_ENDPOINT says, metrics are at /metrics of the
internal address.

A replica keeps nothing that another one needs: run as many as you like behind a
proxy. It waits for the database and for its schema before it turns ready.`
}

// Validate finds what parses but makes no sense.
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
		"--resume-per-account":    c.ResumePerAccount - 1,
		"--clients-per-answer":    c.ClientsPerAnswer - 1,
		"--keep":                  int64(c.Keep) - 1,
		"--keep-answer-bytes":     c.KeepAnswerBytes - resume.LeastAnswerBytes,
	} {
		if value < 0 {
			return fmt.Errorf("%s is too small", flag)
		}
	}
	if c.KeepAnswerBytes > c.KeepBytesOfAccount || c.KeepBytesOfAccount > c.KeepBytes {
		return fmt.Errorf("--keep-answer-bytes, --keep-bytes-per-account and --keep-bytes: each must have room for the one before")
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
	slog.SetDefault(p.logger()) // also for what libraries log
	connection := postgres.Options{MaxConnections: c.DatabaseConnections, QueryTimeout: c.DatabaseTimeout}
	shared, err := c.shared(ctx)
	if err != nil {
		return mistake{err}
	}
	return p.with(connection, func(d *postgres.Database) error {
		config := c.config(d, endpoints, p.logger())
		config.Shared = shared
		err := service.Run(ctx, config)
		if errors.Is(err, redisclient.ErrNotAdmitted) {
			return mistake{err}
		}
		return err
	})
}

// shared is what this replica shares with others: nothing without --redis. A
// Redis that is away will be found later, one that refuses its clients is not.
func (c *serveCommand) shared(ctx context.Context) (*service.Shared, error) {
	if c.Redis == "" {
		return nil, nil
	}
	options := redisclient.Options{URL: c.Redis, Prefix: c.RedisPrefix, Timeout: c.RedisTimeout}
	if options.Prefix != "" && !strings.HasSuffix(options.Prefix, ":") {
		options.Prefix += ":" // else the keys of shop would be among those of shop2
	}
	if err := redisclient.CheckLogin(ctx, options); err != nil {
		return nil, err
	}
	return &service.Shared{Redis: options, AnswerTokens: c.AnswerTokens, Answers: resume.Settings{
		Alone:            c.Resume,
		AlonePerAccount:  c.ResumePerAccount,
		ClientsPerAnswer: c.ClientsPerAnswer,
		Keep:             c.Keep,
		AnswerBytes:      c.KeepAnswerBytes,
		AccountBytes:     c.KeepBytesOfAccount,
		AllBytes:         c.KeepBytes,
	}}, nil
}

func (c *serveCommand) config(d *postgres.Database, endpoints []runtimes.Endpoint, logger *slog.Logger) service.Config {
	return service.Config{
		Address:            c.Listen,
		InternalAddress:    c.InternalListen,
		Database:           d,
		Endpoints:          endpoints,
		TrustedProxies:     c.TrustedProxy,
		OpenAI:             c.OpenAI,
		Attempt:            c.AttemptTimeout,
		StallTimeout:       c.StallTimeout,
		KeyCache:           c.KeyCache,
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
		return fmt.Errorf("it is not NAME=KEY") // what was given may be a key
	}
	k.runtime, k.key = name, key
	return nil
}

// withKeys gives the endpoints their keys. A key that belongs to no runtime is
// a mistake, most likely in a name.
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
