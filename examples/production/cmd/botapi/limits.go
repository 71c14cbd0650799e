package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"example.com/botapi/examples/production/internal/postgres"
	"github.com/invopop/validation"
)

type limitsCommands struct {
	Set    setLimitsCommand    `cmd:"" help:"Set the limits of an account, or of everybody else."`
	List   listLimitsCommand   `cmd:"" help:"List the limits."`
	Remove removeLimitsCommand `cmd:"" help:"Remove the limits of an account, or of everybody else."`
}

// limitedAccount is the account whose limits a command changes.
type limitedAccount struct {
	Account *string `placeholder:"ACCOUNT" help:"Whose limits; by default those of everybody else."`
}

// Validate rejects an empty account: otherwise a script with an empty variable
// would change the limits of everybody else.
func (a limitedAccount) Validate() error {
	if a.Account != nil && *a.Account == "" {
		return errors.New("--account is empty: omit it for everybody else")
	}
	return nil
}

// name is the account as it is stored.
func (a limitedAccount) name() string {
	if a.Account == nil {
		return ""
	}
	return *a.Account
}

type setLimitsCommand struct {
	limitedAccount
	ChatsPerMinute *int64 `placeholder:"N" help:"Chats that are admitted in any 60 seconds."`
	TokensPerDay   *int64 `placeholder:"N" help:"Prompt and completion tokens in a day of UTC, after which no chat begins."`
	ChatsAtOnce    *int64 `placeholder:"N" help:"Chats in progress."`
}

func (c *setLimitsCommand) Help() string {
	return `Limits are counted over all replicas that run with --redis. They replace the
previous ones. A limit that is not given is that of everybody else; for everybody
else, it means no limit. 0 means no limit. Replicas take up to ten seconds to see
the change.`
}

// Validate finds values that parse but are invalid.
func (c *setLimitsCommand) Validate() error {
	if err := c.limitedAccount.Validate(); err != nil {
		return err
	}
	if c.ChatsPerMinute == nil && c.TokensPerDay == nil && c.ChatsAtOnce == nil {
		return errors.New("no limit is given: use remove to remove the limits of an account")
	}
	for flag, value := range map[string]*int64{
		"--chats-per-minute": c.ChatsPerMinute,
		"--tokens-per-day":   c.TokensPerDay,
		"--chats-at-once":    c.ChatsAtOnce,
	} {
		if value != nil && *value < 0 {
			return fmt.Errorf("%s is too small", flag)
		}
	}
	return nil
}

func (c *setLimitsCommand) Run(ctx context.Context, p *program) error {
	return p.with(postgres.Options{}, func(d *postgres.Database) error {
		err := d.SetLimits(ctx, postgres.AccountLimits{
			Account:        c.name(),
			ChatsPerMinute: c.ChatsPerMinute,
			TokensPerDay:   c.TokensPerDay,
			ChatsAtOnce:    c.ChatsAtOnce,
		})
		if _, invalid := errors.AsType[validation.Errors](err); invalid {
			return mistake{err}
		}
		if err != nil {
			return err
		}
		return noteUnknown(ctx, d, c.name())
	})
}

type listLimitsCommand struct{}

func (c *listLimitsCommand) Run(ctx context.Context, p *program) error {
	return p.with(postgres.Options{}, func(d *postgres.Database) error {
		limits, err := d.AllLimits(ctx)
		if err != nil {
			return err
		}
		return table(func(line func(cells ...any)) {
			line("ACCOUNT", "CHATS PER MINUTE", "TOKENS PER DAY", "CHATS AT ONCE")
			for _, l := range limits {
				line(cmp.Or(l.Account, "(everybody else)"), number(l.ChatsPerMinute, "-"), number(l.TokensPerDay, "-"), number(l.ChatsAtOnce, "-"))
			}
		})
	})
}

type removeLimitsCommand struct{ limitedAccount }

func (c *removeLimitsCommand) Run(ctx context.Context, p *program) error {
	return p.with(postgres.Options{}, func(d *postgres.Database) error {
		err := d.RemoveLimits(ctx, c.name())
		if errors.Is(err, postgres.ErrNoLimits) {
			return mistakef("there are no limits to remove")
		}
		return err
	})
}
