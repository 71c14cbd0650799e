package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/faulttest"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/matryer/is"
)

// TestErrorCodes has PostgreSQL itself return every code that is temporary, and
// some that are not.
func TestErrorCodes(t *testing.T) {
	url := postgrestest.Database(t)
	d := open(t, url)
	conn := connect(t, url)
	for code, temporary := range map[string]bool{
		"08P01": true,  // a pooler that has no connection to give
		"25006": true,  // read-only
		"40001": true,  // serialization failure
		"40P01": true,  // deadlock
		"53100": true,  // disk full
		"55P03": true,  // lock not available
		"55006": true,  // object in use
		"57P03": true,  // starting up
		"22001": false, // text too long for its column
		"23514": false, // a check constraint
		"54000": false, // too large for its index
		"42501": false, // permission denied
	} {
		t.Run(code, func(t *testing.T) {
			is := is.New(t)
			execute(t, conn, fmt.Sprintf(`
				CREATE OR REPLACE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$
					BEGIN RAISE EXCEPTION 'rejected' USING ERRCODE = '%s'; END $$;
				CREATE OR REPLACE TRIGGER reject BEFORE INSERT ON usage EXECUTE FUNCTION reject()`, code))
			answer, later := errors.AsType[*botapi.StatusError](d.InsertUsage(t.Context(), []*usage.Record{{ID: "a"}}))
			is.Equal(later, temporary)
			if later {
				is.Equal(answer.Status, http.StatusServiceUnavailable)
			}
		})
	}
}

// TestDatabaseThatRejectsConnections uses a database that does not exist, as
// while it is being restored: PostgreSQL returns an error, but not for a
// statement.
func TestDatabaseThatRejectsConnections(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := openWith(t, url+"_missing", postgres.Options{})
	answer, ok := errors.AsType[*botapi.StatusError](d.InsertUsage(t.Context(), []*usage.Record{{ID: "a"}}))
	is.True(ok)
	is.Equal(answer.Status, http.StatusServiceUnavailable)
	is.True(strings.Contains(answer.Err.Error(), "does not exist"))
}

var eventually = faulttest.Eventually

// waitFor waits until a condition is true in PostgreSQL.
func waitFor(t *testing.T, conn *pgx.Conn, condition string) {
	t.Helper()
	eventually(t, condition, func() (so bool) {
		if err := conn.QueryRow(t.Context(), `SELECT `+condition).Scan(&so); err != nil {
			t.Fatalf("asking for %s: %v", condition, err)
		}
		return so
	})
}

// waiting counts the connections that wait for a lock.
const waiting = `(SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`

// connections returns the process numbers of the pool's connections.
func connections(t *testing.T, conn *pgx.Conn) []int32 {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `SELECT pid FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pool' ORDER BY pid`)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func TestDisconnectedClientsCloseNoConnections(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	open(t, url).Close()
	d := openWith(t, url+"?application_name=pool", postgres.Options{MaxConnections: 1})
	_, err := d.Bots(t.Context())
	is.NoErr(err)
	watcher := connect(t, url)
	before := connections(t, watcher)
	is.Equal(len(before), 1)

	for range 3 {
		unlock := locked(t, url, "bots")
		client, leave := context.WithCancel(t.Context())
		asked := make(chan error)
		go func() {
			_, err := d.BotBySlug(client, "helper")
			asked <- err
		}()
		waitFor(t, watcher, waiting+" = 1")
		queued := make(chan error) // for the one connection
		go func() {
			_, err := d.BotByUID(client, "u1")
			queued <- err
		}()
		leave()
		is.True(errors.Is(<-queued, context.Canceled)) // a call that only waits for a connection returns immediately
		unlock()
		<-asked
	}

	_, err = d.Bots(t.Context())
	is.NoErr(err)
	is.True(slices.Equal(connections(t, watcher), before))
}

// TestCloseWaitsForNoSilentServer cancels a query on a server that no longer
// responds. pgx keeps asking that server to cancel it for much longer than a
// supervisor should have to wait.
func TestCloseWaitsForNoSilentServer(t *testing.T) {
	is := is.New(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	is.NoErr(err)
	defer listener.Close()
	silent := make(chan net.Conn, 1)
	go func() {
		defer close(silent)
		if conn, err := listener.Accept(); err == nil && untilQuery(conn) == nil {
			silent <- conn
		}
	}()
	d, err := postgres.Open("postgres://postgres@"+listener.Addr().String()+"/bots?sslmode=disable",
		postgres.Options{QueryTimeout: 200 * time.Millisecond, MaxConnections: 1})
	is.NoErr(err)
	_, err = d.Bots(t.Context())
	is.True(errors.Is(err, context.DeadlineExceeded))
	conn := <-silent
	is.True(conn != nil)
	defer conn.Close()

	d.Close()
	is.NoErr(conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)))
	_, err = io.Copy(io.Discard, conn)
	is.True(errors.Is(err, os.ErrDeadlineExceeded)) // otherwise pgx has closed the connection, and Close has waited for that
}

// untilQuery is a server that stops responding when it receives a query.
func untilQuery(conn net.Conn) error {
	server := pgproto3.NewBackend(conn, conn)
	if _, err := server.ReceiveStartupMessage(); err != nil {
		return err
	}
	server.Send(&pgproto3.AuthenticationOk{})
	server.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := server.Flush(); err != nil {
		return err
	}
	_, err := server.Receive()
	return err
}
