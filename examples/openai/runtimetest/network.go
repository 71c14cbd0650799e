package runtimetest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"github.com/matryer/is"
)

// Network is a network in memory, and the listener of its only server. It can forget
// connections, as a NAT or a load balancer does: nothing that is sent arrives, and nobody
// closes them. It has no time of its own, so that it works in a bubble of testing/synctest.
type Network struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    sync.Once

	mu  sync.Mutex
	all []*forgettable
}

// NewNetwork returns a network without connections.
func NewNetwork() *Network {
	return &Network{accepted: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial connects to the server.
func (n *Network) Dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case n.accepted <- server:
	case <-n.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	connection := &forgettable{Conn: client, closed: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, connection)
	return connection, nil
}

// Connections returns how many there have been.
func (n *Network) Connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all)
}

// Forget forgets all connections so far. New ones work.
func (n *Network) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, connection := range n.all {
		connection.forgotten.Store(true)
	}
}

// Accept is called by the server.
func (n *Network) Accept() (net.Conn, error) {
	select {
	case connection := <-n.accepted:
		return connection, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// Close is called by the server.
func (n *Network) Close() error {
	n.close.Do(func() { close(n.closed) })
	return nil
}

// Addr is called by the server.
func (n *Network) Addr() net.Addr { return &net.IPAddr{} }

// A forgettable connection swallows everything once it is forgotten.
type forgettable struct {
	net.Conn
	forgotten atomic.Bool
	closed    chan struct{}
	close     sync.Once
}

func (c *forgettable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.forgotten.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *forgettable) Write(p []byte) (int, error) {
	if c.forgotten.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *forgettable) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestForgottenConnection tests an engine whose only model is the network's server, over
// HTTP/2, in a bubble of testing/synctest. The model answers each chat, but that whose
// message is "Wait": this one it begins to answer, and never ends. When the network forgets
// their connection, the chat in progress keeps it in use, and all new chats go to it: they
// must fail with a 503 before their own context ends, and the next one must get another.
func TestForgottenConnection(t *testing.T, network *Network, engine botapi.ChatEngine) {
	is := is.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ask := func(prompt string, atFirst func()) (failed error) {
		for _, err := range engine.Chat(ctx, &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: prompt}}}) {
			if atFirst != nil {
				atFirst()
				atFirst = nil
			}
			failed = err
		}
		return failed
	}

	is.NoErr(ask("Hi", nil))
	begun, lost := make(chan bool), make(chan error, 1)
	go func() { lost <- ask("Wait", func() { close(begun) }) }()
	<-begun
	is.Equal(network.Connections(), 1) // both chats have used it
	network.Forget()
	failure, ok := errors.AsType[*botapi.StatusError](ask("Hi", nil))
	is.True(ok)
	is.Equal(failure.Status, http.StatusServiceUnavailable) // and not at the end of ctx
	is.True(<-lost != nil)
	is.NoErr(ask("Hi", nil)) // on a new connection
	is.Equal(network.Connections(), 2)
	is.NoErr(ctx.Err())
}
