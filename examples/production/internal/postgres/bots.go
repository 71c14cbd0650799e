package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"example.com/botapi"
	"github.com/invopop/validation"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Bot is a bot with the columns that clients do not see.
type Bot struct {
	botapi.Bot
	Published bool
	Settings
}

// Settings is how a bot answers. Only engines see it.
type Settings struct {
	Instructions string   `json:"instructions"` // the system prompt
	Runtime      string   `json:"runtime"`      // which runtime has the model; empty for the first one
	Temperature  *float64 `json:"temperature"`  // nil for the runtime's own
	MaxTokens    *int64   `json:"max_tokens"`   // of an answer; nil for no limit
}

// The columns of a botapi.Bot and of a Bot.
const (
	wireColumns = `uid, slug, name, description, welcome_message, model, avatar_url`
	columns     = wireColumns + `, published, instructions, runtime, temperature, max_tokens`
)

// Bots returns the published bots by position, and by slug if two share one.
func (d *Database) Bots(ctx context.Context) ([]botapi.Bot, error) {
	return collect(ctx, d, "listing the bots", pgx.RowToStructByName[botapi.Bot],
		`SELECT `+wireColumns+` FROM bots WHERE published ORDER BY position, slug`)
}

// BotByUID returns the published bot with this uid, or botapi.ErrBotNotFound.
func (d *Database) BotByUID(ctx context.Context, uid string) (Bot, error) {
	return d.publishedBot(ctx, `SELECT `+columns+` FROM bots WHERE published AND uid = $1`, uid)
}

// BotBySlug returns the published bot with this slug, or botapi.ErrBotNotFound.
func (d *Database) BotBySlug(ctx context.Context, slug string) (Bot, error) {
	return d.publishedBot(ctx, `SELECT `+columns+` FROM bots WHERE published AND slug = $1`, slug)
}

func (d *Database) publishedBot(ctx context.Context, sql, name string) (bot Bot, err error) {
	if len(name) > maxName || strings.ContainsRune(name, 0) {
		return bot, botapi.ErrBotNotFound // no bot has such a name, and PostgreSQL cannot store a NUL in text
	}
	bot, err = collectOne(ctx, d, "looking up a bot", pgx.RowToStructByName[Bot], sql, name)
	return bot, orNotFound(err)
}

// orNotFound returns err, or botapi.ErrBotNotFound if there was no row.
func orNotFound(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return botapi.ErrBotNotFound
	}
	return err
}

// AllBots returns every bot, published or not, in listing order.
func (d *Database) AllBots(ctx context.Context) ([]Bot, error) {
	return collect(ctx, d, "listing all bots", pgx.RowToStructByName[Bot], `SELECT `+columns+` FROM bots ORDER BY position, slug`)
}

// ImportedBot is one bot of an import, which is read from JSON. If Published is
// nil, an existing bot keeps its state and a new one is not published.
type ImportedBot struct {
	botapi.Bot
	Settings
	Published *bool `json:"published"`
}

// ErrSlugTaken is what ImportBots returns, wrapped, when two bots would have the
// same slug.
var ErrSlugTaken = errors.New("two bots would have the same slug")

// ImportBots adds these bots, or replaces those with the same uid, in one
// transaction. An invalid bot is a validation.Errors.
//
// The bots are listed in the order of the slice: in the positions that the
// existing ones had, and then after all others. Other bots keep their positions.
func (d *Database) ImportBots(ctx context.Context, bots []ImportedBot) error {
	var uids []string
	for i, bot := range bots {
		err := bot.validate()
		if slices.Contains(uids, bot.UID) {
			err = validation.Errors{"uid": errors.New("belongs to another bot of this import")}
		}
		if err != nil {
			return fmt.Errorf("importing bots: bot %d (slug %q): %w", i+1, bot.Slug, err)
		}
		uids = append(uids, bot.UID)
	}
	err := d.run(ctx, "importing bots", func(ctx context.Context, conn *pgxpool.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			positions, err := takePositions(ctx, tx, uids)
			if err != nil {
				return err
			}
			for i, bot := range bots {
				if err := importBot(ctx, tx, positions[i], bot); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if isSlugTaken(err) {
		return fmt.Errorf("%w: %w", ErrSlugTaken, err)
	}
	return err
}

// maxName bounds uids and slugs, in bytes: they are keys of indexes.
const maxName = 200

func (b ImportedBot) validate() error {
	if err := b.Bot.Validate(); err != nil {
		return err
	}
	if err := validation.ValidateStruct(&b.Bot,
		validation.Field(&b.UID, validation.Length(0, maxName)),
		validation.Field(&b.Slug, validation.Length(0, maxName))); err != nil {
		return err
	}
	return validation.ValidateStruct(&b.Settings,
		validation.Field(&b.Temperature, validation.Min(0.0), validation.Max(2.0)),
		validation.Field(&b.MaxTokens, validation.NilOrNotEmpty, validation.Min(1), validation.Max(math.MaxInt32)))
}

// takePositions returns the positions of the imported bots, in the order of the
// import. No other import runs meanwhile.
func takePositions(ctx context.Context, tx pgx.Tx, uids []string) ([]int, error) {
	if _, err := tx.Exec(ctx, `LOCK TABLE bots IN SHARE ROW EXCLUSIVE MODE`); err != nil {
		return nil, err
	}
	rows, _ := tx.Query(ctx, `SELECT position FROM bots WHERE uid = ANY($1) ORDER BY position`, uids)
	positions, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, err
	}
	var last int
	if err := tx.QueryRow(ctx, `SELECT coalesce(max(position), 0) FROM bots`).Scan(&last); err != nil {
		return nil, err
	}
	for len(positions) < len(uids) {
		last++
		positions = append(positions, last)
	}
	for i := 1; i < len(positions); i++ {
		positions[i] = max(positions[i], positions[i-1]+1) // two bots may share a position
	}
	return positions, nil
}

func importBot(ctx context.Context, tx pgx.Tx, position int, bot ImportedBot) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO bots (`+wireColumns+`, position, instructions, runtime, temperature, max_tokens, published)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $13, coalesce($12, false))
		ON CONFLICT (uid) DO UPDATE SET
			slug = excluded.slug, name = excluded.name, description = excluded.description,
			welcome_message = excluded.welcome_message, model = excluded.model, avatar_url = excluded.avatar_url,
			position = excluded.position, instructions = excluded.instructions, runtime = excluded.runtime,
			temperature = excluded.temperature, max_tokens = excluded.max_tokens, published = coalesce($12, bots.published), updated_at = now()`,
		bot.UID, bot.Slug, bot.Name, bot.Description, bot.WelcomeMessage, bot.Model, bot.AvatarURL,
		position, bot.Instructions, bot.Runtime, bot.Temperature, bot.Published, bot.MaxTokens)
	return err
}

func isSlugTaken(err error) bool {
	failure, ok := errors.AsType[*pgconn.PgError](err)
	return ok && failure.ConstraintName == "bots_slug_unique"
}

// SetPublished shows a bot to clients or hides it. A bot that does not exist
// is botapi.ErrBotNotFound.
func (d *Database) SetPublished(ctx context.Context, slug string, published bool) error {
	return orNotFound(d.run(ctx, "publishing or hiding a bot", func(ctx context.Context, conn *pgxpool.Conn) error {
		tag, err := conn.Exec(ctx, `UPDATE bots SET published = $2, updated_at = now() WHERE slug = $1`, slug, published)
		if err == nil && tag.RowsAffected() == 0 {
			return pgx.ErrNoRows
		}
		return err
	}))
}
