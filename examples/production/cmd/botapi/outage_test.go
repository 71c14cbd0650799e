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

// A link is one replica's way to the database, which can be broken.
type link struct {
	url string // of the database, by this way

	to          string
	listener    net.Listener
	connections sync.WaitGroup

	mu     sync.Mutex
	broken func(net.Conn) // what becomes of a connection; nil passes it on
	open   []net.Conn
}

// newLink begins to listen for connections to the database at this URL.
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
		l.breaks(refusing)
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

// How a link can be broken: connections end at once, or they are made and
// nothing ever comes.
var (
	refusing = func(c net.Conn) { c.Close() }
	silent   = func(net.Conn) {}
)

// breaks cuts all connections, and decides what becomes of new ones.
func (l *link) breaks(how func(net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = how
	for _, connection := range l.open {
		connection.Close()
	}
	l.open = nil
}

// TestOneReplicaLosesItsDatabase cuts one of three replicas off from the
// database that they share, again and again and in every way. Clients do not
// notice, and no model is asked twice for one chat.
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
	for ; outages < 2 || handedBack() == 0 && outages < 10; outages++ { // until one was noticed by a request before the proxy's check
		way.breaks([]func(net.Conn){refusing, silent}[outages%2])
		proxy.waitFor(t, "replicas", 0, "DOWN")
		seen := len(runtime.Requests())
		eventually(t, "the others go on", func() bool { return len(runtime.Requests()) >= seen+streams })
		way.breaks(nil)
		proxy.waitFor(t, "replicas", 0, "UP")
		eventually(t, "it is asked again", func() bool { return len(runtime.Requests()) >= seen+3*streams })
	}
	crowd.leave()

	is.Equal(crowd.failures, nil) // nobody noticed
	answers := crowd.streams.Load() + crowd.oneBodies.Load() + crowd.longChats.Load()
	is.Equal(len(requestIDs(runtime.Requests())), int(answers)) // one chat asked a model
	is.Equal(len(runtime.Requests()), int(answers))             // once
	for _, p := range running {
		p.terminate(t)
		p.wait(t)
	}
	is.Equal(len(usageOf(t, env)), int(answers)) // and is on one bill
	is.Equal(len(running[0].logged(t, "not ready: the database is out of reach")), outages)
	is.True(handedBack() > 0)                                // the proxy did have to ask elsewhere
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
// client is told so, and served as soon as it is back.
func TestDatabaseIsDownForAll(t *testing.T) {
	is := is.New(t)
	database := postgrestest.NewServer(t)
	env, key := withOneBotAt(t, database.URL)
	running := serveAll(t, env, "--runtime", "local=http://127.0.0.1:1/v1")
	proxy := startProxy(t, running)

	database.Stop(t)
	is.Equal(refusal(t, key, proxy.url), "503 2") // before the proxy has noticed: asked everywhere
	for i := range running {
		proxy.waitFor(t, "replicas", i, "DOWN")
	}
	is.Equal(refusal(t, key, proxy.url), "503 2") // and after
	is.Equal(statusOf(proxy.url+"/health-check"), http.StatusOK)

	database.Start(t)
	is.Equal(refusal(t, key, proxy.url), "200 ") // at once
	for i := range running {
		proxy.waitFor(t, "replicas", i, "UP")
	}
}

// TestOutageAnswersEveryRequest takes the database away from all replicas, under
// many clients that open a connection for each request. A replica answers each of
// them: also those that are between two replicas when the last one turns unready.
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
		crowd.repeat(crowd.chatOrRefusal, &crowd.oneBodies)
	}

	for _, how := range []func(net.Conn){refusing, silent} {
		before := crowd.oneBodies.Load()
		eventually(t, "clients are served", func() bool { return crowd.oneBodies.Load() > before+200 })
		way.breaks(how)
		for i := range running {
			proxy.waitFor(t, "replicas", i, "DOWN")
		}
		way.breaks(nil)
		for i := range running {
			proxy.waitFor(t, "replicas", i, "UP")
		}
	}
	crowd.leave()
	is.Equal(crowd.failures, nil)                              // nobody was left without an answer
	is.True(!strings.Contains(proxy.log.String(), "/<NOSRV>")) // and the proxy always found somebody to ask
}

// chatOrRefusal takes a 503 in the interface's form for an answer, too.
func (c *crowd) chatOrRefusal() error {
	response, err := request(context.Background(), c.client, c.key, "POST", c.url+"/v1/chat", chatBody("Hi", true))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var refusal struct{ Detail string }
	switch {
	case response.StatusCode == http.StatusOK:
		return nil
	case response.StatusCode == http.StatusServiceUnavailable && json.Unmarshal(answer, &refusal) == nil && refusal.Detail != "":
		return nil
	}
	return fmt.Errorf("%d %s", response.StatusCode, answer)
}

// refusal is the status and the Retry-After of a listing.
func refusal(t *testing.T, key, url string) string {
	t.Helper()
	response, err := request(t.Context(), http.DefaultClient, key, "GET", url+"/v1/bots", "")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	return fmt.Sprintf("%d %s", response.StatusCode, response.Header.Get("Retry-After"))
}

// TestProxyTriesElsewhereWhereThereIsRoom fills one replica: a chat that it has
// no place for goes to another.
func TestProxyTriesElsewhereWhereThereIsRoom(t *testing.T) {
	is := is.New(t)
	env, key := withOneBot(t)
	runtime := runtimetest.New(t, func(s *runtimetest.Stream, r *runtimetest.Request) {
		s.Text("one")
		<-r.Context().Done()
	})
	running := serveAll(t, env, "--runtime", "local="+runtime.URL, "--max-chats", "1")
	is.Equal(openStream(t, key, running[0].url).next(), `{"content":"one"}`) // the proxy does not know of it
	proxy := startProxy(t, running)

	for range replicas - 1 {
		eventually(t, "a chat finds room", func() bool {
			response, err := request(t.Context(), http.DefaultClient, key, "POST", proxy.url+"/v1/chat", chatBody("Hi", true))
			is.NoErr(err)
			t.Cleanup(func() { response.Body.Close() })
			if response.StatusCode != http.StatusOK && !strings.Contains(proxy.log.String(), " is DOWN") { // as one may be on a busy machine
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
	is.Equal(status, http.StatusServiceUnavailable) // never 425 to somebody who did not ask for it
}

// TestModelIsNotAskedTwice has a model refuse what no other replica may repeat.
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

// longChat has a prompt that nearly fills a body of the default size.
func (c *crowd) longChat() error {
	_, err := c.ask("POST", "/v1/chat", chatBody(strings.Repeat("long ", 50_000), false))
	return err
}
