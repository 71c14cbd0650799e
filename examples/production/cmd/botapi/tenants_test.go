package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/redistest"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

// query queries the database of an environment.
func query(t *testing.T, env []string, sql string, found ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), strings.TrimPrefix(env[0], "DATABASE_URL="))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if len(found) == 0 {
		_, err = conn.Exec(t.Context(), sql)
	} else {
		err = conn.QueryRow(t.Context(), sql).Scan(found...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTwoDeploymentsOnOneRedis have an account of the same name. They share
// nothing, unless they are configured to: then the second does not start.
func TestTwoDeploymentsOnOneRedis(t *testing.T) {
	is := is.New(t)
	redis := redistest.NewServer(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		<-r.Context().Done()
	})
	begin := func(args ...string) (env []string, s sharing) {
		env, key := withOneBot(t)
		is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "1").code, 0)
		p := serve(t, env, append([]string{"--runtime", "local=" + runtime.URL, "--redis", redis.URL, "--answers"}, args...)...)
		p.ready(t)
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
	status, _ := first.status(t, 0, "k2")
	is.Equal(status, http.StatusTooManyRequests) // the first is not affected

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
	var spans spans
	otel := httptest.NewServer(&spans)
	defer otel.Close()
	env, key := withOneBot(t)
	p := serve(t, append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+otel.URL), "--runtime", "local=http://127.0.0.1:1/v1", "--redis", redistest.NewServer(t).URL, "--answers")
	p.ready(t)
	is.Equal(stop(t, key, p.url, "SECRET-key"), http.StatusNotFound)
	p.terminate(t)
	p.wait(t)
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
	env, key := withOneBot(t)
	p := serve(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
	p.ready(t)
	query(t, env, `UPDATE bots SET runtime = 'missing'`)
	response, err := request(t.Context(), http.DefaultClient, key, "POST", p.url+"/v1/chat", chatBody("Hi", true))
	is.NoErr(err)
	defer response.Body.Close()
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.True(response.Header.Get("Retry-After") != "")
	body := bufio.NewScanner(response.Body)
	body.Scan()
	is.Equal(body.Text(), `{"detail":"The model is unavailable for the moment"}`)
	r, err := http.NewRequestWithContext(t.Context(), "POST", p.url+"/v1/chat", strings.NewReader(chatBody("Hi", true)))
	is.NoErr(err)
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("X-Botapi-Try-Elsewhere", "425") // as the proxy
	handedBack, err := http.DefaultClient.Do(r)
	is.NoErr(err)
	handedBack.Body.Close()
	is.Equal(handedBack.StatusCode, http.StatusTooEarly)
	eventually(t, "the log says why", func() bool {
		return strings.Contains(p.log.String(), `bot \"u1\": no runtime is configured as \"missing\"`)
	})
}

// TestDisconnectedClientsPay has chats whose clients disconnect after 300 of 400
// words, of a runtime that reports tokens at the end, of one that reports
// continuously, and of one that never does.
func TestDisconnectedClientsPay(t *testing.T) {
	is := is.New(t)
	speaks := func(along bool) func(s *runtimetest.Stream, r *runtimetest.Request) {
		return func(s *runtimetest.Stream, r *runtimetest.Request) {
			for i := range 300 {
				s.Text("word ")
				if along {
					s.Usage(50, int64(i+1))
				}
			}
			<-r.Context().Done()
		}
	}
	never := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("one ", "two ", "three") })
	absurd := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("one")
		s.Stop()
		s.Usage(10, 1<<62)
		s.Done()
	})
	atEnd, along := runtimetest.New(t, speaks(false)), runtimetest.New(t, speaks(true))
	env, key := withOneBot(t)
	for _, name := range []string{"along", "never", "absurd"} {
		importBots(t, append(env, "BOTAPI_RUNTIMES="+name+"=http://b"),
			strings.NewReplacer("u1", name, "helper", name, `"published"`, `"runtime":"`+name+`","published"`).Replace(oneBot))
	}
	is.Equal(command(t, "", env, "limits", "set", "--tokens-per-day", "100000").code, 0)
	args := []string{"--redis", redistest.NewServer(t).URL, "--answers", "--runtime", "local=" + atEnd.URL, "--runtime", "along=" + along.URL,
		"--runtime", "never=" + never.URL, "--runtime", "absurd=" + absurd.URL, "--count-along", "along"}
	p := serve(t, env, args...)
	p.ready(t)
	for _, bot := range []string{"helper", "along"} {
		ctx, disconnect := context.WithCancel(t.Context())
		response, err := request(ctx, http.DefaultClient, key, "POST", p.url+"/v1/chat", strings.Replace(chatBody("Hi", true), "helper", bot, 1))
		is.NoErr(err)
		events := stream{bufio.NewScanner(response.Body), response.Body}
		for range 300 {
			is.Equal(events.next(), `{"content":"word "}`)
		}
		disconnect()
		response.Body.Close()
	}
	for _, bot := range []string{"never", "absurd"} {
		status, _ := ask(t, key, "POST", p.url+"/v1/chat", strings.Replace(chatBody("Hi", true), "helper", bot, 1))
		is.Equal(status, http.StatusOK)
	}
	metrics := ""
	eventually(t, "all are measured", func() bool {
		metrics = scrape(t, p)
		return strings.Contains(metrics, `known="absurd"`) && strings.Contains(metrics, `known="incomplete"`) && strings.Contains(metrics, `known="reported"`) &&
			hasSeries(metrics, "botapi_tokens_total", `known="unreported",otel_scope_name="example.com/botapi/examples/production/internal/service",otel_scope_schema_url="",otel_scope_version="",runtime="never"`)
	})
	p.terminate(t)
	p.wait(t)
	for bot, want := range map[string][3]any{"u1": {int64(10), int64(375), true}, "along": {int64(50), int64(300), false}, "never": {int64(10), int64(4), true}, "absurd": {int64(10), int64(1), true}} {
		var got [3]any
		query(t, env, `SELECT prompt_tokens, completion_tokens, tokens_estimated FROM usage WHERE bot_uid = '`+bot+`'`, &got[0], &got[1], &got[2])
		if got != want {
			t.Errorf("%s: %v, not %v", bot, got, want)
		}
	}
	is.Equal(command(t, "", env, "usage").code, 0)
}

// TestFiftyConcurrentChats has a bot with a maximum and one without.
func TestFiftyConcurrentChats(t *testing.T) {
	for name, bots := range map[string]string{
		"with a maximum": strings.Replace(oneBot, `"published"`, `"max_tokens":80,"published"`, 1),
		"without":        oneBot,
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			const clients, budget = 50, 1000
			runtime, done := heldRuntime(t, 10, 80)
			s := share(t, runtime.URL, "--answer-tokens", "80")
			importBots(t, s.env, bots)
			is.Equal(command(t, "", s.env, "limits", "set", "--tokens-per-day", fmt.Sprint(budget)).code, 0)
			admitted, wait := s.admitted(t, clients)
			is.True(admitted <= budget/(80+10)+1)
			close(done)
			wait()
			if strings.Contains(bots, "max_tokens") {
				is.Equal(*runtime.Requests()[0].MaxTokens, int64(80))
			}
		})
	}
}

// TestSlowRedis takes 20 seconds for each response: a chat waits once, and not
// at its end, with a key and without.
func TestSlowRedis(t *testing.T) {
	is := is.New(t)
	server := redistest.NewServer(t)
	way := server.Slowly(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("one") })
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--tokens-per-day", "1000000", "--concurrent-chats", "5").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", way.URL, "--answers")
	p.ready(t)
	s := sharing{key: key, replicas: []*process{p}}
	status, _ := s.status(t, 0, "k0")
	is.Equal(status, http.StatusOK)

	way.Delay(20 * time.Second)
	for _, idempotency := range []string{"", "k1", "k2", ""} {
		began := time.Now()
		response, err := s.send(t.Context(), 0, idempotency, "Hi")
		is.NoErr(err)
		is.Equal(response.StatusCode, http.StatusOK)
		events := stream{bufio.NewScanner(response.Body), response.Body}
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
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("one") })
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "50").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", way.URL, "--answers", "--redis-timeout", "4s")
	p.ready(t)
	s := sharing{key: key}
	proxy := startProxy(t, []*process{p, p, p})
	chat := func(idempotency string) (outcome string) {
		response, err := s.sendTo(t.Context(), proxy.url, idempotency, "Hi")
		is.NoErr(err)
		defer response.Body.Close()
		events := stream{bufio.NewScanner(response.Body), response.Body}
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
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("one") })
	env, key := withOneBot(t)
	is.Equal(command(t, "", env, "limits", "set", "--concurrent-chats", "50").code, 0)
	p := serve(t, env, "--runtime", "local="+runtime.URL, "--redis", way.URL, "--redis-prefix", "t:", "--answers")
	p.ready(t)
	s := sharing{key: key, replicas: []*process{p}}
	concurrently := func(name string) map[int]int {
		statuses := make(chan int, chats)
		for i := range chats {
			go func() {
				status, _ := s.status(t, 0, fmt.Sprint(name, i))
				statuses <- status
			}()
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

// TestRedisWhoseScriptIsBusy checks that chats are answered, and that the log
// reports it.
func TestRedisWhoseScriptIsBusy(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("one") })
	s := share(t, runtime.URL)
	operator := s.redis.ClientWith(t, redisclient.Options{Timeout: patience})
	is.NoErr(operator.ConfigSet(t.Context(), "busy-reply-threshold", "50").Err())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		operator.Eval(context.Background(), "while true do end", nil)
	}()
	eventually(t, "it is seen", func() bool {
		return strings.Contains(scrape(t, s.replicas[0]), "botapi_redis_reachable{") && len(s.replicas[0].logged(t, "redis is away")) == 1
	})
	for replica := range replicas {
		for _, idempotency := range []string{"", "k1"} {
			status, _ := s.status(t, replica, idempotency)
			is.Equal(status, http.StatusOK)
		}
	}
	_ = s.redis.Client(t).ScriptKill(t.Context()).Err()
	<-ended
}

// TestForeignKeysInRedis has keys of another type where replicas write, and then
// a user who has lost all rights.
func TestForeignKeysInRedis(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("one") })
	s := share(t, runtime.URL, "--redis-prefix", "shop:")
	is.Equal(command(t, "", s.env, "limits", "set", "--tokens-per-day", "1000000", "--concurrent-chats", "5").code, 0)
	operator := s.redis.Client(t)
	is.NoErr(operator.RPush(t.Context(), "shop:limits:tokens:acme", "").Err())
	for _, idempotency := range []string{"", "k1"} {
		status, _ := s.status(t, 0, idempotency)
		is.Equal(status, http.StatusOK)
	}
	reachable := func() bool {
		for line := range strings.Lines(scrape(t, s.replicas[0])) {
			if strings.HasPrefix(line, "botapi_redis_reachable{") {
				return strings.HasSuffix(line, " 1\n")
			}
		}
		return true
	}
	is.True(!reachable())
	is.NoErr(operator.Do(t.Context(), "ACL", "SETUSER", "default", "-@all", "+acl", "+ping").Err())
	for _, idempotency := range []string{"", "k2"} {
		status, _ := s.status(t, 1, idempotency)
		is.Equal(status, http.StatusOK)
	}
	is.NoErr(operator.Do(t.Context(), "ACL", "SETUSER", "default", "+@all").Err())
}
