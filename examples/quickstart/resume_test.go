package main

import (
	"bufio"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

// TestAnswerOutlivesItsConnection disconnects in the middle of an answer, joins it,
// and stops it.
func TestAnswerOutlivesItsConnection(t *testing.T) {
	is := is.New(t)
	store := new(botapi.MemoryStore)
	s := settings{key: "the-key", pace: 50 * time.Millisecond}
	is.NoErr(s.loadBots(store))
	handler, answers := s.service(store, slog.New(slog.DiscardHandler))
	server := httptest.NewServer(handler)
	defer server.Close()
	send := func(method, path, key string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(method, server.URL+path, strings.NewReader(chatBody("mira", firstQuestion(mira), true)))
		is.NoErr(err)
		req.Header.Set("Authorization", "Bearer the-key")
		req.Header.Set("Idempotency-Key", key)
		resp, err := http.DefaultTransport.RoundTrip(req)
		is.NoErr(err)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	begin := func(key string) {
		t.Helper()
		resp := send("POST", "/v1/chat", key)
		is.Equal(resp.Header.Get("X-Botapi-Answer"), "kept")
		first, err := bufio.NewReader(resp.Body).ReadString('\n')
		is.NoErr(err)
		is.Equal(first, `data: {"content":"What "}`+"\n")
		resp.Body.Close()
	}

	begin("the-first-answer")
	resp := send("POST", "/v1/chat", "the-first-answer")
	is.Equal(resp.Header.Get("X-Botapi-Answer"), "joined")
	is.Equal(joined(t, resp.Body), answerOfMira) // from its first fragment

	begin("the-second-answer")
	is.Equal(send("DELETE", "/v1/answers", "the-second-answer").StatusCode, http.StatusNoContent)
	resp = send("POST", "/v1/chat", "the-second-answer")
	is.Equal(resp.StatusCode, http.StatusGone)
	body, err := io.ReadAll(resp.Body)
	is.NoErr(err)
	is.Equal(string(body), `{"detail":"The answer was stopped"}`)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		all, _ := answers.InProgress()
		if all == 0 {
			break // the engine has returned
		}
		is.True(time.Now().Before(deadline))
	}
}

// TestShutdownStopsAnswersWithoutReaders checks that the program does not wait for an
// answer that nobody can get any more.
func TestShutdownStopsAnswersWithoutReaders(t *testing.T) {
	is := is.New(t)
	p := start(t, nil, "-pace", "1h")
	req, err := http.NewRequest("POST", p.base+"/v1/chat", strings.NewReader(chatBody("mira", firstQuestion(mira), true)))
	is.NoErr(err)
	req.Header.Set("Authorization", "Bearer "+p.key)
	req.Header.Set("Idempotency-Key", "an-answer-that-is-alone")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	is.NoErr(err)
	is.Equal(resp.StatusCode, http.StatusOK)
	resp.Body.Close()
	p.awaitLog("msg=chat") // the client has disconnected
	p.signal(syscall.SIGTERM)
	is.Equal(p.exitCode(), 0)
}
