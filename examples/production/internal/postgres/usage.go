package postgres

import (
	"context"
	"strings"
	"time"

	"example.com/botapi/examples/production/internal/usage"
)

var _ usage.Store = (*Database)(nil)

// InsertUsage stores these records in one statement. A record that is there
// already, from a try whose result was lost, is not stored twice.
func (d *Database) InsertUsage(ctx context.Context, records []usage.Record) error {
	query, cancel := d.bounded(ctx)
	defer cancel()
	var c usageColumns
	for _, r := range records {
		c.add(r)
	}
	_, err := d.pool.Exec(query, `
		INSERT INTO usage (id, ended_at, request_id, account, user_id, bot_uid, model, stream, status, complete,
			fragments, bytes, first_fragment_ms, duration_ms)
		SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
			$8::boolean[], $9::integer[], $10::boolean[], $11::integer[], $12::bigint[], $13::float8[], $14::float8[])
		ON CONFLICT (id) DO NOTHING`,
		c.id, c.endedAt, c.requestID, c.account, c.userID, c.botUID, c.model, c.stream, c.status, c.complete,
		c.fragments, c.bytes, c.firstFragment, c.duration)
	if err != nil {
		return failed(ctx, "storing usage", err)
	}
	return nil
}

// usageColumns holds records column by column, the form of a statement whose
// text is the same for any number of rows.
type usageColumns struct {
	id, requestID, account, userID, botUID, model []string

	endedAt           []time.Time
	stream, complete  []bool
	status, fragments []int
	bytes             []int64
	firstFragment     []*float64
	duration          []float64
}

func (c *usageColumns) add(r usage.Record) {
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
}

// storable is text that PostgreSQL takes: one client's user_id must not keep
// the whole batch from being stored.
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
