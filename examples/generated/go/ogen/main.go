// Command ogen talks to a bot service through the client that ogen generates
// from openapi.json:
//
//	go generate ./ogen
//	go run ./ogen URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]
package main

//go:generate go tool ogen --target client --package client --clean --loglevel error ../../../../openapi.json

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"example.com/botapi/examples/generated/go/ogen/client"
	"example.com/botapi/examples/generated/go/stream"
)

func main() {
	if len(os.Args) < 5 {
		log.Fatal("usage: ogen URL KEY ANSWER-PROMPT STREAM-PROMPT [PROMPT...]")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5:]); err != nil {
		log.Fatal(err)
	}
}

// key implements client.SecuritySource, from which the generated client gets the key of
// a request.
type key string

func (k key) ApiKey(context.Context, client.OperationName) (client.ApiKey, error) {
	return client.ApiKey{Token: string(k)}, nil
}

func run(ctx context.Context, url, apiKey, answerPrompt, streamPrompt string, prompts []string) error {
	service, err := client.NewClient(url, key(apiKey))
	if err != nil {
		return err
	}
	listed, err := service.ListBots(ctx, client.ListBotsParams{})
	if err != nil {
		return err
	}
	bots, ok := listed.(*client.BotListHeaders)
	if !ok {
		return fmt.Errorf("listing the bots: %+v", listed)
	}
	var names []string
	for _, bot := range bots.Response {
		names = append(names, bot.Name+" "+bot.AvatarURL.Or("without a picture"))
	}
	fmt.Println("bots:", strings.Join(names, ", "))
	bot := identifier(bots.Response[0].Slug)

	answered, err := service.Chat(ctx, &client.ChatRequest{BotSlug: bot, Prompt: client.NewOptNilString(answerPrompt)}, client.ChatParams{})
	if err != nil {
		return err
	}
	answer, ok := answered.(*client.BotResponseHeaders)
	if !ok {
		return fmt.Errorf("requesting an answer: %+v", answered)
	}
	fmt.Println("answer:", answer.Response.Content)
	if err := showStream(ctx, service, bot, streamPrompt); err != nil {
		return err
	}
	return showErrors(ctx, url, service, bot, prompts)
}

func identifier(text string) client.OptIdentifier {
	return client.NewOptIdentifier(client.NewStringIdentifier(text))
}

func showStream(ctx context.Context, service *client.Client, bot client.OptIdentifier, prompt string) error {
	messages := []client.ChatMessage{{Role: client.ChatMessageRoleUser, Content: prompt}}
	answered, err := service.Chat(ctx, &client.ChatRequest{BotSlug: bot, Messages: client.NewOptNilChatMessageArray(messages), Stream: true}, client.ChatParams{})
	if err != nil {
		return err
	}
	answer, ok := answered.(*client.ChatOKRawTextEventStream)
	if !ok {
		return fmt.Errorf("requesting a stream: %+v", answered)
	}
	defer answer.Response.Body.Close()
	text, err := stream.Text(answer.Response.Body)
	if err != nil {
		text = fmt.Sprintf("%q, then %v", text, err)
	}
	fmt.Println("stream:", text)
	return nil
}

func showErrors(ctx context.Context, url string, service *client.Client, bot client.OptIdentifier, prompts []string) error {
	wrongKey, err := client.NewClient(url, key("unknown"))
	if err != nil {
		return err
	}
	hello, large := client.NewOptNilString("Hello"), client.NewOptNilString(strings.Repeat("a", 2<<20))
	requests := []struct {
		name    string
		service *client.Client
		body    client.ChatRequest
	}{
		{"wrong key", wrongKey, client.ChatRequest{BotSlug: bot, Prompt: hello}},
		{"no bot", service, client.ChatRequest{BotSlug: identifier("nobody"), Prompt: hello}},
		{"too large", service, client.ChatRequest{BotSlug: bot, Prompt: large}},
		{"invalid", service, client.ChatRequest{BotSlug: bot}},
	}
	for _, prompt := range prompts {
		requests = append(requests, requests[0])
		last := &requests[len(requests)-1]
		last.name, last.service, last.body.Prompt = prompt, service, client.NewOptNilString(prompt)
	}
	for _, r := range requests {
		response, err := r.service.Chat(ctx, &r.body, client.ChatParams{})
		fmt.Println(r.name+":", reason(response, err))
	}
	return nil
}

// reason returns the status and the text of an error. The generator makes a type for each
// status in the document, and an error for all others.
func reason(response client.ChatRes, err error) string {
	var other *client.HostErrorStatusCodeWithHeaders
	switch r := response.(type) {
	case nil:
		if errors.As(err, &other) {
			return fmt.Sprintf("%d %s", other.StatusCode, other.Response.Detail)
		}
		return err.Error()
	case *client.UnauthorizedHeaders:
		return "401 " + r.Response.Detail
	case *client.BotNotFoundHeaders:
		return "404 " + r.Response.Detail
	case *client.BodyTooLargeHeaders:
		return "413 " + r.Response.Detail
	case *client.ValidationFailedHeaders:
		problem := r.Response.Detail[0]
		where, _ := json.Marshal(problem.Loc)
		return "422 " + string(where) + " " + problem.Msg
	case *client.TooManyChatsForKeyHeaders:
		return "429 " + r.Response.Detail
	case *client.InternalServerErrorHeaders:
		return "500 " + r.Response.Detail
	case *client.TooManyChatsHeaders:
		return "503 " + r.Response.Detail
	case *client.AnswerTookTooLongHeaders:
		return "504 " + r.Response.Detail
	}
	return fmt.Sprintf("%+v", response)
}
