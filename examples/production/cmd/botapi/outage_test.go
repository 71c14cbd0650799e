package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"example.com/botapi/examples/openai/runtimetest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"github.com/matryer/is"
)

// A link is one replica's connection to the database, which can be broken.
type link struct {
	url string // of the database, through this link

	to          string
	listener    net.Listener
	connections sync.WaitGroup

	mu     sync.Mutex
	broken func(net.Conn) // what happens to a connection; nil passes it on
	open   []net.Conn
}

// newLink listens for connections to the database at this URL.
func newLink(t *testing.T, database string) *link {
	t.Helper()
	location, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{to: location.Host}
	if l.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	location.Host = l.listener.Addr().String()
	l.url = location.String()
	l.connections.Go(l.serve)
	t.Cleanup(func() {
		l.listener.Close()
		l.breaks(closing)
		l.connections.Wait()
	})
	return l
}

func (l *link) serve() {
	for {
		connection, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.broken != nil {
			l.broken(connection)
			l.open = append(l.open, connection)
		} else if onward, err := net.Dial("tcp", l.to); err != nil {
			connection.Close()
		} else {
			l.open = append(l.open, connection, onward)
			l.connections.Go(func() { pass(connection, onward) })
			l.connections.Go(func() { pass(onward, connection) })
		}
		l.mu.Unlock()
	}
}

func pass(from, to net.Conn) {
	io.Copy(to, from)
	to.Close()
}

// How a link can be broken: connections are closed immediately, or they are
// accepted and nothing ever arrives.
var (
	closing = func(c net.Conn) { c.Close() }
	silent  = func(net.Conn) {}
)

// breaks closes all connections, and decides what happens to new ones.
func (l *link) breaks(how func(net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = how
	for _, connection := range l.open {
		connection.Close()
	}
	l.open = nil
}

// TestOneReplicaLosesItsDatabase disconnects one of three replicas from the
// database that they share, repeatedly and in every way. Clients do not notice,
// and no model is asked twice for one chat.
func TestOneReplicaLosesItsDatabase(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := speaking(t)
	way := newLink(t, strings.TrimPrefix(env[0], "DATABASE_URL="))

	var running []*process
	for _, database := range []string{"DATABASE_URL=" + way.url, env[0], env[0]} {
		p := serve(t, []string{database}, "--runtime", "local="+runtime.URL, "--drain-delay", "3s")
		p.ready(t)
		running = append(running, p)
	}
	proxy := startProxy(t, running)
	crowd := gather(proxy.url, key)
	for range 5 {
		crowd.repeat(crowd.longChat, &crowd.longChats)
	}
	eventually(t, "all streams run", func() bool { return len(runtime.Requests()) >= streams })

	handedBack := func() int { return len(running[0].logged(t, "request handed back to the proxy")) }
	outages := 0
	for ; outages < 2 || handedBack() == 0 && outages < 10; outages++ { // until a request noticed one before the proxy's check
		way.breaks([]func(net.Conn){closing, silent}[outages%2])
		proxy.waitFor(t, "replicas", 0, "DOWN")
		seen := len(runtime.Requests())
		eventually(t, "the others go on", func() bool { return len(runtime.Requests()) >= seen+streams })
		way.breaks(nil)
		proxy.waitFor(t, "replicas", 0, "UP")
		eventually(t, "it is asked again", func() bool { return len(runtime.Requests()) >= seen+3*streams })
	}
	crowd.finish()

	is.Equal(crowd.failures, nil) // no client noticed
	answers := crowd.streams.Load() + crowd.jsonResponses.Load() + crowd.longChats.Load()
	is.Equal(len(requestIDs(runtime.Requests())), int(answers)) // one chat asked a model
	is.Equal(len(runtime.Requests()), int(answers))             // once
	for _, p := range running {
		p.terminate(t)
		p.wait(t)
	}
	is.Equal(len(usageOf(t, env)), int(answers)) // and is counted once
	is.Equal(len(running[0].logged(t, "not ready: the database is out of reach")), outages)
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
	running := serveAll(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
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
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) { s.Whole("Hello", " yourself") })
	way := newLink(t, strings.TrimPrefix(env[0], "DATABASE_URL="))
	running := serveAll(t, []string{"DATABASE_URL=" + way.url}, "--runtime", "local="+runtime.URL)
	proxy := startProxy(t, running)
	crowd := newCrowd(proxy.url, key)
	crowd.client.Transport.(*http.Transport).DisableKeepAlives = true
	for range 100 {
		crowd.repeat(crowd.chatOrError, &crowd.jsonResponses)
	}

	for _, how := range []func(net.Conn){closing, silent} {
		before := crowd.jsonResponses.Load()
		eventually(t, "clients are served", func() bool { return crowd.jsonResponses.Load() > before+200 })
		way.breaks(how)
		for i := range running {
			proxy.waitFor(t, "replicas", i, "DOWN")
		}
		way.breaks(nil)
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
	response, err := request(t.Context(), http.DefaultClient, key, "GET", url+"/v1/bots", "")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("Retry-After"))
}

// TestProxyRetriesWhereThereIsRoom fills one replica: a chat that it has no slot
// for goes to another.
func TestProxyRetriesWhereThereIsRoom(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		<-r.Context().Done()
	})
	running := serveAll(t, env, "--runtime", "local="+runtime.URL, "--max-chats", "1")
	is.Equal(openStream(t, key, running[0].url).next(), `{"content":"one"}`) // the proxy does not know about it
	proxy := startProxy(t, running)

	for range replicas - 1 {
		eventually(t, "a chat finds room", func() bool {
			response, err := request(t.Context(), http.DefaultClient, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true))
			is.NoErr(err)
			t.Cleanup(func() { response.Body.Close() })
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
	status, _ = ask(t, key, "POST", running[0].url+"/v1/chat", chatBody("Hi", true))
	is.Equal(status, http.StatusServiceUnavailable) // never 425 to a client that did not ask for it
}

// TestModelIsNotAskedTwice has a model reject what no other replica may repeat.
func TestModelIsNotAskedTwice(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, _ *runtimetest.Request) {
		s.Refuse(http.StatusTooManyRequests, `{}`)
	})
	p := serve(t, env, "--runtime", "local="+runtime.URL)
	p.ready(t)
	proxy := startProxy(t, []*process{p, p, p})

	status, _ := ask(t, key, "POST", p.url+"/v1/chat", chatBody("Hi", true))
	is.Equal(status, http.StatusServiceUnavailable)
	directly := len(runtime.Requests())
	status, _ = ask(t, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true))
	is.Equal(status, http.StatusServiceUnavailable)
	is.Equal(len(runtime.Requests()), 2*directly) // as often as without a proxy
}

// longChat has a prompt that almost fills a body of the default size.
func (c *crowd) longChat() error {
	_, err := c.ask("POST", "/v1/chat", chatBody(strings.Repeat("long ", 50_000), false))
	return err
}
