package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"example.com/botapi/examples/production/internal/answers"
	"example.com/botapi/examples/production/internal/limits"
	"example.com/botapi/examples/production/internal/postgres"
	"example.com/botapi/examples/production/internal/redisclient"
	"example.com/botapi/examples/production/internal/service"
	"github.com/invopop/validation"
)

type limitsCommands struct {
	Set    setLimitsCommand    `cmd:"" help:"Set limits of an account, or of everybody else."`
	List   listLimitsCommand   `cmd:"" help:"List the limits."`
	Show   showLimitsCommand   `cmd:"" help:"Show which account uses what of its limits at this moment, over all replicas."`
	Remove removeLimitsCommand `cmd:"" help:"Remove limits of an account, or of everybody else."`
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

// title is how people read the account.
func (a limitedAccount) title() string {
	return cmp.Or(oneLine(a.name()), everybodyElse)
}

const everybodyElse = "(everybody else)"

// now says which limits apply to the account, its own or those of everybody else.
func (a limitedAccount) now(ctx context.Context, d *postgres.Database) (string, error) {
	l, err := d.Limits(ctx, a.name())
	return inWords(&l.ChatsPerMinute, &l.TokensPerDay, &l.ConcurrentChats), err
}

// inWords lists limits, except for those that are nil.
func inWords(chatsPerMinute, tokensPerDay, concurrentChats *int64) string {
	var words []string
	add := func(limit *int64, what string) {
		switch {
		case limit == nil:
		case *limit == 0:
			words = append(words, "unlimited "+what)
		default:
			words = append(words, fmt.Sprint(*limit, " ", what))
		}
	}
	add(chatsPerMinute, "chats per minute")
	add(tokensPerDay, "tokens per day")
	add(concurrentChats, "concurrent chats")
	return strings.Join(words, ", ")
}

type setLimitsCommand struct {
	limitedAccount
	ChatsPerMinute  *int64 `placeholder:"N" help:"Chats that are admitted in any 60 seconds."`
	TokensPerDay    *int64 `placeholder:"N" help:"Prompt and completion tokens in a day of UTC, after which no chat begins."`
	ConcurrentChats *int64 `placeholder:"N" help:"Chats in progress."`
}

func (c *setLimitsCommand) Help() string {
	return `Limits are counted over all replicas that run with --redis. A limit that is not
given stays as it is. An account without one has that of everybody else; without
that, there is no limit. 0 means no limit. Use limits remove to remove one. Replicas
take up to ten seconds to see the change.`
}

// Validate finds values that parse but are invalid.
func (c *setLimitsCommand) Validate() error {
	if err := c.limitedAccount.Validate(); err != nil {
		return err
	}
	if c.ChatsPerMinute == nil && c.TokensPerDay == nil && c.ConcurrentChats == nil {
		return errors.New("no limit is given: use remove to remove limits")
	}
	for flag, value := range map[string]*int64{
		"--chats-per-minute": c.ChatsPerMinute,
		"--tokens-per-day":   c.TokensPerDay,
		"--concurrent-chats": c.ConcurrentChats,
	} {
		if value != nil && *value < 0 {
			return fmt.Errorf("%s is too small", flag)
		}
	}
	return nil
}

func (c *setLimitsCommand) Run(ctx context.Context, d *postgres.Database) error {
	err := d.SetLimits(ctx, postgres.AccountLimits{
		Account:         c.name(),
		ChatsPerMinute:  c.ChatsPerMinute,
		TokensPerDay:    c.TokensPerDay,
		ConcurrentChats: c.ConcurrentChats,
	})
	if _, invalid := errors.AsType[validation.Errors](err); invalid {
		return mistake{err}
	}
	if err != nil {
		return err
	}
	now, err := c.now(ctx, d)
	if err != nil {
		return err
	}
	fmt.Printf("%s: now %s\n", c.title(), now)
	return noteUnknown(ctx, d, c.name())
}

type listLimitsCommand struct{}

func (c *listLimitsCommand) Run(ctx context.Context, d *postgres.Database) error {
	limits, err := d.AllLimits(ctx)
	if err != nil {
		return err
	}
	return table(func(line func(cells ...any)) {
		line("ACCOUNT", "CHATS PER MINUTE", "TOKENS PER DAY", "CONCURRENT CHATS")
		for _, l := range limits {
			line(cmp.Or(l.Account, everybodyElse), number(l.ChatsPerMinute, "-"), number(l.TokensPerDay, "-"), number(l.ConcurrentChats, "-"))
		}
	})
}

type showLimitsCommand struct {
	sharedRedis
	Account string `placeholder:"ACCOUNT" help:"Only this account."`
}

func (c *showLimitsCommand) Help() string {
	return `A number behind a slash is the limit. Accounts that use nothing are omitted.
RESERVED are the tokens that chats in progress may still use. CHATS TODAY are those
that have ended, rejected ones included, and BILLED TODAY is the sum of their tokens
in the usage table: a second or two after the last chat it is that of TOKENS TODAY,
unless Redis was emptied, or a chat was in progress at midnight: it is billed today,
but what it had used by then counted yesterday. Days are in UTC. KEPT BYTES is the
memory of answers in Redis, in progress or kept for clients that return.`
}

// Validate finds what is missing: for serve, Redis is optional.
func (c *showLimitsCommand) Validate() error {
	if c.Redis == "" {
		return errors.New("--redis is needed: what accounts use is counted there")
	}
	return nil
}

func (c *showLimitsCommand) Run(ctx context.Context, d *postgres.Database) error {
	uses, err := c.uses(ctx, d)
	if err != nil {
		return err
	}
	if err := noteUnknown(ctx, d, c.Account); err != nil {
		return err
	}
	return table(func(line func(cells ...any)) {
		line("ACCOUNT", "IN PROGRESS", "LAST MINUTE", "TOKENS TODAY", "RESERVED", "CHATS TODAY", "BILLED TODAY", "KEPT BYTES")
		for _, u := range uses {
			line(u.Account, of(u.InProgress, u.limits.ConcurrentChats), of(u.LastMinute, u.limits.ChatsPerMinute),
				of(u.Today, u.limits.TokensPerDay), u.Reserved, u.chats, u.billed, u.bytes)
		}
	})
}

// of formats a number with its limit.
func of(used, limit int64) string {
	if limit == 0 {
		return fmt.Sprintf("%d/-", used)
	}
	return fmt.Sprintf("%d/%d", used, limit)
}

// use is what an account uses, from Redis and from the database.
type use struct {
	limits.Use
	limits               limits.Limits
	chats, billed, bytes int64
}

// uses returns what each account uses, or the chosen one.
func (c *showLimitsCommand) uses(ctx context.Context, d *postgres.Database) ([]*use, error) {
	all := make(map[string]*use)
	of := func(account string) *use {
		if all[account] == nil {
			all[account] = &use{Use: limits.Use{Account: account}}
		}
		return all[account]
	}
	if err := c.readRedis(ctx, d, of); err != nil {
		return nil, err
	}
	days, err := d.DailyUsage(ctx, c.Account, today(), today())
	if err != nil {
		return nil, err
	}
	for _, day := range days {
		one := of(day.Account)
		one.chats = day.Chats
		if day.PromptTokens != nil {
			one.billed = *day.PromptTokens + *day.CompletionTokens
		}
	}
	if c.Account != "" {
		all = map[string]*use{c.Account: of(c.Account)}
	}
	for _, one := range all {
		if one.limits, err = d.Limits(ctx, one.Account); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *use) int { return cmp.Compare(a.Account, b.Account) }), nil
}

// readRedis reads what Redis has of each account.
func (c *showLimitsCommand) readRedis(ctx context.Context, d *postgres.Database, of func(account string) *use) error {
	identity, err := d.Identity(ctx)
	if err != nil {
		return err
	}
	options := service.RedisOf(identity, c.options())
	if err := redisclient.CheckLogin(ctx, options); err != nil {
		return mistake{err}
	}
	client, err := redisclient.Open(options)
	if err != nil {
		return err
	}
	defer client.Close()
	uses, err := limits.Uses(ctx, client)
	if err != nil {
		return err
	}
	for _, u := range uses {
		of(u.Account).Use = u
	}
	keys, err := d.Keys(ctx, c.Account) // Redis has no names of accounts with answers
	if err != nil {
		return err
	}
	accounts := make([]string, len(keys))
	for i, k := range keys {
		accounts[i] = k.Account
	}
	bytes, err := answers.Bytes(ctx, client, accounts)
	for account, n := range bytes {
		of(account).bytes = n
	}
	return err
}

type removeLimitsCommand struct {
	limitedAccount
	ChatsPerMinute  *bool `help:"Remove this limit."`
	TokensPerDay    *bool `help:"Remove this limit."`
	ConcurrentChats *bool `help:"Remove this limit."`
}

func (c *removeLimitsCommand) Help() string {
	return `If no limit is named, all are removed. Those of everybody else then apply to the
account. To lift one of these for an account instead, set it to 0 there.`
}

// Validate rejects --tokens-per-day=false, which names a limit and does not remove it.
func (c *removeLimitsCommand) Validate() error {
	for _, named := range []*bool{c.ChatsPerMinute, c.TokensPerDay, c.ConcurrentChats} {
		if named != nil && !*named {
			return errors.New("to keep a limit, do not name it")
		}
	}
	return c.limitedAccount.Validate()
}

func (c *removeLimitsCommand) Run(ctx context.Context, d *postgres.Database) error {
	which := postgres.WhichLimits{ChatsPerMinute: c.ChatsPerMinute != nil, TokensPerDay: c.TokensPerDay != nil, ConcurrentChats: c.ConcurrentChats != nil}
	if which == (postgres.WhichLimits{}) {
		which = postgres.WhichLimits{ChatsPerMinute: true, TokensPerDay: true, ConcurrentChats: true}
	}
	removed, err := d.RemoveLimits(ctx, c.name(), which)
	if errors.Is(err, postgres.ErrNoLimits) {
		return mistakef("there are no limits to remove")
	}
	if err != nil {
		return err
	}
	now, err := c.now(ctx, d)
	if err != nil {
		return err
	}
	fmt.Printf("%s: removed %s; now %s\n", c.title(), inWords(removed.ChatsPerMinute, removed.TokensPerDay, removed.ConcurrentChats), now)
	return nil
}
