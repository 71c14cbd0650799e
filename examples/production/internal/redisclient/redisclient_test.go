package redisclient_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/logtest"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
	"github.com/redis/go-redis/v9"
)

var eventually = faulttest.Eventually

func TestAwayAndBack(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	var log logtest.Log
	client, err := redisclient.Open(redisclient.Options{URL: server.URL, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	is.NoErr(err)
	defer client.Close()
	ctx := context.Background()
	is.NoErr(client.Ping(ctx).Err())
	is.True(errors.Is(client.Get(ctx, "nothing").Err(), redis.Nil)) // a response like any other
	is.True(client.Do(ctx, "NONSENSE").Err() != nil)                // so is an error from Redis
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
		eventually(t, "it is back", func() bool { return client.Ping(ctx).Err() == nil })
		is.True(!client.Away())
	}
	is.Equal(strings.Count(log.String(), "redis is away"), 2)
	is.Equal(strings.Count(log.String(), "redis is back"), 2)
	is.Equal(strings.Count(log.String(), "redis rejects a command"), 1)
	is.Equal(strings.Count(log.String(), "\n"), 5)
}

// TestUnfit has a Redis that responds, and accepts writes from nobody.
func TestUnfit(t *testing.T) {
	for _, state := range []struct {
		name        string
		goes, comes []any
	}{
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
			eventually(t, "it is back", func() bool { return client.Set(t.Context(), "key", "", 0).Err() == nil })
			is.True(!client.Away())
		})
	}
}

// TestPasswordIsChanged changes the password under a client, which recovers when
// it is changed back.
func TestPasswordIsChanged(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client, operator := server.Client(t), server.Client(t)
	is.NoErr(client.Admitted(t.Context()))
	is.NoErr(operator.ConfigSet(t.Context(), "requirepass", "other").Err())
	is.True(client.Admitted(t.Context()) == nil) // on its existing connection
	is.NoErr(operator.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	for !client.Away() {
		_ = client.Ping(t.Context()).Err()
	}
	is.True(redis.IsAuthError(server.Client(t).Admitted(t.Context())))
	is.NoErr(operator.ConfigSet(t.Context(), "requirepass", "").Err())
	eventually(t, "it is back", func() bool { return client.Ping(t.Context()).Err() == nil })
	is.True(!client.Away())
}

// TestCloseWhileAway stops the checks for a Redis that is away.
func TestCloseWhileAway(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client := server.Client(t)
	server.Stop(t)
	is.True(client.Ping(t.Context()).Err() != nil)
	is.NoErr(client.Close())
}

// TestFull has a full Redis: it is not away for scripts that begin as those of
// limits do, and for no others.
func TestFull(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client := server.Client(t)
	redistest.Watch(t, client)
	is.NoErr(client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	eventually(t, "it is known to be full", client.Full)
	is.True(redis.IsOOMError(client.Set(t.Context(), "key", "", 0).Err()))
	is.True(!client.Away())
	is.NoErr(client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	eventually(t, "it has room", func() bool { return !client.Full() })
}

// TestBusyScript has an endless script.
func TestBusyScript(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client, operator := server.Client(t), server.ClientWith(t, redisclient.Options{Timeout: faulttest.Patience})
	redistest.Watch(t, client)
	is.NoErr(operator.ConfigSet(t.Context(), "busy-reply-threshold", "50").Err())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		operator.Eval(context.Background(), "while true do end", nil)
	}()
	eventually(t, "Redis counts as away", client.Away)
	is.True(!client.Reachable())
	_ = server.Client(t).ScriptKill(t.Context()).Err()
	<-ended
	eventually(t, "it is back", func() bool { return !client.Away() && client.Set(t.Context(), "key", "", 0).Err() == nil })
}

// TestErrorOfOneCommand checks that a failing command does not affect others.
func TestErrorOfOneCommand(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client, operator := server.Client(t), server.Client(t)
	is.NoErr(client.Set(t.Context(), "text", "", 0).Err())
	is.True(client.Reachable())
	is.True(redisclient.Rejected(client.LPush(t.Context(), "text", "").Err()))
	is.True(!client.Away())
	is.True(!client.Reachable())                                                                      // but an operator should notice
	is.NoErr(operator.Do(t.Context(), "ACL", "SETUSER", "default", "-@all", "+acl", "+config").Err()) // a user who has lost most rights
	is.True(redisclient.Rejected(client.Get(t.Context(), "text").Err()))
	is.True(!client.Away())
	is.NoErr(operator.Do(t.Context(), "ACL", "SETUSER", "default", "+@all").Err())

	newcomer := server.Client(t)
	is.NoErr(operator.ConfigSet(t.Context(), "maxclients", "1").Err())
	is.True(newcomer.Get(t.Context(), "text").Err() != nil)
	is.True(!newcomer.Reachable())
	is.NoErr(client.Get(t.Context(), "text").Err()) // existing connections stay
}

// withRequest returns the context of an engine, by which the waits of one chat are added up.
func withRequest(t *testing.T) (ctx context.Context) {
	t.Helper()
	engine := botapi.CallbackEngine(func(engine context.Context, _ *botapi.ChatRequest, _ func(string) error) error {
		ctx = context.WithoutCancel(engine)
		return nil
	})
	client := botapitest.NewServer(t, botapi.Options{Engine: engine}).Client
	if _, err := client.Ask(t.Context(), botapitest.Chat{Bot: botapitest.DefaultBot().Slug, Prompt: "Hi"}); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// TestSlow has a slow Redis: commands wait for it once, and no longer once that
// is known.
func TestSlow(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client := server.ClientWith(t, redisclient.Options{Timeout: 100 * time.Millisecond})
	ctx := withRequest(t)
	ask := func() error {
		waiting, done := client.Waiting(ctx)
		defer done()
		return client.Get(waiting, "key").Err()
	}
	is.True(errors.Is(ask(), redis.Nil))
	server.Hang(t)
	defer server.GoOn(t)
	began := time.Now()
	is.True(ask() != nil)
	waited := time.Since(began)
	began = time.Now()
	for range 100 {
		is.True(ask() != nil)
	}
	is.True(time.Since(began) < 50*waited) // not once more for each
}

// TestTwoDeployments has two deployments with one prefix: the second is
// rejected, and one that notices it later uses no key of the first.
func TestTwoDeployments(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	first := server.ClientWith(t, redisclient.Options{Prefix: "p:", Owner: "one"})
	second := server.ClientWith(t, redisclient.Options{Prefix: "p:", Owner: "two"})
	third := server.ClientWith(t, redisclient.Options{Prefix: "q:", Owner: "two"})
	is.NoErr(first.Admitted(t.Context()))
	err := second.Admitted(t.Context())
	is.True(errors.Is(err, redisclient.ErrNotAdmitted))
	is.True(strings.Contains(err.Error(), `p:owner is "one" and not "two"`))
	is.NoErr(third.Admitted(t.Context()))
	is.NoErr(first.Admitted(t.Context()))
	is.True(first.Key("key") != third.Key("key"))

	redistest.Watch(t, second)
	eventually(t, "it counts as away", second.Away)
	is.True(errors.Is(second.Get(t.Context(), "p:key").Err(), redisclient.ErrAway))
	is.NoErr(first.Del(t.Context(), "p:owner").Err()) // the first no longer exists
	eventually(t, "the keys are the second's", func() bool { return !second.Away() })
	is.True(first.Admitted(t.Context()) != nil)
}

// TestRights gives a user the documented rights, and then takes some away.
func TestRights(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	operator := server.Client(t)
	login := func(rights string) error {
		is.NoErr(operator.Do(t.Context(), "ACL", "DELUSER", "service").Err())
		setUser := []any{"ACL", "SETUSER", "service", "on", ">secret"}
		for rule := range strings.FieldsSeq(rights) {
			setUser = append(setUser, rule)
		}
		is.NoErr(operator.Do(t.Context(), setUser...).Err())
		o := redisclient.Options{URL: strings.Replace(server.URL, "//", "//service:secret@", 1), Prefix: "botapi:", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
		is.NoErr(redisclient.CheckLogin(t.Context(), o))
		client, err := redisclient.Open(o)
		is.NoErr(err)
		defer client.Close()
		return client.Admitted(t.Context())
	}
	const documented = "~botapi:* &botapi:* +@read +@write +@scripting +@pubsub +@connection -@dangerous +time +info"
	is.NoErr(login(documented))
	for without, want := range map[string]string{
		strings.Replace(documented, "~botapi:*", "~other:*", 1): "keys",
		strings.Replace(documented, "&botapi:*", "&other:*", 1): "channels",
		strings.Replace(documented, "+@read", "", 1):            "get",
		strings.Replace(documented, "+@write", "", 1):           "set",
		strings.Replace(documented, "+@scripting", "", 1):       "eval",
		strings.Replace(documented, "+@pubsub", "", 1):          "subscribe",
		strings.Replace(documented, "+time", "", 1):             "time",
		documented + " -info":                                   "info",
	} {
		err := login(without)
		is.True(errors.Is(err, redisclient.ErrNotAdmitted))
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

// TestEviction has a Redis that would silently lift limits.
func TestEviction(t *testing.T) {
	is := is.New(t)
	client := redistest.NewServer(t).Client(t)
	is.NoErr(client.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	is.NoErr(client.Admitted(t.Context())) // it is never full
	is.NoErr(client.ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	err := client.Admitted(t.Context())
	is.True(errors.Is(err, redisclient.ErrNotAdmitted))
	is.True(strings.Contains(err.Error(), "noeviction"))
}

// TestOverlappingChecks has checks of a Redis overlap, as those of Watch and of the
// one that looks for a Redis that is away do. It is not slow for that.
func TestOverlappingChecks(t *testing.T) {
	is := is.New(t)
	client := redistest.NewServer(t).Client(t)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _ = client.Admitted(t.Context()) })
	}
	all.Wait()
	is.True(!client.Slow(time.Hour))
}
