package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"example.com/botapi/examples/quickstart/guide"
)

// llms lists the documents for coding assistants, in the form of llmstxt.org: by their own
// titles and headings.
func llms() string {
	return `# botapi

> botapi is a Go package: ` + "`botapi.New(Options)` returns an `http.Handler`" + ` that lists chat bots and answers chats
> in front of any model. The application implements three small interfaces: BotStore, KeyVerifier and ChatEngine.

This server is botapi's quickstart. Its documents are in Markdown.

## For Go programs

- ` + guide.Where("\n| `MaxConcurrentChats` | ", "docs/") + `: a table of every field of ` + "`botapi.Options`" + `, with its default
- ` + "`go doc example.com/botapi Options`" + `, in a module that requires botapi: each field with its contract

## Documents

` + guide.Contents("docs/") + `

## For clients

- OpenAI's clients have the base URL ` + "`/v1` of this server, `useChat` of the AI SDK `/api/chat?bot=SLUG`, Ollama's clients `/ollama`" + `:
  with the same keys, and a bot's slug as the model
- [OpenAPI document](openapi.json): every operation and schema
- [API reference](docs): the same as a page, which sends calls and shows them as programs
`
}

// serveLLMs serves llms.txt.
func serveLLMs() http.Handler {
	text := llms()
	etag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(text)))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", etag)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	})
}

// documentsKey is the context's key of the address of the documents.
type documentsKey struct{}

// withDocuments lets the guide link to the documents at the address that the client uses.
func withDocuments(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if plainHost.MatchString(r.Host) {
			r = r.WithContext(context.WithValue(r.Context(), documentsKey{}, "http://"+r.Host+"/docs/"))
		}
		next.ServeHTTP(w, r)
	})
}

// plainHost matches hosts without characters that have a meaning in Markdown.
var plainHost = regexp.MustCompile(`^[a-zA-Z0-9.:-]+$`)

func documentsAddress(ctx context.Context) string {
	address, _ := ctx.Value(documentsKey{}).(string)
	return address
}
