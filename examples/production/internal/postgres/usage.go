package postgres

import (
	"context"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/usage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var _ usage.Store = (*Database)(nil)

// InsertUsage stores these records in one statement. A record that is already
// stored, from a call whose result was lost, is not stored twice.
func (d *Database) InsertUsage(ctx context.Context, records []*usage.Record) error {
	var c usageColumns
	for _, r := range records {
		c.add(r)
	}
	return d.run(ctx, "storing usage", func(ctx context.Context, conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, `
			INSERT INTO usage (id, ended_at, request_id, account, user_id, bot_uid, model, stream, status, complete,
				fragments, bytes, first_fragment_ms, duration_ms, prompt_tokens, completion_tokens, tokens_estimated,
				chats, rejected, joins)
			SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
				$8::boolean[], $9::integer[], $10::boolean[], $11::integer[], $12::bigint[], $13::float8[], $14::float8[],
				$15::bigint[], $16::bigint[], $17::boolean[], $18::bigint[], $19::text[], $20::bigint[])
			ON CONFLICT (id) DO NOTHING`,
			c.id, c.endedAt, c.requestID, c.account, c.userID, c.botUID, c.model, c.stream, c.status, c.complete,
			c.fragments, c.bytes, c.firstFragment, c.duration, c.promptTokens, c.completionTokens, c.estimated,
			c.chats, c.rejected, c.joins)
		return err
	})
}

// DailyUsage is what one account used on one day in UTC.
type DailyUsage struct {
	Day              time.Time
	Account          string
	Chats, Complete  int64
	Rejected         int64 // chats that asked no model
	Joins            int64 // requests that joined an answer; they are no chats
	Bytes            int64
	Counted          int64  // chats whose tokens are known
	Estimated        int64  // of those, the chats whose tokens are estimates
	PromptTokens     *int64 // of those counted; nil if there are none
	CompletionTokens *int64
}

// DailyUsage returns the usage of an account, or of all if it is empty, from the
// first to the last day, both included, by day and account. Only ctx limits its
// time. A sum that is too large for its type is the largest value of the type.
func (d *Database) DailyUsage(ctx context.Context, account string, first, last time.Time) (days []DailyUsage, err error) {
	err = d.runLong(ctx, "adding up usage", func(ctx context.Context, conn *pgxpool.Conn) error {
		rows, _ := conn.Query(ctx, `
			SELECT (ended_at AT TIME ZONE 'UTC')::date, account, sum(chats)::bigint, count(*) FILTER (WHERE complete),
				coalesce(sum(chats) FILTER (WHERE rejected <> ''), 0)::bigint, sum(joins)::bigint,
				least(sum(bytes), 9223372036854775807)::bigint,
				count(prompt_tokens), count(prompt_tokens) FILTER (WHERE tokens_estimated),
				CASE WHEN count(prompt_tokens) > 0 THEN least(sum(greatest(prompt_tokens, 0)), 9223372036854775807)::bigint END,
				CASE WHEN count(completion_tokens) > 0 THEN least(sum(greatest(completion_tokens, 0)), 9223372036854775807)::bigint END
			FROM usage
			WHERE ended_at >= $1 AND ended_at < $2 AND ($3 = '' OR account = $3)
			GROUP BY 1, account ORDER BY 1, account COLLATE "C"`, first, last.AddDate(0, 0, 1), account)
		days, err = pgx.CollectRows(rows, pgx.RowToStructByPos[DailyUsage])
		return err
	})
	return days, err
}

// DeleteUsage deletes the records of chats that ended before a time. It deletes
// batch records in one statement, few enough not to block others. It returns how
// many it deleted, even if it failed or ctx ended.
func (d *Database) DeleteUsage(ctx context.Context, before time.Time, batch int) (deleted int64, err error) {
	for {
		var some int64
		err := d.run(ctx, "deleting usage", func(ctx context.Context, conn *pgxpool.Conn) error {
			tag, err := conn.Exec(ctx, `
				DELETE FROM usage WHERE id = ANY (ARRAY(
					SELECT id FROM usage WHERE ended_at < $1 ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED))`, before, batch)
			some = tag.RowsAffected()
			return err
		})
		deleted += some
		if err != nil || some == 0 {
			return deleted, err
		}
	}
}

// usageColumns holds records column by column, so that the text of the statement
// is the same for any number of rows.
type usageColumns struct {
	id, requestID, account, userID, botUID, model []string

	endedAt           []time.Time
	stream, complete  []bool
	status, fragments []int
	bytes             []int64
	firstFragment     []*float64
	duration          []float64

	promptTokens, completionTokens []*int64
	estimated                      []bool

	chats    []int64
	rejected []string
	joins    []int64
}

func (c *usageColumns) add(r *usage.Record) {
	c.id = append(c.id, r.ID)
	c.endedAt = append(c.endedAt, r.EndedAt)
	c.requestID = append(c.requestID, storable(r.RequestID))
	c.account = append(c.account, storable(r.Account))
	c.userID = append(c.userID, storable(r.UserID))
	c.botUID = append(c.botUID, r.BotUID)
	c.model = append(c.model, r.Model)
	c.stream = append(c.stream, r.Stream)
	c.status = append(c.status, r.Status)
	c.complete = append(c.complete, r.Complete)
	c.fragments = append(c.fragments, r.Fragments)
	c.bytes = append(c.bytes, r.Bytes)
	c.firstFragment = append(c.firstFragment, firstFragmentMS(r.FirstFragment))
	c.duration = append(c.duration, milliseconds(r.Duration))
	var prompt, completion *int64 // SQL's NULL
	if r.Tokens != nil {
		prompt, completion = &r.Tokens.Prompt, &r.Tokens.Completion
	}
	c.promptTokens = append(c.promptTokens, prompt)
	c.completionTokens = append(c.completionTokens, completion)
	c.chats = append(c.chats, r.Chats)
	c.rejected = append(c.rejected, r.Rejected)
	c.joins = append(c.joins, r.Joins)
	c.estimated = append(c.estimated, r.Tokens != nil && r.Tokens.Estimated)
}

// storable is s as PostgreSQL can store it: one client's user_id must not
// prevent the whole batch from being stored.
func storable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// firstFragmentMS is nil, SQL's NULL, for an answer without a fragment.
func firstFragmentMS(d time.Duration) *float64 {
	if d == 0 {
		return nil
	}
	return new(milliseconds(d))
}
