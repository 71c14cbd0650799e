package clients

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"regexp"
	"strconv"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	goopenai "github.com/sashabaranov/go-openai"
	"github.com/tmc/langchaingo/llms"
	langchain "github.com/tmc/langchaingo/llms/openai"
)

// openaiGo is github.com/openai/openai-go.
func openaiGo(url, key, model string) client {
	return completionsOf(openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithMaxRetries(0)), model)
}

// openaiGoResponses is the same with the Responses API.
func openaiGoResponses(url, key, model string) client {
	return responsesOf(openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithMaxRetries(0)), model)
}

// openaiGoIdempotent sends an Idempotency-Key, the same for all requests, and retries.
func openaiGoIdempotent(url, key, model string) client {
	return completionsOf(idempotent(url, key), model)
}

func openaiGoResponsesIdempotent(url, key, model string) client {
	return responsesOf(idempotent(url, key), model)
}

func idempotent(url, key string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithHeader("Idempotency-Key", rand.Text()))
}

// openaiGoRetrying retries without an Idempotency-Key.
func openaiGoRetrying(url, key, model string) client {
	return completionsOf(openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key)), model)
}

func completionsOf(c openai.Client, model string) client {
	params := func(prompt string) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(prompt)}}
	}
	return client{
		models: modelsOf(c),
		ask: func(ctx context.Context, prompt string) (string, error) {
			answer, err := c.Chat.Completions.New(ctx, params(prompt))
			if err != nil {
				return "", err
			}
			return answer.Choices[0].Message.Content, nil
		},
		stream: func(ctx context.Context, prompt string, emit func(string)) error {
			chunks := c.Chat.Completions.NewStreaming(ctx, params(prompt))
			defer chunks.Close()
			for chunks.Next() {
				for _, choice := range chunks.Current().Choices {
					emit(choice.Delta.Content)
				}
			}
			return chunks.Err()
		},
		useTool: func(ctx context.Context, prompt string) error {
			request := params(prompt)
			request.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "f"})}
			_, err := c.Chat.Completions.New(ctx, request)
			return err
		},
		details: detailsOf,
	}
}

func responsesOf(c openai.Client, model string) client {
	params := func(prompt string) responses.ResponseNewParams {
		return responses.ResponseNewParams{Model: model, Input: responses.ResponseNewParamsInputUnion{OfString: param.NewOpt(prompt)}}
	}
	return client{
		models: modelsOf(c),
		ask: func(ctx context.Context, prompt string) (string, error) {
			answer, err := c.Responses.New(ctx, params(prompt))
			if err != nil {
				return "", err
			}
			return answer.OutputText(), nil
		},
		stream: func(ctx context.Context, prompt string, emit func(string)) error {
			events := c.Responses.NewStreaming(ctx, params(prompt))
			defer events.Close()
			for events.Next() {
				if event := events.Current(); event.Type == "response.output_text.delta" {
					emit(event.Delta)
				}
			}
			return events.Err()
		},
		useTool: func(ctx context.Context, prompt string) error {
			request := params(prompt)
			request.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("f", nil, true)}
			_, err := c.Responses.New(ctx, request)
			return err
		},
		details: detailsOf,
	}
}

func modelsOf(c openai.Client) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) (ids []string, err error) {
		pages := c.Models.ListAutoPaging(ctx)
		for pages.Next() {
			ids = append(ids, pages.Current().ID)
		}
		return ids, pages.Err()
	}
}

func detailsOf(err error) (int, string) {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e.StatusCode, e.Message
	}
	return 0, err.Error()
}

// sashabaranov is github.com/sashabaranov/go-openai.
func sashabaranov(url, key, model string) client {
	c := sashabaranovClient(url, key)
	request := func(prompt string) goopenai.ChatCompletionRequest {
		return goopenai.ChatCompletionRequest{Model: model, Messages: []goopenai.ChatCompletionMessage{{Role: "user", Content: prompt}}}
	}
	return client{
		models: sashabaranovModels(c),
		ask: func(ctx context.Context, prompt string) (string, error) {
			answer, err := c.CreateChatCompletion(ctx, request(prompt))
			if err != nil {
				return "", err
			}
			return answer.Choices[0].Message.Content, nil
		},
		stream: func(ctx context.Context, prompt string, emit func(string)) error {
			chunks, err := c.CreateChatCompletionStream(ctx, request(prompt))
			if err != nil {
				return err
			}
			defer chunks.Close()
			for {
				chunk, err := chunks.Recv()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				for _, choice := range chunk.Choices {
					emit(choice.Delta.Content)
				}
			}
		},
		useTool: func(ctx context.Context, prompt string) error {
			withTool := request(prompt)
			withTool.Tools = []goopenai.Tool{{Type: "function", Function: &goopenai.FunctionDefinition{Name: "f", Parameters: map[string]any{}}}}
			_, err := c.CreateChatCompletion(ctx, withTool)
			return err
		},
		details: sashabaranovDetails,
	}
}

// sashabaranovResponses is the same with the Responses API.
func sashabaranovResponses(url, key, model string) client {
	c := sashabaranovClient(url, key)
	request := func(prompt string) goopenai.CreateResponseRequest {
		return goopenai.CreateResponseRequest{Model: model, Input: prompt}
	}
	return client{
		models: sashabaranovModels(c),
		ask: func(ctx context.Context, prompt string) (string, error) {
			answer, err := c.CreateResponse(ctx, request(prompt))
			return answer.GetOutputText(), err
		},
		stream: func(ctx context.Context, prompt string, emit func(string)) error {
			events, err := c.CreateResponseStream(ctx, request(prompt))
			if err != nil {
				return err
			}
			defer events.Close()
			for {
				event, err := events.Recv()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				if event.Type == goopenai.ResponseStreamEventOutputTextDelta {
					emit(event.Delta)
				}
			}
		},
		useTool: func(ctx context.Context, prompt string) error {
			withTool := request(prompt)
			withTool.Tools = []goopenai.ResponseTool{goopenai.NewResponseFunctionTool(goopenai.FunctionDefinition{Name: "f"})}
			_, err := c.CreateResponse(ctx, withTool)
			return err
		},
		details: sashabaranovDetails,
	}
}

func sashabaranovClient(url, key string) *goopenai.Client {
	config := goopenai.DefaultConfig(key)
	config.BaseURL = url
	return goopenai.NewClientWithConfig(config)
}

func sashabaranovModels(c *goopenai.Client) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) (ids []string, err error) {
		list, err := c.ListModels(ctx)
		for _, model := range list.Models {
			ids = append(ids, model.ID)
		}
		return ids, err
	}
}

func sashabaranovDetails(err error) (int, string) {
	if e, ok := errors.AsType[*goopenai.APIError](err); ok {
		return e.HTTPStatusCode, e.Message
	}
	return 0, err.Error()
}

// langchaingo is github.com/tmc/langchaingo. It cannot list models, and has the status
// of an error only in the error's text.
func langchaingo(url, key, name string) client {
	model, err := langchain.New(langchain.WithBaseURL(url), langchain.WithToken(key), langchain.WithModel(name))
	if err != nil {
		panic(err)
	}
	status := regexp.MustCompile(`status code:? (\d+)`)
	return client{
		ask: func(ctx context.Context, prompt string) (string, error) {
			return llms.GenerateFromSinglePrompt(ctx, model, prompt)
		},
		stream: func(ctx context.Context, prompt string, emit func(string)) error {
			_, err := llms.GenerateFromSinglePrompt(ctx, model, prompt, llms.WithStreamingFunc(func(_ context.Context, chunk []byte) error {
				emit(string(chunk))
				return nil
			}))
			return err
		},
		useTool: func(ctx context.Context, prompt string) error {
			_, err := llms.GenerateFromSinglePrompt(ctx, model, prompt, llms.WithTools([]llms.Tool{{Type: "function", Function: &llms.FunctionDefinition{Name: "f"}}}))
			return err
		},
		details: func(err error) (int, string) {
			found := status.FindStringSubmatch(err.Error())
			if found == nil {
				return 0, err.Error()
			}
			n, _ := strconv.Atoi(found[1])
			return n, err.Error()
		},
	}
}
