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
	goopenai "github.com/sashabaranov/go-openai"
	"github.com/tmc/langchaingo/llms"
	langchain "github.com/tmc/langchaingo/llms/openai"
)

// openaiGo is github.com/openai/openai-go.
func openaiGo(url, key string) client {
	return clientOf(openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithMaxRetries(0)))
}

// openaiGoIdempotent sends an Idempotency-Key, the same for all requests, and retries.
func openaiGoIdempotent(url, key string) client {
	return clientOf(openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key), option.WithHeader("Idempotency-Key", rand.Text())))
}

// openaiGoRetrying retries without an Idempotency-Key.
func openaiGoRetrying(url, key string) client {
	return clientOf(openai.NewClient(option.WithBaseURL(url), option.WithAPIKey(key)))
}

func clientOf(c openai.Client) client {
	params := func(prompt string) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{Model: "helper", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(prompt)}}
	}
	return client{
		models: func(ctx context.Context) (ids []string, err error) {
			pages := c.Models.ListAutoPaging(ctx)
			for pages.Next() {
				ids = append(ids, pages.Current().ID)
			}
			return ids, pages.Err()
		},
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
		details: func(err error) (int, string) {
			if e, ok := errors.AsType[*openai.Error](err); ok {
				return e.StatusCode, e.Message
			}
			return 0, err.Error()
		},
	}
}

// sashabaranov is github.com/sashabaranov/go-openai.
func sashabaranov(url, key string) client {
	config := goopenai.DefaultConfig(key)
	config.BaseURL = url
	c := goopenai.NewClientWithConfig(config)
	request := func(prompt string) goopenai.ChatCompletionRequest {
		return goopenai.ChatCompletionRequest{Model: "helper", Messages: []goopenai.ChatCompletionMessage{{Role: "user", Content: prompt}}}
	}
	return client{
		models: func(ctx context.Context) (ids []string, err error) {
			list, err := c.ListModels(ctx)
			for _, model := range list.Models {
				ids = append(ids, model.ID)
			}
			return ids, err
		},
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
		details: func(err error) (int, string) {
			if e, ok := errors.AsType[*goopenai.APIError](err); ok {
				return e.HTTPStatusCode, e.Message
			}
			return 0, err.Error()
		},
	}
}

// langchaingo is github.com/tmc/langchaingo. It cannot list models, and has the status
// of an error only in the error's text.
func langchaingo(url, key string) client {
	model, err := langchain.New(langchain.WithBaseURL(url), langchain.WithToken(key), langchain.WithModel("helper"))
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
