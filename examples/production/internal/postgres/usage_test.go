package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/postgrestest"
	"example.com/botapi/examples/production/internal/usage"
	"github.com/jackc/pgx/v5"
	"github.com/matryer/is"
)

func TestInsertUsage(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	chat := &usage.Record{
		ID: "a", EndedAt: time.Now(), RequestID: "r1", Account: "acme", UserID: "42", BotUID: "u1", Model: "m1",
		Stream: true, Status: 200, Complete: true, Fragments: 3, Bytes: 12,
		FirstFragment: 250 * time.Millisecond, Duration: 1500 * time.Millisecond,
		Tokens: &usage.Tokens{Prompt: 9, Completion: 7, Estimated: true},
	}
	odd := &usage.Record{ID: "b", Account: "acme", UserID: "a\x00b\xff"}
	is.NoErr(d.InsertUsage(t.Context(), []*usage.Record{chat}))
	is.NoErr(d.InsertUsage(t.Context(), []*usage.Record{chat, odd})) // the first again, as after a lost response

	conn := connect(t, url)
	var rows int
	is.NoErr(conn.QueryRow(t.Context(), `SELECT count(*) FROM usage`).Scan(&rows))
	is.Equal(rows, 2)

	stored := &usage.Record{Tokens: new(usage.Tokens)}
	var firstFragment, duration float64
	is.NoErr(conn.QueryRow(t.Context(), `SELECT id, request_id, account, user_id, bot_uid, model, stream, status, complete,
		fragments, bytes, first_fragment_ms, duration_ms, prompt_tokens, completion_tokens, tokens_estimated FROM usage WHERE id = 'a'`).
		Scan(&stored.ID, &stored.RequestID, &stored.Account, &stored.UserID, &stored.BotUID, &stored.Model, &stored.Stream,
			&stored.Status, &stored.Complete, &stored.Fragments, &stored.Bytes, &firstFragment, &duration,
			&stored.Tokens.Prompt, &stored.Tokens.Completion, &stored.Tokens.Estimated))
	stored.EndedAt, stored.FirstFragment, stored.Duration = chat.EndedAt, chat.FirstFragment, chat.Duration
	is.Equal(stored, chat)
	is.Equal(firstFragment, 250.0)
	is.Equal(duration, 1500.0)

	var user string
	var none *float64
	var uncounted *int64
	is.NoErr(conn.QueryRow(t.Context(), `SELECT user_id, first_fragment_ms, prompt_tokens FROM usage WHERE id = 'b'`).
		Scan(&user, &none, &uncounted))
	is.Equal(uncounted, nil)
	is.Equal(user, "a\uFFFDb\uFFFD")
	is.Equal(none, nil)
}

// day is a time of day on a day of January 2026.
func day(n int, clock string) time.Time {
	t, err := time.Parse("2006-01-02 15:04:05", fmt.Sprintf("2026-01-%02d %s", n, clock))
	if err != nil {
		panic(err)
	}
	return t
}

func TestDailyUsage(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url+"?timezone=Asia/Tokyo") // days are those of UTC all the same
	var records []*usage.Record
	add := func(account string, ended time.Time, complete bool, tokens *usage.Tokens) {
		records = append(records, &usage.Record{ID: rand.Text(), Account: account, EndedAt: ended, Complete: complete, Bytes: 10, Tokens: tokens, Chats: 1})
	}
	records = append(records, &usage.Record{ID: rand.Text(), Account: "acme", EndedAt: day(3, "00:00:00"), Chats: 70, Rejected: "429"})
	add("acme", day(1, "23:59:59"), true, &usage.Tokens{Prompt: 100, Completion: 100})
	add("acme", day(2, "00:00:00"), true, &usage.Tokens{Prompt: 9, Completion: 7})
	add("acme", day(2, "12:00:00"), false, nil)
	add("acme", day(2, "23:59:59"), true, &usage.Tokens{Prompt: 1, Estimated: true})
	add("other", day(2, "23:59:59"), false, nil)
	add("acme", day(3, "00:00:00"), true, &usage.Tokens{Prompt: 5, Completion: 5})
	add("acme", day(4, "00:00:00"), true, nil)
	for range 2 { // as an absurd runtime once reported them
		add("acme", day(5, "00:00:00"), true, &usage.Tokens{Prompt: math.MaxInt64, Completion: math.MinInt64})
	}
	is.NoErr(d.InsertUsage(t.Context(), records))

	records = append(records, &usage.Record{ID: rand.Text(), Account: "acme", EndedAt: day(3, "00:00:00"), Joins: 9})
	is.NoErr(d.InsertUsage(t.Context(), records[len(records)-1:]))

	days, err := d.DailyUsage(t.Context(), "", day(2, "00:00:00"), day(3, "00:00:00"))
	is.NoErr(err)
	is.Equal(days, []postgres.DailyUsage{
		{Day: day(2, "00:00:00"), Account: "acme", Chats: 3, Complete: 2, Bytes: 30, Counted: 2, Estimated: 1, PromptTokens: new(int64(10)), CompletionTokens: new(int64(7))},
		{Day: day(2, "00:00:00"), Account: "other", Chats: 1, Bytes: 10},
		{Day: day(3, "00:00:00"), Account: "acme", Chats: 71, Complete: 1, Rejected: 70, Joins: 9, Bytes: 10, Counted: 1, PromptTokens: new(int64(5)), CompletionTokens: new(int64(5))},
	})
	days, err = d.DailyUsage(t.Context(), "", day(5, "00:00:00"), day(5, "00:00:00"))
	is.NoErr(err) // the sums of others do not fail
	is.Equal([]int64{*days[0].PromptTokens, *days[0].CompletionTokens}, []int64{math.MaxInt64, 0})
	days, err = d.DailyUsage(t.Context(), "other", day(1, "00:00:00"), day(31, "00:00:00"))
	is.NoErr(err)
	is.Equal(len(days), 1)
}

func TestOldUsageIsDeletedInBatches(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	conn := connect(t, url)
	var records []*usage.Record
	for i := range 100 {
		records = append(records, &usage.Record{ID: fmt.Sprint(i), EndedAt: day(1, "12:00:00"), UserID: "old"},
			&usage.Record{ID: fmt.Sprint("new", i), EndedAt: day(2, "00:00:00"), UserID: "new"})
	}
	is.NoErr(d.InsertUsage(t.Context(), records))
	execute(t, conn, `
		CREATE TABLE batches (size bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO batches SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER DELETE ON usage REFERENCING OLD TABLE AS gone EXECUTE FUNCTION note()`)
	busy, err := connect(t, url).Begin(t.Context())
	is.NoErr(err)
	execute(t, busy, `SELECT FROM usage WHERE id = '50' FOR UPDATE`)

	deleted, err := d.DeleteUsage(t.Context(), day(2, "00:00:00"), 40)
	is.NoErr(err)
	is.Equal(deleted, int64(99)) // it does not wait for locked rows
	rows, _ := conn.Query(t.Context(), `SELECT size FROM batches WHERE size > 0`)
	sizes, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	is.NoErr(err)
	is.Equal(sizes, []int64{40, 40, 19})

	is.NoErr(busy.Rollback(t.Context()))
	deleted, err = d.DeleteUsage(t.Context(), day(2, "00:00:00"), 40)
	is.NoErr(err)
	is.Equal(deleted, int64(1))
	var left []string
	is.NoErr(conn.QueryRow(t.Context(), `SELECT array_agg(DISTINCT user_id) FROM usage`).Scan(&left))
	is.Equal(left, []string{"new"})

	stopped, stop := context.WithCancel(t.Context())
	stop()
	deleted, err = d.DeleteUsage(stopped, day(3, "00:00:00"), 40)
	is.True(errors.Is(err, context.Canceled))
	is.Equal(deleted, int64(0))
}
