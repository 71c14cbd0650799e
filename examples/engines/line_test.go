package engines

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

// withKeys gives an account a key of the same name.
func withKeys(names ...string) func(*botapi.Options) {
	return func(o *botapi.Options) {
		keys := make(map[string]string)
		for _, name := range names {
			keys[name] = name
		}
		o.Keys = botapi.StaticKeys(keys)
	}
}

// takesAMinute returns an engine that then yields the name of the account.
func takesAMinute() speaks {
	return func(ctx context.Context, _ *botapi.ChatRequest, yield func(string, error) bool) {
		select {
		case <-ctx.Done():
			yield("", context.Cause(ctx))
		case <-time.After(time.Minute):
			yield(botapi.AccountFrom(ctx), nil)
		}
	}
}

// One chat of an account waits for one chat of an account that has sent a thousand.
func TestLineIsFair(t *testing.T) {
	for _, atOnce := range []int64{1, 4} {
		t.Run(fmt.Sprint(atOnce), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				line := NewLine(takesAMinute(), LineOptions{AtOnce: atOnce, Waiting: 1001, PerAccount: 1000})
				handler := handlerOf(t, line, withKeys("many", "one"))
				began := time.Now()
				var many []played
				for range 1000 {
					many = append(many, playAs(handler, "many"))
				}
				synctest.Wait()
				one := playAs(handler, "one")
				<-one.done
				is.Equal(one.Body.String(), `{"content":"one"}`)
				is.Equal(time.Since(began), 2*time.Minute) // one for a slot, one in it
				for _, c := range many {
					c.disconnect()
				}
				for _, c := range many {
					<-c.done
				}
				isEmpty(t, line)
			})
		})
	}
}

// isEmpty fails the test unless all slots are free and nothing is kept of any account.
func isEmpty(t *testing.T, line *Line) {
	t.Helper()
	line.mu.Lock()
	defer line.mu.Unlock()
	if line.free != line.options.AtOnce || len(line.waiting) != 0 || len(line.accounts) != 0 {
		t.Fatalf("%d free slots of %d, %d waiting chats, %d accounts", line.free, line.options.AtOnce, len(line.waiting), len(line.accounts))
	}
}

func TestLineBoundsAccounts(t *testing.T) {
	for _, c := range []struct {
		o    LineOptions
		want int // chats of one account that wait
	}{
		{LineOptions{Waiting: 5}, 3},
		{LineOptions{Waiting: 4}, 2},
		{LineOptions{Waiting: 1}, 1},
		{LineOptions{Waiting: 5, PerAccount: 1}, 1},
		{LineOptions{Waiting: 2, PerAccount: 9}, 2},
	} {
		t.Run(fmt.Sprint(c.o), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				c.o.RetryAfter = 7 * time.Second
				line := NewLine(takesAMinute(), c.o)
				handler := handlerOf(t, line, withKeys("a", "b"))
				var chats []played
				for range 1 + c.want {
					chats = append(chats, playAs(handler, "a"))
				}
				synctest.Wait()
				rejected := playAs(handler, "a")
				<-rejected.done
				is.Equal(rejected.Code, 503)
				is.Equal(rejected.Header().Get("Retry-After"), "7")
				isFull := int64(c.want) == c.o.Waiting
				is.Equal(strings.Contains(rejected.Body.String(), "for this key"), !isFull)
				other := playAs(handler, "b")
				for _, waits := range append(chats, other) {
					<-waits.done
				}
				is.Equal(chats[c.want].Code, 200)
				is.Equal(other.Code == 200, !isFull)
				isEmpty(t, line)
			})
		})
	}
}

// hasSlot reports whether the chat has a slot.
func (t *ticket) hasSlot() bool {
	select {
	case <-t.called:
		return true
	default:
		return false
	}
}

// The order in which chats of several accounts get slots. A capital letter is a chat that
// arrives, named after its account; a small one is a chat of that account that ends.
func TestLineOrder(t *testing.T) {
	for _, c := range []struct {
		name, events string
		atOnce       int64
		want         string
	}{
		{"one account", "AAAaa", 1, "AAA"},
		{"in turn", "AAABBBC abcaba", 1, "ABCABAB"},
		{"those who come later do not pass", "AAB a C bac", 1, "ABAC"},
		{"the fewest slots, not the order of arrival", "AAAC AABB c a a", 4, "AAACBBA"},
		{"a further chat does not cost the turn", "CABA c", 1, "CA"},
		{"a slot is not kept free", "AAAAA", 3, "AAA"},
	} {
		t.Run(c.name, func(t *testing.T) {
			is := is.New(t)
			line := NewLine(says(nil), LineOptions{AtOnce: c.atOnce, Waiting: 100, PerAccount: 100})
			var waiting, active []*ticket
			order := ""
			for _, event := range strings.ReplaceAll(c.events, " ", "") {
				name := strings.ToUpper(string(event))
				if name == string(event) {
					chat, err := line.enter(name)
					is.NoErr(err)
					waiting = append(waiting, chat)
				} else {
					i := slices.IndexFunc(active, func(t *ticket) bool { return t.account.name == name })
					line.leave(active[i])
					active = slices.Delete(active, i, i+1)
				}
				for i := slices.IndexFunc(waiting, (*ticket).hasSlot); i >= 0; i = slices.IndexFunc(waiting, (*ticket).hasSlot) {
					order += waiting[i].account.name
					active = append(active, waiting[i])
					waiting = slices.Delete(waiting, i, i+1)
				}
			}
			is.Equal(order, c.want)
		})
	}
}

// A chat whose client disconnects in the instant in which it gets a slot passes it on.
func TestSlotOfAClientThatDisconnects(t *testing.T) {
	is := is.New(t)
	line := NewLine(says(nil), LineOptions{Waiting: 9, PerAccount: 9})
	var chats []*ticket
	for range 4 {
		chat, err := line.enter("a")
		is.NoErr(err)
		chats = append(chats, chat)
	}
	line.leave(chats[2]) // from the middle of the queue
	line.leave(chats[0])
	is.True(chats[1].hasSlot())
	is.True(!chats[3].hasSlot())
	line.leave(chats[1]) // instead of using it
	is.True(chats[3].hasSlot())
	line.leave(chats[3])
	isEmpty(t, line)

	for range 20 { // select chooses at random
		synctest.Test(t, func(t *testing.T) {
			is := is.New(t)
			line := NewLine(takesAMinute(), LineOptions{Waiting: 9, PerAccount: 9})
			handler := handlerOf(t, line, withKeys("a"))
			first := playAs(handler, "a")
			synctest.Wait()
			second := playAs(handler, "a")
			synctest.Wait()
			third := playAs(handler, "a")
			time.AfterFunc(time.Minute, second.disconnect) // when the first one ends
			<-first.done
			<-second.done
			<-third.done
			is.Equal(third.Body.String(), `{"content":"a"}`)
			isEmpty(t, line)
		})
	}
}

// Chats of many accounts come, disconnect and end at random. After each event, no slot is
// free while a chat waits, and a slot has gone to the account that held the fewest of those
// that waited.
func TestLineAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		line := NewLine(says(nil), LineOptions{AtOnce: 1 + random.Int64N(5), Waiting: random.Int64N(20), PerAccount: 1 + random.Int64N(8)})
		var chats []*ticket
		for range 200 {
			held, had := slotsHeld(chats), withSlot(chats)
			if random.IntN(5) < 3 {
				if chat, err := line.enter(fmt.Sprint(random.IntN(6))); err == nil {
					chats = append(chats, chat)
				}
			} else if len(chats) > 0 {
				i := random.IntN(len(chats))
				if chats[i].hasSlot() {
					held[chats[i].account.name]--
				}
				line.leave(chats[i])
				chats = slices.Delete(chats, i, i+1)
			}
			for _, chat := range chats {
				if !chat.hasSlot() || had[chat] {
					continue
				}
				for _, other := range chats {
					if !other.hasSlot() && held[other.account.name] < held[chat.account.name] {
						t.Fatalf("seed %d: account %s, which holds %v, has got a slot before %s", seed, chat.account.name, held, other.account.name)
					}
				}
			}
			checkCounts(t, line, chats)
		}
		for _, chat := range chats {
			line.leave(chat)
		}
		isEmpty(t, line)
	}
}

func slotsHeld(chats []*ticket) map[string]int {
	held := make(map[string]int)
	for chat := range withSlot(chats) {
		held[chat.account.name]++
	}
	return held
}

func withSlot(chats []*ticket) map[*ticket]bool {
	with := make(map[*ticket]bool)
	for _, chat := range chats {
		if chat.hasSlot() {
			with[chat] = true
		}
	}
	return with
}

func checkCounts(t *testing.T, line *Line, chats []*ticket) {
	t.Helper()
	active := len(withSlot(chats))
	waiting := len(chats) - active
	switch {
	case int64(active) > line.options.AtOnce, int64(waiting) > line.options.Waiting:
		t.Fatalf("%d active and %d waiting chats", active, waiting)
	case waiting > 0 && int64(active) < line.options.AtOnce:
		t.Fatalf("%d chats wait, but only %d are active", waiting, active)
	}
	for name, a := range line.accounts {
		if a.waiting > line.options.PerAccount || a.active != int64(slotsHeld(chats)[name]) {
			t.Fatalf("account %s: %d active and %d waiting chats", name, a.active, a.waiting)
		}
	}
}

// Many chats come, disconnect and end concurrently: no more run than there are slots, and
// all slots are free at the end.
func TestLineConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		line := NewLine(takesAMinute(), LineOptions{AtOnce: 3, Waiting: 60, PerAccount: 20})
		handler := handlerOf(t, line, withKeys("a", "b", "c", "d"))
		random := rand.New(rand.NewPCG(1, 2))
		var chats []played
		for range 300 {
			c := playAs(handler, string("abcd"[random.IntN(4)]))
			if random.IntN(2) == 0 {
				time.AfterFunc(time.Duration(random.IntN(10))*time.Minute, c.disconnect)
			}
			chats = append(chats, c)
			time.Sleep(time.Duration(random.IntN(3)) * 20 * time.Second)
		}
		answered := 0
		for _, c := range chats {
			<-c.done
			if c.Code == 200 && c.Body.Len() > 0 {
				answered++
			}
		}
		is.True(answered > 100)
		isEmpty(t, line)
	})
}
