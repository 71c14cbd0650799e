package openai_test

import (
	"errors"
	"testing"

	"example.com/botapi"
	"example.com/botapi/examples/openai"
	"example.com/botapi/examples/openai/runtimetest"
	"github.com/matryer/is"
)

// A 404 may be a wrong address: only the runtime's own words say that it lacks the model.
func TestRuntimeSaysThatItLacksTheModel(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   bool
	}{
		"Ollama":                      {404, `{"error":{"message":"model \"m1\" not found, try pulling it first","type":"api_error","param":null,"code":null}}`, true},
		"vLLM":                        {404, `{"error":{"message":"The model ` + "`m1`" + ` does not exist.","type":"NotFoundError","param":"model","code":404}}`, true},
		"old vLLM":                    {404, `{"object":"error","message":"The model ` + "`m1`" + ` does not exist.","type":"NotFoundError","param":null,"code":404}`, true},
		"OpenAI":                      {404, `{"error":{"message":"m1?","type":"invalid_request_error","param":null,"code":"model_not_found"}}`, true},
		"a wrong path of Ollama":      {404, `404 page not found`, false},
		"a wrong path of vLLM":        {404, `{"detail":"Not Found"}`, false},
		"a wrong path of llama.cpp":   {404, `{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}`, false},
		"a wrong path of OpenAI":      {404, `{"error":{"message":"Invalid URL (POST /chat/completions)","type":"invalid_request_error","param":null,"code":null}}`, false},
		"a model that cannot be used": {400, `{"error":{"message":"the model is loading"}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			is := is.New(t)
			runtime := runtimeSays(t, func(s *runtimetest.Stream) { s.Refuse(c.status, c.body) })
			engine, err := openai.NewEngine(openai.Config{BaseURL: runtime.URL, Model: "m1"})
			is.NoErr(err)
			var failure *openai.Failure
			for _, err := range engine.Chat(t.Context(), &botapi.ChatRequest{Messages: []botapi.ChatMessage{{Role: botapi.RoleUser, Content: "Hi"}}}) {
				is.True(errors.As(err, &failure))
			}
			is.Equal(failure.Status, c.status)
			is.Equal(failure.NoModel, c.want)
		})
	}
}
