package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"example.com/botapi"
	"github.com/invopop/validation"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Bot is a bot with what its clients do not see.
type Bot struct {
	botapi.Bot
	Published bool
	Settings
}

// Settings is how a bot answers. It is for engines alone.
type Settings struct {
	Instructions string   // the system prompt
	Runtime      string   // which runtime has the model; empty for the first one
	Temperature  *float64 // nil for the runtime's own
}

var _ botapi.BotStore = (*Database)(nil)

// The columns of a botapi.Bot, in the order in which scanBot reads them.
const wireColumns = `uid, slug, name, description, welcome_message, model, avatar_url`

// Bots returns the published bots by position, and by slug where two share one.
func (d *Database) Bots(ctx context.Context) ([]botapi.Bot, error) {
	query, cancel := d.bounded(ctx)
	defer cancel()
	rows, err := d.pool.Query(query, `SELECT `+wireColumns+` FROM bots WHERE published ORDER BY position, slug`)
	if err != nil {
		return nil, failed(ctx, "listing the bots", err)
	}
	bots, err := pgx.CollectRows(rows, scanWireBot)
	if err != nil {
		return nil, failed(ctx, "listing the bots", err)
	}
	return bots, nil
}

// BotByUID returns the published bot with this uid, or botapi.ErrBotNotFound.
func (d *Database) BotByUID(ctx context.Context, uid string) (botapi.Bot, error) {
	return d.publishedBot(ctx, `SELECT `+wireColumns+` FROM bots WHERE published AND uid = $1`, uid)
}

// BotBySlug returns the published bot with this slug, or botapi.ErrBotNotFound.
func (d *Database) BotBySlug(ctx context.Context, slug string) (botapi.Bot, error) {
	return d.publishedBot(ctx, `SELECT `+wireColumns+` FROM bots WHERE published AND slug = $1`, slug)
}

func (d *Database) publishedBot(ctx context.Context, sql, name string) (botapi.Bot, error) {
	if strings.ContainsRune(name, 0) {
		return botapi.Bot{}, botapi.ErrBotNotFound // PostgreSQL has no text with a NUL in it
	}
	query, cancel := d.bounded(ctx)
	defer cancel()
	rows, err := d.pool.Query(query, sql, name)
	if err != nil {
		return botapi.Bot{}, failed(ctx, "looking up a bot", err)
	}
	bot, err := pgx.CollectExactlyOneRow(rows, scanWireBot)
	if errors.Is(err, pgx.ErrNoRows) {
		return botapi.Bot{}, botapi.ErrBotNotFound
	}
	if err != nil {
		return botapi.Bot{}, failed(ctx, "looking up a bot", err)
	}
	return bot, nil
}

func scanWireBot(row pgx.CollectableRow) (bot botapi.Bot, err error) {
	err = row.Scan(&bot.UID, &bot.Slug, &bot.Name, &bot.Description, &bot.WelcomeMessage, &bot.Model, &bot.AvatarURL)
	return bot, err
}

// Settings returns how the published bot with this uid answers, or
// botapi.ErrBotNotFound.
func (d *Database) Settings(ctx context.Context, uid string) (Settings, error) {
	query, cancel := d.bounded(ctx)
	defer cancel()
	var s Settings
	err := d.pool.QueryRow(query, `SELECT instructions, runtime, temperature FROM bots WHERE published AND uid = $1`, uid).
		Scan(&s.Instructions, &s.Runtime, &s.Temperature)
	if errors.Is(err, pgx.ErrNoRows) {
		return Settings{}, botapi.ErrBotNotFound
	}
	if err != nil {
		return Settings{}, failed(ctx, "looking up a bot's settings", err)
	}
	return s, nil
}

// AllBots returns every bot, published or not, in listing order.
func (d *Database) AllBots(ctx context.Context) ([]Bot, error) {
	query, cancel := d.bounded(ctx)
	defer cancel()
	rows, err := d.pool.Query(query, `SELECT `+wireColumns+`, published, instructions, runtime, temperature
		FROM bots ORDER BY position, slug`)
	if err != nil {
		return nil, failed(ctx, "listing all bots", err)
	}
	bots, err := pgx.CollectRows(rows, scanBot)
	if err != nil {
		return nil, failed(ctx, "listing all bots", err)
	}
	return bots, nil
}

func scanBot(row pgx.CollectableRow) (bot Bot, err error) {
	err = row.Scan(&bot.UID, &bot.Slug, &bot.Name, &bot.Description, &bot.WelcomeMessage, &bot.Model, &bot.AvatarURL,
		&bot.Published, &bot.Instructions, &bot.Runtime, &bot.Temperature)
	return bot, err
}

// ImportedBot is one bot of an import. A bot whose Published is nil keeps what
// it has; a new one is not published.
type ImportedBot struct {
	botapi.Bot
	Settings
	Published *bool
}

// ErrSlugTaken is what ImportBots returns, wrapped, when two bots would have the
// same slug.
var ErrSlugTaken = errors.New("two bots would have the same slug")

// ImportBots adds these bots, or replaces those with the same uid, all at once
// or none. A bot that is not valid is a validation.Errors. Their listing order becomes that of the slice. Bots that are not
// named stay as they are.
func (d *Database) ImportBots(ctx context.Context, bots []ImportedBot) error {
	for i, bot := range bots {
		if err := bot.validate(); err != nil {
			return fmt.Errorf("importing bots: bot %d (slug %q): %w", i+1, bot.Slug, err)
		}
	}
	query, cancel := d.bounded(ctx)
	defer cancel()
	err := pgx.BeginFunc(query, d.pool, func(tx pgx.Tx) error {
		for i, bot := range bots {
			if err := importBot(query, tx, i+1, bot); err != nil {
				return err
			}
		}
		return nil
	})
	if isSlugTaken(err) {
		return fmt.Errorf("importing bots: %w: %w", ErrSlugTaken, err)
	}
	if err != nil {
		return failed(ctx, "importing bots", err)
	}
	return nil
}

func (b ImportedBot) validate() error {
	if err := b.Bot.Validate(); err != nil {
		return err
	}
	return validation.ValidateStruct(&b.Settings,
		validation.Field(&b.Temperature, validation.Min(0.0), validation.Max(2.0)))
}

func importBot(ctx context.Context, tx pgx.Tx, position int, bot ImportedBot) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO bots (`+wireColumns+`, position, instructions, runtime, temperature, published)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, coalesce($12, false))
		ON CONFLICT (uid) DO UPDATE SET
			slug = excluded.slug, name = excluded.name, description = excluded.description,
			welcome_message = excluded.welcome_message, model = excluded.model, avatar_url = excluded.avatar_url,
			position = excluded.position, instructions = excluded.instructions, runtime = excluded.runtime,
			temperature = excluded.temperature, published = coalesce($12, bots.published), updated_at = now()`,
		bot.UID, bot.Slug, bot.Name, bot.Description, bot.WelcomeMessage, bot.Model, bot.AvatarURL,
		position, bot.Instructions, bot.Runtime, bot.Temperature, bot.Published)
	return err
}

func isSlugTaken(err error) bool {
	verdict, ok := errors.AsType[*pgconn.PgError](err)
	return ok && verdict.ConstraintName == "bots_slug_unique"
}

// SetPublished shows a bot to clients or hides it. A bot that does not exist
// is botapi.ErrBotNotFound.
func (d *Database) SetPublished(ctx context.Context, slug string, published bool) error {
	query, cancel := d.bounded(ctx)
	defer cancel()
	tag, err := d.pool.Exec(query, `UPDATE bots SET published = $2, updated_at = now() WHERE slug = $1`, slug, published)
	if err != nil {
		return failed(ctx, "publishing or hiding a bot", err)
	}
	if tag.RowsAffected() == 0 {
		return botapi.ErrBotNotFound
	}
	return nil
}
