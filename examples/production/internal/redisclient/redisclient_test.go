package redisclient_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
	"github.com/redis/go-redis/v9"
)

func TestAwayAndBack(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	var log logtest.Log
	client, err := redisclient.Open(server.URL, slog.New(slog.NewTextHandler(&log, nil)))
	is.NoErr(err)
	defer client.Close()
	ctx := context.Background()
	is.NoErr(client.Ping(ctx).Err())
	is.True(errors.Is(client.Get(ctx, "nothing").Err(), redis.Nil)) // an answer like any other
	is.True(client.Do(ctx, "NONSENSE").Err() != nil)                // so is a refusal
	is.NoErr(client.Ping(ctx).Err())

	for _, way := range []struct{ goes, comes func(testing.TB) }{
		{server.Stop, server.Start},
		{server.Hang, server.GoOn},
	} {
		way.goes(t)
		is.True(client.Ping(ctx).Err() != nil)
		is.True(client.Away())
		for range 100 {
			is.True(errors.Is(client.Ping(ctx).Err(), redisclient.ErrAway)) // without asking
		}
		way.comes(t)
		for client.Ping(ctx).Err() != nil {
			time.Sleep(10 * time.Millisecond)
		}
		is.True(!client.Away())
	}
	is.Equal(strings.Count(log.String(), "redis is away"), 2)
	is.Equal(strings.Count(log.String(), "redis is back"), 2)
	is.Equal(strings.Count(log.String(), "\n"), 4)
}

// TestThereButUnfit has a Redis that answers, and takes nothing from anybody.
func TestThereButUnfit(t *testing.T) {
	for _, state := range []struct {
		name        string
		goes, comes []any
	}{
		{"full", []any{"CONFIG", "SET", "maxmemory", "1"}, []any{"CONFIG", "SET", "maxmemory", "0"}},
		{"become a replica", []any{"REPLICAOF", "127.0.0.1", "1"}, []any{"REPLICAOF", "NO", "ONE"}},
		{"without its replicas", []any{"CONFIG", "SET", "min-replicas-to-write", "1"}, []any{"CONFIG", "SET", "min-replicas-to-write", "0"}},
	} {
		t.Run(state.name, func(t *testing.T) {
			is := is.New(t)
			server := redistest.NewServer(t)
			client, operator := server.Client(t), server.Client(t)
			is.NoErr(client.Set(t.Context(), "key", "", 0).Err())
			is.NoErr(operator.Do(t.Context(), state.goes...).Err())
			is.True(client.Set(t.Context(), "key", "", 0).Err() != nil)
			is.True(client.Away())
			is.NoErr(operator.Do(t.Context(), state.comes...).Err())
			for client.Set(t.Context(), "key", "", 0).Err() != nil {
				time.Sleep(10 * time.Millisecond)
			}
			is.True(!client.Away())
		})
	}
}

// TestPasswordIsChanged changes it under a client, which goes on when it is what
// it was.
func TestPasswordIsChanged(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client, operator := server.Client(t), server.Client(t)
	is.NoErr(client.Admitted(t.Context()))
	is.NoErr(operator.ConfigSet(t.Context(), "requirepass", "other").Err())
	is.True(client.Admitted(t.Context()) == nil) // by the connection that it has
	is.NoErr(operator.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	for !client.Away() {
		_ = client.Ping(t.Context()).Err()
	}
	is.True(redis.IsAuthError(server.Client(t).Admitted(t.Context())))
	is.NoErr(operator.ConfigSet(t.Context(), "requirepass", "").Err())
	for client.Ping(t.Context()).Err() != nil {
		time.Sleep(10 * time.Millisecond)
	}
	is.True(!client.Away())
}

// TestCloseWhileAway ends the search for a Redis that is away.
func TestCloseWhileAway(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client := server.Client(t)
	server.Stop(t)
	is.True(client.Ping(t.Context()).Err() != nil)
	is.NoErr(client.Close())
}

func TestMistakenURL(t *testing.T) {
	is := is.New(t)
	_, err := redisclient.Open("127.0.0.1:6379", slog.Default())
	is.True(err != nil)
	is.True(strings.Contains(err.Error(), "reading the Redis URL"))
}
