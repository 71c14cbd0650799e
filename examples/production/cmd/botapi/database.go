package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"github.com/invopop/validation"
)

type migrateCommand struct {
	DryRun bool `help:"Only say which version the schema has, and show the SQL that would be run."`
}

func (c *migrateCommand) Run(ctx context.Context, d *postgres.Database) error {
	version, pending, err := d.Schema(ctx)
	if err != nil {
		return err
	}
	fmt.Println("the schema has version", version)
	if len(pending) == 0 {
		fmt.Println("nothing to do")
		return nil
	}
	if c.DryRun {
		for _, migration := range pending {
			fmt.Printf("would apply %s:\n%s", migration.Name, migration.SQL)
		}
		return nil
	}
	applied, err := d.Migrate(ctx)
	for _, name := range applied {
		fmt.Println("applied", name)
	}
	return err
}

type botsCommands struct {
	Import    importCommand    `cmd:"" help:"Add the bots of a JSON file, or replace those with the same uid."`
	List      listBotsCommand  `cmd:"" help:"List all bots in listing order, including those that are not published."`
	Publish   publishCommand   `cmd:"" help:"Show a bot to clients."`
	Unpublish unpublishCommand `cmd:"" help:"Hide a bot from clients. Chats in progress go on."`
}

type importCommand struct {
	File string `arg:"" help:"The file, or - for standard input."`
	knownRuntimes
}

// knownRuntimes are the runtimes that bots may name.
type knownRuntimes struct {
	Runtime []runtimeName `env:"BOTAPI_RUNTIMES" placeholder:"NAME" help:"The runtimes that bots may name, as for serve: NAME or NAME=URL. Repeat it, or separate by commas."`
}

// check rejects a bot whose chats would all fail.
func (k knownRuntimes) check(slug, runtime string) error {
	if runtime == "" || slices.Contains(k.Runtime, runtimeName(runtime)) {
		return nil
	}
	return mistakef("slug %q: its runtime %q is not among those of --runtime or BOTAPI_RUNTIMES", slug, runtime)
}

// A runtimeName is NAME, or NAME=URL as for serve.
type runtimeName string

func (n *runtimeName) UnmarshalText(text []byte) error {
	name, _, _ := strings.Cut(string(text), "=")
	if name == "" {
		return fmt.Errorf("%q names no runtime", text)
	}
	*n = runtimeName(name)
	return nil
}

func (c *importCommand) Help() string {
	return `The file is a JSON array of bots, in listing order:

  [{
    "uid": "5b6c0a52-4f43-4a36-8b6c-5c0c7f0f6c11", "slug": "helper",
    "name": "Helper", "description": "Answers questions.",
    "welcome_message": "Hello!", "model": "llama3.2", "avatar_url": null,
    "published": true,
    "instructions": "You are a kind assistant.", "runtime": "local", "temperature": 0.7,
    "max_tokens": 2000
  }]

uid, slug, name and model are required. instructions (the system prompt),
runtime, temperature and max_tokens (of an answer) never reach a client. Without
published, an existing bot keeps its state and a new one is hidden. All bots are
imported or none: none if one of them names a runtime that --runtime does not.

Bots that the file does not name keep their positions. The bots of the file are
listed in its order: in the positions that the existing ones had, and then at the
end.`
}

func (c *importCommand) Run(ctx context.Context, d *postgres.Database) error {
	bots, err := readBots(c.File)
	if err != nil {
		return mistake{err}
	}
	for _, bot := range bots {
		if err := c.check(bot.Slug, bot.Runtime); err != nil {
			return err
		}
	}
	err = d.ImportBots(ctx, bots)
	if _, invalid := errors.AsType[validation.Errors](err); invalid || errors.Is(err, postgres.ErrSlugTaken) {
		return mistake{err}
	}
	if err != nil {
		return err
	}
	fmt.Printf("imported %d bots\n", len(bots))
	return noteHidden(ctx, d, bots)
}

// noteHidden names the bots of an import that clients do not see: a new bot without
// published is one of them.
func noteHidden(ctx context.Context, d *postgres.Database, imported []postgres.ImportedBot) error {
	all, err := d.AllBots(ctx)
	var hidden []string
	for _, bot := range all {
		isImported := slices.ContainsFunc(imported, func(i postgres.ImportedBot) bool { return i.UID == bot.UID })
		if isImported && !bot.Published {
			hidden = append(hidden, bot.Slug)
		}
	}
	if len(hidden) > 0 {
		fmt.Printf("hidden until bots publish: %s\n", strings.Join(hidden, ", "))
	}
	return err
}

func readBots(name string) ([]postgres.ImportedBot, error) {
	file := os.Stdin
	if name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, err
		}
		defer file.Close()
	}
	var bots []postgres.ImportedBot
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&bots); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is data after the array of bots", name)
	}
	return bots, nil
}

type listBotsCommand struct{}

func (c *listBotsCommand) Run(ctx context.Context, d *postgres.Database) error {
	bots, err := d.AllBots(ctx)
	if err != nil {
		return err
	}
	return table(func(line func(cells ...any)) {
		line("SLUG", "UID", "PUBLISHED", "MODEL", "RUNTIME", "NAME")
		for _, b := range bots {
			line(b.Slug, b.UID, b.Published, b.Model, b.Runtime, b.Name)
		}
	})
}

type publishCommand struct {
	Slug string `arg:"" help:"The slug of the bot."`
	knownRuntimes
}

func (c *publishCommand) Run(ctx context.Context, d *postgres.Database) error {
	bots, err := d.AllBots(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(bots, func(b postgres.Bot) bool { return b.Slug == c.Slug })
	if i < 0 {
		return mistakef("no bot has the slug %q", c.Slug)
	}
	if err := c.check(c.Slug, bots[i].Runtime); err != nil {
		return err
	}
	return setPublished(ctx, d, c.Slug, true)
}

type unpublishCommand struct {
	Slug string `arg:"" help:"The slug of the bot."`
}

func (c *unpublishCommand) Run(ctx context.Context, d *postgres.Database) error {
	return setPublished(ctx, d, c.Slug, false)
}

func setPublished(ctx context.Context, d *postgres.Database, slug string, published bool) error {
	err := d.SetPublished(ctx, slug, published)
	if errors.Is(err, botapi.ErrBotNotFound) {
		return mistakef("no bot has the slug %q", slug)
	}
	if err != nil {
		return err
	}
	state := "hidden"
	if published {
		state = "published"
	}
	fmt.Printf("%s is %s\n", slug, state)
	return nil
}

// noteUnknown prints a note if an account has no keys: its name may be misspelt.
// It is not an error, since the first key may be created later. The empty
// account is everybody.
func noteUnknown(ctx context.Context, d *postgres.Database, account string) error {
	if account == "" {
		return nil
	}
	keys, err := d.Keys(ctx, account)
	if err == nil && len(keys) == 0 {
		fmt.Fprintf(os.Stderr, "botapi: note: the account %q has no keys\n", account)
	}
	return err
}

// table writes a table, one line for each call of line.
func table(write func(line func(cells ...any))) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	write(func(cells ...any) {
		texts := make([]string, len(cells))
		for i, cell := range cells {
			texts[i] = oneLine(fmt.Sprint(cell))
		}
		fmt.Fprintln(w, strings.Join(texts, "\t"))
	})
	return w.Flush()
}

func when(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.DateTime)
}
