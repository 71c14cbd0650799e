package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/runtimetest"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

func TestReplicaWaitsForItsSchema(t *testing.T) {
	is := is.New(t)
	env := []string{"DATABASE_URL=" + postgrestest.Database(t)}
	p := serve(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
	eventually(t, "it listens", func() bool { return p.status("/health-check") == http.StatusOK })
	is.Equal(p.status("/readyz"), http.StatusServiceUnavailable)

	is.Equal(command(t, "", env, "migrate").code, 0)
	p.ready(t)
	p.terminate(t)
	p.wait(t)
}

// spans is an OpenTelemetry collector that keeps the names of spans.
type spans struct {
	mu    sync.Mutex
	names []string
}

func (s *spans) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var sent collector.ExportTraceServiceRequest
	if proto.Unmarshal(body, &sent) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range sent.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				s.names = append(s.names, span.Name)
			}
		}
	}
}

func (s *spans) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.names)
}

func TestChatIsSeenFromOutside(t *testing.T) {
	is := is.New(t)
	var spans spans
	otel := httptest.NewServer(&spans)
	defer otel.Close()
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Role()
		s.Text("SECRET answer")
		s.Stop()
		s.Usage(9, 7)
		s.Done()
	})
	env := migrated(t)
	importBots(t, env, oneBot)
	key := createKey(t, env)
	p := serve(t, append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+otel.URL), "--runtime", "local="+runtime.URL)
	p.ready(t)

	status, answer := ask(t, key, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK)
	is.True(strings.Contains(answer, `"slug":"helper"`))
	is.True(!strings.Contains(answer, "SECRET"))
	status, answer = ask(t, key, "POST", p.url+"/v1/chat", `{"bot_slug":"helper","prompt":"SECRET prompt","stream":true,"user_id":"SECRET user"}`)
	is.Equal(status, http.StatusOK)
	is.Equal(answer, "data: {\"content\":\"SECRET answer\"}\n\ndata: [DONE]\n\n")
	status, _ = ask(t, "bot_WRONG", "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusUnauthorized)

	metrics := scrape(t, p)
	for _, series := range []string{
		`gen_ai_client_operation_duration_seconds_count{gen_ai_operation_name="chat",gen_ai_provider_name="openai",gen_ai_request_model="m1",`,
		`gen_ai_client_operation_time_to_first_chunk_seconds_count{`,
		`gen_ai_client_token_usage_bucket{`,
		`http_server_request_duration_seconds_count{http_request_method="POST",http_response_status_code="200",http_route="/v1/chat",`,
		`http_client_request_duration_seconds_count{`,
		`botapi_chats_in_progress{`,
		`go_goroutines`,
		`process_open_fds`,
	} {
		if !strings.Contains(metrics, "\n"+series) {
			t.Errorf("no %s in\n%s", series, metrics)
		}
	}

	chats := p.logged(t, "chat")
	is.Equal(len(chats), 1)
	is.Equal(chats[0]["account"], "acme")
	is.Equal(chats[0]["status"], 200.0)
	asked := runtime.Requests()[0]
	is.Equal(chats[0]["request_id"], asked.Header.Get("X-Request-Id")) // the same id from end to end
	trace, _ := chats[0]["trace_id"].(string)
	is.True(len(trace) == 32)
	is.True(strings.Contains(asked.Header.Get("Traceparent"), trace)) // and the same trace

	p.terminate(t)
	p.wait(t)
	for _, name := range []string{"GET /v1/bots", "POST /v1/chat", "chat m1", "HTTP POST"} {
		is.True(slices.Contains(spans.seen(), name))
	}
	for _, secret := range []string{"SECRET", key, "bot_WRONG"} {
		is.True(!strings.Contains(p.log.String(), secret))
	}
	is.Equal(usageOf(t, env), []used{{"acme", "SECRET user", "u1", 200, true}}) // that is where an abuse monitor looks
}

func scrape(t *testing.T, p *process) string {
	t.Helper()
	_, metrics := ask(t, "", "GET", p.url+"/metrics", "")
	return metrics
}

// used is a row of the usage table.
type used struct {
	Account, User, Bot string
	Status             int
	Complete           bool
}

func usageOf(t *testing.T, env []string) []used {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), strings.TrimPrefix(env[0], "DATABASE_URL="))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT account, user_id, bot_uid, status, complete FROM usage ORDER BY ended_at`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[used])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// paced is a runtime that says one more word each time it is told to, and ends
// when there will be no more.
func paced(t *testing.T) (words chan string, url string) {
	t.Helper()
	words = make(chan string, 1)
	return words, runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		for {
			select {
			case word, more := <-words:
				if !more {
					s.Stop()
					return
				}
				s.Text(word)
			case <-r.Context().Done():
				return
			}
		}
	}).URL
}

func TestShutdownLetsStreamsEnd(t *testing.T) {
	is := is.New(t)
	words, runtime := paced(t)
	env := migrated(t)
	importBots(t, env, oneBot)
	key := createKey(t, env)
	p := serve(t, env, "--runtime", "local="+runtime, "--drain-delay", "2s")
	p.ready(t)
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)

	p.terminate(t)
	eventually(t, "it is unready", func() bool { return p.status("/readyz") == http.StatusServiceUnavailable })
	status, _ := ask(t, key, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK) // unready, but nobody is turned away
	eventually(t, "it takes no new connections", func() bool { return p.status("/health-check") == 0 })

	words <- "two"
	is.Equal(s.next(), `{"content":"two"}`)
	close(words)
	is.Equal(s.next(), "[DONE]")
	p.wait(t)
	is.Equal(usageOf(t, env), []used{{"acme", "u-42", "u1", 200, true}})
}

func TestShutdownCutsStreamsWhenGraceIsOver(t *testing.T) {
	is := is.New(t)
	words, runtime := paced(t)
	env := migrated(t)
	importBots(t, env, oneBot)
	key := createKey(t, env)
	p := serve(t, env, "--runtime", "local="+runtime, "--grace", "100ms")
	p.ready(t)
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)

	p.terminate(t)
	p.wait(t)
	is.True(s.next() != "[DONE]") // nobody takes it for whole
	is.Equal(usageOf(t, env), []used{{"acme", "u-42", "u1", 200, false}})
}

func TestDatabaseGoesAwayAndComesBack(t *testing.T) {
	is := is.New(t)
	database := postgrestest.NewServer(t)
	env := []string{"DATABASE_URL=" + database.URL}
	is.Equal(command(t, "", env, "migrate").code, 0)
	importBots(t, env, oneBot)
	key := createKey(t, env)
	words, runtime := paced(t)
	p := serve(t, env, "--runtime", "local="+runtime)
	p.ready(t)
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)

	database.Stop(t)
	words <- "two"
	is.Equal(s.next(), `{"content":"two"}`) // a stream needs no database
	status, answer := ask(t, key, "POST", p.url+"/v1/chat", `{"bot_slug":"helper","prompt":"Hi","stream":true}`)
	is.Equal(status, http.StatusServiceUnavailable)
	is.Equal(answer, `{"detail":"The service is unavailable for the moment"}`)
	is.Equal(p.status("/readyz"), http.StatusOK)
	close(words)
	is.Equal(s.next(), "[DONE]")
	eventually(t, "usage waits", func() bool { return len(p.logged(t, "usage waits for its store")) > 0 })

	database.Start(t)
	status, _ = ask(t, key, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK)
	p.terminate(t)
	p.wait(t)
	is.Equal(usageOf(t, env), []used{{"acme", "u-42", "u1", 200, true}}) // nothing was lost
}

func TestRevokedKeyStopsWorking(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	key := createKey(t, env)
	p := serve(t, env, "--runtime", "local=http://127.0.0.1:1/v1", "--key-cache", "1s")
	p.ready(t)
	status, _ := ask(t, key, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK)

	is.Equal(command(t, "", env, "keys", "revoke", "1").code, 0)
	eventually(t, "the key is refused", func() bool {
		status, _ := ask(t, key, "GET", p.url+"/v1/bots", "")
		return status == http.StatusUnauthorized
	})
}
