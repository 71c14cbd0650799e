package openai_test

import (
	"net/http"
	"strings"
	"testing"

	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// What the client can change in its request is a 422 that names it, and no failure of the
// runtime.
func TestMistakesOfTheClient(t *testing.T) {
	const (
		ofThisSize  = "the model does not accept a limit of this size"
		notAccepted = "the model does not accept this value"
		ofOpenAI    = `{"error":{"message":"m","type":"invalid_request_error","param":"%","code":"unsupported_value"}}`
	)
	message := func(text string) string { return `{"error":{"message":"` + text + `","type":"invalid_request_error"}}` }
	long := strings.Repeat("word ", 1000)
	for name, c := range map[string]struct {
		extra, prompt string
		upstream      int
		body          string
		field, msg    string // empty: a failure of the runtime
	}{
		"vLLM names the limit": {`"max_tokens":200000`, "Hi", 400, `{"error":{"message":"This model's maximum context length is 131072 tokens. However, you requested 200000 output tokens and your prompt contains at least 3 input tokens, for a total of at least 200003 tokens. Please reduce the length of the input prompt or the number of requested output tokens.","type":"BadRequestError","param":"max_tokens","code":400}}`,
			"max_tokens", ofThisSize},
		"the client's name of the limit": {`"max_completion_tokens":200000`, "Hi", 400, `{"error":{"message":"maximum context length","param":"max_tokens"}}`, "max_completion_tokens", ofThisSize},
		"the conversation is longer":     {`"max_tokens":100`, long, 400, `{"error":{"message":"maximum context length","param":"max_tokens"}}`, "messages", "the conversation is too long for the model"},
		"no limit was sent":              {`"seed":1`, "Hi", 400, `{"error":{"message":"maximum context length","param":"max_tokens"}}`, "messages", "the conversation is too long for the model"},
		"vLLM in 2025":                   {`"max_tokens":8000`, "Hi", 400, message("'max_tokens' or 'max_completion_tokens' is too large: 8000. This model's maximum context length is 4096 tokens and your request has 2778 input tokens (8000 > 4096 - 2778)."), "max_tokens", ofThisSize},
		"SGLang":                         {`"max_tokens":200000`, "Hi", 400, message("Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 200003 tokens: 3 tokens from the input messages and 200000 tokens for the completion."), "max_tokens", ofThisSize},
		"OpenAI":                         {`"max_tokens":9000`, "Hi", 400, `{"error":{"message":"This model's maximum context length is 8192 tokens. However, you requested 9003 tokens (3 in the messages, 9000 in the completion).","code":"context_length_exceeded","param":"messages"}}`, "max_tokens", ofThisSize},
		"TGI":                            {`"max_tokens":9000`, "Hi", 422, message("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3 `inputs` tokens and 9000 `max_new_tokens`"), "max_tokens", ofThisSize},
		"DeepSeek":                       {`"max_tokens":9000`, "Hi", 400, message("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]"), "max_tokens", ofThisSize},
		"the prompt alone is too long":   {`"max_tokens":200000`, "Hi", 400, message("prompt is too long: 208310 tokens > 200000 maximum"), "messages", "the conversation is too long for the model"},
		"an unknown limit":               {`"max_tokens":9`, "Hi", 400, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","param":"max_tokens","code":"unsupported_parameter"}}`, "", ""},
		"a parameter":                    {`"temperature":0.7`, "Hi", 400, strings.Replace(ofOpenAI, "%", "temperature", 1), "temperature", notAccepted},
		"a parameter of Config.Extra":    {`"response_format":{"type":"json_schema"}`, "Hi", 400, strings.Replace(ofOpenAI, "%", "response_format.json_schema", 1), "response_format", notAccepted},
		"a parameter that was not sent":  {`"top_p":1`, "Hi", 400, strings.Replace(ofOpenAI, "%", "temperature", 1), "", ""},
		"a null":                         {`"temperature":null`, "Hi", 400, strings.Replace(ofOpenAI, "%", "temperature", 1), "", ""},
		"a parameter of the engine":      {`"model":"m2"`, "Hi", 400, strings.Replace(ofOpenAI, "%", "model", 1), "", ""},
		"a failure with a parameter":     {`"temperature":0.7`, "Hi", 500, strings.Replace(ofOpenAI, "%", "temperature", 1), "", ""},
		"a message that names a field":   {`"presence_penalty":1`, "Hi", 422, message("Unsupported value: `presence_penalty`"), "presence_penalty", notAccepted},
		"a message that begins with it":  {`"stop":"x"`, "Hi", 400, message("stop: too many"), "stop", notAccepted},
		"an English word":                {`"stop":"x","seed":1`, "Hi", 400, message("we had to stop here; user error"), "", ""},
		"a field that is not passed on":  {`"user":"x"`, "Hi", 400, message("user location is not supported"), "", ""},
		"Mistral":                        {`"seed":1`, "Hi", 400, message("Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"), "messages", "the conversation must end with a message of the user"},
		"a chat template":                {`"seed":1`, "Hi", 500, message("Conversation roles must alternate user/assistant/user/assistant/..."), "messages", "the roles of the messages must alternate between user and assistant"},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Refuse(c.upstream, c.body) })
			service := serve(t, openai.Config{BaseURL: runtime.URL, Extra: []string{"response_format"}})
			response, answer := chat(t, service, `{"bot_slug":"helper","stream":false,"prompt":"`+c.prompt+`",`+c.extra+`}`)
			if c.field == "" {
				is.Equal(response.StatusCode, http.StatusBadGateway)
				return
			}
			is.Equal(response.StatusCode, http.StatusUnprocessableEntity)
			is.True(strings.HasPrefix(answer, `{"detail":[{"loc":["body","`+c.field+`"],"msg":"`+c.msg+`","type":"value_error.`))
		})
	}
}
