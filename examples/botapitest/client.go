package botapitest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"example.com/botapi"
)

// Client is a client of a botapi service, for tests. A [Server] has one; for a service that
// the test mounts itself, set URL and Key. It is safe for concurrent use once its fields are
// set.
//
// An error response is a [botapi.StatusError], a 422 with a list a
// [botapi.HTTPValidationError], for errors.AsType. So is the error event of a stream. An
// answer that ends without either is [io.ErrUnexpectedEOF], perhaps wrapped.
type Client struct {
	URL  string       // base address, without /v1
	Key  string       // "" sends no Authorization
	HTTP *http.Client // nil means http.DefaultClient
}

// Chat is a chat that a [Client] sends.
type Chat struct {
	Bot      string               // slug
	BotUID   string               // beside a slug, or in its place
	Prompt   string               // the last message, of the user
	Messages []botapi.ChatMessage // what was said before
	UserID   string
	Extra    map[string]any // further fields of the body

	// IdempotencyKey is for a service with the routes of examples/resume: a chat that is sent
	// again with the same key joins the answer of the first. It has 16 characters at least.
	IdempotencyKey string
	// Header has further headers.
	Header http.Header
}

// Bots returns the list of bots.
func (c *Client) Bots(ctx context.Context) ([]botapi.Bot, error) {
	response, err := c.send(ctx, "GET", "/v1/bots", nil, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var bots []botapi.Bot
	if err := json.NewDecoder(response.Body).Decode(&bots); err != nil {
		return nil, fmt.Errorf("reading the list of bots: %w", err)
	}
	return bots, nil
}

// Ask sends a chat and returns its answer, a JSON response.
func (c *Client) Ask(ctx context.Context, chat Chat) (string, error) {
	response, err := c.chat(ctx, chat, false)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var answer struct{ Content string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return "", fmt.Errorf("reading the answer: %w", err)
	}
	return answer.Content, nil
}

// Stream sends a chat and yields the text of each event as it arrives. An error is the last
// that it yields; without one, the answer is complete. A loop that ends early disconnects.
// Each use of the iterator sends the chat again.
func (c *Client) Stream(ctx context.Context, chat Chat) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		ctx, disconnect := context.WithCancel(ctx)
		defer disconnect()
		response, err := c.chat(ctx, chat, true)
		if err != nil {
			yield("", err)
			return
		}
		defer response.Body.Close()
		stopped := false
		err = readEvents(response.Body, func(text string) bool {
			stopped = !yield(text, nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield("", err)
		}
	}
}

// Stop stops the answer of a chat that was sent with an Idempotency-Key.
func (c *Client) Stop(ctx context.Context, idempotencyKey string) error {
	response, err := c.send(ctx, "DELETE", "/v1/answers", http.Header{"Idempotency-Key": {idempotencyKey}}, nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

func (c *Client) chat(ctx context.Context, chat Chat, stream bool) (*http.Response, error) {
	fields := map[string]any{"stream": stream}
	for name, text := range map[string]string{"bot_slug": chat.Bot, "bot_uid": chat.BotUID, "prompt": chat.Prompt, "user_id": chat.UserID} {
		if text != "" {
			fields[name] = text
		}
	}
	if len(chat.Messages) > 0 {
		fields["messages"] = chat.Messages
	}
	maps.Copy(fields, chat.Extra)
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("writing a chat: %w", err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	maps.Copy(header, chat.Header)
	if chat.IdempotencyKey != "" {
		header.Set("Idempotency-Key", chat.IdempotencyKey)
	}
	return c.send(ctx, "POST", "/v1/chat", header, body)
}

// send returns the response to a request, or its error.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(r.Header, header)
	if c.Key != "" {
		r.Header.Set("Authorization", "Bearer "+c.Key)
	}
	response, err := cmp.Or(c.HTTP, http.DefaultClient).Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		return nil, responseError(response)
	}
	return response, nil
}

// responseError returns the error that an error response stands for.
func responseError(response *http.Response) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("reading a response with status %d: %w", response.StatusCode, err)
	}
	var invalid botapi.HTTPValidationError
	if response.StatusCode == http.StatusUnprocessableEntity && json.Unmarshal(body, &invalid) == nil {
		return invalid
	}
	var failed struct{ Detail string }
	if json.Unmarshal(body, &failed) != nil {
		failed.Detail = string(body[:min(len(body), 300)]) // not the API's own
	}
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
	return botapi.StatusError{Status: response.StatusCode, Detail: failed.Detail, RetryAfter: time.Duration(seconds) * time.Second}
}

// readEvents reads a stream until its end, or until show returns false. It returns nil if the
// answer is complete.
func readEvents(body io.Reader, show func(text string) (more bool)) error {
	lines := bufio.NewScanner(body)
	for failed := false; lines.Scan(); {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		var event struct {
			Content, Detail string
			Status          int
			RetryAfter      int `json:"retry_after"`
		}
		switch {
		case lines.Text() == "event: error":
			failed = true
		case data == "[DONE]":
			_, err := io.Copy(io.Discard, body) // the connection can then be used again
			return err
		case !isData: // a blank line or a comment
		case json.Unmarshal([]byte(data), &event) != nil:
			return fmt.Errorf("reading a stream: this is no event: %.300q", data)
		case failed:
			return botapi.StatusError{Status: event.Status, Detail: event.Detail, RetryAfter: time.Duration(event.RetryAfter) * time.Second}
		case !show(event.Content):
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading a stream: %w", err)
	}
	return fmt.Errorf("reading a stream: it ended without [DONE]: %w", io.ErrUnexpectedEOF)
}
