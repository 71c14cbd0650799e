// Command oapi-codegen talks to a bot service through the client that
// oapi-codegen generates from openapi.json:
//
//	go generate ./oapi-codegen
//	go run ./oapi-codegen URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]
package main

//go:generate go tool oapi-codegen -config config.yaml ../../../../openapi.json

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"

	"example.com/botapi/examples/generated/go/stream"
)

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: oapi-codegen URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, key, answerPrompt, streamPrompt string, prompts []string) error {
	client, err := NewClientWithResponses(url, WithRequestEditorFn(bearer(key)))
	if err != nil {
		return err
	}
	bots, err := client.ListBotsWithResponse(ctx, nil)
	if err != nil {
		return err
	}
	if bots.JSON200 == nil {
		return fmt.Errorf("listing the bots: %s", bots.Body)
	}
	var names []string
	for _, bot := range *bots.JSON200 {
		names = append(names, bot.Name+" "+valueOr(bot.AvatarUrl, "without a picture"))
	}
	fmt.Println("bots:", strings.Join(names, ", "))
	slug := (*bots.JSON200)[0].Slug

	answer, err := client.ChatWithResponse(ctx, nil, ChatRequest{BotSlug: &slug, Prompt: &answerPrompt})
	if err != nil {
		return err
	}
	fmt.Println("answer:", answer.JSON200.Content)
	if err := showStream(ctx, client, slug, streamPrompt); err != nil {
		return err
	}
	return showErrors(ctx, url, client, slug, prompts)
}

func bearer(key string) RequestEditorFn {
	return func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+key)
		return nil
	}
}

func valueOr(value *string, otherwise string) string {
	if value == nil {
		return otherwise
	}
	return *value
}

// showStream uses the method that returns the response unread.
func showStream(ctx context.Context, client *ClientWithResponses, slug, prompt string) error {
	messages := []ChatMessage{{Role: User, Content: prompt}}
	response, err := client.Chat(ctx, nil, ChatRequest{BotSlug: &slug, Messages: &messages, Stream: true})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := stream.Text(response.Body)
	if err != nil {
		text = fmt.Sprintf("%q, then %v", text, err)
	}
	fmt.Println("stream:", text)
	return nil
}

func showErrors(ctx context.Context, url string, client *ClientWithResponses, slug string, prompts []string) error {
	wrongKey, err := NewClientWithResponses(url, WithRequestEditorFn(bearer("unknown")))
	if err != nil {
		return err
	}
	hello, unknown, large := "Hello", "nobody", strings.Repeat("a", 2<<20)
	requests := []struct {
		name   string
		client *ClientWithResponses
		body   ChatRequest
	}{
		{"wrong key", wrongKey, ChatRequest{BotSlug: &slug, Prompt: &hello}},
		{"no bot", client, ChatRequest{BotSlug: &unknown, Prompt: &hello}},
		{"too large", client, ChatRequest{BotSlug: &slug, Prompt: &large}},
		{"invalid", client, ChatRequest{BotSlug: &slug}},
	}
	for _, r := range requests {
		if err := showError(ctx, r.client, r.name, r.body); err != nil {
			return err
		}
	}
	for _, prompt := range prompts {
		if err := showError(ctx, client, prompt, ChatRequest{BotSlug: &slug, Prompt: &prompt}); err != nil {
			return err
		}
	}
	return nil
}

func showError(ctx context.Context, client *ClientWithResponses, name string, body ChatRequest) error {
	response, err := client.ChatWithResponse(ctx, nil, body)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d %s\n", name, response.StatusCode(), detail(response))
	return nil
}

// detail returns the error's text. The generator makes a field for each status.
func detail(r *ChatResponse) string {
	if r.JSON422 != nil {
		problem := r.JSON422.Detail[0]
		where, _ := json.Marshal(problem.Loc)
		return string(where) + " " + problem.Msg
	}
	e := cmp.Or(r.JSON400, r.JSON401, r.JSON404, r.JSON408, r.JSON413, r.JSON429, r.JSON500, r.JSON503, r.JSON504, r.JSONDefault)
	return e.Detail
}
