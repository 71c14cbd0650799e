// Package redistest gives a test a Redis server of its own, which it may stop
// and start.
package redistest

import (
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// Server is a Redis server of one test, on a port of its own. It keeps nothing
// on disk: started again, it is empty.
type Server struct {
	URL string

	port    int
	process *exec.Cmd
}

// NewServer starts a server from the program on this machine. It is ended with
// the test. The test is skipped where there is no such program.
func NewServer(t testing.TB) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server was not found: this test starts a Redis server of its own (Debian: apt-get install redis-server)")
	}
	s := &Server{port: postgrestest.FreePort(t)}
	s.URL = fmt.Sprintf("redis://127.0.0.1:%d/0", s.port)
	s.Start(t)
	t.Cleanup(func() { s.Stop(t) })
	return s
}

// Start starts the server, again after Stop, and returns when it takes
// connections.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.process = exec.Command("redis-server", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", s.port)})
	defer client.Close()
	for deadline := time.Now().Add(20 * time.Second); client.Ping(t.Context()).Err() != nil; {
		if time.Now().After(deadline) {
			t.Fatal("redis-server does not take connections")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Stop ends the server at once, as a failing machine would; it does nothing to
// one that is stopped.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait() // it was killed
	s.process = nil
}

// Hang stops the server from answering, until GoOn: its connections stay.
func (s *Server) Hang(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// GoOn ends Hang.
func (s *Server) GoOn(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// Client returns a client of the server, as a replica has it.
func (s *Server) Client(t testing.TB) *redisclient.Client {
	t.Helper()
	client, err := redisclient.Open(s.URL, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}
