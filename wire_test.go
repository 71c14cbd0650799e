package botapi

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/matryer/is"
)

var updateWire = flag.Bool("update", false, "write the responses of testdata/wire again")

// TestWire plays the conversations of testdata/wire over HTTP/1.1. The README there
// describes their format. A route that asks for the same chats has the same responses.
func TestWire(t *testing.T) {
	files, err := filepath.Glob("testdata/wire/*.txt")
	if err != nil || len(files) < 44 {
		t.Fatalf("only %d conversations: %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseConversation(string(text))
		if err != nil {
			t.Fatal(file, err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				is := is.New(t)
				response := c.play(t)
				if *updateWire {
					before, _, _ := strings.Cut(string(text), "-- response --\n")
					is.NoErr(os.WriteFile(file, []byte(before+"-- response --\n"+response), 0o644))
					return
				}
				is.Equal(response, c.response)
			})
		})
		if rest, isChat := strings.CutPrefix(c.request, "POST /v1/chat "); isChat && !*updateWire {
			c.request = "POST " + routePath + " " + rest
			t.Run(name+", of a route", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { is.New(t).Equal(c.play(t), c.response) })
			})
		}
	}
}

// A conversation is one file of testdata/wire.
type conversation struct {
	options  []string // lines
	request  string
	engine   []string // lines
	response string
}

func parseConversation(text string) (c conversation, err error) {
	before, response, found := strings.Cut(text, "-- response --\n")
	if !found {
		return c, errors.New("no response")
	}
	c.response = response
	for _, section := range strings.Split(before, "\n-- ")[1:] {
		name, content, _ := strings.Cut(section, " --\n")
		lines := strings.Split(strings.Trim(content, "\n"), "\n")
		switch name {
		case "options":
			c.options = lines
		case "request":
			c.request = content
		case "engine":
			c.engine = lines
		default:
			return c, fmt.Errorf("section %q", name)
		}
	}
	return c, nil
}

// play returns the response in the format of the file.
func (c conversation) play(t *testing.T) string {
	is := is.New(t)
	o := testOptions(t, io.Discard)
	o.Routes = []Route{chatRoute(nil)}
	mount, engine := func(h http.Handler) http.Handler { return h }, c.engine
	for _, line := range c.options {
		option, value, _ := strings.Cut(line, " ")
		switch option {
		case "ChatTimeout":
			o.ChatTimeout = parsed(time.ParseDuration(value))
		case "StallTimeout":
			o.StallTimeout = parsed(time.ParseDuration(value))
		case "MaxBodyBytes":
			o.MaxBodyBytes = numberIn(value)
		case "MaxConcurrentChats":
			o.MaxConcurrentChats = numberIn(value)
		case "MaxChatsPerAccount":
			o.MaxChatsPerAccount = numberIn(value)
		case "bots":
			o.Bots = new(MemoryStore)
		case "application":
			mount = cancelledAfter(parsed(time.ParseDuration(strings.TrimPrefix(value, "cancels after "))), StatusError{Status: 503, Detail: "Shutting down", RetryAfter: 5 * time.Second})
		default:
			t.Fatalf("unknown option: %q", line)
		}
	}
	busy := o.MaxConcurrentChats > 0 || o.MaxChatsPerAccount > 0
	if busy {
		engine = append([]string{"wait 1h"}, engine...)
	}
	var steps []wireStep
	for _, line := range engine {
		steps = append(steps, parseStep(t, line))
	}
	o.Engine = engineOf(func(ctx context.Context, _ *ChatRequest, yield func(string, error) bool) {
		for _, step := range steps {
			if !step(ctx, yield) {
				return
			}
		}
	})
	server := serveInMemory(t, mount(New(o)))
	if busy {
		other := server.dial()
		defer other.Close()
		is.NoErr(chatRequest(t, "http://memory", "hi", false).Write(other))
		synctest.Wait()
	}
	conn := server.dial()
	defer conn.Close()
	_, err := io.WriteString(conn, onWire(c.request))
	is.NoErr(err)
	method, _, _ := strings.Cut(c.request, " ")
	received, err := readResponse(conn, method)
	is.NoErr(err)
	return received
}

// parsed returns a value that was parsed from a conversation's line.
func parsed[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func numberIn(text string) int64 { return parsed(strconv.ParseInt(text, 10, 64)) }

// cancelledAfter returns middleware that cancels its requests with a cause.
func cancelledAfter(d time.Duration, cause error) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeoutCause(r.Context(), d, cause)
			defer cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// A wireStep does what one line of an engine says, and reports whether the engine goes on.
type wireStep func(ctx context.Context, yield func(string, error) bool) bool

func parseStep(t *testing.T, line string) wireStep {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case "": // an empty line
		return func(context.Context, func(string, error) bool) bool { return true }
	case "yield":
		return yields(parsed(strconv.Unquote(rest)), nil)
	case "repeat":
		count, text, _ := strings.Cut(rest, " ")
		return yields(strings.Repeat(parsed(strconv.Unquote(text)), int(numberIn(count))), nil)
	case "wait":
		return waits(parsed(time.ParseDuration(rest)))
	case "error":
		return yields("", errors.New(rest))
	case "status":
		status, detail, _ := strings.Cut(rest, " ")
		return yields("", StatusError{Status: int(numberIn(status)), Detail: detail})
	case "invalid":
		return yields("", HTTPValidationError{[]ValidationError{{Loc: []any{"body", rest}, Msg: "ensure this value is less than or equal to 2", Type: "value_error.number.not_le"}}})
	case "panic":
		return func(context.Context, func(string, error) bool) bool { panic(rest) }
	}
	t.Fatalf("unknown step of an engine: %q", line)
	return nil
}

func yields(text string, err error) wireStep {
	return func(_ context.Context, yield func(string, error) bool) bool { return yield(text, err) }
}

func waits(d time.Duration) wireStep {
	return func(ctx context.Context, _ func(string, error) bool) bool {
		select {
		case <-time.After(d):
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// onWire converts a request from the format of the files: it ends the lines of the head in
// CRLF, and removes the newline that ends the section from the body.
func onWire(request string) string {
	head, body, _ := strings.Cut(request, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	head = strings.TrimSuffix(head, "\n")
	if body != "" {
		head += fmt.Sprintf("\nContent-Length: %d", len(body))
	}
	return strings.ReplaceAll(head, "\n", "\r\n") + "\r\n\r\n" + body
}

// readResponse reads a response and returns it in the format of the files: the lines of the
// head end in LF, and chunked bodies are decoded.
func readResponse(from io.Reader, method string) (string, error) {
	var raw strings.Builder
	res, err := http.ReadResponse(bufio.NewReader(io.TeeReader(from, &raw)), &http.Request{Method: method})
	if err != nil {
		return "", err
	}
	head, _, _ := strings.Cut(raw.String(), "\r\n\r\n")
	body, err := io.ReadAll(res.Body)
	text := strings.ReplaceAll(head, "\r\n", "\n") + "\n\n" + string(body)
	if len(body) > 0 && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return text + "-- aborted --\n", nil
	}
	return text, err
}
