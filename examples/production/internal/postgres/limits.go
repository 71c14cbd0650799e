package postgres

import (
	"context"
	"errors"
	"fmt"

	"example.com/botapi/examples/production/internal/limits"
	"github.com/invopop/validation"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// AccountLimits are limits as they are stored. In those of one account, nil
// means the same limit as everybody else; in those of everybody else, nil means
// no limit.
type AccountLimits struct {
	Account                                       string // empty for everybody else
	ChatsPerMinute, TokensPerDay, ConcurrentChats *int64
}

// ErrNoLimits is what RemoveLimits returns if there is nothing to remove.
var ErrNoLimits = errors.New("no such limits")

// Limits returns the limits of an account: its own, and where it has none, those
// of everybody else. (A column keeps its first name, chats_at_once: replicas of the version
// before use it, too, while others are replaced.)
func (d *Database) Limits(ctx context.Context, account string) (limits.Limits, error) {
	return collectOne(ctx, d, "reading the limits of an account", pgx.RowToStructByName[limits.Limits], `
		SELECT coalesce(own.chats_per_minute, rest.chats_per_minute, 0) AS chats_per_minute,
		       coalesce(own.tokens_per_day, rest.tokens_per_day, 0) AS tokens_per_day,
		       coalesce(own.chats_at_once, rest.chats_at_once, 0) AS concurrent_chats
		FROM (SELECT $1::text AS account) AS asked
		LEFT JOIN account_limits AS own USING (account)
		LEFT JOIN account_limits AS rest ON rest.account = ''`, account)
}

// SetLimits sets limits of an account, or of everybody else: those that are not
// nil. Replicas see the change when they next ask. An account that is not one short
// line is a validation.Errors: no key can belong to it.
func (d *Database) SetLimits(ctx context.Context, l AccountLimits) error {
	if err := (validation.Errors{
		"account": validation.Validate(l.Account, oneLine, validation.Length(0, maxName)),
	}).Filter(); err != nil {
		return fmt.Errorf("setting limits: %w", err)
	}
	return d.run(ctx, "setting limits", func(ctx context.Context, conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, `
			INSERT INTO account_limits AS own (account, chats_per_minute, tokens_per_day, chats_at_once) VALUES ($1, $2, $3, $4)
			ON CONFLICT (account) DO UPDATE SET
				chats_per_minute = coalesce(excluded.chats_per_minute, own.chats_per_minute),
				tokens_per_day = coalesce(excluded.tokens_per_day, own.tokens_per_day),
				chats_at_once = coalesce(excluded.chats_at_once, own.chats_at_once)`,
			l.Account, l.ChatsPerMinute, l.TokensPerDay, l.ConcurrentChats)
		return err
	})
}

// WhichLimits are some of the limits.
type WhichLimits struct{ ChatsPerMinute, TokensPerDay, ConcurrentChats bool }

// RemoveLimits removes some of an account's own limits, so that those of everybody
// else apply to it, or of those of everybody else. It returns those that it has
// removed, or ErrNoLimits if there are none of them.
func (d *Database) RemoveLimits(ctx context.Context, account string, which WhichLimits) (removed AccountLimits, err error) {
	removed, err = collectOne(ctx, d, "removing limits", pgx.RowToStructByPos[AccountLimits], `
		WITH old AS (
			SELECT account,
				CASE WHEN $2 THEN chats_per_minute END AS minute,
				CASE WHEN $3 THEN tokens_per_day END AS day,
				CASE WHEN $4 THEN chats_at_once END AS once
			FROM account_limits WHERE account = $1 FOR UPDATE)
		UPDATE account_limits AS kept SET
			chats_per_minute = CASE WHEN $2 THEN NULL ELSE chats_per_minute END,
			tokens_per_day = CASE WHEN $3 THEN NULL ELSE tokens_per_day END,
			chats_at_once = CASE WHEN $4 THEN NULL ELSE chats_at_once END
		FROM old WHERE kept.account = old.account AND num_nonnulls(minute, day, once) > 0
		RETURNING old.*`,
		account, which.ChatsPerMinute, which.TokensPerDay, which.ConcurrentChats)
	if errors.Is(err, pgx.ErrNoRows) {
		return AccountLimits{}, ErrNoLimits
	}
	return removed, err
}

// AllLimits returns the limits of everybody else, if there are any, and then
// those of accounts, by name.
func (d *Database) AllLimits(ctx context.Context) ([]AccountLimits, error) {
	return collect(ctx, d, "listing limits", pgx.RowToStructByPos[AccountLimits], `
		SELECT account, chats_per_minute, tokens_per_day, chats_at_once FROM account_limits
		WHERE num_nonnulls(chats_per_minute, tokens_per_day, chats_at_once) > 0 ORDER BY account`)
}
