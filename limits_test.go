package botapi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

// Limits count the chats in progress, for an account with an empty name, too. A rejected chat
// takes no slot.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine := newHeldEngine(t)
		o := testOptions(t, t.Output())
		o.Engine, o.MaxConcurrentChats, o.MaxChatsPerAccount = engine, 4, 2
		o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
			return strings.TrimPrefix(key, "nobody"), nil
		})
		server := serveInMemory(t, New(o))
		statuses := make(chan int, 9)
		begins := func(key string, ended ...int) {
			t.Helper()
			go func() {
				got, _ := askAs(t.Context(), key, server, true)
				statuses <- got.status
			}()
			synctest.Wait()
			is.Equal(len(statuses), len(ended))
			for _, status := range ended {
				is.Equal(<-statuses, status)
			}
		}
		begins("acme")
		begins("acme")
		for range 5 {
			begins("acme", 429)
		}
		engine.release <- struct{}{}
		synctest.Wait()
		is.Equal(<-statuses, 200)
		begins("acme")
		begins("acme", 429)
		begins("nobody")
		begins("nobody")
		for _, key := range []string{"acme", "nobody", "other"} { // if both limits are reached, MaxConcurrentChats decides
			begins(key, 503)
		}
		is.Equal(doAt(t, server.client(), "http://memory", "GET", "/v1/bots", "").status, 200) // the list needs no slot

		engine.releaseAll()
		for range 4 {
			is.Equal(<-statuses, 200)
		}
		begins("other", 200)
	})
}

func TestLimitNone(t *testing.T) {
	for _, limit := range []int64{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			o := testOptions(t, t.Output())
			o.Engine, o.MaxChatsPerAccount, o.MaxConcurrentChats = sleepsFor(time.Second).engine(), limit, limit
			server := serveInMemory(t, New(o))
			statuses := make(chan int)
			for range 50 {
				go func() { statuses <- ask(t, server, false).status }()
			}
			for range 50 {
				is.Equal(<-statuses, 200)
			}
		})
	}
}

// An account without chats takes no memory.
func TestLimitForgetsAccounts(t *testing.T) {
	for _, limit := range []int64{0, 1} {
		is := is.New(t)
		const accounts, name = 1000, 10 << 10
		next := 0
		o := testOptions(t, io.Discard)
		o.MaxChatsPerAccount = limit
		o.Keys = KeyVerifierFunc(func(context.Context, string) (string, error) {
			next++
			return fmt.Sprint(strings.Repeat("x", name), next), nil
		})
		h := New(o)
		held := heldByEach(make([]any, accounts), func(int) any { return postChat(h, chatBodyJSON("hi", false)).Code })
		is.True(held < name/10)
		is.Equal(next, accounts)
		runtime.KeepAlive(h)
	}
}

// A chat that is rejected by its account's limit takes no slot from another account,
// not even for a moment: here each account has one.
func TestLimitPerAccountTakesNothingOfAnother(t *testing.T) {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.MaxConcurrentChats, o.MaxChatsPerAccount, o.Logger = 2, 1, slog.New(slog.DiscardHandler)
	o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	inProgress := func() {}
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, _ func(string, error) bool) {
		if AccountFrom(ctx) == "full" {
			inProgress()
		}
	})
	h := New(o)
	ask := func(account string) int {
		r := newRequest("POST", "/v1/chat", strings.NewReader(chatBodyJSON("hi", false)), "Authorization", "Bearer "+account)
		return record(h, r).Code
	}
	statuses := make(map[int]int)
	inProgress = func() {
		var over atomic.Bool
		var asking sync.WaitGroup
		for range 2 {
			asking.Go(func() {
				for !over.Load() {
					if ask("full") == 200 {
						t.Error("an account exceeded its limit")
					}
				}
			})
		}
		for range 5_000 {
			statuses[ask("other")]++
		}
		over.Store(true)
		asking.Wait()
	}
	is.Equal(ask("full"), 200)
	is.Equal(statuses, map[int]int{200: 5_000})
}
