package main

import (
	"bufio"
	"fmt"
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
	t.Parallel()
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
	begin := func(key, word string) {
		t.Helper()
		resp := send("POST", "/v1/chat", key)
		is.Equal(resp.Header.Get("X-Botapi-Answer"), "kept")
		first, err := bufio.NewReader(resp.Body).ReadString('\n')
		is.NoErr(err)
		is.Equal(first, `data: {"content":"`+word+` "}`+"\n")
		resp.Body.Close()
	}

	begin("the-first-answer", "What")
	resp := send("POST", "/v1/chat", "the-first-answer")
	is.Equal(resp.Header.Get("X-Botapi-Answer"), "joined")
	is.Equal(joined(t, resp.Body), answerOfMira) // from its first fragment

	begin("the-second-answer", "When") // another answer to the same question
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

// TestAnotherAnswer asks for three answers to each question that the page suggests: without
// keys, they are the same, and with keys, the second is another one.
func TestAnotherAnswer(t *testing.T) {
	server := serveBuiltIn(t, "the-key", io.Discard)
	for _, bot := range []string{"mira", "juniper"} {
		for i, question := range questions[bot] {
			t.Run(question, func(t *testing.T) {
				is := is.New(t)
				var answers []string
				for _, key := range []string{"", "a-key-for-one-answer", "a-key-for-another"} {
					req, err := http.NewRequest("POST", server.URL+"/v1/chat", strings.NewReader(chatBody(bot, question, false)))
					is.NoErr(err)
					req.Header.Set("Authorization", "Bearer the-key")
					if key != "" {
						req.Header.Set("Idempotency-Key", fmt.Sprint(key, bot, i))
					}
					resp, err := http.DefaultClient.Do(req)
					is.NoErr(err)
					answer, err := io.ReadAll(resp.Body)
					is.NoErr(err)
					is.NoErr(resp.Body.Close())
					is.Equal(resp.StatusCode, http.StatusOK)
					answers = append(answers, string(answer))
				}
				is.Equal(answers[1], answers[0])
				is.True(answers[2] != answers[0])
			})
		}
	}
}

// TestShutdownStopsAnswersWithoutReaders checks that the program does not wait for an
// answer that nobody can get any more.
func TestShutdownStopsAnswersWithoutReaders(t *testing.T) {
	t.Parallel()
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
