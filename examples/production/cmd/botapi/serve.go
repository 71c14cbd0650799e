package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/runtimes"
	"example.com/botapi/examples/production/internal/service"
)

type serveCommand struct {
	Listen string `env:"BOTAPI_LISTEN" default:"127.0.0.1:8080" placeholder:"ADDRESS" help:"Where to listen (${default}). Also serves /health-check, /readyz and /metrics, which the proxy should keep inside."`

	Runtime    []runtimes.Endpoint `required:"" env:"BOTAPI_RUNTIMES" placeholder:"NAME=URL" help:"A model runtime that speaks the OpenAI chat completions protocol, for instance local=http://127.0.0.1:8000/v1. Repeat it, or separate by commas; runtimes of one name stand in for each other. Bots that name no runtime use the first."`
	RuntimeKey []runtimeKey        `env:"BOTAPI_RUNTIME_KEYS" placeholder:"NAME=KEY" help:"The API key of the runtimes of that name. Better given in the environment, where other users of the machine do not see it."`

	FirstFragmentTimeout time.Duration `env:"BOTAPI_FIRST_FRAGMENT_TIMEOUT" default:"1m" help:"How long a model may take to begin its answer (${default}). Thinking counts."`
	StallTimeout         time.Duration `env:"BOTAPI_STALL_TIMEOUT" default:"1m" help:"How long a model may be silent within its answer (${default})."`
	ChatTimeout          time.Duration `env:"BOTAPI_CHAT_TIMEOUT" default:"10m" help:"How long one answer may take (${default})."`
	MaxChats             int64         `env:"BOTAPI_MAX_CHATS" default:"0" placeholder:"N" help:"Chats in progress in this replica; more are refused with 503. 0 means no limit (${default})."`
	MaxChatsPerAccount   int64         `env:"BOTAPI_MAX_CHATS_PER_ACCOUNT" default:"0" placeholder:"N" help:"The same for one account, with 429 (${default})."`

	KeyCache            time.Duration `env:"BOTAPI_KEY_CACHE" default:"10s" help:"How long a good key is remembered, and so how long a revoked one goes on working (${default})."`
	DatabaseConnections int32         `env:"BOTAPI_DATABASE_CONNECTIONS" default:"8" placeholder:"N" help:"Connections to the database at most (${default})."`
	DatabaseTimeout     time.Duration `env:"BOTAPI_DATABASE_TIMEOUT" default:"3s" help:"How long one query may take (${default})."`

	DrainDelay time.Duration `env:"BOTAPI_DRAIN_DELAY" default:"5s" help:"On SIGTERM: how long to take requests after /readyz has turned unready. Longer than the proxy takes to notice (${default})."`
	Grace      time.Duration `env:"BOTAPI_GRACE" default:"10m" help:"On SIGTERM, after that: how long chats in progress may take to end (${default})."`
}

func (c *serveCommand) Help() string {
	return `Traces go where OTEL_EXPORTER_OTLP_ENDPOINT says, metrics are at /metrics.

A replica keeps nothing that another one needs: run as many as you like behind a
proxy. It waits for the database and for its schema before it turns ready.`
}

// Validate finds what parses but makes no sense.
func (c *serveCommand) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	for flag, value := range map[string]int64{
		"--first-fragment-timeout": int64(c.FirstFragmentTimeout) - 1,
		"--stall-timeout":          int64(c.StallTimeout) - 1,
		"--chat-timeout":           int64(c.ChatTimeout) - 1,
		"--database-timeout":       int64(c.DatabaseTimeout) - 1,
		"--database-connections":   int64(c.DatabaseConnections) - 1,
		"--max-chats":              c.MaxChats,
		"--max-chats-per-account":  c.MaxChatsPerAccount,
		"--key-cache":              int64(c.KeyCache),
		"--drain-delay":            int64(c.DrainDelay),
		"--grace":                  int64(c.Grace),
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
	return p.with(connection, func(d *postgres.Database) error {
		return service.Run(ctx, service.Config{
			Address:            c.Listen,
			Database:           d,
			Endpoints:          endpoints,
			FirstFragment:      c.FirstFragmentTimeout,
			Stall:              c.StallTimeout,
			KeyCache:           c.KeyCache,
			ChatTimeout:        c.ChatTimeout,
			MaxChats:           c.MaxChats,
			MaxChatsPerAccount: c.MaxChatsPerAccount,
			DrainDelay:         c.DrainDelay,
			Grace:              c.Grace,
			Logger:             p.logger(),
		})
	})
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
