package postgres

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"example.com/botapi/examples/production/internal/usage"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// lastUsedPrecision is the precision of a key's last use: a busy key costs one
	// write in this time, over all replicas.
	lastUsedPrecision = time.Hour
	// usesWaiting bounds the uses that are not stored yet: about 1 MB.
	usesWaiting = 10_000
)

// keyUses are uses of keys that are not stored yet. Further ones are omitted
// when it is full: a key that stays in use is added later.
type keyUses struct {
	mu   sync.Mutex
	last map[int64]time.Time // by id of the key
}

func (u *keyUses) add(id int64, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.last) < usesWaiting && at.After(u.last[id]) {
		u.last[id] = at
	}
}

// take returns the uses and forgets them.
func (u *keyUses) take() map[int64]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.last
	u.last = make(map[int64]time.Time)
	return taken
}

// KeepKeyUses calls StoreKeyUses all the time, until ctx ends.
func (d *Database) KeepKeyUses(ctx context.Context) {
	next := time.NewTicker(usage.FlushInterval)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
			d.StoreKeyUses(ctx)
		}
	}
}

// StoreKeyUses stores when keys were last used, as VerifyKey has seen it, in one
// statement. If that fails, the next call tries again; such failures are logged
// at a bounded rate. It does not wait for keys that are locked: mostly, another
// replica is storing that they were used.
func (d *Database) StoreKeyUses(ctx context.Context) {
	uses := d.uses.take()
	if len(uses) == 0 {
		return
	}
	ids, times := make([]int64, 0, len(uses)), make([]time.Time, 0, len(uses))
	for id, at := range uses {
		ids, times = append(ids, id), append(times, at)
	}
	err := d.run(ctx, "storing last uses of keys", func(ctx context.Context, conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, `
			UPDATE api_keys SET last_used_at = used_at FROM (
				SELECT id AS used_id, used_at
				FROM api_keys JOIN unnest($1::bigint[], $2::timestamptz[]) AS uses (id, used_at) USING (id)
				WHERE coalesce(last_used_at < used_at - $3::interval, true)
				FOR NO KEY UPDATE OF api_keys SKIP LOCKED) AS used
			WHERE id = used_id`, ids, times, lastUsedPrecision)
		return err
	})
	if err == nil {
		return
	}
	for id, at := range uses {
		d.uses.add(id, at)
	}
	d.unstored.Count(struct{}{}, func(times int64) {
		d.logger.WarnContext(ctx, "the last uses of keys were not stored", slog.Int("keys", len(uses)), slog.Any("error", err), slog.Int64("times", times))
	})
}
