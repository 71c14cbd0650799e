package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/matryer/is"
)

// TestTwoDeploymentsOnOneRedis have an account of the same name. They share
// nothing, unless they are configured to: then the second does not start.
func TestTwoDeploymentsOnOneRedis(t *testing.T) {
	is := is.New(t)
	redis := redistest.NewServer(t)
	runtime := saysOne(t)
	begin := func(args ...string) (env []string, s sharing) {
		env, key := withOneBot(t)
		is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "1").code, 0)
		p := serve(t, env, append([]string{"--runtime", "local=" + runtime.URL, "--redis", redis.URL, "--answers"}, args...)...)
		return env, sharing{key: key, replicas: []*process{p}}
	}
	_, first := begin()
	_, second := begin()
	stream, _ := first.connect(t, 0, "k1")
	is.Equal(stream.next(), `{"content":"one"}`)
	other, _ := second.connect(t, 0, "k1") // it has its own slot and answer
	is.Equal(other.next(), `{"content":"one"}`)
	is.Equal(len(runtime.Requests()), 2)
	is.Equal(stop(t, second.key, second.replicas[0].url, "k1"), http.StatusNoContent)
	is.Equal(other.next(), `{"detail":"The answer was stopped","status":410}`)
	is.Equal(first.status(t, 0, "k2"), http.StatusTooManyRequests) // the first is not affected

	begin("--redis-prefix", "shop:")
	env, _ := withOneBot(t)
	r := command(t, "", env, "serve", "--runtime", "local="+runtime.URL, "--redis", redis.URL, "--redis-prefix", "shop",
		"--listen", "127.0.0.1:0", "--internal-listen", "127.0.0.1:0")
	is.Equal(r.code, 2)
	is.True(strings.Contains(r.stderr, "botapi: redis rejects this service: redis has another deployment's keys under this prefix: shop:owner is "))
}

// TestKeyOfAnAnswerIsInNoTrace stops an answer: anyone who knows its key may do
// that.
func TestKeyOfAnAnswerIsInNoTrace(t *testing.T) {
	is := is.New(t)
	spans, collector := collect(t)
	env, key := withOneBot(t)
	p := serve(t, append(env, collector), "--runtime", nowhere, "--redis", redistest.NewServer(t).URL, "--answers")
	is.Equal(stop(t, key, p.url, "SECRET-key"), http.StatusNotFound)
	p.end(t)
	is.Equal(len(spans.values("DELETE /v1/answers", "url.path")), 1)
	for _, span := range spans.all {
		is.True(!strings.Contains(span.String(), "SECRET"))
	}
	is.True(!strings.Contains(p.log.String(), "SECRET"))
}

// TestUnknownRuntime has a bot whose row was changed directly. Another replica may
// have its runtime.
func TestUnknownRuntime(t *testing.T) {
	is := is.New(t)
	p, key := serveOneBot(t, "--runtime", nowhere)
	query(t, p.env, `UPDATE bots SET runtime = 'missing'`)
	response := send(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true))
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.True(response.Header.Get("Retry-After") != "")
	is.Equal(bodyOf(response, nil), `{"detail":"The model is unavailable for the moment"}`)
	is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true), "X-Botapi-Try-Elsewhere", "425"), http.StatusTooEarly) // as the proxy
	eventually(t, "the log says why", func() bool {
		return strings.Contains(p.log.String(), `bot \"u1\": no runtime is configured as \"missing\"`)
	})
}

// TestCountAlong has a chat whose client disconnects, of a runtime that reports tokens
// continuously, and one of a runtime that never reports any.
func TestCountAlong(t *testing.T) {
	is := is.New(t)
	along := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		for i := range 300 {
			s.Text("word ")
			s.Usage(50, int64(i+1))
		}
		<-r.Context().Done()
	})
	env, key := withOneBot(t)
	importBots(t, append(env, "BOTAPI_RUNTIMES=along=http://b"),
		strings.NewReplacer("u1", "u2", "helper", "along", `"published"`, `"runtime":"along","published"`).Replace(oneBot))
	p := serve(t, env, "--runtime", "local="+says(t, "one ", "two ", "three").URL, "--runtime", "along="+along.URL, "--count-along", "along")
	ctx, disconnect := context.WithCancel(t.Context())
	response, err := request(ctx, http.DefaultClient, key, "POST", p.url+"/v1/chat", strings.Replace(chatBody("Hi", true), "helper", "along", 1))
	is.NoErr(err)
	events := eventsOf(response)
	for range 300 {
		is.Equal(events.next(), `{"content":"word "}`)
	}
	disconnect()
	response.Body.Close()
	is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true)), http.StatusOK)
	eventually(t, "both are measured", func() bool {
		return p.measures(t, `botapi_tokens_total\{.*known="reported",.*runtime="along"\} [1-9]`, `botapi_tokens_total\{.*known="unreported",.*runtime="local"\} [1-9]`)
	})
	p.end(t)
	for bot, want := range map[string][3]any{"u1": {int64(10), int64(4), true}, "u2": {int64(50), int64(300), false}} {
		var got [3]any
		query(t, env, `SELECT prompt_tokens, completion_tokens, tokens_estimated FROM usage WHERE bot_uid = '`+bot+`'`, &got[0], &got[1], &got[2])
		is.Equal(got, want)
	}
}

// TestSlowRedis takes 20 seconds for each response: a chat waits once, and not
// at its end, with a key and without.
func TestSlowRedis(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	way := server.Slowly(t)
	runtime := says(t, "one")
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--tokens-per-day", "1000000", "--concurrent-chats", "5").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", way.URL, "--answers")
	s := sharing{key: key, replicas: []*process{p}}
	is.Equal(s.status(t, 0, "k0"), http.StatusOK)

	way.Delay(20 * time.Second)
	for _, idempotency := range []string{"", "k1", "k2", ""} {
		began := time.Now()
		response, err := s.send(t.Context(), 0, idempotency, "Hi")
		is.NoErr(err)
		is.Equal(response.StatusCode, http.StatusOK)
		events := eventsOf(response)
		is.Equal(events.next(), `{"content":"one"}`)
		waited, last := time.Since(began), time.Now()
		is.Equal(events.next(), "[DONE]")
		t.Log(waited, time.Since(last))
		is.True(waited < 15*time.Second)           // --redis-timeout is two
		is.True(time.Since(last) < 15*time.Second) // nothing of it at the end
		response.Body.Close()
	}
	is.True(strings.Contains(scrape(t, p), `db_client_operation_duration_seconds_count{db_operation_name="evalsha",db_system_name="redis",error_type="timeout"`))
	way.Delay(0)
	eventually(t, "it is back", func() bool { return len(p.logged(t, "redis is back")) > 0 })
}

// TestRedisThatTakesASecond has a Redis that takes more than a second for each
// response, and is not down. A chat with a key is answered after --redis-timeout at
// most, is not handed back to the proxy, and leaves nothing that a later one could
// join. Its claim and its limits share that time, so it is longer here than usual.
func TestRedisThatTakesASecond(t *testing.T) {
	is := is.New(t)
	const connected = 10
	server := redistest.NewServer(t)
	way := server.Slowly(t)
	runtime := says(t, "one")
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "50").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", way.URL, "--answers", "--redis-timeout", "4s")
	s := sharing{key: key}
	proxy := startProxy(t, []*process{p, p, p})
	chat := func(idempotency string) (outcome string) {
		response, err := s.sendTo(t.Context(), proxy.url, idempotency, "Hi")
		is.NoErr(err)
		defer response.Body.Close()
		events := eventsOf(response)
		is.Equal(response.StatusCode, http.StatusOK)
		is.Equal(events.next(), `{"content":"one"}`)
		is.Equal(events.next(), "[DONE]")
		return response.Header.Get("X-Botapi-Answer")
	}
	way.Delay(50 * time.Millisecond)
	var all sync.WaitGroup
	for i := range connected {
		all.Go(func() { chat(fmt.Sprint("before-", i)) }) // so that the replica has connections
	}
	all.Wait()
	way.Delay(1300 * time.Millisecond)
	for _, idempotency := range []string{"k1", "k1", "k2"} {
		is.Equal(chat(idempotency), "not-kept")
	}
	way.Delay(0)
	chat("k1") // does not fail because of what was claimed too late
	is.Equal(len(runtime.Requests()), connected+4)
	is.Equal(len(p.logged(t, "request handed back to the proxy")), 0)
}

// TestRedisBecomesSlow has eight concurrent chats, for which the replica connects, and
// eight more just after Redis has begun to take a second for each response, which the
// replica does not know yet. A claim that is given up keeps its connection until Redis
// responds: the limits of its chat, which then have a second and a half, need another
// that is connected.
func TestRedisBecomesSlow(t *testing.T) {
	is := is.New(t)
	const chats = 8
	server := redistest.NewServer(t)
	way, operator := server.Slowly(t), server.Client(t)
	runtime := says(t, "one")
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "50").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", way.URL, "--redis-prefix", "t:", "--answers")
	s := sharing{key: key, replicas: []*process{p}}
	concurrently := func(name string) map[int]int {
		statuses := make(chan int, chats)
		for i := range chats {
			go func() { statuses <- s.status(t, 0, fmt.Sprint(name, i)) }()
		}
		counts := make(map[int]int)
		for range chats {
			counts[<-statuses]++
		}
		return counts
	}
	way.Delay(50 * time.Millisecond)
	is.Equal(concurrently("before-"), map[int]int{http.StatusOK: chats})
	eventually(t, "their slots are released", func() bool { return operator.Exists(t.Context(), "t:limits:slots:acme").Val() == 0 })
	way.Delay(time.Second)
	is.Equal(concurrently("slow-"), map[int]int{http.StatusOK: chats})
}
