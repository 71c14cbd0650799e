package postgres_test

import (
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/matryer/is"
)

func TestInsertUsage(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	chat := usage.Record{
		ID: "a", EndedAt: time.Now(), RequestID: "r1", Account: "acme", UserID: "42", BotUID: "u1", Model: "m1",
		Stream: true, Status: 200, Complete: true, Fragments: 3, Bytes: 12,
		FirstFragment: 250 * time.Millisecond, Duration: 1500 * time.Millisecond,
	}
	odd := usage.Record{ID: "b", Account: "acme", UserID: "a\x00b\xff"}
	is.NoErr(d.InsertUsage(t.Context(), []usage.Record{chat}))
	is.NoErr(d.InsertUsage(t.Context(), []usage.Record{chat, odd})) // the first again, as after a lost reply

	conn := connect(t, url)
	var rows int
	is.NoErr(conn.QueryRow(t.Context(), `SELECT count(*) FROM usage`).Scan(&rows))
	is.Equal(rows, 2)

	var stored usage.Record
	var firstFragment, duration float64
	is.NoErr(conn.QueryRow(t.Context(), `SELECT id, request_id, account, user_id, bot_uid, model, stream, status, complete,
		fragments, bytes, first_fragment_ms, duration_ms FROM usage WHERE id = 'a'`).
		Scan(&stored.ID, &stored.RequestID, &stored.Account, &stored.UserID, &stored.BotUID, &stored.Model, &stored.Stream,
			&stored.Status, &stored.Complete, &stored.Fragments, &stored.Bytes, &firstFragment, &duration))
	stored.EndedAt, stored.FirstFragment, stored.Duration = chat.EndedAt, chat.FirstFragment, chat.Duration
	is.Equal(stored, chat)
	is.Equal(firstFragment, 250.0)
	is.Equal(duration, 1500.0)

	var user string
	var none *float64
	is.NoErr(conn.QueryRow(t.Context(), `SELECT user_id, first_fragment_ms FROM usage WHERE id = 'b'`).Scan(&user, &none))
	is.Equal(user, "a\uFFFDb\uFFFD")
	is.Equal(none, nil)
}
