package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

// linked returns a link to the database of an environment, and an environment with it.
func linked(t *testing.T, env []string) (*faulttest.Link, []string) {
	t.Helper()
	location, err := url.Parse(strings.TrimPrefix(env[0], "DATABASE_URL="))
	if err != nil {
		t.Fatal(err)
	}
	link := faulttest.NewLink(t, location.Host)
	location.Host = link.Address
	return link, []string{"DATABASE_URL=" + location.String()}
}

// outages are how a link can be broken.
var outages = []faulttest.Mode{faulttest.Resetting, faulttest.Swallowing}

// TestOneReplicaLosesItsDatabase disconnects one of three replicas from the
// database that they share, repeatedly and in every way. Clients do not notice,
// and no model is asked twice for one chat.
func TestOneReplicaLosesItsDatabase(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := speaking(t)
	link, throughIt := linked(t, env)

	var running []*process
	for _, env := range [][]string{throughIt, env, env} {
		running = append(running, serve(t, env, "--runtime", "local="+runtime.URL, "--drain-delay", "3s"))
	}
	proxy := startProxy(t, running)
	crowd := gather(proxy.url, key)
	for range 5 {
		crowd.repeat(crowd.longChat, &crowd.longChats)
	}
	eventually(t, "all streams run", func() bool { return len(runtime.Requests()) >= streams })

	handedBack := func() int { return len(running[0].logged(t, "request handed back to the proxy")) }
	n := 0
	for ; n < 2 || handedBack() == 0 && n < 10; n++ { // until a request noticed one before the proxy's check
		link.Set(outages[n%2])
		proxy.waitFor(t, "replicas", 0, "DOWN")
		seen := len(runtime.Requests())
		eventually(t, "the others go on", func() bool { return len(runtime.Requests()) >= seen+streams })
		link.Set(faulttest.Passing)
		proxy.waitFor(t, "replicas", 0, "UP")
		eventually(t, "it is asked again", func() bool { return len(runtime.Requests()) >= seen+3*streams })
	}
	crowd.finish()

	is.Equal(crowd.failures, nil) // no client noticed
	answers := crowd.streams.Load() + crowd.jsonResponses.Load() + crowd.longChats.Load()
	is.Equal(len(requestIDs(runtime.Requests())), int(answers)) // one chat asked a model
	is.Equal(len(runtime.Requests()), int(answers))             // once
	for _, p := range running {
		p.end(t)
	}
	is.Equal(len(usageOf(t, env)), int(answers)) // and is counted once
	is.Equal(len(running[0].logged(t, "not ready: the database is out of reach")), n)
	is.True(handedBack() > 0)                                // the proxy did have to retry
	is.Equal(len(running[0].logged(t, "request failed")), 0) // which is no failure
}

func requestIDs(requests []*runtimetest.Request) []string {
	var ids []string
	for _, r := range requests {
		ids = append(ids, r.Header.Get("X-Request-Id"))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TestDatabaseIsDownForAll stops the database that all replicas share: each
// client gets an error, and is served as soon as it is back.
func TestDatabaseIsDownForAll(t *testing.T) {
	is := is.New(t)
	database := postgrestest.NewServer(t)
	env, key := withOneBotAt(t, database.URL)
	running := serveAll(t, env, "--runtime", nowhere)
	proxy := startProxy(t, running)

	database.Stop(t)
	is.Equal(listingError(t, key, proxy.url), "503 2") // before the proxy has noticed: after all replicas were asked
	for i := range running {
		proxy.waitFor(t, "replicas", i, "DOWN")
	}
	is.Equal(listingError(t, key, proxy.url), "503 2") // and after
	is.Equal(statusOf(proxy.url+"/health-check"), http.StatusOK)

	database.Start(t)
	is.Equal(listingError(t, key, proxy.url), "200 ") // immediately
	for i := range running {
		proxy.waitFor(t, "replicas", i, "UP")
	}
}

// TestOutageAnswersEveryRequest disconnects all replicas from the database,
// under many clients that open a connection for each request. Each request gets
// a replica's response, even one that is being retried when the last replica
// becomes unready.
func TestOutageAnswersEveryRequest(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := says(t, "Hello", " yourself")
	link, throughIt := linked(t, env)
	running := serveAll(t, throughIt, "--runtime", "local="+runtime.URL)
	proxy := startProxy(t, running)
	crowd := newCrowd(proxy.url, key)
	crowd.client.Transport.(*http.Transport).DisableKeepAlives = true
	for range 100 {
		crowd.repeat(crowd.chatOrError, &crowd.jsonResponses)
	}

	for _, how := range outages {
		before := crowd.jsonResponses.Load()
		eventually(t, "clients are served", func() bool { return crowd.jsonResponses.Load() > before+200 })
		link.Set(how)
		for i := range running {
			proxy.waitFor(t, "replicas", i, "DOWN")
		}
		link.Set(faulttest.Passing)
		for i := range running {
			proxy.waitFor(t, "replicas", i, "UP")
		}
	}
	crowd.finish()
	is.Equal(crowd.failures, nil)                              // every request got a response
	is.True(!strings.Contains(proxy.log.String(), "/<NOSRV>")) // and the proxy always found a replica
}

// chatOrError accepts a 503 in the API's form, too.
func (c *crowd) chatOrError() error {
	response, err := request(context.Background(), c.client, c.key, "POST", c.url+"/v1/chat", chatBody("Hi", true))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var failure struct{ Detail string }
	switch {
	case response.StatusCode == http.StatusOK:
		return nil
	case response.StatusCode == http.StatusServiceUnavailable && json.Unmarshal(answer, &failure) == nil && failure.Detail != "":
		return nil
	}
	return fmt.Errorf("%d %s", response.StatusCode, answer)
}

// listingError is the status and the Retry-After of a listing.
func listingError(t *testing.T, key, url string) string {
	t.Helper()
	response := send(t, key, "GET", url+"/v1/bots", "")
	return fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("Retry-After"))
}

// TestProxyRetriesWhereThereIsRoom fills one replica: a chat that it has no slot
// for goes to another.
func TestProxyRetriesWhereThereIsRoom(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := saysOne(t)
	running := serveAll(t, env, "--runtime", "local="+runtime.URL, "--max-chats", "1")
	is.Equal(openStream(t, key, running[0].url).next(), `{"content":"one"}`) // the proxy does not know about it
	proxy := startProxy(t, running)

	for range replicas - 1 {
		eventually(t, "a chat finds room", func() bool {
			response := send(t, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true))
			if response.StatusCode != http.StatusOK && !strings.Contains(proxy.log.String(), " is DOWN") { // as may happen on a busy machine
				t.Fatalf("status %d", response.StatusCode)
			}
			return response.StatusCode == http.StatusOK
		})
	}
	for i := range running {
		proxy.waitFor(t, "replicas", i, "UP")
	}
	status, answer := ask(t, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true))
	is.Equal(status, http.StatusServiceUnavailable) // now all are full
	is.Equal(answer, `{"detail":"Too many chats in progress"}`)
	is.Equal(askStatus(t, key, "POST", running[0].url+"/v1/chat", chatBody("Hi", true)), http.StatusServiceUnavailable) // never 425 to a client that did not ask for it
}

// TestModelIsNotAskedTwice has a model reject what no other replica may repeat.
func TestModelIsNotAskedTwice(t *testing.T) {
	is := is.New(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Refuse(http.StatusTooManyRequests, `{}`)
	})
	p, key := serveOneBot(t, "--runtime", "local="+runtime.URL)
	proxy := startProxy(t, []*process{p, p, p})

	is.Equal(askStatus(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true)), http.StatusServiceUnavailable)
	directly := len(runtime.Requests())
	is.Equal(askStatus(t, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true)), http.StatusServiceUnavailable)
	is.Equal(len(runtime.Requests()), 2*directly) // as often as without a proxy
}

// longChat has a prompt that almost fills a body of the default size.
func (c *crowd) longChat() error {
	_, err := c.ask("POST", "/v1/chat", chatBody(strings.Repeat("long ", 50_000), false))
	return err
}
