package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// seriesOf returns the series of metrics that begin with prefix.
func seriesOf(metrics, prefix string) (series []string) {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, prefix) {
			name, _, _ := strings.Cut(line, "} ")
			series = append(series, name)
		}
	}
	return series
}

// TestClientsCreateNoTimeSeries sends requests that are all different, without a
// key. They create no additional series.
func TestClientsCreateNoTimeSeries(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	key := createKey(t, env, "acme")
	p := serve(t, env, "--runtime", nowhere)
	send := func(method, host, path string) {
		r, err := http.NewRequestWithContext(t.Context(), method, p.url+path, nil)
		is.NoErr(err)
		r.Host = host
		r.Header.Set("User-Agent", host)
		r.Header.Set("X-Forwarded-For", host)
		r.Header.Set("X-Forwarded-Proto", host)
		response, err := http.DefaultClient.Do(r)
		is.NoErr(err)
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	send("GET", "localhost", "/v1/bots")
	send("PURGE", "localhost", "/v1/bots")
	send("GET", "localhost", "/nowhere")
	send("PURGE", "localhost", "/nowhere")
	const each = "http_server_request_duration_seconds_count{"
	eventually(t, "all four are measured", func() bool { return len(seriesOf(scrape(t, p), each)) == 4 })
	before := seriesOf(scrape(t, p), "http_server_")

	for i := range 1000 {
		host := fmt.Sprintf("host%d.example:%d", i, 1+i)
		send("GET", host, "/v1/bots")
		send(fmt.Sprintf("M%d", i), host, "/v1/bots")
		send("GET", host, fmt.Sprintf("/v1/bots/%d", i))
		send(fmt.Sprintf("M%d", i), host, fmt.Sprintf("/%d", i))
	}
	is.Equal(seriesOf(scrape(t, p), "http_server_"), before)

	is.Equal(askStatus(t, key, "GET", p.url+"/v1/bots", ""), http.StatusOK) // real requests still get theirs
	const real = `http_server_request_duration_seconds_count{http_request_method="GET",http_response_status_code="200",http_route="/v1/bots",`
	eventually(t, "it is measured", func() bool { return len(seriesOf(scrape(t, p), real)) == 1 })
}

// TestClientsDoNotReachTheInternalPort requests the paths for probes and
// Prometheus, in every spelling that a proxy and a server may interpret
// differently.
func TestClientsDoNotReachTheInternalPort(t *testing.T) {
	is := is.New(t)
	env := migrated(t)
	p := serve(t, env, "--runtime", nowhere)
	proxy := startProxy(t, []*process{p, p, p})
	is.True(strings.Contains(scrape(t, p), "go_goroutines"))
	is.Equal(statusOf(p.internal+"/readyz-without-database"), http.StatusOK)

	for _, address := range []string{p.url, proxy.url} {
		for _, name := range []string{"metrics", "readyz", "readyz-without-database"} {
			for _, target := range []string{
				"/" + name, "/" + name + "/", "/" + name + "?x", "/" + name + ";x", "//" + name, "/./" + name, "/v1/../" + name,
				"/%2e/" + name, "/v1/%2e%2e/" + name, "/v1/..%2f" + name, "%2f" + name, `/\` + name, "/" + strings.ToUpper(name),
				"/%" + fmt.Sprintf("%x", name[0]) + name[1:], "/%25" + fmt.Sprintf("%x", name[0]) + name[1:],
				p.internal + "/" + name, "http:" + name, "*", name,
			} {
				status, answer := raw(t, address, "GET "+target+" HTTP/1.1\r\nHost: "+strings.TrimPrefix(p.internal, "http://")+"\r\nConnection: close\r\n\r\n")
				if status != http.StatusNotFound && status != http.StatusBadRequest {
					t.Errorf("%s of %s: %d %s", target, address, status, answer)
				}
			}
		}
	}
}

// raw sends bytes and returns the response.
func raw(t *testing.T, url, request string) (status int, answer string) {
	t.Helper()
	c := connect(t, url, "")
	defer c.Close()
	c.send(t, request)
	response := c.answer(t)
	return response.StatusCode, bodyOf(response, nil)
}

// TestBodyThatNeverEnds begins to send a chat, and stops.
func TestBodyThatNeverEnds(t *testing.T) {
	is := is.New(t)
	p, key := serveOneBot(t, "--runtime", nowhere, "--read-timeout", "200ms")
	status, answer := raw(t, p.url, "POST /v1/chat HTTP/1.1\r\nHost: bots\r\nAuthorization: Bearer "+key+"\r\nContent-Length: 100\r\n\r\n{")
	is.Equal(status, http.StatusRequestTimeout)
	is.Equal(answer, `{"detail":"Request body did not arrive in time"}`)
}

// TestClientAddressIsLogged checks a real address and a forged one, through the
// proxy and without it.
func TestClientAddressIsLogged(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := says(t, "Hello")
	collected, collector := collect(t)
	p := serve(t, append(env, collector), "--runtime", "local="+runtime.URL, "--trusted-proxy", "127.0.0.1/32")
	proxy := startProxy(t, []*process{p, p, p})
	chat := func(url, id string) int {
		from := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		client := &http.Client{Transport: &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true}}
		response, err := request(t.Context(), client, key, "POST", url+"/v1/chat", chatBody("Hi", false), "X-Forwarded-For", "6.6.6.6", "X-Request-Id", id)
		is.NoErr(err)
		response.Body.Close()
		is.Equal(response.Header.Get("X-Request-Id"), id)
		return response.StatusCode
	}
	is.Equal(chat(proxy.url, "by-proxy"), http.StatusOK)
	is.Equal(chat(p.url, "directly"), http.StatusOK)
	eventually(t, "both are logged", func() bool { return len(p.logged(t, "chat")) == 2 })
	for _, line := range p.logged(t, "chat") {
		is.Equal(line["client"], "127.0.0.2")
	}

	p.end(t)
	is.Equal(collected.values("POST /v1/chat", "client.address"), []string{"127.0.0.2", "127.0.0.2"})
	for i := range replicas {
		proxy.waitFor(t, "replicas", i, "DOWN")
		proxy.waitFor(t, "without_database", i, "DOWN")
	}
	is.Equal(chat(proxy.url, "failed"), http.StatusServiceUnavailable)
	eventually(t, "the proxy logs it", func() bool {
		for line := range strings.Lines(proxy.log.String()) {
			if strings.HasPrefix(line, "127.0.0.2:") && strings.Contains(line, " 503 ") && strings.Contains(line, "{failed}") {
				return true
			}
		}
		return false
	})
}

// TestFailedChatIsOneLine has the only runtime fail in every way: one log line
// has everything about a chat.
func TestFailedChatIsOneLine(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		switch lastOf(r) {
		case "reject":
			s.Refuse(http.StatusInternalServerError, `{}`)
		case "break":
			s.Text("Hel")
			s.Break()
		}
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)
	for _, prompt := range []string{"reject", "break"} {
		is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody(prompt, false)), http.StatusBadGateway)
	}
	s := openStreamOf(t, key, p.url, "break")
	is.Equal(s.next(), `{"content":"Hel"}`)
	is.True(strings.HasPrefix(s.next(), `{"detail":`))
	is.Equal(s.next(), "")
	eventually(t, "all chats are logged", func() bool { return len(p.logged(t, "chat")) == 3 })

	for _, chat := range p.logged(t, "chat") {
		is.Equal(chat["level"], "ERROR")
		is.True(chat["error"] != nil)
		is.Equal(strings.Count(p.log.String(), chat["request_id"].(string)), 1)
	}
}

// TestAbortedStreamIsMeasured checks its span and its metric.
func TestAbortedStreamIsMeasured(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Text("Hel")
		s.Break()
	})
	collected, collector := collect(t)
	p := serve(t, append(env, collector), "--runtime", "local="+runtime.URL)
	s := openStream(t, key, p.url)
	for s.next() != "" {
	}
	is.True(s.lines.Err() != nil) // it was aborted

	const aborted = `http_server_request_duration_seconds_count{error_type="aborted",http_request_method="POST",http_response_status_code="200",http_route="/v1/chat",`
	eventually(t, "it is measured", func() bool { return len(seriesOf(scrape(t, p), aborted)) == 1 })
	p.end(t)
	is.Equal(collected.values("POST /v1/chat", "http.route"), []string{"/v1/chat"})
	is.Equal(collected.values("POST /v1/chat", "http.response.status_code"), []string{"200"})
	is.Equal(collected.named("POST /v1/chat")[0].Status.Code, tracepb.Status_STATUS_CODE_ERROR)
}
