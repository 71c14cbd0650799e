package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/usage"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var _ usage.Store = (*Database)(nil)

// usageColumns are the columns of usage.Record.Columns.
const usageColumns = `id, ended_at, request_id, account, user_id, bot_uid, model, stream, status, complete, fragments, bytes,
	first_fragment_ms, duration_ms, prompt_tokens, completion_tokens, tokens_estimated, chats, rejected, joins`

// InsertUsage stores these records in one statement. A record that is already
// stored, from a call whose result was lost, is not stored twice.
func (d *Database) InsertUsage(ctx context.Context, records []*usage.Record) error {
	rows := make([]map[string]any, len(records))
	for i, r := range records {
		rows[i] = make(map[string]any)
		for _, column := range r.Columns() {
			rows[i][column.Key] = storable(column.Value.Any())
		}
	}
	text, err := json.Marshal(rows)
	if err != nil {
		return fmt.Errorf("storing usage: %w", err)
	}
	return d.run(ctx, "storing usage", func(ctx context.Context, conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, `
			INSERT INTO usage (`+usageColumns+`)
			SELECT `+usageColumns+` FROM jsonb_populate_recordset(NULL::usage, $1::jsonb)
			ON CONFLICT (id) DO NOTHING`, string(text))
		return err
	})
}

// storable is a value as PostgreSQL can store it: one client's user_id must not
// prevent the whole batch from being stored.
func storable(value any) any {
	if text, ok := value.(string); ok {
		return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	}
	return value
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
