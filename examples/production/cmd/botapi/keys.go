package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"example.com/botapi/examples/production/internal/postgres"
	"github.com/invopop/validation"
)

type keysCommands struct {
	Create createKeyCommand `cmd:"" help:"Create a key for an account and print it. It is not shown again."`
	Rotate rotateKeyCommand `cmd:"" help:"Create a key that replaces another, and print it. The other key works for a while."`
	Expire expireKeyCommand `cmd:"" help:"Have a key expire after some time, sooner or later than it would have."`
	List   listKeysCommand  `cmd:"" help:"List the keys, without their secrets."`
	Revoke revokeKeyCommand `cmd:"" help:"Revoke a key, or all keys of an account."`
}

type createKeyCommand struct {
	Account string `required:"" placeholder:"ACCOUNT" help:"The account of the key; usage is counted under this name."`
	Label   string `placeholder:"TEXT" help:"What the key is for."`
	expiresAfter
}

// expiresAfter is when a new key expires.
type expiresAfter struct {
	ExpiresAfter *duration `placeholder:"DURATION" help:"How long the new key works, for instance 90d or 36h; by default until it is revoked."`
}

// Validate finds values that parse but are invalid.
func (e *expiresAfter) Validate() error {
	if e.ExpiresAfter != nil && *e.ExpiresAfter == 0 {
		return fmt.Errorf("--expires-after is too small: without it, the key works until it is revoked")
	}
	return nil
}

// lifetime is how long the new key works, 0 for no end.
func (e *expiresAfter) lifetime() time.Duration {
	if e.ExpiresAfter == nil {
		return 0
	}
	return time.Duration(*e.ExpiresAfter)
}

func (c *createKeyCommand) Run(ctx context.Context, d *postgres.Database) error {
	key, id, err := d.CreateKey(ctx, c.Account, c.Label, c.lifetime())
	if _, invalid := errors.AsType[validation.Errors](err); invalid {
		return mistake{err}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "key %d for %s; it is not shown again:\n", id, c.Account)
	fmt.Println(key)
	return nil
}

type rotateKeyCommand struct {
	ID    int64    `arg:"" help:"The number of the old key in keys list."`
	After duration `default:"1d" help:"How long the old key still works, in days or hours (${default}). 0s ends it immediately."`
	expiresAfter
}

func (c *rotateKeyCommand) Help() string {
	return `The new key has the account and the label of the old one. Give it to those who use
the old one: both work until the old one expires. A key is replaced once: if the new
one is lost before anybody has it, rotate the new one.`
}

func (c *rotateKeyCommand) Run(ctx context.Context, d *postgres.Database) error {
	key, id, old, err := d.RotateKey(ctx, c.ID, time.Duration(c.After), c.lifetime())
	if errors.Is(err, postgres.ErrKeyReplaced) {
		return mistakef("%s has already been replaced by key %d: rotate that one, or create a key", nameOf(old), *old.ReplacedBy)
	}
	if err != nil {
		return orNotValid(err, c.ID)
	}
	fmt.Fprintf(os.Stderr, "%s expires at %s UTC; it is replaced by key %d, which is not shown again:\n", nameOf(old), when(old.ExpiresAt), id)
	fmt.Println(key)
	return nil
}

type expireKeyCommand struct {
	ID    int64    `arg:"" help:"The number of the key in keys list."`
	After duration `required:"" placeholder:"DURATION" help:"How long the key still works, for instance 30d or 12h."`
}

func (c *expireKeyCommand) Run(ctx context.Context, d *postgres.Database) error {
	key, err := d.ExpireKey(ctx, c.ID, time.Duration(c.After))
	if err != nil {
		return orNotValid(err, c.ID)
	}
	fmt.Printf("%s expires at %s UTC\n", nameOf(key), when(key.ExpiresAt))
	return nil
}

// orNotValid is err, or a mistake for a key that is not there or has ended.
func orNotValid(err error, id int64) error {
	if errors.Is(err, postgres.ErrKeyNotFound) {
		return mistakef("no valid key has the number %d", id)
	}
	return err
}

// nameOf is how messages name a key.
func nameOf(k postgres.Key) string {
	if k.Label == "" {
		return fmt.Sprintf("key %d of %s", k.ID, oneLine(k.Account))
	}
	return fmt.Sprintf("key %d of %s (%s)", k.ID, oneLine(k.Account), oneLine(k.Label))
}

type listKeysCommand struct {
	Account     string    `placeholder:"ACCOUNT" help:"Only the keys of this account."`
	UnusedSince time.Time `format:"2006-01-02" placeholder:"DAY" help:"Only valid keys that nobody has used since the beginning of this day, as 2026-01-31 in UTC. Keys that were created later are omitted."`
}

// Validate finds values that parse but are invalid.
func (c *listKeysCommand) Validate() error {
	if c.UnusedSince.After(time.Now()) {
		return fmt.Errorf("--unused-since is in the future")
	}
	return nil
}

func (c *listKeysCommand) keys(ctx context.Context, d *postgres.Database) ([]postgres.Key, error) {
	if c.UnusedSince.IsZero() {
		return d.Keys(ctx, c.Account)
	}
	return d.UnusedKeys(ctx, c.Account, c.UnusedSince)
}

func (c *listKeysCommand) Run(ctx context.Context, d *postgres.Database) error {
	keys, err := c.keys(ctx, d)
	if err != nil {
		return err
	}
	return table(func(line func(cells ...any)) {
		line("ID", "ACCOUNT", "LABEL", "CREATED", "LAST USED", "EXPIRES", "REVOKED")
		for _, k := range keys {
			line(k.ID, k.Account, k.Label, when(&k.CreatedAt), when(k.LastUsedAt), when(k.ExpiresAt), when(k.RevokedAt))
		}
	})
}

type revokeKeyCommand struct {
	ID      int64  `arg:"" optional:"" help:"The number of the key in keys list."`
	Account string `placeholder:"ACCOUNT" help:"Revoke all keys of this account, for instance after a leak."`
}

func (c *revokeKeyCommand) Help() string {
	return `A revoked key never works again. Each replica rejects it within its --key-cache
(see serve) at the latest, 10 seconds by default. Chats that have begun go on.`
}

// Validate finds values that parse but are invalid.
func (c *revokeKeyCommand) Validate() error {
	if (c.ID == 0) == (c.Account == "") {
		return fmt.Errorf("either the number of a key or --account is needed")
	}
	return nil
}

func (c *revokeKeyCommand) Run(ctx context.Context, d *postgres.Database) error {
	if c.Account != "" {
		return revokeAccount(ctx, d, c.Account)
	}
	return revokeKey(ctx, d, c.ID)
}

func revokeKey(ctx context.Context, d *postgres.Database, id int64) error {
	key, before, err := d.RevokeKey(ctx, id)
	if errors.Is(err, postgres.ErrKeyNotFound) {
		return mistakef("no key has the number %d", id)
	}
	if err != nil {
		return err
	}
	revoked := "has been revoked"
	if before {
		revoked = "had already been revoked, at " + when(key.RevokedAt) + " UTC"
	}
	fmt.Printf("%s %s\n", nameOf(key), revoked)
	return nil
}

// revokeAccount revokes all keys of an account. An account that never had a key
// is a mistake: somebody in a hurry has misspelt its name.
func revokeAccount(ctx context.Context, d *postgres.Database, account string) error {
	revoked, err := d.RevokeKeys(ctx, account)
	if err != nil {
		return err
	}
	if revoked == 0 {
		keys, err := d.Keys(ctx, account)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			return mistakef("the account %q has no keys", account)
		}
	}
	fmt.Printf("revoked %d keys of %s\n", revoked, oneLine(account))
	return nil
}
