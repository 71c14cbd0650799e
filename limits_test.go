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

	"github.com/matryer/is"
)

// Limits count the chats in progress, for an account with an empty name, too. A rejected chat
// takes no slot.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWaiting(t, func(o *Options) {
			o.MaxConcurrentChats, o.MaxChatsPerAccount = 5, 2
			o.Keys = KeyVerifierFunc(func(_ context.Context, key string) (string, error) {
				return strings.TrimPrefix(key, "nobody"), nil
			})
		})
		w.chat("acme", "a")
		w.chat("acme", "b")
		w.has("a, b", "")
		for range 5 {
			w.chat("acme", "c")
			w.has("", "c: 429")
		}
		w.end("a")
		w.chat("acme", "d")
		w.chat("acme", "e")
		w.has("d", "a: 200, e: 429")
		w.chat("nobody", "f")
		w.chat("nobody", "g")
		w.chat("nobody", "h")
		w.chat("other", "i")
		w.has("f, g, i", "h: 429")
		for _, account := range []string{"acme", "nobody", "other"} { // if both limits are reached, MaxConcurrentChats decides
			w.chat(account, "j")
			w.has("", "j: 503")
		}
		w.is.Equal(listOf(w.handler).Code, 200) // the list needs no slot
		for _, prompt := range []string{"b", "d", "f", "g", "i"} {
			w.end(prompt)
		}
		w.chat("other", "k")
		w.has("k", "b: 200, d: 200, f: 200, g: 200, i: 200")
		w.end("k")
	})
}

func TestLimitNone(t *testing.T) {
	for _, limit := range []int64{0, -1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWaiting(t, func(o *Options) { o.MaxChatsPerAccount, o.MaxConcurrentChats = limit, limit })
			for i := range 50 {
				w.chat("acme", fmt.Sprint(i))
			}
			w.is.Equal(len(w.begun), 50)
			for i := range 50 {
				w.end(fmt.Sprint(i))
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
