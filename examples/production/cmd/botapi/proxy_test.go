package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// TestErrorsOfTheProxy has HAProxy respond with each of its own error statuses:
// the response is in the API's form, and has the id that is in the proxy's log.
func TestErrorsOfTheProxy(t *testing.T) {
	asked := make(chan struct{}, 10)
	runtime := runtimetest.New(t, func(_ *runtimetest.Stream, r *runtimetest.Request) {
		asked <- struct{}{}
		<-r.Context().Done() // it never answers
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)
	impatient := startProxyAt(t, "", []*process{p, p, p}, "BODY_TIME=1s", "ANSWER_TIME=1s")
	patient := startProxy(t, []*process{p, p, p})
	impatient.know(t, key)
	patient.know(t, key)
	head := "POST /v1/chat HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer " + key + "\r\nX-Request-Id: %s\r\n"

	for _, c := range []struct {
		status int
		proxy  proxy
		send   func(*testing.T, *connection)
	}{
		{http.StatusBadRequest, impatient, func(t *testing.T, c *connection) {
			c.send(t, head+"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
			is.New(t).Equal(c.answer(t).StatusCode, http.StatusContinue)
			c.send(t, "no length\r\n")
		}},
		{http.StatusRequestTimeout, impatient, func(t *testing.T, c *connection) {
			c.send(t, head+"Content-Length: 100\r\n\r\n{")
		}},
		{http.StatusGatewayTimeout, impatient, func(t *testing.T, c *connection) {
			body := chatBody("Hi", false)
			c.send(t, head+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
			<-asked
		}},
		{http.StatusBadGateway, patient, func(t *testing.T, c *connection) {
			body := chatBody("Hi", true)
			c.send(t, head+fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body))
			<-asked
			is.New(t).NoErr(p.cmd.Process.Kill())
		}},
		{http.StatusServiceUnavailable, patient, func(t *testing.T, c *connection) {
			for i := range replicas {
				patient.waitFor(t, "without_database", i, "DOWN")
			}
			c.send(t, head+"Content-Length: 2\r\n\r\n{}")
		}},
	} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			is := is.New(t)
			client := connect(t, c.proxy.url, fmt.Sprint("id-of-", c.status))
			c.send(t, client)
			response := client.answer(t)
			is.Equal(response.StatusCode, c.status)
			is.Equal(response.Header.Get("Content-Type"), "application/json")
			is.Equal(response.Header.Get("X-Request-Id"), client.id)
			is.Equal(response.Header.Get("Retry-After") != "", c.status > http.StatusInternalServerError)
			text, err := io.ReadAll(response.Body)
			is.NoErr(err)
			var failure struct{ Detail string }
			is.NoErr(json.Unmarshal(text, &failure))
			is.True(failure.Detail != "")
			eventually(t, "the proxy logs it", func() bool { return strings.Contains(c.proxy.log.String(), "{"+client.id+"}") })
		})
	}
}

// know sends a request with a key through the proxy, which from then on waits for
// the bodies of requests from this address.
func (p proxy) know(t *testing.T, key string) {
	t.Helper()
	if status := askStatus(t, key, "GET", p.url+"/v1/bots", ""); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
}

// TestProxyWaitsForTheLongestAnswer compares the proxy's timeout with that of a
// replica: a JSON response is silent until it is complete.
func TestProxyWaitsForTheLongestAnswer(t *testing.T) {
	is := is.New(t)
	text, err := os.ReadFile("../../haproxy.cfg")
	is.NoErr(err)
	_, waits, _ := strings.Cut(string(text), "${ANSWER_TIME-")
	waits, _, _ = strings.Cut(waits, "}")
	patience, err := time.ParseDuration(waits)
	is.NoErr(err)
	is.True(patience > servedWith(t, "--database=postgres://", "--runtime=local=http://127.0.0.1:1").ChatTimeout)
}

// TestFrozenReplica freezes a replica in the middle of answers: a stream that is
// silent for too long is aborted, and a JSON response may take longer, also that
// of an OpenAI-compatible client.
func TestFrozenReplica(t *testing.T) {
	is := is.New(t)
	end := make(chan struct{})
	asked := make(chan struct{}, 2)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		if lastOf(r) == "not streamed" {
			asked <- struct{}{}
			<-end
			s.Stop()
			s.Done()
			return
		}
		<-r.Context().Done()
	})
	p, key := serveOneBot(t, "--openai", "--runtime", "local="+runtime.URL)
	proxy := startProxyAt(t, "", []*process{p, p, p}, "SILENCE_TIME=500ms")
	var asking sync.WaitGroup
	answered := func(path, body string) chan string {
		answers := make(chan string, 1)
		asking.Go(func() { answers <- bodyOf(request(t.Context(), http.DefaultClient, key, "POST", proxy.url+path, body)) })
		<-asked
		return answers
	}
	defer asking.Wait()
	ours := answered("/v1/chat", chatBody("not streamed", false))
	openAI := answered("/v1/chat/completions", `{"model":"helper","messages":[{"role":"user","content":"not streamed"}]}`)
	s := openStream(t, key, proxy.url)
	is.Equal(s.next(), `{"content":"one"}`)

	is.NoErr(p.cmd.Process.Signal(syscall.SIGSTOP))
	is.Equal(s.next(), "")        // it is aborted,
	is.True(s.lines.Err() != nil) // so nobody takes it for complete
	is.NoErr(p.cmd.Process.Signal(syscall.SIGCONT))
	close(end)
	is.Equal(<-ours, `{"content":"one"}`)
	is.True(strings.Contains(<-openAI, `"message":{"role":"assistant","content":"one"`))
}

// bodyOf is the body of a response, or why there is none.
func bodyOf(response *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestProxyWaitsForEveryRouteOfChats has a JSON response be silent for longer
// than anything else may be. A server that only waits is in the place of the
// replicas: what counts here is what the proxy takes for a chat.
func TestProxyWaitsForEveryRouteOfChats(t *testing.T) {
	is := is.New(t)
	arrived, answer := make(chan struct{}, 100), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" || r.URL.Path == "/readyz-without-database" {
			return
		}
		arrived <- struct{}{}
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	defer silent.Close()
	replica := &process{url: silent.URL, internal: silent.URL}
	proxy := startProxyAt(t, "", []*process{replica, replica, replica}, "SILENCE_TIME=200ms")
	send := func(path, body string) chan int {
		status := make(chan int, 1)
		go func() {
			response, err := request(context.Background(), http.DefaultClient, "key", "POST", proxy.url+path, body)
			if err != nil {
				status <- 0
				return
			}
			response.Body.Close()
			status <- response.StatusCode
		}()
		<-arrived
		return status
	}
	waiting := make(map[string]chan int)
	for _, path := range []string{"/chat", "/chat/completions", "/responses"} {
		waiting[path] = send(path, `{"stream":false}`)
		waiting["/v1"+path] = send("/v1"+path, `{}`)
	}
	for path := range waiting {
		is.Equal(<-send(path, `{ "stream" : true }`), http.StatusGatewayTimeout)
	}
	is.Equal(<-send("/v1/bots", ""), http.StatusGatewayTimeout)
	close(answer)
	for path, status := range waiting {
		if got := <-status; got != http.StatusOK {
			t.Errorf("%s: %d", path, got)
		}
	}
}

// A connection is that of a client that sends what no HTTP library would.
type connection struct {
	net.Conn
	id      string
	answers *bufio.Reader
}

func connect(t *testing.T, url, id string) *connection {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return &connection{conn, id, bufio.NewReader(conn)}
}

// send sends a text with the connection's id.
func (c *connection) send(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(c, strings.Replace(text, "%s", c.id, 1)); err != nil {
		t.Fatal(err)
	}
}

func (c *connection) answer(t *testing.T) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// TestResponsesOfNetHTTP has a replica reject what net/http does not let through to
// the API, directly and behind the proxy.
func TestResponsesOfNetHTTP(t *testing.T) {
	p, key := serveOneBot(t, "--runtime", nowhere)
	behind := startProxy(t, []*process{p, p, p})
	for name, at := range map[string]string{"directly": p.url, "behind the proxy": behind.url} {
		for _, c := range []struct {
			header string
			status int
			body   string
		}{
			{"Expect: nothing", http.StatusExpectationFailed, ""},
			{"X-Large: " + strings.Repeat("x", 37<<10), http.StatusRequestHeaderFieldsTooLarge, "431 Request Header Fields Too Large"},
			{"X-Large: " + strings.Repeat("x", 35<<10), http.StatusOK, "["},
		} {
			t.Run(fmt.Sprint(name, " ", c.status), func(t *testing.T) {
				is := is.New(t)
				client := connect(t, at, "")
				client.send(t, "GET /v1/bots HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer "+key+"\r\n"+c.header+"\r\n\r\n")
				response := client.answer(t)
				text, err := io.ReadAll(response.Body)
				is.NoErr(err)
				is.Equal(response.StatusCode, c.status)
				is.True(strings.HasPrefix(string(text), c.body))
				is.Equal(response.Header.Get("X-Request-Id") != "", c.status == http.StatusOK || name != "directly")
			})
		}
	}
}
