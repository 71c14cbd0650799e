package stackcheck

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/internal/probe"
	"github.com/matryer/is"
)

var (
	errDown  = botapi.StatusError{Status: 503, RetryAfter: 5 * time.Second, Err: errors.New("the database is down")}
	errQuery = errors.New("the column slug does not exist")
)

// A failingPart is a store or a verifier that asks before each call whether it fails.
type failingPart struct {
	botapi.BotStore
	botapi.KeyVerifier
	fails func() error
}

func (f failingPart) Bots(ctx context.Context) ([]botapi.Bot, error) {
	bots, err := f.BotStore.Bots(ctx)
	return bots, cmp.Or(f.fails(), err)
}

func (f failingPart) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	bot, err := f.BotStore.BotBySlug(ctx, slug)
	return bot, cmp.Or(f.fails(), err)
}

func (f failingPart) VerifyKey(ctx context.Context, key string) (string, error) {
	account, err := f.KeyVerifier.VerifyKey(ctx, key)
	return account, cmp.Or(f.fails(), err)
}

// withoutList fails when it looks for a bot alone.
type withoutList struct {
	failingPart
	list botapi.BotStore
}

func (w withoutList) Bots(ctx context.Context) ([]botapi.Bot, error) { return w.list.Bots(ctx) }

type breaking func(o *botapi.Options, fails func() error)

func breakStore(o *botapi.Options, fails func() error) {
	o.Bots = failingPart{BotStore: o.Bots, fails: fails}
}

func breakLookups(o *botapi.Options, fails func() error) {
	o.Bots = withoutList{failingPart{BotStore: o.Bots, fails: fails}, o.Bots}
}

func breakKeys(o *botapi.Options, fails func() error) {
	o.Keys = failingPart{KeyVerifier: o.Keys, fails: fails}
}

// A service with a part that fails has one finding, which says so, whatever is checked.
func TestFailingServices(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		face  face
		part  breaking
		err   error
		from  string // it fails from the first body on that has this text
		check string
		says  string
	}{
		{"a store that is down", probed, breakStore, errDown, "", checkReach, "GET /v1/bots\n ... 503 ... Retry-After: 5"},
		{"a store whose query fails", plain, breakStore, errQuery, "", checkReach, "GET /v1/bots\n ... 500"},
		{"a verifier that is down", plain, breakKeys, errDown, "", checkReach, "GET /v1/bots\n ... 503 ... Retry-After: 5"},
		{"a store that finds no bot", plain, breakLookups, errQuery, "", checkErrors, "POST /v1/chat\n ... 500"},
		{"a store that finds no bot for the probe", probed, breakLookups, errDown, "", checkBody, "POST /v1/chat\n ... 503"},
		{"a verifier that stops while bodies are checked", plain, breakKeys, errDown, "UNION SELECT", checkBody, "POST /v1/chat\n ... 503"},
		{"a store that stops while fragments are followed", probed, breakLookups, errDown, "fragment 0 ", checkOneByOne, "POST /v1/chat\n ... 503"},
		{"a store that stops before an incomplete answer", probed, breakLookups, errDown, `"text":"Once"`, checkFailure, "POST /v1/chat\n ... 503"},
		{"a store that stops before an engine's error", probed, breakLookups, errDown, `"fail":{"status":502`, checkEarly, "POST /v1/chat\n ... 503"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var isDown atomic.Bool
			isDown.Store(c.from == "")
			api := newFailingAPI(t, c.part, func() error {
				if isDown.Load() {
					return c.err
				}
				return nil
			})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(body))
				if c.from != "" && bytes.Contains(body, []byte(c.from)) {
					isDown.Store(true)
				}
				api.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			results := diagnose(t, server, c.face)
			assertOneFault(t, results, c.check, "the service itself has failed again", "sent:    "+c.says+" ... X-Request-Id: ... the service itself says 50 ... look in its log for the request id ")
		})
	}
}

const faultKey, faultSecret = "the-key-of-the-test", "the-secret-of-the-test"

func newFailingAPI(t *testing.T, breakPart breaking, fails func() error) http.Handler {
	t.Helper()
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "1", Slug: kitBot, Name: "Probe", Model: "none"})
	is.New(t).NoErr(err)
	model := botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) { yield("an answer", nil) }
	})
	o := botapi.Options{
		Bots:      bots,
		Keys:      botapi.StaticKeys(map[string]string{faultKey: "test"}),
		Engine:    probe.NewEngine(model, faultSecret),
		KeepAlive: time.Second,
		Logger:    slog.New(slog.DiscardHandler),
	}
	breakPart(&o, fails)
	return botapi.New(o)
}

// diagnose returns what is found from outside, with the secret of the probe or without it.
func diagnose(t *testing.T, server *httptest.Server, face face) []Result {
	t.Helper()
	target := Target{URL: server.URL, Key: faultKey, Patience: impatience}
	if face == probed {
		target.Secret = faultSecret
	}
	results, err := Diagnose(t.Context(), target)
	is.New(t).NoErr(err)
	return results
}

// limitingFrom rejects some requests, with pages, from the first body on that has a text.
func limitingFrom(text string, version int, rejected int64) middleware {
	return func(api http.Handler) http.Handler {
		var has atomic.Bool
		var left atomic.Int64
		left.Store(rejected)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if r.ProtoMajor == version && bytes.Contains(body, []byte(text)) {
				has.Store(true)
			}
			if has.Load() && left.Add(-1) >= 0 {
				http.Error(w, "<h1>Service Temporarily Unavailable</h1>", http.StatusServiceUnavailable)
				return
			}
			api.ServeHTTP(w, r)
		})
	}
}

// A limit in front that rejects with pages has one finding, which says so.
func TestLimitsInFront(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		face     face
		from     string
		rejected int64
		check    string
		again    string // what later checks say that could not be made
		says     string
	}{
		{"of a rate", plain, "UNION SELECT", 1, checkBody, "", "2 s later, the response was another"},
		{"of a rate, for the probe", probed, "UNION SELECT", 1, checkBody, "", "2 s later, the response was another"},
		{"of a rate, while fragments are followed", probed, "fragment 0 ", 1, checkOneByOne, "", "2 s later, the response was another"},
		{"of a rate, for an incomplete answer", probed, `"text":"Once"`, 1, checkFailure, "", "whose engine was to fail"},
		{"of a rate, for an engine's error", probed, `"fail":{"status":502`, 1, checkEarly, "", "whose engine was to fail"},
		{"that lasts", plain, "UNION SELECT", 1 << 20, checkBody, limitedAgain, "sent: "},
		{"that lasts, for the probe", probed, "fragment 0 ", 1 << 20, checkOneByOne, limitedAgain, "sent: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			api := newFailingAPI(t, func(*botapi.Options, func() error) {}, nil)
			server := httptest.NewServer(limitingFrom(c.from, 1, c.rejected)(api))
			t.Cleanup(server.Close)
			results := diagnose(t, server, c.face)
			assertOneFault(t, results, c.check, c.again, c.says+" ... a page that they cannot read ... nginx's limit_conn and limit_req")
		})
	}
}

// assertOneFault fails if there are other findings, or checks that could not be made for another reason.
func assertOneFault(t *testing.T, results []Result, check, again, says string) {
	t.Helper()
	is := is.New(t)
	var failed []string
	var said strings.Builder
	for _, r := range results {
		is.True(r.Problem == "" || again != "" && strings.HasPrefix(r.Problem, fmt.Sprintf("%s, as %q has found", again, check)))
		for _, f := range r.Findings {
			failed = append(failed, r.Check)
			said.WriteString(f.String() + "\n")
		}
	}
	t.Log(said.String())
	is.Equal(failed, []string{check})
	rest := said.String()
	for part := range strings.SplitSeq(says, " ... ") {
		_, after, isSaid := strings.Cut(rest, part)
		if !isSaid {
			t.Errorf("it does not say %q", part)
		}
		rest = after
	}
}

// A limit of chats is no failure of a part.
func TestLimitOfTheHandler(t *testing.T) {
	t.Parallel()
	is := is.New(t)
	api := newFailingAPI(t, func(o *botapi.Options, _ func() error) { o.MaxConcurrentChats = 3 }, nil)
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	results := diagnose(t, server, probed)
	var problems strings.Builder
	for _, r := range results {
		for _, f := range r.Findings {
			t.Errorf("%s: %s", r.Check, f)
		}
		problems.WriteString(r.Problem + "\n")
	}
	t.Log(problems.String())
	is.True(strings.Contains(problems.String(), `a limit has rejected a request (503, "Too many chats in progress")`))
	is.True(!strings.Contains(problems.String(), "the service itself"))
}
