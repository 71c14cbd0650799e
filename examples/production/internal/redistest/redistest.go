// Package redistest provides a Redis server for a test, which the test may stop
// and start.
package redistest

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/redisclient"
	"github.com/redis/go-redis/v9"
)

// Server is a Redis server for one test, on its own port. It stores nothing on
// disk: after a restart it is empty.
type Server struct {
	URL string

	port    int
	process *exec.Cmd
	clock   *clock // nil for the machine's
}

// A clock is a clock that a test can move.
type clock struct {
	library string // preloaded into Redis
	file    string // how many seconds the clock is ahead
	ahead   time.Duration
}

//go:embed testdata/clock.c
var clockSource []byte

// NewServer starts a server from the installed program, and stops it with the
// test. If the program is missing, the test is skipped.
func NewServer(t testing.TB) *Server {
	t.Helper()
	return newServer(t, nil)
}

// NewServerWithClock starts a server whose clock the test may move. Without a C
// compiler, the test is skipped.
func NewServerWithClock(t testing.TB) *Server {
	t.Helper()
	return newServer(t, newClock(t, 0))
}

// NewServerAtNoon starts a server whose clock begins at noon in UTC, for tests of
// what is counted by day: none of them runs across midnight. Without a C compiler,
// the clock is the machine's.
func NewServerAtNoon(t testing.TB) *Server {
	t.Helper()
	if !CanMoveClock() {
		return newServer(t, nil)
	}
	return newServer(t, newClock(t, time.Until(time.Now().Truncate(24*time.Hour).Add(12*time.Hour))))
}

func newClock(t testing.TB, ahead time.Duration) *clock {
	t.Helper()
	if !CanMoveClock() {
		t.Skip("no C compiler was found, or this is not Linux: this test moves the clock of a Redis server (Debian: apt-get install gcc libc6-dev)")
	}
	folder := t.TempDir()
	source := filepath.Join(folder, "clock.c")
	c := &clock{library: filepath.Join(folder, "clock.so"), file: filepath.Join(folder, "ahead")}
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command("cc", "-shared", "-fPIC", "-o", c.library, source).CombinedOutput(); err != nil {
		t.Fatalf("compiling a clock: %v: %s", err, said)
	}
	c.move(t, ahead)
	return c
}

// CanMoveClock reports whether NewServerWithClock works on this machine.
func CanMoveClock() bool {
	_, err := exec.LookPath("cc")
	return err == nil && runtime.GOOS == "linux"
}

func newServer(t testing.TB, c *clock) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server was not found: this test starts a Redis server of its own (Debian: apt-get install redis-server)")
	}
	s := &Server{port: postgrestest.FreePort(t), clock: c}
	s.URL = fmt.Sprintf("redis://127.0.0.1:%d/0", s.port)
	s.Start(t)
	t.Cleanup(func() { s.Stop(t) })
	return s
}

// MoveClock sets the clock of such a server forward or back.
func (s *Server) MoveClock(t testing.TB, by time.Duration) {
	t.Helper()
	s.clock.move(t, by)
}

func (c *clock) move(t testing.TB, by time.Duration) {
	t.Helper()
	c.ahead += by
	file, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o600) // not truncated: Redis has it mapped
	if err == nil {
		err = errors.Join(binary.Write(file, binary.NativeEndian, int64(c.ahead/time.Second)), file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Start starts the server, also after Stop, and returns when it accepts
// connections.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	s.process = exec.Command("redis-server", "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", t.TempDir())
	if s.clock != nil {
		s.process.Env = append(os.Environ(), "LD_PRELOAD="+s.clock.library, "CLOCK="+s.clock.file)
	}
	if err := s.process.Start(); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", s.port)})
	defer client.Close()
	faulttest.Eventually(t, "redis-server takes connections", func() bool { return client.Ping(t.Context()).Err() == nil })
}

// Stop stops the server immediately, like a failing machine. It does nothing if
// the server is stopped.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait() // it was killed
	s.process = nil
}

// Hang freezes the server until GoOn: its connections stay open.
func (s *Server) Hang(t testing.TB) { s.signal(t, syscall.SIGSTOP) }

// GoOn ends Hang.
func (s *Server) GoOn(t testing.TB) { s.signal(t, syscall.SIGCONT) }

func (s *Server) signal(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// A Way is a link to a server, whose responses can be delayed.
type Way struct {
	*faulttest.Link
	URL string
}

// Slowly returns a way to the server, at first without a delay.
func (s *Server) Slowly(t testing.TB) Way {
	t.Helper()
	link := faulttest.NewLink(t, fmt.Sprintf("127.0.0.1:%d", s.port))
	return Way{link, "redis://" + link.Address + "/0"}
}

// Client returns a client of the server, like a replica's.
func (s *Server) Client(t testing.TB) *redisclient.Client {
	t.Helper()
	return s.ClientWith(t, redisclient.Options{})
}

// ClientWith returns a client of the server with these options, in which the URL may
// be that of a Way.
func (s *Server) ClientWith(t testing.TB, o redisclient.Options) *redisclient.Client {
	t.Helper()
	o.URL = cmp.Or(o.URL, s.URL)
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	client, err := redisclient.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Watch has a client watch its Redis until the test ends.
func Watch(t testing.TB, client *redisclient.Client) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { client.Watch(ctx) })
	t.Cleanup(func() {
		stop()
		watching.Wait()
	})
}

// Calls returns how often a Redis has executed each command, in scripts, too.
func Calls(t testing.TB, client *redisclient.Client) map[string]int {
	t.Helper()
	info, err := client.InfoMap(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := make(map[string]int)
	for name, line := range info["Commandstats"] {
		text, _, _ := strings.Cut(strings.TrimPrefix(line, "calls="), ",")
		calls[strings.TrimPrefix(name, "cmdstat_")], _ = strconv.Atoi(text)
	}
	return calls
}
