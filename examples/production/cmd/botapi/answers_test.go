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
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestOneFailureForAll has a runtime refuse a chat that clients wait for on all
// replicas, behind a proxy that may ask others. It is asked once, and all get
// that failure.
func TestOneFailureForAll(t *testing.T) {
	is := is.New(t)
	const clients = 6
	refuse := make(chan struct{})
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		select {
		case <-refuse:
		case <-r.Context().Done():
		}
		s.Refuse(http.StatusServiceUnavailable, `{}`, "Retry-After", "7")
	})
	s := share(t, runtime.URL)
	proxy := startProxy(t, s.replicas)
	followers := func() int {
		n, _ := s.redis.Client(t).Keys(t.Context(), "botapi:*:answers:followers:*").Result()
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
	close(refuse)
	all.Wait()
	for i := range clients {
		is.Equal(statuses[i], "503 Service Unavailable")
		is.Equal(retryAfters[i], "7")
	}
	is.Equal(len(runtime.Requests()), 1)
}

// TestJoiningIsLimited has an account with one chat at once follow its answer
// from 30 clients.
func TestJoiningIsLimited(t *testing.T) {
	is := is.New(t)
	const clients = 30
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		<-r.Context().Done()
	})
	s := share(t, runtime.URL)
	is.Equal(command(t, "", s.env, "limits", "set", "--chats-at-once", "1").code, 0)
	first, leave := s.connect(t, 0, "k1")
	is.Equal(first.next(), `{"content":"one"}`)
	ctx, leaveAll := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var joined, refused atomic.Int64
	for i := range clients {
		all.Go(func() {
			response, err := s.send(ctx, i%replicas, "k1", "Hi")
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			switch {
			case response.StatusCode == http.StatusOK && response.Header.Get("X-Botapi-Answer") == "joined":
				joined.Add(1)
			case response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "1":
				refused.Add(1)
			}
			_, _ = io.Copy(io.Discard, response.Body)
		})
	}
	eventually(t, "all have an answer", func() bool { return joined.Load()+refused.Load() == clients })
	is.Equal(joined.Load(), int64(1)) // who has lost a connection gets in
	leaveAll()
	all.Wait()
	leave()
	eventually(t, "and again when it has left", func() bool {
		status, outcome, leave := s.head(t, 1, "k1")
		leave()
		return status == http.StatusOK && outcome == "joined"
	})
	is.Equal(len(runtime.Requests()), 1)
}

// TestKeyedChatsAreMeasured has one answer kept, joined, and one too long to be
// kept, and one that nobody comes back for.
func TestKeyedChatsAreMeasured(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		if r.Messages[len(r.Messages)-1].Content == "long" {
			s.Text(strings.Repeat("word ", 20_000))
		}
		<-r.Context().Done()
	})
	s := share(t, runtime.URL, "--keep-answer-bytes", "65536", "--resume", "1s")
	status, outcome, leave := s.head(t, 0, "k1")
	is.Equal(fmt.Sprint(status, outcome), "200kept")
	status, outcome, leave2 := s.head(t, 0, "k1")
	is.Equal(fmt.Sprint(status, outcome), "200joined")
	ctx, leave3 := context.WithCancel(t.Context())
	long, err := s.sendTo(ctx, s.replicas[0].url, "k2", "long")
	is.NoErr(err)
	defer long.Body.Close()
	measured := func(series ...string) func() bool {
		return func() bool {
			text := scrape(t, s.replicas[0])
			for _, one := range series {
				name, labels, _ := strings.Cut(one, "{")
				if !hasSeries(text, name, labels) {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "they are measured", measured(
		`botapi_keyed_chats_total{outcome="kept"`, `botapi_keyed_chats_total{outcome="joined"`,
		`botapi_answers_outgrown_total{`, `botapi_answers_in_progress{client="true"`, `botapi_answers_kept_bytes{`, `botapi_answers_kept_limit_bytes{`))
	leave()
	leave2()
	leave3()
	eventually(t, "they are left", measured(`botapi_answers_abandoned_total{`))
}

// hasSeries reports whether a series that is not 0 has such a name and label.
func hasSeries(text, name, label string) bool {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, label) && !strings.HasSuffix(line, " 0\n") {
			return true
		}
	}
	return false
}

// head opens a stream, and returns how it is answered.
func (s sharing) head(t *testing.T, replica int, idempotency string) (status int, outcome string, leave func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	response, err := s.send(ctx, replica, idempotency, "Hi")
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("X-Botapi-Answer"), func() {
		cancel()
		response.Body.Close()
	}
}
