package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/service"
)

type serveCommand struct {
	Listen         string         `env:"BOTAPI_LISTEN" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Where to listen for clients (${default})."`
	InternalListen string         `env:"BOTAPI_INTERNAL_LISTEN" default:"127.0.0.1:9080" placeholder:"ADDRESS" help:"Where to listen for probes and Prometheus: /readyz and /metrics (${default}). Clients must not reach it."`
	TrustedProxy   []netip.Prefix `env:"BOTAPI_TRUSTED_PROXIES" placeholder:"CIDR" help:"Where proxies are whose X-Forwarded-For is believed, for instance 10.0.0.0/24. Repeat it, or separate by commas. Without one, it is believed from nobody."`

	Runtime    []runtimes.Endpoint `required:"" env:"BOTAPI_RUNTIMES" placeholder:"NAME=URL" help:"A model runtime that speaks the OpenAI chat completions protocol, for instance local=http://127.0.0.1:8000/v1. Repeat it, or separate by commas; runtimes of one name stand in for each other. Bots that name no runtime use the first."`
	RuntimeKey []runtimeKey        `env:"BOTAPI_RUNTIME_KEYS" placeholder:"NAME=KEY" help:"The API key of the runtimes of that name. Better given in the environment, where other users of the machine do not see it."`

	AttemptTimeout     time.Duration `env:"BOTAPI_ATTEMPT_TIMEOUT" default:"20s" help:"How long a runtime may let a chat wait while nobody hears of it, when there is another of its name (${default})."`
	StallTimeout       time.Duration `env:"BOTAPI_STALL_TIMEOUT" default:"1m" help:"How long a model may be silent, before its answer and within it (${default}). Thinking counts."`
	ChatTimeout        time.Duration `env:"BOTAPI_CHAT_TIMEOUT" default:"10m" help:"How long one answer may take (${default})."`
	ReadTimeout        time.Duration `env:"BOTAPI_READ_TIMEOUT" default:"30s" help:"How long a client may take to send a request (${default})."`
	MaxBodyBytes       int64         `env:"BOTAPI_MAX_BODY_BYTES" default:"262144" placeholder:"N" help:"Bytes of a request body; more are refused with 413 (${default}). The proxy must have room for as much."`
	MaxChats           int64         `env:"BOTAPI_MAX_CHATS" default:"2000" placeholder:"N" help:"Chats in progress in this replica; more are refused with 503. 0 means no limit (${default})."`
	MaxChatsPerAccount int64         `env:"BOTAPI_MAX_CHATS_PER_ACCOUNT" default:"0" placeholder:"N" help:"The same for one account, with 429 (${default})."`

	Redis  string        `env:"BOTAPI_REDIS" placeholder:"URL" help:"The Redis that the replicas share, for instance redis://127.0.0.1:6379/0. With it, the limits of accounts hold over all replicas, and clients may come back for their answers."`
	Resume time.Duration `env:"BOTAPI_RESUME" default:"2m" help:"With --redis: how long an answer to a request with an Idempotency-Key goes on without its client, and how long it is kept then (${default})."`

	KeyCache            time.Duration `env:"BOTAPI_KEY_CACHE" default:"10s" help:"How long a good key is remembered, and so how long a revoked one goes on working (${default})."`
	DatabaseConnections int32         `env:"BOTAPI_DATABASE_CONNECTIONS" default:"8" placeholder:"N" help:"Connections to the database at most (${default})."`
	DatabaseTimeout     time.Duration `env:"BOTAPI_DATABASE_TIMEOUT" default:"3s" help:"How long one query may take (${default})."`

	DrainDelay time.Duration `env:"BOTAPI_DRAIN_DELAY" default:"5s" help:"On SIGTERM: how long to take requests after /readyz has turned unready. Longer than the proxy takes to notice (${default})."`
	Grace      time.Duration `env:"BOTAPI_GRACE" default:"10m" help:"On SIGTERM, after that: how long chats in progress may take to end (${default})."`
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
	} {
		if value < 0 {
			return fmt.Errorf("%s is too small", flag)
		}
	}
	return nil
}

func (c *serveCommand) Run(ctx context.Context, p *program) error {
	endpoints, err := withKeys(c.Runtime, c.RuntimeKey)
	if err != nil {
		return err
	}
	slog.SetDefault(p.logger()) // also for what libraries log
	connection := postgres.Options{MaxConnections: c.DatabaseConnections, QueryTimeout: c.DatabaseTimeout}
	shared, err := c.shared(ctx, p.logger())
	if err != nil {
		return mistake{err}
	}
	if shared != nil {
		defer shared.Redis.Close()
	}
	return p.with(connection, func(d *postgres.Database) error {
		config := c.config(d, endpoints, p.logger())
		config.Shared = shared
		return service.Run(ctx, config)
	})
}

// shared is what this replica shares with others: nothing without --redis. A
// Redis that is away will be found later, one that refuses its clients is not.
func (c *serveCommand) shared(ctx context.Context, logger *slog.Logger) (*service.Shared, error) {
	if c.Redis == "" {
		return nil, nil
	}
	client, err := redisclient.Open(c.Redis, logger)
	if err != nil {
		return nil, err
	}
	if err := client.Admitted(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return &service.Shared{Redis: client, Resume: c.Resume}, nil
}

func (c *serveCommand) config(d *postgres.Database, endpoints []runtimes.Endpoint, logger *slog.Logger) service.Config {
	return service.Config{
		Address:            c.Listen,
		InternalAddress:    c.InternalListen,
		Database:           d,
		Endpoints:          endpoints,
		TrustedProxies:     c.TrustedProxy,
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
