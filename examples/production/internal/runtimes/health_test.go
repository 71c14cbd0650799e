package runtimes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/runtimes"
	"github.com/matryer/is"
	"go.opentelemetry.io/otel/sdk/metric"
)

// hang is a runtime that accepts requests and never responds.
func hang(_ *runtimetest.Stream, r *runtimetest.Request) { <-r.Context().Done() }

func TestEndpointThatHangs(t *testing.T) {
	for name, hangs := range map[string]func(*runtimetest.Stream, *runtimetest.Request){
		"before its headers": hang,
		"after its headers": func(s *runtimetest.Stream, r *runtimetest.Request) {
			s.Raw(": keep-alive\n\n")
			hang(s, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			silent := runtimetest.New(t, hangs)
			good := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("good") })
			o := options(t, silent.URL, good.URL)
			o.Attempt = 50 * time.Millisecond
			service := serve(t, o)
			for range 6 {
				_, answer := chat(t, service, unstreamed)
				is.Equal(text(t, answer), "good")
			}
			is.Equal(len(silent.Requests()), 1) // once was enough
		})
	}
}

func TestAttemptsHaveACap(t *testing.T) {
	is := is.New(t)
	var urls []string
	var all []*runtimetest.Server
	for range 5 {
		runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Refuse(503, "") })
		all, urls = append(all, runtime), append(urls, runtime.URL)
	}
	response, _ := chat(t, serve(t, options(t, urls...)), unstreamed)
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	asked := 0
	for _, runtime := range all {
		asked += len(runtime.Requests())
	}
	is.Equal(asked, 3)
}

func TestMissingModelIsNotUnhealthy(t *testing.T) {
	is := is.New(t)
	a := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		if r.Model == "elsewhere" {
			s.Refuse(404, "")
			return
		}
		s.Whole("a")
	})
	b := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("b") })
	engine, err := runtimes.New(options(t, a.URL, b.URL))
	is.NoErr(err)
	answer, err := ask(t.Context(), engine, "elsewhere")
	is.NoErr(err)
	is.Equal(answer, "b")
	for range 4 {
		ask(t.Context(), engine, "m1")
	}
	is.Equal(len(a.Requests()), 1+2) // both keep taking turns
}

// ask runs a chat on the engine alone.
func ask(ctx context.Context, engine *runtimes.Engine, model string) (answer string, err error) {
	for fragment, err := range engine.Chat(ctx, requestFor(model)) {
		if err != nil {
			return answer, err
		}
		answer += fragment
	}
	return answer, nil
}

func requestFor(model string) *botapi.ChatRequest {
	bot := helper
	bot.Model = model
	return &botapi.ChatRequest{Bot: bot, Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Tell me about the sea."}}}
}

// hosts are runtimes inside the process, so that they can use the time of
// synctest. A test sets the state of each: what it does with a request.
type hosts struct {
	mu    sync.Mutex
	state map[string]state
	chats map[string]int // how many chats each was asked for

	release chan struct{} // closed when those that hang respond after all
}

type state int

const (
	answers   state = iota
	rejects         // 503
	hangs           // accepts the request and never responds
	halfHangs       // answers probes, but no chats
	reads           // sends a comment every 10 seconds for 5 minutes, and answers then
)

func (h *hosts) turn(host string, s state) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state[host] = s
}

func (h *hosts) asked(host string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.chats[host]
}

func (h *hosts) RoundTrip(r *http.Request) (*http.Response, error) {
	isChat := r.Method == "POST"
	h.mu.Lock()
	state := h.state[r.URL.Host]
	if isChat {
		h.chats[r.URL.Host]++
	}
	h.mu.Unlock()
	response := &http.Response{StatusCode: http.StatusOK, Request: r, Header: make(http.Header)}
	switch {
	case state == rejects:
		response.StatusCode = http.StatusServiceUnavailable
		response.Body = http.NoBody
	case state == hangs, state == halfHangs && isChat:
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-h.release:
		}
		fallthrough
	default:
		response.Header.Set("Content-Type", "text/event-stream")
		body := &body{ctx: r.Context(), Reader: strings.NewReader(`data: {"choices":[{"delta":{"content":"` + r.URL.Host + `"},"finish_reason":"stop"}]}` + "\n\n")}
		if state == reads {
			body.comments = 30
		}
		response.Body = body
	}
	return response, nil
}

// A body has a comment every ten seconds before its events.
type body struct {
	ctx      context.Context // the request's
	comments int
	io.Reader
}

func (b *body) Read(p []byte) (int, error) {
	if b.comments == 0 {
		return b.Reader.Read(p)
	}
	b.comments--
	select {
	case <-time.After(10 * time.Second):
		return copy(p, ": ping\n\n"), nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *body) Close() error { return nil }

// among returns an engine for these hosts.
func among(t *testing.T, states map[string]state) (*runtimes.Engine, *hosts) {
	t.Helper()
	engine, h, _ := watchedAmong(t, states)
	return engine, h
}

// watchedAmong also returns the telemetry of the engine.
func watchedAmong(t *testing.T, states map[string]state) (*runtimes.Engine, *hosts, seen) {
	t.Helper()
	h := &hosts{state: states, chats: make(map[string]int), release: make(chan struct{})}
	s := seen{reader: metric.NewManualReader()}
	o := options(t)
	o.MeterProvider = metric.NewMeterProvider(metric.WithReader(s.reader))
	o.Transport = h
	o.Attempt = time.Minute
	for _, host := range []string{"a", "b"} {
		o.Endpoints = append(o.Endpoints, runtimes.Endpoint{Runtime: "local", URL: "http://" + host + "/v1"})
	}
	engine, err := runtimes.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return engine, h, s
}

func TestHealthIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, hosts, seen := watchedAmong(t, map[string]state{"a": rejects})
		const a, b = "botapi.runtime.endpoint.up http://a/v1", "botapi.runtime.endpoint.up http://b/v1"
		up := func() []int64 {
			counts := seen.counts(t)
			return []int64{counts[a], counts[b]}
		}
		is.Equal(up(), []int64{1, 1})
		ask(t.Context(), engine, "m1") // a fails
		is.Equal(up(), []int64{0, 1})

		hosts.turn("a", answers)
		time.Sleep(10 * time.Second)  // its pause
		is.Equal(up(), []int64{0, 1}) // it has not been tried yet
		ask(t.Context(), engine, "m1")
		is.Equal(up(), []int64{1, 1})
	})
}

func TestOneChatTriesAnEndpointAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, hosts := among(t, map[string]state{"a": rejects})
		// sixConcurrent runs chats that all begin before the first of them is
		// answered.
		sixConcurrent := func() (toA int) {
			before := hosts.asked("a")
			var chats sync.WaitGroup
			for range 6 {
				chats.Go(func() {
					if _, err := ask(t.Context(), engine, "m1"); err != nil {
						t.Error(err)
					}
				})
			}
			chats.Wait()
			return hosts.asked("a") - before
		}
		ask(t.Context(), engine, "m1") // a fails, and the chat goes to b
		is.Equal(hosts.asked("a"), 1)
		is.Equal(sixConcurrent(), 0)

		hosts.turn("a", halfHangs)
		time.Sleep(10 * time.Second) // its pause
		is.Equal(sixConcurrent(), 1) // one chat tries it, and then goes to b
		time.Sleep(10 * time.Second)
		is.Equal(sixConcurrent(), 0) // this pause is longer

		hosts.turn("a", answers)
		time.Sleep(10 * time.Second)
		answer, err := ask(t.Context(), engine, "m1")
		is.NoErr(err)
		is.Equal(answer, "a")        // the trial
		is.Equal(sixConcurrent(), 3) // it is healthy: they take turns
	})
}

func TestWaitingChatsMoveFromAnUnreachableEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, hosts := among(t, map[string]state{"a": hangs})
		defer engine.Watch()()
		start := time.Now()
		var chats sync.WaitGroup
		for range 20 {
			chats.Go(func() {
				if answer, err := ask(t.Context(), engine, "m1"); err != nil || answer != "b" {
					t.Errorf("%q, %v", answer, err)
				}
			})
		}
		chats.Wait()
		is.Equal(hosts.asked("a"), 10)
		is.Equal(time.Since(start), 6*time.Second) // two probes, not an attempt's minute

		ask(t.Context(), engine, "m1")
		time.Sleep(time.Hour)
		ask(t.Context(), engine, "m1")
		is.Equal(hosts.asked("a"), 10) // no chat is sent there while probes fail

		hosts.turn("a", answers)
		time.Sleep(5 * time.Second) // a probe
		answer, err := ask(t.Context(), engine, "m1")
		is.NoErr(err)
		is.Equal(answer, "a")
	})
}

func TestBusyEndpointDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, hosts := among(t, map[string]state{"a": halfHangs})
		var answer string
		var waiting sync.WaitGroup
		waiting.Go(func() { answer, _ = ask(t.Context(), engine, "m1") })
		synctest.Wait()
		hosts.turn("a", answers) // it answers others, but not the one that waits
		for range 10 {
			time.Sleep(30 * time.Second) // half an attempt
			ask(t.Context(), engine, "m1")
			ask(t.Context(), engine, "m1")
		}
		close(hosts.release)
		waiting.Wait()
		is.Equal(answer, "a")
	})
}

func TestOnlyEndpointIsWaitedFor(t *testing.T) {
	for name, states := range map[string]map[string]state{
		"the other rejects": {"a": hangs, "b": rejects},
		"all hang":          {"a": hangs, "b": hangs},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				engine, _ := among(t, states)
				ask(within(t, time.Second, nil), engine, "m1")
				ask(within(t, time.Second, nil), engine, "m1") // now it is known which one rejects
				start := time.Now()
				_, err := ask(within(t, time.Hour, botapi.ErrEngineStalled), engine, "m1")
				is.True(errors.Is(err, botapi.ErrEngineStalled)) // and not earlier
				is.Equal(time.Since(start), time.Hour)
			})
		})
	}
}

// within returns a context that ends like a chat's: with a cause.
func within(t *testing.T, d time.Duration, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	timer := time.AfterFunc(d, func() { cancel(cause) })
	t.Cleanup(func() {
		timer.Stop()
		cancel(nil)
	})
	return ctx
}

// A runtime that reads a long prompt says with comments that it is alive (vLLM's
// --sse-keep-alive-interval). The prompt is not read again elsewhere.
func TestEndpointThatReadsALongPromptDoesNotHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := is.New(t)
		engine, hosts := among(t, map[string]state{"a": reads})
		answer, err := ask(t.Context(), engine, "m1")
		is.NoErr(err)
		is.Equal(answer, "a")
		is.Equal(hosts.asked("b"), 0)
	})
}

func TestStalledEndpointIsALastResort(t *testing.T) {
	for name, c := range map[string]struct {
		state state
		cause error
		toA   int
	}{
		"the engine stalled":              {hangs, botapi.ErrEngineStalled, 0},
		"the engine stalled, but it read": {reads, botapi.ErrEngineStalled, 2},
		"the client disconnected":         {hangs, botapi.ErrClientLeft, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				engine, hosts := among(t, map[string]state{"a": c.state})
				_, err := ask(within(t, 50*time.Second, c.cause), engine, "m1")
				is.True(errors.Is(err, c.cause))
				hosts.turn("a", answers)
				before := hosts.asked("a")
				for range 4 {
					ask(t.Context(), engine, "m1")
				}
				is.Equal(hosts.asked("a")-before, c.toA)
			})
		})
	}
}
