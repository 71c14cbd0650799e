// Package postgrestest provides PostgreSQL for tests: a fresh database on the
// server at DATABASE_URL, or a server that a test may stop and start.
package postgrestest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Database creates an empty database on the server at DATABASE_URL, and returns
// its URL. It is dropped when the test ends. Without DATABASE_URL the test is
// skipped.
func Database(t testing.TB) string {
	t.Helper()
	server := os.Getenv("DATABASE_URL")
	if server == "" {
		t.Skip("DATABASE_URL is not set: this test needs a PostgreSQL where it may create databases, for instance DATABASE_URL=postgres://postgres@127.0.0.1:5432/postgres")
	}
	name := "botapi_test_" + strings.ToLower(rand.Text())
	execute(t, server, "CREATE DATABASE "+name)
	t.Cleanup(func() { execute(t, server, "DROP DATABASE "+name+" WITH (FORCE)") })

	location, err := url.Parse(server)
	if err != nil {
		t.Fatalf("DATABASE_URL must be a URL: %v", err)
	}
	location.Path = "/" + name
	return location.String()
}

func execute(t testing.TB, server, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatalf("connecting to DATABASE_URL: %v", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Server is a PostgreSQL server for one test, on its own port.
type Server struct {
	URL string

	dir  string // of the cluster
	port int
	run  func(t testing.TB, program string, args ...string)
}

// NewServer creates and starts a server with the programs on this machine. If
// there are none, the test is skipped.
func NewServer(t testing.TB) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "botapi-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })

	s := &Server{dir: filepath.Join(dir, "cluster"), port: FreePort(t)}
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	s.run = runner(t, programs(t), dir)
	s.run(t, "initdb", "-D", s.dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
	s.Start(t)
	t.Cleanup(func() { s.Stop(t) })
	return s
}

// Start starts the server again after Stop, and returns when it accepts
// connections.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	options := fmt.Sprintf("-p %d -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off", s.port)
	s.run(t, "pg_ctl", "-D", s.dir, "-w", "-l", filepath.Join(s.dir, "log"), "-o", options, "start")
}

// Stop stops the server immediately, like a failing machine. It does nothing if
// the server is stopped.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(s.dir, "postmaster.pid")); err == nil {
		s.run(t, "pg_ctl", "-D", s.dir, "-w", "-m", "immediate", "stop")
	}
}

// programs returns the directory of initdb and pg_ctl.
func programs(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path)
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian installs them
	if len(found) == 0 {
		t.Skip("initdb was not found: this test starts a PostgreSQL server of its own (Debian: apt-get install postgresql)")
	}
	return filepath.Dir(found[len(found)-1])
}

// runner returns a function that runs a PostgreSQL program. PostgreSQL does not
// run as root, so as root it runs as the user postgres, who is given the
// directory.
func runner(t testing.TB, programs, dir string) func(testing.TB, string, ...string) {
	t.Helper()
	var as *syscall.SysProcAttr
	if os.Geteuid() == 0 {
		postgres, err := user.Lookup("postgres")
		if err != nil {
			t.Skipf("PostgreSQL does not run as root, and there is no user postgres: %v", err)
		}
		uid, _ := strconv.ParseUint(postgres.Uid, 10, 32)
		gid, _ := strconv.ParseUint(postgres.Gid, 10, 32)
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
		as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	return func(t testing.TB, program string, args ...string) {
		t.Helper()
		// Its output goes to a file: a server started by pg_ctl keeps a pipe open.
		output := filepath.Join(t.TempDir(), "output")
		file, err := os.Create(output)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		cmd := exec.Command(filepath.Join(programs, program), args...)
		cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = dir, as, file, file
		if err := cmd.Run(); err != nil {
			text, _ := os.ReadFile(output)
			t.Fatalf("%s: %v\n%s", program, err, text)
		}
	}
}

// FreePort returns a free TCP port of the loopback interface.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
