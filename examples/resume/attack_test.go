package resume_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/resume"
	"github.com/matryer/is"
)

// serveOver serves chats over a real connection, of HTTP/1 or HTTP/2.
func serveOver(t *testing.T, http2 bool, o resume.Options, change ...func(*botapi.Options)) (*resume.Engine, *httptest.Server) {
	t.Helper()
	engine, h := handler(t, o, change...)
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = http2
	if http2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return engine, server
}

// sendTo sends a chat, or a DELETE, and reads its response.
func sendTo(ctx context.Context, server *httptest.Server, path, method, apiKey, prompt string, keys ...string) (int, string, http.Header) {
	var body io.Reader
	if method == "POST" {
		body = strings.NewReader(fmt.Sprintf(`{"bot_slug":"helper","prompt":%q,"stream":true}`, prompt))
	}
	r, _ := http.NewRequestWithContext(ctx, method, server.URL+path, body)
	r.Header.Set("Authorization", "Bearer "+apiKey)
	r.Header[resume.Header] = keys
	response, err := server.Client().Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text), response.Header
}

// TestNeverMoreModels has clients that start, leave, stop and repeat, with keys and
// engines that ignore cancellation: never do more models run than are allowed.
func TestNeverMoreModels(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		for name, c := range map[string]struct {
			settings resume.Settings
			slots    int64 // of botapi
		}{
			"RunningPerOwner":          {resume.Settings{RunningPerOwner: 3}, 0},
			"RunningPerOwner, no room": {resume.Settings{RunningPerOwner: 3, AllBytes: 1}, 0},
			"slots":                    {resume.Settings{}, 3},
			"slots, few readers":       {resume.Settings{Readers: 1}, 3},
			"slots, no room":           {resume.Settings{AllBytes: 1}, 3},
		} {
			t.Run(fmt.Sprintf("http2=%t %s", http2, name), func(t *testing.T) {
				is := is.New(t)
				var running, most, calls, reports atomic.Int64
				engine, server := serveOver(t, http2, resume.Options{
					Store:    resume.NewMemory(c.settings),
					OnAnswer: func(context.Context, resume.Report) { reports.Add(1) },
					Engine: botapi.ChatEngineFunc(func(context.Context, *botapi.ChatRequest) iter.Seq2[string, error] {
						return func(yield func(string, error) bool) {
							calls.Add(1)
							now := running.Add(1)
							defer running.Add(-1)
							for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
							}
							_ = yield("one", nil)
							time.Sleep(2 * time.Millisecond) // whatever its context says
						}
					}),
				}, func(o *botapi.Options) { o.MaxChatsPerAccount = c.slots })
				var all sync.WaitGroup
				for i := range 16 {
					all.Go(func() {
						for j := range 20 {
							key := fmt.Sprintf("key-0123456789-%d-%d", (i+j)%7, j/4)
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(j%5+1)*time.Millisecond)
							if j%5 == 4 { // on a busy machine, the others may reach no engine
								ctx = t.Context()
							}
							sendTo(ctx, server, "/v1/chat", "POST", "key", "Hi", key)
							cancel()
							if j%3 == 0 {
								sendTo(t.Context(), server, "/v1/answers", "DELETE", "key", "", key)
							}
						}
					})
				}
				all.Wait()
				is.NoErr(engine.Close(t.Context()))
				server.Close()
				for reports.Load() < calls.Load() { // Close does not wait for answers that are not kept
					time.Sleep(time.Millisecond)
				}
				is.True(calls.Load() > 16)
				is.Equal(reports.Load(), calls.Load())
				is.True(most.Load() <= 3)
			})
		}
	}
}

// TestAnswersRejectsAsBotapi compares the 401 of /v1/answers with that of the list.
func TestAnswersRejectsAsBotapi(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		is := is.New(t)
		_, server := serveOver(t, http2, resume.Options{Engine: words("one")})
		for _, authorization := range []string{"", "Bearer wrong", "Basic abc", "Bearer"} {
			get := func(method, path string) (int, string, http.Header) {
				r, _ := http.NewRequest(method, server.URL+path, nil)
				r.Header.Set("Authorization", authorization)
				r.Header.Set(resume.Header, key)
				r.Header.Set("X-Request-Id", "same")
				response, err := server.Client().Do(r)
				is.NoErr(err)
				defer response.Body.Close()
				body, _ := io.ReadAll(response.Body)
				response.Header.Del("Date")
				return response.StatusCode, string(body), response.Header
			}
			s1, b1, h1 := get("GET", "/v1/bots")
			s2, b2, h2 := get("DELETE", "/v1/answers")
			is.Equal(s1, 401)
			is.Equal(s1, s2)
			is.Equal(b1, b2)
			is.Equal(h1, h2)
		}
		for _, path := range []string{"/v1/answers", "/answers"} {
			status, body, _ := sendTo(t.Context(), server, path, "DELETE", "key", "", key)
			is.Equal(status, 404)
			is.Equal(strings.TrimSpace(body), `{"detail":"Answer not found"}`)
		}
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "PUT"} {
			status, _, header := sendTo(t.Context(), server, "/v1/answers", method, "key", "Hi", key)
			is.Equal(status, 405)
			is.Equal(header.Get("Allow"), "DELETE")
			is.Equal(header.Get(resume.OutcomeHeader), "")
		}
		for _, keys := range [][]string{nil, {""}, {"short"}, {key, key}, {key + " x"}, {strings.Repeat("a", 256)}, {key + "/"}, {key + "é"}} {
			status, _, _ := sendTo(t.Context(), server, "/v1/answers", "DELETE", "key", "", keys...)
			is.Equal(status, 400)
			if keys != nil {
				status, _, _ = sendTo(t.Context(), server, "/v1/chat", "POST", "key", "Hi", keys...)
				is.Equal(status, 400)
			}
		}
	}
}

// TestTwoBodiesUnderOneKey at the same time: one is answered, the other a 409.
func TestTwoBodiesUnderOneKey(t *testing.T) {
	is := is.New(t)
	engine, server := serveOver(t, true, resume.Options{Engine: words("one")})
	for i := range 50 {
		key := fmt.Sprintf("key-0123456789-%d", i)
		var status [2]int
		var all sync.WaitGroup
		for j := range status {
			all.Go(func() { status[j], _, _ = sendTo(t.Context(), server, "/v1/chat", "POST", "key", fmt.Sprint(j), key) })
		}
		all.Wait()
		is.Equal(status[0]+status[1], 200+409)
		s, _, _ := sendTo(t.Context(), server, "/v1/answers", "DELETE", "other", "", key)
		is.Equal(s, 404)
	}
	is.NoErr(engine.Close(t.Context()))
}
