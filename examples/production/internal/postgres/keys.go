package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/botapi"
	"github.com/invopop/validation"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Key is an API key as it is stored, without the key itself.
type Key struct {
	ID         int64
	Account    string
	Label      string
	CreatedAt  time.Time
	LastUsedAt *time.Time // nil for a key that was never used; up to an hour before its last use
	ExpiresAt  *time.Time // nil for a key that does not expire
	RevokedAt  *time.Time // nil for a key that was not revoked
	ReplacedBy *int64     // nil for a key that was not rotated
}

// ErrKeyNotFound is what RevokeKey returns for an id that no key has, and
// RotateKey and ExpireKey for an id that no valid key has.
var ErrKeyNotFound = errors.New("no such key")

// ErrKeyReplaced is what RotateKey returns for a key that has been replaced.
var ErrKeyReplaced = errors.New("the key has been replaced already")

var _ botapi.KeyVerifier = (*Database)(nil)

// isValid is true of keys that work: a key that is not valid never becomes valid
// again.
const isValid = `(revoked_at IS NULL AND coalesce(expires_at > now(), true))`

// VerifyKey returns the account of a key that is neither revoked nor expired, or
// botapi.ErrInvalidKey. A valid key is cached for Options.KeyCache, but not beyond
// the time at which the database has said that it expires. Several requests with one
// key may look it up at the same time: botapi.CacheKeys joins them, and needs no time
// of its own. What invalid keys may cost is bounded: see gate. When a key was used is
// stored later, by StoreKeyUses.
func (d *Database) VerifyKey(ctx context.Context, key string) (account string, err error) {
	sum := sha256.Sum256([]byte(key))
	if !isKey(key) || d.gate.remembers(sum) {
		d.gate.count(ctx)
		return "", botapi.ErrInvalidKey
	}
	if account, ok := d.gate.recall(sum); ok {
		return account, nil
	}
	began := time.Now() // so that the time of the lookup does not prolong a life
	found, err := d.lookUpKey(ctx, sum)
	if errors.Is(err, pgx.ErrNoRows) {
		d.gate.wasRejected(sum)
		d.gate.count(ctx)
		return "", botapi.ErrInvalidKey
	}
	if err != nil {
		return "", err
	}
	lasts := d.keyCache
	if found.left != nil {
		lasts = min(lasts, *found.left)
	}
	d.gate.wasGood(sum, goodKey{found.account, began.Add(lasts)})
	if found.stale {
		d.uses.add(found.id, found.at)
	}
	return found.account, nil
}

// A foundKey is a valid key, when the database has found it, and how long it still
// works then, nil for no end. It is stale if its stored last use is older than
// lastUsedPrecision.
type foundKey struct {
	id      int64
	account string
	at      time.Time
	left    *time.Duration
	stale   bool
}

func (d *Database) lookUpKey(ctx context.Context, sum digest) (key foundKey, err error) {
	leave, err := d.gate.enter(ctx, sum)
	if err != nil {
		return key, err
	}
	defer leave()
	err = d.run(ctx, "verifying a key", func(ctx context.Context, conn *pgxpool.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT id, account, now(), expires_at - now(), coalesce(last_used_at < now() - $2::interval, true)
			FROM api_keys WHERE digest = $1 AND `+isValid, sum[:], lastUsedPrecision).
			Scan(&key.id, &key.account, &key.at, &key.left, &key.stale)
	})
	return key, err
}

// CreateKey creates a key for an account, which expires after some time, or never
// if that is 0. It returns the key only now; the database keeps its digest. An
// account or a label that is not one short line is a validation.Errors.
func (d *Database) CreateKey(ctx context.Context, account, label string, expires time.Duration) (key string, id int64, err error) {
	if err := (validation.Errors{
		"account": validation.Validate(account, validation.Required, oneLine, validation.Length(0, maxName)),
		"label":   validation.Validate(label, oneLine, validation.Length(0, maxName)),
	}).Filter(); err != nil {
		return "", 0, fmt.Errorf("creating a key: %w", err)
	}
	key, sum := newKey()
	id, err = collectOne(ctx, d, "creating a key", pgx.RowTo[int64], `
		INSERT INTO api_keys (digest, account, label, expires_at) VALUES ($1, $2, $3, now() + $4::interval) RETURNING id`,
		sum[:], account, label, unlessZero(expires))
	if err != nil {
		return "", 0, err
	}
	return key, id, nil
}

// RotateKey creates a key that replaces a valid one: it has the same account and
// label, and expires as CreateKey says. The old key, which is returned as well,
// works for the time after, or until it expires anyway. A key is replaced once:
// ErrKeyReplaced comes with the old key, valid or not, which has the id of its
// successor.
func (d *Database) RotateKey(ctx context.Context, id int64, after, expires time.Duration) (key string, created int64, old Key, err error) {
	key, sum := newKey()
	err = d.run(ctx, "rotating a key", func(ctx context.Context, conn *pgxpool.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			old, err = oneKey(tx.Query(ctx, `SELECT `+keyColumns+` FROM api_keys WHERE id = $1 AND (`+isValid+` OR replaced_by IS NOT NULL) FOR UPDATE`, id))
			if err != nil || old.ReplacedBy != nil {
				return err
			}
			if err := tx.QueryRow(ctx, `
				INSERT INTO api_keys (digest, account, label, expires_at) VALUES ($1, $2, $3, now() + $4::interval) RETURNING id`,
				sum[:], old.Account, old.Label, unlessZero(expires)).Scan(&created); err != nil {
				return err
			}
			old, err = oneKey(tx.Query(ctx, `
				UPDATE api_keys SET expires_at = least(expires_at, now() + $2::interval), replaced_by = $3 WHERE id = $1
				RETURNING `+keyColumns, id, after, created))
			return err
		})
	})
	switch {
	case err != nil:
		return "", 0, Key{}, orKeyNotFound(err)
	case created == 0:
		return "", 0, old, ErrKeyReplaced
	}
	return key, created, old, nil
}

// ExpireKey has a valid key expire after some time, which may be sooner or later
// than it would have expired before.
func (d *Database) ExpireKey(ctx context.Context, id int64, after time.Duration) (key Key, err error) {
	key, err = collectOne(ctx, d, "setting when a key expires", pgx.RowToStructByPos[Key], `
		UPDATE api_keys SET expires_at = now() + $2::interval WHERE id = $1 AND `+isValid+` RETURNING `+keyColumns, id, after)
	return key, orKeyNotFound(err)
}

// RevokeKeys revokes all keys of an account permanently, and returns how many
// were not revoked before. RevokeKey says when that takes effect.
func (d *Database) RevokeKeys(ctx context.Context, account string) (revoked int64, err error) {
	err = d.run(ctx, "revoking the keys of an account", func(ctx context.Context, conn *pgxpool.Conn) error {
		tag, err := conn.Exec(ctx, `UPDATE api_keys SET revoked_at = now() WHERE account = $1 AND revoked_at IS NULL`, account)
		revoked = tag.RowsAffected()
		return err
	})
	return revoked, err
}

// unlessZero is SQL's NULL for 0.
func unlessZero(d time.Duration) *time.Duration {
	if d == 0 {
		return nil
	}
	return &d
}

// orKeyNotFound is ErrKeyNotFound if a statement has found no key, or err itself.
func orKeyNotFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrKeyNotFound
	}
	return err
}

// oneLine keeps tables and logs readable, and accounts distinguishable.
var oneLine = validation.NewStringRuleWithError(isOneLine,
	validation.NewError("one_line", "must be one line of printable text, without white space around it"))

func isOneLine(s string) bool {
	return utf8.ValidString(s) && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// keyColumns are the fields of a Key, in their order.
const keyColumns = `id, account, label, created_at, last_used_at, expires_at, revoked_at, replaced_by`

// oneKey is the key that a statement has found; its error is in rows, too.
func oneKey(rows pgx.Rows, _ error) (Key, error) {
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Key])
}

// Keys returns all keys, or those of one account when it is not empty, oldest
// first.
func (d *Database) Keys(ctx context.Context, account string) ([]Key, error) {
	return collect(ctx, d, "listing keys", pgx.RowToStructByPos[Key],
		`SELECT `+keyColumns+` FROM api_keys WHERE $1 = '' OR account = $1 ORDER BY id`, account)
}

// UnusedKeys returns the valid keys that were created before a time and not used
// since, oldest first. If an account is given, only its keys. A key whose last use
// is not stored exactly enough counts as used.
func (d *Database) UnusedKeys(ctx context.Context, account string, since time.Time) ([]Key, error) {
	return collect(ctx, d, "listing unused keys", pgx.RowToStructByPos[Key], `
		SELECT `+keyColumns+` FROM api_keys
		WHERE ($1 = '' OR account = $1) AND `+isValid+` AND greatest(created_at, last_used_at + $3::interval) < $2
		ORDER BY id`, account, since, lastUsedPrecision)
}

// RevokeKey revokes a key permanently, and returns it, or ErrKeyNotFound.
// Revoking it again changes nothing: before reports that it was already revoked.
// Replicas that have the key in their cache accept it until the cache forgets it.
func (d *Database) RevokeKey(ctx context.Context, id int64) (key Key, before bool, err error) {
	type revoked struct {
		Key
		Before bool
	}
	found, err := collectOne(ctx, d, "revoking a key", pgx.RowToStructByPos[revoked], `
		WITH found AS (SELECT id AS found_id, revoked_at IS NOT NULL AS before FROM api_keys WHERE id = $1 FOR UPDATE)
		UPDATE api_keys SET revoked_at = coalesce(revoked_at, now()) FROM found WHERE id = found_id
		RETURNING `+keyColumns+`, before`, id)
	return found.Key, found.Before, orKeyNotFound(err)
}

// digest is all that is stored of a key. A key has at least 128 random bits, so
// a plain SHA-256 cannot be reversed by search.
type digest [sha256.Size]byte

// A key is its prefix and what rand.Text makes: 26 characters or more.
const (
	keyPrefix   = "bot_"
	keyAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
)

// newKey returns a new key and its digest.
func newKey() (key string, sum digest) {
	key = keyPrefix + rand.Text()
	return key, sha256.Sum256([]byte(key))
}

// isKey reports whether a text has the form of a key.
func isKey(text string) bool {
	random, prefixed := strings.CutPrefix(text, keyPrefix)
	return prefixed && len(random) >= 26 && len(random) <= 64 && strings.Trim(random, keyAlphabet) == ""
}
