package runtimes

import (
	"encoding/json"
	"fmt"

	"example.com/botapi"
	"example.com/botapi/examples/production/internal/postgres"
	"github.com/openai/openai-go/v3"
)

// tokensPerWord turns the words a client asks for into a bound on tokens. It
// is generous: instructions tell the model to stop in time, and the bound is
// there for models that do not listen.
const tokensPerWord = 3

// completionParams makes the upstream request: the bot's instructions, the
// conversation, and what the client wishes in Extra. The user's id stays here.
func completionParams(req *botapi.ChatRequest, settings postgres.Settings) (openai.ChatCompletionNewParams, error) {
	params := openai.ChatCompletionNewParams{
		Model:         req.Bot.Model,
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	words, temperature, err := wishes(req.Extra)
	if err != nil {
		return params, err
	}
	if temperature == nil {
		temperature = settings.Temperature
	}
	if temperature != nil {
		params.Temperature = openai.Float(*temperature)
	}
	if words != nil {
		// max_tokens, not max_completion_tokens: self-hosted runtimes all know it.
		params.MaxTokens = openai.Int(*words * tokensPerWord)
	}
	if system := instructions(settings.Instructions, words); system != "" {
		params.Messages = append(params.Messages, openai.SystemMessage(system))
	}
	for _, message := range req.Messages {
		params.Messages = append(params.Messages, messageParam(message))
	}
	return params, nil
}

func instructions(instructions string, words *int64) string {
	if words == nil {
		return instructions
	}
	limit := fmt.Sprintf("Answer in at most %d words.", *words)
	if instructions == "" {
		return limit
	}
	return instructions + "\n\n" + limit
}

func messageParam(m botapi.ChatMessage) openai.ChatCompletionMessageParamUnion {
	switch m.Role {
	case botapi.RoleSystem:
		return openai.SystemMessage(m.Content)
	case botapi.RoleAssistant:
		return openai.AssistantMessage(m.Content)
	default:
		return openai.UserMessage(m.Content)
	}
}

const (
	maxWords       = 100_000
	maxTemperature = 2
)

// wishes reads max_words and temperature. Every mistake is listed, in the form
// that the rest of the interface has; other members are not looked at.
func wishes(extra map[string]json.RawMessage) (words *int64, temperature *float64, err error) {
	var mistakes []botapi.ValidationError
	words, wrong := number[int64](extra, "max_words", "integer", 1, maxWords)
	mistakes = append(mistakes, wrong...)
	temperature, wrong = number[float64](extra, "temperature", "float", 0, maxTemperature)
	mistakes = append(mistakes, wrong...)
	if len(mistakes) > 0 {
		return nil, nil, &botapi.HTTPValidationError{Detail: mistakes}
	}
	return words, temperature, nil
}

// number reads a JSON number between two bounds; absent and null are nil.
func number[N int64 | float64](extra map[string]json.RawMessage, field, kind string, lowest, highest N) (*N, []botapi.ValidationError) {
	raw, ok := extra[field]
	if !ok {
		return nil, nil
	}
	var n *N
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, mistake(field, "value is not a valid "+kind, "type_error."+kind)
	}
	switch {
	case n == nil:
		return nil, nil
	case *n < lowest:
		return nil, mistake(field, fmt.Sprintf("ensure this value is greater than or equal to %v", lowest), "value_error.number.not_ge")
	case *n > highest:
		return nil, mistake(field, fmt.Sprintf("ensure this value is less than or equal to %v", highest), "value_error.number.not_le")
	}
	return n, nil
}

func mistake(field, message, kind string) []botapi.ValidationError {
	return []botapi.ValidationError{{Loc: []any{"body", field}, Msg: message, Type: kind}}
}

func invalid(field, message, kind string) error {
	return &botapi.HTTPValidationError{Detail: mistake(field, message, kind)}
}
