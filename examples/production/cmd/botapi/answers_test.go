package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestOneFailureForAll has a runtime reject a chat that clients wait for on all
// replicas, behind a proxy that may ask others. It is asked once, and all
// clients get that failure.
func TestOneFailureForAll(t *testing.T) {
	is := is.New(t)
	const clients = 6
	reject := make(chan struct{})
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		select {
		case <-reject:
		case <-r.Context().Done():
		}
		s.Refuse(http.StatusServiceUnavailable, `{}`, "Retry-After", "7")
	})
	s := share(t, runtime.URL)
	proxy := startProxy(t, s.replicas)
	followers := func() int {
		n, _ := s.redis.Client(t).Keys(t.Context(), "botapi:*:answers:readers:*").Result()
		if len(n) == 0 {
			return 0
		}
		return int(s.redis.Client(t).ZCard(t.Context(), n[0]).Val())
	}
	var all sync.WaitGroup
	var statuses, retryAfters [clients]string
	for i := range clients {
		all.Go(func() {
			response, err := s.sendTo(t.Context(), proxy.url, "k1", "Hi")
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			statuses[i], retryAfters[i] = response.Status, response.Header.Get("Retry-After")
		})
	}
	eventually(t, "one has begun and the others have joined", func() bool { return followers() == clients-1 })
	close(reject)
	all.Wait()
	for i := range clients {
		is.Equal(statuses[i], "503 Service Unavailable")
		is.Equal(retryAfters[i], "7")
	}
	is.Equal(len(runtime.Requests()), 1)
}

// TestAbandonedModelsAreLimited has an account send chats with new keys, and disconnect
// from each. Their models go on without a client, and count under each limit.
func TestAbandonedModelsAreLimited(t *testing.T) {
	const chats, limit, clients = 1100, 2, 20
	for name, c := range map[string]struct {
		args   []string
		limits []string
	}{
		"of the account in a replica":    {[]string{"--max-chats-per-account", fmt.Sprint(limit)}, nil},
		"of all accounts in a replica":   {[]string{"--max-chats", fmt.Sprint(limit)}, nil},
		"of the account in all replicas": {nil, []string{"limits", "set", "--concurrent-chats", fmt.Sprint(limit)}},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			var atWork, most, asked atomic.Int64
			runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
				asked.Add(1)
				for now := atWork.Add(1); ; {
					if before := most.Load(); before >= now || most.CompareAndSwap(before, now) {
						break
					}
				}
				defer atWork.Add(-1)
				s.Text("one")
				<-r.Context().Done()
			})
			redis := redistest.NewServer(t)
			env, key := withOneBot(t)
			if c.limits != nil {
				is.Equal(command(t, "", env, c.limits...).code, 0)
			}
			p := serve(t, env, append(c.args, "--runtime", "local="+runtime.URL, "--redis", redis.URL, "--answers")...)
			s := sharing{key: key, replicas: []*process{p}}
			var all sync.WaitGroup
			var rejected atomic.Int64
			next := make(chan int)
			for range clients {
				all.Go(func() {
					for i := range next {
						ctx, disconnect := context.WithCancel(t.Context())
						response, err := s.send(ctx, 0, fmt.Sprint("k", i), "Hi")
						disconnect()
						if err != nil {
							t.Error(err)
							continue
						}
						response.Body.Close()
						if response.StatusCode != http.StatusOK {
							rejected.Add(1)
						}
					}
				})
			}
			for i := range chats {
				next <- i
			}
			close(next)
			all.Wait()
			is.Equal(most.Load(), int64(limit))
			is.Equal(asked.Load()+rejected.Load(), int64(chats))
			is.Equal(atWork.Load(), int64(limit)) // none has been cancelled for another
		})
	}
}

// TestJoiningIsLimited has an account with a limit of one concurrent chat follow
// its answer from several clients.
func TestJoiningIsLimited(t *testing.T) {
	is := is.New(t)
	runtime := saysOne(t)
	s := share(t, runtime.URL)
	is.Equal(command(t, "", s.env, "limits", "set", "--concurrent-chats", "1").code, 0)
	first, _ := s.connect(t, 0, "k1")
	is.Equal(first.next(), `{"content":"one"}`)
	joined, disconnect := s.open(t, 1, "k1", "Hi") // a client that has lost its connection is admitted
	is.Equal(outcomeOf(joined), "200 joined")
	for replica := range replicas {
		rejected, _ := s.open(t, replica, "k1", "Hi")
		is.Equal(rejected.StatusCode, http.StatusTooManyRequests)
		is.Equal(rejected.Header.Get("Retry-After"), "1")
	}
	disconnect()
	eventually(t, "and again when it has disconnected", func() bool {
		again, _ := s.open(t, 2, "k1", "Hi")
		return outcomeOf(again) == "200 joined"
	})
	is.Equal(len(runtime.Requests()), 1)
}

// TestKeyedChatsAreMeasured has one answer kept and joined, one that is too long
// to be kept, and one that is abandoned.
func TestKeyedChatsAreMeasured(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		if lastOf(r) == "long" {
			s.Text(strings.Repeat("word ", 20_000))
		}
		<-r.Context().Done()
	})
	s := share(t, runtime.URL, "--keep-answer-bytes", "65536", "--resume", "1s")
	kept, disconnect := s.open(t, 0, "k1", "Hi")
	is.Equal(outcomeOf(kept), "200 kept")
	joined, disconnect2 := s.open(t, 0, "k1", "Hi")
	is.Equal(outcomeOf(joined), "200 joined")
	_, disconnect3 := s.open(t, 0, "k2", "long")
	eventually(t, "they are measured", func() bool {
		return s.replicas[0].measures(t, `botapi_keyed_chats_total\{.*outcome="kept".*\} [1-9]`, `botapi_keyed_chats_total\{.*outcome="joined".*\} [1-9]`,
			`botapi_answers_outgrown_total\{.*\} [1-9]`, `botapi_answers_in_progress\{client="true".*\} [1-9]`,
			`botapi_answers_kept_bytes\{.*\} [1-9]`, `botapi_answers_kept_limit_bytes\{.*\} [1-9]`)
	})
	disconnect()
	disconnect2()
	disconnect3()
	eventually(t, "the abandoned one is measured", func() bool { return s.replicas[0].measures(t, `botapi_answers_abandoned_total\{.*\} [1-9]`) })
}

// outcomeOf is the status of a response, and what X-Botapi-Answer says.
func outcomeOf(r *http.Response) string {
	return fmt.Sprint(r.StatusCode, " ", r.Header.Get("X-Botapi-Answer"))
}
