package histories

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/answers"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/resume"
	"go.opentelemetry.io/otel/metric/noop"
)

// replicaVariable is the environment variable that has the settings of a
// replica's process.
const replicaVariable = "HISTORIES_REPLICA"

const (
	// lease is the duration of all leases here: longer than a busy machine may
	// stop.
	lease = 3 * time.Second
	// timeout is how long a replica waits for its Redis.
	timeout = 2 * time.Second
)

// Without a Redis, answers are kept in memory, and there are no limits.
type replicaSettings struct{ Address, Redis, Runtime string }

// TestMain runs a replica in the processes that the tests start, so that they
// can be killed.
func TestMain(m *testing.M) {
	if text := os.Getenv(replicaVariable); text != "" {
		var s replicaSettings
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			panic(err)
		}
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // ends with the process that has started this one
			os.Exit(1)
		}()
		panic(serveReplica(s))
	}
	os.Exit(m.Run())
}

// serveReplica serves the relevant parts of a replica. Its API keys are the
// accounts' names.
func serveReplica(s replicaSettings) error {
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("HISTORIES_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	o := resume.Options{Engine: runtimeAt(s.Runtime), ValidKey: answers.ValidKey, Logger: logger}
	o.Store = resume.NewMemory(resume.Settings{Lease: lease, Readers: 100})
	away := func() bool { return false }
	if s.Redis != "" {
		client, err := share(s, &o)
		if err != nil {
			return err
		}
		away = client.Away
	}
	engine := resume.New(o)
	bots, err := botapi.NewMemoryStore(botapi.Bot{UID: "u1", Slug: "helper", Name: "Helper", Model: "m1"})
	if err != nil {
		return err
	}
	keys := botapi.KeyVerifierFunc(func(_ context.Context, key string) (string, error) { return key, nil })
	api := botapi.New(botapi.Options{Bots: bots, Keys: keys, Engine: engine, Routes: engine.Routes(), OnLimit: engine.OnLimit, Logger: logger})
	routes := http.NewServeMux()
	routes.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), wordsKey{}, new(atomic.Int64))
		api.ServeHTTP(w, r.WithContext(ctx))
	})
	routes.HandleFunc("/away", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, away()) })
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return err
	}
	return http.Serve(listener, routes)
}

// share has a replica share its answers and limits in Redis: resume wraps limits,
// which wraps the runtime.
func share(s replicaSettings, o *resume.Options) (*redisclient.Client, error) {
	client, err := redisclient.Open(redisclient.Options{URL: s.Redis, Timeout: timeout, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	go client.Watch(context.Background())
	limited := limits.New(limits.Options{
		Engine: o.Engine, Limits: limitsByName, Redis: client, Lease: lease, Logger: o.Logger,
		Reserve: reserve, Used: func(ctx context.Context) int64 { return wordsOf(ctx).Load() },
	})
	o.Engine = limited
	o.Store, err = answers.New(client, o.Store.Settings(), noop.Meter{})
	o.Admit = func(ctx context.Context, _ *botapi.ChatRequest) error {
		return limited.Rejected(botapi.AccountFrom(ctx))
	}
	return client, err
}

// A token is a word here. A chat reserves spare tokens more than it uses.
const spare = 10

type wordsKey struct{}

// wordsOf is how many words a chat has received.
func wordsOf(ctx context.Context) *atomic.Int64 { return ctx.Value(wordsKey{}).(*atomic.Int64) }

func reserve(_ context.Context, req *botapi.ChatRequest) int64 {
	return int64(promptOf(req.Messages[0].Content).words + spare)
}

// limitsByName reads the limits of an account from its name, as in
// "concurrent=3,per-minute=10,per-day=100,a7".
func limitsByName(_ context.Context, account string) (l limits.Limits, err error) {
	if strings.HasPrefix(account, "concurrent=") {
		_, err = fmt.Sscanf(account, "concurrent=%d,per-minute=%d,per-day=%d", &l.ConcurrentChats, &l.ChatsPerMinute, &l.TokensPerDay)
	}
	return l, err
}

// runtimeAt asks the test for an answer. Each line is a fragment; endLine means
// that the answer is complete.
func runtimeAt(url string) botapi.ChatEngineFunc {
	return func(ctx context.Context, req *botapi.ChatRequest) iter.Seq2[string, error] {
		return func(yield func(string, error) bool) {
			request, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(req.Messages[0].Content))
			if err != nil {
				yield("", err)
				return
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				yield("", err)
				return
			}
			defer response.Body.Close()
			for lines := bufio.NewScanner(response.Body); lines.Scan(); {
				if lines.Text() == endLine {
					return
				}
				wordsOf(ctx).Add(1)
				if !yield(lines.Text()+" ", nil) {
					return
				}
			}
			yield("", &botapi.StatusError{Status: http.StatusServiceUnavailable, Detail: "The model fails", Err: io.ErrUnexpectedEOF})
		}
	}
}
