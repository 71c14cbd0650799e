package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// sharing are three replicas with one database, one Redis and one runtime.
type sharing struct {
	env      []string
	key      string
	replicas []*process
	redis    *redistest.Server
}

func share(t *testing.T, runtime string, args ...string) sharing {
	t.Helper()
	s := sharing{redis: redistest.NewServerAtNoon(t)}
	s.env, s.key = withOneBot(t)
	s.replicas = serveAll(t, s.env, append([]string{"--runtime", "local=" + runtime, "--redis", s.redis.URL, "--answers",
		"--redis-timeout", "1m"}, args...)...) // however busy the machine is
	return s
}

// send sends a chat, under an Idempotency-Key unless that is empty.
func (s sharing) send(ctx context.Context, replica int, idempotency, prompt string) (*http.Response, error) {
	return s.sendTo(ctx, s.replicas[replica].url, idempotency, prompt)
}

func (s sharing) sendTo(ctx context.Context, url, idempotency, prompt string) (*http.Response, error) {
	return request(ctx, http.DefaultClient, s.key, "POST", url+"/v1/chat", chatBody(prompt, true), "Idempotency-Key", idempotency)
}

// connect returns a stream that has begun, and a function that disconnects it.
func (s sharing) connect(t *testing.T, replica int, idempotency string) (stream, context.CancelFunc) {
	t.Helper()
	response, disconnect := s.open(t, replica, idempotency, "Hi")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("status %d", response.StatusCode)
	}
	return eventsOf(response), disconnect
}

// open returns the response to a chat, and a function that disconnects from it.
func (s sharing) open(t *testing.T, replica int, idempotency, prompt string) (*http.Response, context.CancelFunc) {
	t.Helper()
	ctx, disconnect := context.WithCancel(t.Context())
	response, err := s.send(ctx, replica, idempotency, prompt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response, disconnect
}

func (s sharing) status(t *testing.T, replica int, idempotency string) int {
	t.Helper()
	return askStatus(t, s.key, "POST", s.replicas[replica].url+"/v1/chat", chatBody("Hi", true), "Idempotency-Key", idempotency)
}

// TestLimitsOverAllReplicas has 1,000 clients ask three replicas for more than
// their account may have.
func TestLimitsOverAllReplicas(t *testing.T) {
	is := is.New(t)
	const clients, limit = 1000, 50
	runtime, done := heldRuntime(t, 60, 40)
	s := share(t, runtime.URL)
	importBots(t, s.env, strings.Replace(oneBot, `"published"`, `"max_tokens":40,"published"`, 1)) // each uses 100; more than the rest must not be reserved
	is.Equal(command(t, "", s.env, "limits", "set", "--concurrent-chats", "1").code, 0)
	is.Equal(command(t, "", s.env, "limits", "set", "--account", "acme", "--concurrent-chats", fmt.Sprint(limit), "--tokens-per-day", fmt.Sprint(100*limit)).code, 0)
	admitted, wait := s.admitted(t, clients)
	is.Equal(admitted, limit)
	is.Equal(len(runtime.Requests()), limit) // and no more
	is.Equal(*runtime.Requests()[0].MaxTokens, int64(40))
	close(done)
	wait()
	for replica := range replicas {
		eventually(t, "the tokens of the day are used up", func() bool { // each answer is settled after its client has received it
			response := send(t, s.key, "POST", s.replicas[replica].url+"/v1/chat", chatBody("Hi", true))
			return response.StatusCode == http.StatusTooManyRequests && len(response.Header.Get("Retry-After")) > 1 // at midnight
		})
	}
}

// heldRuntime sends a word in each chat, and the rest and its tokens when done
// is closed.
func heldRuntime(t *testing.T, prompt, completion int64) (runtime *runtimetest.Server, done chan struct{}) {
	done = make(chan struct{})
	return runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		select {
		case <-done:
		case <-r.Context().Done():
			return
		}
		s.Stop()
		s.Usage(prompt, completion)
		s.Done()
	}), done
}

// admitted has many clients ask all replicas concurrently, and returns how many
// of them have a stream when each has a response; the others exceed a limit.
// wait waits for the end of the streams.
func (s sharing) admitted(t *testing.T, clients int64) (admitted int, wait func()) {
	t.Helper()
	var all sync.WaitGroup
	var streams, rejected atomic.Int64
	for i := range clients {
		all.Go(func() {
			response, err := s.send(t.Context(), int(i)%replicas, "", "Hi")
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			switch response.StatusCode {
			case http.StatusOK:
				streams.Add(1)
			case http.StatusTooManyRequests:
				rejected.Add(1)
			default:
				t.Errorf("status %d", response.StatusCode)
			}
			_, _ = io.Copy(io.Discard, response.Body)
		})
	}
	eventually(t, "all have a response", func() bool { return streams.Load()+rejected.Load() == clients })
	return int(streams.Load()), all.Wait
}

// TestAnswerWithoutClientCounts abandons an answer, which keeps its slot until
// it is stopped.
func TestAnswerWithoutClientCounts(t *testing.T) {
	is := is.New(t)
	stopped := make(chan struct{}, 10)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		<-r.Context().Done()
		stopped <- struct{}{}
	})
	s := share(t, runtime.URL)
	is.Equal(command(t, "", s.env, "limits", "set", "--concurrent-chats", "1").code, 0)
	first, disconnect := s.connect(t, 0, "k1")
	is.Equal(first.next(), `{"content":"one"}`)
	disconnect()
	for replica := range replicas {
		is.Equal(s.status(t, replica, "k2"), http.StatusTooManyRequests)
	}
	back, disconnect := s.connect(t, 1, "k1") // to return takes no slot
	is.Equal(back.next(), `{"content":"one"}`)
	disconnect()
	is.Equal(stop(t, s.key, s.replicas[2].url, "k1"), http.StatusNoContent)
	<-stopped
	eventually(t, "the slot is free", func() bool {
		ctx, disconnect := context.WithCancel(t.Context())
		defer disconnect()
		response, err := s.send(ctx, 2, "", "Hi")
		is.NoErr(err)
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	<-stopped // without a key, the model stops immediately
}

// TestShutdownWaitsForAnswers ends a replica while an answer without a client
// continues there. Its client gets the complete answer from another replica.
func TestShutdownWaitsForAnswers(t *testing.T) {
	is := is.New(t)
	words, runtime := paced(t)
	s := share(t, runtime)
	words <- "one"
	first, disconnect := s.connect(t, 0, "k1")
	is.Equal(first.next(), `{"content":"one"}`)
	disconnect()
	s.replicas[0].terminate(t)
	eventually(t, "it accepts no new connections", func() bool { return statusOf(s.replicas[0].url+"/health-check") == 0 })
	back, _ := s.connect(t, 1, "k1")
	is.Equal(back.next(), `{"content":"one"}`)
	words <- "two"
	is.Equal(back.next(), `{"content":"two"}`)
	close(words)
	is.Equal(back.next(), "[DONE]")
	for _, p := range s.replicas[1:] {
		p.end(t)
	}
	s.replicas[0].wait(t)
	var chats, counted, joins int
	query(t, s.env, `SELECT sum(chats), count(completion_tokens), sum(joins) FROM usage`, &chats, &counted, &joins)
	is.Equal([]int{chats, counted, joins}, []int{1, 1, 1}) // it is one chat, and is paid for once
}

// TestRedisRejectsTheService starts replicas with settings that an operator may
// get wrong. A Redis that is down is no error.
func TestRedisRejectsTheService(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	operator := server.Client(t)
	is.NoErr(operator.ConfigSet(t.Context(), "requirepass", "right").Err())
	with := func(password string) string { return strings.Replace(server.URL, "//", "//:"+password+"@", 1) }
	for url, want := range map[string]string{
		server.URL:    "NOAUTH",
		with("wrong"): "WRONGPASS",
		strings.TrimSuffix(with("right"), "/0") + "/99": "DB index is out of range",
	} {
		r := command(t, "", migrated(t), "serve", "--runtime", nowhere, "--redis", url)
		is.Equal(r.code, 2)
		is.Equal(strings.Count(r.stderr, "\n"), 1)
		is.True(strings.HasPrefix(r.stderr, "botapi: redis rejects this service: "))
		is.True(strings.Contains(r.stderr, want))
	}
	serve(t, migrated(t), "--runtime", nowhere, "--redis", with("right"))
	server.Stop(t)
	serve(t, migrated(t), "--runtime", nowhere, "--redis", with("wrong"))
}

// TestRedisIsMeasured checks that even an idle replica notices.
func TestRedisIsMeasured(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	p := serve(t, migrated(t), "--runtime", nowhere, "--redis", server.URL)
	reachable := func(value string) func() bool {
		return func() bool { return p.measures(t, `botapi_redis_reachable\{.*\} `+value+`$`) }
	}
	eventually(t, "Redis is there", reachable("1"))
	server.Stop(t)
	eventually(t, "it is away", reachable("0"))
	is.Equal(len(p.logged(t, "redis is away")), 1)
	server.Start(t)
	eventually(t, "it is back", reachable("1"))

	alone := serve(t, migrated(t), "--runtime", nowhere)
	is.True(!strings.Contains(scrape(t, alone), "botapi_redis"))
}
