package service

import (
	"context"
	"log/slog"
	"slices"

	"example.com/botapi/examples/production/internal/runtimes"
)

// schemaReady reports whether the database can be used. The first time that it
// can, it sets up what replicas share, since the database's identity is needed
// for that, and checks the bots.
func (r *replica) schemaReady(ctx context.Context) error {
	if err := r.database.SchemaReady(ctx); err != nil {
		return err
	}
	if err := r.share(ctx); err != nil {
		return err
	}
	r.warned.Do(func() { r.warnOfRuntimes(ctx) })
	return nil
}

// warnOfRuntimes logs which bots name a runtime that this replica does not have:
// each of their chats would fail.
func (r *replica) warnOfRuntimes(ctx context.Context) {
	bots, err := r.database.AllBots(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.logger.Warn("the runtimes of the bots could not be checked", slog.Any("error", err))
		return
	}
	missing := make(map[string][]string) // slugs by runtime
	for _, bot := range bots {
		if bot.Runtime != "" && !r.hasRuntime(bot.Runtime) {
			missing[bot.Runtime] = append(missing[bot.Runtime], bot.Slug)
		}
	}
	for runtime, slugs := range missing {
		r.logger.Warn("bots name a runtime that does not exist", slog.String("runtime", runtime), slog.Any("bots", slugs))
	}
}

func (r *replica) hasRuntime(name string) bool {
	return slices.ContainsFunc(r.config.Endpoints, func(e runtimes.Endpoint) bool { return e.Runtime == name })
}
