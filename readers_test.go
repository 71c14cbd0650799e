package botapi

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/matryer/is"

	"example.com/botapi/internal/doctest"
)

// TestDocumentedReaders makes each reader of docs/wire.md read real streams: a complete one
// with a keep-alive, an incomplete one, and an error response.
func TestDocumentedReaders(t *testing.T) {
	t.Parallel() // it waits for other programs
	programs := map[string]struct {
		run      []string
		rejected string // what it prints of an error response
		after    string // code after the reader, which prints what it reads
	}{
		"python": {[]string{"python3", "read.py"}, "It is tired, 429, 2", `
import sys
try:
    for fragment in chat(sys.argv[1] + "/v1/chat", "` + testKey + `", bot_slug="` + echoBot.Slug + `", prompt="Hello"):
        print(fragment, end="", flush=True)
except ChatFailed as error:
    sys.exit(f"{error}, {error.status}, {error.retry_after}")
`},
		"js": {[]string{"node", "read.js"}, "It is tired, 429, 2", `
(async () => {
  for await (const fragment of chat(process.argv[2] + "/v1/chat", "` + testKey + `", { bot_slug: "` + echoBot.Slug + `", prompt: "Hello" })) {
    process.stdout.write(fragment);
  }
})().catch((error) => {
  console.error([error.message, error.status, error.retryAfter].join(", "));
  process.exitCode = 1;
});
`},
		"go": {[]string{"go", "run", "read.go"}, `{"detail":"It is tired"}`, `
func main() {
	req, _ := http.NewRequest("POST", os.Args[1] + "/v1/chat", strings.NewReader(` + "`" + `{"bot_slug": "` + echoBot.Slug + `", "prompt": "Hello", "stream": true}` + "`" + `))
	req.Header.Set("Authorization", "Bearer ` + testKey + `")
	resp, err := http.DefaultClient.Do(req)
	if err == nil && resp.StatusCode != 200 { // readStream reads the body of a 200
		_, _ = io.Copy(os.Stderr, resp.Body)
		os.Exit(1)
	}
	if err == nil {
		err = readStream(resp.Body, func(fragment string) { fmt.Print(fragment) })
	}
	if failed, ok := errors.AsType[*ChatFailed](err); ok {
		fmt.Fprintf(os.Stderr, "%v, %d, %d", failed, failed.Status, failed.RetryAfter)
	}
	if err != nil {
		os.Exit(1)
	}
}
`},
	}
	streams := map[string]struct {
		engine  ChatEngine
		prints  string
		failure string // part of the message; empty for a complete answer
	}{
		"complete": {engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			_ = yield("Good ", nil)
			time.Sleep(20 * time.Millisecond) // for a keep-alive to be sent
			_ = yield("mörning\n[DONE]\u2028", nil)
		}), "Good mörning\n[DONE]\u2028", ""},
		"failed": {engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			_ = yield("Good ", nil) && yield("", StatusError{Status: 503, Detail: "It fell asleep", RetryAfter: 2 * time.Second, Err: errors.New("a bug")})
		}), "Good ", "It fell asleep, 503, 2"},
		"rejected": {engineOf(func(_ context.Context, _ *ChatRequest, yield func(string, error) bool) {
			_ = yield("", StatusError{Status: 429, Detail: "It is tired", RetryAfter: 2 * time.Second})
		}), "", "It is tired"},
	}
	for _, block := range doctest.Blocks(readDocument(t, "docs/wire.md")) {
		program, isReader := programs[block.Language]
		if !isReader {
			continue
		}
		delete(programs, block.Language)
		directory := t.TempDir()
		text := block.Text + program.after
		if block.Language == "go" {
			text = "package main\n\n" + doctest.Imports(text) + text
		}
		is.New(t).NoErr(os.WriteFile(filepath.Join(directory, program.run[len(program.run)-1]), []byte(text), 0o600))
		for name, stream := range streams {
			t.Run(block.Language+" "+name, func(t *testing.T) {
				is := is.New(t)
				if _, err := exec.LookPath(program.run[0]); err != nil {
					t.Skip(program.run[0], " is not installed")
				}
				o := testOptions(t, t.Output())
				o.Engine = stream.engine
				if stream.failure == "" { // a failure that is late would come after a keep-alive, in a stream
					o.KeepAlive = 5 * time.Millisecond
				}
				server := httptest.NewServer(New(o))
				defer server.Close()
				read := exec.CommandContext(t.Context(), program.run[0], append(program.run[1:], server.URL)...)
				read.Dir = directory
				var messages strings.Builder
				read.Stderr = &messages
				printed, err := read.Output()
				is.Equal(string(printed), stream.prints)
				is.Equal(err != nil, stream.failure != "")
				is.True(strings.Contains(messages.String(), stream.failure))
				is.True(name != "rejected" || strings.HasPrefix(messages.String(), program.rejected))
			})
		}
	}
	is.New(t).Equal(len(programs), 0) // the page has a reader for each language
}
