package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/botapitest"
	"example.com/botapi/examples/internal/stackcheck"
	"github.com/matryer/is"
)

const (
	apiKey = "the-key-of-the-doctor"
	secret = "the-secret-of-the-doctor"
)

// newAPI returns one process of a service. Each call of its model is counted.
func newAPI(t *testing.T, calls *atomic.Int64, change ...func(*botapi.Options)) http.Handler {
	t.Helper()
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: "parrot", Name: "Parrot", Model: "parrot-1"})
	is.New(t).NoErr(err)
	model := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			calls.Add(1)
			for i := range 20 {
				if !yield(strconv.Itoa(i)+" ", nil) {
					return
				}
			}
		}
	})
	o := botapi.Options{
		Bots:      bots,
		Keys:      botapi.StaticKeys(map[string]string{apiKey: "doctor"}),
		Engine:    botapitest.Probed(model, secret),
		KeepAlive: time.Second / 2, // on a busy machine, an earlier one could come before an error
		Logger:    slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&o)
	}
	return botapi.New(o)
}

// newQuietAPI is newAPI without the keep-alives that would notice a disconnect.
func newQuietAPI(t *testing.T, calls *atomic.Int64) http.Handler {
	t.Helper()
	var o botapi.Options
	lively := newAPI(t, calls, func(made *botapi.Options) { o = *made })
	o.KeepAlive = -1
	quiet := botapi.New(o) // the same process, since it has the same engine
	return choosing(func(body []byte) http.Handler {
		if awaitsCancel(body) {
			return quiet
		}
		return lively
	})
}

// awaitsCancel reports whether a chat is one whose client will disconnect.
func awaitsCancel(body []byte) bool { return bytes.Contains(body, []byte(`"cancel"`)) }

// serve returns the address of a service. It counts its chats.
func serve(t *testing.T, chats *atomic.Int64, h http.Handler) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/v1/chat" {
			chats.Add(1)
		}
		h.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

type outcome struct {
	code           int
	stdout, stderr string
}

func doctor(t *testing.T, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// doctorOf is doctor, for a target that is changed.
func doctorOf(t *testing.T, change func(*stackcheck.Target), args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	target, asJSON, err := parse(args, &stderr)
	is.New(t).NoErr(err)
	change(&target)
	code := diagnose(t.Context(), target, asJSON, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// impatience makes the tests faster that wait for what does not come.
const impatience = 2 * time.Second

func impatient(target *stackcheck.Target) { target.Patience = impatience }

func TestHealthyService(t *testing.T) {
	t.Parallel()
	var calls, chats atomic.Int64
	address := serve(t, &chats, newAPI(t, &calls))
	for _, c := range []struct {
		args      []string
		calls     int64
		announces string
		says      string
	}{
		{[]string{address, "--key", apiKey, "--secret", secret}, 0, "Sending about %d chats", "19 checks, nothing found."},
		{[]string{"--secret=" + secret, "--key", apiKey, address + "/v1/"}, 0, "Sending about %d chats", "19 checks, nothing found."},
		{[]string{address, "--key", apiKey}, 2, "Sending at most %d chats", "8 checks, nothing found. With --secret, there are 19 checks."},
	} {
		is := is.New(t)
		calls.Store(0)
		chats.Store(0)
		got := doctor(t, c.args...)
		t.Log(got.stdout, got.stderr)
		is.Equal(got.code, healthy)
		is.Equal(got.stdout, "✓ "+address+": "+c.says+"\n")
		is.Equal(calls.Load(), c.calls) // tokens
		var announced int64
		_, err := fmt.Sscanf(got.stderr, c.announces, &announced)
		is.NoErr(err)
		is.True(chats.Load() > announced/2 && chats.Load() < announced*2) // a busy machine needs more orders
		t.Logf("%d of %d chats", chats.Load(), announced)
	}
}

// balancers choose the replica of a request.
var balancers = map[string]func(replicas int) func(*http.Request) (replica int, done func()){
	"in turn": func(replicas int) func(*http.Request) (int, func()) {
		var turn atomic.Int64
		return func(*http.Request) (int, func()) { return int(turn.Add(1)) % replicas, func() {} }
	},
	"each connection in turn": func(replicas int) func(*http.Request) (int, func()) {
		var mu sync.Mutex
		connections := make(map[string]int)
		return func(r *http.Request) (int, func()) {
			mu.Lock()
			defer mu.Unlock()
			if _, isKnown := connections[r.RemoteAddr]; !isKnown {
				connections[r.RemoteAddr] = len(connections) % replicas
			}
			return connections[r.RemoteAddr], func() {}
		}
	},
	// As HAProxy's leastconn: of those with the fewest requests, the one whose number has
	// changed first.
	"the fewest requests": func(replicas int) func(*http.Request) (int, func()) {
		var mu sync.Mutex
		requests, changed, changes := make([]int, replicas), make([]int, replicas), 0
		change := func(replica, by int) {
			changes++
			requests[replica], changed[replica] = requests[replica]+by, changes
		}
		return func(*http.Request) (int, func()) {
			mu.Lock()
			defer mu.Unlock()
			least := 0
			for i := range requests {
				if requests[i] < requests[least] || requests[i] == requests[least] && changed[i] < changed[least] {
					least = i
				}
			}
			change(least, 1)
			return least, func() {
				mu.Lock()
				defer mu.Unlock()
				change(least, -1)
			}
		}
	},
}

// A service with several processes: each order must find the one that has the chat.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for name, newBalancer := range balancers {
		for _, replicas := range []int{3, 5} {
			t.Run(fmt.Sprint(replicas, " replicas, ", name), func(t *testing.T) {
				t.Parallel()
				is := is.New(t)
				var calls, chats atomic.Int64
				var processes []http.Handler
				for range replicas {
					processes = append(processes, newAPI(t, &calls))
				}
				choose := newBalancer(replicas)
				address := serve(t, &chats, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					process, done := choose(r)
					defer done()
					processes[process].ServeHTTP(w, r)
				}))
				got := doctor(t, address, "--key", apiKey, "--secret", secret, "--json")
				t.Log(got.stdout, got.stderr)
				is.Equal(got.code, healthy)
				is.True(!strings.Contains(got.stdout, `"skipped"`))
				var announced int64
				_, most, _ := strings.Cut(got.stderr, " or at most ")
				_, err := fmt.Sscanf(most, "%d if it has many replicas", &announced)
				is.NoErr(err)
				is.True(chats.Load() <= announced)
				t.Logf("%d of %d chats", chats.Load(), announced)
			})
		}
	}
}

// A proxy that loses some disconnects: one try may find nothing.
func TestOneBrokenProxy(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls, chats, silent atomic.Int64
	processes := []http.Handler{newAPI(t, &calls), newAPI(t, &calls)}
	address := serve(t, &chats, choosing(func(body []byte) http.Handler {
		process := processes[chats.Load()%2]
		if awaitsCancel(body) && bytes.Contains(body, []byte(`"stream":false`)) && silent.Add(1) == 2 {
			return endless(process)
		}
		return process
	}))
	got := doctor(t, address, "--key", apiKey, "--secret", secret)
	t.Log(got.stdout)
	is.Equal(got.code, hasFindings)
	is.True(strings.Contains(got.stdout, "sent:    the client disconnected before a JSON response\n"))
	is.True(strings.Contains(got.stdout, "so it was in 1 of 3 tries"))
	is.True(strings.Contains(got.stdout, "check each replica, and each proxy, alone"))
}

// A limit of the handler itself is not taken for one of a proxy.
func TestSilenceEndedByTheHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls, chats atomic.Int64
	address := serve(t, &chats, newAPI(t, &calls, func(o *botapi.Options) {
		o.KeepAlive, o.StallTimeout = 500*time.Millisecond, 5*time.Second
	}))
	got := doctor(t, address, "--key", apiKey, "--secret", secret, "--silence", "6s")
	t.Log(got.stdout, got.stderr)
	is.Equal(got.code, hasFindings)
	is.True(strings.Contains(got.stdout, "cause:   StallTimeout or ChatTimeout of botapi.Options has passed"))
}

// A limit that rejects the checks says which one it is.
func TestRejectedByALimit(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls, chats atomic.Int64
	address := serve(t, &chats, newAPI(t, &calls, func(o *botapi.Options) { o.MaxChatsPerAccount = 2 }))
	got := doctor(t, address, "--key", apiKey, "--secret", secret)
	is.Equal(got.code, notChecked)
	t.Log(got.stdout, got.stderr)
	is.True(strings.Contains(got.stdout, `a limit has rejected a request (429, "Too many`))
	is.True(strings.Contains(got.stdout, "which could not be checked\n"))
}

// A service with a limit for each second is checked nevertheless: the checks wait as long as it says.
func TestSlowedByARate(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{nil, {"--secret", secret}} {
		t.Run(strings.Join(flags, " "), func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			var calls, chats atomic.Int64
			address := serve(t, &chats, newAPI(t, &calls, func(o *botapi.Options) { o.Keys = limitRate(o.Keys) }))
			got := doctor(t, append([]string{address, "--key", apiKey}, flags...)...)
			t.Log(got.stdout, got.stderr)
			is.Equal(got.code, healthy)
			is.Equal(strings.Count(got.stderr, "A limit of requests per second makes the checks wait (429, "), 1)
		})
	}
}

// limitRate lets 20 requests through each second, and 20 in a burst. It also rejects the tenth, since
// on a busy machine the doctor may be slower than the limit.
func limitRate(v botapi.KeyVerifier) botapi.KeyVerifier {
	const burst, interval = 20, 50 * time.Millisecond
	var mu sync.Mutex
	var full time.Time // when a burst is possible again
	requests := 0
	return botapi.KeyVerifierFunc(func(ctx context.Context, key string) (string, error) {
		account, err := v.VerifyKey(ctx, key)
		mu.Lock()
		defer mu.Unlock()
		next := time.Now()
		if full.After(next) {
			next = full
		}
		next = next.Add(interval)
		if requests++; requests == 10 {
			next = time.Now().Add((burst + 1) * interval)
		}
		if wait := time.Until(next) - burst*interval; err == nil && wait > 0 {
			return account, botapi.StatusError{Status: http.StatusTooManyRequests, Detail: "Too many requests for this key", RetryAfter: wait}
		}
		full = next
		return account, err
	})
}

func TestHTTP2(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls atomic.Int64
	server := httptest.NewUnstartedServer(newAPI(t, &calls))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	trusts := server.Client().Transport.(*http.Transport) // the server's certificate
	got := doctorOf(t, func(target *stackcheck.Target) { target.Transport = trusts.Clone }, server.URL, "--key", apiKey, "--secret", secret, "--json")
	t.Log(got.stdout, got.stderr)
	is.Equal(got.code, healthy)
	is.True(strings.Contains(got.stdout, "the response is HTTP/2.0"))
	is.True(strings.Contains(got.stdout, "the response is HTTP/1.1"))
}

func TestFindings(t *testing.T) {
	t.Parallel()
	var calls, chats atomic.Int64
	for _, c := range []struct {
		name  string
		h     http.Handler
		check string
	}{
		{"middleware that collects", http.TimeoutHandler(newAPI(t, &calls), time.Minute, ""), "fragments arrive one by one"},
		{"middleware that recovers", recovering(newAPI(t, &calls)), "an incomplete answer looks incomplete"},
		{"no keep-alives", newAPI(t, &calls, func(o *botapi.Options) { o.KeepAlive = -1 }), "a silent stream stays open"},
		{"a short time limit", limiting(newAPI(t, &calls, func(o *botapi.Options) { o.KeepAlive = -1 })), "a silent stream stays open"},
		{"a context without an end", endless(newQuietAPI(t, &calls)), "a disconnect stops the model"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := is.New(t)
			address := serve(t, &chats, c.h)
			got := doctorOf(t, impatient, address, "--key", apiKey, "--secret", secret)
			t.Log(got.stdout)
			is.Equal(got.code, hasFindings)
			is.True(regexp.MustCompile(`(?m)^✗ +` + c.check + ` .* \(docs/operating\.md#\S+\)$`).MatchString(got.stdout))
			is.True(!strings.Contains(got.stdout, "?"))
		})
	}
}

// Without a secret, less can be seen.
func TestFindingsWithoutAProbe(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls, chats atomic.Int64
	got := doctor(t, serve(t, &chats, http.TimeoutHandler(newAPI(t, &calls), time.Minute, "")), "--key", apiKey)
	is.Equal(got.code, hasFindings)
	is.True(strings.Contains(got.stdout, "✗ an answer of a bot arrives"))
}

func TestJSON(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls, chats atomic.Int64
	got := doctor(t, serve(t, &chats, recovering(newAPI(t, &calls))), "--key", apiKey, "--secret", secret, "--json")
	is.Equal(got.code, hasFindings)
	var printed struct {
		Code    int
		Results []struct {
			Check    string
			Findings []struct{ Sent, Arrived, Effect, Cause, Doc string }
			Clock    []struct {
				Yielded float64 `json:"yielded_ms"`
				Arrived float64 `json:"arrived_ms"`
			}
		}
	}
	is.NoErr(json.Unmarshal([]byte(got.stdout), &printed))
	is.Equal(printed.Code, hasFindings)
	clocks, findings := 0, 0
	for _, r := range printed.Results {
		clocks, findings = clocks+len(r.Clock), findings+len(r.Findings)
		for _, c := range r.Clock {
			is.True(c.Yielded > 0 && c.Arrived > 0)
		}
	}
	is.Equal(clocks, 6)
	is.Equal(findings, 1)
}

// TestOriginThatWasMadeUp has a service that allows one origin, which the doctor cannot know.
func TestOriginThatWasMadeUp(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	var calls, chats atomic.Int64
	api := newAPI(t, &calls)
	address := serve(t, &chats, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if origin := r.Header.Get("Origin"); origin == "https://app.example.com" {
			w.Header().Set("Access-Control-Allow-Origin", origin)
		}
		api.ServeHTTP(w, r)
	}))
	got := doctor(t, address, "--key", apiKey, "--json")
	t.Log(got.stdout)
	is.Equal(got.code, healthy)
	is.True(strings.Contains(got.stdout, "https://botapi-doctor.example, which the doctor made up, is not allowed (CORS): check one of yours with --origin"))
	is.True(!strings.Contains(got.stdout, "no page of another origin"))
}

func TestWhatCannotBeChecked(t *testing.T) {
	t.Parallel()
	var calls, chats atomic.Int64
	address := serve(t, &chats, newAPI(t, &calls))
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{address, "--key", "wrong"}, "rejects the key"},
		{[]string{address, "--key", apiKey, "--secret", "another-secret-of-it"}, "does the service have Engine: botapitest.Probed"},
		{[]string{"http://127.0.0.1:1", "--key", apiKey}, "refused"},
		{[]string{address, "--key", apiKey, "more"}, "one address"},
		{[]string{"chat.example.com", "--key", apiKey}, "is no address"},
		{[]string{address, "--key", apiKey, "--silence", "1h"}, "5 minutes"},
		{[]string{address, "--colour"}, "not defined"},
	} {
		is := is.New(t)
		got := doctor(t, c.args...)
		is.Equal(got.code, notChecked)
		is.True(strings.Contains(got.stderr, c.says))
		is.Equal(got.stdout, "")
		is.True(!strings.Contains(got.stderr, apiKey))
	}
	is.New(t).True(calls.Load() <= 1) // a wrong secret costs one chat
}

// choosing chooses a handler by the body of the request.
func choosing(choose func(body []byte) http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		choose(body).ServeHTTP(w, r)
	})
}

func recovering(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }()
		h.ServeHTTP(w, r)
	})
}

func endless(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(context.WithoutCancel(r.Context())))
	})
}

// limiting aborts a chat that takes longer than three seconds.
func limiting(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 3*time.Second)
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}
