package postgres_test

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/logtest"
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
		records = append(records, &usage.Record{ID: text(26), Account: account, EndedAt: ended, Complete: complete, Bytes: 10, Tokens: tokens, Chats: 1})
	}
	records = append(records, &usage.Record{ID: text(26), Account: "acme", EndedAt: day(3, "00:00:00"), Chats: 70, Rejected: "429"})
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

	records = append(records, &usage.Record{ID: text(26), Account: "acme", EndedAt: day(3, "00:00:00"), Joins: 9})
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
	_, err := conn.Exec(t.Context(), `
		CREATE TABLE batches (size bigint);
		CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN INSERT INTO batches SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER DELETE ON usage REFERENCING OLD TABLE AS gone EXECUTE FUNCTION note()`)
	is.NoErr(err)
	busy, err := connect(t, url).Begin(t.Context())
	is.NoErr(err)
	_, err = busy.Exec(t.Context(), `SELECT FROM usage WHERE id = '50' FOR UPDATE`)
	is.NoErr(err)

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
	is.Equal(usersOf(t, url), map[string]bool{"new": true})

	stopped, stop := context.WithCancel(t.Context())
	stop()
	deleted, err = d.DeleteUsage(stopped, day(3, "00:00:00"), 40)
	is.True(errors.Is(err, context.Canceled))
	is.Equal(deleted, int64(0))
}

// usersOf returns the stored user ids.
func usersOf(t *testing.T, url string) map[string]bool {
	t.Helper()
	rows, _ := connect(t, url).Query(t.Context(), `SELECT user_id FROM usage`)
	users, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	stored := make(map[string]bool)
	for _, user := range users {
		stored[user] = true
	}
	return stored
}

// text returns random text, which an index cannot compress.
func text(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(crand.Text())
	}
	return b.String()[:n]
}

// chatting serves the API from a database, and writes usage to it.
type chatting struct {
	handler http.Handler
	key     string
	usage   *usage.Writer
	log     logtest.Log
}

func newChatting(t *testing.T, d *postgres.Database) *chatting {
	t.Helper()
	if err := d.ImportBots(t.Context(), []postgres.ImportedBot{published("u1", "helper")}); err != nil {
		t.Fatal(err)
	}
	key, _, err := d.CreateKey(t.Context(), "acme", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &chatting{key: key}
	c.usage = usage.NewWriter(d, slog.New(slog.NewJSONHandler(&c.log, nil)))
	t.Cleanup(func() { c.close(0) })
	c.handler = botapi.New(botapi.Options{
		Bots:         store{d},
		Keys:         botapi.CacheKeys(d, time.Minute),
		Engine:       botapi.ChatEngineFunc(echo),
		MaxBodyBytes: 4 << 20,
		OnChat: func(_ context.Context, report botapi.ChatReport) {
			c.usage.Add(usage.NewRejection(report, "at its end", 1))
		},
	})
	return c
}

func (c *chatting) chat(t *testing.T, user, prompt string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"bot_slug": "helper", "prompt": prompt, "stream": false, "user_id": user})
	if err != nil {
		t.Fatal(err)
	}
	if status, _, answer := send(t, c.handler, c.key, "POST", "/v1/chat", string(body)); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
}

// close stores the waiting records, for at most this time.
func (c *chatting) close(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c.usage.Close(ctx)
}

func TestLongUserIDsAreStored(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	c := newChatting(t, d)
	for i := range 20 {
		c.chat(t, fmt.Sprint(i), "Hi")
		c.chat(t, text(2_800+i), "Hi") // longer than an index entry may be
	}
	c.chat(t, text(1<<20), "Hi")
	c.close(time.Minute)

	stored := usersOf(t, url)
	is.Equal(len(stored), 41)
	for user := range stored {
		is.True(len(user) < 100)
	}
	is.Equal(c.log.String(), "")
}

func TestOnlyTheRecordThatPostgreSQLRejectsIsNotStored(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	c := newChatting(t, d)
	_, err := connect(t, url).Exec(t.Context(), `ALTER TABLE usage ADD CHECK (user_id <> '13')`)
	is.NoErr(err)
	for i := range 100 {
		c.chat(t, fmt.Sprint(i), "Hi")
	}
	c.close(time.Minute)

	is.Equal(len(usersOf(t, url)), 99)
	is.Equal(strings.Count(c.log.String(), "usage not stored"), 1)
	is.True(strings.Contains(c.log.String(), `"user_id":"13"`))
}

// TestUsageOutlastsAFailover has the writer meet a standby that is not promoted
// yet.
func TestUsageOutlastsAFailover(t *testing.T) {
	is := is.New(t)
	server := postgrestest.NewServer(t)
	d := open(t, server.URL)
	c := newChatting(t, d)
	admin := connect(t, server.URL)
	readOnly := func(setting string) {
		for _, statement := range []string{
			"SET default_transaction_read_only = off",
			"ALTER SYSTEM SET default_transaction_read_only = " + setting,
			"SELECT pg_reload_conf()",
		} {
			_, err := admin.Exec(t.Context(), statement)
			is.NoErr(err)
		}
	}
	c.chat(t, "before", "Hi") // from here on the key is in the cache
	readOnly("on")
	watcher := connect(t, server.URL)
	waitFor(t, watcher, "current_setting('transaction_read_only') = 'on'")
	c.chat(t, "meanwhile", "Hi")
	closed := make(chan struct{})
	go func() {
		c.close(time.Minute)
		close(closed)
	}()
	eventually(t, "the record was rejected", func() bool { return strings.Contains(c.log.String(), "usage ") })
	readOnly("off")
	<-closed

	is.Equal(usersOf(t, server.URL), map[string]bool{"before": true, "meanwhile": true})
	is.True(strings.Contains(c.log.String(), "25006"))
	is.True(!strings.Contains(c.log.String(), "usage not stored"))
}

// heap is the memory that is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what the first one finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestUsageThatWaitsKeepsNoRequestBodies(t *testing.T) {
	is := is.New(t)
	url := postgrestest.Database(t)
	d := open(t, url)
	c := newChatting(t, d)
	c.chat(t, "warm", "Hi")
	defer locked(t, url, "usage")()
	before := heap()
	prompt := strings.Repeat("x", 1<<20)
	for i := range 40 {
		c.chat(t, fmt.Sprint(i), prompt)
	}
	is.True(heap()-before < 10<<20) // of 40 MB of requests
	is.Equal(strings.Count(c.log.String(), "usage not stored"), 0)
}

func TestMemoryOfUsageThatWaitsIsBounded(t *testing.T) {
	for name, user := range map[string]string{"without users": "", "with long ids": strings.Repeat("u", 256)} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			url := postgrestest.Database(t)
			open(t, url).Close()
			d := openWith(t, url, postgres.Options{QueryTimeout: 100 * time.Millisecond})
			defer locked(t, url, "usage")()
			var log lostLines
			before := heap()
			w := usage.NewWriter(d, slog.New(slog.NewTextHandler(&log, nil)))
			for range 40_000 {
				w.Add(usage.NewRejection(botapi.ChatReport{
					RequestID: strings.Repeat("r", 128), Account: strings.Repeat("a", 200), UserID: strings.Clone(user),
					Bot: botapi.Bot{UID: strings.Repeat("b", 200), Model: strings.Repeat("m", 50)},
				}, "", 1))
			}
			is.True(heap()-before < usage.QueueBytes*5/4)
			is.True(log.lost.Load() > 20_000) // the bound was reached

			over, cancel := context.WithCancel(t.Context())
			cancel()
			w.Close(over)
			is.Equal(log.lost.Load(), int64(40_000)) // and each record is in the log
		})
	}
}

// lostLines counts the lines of records that were not stored.
type lostLines struct{ lost atomic.Int64 }

func (l *lostLines) Write(p []byte) (int, error) {
	l.lost.Add(int64(bytes.Count(p, []byte("usage not stored"))))
	return len(p), nil
}
