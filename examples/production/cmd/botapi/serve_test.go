package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

func TestReplicaWaitsForItsSchema(t *testing.T) {
	is := is.New(t)
	env := []string{"DATABASE_URL=" + postgrestest.Database(t)}
	p := serveTo(t, nil, env, "--runtime", nowhere)
	eventually(t, "it listens", func() bool { return statusOf(p.url+"/health-check") == http.StatusOK })
	is.Equal(p.readiness(), http.StatusServiceUnavailable)

	is.Equal(command(t, "", env, "migrate").code, 0)
	p.ready(t)
	p.end(t)
}

func TestReplicaWarnsOfRuntimesThatItDoesNotHave(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	bots := `[{"uid":"u1","slug":"one","name":"One","model":"m1","runtime":"big"},{"uid":"u2","slug":"two","name":"Two","model":"m1","runtime":"local"},
		{"uid":"u3","slug":"three","name":"Three","model":"m1","runtime":"big"},{"uid":"u4","slug":"four","name":"Four","model":"m1"}]`
	is.Equal(command(t, bots, env, "bots", "import", "--runtime", "big,local", "-").code, 0)
	p := serve(t, env, "--runtime", nowhere)
	const warning = "bots name a runtime that does not exist"
	eventually(t, "it warns", func() bool { return len(p.logged(t, warning)) > 0 })
	p.end(t)
	is.Equal(len(p.logged(t, warning)), 1)
	is.Equal(p.logged(t, warning)[0]["runtime"], "big")
	is.Equal(p.logged(t, warning)[0]["bots"], []any{"one", "three"})
}

// spans is an OpenTelemetry collector.
type spans struct {
	mu  sync.Mutex
	all []*tracepb.Span
}

// collect starts a collector, and returns the variable that a replica needs for it.
func collect(t *testing.T) (s *spans, variable string) {
	t.Helper()
	s = new(spans)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, "OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL
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
			s.all = append(s.all, scope.Spans...)
		}
	}
}

// named returns the spans of this name.
func (s *spans) named(name string) (found []*tracepb.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.all {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// values returns the values of an attribute of the spans with this name.
func (s *spans) values(name, attribute string) (values []string) {
	for _, span := range s.named(name) {
		for _, a := range span.Attributes {
			if a.Key == attribute && a.Value.GetStringValue() != "" {
				values = append(values, a.Value.GetStringValue())
			} else if a.Key == attribute {
				values = append(values, strconv.FormatInt(a.Value.GetIntValue(), 10))
			}
		}
	}
	return values
}

func TestTelemetryOfAChat(t *testing.T) {
	is := is.New(t)
	spans, collector := collect(t)
	runtime := saysCounted(t, "SECRET answer")
	env, key := withOneBot(t)
	p := serve(t, append(env, collector), "--runtime", "local="+runtime.URL)

	status, answer := ask(t, key, "GET", p.url+"/v1/bots", "")
	is.Equal(status, http.StatusOK)
	is.True(strings.Contains(answer, `"slug":"helper"`))
	is.True(!strings.Contains(answer, "SECRET"))
	status, answer = ask(t, key, "POST", p.url+"/v1/chat", `{"bot_slug":"helper","prompt":"SECRET prompt","stream":true,"user_id":"SECRET user"}`)
	is.Equal(status, http.StatusOK)
	is.Equal(answer, "data: {\"content\":\"SECRET answer\"}\n\ndata: [DONE]\n\n")
	is.Equal(askStatus(t, "bot_WRONG", "GET", p.url+"/v1/bots", ""), http.StatusUnauthorized)

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
		eventually(t, "it measures "+series, func() bool { return strings.Contains(scrape(t, p), "\n"+series) })
	}

	is.True(p.measures(t, // the last bucket before infinity is no shorter than --chat-timeout
		`http_server_request_duration_seconds_bucket\{.*le="640"\}`,
		`gen_ai_client_operation_duration_seconds_bucket\{.*le="655.36"\}`,
		`gen_ai_client_operation_time_to_first_chunk_seconds_bucket\{.*le="640"\}`))

	eventually(t, "the chat is logged", func() bool { return len(p.logged(t, "chat")) == 1 })
	chats := p.logged(t, "chat")
	is.Equal(chats[0]["account"], "acme")
	is.Equal(chats[0]["status"], 200.0)
	asked := runtime.Requests()[0]
	is.Equal(chats[0]["request_id"], asked.Header.Get("X-Request-Id")) // the same id from end to end
	trace, _ := chats[0]["trace_id"].(string)
	is.True(len(trace) == 32)
	is.True(strings.Contains(asked.Header.Get("Traceparent"), trace)) // and the same trace

	p.end(t)
	for _, name := range []string{"GET /v1/bots", "POST /v1/chat", "chat m1", "HTTP POST"} {
		is.True(len(spans.named(name)) > 0)
	}
	for _, secret := range []string{"SECRET", key, "bot_WRONG"} {
		is.True(!strings.Contains(p.log.String(), secret))
	}
	is.Equal(usageOf(t, env), []used{{"acme", "SECRET user", "u1", 200, true}}) // for finding abuse

	added := command(t, "", env, "usage", "--csv").stdout
	header, line, _ := strings.Cut(added, "\n")
	is.Equal(header, "day,account,chats,complete,bytes,counted,prompt_tokens,completion_tokens,estimated,rejected,joins")
	_, line, _ = strings.Cut(line, ",") // the day
	is.Equal(line, "acme,1,1,13,1,9,7,0,0,0\n")
}

func scrape(t testing.TB, p *process) string {
	t.Helper()
	_, metrics := ask(t, "", "GET", p.internal+"/metrics", "")
	return metrics
}

// scrapeMeasured waits until a request is in the metrics, which happens after
// its response.
func scrapeMeasured(t *testing.T, p *process) (metrics string) {
	t.Helper()
	eventually(t, "a request is measured", func() bool {
		metrics = scrape(t, p)
		return strings.Contains(metrics, "\nhttp_server_request_duration_seconds_count{")
	})
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
	rows, _ := databaseOf(t, env).Query(t.Context(), `SELECT account, user_id, bot_uid, status, complete FROM usage ORDER BY ended_at`)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[used])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// paced is a runtime that sends one more word each time it is told to, and ends
// when words is closed.
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
	p, key := serveOneBot(t, "--runtime", "local="+runtime, "--drain-delay", "2s")
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)

	p.terminate(t)
	eventually(t, "it is unready", func() bool { return p.readiness() == http.StatusServiceUnavailable })
	is.Equal(askStatus(t, key, "GET", p.url+"/v1/bots", ""), http.StatusOK) // unready, but it still accepts requests
	eventually(t, "it accepts no new connections", func() bool { return statusOf(p.url+"/health-check") == 0 })

	words <- "two"
	is.Equal(s.next(), `{"content":"two"}`)
	close(words)
	is.Equal(s.next(), "[DONE]")
	p.wait(t)
	is.Equal(usageOf(t, p.env), []used{{"acme", "u-42", "u1", 200, true}})
}

func TestShutdownEndsChatsWhenGraceIsOver(t *testing.T) {
	is := is.New(t)
	words, runtime := paced(t)
	p, key := serveOneBot(t, "--runtime", "local="+runtime, "--grace", "100ms")
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)
	rejected := make(chan *http.Response, 1)
	go func() {
		defer close(rejected)
		if response, err := request(t.Context(), http.DefaultClient, key, "POST", p.url+"/v1/chat", chatBody("Hi", false)); err == nil {
			response.Body.Close()
			rejected <- response
		}
	}()
	eventually(t, "both chats are in progress", func() bool { return p.measures(t, `botapi_chats_in_progress\{.*\} 2$`) })

	p.terminate(t)
	is.Equal(s.next(), `{"detail":"The service is restarting","status":503,"retry_after":1}`)
	is.Equal(s.next(), "")
	is.True(s.lines.Err() != nil) // nobody takes it for complete
	response := <-rejected
	is.True(response != nil)
	is.Equal(response.StatusCode, http.StatusServiceUnavailable)
	is.Equal(response.Header.Get("Retry-After"), "1")
	p.wait(t)
	chats := p.logged(t, "chat")
	is.Equal(len(chats), 2)
	for _, chat := range chats {
		is.True(strings.Contains(chat["error"].(string), "the grace time of the shutdown is over"))
	}
	var statuses []int
	query(t, p.env, `SELECT array_agg(status ORDER BY status) FROM usage WHERE NOT complete`, &statuses)
	is.Equal(statuses, []int{200, 503})
}

func TestDatabaseStopsAndRestarts(t *testing.T) {
	is := is.New(t)
	database := postgrestest.NewServer(t)
	env, key := withOneBotAt(t, database.URL)
	words, runtime := paced(t)
	p := serve(t, env, "--runtime", "local="+runtime)
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)

	database.Stop(t)
	words <- "two"
	is.Equal(s.next(), `{"content":"two"}`) // a stream needs no database
	status, answer := ask(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true))
	is.Equal(status, http.StatusServiceUnavailable)
	is.Equal(answer, `{"detail":"The service is unavailable for the moment"}`)
	eventually(t, "it is unready", func() bool { return p.readiness() == http.StatusServiceUnavailable })
	is.Equal(statusOf(p.internal+"/readyz-without-database"), http.StatusOK)
	close(words)
	is.Equal(s.next(), "[DONE]")
	eventually(t, "usage waits", func() bool { return len(p.logged(t, "usage waits for its store")) > 0 })

	database.Start(t)
	is.Equal(askStatus(t, key, "GET", p.url+"/v1/bots", ""), http.StatusOK)
	p.ready(t)
	p.end(t)
	is.Equal(usageOf(t, env), []used{{"acme", "u-42", "u1", 200, true}}) // nothing was lost
}

// TestUsageThatAShutdownCannotStore ends a replica while the database is down. Its
// metrics show what went to the log until they have been scraped.
func TestUsageThatAShutdownCannotStore(t *testing.T) {
	is := is.New(t)
	database := postgrestest.NewServer(t)
	env, key := withOneBotAt(t, database.URL)
	words, runtime := paced(t)
	p := serve(t, env, "--runtime", "local="+runtime)
	words <- "one"
	s := openStream(t, key, p.url)
	is.Equal(s.next(), `{"content":"one"}`)
	database.Stop(t)
	p.terminate(t)
	close(words)
	is.Equal(s.next(), "[DONE]")
	eventually(t, "usage is in the log", func() bool { return len(p.logged(t, "usage not stored")) == 1 })
	is.True(p.measures(t, `botapi_usage_not_stored_total(\{.*\})? 1$`))
	p.wait(t)
}

// TestChatQueriesItsBotOnce has PostgreSQL count the queries of bots. The query
// is a large part of the cost of opening a chat.
func TestChatQueriesItsBotOnce(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := says(t, "Hello")
	looks := func() (n int) {
		query(t, env, `SELECT seq_scan + coalesce(idx_scan, 0) FROM pg_stat_user_tables WHERE relname = 'bots'`, &n)
		return n
	}
	// lifetime is how many queries a replica makes that has this many chats.
	lifetime := func(chats int) int {
		before := looks()
		p := serve(t, env, "--runtime", "local="+runtime.URL)
		for range chats {
			is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true)), http.StatusOK)
		}
		p.end(t)
		settled := -1
		eventually(t, "its connections have ended, and what they did is counted", func() bool {
			var others int
			query(t, env, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`, &others)
			settled = looks()
			return others == 0
		})
		return settled - before
	}
	without := lifetime(0)
	is.Equal(lifetime(10)-without, 10)
}
