package runtimes

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/production/internal/postgres"
)

const (
	maxWords = 100_000

	// tokensPerWord turns the requested number of words into a bound on tokens.
	// It is generous: the instructions tell the model when to stop, and the
	// bound is for models that ignore them.
	tokensPerWord = 3
)

// checkExtra returns an error that lists every mistake in Extra.
func checkExtra(extra map[string]json.RawMessage) error {
	_, mistakes := wordsIn(extra)
	mistakes = append(mistakes, openai.CheckExtra(extra)...)
	if len(mistakes) > 0 {
		return &botapi.HTTPValidationError{Detail: mistakes}
	}
	return nil
}

// upstreamRequest is the chat as runtimes get it: the bot's instructions come
// first, and its temperature applies if the client did not choose one. Extra has
// been checked.
func upstreamRequest(req *botapi.ChatRequest, settings postgres.Settings) *botapi.ChatRequest {
	words, _ := wordsIn(req.Extra)
	upstream := *req
	upstream.Extra = make(map[string]json.RawMessage)
	maps.Copy(upstream.Extra, req.Extra)
	if settings.Temperature != nil && numberIn(req.Extra, "temperature") == nil {
		upstream.Extra["temperature"] = strconv.AppendFloat(nil, *settings.Temperature, 'g', -1, 64)
	}
	if tokens := MaxTokens(req, settings); tokens > 0 {
		upstream.Extra["max_tokens"] = strconv.AppendInt(nil, tokens, 10)
		delete(upstream.Extra, "max_completion_tokens") // it would have precedence
	}
	if system := instructions(settings.Instructions, words); system != "" {
		upstream.Messages = slices.Insert(slices.Clone(req.Messages), 0, botapi.ChatMessage{Role: botapi.RoleSystem, Content: system})
	}
	return &upstream
}

// MaxTokens returns how long the answer to a chat may be: the smallest of the
// client's bounds, in words or in tokens, and its bot's. 0 means no maximum. It
// is what the runtime gets as max_tokens.
func MaxTokens(req *botapi.ChatRequest, settings postgres.Settings) (tokens int64) {
	atMost := func(n int64) {
		if n > 0 && (tokens == 0 || n < tokens) {
			tokens = n
		}
	}
	if words, mistakes := wordsIn(req.Extra); len(mistakes) == 0 {
		atMost(words * tokensPerWord)
	}
	for _, name := range []string{"max_tokens", "max_completion_tokens"} {
		if asked := numberIn(req.Extra, name); asked != nil && *asked <= math.MaxInt32 {
			atMost(int64(*asked))
		}
	}
	if settings.MaxTokens != nil {
		atMost(*settings.MaxTokens)
	}
	return tokens
}

func instructions(instructions string, words int64) string {
	if words == 0 {
		return instructions
	}
	limit := fmt.Sprintf("Answer in at most %d words.", words)
	if instructions == "" {
		return limit
	}
	return instructions + "\n\n" + limit
}

// wordsIn reads max_words; 0 means that there is none.
func wordsIn(extra map[string]json.RawMessage) (int64, []botapi.ValidationError) {
	raw, ok := extra["max_words"]
	if !ok || string(raw) == "null" {
		return 0, nil
	}
	var words int64
	if err := json.Unmarshal(raw, &words); err != nil {
		return 0, mistake("value is not a valid integer", "type_error.integer")
	}
	switch {
	case words < 1:
		return 0, mistake("ensure this value is greater than or equal to 1", "value_error.number.not_ge")
	case words > maxWords:
		return 0, mistake(fmt.Sprintf("ensure this value is less than or equal to %d", maxWords), "value_error.number.not_le")
	}
	return words, nil
}

func mistake(message, kind string) []botapi.ValidationError {
	return []botapi.ValidationError{{Loc: []any{"body", "max_words"}, Msg: message, Type: kind}}
}

// numberIn reads a number that CheckExtra has accepted; nil if there is none.
func numberIn(extra map[string]json.RawMessage, name string) (n *float64) {
	if raw, ok := extra[name]; ok {
		_ = json.Unmarshal(raw, &n)
	}
	return n
}
