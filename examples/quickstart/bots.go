package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/eliza"
)

//go:embed bots.json
var builtInBots []byte

// loadBots has the store serve the bots of a file, or the built-in ones if file
// is empty. On an error nothing changes; the error names the file, and the bot
// and its member where it is about one.
func loadBots(store *botapi.MemoryStore, file string) error {
	if file == "" {
		return replaceBots(store, builtInBots)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the bots: %w", err)
	}
	if err := replaceBots(store, data); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func replaceBots(store *botapi.MemoryStore, data []byte) error {
	bots, err := parseBots(data)
	if err != nil {
		return err
	}
	return store.Replace(bots...)
}

// parseBots reads a JSON array of bots, each with the members that it has in
// the list of bots. What makes a bot valid is the store's to say, except that
// its model must be one that the engine knows.
func parseBots(data []byte) ([]botapi.Bot, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(data, &elements); err != nil {
		return nil, describe(err, data)
	}
	if len(elements) == 0 {
		return nil, errors.New("there are no bots in it")
	}
	bots := make([]botapi.Bot, len(elements))
	for i, element := range elements {
		if err := parseBot(element, &bots[i]); err != nil {
			return nil, fmt.Errorf("bot %d (slug %q): %w", i, bots[i].Slug, err)
		}
	}
	return bots, nil
}

// describe says of a JSON error what whoever wrote the file wants to know.
func describe(err error, data []byte) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return errors.New("it must be an array of bots")
	}
	before := data[:max(0, syntax.Offset-1)]
	lineStart := bytes.LastIndexByte(before, '\n') + 1
	line := bytes.Count(before, []byte("\n")) + 1
	column := utf8.RuneCount(before[lineStart:]) + 1
	return fmt.Errorf("line %d, column %d: %w", line, column, err)
}

func parseBot(element json.RawMessage, bot *botapi.Bot) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(element, &members); err != nil {
		return errors.New("it must be an object")
	}
	fields := []struct {
		name  string
		value *string
	}{
		{"slug", &bot.Slug}, // first, since errors name the bot by it
		{"uid", &bot.UID},
		{"name", &bot.Name},
		{"description", &bot.Description},
		{"welcome_message", &bot.WelcomeMessage},
		{"model", &bot.Model},
		{"avatar_url", &bot.AvatarURL},
	}
	for _, field := range fields {
		if err := parseText(members[field.name], field.value); err != nil {
			return fmt.Errorf("%s: %w", field.name, err)
		}
		delete(members, field.name)
	}
	if len(members) > 0 {
		return fmt.Errorf("unknown member %q", slices.Min(slices.Collect(maps.Keys(members))))
	}
	if !slices.Contains(eliza.Models(), bot.Model) {
		return fmt.Errorf("model: %q is none of %s", bot.Model, strings.Join(eliza.Models(), ", "))
	}
	return nil
}

// parseText reads a JSON string; one that is absent or null is empty.
func parseText(value json.RawMessage, text *string) error {
	if value == nil {
		return nil
	}
	if err := json.Unmarshal(value, text); err != nil {
		return errors.New("must be a string")
	}
	return nil
}

// reloadOnHangup has the store read the file again at each SIGHUP, until the
// returned function is called. Requests that are being answered go on with the
// bots they have found.
func reloadOnHangup(store *botapi.MemoryStore, file string, logger *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	var reloading sync.WaitGroup
	reloading.Go(func() {
		for range hangups {
			reload(store, file, logger)
		}
	})
	return func() {
		signal.Stop(hangups)
		close(hangups)
		reloading.Wait()
	}
}

// reload leaves the bots as they are when the file cannot be used.
func reload(store *botapi.MemoryStore, file string, logger *slog.Logger) {
	if err := loadBots(store, file); err != nil {
		logger.Error("bots not reloaded", "error", err)
		return
	}
	logger.Info("bots reloaded", "file", file)
}
