package openai_test

import (
	"encoding/json"
	"errors"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"github.com/matryer/is"
)

func TestReadExtra(t *testing.T) {
	for body, want := range map[string]string{
		`{}`:                        `{}`,
		`{"temperature":null}`:      `{}`,
		`{"Temperature":"warm"}`:    `{}`, // another field
		`{"temperature":0}`:         `{"Temperature":0}`,
		`{"top_p":0.5,"top_k":1}`:   `{"TopP":0.5}`,
		`{"stop":"a"}`:              `{"Stop":["a"]}`,
		`{"stop":["a","b"]}`:        `{"Stop":["a","b"]}`,
		`{"max_tokens":5,"seed":7}`: `{"MaxTokens":5,"Seed":7}`,
		`{"max_tokens":5,"max_completion_tokens":6}`:        `{"MaxTokens":6}`,
		`{"presence_penalty":-1,"frequency_penalty":1}`:     `{"PresencePenalty":-1,"FrequencyPenalty":1}`,
		`{"max_completion_tokens":6,"max_tokens":null}`:     `{"MaxTokens":6}`,
		`{"max_completion_tokens":null,"max_tokens":7}`:     `{"MaxTokens":7}`,
		`{"temperature":1,"unknown":{"temperature":[2,3]}}`: `{"Temperature":1}`,
	} {
		t.Run(body, func(t *testing.T) {
			is := is.New(t)
			var extra map[string]json.RawMessage
			is.NoErr(json.Unmarshal([]byte(body), &extra))
			got, err := openai.ReadExtra(extra)
			is.NoErr(err)
			var settings openai.Settings
			is.NoErr(json.Unmarshal([]byte(want), &settings))
			is.Equal(got, settings)
		})
	}
	is := is.New(t)
	_, err := openai.ReadExtra(map[string]json.RawMessage{"temperature": json.RawMessage("3")})
	_, ok := errors.AsType[botapi.HTTPValidationError](err)
	is.True(ok)
}
