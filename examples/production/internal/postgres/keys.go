package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"log/slog"
	"time"

	"example.com/botapi"
	"github.com/jackc/pgx/v5"
)

// lastUsedPrecision is how coarse a key's last use is kept: a busy key costs
// one write in this time, not one for each request.
const lastUsedPrecision = 5 * time.Minute

// Key is an API key as the database has it: without the key itself.
type Key struct {
	ID         int64
	Account    string
	Label      string
	CreatedAt  time.Time
	LastUsedAt *time.Time // nil for a key that was never used; up to five minutes behind
	RevokedAt  *time.Time // nil for a key that works
}

// ErrKeyNotFound is what RevokeKey returns for an id that no key has.
var ErrKeyNotFound = errors.New("no such key")

var _ botapi.KeyVerifier = (*Database)(nil)

// VerifyKey returns the account of a key that exists and is not revoked, or
// botapi.ErrInvalidKey. It asks the database each time: put botapi.CacheKeys
// before it.
func (d *Database) VerifyKey(ctx context.Context, key string) (string, error) {
	query, cancel := d.bounded(ctx)
	defer cancel()
	var (
		id      int64
		account string
		stale   bool
	)
	err := d.pool.QueryRow(query, `
		SELECT id, account, coalesce(last_used_at < now() - $2::interval, true)
		FROM api_keys WHERE digest = $1 AND revoked_at IS NULL`, digest(key), lastUsedPrecision).
		Scan(&id, &account, &stale)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", botapi.ErrInvalidKey
	}
	if err != nil {
		return "", failed(ctx, "verifying a key", err)
	}
	if stale {
		d.touchKey(query, id)
	}
	return account, nil
}

// touchKey notes that a key was used. A key that is good works all the same
// when that fails, for instance on a database that is read-only for a while.
func (d *Database) touchKey(ctx context.Context, id int64) {
	_, err := d.pool.Exec(ctx, `UPDATE api_keys SET last_used_at = now() WHERE id = $1`, id)
	if err != nil {
		d.logger.WarnContext(ctx, "a key's last use was not noted", slog.Int64("key_id", id), slog.Any("error", err))
	}
}

// CreateKey makes a key for an account. The key is returned this once; the
// database keeps only its digest.
func (d *Database) CreateKey(ctx context.Context, account, label string) (key string, id int64, err error) {
	query, cancel := d.bounded(ctx)
	defer cancel()
	key = "bot_" + rand.Text()
	err = d.pool.QueryRow(query, `INSERT INTO api_keys (digest, account, label) VALUES ($1, $2, $3) RETURNING id`,
		digest(key), account, label).Scan(&id)
	if err != nil {
		return "", 0, failed(ctx, "creating a key", err)
	}
	return key, id, nil
}

// Keys returns all keys, or those of one account when it is not empty, oldest
// first.
func (d *Database) Keys(ctx context.Context, account string) ([]Key, error) {
	query, cancel := d.bounded(ctx)
	defer cancel()
	rows, err := d.pool.Query(query, `SELECT id, account, label, created_at, last_used_at, revoked_at
		FROM api_keys WHERE $1 = '' OR account = $1 ORDER BY id`, account)
	if err != nil {
		return nil, failed(ctx, "listing keys", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Key])
	if err != nil {
		return nil, failed(ctx, "listing keys", err)
	}
	return keys, nil
}

// RevokeKey ends a key for good. Revoking it again changes nothing. Replicas
// that have the key in their cache go on accepting it until it falls out.
func (d *Database) RevokeKey(ctx context.Context, id int64) error {
	query, cancel := d.bounded(ctx)
	defer cancel()
	tag, err := d.pool.Exec(query, `UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) WHERE id = $1`, id)
	if err != nil {
		return failed(ctx, "revoking a key", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrKeyNotFound
	}
	return nil
}

// digest is all that is kept of a key. A key has 128 random bits or more, so
// that a plain digest cannot be searched.
func digest(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}
