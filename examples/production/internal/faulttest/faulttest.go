// Package faulttest provides tests with connections that can be broken, and waits
// until that is noticed.
package faulttest

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Patience is the longest that Eventually waits. It only matters when a test fails.
const Patience = 30 * time.Second

// Eventually waits until so returns true, as long as Patience lasts.
func Eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not true after %v: %s", Patience, what)
		}
	}
}

// A Link passes connections on to a server, except in other modes.
type Link struct {
	Address string // for clients
	server  string

	mu          sync.Mutex
	mode        Mode
	changed     chan struct{} // closed, and replaced, with the mode
	delay       time.Duration
	connections map[net.Conn]struct{}
}

// A Mode is what a Link does with connections.
type Mode int

// The modes of a Link. Connections that have lost something are reset afterwards.
const (
	Passing    Mode = iota
	Resetting       // connections are reset
	Swallowing      // nothing arrives in either direction
	Deaf            // requests arrive, responses do not
)

// NewLink returns a link to the server at an address, for one test.
func NewLink(t testing.TB, server string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{Address: listener.Addr().String(), server: server, connections: make(map[net.Conn]struct{}), changed: make(chan struct{})}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go l.pass(client)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		l.Set(Resetting)
	})
	return l
}

// Set sets the mode, also of connections that there are.
func (l *Link) Set(m Mode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m == Resetting || l.mode != Passing {
		for c := range l.connections {
			c.Close()
		}
	}
	l.mode = m
	close(l.changed)
	l.changed = make(chan struct{})
}

// Delay sets how long each response takes.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

func (l *Link) now() (Mode, time.Duration, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mode, l.delay, l.changed
}

// keep closes a connection with the others, until forget is called.
func (l *Link) keep(c net.Conn) (forget func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connections[c] = struct{}{}
	if l.mode == Resetting {
		c.Close()
	}
	return func() {
		c.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.connections, c)
	}
}

func (l *Link) pass(client net.Conn) {
	defer l.keep(client)()
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer l.keep(server)()
	var both sync.WaitGroup
	both.Go(func() { l.copy(server, client, false) })
	both.Go(func() { l.copy(client, server, true) })
	both.Wait()
}

// copy passes on what arrives on a connection.
func (l *Link) copy(to, from net.Conn, responses bool) {
	defer to.Close()
	defer from.Close()
	for buffer := make([]byte, 64<<10); ; {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		mode, delay, changed := l.now()
		for mode == Swallowing || mode == Deaf && responses {
			<-changed
			mode, delay, changed = l.now()
		}
		if responses {
			time.Sleep(delay)
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
