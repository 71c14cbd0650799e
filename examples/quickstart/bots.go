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
	"sync"
	"syscall"
	"unicode/utf8"

	"example.com/botapi"
	"example.com/botapi/examples/quickstart/guide"
)

//go:embed bots.json
var builtInBots []byte

// questions maps the slugs of the built-in bots to the questions that the chat
// page suggests. Those under "" are for all other bots.
var questions = map[string][]string{
	"guide":   guide.Questions,
	"mira":    {"I am worried about my exam", "I had a strange dream last night", "My brother never listens to me"},
	"juniper": {"My tomatoes have yellow leaves", "I would like to grow something on my balcony", "Slugs eat my lettuce"},
	"model":   {"Explain server-sent events with a short example in Go", "Compare HTTP/1.1 and HTTP/2 in a table", "Write a haiku about waiting"},
	"":        {"Hello! Who are you?", "What can you help me with?"},
}

// firstQuestion returns a question to try the bot with.
func firstQuestion(bot botapi.Bot) string {
	return slices.Concat(questions[bot.Slug], questions[""])[0]
}

// loadBots replaces the store's bots with those of the file, or with the
// built-in bots if no file is set. On an error it changes nothing. The error
// names the file and, where it applies, the bot and its field.
func (s settings) loadBots(store *botapi.MemoryStore) error {
	if s.botsFile == "" {
		return s.replaceBots(store, builtInBots)
	}
	data, err := os.ReadFile(s.botsFile)
	if err != nil {
		return fmt.Errorf("reading the bots: %w", err)
	}
	if err := s.replaceBots(store, data); err != nil {
		return fmt.Errorf("%s: %w", s.botsFile, err)
	}
	return nil
}

func (s settings) replaceBots(store *botapi.MemoryStore, data []byte) error {
	bots, err := parseBots(data, s.engines())
	if err != nil {
		return err
	}
	return store.Replace(s.runtime.join(bots)...)
}

// parseBots reads a JSON array of bots, each with the fields that it has in the
// list of bots. It checks that there is an engine for each bot's model; the
// store validates everything else.
func parseBots(data []byte, engines engines) ([]botapi.Bot, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(data, &elements); err != nil {
		return nil, describe(err, data)
	}
	if len(elements) == 0 {
		return nil, errors.New("there are no bots in it")
	}
	bots := make([]botapi.Bot, len(elements))
	for i, element := range elements {
		if err := parseBot(element, engines, &bots[i]); err != nil {
			return nil, fmt.Errorf("bot %d (slug %q): %w", i, bots[i].Slug, err)
		}
	}
	return bots, nil
}

// describe adds the line and column to a JSON syntax error.
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

func parseBot(element json.RawMessage, engines engines, bot *botapi.Bot) error {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(element, &values); err != nil {
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
		if err := parseText(values[field.name], field.value); err != nil {
			return fmt.Errorf("%s: %w", field.name, err)
		}
		delete(values, field.name)
	}
	if len(values) > 0 {
		return fmt.Errorf("unknown field %q", slices.Min(slices.Collect(maps.Keys(values))))
	}
	if engines[bot.Model] == nil {
		return fmt.Errorf("model: %q is not one of %s", bot.Model, engines.names())
	}
	return nil
}

// parseText reads a JSON string. An absent or null value counts as empty.
func parseText(value json.RawMessage, text *string) error {
	if value == nil {
		return nil
	}
	if err := json.Unmarshal(value, text); err != nil {
		return errors.New("must be a string")
	}
	return nil
}

// reloadOnHangup reloads the bots file on each SIGHUP until the returned
// function is called. Running requests keep the bot that they have looked up.
func (s settings) reloadOnHangup(store *botapi.MemoryStore, logger *slog.Logger) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	var reloading sync.WaitGroup
	reloading.Go(func() {
		for range hangups {
			s.reload(store, logger)
		}
	})
	return func() {
		signal.Stop(hangups)
		close(hangups)
		reloading.Wait()
	}
}

// reload keeps the current bots if the file has an error.
func (s settings) reload(store *botapi.MemoryStore, logger *slog.Logger) {
	if err := s.loadBots(store); err != nil {
		logger.Error("bots not reloaded", "error", err)
		return
	}
	logger.Info("bots reloaded", "file", s.botsFile)
}
