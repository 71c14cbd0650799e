package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"time"

	"example.com/botapi/examples/production/internal/postgres"
)

type usageCommands struct {
	Show   showUsageCommand   `cmd:"" default:"withargs" help:"Add up usage by day and account. The default."`
	Delete deleteUsageCommand `cmd:"" help:"Delete old records."`
}

type showUsageCommand struct {
	Account string    `placeholder:"ACCOUNT" help:"Only the usage of this account."`
	From    time.Time `format:"2006-01-02" placeholder:"DAY" help:"The first day, as 2026-01-31; by default 30 days before the last."`
	To      time.Time `format:"2006-01-02" placeholder:"DAY" help:"The last day; by default today."`
	CSV     bool      `help:"As CSV, for other programs."`
}

func (c *showUsageCommand) Help() string {
	return `Days are in UTC. COMPLETE counts the chats whose model has answered completely,
REJECTED those that asked no model, for instance because a limit was reached. JOINS
are requests that got the answer of such a chat, and are no chats. Tokens are as the
model runtime reports them. If it does not report them, or if an answer is incomplete,
they are estimated from the texts. COUNTED is the number of chats that have tokens,
ESTIMATED the number of those with estimates.`
}

func (c *showUsageCommand) Run(ctx context.Context, d *postgres.Database) error {
	if c.To.IsZero() {
		c.To = today()
	}
	if c.From.IsZero() {
		c.From = c.To.AddDate(0, 0, -30)
	}
	if c.To.Before(c.From) {
		return mistakef("--from is after --to")
	}
	days, err := d.DailyUsage(ctx, c.Account, c.From, c.To)
	if err != nil {
		return err
	}
	if err := noteUnknown(ctx, d, c.Account); err != nil {
		return err
	}
	if c.CSV {
		return usageCSV(days)
	}
	return usageTable(days)
}

// today is the current day in UTC.
func today() time.Time { return time.Now().UTC().Truncate(24 * time.Hour) }

func usageTable(days []postgres.DailyUsage) error {
	return table(func(line func(cells ...any)) {
		line("DAY", "ACCOUNT", "CHATS", "COMPLETE", "REJECTED", "JOINS", "BYTES", "COUNTED", "ESTIMATED", "PROMPT TOKENS", "COMPLETION TOKENS")
		for _, d := range days {
			line(d.Day.Format(time.DateOnly), d.Account, d.Chats, d.Complete, d.Rejected, d.Joins, d.Bytes, d.Counted, d.Estimated,
				number(d.PromptTokens, "-"), number(d.CompletionTokens, "-"))
		}
	})
}

func usageCSV(days []postgres.DailyUsage) error {
	lines := [][]string{{"day", "account", "chats", "complete", "bytes", "counted", "prompt_tokens", "completion_tokens", "estimated", "rejected", "joins"}}
	for _, d := range days {
		lines = append(lines, []string{d.Day.Format(time.DateOnly), d.Account, fmt.Sprint(d.Chats), fmt.Sprint(d.Complete),
			fmt.Sprint(d.Bytes), fmt.Sprint(d.Counted), number(d.PromptTokens, ""), number(d.CompletionTokens, ""), fmt.Sprint(d.Estimated), fmt.Sprint(d.Rejected), fmt.Sprint(d.Joins)})
	}
	return csv.NewWriter(os.Stdout).WriteAll(lines)
}

// number formats a number, or returns none if there is none.
func number(n *int64, none string) string {
	if n == nil {
		return none
	}
	return fmt.Sprint(*n)
}

type deleteUsageCommand struct {
	KeepDays int `required:"" placeholder:"N" help:"How many days to keep, today not counted."`
	Batch    int `default:"1000" placeholder:"N" help:"How many records to delete at a time (${default})."`
}

func (c *deleteUsageCommand) Help() string {
	return `Safe beside running replicas, to be interrupted, and to be run again: for cron,
or for a timer of systemd.`
}

// Validate finds values that parse but are invalid.
func (c *deleteUsageCommand) Validate() error {
	if c.KeepDays < 0 || c.Batch < 1 {
		return fmt.Errorf("--keep-days or --batch is too small")
	}
	if c.KeepDays > maxKeepDays {
		return fmt.Errorf("--keep-days is more than %d", maxKeepDays)
	}
	return nil
}

// maxKeepDays is a century. Far beyond that, the cut-off day overflows into the
// future, and all usage would be deleted.
const maxKeepDays = 36_500

func (c *deleteUsageCommand) Run(ctx context.Context, d *postgres.Database) error {
	before := today().AddDate(0, 0, -c.KeepDays)
	deleted, err := d.DeleteUsage(ctx, before, c.Batch)
	fmt.Printf("deleted %d records of before %s\n", deleted, before.Format(time.DateOnly))
	return err
}
