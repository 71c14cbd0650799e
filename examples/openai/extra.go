package openai

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"example.com/botapi"
)

// checkedMembers are the members of Extra that are handed on to a runtime, each
// with what it must be. A wrong one gets the client a 422 that says so; the
// runtime's own error would be a 502.
var checkedMembers = map[string]func(json.RawMessage) (msg, kind string){
	"temperature":           floatBetween(0, 2),
	"top_p":                 floatBetween(0, 1),
	"presence_penalty":      floatBetween(-2, 2),
	"frequency_penalty":     floatBetween(-2, 2),
	"max_tokens":            integerBetween(1, math.MaxInt32),
	"max_completion_tokens": integerBetween(1, math.MaxInt32),
	"seed":                  integerBetween(math.MinInt64, math.MaxInt64),
	"stop":                  stopTexts,
}

// CheckExtra says what is wrong with the members of ChatRequest.Extra that an
// [Engine] hands on to its runtime: temperature, top_p, presence_penalty,
// frequency_penalty, max_tokens, max_completion_tokens, seed and stop. Other
// members are not looked at; null counts as absent.
func CheckExtra(extra map[string]json.RawMessage) (mistakes []botapi.ValidationError) {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		check := checkedMembers[name]
		if check == nil || string(extra[name]) == "null" {
			continue
		}
		if msg, kind := check(extra[name]); msg != "" {
			mistakes = append(mistakes, botapi.ValidationError{Loc: []any{"body", name}, Msg: msg, Type: kind})
		}
	}
	return mistakes
}

// Settings are the members of Extra that [CheckExtra] knows. What is absent is nil.
type Settings struct {
	Temperature, TopP, PresencePenalty, FrequencyPenalty *float64
	MaxTokens                                            *int64 // max_completion_tokens, or else max_tokens
	Seed                                                 *int64
	Stop                                                 []string
}

// ReadExtra returns what Extra says, for engines of other protocols. Its error is
// the HTTPValidationError with the list of [CheckExtra].
func ReadExtra(extra map[string]json.RawMessage) (Settings, error) {
	if mistakes := CheckExtra(extra); len(mistakes) > 0 {
		return Settings{}, &botapi.HTTPValidationError{Detail: mistakes}
	}
	s := Settings{
		Temperature:      member[float64](extra, "temperature"),
		TopP:             member[float64](extra, "top_p"),
		PresencePenalty:  member[float64](extra, "presence_penalty"),
		FrequencyPenalty: member[float64](extra, "frequency_penalty"),
		MaxTokens:        cmp.Or(member[int64](extra, "max_completion_tokens"), member[int64](extra, "max_tokens")),
		Seed:             member[int64](extra, "seed"),
	}
	if text := member[string](extra, "stop"); text != nil {
		s.Stop = []string{*text}
	} else if texts := member[[]string](extra, "stop"); texts != nil {
		s.Stop = *texts
	}
	return s, nil
}

// member is nil for what is absent, null, or of another type.
func member[T any](extra map[string]json.RawMessage, name string) *T {
	var value *T
	if json.Unmarshal(extra[name], &value) != nil {
		return nil
	}
	return value
}

func floatBetween(lowest, highest float64) func(json.RawMessage) (msg, kind string) {
	return func(raw json.RawMessage) (msg, kind string) {
		var n float64
		if json.Unmarshal(raw, &n) != nil {
			return "value is not a valid float", "type_error.float"
		}
		return between(n, lowest, highest)
	}
}

func integerBetween(lowest, highest int64) func(json.RawMessage) (msg, kind string) {
	return func(raw json.RawMessage) (msg, kind string) {
		var n int64
		if json.Unmarshal(raw, &n) != nil {
			return "value is not a valid integer", "type_error.integer"
		}
		return between(n, lowest, highest)
	}
}

func between[N int64 | float64](n, lowest, highest N) (msg, kind string) {
	switch {
	case n < lowest:
		return fmt.Sprintf("ensure this value is greater than or equal to %v", lowest), "value_error.number.not_ge"
	case n > highest:
		return fmt.Sprintf("ensure this value is less than or equal to %v", highest), "value_error.number.not_le"
	}
	return "", ""
}

// stopTexts takes one text or a list of them.
func stopTexts(raw json.RawMessage) (msg, kind string) {
	var text string
	var texts []string
	if json.Unmarshal(raw, &text) != nil && json.Unmarshal(raw, &texts) != nil {
		return "str or list of str expected", "type_error.str"
	}
	return "", ""
}
