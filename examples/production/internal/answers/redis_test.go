package answers_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/answers"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/metric/noop"
)

var eventually = faulttest.Eventually

// refOf is the answer of a key.
func refOf(key string) resume.Ref { return resume.Ref{Owner: "acme", Key: key, ID: "id of " + key} }

// begin starts the answer of a key.
func begin(t *testing.T, store *answers.Store, key string) resume.Ref {
	t.Helper()
	found, err := store.Claim(t.Context(), resume.Claim{Ref: refOf(key), Body: "body"})
	if err != nil || found.State != resume.Started {
		t.Fatalf("%v, %v", found, err)
	}
	return refOf(key)
}

func join(t *testing.T, store *answers.Store, key string) resume.State {
	t.Helper()
	c := resume.Claim{Ref: resume.Ref{Owner: "acme", Key: key, ID: "reader"}, Body: "body"}
	found, err := store.Claim(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return found.State
}

func add(t *testing.T, store *answers.Store, r resume.Ref, from int, texts ...string) resume.Added {
	t.Helper()
	added, err := store.Add(t.Context(), r, from, texts, true)
	if err != nil {
		t.Fatal(err)
	}
	return added
}

// end ends an answer, and releases the slot of its model.
func end(t *testing.T, store *answers.Store, r resume.Ref, fragments int, e resume.Ending) {
	t.Helper()
	if _, err := store.End(t.Context(), r, fragments, e); err != nil {
		t.Fatal(err)
	}
	if err := store.Leave(t.Context(), r, r.ID); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, store *answers.Store, r resume.Ref) resume.Part {
	t.Helper()
	part, err := store.Read(t.Context(), r, "reader", 0)
	if err != nil {
		t.Fatal(err)
	}
	return part
}

// fragments is the name of the only list in a Redis.
func fragments(t *testing.T, client *redisclient.Client) string {
	t.Helper()
	names, err := client.Keys(t.Context(), "botapi:answers:fragments:*").Result()
	if err != nil || len(names) != 1 {
		t.Fatalf("%v, %v", names, err)
	}
	return names[0]
}

// TestAddAgain repeats commands that may have succeeded although they returned
// an error.
func TestAddAgain(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	store := open(t, server, resume.Settings{})
	r := begin(t, store, "k1")
	for _, texts := range []string{"", "a", "a b", "a b", "a b c"} {
		add(t, store, r, 0, strings.Fields(texts)...)
	}
	is.Equal(add(t, store, r, 3, "d"), resume.Added{State: resume.Running, Have: 4})
	for range 2 {
		end(t, store, r, 4, resume.Ending{})
	}
	is.Equal(read(t, store, r), resume.Part{Texts: []string{"a", "b", "c", "d"}, State: resume.Complete})
	is.Equal(add(t, store, r, 4, "e").State, resume.Complete) // and nothing follows the end
	client := server.Client(t)
	is.Equal(client.LLen(t.Context(), fragments(t, client)).Val(), int64(4))
}

// TestFailoverThatLosesFragments has a Redis that took over from another before
// it had all: missing fragments are added again as long as their replica has
// them, and an incomplete answer never counts as complete.
func TestFailoverThatLosesFragments(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	store, client := open(t, server, resume.Settings{}), server.Client(t)
	loses := func(rest int64) { is.NoErr(client.LTrim(t.Context(), fragments(t, client), 0, rest-1).Err()) }
	r := begin(t, store, "k1")
	add(t, store, r, 0, "a", "b", "c")
	loses(1)
	is.Equal(add(t, store, r, 3, "d"), resume.Added{State: resume.Running, Have: 1})
	is.Equal(add(t, store, r, 1, "b", "c", "d"), resume.Added{State: resume.Running, Have: 4})
	loses(3)
	end(t, store, r, 4, resume.Ending{})
	is.Equal(read(t, store, r).State, resume.Lost) // before it is complete

	r = begin(t, store, "k1") // anew
	add(t, store, r, 0, "a", "b", "c")
	end(t, store, r, 3, resume.Ending{})
	loses(2)
	is.Equal(read(t, store, r), resume.Part{State: resume.Lost}) // and afterwards
	begin(t, store, "k1")
}

// TestManyTokens has an answer of 10,000 tokens, as small as possible. Its
// counted size is close to its memory in Redis.
func TestManyTokens(t *testing.T) {
	const tokens, step = 10_000, 20
	server := redistest.NewServer(t)
	store, client := open(t, server, resume.Settings{}), server.Client(t)
	r := begin(t, store, "k1")
	for from := 0; from < tokens; from += step {
		add(t, store, r, from, strings.SplitAfter(strings.Repeat("word ", step), " ")[:step]...)
	}
	near(t, client)
	end(t, store, r, tokens, resume.Ending{})
	near(t, client)
}

// TestManySmallAnswers has 3,000 answers of a word, complete and failed, and
// compares their counted size with their memory in Redis.
func TestManySmallAnswers(t *testing.T) {
	for name, ending := range map[string]resume.Ending{"complete": {}, "failed": {Status: 500, Detail: "Internal Server Error"}} {
		t.Run(name, func(t *testing.T) {
			server := redistest.NewServer(t)
			store, client := open(t, server, resume.Settings{Lease: time.Minute}), server.Client(t)
			for i := range 3000 {
				r := begin(t, store, strconv.Itoa(i))
				add(t, store, r, 0, "word")
				end(t, store, r, 1, ending)
			}
			near(t, client)
		})
	}
}

// near compares the counted size of all answers with their memory.
func near(t *testing.T, client *redisclient.Client) {
	t.Helper()
	counted, used := counted(t, client), used(t, client)
	t.Logf("counted %d, used %d", counted, used)
	if counted < used*8/10 || counted > used*2 {
		t.Errorf("counted %d, used %d", counted, used)
	}
}

// counted is the counted size of all answers.
func counted(t *testing.T, client *redisclient.Client) int64 {
	t.Helper()
	bytes, err := client.HGet(t.Context(), "botapi:answers:bytes", "all").Int64()
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// used is the memory of all keys of answers, as Redis reports it.
func used(t *testing.T, client *redisclient.Client) (bytes int64) {
	t.Helper()
	found, err := client.Keys(t.Context(), "botapi:answers:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range found {
		bytes += client.MemoryUsage(t.Context(), key, 0).Val() // 0 if it has just expired
	}
	return bytes
}

// TestNothingStays checks Redis when everything is over: an answer that is
// complete, one that failed, one that was stopped, one that nobody came back
// for, and one whose replica has died.
func TestNothingStays(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	store, client := open(t, server, resume.Settings{Keep: 300 * time.Millisecond, Lease: 300 * time.Millisecond, Abandon: 50 * time.Millisecond}), server.Client(t)
	for i, finish := range []func(r resume.Ref){
		func(r resume.Ref) { end(t, store, r, 1, resume.Ending{}) },
		func(r resume.Ref) { end(t, store, r, 1, resume.Ending{Status: 500}) },
		func(r resume.Ref) { _, _ = store.Stop(t.Context(), r.Owner, r.Key) },
		func(r resume.Ref) {
			for {
				if added, err := store.Add(t.Context(), r, 0, nil, false); err != nil || added.State == resume.Lost {
					return
				}
			}
		},
		func(resume.Ref) {},
	} {
		key := fmt.Sprint("k", i)
		r := begin(t, store, key)
		add(t, store, r, 0, "SECRET")
		is.Equal(join(t, store, key), resume.Found)
		is.NoErr(store.Leave(t.Context(), r, "reader"))
		finish(r)
	}
	eventually(t, "only the counts are there", func() bool { return len(client.Keys(t.Context(), "*").Val()) <= 3 })
	end(t, store, begin(t, store, "another"), 0, resume.Ending{}) // which counts again
	is.True(counted(t, client) < 2000)
}

// TestClockIsSetBack has the process of an answer die, and then the clock set
// back: nobody waits for the answer for longer than a lease.
func TestClockIsSetBack(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServerWithClock(t)
	store := open(t, server, resume.Settings{Lease: time.Second, RunningPerOwner: 1})
	r := begin(t, store, "k1")
	is.Equal(join(t, store, "k1"), resume.Found)
	server.MoveClock(t, -time.Hour)
	eventually(t, "it is lost", func() bool { return read(t, store, r).State == resume.Lost })
	eventually(t, "its slots are free", func() bool { return join(t, store, "k2") == resume.Started })
}

// TestClaimsThatAreGivenUp gives up claims when their replies arrive, or just before
// or after that. None of them keeps the store from closing.
func TestClaimsThatAreGivenUp(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	store, err := answers.New(server.Client(t), resume.Settings{Running: 1 << 20, RunningPerOwner: 1 << 20}, noop.Meter{})
	is.NoErr(err)
	for i := range 1000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
		_, _ = store.Claim(ctx, resume.Claim{Ref: refOf(strconv.Itoa(i)), Body: "body"})
		cancel()
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		store.Close()
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not close")
	}
}

// TestRedisIsFull has no room for new answers. Those that there are can be
// joined, continued and stopped.
func TestRedisIsFull(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	client, operator := server.Client(t), server.Client(t)
	redistest.Watch(t, client)
	store, err := answers.New(client, resume.Settings{}, noop.Meter{})
	is.NoErr(err)
	defer store.Close()
	complete, failing, running, stopped := begin(t, store, "k1"), begin(t, store, "k2"), begin(t, store, "k3"), begin(t, store, "k4")
	for _, r := range []resume.Ref{complete, failing, running, stopped} {
		add(t, store, r, 0, "one")
	}

	is.NoErr(operator.ConfigSet(t.Context(), "maxmemory", "1").Err())
	eventually(t, "it is full", client.Full)
	is.Equal(join(t, store, "k5"), resume.NoRoom)
	is.Equal(join(t, store, "k1"), resume.Found)
	is.Equal(add(t, store, complete, 1, "two").Have, 2)
	end(t, store, complete, 2, resume.Ending{})
	is.Equal(read(t, store, complete), resume.Part{Texts: []string{"one", "two"}, State: resume.Complete})
	end(t, store, failing, 1, resume.Ending{Status: 502, Detail: "it failed"})
	is.Equal(read(t, store, failing).Ending.Detail, "it failed")
	is.Equal(read(t, store, running).State, resume.Running)
	found, err := store.Stop(t.Context(), "acme", "k4")
	is.NoErr(err)
	is.True(found)
	is.Equal(read(t, store, stopped), resume.Part{State: resume.Stopped})

	is.NoErr(operator.ConfigSet(t.Context(), "maxmemory", "0").Err())
	eventually(t, "it has room", func() bool { return !client.Full() })
	begin(t, store, "k5")
}

// TestValidKey accepts visible ASCII characters.
func TestValidKey(t *testing.T) {
	is := is.New(t)
	for key, want := range map[string]bool{
		"k": true, "a/b?c%d": true, strings.Repeat("k", 255): true,
		"": false, "two words": false, "caf\xc3\xa9": false, "\x7f": false, strings.Repeat("k", 256): false,
	} {
		is.Equal(answers.ValidKey(key), want)
	}
}
