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

// checkedFields has a check for each field of Extra that is passed to a runtime. An
// invalid value is a 422 that names the field; without the check, the runtime's error
// would be a 502.
var checkedFields = map[string]func(json.RawMessage) (msg, kind string){
	"temperature":           floatBetween(0, 2),
	"top_p":                 floatBetween(0, 1),
	"presence_penalty":      floatBetween(-2, 2),
	"frequency_penalty":     floatBetween(-2, 2),
	"max_tokens":            integerBetween(1, math.MaxInt32),
	"max_completion_tokens": integerBetween(1, math.MaxInt32),
	"seed":                  integerBetween(math.MinInt64, math.MaxInt64),
	"stop":                  stopTexts,
}

// CheckExtra validates the fields of ChatRequest.Extra that an [Engine] passes to
// its runtime: temperature, top_p, presence_penalty, frequency_penalty, max_tokens,
// max_completion_tokens, seed and stop. It ignores other fields; null counts as
// absent.
func CheckExtra(extra map[string]json.RawMessage) (mistakes []botapi.ValidationError) {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		check := checkedFields[name]
		if check == nil || string(extra[name]) == "null" {
			continue
		}
		if msg, kind := check(extra[name]); msg != "" {
			mistakes = append(mistakes, botapi.ValidationError{Loc: []any{"body", name}, Msg: msg, Type: kind})
		}
	}
	return mistakes
}

// Settings are the fields of Extra that [CheckExtra] checks. Absent ones are nil.
type Settings struct {
	Temperature, TopP, PresencePenalty, FrequencyPenalty *float64
	MaxTokens                                            *int64 // max_completion_tokens if present, otherwise max_tokens
	Seed                                                 *int64
	Stop                                                 []string
}

// ReadExtra decodes Extra, for engines of other protocols. Its error is an
// HTTPValidationError with the problems that [CheckExtra] finds.
func ReadExtra(extra map[string]json.RawMessage) (Settings, error) {
	if mistakes := CheckExtra(extra); len(mistakes) > 0 {
		return Settings{}, &botapi.HTTPValidationError{Detail: mistakes}
	}
	s := Settings{
		Temperature:      field[float64](extra, "temperature"),
		TopP:             field[float64](extra, "top_p"),
		PresencePenalty:  field[float64](extra, "presence_penalty"),
		FrequencyPenalty: field[float64](extra, "frequency_penalty"),
		MaxTokens:        cmp.Or(field[int64](extra, "max_completion_tokens"), field[int64](extra, "max_tokens")),
		Seed:             field[int64](extra, "seed"),
	}
	if text := field[string](extra, "stop"); text != nil {
		s.Stop = []string{*text}
	} else if texts := field[[]string](extra, "stop"); texts != nil {
		s.Stop = *texts
	}
	return s, nil
}

// field returns nil if the field is absent, null, or of another type.
func field[T any](extra map[string]json.RawMessage, name string) *T {
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

// stopTexts accepts a string or a list of strings.
func stopTexts(raw json.RawMessage) (msg, kind string) {
	var text string
	var texts []string
	if json.Unmarshal(raw, &text) != nil && json.Unmarshal(raw, &texts) != nil {
		return "str or list of str expected", "type_error.str"
	}
	return "", ""
}
